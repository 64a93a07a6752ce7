//! WireGuard between nodes. The kernel's is used where there is one, else that in user space.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use knarr_api::k8s_openapi;
use knarr_client::fake::FakeApi;
use knarr_client::{NETWORK_NAMESPACE, TypedApi};
use knarr_network::routes::encryption::{KEY, PORT};
use knarr_node_network::routes::{Config, Encryption, remove_all};

use crate::lab::{Agent, Lab, NODES, api, config, eventually, run, within};

/// What the packets of [`marked`] are full of.
const MARKER: &[u8] = b"knarrknarrknarr";

fn encrypted(name: &str, keys: &Path) -> Config {
    Config {
        encryption: Some(Encryption {
            port: 51820,
            key_file: keys.join(name),
        }),
        ..config(name)
    }
}

fn all_encrypted(lab: &Lab, keys: &Path, api: &Arc<FakeApi>) -> [Agent; 3] {
    NODES.map(|(name, ..)| Agent::start(lab, encrypted(name, keys), api.clone()))
}

fn published(runtime: &tokio::runtime::Runtime, api: &FakeApi, node: &str) -> Option<String> {
    let lease = runtime
        .block_on(api.get_as::<Lease>(NETWORK_NAMESPACE, node))
        .ok()?;
    lease.metadata.annotations.as_ref()?.get(KEY).cloned()
}

/// A ping from node 1 to node 2 with the marker in it.
fn marked(lab: &Lab) -> bool {
    let (netns, pattern) = (lab.netns("a"), "6b6e617272");
    let mut ping = Command::new("ip");
    ping.args(["netns", "exec", &netns, "ping", "-c3", "-i0.1", "-W1", "-s600"]);
    ping.args(["-p", pattern, "-I", "10.92.1.5", "10.92.2.5"]);
    ping.output().unwrap().status.success()
}

/// What passes on the wire to a node.
struct Capture {
    tcpdump: Child,
    file: PathBuf,
    _messages: BufReader<std::process::ChildStderr>,
}

impl Capture {
    fn start(lab: &Lab, link: &str, file: PathBuf) -> Capture {
        let mut tcpdump = Command::new("ip");
        tcpdump.args(["netns", "exec", &lab.netns("r"), "tcpdump", "-i", link]);
        tcpdump
            .args(["-U", "--immediate-mode", "-Z", "root", "-w"])
            .arg(&file);
        let mut tcpdump = tcpdump.stderr(Stdio::piped()).spawn().unwrap();
        let mut messages = BufReader::new(tcpdump.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("listening") {
            line.clear();
            assert!(
                messages.read_line(&mut line).unwrap() > 0,
                "tcpdump does not start"
            );
        }
        Capture {
            tcpdump,
            file,
            _messages: messages,
        }
    }

    /// Whether the marker was seen, and all packets that are neither WireGuard's nor the link's own.
    fn end(mut self) -> (bool, String) {
        let id = nix::unistd::Pid::from_raw(i32::try_from(self.tcpdump.id()).unwrap());
        nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM).unwrap();
        self.tcpdump.wait().unwrap();
        let bytes = std::fs::read(&self.file).unwrap();
        let is_marked = bytes.windows(MARKER.len()).any(|bytes| bytes == MARKER);
        let filter = "not udp port 51820 and not arp and not src net fe80::/10 and not src host :: and not icmp[icmptype]==icmp-unreach";
        let file = self.file.display();
        // An ICMP error quotes what is encrypted.
        let others = run(&format!("tcpdump -n -r {file} {filter}"));
        let others: Vec<&str> = others.lines().filter(|line| line.contains('>')).collect();
        (is_marked, others.join("\n"))
    }
}

