//! Five nodes, of which two are on another network: which path packets take between each two of them, and that pods are not
//! affected by it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::process::Stdio;

use knarr_nemesis::fleet::{Fleet, Host};
use libtest_mimic::Failed;

use super::{CONNECTION, body, fetch_from};
use crate::Outcome;
use crate::cluster::{has, same, text};

/// How many agents, the last ones, are on the other network.
pub const FAR: usize = 2;
const LOCAL: u16 = 30081;
const CLUSTER: u16 = 30082;
const MEGABYTES: usize = 64;
/// Bytes of the headers of ICMP over IPv4.
const HEADERS: usize = 28;
const LINK_MTU: usize = 1500;
const TUNNEL_MTU: usize = 1450;

/// A server on every node that responds with its node and the client's address, and one on the last node only.
const PEERS: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: { name: peer }
data:
  serve: |
    mkdir -p /tmp/www/cgi-bin
    for script in who big; do cp /scripts/$script /tmp/www/cgi-bin/; chmod +x /tmp/www/cgi-bin/$script; done
    trap 'exit 0' TERM
    httpd -f -p 8080 -h /tmp/www & wait
  who: |
    #!/bin/sh
    # As IPv6 writes it: [::ffff:10.244.0.2].
    client=${REMOTE_ADDR##*:}
    printf '\r\n%s %s\n' "$NODE" "${client%]}"
  big: |
    #!/bin/sh
    printf '\r\n'; exec dd if=/dev/zero bs=1M count=64 2>/dev/null
---
apiVersion: apps/v1
kind: DaemonSet
metadata: { name: peer }
spec:
  selector: { matchLabels: { app: peer } }
  template:
    metadata: { labels: { app: peer } }
    spec: { SPEC }
---
apiVersion: v1
kind: Pod
metadata: { name: far, labels: { app: far } }
spec: { nodeSelector: { kubernetes.io/hostname: node5 }, SPEC }
---
apiVersion: v1
kind: Service
metadata: { name: peer }
spec:
  selector: { app: peer }
  ports: [{ port: 80, targetPort: 8080 }]
---
apiVersion: v1
kind: Service
metadata: { name: far }
spec:
  type: NodePort
  externalTrafficPolicy: Local
  selector: { app: far }
  ports: [{ port: 80, targetPort: 8080, nodePort: 30081 }]
---
apiVersion: v1
kind: Service
metadata: { name: far-from-anywhere }
spec:
  type: NodePort
  selector: { app: far }
  ports: [{ port: 80, targetPort: 8080, nodePort: 30082 }]
"#;

const SPEC: &str = r#"
      terminationGracePeriodSeconds: 3,
      containers: [{
        name: peer,
        image: "localhost/knarr/busybox:1",
        env: [{ name: NODE, valueFrom: { fieldRef: { fieldPath: spec.nodeName } } }],
        command: ["sh", "/scripts/serve"],
        readinessProbe: { httpGet: { path: /cgi-bin/who, port: 8080 }, periodSeconds: 1 },
        volumeMounts: [{ name: scripts, mountPath: /scripts }],
      }],
      volumes: [{ name: scripts, configMap: { name: peer } }],
"#;

const POLICY: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: far }
spec:
  podSelector: { matchLabels: { app: far } }
  ingress: [{ from: [{ podSelector: { matchLabels: { may: "yes" } } }] }]
"#;

/// A pod of a node.
struct Peer<'a> {
    node: &'a Host,
    is_far: bool,
    pod: String,
    uid: String,
    ip: String,
}

impl Peer<'_> {
    /// Runs a command of the test host in the pod's network.
    fn output(&self, args: &[&str]) -> Result<(bool, String), Failed> {
        let pid = process_of(&self.uid, "httpd")?;
        let out = std::process::Command::new("nsenter")
            .args(["-t", &pid, "-n"])
            .args(args)
            .stdin(Stdio::null())
            .output()?;
        Ok((out.status.success(), text(&out)))
    }

    /// Whether a packet of this size that must not be fragmented is sent and answered.
    fn ping(&self, to: &str, packet: usize) -> Result<(bool, String), Failed> {
        let payload = (packet - HEADERS).to_string();
        self.output(&["ping", "-n", "-M", "do", "-c", "1", "-W", "2", "-s", &payload, to])
    }
}

/// A process of a pod, by its cgroup.
pub fn process_of(uid: &str, name: &str) -> Result<String, Failed> {
    // With underscores where systemd names the cgroup.
    let names = [uid.to_string(), uid.replace('-', "_")];
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if !pid.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        let groups = std::fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        let comm = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if comm.trim() == name && names.iter().any(|name| groups.contains(name)) {
            return Ok(pid);
        }
    }
    Err(format!("no {name} is in a cgroup of pod {uid}").into())
}

