//! A node: a network namespace with a server, a plugin, and optionally a host outside of the cluster next to it.

use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use knarr_node_network::pods::{
    BeforeUp, Config, EarlierNetwork, NoHook, NodeNetwork, Pods, Sandbox, SandboxId, Server,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::namespace::Namespace;

pub const MTU: u32 = 1400;
pub const NODE: &str = "192.0.2.1";
pub const NODE_V6: &str = "2001:db8::1";
pub const OUTSIDE: &str = "192.0.2.2";
pub const OUTSIDE_V6: &str = "2001:db8::2";

pub struct Node {
    pub namespace: Namespace,
    pub directory: tempfile::TempDir,
    pub network: watch::Sender<Option<NodeNetwork>>,
    pub pods: Pods,
    pub hook: Arc<dyn BeforeUp>,
    pub earlier: Option<EarlierNetwork>,
    pub reserved: Vec<IpAddr>,
    running: Option<Arc<(Runtime, Server)>>,
}

/// A sandbox: a namespace and what the runtime calls it.
pub struct Pod {
    pub namespace: Namespace,
    pub id: String,
    pub name: String,
}

impl Pod {
    pub fn new(number: usize) -> Self {
        Pod {
            namespace: Namespace::new(),
            id: format!("{number:08x}{}", "ab".repeat(28)),
            name: format!("pod-{number}"),
        }
    }

    pub fn host_interface(&self) -> String {
        format!("knarr{}", &self.id[..10])
    }
}

/// What a plugin came to.
#[derive(Debug)]
pub struct Answer {
    pub is_success: bool,
    pub json: Value,
}

impl Answer {
    pub fn addresses(&self) -> Vec<IpAddr> {
        assert!(self.is_success, "{}", self.json);
        let ips = self.json["ips"].as_array().unwrap();
        ips.iter()
            .map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap())
            .map(|address| address.parse().unwrap())
            .collect()
    }

    #[track_caller]
    pub fn done(&self) {
        assert!(self.is_success, "{}", self.json);
    }

    /// The code and the message of an error.
    #[track_caller]
    pub fn failure(&self) -> (u64, String) {
        assert!(!self.is_success, "{}", self.json);
        (
            self.json["code"].as_u64().unwrap(),
            self.json["msg"].as_str().unwrap().to_string(),
        )
    }
}

pub fn network(cidrs: &[&str]) -> NodeNetwork {
    NodeNetwork {
        pod_cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
        cluster_cidrs: vec!["10.244.0.0/16".parse().unwrap(), "fd00:244::/48".parse().unwrap()],
        node_addresses: vec![NODE.parse().unwrap(), NODE_V6.parse().unwrap()],
        mtu: MTU,
    }
}

impl Node {
    /// A node that has its CIDRs of both families.
    pub fn started() -> Self {
        let mut node = Node::new(Some(network(&["10.244.1.0/24", "fd00:244:0:1::/64"])));
        node.start();
        node
    }

