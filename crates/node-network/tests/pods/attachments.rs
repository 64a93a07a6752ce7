//! ADD, DEL and CHECK of pods that behave.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use knarr_node_network::pods::{Attachment, BeforeUp, EarlierNetwork, remove_all};
use serde_json::{Value, json};

use crate::Case;
use crate::node::{MTU, NODE, NODE_V6, Node, OUTSIDE, OUTSIDE_V6, Pod, network};
use crate::traffic::{serve, tcp};

pub const CASES: &[Case] = &[
    (
        "n1_pods_reach_each_other_the_node_and_are_reached_in_both_families",
        pods_reach_each_other,
    ),
    ("n1_200_parallel_adds_give_200_addresses", parallel_adds),
    ("n1_an_exhausted_range_is_a_clear_error_and_recovers", exhausted),
    ("n1_pods_leave_the_cluster_with_the_nodes_address", masquerade),
    (
        "n1_before_the_node_has_a_cidr_add_is_to_be_tried_again",
        no_cidr_yet,
    ),
    (
        "n6_no_packet_passes_before_the_hook_has_answered",
        hook_comes_first,
    ),
    ("n1_removal_leaves_nothing", removal),
    (
        "n1_an_address_is_not_given_out_before_the_link_of_its_last_pod_is_deleted",
        address_waits_for_link,
    ),
    ("n1_a_sandbox_is_attached_again_right_after_del", attached_again),
    (
        "n1_an_agent_that_ends_waits_for_the_links_of_removed_pods",
        end_waits_for_links,
    ),
    (
        "n1_addresses_of_the_earlier_network_are_not_given_out",
        earlier_network,
    ),
    ("n1_loopback_sets_lo_up", loopback),
    ("n1_the_interface_has_the_mtu_and_the_routes_of_its_result", shape),
];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn pods_reach_each_other() {
    let node = Node::started();
    let _outside = node.outside();
    let (a, b) = (Pod::new(1), Pod::new(2));
    let of_a = node.add(&a).addresses();
    let of_b = node.add(&b).addresses();
    assert_eq!(of_a, [ip("10.244.1.2"), ip("fd00:244:0:1::2")]);
    for (namespace, name) in [
        (&a.namespace, "a"),
        (&b.namespace, "b"),
        (&node.namespace, "node"),
    ] {
        serve(namespace, name, 80);
    }
    for family in 0..2 {
        let (to_a, to_b) = (of_a[family], of_b[family]);
        let node_address = ip([NODE, NODE_V6][family]);
        assert_eq!(tcp(&a.namespace, to_b, 80).unwrap(), format!("b {to_a}"));
        assert_eq!(tcp(&b.namespace, to_a, 80).unwrap(), format!("a {to_b}"));
        assert_eq!(
            tcp(&node.namespace, to_a, 80).unwrap(),
            format!("a {node_address}")
        );
        assert_eq!(
            tcp(&a.namespace, node_address, 80).unwrap(),
            format!("node {to_a}")
        );
    }
    assert_eq!(node.pods.namespace_of(of_a[0]).as_deref(), Some("shop"));
    assert_eq!(node.pods.list().len(), 2);
    node.cni("CHECK", &a, &node.config()).done();
    node.delete(&a).done();
    for routes in ["ip route show", "ip -6 route show"] {
        let routes = node.namespace.command(routes);
        let has_route = |address: &IpAddr| routes.contains(&format!("{address} dev"));
        assert!(!of_a.iter().any(has_route), "{routes}");
    }
    node.delete(&a).done();
    assert_eq!(node.cni("CHECK", &a, &node.config()).failure().0, 3);
    node.until_removed(&a.id);
    assert_eq!(node.pods.namespace_of(of_a[0]), None);
    assert_eq!(node.links(), [b.host_interface()]);
    assert_eq!(tcp(&node.namespace, of_b[0], 80).unwrap(), format!("b {NODE}"));
}

