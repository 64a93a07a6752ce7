//! Pods with ResourceClaims on an in-memory API, in paused time: the scheduler and the claim controllers together.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_client::fake::FakeApi;
use knarr_client::{Api, Patch, Shared, TypedApi};
use knarr_control::Config;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::DropGuard;

use crate::cluster::{create, node_of, with_all};

/// A node with one device of the class `gpu`, the template `t`, and `with` over the device.
async fn cluster(with: Value) -> (Arc<FakeApi>, DropGuard) {
    let (api, running) = with_all(Config::default());
    create::<Node>(
        &api,
        json!({
            "metadata": {"name": "n1"},
            "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "110"},
                       "conditions": [{"type": "Ready", "status": "True"}]},
        }),
    )
    .await;
    let mut device = json!({"name": "d0"});
    knarr_api::patch::merge::apply(&mut device, &with);
    let pool = json!({"name": "n1", "generation": 1, "resourceSliceCount": 1});
    let slice = json!({"driver": "gpu.example", "nodeName": "n1", "pool": pool, "devices": [device]});
    create::<ResourceSlice>(&api, json!({"metadata": {"name": "n1"}, "spec": slice})).await;
    create::<DeviceClass>(&api, json!({"metadata": {"name": "gpu"}, "spec": {}})).await;
    let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu"}});
    let spec = json!({"spec": {"devices": {"requests": [request]}}});
    let template = json!({"metadata": {"name": "t", "namespace": "default"}, "spec": spec});
    create::<ResourceClaimTemplate>(&api, template).await;
    (api, running)
}

async fn create_pod(api: &FakeApi, name: &str) {
    let pod = json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
        },
    });
    create::<Pod>(api, pod).await;
}

/// The claim that was made for a pod.
async fn claim_of(api: &FakeApi, pod: &str) -> Option<Shared<ResourceClaim>> {
    let pod = api.get_as::<Pod>("default", pod).await.unwrap();
    let status = pod.status.as_ref()?.resource_claim_statuses.as_ref()?;
    let name = status.first()?.resource_claim_name.clone()?;
    api.get_as::<ResourceClaim>("default", &name).await.ok()
}

#[tokio::test(start_paused = true)]
async fn a_device_is_released_by_one_pod_and_allocated_to_the_next() {
    let (api, _running) = cluster(json!({})).await;
    create_pod(&api, "first").await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(node_of(&api, "first").await.as_deref(), Some("n1"));
    let claim = claim_of(&api, "first").await.unwrap();
    let finalizers = claim.metadata.finalizers.clone().unwrap_or_default();
    assert_eq!(finalizers, ["resource.kubernetes.io/delete-protection"]);
    let status = claim.status.clone().unwrap();
    let users = status.reserved_for.unwrap();
    assert_eq!(
        (users[0].resource.as_str(), users[0].name.as_str()),
        ("pods", "first")
    );
    let allocation = status.allocation.unwrap();
    assert!(allocation.allocation_timestamp.is_some());
    assert_eq!(allocation.devices.unwrap().results.unwrap()[0].device, "d0");

    create_pod(&api, "second").await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(node_of(&api, "second").await, None, "there is one device");
    let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    api.patch(&registry::POD, "default", "first", "status", ended)
        .await
        .unwrap();
    sleep(Duration::from_secs(30)).await;
    assert!(
        claim_of(&api, "first").await.is_none(),
        "it is deleted with its pod"
    );
    assert_eq!(node_of(&api, "second").await.as_deref(), Some("n1"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_when_the_conditions_of_its_devices_are_met() {
    let (api, _running) =
        cluster(json!({"bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]})).await;
    create_pod(&api, "p").await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(node_of(&api, "p").await, None);
    let claim = claim_of(&api, "p").await.unwrap();
    let condition = json!({"type": "attached", "status": "True", "reason": "Done", "message": "",
                           "lastTransitionTime": "1970-01-01T00:00:00Z"});
    let device = json!({"driver": "gpu.example", "pool": "n1", "device": "d0", "conditions": [condition]});
    let patch = Patch::Merge(json!({"status": {"devices": [device]}}));
    let name = claim.object().name();
    api.patch(&registry::RESOURCE_CLAIM, "default", name, "status", patch)
        .await
        .unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(node_of(&api, "p").await.as_deref(), Some("n1"));
}

async fn create_asking_pod(api: &FakeApi, name: &str) {
    let requests = json!({"deviceclass.resource.kubernetes.io/gpu": "1"});
    let pod = json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [{"name": "c", "image": "i", "resources": {"requests": requests}}],
        },
    });
    create::<Pod>(api, pod).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_for_extended_resources_is_created_and_deleted_with_the_pod() {
    let (api, _running) = cluster(json!({})).await;
    create_asking_pod(&api, "first").await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(node_of(&api, "first").await.as_deref(), Some("n1"));
    let pod = api.get_as::<Pod>("default", "first").await.unwrap();
    let status = pod
        .status
        .clone()
        .unwrap()
        .extended_resource_claim_status
        .unwrap();
    let mapping = &status.request_mappings[0];
    assert_eq!(mapping.container_name, "c");
    assert_eq!(mapping.resource_name, "deviceclass.resource.kubernetes.io/gpu");
    assert_eq!(mapping.request_name, "container-0-request-0");
    let name = status.resource_claim_name;
    assert!(name.starts_with("first-extended-resources-"), "{name}");
    let claim = api.get_as::<ResourceClaim>("default", &name).await.unwrap();
    let annotations = claim.metadata.annotations.clone().unwrap();
    assert_eq!(
        annotations["resource.kubernetes.io/extended-resource-claim"],
        "true"
    );
    let of_claim = claim.status.clone().unwrap();
    assert_eq!(of_claim.reserved_for.unwrap()[0].name, "first");
    let results = of_claim.allocation.unwrap().devices.unwrap().results.unwrap();
    assert_eq!(
        (results[0].request.as_str(), results[0].device.as_str()),
        ("container-0-request-0", "d0")
    );

    create_asking_pod(&api, "second").await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(node_of(&api, "second").await, None, "there is one device");
    let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    api.patch(&registry::POD, "default", "first", "status", ended)
        .await
        .unwrap();
    sleep(Duration::from_secs(30)).await;
    let gone = api.get_as::<ResourceClaim>("default", &name).await;
    assert!(gone.unwrap_err().is_not_found());
    assert_eq!(node_of(&api, "second").await.as_deref(), Some("n1"));
}
