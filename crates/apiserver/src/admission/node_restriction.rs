//! NodeRestriction: a kubelet writes its own Node, lease, CSINode and slices, the state of its own pods, and mirror
//! pods that use nothing; it asks for tokens of its own pods only, and for certificates of its own name.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::resource::v1::ResourceSlice;
use knarr_api::certificates::CertificateRequest;
use knarr_api::kinds::persistent_volume::{IN_USE, LOCAL_FINALIZER, USED_BY};
use knarr_api::{AnyObject, Error, Object, k8s_openapi, registry};
use serde_json::Value;

use crate::authz::Attributes;
use crate::authz::node::{MIRROR, Referenced, names};
use crate::pipeline::{Ctx, Target};
use crate::server::Server;

const LEASES: &str = "kube-node-lease";
const OWN_LEASE: &str = "can only access node lease with the same name as the requesting node";
const OWN_CSI_NODE: &str = "can only access CSINode with the same name as the requesting node";

/// Signers of what kubelets show.
const KUBELET_SIGNERS: [&str; 2] = [
    "kubernetes.io/kubelet-serving",
    "kubernetes.io/kube-apiserver-client-kubelet",
];

/// Labels that a node may set on itself.
const KUBELET_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// Namespaces of such labels.
const KUBELET_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
const RESTRICTED_NAMESPACE: &str = "node-restriction.kubernetes.io";

