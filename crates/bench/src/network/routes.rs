//! Throughput from pod to pod across nodes: routed on one network, through VXLAN between two, each against the same path
//! between the nodes themselves.
//!
//! Nodes are network namespaces that veth pairs join: `a` and `b` on one network, `c` on another, behind a router. A pod's
//! address is on its node's loopback interface, so that the path between nodes is measured and nothing else.

use std::process::Stdio;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_client::TokioClock;
use knarr_node_network::routes::{Config, HOLD, Router};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::workload::ip;
use crate::calibration::Basis;
use crate::interruption::Started;
use crate::process::Result;
use crate::report::{Report, Target};
use crate::scheduler::cluster::{create, server_with};
use crate::stats::percentile;

/// Node, its address, its router and its number.
const NODES: [(&str, &str, &str, u8); 3] = [
    ("a", "10.91.1.1", "10.91.1.254", 1),
    ("b", "10.91.1.2", "10.91.1.254", 2),
    ("c", "10.91.2.3", "10.91.2.254", 3),
];
const ROUNDS: usize = 3;
const SECONDS: &str = "3";
const LIMIT: Duration = Duration::from_secs(20);

/// The namespaces, deleted in the end.
struct Namespaces {
    prefix: String,
    /// The last one that is dropped.
    _started: Started,
}

impl Namespaces {
    fn build() -> Result<Namespaces> {
        let names = Namespaces {
            prefix: format!("kbench{}", std::process::id()),
            _started: Started::begin(),
        };
        let router = names.of("r");
        for name in ["a", "b", "c", "r"] {
            ip(&format!("netns add {}", names.of(name)))?;
            ip(&format!("-n {} link set lo up", names.of(name)))?;
        }
        ip(&format!("-n {router} link add net1 type bridge"))?;
        ip(&format!("-n {router} address add 10.91.1.254/24 dev net1"))?;
        ip(&format!("-n {router} link set net1 up"))?;
        for (name, address, gateway, number) in NODES {
            let node = names.of(name);
            ip(&format!(
                "-n {node} link add eth0 type veth peer name to{name} netns {router}"
            ))?;
            ip(&format!("-n {node} address add {address}/24 dev eth0"))?;
            ip(&format!("-n {node} link set eth0 up"))?;
            ip(&format!("-n {router} link set to{name} up"))?;
            match name {
                "c" => ip(&format!("-n {router} address add {gateway}/24 dev to{name}"))?,
                _ => ip(&format!("-n {router} link set to{name} master net1"))?,
            }
            ip(&format!("-n {node} route add default via {gateway}"))?;
            ip(&format!("-n {node} address add 10.92.{number}.5/32 dev lo"))?;
        }
        ip(&format!("netns exec {router} sysctl -qw net.ipv4.ip_forward=1"))?;
        Ok(names)
    }

    fn of(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in ["a", "b", "c", "r"] {
            if let Err(error) = ip(&format!("netns delete {}", self.of(name))) {
                eprintln!("bench: {error}");
            }
        }
    }
}

/// An error that another thread receives.
type ThreadError = Box<dyn std::error::Error + Send + Sync>;

/// The agent's routes on one node, until it is dropped.
struct Agent {
    end: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ThreadError>>>,
}

impl Agent {
    fn start(netns: String, name: &str, api: Arc<dyn knarr_client::Api>) -> Agent {
        let (end, ended) = tokio::sync::oneshot::channel();
        let config = Config {
            node_name: name.into(),
            device: "knarr-vx-b".into(),
            cluster_cidrs: Vec::from_iter("10.92.0.0/16".parse()),
            table: "knarr-routes-b".into(),
            wireguard_device: "knarr-wg-b".into(),
            hold: HOLD,
            encryption: None,
        };
        let work = move || -> Result<(), ThreadError> {
            let file = std::fs::File::open(format!("/run/netns/{netns}"))?;
            nix::sched::setns(&file, nix::sched::CloneFlags::CLONE_NEWNET)?;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let router = Router::start(config, api, Arc::new(TokioClock::new(Timestamp::now())))?;
                // A dropped sender is the end, too.
                let _ = ended.await;
                drop(router);
                Ok(())
            })
        };
        Agent {
            end: Some(end),
            thread: Some(std::thread::spawn(work)),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.end.take());
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => eprintln!("bench: routes: {error}"),
            Some(Err(_)) => eprintln!("bench: routes: the agent panicked"),
            Some(Ok(Ok(()))) | None => {}
        }
    }
}

