//! Declared domains (SPEC B3) on an in-memory API, in paused time: the controller's status, and the scheduler that follows it.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use knarr_api::custom::conditions;
use knarr_api::registry::CUSTOM_RESOURCE_DEFINITION;
use knarr_api::{Kind, k8s_openapi};
use knarr_client::fake::FakeApi;
use knarr_client::metrics::Registry;
use knarr_client::{Api, TypedApi};
use knarr_control::scheduler::{Features, Metrics, run_with};
use knarr_control::scheduler_config::KubeSchedulerConfiguration;
use knarr_control::topology_domains;
use knarr_control::topology_domains_kinds::{TopologyDomains, definition};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::cluster::{run_one, with_base};

const TOPOLOGY_DOMAINS: &str = "topologydomains.placement.knarr.io";
const MACHINE_DEPLOYMENTS: &str = "machinedeployments.cluster.x-k8s.io";

/// What the API server does with a definition that was created.
async fn establish(api: &FakeApi, name: &str) {
    let there = api.get_as::<CustomResourceDefinition>("", name).await.unwrap();
    let mut crd = (*there).clone();
    let names = crd.spec.names.clone();
    let version = crd.spec.versions[0].name.clone();
    let status = crd.status.get_or_insert_default();
    conditions::set(
        status,
        conditions::ESTABLISHED,
        "True",
        "Test",
        "",
        Timestamp::UNIX_EPOCH,
    );
    status.accepted_names = Some(names);
    status.stored_versions = Some(vec![version]);
    api.update_status_as(crd).await.unwrap();
}

fn node(name: &str, zone: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"zone": zone}},
        "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap()
}

fn pod(name: &str, node: Option<&str>) -> Pod {
    let constraint = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}});
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}],
            "topologySpreadConstraints": [constraint]},
    }))
    .unwrap()
}

/// Creates or updates the object.
async fn write(api: &FakeApi, kind: &Kind, revision: Option<u64>, domains: &Value) -> u64 {
    let mut json = json!({"apiVersion": "placement.knarr.io/v1alpha1", "kind": "TopologyDomains",
        "metadata": {"name": "zones"},
        "spec": {"topologyKey": "zone", "domains": [{"name": "c"}]}, "status": {"domains": domains}});
    if let Some(revision) = revision {
        json["metadata"]["resourceVersion"] = revision.to_string().into();
    }
    let object = kind.ops.decode(json.to_string().as_bytes()).unwrap().object;
    let written = match revision {
        None => api.create(kind, object).await,
        Some(_) => api.update(kind, object, "").await,
    };
    written.unwrap().revision()
}

#[tokio::test(start_paused = true)]
async fn b3_a_pod_waits_for_a_node_in_an_absent_zone_until_the_zone_is_lost() {
    let (api, base) = with_base();
    api.create_as(definition()).await.unwrap();
    establish(&api, TOPOLOGY_DOMAINS).await;
    for (name, zone) in [("a1", "a"), ("b1", "b")] {
        api.create_as(node(name, zone)).await.unwrap();
        api.create_as(pod(&format!("on-{name}"), Some(name)))
            .await
            .unwrap();
    }
    let caches = base.caches.clone();
    caches.add_custom_kind_handler(|_| {});
    caches.store(&CUSTOM_RESOURCE_DEFINITION).synced().await;
    let kind = caches.custom_kinds().pop().unwrap();
    let absent = json!([{"name": "c", "counted": true, "nodeTemplates": [{}]}]);
    let revision = write(&api, &kind, None, &absent).await;

    let scheduler = KubeSchedulerConfiguration::default().scheduler();
    let features = Features {
        topology_domains: true,
    };
    let metrics = Metrics::new(&Registry::default());
    let _running = run_one(run_with(base, scheduler, metrics, features));
    api.create_as(pod("web", None)).await.unwrap();
    sleep(Duration::from_secs(3)).await;
    let web = api.get_as::<Pod>("default", "web").await.unwrap();
    let condition = &web.status.as_ref().unwrap().conditions.as_ref().unwrap()[0];
    assert_eq!(
        (condition.type_.as_str(), condition.status.as_str()),
        ("PodScheduled", "False")
    );
    assert_eq!(condition.reason.as_deref(), Some("Unschedulable"));
    let message = condition.message.as_deref().unwrap();
    assert!(
        message.starts_with(
            "0/2 nodes are available: 2 node(s) didn't match pod topology spread constraints \
             (waiting for a node in zone=c)."
        ),
        "{message}"
    );

    let lost = json!([{"name": "c", "counted": false, "nodeTemplates": [{}]}]);
    write(&api, &kind, Some(revision), &lost).await;
    sleep(Duration::from_secs(30)).await;
    let web = api.get_as::<Pod>("default", "web").await.unwrap();
    assert!(
        web.spec.as_ref().unwrap().node_name.is_some(),
        "zone c does not block the others"
    );
}

