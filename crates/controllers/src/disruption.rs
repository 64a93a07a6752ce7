//! PodDisruptionBudgets: how many of the selected pods are healthy, are desired healthy, and may be evicted now.
//!
//! The eviction API records an evicted pod in `status.disruptedPods`; it does not count as healthy from then on, for two minutes or
//! until it is deleted. A budget that cannot be computed allows no disruption.

pub mod stale;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, Object, ObjectKey, Shared};
use knarr_apimachinery::labels::Selector;
use knarr_apimachinery::time::seconds;

use crate::action::{Action, reference};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::deployment::rollout_bounds::scaled;
use crate::owner::controller_of;
use crate::pod;
use crate::replicaset::count;

/// How long an evicted pod may take until it has a deletionTimestamp.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_secs(120);
/// The requeue time of a budget that could not be computed.
const RETRY: Duration = Duration::from_secs(30);
const CONDITION: &str = "DisruptionAllowed";

/// See the module.
pub struct Disruptions;

/// The selector of a budget; `None` selects nothing.
fn selector_of(budget: &PodDisruptionBudget) -> Option<Selector> {
    let selector = budget.spec.as_ref()?.selector.as_ref()?;
    Selector::from_label_selector(selector).ok()
}

impl Controller for Disruptions {
    fn name(&self) -> &'static str {
        "controllermanager"
    }

    fn account(&self) -> &'static str {
        "disruption-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![
            &registry::POD_DISRUPTION_BUDGET,
            &registry::POD,
            &registry::REPLICA_SET,
            &registry::DEPLOYMENT,
            &registry::STATEFUL_SET,
            &registry::REPLICATION_CONTROLLER,
        ]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::POD_DISRUPTION_BUDGET) {
            return vec![key];
        }
        let is_pod = changed.kind == &registry::POD;
        let generation = |o: Option<&Object>| o.map(|o| (o.uid().to_string(), o.metadata().generation));
        if !is_pod && generation(changed.old) == generation(changed.new) {
            return Vec::new();
        }
        let Some(object) = changed.object() else {
            return Vec::new();
        };
        let mut budgets = view.list_as::<PodDisruptionBudget>(object.namespace());
        if is_pod {
            budgets.retain(|budget| {
                let selector = selector_of(budget);
                let matches = |o: &Object| {
                    selector
                        .as_ref()
                        .is_some_and(|s| s.matches(o.metadata().labels.as_ref()))
                };
                changed.states().any(matches)
            });
        }
        budgets.iter().map(|b| ObjectKey::of(b.object())).collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let key = context.key;
        let view = context.view;
        let Some(budget) = view.get_as::<PodDisruptionBudget>(&key.namespace, &key.name) else {
            return Vec::new();
        };
        if context.failure.is_some() {
            return Vec::new();
        }
        let about = reference(budget.object());
        let mut pods: Vec<Shared<Pod>> = view.list_as(&key.namespace);
        let selector = selector_of(&budget);
        pods.retain(|p| {
            selector
                .as_ref()
                .is_some_and(|s| s.matches(p.metadata.labels.as_ref()))
        });
        let mut actions = Vec::new();
        if pods.is_empty() {
            actions.push(Action::event(&about, "NoPods", "No matching pods found"));
        }
        let mut status = budget.status.clone().unwrap_or_default();
        match expected(view, &budget, &pods) {
            Err(why) => {
                let message = format!("Failed to calculate the number of expected pods: {why}");
                actions.push(Action::warning(
                    &about,
                    "CalculateExpectedPodCountFailed",
                    message,
                ));
                status.disruptions_allowed = Some(0);
                set_condition(&mut status, "False", "SyncFailed", why.to_string(), context.now);
                actions.extend(write(&budget, status));
                actions.push(Action::RequeueAfter(RETRY));
            }
            Ok(expected) => {
                if expected.has_unmanaged {
                    actions.push(Action::warning(&about, "UnmanagedPods", unmanaged(&budget)));
                }
                let (evicted, recheck) = disrupted(&status, &pods, context.now, &budget, &mut actions);
                let healthy = pods.iter().filter(|p| {
                    !pod::is_deleting(p) && !evicted.contains_key(p.object().name()) && pod::is_ready(p)
                });
                let healthy = count(healthy.count());
                let allowed = if expected.pods <= 0 {
                    0
                } else {
                    (healthy - expected.healthy).max(0)
                };
                status = PodDisruptionBudgetStatus {
                    current_healthy: Some(healthy),
                    desired_healthy: Some(expected.healthy),
                    expected_pods: Some(expected.pods),
                    disruptions_allowed: Some(allowed),
                    disrupted_pods: (!evicted.is_empty()).then_some(evicted),
                    observed_generation: budget.metadata.generation,
                    conditions: status.conditions,
                };
                let (is, reason) = if allowed > 0 {
                    ("True", "SufficientPods")
                } else {
                    ("False", "InsufficientPods")
                };
                set_condition(&mut status, is, reason, String::new(), context.now);
                actions.extend(write(&budget, status));
                actions.extend(recheck.map(Action::RequeueAfter));
            }
        }
        actions
    }
}

