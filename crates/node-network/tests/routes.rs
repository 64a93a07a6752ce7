//! Routes and tunnels between nodes that are network namespaces: two on one network, one behind a router. Needs root.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::registry::NODE;
use knarr_client::fake::FakeApi;
use knarr_client::{Api, DeleteOptions, TokioClock, TypedApi};
use knarr_node_network::routes::{Config, Router, remove_all};
use serde_json::json;

fn run(words: &str) -> String {
    let mut words = words.split_whitespace();
    let out = Command::new(words.next().unwrap()).args(words).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}");
    text
}

/// Networks 10.91.1.0/24 with `a` and `b`, 10.91.2.0/24 with `c`, and a router between; a pod's address on each node's lo.
struct Lab {
    prefix: String,
}

const NODES: [(&str, &str, &str, u8); 3] = [
    ("a", "10.91.1.1", "10.91.1.254", 1),
    ("b", "10.91.1.2", "10.91.1.254", 2),
    ("c", "10.91.2.3", "10.91.2.254", 3),
];

impl Lab {
    fn build() -> Lab {
        let lab = Lab {
            prefix: format!("knr{}", std::process::id() % 100_000),
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

    fn netns(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Whether a packet of this many bytes comes from one node's pod to another's and back, in one piece.
    fn pings(&self, from: u8, to: u8, bytes: u32, v6: bool) -> bool {
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
        for name in ["a", "b", "c", "r"] {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.netns(name)])
                .status();
        }
    }
}

fn node(name: &str, address: &str, number: u8) -> Node {
    let cidrs = [format!("10.92.{number}.0/24"), format!("fd92:0:0:{number}::/64")];
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    }))
    .unwrap()
}

fn config(name: &str) -> Config {
    Config {
        node_name: name.into(),
        device: "knarr-vx-t".into(),
        cluster_cidrs: vec!["10.92.0.0/16".parse().unwrap(), "fd92::/48".parse().unwrap()],
        table: "knarr-routes-t".into(),
    }
}

/// Runs a future on a thread in a network namespace.
fn within<T: Send + 'static, F: Future<Output = T>>(
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

/// The agents of all nodes until `done`, over one API.
fn routers(
    lab: &Lab,
    api: &Arc<FakeApi>,
    done: &tokio::sync::watch::Receiver<bool>,
) -> Vec<std::thread::JoinHandle<()>> {
    let nodes = NODES.map(|(name, ..)| name);
    let started = nodes.map(|name| {
        let (netns, api, mut done) = (lab.netns(name), api.clone(), done.clone());
        std::thread::spawn(move || {
            within(netns, move || async move {
                let router = Router::start(config(name), api).unwrap();
                done.wait_for(|done| *done).await.unwrap();
                drop(router);
            });
        })
    });
    started.into()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "waited in vain for {what}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn n7_pods_of_all_nodes_reach_each_other_with_the_largest_packets_through_restarts() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not run: needs root");
        return;
    }
    let lab = Lab::build();
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
    let (end, done) = tokio::sync::watch::channel(false);
    let running = routers(&lab, &api, &done);
    // 1 and 2 are on one network; 3 is behind the router, by VXLAN over IPv4.
    for (from, to, largest, v6) in [
        (1, 2, 1500, false),
        (1, 3, 1450, false),
        (3, 2, 1450, false),
        (2, 3, 1450, true),
        (3, 1, 1450, true),
    ] {
        eventually(&format!("a ping from {from} to {to} (IPv6: {v6})"), || {
            lab.pings(from, to, 100, v6)
        });
        assert!(
            lab.pings(from, to, largest, v6),
            "{from} to {to}: {largest} bytes"
        );
        assert!(
            !lab.pings(from, to, largest + 1, v6),
            "{from} to {to}: {} bytes",
            largest + 1
        );
    }
    // An address of our own that no pod has is refused at once, not sent to the default route and back.
    let own = lab.netns("a");
    let route = Command::new("ip")
        .args(["-n", &own, "route", "get", "10.92.1.77"])
        .output()
        .unwrap();
    assert!(
        !route.status.success(),
        "{}",
        String::from_utf8_lossy(&route.stdout)
    );
    // A route that somebody removes comes back.
    run(&format!("ip -n {own} route del 10.92.2.0/24"));
    eventually("the route that was removed", || lab.pings(1, 2, 100, false));

    // The agents restart under a stream of packets: none is lost, and what the kernel has stays as it is.
    let before = run(&format!("ip -n {own} -d route show"));
    let mut ping = Command::new("ip");
    ping.args([
        "netns",
        "exec",
        &own,
        "ping",
        "-i",
        "0.01",
        "-c",
        "150",
        "-I",
        "10.92.1.5",
        "10.92.3.5",
    ]);
    let ping = ping.stdout(std::process::Stdio::piped()).spawn().unwrap();
    end.send(true).unwrap();
    running.into_iter().for_each(|thread| thread.join().unwrap());
    let (end, done) = tokio::sync::watch::channel(false);
    let running = routers(&lab, &api, &done);
    let pinged = ping.wait_with_output().unwrap();
    let pinged = String::from_utf8_lossy(&pinged.stdout);
    assert!(pinged.contains(" 0% packet loss"), "{pinged}");
    assert_eq!(run(&format!("ip -n {own} -d route show")), before);

    // A node goes: its route goes, the others stay.
    let deleted = api.delete(&NODE, "", "b", DeleteOptions::default());
    runtime.block_on(deleted).unwrap();
    eventually("the route to go", || {
        !run(&format!("ip -n {own} route show")).contains("10.92.2.0/24")
    });
    assert!(lab.pings(1, 3, 100, false));
    end.send(true).unwrap();
    running.into_iter().for_each(|thread| thread.join().unwrap());

    within(lab.netns("a"), || async {
        remove_all(&config("a")).await.unwrap()
    });
    let left = run(&format!("ip -n {own} -d addr show")) + &run(&format!("ip -n {own} route show"));
    assert!(!left.contains("knarr") && !left.contains("10.92.3.0"), "{left}");
    assert!(!run(&format!("ip netns exec {own} nft list tables")).contains("knarr"));
}