/// What packets of pods in the clear were dropped on a node.
fn dropped(lab: &Lab, node: &str) -> u64 {
    let netns = lab.netns(node);
    let rules = run(&format!(
        "ip netns exec {netns} nft list chain inet knarr-routes-t in-clear"
    ));
    let counted = rules.split("counter packets ").skip(1);
    counted
        .map(|text| text.split(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

/// A pod behind a link of its own, with an MTU that is larger than the tunnel's; its namespace.
fn pod(lab: &Lab) -> String {
    let (node, pod) = (lab.netns("a"), lab.netns("pod"));
    run(&format!("ip netns add {pod}"));
    run(&format!(
        "ip -n {node} link add topod group 27502 type veth peer name eth0 netns {pod}"
    ));
    for command in [
        format!("ip -n {node} addr add 169.254.1.1/32 dev topod"),
        format!("ip -n {node} link set topod up"),
        format!("ip -n {node} route add 10.92.1.9 dev topod"),
        format!("ip netns exec {node} sysctl -qw net.ipv4.ip_forward=1"),
        format!("ip -n {pod} addr add 10.92.1.9/32 dev eth0"),
        format!("ip -n {pod} link set eth0 up"),
        format!("ip -n {pod} route add 169.254.1.1 dev eth0"),
        format!("ip -n {pod} route add default via 169.254.1.1"),
    ] {
        run(&command);
    }
    pod
}

#[test]
fn n7_encrypted_packets_of_pods_are_all_that_nodes_exchange_up_to_the_largest() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not run: needs root");
        return;
    }
    let lab = Lab::build("e");
    let keys = tempfile::tempdir().unwrap();
    let (runtime, api) = api();

    // In the clear the marker is there to be seen.
    let running = NODES.map(|(name, ..)| Agent::start(&lab, config(name), api.clone()));
    eventually("a ping in the clear", || lab.pings(1, 2, 100, false));
    let capture = Capture::start(&lab, "tob", keys.path().join("clear.pcap"));
    assert!(marked(&lab));
    assert!(capture.end().0, "the marker");

    // The flag is switched on.
    drop(running);
    let running = all_encrypted(&lab, keys.path(), &api);
    eventually("encryption", || {
        lab.pings(1, 2, 100, false) && lab.pings(3, 1, 100, true)
    });
    eventually("all keys", || {
        NODES
            .iter()
            .all(|(name, ..)| published(&runtime, &api, name).is_some())
    });
    let capture = Capture::start(&lab, "tob", keys.path().join("encrypted.pcap"));
    assert!(marked(&lab));
    for (from, to, v6) in [
        (1, 2, false),
        (2, 1, true),
        (1, 3, false),
        (3, 2, true),
        (2, 3, false),
    ] {
        eventually(&format!("a ping from {from} to {to} (IPv6: {v6})"), || {
            lab.pings(from, to, 100, v6)
        });
        assert!(lab.pings(from, to, 1440, v6), "{from} to {to}: 1440 bytes");
        assert!(!lab.pings(from, to, 1441, v6), "{from} to {to}: 1441 bytes");
    }
    assert_eq!(capture.end(), (false, String::new()));
    let own = lab.netns("a");
    assert!(!run(&format!("ip -n {own} link show")).contains("knarr-vx"));

    // A pod that sends more gets an error.
    let pod = pod(&lab);
    let pinged = |bytes: u32| {
        let mut ping = Command::new("ip");
        ping.args(["netns", "exec", &pod, "ping", "-c1", "-W1", "-Mdo", "-s"]);
        ping.args([&(bytes - 28).to_string(), "10.92.3.5"]);
        let out = ping.output().unwrap();
        (
            out.status.success(),
            String::from_utf8_lossy(&out.stdout).into_owned(),
        )
    };
    assert!(pinged(1440).0);
    let (came, message) = pinged(1441);
    assert!(!came && message.contains("mtu = 1440"), "{message}");

    // A node that sends in the clear in the name of another's pods reaches nothing.
    let router = lab.netns("r");
    run(&format!("ip -n {router} addr add 10.92.2.77/32 dev lo"));
    run(&format!("ip -n {router} route add 10.92.1.0/24 via 10.91.1.1"));
    let before = dropped(&lab, "a");
    let mut spoofed = Command::new("ip");
    spoofed.args(["netns", "exec", &router, "ping", "-c1", "-W1"]);
    spoofed.args(["-I", "10.92.2.77", "10.92.1.5"]);
    assert!(!spoofed.output().unwrap().status.success());
    assert!(dropped(&lab, "a") > before);

    // And off again: everything of it is removed.
    drop(running);
    let running = NODES.map(|(name, ..)| Agent::start(&lab, config(name), api.clone()));
    eventually("a ping in the clear", || lab.pings(1, 2, 1500, false));
    eventually("no key", || published(&runtime, &api, "a").is_none());
    eventually("no device", || {
        !run(&format!("ip -n {own} link show")).contains("knarr-wg")
    });
    let rules = run(&format!("ip netns exec {own} nft list table inet knarr-routes-t"));
    assert!(!rules.contains("drop"), "{rules}");
    drop(running);

    // `down` while it is on.
    let running = all_encrypted(&lab, keys.path(), &api);
    eventually("encryption", || {
        lab.pings(1, 2, 1440, false) && !lab.pings(1, 2, 1441, false)
    });
    drop(running);
    let config = encrypted("a", keys.path());
    within(own.clone(), || async move { remove_all(&config).await.unwrap() });
    let left = run(&format!("ip -n {own} -d addr show")) + &run(&format!("ip -n {own} route show"));
    assert!(!left.contains("knarr") && !left.contains("10.92.3.0"), "{left}");
    assert!(!run(&format!("ip netns exec {own} nft list tables")).contains("knarr"));
}

fn in_netns<T: Send + 'static>(netns: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    within(netns.to_string(), move || async move { work() })
}

