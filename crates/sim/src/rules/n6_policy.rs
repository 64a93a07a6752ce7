//! N6: from the start of its containers on, a pod is isolated by every NetworkPolicy that has selected it since
//! before its creation; and at rest every kernel allows what the objects in the API allow, computed here
//! independently.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;
use knarr_network::policy::{Direction, Ruleset};

use crate::finding::Finding;
use crate::policy_verdict::{PORTS, passes};
use crate::world::{Observation, World};

/// No pod and no node has it, and no policy of the users allows anything from it.
pub(crate) const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 7));

type Labels = BTreeMap<String, String>;

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let (node, sandbox) = match seen {
        Observation::Started(process) => (process.node.as_str(), Some(process.sandbox.as_str())),
        Observation::Policed { node } => (*node, None),
        _ => return Ok(()),
    };
    let Some(table) = world.policy_tables.get(node) else {
        return Ok(());
    };
    let of_node = |p: &&crate::world::Process| p.node == node && sandbox.is_none_or(|s| p.sandbox == s);
    for process in world.processes.values().filter(of_node) {
        let Some(life) = world.pods.get(&process.uid) else {
            continue;
        };
        let still = life
            .isolated_by
            .iter()
            .find(|uid| world.policies.contains_key(*uid));
        let lease = world.leases.get(&(node.to_string(), process.sandbox.clone()));
        let (Some(policy), Some(lease)) = (still, lease) else {
            continue;
        };
        for address in &lease.addresses {
            if passes(table, Direction::Ingress, *address, STRANGER, PORTS[0]) != Ok(false) {
                let name = world.policies.get(policy).and_then(|p| p.metadata.name.clone());
                return Err(Finding(format!(
                    "{} ({address}) runs on {node} open to all, though {} selects it since before it was created",
                    process.name,
                    name.unwrap_or_default()
                )));
            }
        }
    }
    Ok(())
}

fn selects(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    // The users create no others than these.
    let expected = selector.into_iter().flat_map(|s| s.match_labels.iter().flatten());
    expected
        .into_iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

fn labels(pod: &Pod) -> Labels {
    pod.metadata.labels.clone().unwrap_or_default()
}

/// Whether it isolates the pod in this direction.
fn isolates(policy: &NetworkPolicy, pod: &Pod, direction: Direction) -> bool {
    let Some(spec) = &policy.spec else { return false };
    let mut types = spec.policy_types.iter().flatten();
    policy.metadata.namespace == pod.metadata.namespace
        && selects(spec.pod_selector.as_ref(), &labels(pod))
        && types.any(|of| of.eq_ignore_ascii_case(&direction.to_string()))
}

/// The policies that isolate it from that address.
pub(crate) fn isolating(world: &World, pod: &Pod) -> std::collections::BTreeSet<String> {
    let all = world.policies.iter();
    let isolating = all.filter(|(_, policy)| isolates(policy, pod, Direction::Ingress));
    isolating.map(|(uid, _)| uid.clone()).collect()
}

fn peer_matches(world: &World, own: &Pod, peer: &NetworkPolicyPeer, other: Option<&Pod>) -> bool {
    let Some(other) = other else { return false };
    let namespace = other.metadata.namespace.clone().unwrap_or_default();
    let is_in_namespace = match &peer.namespace_selector {
        Some(selector) => {
            let of = world.namespaces.get(&namespace);
            of.is_some_and(|labels| selects(Some(selector), labels))
        }
        None => other.metadata.namespace == own.metadata.namespace,
    };
    is_in_namespace && selects(peer.pod_selector.as_ref(), &labels(other))
}

fn allows(
    world: &World,
    policy: &NetworkPolicy,
    own: &Pod,
    other: Option<&Pod>,
    port: u16,
    direction: Direction,
) -> bool {
    type Rules = Vec<(Vec<NetworkPolicyPeer>, Vec<NetworkPolicyPort>)>;
    let Some(spec) = &policy.spec else { return false };
    let rules: Rules = match direction {
        Direction::Ingress => {
            let rules = spec.ingress.iter().flatten().cloned();
            rules
                .map(|r| (r.from.unwrap_or_default(), r.ports.unwrap_or_default()))
                .collect()
        }
        Direction::Egress => {
            let rules = spec.egress.iter().flatten().cloned();
            rules
                .map(|r| (r.to.unwrap_or_default(), r.ports.unwrap_or_default()))
                .collect()
        }
    };
    rules.iter().any(|(peers, ports)| {
        let mut peers_match = peers.iter().map(|peer| peer_matches(world, own, peer, other));
        let mut ports_match = ports
            .iter()
            .map(|of| of.port == Some(IntOrString::Int(i32::from(port))));
        (peers.is_empty() || peers_match.any(|m| m)) && (ports.is_empty() || ports_match.any(|m| m))
    })
}

fn may_pass(world: &World, own: &Pod, other: Option<&Pod>, port: u16, direction: Direction) -> bool {
    let isolating: Vec<_> = world
        .policies
        .values()
        .filter(|policy| isolates(policy, own, direction))
        .collect();
    isolating.is_empty()
        || isolating
            .iter()
            .any(|policy| allows(world, policy, own, other, port, direction))
}

/// Each pod with its addresses in the API, and the table of its node's kernel.
fn ends(world: &World) -> Vec<(&Pod, IpAddr, &Ruleset)> {
    let lives = world.pods.values().filter(|life| !life.removed());
    let with_address = lives.filter(|life| !is_terminal(&life.pod));
    let ends = with_address.filter_map(|life| {
        let ip = life.pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
        Some((&*life.pod, ip, world.policy_tables.get(life.node())?))
    });
    ends.collect()
}

/// At rest: whether every kernel matches the objects in the API.
pub(crate) fn at_rest(world: &World) -> Result<(), Finding> {
    let ends = ends(world);
    let mut peers: Vec<(Option<&Pod>, IpAddr)> = ends
        .iter()
        .map(|(pod, address, _)| (Some(*pod), *address))
        .collect();
    peers.push((None, STRANGER));
    for (own, address, table) in &ends {
        for (other, peer) in peers.iter().filter(|(_, peer)| peer != address) {
            for port in PORTS {
                for direction in [Direction::Ingress, Direction::Egress] {
                    let expected = may_pass(world, own, *other, port, direction);
                    let found = passes(table, direction, *address, *peer, port);
                    if found != Ok(expected) {
                        let found = found.map_err(|invalid| invalid.to_string());
                        let name = own.metadata.name.as_deref().unwrap_or_default();
                        return Err(Finding(format!(
                            "{direction} of {name} ({address}) with {peer} port {port}: the API's objects say {expected}, \
                             the kernel {found:?}"
                        )));
                    }
                }
            }
        }
    }
    Ok(())
}
