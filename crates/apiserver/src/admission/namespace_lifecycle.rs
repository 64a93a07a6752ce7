//! NamespaceLifecycle: nothing is created in a namespace that is missing or ending, and the namespaces that the
//! cluster needs cannot be deleted.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause;
use knarr_api::{Error, Kind, k8s_openapi, registry};

use super::Change;
use crate::server::Server;

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

pub(super) fn admit(
    server: &Server,
    kind: &'static Kind,
    namespace: &str,
    change: &Change<'_>,
) -> Result<(), Error> {
    match change {
        Change::Delete(object) if *kind == registry::NAMESPACE && IMMORTAL.contains(&object.name()) => Err(
            Error::forbidden(kind.about(object.name()), "this namespace may not be deleted"),
        ),
        Change::Create(object) if kind.namespaced() => {
            let Some(found) = server.cache.get(&registry::NAMESPACE, "", namespace) else {
                return Err(Error::not_found(registry::NAMESPACE.about(namespace)));
            };
            let ending = found.metadata().deletion_timestamp.is_some()
                || found
                    .get::<Namespace>()
                    .and_then(|n| n.status.as_ref()?.phase.as_deref())
                    == Some("Terminating");
            if !ending {
                return Ok(());
            }
            let name = object.metadata().name.as_deref().unwrap_or("");
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            let mut error = Error::forbidden(kind.about(name), &why);
            error.status_mut().details.get_or_insert_default().causes = Some(vec![StatusCause {
                reason: Some("NamespaceTerminating".into()),
                message: Some(format!("namespace {namespace} is being terminated")),
                field: Some("metadata.namespace".into()),
            }]);
            Err(error)
        }
        _ => Ok(()),
    }
}