fn parallel_adds() {
    let node = Node::started();
    let pods: Vec<Pod> = (0..200).map(Pod::new).collect();
    let addresses: Vec<Vec<IpAddr>> = std::thread::scope(|scope| {
        let adding: Vec<_> = pods
            .iter()
            .map(|pod| scope.spawn(|| node.add(pod).addresses()))
            .collect();
        adding.into_iter().map(|pod| pod.join().unwrap()).collect()
    });
    let different: BTreeSet<&IpAddr> = addresses.iter().flatten().collect();
    assert_eq!(different.len(), 400);
    assert_eq!(node.links().len(), 200);
    std::thread::scope(|scope| {
        for pod in &pods {
            scope.spawn(|| node.delete(pod).done());
        }
    });
    for pod in &pods {
        node.until_removed(&pod.id);
    }
    assert!(node.links().is_empty());
    assert_eq!(std::fs::read_dir(node.records()).unwrap().count(), 1, ".last");
}

fn exhausted() {
    let mut node = Node::new(Some(network(&["10.244.1.0/30", "fd00:244:0:1::/64"])));
    node.start();
    let (a, b) = (Pod::new(1), Pod::new(2));
    node.add(&a).done();
    let (code, message) = node.add(&b).failure();
    assert_eq!(code, 101);
    assert_eq!(message, "no free address in 10.244.1.0/30: all 1 are in use");
    assert_eq!(node.links().len(), 1);
    node.delete(&a).done();
    node.add(&b).done();
    // A second CIDR helps at once.
    node.network.send_replace(Some(network(&[
        "10.244.1.0/30",
        "10.244.9.0/24",
        "fd00:244:0:1::/64",
    ])));
    assert_eq!(node.add(&a).addresses()[0], ip("10.244.9.2"));
}

fn masquerade() {
    let node = Node::started();
    let outside = node.outside();
    let pod = Pod::new(1);
    let addresses = node.add(&pod).addresses();
    serve(&outside, "outside", 80);
    assert_eq!(
        tcp(&pod.namespace, ip(OUTSIDE), 80).unwrap(),
        format!("outside {NODE}")
    );
    assert_eq!(
        tcp(&pod.namespace, ip(OUTSIDE_V6), 80).unwrap(),
        format!("outside {NODE_V6}")
    );
    // An address of the cluster beyond: no NAT.
    outside.command("ip address add 10.244.7.1/32 dev lo");
    outside.command(&format!("ip route add 10.244.1.0/24 via {NODE}"));
    assert_eq!(
        tcp(&pod.namespace, ip("10.244.7.1"), 80).unwrap(),
        format!("outside {}", addresses[0])
    );
}

fn no_cidr_yet() {
    let mut node = Node::new(None);
    let pod = Pod::new(1);
    assert_eq!(node.add(&pod).failure().0, 11, "the agent does not run");
    node.start();
    assert_eq!(node.add(&pod).failure().0, 11);
    assert_eq!(node.cni("STATUS", &pod, &node.config()).failure().0, 50);
    node.network.send_replace(Some(network(&["10.244.1.0/24"])));
    node.cni("STATUS", &pod, &node.config()).done();
    assert_eq!(node.add(&pod).addresses(), [ip("10.244.1.2")]);
}

/// Records when it was called, and fails on demand.
struct Hook {
    fails: AtomicBool,
    was_open: AtomicBool,
    was_called: AtomicBool,
}

#[async_trait]
impl BeforeUp for Hook {
    async fn before_up(&self, attachment: &Attachment) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.was_called.store(true, Ordering::SeqCst);
        let address = attachment.addresses[0].to_string();
        let route = tokio::process::Command::new("ip")
            .args(["route", "show", &address])
            .output()
            .await?;
        self.was_open.store(!route.stdout.is_empty(), Ordering::SeqCst);
        match self.fails.load(Ordering::SeqCst) {
            true => Err("no rules".into()),
            false => Ok(()),
        }
    }
}

fn hook_comes_first() {
    let hook = Arc::new(Hook {
        fails: AtomicBool::new(true),
        was_open: AtomicBool::new(false),
        was_called: AtomicBool::new(false),
    });
    let mut node = Node::new(Some(network(&["10.244.1.0/24"])));
    node.hook = hook.clone();
    node.start();
    let pod = Pod::new(1);
    let (code, message) = node.add(&pod).failure();
    assert_eq!(code, 104);
    assert!(message.contains("no rules"), "{message}");
    assert!(node.links().is_empty(), "it was reverted");
    assert!(node.pods.list().is_empty());
    hook.fails.store(false, Ordering::SeqCst);
    assert_eq!(node.add(&pod).addresses(), [ip("10.244.1.3")]);
    assert!(hook.was_called.load(Ordering::SeqCst));
    assert!(!hook.was_open.load(Ordering::SeqCst));
}

