//! Admission: the built-in plugins in Kubernetes' default order, one file a plugin.
//!
//! The stages of the write pipeline (`pipeline/stages.rs`) call it: mutating admission completes the object before it is validated, and
//! validating admission checks the object that would be stored. In both, `plugins` are built in and `extensions` are policies and webhooks.
//! ResourceQuota comes last, so that nothing is charged for an object that another plugin denies.
//!
//! NodeRestriction is a stage of its own: a node gets its denial before the errors of the object's fields.

mod certificates;
mod default_class;
mod default_toleration_seconds;
pub(crate) mod extension;
mod limit_ranger;
mod mountable_secrets;
mod namespace_lifecycle;
mod network_agent;
pub(crate) mod node_restriction;
mod node_taint;
mod persistent_volume_claim_resize;
mod pod_resize;
mod pod_security;
pub(crate) mod pod_topology_labels;
mod priority;
pub(crate) mod quota_ledger;
mod resource_quota;
mod runtime_class;
mod service_account;
mod storage_in_use;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::{AnyObject, Object, k8s_openapi};
use knarr_apimachinery::Error;
use tokio::time::Instant;

use self::extension::CompiledPolicies;
use self::quota_ledger::QuotaLedger;
use crate::authz::Authorizer;
use crate::cache::Cache;
use crate::conversion::Converter;
use crate::metrics::{AdmissionType, Metrics};
use crate::request::{Ctx, Target};
use crate::seams::Entropy;

/// Admission: what its plugins, policies and webhooks read, and what they keep between requests.
pub(crate) struct Admission {
    cache: Arc<Cache>,
    authorizer: Arc<dyn Authorizer>,
    converter: Arc<Converter>,
    entropy: Arc<dyn Entropy>,
    quota_ledger: QuotaLedger,
    policies: CompiledPolicies,
    metrics: Arc<Metrics>,
}

/// The operation of a request (admission.Operation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

/// A request as admission sees it (admission.Attributes). The object to be written is passed separately.
#[derive(Clone, Copy)]
pub(crate) struct Attributes<'a> {
    pub target: &'a Target<'a>,
    pub operation: Operation,
    /// As it is stored; `None` for a create.
    pub old: Option<&'a Arc<Object>>,
}

impl Attributes<'_> {
    /// Whether the stored object has a deletionTimestamp.
    fn is_terminating(&self) -> bool {
        self.old
            .is_some_and(|o| o.metadata().deletion_timestamp.is_some())
    }

    /// The error (403) that denies the object with this metadata.
    fn forbidden(&self, meta: &ObjectMeta, why: &str) -> Error {
        let name = match self.target.name {
            "" => resource_name(meta),
            name => name,
        };
        Error::forbidden(self.target.kind.resource_ref(name), why)
    }
}

/// Why a plugin denies an object: the end of the message of [`Attributes::forbidden`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
struct Denial(String);

fn deny(why: impl Into<String>) -> Result<(), Denial> {
    Err(Denial(why.into()))
}

/// The object's name for an error; its generateName if the name is not generated yet.
fn resource_name(meta: &ObjectMeta) -> &str {
    let given = |name: &'_ Option<String>| name.as_deref().filter(|n| !n.is_empty()).is_some();
    match (&meta.name, &meta.generate_name) {
        (Some(name), _) if given(&meta.name) => name,
        (_, Some(prefix)) if given(&meta.generate_name) => prefix,
        _ => "Unknown",
    }
}

/// Several reasons as one message, each once, as utilerrors.NewAggregate joins them; `None` without a reason.
fn aggregated(reasons: &[String]) -> Option<String> {
    let mut seen: Vec<&str> = Vec::new();
    for reason in reasons {
        if !seen.contains(&reason.as_str()) {
            seen.push(reason);
        }
    }
    match seen.as_slice() {
        [] => None,
        [one] => Some((*one).to_string()),
        many => Some(format!("[{}]", many.join(", "))),
    }
}

impl Admission {
    pub(crate) fn new(
        cache: Arc<Cache>,
        authorizer: Arc<dyn Authorizer>,
        converter: Arc<Converter>,
        entropy: Arc<dyn Entropy>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Admission {
            cache,
            authorizer,
            converter,
            entropy,
            quota_ledger: QuotaLedger::default(),
            policies: CompiledPolicies::default(),
            metrics,
        }
    }

