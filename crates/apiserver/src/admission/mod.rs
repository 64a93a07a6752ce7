//! Admission: what must hold across objects, and what is filled in from them, in Kubernetes' default order.
//! One file a plugin.

mod default_toleration_seconds;
mod namespace_lifecycle;
pub(crate) mod node_restriction;
mod node_taint;
mod pod_security;
mod priority;
mod runtime_class;
mod service_account;
mod storage_in_use;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use knarr_api::strategy::Part;
use knarr_api::{AnyObject, Error, Kind, Object, k8s_openapi};

use crate::pipeline::Ctx;
use crate::server::Server;

/// What is about to be written.
pub(crate) enum Change<'a> {
    Create(&'a mut dyn AnyObject),
    Update { new: &'a mut dyn AnyObject, part: Part },
    Delete(&'a Arc<Object>),
}

impl Server {
    /// Lets the change pass, completes it, or refuses it. `kind` is the kind as served.
    pub(crate) fn admit(
        &self,
        ctx: &Ctx,
        kind: &'static Kind,
        namespace: &str,
        mut change: Change<'_>,
    ) -> Result<(), Error> {
        namespace_lifecycle::admit(self, kind, namespace, &change)?;
        match &mut change {
            Change::Create(object) => {
                if let Some(pod) = object.as_any_mut().downcast_mut::<Pod>() {
                    service_account::admit(self, namespace, pod)?;
                    default_toleration_seconds::admit(pod);
                    priority::admit_pod(self, pod)?;
                    runtime_class::admit(self, pod)?;
                } else {
                    node_taint::admit(*object);
                    storage_in_use::admit(*object);
                    pod_security::admit(self, *object, false)?;
                    priority::admit_class(self, *object)?;
                }
            }
            Change::Update {
                new,
                part: Part::Main,
                ..
            } => {
                if let Some(pod) = new.as_any_mut().downcast_mut::<Pod>() {
                    default_toleration_seconds::admit(pod);
                } else {
                    priority::admit_class(self, *new)?;
                    pod_security::admit(self, *new, true)?;
                }
            }
            Change::Update { .. } | Change::Delete(_) => {}
        }
        let _ = ctx;
        Ok(())
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
