//! What a kubelet may do: read what its pods use, write its own node, lease and pods' status, report events.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use knarr_api::kinds::persistent_volume::LOCAL_NODE;
use knarr_api::{k8s_openapi, registry};

use super::Attributes;
use crate::cache::Cache;

const READ: [&str; 3] = ["get", "list", "watch"];

pub(super) fn allows(cache: &Cache, node: &str, r: &Attributes<'_>) -> bool {
    if r.resource.is_empty() {
        return r.verb == "get";
    }
    let reads = READ.contains(&r.verb);
    match (r.group, r.resource, r.subresource) {
        ("", "nodes", "") if r.verb == "create" => r.name.is_empty() || r.name == node,
        ("", "nodes", "" | "status") if ["update", "patch"].contains(&r.verb) => r.name == node,
        ("", "nodes" | "services", "") => reads,
        ("", "pods", "") => {
            reads || r.verb == "create" || (r.verb == "delete" && is_on(cache, node, r.namespace, r.name))
        }
        ("", "pods", "status") => {
            ["update", "patch"].contains(&r.verb) && is_on(cache, node, r.namespace, r.name)
        }
        ("", "pods", "eviction") => r.verb == "create" && is_on(cache, node, r.namespace, r.name),
        ("", "events", "") | ("events.k8s.io", "events", "") => {
            ["create", "update", "patch"].contains(&r.verb)
        }
        ("", "serviceaccounts", "token") => {
            r.verb == "create"
                && any_pod(cache, node, r.namespace, |s| {
                    s.service_account_name.as_deref() == Some(r.name)
                })
        }
        ("", "serviceaccounts", "") => r.verb == "get",
        // One object by name, or a list or watch of that one name; never all of them.
        ("", "configmaps", "") => {
            reads && !r.name.is_empty() && any_pod(cache, node, r.namespace, |s| uses(s, "configMap", r.name))
        }
        ("", "secrets", "") => {
            reads && !r.name.is_empty() && any_pod(cache, node, r.namespace, |s| uses(s, "secret", r.name))
        }
        ("", "persistentvolumes", "") if r.verb == "update" => is_directory_of(cache, node, r.name),
        ("", "persistentvolumes", "") => reads,
        ("", "persistentvolumeclaims", "") => r.verb == "get",
        ("coordination.k8s.io", "leases", "") => {
            r.namespace == "kube-node-lease"
                && (r.verb == "create"
                    || (["get", "update", "patch", "delete"].contains(&r.verb) && r.name == node))
        }
        ("storage.k8s.io", "csinodes", "") => r.verb == "create" || r.name == node,
        ("storage.k8s.io", "volumeattachments", "") if r.verb == "update" => {
            is_attached_to(cache, node, r.name)
        }
        ("storage.k8s.io", "volumeattachments" | "csidrivers", "")
        | ("node.k8s.io", "runtimeclasses", "")
        // TERM waits until they offer an ending pod no more.
        | ("discovery.k8s.io", "endpointslices", "") => reads,
        ("certificates.k8s.io", "certificatesigningrequests", "") => reads || r.verb == "create",
        ("authentication.k8s.io", "tokenreviews", "")
        | ("authorization.k8s.io", "subjectaccessreviews", "") => r.verb == "create",
        _ => false,
    }
}

fn is_on(cache: &Cache, node: &str, namespace: &str, name: &str) -> bool {
    cache
        .get(&registry::POD, namespace, name)
        .is_some_and(|o| o.get::<Pod>().and_then(|p| p.spec.as_ref()?.node_name.as_deref()) == Some(node))
}

/// Whether the volume is one that the node makes and removes itself.
fn is_directory_of(cache: &Cache, node: &str, volume: &str) -> bool {
    let volume = cache.get(&registry::PERSISTENT_VOLUME, "", volume);
    volume.is_some_and(|v| {
        let labels = v.metadata().labels.as_ref();
        labels.and_then(|l| l.get(LOCAL_NODE)).is_some_and(|n| n == node)
    })
}

fn is_attached_to(cache: &Cache, node: &str, attachment: &str) -> bool {
    let attachment = cache.get(&registry::VOLUME_ATTACHMENT, "", attachment);
    let node_of = |o: &knarr_api::Object| Some(o.get::<VolumeAttachment>()?.spec.node_name.clone());
    attachment.and_then(|a| node_of(&a)).as_deref() == Some(node)
}

fn any_pod(cache: &Cache, node: &str, namespace: &str, wanted: impl Fn(&PodSpec) -> bool) -> bool {
    let Ok(pods) = cache.of(&registry::POD) else {
        return false;
    };
    let mut found = false;
    pods.scan(namespace, "", |object| {
        let spec = object.get::<Pod>().and_then(|p| p.spec.as_ref());
        found = spec.is_some_and(|s| s.node_name.as_deref() == Some(node) && wanted(s));
        !found
    });
    found
}

/// Whether the pod refers to this Secret or ConfigMap.
fn uses(spec: &PodSpec, what: &str, name: &str) -> bool {
    let secret = what == "secret";
    let is = |n: &str| n == name;
    let volumes = spec.volumes.iter().flatten().any(|v| {
        let direct = if secret {
            v.secret
                .as_ref()
                .and_then(|s| s.secret_name.as_deref())
                .is_some_and(is)
        } else {
            v.config_map.as_ref().is_some_and(|c| is(&c.name))
        };
        let projected = v
            .projected
            .iter()
            .flat_map(|p| p.sources.iter().flatten())
            .any(|s| {
                if secret {
                    s.secret.as_ref().is_some_and(|s| is(&s.name))
                } else {
                    s.config_map.as_ref().is_some_and(|c| is(&c.name))
                }
            });
        direct || projected
    });
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let environment = containers.clone().any(|c| {
        let from = c.env_from.iter().flatten().any(|e| {
            if secret {
                e.secret_ref.as_ref().is_some_and(|s| is(&s.name))
            } else {
                e.config_map_ref.as_ref().is_some_and(|c| is(&c.name))
            }
        });
        let values = c
            .env
            .iter()
            .flatten()
            .filter_map(|e| e.value_from.as_ref())
            .any(|v| {
                if secret {
                    v.secret_key_ref.as_ref().is_some_and(|s| is(&s.name))
                } else {
                    v.config_map_key_ref.as_ref().is_some_and(|c| is(&c.name))
                }
            });
        from || values
    });
    let pulls = secret && spec.image_pull_secrets.iter().flatten().any(|s| is(&s.name));
    volumes || environment || pulls
}
