//! The Node authorizer: a kubelet may access its own Node, Lease, CSINode and ResourceSlices, its pods, and the objects that
//! its pods reference.
//!
//! Kubernetes keeps a graph from objects to nodes; here the pods of the node are checked in the cache. The names and contents
//! of written objects are checked by [`crate::admission::node_restriction`].
//!
//! The rules are those of v1.36's Node authorizer. knarr's nodes do more than Kubernetes' (local volumes, attachments that
//! the node itself releases, the endpoint barrier), and have these permissions in addition, each limited to the node:
//!
//! - list, watch and update the PersistentVolumes of the node's own directories (label [`LOCAL_NODE`]);
//! - list, watch and update the VolumeAttachments to the node (field `spec.nodeName`);
//! - list and watch EndpointSlices in namespaces that a pod of the node is in.

use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use knarr_api::kinds::persistent_volume::LOCAL_NODE;
use knarr_api::kinds::pod::is_mirror;
use knarr_api::well_known::NODE_LEASE_NAMESPACE;
use knarr_api::{Object, k8s_openapi, registry};
use knarr_apimachinery::ids::NodeName;

use super::{Attributes, default_roles, rbac};
use crate::cache::Cache;
use crate::references::{Referenced, referenced_names, secret_key};

pub(super) fn allows(cache: &Cache, node: &NodeName, r: &Attributes<'_>) -> bool {
    let reads = matches!(r.verb, "get" | "list" | "watch");
    let gets = r.verb == "get" && r.subresource.is_empty() && !r.name.is_empty();
    // A single object by name, or a list or watch of that name; never all objects.
    let reads_one = reads && r.subresource.is_empty() && !r.namespace.is_empty() && !r.name.is_empty();
    let writes_own = |own: &str| match r.verb {
        // The name is not known before admission.
        "create" => true,
        "get" | "update" | "patch" | "delete" => own == node,
        _ => false,
    };
    match (r.group, r.resource, r.subresource) {
        ("", "secrets", _) => reads_one && secret_is_used(cache, node, r.namespace, r.name),
        ("", "configmaps", _) => {
            reads_one
                && any_pod(cache, node, r.namespace, |p| {
                    references(p, r.name, Referenced::ConfigMap)
                })
        }
        ("", "persistentvolumeclaims", "status") => {
            matches!(r.verb, "update" | "patch") && claim_is_used(cache, node, r.namespace, r.name)
        }
        ("", "persistentvolumeclaims", _) => gets && claim_is_used(cache, node, r.namespace, r.name),
        ("", "persistentvolumes", "") if r.verb == "update" => is_directory_of(cache, node, r.name),
        ("", "persistentvolumes", "") if matches!(r.verb, "list" | "watch") => {
            r.requires_label(LOCAL_NODE, node)
        }
        ("", "persistentvolumes", _) => {
            gets && (is_directory_of(cache, node, r.name) || volume_is_used(cache, node, r.name))
        }
        ("resource.k8s.io", "resourceclaims", _) => {
            gets && any_pod(cache, node, r.namespace, |p| uses_resource_claim(p, r.name))
        }
        ("storage.k8s.io", "volumeattachments", "") if r.verb == "update" => {
            is_attached_to(cache, node, r.name)
        }
        ("storage.k8s.io", "volumeattachments", "") if matches!(r.verb, "list" | "watch") => {
            r.required_field("spec.nodeName") == Some(node.as_str())
        }
        ("storage.k8s.io", "volumeattachments", _) => gets && is_attached_to(cache, node, r.name),
        ("", "serviceaccounts", "") => gets && account_is_used(cache, node, r),
        ("", "serviceaccounts", sub) => {
            sub == "token" && r.verb == "create" && !r.name.is_empty() && account_is_used(cache, node, r)
        }
        ("coordination.k8s.io", "leases", _) => r.namespace == NODE_LEASE_NAMESPACE && writes_own(r.name),
        ("storage.k8s.io", "csinodes", sub) => sub.is_empty() && writes_own(r.name),
        ("resource.k8s.io", "resourceslices", "") => match r.verb {
            "create" => true,
            "get" | "update" | "patch" | "delete" => {
                cache.get(&registry::RESOURCE_SLICE, "", r.name).is_some_and(|o| {
                    let slice = o.get::<ResourceSlice>();
                    slice.is_some_and(|s| s.spec.node_name.as_deref() == Some(node.as_str()))
                })
            }
            "list" | "watch" | "deletecollection" => r.required_field("spec.nodeName") == Some(node.as_str()),
            _ => false,
        },
        ("resource.k8s.io", "resourceslices", _) => false,
        // NodeRestriction checks which Node is written.
        ("", "nodes", "") if matches!(r.verb, "create" | "update" | "patch") => true,
        ("", "nodes", "") => reads && r.name == node,
        ("", "nodes", sub) => sub == "status" && matches!(r.verb, "update" | "patch"),
        ("", "pods", "") => match r.verb {
            "get" => is_on(cache, node, r.namespace, r.name),
            "list" | "watch" => {
                r.required_field("spec.nodeName") == Some(node.as_str())
                    || (!r.name.is_empty() && is_on(cache, node, r.namespace, r.name))
            }
            "create" | "delete" => true,
            _ => false,
        },
        ("", "pods", sub) => match sub {
            "status" => matches!(r.verb, "update" | "patch"),
            "eviction" => r.verb == "create",
            _ => false,
        },
        // For the endpoint barrier: a terminating pod gets TERM once no slice has it as a ready endpoint.
        ("discovery.k8s.io", "endpointslices", "") => {
            matches!(r.verb, "list" | "watch")
                && !r.namespace.is_empty()
                && any_pod(cache, node, r.namespace, |_| true)
        }
        _ => default_roles::node_rules()
            .iter()
            .any(|rule| rbac::rule_covers(rule, r)),
    }
}

