//! Monitors node health: a node whose Lease and status were not renewed for 40 s becomes Unknown; and a node that is not ready gets
//! the NoExecute taint, at the rate that its zone's state allows ([`super::zones`]).
//!
//! Times on a lease are by the node's clock; what counts is when *this controller* last observed a change. After its restart every node
//! has its whole grace period again.
//!
//! The cache of Leases may be older than that of nodes: before a node becomes Unknown its Lease is read live. Otherwise all nodes would when
//! that watch is late, and their pods lose their readiness at once. The write of the node has its resourceVersion as precondition.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, ObjectReference, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::well_known::{NODE_LEASE_NAMESPACE, NOT_READY};
use knarr_api::{Kind, ObjectKey, Shared};
use knarr_apimachinery::ids::NodeName;
use knarr_apimachinery::time::seconds;

use super::zones::{EvictionRates, NodeObservation, Zones};
use super::{NO_EXECUTE, UNREACHABLE, condition};
use crate::action::{Action, LiveCheck, reference};
use crate::controller::View;
use crate::sweep::Sweep;

/// The grace period without renewals after which a node is Unknown (kube-controller-manager's node-monitor-grace-period, SPEC S4).
pub const GRACE: SignedDuration = SignedDuration::from_secs(40);
/// How long a node may act as a member of the cluster after it has renewed its lease: never longer than the grace period.
pub const LEASE_SECONDS: i64 = 40;
/// The grace period of a node that has never reported its status.
pub const STARTUP_GRACE: SignedDuration = SignedDuration::from_secs(60);
/// The period (kube-controller-manager's node-monitor-period).
const PERIOD: std::time::Duration = std::time::Duration::from_secs(5);
/// The period while a node waits for its taint.
const SOON: std::time::Duration = std::time::Duration::from_secs(1);
const NO_EXECUTE_TAINTS: [&str; 2] = [NOT_READY, UNREACHABLE];
/// The conditions that the kubelet sets.
const KUBELET_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// What a running node renews.
#[derive(PartialEq)]
struct NodeHealthData {
    uid: Option<String>,
    renewed: Option<MicroTime>,
    heartbeat: Option<Time>,
}

/// See the module.
pub struct NodeHealth {
    config: Lifecycle,
    seen: BTreeMap<NodeName, (NodeHealthData, Timestamp)>,
    /// The nodes that events were recorded for: uid and name.
    known: BTreeMap<String, NodeName>,
    zones: Zones,
    /// Whether a node waits for its taint.
    waiting: bool,
}

/// The configuration of the node lifecycle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lifecycle {
    /// The grace period without renewals after which a node is Unknown (kube-controller-manager's node-monitor-grace-period).
    pub grace: SignedDuration,
    pub rates: EvictionRates,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Lifecycle {
            grace: GRACE,
            rates: EvictionRates::default(),
        }
    }
}

impl Sweep for NodeHealth {
    fn name(&self) -> &'static str {
        "node-controller"
    }

    fn account(&self) -> &'static str {
        "node-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::NODE, &registry::LEASE]
    }

    fn period(&self) -> std::time::Duration {
        if self.waiting { SOON } else { PERIOD }
    }

    fn sweep(&mut self, view: &dyn View, now: Timestamp) -> Vec<Vec<Action>> {
        let nodes: Vec<Shared<Node>> = view.list_as("");
        let mut lists = self.record_events(&nodes);
        self.seen
            .retain(|name, _| view.get(&registry::NODE, "", name).is_some());
        let mut observed_nodes: Vec<_> = nodes
            .iter()
            .map(|node| {
                let (since, actions) = self.monitor_node(view, node, now);
                (since, node, actions)
            })
            .collect();
        // The node that was lost first is the first to be tainted.
        observed_nodes.sort_by_key(|(since, ..)| *since);
        let observations: Vec<NodeObservation<'_>> = observed_nodes
            .iter()
            .map(|(_, node, silent)| NodeObservation {
                node,
                ready: silent.is_none() && condition(node, "Ready").is_some_and(|c| c.status == "True"),
                // Its status first; the taint follows in the next period.
                waits: silent.is_none() && no_execute_taint(node).is_some_and(|taint| !has(node, taint)),
            })
            .collect();
        let decision = self.zones.sync(&observations, now);
        self.waiting = !decision.remove_all && observations.iter().any(|l| l.waits);
        if decision.restart_grace {
            self.seen.values_mut().for_each(|(_, moved)| *moved = now);
        }
        for (_, node, silent) in observed_nodes {
            let quiet = silent.is_none();
            lists.extend(silent);
            if !quiet || node.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let taint = no_execute_taint(node).filter(|_| decision.taint.contains(node.object().name()));
            if decision.remove_all && NO_EXECUTE_TAINTS.iter().any(|key| has(node, key)) {
                lists.push(vec![Action::update(evicting(node, None, now))]);
            } else if taint.is_some() {
                lists.push(vec![Action::update(evicting(node, taint, now))]);
            }
        }
        lists
    }
}

/// The NoExecute taint for a node that is not ready.
fn no_execute_taint(node: &Node) -> Option<&'static str> {
    match condition(node, "Ready")?.status.as_str() {
        "False" => Some(NOT_READY),
        "Unknown" => Some(UNREACHABLE),
        _ => None,
    }
}