    /// The decision of one plugin, timed from `begun`, which becomes the beginning of the next one: the clock is read once for each.
    fn plugin(
        &self,
        name: &'static str,
        of: AdmissionType,
        attributes: &Attributes<'_>,
        begun: &Cell<Instant>,
        decide: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let decision = decide();
        let now = Instant::now();
        let took = now.duration_since(begun.replace(now));
        let outcome = (attributes.operation.as_str(), decision.is_err());
        self.metrics.admission_plugin(name, of, outcome, took);
        decision
    }

    /// The mutating plugins: complete the object that is about to be written, or deny it.
    pub(crate) fn mutate_by_plugins(
        &self,
        attributes: &Attributes<'_>,
        object: &mut dyn AnyObject,
    ) -> Result<(), Error> {
        let target = attributes.target;
        let begun = Cell::new(Instant::now());
        let plugin = |name, decide: &mut dyn FnMut() -> Result<(), Error>| {
            self.plugin(name, AdmissionType::Admit, attributes, &begun, decide)
        };
        if attributes.operation == Operation::Create {
            plugin("NamespaceLifecycle", &mut || {
                namespace_lifecycle::validate_create(self, target, object.metadata())
            })?;
        }
        plugin("LimitRanger", &mut || {
            limit_ranger::mutate(self, attributes, object)
        })?;
        match (attributes.operation, target.subresource) {
            (Operation::Create, "") => {
                if let Some(pod) = object.as_any_mut().downcast_mut::<Pod>() {
                    plugin("ServiceAccount", &mut || {
                        service_account::mutate(self, target.namespace, pod)
                    })?;
                    plugin("Priority", &mut || priority::mutate_pod(self, pod))?;
                    default_toleration_seconds::mutate(pod);
                    plugin("RuntimeClass", &mut || runtime_class::mutate(self, pod))?;
                    pod_topology_labels::mutate(self, pod);
                } else {
                    node_taint::mutate(object);
                    plugin("DefaultStorageClass", &mut || default_class::mutate(self, object))?;
                    storage_in_use::mutate(object);
                }
            }
            (Operation::Update, "") => {
                if let Some(pod) = object.as_any_mut().downcast_mut::<Pod>() {
                    priority::keep_computed(attributes, pod);
                    default_toleration_seconds::mutate(pod);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Denies a request that creates something that is not stored (a Binding, a TokenRequest) in a namespace that does not
    /// exist or is terminating.
    pub(crate) fn check_namespace_for_create(&self, target: &Target<'_>) -> Result<(), Error> {
        let meta = ObjectMeta {
            name: Some(target.name.to_string()),
            ..ObjectMeta::default()
        };
        namespace_lifecycle::validate_create(self, target, &meta)
    }

    /// Denies the deletion of the namespaces that the cluster needs.
    pub(crate) fn protect_namespaces(&self, attributes: &Attributes<'_>) -> Result<(), Error> {
        match (attributes.operation, attributes.old) {
            (Operation::Delete, Some(old)) => namespace_lifecycle::validate_deletion(attributes.target, old),
            _ => Ok(()),
        }
    }

    /// The validating plugins but ResourceQuota, see [`Admission::charge_quotas`]: check the object that would be written.
    pub(crate) fn validate_by_plugins(
        &self,
        ctx: &mut Ctx,
        attributes: &Attributes<'_>,
        object: Option<&dyn AnyObject>,
    ) -> Result<(), Error> {
        let Some(object) = object else { return Ok(()) };
        let begun = Cell::new(Instant::now());
        let plugin = |name, decide: &mut dyn FnMut() -> Result<(), Error>| {
            self.plugin(name, AdmissionType::Validate, attributes, &begun, decide)
        };
        plugin("LimitRanger", &mut || {
            limit_ranger::validate(self, attributes, object)
        })?;
        if let Some(pod) = object.as_any().downcast_ref::<Pod>() {
            plugin("ServiceAccount", &mut || {
                mountable_secrets::validate(self, attributes, pod)
            })?;
        }
        plugin("PodSecurity", &mut || {
            pod_security::validate(self, ctx, attributes, object)
        })?;
        if attributes.target.subresource.is_empty() {
            plugin("Priority", &mut || priority::validate_class(self, object))?;
            plugin("PersistentVolumeClaimResize", &mut || {
                persistent_volume_claim_resize::validate(self, attributes, object)
            })?;
        }
        certificates::validate(self, ctx, attributes, object)?;
        if matches!(attributes.target.subresource, "" | "resize") {
            pod_resize::validate(self, attributes, object)?;
        }
        resource_quota::validate_status_count(self, ctx, attributes, object)
    }
}
