//! Namespaces, links and servers, and the proxy's tables in the node's namespace.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use knarr_network::catalog::{Catalog, ServiceKey};
use knarr_network::proxy::{self, Config, Family, NodeFacts, Proxy};
use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};

use crate::text;

/// What a client found at an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// From the server of this name, which saw the client at this address.
    From {
        server: String,
        source: String,
    },
    ConnectionRefused,
    Silent,
}

impl Answer {
    pub fn server(&self) -> &str {
        match self {
            Answer::From { server, .. } => server,
            other => panic!("{other:?}"),
        }
    }

    pub fn source(&self) -> &str {
        match self {
            Answer::From { source, .. } => source,
            other => panic!("{other:?}"),
        }
    }
}

/// How long a dropped connection is waited for.
const SILENCE: Duration = Duration::from_millis(400);
const NAMES: [&str; 5] = ["node", "client", "p1", "p2", "far"];
static WORLDS: AtomicU32 = AtomicU32::new(0);

/// Addresses, by family.
pub struct Addresses {
    pub node: &'static str,
    pub client: &'static str,
    pub p1: &'static str,
    pub p2: &'static str,
    pub far: &'static str,
    pub cluster_ip: &'static str,
    pub unallocated: &'static str,
    pub external_ip: &'static str,
    pub balancer: &'static str,
}

pub const V4: Addresses = Addresses {
    node: "192.0.2.1",
    client: "192.0.2.2",
    p1: "10.244.0.11",
    p2: "10.244.0.12",
    far: "10.244.1.21",
    cluster_ip: "10.96.0.10",
    unallocated: "10.96.7.7",
    external_ip: "203.0.113.2",
    balancer: "203.0.113.1",
};

pub const V6: Addresses = Addresses {
    node: "2001:db8:1::1",
    client: "2001:db8:1::2",
    p1: "fd00:244::11",
    p2: "fd00:244::12",
    far: "fd00:244:1::21",
    cluster_ip: "fd00:96::10",
    unallocated: "fd00:96::7777",
    external_ip: "2001:db8:3::2",
    balancer: "2001:db8:3::1",
};

/// Both families, with what their tables are called.
pub const FAMILIES: [(Family, Addresses); 2] = [(Family::V4, V4), (Family::V6, V6)];

pub struct World {
    prefix: String,
    pub proxy: Proxy,
    pub catalog: Catalog,
    timeouts: BTreeSet<u32>,
}

