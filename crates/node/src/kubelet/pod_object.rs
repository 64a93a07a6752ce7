//! A pod's object in the API: read again and deleted, never another pod's of the same name.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_client::{Api, DeleteOptions, Error, Preconditions};

/// Annotation of a pod that must not run twice: the kubelet that started it last, by its node and start time.
pub(super) const STARTED_BY: &str = "knarr.io/started-by";

/// The object as it is; `None` if this pod was deleted, even if another has its name now.
pub(super) async fn refresh(api: &dyn Api, pod: &core::Pod) -> Result<Option<Arc<core::Pod>>, Error> {
    let (namespace, name) = namespace_and_name(pod);
    match api.get(core::Pod::kind_of(), namespace, name).await {
        Ok(object) if object.uid() == pod.metadata.uid.as_deref().unwrap_or("") => {
            Ok(object.to_typed::<core::Pod>().map(Arc::new))
        }
        Ok(_) => Ok(None),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes this very pod from the API, with grace period 0.
pub(super) async fn delete_at_once(api: &dyn Api, pod: &core::Pod) -> Result<(), Error> {
    let (namespace, name) = namespace_and_name(pod);
    let options = DeleteOptions {
        grace_period_seconds: Some(0),
        preconditions: Preconditions {
            uid: pod.metadata.uid.clone(),
            resource_version: None,
        },
        propagation: None,
    };
    match api.delete(core::Pod::kind_of(), namespace, name, options).await {
        Ok(_) => Ok(()),
        // Deleted, or another pod of that name: this one does not exist any more.
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) fn namespace_and_name(pod: &core::Pod) -> (&str, &str) {
    (
        pod.metadata.namespace.as_deref().unwrap_or(""),
        pod.metadata.name.as_deref().unwrap_or(""),
    )
}
