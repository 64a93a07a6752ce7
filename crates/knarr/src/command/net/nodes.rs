//! How the pods of each node are reached from the others (SPEC N7), and the revision that each node's agent has (SPEC B7).

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::kinds::node::is_ready;
use knarr_api::propagation::{CONFIG_MAP, Propagation, REVISION};
use knarr_client::NETWORK_NAMESPACE;
use knarr_network::routes::encryption::Published;
use knarr_network::routes::{self, Hop, Routes, Subnet};
use serde::Serialize;

use super::objects::{NetworkObjects, name_of};
use crate::command::columns::table;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodesReport {
    /// The node from which `path` leads.
    pub seen_from: String,
    /// The newest revision of EndpointSlices that an agent has reported.
    pub newest_revision: Option<u64>,
    /// The revision that all reporting nodes have, by the control plane's summary.
    pub common_revision: Option<u64>,
    pub nodes: Vec<NodeReport>,
    /// For each node, how it reaches the pods of each other node.
    pub matrix: BTreeMap<String, BTreeMap<String, &'static str>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    pub name: String,
    pub addresses: Vec<IpAddr>,
    pub pod_cidrs: Vec<IpNet>,
    pub path: &'static str,
    pub encrypted: bool,
    pub ready: bool,
    /// Absent: the node does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_unavailable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reported_revision: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reported_seconds_ago: Option<i64>,
    /// Why its pods cannot be reached.
    pub faults: Vec<String>,
}

impl NodesReport {
    pub fn is_healthy(&self) -> bool {
        self.nodes.iter().all(|node| node.faults.is_empty())
    }
}

/// `seen_from` is the node whose routes are shown; `subnets` are those of its host, where that is this host.
pub fn report(
    objects: &NetworkObjects,
    seen_from: &str,
    subnets: Option<&[Subnet]>,
    now: Timestamp,
) -> NodesReport {
    let (nodes, keys) = (objects.routes(), keys(objects));
    let seen = routes_of(seen_from, &nodes, &keys, subnets);
    // For that node itself, the routes of another node.
    let other = nodes.keys().find(|name| *name != seen_from);
    let of_own = other.map(|other| routes_of(other, &nodes, &keys, None));
    let revisions: BTreeMap<&str, u64> = objects
        .nodes()
        .filter_map(|node| Some((name_of(node), revision(lease(objects, name_of(node))?)?)))
        .collect();
    let sum = objects.find::<ConfigMap>(NETWORK_NAMESPACE, CONFIG_MAP);
    let mut reports: Vec<NodeReport> = objects
        .nodes()
        .map(|node| {
            let name = name_of(node);
            let is_own = name == seen_from;
            let routes = match is_own {
                true => of_own.as_ref(),
                false => Some(&seen),
            };
            let path = match is_own {
                true => "this node",
                false => path(&seen, name, &nodes, subnets.is_some()),
            };
            node_report(objects, node, routes, path, now)
        })
        .collect();
    reports.sort_by(|a, b| a.name.cmp(&b.name));
    NodesReport {
        seen_from: seen_from.into(),
        newest_revision: revisions.values().max().copied(),
        common_revision: sum.and_then(Propagation::of).map(|sum| sum.revision),
        nodes: reports,
        matrix: BTreeMap::new(),
    }
}

/// How each node reaches each other one, as far as it follows from the objects. Cubic in the number of nodes.
pub fn matrix(
    objects: &NetworkObjects,
    seen_from: &str,
    subnets: Option<&[Subnet]>,
) -> BTreeMap<String, BTreeMap<String, &'static str>> {
    let (nodes, keys) = (objects.routes(), keys(objects));
    let row = |own: &String| {
        let subnets = subnets.filter(|_| own == seen_from);
        let routes = routes_of(own, &nodes, &keys, subnets);
        let others = nodes.keys().filter(|name| *name != own);
        let paths = others.map(|name| (name.clone(), path(&routes, name, &nodes, subnets.is_some())));
        (own.clone(), paths.collect())
    };
    nodes.keys().map(row).collect()
}

/// The routes that a node's agent sets, as far as they follow from the objects and these subnets of its host.
fn routes_of(
    own: &str,
    nodes: &BTreeMap<String, routes::Node>,
    keys: &BTreeMap<String, Published>,
    subnets: Option<&[Subnet]>,
) -> Routes {
    // A node encrypts if it has published a key.
    let keys = Some(keys).filter(|keys| keys.contains_key(own));
    routes::routes(own, nodes, subnets.unwrap_or(&[]), keys)
}

/// How packets are sent to a node's pods. Whether by a route or by VXLAN depends on the subnets of the sending host.
fn path(
    routes: &Routes,
    name: &str,
    nodes: &BTreeMap<String, routes::Node>,
    knows_subnets: bool,
) -> &'static str {
    let cidrs = nodes.get(name).map(|node| node.pod_cidrs.as_slice());
    let mut hops = cidrs
        .into_iter()
        .flatten()
        .filter_map(|cidr| routes.routes.get(cidr));
    match hops.next() {
        None | Some(Hop::Unreachable) => "not routed",
        Some(Hop::Encrypted) => "WireGuard",
        Some(_) if !knows_subnets => "route or VXLAN",
        Some(Hop::Direct { .. }) => "route",
        Some(Hop::Tunnel { .. }) => "VXLAN",
    }
}

/// The WireGuard keys that nodes have published.
fn keys(objects: &NetworkObjects) -> BTreeMap<String, Published> {
    objects
        .nodes()
        .filter_map(|node| {
            let name = name_of(node);
            let annotations = lease(objects, name)?.metadata.annotations.as_ref()?;
            Some((name.to_string(), Published::of(annotations)?))
        })
        .collect()
}

