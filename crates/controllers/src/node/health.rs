//! Noticing silence: a node whose Lease and status have not moved for 40 s becomes Unknown.
//!
//! Times on a lease are the node's own; what counts is when *we* last saw them move. After a restart of ours every node
//! has its whole grace again.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, Shared};

use super::condition;
use crate::action::{Action, reference};
use crate::controller::View;
use crate::sweep::Sweep;

/// Silence after which a node is Unknown (kube-controller-manager's node-monitor-grace-period, SPEC S4).
pub const GRACE: SignedDuration = SignedDuration::from_secs(40);
/// The same for a node that has never reported.
pub const STARTUP_GRACE: SignedDuration = SignedDuration::from_secs(60);
const LEASES: &str = "kube-node-lease";
/// What only the kubelet can know.
const ITS_OWN: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// What moves while a node lives.
#[derive(PartialEq)]
struct Pulse {
    uid: Option<String>,
    renewed: Option<MicroTime>,
    heartbeat: Option<Time>,
}

/// See the module.
#[derive(Default)]
pub struct NodeHealth {
    seen: BTreeMap<String, (Pulse, Timestamp)>,
}

impl Sweep for NodeHealth {
    fn name(&self) -> &'static str {
        "node-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::NODE, &registry::LEASE]
    }

    fn period(&self) -> std::time::Duration {
        std::time::Duration::from_secs(5)
    }

    fn sweep(&mut self, view: &dyn View, now: Timestamp) -> Vec<Vec<Action>> {
        let nodes: Vec<Shared<Node>> = view.list_as("");
        self.seen
            .retain(|name, _| view.get(&registry::NODE, "", name).is_some());
        nodes
            .iter()
            .filter_map(|node| self.look(view, node, now))
            .collect()
    }
}

impl NodeHealth {
    fn look(&mut self, view: &dyn View, node: &Shared<Node>, now: Timestamp) -> Option<Vec<Action>> {
        let name = node.object().name();
        let lease = view.get_as::<Lease>(LEASES, name);
        let ready = condition(node, "Ready");
        let pulse = Pulse {
            uid: node.metadata.uid.clone(),
            renewed: lease.and_then(|l| l.spec.as_ref()?.renew_time.clone()),
            heartbeat: ready.and_then(|c| c.last_heartbeat_time.clone()),
        };
        let grace = if ready.is_some() { GRACE } else { STARTUP_GRACE };
        let moved = match self.seen.get(name) {
            Some((before, moved)) if *before == pulse => *moved,
            _ => {
                self.seen.insert(name.to_string(), (pulse, now));
                now
            }
        };
        if now.duration_since(moved) <= grace {
            return None;
        }
        self.silent(node, now)
    }

    fn silent(&self, node: &Shared<Node>, now: Timestamp) -> Option<Vec<Action>> {
        let mut changed = (**node).clone();
        let was_ready = condition(node, "Ready").is_some_and(|c| c.status == "True");
        let conditions = changed
            .status
            .get_or_insert_default()
            .conditions
            .get_or_insert_default();
        for type_ in ITS_OWN {
            let unknown = |reason: &str, message: &str| NodeCondition {
                type_: type_.into(),
                status: "Unknown".into(),
                reason: Some(reason.into()),
                message: Some(message.into()),
                last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                last_transition_time: Some(Time(now)),
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