fn account_is_used(cache: &Cache, node: &NodeName, r: &Attributes<'_>) -> bool {
    any_pod(cache, node, r.namespace, |p| {
        p.spec.as_ref().and_then(|s| s.service_account_name.as_deref()) == Some(r.name)
    })
}

/// Whether the volume is a directory that the node creates and removes itself.
fn is_directory_of(cache: &Cache, node: &NodeName, volume: &str) -> bool {
    let volume = cache.get(&registry::PERSISTENT_VOLUME, "", volume);
    volume.is_some_and(|v| {
        let labels = v.metadata().labels.as_ref();
        labels.and_then(|l| l.get(LOCAL_NODE)).is_some_and(|n| n == node)
    })
}

fn is_attached_to(cache: &Cache, node: &NodeName, attachment: &str) -> bool {
    let attachment = cache.get(&registry::VOLUME_ATTACHMENT, "", attachment);
    let node_of = |o: &knarr_api::Object| Some(o.get::<VolumeAttachment>()?.spec.node_name.clone());
    attachment.and_then(|a| node_of(&a)).as_deref() == Some(node.as_str())
}

fn claim_is_used(cache: &Cache, node: &NodeName, namespace: &str, name: &str) -> bool {
    any_pod(cache, node, namespace, |p| claims(p).any(|claim| claim == name))
}

/// Whether the volume is bound to a claim that a pod of the node uses.
fn volume_is_used(cache: &Cache, node: &NodeName, name: &str) -> bool {
    cache
        .get(&registry::PERSISTENT_VOLUME, "", name)
        .is_some_and(|o| bound_volume_is_used(cache, node, &o))
}

fn bound_volume_is_used(cache: &Cache, node: &NodeName, volume: &Object) -> bool {
    let claim = volume
        .get::<PersistentVolume>()
        .and_then(|v| v.spec.as_ref()?.claim_ref.as_ref());
    claim.is_some_and(|c| {
        let text = |t: &Option<String>| t.clone().unwrap_or_default();
        claim_is_used(cache, node, &text(&c.namespace), &text(&c.name))
    })
}

/// Whether a pod of the node, or a volume that such a pod uses, references the secret.
fn secret_is_used(cache: &Cache, node: &NodeName, namespace: &str, name: &str) -> bool {
    if any_pod(cache, node, namespace, |p| {
        references(p, name, Referenced::Secret)
    }) {
        return true;
    }
    let Ok(volumes) = cache.of(&registry::PERSISTENT_VOLUME) else {
        return false;
    };
    let mut found = false;
    volumes.scan_index(&secret_key(namespace, name), "", |volume| {
        found = bound_volume_is_used(cache, node, volume);
        !found
    });
    found
}

pub(crate) fn is_on(cache: &Cache, node: &NodeName, namespace: &str, name: &str) -> bool {
    cache
        .get(&registry::POD, namespace, name)
        .is_some_and(|o| o.field("spec.nodeName").ok().as_deref() == Some(node.as_str()))
}

/// Whether a pod of the node fulfils `condition`. Mirror pods give their node access to nothing.
fn any_pod(cache: &Cache, node: &NodeName, namespace: &str, condition: impl Fn(&Pod) -> bool) -> bool {
    let Ok(pods) = cache.of(&registry::POD) else {
        return false;
    };
    let mut found = false;
    pods.scan_index(node, namespace, |object| {
        found = object.get::<Pod>().is_some_and(|p| !is_mirror(p) && condition(p));
        !found
    });
    found
}

/// The names of the claims of a pod's volumes.
fn claims(pod: &Pod) -> impl Iterator<Item = String> {
    let name = pod.metadata.name.as_deref().unwrap_or("");
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.filter_map(move |v| match (&v.persistent_volume_claim, &v.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(format!("{name}-{}", v.name)),
        (None, None) => None,
    })
}

fn uses_resource_claim(pod: &Pod, name: &str) -> bool {
    let named = pod
        .spec
        .iter()
        .flat_map(|s| s.resource_claims.iter().flatten())
        .any(|c| c.resource_claim_name.as_deref() == Some(name));
    let status = pod.status.as_ref();
    let made = status
        .into_iter()
        .flat_map(|s| s.resource_claim_statuses.iter().flatten())
        .any(|c| c.resource_claim_name.as_deref() == Some(name));
    let extended = status
        .and_then(|s| s.extended_resource_claim_status.as_ref())
        .is_some_and(|c| c.resource_claim_name == name);
    named || made || extended
}

/// Whether the pod references this Secret or ConfigMap.
fn references(pod: &Pod, name: &str, what: Referenced) -> bool {
    let Some(spec) = &pod.spec else { return false };
    referenced_names(spec, what).contains(&name)
}