fn lease<'a>(objects: &'a NetworkObjects, node: &str) -> Option<&'a Lease> {
    objects.find::<Lease>(NETWORK_NAMESPACE, node)
}

fn revision(lease: &Lease) -> Option<u64> {
    lease.metadata.annotations.as_ref()?.get(REVISION)?.parse().ok()
}

fn condition<'a>(node: &'a Node, type_: &str) -> Option<&'a k8s_openapi::api::core::v1::NodeCondition> {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.into_iter().find(|c| c.type_ == type_)
}

fn node_report(
    objects: &NetworkObjects,
    node: &Node,
    routes: Option<&Routes>,
    path: &'static str,
    now: Timestamp,
) -> NodeReport {
    let name = name_of(node);
    let reduced = knarr_node_network::routes::reduced(node);
    let lease = lease(objects, name);
    let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref());
    let annotations = lease.and_then(|lease| lease.metadata.annotations.as_ref());
    let mut faults = faults(node, &reduced);
    for conflict in routes.into_iter().flat_map(|routes| &routes.conflicts) {
        if conflict.node == name {
            faults.push(format!("{} is not routed: {}", conflict.cidr, conflict.message));
        }
    }
    NodeReport {
        name: name.to_string(),
        path,
        encrypted: annotations.and_then(Published::of).is_some(),
        ready: is_ready(node),
        network_unavailable: condition(node, "NetworkUnavailable").map(|c| c.status != "False"),
        reported_revision: lease.and_then(revision),
        reported_seconds_ago: renewed.map(|at| now.as_second().saturating_sub(at.0.as_second()).max(0)),
        addresses: reduced.addresses,
        pod_cidrs: reduced.pod_cidrs,
        faults,
    }
}

/// What the Node object has against its pods being reachable.
fn faults(node: &Node, reduced: &routes::Node) -> Vec<String> {
    let mut faults = Vec::new();
    match condition(node, "Ready") {
        Some(ready) if ready.status == "True" => {}
        Some(ready) => {
            let detail = ready
                .message
                .as_deref()
                .or(ready.reason.as_deref())
                .unwrap_or_default();
            let state = match ready.status.as_str() {
                "Unknown" => "its kubelet reports no status",
                _ => "it is not Ready",
            };
            faults.push(format!("{state}: {detail}").trim_end_matches(": ").into());
        }
        None => faults.push("it has never been Ready".into()),
    }
    if let Some(network) = condition(node, "NetworkUnavailable").filter(|c| c.status != "False") {
        let (reason, message) = (network.reason.as_deref(), network.message.as_deref());
        let detail = message.or(reason).unwrap_or("its network is not configured");
        faults.push(format!("NetworkUnavailable is {}: {detail}", network.status));
    }
    if reduced.pod_cidrs.is_empty() {
        faults.push("it has no podCIDR".into());
    }
    if reduced.addresses.is_empty() {
        faults.push("it has no InternalIP".into());
    }
    faults
}

/// Why connections between pods of two nodes fail, in either direction.
pub fn between(objects: &NetworkObjects, a: &str, b: &str) -> Vec<String> {
    let (nodes, keys) = (objects.routes(), keys(objects));
    let mut faults = Vec::new();
    for (own, other) in [(a, b), (b, a)] {
        let routes = routes_of(own, &nodes, &keys, None);
        let conflicts = routes.conflicts.iter().filter(|conflict| conflict.node == other);
        faults.extend(conflicts.map(|conflict| {
            let (cidr, message) = (conflict.cidr, &conflict.message);
            format!("{own} does not route {cidr} of {other}: {message}")
        }));
    }
    for node in [a, b].iter().filter_map(|name| objects.node(name)) {
        let own = self::faults(node, &knarr_node_network::routes::reduced(node));
        faults.extend(
            own.into_iter()
                .map(|fault| format!("node {}: {fault}", name_of(node))),
        );
    }
    faults
}

pub fn to_text(report: &NodesReport) -> String {
    let mut rows = vec![
        [
            "NODE",
            "ADDRESSES",
            "POD CIDRS",
            "PODS REACHED BY",
            "STATE",
            "ENDPOINTS",
            "REPORTED",
        ]
        .map(String::from)
        .to_vec(),
    ];
    let list = |texts: Vec<String>| match texts.as_slice() {
        [] => "-".to_string(),
        texts => texts.join(","),
    };
    for node in &report.nodes {
        let newest = report.newest_revision;
        let revision = match node.reported_revision {
            None => "-".to_string(),
            Some(revision) if Some(revision) == newest => format!("{revision} (newest)"),
            Some(revision) => revision.to_string(),
        };
        let age = node.reported_seconds_ago;
        rows.push(vec![
            node.name.clone(),
            list(node.addresses.iter().map(ToString::to_string).collect()),
            list(node.pod_cidrs.iter().map(ToString::to_string).collect()),
            node.path.to_string(),
            if node.faults.is_empty() {
                "ready"
            } else {
                "unreachable"
            }
            .to_string(),
            revision,
            age.map_or_else(|| "-".into(), |seconds| format!("{} ago", ago(seconds))),
        ]);
    }
    let mut text = format!("As seen from node {}\n\n{}", report.seen_from, table(&rows));
    if let Some(common) = report.common_revision {
        text += &format!(
            "\nThe kernels of all reporting nodes have the EndpointSlices up to revision {common}.\n"
        );
    }
    let unreachable: Vec<&NodeReport> = report.nodes.iter().filter(|n| !n.faults.is_empty()).collect();
    if !unreachable.is_empty() {
        text += "\nUnreachable:\n";
        for node in unreachable {
            for fault in &node.faults {
                text += &format!("- {}: {fault}\n", node.name);
            }
        }
    }
    text
}

/// An age, as kubectl shows it.
fn ago(seconds: i64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}
