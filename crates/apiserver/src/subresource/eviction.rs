//! `pods/eviction`: deletes a pod if its PodDisruptionBudget allows it; one that has opted in, after it was replaced
//! ([`replacement`], [`surge`]).

mod replacement;
mod served;
mod surge;

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::api::policy::v1::{Eviction, PodDisruptionBudget};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause;
use knarr_api::kinds::pod::{DISRUPTION_TARGET, is_active, is_ready, phase};
use knarr_api::registry::Registered;
use knarr_api::{Object, Shared, k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::codec;
use knarr_apimachinery::labels::Selector;
use knarr_apimachinery::time::seconds;
use knarr_client::{DeleteOptions, Preconditions, Propagation};
use serde_json::Value;

use crate::admission::Operation;
use crate::cache::change::Filter;
use crate::http::response::success;
use crate::pipeline::Pipeline;
use crate::pipeline::preconditions::check_preconditions;
use crate::pipeline::write::DeleteRequest;
use crate::request::{AdmissionObject, Ctx, Target};

impl Pipeline {
    pub(super) async fn evict(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        eviction: Eviction,
    ) -> Result<Value, Error> {
        if eviction.metadata.name.as_deref() != Some(target.name) {
            return Err(Error::bad_request(
                "name in URL does not match name in Eviction object",
            ));
        }
        let document = codec::to_plain_value(&eviction).map_err(Error::internal)?;
        self.admission
            .validate_request_object(ctx, target, Operation::Create, &document)
            .await?;
        ctx.admission_object = AdmissionObject::None;
        let options = eviction.delete_options.unwrap_or_default();
        ctx.dry_run |= options.dry_run.is_some_and(|d| d.iter().any(|v| v == "All"));
        let preconditions = options.preconditions.unwrap_or_default();
        let mut request = DeleteRequest {
            options: DeleteOptions {
                grace_period_seconds: options.grace_period_seconds,
                preconditions: Preconditions {
                    uid: preconditions.uid,
                    resource_version: preconditions.resource_version,
                },
                propagation: match options.propagation_policy.as_deref() {
                    Some("Orphan") => Some(Propagation::Orphan),
                    Some("Foreground") => Some(Propagation::Foreground),
                    Some("Background") => Some(Propagation::Background),
                    _ => None,
                },
            },
            orphan_dependents: options.orphan_dependents,
            pod_condition: None,
        };
        let has_version = request.options.preconditions.resource_version.is_some();
        let mut attempts = 0;
        loop {
            let Err(error) = self.try_evict(ctx, target, &mut request).await else {
                return success(Some(201), None);
            };
            attempts += 1;
            // The precondition that was added: the pod has changed, and whether it may be evicted is decided again.
            let added = request.options.preconditions.resource_version.take();
            let has_changed = error.is_conflict() && !has_version && added.is_some();
            if !has_changed || attempts == EVICTION_ATTEMPTS {
                return Err(error);
            }
        }
    }

    /// Evicts the pod as it is now. It may add the pod's resourceVersion to the request's preconditions.
    async fn try_evict(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        request: &mut DeleteRequest,
    ) -> Result<(), Error> {
        let pod_target = Target::main(target.kind, target.namespace, target.name);
        let object = self.get(&pod_target)?;
        check_preconditions(target.kind, &request.options.preconditions, &object)?;
        let pod: &Pod = decoded(&object)?;
        let requires_unchanged = if can_ignore_pdb(pod) {
            may_become_ready(pod)
        } else {
            let budget = self.budget_of(pod, target.namespace)?;
            if is_ready(pod) {
                self.surge_first(ctx, &pod_target, pod, &request.options.preconditions)
                    .await?;
            }
            match budget {
                Some(budget) => self.check_budget(ctx, pod, &budget).await?,
                None => false,
            }
        };
        if requires_unchanged && request.options.preconditions.resource_version.is_none() {
            request.options.preconditions.resource_version = Some(object.revision().to_string());
        }
        if object.metadata().deletion_timestamp.is_none() && !ctx.dry_run {
            self.add_disruption_condition(ctx, &pod_target, request).await?;
        }
        self.delete(ctx, &pod_target, request).await?;
        Ok(())
    }

    /// The one budget that covers the pod.
    fn budget_of(&self, pod: &Pod, namespace: &str) -> Result<Option<Shared<PodDisruptionBudget>>, Error> {
        let kind = &registry::POD_DISRUPTION_BUDGET;
        let all = self.cache.of(kind)?.list(&Filter::everything(kind, namespace));
        let mut covering = Vec::new();
        for object in all {
            let Ok(budget) = Shared::<PodDisruptionBudget>::new(object) else {
                continue;
            };
            let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
            let covers = selector.is_some_and(|s| {
                // A selector that does not parse covers nothing, as for the disruption controller.
                Selector::from_label_selector(s).is_ok_and(|s| s.matches(pod.metadata.labels.as_ref()))
            });
            if covers {
                covering.push(budget);
            }
        }
        match covering.len() {
            0 | 1 => Ok(covering.pop()),
            _ => Err(Error::new(
                500,
                "",
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            )),
        }
    }

    /// Checks the budget that covers the pod, and takes one disruption from it. True if the pod may only be deleted
    /// unchanged.
    async fn check_budget(
        &self,
        ctx: &mut Ctx,
        pod: &Pod,
        budget: &PodDisruptionBudget,
    ) -> Result<bool, Error> {
        if !is_ready(pod) {
            let status = budget.status.clone().unwrap_or_default();
            let always = budget
                .spec
                .as_ref()
                .and_then(|s| s.unhealthy_pod_eviction_policy.as_deref())
                == Some("AlwaysAllow");
            let desired = status.desired_healthy.unwrap_or(0);
            if always || (status.current_healthy.unwrap_or(0) >= desired && desired > 0) {
                return Ok(true);
            }
        }
        let name = budget.metadata.name.clone().unwrap_or_default();
        let pod_name = pod.metadata.name.clone().unwrap_or_default();
        let namespace = budget.metadata.namespace.clone().unwrap_or_default();
        let target = Target {
            subresource: "status",
            ..Target::main(&registry::POD_DISRUPTION_BUDGET, &namespace, &name)
        };
        self.update(ctx, &target, &Preconditions::default(), &mut |ctx, old| {
            let mut budget: PodDisruptionBudget = old.to_typed().ok_or_else(|| {
                Error::internal("an object stored as a PodDisruptionBudget does not decode as one")
            })?;
            check_and_decrement(&mut budget, &pod_name, ctx.now)?;
            Ok(budget.into_object())
        })
        .await?;
        Ok(false)
    }

    /// Sets the pod's condition DisruptionTarget before it is deleted (addConditionAndDeletePod).
    async fn add_disruption_condition(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        request: &mut DeleteRequest,
    ) -> Result<(), Error> {
        let status = Target {
            subresource: "status",
            ..*target
        };
        let preconditions = request.options.preconditions.clone();
        let marked = self
            .update(ctx, &status, &preconditions, &mut |ctx, old| {
                let mut pod: Pod = old
                    .to_typed()
                    .ok_or_else(|| Error::internal("an object stored as a Pod does not decode as one"))?;
                let conditions = pod
                    .status
                    .get_or_insert_default()
                    .conditions
                    .get_or_insert_default();
                if !conditions
                    .iter()
                    .any(|c| c.type_ == DISRUPTION_TARGET && c.status == "True")
                {
                    conditions.retain(|c| c.type_ != DISRUPTION_TARGET);
                    conditions.push(PodCondition {
                        type_: DISRUPTION_TARGET.into(),
                        status: "True".into(),
                        reason: Some("EvictionByEvictionAPI".into()),
                        message: Some("Eviction API: evicting".into()),
                        last_transition_time: Some(seconds(ctx.now)),
                        ..PodCondition::default()
                    });
                }
                Ok(pod.into_object())
            })
            .await?;
        if request.options.preconditions.resource_version.is_some() {
            request.options.preconditions.resource_version = Some(marked.revision().to_string());
        }
        Ok(())
    }
}

fn can_ignore_pdb(pod: &Pod) -> bool {
    phase(pod) == "Pending" || !is_active(pod)
}

/// Whether a pod whose budget is ignored may be Ready when it is deleted, and count for the budget by then: it is deleted only unchanged
/// (upstream: shouldEnforceResourceVersion).
fn may_become_ready(pod: &Pod) -> bool {
    is_active(pod)
}

/// How often an eviction is decided on if the pod changes meanwhile. Upstream tries twenty times, with pauses (EvictionsRetry).
const EVICTION_ATTEMPTS: usize = 5;

/// How many evictions may be unconfirmed by the disruption controller (MaxDisruptedPodSize).
const DISRUPTED_PODS_MAX: usize = 2000;

fn check_and_decrement(
    budget: &mut PodDisruptionBudget,
    pod: &str,
    now: k8s_openapi::jiff::Timestamp,
) -> Result<(), Error> {
    let name = budget.metadata.name.clone().unwrap_or_default();
    let generation = budget.metadata.generation.unwrap_or(0);
    let status = budget.status.get_or_insert_default();
    if status.observed_generation.unwrap_or(0) < generation {
        let mut error = Error::too_many_requests(
            "Cannot evict pod as it would violate the pod's disruption budget.",
            10,
        );
        add_cause(
            BUDGET,
            &mut error,
            format!("The disruption budget {name} is still being processed by the server."),
        );
        return Err(error);
    }
    let about = knarr_apimachinery::error::ResourceRef {
        group: "policy",
        resource: "poddisruptionbudget",
        name: &name,
    };
    let allowed = status.disruptions_allowed.unwrap_or(0);
    let (current, desired) = (
        status.current_healthy.unwrap_or(0),
        status.desired_healthy.unwrap_or(0),
    );
    if allowed < 0 {
        return Err(Error::forbidden(about, "pdb disruptions allowed is negative"));
    }
    if status
        .disrupted_pods
        .as_ref()
        .is_some_and(|p| p.len() > DISRUPTED_PODS_MAX)
    {
        return Err(Error::forbidden(
            about,
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        ));
    }
    if allowed == 0 {
        let condition = status
            .conditions
            .iter()
            .flatten()
            .find(|c| c.type_ == "DisruptionAllowed" && c.status == "False");
        let why = match condition {
            Some(c) if c.reason == "SyncFailed" && !c.message.is_empty() => {
                format!(
                    "The disruption budget {name} does not allow evicting pods currently because it failed sync: {}",
                    c.message
                )
            }
            _ if current <= desired => {
                format!(
                    "The disruption budget {name} needs {desired} healthy pods and has {current} currently"
                )
            }
            Some(c) if !c.message.is_empty() => format!(
                "The disruption budget {name} does not allow evicting pods currently ({}): {}",
                c.reason, c.message
            ),
            _ => format!("The disruption budget {name} does not allow evicting pods currently"),
        };
        let mut error = Error::too_many_requests(
            "Cannot evict pod as it would violate the pod's disruption budget.",
            0,
        );
        add_cause(BUDGET, &mut error, why);
        return Err(error);
    }
    status.disruptions_allowed = Some(allowed - 1);
    status
        .disrupted_pods
        .get_or_insert_default()
        .insert(pod.to_string(), seconds(now));
    Ok(())
}

fn decoded<T: 'static>(object: &Object) -> Result<&T, Error> {
    let kind = object.kind().kind();
    object
        .get()
        .ok_or_else(|| Error::internal(format!("an object stored as a {kind} does not decode as one")))
}

/// The reason of a cause.
const BUDGET: &str = "DisruptionBudget";

fn add_cause(reason: &str, error: &mut Error, message: String) {
    error.status_mut().details.get_or_insert_default().causes = Some(vec![StatusCause {
        reason: Some(reason.into()),
        message: Some(message),
        field: None,
    }]);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn p5_a_pod_that_ignores_its_budget_is_deleted_only_unchanged_while_it_may_become_ready() {
        // The phase, whether it is being deleted -> whether its budget is ignored, whether it has to be unchanged.
        for (phase, deleting, ignores, unchanged) in [
            ("Pending", false, true, true),
            ("Pending", true, true, false),
            ("Running", true, true, false),
            ("Succeeded", false, true, false),
            ("Failed", false, true, false),
            ("Running", false, false, true),
        ] {
            let mut pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}})).unwrap();
            pod.status.get_or_insert_default().phase = Some(phase.into());
            let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
            pod.metadata.deletion_timestamp = deleting.then(|| seconds(now));
            let found = (can_ignore_pdb(&pod), may_become_ready(&pod));
            assert_eq!(found, (ignores, unchanged), "{phase} {deleting}");
        }
    }
}
