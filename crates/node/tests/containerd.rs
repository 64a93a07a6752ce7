//! Pods' lives on a real containerd, against an API in memory: what the units cannot show.
//!
//! Needs root, containerd, runc and the CNI plugins; where one is missing the tests say so and pass. Everything
//! is private to one test (directories, bridge, subnet) and gone afterwards.

// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod};
use knarr_api::k8s_openapi;
use knarr_api::registry::{self, Registered};
use knarr_client::fake::FakeApi;
use knarr_client::{Api, DeleteOptions, ListOptions, Shared, SystemClock, TypedApi};
use knarr_kubelet::configuration::{ImageGc, KubeletConfiguration};
use knarr_kubelet::eviction::Settings;
use knarr_node::containerd::{Containerd, ContainerdConfig, end_leftover};
use knarr_node::network::{PodNetwork, remove_bridge};
use knarr_node::runtime::{Runtime, cri::Cri};
use knarr_node::teardown::end_pods;
use knarr_node::{Config, Kubelet, images};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// A node of its own.
struct Machine {
    dir: tempfile::TempDir,
    api: Arc<FakeApi>,
    runtime: Arc<Cri>,
    bridge: String,
    cni_bin: &'static str,
    subnet: String,
    containerd: Option<(Containerd, CancellationToken)>,
    kubelet: Option<(Kubelet, CancellationToken)>,
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
    /// `number` keeps machines of tests that run at the same time apart.
    async fn start(number: u8) -> Option<Machine> {
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

    async fn start_containerd(&mut self) {
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

    fn containerd_config(&self) -> ContainerdConfig {
        let at = |name: &str| self.dir.path().join(name);
        ContainerdConfig {
            program: "containerd".into(),
            root: at("c"),
            run: at("r"),
            cni_bin: self.cni_bin.into(),
            cni_conf: at("cni"),
            sandbox_image: images::PAUSE.into(),
            systemd_cgroup: false,
        }
    }

    async fn stop_containerd(&mut self) {
        let (containerd, cancel) = self.containerd.take().unwrap();
        cancel.cancel();
        containerd.wait().await;
    }

    fn start_kubelet(&mut self) {
        let config = Config {
            node_name: "n1".into(),
            root_dir: self.dir.path().join("kubelet"),
            log_dir: self.dir.path().join("logs"),
            pod_cidr: self.subnet.clone(),
            node_ips: vec!["127.0.0.1".into()],
            // How full this machine is must not decide what a test comes to.
            configuration: KubeletConfiguration {
                eviction: Settings {
                    thresholds: Vec::new(),
                    ..Settings::default()
                },
                image_gc: ImageGc {
                    high_percent: 100,
                    ..ImageGc::default()
                },
                ..KubeletConfiguration::default()
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

    async fn stop_kubelet(&mut self) {
        let (kubelet, cancel) = self.kubelet.take().unwrap();
        cancel.cancel();
        kubelet.wait().await;
    }

    /// Removes everything; what is left then is a failure.
    async fn end(mut self) {
        if self.kubelet.is_some() {
            self.stop_kubelet().await;
        }
        let torn = end_pods(self.runtime.as_ref()).await;
        assert!(torn.faults.is_empty(), "{:?}", torn.faults);
        self.stop_containerd().await;
        remove_bridge(&self.bridge).await.unwrap();
        let left = mounts_below(self.dir.path());
        assert!(left.is_empty(), "still mounted: {left:?}");
    }

    /// After a failure: frees what the machine would be left with otherwise.
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
                    let torn = end_pods(&runtime).await;
                    let ended = end_leftover(&config).await;
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

    async fn create(&self, name: &str, spec: Value) {
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

    async fn get(&self, name: &str) -> Option<Shared<Pod>> {
        self.api.get_as::<Pod>("default", name).await.ok()
    }

    async fn delete(&self, name: &str) {
        let kind = Pod::kind_of();
        self.api
            .delete(kind, "default", name, DeleteOptions::default())
            .await
            .unwrap();
    }

    /// Waits until the pod is as described, and says how long it took.
    async fn wait(&self, name: &str, what: &str, is: impl Fn(Option<&Pod>) -> bool) -> Duration {
        let began = Instant::now();
        loop {
            let pod = self.get(name).await;
            if is(pod.as_deref()) {
                return began.elapsed();
            }
            if began.elapsed() > Duration::from_secs(30) {
                let status = pod.map(|p| serde_json::to_string_pretty(&p.status).unwrap());
                let events = self.events(name).await.join("\n");
                panic!(
                    "{name} is not {what} after 30 s:\n{}\n{events}",
                    status.unwrap_or_default()
                );
            }
            sleep(Duration::from_millis(2)).await;
        }
    }

    async fn events(&self, name: &str) -> Vec<String> {
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

    async fn containers(&self) -> usize {
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

fn shell(script: &str) -> Value {
    json!([{"name": "c", "image": images::BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]}])
}

/// Lives until it is told to end.
const OBEDIENT: &str = "trap 'exit 0' TERM; while :; do sleep 0.05; done";

fn phase(pod: Option<&Pod>) -> &str {
    pod.and_then(|p| p.status.as_ref()?.phase.as_deref())
        .unwrap_or("")
}

fn ready(pod: Option<&Pod>) -> bool {
    let conditions = pod.and_then(|p| p.status.as_ref()?.conditions.as_ref());
    conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

fn first(pod: &Pod) -> Value {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
    serde_json::to_value(statuses.and_then(|s| s.first())).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_runs_and_ends_and_leaves_nothing() {
    let Some(machine) = Machine::start(1).await else {
        return;
    };
    machine
        .create("warm", json!({"containers": shell(OBEDIENT)}))
        .await;
    machine.wait("warm", "ready", ready).await;
    let (mut ups, mut downs) = (Vec::new(), Vec::new());
    for i in 0..5 {
        let name = format!("p{i}");
        machine
            .create(&name, json!({"containers": shell(OBEDIENT)}))
            .await;
        ups.push(machine.wait(&name, "ready", ready).await);
        let pod = machine.get(&name).await.unwrap();
        assert_eq!(phase(Some(&pod)), "Running");
        assert!(
            pod.status
                .as_ref()
                .unwrap()
                .pod_ip
                .as_deref()
                .unwrap()
                .starts_with("10.211.1.")
        );
        machine.delete(&name).await;
        downs.push(machine.wait(&name, "gone", |p| p.is_none()).await);
    }
    eprintln!("create to Running: {ups:?}\ndelete to gone: {downs:?}");
    assert_eq!(machine.containers().await, 1, "only the first is left");
    let events = machine.events("p0").await;
    for wanted in [
        "Pulled",
        "Created Container created",
        "Started Container started",
        "Killing Stopping container c",
    ] {
        assert!(
            events.iter().any(|e| e.starts_with(wanted)),
            "{wanted} is missing: {events:#?}"
        );
    }
    machine.delete("warm").await;
    machine.wait("warm", "gone", |p| p.is_none()).await;
    machine.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_l5_ends_are_shown_with_codes_messages_and_restarts() {
    let Some(machine) = Machine::start(2).await else {
        return;
    };
    let say = "echo said >/dev/termination-log; exit 3";
    machine
        .create(
            "never",
            json!({"containers": shell(say), "restartPolicy": "Never"}),
        )
        .await;
    machine
        .create(
            "again",
            json!({"containers": shell(say), "restartPolicy": "OnFailure"}),
        )
        .await;
    machine
        .create(
            "fine",
            json!({"containers": shell("exit 0"), "restartPolicy": "OnFailure"}),
        )
        .await;
    machine.create("bad", json!({"containers": [{"name": "c", "image": images::BUSYBOX, "command": ["/no/such"]}], "restartPolicy": "Never"})).await;
    machine.wait("never", "failed", |p| phase(p) == "Failed").await;
    let status = first(&machine.get("never").await.unwrap());
    let end = &status["state"]["terminated"];
    assert_eq!(
        (&end["exitCode"], &end["reason"], &end["message"]),
        (&json!(3), &json!("Error"), &json!("said\n"))
    );
    machine
        .wait("fine", "succeeded", |p| phase(p) == "Succeeded")
        .await;
    machine.wait("bad", "failed", |p| phase(p) == "Failed").await;
    let status = first(&machine.get("bad").await.unwrap());
    assert_eq!(status["state"]["terminated"]["reason"], "StartError");
    assert_eq!(status["state"]["terminated"]["exitCode"], 128);
    machine
        .wait("again", "in back-off", |p| {
            p.is_some_and(|p| first(p)["state"]["waiting"]["reason"] == "CrashLoopBackOff")
        })
        .await;
    let status = first(&machine.get("again").await.unwrap());
    assert_eq!(status["restartCount"], 1);
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 3);
    let message = status["state"]["waiting"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("back-off 10s restarting failed container=c pod=again_default("),
        "{message}"
    );
    machine.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t4_what_runs_is_found_again_after_restarts_and_never_runs_twice() {
    let Some(mut machine) = Machine::start(3).await else {
        return;
    };
    machine.create("p", json!({"containers": shell(OBEDIENT)})).await;
    machine.create("q", json!({"containers": shell(OBEDIENT)})).await;
    machine.wait("p", "ready", ready).await;
    machine.wait("q", "ready", ready).await;
    let id = first(&machine.get("p").await.unwrap())["containerID"].clone();

    machine.stop_kubelet().await;
    // Gone while nobody looked: an orphan now.
    let kind = Pod::kind_of();
    let at_once = DeleteOptions {
        grace_period_seconds: Some(0),
        ..DeleteOptions::default()
    };
    machine.api.delete(kind, "default", "q", at_once).await.unwrap();
    machine.start_kubelet();
    let began = Instant::now();
    while machine.containers().await != 1 {
        assert!(began.elapsed() < Duration::from_secs(20), "the orphan still runs");
        sleep(Duration::from_millis(20)).await;
    }
    machine.stop_containerd().await;
    machine.start_containerd().await;
    machine.wait("p", "ready", ready).await;
    sleep(Duration::from_millis(1500)).await;
    let status = first(&machine.get("p").await.unwrap());
    assert_eq!(status["containerID"], id, "the same container runs on");
    assert_eq!(status["restartCount"], 0);
    assert_eq!(machine.containers().await, 1);
    machine.delete("p").await;
    machine.wait("p", "gone", |p| p.is_none()).await;
    assert_eq!(machine.containers().await, 0);
    machine.end().await;
}

/// Starts containerd under a supervisor that is gone the next moment, as if knarr were killed. Its process id.
async fn left_behind(config: ContainerdConfig) -> String {
    let killed = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let start = Containerd::start(config.clone(), CancellationToken::new());
    killed.spawn(start).await.unwrap().unwrap();
    killed.shutdown_background();
    noted_pid(&config)
}

fn noted_pid(config: &ContainerdConfig) -> String {
    std::fs::read_to_string(config.run.join("containerd.pid")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t4_a_containerd_left_behind_is_kept_if_it_is_what_would_be_started() {
    let Some(mut machine) = Machine::start(9).await else {
        return;
    };
    let config = machine.containerd_config();
    machine.stop_containerd().await;
    let left = left_behind(config.clone()).await;
    machine.start_containerd().await;
    let pid = noted_pid(&config);
    assert_eq!(pid, left, "the same process goes on");

    // One that is kept is looked after like one's own child.
    let killed = nix::unistd::Pid::from_raw(pid.parse().unwrap());
    nix::sys::signal::kill(killed, nix::sys::signal::Signal::SIGKILL).unwrap();
    let began = Instant::now();
    while noted_pid(&config) == pid || machine.runtime.sandboxes().await.is_err() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "it is not started again"
        );
        sleep(Duration::from_millis(20)).await;
    }

    // And ended like it.
    machine.stop_containerd().await;
    let left = left_behind(config.clone()).await;
    machine.start_containerd().await;
    machine.stop_containerd().await;
    assert!(
        !Path::new("/proc").join(&left).join("cwd").exists(),
        "an adopted one ends with knarr"
    );

    // No note of it, as when knarr is killed right after it started one: it is found all the same.
    let changed = ContainerdConfig {
        sandbox_image: "localhost/other:1".into(),
        ..config.clone()
    };
    let left = left_behind(changed).await;
    std::fs::remove_file(config.run.join("containerd.pid")).unwrap();
    machine.start_containerd().await;
    assert_ne!(noted_pid(&config), left, "its configuration is another");
    assert!(
        !Path::new("/proc").join(&left).join("cwd").exists(),
        "there is only one"
    );
    machine.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_pods_at_once_run_and_go() {
    let Some(machine) = Machine::start(4).await else {
        return;
    };
    let names: Vec<String> = (0..30).map(|i| format!("p{i}")).collect();
    let began = Instant::now();
    for name in &names {
        machine.create(name, json!({"containers": shell(OBEDIENT)})).await;
    }
    for name in &names {
        machine.wait(name, "ready", ready).await;
    }
    let up = began.elapsed();
    let began = Instant::now();
    for name in &names {
        machine.delete(name).await;
    }
    for name in &names {
        machine.wait(name, "gone", |p| p.is_none()).await;
    }
    eprintln!(
        "30 pods: all Running after {up:?}, all gone after {:?}",
        began.elapsed()
    );
    assert_eq!(machine.containers().await, 0);
    assert!(machine.runtime.sandboxes().await.unwrap().is_empty());
    machine.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t2_t6_hooks_graces_and_force() {
    let Some(machine) = Machine::start(5).await else {
        return;
    };
    let mut containers = shell("trap '' TERM; while :; do sleep 0.05; done");
    containers[0]["lifecycle"] = json!({"preStop": {"exec": {"command": ["sh", "-c", "sleep 1; exit 4"]}}});
    machine
        .create(
            "stubborn",
            json!({"containers": containers, "terminationGracePeriodSeconds": 3}),
        )
        .await;
    machine
        .create(
            "forced",
            json!({"containers": shell("trap '' TERM; while :; do sleep 0.05; done")}),
        )
        .await;
    machine.wait("stubborn", "ready", ready).await;
    machine.wait("forced", "ready", ready).await;
    machine.delete("stubborn").await;
    let took = machine.wait("stubborn", "gone", |p| p.is_none()).await;
    assert!(
        (2900..4500).contains(&took.as_millis()),
        "the grace is 3 s: {took:?}"
    );
    let events = machine.events("stubborn").await;
    assert!(
        events.iter().any(|e| e == "FailedPreStopHook PreStopHook failed"),
        "{events:#?}"
    );
    let at_once = DeleteOptions {
        grace_period_seconds: Some(0),
        ..DeleteOptions::default()
    };
    machine
        .api
        .delete(Pod::kind_of(), "default", "forced", at_once)
        .await
        .unwrap();
    let began = Instant::now();
    while machine.containers().await > 0 {
        assert!(
            began.elapsed() < Duration::from_secs(6),
            "what was forced away still runs"
        );
        sleep(Duration::from_millis(20)).await;
    }
    machine.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l10_l9_l8_init_containers_hooks_probes_and_volumes() {
    let Some(machine) = Machine::start(6).await else {
        return;
    };
    let map = json!({"metadata": {"name": "m", "namespace": "default"}, "data": {"k": "from-map"}});
    machine
        .api
        .create_as::<ConfigMap>(serde_json::from_value(map).unwrap())
        .await
        .unwrap();
    let spec = json!({
        "initContainers": [
            {"name": "i", "image": images::BUSYBOX, "command": ["sh", "-c", "echo init >/e/log"], "volumeMounts": [{"name": "e", "mountPath": "/e"}]},
            {"name": "side", "image": images::BUSYBOX, "restartPolicy": "Always", "command": ["sh", "-c", format!("echo side >>/e/log; {OBEDIENT}")], "volumeMounts": [{"name": "e", "mountPath": "/e"}]},
        ],
        "containers": [{
            "name": "c", "image": images::BUSYBOX,
            "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, {"name": "K", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}],
            "command": ["sh", "-c", "while [ ! -e /e/hook ]; do sleep 0.02; done; echo $POD $K $(cat /m/k) $(cat /s/log) $(cat /d/name) >/dev/termination-log; sleep 0.7"],
            "lifecycle": {"postStart": {"exec": {"command": ["touch", "/e/hook"]}}},
            "readinessProbe": {"exec": {"command": ["test", "-e", "/e/hook"]}, "periodSeconds": 1},
            "volumeMounts": [
                {"name": "e", "mountPath": "/e"}, {"name": "m", "mountPath": "/m"}, {"name": "e", "mountPath": "/s/log", "subPath": "log"}, {"name": "d", "mountPath": "/d"},
            ],
        }],
        "restartPolicy": "Never",
        "volumes": [
            {"name": "e", "emptyDir": {"medium": "Memory"}}, {"name": "m", "configMap": {"name": "m"}},
            {"name": "d", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ],
    });
    machine.create("p", spec).await;
    machine.wait("p", "ready", ready).await;
    machine.wait("p", "succeeded", |p| phase(p) == "Succeeded").await;
    let pod = machine.get("p").await.unwrap();
    assert_eq!(
        first(&pod)["state"]["terminated"]["message"],
        "p from-map from-map init side p\n"
    );
    machine.delete("p").await;
    machine.wait("p", "gone", |p| p.is_none()).await;
    machine.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_is_registered_and_its_lease_renewed() {
    let Some(machine) = Machine::start(7).await else {
        return;
    };
    let began = Instant::now();
    let node = loop {
        let node = machine.api.get(&registry::NODE, "", "n1").await.ok();
        let node = node.map(|n| serde_json::from_slice::<Value>(n.json()).unwrap());
        let is_ready = |n: &Value| {
            let conditions = n["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions
                .iter()
                .any(|c| c["type"] == "Ready" && c["status"] == "True")
        };
        if let Some(node) = node.filter(is_ready) {
            break node;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "the node is not ready");
        sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "n1");
    assert!(
        node["status"]["nodeInfo"]["containerRuntimeVersion"]
            .as_str()
            .unwrap()
            .starts_with("containerd://1.")
    );
    let lease = machine
        .api
        .get(&registry::LEASE, "kube-node-lease", "n1")
        .await
        .unwrap();
    let lease: Value = serde_json::from_slice(lease.json()).unwrap();
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
    let mut events = machine.runtime.events().await.unwrap();
    machine
        .create(
            "p",
            json!({"containers": shell("exit 0"), "restartPolicy": "Never"}),
        )
        .await;
    let heard = tokio::time::timeout(Duration::from_secs(10), events.next()).await;
    assert!(heard.unwrap().is_some(), "containerd tells of exits");
    machine.wait("p", "succeeded", |p| phase(p) == "Succeeded").await;
    machine.end().await;
}
