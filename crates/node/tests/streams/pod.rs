//! A containerd of the test's own with one pod in it, and the kubelet's server before it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_cri::v1;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::{ContainerId, SandboxId};
use knarr_node::containerd::{Containerd, ContainerdConfig, Shim};
use knarr_node::images;
use knarr_node::runtime::Runtime;
use knarr_node::runtime::cri::Cri;
use knarr_node::server::{Pods, RuntimeContainers, Server};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_util::sync::CancellationToken;

pub const NAME: &str = "p";
const UID: &str = "5b2f4d7e-0000-4000-8000-000000000001";

/// Cheap to clone.
#[derive(Clone)]
pub struct Node(Arc<Inner>);

pub struct Inner {
    pub runtime: Arc<dyn Runtime>,
    pub server: Server,
    directory: TempDir,
    sandbox: SandboxId,
    sandbox_config: v1::PodSandboxConfig,
    pods: Arc<OnePod>,
    containerd: Mutex<Option<Containerd>>,
    cancel: CancellationToken,
}

impl std::ops::Deref for Node {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// The pod's containers, by name, with their ids.
#[derive(Default)]
struct OnePod(Mutex<Vec<(String, ContainerId, bool)>>);

impl Pods for OnePod {
    fn get(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.list()
            .into_iter()
            .find(|_| (namespace, name) == ("default", NAME))
    }