fn write(budget: &Shared<PodDisruptionBudget>, status: PodDisruptionBudgetStatus) -> Option<Action> {
    let mut changed = (**budget).clone();
    changed.status = Some(status);
    (changed != **budget).then(|| Action::update_status(changed))
}

fn unmanaged(budget: &PodDisruptionBudget) -> String {
    let selector = budget
        .spec
        .as_ref()
        .and_then(|s| s.selector.clone())
        .unwrap_or_default();
    let labels: Vec<String> = selector
        .match_labels
        .iter()
        .flatten()
        .map(|(k, v)| format!("{k}:{v}"))
        .collect();
    format!(
        "Pods selected by this PodDisruptionBudget (selector: &LabelSelector{{MatchLabels:map[string]string{{{}}},\
         MatchExpressions:[]LabelSelectorRequirement{{}},}}) were found to be unmanaged. As a result, the status of the PDB \
         cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \
         \".spec.minAvailable\" field of the PDB to an integer value.",
        labels
            .iter()
            .map(|l| format!("{l},"))
            .collect::<Vec<_>>()
            .join("")
    )
}

/// Sets the condition; its transition time changes only with its status.
fn set_condition(
    status: &mut PodDisruptionBudgetStatus,
    is: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) {
    let conditions = status.conditions.get_or_insert_default();
    let new = Condition {
        type_: CONDITION.into(),
        status: is.into(),
        reason: reason.into(),
        message,
        observed_generation: status.observed_generation,
        last_transition_time: seconds(now),
    };
    match conditions.iter_mut().find(|c| c.type_ == CONDITION) {
        Some(old) => {
            let since = if old.status == is {
                old.last_transition_time.clone()
            } else {
                seconds(now)
            };
            *old = Condition {
                last_transition_time: since,
                ..new
            };
        }
        None => conditions.push(new),
    }
}

/// Evicted pods that are not deleted yet, and when the first of them times out.
fn disrupted(
    status: &PodDisruptionBudgetStatus,
    pods: &[Shared<Pod>],
    now: Timestamp,
    budget: &Shared<PodDisruptionBudget>,
    actions: &mut Vec<Action>,
) -> (BTreeMap<String, Time>, Option<Duration>) {
    let mut evicted = BTreeMap::new();
    let mut recheck: Option<Duration> = None;
    for pod in pods.iter().filter(|p| !pod::is_deleting(p)) {
        let name = pod.object().name();
        let Some(at) = status.disrupted_pods.as_ref().and_then(|d| d.get(name)) else {
            continue;
        };
        match Duration::try_from(DELETION_TIMEOUT - now.duration_since(at.0)) {
            // At the very moment it has timed out: there is no time left to wait for.
            Ok(left) if !left.is_zero() => {
                recheck = Some(recheck.map_or(left, |r| r.min(left)));
                evicted.insert(name.to_string(), at.clone());
            }
            _ => {
                let namespace = budget.object().namespace();
                let message =
                    format!("Pod was expected by PDB {namespace}/{namespace} to be deleted but it wasn't");
                actions.push(Action::warning(&reference(pod.object()), "NotDeleted", message));
            }
        }
    }
    (evicted, recheck)
}

