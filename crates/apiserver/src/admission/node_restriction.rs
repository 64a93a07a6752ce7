//! NodeRestriction: a kubelet writes only its own Node, Lease, CSINode and ResourceSlices, the status of its own pods, and
//! mirror pods that reference no API objects; it requests tokens only for its own pods, and certificates only for its own
//! node name.

mod nodes;
mod pods;
mod tokens;
mod volumes;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::resource::v1::ResourceSlice;
use knarr_api::certificates::{CertificateRequest, KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER};
use knarr_api::kinds::persistent_volume::LOCAL_FINALIZER;
use knarr_api::well_known::NODE_LEASE_NAMESPACE;
use knarr_api::{AnyObject, Object, k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::ids::NodeName;
use serde_json::Value;

use self::nodes::validate_node;
use self::pods::{validate_mirror_pod, validate_pod_status};
use self::volumes::{equal_but_reported_status, validate_attachment_use, validate_volume_release};
use super::{Admission, Attributes, Denial, Operation, deny};
use crate::request::{Ctx, Target};

const OWN_LEASE: &str = "can only access node lease with the same name as the requesting node";
const OWN_CSI_NODE: &str = "can only access CSINode with the same name as the requesting node";

/// Signers of kubelets' client and serving certificates.
const KUBELET_SIGNERS: [&str; 2] = [KUBELET_SERVING_SIGNER, KUBELET_CLIENT_SIGNER];

impl Admission {
    /// Checks what a node would write or delete.
    pub(crate) fn restrict_node(
        &self,
        ctx: &Ctx,
        attributes: &Attributes<'_>,
        object: Option<&dyn AnyObject>,
    ) -> Result<(), Error> {
        let Some(node) = ctx.user.node().map(NodeName::from) else {
            return Ok(());
        };
        match (attributes.operation, attributes.old, object) {
            (Operation::Delete, Some(old), _) => restrict_deletion(&node, attributes.target, old),
            (_, old, Some(new)) => self.restrict_write(&node, attributes.target, old.map(|o| &**o), new),
            _ => Ok(()),
        }
    }

    /// Checks what a node would create or, if there is an `old`, update.
    fn restrict_write(
        &self,
        node: &NodeName,
        target: &Target<'_>,
        old: Option<&Object>,
        new: &dyn AnyObject,
    ) -> Result<(), Error> {
        let name = new.metadata().name.as_deref().unwrap_or("");
        let denied = |why: String| Error::forbidden(target.kind.resource_ref(name), &why);
        let any = new.as_any();
        match (target.kind.group(), target.kind.plural()) {
            ("", "pods") => match (target.subresource, old) {
                ("", None) => {
                    let pod = any.downcast_ref::<Pod>();
                    let uid = self.cache.get(&registry::NODE, "", node);
                    pod.map_or(Ok(()), |p| {
                        validate_mirror_pod(p, node, uid.as_ref().map(|o| o.uid()))
                            .map_err(|Denial(why)| denied(why))
                    })
                }
                ("", Some(_)) => Err(denied(format!(
                    "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"
                ))),
                ("status", Some(old)) => match (old.get::<Pod>(), any.downcast_ref::<Pod>()) {
                    (Some(old), Some(new)) => {
                        validate_pod_status(old, new, node).map_err(|Denial(why)| denied(why))
                    }
                    _ => Ok(()),
                },
                (sub, _) => Err(denied(format!(
                    "unexpected pod subresource {sub:?}, only 'status' and 'eviction' are allowed"
                ))),
            },
            ("", "nodes") => {
                if name != node {
                    return Err(denied(format!(
                        "node {node:?} is not allowed to modify node {name:?}"
                    )));
                }
                any.downcast_ref::<Node>().map_or(Ok(()), |new| {
                    validate_node(old.and_then(Object::get::<Node>), new, node)
                        .map_err(|Denial(why)| denied(why))
                })
            }
            ("", "persistentvolumeclaims") => {
                if target.subresource != "status" {
                    return Err(denied("may only update PVC status".into()));
                }
                match (
                    old.and_then(Object::get::<PersistentVolumeClaim>),
                    any.downcast_ref(),
                ) {
                    (Some(old), Some(new)) if !equal_but_reported_status(old, new) => Err(denied(format!(
                        "node {node:?} is not allowed to update fields other than status.quantity and status.conditions"
                    ))),
                    _ => Ok(()),
                }
            }
            ("", "persistentvolumes") => match old {
                Some(old) => validate_volume_release(old.typed(), new, LOCAL_FINALIZER)
                    .map_err(|Denial(why)| denied(why)),
                None => Err(denied(format!(
                    "node {node:?} is not allowed to create PersistentVolumes"
                ))),
            },
            ("storage.k8s.io", "volumeattachments") => match old {
                Some(old) => validate_attachment_use(old.typed(), new).map_err(|Denial(why)| denied(why)),
                None => Err(denied(format!(
                    "node {node:?} is not allowed to create VolumeAttachments"
                ))),
            },
            ("coordination.k8s.io", "leases") => {
                if target.namespace != NODE_LEASE_NAMESPACE {
                    return Err(denied(format!(
                        "can only access leases in the {NODE_LEASE_NAMESPACE:?} system namespace"
                    )));
                }
                if name != node {
                    return Err(denied(OWN_LEASE.into()));
                }
                Ok(())
            }
            ("certificates.k8s.io", "certificatesigningrequests") if old.is_none() => {
                match any.downcast_ref() {
                    Some(request) => {
                        validate_certificate_request(request, node).map_err(|Denial(why)| denied(why))
                    }
                    None => Ok(()),
                }
            }
            ("storage.k8s.io", "csinodes") if name != node => Err(denied(OWN_CSI_NODE.into())),
            ("resource.k8s.io", "resourceslices") if old.is_none() => match any.downcast_ref() {
                Some(slice) if !is_own_slice(slice, node) => Err(denied(
                    "can only create ResourceSlice with the same NodeName as the requesting node".into(),
                )),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Checks a node's request for a subresource with an object of its own: `eviction`, `token`.
    pub(crate) fn restrict_node_request(
        &self,
        ctx: &Ctx,
        target: &Target<'_>,
        body: &Value,
    ) -> Result<(), Error> {
        let Some(node) = ctx.user.node().map(NodeName::from) else {
            return Ok(());
        };
        let denied = |why: String| Err(Error::forbidden(target.kind.resource_ref(target.name), &why));
        match (target.kind.plural(), target.subresource) {
            ("pods", "eviction") => match self.cache.get(&registry::POD, target.namespace, target.name) {
                None => Err(Error::not_found(target.resource_ref())),
                Some(pod) if !is_on(&pod, &node) => denied(format!(
                    "node {node} can only evict pods with spec.nodeName set to itself"
                )),
                Some(_) => Ok(()),
            },
            ("pods", sub) => denied(format!(
                "unexpected pod subresource {sub:?}, only 'status' and 'eviction' are allowed"
            )),
            ("serviceaccounts", "token") => self.restrict_token(ctx, target, &node, &body["spec"]),
            _ => Ok(()),
        }
    }
}

/// Checks what a node would delete.
fn restrict_deletion(node: &str, target: &Target<'_>, object: &Object) -> Result<(), Error> {
    let name = object.name();
    let denied = |why: String| Err(Error::forbidden(target.kind.resource_ref(name), &why));
    match (target.kind.group(), target.kind.plural()) {
        ("", "pods") if !is_on(object, node) => denied(format!(
            "node {node:?} can only delete pods with spec.nodeName set to itself"
        )),
        ("", "nodes") if name != node => {
            denied(format!("node {node:?} is not allowed to modify node {name:?}"))
        }
        ("", "persistentvolumeclaims") => denied("may only update PVC status".into()),
        ("coordination.k8s.io", "leases") if target.namespace != NODE_LEASE_NAMESPACE => denied(format!(
            "can only access leases in the {NODE_LEASE_NAMESPACE:?} system namespace"
        )),
        ("coordination.k8s.io", "leases") if name != node => denied(OWN_LEASE.into()),
        ("storage.k8s.io", "csinodes") if name != node => denied(OWN_CSI_NODE.into()),
        ("resource.k8s.io", "resourceslices")
            if object.get().is_some_and(|slice| !is_own_slice(slice, node)) =>
        {
            denied("can only delete ResourceSlice with the same NodeName as the requesting node".into())
        }
        _ => Ok(()),
    }
}

fn is_on(pod: &Object, node: &str) -> bool {
    pod.field("spec.nodeName").ok().as_deref() == Some(node)
}

fn is_own_slice(slice: &ResourceSlice, node: &str) -> bool {
    slice.spec.node_name.as_deref() == Some(node)
}

/// A kubelet requests certificates only for its own name; the signer validates the rest of the request.
fn validate_certificate_request(request: &CertificateSigningRequest, node: &str) -> Result<(), Denial> {
    if !KUBELET_SIGNERS.contains(&request.spec.signer_name.as_str()) {
        return Ok(());
    }
    let read = CertificateRequest::decode(&request.spec.request.0)
        .map_err(|e| Denial(format!("unable to parse csr: {e}")))?;
    if read.common_name() != format!("system:node:{node}") {
        return deny(format!("can only create a node CSR with CN=system:node:{node}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use rcgen::{CertificateParams, DnType, KeyPair};
    use serde_json::json;

    #[test]
    fn a_kubelets_certificate_is_requested_only_by_its_own_node() {
        let request = |signer: &str, name: &str| -> CertificateSigningRequest {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
            serde_json::from_value(json!({
                "metadata": {"name": "r"},
                "spec": {"signerName": signer, "request": STANDARD.encode(request.pem().unwrap())},
            }))
            .unwrap()
        };
        let denied = Some("can only create a node CSR with CN=system:node:n");
        for (signer, name, expected) in [
            (KUBELET_SIGNERS[0], "system:node:n", None),
            (KUBELET_SIGNERS[1], "system:node:n", None),
            (KUBELET_SIGNERS[0], "system:node:m", denied),
            (KUBELET_SIGNERS[1], "system:node:m", denied),
            (KUBELET_SIGNERS[1], "n", denied),
            ("kubernetes.io/kube-apiserver-client", "ann", None),
        ] {
            let found = validate_certificate_request(&request(signer, name), "n").err();
            let found = found.map(|Denial(why)| why);
            assert_eq!(found.as_deref(), expected, "{signer} {name}");
        }
        let mut broken = request(KUBELET_SIGNERS[0], "system:node:n");
        broken.spec.request.0 = b"nothing".to_vec();
        let Denial(why) = validate_certificate_request(&broken, "n").unwrap_err();
        assert!(why.starts_with("unable to parse csr: "), "{why}");
    }
}