pub fn check(fleet: &Fleet) -> Outcome {
    fleet.apply(&PEERS.replace("SPEC", SPEC))?;
    fleet.run(&["rollout", "status", "daemonset/peer", "--timeout=120s"])?;
    fleet.run(&["wait", "pod/far", "--for=condition=Ready", "--timeout=60s"])?;
    let peers = peers(fleet)?;
    routes(fleet)?;
    every_pair(fleet, &peers)?;
    largest_packets(&peers)?;
    transfers(fleet, &peers)?;
    external_policies(fleet)?;
    policy(fleet, &peers)
}

fn peers(fleet: &Fleet) -> Result<Vec<Peer<'_>>, Failed> {
    let columns = "jsonpath={range .items[*]}{.spec.nodeName} {.metadata.name} {.metadata.uid} {.status.podIP}{\"\\n\"}{end}";
    let found = fleet.run(&["get", "pods", "-l", "app=peer", "-o", columns])?;
    let mut by_node = BTreeMap::new();
    for line in found.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [node, pod, uid, ip] = fields[..] else {
            return Err(format!("a pod of the DaemonSet has no address yet: {line:?}").into());
        };
        by_node.insert(node, (pod.to_string(), uid.to_string(), ip.to_string()));
    }
    let near = fleet.agents.len() - FAR;
    let mut peers = Vec::new();
    for (i, node) in fleet.agents.iter().enumerate() {
        let (pod, uid, ip) = by_node
            .remove(node.name.as_str())
            .ok_or_else(|| format!("no pod of the DaemonSet is on {}", node.name))?;
        peers.push(Peer {
            node,
            is_far: i >= near,
            pod,
            uid,
            ip,
        });
    }
    Ok(peers)
}

/// Plain routes between nodes of one network, the tunnel to nodes of the other, exactly one for each node.
fn routes(fleet: &Fleet) -> Outcome {
    let columns = "jsonpath={range .items[*]}{.metadata.name} {.spec.podCIDR}{\"\\n\"}{end}";
    let found = fleet.run(&["get", "nodes", "-o", columns])?;
    let ranges: BTreeMap<&str, &str> = found.lines().filter_map(|l| l.split_once(' ')).collect();
    let near = fleet.agents.len() - FAR;
    for (i, from) in fleet.agents.iter().enumerate() {
        let routes = from.output(&["ip", "-4", "route", "show"])?;
        for (j, to) in fleet.agents.iter().enumerate().filter(|(j, _)| *j != i) {
            let range = *ranges.get(to.name.as_str()).ok_or("a node without a pod CIDR")?;
            let route = routes.lines().find(|l| l.starts_with(&format!("{range} ")));
            let route =
                route.ok_or_else(|| format!("{} has no route to {}:\n{routes}", from.name, to.name))?;
            let expected = match (i >= near) == (j >= near) {
                true => format!("via {} dev eth0", to.address),
                false => "dev knarr-vx".into(),
            };
            has(route, &expected)
                .map_err(|e| format!("{} to {}: {}", from.name, to.name, e.message().unwrap_or("")))?;
        }
    }
    Ok(())
}