fn removal() {
    let mut node = Node::started();
    let _outside = node.outside();
    let pods: Vec<Pod> = (0..3).map(Pod::new).collect();
    for (pod, port) in pods.iter().zip(8000..) {
        let runtime = json!({
            "portMappings": [{ "hostPort": port, "containerPort": 80, "protocol": "tcp" }],
            "bandwidth": { "egressRate": 1_000_000, "egressBurst": 1_000_000 },
        });
        node.add_with(pod, runtime).done();
    }
    assert_eq!(node.links().len(), 6);
    // What belongs to others stays.
    node.namespace
        .command("ip link add knarr-other type veth peer name other");
    node.namespace.command("nft add table inet knarr-pods-other");
    node.kill();
    let (records, socket) = (node.records(), node.socket());
    for _ in 0..2 {
        let (records, socket) = (records.clone(), socket.clone());
        node.namespace
            .run(move || remove_all(&records, &socket, None, None).unwrap());
    }
    assert_eq!(node.links(), ["knarr-other"]);
    assert_eq!(node.tables(), "table inet knarr-pods-other\n");
    assert!(!node.namespace.command("ip route show").contains("10.244"));
    assert!(!records.exists() && !socket.exists());
}

/// Records whether this link is there when others' sandboxes are attached.
struct LinkThen {
    link: String,
    was_there: AtomicBool,
    was_called: AtomicBool,
}

#[async_trait]
impl BeforeUp for LinkThen {
    async fn before_up(&self, attachment: &Attachment) -> Result<(), Box<dyn Error + Send + Sync>> {
        if attachment.host_interface != self.link {
            let shown = tokio::process::Command::new("ip")
                .args(["link", "show", &self.link])
                .output()
                .await?;
            self.was_there.store(shown.status.success(), Ordering::SeqCst);
            self.was_called.store(true, Ordering::SeqCst);
        }
        Ok(())
    }
}

fn address_waits_for_link() {
    let (a, b) = (Pod::new(1), Pod::new(2));
    let hook = Arc::new(LinkThen {
        link: a.host_interface(),
        was_there: AtomicBool::new(false),
        was_called: AtomicBool::new(false),
    });
    let mut node = Node::new(Some(network(&["10.244.1.0/30"])));
    node.hook = hook.clone();
    node.start();
    node.add(&a).done();
    for _ in 0..5 {
        node.delete(&a).done();
        // There is no other address.
        assert_eq!(node.add(&b).addresses(), [ip("10.244.1.2")]);
        assert!(hook.was_called.swap(false, Ordering::SeqCst));
        assert!(!hook.was_there.load(Ordering::SeqCst));
        node.delete(&b).done();
        node.add(&a).done();
    }
}

fn attached_again() {
    let node = Node::started();
    let pod = Pod::new(1);
    for _ in 0..5 {
        let addresses = node.add(&pod).addresses();
        node.cni("CHECK", &pod, &node.config()).done();
        assert_eq!(node.links(), [pod.host_interface()]);
        assert_eq!(node.pods.list()[0].addresses, addresses);
        node.delete(&pod).done();
    }
    node.until_removed(&pod.id);
    assert!(node.links().is_empty());
}

fn end_waits_for_links() {
    let node = Node::started();
    let pods: Vec<Pod> = (0..8).map(Pod::new).collect();
    for pod in &pods {
        node.add(pod).done();
    }
    std::thread::scope(|scope| {
        for pod in &pods {
            scope.spawn(|| node.delete(pod).done());
        }
    });
    node.finish_removals();
    assert_eq!(std::fs::read_dir(node.records()).unwrap().count(), 1, ".last");
    assert!(node.links().is_empty());
    assert!(node.pods.list().is_empty());
}

