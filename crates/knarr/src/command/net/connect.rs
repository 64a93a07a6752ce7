//! Whether a connection reaches its destination (SPEC N2, N6): through the Service, if the destination is one, then past the
//! NetworkPolicies of both pods. Every decision is made by the code of the proxy and of the policies, on a copy of the objects.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use knarr_api::k8s_openapi;
use knarr_network::nft;
use knarr_network::policy::{Direction, Endpoint, Explanation, Policies, Side, Verdict};
use knarr_network::proxy::packet::{self, Hop, Outcome, Packet, Tables};
use knarr_network::proxy::{Family, Proxy};
use serde::Serialize;

use super::arguments::{Destination, Source};
use super::connect_peers::{Client, client, targets};
use super::objects::{NetworkObjects, addresses_of, name_of, node_of, pod_name};
use super::service::with_port;
use super::{nodes, rules};
use crate::command::Failure;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectReport {
    pub from: String,
    pub to: String,
    pub verdict: Reachability,
    /// One for each address that the client may choose.
    pub paths: Vec<PathReport>,
    pub notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Reachability {
    Allowed,
    /// Some endpoints are reached, and others are not.
    PartlyDenied,
    Denied,
    /// The destination has no endpoint.
    NoEndpoint,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PathReport {
    pub source: IpAddr,
    pub destination: String,
    /// The node whose proxy decided.
    pub proxied_on: Option<String>,
    pub outcome: &'static str,
    /// Each as likely as the others.
    pub ends: Vec<ConnectEndpoint>,
}

/// One endpoint that the connection may reach.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectEndpoint {
    pub address: String,
    pub pod: Option<String>,
    pub node: Option<String>,
    /// The client's address, as the endpoint sees it.
    pub seen_as: IpAddr,
    pub allowed: bool,
    /// Absent where no pod's policies apply.
    pub egress: Option<PolicyResult>,
    pub ingress: Option<PolicyResult>,
    /// Why packets do not reach the endpoint, independent of policies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyResult {
    pub pod: String,
    pub allowed: bool,
    /// Why policies do not apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exempt: Option<&'static str>,
    /// The policies that isolate the pod in this direction.
    pub isolated_by: Vec<String>,
    /// Up to the first that allows it.
    pub rules: Vec<RuleResult>,
    /// What a rule would have to match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleResult {
    pub policy: String,
    pub index: usize,
    pub rule: String,
    pub says: String,
}

/// What a node's proxy has in its tables.
struct NodeTables {
    proxy: Proxy,
    addresses: Vec<IpAddr>,
    v4: nft::Table,
    v6: nft::Table,
}

impl NodeTables {
    fn of(objects: &NetworkObjects, node: &core::Node) -> Self {
        let proxy = objects.proxy(node);
        NodeTables {
            addresses: addresses_of(node),
            v4: packet::table(&proxy, Family::V4),
            v6: packet::table(&proxy, Family::V6),
            proxy,
        }
    }

    fn route(&self, packet: &Packet) -> Outcome {
        let tables = Tables {
            config: self.proxy.config(),
            local_addresses: &self.addresses,
            elements: match Family::of(packet.destination) {
                Family::V4 => &self.v4,
                Family::V6 => &self.v6,
            },
        };
        tables.route(packet)
    }
}

struct ConnectEvaluator<'a> {
    objects: &'a NetworkObjects,
    policies: Policies,
    client: Client<'a>,
    /// By node, computed when they are first needed.
    tables: RefCell<BTreeMap<String, NodeTables>>,
    /// Why the client's node and another one do not reach each other.
    faults: RefCell<BTreeMap<String, Vec<String>>>,
}

pub fn report(
    objects: &NetworkObjects,
    source: &Source,
    destination: &Destination,
) -> Result<ConnectReport, Failure> {
    let mut notes = Vec::new();
    let client = client(objects, source, destination.protocol, &mut notes)?;
    let targets = targets(objects, destination, &mut notes)?;
    let evaluator = ConnectEvaluator {
        policies: objects.policies(),
        objects,
        client,
        tables: RefCell::default(),
        faults: RefCell::default(),
    };
    if !objects.settings.enforces_policies {
        notes.push(
            "knarr does not enforce NetworkPolicies here (--disable policy, or another pod network)".into(),
        );
    }
    for policy in evaluator.policies.reduced_policies() {
        notes.push(format!(
            "namespace {} has more NetworkPolicies than the kernel's tables can hold: {policy} allows nothing until it fits",
            policy.namespace
        ));
    }
    let mut paths = Vec::new();
    for (address, port) in &targets.addresses {
        let is_same_family = |source: &&IpAddr| source.is_ipv4() == address.is_ipv4();
        if let Some(source) = evaluator.client.addresses.iter().find(is_same_family) {
            paths.push(evaluator.path(*source, *address, *port)?);
        }
    }
    if paths.is_empty() && !targets.addresses.is_empty() && !evaluator.client.addresses.is_empty() {
        notes.push("source and destination have no address of the same IP family".into());
    }
    Ok(ConnectReport {
        from: evaluator.client.description,
        to: targets.description,
        verdict: verdict(&paths),
        paths,
        notes,
    })
}