#[test]
fn n7_connections_outlive_a_restart_and_a_new_key_and_a_wrong_key_reaches_nothing() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not run: needs root");
        return;
    }
    let lab = Lab::build("k");
    let keys = tempfile::tempdir().unwrap();
    let (runtime, api) = api();
    let [a, b, c] = all_encrypted(&lab, keys.path(), &api);
    eventually("encryption", || {
        lab.pings(1, 3, 100, false) && lab.pings(3, 2, 100, false)
    });

    let listener = in_netns(&lab.netns("c"), || TcpListener::bind("10.92.3.5:7000").unwrap());
    let client = in_netns(&lab.netns("a"), || {
        TcpStream::connect(SocketAddr::from(([10, 92, 3, 5], 7000))).unwrap()
    });
    let (server, from) = listener.accept().unwrap();
    assert_eq!(
        from.ip().to_string(),
        "10.92.1.0",
        "the node's own address in its range"
    );
    let mut ends = [client, server];
    for end in &ends {
        end.set_read_timeout(Some(std::time::Duration::from_secs(20)))
            .unwrap();
    }
    let mut exchange = |what: &str| {
        let begin = std::time::Instant::now();
        for (from, to) in [(0, 1), (1, 0)] {
            ends[from].write_all(b"hello").unwrap();
            let mut bytes = [0; 5];
            ends[to].read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"hello", "{what}");
        }
        begin.elapsed()
    };
    exchange("at first");

    // The agent of a node restarts.
    let capture = Capture::start(&lab, "toa", keys.path().join("restart.pcap"));
    drop(a);
    let a = Agent::start(&lab, encrypted("a", keys.path()), api.clone());
    let took = exchange("after a restart");
    eprintln!("a connection resumed {took:?} after a restart was begun");
    drop(c);
    let c = Agent::start(&lab, encrypted("c", keys.path()), api.clone());
    exchange("after a restart of the other node");
    assert_eq!(capture.end(), (false, String::new()), "all of it was encrypted");

    // Its key is renewed.
    let before = published(&runtime, &api, "a").unwrap();
    std::fs::remove_file(keys.path().join("a")).unwrap();
    run(&format!("ip -n {} route del 10.92.2.0/24", lab.netns("a")));
    eventually("a new key", || published(&runtime, &api, "a").unwrap() != before);
    let took = exchange("with a new key");
    eprintln!("a connection resumed {took:?} after a new key was published");
    assert!(lab.pings(1, 2, 100, false));

    // Node b believes in another API, where it publishes a key that the others do not know.
    drop(b);
    let (elsewhere, other) = self::api();
    for name in ["a", "c"] {
        let lease = runtime
            .block_on(api.get_as::<Lease>(NETWORK_NAMESPACE, name))
            .unwrap();
        let mut lease = (*lease).clone();
        lease.metadata.resource_version = None;
        lease.metadata.uid = None;
        elsewhere.block_on(other.create_as(lease)).unwrap();
    }
    let impostor = Agent::start(
        &lab,
        Config {
            encryption: Some(Encryption {
                port: 51820,
                key_file: keys.path().join("impostor"),
            }),
            ..config("b")
        },
        other.clone(),
    );
    eventually("the other key", || published(&elsewhere, &other, "b").is_some());
    assert_ne!(published(&elsewhere, &other, "b"), published(&runtime, &api, "b"));
    for _ in 0..3 {
        assert!(!lab.pings(2, 1, 100, false) && !lab.pings(3, 2, 100, true));
    }
    assert!(lab.pings(1, 3, 100, false), "the others are not disturbed");
    drop(impostor);

    // A node that takes its key away is not reached at all, rather than in the clear.
    let own = lab.netns("a");
    runtime
        .block_on(api.edit::<Lease>(NETWORK_NAMESPACE, "b", "", |lease| {
            let annotations = lease.metadata.annotations.as_mut().unwrap();
            assert!(annotations.remove(KEY).is_some() && annotations.remove(PORT).is_some());
        }))
        .unwrap();
    eventually("no route to a node without key", || {
        run(&format!("ip -n {own} route show")).contains("unreachable 10.92.2.0/24")
    });
    drop((a, c));
}

/// `cargo test -p knarr-node-network --test routes -- --ignored --nocapture throughput`
#[test]
#[ignore = "a measurement"]
fn n7_throughput() {
    let lab = Lab::build("t");
    let keys = tempfile::tempdir().unwrap();
    let (_runtime, api) = api();
    let measure = |what: &str| {
        let mut server = Command::new("ip");
        server.args(["netns", "exec", &lab.netns("b"), "iperf3", "-s", "-1"]);
        let mut server = server.stdout(Stdio::null()).spawn().unwrap();
        let client = lab.netns("a");
        let mut report = String::new();
        eventually("iperf3", || {
            let mut iperf = Command::new("ip");
            iperf.args([
                "netns",
                "exec",
                &client,
                "iperf3",
                "-c",
                "10.92.2.5",
                "-B",
                "10.92.1.5",
            ]);
            let out = iperf.args(["-t", "4", "-f", "m"]).output().unwrap();
            report = String::from_utf8_lossy(&out.stdout).into_owned();
            out.status.success()
        });
        server.wait().unwrap();
        let line = report.lines().find(|line| line.contains("receiver")).unwrap();
        eprintln!("{what}: {line}");
    };
    let running = NODES.map(|(name, ..)| Agent::start(&lab, config(name), api.clone()));
    eventually("a ping in the clear", || lab.pings(1, 2, 100, false));
    measure("in the clear");
    drop(running);
    let running = all_encrypted(&lab, keys.path(), &api);
    eventually("encryption", || {
        lab.pings(1, 2, 1440, false) && !lab.pings(1, 2, 1441, false)
    });
    measure("encrypted");
    drop(running);
}
