//! A node of its own: containerd, kubelet and network in one directory, against an API in memory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod};
use knarr_api::k8s_openapi;
use knarr_api::registry::{self, Registered};
use knarr_client::fake::FakeApi;
use knarr_client::{Api, DeleteOptions, ListOptions, Shared, SystemClock, TypedApi};
use knarr_kubelet::configuration::{ImageGc, KubeletConfiguration};
use knarr_kubelet::eviction::Settings;
use knarr_node::containerd::{Containerd, ContainerdConfig, Shim, stop_leftover};
use knarr_node::network::{PodNetwork, remove_bridge};
use knarr_node::runtime::{Runtime, cri::Cri};
use knarr_node::teardown::stop_pods;
use knarr_node::{Config, Kubelet, images};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// A node of its own.
pub struct Machine {
    pub dir: tempfile::TempDir,
    pub api: Arc<FakeApi>,
    pub runtime: Arc<Cri>,
    pub bridge: String,
    pub cni_bin: &'static str,
    pub subnet: String,
    pub containerd: Option<(Containerd, CancellationToken)>,
    pub kubelet: Option<(Kubelet, CancellationToken)>,
    pub configuration: KubeletConfiguration,
}

const CNI: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

fn what_is_missing() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("root".into());
    }
    let on_path = |name: &str| {
        let path = std::env::var("PATH").unwrap_or_default();
        path.split(':').any(|dir| Path::new(dir).join(name).exists())
    };
    let program = ["containerd", "runc", "ctr"].into_iter().find(|p| !on_path(p));
    let plugins = CNI.iter().all(|dir| !Path::new(dir).join("bridge").exists());
    program
        .map(String::from)
        .or_else(|| plugins.then(|| "CNI plugins".into()))
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.containerd.is_some() && std::thread::panicking() {
            self.abandon();
        }
    }
}

impl Machine {
    /// `number` keeps nodes of concurrent tests apart.
    pub async fn start(number: u8) -> Option<Machine> {
        Self::start_configured(number, KubeletConfiguration::default()).await
    }

    /// Likewise, with a kubelet that is configured so.
    pub async fn start_configured(number: u8, configuration: KubeletConfiguration) -> Option<Machine> {
        if let Some(missing) = what_is_missing() {
            eprintln!("not run: this machine has no {missing}");
            return None;
        }
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .try_init();
        let dir = tempfile::Builder::new().prefix("kn").tempdir().unwrap();
        let mut machine = Machine {
            api: Arc::new(FakeApi::new(Arc::new(SystemClock))),
            runtime: Arc::new(Cri::new(&dir.path().join("r/containerd.sock").to_string_lossy())),
            dir,
            bridge: format!("kntest{number}"),
            cni_bin: CNI.into_iter().find(|dir| Path::new(dir).exists()).unwrap(),
            subnet: format!("10.211.{number}.0/24"),
            containerd: None,
            kubelet: None,
            configuration,
        };
        machine.start_containerd().await;
        for image in [
            images::pause().unwrap(),
            images::busybox(images::BUSYBOX).unwrap(),
        ] {
            let socket = machine.runtime.socket().to_path_buf();
            images::import(&socket, &machine.dir.path().join("w"), &image)
                .await
                .unwrap();
        }
        machine.start_kubelet();
        Some(machine)
    }

    pub async fn start_containerd(&mut self) {
        let at = |name: &str| self.dir.path().join(name);
        let network = PodNetwork {
            bridge: self.bridge.clone(),
            pod_cidr: self.subnet.clone(),
            cni_conf: at("cni"),
            ipam_dir: at("ipam"),
        };
        network.write().unwrap();
        let cancel = CancellationToken::new();
        let started = Containerd::start(self.containerd_config(), cancel.clone()).await;
        let started = started.unwrap();
        started.serves(self.runtime.as_ref()).await.unwrap();
        self.containerd = Some((started, cancel));
    }

    pub fn containerd_config(&self) -> ContainerdConfig {
        let at = |name: &str| self.dir.path().join(name);
        ContainerdConfig {
            program: "containerd".into(),
            root: at("c"),
            run: at("r"),
            cni_bin: self.cni_bin.into(),
            cni_conf: at("cni"),
            sandbox_image: images::PAUSE.into(),
            systemd_cgroup: false,
            shim: Shim::RuncV2,
            oci_runtime: "runc".into(),
        }
    }

    pub async fn stop_containerd(&mut self) {
        let (containerd, cancel) = self.containerd.take().unwrap();
        cancel.cancel();
        containerd.wait().await;
    }

    pub fn start_kubelet(&mut self) {
        let config = Config {
            node_name: "n1".into(),
            root_dir: self.dir.path().join("kubelet"),
            log_dir: self.dir.path().join("logs"),
            pod_cidrs: vec![self.subnet.clone()],
            node_ips: vec!["127.0.0.1".into()],
            // Disk usage of the test machine must not affect a test.
            configuration: KubeletConfiguration {
                eviction: Settings {
                    thresholds: Vec::new(),
                    ..Settings::default()
                },
                image_gc: ImageGc {
                    high_percent: 100,
                    ..ImageGc::default()
                },
                ..self.configuration.clone()
            },
            ..Config::default()
        };
        let cancel = CancellationToken::new();
        let kubelet = Kubelet::start(
            config,
            self.api.clone(),
            self.runtime.clone(),
            Arc::new(SystemClock),
            cancel.clone(),
        );
        self.kubelet = Some((kubelet, cancel));
    }

    pub async fn stop_kubelet(&mut self) {
        let (kubelet, cancel) = self.kubelet.take().unwrap();
        cancel.cancel();
        kubelet.wait().await;
    }

