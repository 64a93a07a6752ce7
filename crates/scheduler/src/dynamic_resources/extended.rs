//! Extended resources that DeviceClasses provide (KEP-5004, DRAExtendedResource): what a pod requests in
//! `resources.requests` and no device plugin of the node provides becomes the requests of one claim for the pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerExtendedResourceRequest, Pod};
use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceRequest, ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::k8s_openapi;
use knarr_api::well_known::EXTENDED_RESOURCE_CLAIM;
use knarr_apimachinery::ids::PodUid;
use knarr_apimachinery::quantity::Quantity;

use super::Inventory;

/// Whether the claim was created for the extended resources of this pod.
pub fn is_for_extended_resources(claim: &ResourceClaim, pod_uid: &PodUid) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let annotations = claim.metadata.annotations.as_ref();
    let is_annotated = annotations
        .and_then(|a| a.get(EXTENDED_RESOURCE_CLAIM))
        .is_some_and(|v| v == "true");
    is_annotated && owners.any(|o| o.controller == Some(true) && *pod_uid == o.uid)
}

/// What a pod needs on one node: a claim that is to be created, and which request is for which container.
#[derive(Clone, Debug, Default)]
pub struct ExtendedClaim {
    /// Without a name. Its UID is a placeholder, under which only the assumed allocation is kept.
    pub claim: ResourceClaim,
    pub mappings: Vec<ContainerExtendedResourceRequest>,
}

impl ExtendedClaim {
    /// For these resources, each of which a DeviceClass provides.
    pub fn new(inventory: &Inventory, pod: &Pod, resources: &[&str]) -> Self {
        let (requests, mappings) = requests(inventory, pod, resources);
        let of = |text: &Option<String>| text.clone().unwrap_or_default();
        let (name, uid) = (of(&pod.metadata.name), of(&pod.metadata.uid));
        let metadata = ObjectMeta {
            namespace: pod.metadata.namespace.clone(),
            generate_name: Some(format!("{name}-extended-resources-")),
            uid: Some(format!("{uid}-extended-resources")),
            annotations: Some(BTreeMap::from([(EXTENDED_RESOURCE_CLAIM.into(), "true".into())])),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Pod".into(),
                name,
                uid,
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        };
        let devices = DeviceClaim {
            requests: Some(requests),
            ..DeviceClaim::default()
        };
        ExtendedClaim {
            claim: ResourceClaim {
                metadata,
                spec: ResourceClaimSpec {
                    devices: Some(devices),
                },
                status: None,
            },
            mappings,
        }
    }
}

/// How many devices a container requests.
fn requested_count(container: &Container, resource: &str) -> i64 {
    let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let amount = requests.and_then(|r| r.get(resource));
    amount.and_then(|a| Quantity::of(a).ok()).map_or(0, |q| q.value())
}

/// By the index of the container among init containers and containers, and of the resource among all that the
/// container requests.
fn request_name(at: usize, container: &Container, resource: &str) -> String {
    let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let mut names = requests.into_iter().flat_map(BTreeMap::keys);
    let of = names.position(|name| name == resource).unwrap_or(0);
    format!("container-{at}-request-{of}")
}

fn mapping(container: &Container, resource: &str, request: &str) -> ContainerExtendedResourceRequest {
    ContainerExtendedResourceRequest {
        container_name: container.name.clone(),
        resource_name: resource.to_string(),
        request_name: request.to_string(),
    }
}

fn request(name: String, class: &str, count: i64) -> DeviceRequest {
    DeviceRequest {
        name,
        exactly: Some(ExactDeviceRequest {
            device_class_name: class.to_string(),
            allocation_mode: Some("ExactCount".into()),
            count: Some(count),
            ..ExactDeviceRequest::default()
        }),
        first_available: None,
    }
}

/// Containers and sidecars have devices of their own. An init container uses those of the containers and sidecars
/// that start after it, and where they are too few, one request that all such init containers share.
fn requests(
    inventory: &Inventory,
    pod: &Pod,
    resources: &[&str],
) -> (Vec<DeviceRequest>, Vec<ContainerExtendedResourceRequest>) {
    let spec = pod.spec.as_ref();
    let init = spec
        .and_then(|s| s.init_containers.as_deref())
        .unwrap_or_default();
    let main = spec.map(|s| s.containers.as_slice()).unwrap_or_default();
    let containers: Vec<&Container> = init.iter().chain(main).collect();
    let is_init = |at: usize| {
        let policy = init.get(at).map(|c| c.restart_policy.as_deref());
        policy.is_some_and(|policy| policy != Some("Always"))
    };
    let mut all = Vec::new();
    let mut mappings = Vec::new();
    for resource in resources {
        let Some(class) = inventory.class_of_resource(resource) else {
            continue;
        };
        let asking = containers.iter().enumerate();
        let asking: Vec<(usize, &Container, i64)> = asking
            .map(|(at, container)| (at, *container, requested_count(container, resource)))
            .filter(|(_, _, count)| *count > 0)
            .collect();
        // Index, name, count.
        let mut long: Vec<(usize, String, i64)> = Vec::new();
        for (at, container, count) in asking.iter().filter(|(at, ..)| !is_init(*at)) {
            let name = request_name(*at, container, resource);
            mappings.push(mapping(container, resource, &name));
            long.push((*at, name, *count));
        }
        // The first of those that request most.
        let mut shared: Option<(String, i64)> = None;
        let mut sharing: Vec<(usize, &Container)> = Vec::new();
        let mut short = Vec::new();
        for (at, container, count) in asking.iter().filter(|(at, ..)| is_init(*at)) {
            let mut missing = *count;
            for (_, name, has) in long.iter().filter(|(of, ..)| of >= at) {
                short.push(mapping(container, resource, name));
                missing -= has;
                if missing <= 0 {
                    break;
                }
            }
            if missing <= 0 {
                continue;
            }
            // Named once it is known which container's request it is.
            sharing.push((short.len(), *container));
            short.push(mapping(container, resource, ""));
            if shared.as_ref().is_none_or(|(_, most)| *most < missing) {
                shared = Some((request_name(*at, container, resource), missing));
            }
        }
        if let Some((name, count)) = shared {
            for (at, container) in sharing {
                short[at] = mapping(container, resource, &name);
            }
            all.push(request(name, class, count));
        }
        all.extend(
            long.into_iter()
                .map(|(_, name, count)| request(name, class, count)),
        );
        mappings.extend(short);
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    (all, mappings)
}

#[cfg(test)]
mod tests;
