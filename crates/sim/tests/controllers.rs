//! Controllers, scheduler and garbage collector with the real API server over the memory store, in paused time.

#![allow(clippy::unwrap_used)]

#[path = "controllers/bad_input.rs"]
mod bad_input;
#[path = "controllers/churn.rs"]
mod churn;
#[path = "controllers/whatif.rs"]
mod whatif;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_apiserver::seams::SystemEntropy;
use knarr_apiserver::{Config, Seams, Server, ServiceRange};
use knarr_client::{
    Api, Clock, Conn, DeleteOptions, Kind, ListOptions, NodeDialer, Object, Patch, Propagation, TokioClock,
    TypedApi,
};
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

struct NoNodes;

#[async_trait]
impl NodeDialer for NoNodes {
    async fn dial(&self, _node: &str) -> std::io::Result<Box<dyn Conn>> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}

struct Cluster {
    server: Arc<Server>,
    api: Arc<dyn Api>,
    clock: TokioClock,
    _running: DropGuard,
}

impl Drop for Cluster {
    /// Nothing that a test makes controllers do exceeds their roles.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.server.denied_components(), Vec::<String>::new());
        }
    }
}

impl Cluster {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = TokioClock::new("2026-01-01T00:00:00Z".parse().unwrap());
        let pki = knarr_apiserver::pki::Pki::open(directory.path(), clock.now()).unwrap();
        let config = Config {
            advertised: "192.0.2.1:6443".into(),
            address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
            port: 6443,
            service_range: ServiceRange::parse("10.96.0.0/16").unwrap(),
            static_tokens: Default::default(),
            issuer: "https://kubernetes.default.svc".into(),
            service_account_key: pki.service_account_key().unwrap(),
            options: knarr_apiserver::Options::default(),
        };
        let seams = Seams {
            clock: Arc::new(clock),
            entropy: Arc::new(SystemEntropy),
            nodes: Arc::new(NoNodes),
        };
        let server = Server::new(
            config,
            seams,
            knarr_store::open(knarr_store::Config::Memory).await.unwrap(),
        )
        .await
        .unwrap();
        let api = server.api_as("admin", ["system:masters"]);
        let cancel = CancellationToken::new();
        let mut control = knarr_control::Config::default();
        control.controllers.root_ca = Some("PEM".into());
        tokio::spawn(knarr_control::run(
            server.identities(),
            control,
            Arc::new(clock),
            cancel.clone(),
        ));
        Cluster {
            server,
            api,
            clock,
            _running: cancel.drop_guard(),
        }
    }

    async fn create(&self, kind: &Kind, value: Value) -> Arc<Object> {
        let bytes = serde_json::to_vec(&value).unwrap();
        let object = kind.ops.decode(&bytes).unwrap().object;
        self.api.create(kind, object).await.unwrap()
    }

    async fn list(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Object>> {
        let options = ListOptions {
            namespace: namespace.into(),
            ..ListOptions::default()
        };
        self.api.list(kind, options).await.unwrap().items
    }

    async fn revision(&self) -> u64 {
        let list = self.api.list(&registry::NODE, ListOptions::default()).await;
        list.unwrap().resource_version
    }

    async fn patch(&self, kind: &Kind, name: &str, subresource: &str, patch: Value) {
        let namespace = if kind.namespaced() { "default" } else { "" };
        self.api
            .patch(kind, namespace, name, subresource, Patch::Strategic(patch))
            .await
            .unwrap();
    }

    async fn node(&self) {
        self.create(&registry::NODE, json!({"metadata": {"name": "n1"}}))
            .await;
        let allocatable = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let status = json!({"status": {"allocatable": allocatable, "conditions": ready}});
        self.patch(&registry::NODE, "n1", "status", status).await;
        sleep(Duration::from_millis(100)).await;
        let node = self.api.get_as::<Node>("", "n1").await.unwrap();
        let taints = node.spec.as_ref().and_then(|s| s.taints.clone());
        assert_eq!(taints, None, "a node that is ready is not tainted any more");
    }

    async fn heartbeat(&self) {
        let mut lease = match self.api.get_as::<Lease>("kube-node-lease", "n1").await {
            Ok(lease) => (*lease).clone(),
            Err(_) => Lease::default(),
        };
        lease.spec.get_or_insert_default().renew_time = Some(MicroTime(self.clock.now()));
        if lease.metadata.name.is_some() {
            self.api.update_as(lease).await.unwrap();
        } else {
            lease.metadata.namespace = Some("kube-node-lease".into());
            lease.metadata.name = Some("n1".into());
            self.api.create_as(lease).await.unwrap();
        }
    }

    /// Reports what a kubelet would report of every bound pod, and completes the deletion of terminating pods.
    async fn kubelet(&self) {
        self.heartbeat().await;
        for object in self.list(&registry::POD, "").await {
            let pod: &Pod = object.get().unwrap();
            if pod.spec.as_ref().unwrap().node_name.is_none() {
                continue;
            }
            if pod.metadata.deletion_timestamp.is_some() {
                let options = DeleteOptions {
                    grace_period_seconds: Some(0),
                    ..DeleteOptions::default()
                };
                self.api
                    .delete(&registry::POD, object.namespace(), object.name(), options)
                    .await
                    .unwrap();
                continue;
            }
            if pod
                .status
                .as_ref()
                .is_some_and(|s| s.phase.as_deref() == Some("Running"))
            {
                continue;
            }
            let mut pod = pod.clone();
            let ip = format!("10.0.0.{}", 1 + object.revision() % 250);
            pod.status = serde_json::from_value(json!({
                "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            }))
            .unwrap();
            self.api.update_status_as(pod).await.unwrap();
        }
    }

    async fn settle(&self) {
        for _ in 0..30 {
            sleep(Duration::from_millis(500)).await;
            self.kubelet().await;
        }
    }

    async fn deployment(&self) -> Deployment {
        (*self.api.get_as::<Deployment>("default", "web").await.unwrap()).clone()
    }
}

fn deployment(namespace: &str, image: &str) -> Value {
    json!({
        "metadata": {"namespace": namespace, "name": "web"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": image, "ports": [{"containerPort": 80}]}]},
            },
        },
    })
}

fn reasons(deployment: &Deployment) -> Vec<String> {
    let status = deployment.status.clone().unwrap_or_default();
    let mut reasons: Vec<String> = status
        .conditions
        .into_iter()
        .flatten()
        .filter_map(|c| c.reason)
        .collect();
    reasons.sort();
    reasons
}

#[tokio::test(start_paused = true)]
async fn a_deployment_runs_rolls_out_rolls_back_and_is_deleted_with_its_pods() {
    let cluster = Cluster::start().await;
    cluster.node().await;
    cluster
        .create(&registry::DEPLOYMENT, deployment("default", "v1"))
        .await;
    let service = json!({
        "metadata": {"namespace": "default", "name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    });
    cluster.create(&registry::SERVICE, service).await;
    cluster.settle().await;
    let first = cluster.deployment().await;
    let status = first.status.clone().unwrap();
    assert_eq!(status.available_replicas, Some(3), "{status:?}");
    assert_eq!(status.observed_generation, first.metadata.generation);
    assert_eq!(
        reasons(&first),
        ["MinimumReplicasAvailable", "NewReplicaSetAvailable"]
    );
    assert_eq!(
        first.metadata.generation,
        Some(1),
        "the controller's own writes count as no generation"
    );
    let slices = cluster.list(&registry::ENDPOINT_SLICE, "default").await;
    let slices: Vec<&EndpointSlice> = slices.iter().filter_map(|s| s.get()).collect();
    let of_web = |s: &&&EndpointSlice| {
        let labels = s.metadata.labels.as_ref();
        labels
            .and_then(|l| l.get("kubernetes.io/service-name"))
            .map(String::as_str)
            == Some("web")
    };
    let web = slices.iter().find(of_web).unwrap();
    assert_eq!(web.endpoints.iter().flatten().count(), 3);

    cluster
        .patch(
            &registry::DEPLOYMENT,
            "web",
            "",
            json!({"spec": {"template": {"spec": {"containers": [
        {"name": "c", "image": "v2"}]}}}}),
        )
        .await;
    cluster.settle().await;
    let second = cluster.deployment().await;
    assert_eq!(second.status.clone().unwrap().updated_replicas, Some(3));
    assert_eq!(
        second.metadata.annotations.clone().unwrap()["deployment.kubernetes.io/revision"],
        "2"
    );
    assert_eq!(cluster.list(&registry::POD, "default").await.len(), 3);
    assert_eq!(cluster.list(&registry::REPLICA_SET, "default").await.len(), 2);
    cluster
        .patch(
            &registry::DEPLOYMENT,
            "web",
            "",
            json!({"spec": {"template": {"spec": {"containers": [
        {"name": "c", "image": "v1"}]}}}}),
        )
        .await;
    cluster.settle().await;
    let third = cluster.deployment().await;
    assert_eq!(
        third.metadata.annotations.clone().unwrap()["deployment.kubernetes.io/revision"],
        "3"
    );
    assert_eq!(cluster.list(&registry::REPLICA_SET, "default").await.len(), 2);
    assert_eq!(
        reasons(&third),
        ["MinimumReplicasAvailable", "NewReplicaSetAvailable"]
    );

    // At rest nothing is written.
    let before = cluster.revision().await;
    sleep(Duration::from_secs(30)).await;
    let mut written = Vec::new();
    for kind in knarr_controllers::garbagecollector::kinds() {
        let all = cluster.list(kind, "").await;
        written.extend(
            all.into_iter()
                .filter(|o| o.revision() > before)
                .map(|o| format!("{o:?}")),
        );
    }
    assert_eq!(written, [""; 0]);
    assert_eq!(cluster.revision().await, before);

    let options = DeleteOptions {
        propagation: Some(Propagation::Foreground),
        ..DeleteOptions::default()
    };
    cluster
        .api
        .delete(&registry::DEPLOYMENT, "default", "web", options)
        .await
        .unwrap();
    cluster.settle().await;
    for kind in [&registry::DEPLOYMENT, &registry::REPLICA_SET, &registry::POD] {
        assert_eq!(cluster.list(kind, "default").await.len(), 0, "{kind:?}");
    }
    let events = cluster.list(&registry::EVENT, "default").await;
    let reported: Vec<String> = events
        .iter()
        .filter_map(|e| e.get::<Event>())
        .filter_map(|e| e.reason.clone())
        .collect();
    for reason in [
        "ScalingReplicaSet",
        "SuccessfulCreate",
        "SuccessfulDelete",
        "Scheduled",
    ] {
        assert!(
            reported.iter().any(|r| r == reason),
            "{reason} is not among {reported:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_gets_its_default_objects_and_is_deleted_with_everything_in_it() {
    let cluster = Cluster::start().await;
    cluster.node().await;
    cluster
        .create(&registry::NAMESPACE, json!({"metadata": {"name": "a"}}))
        .await;
    cluster.create(&registry::DEPLOYMENT, deployment("a", "v1")).await;
    cluster.settle().await;
    assert_eq!(cluster.list(&registry::POD, "a").await.len(), 3);
    for (kind, name) in [
        (&registry::SERVICE_ACCOUNT, "default"),
        (&registry::CONFIG_MAP, "kube-root-ca.crt"),
    ] {
        assert!(cluster.api.get(kind, "a", name).await.is_ok(), "{kind:?}");
    }
    cluster
        .api
        .delete(&registry::NAMESPACE, "", "a", DeleteOptions::default())
        .await
        .unwrap();
    sleep(Duration::from_secs(1)).await;
    let ending = cluster.api.get_as::<Namespace>("", "a").await.unwrap();
    assert_eq!(
        ending.status.as_ref().unwrap().phase.as_deref(),
        Some("Terminating")
    );
    cluster.settle().await;
    sleep(Duration::from_secs(30)).await;
    let gone = cluster.api.get_as::<Namespace>("", "a").await;
    assert!(gone.is_err_and(|e| e.is_not_found()));
    for kind in knarr_controllers::namespace::contents() {
        assert_eq!(cluster.list(kind, "a").await.len(), 0, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_api_servers_own_service_is_left_to_it() {
    let cluster = Cluster::start().await;
    cluster.settle().await;
    let service = cluster
        .api
        .get_as::<Service>("default", "kubernetes")
        .await
        .unwrap();
    assert!(service.spec.as_ref().unwrap().selector.is_none());
    let endpoints = cluster
        .api
        .get(&registry::ENDPOINTS, "default", "kubernetes")
        .await;
    assert!(endpoints.is_ok(), "its endpoints are not taken for leftovers");
}

#[tokio::test(start_paused = true)]
async fn a4_the_namespace_of_fence_agents_secrets_comes_back_with_the_role_that_reads_them() {
    const NAMESPACE: &str = "knarr-fencing";
    let cluster = Cluster::start().await;
    let fencing = knarr_client::Component::Controller("knarr-fencing-controller");
    let fencing = cluster.server.api(&fencing);
    let uid = |o: Arc<Object>| o.uid().to_string();
    let namespace = || cluster.api.get(&registry::NAMESPACE, "", NAMESPACE);
    let first = namespace().await.map(uid).unwrap();
    let options = DeleteOptions::default();
    cluster
        .api
        .delete(&registry::NAMESPACE, "", NAMESPACE, options)
        .await
        .unwrap();
    // The next sync creates the namespace, the one after it at the latest the role in it.
    sleep(Duration::from_secs(60)).await;
    assert_ne!(namespace().await.map(uid).unwrap(), first);
    let found = fencing.get(&registry::SECRET, NAMESPACE, "none").await;
    assert_eq!(found.unwrap_err().code(), 404);
}