/// Name, state and number of nodes of each domain.
async fn domains(api: &FakeApi) -> Vec<String> {
    let object = api.get(TopologyDomains::kind(), "", "zones").await.unwrap();
    let found = TopologyDomains::of(&object).unwrap().status.domains;
    let lines = found
        .iter()
        .map(|d| format!("{} {:?} {}", d.name, d.state, d.nodes));
    lines.collect()
}

#[tokio::test(start_paused = true)]
async fn b3_the_controller_creates_its_definition_and_writes_the_status() {
    let (api, base) = with_base();
    let _running = run_one(topology_domains::run(base));
    sleep(Duration::from_secs(1)).await;
    establish(&api, TOPOLOGY_DOMAINS).await;
    api.create_as(node("a1", "a")).await.unwrap();
    write(&api, TopologyDomains::kind(), None, &json!([])).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(domains(&api).await, ["c Absent 0", "a Ready 1"]);
    api.create_as(node("c1", "c")).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(domains(&api).await, ["c Ready 1", "a Ready 1"]);
}

/// The definition of MachineDeployments, without their schema.
fn machine_deployments() -> CustomResourceDefinition {
    serde_json::from_value(json!({"metadata": {"name": MACHINE_DEPLOYMENTS},
        "spec": {"group": "cluster.x-k8s.io", "scope": "Namespaced",
            "names": {"plural": "machinedeployments", "singular": "machinedeployment", "kind": "MachineDeployment",
                "listKind": "MachineDeploymentList"},
            "versions": [{"name": "v1beta2", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}))
    .unwrap()
}

async fn create(api: &FakeApi, kind: &Kind, json: Value) {
    let object = kind.ops.decode(json.to_string().as_bytes()).unwrap().object;
    api.create(kind, object).await.unwrap();
}

/// The reason of the condition MachineDeploymentsRead.
async fn read_reason(api: &FakeApi) -> String {
    let object = api.get(TopologyDomains::kind(), "", "zones").await.unwrap();
    let conditions = TopologyDomains::of(&object).unwrap().status.conditions;
    let mut read = conditions
        .into_iter()
        .filter(|c| c.type_ == "MachineDeploymentsRead");
    read.next().unwrap().reason
}

#[tokio::test(start_paused = true)]
async fn b3_machine_deployments_declare_domains_once_cluster_api_is_installed() {
    let (api, base) = with_base();
    let caches = base.caches.clone();
    let _running = run_one(topology_domains::run(base));
    sleep(Duration::from_secs(1)).await;
    establish(&api, TOPOLOGY_DOMAINS).await;
    api.create_as(node("a1", "a")).await.unwrap();
    let spec =
        json!({"topologyKey": "zone", "machineDeployments": {"namespace": "capi", "clusterName": "prod"}});
    let zones = json!({"metadata": {"name": "zones"}, "spec": spec});
    create(&api, TopologyDomains::kind(), zones).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(domains(&api).await, ["a Ready 1"]);
    assert_eq!(read_reason(&api).await, "NotServed");

    api.create_as(machine_deployments()).await.unwrap();
    establish(&api, MACHINE_DEPLOYMENTS).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(read_reason(&api).await, "Read");
    let served = caches.custom_kinds();
    let kind = served.iter().find(|k| k.kind() == "MachineDeployment").unwrap();
    let workers = json!({"metadata": {"name": "workers", "namespace": "capi"},
        "spec": {"clusterName": "prod", "replicas": 0, "template": {"spec": {"failureDomain": "c"}}}});
    create(&api, kind, workers).await;
    // Less than the period: the change wakes the controller.
    sleep(Duration::from_secs(1)).await;
    assert_eq!(domains(&api).await, ["c Absent 0", "a Ready 1"]);
}
