//! Nodes that are network namespaces: two on one network, one behind a router.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_client::fake::FakeApi;
use knarr_client::{TokioClock, TypedApi};
use knarr_node_network::routes::{Config, Router, Status};
use knarr_node_network::signal::Signal;
use serde_json::json;

pub fn run(command: &str) -> String {
    let mut command = command.split_whitespace();
    let out = Command::new(command.next().unwrap())
        .args(command)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}");
    text
}

/// Networks 10.91.1.0/24 with `a` and `b`, 10.91.2.0/24 with `c`, and a router between; a pod's address on each node's lo.
pub struct Lab {
    prefix: String,
}

pub const NODES: [(&str, &str, &str, u8); 3] = [
    ("a", "10.91.1.1", "10.91.1.254", 1),
    ("b", "10.91.1.2", "10.91.1.254", 2),
    ("c", "10.91.2.3", "10.91.2.254", 3),
];

impl Lab {
    /// `tag` distinguishes the labs of one process.
    pub fn build(tag: &str) -> Lab {
        let lab = Lab {
            prefix: format!("knr{}{tag}", std::process::id() % 100_000),
        };
        let p = &lab.prefix;
        for name in ["a", "b", "c", "r"] {
            run(&format!("ip netns add {p}{name}"));
            run(&format!("ip -n {p}{name} link set lo up"));
        }
        let router = lab.netns("r");
        // One bridge for the first network, in the router.
        run(&format!("ip -n {router} link add net1 type bridge"));
        run(&format!("ip -n {router} addr add 10.91.1.254/24 dev net1"));
        run(&format!("ip -n {router} link set net1 up"));
        for (name, address, gateway, number) in NODES {
            let netns = lab.netns(name);
            run(&format!(
                "ip -n {netns} link add eth0 type veth peer name to{name} netns {router}"
            ));
            run(&format!("ip -n {netns} addr add {address}/24 dev eth0"));
            run(&format!("ip -n {netns} link set eth0 up"));
            run(&format!("ip -n {router} link set to{name} up"));
            if name == "c" {
                run(&format!("ip -n {router} addr add {gateway}/24 dev to{name}"));
            } else {
                run(&format!("ip -n {router} link set to{name} master net1"));
            }
            run(&format!("ip -n {netns} route add default via {gateway}"));
            run(&format!("ip -n {netns} addr add 10.92.{number}.5/32 dev lo"));
            run(&format!(
                "ip -n {netns} addr add fd92:0:0:{number}::5/128 dev lo nodad"
            ));
        }
        for setting in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
            run(&format!("ip netns exec {router} sysctl -qw {setting}"));
        }
        lab
    }

    pub fn netns(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Whether a packet of this many bytes comes from one node's pod to another's and back, in one piece.
    pub fn pings(&self, from: u8, to: u8, bytes: u32, v6: bool) -> bool {
        let netns = self.netns(NODES[usize::from(from) - 1].0);
        let (source, target) = if v6 {
            (format!("fd92:0:0:{from}::5"), format!("fd92:0:0:{to}::5"))
        } else {
            (format!("10.92.{from}.5"), format!("10.92.{to}.5"))
        };
        let payload = bytes - if v6 { 48 } else { 28 };
        let mut ping = Command::new("ip");
        ping.args(["netns", "exec", &netns, "ping", "-c1", "-W1", "-Mdo"]);
        ping.args(["-s", &payload.to_string(), "-I", &source, &target]);
        ping.output().unwrap().status.success()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // A pod's namespace is there in some tests only.
        for name in ["a", "b", "c", "r", "pod"] {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.netns(name)])
                .output();
        }
    }
}

pub fn node(name: &str, address: &str, number: u8) -> Node {
    let cidrs = [format!("10.92.{number}.0/24"), format!("fd92:0:0:{number}::/64")];
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    }))
    .unwrap()
}

pub fn config(name: &str) -> Config {
    Config {
        node_name: name.into(),
        device: "knarr-vx-t".into(),
        cluster_cidrs: vec!["10.92.0.0/16".parse().unwrap(), "fd92::/48".parse().unwrap()],
        table: "knarr-routes-t".into(),
        wireguard_device: "knarr-wg-t".into(),
        hold: Duration::from_secs(1),
        encryption: None,
    }
}

/// Runs a future on a thread in a network namespace.
pub fn within<T: Send + 'static, F: Future<Output = T>>(
    netns: String,
    work: impl FnOnce() -> F + Send + 'static,
) -> T {
    let thread = std::thread::spawn(move || {
        let file = std::fs::File::open(format!("/run/netns/{netns}")).unwrap();
        nix::sched::setns(&file, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(work())
    });
    thread.join().unwrap()
}

/// The agent of a node. It ends when it is dropped.
pub struct Agent {
    pub status: Arc<Signal<Status>>,
    end: tokio::sync::watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Agent {
    pub fn start(lab: &Lab, config: Config, api: Arc<FakeApi>) -> Agent {
        let (end, mut done) = tokio::sync::watch::channel(false);
        let (started, status) = std::sync::mpsc::channel();
        let netns = lab.netns(&config.node_name);
        let thread = std::thread::spawn(move || {
            within(netns, move || async move {
                let clock = Arc::new(TokioClock::new(Timestamp::now()));
                let router = Router::start(config, api, clock).unwrap();
                started.send(router.status()).unwrap();
                done.wait_for(|done| *done).await.unwrap();
                drop(router);
            });
        });
        Agent {
            status: status.recv().unwrap(),
            end,
            thread: Some(thread),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.end.send(true);
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            assert!(joined.is_ok() || std::thread::panicking());
        }
    }
}

/// An API with all nodes.
pub fn api() -> (tokio::runtime::Runtime, Arc<FakeApi>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let api = Arc::new(FakeApi::new(Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH))));
    for (name, address, _, number) in NODES {
        runtime
            .block_on(api.create_as(node(name, address, number)))
            .unwrap();
    }
    (runtime, api)
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "waited in vain for {what}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