/// From the pod of each node by address, by Service and by DNS name; no client address is translated.
fn every_pair(fleet: &Fleet, peers: &[Peer<'_>]) -> Outcome {
    let service = fleet.run(&["get", "service", "peer", "-o", "jsonpath={.spec.clusterIP}"])?;
    for from in peers {
        let mut script = String::new();
        for to in peers {
            script.push_str(&format!(
                "wget -T 5 -qO- http://{}:8080/cgi-bin/who || echo failed\n",
                to.ip
            ));
        }
        for host in [service.as_str(), "peer", "peer.default.svc.cluster.local"] {
            script.push_str(&format!(
                "wget -T 5 -qO- http://{host}/cgi-bin/who || echo failed\n"
            ));
        }
        let output = fleet.run(&["exec", &from.pod, "--", "sh", "-c", &script])?;
        let lines: Vec<&str> = output.lines().collect();
        let by_address = peers.iter().map(|to| format!("{} {}", to.node.name, from.ip));
        let expected: Vec<String> = by_address.collect();
        same(
            &lines[..peers.len().min(lines.len())].join(", "),
            &expected.join(", "),
        )
        .map_err(|e| {
            format!(
                "from the pod on {}: {}",
                from.node.name,
                e.message().unwrap_or("")
            )
        })?;
        let by_service = lines.get(peers.len()..).unwrap_or_default();
        let has_own_address = |line: &&str| {
            let (node, source) = line.split_once(' ').unwrap_or_default();
            // A connection that comes back to the pod it is from has the node's address.
            source == from.ip || node == from.node.name
        };
        if by_service.len() != 3
            || !by_service
                .iter()
                .all(|l| l.starts_with("node") && has_own_address(l))
        {
            return Err(format!("from {} through the Service: {by_service:?}", from.node.name).into());
        }
    }
    // Nodes reach pods of every network, too.
    for node in &fleet.agents {
        for to in peers {
            let url = format!("http://{}:8080/cgi-bin/who", to.ip);
            has(&node.output(&["busybox", "wget", "-qO-", &url])?, &to.node.name)?;
        }
    }
    Ok(())
}

/// A packet of the link's MTU is not fragmented; one that exceeds the tunnel's MTU is reported to its sender.
fn largest_packets(peers: &[Peer<'_>]) -> Outcome {
    for from in peers {
        for to in peers.iter().filter(|to| to.node.name != from.node.name) {
            let what = format!("{} to {}", from.node.name, to.node.name);
            let same_network = from.is_far == to.is_far;
            let mtu = if same_network { LINK_MTU } else { TUNNEL_MTU };
            // Before a path MTU is cached.
            if !same_network && from.node.name == "node1" {
                let (_, output) = from.ping(&to.ip, LINK_MTU)?;
                if !output.contains(&format!("mtu = {TUNNEL_MTU}"))
                    && !output.contains(&format!("mtu={TUNNEL_MTU}"))
                {
                    return Err(format!("{what}: a packet too large for the tunnel: {output}").into());
                }
            }
            let (arrives, output) = from.ping(&to.ip, mtu)?;
            if !arrives {
                return Err(format!("{what}: a packet of {mtu} bytes: {output}").into());
            }
        }
    }
    Ok(())
}

/// Large transfers, through the tunnel in both directions and without it.
fn transfers(fleet: &Fleet, peers: &[Peer<'_>]) -> Outcome {
    let [first, .., last] = peers else {
        return Err("too few nodes".into());
    };
    for (from, to) in [(first, last), (last, first), (first, &peers[1])] {
        let script = format!("wget -T 20 -qO- http://{}:8080/cgi-bin/big | wc -c", to.ip);
        let bytes = fleet.run(&["exec", &from.pod, "--", "sh", "-c", &script])?;
        same(bytes.trim(), &(MEGABYTES << 20).to_string()).map_err(|e| {
            format!(
                "{} from {}: {}",
                from.node.name,
                to.node.name,
                e.message().unwrap_or("")
            )
        })?;
    }
    Ok(())
}

/// externalTrafficPolicy Local keeps the client's address and works only on nodes with an endpoint; Cluster works on every
/// node, also through the tunnel.
fn external_policies(fleet: &Fleet) -> Outcome {
    let who = |at: Ipv4Addr, port| body(at, port, "/cgi-bin/who");
    let [first, .., last] = fleet.agents.as_slice() else {
        return Err("too few nodes".into());
    };
    fleet.eventually("the node port of the node with the endpoint", || {
        who(last.address, LOCAL).is_ok()
    })?;
    same(
        &who(last.address, LOCAL)?,
        &format!("node5 {}", fleet.test_address()),
    )?;
    if let Ok(output) = who(first.address, LOCAL) {
        return Err(format!("a node without a local endpoint answered {output:?}").into());
    }
    for node in &fleet.agents {
        let output = who(node.address, CLUSTER).map_err(|e| {
            format!(
                "{}: node port of a pod on node5, within {CONNECTION:?}: {e}",
                node.name
            )
        })?;
        has(&output, "node5 ")?;
        if output.ends_with(&fleet.test_address().to_string()) {
            return Err(format!("{} kept the client's address: {output}", node.name).into());
        }
    }
    // A pod's connection to itself through the Service; in its hosts file only the name `far` is itself.
    has(
        &fleet.run(&[
            "exec",
            "far",
            "--",
            "wget",
            "-T",
            "5",
            "-qO-",
            "http://far.default/cgi-bin/who",
        ])?,
        "node5",
    )
}

/// A policy selects pods on both networks.
fn policy(fleet: &Fleet, peers: &[Peer<'_>]) -> Outcome {
    for may in [&peers[0], &peers[peers.len() - 2]] {
        fleet.run(&["label", "pod", &may.pod, "may=yes"])?;
    }
    fleet.apply(POLICY)?;
    let is_denied = |from: &Peer<'_>| fetch_from(fleet, &from.pod, "http://far.default/cgi-bin/who").is_err();
    fleet.eventually("the policy", || is_denied(&peers[1]))?;
    for from in peers {
        let got = fetch_from(fleet, &from.pod, "http://far.default/cgi-bin/who");
        let may = from.node.name == "node1" || from.node.name == "node4";
        match (may, got) {
            (true, Ok(output)) => same(output.trim(), &format!("node5 {}", from.ip))?,
            (false, Err(_)) => {}
            (_, got) => return Err(format!("the pod on {}: {got:?}", from.node.name).into()),
        }
    }
    fleet.run(&["delete", "networkpolicy", "far"]).map(drop)
}