    pub fn new(network: Option<NodeNetwork>) -> Self {
        let namespace = Namespace::new();
        namespace.command("ip link set lo up");
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("bin")).unwrap();
        for plugin in ["knarr-cni", "loopback"] {
            symlink(
                std::env::current_exe().unwrap(),
                directory.path().join("bin").join(plugin),
            )
            .unwrap();
        }
        Node {
            namespace,
            directory,
            network: watch::Sender::new(network),
            pods: Pods::default(),
            hook: Arc::new(NoHook),
            earlier: None,
            reserved: Vec::new(),
            running: None,
        }
    }

    pub fn records(&self) -> PathBuf {
        self.directory.path().join("pods")
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("run/cni.sock")
    }

    pub fn start(&mut self) {
        self.pods = Pods::default();
        let config = Config {
            directory: self.records(),
            socket: self.socket(),
            instance: None,
            network: self.network.subscribe(),
            before_up: self.hook.clone(),
            pods: self.pods.clone(),
            reserved: self.reserved.clone(),
            earlier: self.earlier.clone(),
        };
        let running = self.namespace.run(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            let server = runtime.block_on(Server::start(config)).unwrap();
            (runtime, server)
        });
        self.running = Some(Arc::new(running));
    }

    /// Ends the agent without any chance to tidy up.
    pub fn kill(&mut self) {
        if let Some(running) = self.running.take().and_then(Arc::into_inner) {
            self.namespace.run(move || {
                let (runtime, server) = running;
                drop(server);
                runtime.shutdown_background();
            });
        }
    }

    /// Reconciles with these sandboxes.
    pub fn reconcile(&self, listed: Vec<Sandbox>) -> usize {
        let running = self.running.clone().unwrap();
        self.namespace.run(move || {
            let (runtime, server) = &*running;
            let list = async move { Ok::<_, std::convert::Infallible>(listed) };
            runtime.block_on(server.reconcile(list)).unwrap()
        })
    }

    /// Waits as an agent does at its end.
    pub fn finish_removals(&self) {
        let running = self.running.clone().unwrap();
        self.namespace.run(move || {
            let (runtime, server) = &*running;
            runtime.block_on(server.finish_removals());
        });
    }

    /// A host on the node's network that is not part of the cluster.
    pub fn outside(&self) -> Namespace {
        let outside = Namespace::new();
        let thread = outside.thread;
        self.namespace
            .command(&format!("ip link add up0 type veth peer name up0 netns {thread}"));
        for (namespace, v4, v6) in [(&self.namespace, NODE, NODE_V6), (&outside, OUTSIDE, OUTSIDE_V6)] {
            namespace.command("ip link set lo up");
            namespace.command(&format!("ip address add {v4}/24 dev up0"));
            namespace.command(&format!("ip address add {v6}/64 dev up0 nodad"));
            namespace.command("ip link set up0 up");
        }
        // So that the node has the default routes that nodes have.
        self.namespace
            .command(&format!("ip route add default via {OUTSIDE}"));
        self.namespace
            .command(&format!("ip -6 route add default via {OUTSIDE_V6}"));
        outside
    }

    pub fn config(&self) -> Value {
        json!({
            "cniVersion": "1.0.0",
            "name": "knarr",
            "type": "knarr-cni",
            "socket": self.socket(),
        })
    }

    pub fn add(&self, pod: &Pod) -> Answer {
        self.cni("ADD", pod, &self.config())
    }

    pub fn add_with(&self, pod: &Pod, runtime_config: Value) -> Answer {
        let mut config = self.config();
        config["runtimeConfig"] = runtime_config;
        self.cni("ADD", pod, &config)
    }

    pub fn delete(&self, pod: &Pod) -> Answer {
        self.cni("DEL", pod, &self.config())
    }

    pub fn cni(&self, command: &str, pod: &Pod, config: &Value) -> Answer {
        self.plugin("knarr-cni", command, pod, config)
    }

    pub fn plugin(&self, plugin: &str, command: &str, pod: &Pod, config: &Value) -> Answer {
        let netns = pod.namespace.path();
        let arguments = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={};K8S_POD_UID=uid",
            pod.name
        );
        let environment = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", &pod.id),
            ("CNI_NETNS", netns.to_str().unwrap()),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", &arguments),
            ("CNI_PATH", "/none"),
        ];
        self.run_plugin(plugin, &environment, &config.to_string())
    }

    pub fn run_plugin(&self, plugin: &str, environment: &[(&str, &str)], config: &str) -> Answer {
        let mut child = Command::new(self.directory.path().join("bin").join(plugin))
            .env_clear()
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(config.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        Answer {
            is_success: output.status.success(),
            json: serde_json::from_slice(&output.stdout).unwrap_or_default(),
        }
    }

    /// The names of the links of pods.
    pub fn links(&self) -> Vec<String> {
        let text = self.namespace.command("ip -j link show");
        let links: Value = serde_json::from_str(&text).unwrap();
        let names = links.as_array().unwrap().iter();
        names
            .map(|link| link["ifname"].as_str().unwrap().to_string())
            .filter(|name| name.starts_with("knarr"))
            .collect()
    }

    /// Waits until nothing is left of a sandbox: DEL answers before its link is deleted and its address released.
    pub fn until_removed(&self, id: &str) {
        let record = self.records().join(format!("{id}.json"));
        let sandbox = SandboxId::try_from(id.to_string()).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while record.exists() || self.pods.get(&sandbox).is_some() {
            assert!(Instant::now() < end, "sandbox {id} is not removed");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn tables(&self) -> String {
        self.namespace.command("nft list tables")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}
