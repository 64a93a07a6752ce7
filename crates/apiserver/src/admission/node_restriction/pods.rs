//! Pods: a node creates only mirror pods, and writes only the status of its own pods.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use knarr_api::k8s_openapi;
use knarr_api::well_known::MIRROR_ANNOTATION;
use knarr_apimachinery::ids::NodeName;

use crate::admission::{Denial, deny};
use crate::references::{Referenced, referenced_names};

/// A pod that a node creates must be a mirror pod of its own that references no API objects. `uid` is the node's.
pub(super) fn validate_mirror_pod(pod: &Pod, node: &NodeName, uid: Option<&str>) -> Result<(), Denial> {
    let meta = &pod.metadata;
    if !meta
        .annotations
        .as_ref()
        .is_some_and(|a| a.contains_key(MIRROR_ANNOTATION))
    {
        return deny(format!(
            "pod does not have {MIRROR_ANNOTATION:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    let spec = pod.spec.clone().unwrap_or_default();
    if spec.node_name.as_deref() != Some(node.as_str()) {
        return deny(format!(
            "node {node:?} can only create pods with spec.nodeName set to itself"
        ));
    }
    let own = "owner reference set to itself";
    let owner = match meta.owner_references.as_deref().unwrap_or_default() {
        [owner] => owner,
        [] => return deny(format!("node {node:?} can only create pods with an {own}")),
        _ => return deny(format!("node {node:?} can only create pods with a single {own}")),
    };
    if owner.api_version != "v1" || owner.kind != "Node" || owner.name != *node {
        return deny(format!("node {node:?} can only create pods with an {own}"));
    }
    if owner.controller != Some(true) {
        return deny(format!(
            "node {node:?} can only create pods with a controller {own}"
        ));
    }
    if owner.block_owner_deletion == Some(true) {
        return deny(format!(
            "node {node:?} must not set blockOwnerDeletion on an owner reference"
        ));
    }
    let uid = uid.unwrap_or("");
    if owner.uid != uid {
        return deny(format!(
            "node {node} UID mismatch: expected {} got {uid}",
            owner.uid
        ));
    }
    match referenced_resource(&spec) {
        Some(what) => deny(format!("node {node:?} can not create pods that reference {what}")),
        None => Ok(()),
    }
}

/// The first kind of API object that a pod references.
fn referenced_resource(spec: &PodSpec) -> Option<&'static str> {
    if spec
        .service_account_name
        .as_deref()
        .is_some_and(|n| !n.is_empty())
    {
        return Some("serviceaccounts");
    }
    if !referenced_names(spec, Referenced::Secret).is_empty() {
        return Some("secrets");
    }
    if !referenced_names(spec, Referenced::ConfigMap).is_empty() {
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

pub(super) fn validate_pod_status(old: &Pod, new: &Pod, node: &str) -> Result<(), Denial> {
    if old.spec.as_ref().and_then(|s| s.node_name.as_deref()) != Some(node) {
        return deny(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let labels = |pod: &Pod| pod.metadata.labels.clone().unwrap_or_default();
    if labels(old) != labels(new) {
        return deny(format!("node {node:?} cannot update labels through pod status"));
    }
    let (was, is) = (
        old.status.clone().unwrap_or_default(),
        new.status.clone().unwrap_or_default(),
    );
    if was.resource_claim_statuses.unwrap_or_default() != is.resource_claim_statuses.unwrap_or_default() {
        return deny(format!("node {node:?} cannot update resource claim statues"));
    }
    if was.extended_resource_claim_status != is.extended_resource_claim_status {
        return deny(format!(
            "node {node:?} cannot update extended resource claim status"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(change: Value) -> Pod {
        let mut pod = json!({
            "metadata": {
                "name": "p", "namespace": "a", "annotations": {MIRROR_ANNOTATION: "x"},
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
    fn a_node_creates_only_mirror_pods_that_reference_nothing() {
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
            let found = validate_mirror_pod(&pod(change.clone()), &"n".into(), Some("u")).err();
            let fine = match (&found, expected) {
                (None, None) => true,
                (Some(Denial(found)), Some(part)) => found.contains(part),
                _ => false,
            };
            assert!(fine, "{change}: {found:?}, expected {expected:?}");
        }
    }
}
