//! Node IPAM: every node gets its part of the cluster CIDRs, `spec.podCIDRs` (kube-controller-manager's range allocator,
//! SPEC N1).
//!
//! **No range is used twice.** Allocations are recorded in one ConfigMap ([`Allocations`]), and a range is recorded there before
//! it is written to a Node. The ConfigMap is written with its resourceVersion as precondition, so two leaders, a write with an
//! unknown result, and a restart at any moment cannot allocate one range to two nodes. A node that registers with podCIDRs keeps
//! them, and they are recorded.
//!
//! **A range is not allocated again while its last node may still run.** A deleted node may be cut off, with pods that
//! still run. Its ranges stay allocated for [`Config::quarantine`], from when a leader first observed that the Node does not
//! exist, and as long as any pod is bound to a node of that name. A node that registers with the same name before that gets the
//! same ranges.
//!
//! Kubelets register without podCIDRs, and with the condition `NetworkUnavailable=True` until their network is set up, which
//! [`super::node::taints`] turns into the taint that keeps pods off.

mod allocations;
mod ranges;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Node, ObjectReference};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, Object, ObjectKey, Shared};
use knarr_apimachinery::cidr::Cidr;

pub use self::allocations::{Allocations, Entry, NAME, NAMESPACE};
pub use self::ranges::{Config, Flags, QUARANTINE};
use self::ranges::{FreeRanges, NoneLeft};
use crate::action::{Action, Create, Verb};
use crate::controller::{Context, Controller, ObjectChange, View};

/// How often it is checked whether the last pods of a deleted node are removed.
const RECHECK: Duration = Duration::from_secs(60);

/// See the module. It has one key, so one reconciliation at a time sees all nodes.
pub struct NodeIpam {
    pub config: Config,
}

fn the_key() -> ObjectKey {
    ObjectKey::new(NAMESPACE, NAME)
}

impl Controller for NodeIpam {
    fn name(&self) -> &'static str {
        "cidrAllocator"
    }

    fn account(&self) -> &'static str {
        "node-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::NODE, &registry::CONFIG_MAP, &registry::POD]
    }

    fn keys(&self, _view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        let concerns = match (changed.kind, changed.old, changed.new) {
            (kind, Some(old), Some(new)) if kind == &registry::NODE => cidrs_of(old) != cidrs_of(new),
            (kind, ..) if kind == &registry::NODE => true,
            (kind, ..) if kind == &registry::CONFIG_MAP => {
                changed.object().map(ObjectKey::of) == Some(the_key())
            }
            // Pods of a deleted node are checked periodically.
            _ => false,
        };
        concerns.then(the_key).into_iter().collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let view = context.view;
        if let Some(failure) = context.failure {
            let conflict = failure.error.is_conflict() || failure.error.is_not_found();
            let node = view.get_as::<Node>("", &failure.name);
            let node =
                node.filter(|_| failure.kind == registry::NODE && failure.verb == Verb::Update && !conflict);
            let event = node.map(|n| status_event(&n, "CIDRAssignmentFailed", &failure.error.to_string()));
            return event.into_iter().collect();
        }
        let nodes: Vec<Shared<Node>> = view.list_as("");
        let recorded = view.get_as::<ConfigMap>(NAMESPACE, NAME);
        let mut plan = Plan::new(&self.config, recorded.as_deref());
        plan.record(&nodes);
        let requeue = plan.release(&nodes, view, context.now);
        let assigned = plan.allocate(&nodes);

        let mut actions = Vec::new();
        match recorded {
            Some(recorded) => actions.extend(plan.allocations.updated(&recorded).map(Action::update)),
            None if plan.allocations.0.is_empty() => {}
            None => actions.push(Action::Create(Create::new(plan.allocations.to_config_map()))),
        }
        if !assigned.is_empty() {
            actions.push(Action::update_many(assigned.into_iter(), ""));
        }
        actions.extend(plan.events);
        actions.extend(requeue.map(Action::RequeueAfter));
        actions
    }
}

/// The podCIDRs of a Node that parse.
fn cidrs(node: &Node) -> Vec<Cidr> {
    let all = node.spec.iter().flat_map(|s| s.pod_cidrs.iter().flatten());
    all.filter_map(|c| Cidr::parse(c)).map(|c| c.masked()).collect()
}

fn cidrs_of(object: &Object) -> Vec<Cidr> {
    object.get::<Node>().map(cidrs).unwrap_or_default()
}