fn has(node: &Node, key: &str) -> bool {
    let mut taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    taints.any(|t| t.key == key && t.effect == NO_EXECUTE)
}

/// The node with this and no other of the NoExecute taints.
fn evicting(node: &Node, taint: Option<&str>, now: Timestamp) -> Node {
    let mut changed = node.clone();
    let spec = changed.spec.get_or_insert_default();
    let mut taints = spec.taints.take().unwrap_or_default();
    taints.retain(|t| t.effect != NO_EXECUTE || !NO_EXECUTE_TAINTS.contains(&t.key.as_str()));
    taints.extend(taint.map(|key| Taint {
        key: key.into(),
        effect: NO_EXECUTE.into(),
        value: None,
        time_added: Some(seconds(now)),
    }));
    spec.taints = (!taints.is_empty()).then_some(taints);
    changed
}

impl NodeHealth {
    pub fn new(config: Lifecycle) -> Self {
        NodeHealth {
            config,
            seen: BTreeMap::new(),
            known: BTreeMap::new(),
            zones: Zones::new(config.rates),
            waiting: false,
        }
    }

    /// Events about nodes that were added or removed.
    fn record_events(&mut self, nodes: &[Shared<Node>]) -> Vec<Vec<Action>> {
        let now: BTreeMap<String, NodeName> = nodes
            .iter()
            .map(|n| (n.object().uid().to_string(), n.object().name().into()))
            .collect();
        let event = |uid: &str, name: &NodeName, reason: &'static str, message: String| {
            let about = ObjectReference {
                kind: Some("Node".into()),
                name: Some(name.into()),
                uid: Some(uid.into()),
                ..ObjectReference::default()
            };
            vec![Action::event(
                &about,
                reason,
                format!("Node {name} event: {message}"),
            )]
        };
        let mut lists = Vec::new();
        for (uid, name) in now.iter().filter(|(uid, _)| !self.known.contains_key(*uid)) {
            let message = format!("Registered Node {name} in Controller");
            lists.push(event(uid, name, "RegisteredNode", message));
        }
        for (uid, name) in self.known.iter().filter(|(uid, _)| !now.contains_key(*uid)) {
            let message = format!("Removing Node {name} from Controller");
            lists.push(event(uid, name, "RemovingNode", message));
        }
        self.known = now;
        lists
    }

    /// Since when the node has not been renewed, and the update of its status if that is longer than the grace period.
    fn monitor_node(
        &mut self,
        view: &dyn View,
        node: &Shared<Node>,
        now: Timestamp,
    ) -> (Timestamp, Option<Vec<Action>>) {
        let name = node.object().name();
        let lease = view.get_as::<Lease>(NODE_LEASE_NAMESPACE, name);
        let ready = condition(node, "Ready");
        let observed = NodeHealthData {
            uid: node.metadata.uid.clone(),
            renewed: lease.and_then(|l| l.spec.as_ref()?.renew_time.clone()),
            heartbeat: ready.and_then(|c| c.last_heartbeat_time.clone()),
        };
        let renewed = observed.renewed.clone();
        let grace = if ready.is_some() {
            self.config.grace
        } else {
            STARTUP_GRACE
        };
        let moved = match self.seen.get(name) {
            Some((before, moved)) if *before == observed => *moved,
            _ => {
                self.seen.insert(name.into(), (observed, now));
                now
            }
        };
        if now.duration_since(moved) <= grace {
            return (moved, None);
        }
        let mut lost = self.set_unknown(node, now);
        if let Some(actions) = &mut lost {
            let lease = ObjectKey::new(NODE_LEASE_NAMESPACE, name);
            actions.insert(0, Action::Require(LiveCheck::NotRenewed { lease, renewed }));
        }
        (moved, lost)
    }

    fn set_unknown(&self, node: &Shared<Node>, now: Timestamp) -> Option<Vec<Action>> {
        let mut changed = (**node).clone();
        let was_ready = condition(node, "Ready").is_some_and(|c| c.status == "True");
        let conditions = changed
            .status
            .get_or_insert_default()
            .conditions
            .get_or_insert_default();
        for type_ in KUBELET_CONDITIONS {
            let unknown = |reason: &str, message: &str| NodeCondition {
                type_: type_.into(),
                status: "Unknown".into(),
                reason: Some(reason.into()),
                message: Some(message.into()),
                last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                last_transition_time: Some(seconds(now)),
            };
            match conditions.iter_mut().find(|c| c.type_ == type_) {
                None => conditions.push(unknown(
                    "NodeStatusNeverUpdated",
                    "Kubelet never posted node status.",
                )),
                Some(known) if known.status != "Unknown" => {
                    *known = NodeCondition {
                        last_heartbeat_time: known.last_heartbeat_time.clone(),
                        ..unknown("NodeStatusUnknown", "Kubelet stopped posting node status.")
                    };
                }
                Some(_) => {}
            }
        }
        if changed == **node {
            return None;
        }
        let mut actions = vec![Action::update_status(changed)];
        if was_ready {
            let message = format!("Node {} status is now: NodeNotReady", node.object().name());
            actions.push(Action::event(&reference(node.object()), "NodeNotReady", message));
        }
        Some(actions)
    }
}