fn within(netns: &str, program: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", netns])
        .args(program)
        .kill_on_drop(true);
    command
}

/// A server of iperf3 that takes connections.
async fn listening(netns: &str) -> Result<Child> {
    let mut server = within(netns, &["iperf3", "-s", "--forceflush"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(server.stdout.take().ok_or("iperf3 has no output")?).lines();
    let is_listening = async {
        while let Some(line) = lines.next_line().await? {
            if line.contains("listening") {
                // What it prints later is read, so that it never waits for its reader.
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Ok(server);
            }
        }
        Err("iperf3 -s exited".into())
    };
    timeout(LIMIT, is_listening).await?
}

/// Megabits a second that were received.
async fn throughput(netns: &str, source: &str, target: &str) -> Result<f64> {
    let arguments = ["iperf3", "-J", "-t", SECONDS, "-c", target, "-B", source];
    let out = timeout(LIMIT, within(netns, &arguments).output()).await??;
    let report: Value = serde_json::from_slice(&out.stdout)?;
    let bits = report
        .pointer("/end/sum_received/bits_per_second")
        .and_then(Value::as_f64);
    bits.map(|bits| bits / 1e6)
        .ok_or_else(|| format!("iperf3 {source} to {target}: {}", report["error"]).into())
}

/// Waits until the pods of one node reach another's.
async fn reachable(netns: &str, source: &str, target: &str) -> Result<()> {
    let arguments = ["ping", "-c1", "-W1", "-I", source, target];
    let reached = async {
        while !within(netns, &arguments)
            .stdout(Stdio::null())
            .status()
            .await?
            .success()
        {
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    };
    let in_time = timeout(LIMIT, reached).await;
    in_time.map_err(|_| format!("no packet came from {source} to {target}"))?
}

/// The medians of rounds in turn: between the nodes' addresses, between the pods'.
async fn compare(names: &Namespaces, (node, pod): (&str, &str)) -> Result<(f64, f64)> {
    let from = names.of("a");
    let (mut alone, mut between_pods) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        alone.push(throughput(&from, "10.91.1.1", node).await?);
        between_pods.push(throughput(&from, "10.92.1.5", pod).await?);
    }
    Ok((percentile(&mut alone, 50.0), percentile(&mut between_pods, 50.0)))
}

/// Measures both ways.
pub async fn run() -> Result<Report> {
    let names = Namespaces::build()?;
    let (server, _directory) = server_with("10.96.0.0/12").await?;
    let api = server.api_as("system:admin", ["system:masters"]);
    let node = |(name, address, _, number): (&str, &str, &str, u8)| {
        json!({"metadata": {"name": name}, "spec": {"podCIDR": format!("10.92.{number}.0/24"), "podCIDRs": [format!("10.92.{number}.0/24")]},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]}})
    };
    create::<Node>(&api, NODES.map(node).to_vec()).await?;
    let agents = NODES.map(|(name, ..)| Agent::start(names.of(name), name, api.clone()));
    let servers = [listening(&names.of("b")).await?, listening(&names.of("c")).await?];
    reachable(&names.of("a"), "10.92.1.5", "10.92.2.5").await?;
    reachable(&names.of("a"), "10.92.1.5", "10.92.3.5").await?;
    let routed = compare(&names, ("10.91.1.2", "10.92.2.5")).await?;
    let tunnelled = compare(&names, ("10.91.2.3", "10.92.3.5")).await?;
    for mut server in servers {
        server.kill().await?;
    }
    drop(agents);
    let mut report = Report::new(
        "network, pods across nodes",
        format!(
            "one TCP connection of iperf3 for {SECONDS} s, median of {ROUNDS}; nodes are network namespaces joined by veth \
             pairs, against the same path between the nodes' own addresses"
        ),
    );
    let mut measurements = |what: &str, (alone, between_pods): (f64, f64), at_least| {
        report.record(format!("{what}: between nodes"), alone, "Mbit/s", Basis::TwoCpus);
        report.record(
            format!("{what}: between pods"),
            between_pods,
            "Mbit/s",
            Basis::TwoCpus,
        );
        report
            .record(
                format!("{what}: of the nodes' own"),
                between_pods / alone * 100.0,
                "%",
                Basis::None,
            )
            .target(Target::AtLeast(at_least));
    };
    measurements("routed", routed, 95.0);
    measurements("VXLAN", tunnelled, 70.0);
    Ok(report)
}