fn earlier_network() {
    let mut node = Node::new(Some(network(&["10.244.1.0/29"])));
    let leases = node.directory.path().join("ipam");
    std::fs::create_dir(&leases).unwrap();
    let old = Pod::new(9);
    std::fs::write(leases.join("10.244.1.2"), format!("{}\r\neth0", old.id)).unwrap();
    std::fs::write(leases.join("last_reserved_ip.0"), "10.244.1.2").unwrap();
    node.namespace.command("ip link add cni-old type bridge");
    node.namespace.command("ip address add 10.244.1.1/29 dev cni-old");
    node.namespace.command("ip link set cni-old up");
    // A pod as the bridge plugin left it.
    let thread = old.namespace.thread;
    node.namespace.command(&format!(
        "ip link add vethold type veth peer name eth0 netns {thread}"
    ));
    node.namespace.command("ip link set vethold master cni-old up");
    old.namespace.command("ip address add 10.244.1.2/29 dev eth0");
    old.namespace.command("ip link set eth0 up");
    old.namespace.command("ip route add default via 10.244.1.1");
    node.earlier = Some(EarlierNetwork {
        bridge: "cni-old".into(),
        leases: leases.clone(),
    });
    node.start();
    let new = Pod::new(1);
    assert_eq!(node.add(&new).addresses(), [ip("10.244.1.3")]);
    serve(&old.namespace, "old", 80);
    serve(&new.namespace, "new", 80);
    assert_eq!(
        tcp(&new.namespace, ip("10.244.1.2"), 80).unwrap(),
        "old 10.244.1.3"
    );
    assert_eq!(
        tcp(&old.namespace, ip("10.244.1.3"), 80).unwrap(),
        "new 10.244.1.2"
    );
    node.delete(&old).done();
    assert!(!leases.join("10.244.1.2").exists());
    let all: Vec<IpAddr> = (2..6).flat_map(|n| node.add(&Pod::new(n)).addresses()).collect();
    assert!(all.contains(&ip("10.244.1.2")), "{all:?}");
}

fn loopback() {
    let node = Node::started();
    let pod = Pod::new(1);
    let config = json!({ "cniVersion": "0.3.1", "name": "cni-loopback", "type": "loopback" });
    assert!(!node.plugin("loopback", "CHECK", &pod, &config).is_success);
    let answer = node.plugin("loopback", "ADD", &pod, &config);
    answer.done();
    assert_eq!(answer.json["ips"][0]["address"], "127.0.0.1/8");
    assert_eq!(answer.json["ips"][0]["version"], "4");
    node.plugin("loopback", "CHECK", &pod, &config).done();
    node.plugin("loopback", "DEL", &pod, &config).done();
    serve(&pod.namespace, "self", 80);
    assert_eq!(
        tcp(&pod.namespace, ip("127.0.0.1"), 80).unwrap(),
        "self 127.0.0.1"
    );
    assert_eq!(tcp(&pod.namespace, ip("::1"), 80).unwrap(), "self ::1");
}

fn shape() {
    let node = Node::started();
    let pod = Pod::new(1);
    let result = node.add(&pod).json;
    assert_eq!(
        result,
        json!({
            "cniVersion": "1.0.0",
            "interfaces": [
                { "name": pod.host_interface(), "mac": "02:6b:6e:61:72:72" },
                { "name": "eth0", "mac": "0a:58:0a:f4:01:02", "sandbox": pod.namespace.path() },
            ],
            "ips": [
                { "interface": 1, "address": "10.244.1.2/32", "gateway": "169.254.1.1" },
                { "interface": 1, "address": "fd00:244:0:1::2/128", "gateway": "fe80::1" },
            ],
            "routes": [
                { "dst": "0.0.0.0/0", "gw": "169.254.1.1" },
                { "dst": "::/0", "gw": "fe80::1" },
            ],
            "dns": {},
        })
    );
    for (namespace, name) in [
        (&pod.namespace, "eth0".to_string()),
        (&node.namespace, pod.host_interface()),
    ] {
        let link: Value =
            serde_json::from_str(&namespace.command(&format!("ip -j link show {name}"))).unwrap();
        assert_eq!(link[0]["mtu"], MTU);
    }
    let mode = std::fs::metadata(node.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut config = node.config();
    config["prevResult"] = result;
    node.cni("CHECK", &pod, &config).done();
    config["prevResult"]["ips"][0]["address"] = "10.244.1.9/32".into();
    assert_eq!(node.cni("CHECK", &pod, &config).failure().0, 105);
    pod.namespace.command("ip address del 10.244.1.2/32 dev eth0");
    assert_eq!(node.cni("CHECK", &pod, &node.config()).failure().0, 105);
}