fn run(program: &str, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl World {
    pub fn new() -> Self {
        Self::with(Config {
            cluster_cidrs: vec!["10.244.0.0/16".parse().unwrap(), "fd00:244::/32".parse().unwrap()],
            service_cidrs: vec!["10.96.0.0/16".parse().unwrap(), "fd00:96::/112".parse().unwrap()],
            ..Config::default()
        })
    }

    pub fn with(config: Config) -> Self {
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("kpx{}-{number}-", std::process::id());
        let node = NodeFacts {
            name: "here".into(),
            zone: Some("a".into()),
            addresses: vec![V4.node.parse().unwrap(), V6.node.parse().unwrap()],
        };
        let world = World {
            prefix,
            proxy: Proxy::new(config, node),
            catalog: Catalog::default(),
            timeouts: BTreeSet::new(),
        };
        world.link();
        world.run_skeleton();
        world.serve();
        world
    }

    fn name(&self, namespace: &str) -> String {
        format!("{}{namespace}", self.prefix)
    }

    fn link(&self) {
        for name in NAMES {
            run("ip", &["netns", "add", &self.name(name)], "");
            let all = "net.ipv6.conf.all.accept_dad=0\nnet.ipv6.conf.default.accept_dad=0\nnet.ipv4.icmp_ratelimit=0\nnet.ipv6.icmp.ratelimit=0\n";
            self.sysctl(name, all);
            self.ip(name, "link set lo up\n");
        }
        self.sysctl("node", "net.ipv4.ip_forward=1\nnet.ipv6.conf.all.forwarding=1\n");
        for (path, value) in proxy::sysctls(self.proxy.config()) {
            self.sysctl("node", &format!("{}={value}\n", path.replace('/', ".")));
        }
        let mut node = String::new();
        for (peer, addresses) in [("client", (V4.client, V6.client)), ("far", (V4.far, V6.far))] {
            node += &format!(
                "link add {peer} type veth peer name eth0 netns {}\n",
                self.name(peer)
            );
            let _ = addresses;
        }
        for (pod, v4, v6) in [("p1", V4.p1, V6.p1), ("p2", V4.p2, V6.p2)] {
            node += &format!(
                "link add {pod} type veth peer name eth0 netns {}\n",
                self.name(pod)
            );
            node += &format!("addr add 169.254.1.1/32 dev {pod} scope link\nlink set {pod} up\n");
            node += &format!(
                "addr add fe80::1/64 dev {pod} nodad\nroute add {v4}/32 dev {pod}\nroute add {v6}/128 dev {pod}\n"
            );
            let pod_side = format!(
                "addr add {v4}/32 dev eth0\naddr add {v6}/128 dev eth0 nodad\nlink set eth0 up\n\
                 route add 169.254.1.1 dev eth0 scope link\nroute add default via 169.254.1.1 dev eth0\n\
                 route add default via fe80::1 dev eth0\n"
            );
            self.ip("node", &std::mem::take(&mut node));
            self.ip(pod, &pod_side);
        }
        self.ip(
            "node",
            &format!(
                "addr add {}/24 dev client\naddr add {}/64 dev client nodad\nlink set client up\n\
                 addr add 192.0.3.1/24 dev far\naddr add 2001:db8:2::1/64 dev far nodad\nlink set far up\n\
                 route add {}/32 dev far\nroute add {}/128 dev far\nroute add default dev client\n",
                V4.node, V6.node, V4.far, V6.far
            ),
        );
        self.ip(
            "client",
            &format!(
                "addr add {}/24 dev eth0\naddr add {}/64 dev eth0 nodad\nlink set eth0 up\n\
                 route add default via {}\nroute add default via {}\n",
                V4.client, V6.client, V4.node, V6.node
            ),
        );
        self.ip(
            "far",
            &format!(
                "addr add {}/32 dev eth0\naddr add {}/128 dev eth0 nodad\nlink set eth0 up\n\
                 route add 192.0.3.1 dev eth0 scope link\nroute add default via 192.0.3.1\n\
                 route add 2001:db8:2::1 dev eth0\nroute add default via 2001:db8:2::1\n",
                V4.far, V6.far
            ),
        );
        self.ip("node", "route add default via 2001:db8:1::2\n");
    }

    pub fn ip(&self, namespace: &str, batch: &str) {
        run("ip", &["-n", &self.name(namespace), "-batch", "-"], batch);
    }

    pub fn sysctl(&self, namespace: &str, lines: &str) {
        let name = self.name(namespace);
        let arguments = ["netns", "exec", &name, "sysctl", "-q", "-p", "-"];
        run("ip", &arguments, lines);
    }

    pub fn nft(&self, script: &str) {
        run(
            "ip",
            &["netns", "exec", &self.name("node"), "nft", "-f", "-"],
            script,
        );
    }

    /// What `nft` prints of a family's table.
    pub fn list(&self, family: Family) -> String {
        let name = self.name("node");
        let arguments = [
            "netns",
            "exec",
            &name,
            "nft",
            "list",
            "table",
            family.name(),
            "knarr-proxy",
        ];
        run("ip", &arguments, "")
    }

    pub fn run_skeleton(&self) {
        for family in Family::ALL {
            self.nft(&proxy::skeleton(self.proxy.config(), family, &self.timeouts));
        }
    }

    /// Runs something in a namespace.
    pub fn inside<T: Send>(&self, namespace: &str, work: impl FnOnce() -> T + Send) -> T {
        let handle = File::open(format!("/run/netns/{}", self.name(namespace))).unwrap();
        std::thread::scope(|scope| {
            let entered = scope.spawn(move || {
                setns(handle, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            entered.join().unwrap()
        })
    }

    /// Servers on port 8080 of every pod, which answer their own name and the client's address.
    fn serve(&self) {
        for (name, port) in [("p1", 8080), ("p2", 8080), ("far", 8080), ("node", 9999)] {
            self.serve_on(name, name, port);
        }
    }

    /// A server; its threads end with the process.
    pub fn serve_on(&self, namespace: &str, name: &str, port: u16) {
        let (tcp, udp) = self.inside(namespace, || {
            let any = SocketAddr::from(([0u16; 8], port));
            (TcpListener::bind(any).unwrap(), UdpSocket::bind(any).unwrap())
        });
        let answer = |name: &str, from: SocketAddr| format!("{name} {}", from.ip().to_canonical());
        let own = name.to_owned();
        std::thread::spawn(move || {
            for mut stream in tcp.incoming().flatten() {
                if let Ok(peer) = stream.peer_addr() {
                    let _ = stream.write_all(answer(&own, peer).as_bytes());
                }
            }
        });
        let own = name.to_owned();
        std::thread::spawn(move || {
            let mut buffer = [0; 16];
            while let Ok((_, peer)) = udp.recv_from(&mut buffer) {
                let _ = udp.send_to(answer(&own, peer).as_bytes(), peer);
            }
        });
    }

    /// Takes a Service of namespace `ns` and its slice in, and brings the kernel there.
    pub fn apply(&mut self, service: Value, endpoints: &[Value]) {
        let name = service["metadata"]["name"].as_str().unwrap().to_owned();
        let service: k8s_openapi::api::core::v1::Service = serde_json::from_value(service).unwrap();
        self.catalog.apply_service(&service);
        for family in ["IPv4", "IPv6"] {
            let of_family =
                |e: &&Value| e["addresses"][0].as_str().unwrap().contains(':') == (family == "IPv6");
            let endpoints: Vec<&Value> = endpoints.iter().filter(of_family).collect();
            let slice = json!({
                "metadata": {"namespace": "ns", "name": format!("{name}-{family}"),
                             "labels": {"kubernetes.io/service-name": name}},
                "addressType": family, "endpoints": endpoints,
                "ports": [{"name": "tcp", "port": 8080, "protocol": "TCP"}, {"name": "udp", "port": 8080, "protocol": "UDP"}],
            });
            self.catalog.apply_slice(&serde_json::from_value(slice).unwrap());
        }
        self.sync(&name);
    }

    pub fn sync(&mut self, name: &str) {
        let key = ServiceKey::new("ns", name);
        let change = self.proxy.apply(&self.catalog, &key);
        self.timeouts.extend(self.proxy.affinity_timeout(&key));
        for family in Family::ALL {
            let config = self.proxy.config();
            self.nft(&proxy::affinity_chains(config, family, &self.timeouts));
        }
        for family in Family::ALL {
            let table = &self.proxy.config().table;
            self.nft(&text::change(table, family, change.table(family)));
        }
    }

    /// One connection and what came of it.
    pub fn tcp(&self, from: &str, to: SocketAddr) -> Answer {
        self.inside(from, || match TcpStream::connect_timeout(&to, SILENCE) {
            Ok(mut stream) => {
                let mut text = String::new();
                stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
                match stream.read_to_string(&mut text) {
                    Ok(_) => answer(&text),
                    Err(_) => Answer::Silent,
                }
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Answer::ConnectionRefused,
            Err(error) if error.kind() == ErrorKind::TimedOut => Answer::Silent,
            Err(error) => panic!("{to}: {error}"),
        })
    }

    /// One datagram and what came back.
    pub fn udp(&self, from: &str, to: SocketAddr) -> Answer {
        self.inside(from, || {
            let any = match to {
                SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
                SocketAddr::V6(_) => SocketAddr::from(([0u16; 8], 0)),
            };
            let socket = UdpSocket::bind(any).unwrap();
            socket.set_read_timeout(Some(SILENCE)).unwrap();
            socket.connect(to).unwrap();
            if let Err(error) = socket.send(b"?") {
                // A datagram that is rejected on its way out fails with EPERM.
                let kinds = [ErrorKind::ConnectionRefused, ErrorKind::PermissionDenied];
                assert!(kinds.contains(&error.kind()), "{to}: {error}");
                return Answer::ConnectionRefused;
            }
            let mut buffer = [0; 256];
            match socket.recv(&mut buffer) {
                Ok(length) => answer(std::str::from_utf8(&buffer[..length]).unwrap()),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => Answer::ConnectionRefused,
                Err(_) => Answer::Silent,
            }
        })
    }

    /// What so many new connections find, by both protocols.
    pub fn many(&self, from: &str, to: SocketAddr, times: usize) -> Vec<Answer> {
        let once = |_| [self.tcp(from, to), self.udp(from, to)];
        let answers: Vec<Answer> = (0..times).flat_map(once).collect();
        let is_answer = |a: &Answer| matches!(a, Answer::From { .. });
        assert!(answers.iter().all(is_answer), "{from} to {to}: {answers:?}");
        answers
    }
}

fn answer(text: &str) -> Answer {
    let (server, source) = text.split_once(' ').unwrap();
    Answer::From {
        server: server.into(),
        source: source.into(),
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for name in NAMES {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.name(name)])
                .status();
        }
    }
}

/// A Service with both families' cluster IPs, TCP and UDP on port 80.
pub fn service(name: &str, spec: Value) -> Value {
    let mut all = json!({
        "type": "ClusterIP", "clusterIPs": [V4.cluster_ip, V6.cluster_ip],
        "ports": [
            {"name": "tcp", "port": 80, "protocol": "TCP"},
            {"name": "udp", "port": 80, "protocol": "UDP"},
        ],
    });
    for (field, value) in spec.as_object().unwrap() {
        all[field] = value.clone();
    }
    if all["type"] != "ClusterIP" {
        all["ports"][0]["nodePort"] = json!(30080);
        all["ports"][1]["nodePort"] = json!(30080);
    }
    all["clusterIP"] = all["clusterIPs"][0].clone();
    let balancers = json!([{"ip": V4.balancer}, {"ip": V6.balancer}]);
    json!({"metadata": {"namespace": "ns", "name": name}, "spec": all,
           "status": {"loadBalancer": {"ingress": balancers}}})
}

/// Ready endpoints of both families.
pub fn endpoints(names: &[&str]) -> Vec<Value> {
    let one = |name: &&str| {
        let (addresses, node) = match *name {
            "p1" => ([V4.p1, V6.p1], "here"),
            "p2" => ([V4.p2, V6.p2], "here"),
            "far" => ([V4.far, V6.far], "there"),
            other => panic!("{other}"),
        };
        addresses.map(|address| json!({"addresses": [address], "nodeName": node}))
    };
    names.iter().flat_map(one).collect()
}

impl World {
    /// The servers that so many connections find, one after the other, from the namespace that this is called in.
    pub fn connect_often(&self, to: SocketAddr, times: usize) -> Vec<String> {
        let one = |_| {
            let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(2)).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            answer(&text).server().to_owned()
        };
        (0..times).map(one).collect()
    }
}