fn verdict(paths: &[PathReport]) -> Reachability {
    let ends = || paths.iter().flat_map(|path| &path.ends);
    let arrives = |path: &PathReport| !path.ends.is_empty();
    match (ends().any(|end| end.allowed), ends().any(|end| !end.allowed)) {
        (false, false) => Reachability::NoEndpoint,
        (false, true) => Reachability::Denied,
        (true, false) if paths.iter().all(arrives) => Reachability::Allowed,
        (true, _) => Reachability::PartlyDenied,
    }
}

fn primary(node: &core::Node, like: IpAddr) -> Option<IpAddr> {
    addresses_of(node)
        .into_iter()
        .find(|ip| ip.is_ipv4() == like.is_ipv4())
}

impl ConnectEvaluator<'_> {
    /// What the proxy of a node does with a connection.
    fn route(&self, node: &core::Node, packet: &Packet) -> Outcome {
        let mut all = self.tables.borrow_mut();
        let tables = all
            .entry(name_of(node).to_string())
            .or_insert_with(|| NodeTables::of(self.objects, node));
        tables.route(packet)
    }

    /// Why no packets pass between the client's node and this one.
    fn faults(&self, node: Option<&str>) -> Vec<String> {
        let own = self.client.node.map(name_of);
        let (Some(own), Some(node)) = (own, node) else {
            return Vec::new();
        };
        if own == node {
            return Vec::new();
        }
        let mut all = self.faults.borrow_mut();
        all.entry(node.to_string())
            .or_insert_with(|| nodes::between(self.objects, own, node))
            .clone()
    }

    fn path(&self, source: IpAddr, address: IpAddr, port: u16) -> Result<PathReport, Failure> {
        let objects = self.objects;
        let protocol = self.client.protocol;
        let owner = objects.node_at(address);
        let of_pod = objects
            .pod_at(address)
            .and_then(node_of)
            .and_then(|name| objects.node(name));
        // A connection from outside enters at the node that has the address, else at any.
        let entry = self
            .client
            .node
            .or(owner)
            .or(of_pod)
            .or_else(|| objects.nodes().next());
        let Some(entry) = entry else {
            return Err(Failure::new("there are no nodes"));
        };
        let mut packet = Packet {
            source,
            destination: address,
            protocol,
            port,
            learned: None,
        };
        let mut at = entry;
        let mut outcome = self.route(entry, &packet);
        // A node port of another node is served there. Packets of a pod to another node are masqueraded with its own node's address.
        if outcome == Outcome::Unchanged
            && let Some(other) = owner.filter(|owner| name_of(owner) != name_of(entry))
        {
            if self.client.pod.is_some()
                && let Some(masqueraded) = primary(entry, source)
            {
                packet.source = masqueraded;
            }
            at = other;
            outcome = self.route(other, &packet);
        }
        let direct = Hop {
            address,
            port,
            masquerade: false,
        };
        let (outcome, hops, proxied_on) = match outcome {
            Outcome::Sent(hops) => ("Sent", hops, Some(at)),
            Outcome::Unchanged => ("Unchanged", vec![direct], None),
            Outcome::Rejected => ("Rejected", Vec::new(), Some(at)),
            Outcome::Dropped => ("Dropped", Vec::new(), Some(at)),
            Outcome::Lost => ("Lost", Vec::new(), Some(at)),
        };
        let is_proxied_here = proxied_on.is_some_and(|node| name_of(node) == name_of(entry));
        let ends = hops.iter().map(|hop| {
            // Egress policies of the client see the destination of the packet as it leaves the client's node.
            let leaves_for = match is_proxied_here {
                true => (hop.address, hop.port),
                false => (address, port),
            };
            self.end(hop, packet.source, leaves_for, proxied_on)
        });
        Ok(PathReport {
            source,
            destination: with_port(address, port),
            proxied_on: proxied_on.map(|node| name_of(node).to_string()),
            outcome,
            ends: ends.collect(),
        })
    }

    fn end(
        &self,
        hop: &Hop,
        sent_as: IpAddr,
        leaves_for: (IpAddr, u16),
        proxied_on: Option<&core::Node>,
    ) -> ConnectEndpoint {
        let objects = self.objects;
        let pod = objects.pod_at(hop.address);
        let of_pod = pod.and_then(node_of);
        let node = of_pod.or_else(|| objects.node_at(hop.address).map(name_of));
        // Masquerading follows the policies of its own node, so that only policies on other nodes see its address.
        let masquerading = proxied_on.filter(|at| hop.masquerade && Some(name_of(at)) != of_pod);
        let policies_see = masquerading
            .and_then(|at| primary(at, sent_as))
            .unwrap_or(sent_as);
        let seen_as = match proxied_on.filter(|_| hop.masquerade) {
            Some(at) => primary(at, sent_as).unwrap_or(sent_as),
            None => sent_as,
        };
        let is_self =
            pod.is_some() && pod.map(pod_name) == self.client.pod.as_ref().map(|(pod, _)| pod_name(pod));
        let egress = match is_self {
            true => None,
            false => self.egress(leaves_for),
        };
        let ingress = match pod {
            Some(pod) if !is_self => self.ingress(pod, policies_see, hop),
            _ => None,
        };
        let faults = self.faults(node);
        let sides = [&egress, &ingress];
        ConnectEndpoint {
            address: with_port(hop.address, hop.port),
            pod: pod.map(pod_name),
            node: node.map(ToString::to_string),
            seen_as,
            allowed: faults.is_empty() && sides.into_iter().flatten().all(|side| side.allowed),
            egress,
            ingress,
            faults,
        }
    }

    fn egress(&self, (address, port): (IpAddr, u16)) -> Option<PolicyResult> {
        let (_, key) = self.client.pod.as_ref()?;
        let is_dns = self.objects.settings.dns_addresses.contains(&address);
        let is_own_node = self
            .client
            .node
            .is_some_and(|node| addresses_of(node).contains(&address));
        if is_own_node && !is_dns {
            return Some(exempt(
                key.to_string(),
                "policies do not apply to connections of a pod to its own node",
            ));
        }
        let explained = self.explain(&Endpoint::Pod(key.clone()), &Endpoint::Address(address), port);
        explained
            .egress
            .map(|side| self.side(side, &self.peer(address), port))
    }

    fn ingress(&self, pod: &core::Pod, source: IpAddr, hop: &Hop) -> Option<PolicyResult> {
        let is_from_node = self.client.pod.is_none() && self.client.node.is_some();
        if is_from_node && self.client.node.map(name_of) == node_of(pod) {
            return Some(exempt(
                pod_name(pod),
                "policies do not apply to connections of a node to its own pods",
            ));
        }
        let (from, to) = (Endpoint::Address(source), Endpoint::Address(hop.address));
        let explained = self.explain(&from, &to, hop.port);
        explained
            .ingress
            .map(|side| self.side(side, &self.peer(source), hop.port))
    }

    fn explain(&self, from: &Endpoint, to: &Endpoint, port: u16) -> Explanation {
        self.policies.explain(from, to, self.client.protocol, port)
    }

    /// The peer, with what policies select it by.
    fn peer(&self, address: IpAddr) -> String {
        let Some(pod) = self.objects.pod_at(address) else {
            if self.objects.settings.dns_addresses.contains(&address) {
                return format!("{address} (the cluster DNS, as pods with k8s-app=kube-dns in kube-system)");
            }
            return match self.objects.node_at(address) {
                Some(node) => format!("{address} of node {} (by ipBlock)", name_of(node)),
                None => format!("{address} (by ipBlock)"),
            };
        };
        let labels = pod.metadata.labels.iter().flatten();
        let labels: Vec<String> = labels.map(|(key, value)| format!("{key}={value}")).collect();
        let labels = match labels.as_slice() {
            [] => "no labels".to_string(),
            labels => format!("labels {}", labels.join(",")),
        };
        format!("pod {} ({labels})", pod_name(pod))
    }

    fn side(&self, side: Side, peer: &str, port: u16) -> PolicyResult {
        let direction = side.direction;
        let allowed = side.is_allowed();
        let rules = side.rules.iter().map(|(policy, index, verdict)| {
            let object = self
                .objects
                .find::<NetworkPolicy>(&policy.namespace, &policy.name);
            RuleResult {
                policy: policy.to_string(),
                index: *index,
                rule: object
                    .and_then(|policy| rules::describe(policy, direction, *index))
                    .unwrap_or_default(),
                says: verdict.to_string(),
            }
        });
        let rules: Vec<RuleResult> = rules.collect();
        let preposition = match direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        };
        let is_by_port = side
            .rules
            .iter()
            .any(|(.., verdict)| *verdict == Verdict::NoPortMatches);
        let protocol = self.client.protocol.name();
        let needed = match is_by_port {
            true => format!("a rule {preposition} {peer} would have to allow port {port}/{protocol}"),
            false => format!("a rule would have to allow {preposition} {peer}, port {port}/{protocol}"),
        };
        PolicyResult {
            pod: side.pod.to_string(),
            allowed,
            exempt: None,
            isolated_by: side.isolated_by.iter().map(ToString::to_string).collect(),
            rules,
            needed: (!allowed).then_some(needed),
        }
    }
}

fn exempt(pod: String, why: &'static str) -> PolicyResult {
    PolicyResult {
        pod,
        allowed: true,
        exempt: Some(why),
        isolated_by: Vec::new(),
        rules: Vec::new(),
        needed: None,
    }
}