impl Server {
    /// Judges what a node would create or, if there is an `old`, change.
    pub(crate) fn restrict_node_write(
        &self,
        ctx: &Ctx,
        target: &Target<'_>,
        old: Option<&Object>,
        new: &dyn AnyObject,
    ) -> Result<(), Error> {
        let Some(node) = ctx.user.node() else {
            return Ok(());
        };
        let name = new.metadata().name.as_deref().unwrap_or("");
        let refused = |why: String| Error::forbidden(target.kind.about(name), &why);
        let any = new.as_any();
        match (target.kind.group(), target.kind.plural()) {
            ("", "pods") => match (target.subresource, old) {
                ("", None) => {
                    let pod = any.downcast_ref::<Pod>();
                    let uid = self.cache.get(&registry::NODE, "", node);
                    pod.map_or(Ok(()), |p| {
                        mirror_pod(p, node, uid.as_ref().map(|o| o.uid())).map_err(refused)
                    })
                }
                ("", Some(_)) => Err(refused(format!(
                    "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"
                ))),
                ("status", Some(old)) => match (old.get::<Pod>(), any.downcast_ref::<Pod>()) {
                    (Some(old), Some(new)) => pod_status(old, new, node).map_err(refused),
                    _ => Ok(()),
                },
                (sub, _) => Err(refused(format!(
                    "unexpected pod subresource {sub:?}, only 'status' and 'eviction' are allowed"
                ))),
            },
            ("", "nodes") => {
                if name != node {
                    return Err(refused(format!(
                        "node {node:?} is not allowed to modify node {name:?}"
                    )));
                }
                any.downcast_ref::<Node>().map_or(Ok(()), |new| {
                    own_node(old.and_then(Object::get::<Node>), new, node).map_err(refused)
                })
            }
            ("", "persistentvolumeclaims") => {
                if target.subresource != "status" {
                    return Err(refused("may only update PVC status".into()));
                }
                match (
                    old.and_then(Object::get::<PersistentVolumeClaim>),
                    any.downcast_ref(),
                ) {
                    (Some(old), Some(new)) if !same_claim(old, new) => Err(refused(format!(
                        "node {node:?} is not allowed to update fields other than status.quantity and status.conditions"
                    ))),
                    _ => Ok(()),
                }
            }
            ("", "persistentvolumes") => match old {
                Some(old) => released_only(old.typed(), new, LOCAL_FINALIZER).map_err(refused),
                None => Err(refused(format!(
                    "node {node:?} is not allowed to create PersistentVolumes"
                ))),
            },
            ("storage.k8s.io", "volumeattachments") => match old {
                Some(old) => held_only(old.typed(), new).map_err(refused),
                None => Err(refused(format!(
                    "node {node:?} is not allowed to create VolumeAttachments"
                ))),
            },
            ("coordination.k8s.io", "leases") => {
                if target.namespace != LEASES {
                    return Err(refused(format!(
                        "can only access leases in the {LEASES:?} system namespace"
                    )));
                }
                if name != node {
                    return Err(refused(OWN_LEASE.into()));
                }
                Ok(())
            }
            ("certificates.k8s.io", "certificatesigningrequests") if old.is_none() => {
                match any.downcast_ref() {
                    Some(request) => own_certificate(request, node).map_err(refused),
                    None => Ok(()),
                }
            }
            ("storage.k8s.io", "csinodes") if name != node => Err(refused(OWN_CSI_NODE.into())),
            ("resource.k8s.io", "resourceslices") if old.is_none() => match any.downcast_ref() {
                Some(slice) if !is_own_slice(slice, node) => Err(refused(
                    "can only create ResourceSlice with the same NodeName as the requesting node".into(),
                )),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Judges what a node would delete.
    pub(crate) fn restrict_node_deletion(
        &self,
        ctx: &Ctx,
        target: &Target<'_>,
        object: &Object,
    ) -> Result<(), Error> {
        let Some(node) = ctx.user.node() else {
            return Ok(());
        };
        let name = object.name();
        let refused = |why: String| Err(Error::forbidden(target.kind.about(name), &why));
        match (target.kind.group(), target.kind.plural()) {
            ("", "pods") if !is_on(object, node) => refused(format!(
                "node {node:?} can only delete pods with spec.nodeName set to itself"
            )),
            ("", "nodes") if name != node => {
                refused(format!("node {node:?} is not allowed to modify node {name:?}"))
            }
            ("", "persistentvolumeclaims") => refused("may only update PVC status".into()),
            ("coordination.k8s.io", "leases") if target.namespace != LEASES => refused(format!(
                "can only access leases in the {LEASES:?} system namespace"
            )),
            ("coordination.k8s.io", "leases") if name != node => refused(OWN_LEASE.into()),
            ("storage.k8s.io", "csinodes") if name != node => refused(OWN_CSI_NODE.into()),
            ("resource.k8s.io", "resourceslices")
                if object.get().is_some_and(|slice| !is_own_slice(slice, node)) =>
            {
                refused("can only delete ResourceSlice with the same NodeName as the requesting node".into())
            }
            _ => Ok(()),
        }
    }

    /// Judges what a node asks of a subresource that is no part of the object: `eviction`, `token`.
    pub(crate) fn restrict_node_request(
        &self,
        ctx: &Ctx,
        target: &Target<'_>,
        body: &Value,
    ) -> Result<(), Error> {
        let Some(node) = ctx.user.node() else {
            return Ok(());
        };
        let refused = |why: String| Err(Error::forbidden(target.kind.about(target.name), &why));
        match (target.kind.plural(), target.subresource) {
            ("pods", "eviction") => match self.cache.get(&registry::POD, target.namespace, target.name) {
                None => Err(Error::not_found(target.about())),
                Some(pod) if !is_on(&pod, node) => refused(format!(
                    "node {node} can only evict pods with spec.nodeName set to itself"
                )),
                Some(_) => Ok(()),
            },
            ("pods", sub) => refused(format!(
                "unexpected pod subresource {sub:?}, only 'status' and 'eviction' are allowed"
            )),
            ("serviceaccounts", "token") => self.restrict_token(ctx, target, node, &body["spec"]),
            _ => Ok(()),
        }
    }

    fn restrict_token(&self, ctx: &Ctx, target: &Target<'_>, node: &str, spec: &Value) -> Result<(), Error> {
        let refused = |why: &str| Err(Error::forbidden(target.kind.about(target.name), why));
        let to = &spec["boundObjectRef"];
        let text = |field: &str| to[field].as_str().unwrap_or("");
        if text("apiVersion") != "v1" || text("kind") != "Pod" || text("name").is_empty() {
            return refused("node requested token not bound to a pod");
        }
        let uid = text("uid");
        if uid.is_empty() {
            return refused("node requested token with a pod binding without a uid");
        }
        let name = text("name");
        let Some(object) = self.cache.get(&registry::POD, target.namespace, name) else {
            return Err(Error::not_found(registry::POD.about(name)));
        };
        if object.uid() != uid {
            return refused(&format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. \
The object might have been deleted and then recreated"
            ));
        }
        if !is_on(&object, node) {
            return refused("node requested token bound to a pod scheduled on a different node");
        }
        let audiences: Vec<&str> = spec["audiences"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let audience = match audiences.as_slice() {
            [] => "",
            [one] => one,
            _ => return refused("node may only request 0 or 1 audiences"),
        };
        if object
            .get::<Pod>()
            .is_some_and(|pod| self.names_audience(pod, audience))
        {
            return Ok(());
        }
        let request = Attributes {
            verb: "request-serviceaccounts-token-audience",
            resource: audience,
            namespace: target.namespace,
            name: target.name,
            ..Attributes::default()
        };
        if self.authorizer.allows(&ctx.user, &request) {
            return Ok(());
        }
        let user = &ctx.user.name;
        refused(&format!(
            "audience {audience:?} not found in pod spec volume, {user} is not authorized to request tokens for this audience"
        ))
    }

    /// Whether a volume of the pod, or the driver of one, asks for tokens for this audience.
    fn names_audience(&self, pod: &Pod, audience: &str) -> bool {
        use k8s_openapi::api::core::v1::PersistentVolume;
        use k8s_openapi::api::storage::v1::CSIDriver;
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let name = pod.metadata.name.as_deref().unwrap_or("");
        let driver_of_claim = |claim: &str| {
            let claim = self
                .cache
                .get(&registry::PERSISTENT_VOLUME_CLAIM, namespace, claim)?;
            let volume = claim
                .get::<PersistentVolumeClaim>()?
                .spec
                .as_ref()?
                .volume_name
                .clone()?;
            let volume = self.cache.get(&registry::PERSISTENT_VOLUME, "", &volume)?;
            let spec = volume.get::<PersistentVolume>()?.spec.as_ref()?;
            Some(spec.csi.as_ref()?.driver.clone())
        };
        let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        volumes.into_iter().any(|v| {
            let projected = v
                .projected
                .iter()
                .flat_map(|p| p.sources.iter().flatten())
                .filter_map(|s| s.service_account_token.as_ref())
                .any(|t| t.audience.as_deref().unwrap_or("") == audience);
            let driver = if v.ephemeral.is_some() {
                driver_of_claim(&format!("{name}-{}", v.name))
            } else if let Some(claim) = &v.persistent_volume_claim {
                driver_of_claim(&claim.claim_name)
            } else {
                v.csi.as_ref().map(|c| c.driver.clone())
            };
            let driver = driver.and_then(|d| self.cache.get(&registry::CSI_DRIVER, "", &d));
            let requests = driver.as_ref().and_then(|d| d.get::<CSIDriver>());
            let by_driver = requests
                .iter()
                .flat_map(|d| d.spec.token_requests.iter().flatten())
                .any(|t| t.audience == audience);
            projected || by_driver
        })
    }
}

fn is_on(pod: &Object, node: &str) -> bool {
    pod.field("spec.nodeName").ok().as_deref() == Some(node)
}

fn is_own_slice(slice: &ResourceSlice, node: &str) -> bool {
    slice.spec.node_name.as_deref() == Some(node)
}

/// A pod that a node may create shows one of its own and refers to nothing. `uid` is the node's.
fn mirror_pod(pod: &Pod, node: &str, uid: Option<&str>) -> Result<(), String> {
    let meta = &pod.metadata;
    if !meta.annotations.as_ref().is_some_and(|a| a.contains_key(MIRROR)) {
        return Err(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    let spec = pod.spec.clone().unwrap_or_default();
    if spec.node_name.as_deref() != Some(node) {
        return Err(format!(
            "node {node:?} can only create pods with spec.nodeName set to itself"
        ));
    }
    let own = "owner reference set to itself";
    let owner = match meta.owner_references.as_deref().unwrap_or_default() {
        [owner] => owner,
        [] => return Err(format!("node {node:?} can only create pods with an {own}")),
        _ => return Err(format!("node {node:?} can only create pods with a single {own}")),
    };
    if owner.api_version != "v1" || owner.kind != "Node" || owner.name != node {
        return Err(format!("node {node:?} can only create pods with an {own}"));
    }
    if owner.controller != Some(true) {
        return Err(format!(
            "node {node:?} can only create pods with a controller {own}"
        ));
    }
    if owner.block_owner_deletion == Some(true) {
        return Err(format!(
            "node {node:?} must not set blockOwnerDeletion on an owner reference"
        ));
    }
    let uid = uid.unwrap_or("");
    if owner.uid != uid {
        return Err(format!(
            "node {node} UID mismatch: expected {} got {uid}",
            owner.uid
        ));
    }
    match referenced(&spec) {
        Some(what) => Err(format!("node {node:?} can not create pods that reference {what}")),
        None => Ok(()),
    }
}

/// The first thing of the API that a pod needs.
fn referenced(spec: &k8s_openapi::api::core::v1::PodSpec) -> Option<&'static str> {
    if spec
        .service_account_name
        .as_deref()
        .is_some_and(|n| !n.is_empty())
    {
        return Some("serviceaccounts");
    }
    if !names(spec, Referenced::Secret).is_empty() {
        return Some("secrets");
    }
    if !names(spec, Referenced::ConfigMap).is_empty() {
        return Some("configmaps");
    }
    if spec.resource_claims.as_ref().is_some_and(|c| !c.is_empty()) {
        return Some("resourceclaims");
    }
    spec.volumes.iter().flatten().find_map(|v| {
        if v.config_map.is_some() {
            Some("configmaps (via configmap volumes)")
        } else if v.secret.is_some() {
            Some("secrets (via secret volumes)")
        } else if v.csi.is_some() {
            Some("csidrivers (via CSI volumes)")
        } else if v.glusterfs.is_some() {
            Some("endpoints (via glusterFS volumes)")
        } else if v.persistent_volume_claim.is_some() {
            Some("persistentvolumeclaims")
        } else if v.ephemeral.is_some() {
            Some("persistentvolumeclaims (via ephemeral volumes)")
        } else if v.azure_file.is_some() {
            Some("secrets (via azureFile volumes)")
        } else {
            let mut sources = v.projected.iter().flat_map(|p| p.sources.iter().flatten());
            sources.find_map(|s| {
                if s.config_map.is_some() {
                    Some("configmaps (via projected volumes)")
                } else if s.secret.is_some() {
                    Some("secrets (via projected volumes)")
                } else if s.service_account_token.is_some() {
                    Some("serviceaccounts (via projected volumes)")
                } else if s.cluster_trust_bundle.is_some() {
                    Some("clustertrustbundles")
                } else if s.pod_certificate.is_some() {
                    Some("podcertificates")
                } else {
                    None
                }
            })
        }
    })
}

/// A kubelet's certificates are asked for under its own name; the rest of a request is the signer's to judge.
fn own_certificate(request: &CertificateSigningRequest, node: &str) -> Result<(), String> {
    if !KUBELET_SIGNERS.contains(&request.spec.signer_name.as_str()) {
        return Ok(());
    }
    let read = CertificateRequest::decode(&request.spec.request.0)
        .map_err(|e| format!("unable to parse csr: {e}"))?;
    if read.common_name() != format!("system:node:{node}") {
        return Err(format!("can only create a node CSR with CN=system:node:{node}"));
    }
    Ok(())
}

fn pod_status(old: &Pod, new: &Pod, node: &str) -> Result<(), String> {
    if old.spec.as_ref().and_then(|s| s.node_name.as_deref()) != Some(node) {
        return Err(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let labels = |pod: &Pod| pod.metadata.labels.clone().unwrap_or_default();
    if labels(old) != labels(new) {
        return Err(format!("node {node:?} cannot update labels through pod status"));
    }
    let (was, is) = (
        old.status.clone().unwrap_or_default(),
        new.status.clone().unwrap_or_default(),
    );
    if was.resource_claim_statuses.unwrap_or_default() != is.resource_claim_statuses.unwrap_or_default() {
        return Err(format!("node {node:?} cannot update resource claim statues"));
    }
    if was.extended_resource_claim_status != is.extended_resource_claim_status {
        return Err(format!(
            "node {node:?} cannot update extended resource claim status"
        ));
    }
    Ok(())
}

fn own_node(old: Option<&Node>, new: &Node, node: &str) -> Result<(), String> {
    let spec = |n: &Node| n.spec.clone().unwrap_or_default();
    let config = spec(new).config_source;
    let Some(old) = old else {
        if config.is_some() {
            return Err(format!(
                "node {node:?} is not allowed to create pods with a non-nil configSource"
            ));
        }
        return match forbidden_labels(None, new.metadata.labels.as_ref()) {
            none if none.is_empty() => Ok(()),
            some => Err(format!(
                "node {node:?} is not allowed to set the following labels: {some}"
            )),
        };
    };
    if config.is_some() && config != spec(old).config_source {
        return Err(format!(
            "node {node:?} is not allowed to update configSource to a new non-nil configSource"
        ));
    }
    if spec(old).taints.unwrap_or_default() != spec(new).taints.unwrap_or_default() {
        return Err(format!("node {node:?} is not allowed to modify taints"));
    }
    let owners = |n: &Node| n.metadata.owner_references.clone().unwrap_or_default();
    if owners(old) != owners(new) {
        return Err(format!("node {node:?} is not allowed to modify ownerReferences"));
    }
    match forbidden_labels(old.metadata.labels.as_ref(), new.metadata.labels.as_ref()) {
        none if none.is_empty() => Ok(()),
        some => Err(format!("is not allowed to modify labels: {some}")),
    }
}

type Labels = BTreeMap<String, String>;

/// Labels that differ and that a node may not set, with commas between them.
fn forbidden_labels(old: Option<&Labels>, new: Option<&Labels>) -> String {
    let empty = Labels::new();
    let (old, new) = (old.unwrap_or(&empty), new.unwrap_or(&empty));
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let forbidden: Vec<&str> = keys
        .into_iter()
        .filter(|key| old.get(*key) != new.get(*key) && is_forbidden(key))
        .map(String::as_str)
        .collect();
    forbidden.join(", ")
}

fn is_forbidden(label: &str) -> bool {
    let namespace = label.split_once('/').map_or("", |(n, _)| n);
    let within =
        |of: &str| namespace == of || namespace.strip_suffix(of).is_some_and(|head| head.ends_with('.'));
    if within(RESTRICTED_NAMESPACE) {
        return true;
    }
    let of_kubernetes = within("kubernetes.io") || within("k8s.io");
    of_kubernetes && !KUBELET_LABELS.contains(&label) && !KUBELET_NAMESPACES.iter().any(|n| within(n))
}

/// An object as it is without what this node's kubelet writes into it: its finalizer and its annotation.
fn without(object: &dyn AnyObject, finalizer: &str, annotation: &str) -> Box<dyn AnyObject> {
    let mut bare = object.clone_box();
    let meta = bare.metadata_mut();
    meta.resource_version = None;
    meta.managed_fields = None;
    if let Some(finalizers) = &mut meta.finalizers {
        finalizers.retain(|f| f != finalizer);
    }
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove(annotation);
    }
    meta.finalizers = meta.finalizers.take().filter(|f| !f.is_empty());
    meta.annotations = meta.annotations.take().filter(|a| !a.is_empty());
    bare
}

fn same(was: &mut dyn AnyObject, is: &mut dyn AnyObject) -> bool {
    Object::encode_for_store(was) == Object::encode_for_store(is)
}

/// Of a volume of its directories, a node takes its finalizer away and changes nothing else.
fn released_only(old: &dyn AnyObject, new: &dyn AnyObject, finalizer: &str) -> Result<(), String> {
    let held = |o: &dyn AnyObject| o.metadata().finalizers.iter().flatten().any(|f| f == finalizer);
    let (mut was, mut is) = (without(old, finalizer, ""), without(new, finalizer, ""));
    if same(&mut *was, &mut *is) && (held(old) || !held(new)) {
        return Ok(());
    }
    Err(format!(
        "may only remove the finalizer {finalizer:?} of PersistentVolumes of this node's directories"
    ))
}

/// Of an attachment to it, a node writes whether it uses the volume and changes nothing else.
fn held_only(old: &dyn AnyObject, new: &dyn AnyObject) -> Result<(), String> {
    let (mut was, mut is) = (without(old, IN_USE, USED_BY), without(new, IN_USE, USED_BY));
    match same(&mut *was, &mut *is) {
        true => Ok(()),
        false => Err(format!(
            "may only change the finalizer {IN_USE:?} and the annotation {USED_BY:?} of VolumeAttachments to this node"
        )),
    }
}

/// Whether two claims differ at most in what a node may tell.
fn same_claim(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    let bare = |claim: &PersistentVolumeClaim| {
        let mut claim = claim.clone();
        claim.metadata.resource_version = None;
        claim.metadata.managed_fields = None;
        if let Some(status) = &mut claim.status {
            status.capacity = None;
            status.conditions = None;
            status.allocated_resources = None;
            status.allocated_resource_statuses = None;
        }
        claim.status = claim.status.filter(|s| *s != Default::default());
        claim
    };
    bare(old) == bare(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use rcgen::{CertificateParams, DnType, KeyPair};
    use serde_json::json;

    #[test]
    fn a_kubelets_certificate_is_asked_for_by_its_own_node() {
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
        let refused = Some("can only create a node CSR with CN=system:node:n");
        for (signer, name, expected) in [
            (KUBELET_SIGNERS[0], "system:node:n", None),
            (KUBELET_SIGNERS[1], "system:node:n", None),
            (KUBELET_SIGNERS[0], "system:node:m", refused),
            (KUBELET_SIGNERS[1], "system:node:m", refused),
            (KUBELET_SIGNERS[1], "n", refused),
            ("kubernetes.io/kube-apiserver-client", "ann", None),
        ] {
            let found = own_certificate(&request(signer, name), "n").err();
            assert_eq!(found.as_deref(), expected, "{signer} {name}");
        }
        let mut broken = request(KUBELET_SIGNERS[0], "system:node:n");
        broken.spec.request.0 = b"nothing".to_vec();
        let why = own_certificate(&broken, "n").unwrap_err();
        assert!(why.starts_with("unable to parse csr: "), "{why}");
    }

    fn pod(change: Value) -> Pod {
        let mut pod = json!({
            "metadata": {
                "name": "p", "namespace": "a", "annotations": {MIRROR: "x"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true}
                ],
            },
            "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
        });
        merge(&mut pod, change);
        serde_json::from_value(pod).unwrap()
    }

    fn merge(into: &mut Value, from: Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                for (key, value) in from {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, from) => *into = from,
        }
    }

    #[test]
    fn a_node_creates_only_mirror_pods_that_use_nothing() {
        let owner = |change: Value| {
            let mut owner =
                json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true});
            merge(&mut owner, change);
            json!({"metadata": {"ownerReferences": [owner]}})
        };
        let volume = |v: Value| {
            let mut volume = json!({"name": "v"});
            merge(&mut volume, v);
            json!({"spec": {"volumes": [volume]}})
        };
        for (change, expected) in [
            (json!({}), None),
            (json!({"metadata": {"annotations": null}}), Some("annotation")),
            (
                json!({"spec": {"nodeName": "m"}}),
                Some("spec.nodeName set to itself"),
            ),
            (
                json!({"metadata": {"ownerReferences": null}}),
                Some("an owner reference"),
            ),
            (owner(json!({"name": "m"})), Some("an owner reference")),
            (
                owner(json!({"controller": false})),
                Some("a controller owner reference"),
            ),
            (
                owner(json!({"blockOwnerDeletion": true})),
                Some("blockOwnerDeletion"),
            ),
            (owner(json!({"uid": "w"})), Some("UID mismatch: expected w got u")),
            (
                json!({"spec": {"serviceAccountName": "sa"}}),
                Some("reference serviceaccounts"),
            ),
            (
                json!({"spec": {"imagePullSecrets": [{"name": "s"}]}}),
                Some("reference secrets"),
            ),
            (volume(json!({"emptyDir": {}})), None),
            (volume(json!({"hostPath": {"path": "/x"}})), None),
            (
                volume(json!({"persistentVolumeClaim": {"claimName": "c"}})),
                Some("reference persistentvolumeclaims"),
            ),
            (
                volume(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}})),
                Some("serviceaccounts (via projected volumes)"),
            ),
        ] {
            let found = mirror_pod(&pod(change.clone()), "n", Some("u")).err();
            let fine = match (&found, expected) {
                (None, None) => true,
                (Some(found), Some(part)) => found.contains(part),
                _ => false,
            };
            assert!(fine, "{change}: {found:?}, expected {expected:?}");
        }
    }

    #[test]
    fn a_node_sets_only_labels_that_steer_nothing_to_it() {
        for (label, forbidden) in [
            ("mine", false),
            ("example.com/x", false),
            ("kubernetes.io/hostname", false),
            ("node.kubernetes.io/anything", false),
            ("x.kubelet.kubernetes.io/anything", false),
            ("node-role.kubernetes.io/control-plane", true),
            ("kubernetes.io/other", true),
            ("x.k8s.io/other", true),
            ("node-restriction.kubernetes.io/x", true),
            ("a.node-restriction.kubernetes.io/x", true),
            ("notkubernetes.io/x", false),
        ] {
            assert_eq!(is_forbidden(label), forbidden, "{label}");
        }
    }
}