    fn list(&self) -> Vec<Arc<Pod>> {
        let containers = self.0.lock();
        let specs: Vec<Value> = containers
            .iter()
            .map(|(name, _, tty)| json!({"name": name, "tty": tty}))
            .collect();
        let statuses: Vec<Value> = containers
            .iter()
            .map(|(name, id, _)| {
                json!({
                    "name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "containerID": format!("containerd://{id}"), "state": {"running": {}},
                })
            })
            .collect();
        let pod = serde_json::from_value(json!({
            "metadata": {"name": NAME, "namespace": "default", "uid": UID},
            "spec": {"containers": specs},
            "status": {"containerStatuses": statuses},
        }));
        vec![Arc::new(pod.unwrap())]
    }
}

fn labels() -> std::collections::HashMap<String, String> {
    [
        ("io.kubernetes.pod.name", NAME),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.uid", UID),
    ]
    .map(|(name, value)| (name.to_string(), value.to_string()))
    .into()
}

impl Node {
    pub async fn start() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("knarr-streams-")
            .tempdir()
            .unwrap();
        let at = |name: &str| directory.path().join(name);
        // A pair of interfaces that is removed with the pod: no bridge and no rules to clean up.
        let network = json!({
            "cniVersion": "0.4.0", "name": "knarr-streams", "plugins": [{
                "type": "ptp", "ipMasq": false,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.199.77.0/24"}]], "dataDir": at("ipam")},
            }],
        });
        std::fs::create_dir_all(at("cni")).unwrap();
        std::fs::write(at("cni/10.conflist"), network.to_string()).unwrap();
        let config = ContainerdConfig {
            program: "containerd".into(),
            root: at("root"),
            run: at("run"),
            cni_bin: "/usr/lib/cni".into(),
            cni_conf: at("cni"),
            sandbox_image: images::PAUSE.into(),
            systemd_cgroup: false,
            shim: Shim::RuncV2,
            oci_runtime: "runc".into(),
        };
        let cancel = CancellationToken::new();
        let containerd = Containerd::start(config, cancel.clone()).await.unwrap();
        let socket = containerd.socket().to_path_buf();
        for image in [
            images::pause().unwrap(),
            images::busybox(images::BUSYBOX).unwrap(),
        ] {
            images::import(&socket, &at("images"), &image).await.unwrap();
        }
        let runtime: Arc<dyn Runtime> = Arc::new(Cri::new(&socket.display().to_string()));
        let sandbox_config = v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: NAME.into(),
                namespace: "default".into(),
                uid: UID.into(),
                attempt: 0,
            }),
            log_directory: at("logs").display().to_string(),
            labels: labels(),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: cgroup(),
                ..Default::default()
            }),
            ..Default::default()
        };
        std::fs::create_dir_all(at("logs")).unwrap();
        let sandbox = runtime.run_sandbox(&sandbox_config, "").await;
        let pods = Arc::new(OnePod::default());
        let containers = Arc::new(RuntimeContainers(runtime.clone()));
        let server = Server::new(pods.clone(), containers, Arc::new(jiff::Timestamp::now));
        let node = Node(Arc::new(Inner {
            runtime,
            server,
            directory,
            sandbox: sandbox.clone().unwrap_or_default(),
            sandbox_config,
            pods,
            containerd: Mutex::new(Some(containerd)),
            cancel,
        }));
        if let Err(error) = sandbox {
            node.stop().await;
            panic!("no sandbox: {error}");
        }
        node
    }

    /// Starts a container that runs `script`; its id.
    pub async fn run(&self, name: &str, script: &str, stdin: bool, tty: bool) -> ContainerId {
        let mut labels = labels();
        labels.insert("io.kubernetes.container.name".into(), name.into());
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata {
                name: name.into(),
                attempt: 0,
            }),
            image: Some(v1::ImageSpec {
                image: images::BUSYBOX.into(),
                ..Default::default()
            }),
            command: vec!["sh".into(), "-c".into(), script.into()],
            labels,
            log_path: format!("{name}.log"),
            stdin,
            stdin_once: stdin,
            tty,
            linux: Some(v1::LinuxContainerConfig::default()),
            ..Default::default()
        };
        let id = self
            .runtime
            .create_container(&self.sandbox, &config, &self.sandbox_config)
            .await
            .unwrap();
        self.pods.0.lock().push((name.into(), id.clone(), tty));
        self.runtime.start_container(&id).await.unwrap();
        id
    }

    pub fn log(&self, container: &str) -> PathBuf {
        self.directory
            .path()
            .join("logs")
            .join(format!("{container}.log"))
    }

    /// A connection to the server.
    pub fn dial(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let server = self.server.clone();
        tokio::spawn(async move { server.serve(theirs).await });
        ours
    }

    /// The body of an answer that ends with its connection.
    pub async fn get(&self, path: &str) -> DuplexStream {
        let mut io = self.dial();
        let head = ask(&mut io, &format!("GET {path}"), "1.0", &[]).await;
        assert!(head.starts_with("HTTP/1.0 200"), "{head}");
        io
    }

    /// Ends and removes everything.
    pub async fn stop(&self) {
        let containers = std::mem::take(&mut *self.pods.0.lock());
        for (_, id, _) in containers {
            report(self.runtime.stop_container(&id, Duration::ZERO).await);
            report(self.runtime.remove_container(&id).await);
        }
        if !self.sandbox.is_empty() {
            report(self.runtime.stop_sandbox(&self.sandbox).await);
            report(self.runtime.remove_sandbox(&self.sandbox).await);
        }
        self.cancel.cancel();
        let containerd = self.containerd.lock().take();
        if let Some(containerd) = containerd {
            containerd.wait().await;
        }
        // One in each hierarchy on cgroup v1; none there if it was never made.
        for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap() {
            let _ = std::fs::remove_dir(hierarchy.unwrap().path().join(&cgroup()[1..]));
        }
        let _ = std::fs::remove_dir(format!("/sys/fs/cgroup{}", cgroup()));
    }
}

/// Where the pod's containers live, apart from all others.
fn cgroup() -> String {
    format!("/knarr-streams-{}", std::process::id())
}

/// What cannot be cleared away is shown, and the rest still is.
fn report<T, E: std::fmt::Display>(result: Result<T, E>) {
    if let Err(error) = result {
        eprintln!("clearing away: {error}");
    }
}

/// Sends a request and reads the answer's head.
pub async fn ask(io: &mut DuplexStream, request: &str, version: &str, headers: &[(&str, &str)]) -> String {
    let mut text = format!("{request} HTTP/{version}\r\nHost: node\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    io.write_all(format!("{text}\r\n").as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(io.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}