/// Why it is not known how many pods are expected.
#[derive(Debug, thiserror::Error)]
enum ScaleError {
    #[error("found no controllers for pod {0:?}")]
    NoController(String),
    #[error("{0} does not implement the scale subresource")]
    NotImplemented(&'static str),
}

struct Expected {
    pods: i32,
    healthy: i32,
    has_unmanaged: bool,
}

fn expected(
    view: &dyn View,
    budget: &PodDisruptionBudget,
    pods: &[Shared<Pod>],
) -> Result<Expected, ScaleError> {
    let spec = budget.spec.clone().unwrap_or_default();
    if let Some(max_unavailable) = &spec.max_unavailable {
        let (pods, has_unmanaged) = scale(view, pods)?;
        let healthy = (pods - scaled(max_unavailable, pods, true)).max(0);
        return Ok(Expected {
            pods,
            healthy,
            has_unmanaged,
        });
    }
    match &spec.min_available {
        Some(IntOrString::Int(healthy)) => Ok(Expected {
            pods: count(pods.len()),
            healthy: *healthy,
            has_unmanaged: false,
        }),
        Some(percentage) => {
            let (pods, has_unmanaged) = scale(view, pods)?;
            let healthy = scaled(percentage, pods, true);
            Ok(Expected {
                pods,
                healthy,
                has_unmanaged,
            })
        }
        None => Ok(Expected {
            pods: 0,
            healthy: 0,
            has_unmanaged: false,
        }),
    }
}

/// The sum of the scales of the pods' controllers, and whether some pods have no controller.
fn scale(view: &dyn View, pods: &[Shared<Pod>]) -> Result<(i32, bool), ScaleError> {
    let mut counted: BTreeSet<String> = BTreeSet::new();
    let (mut sum, mut has_unmanaged) = (0_i32, false);
    for pod in pods {
        let Some(owner) = controller_of(&pod.metadata) else {
            has_unmanaged = true;
            continue;
        };
        let namespace = pod.object().namespace();
        let (uid, replicas) = scale_of(view, namespace, owner)?
            .ok_or_else(|| ScaleError::NoController(pod.object().name().to_string()))?;
        if counted.insert(uid) {
            sum = sum.saturating_add(replicas);
        }
    }
    Ok((sum, has_unmanaged))
}

/// The controller with a scale, and its number of replicas.
fn scale_of(
    view: &dyn View,
    namespace: &str,
    owner: &OwnerReference,
) -> Result<Option<(String, i32)>, ScaleError> {
    let is_this = |o: &Object| o.uid() == owner.uid;
    match (owner.api_version.as_str(), owner.kind.as_str()) {
        ("apps/v1", "ReplicaSet") => {
            let Some(set) = view
                .get_as::<ReplicaSet>(namespace, &owner.name)
                .filter(|s| is_this(s.object()))
            else {
                return Ok(None);
            };
            if let Some(above) = controller_of(&set.metadata).filter(|o| o.kind == "Deployment") {
                let deployment = view.get_as::<Deployment>(namespace, &above.name);
                let deployment = deployment.filter(|d| d.object().uid() == above.uid);
                return Ok(deployment.map(|d| {
                    let replicas = d.spec.as_ref().and_then(|s| s.replicas);
                    (above.uid.clone(), replicas.unwrap_or(1))
                }));
            }
            let replicas = set.spec.as_ref().and_then(|s| s.replicas);
            Ok(Some((owner.uid.clone(), replicas.unwrap_or(1))))
        }
        ("apps/v1", "StatefulSet") => {
            let set = view
                .get_as::<StatefulSet>(namespace, &owner.name)
                .filter(|s| is_this(s.object()));
            Ok(set.map(|s| {
                let replicas = s.spec.as_ref().and_then(|s| s.replicas);
                (owner.uid.clone(), replicas.unwrap_or(1))
            }))
        }
        ("v1", "ReplicationController") => {
            let set = view.get_as::<ReplicationController>(namespace, &owner.name);
            Ok(set.filter(|s| is_this(s.object())).map(|s| {
                let replicas = s.spec.as_ref().and_then(|s| s.replicas);
                (owner.uid.clone(), replicas.unwrap_or(1))
            }))
        }
        ("apps/v1", "DaemonSet") => Err(ScaleError::NotImplemented("daemonsets.apps")),
        ("batch/v1", "Job") => Err(ScaleError::NotImplemented("jobs.batch")),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests;