    /// Removes everything; what is left then is a failure.
    pub async fn end(mut self) {
        if self.kubelet.is_some() {
            self.stop_kubelet().await;
        }
        let torn = stop_pods(self.runtime.as_ref()).await;
        assert!(torn.faults.is_empty(), "{:?}", torn.faults);
        self.stop_containerd().await;
        remove_bridge(&self.bridge).await.unwrap();
        let left = mounts_below(self.dir.path());
        assert!(left.is_empty(), "still mounted: {left:?}");
    }

    /// After a failure: frees what would be left on the machine otherwise.
    fn abandon(&mut self) {
        if let Some((_, cancel)) = self.kubelet.take() {
            cancel.cancel();
        }
        let (config, socket, bridge) = (
            self.containerd_config(),
            self.runtime.socket().to_path_buf(),
            self.bridge.clone(),
        );
        let freeing = std::thread::spawn(move || {
            let waits = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(waits) = waits else { return };
            waits.block_on(async {
                let runtime = Cri::new(&socket.to_string_lossy());
                let freed = async {
                    let torn = stop_pods(&runtime).await;
                    let ended = stop_leftover(&config).await;
                    let removed = remove_bridge(&bridge).await;
                    eprintln!("after the failure: {torn:?}, {ended:?}, {removed:?}");
                };
                if tokio::time::timeout(Duration::from_secs(60), freed)
                    .await
                    .is_err()
                {
                    eprintln!("after the failure: not all could be freed");
                }
            });
        });
        if freeing.join().is_err() {
            eprintln!("after the failure: nothing could be freed");
        }
    }

    /// Waits until the node has registered and is ready.
    pub async fn ready(&self) -> Value {
        let began = Instant::now();
        loop {
            let node = self.api.get(&registry::NODE, "", "n1").await.ok();
            let node = node.map(|n| serde_json::from_slice::<Value>(n.json()).unwrap());
            let is_ready = |n: &Value| {
                let conditions = n["status"]["conditions"].as_array().cloned().unwrap_or_default();
                conditions
                    .iter()
                    .any(|c| c["type"] == "Ready" && c["status"] == "True")
            };
            if let Some(node) = node.filter(is_ready) {
                return node;
            }
            assert!(began.elapsed() < Duration::from_secs(90), "the node is not ready");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// The node's lease, which it takes when it is registered, ready or not.
    pub async fn lease(&self) -> Value {
        let began = Instant::now();
        loop {
            match self.api.get(&registry::LEASE, "kube-node-lease", "n1").await {
                Ok(lease) => return serde_json::from_slice(lease.json()).unwrap(),
                Err(error) if began.elapsed() > Duration::from_secs(30) => panic!("no lease: {error}"),
                Err(_) => sleep(Duration::from_millis(10)).await,
            }
        }
    }

    pub async fn create(&self, name: &str, spec: Value) {
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 5, "restartPolicy": "Always"},
        });
        for (key, value) in spec.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.api.create_as(pod).await.unwrap();
    }

    pub async fn get(&self, name: &str) -> Option<Shared<Pod>> {
        self.api.get_as::<Pod>("default", name).await.ok()
    }

    pub async fn delete(&self, name: &str) {
        let kind = Pod::kind_of();
        self.api
            .delete(kind, "default", name, DeleteOptions::default())
            .await
            .unwrap();
    }

    /// Waits until the pod is as described, and returns how long it took.
    pub async fn wait(&self, name: &str, what: &str, is: impl Fn(Option<&Pod>) -> bool) -> Duration {
        let began = Instant::now();
        loop {
            let pod = self.get(name).await;
            if is(pod.as_deref()) {
                return began.elapsed();
            }
            if began.elapsed() > Duration::from_secs(90) {
                let status = pod.map(|p| serde_json::to_string_pretty(&p.status).unwrap());
                let events = self.events(name).await.join("\n");
                panic!(
                    "{name} is not {what} after 90 s:\n{}\n{events}",
                    status.unwrap_or_default()
                );
            }
            sleep(Duration::from_millis(2)).await;
        }
    }

    pub async fn events(&self, name: &str) -> Vec<String> {
        let events = self
            .api
            .list(Event::kind_of(), ListOptions::default())
            .await
            .unwrap();
        let events = events.items.iter().filter_map(|o| o.to_typed::<Event>());
        let of = events.filter(|e| e.involved_object.name.as_deref() == Some(name));
        of.map(|e| {
            format!(
                "{} {}",
                e.reason.unwrap_or_default(),
                e.message.unwrap_or_default()
            )
        })
        .collect()
    }

    pub async fn containers(&self) -> usize {
        self.runtime.containers().await.unwrap().len()
    }
}

impl std::ops::Deref for Machine {
    type Target = tempfile::TempDir;
    fn deref(&self) -> &Self::Target {
        &self.dir
    }
}

fn mounts_below(dir: &Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|l| l.split(' ').nth(4));
    points
        .filter(|p| Path::new(p).starts_with(dir))
        .map(String::from)
        .collect()
}

pub fn shell(script: &str) -> Value {
    json!([{"name": "c", "image": images::BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]}])
}

/// Exits on TERM.
pub const OBEDIENT: &str = "trap 'exit 0' TERM; while :; do sleep 0.05; done";

pub fn phase(pod: Option<&Pod>) -> &str {
    pod.and_then(|p| p.status.as_ref()?.phase.as_deref())
        .unwrap_or("")
}

pub fn ready(pod: Option<&Pod>) -> bool {
    let conditions = pod.and_then(|p| p.status.as_ref()?.conditions.as_ref());
    conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

pub fn first(pod: &Pod) -> Value {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
    serde_json::to_value(statuses.and_then(|s| s.first())).unwrap()
}
