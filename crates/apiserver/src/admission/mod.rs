//! Admission: what must hold across objects, and what is filled in from them, in Kubernetes' default order.
//! One file a plugin.
//!
//! Twice a request: [`Server::admit`] completes what was sent before it is validated, [`Server::validate`] judges what
//! would be stored. Quota comes last, so that nothing is charged for what another plugin refuses.

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
mod resource_quota;
mod runtime_class;
mod service_account;
mod storage_in_use;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::{AnyObject, Error, Object, k8s_openapi};

use crate::pipeline::{Ctx, Target};
use crate::server::Server;

pub(crate) use resource_quota::{Charged, Ledger};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
}

/// A request as the plugins see it; what it wants written comes beside it.
#[derive(Clone, Copy)]
pub(crate) struct Attributes<'a> {
    pub target: &'a Target<'a>,
    pub operation: Operation,
    /// As it is stored; nothing at a creation.
    pub old: Option<&'a Arc<Object>>,
}

impl Attributes<'_> {
    /// Whether the object is on its way out.
    fn ending(&self) -> bool {
        self.old
            .is_some_and(|o| o.metadata().deletion_timestamp.is_some())
    }

    /// The refusal of what has this metadata.
    fn forbidden(&self, meta: &ObjectMeta, why: &str) -> Error {
        let name = match self.target.name {
            "" => shown_name(meta),
            name => name,
        };
        Error::forbidden(self.target.kind.about(name), why)
    }
}

/// The name in a refusal. One that is still to be made up is shown by its beginning.
fn shown_name(meta: &ObjectMeta) -> &str {
    let given = |name: &'_ Option<String>| name.as_deref().filter(|n| !n.is_empty()).is_some();
    match (&meta.name, &meta.generate_name) {
        (Some(name), _) if given(&meta.name) => name,
        (_, Some(prefix)) if given(&meta.generate_name) => prefix,
        _ => "Unknown",
    }
}

/// Several reasons as one text, each once; nothing of none.
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

impl Server {
    /// Completes what is about to be written, or refuses it.
    pub(crate) fn admit(
        &self,
        _ctx: &mut Ctx,
        attributes: &Attributes<'_>,
        object: &mut dyn AnyObject,
    ) -> Result<(), Error> {
        let target = attributes.target;
        if attributes.operation == Operation::Create {
            namespace_lifecycle::admit_create(self, target, object.metadata())?;
        }
        limit_ranger::admit(self, attributes, object)?;
        match (attributes.operation, target.subresource) {
            (Operation::Create, "") => {
                if let Some(pod) = object.as_any_mut().downcast_mut::<Pod>() {
                    service_account::admit(self, target.namespace, pod)?;
                    priority::admit_pod(self, pod)?;
                    default_toleration_seconds::admit(pod);
                    runtime_class::admit(self, pod)?;
                    pod_topology_labels::admit(self, pod);
                } else {
                    node_taint::admit(object);
                    default_class::admit(self, object)?;
                    storage_in_use::admit(object);
                }
            }
            (Operation::Update, "") => {
                if let Some(pod) = object.as_any_mut().downcast_mut::<Pod>() {
                    priority::keep(attributes, pod);
                    default_toleration_seconds::admit(pod);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Refuses what would create something in a namespace that is missing or ending, though it is stored nowhere.
    pub(crate) fn admit_in_namespace(&self, target: &Target<'_>) -> Result<(), Error> {
        let meta = ObjectMeta {
            name: Some(target.name.to_string()),
            ..ObjectMeta::default()
        };
        namespace_lifecycle::admit_create(self, target, &meta)
    }

    /// Judges what would be written, and charges it to quotas. The charge is to be [settled](Server::settle).
    pub(crate) async fn validate(
        &self,
        ctx: &mut Ctx,
        attributes: &Attributes<'_>,
        object: &dyn AnyObject,
    ) -> Result<Charged<'_>, Error> {
        limit_ranger::validate(self, attributes, object)?;
        if let Some(pod) = object.as_any().downcast_ref::<Pod>() {
            mountable_secrets::validate(self, attributes, pod)?;
        }
        pod_security::validate(self, ctx, attributes, object)?;
        if attributes.target.subresource.is_empty() {
            priority::admit_class(self, object)?;
            persistent_volume_claim_resize::validate(self, attributes, object)?;
        }
        certificates::validate(self, ctx, attributes, object)?;
        if matches!(attributes.target.subresource, "" | "resize") {
            pod_resize::validate(self, attributes, object)?;
        }
        resource_quota::validate_count(self, ctx, attributes, object)?;
        resource_quota::charge(self, ctx, attributes, object).await
    }

    /// Lets an object be deleted, or refuses that.
    pub(crate) fn admit_deletion(&self, target: &Target<'_>, object: &Arc<Object>) -> Result<(), Error> {
        namespace_lifecycle::admit_deletion(target, object)
    }
}

/// How many finalizers, in spec and metadata, hold a namespace.
pub(crate) fn namespace_finalizers(object: &dyn AnyObject) -> usize {
    let Some(namespace) = object.as_any().downcast_ref::<Namespace>() else {
        return 0;
    };
    let in_spec = namespace
        .spec
        .as_ref()
        .and_then(|s| s.finalizers.as_ref())
        .map_or(0, Vec::len);
    in_spec + namespace.metadata.finalizers.as_ref().map_or(0, Vec::len)
}
