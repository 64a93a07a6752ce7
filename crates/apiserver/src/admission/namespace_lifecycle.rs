//! NamespaceLifecycle: nothing is created in a namespace that does not exist or is terminating, and the namespaces that
//! the cluster needs cannot be deleted.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, StatusCause};
use knarr_api::{Object, k8s_openapi, registry};
use knarr_apimachinery::Error;

use super::{Admission, resource_name};
use crate::request::Target;

const IMMORTAL_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-public"];

pub(super) fn validate_deletion(target: &Target<'_>, object: &Object) -> Result<(), Error> {
    if *target.kind == registry::NAMESPACE && IMMORTAL_NAMESPACES.contains(&object.name()) {
        let about = target.kind.resource_ref(object.name());
        return Err(Error::forbidden(about, "this namespace may not be deleted"));
    }
    Ok(())
}

pub(super) fn validate_create(
    admission: &Admission,
    target: &Target<'_>,
    meta: &ObjectMeta,
) -> Result<(), Error> {
    if !target.kind.namespaced() {
        return Ok(());
    }
    let namespace = target.namespace;
    let Some(found) = admission.cache.get(&registry::NAMESPACE, "", namespace) else {
        return Err(Error::not_found(registry::NAMESPACE.resource_ref(namespace)));
    };
    let terminating = found.metadata().deletion_timestamp.is_some()
        || found
            .get::<Namespace>()
            .and_then(|n| n.status.as_ref()?.phase.as_deref())
            == Some("Terminating");
    if !terminating {
        return Ok(());
    }
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut error = Error::forbidden(target.kind.resource_ref(resource_name(meta)), &why);
    error.status_mut().details.get_or_insert_default().causes = Some(vec![StatusCause {
        reason: Some("NamespaceTerminating".into()),
        message: Some(format!("namespace {namespace} is being terminated")),
        field: Some("metadata.namespace".into()),
    }]);
    Err(error)
}