/// The event, in the form of Kubernetes' node controllers.
fn status_event(node: &Shared<Node>, reason: &'static str, why: &str) -> Action {
    let name = node.object().name();
    let about = ObjectReference {
        kind: Some("Node".into()),
        name: Some(name.into()),
        uid: Some(node.object().uid().into()),
        ..ObjectReference::default()
    };
    Action::event(
        &about,
        reason,
        format!("Node {name} status is now: {reason}: {why}"),
    )
}

/// The allocations and events of one reconciliation.
struct Plan<'a> {
    config: &'a Config,
    allocations: Allocations,
    events: Vec<Action>,
}

impl<'a> Plan<'a> {
    fn new(config: &'a Config, recorded: Option<&ConfigMap>) -> Self {
        Plan {
            config,
            allocations: recorded.map(Allocations::read).unwrap_or_default(),
            events: Vec::new(),
        }
    }

    /// Records the ranges that nodes have, by whichever component they were assigned.
    fn record(&mut self, nodes: &[Shared<Node>]) {
        for node in nodes {
            let (name, has) = (node.object().name(), cidrs(node));
            if has.is_empty() {
                continue;
            }
            let known = self.allocations.0.get(name);
            if known.is_some_and(|e| e.cidrs == has && e.released.is_none()) {
                continue;
            }
            // Reported once, when it is recorded: podCIDRs are immutable.
            if known.is_none_or(|e| e.cidrs != has) {
                for cidr in &has {
                    if !self.config.contains(cidr) {
                        let why = format!("{cidr} is in none of the cluster CIDRs {}", self.config.to_text());
                        self.events.push(status_event(node, "CIDRNotAvailable", &why));
                    }
                    if let Some(other) = self.allocations.holder_of(cidr, name) {
                        let why = format!("{cidr} overlaps a range of node {other}");
                        self.events.push(status_event(node, "CIDRNotAvailable", &why));
                    }
                }
            }
            let entry = Entry {
                cidrs: has,
                released: None,
            };
            self.allocations.0.insert(name.to_string(), entry);
        }
    }

    /// Releases the ranges of nodes that have not existed for the quarantine; returns when to requeue.
    fn release(&mut self, nodes: &[Shared<Node>], view: &dyn View, now: Timestamp) -> Option<Duration> {
        let present: BTreeSet<&str> = nodes.iter().map(|n| n.object().name()).collect();
        let mut soonest: Option<Duration> = None;
        self.allocations.0.retain(|name, entry| {
            if present.contains(name.as_str()) {
                return true;
            }
            let since = *entry.released.get_or_insert(now);
            let left = self.config.quarantine - now.duration_since(since);
            let wait = match Duration::try_from(left) {
                Ok(left) if !left.is_zero() => left,
                _ if view.pods_on(name).is_empty() => return false,
                _ => RECHECK,
            };
            soonest = Some(soonest.map_or(wait, |s| s.min(wait)));
            true
        });
        soonest
    }

    /// The nodes without podCIDRs, with those that they get.
    fn allocate(&mut self, nodes: &[Shared<Node>]) -> Vec<Node> {
        let mut free: Option<Vec<FreeRanges<'_>>> = None;
        let mut assigned = Vec::new();
        for node in nodes {
            let name = node.object().name();
            let has = node.spec.as_ref().and_then(|s| s.pod_cidrs.as_ref());
            if has.is_some_and(|c| !c.is_empty()) || node.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let kept = self.allocations.0.get(name).map(|e| e.cidrs.clone());
            let kept = kept.filter(|cidrs| {
                self.config.fits(cidrs)
                    && cidrs
                        .iter()
                        .all(|c| self.allocations.holder_of(c, name).is_none())
            });
            let cidrs = match kept {
                Some(cidrs) => cidrs,
                None => {
                    let free = free.get_or_insert_with(|| self.config.free(&self.allocations));
                    let allocated: Result<Vec<Cidr>, NoneLeft> =
                        free.iter_mut().map(FreeRanges::next).collect();
                    match allocated {
                        Ok(cidrs) => cidrs,
                        Err(why) => {
                            self.events
                                .push(status_event(node, "CIDRNotAvailable", &why.to_string()));
                            continue;
                        }
                    }
                }
            };
            let mut changed = (**node).clone();
            let spec = changed.spec.get_or_insert_default();
            let shown: Vec<String> = cidrs.iter().map(Cidr::to_string).collect();
            spec.pod_cidr = shown.first().cloned();
            spec.pod_cidrs = Some(shown);
            assigned.push(changed);
            let entry = Entry {
                cidrs,
                released: None,
            };
            self.allocations.0.insert(name.to_string(), entry);
        }
        assigned
    }
}

/// By node name: its ranges, and since when the node does not exist.
type Entries = BTreeMap<String, Entry>;
