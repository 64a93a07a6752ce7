//! The scheduler's state and its step: take the next pod, find it a node, reserve it there.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::{ObjectKey, Shared};

use crate::node_info::{NodeInfo, Nodes};
use crate::plugins::{self, Plugin};
use crate::pod_info::{PodInfo, is_finished, node_name};
use crate::queue::Queue;

/// The scheduler pods mean when they name none.
pub const DEFAULT_SCHEDULER_NAME: &str = "default-scheduler";

/// Where a pod goes, or why nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Node {
        name: String,
        /// How many nodes would have had it.
        feasible: usize,
    },
    Nowhere(Diagnosis),
}

/// Why no node would have a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    pub nodes: usize,
    /// How many nodes each reason stood against.
    pub reasons: BTreeMap<Cow<'static, str>, usize>,
    /// The plugins that refused.
    pub by: BTreeSet<&'static str>,
}

impl Diagnosis {
    /// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
    pub fn message(&self) -> String {
        if self.nodes == 0 {
            return "no nodes available to schedule pods".to_string();
        }
        let mut reasons: Vec<String> = self.reasons.iter().map(|(why, n)| format!("{n} {why}")).collect();
        reasons.sort();
        format!("0/{} nodes are available: {}.", self.nodes, reasons.join(", "))
    }
}

/// What is to be done about a pod.
#[derive(Debug)]
pub enum Step {
    /// Bind it; then tell [`Scheduler::bound`] or [`Scheduler::not_bound`].
    Bind { pod: Shared<Pod>, node: String },
    /// Say that it could not be placed.
    Report { pod: Shared<Pod>, message: String },
}

/// See the module.
pub struct Scheduler {
    plugins: Vec<Box<dyn Plugin>>,
    nodes: Nodes,
    queue: Queue,
    /// On which node each pod counts, by uid, whether the API knows it yet or not.
    standing: BTreeMap<String, String>,
    /// Of those, the ones whose binding is under way.
    assumed: BTreeSet<String>,
    /// Where the choice among equals begins.
    rotation: usize,
}

impl Default for Scheduler {
    fn default() -> Self {
        Self::new(plugins::default())
    }
}

/// Whether this scheduler is to find the pod a node.
fn wants_node(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let scheduler = spec.scheduler_name.as_deref().unwrap_or(DEFAULT_SCHEDULER_NAME);
    scheduler == DEFAULT_SCHEDULER_NAME
        && node_name(pod).is_empty()
        && spec.scheduling_gates.as_ref().is_none_or(Vec::is_empty)
        && pod.metadata.deletion_timestamp.is_none()
        && !is_finished(pod)
}

impl Scheduler {
    pub fn new(plugins: Vec<Box<dyn Plugin>>) -> Self {
        Scheduler {
            plugins,
            nodes: Nodes::default(),
            queue: Queue::default(),
            standing: BTreeMap::new(),
            assumed: BTreeSet::new(),
            rotation: 0,
        }
    }

    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Pods that wait for a node.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    /// A node is new, has changed or has gone (`None`).
    pub fn node_changed(&mut self, name: &str, node: Option<Shared<Node>>, now: Timestamp) {
        let before = self.nodes.get(name).and_then(|info| info.node.clone());
        self.nodes.set(name, node);
        if self.queue.is_empty() {
            return;
        }
        let before = before.map(NodeInfo::bare);
        let Some(after) = self.nodes.get(name).filter(|info| info.node.is_some()) else {
            return;
        };
        // It helps a pod if a plugin that was against it has nothing against this node, and had before (or cannot
        // say, for it looks at pods): a heartbeat wakes nobody.
        let bare = after.node.clone().map(NodeInfo::bare);
        let allocatable_grew = before.as_ref().is_none_or(|b| b.allocatable != after.allocatable);
        let plugins = &self.plugins;
        self.queue.wake_where(now, |pod, by| {
            plugins.iter().filter(|p| by.contains(p.name())).any(|plugin| {
                let fits = bare.as_ref().is_some_and(|node| plugin.filter(pod, node).is_ok());
                let fitted = before
                    .as_ref()
                    .is_some_and(|node| plugin.filter(pod, node).is_ok());
                fits && (!fitted || (plugin.looks_at_pods() && allocatable_grew))
            })
        });
    }

    /// A pod is new, has changed or has gone (`new` is `None`).
    pub fn pod_changed(&mut self, old: Option<&Shared<Pod>>, new: Option<&Shared<Pod>>, now: Timestamp) {
        if let (Some(old), Some(new)) = (old, new)
            && old.object().uid() != new.object().uid()
        {
            self.pod_changed(Some(old), None, now);
            return self.pod_changed(None, Some(new), now);
        }
        let Some(pod) = new.or(old) else { return };
        let uid = pod.object().uid().to_string();
        let key = ObjectKey::of(pod.object());
        let stands = new
            .filter(|p| !is_finished(p))
            .map(|p| node_name(p))
            .filter(|n| !n.is_empty());
        match (stands, new) {
            (Some(node), Some(new)) => {
                self.queue.remove(&key);
                self.assumed.remove(&uid);
                self.stand(node, &PodInfo::new(new.clone()));
            }
            (None, Some(new)) if wants_node(new) => {
                // What is on its way to its node is not to be placed once more.
                if !self.assumed.contains(&uid) {
                    let same = |old: &&Shared<Pod>| {
                        old.spec == new.spec && old.metadata.labels == new.metadata.labels
                    };
                    let changed = old.is_some_and(|old| !same(&old));
                    self.queue.put(PodInfo::new(new.clone()), changed, now);
                }
            }
            _ => {
                self.queue.remove(&key);
                self.assumed.remove(&uid);
                if self.leave(&uid) {
                    self.room_was_made(now);
                }
            }
        }
    }

    fn stand(&mut self, node: &str, pod: &PodInfo) {
        let uid = pod.uid().to_string();
        if self.standing.get(&uid).is_some_and(|was| was != node) {
            self.leave(&uid);
        }
        self.nodes.add_pod(node, pod);
        self.standing.insert(uid, node.to_string());
    }

    fn leave(&mut self, uid: &str) -> bool {
        match self.standing.remove(uid) {
            Some(node) => {
                self.nodes.remove_pod(&node, uid);
                true
            }
            None => false,
        }
    }

    fn room_was_made(&mut self, now: Timestamp) {
        let plugins = &self.plugins;
        self.queue.wake_where(now, |_, by| {
            plugins.iter().any(|p| p.looks_at_pods() && by.contains(p.name()))
        });
    }

    /// The best node for a pod, as things stand. Changes nothing but the place where the next choice among
    /// equals begins.
    pub fn schedule(&mut self, pod: &PodInfo) -> Decision {
        let mut diagnosis = Diagnosis {
            nodes: self.nodes.len(),
            ..Diagnosis::default()
        };
        let mut feasible: Vec<usize> = Vec::new();
        for (place, node) in self.nodes.iter() {
            let refused = self.plugins.iter().find_map(|plugin| {
                let refusal = plugin.filter(pod, node).err()?;
                Some((plugin.name(), refusal))
            });
            match refused {
                None => feasible.push(place),
                Some((plugin, refusal)) => {
                    diagnosis.by.insert(plugin);
                    for reason in refusal.reasons {
                        *diagnosis.reasons.entry(reason).or_default() += 1;
                    }
                }
            }
        }
        if feasible.is_empty() {
            return Decision::Nowhere(diagnosis);
        }
        let scores = self.scores(pod, &feasible);
        let best = scores.iter().copied().max().unwrap_or(0);
        let equals: Vec<usize> = feasible
            .iter()
            .zip(&scores)
            .filter(|(_, score)| **score == best)
            .map(|(place, _)| *place)
            .collect();
        let chosen = equals[self.rotation % equals.len()];
        self.rotation = self.rotation.wrapping_add(1);
        Decision::Node {
            name: self.nodes.at(chosen).name.clone(),
            feasible: feasible.len(),
        }
    }

    /// The weighted sum of all plugins' scores for each of these nodes.
    pub fn scores(&self, pod: &PodInfo, places: &[usize]) -> Vec<i64> {
        let mut sums = vec![0; places.len()];
        for plugin in self.plugins.iter().filter(|p| p.scores(pod)) {
            let mut scores: Vec<i64> = places
                .iter()
                .map(|place| plugin.score(pod, self.nodes.at(*place)))
                .collect();
            plugin.normalize(&mut scores);
            for (sum, score) in sums.iter_mut().zip(scores) {
                *sum += score * plugin.weight();
            }
        }
        sums
    }

    /// Takes the next pod and says what to do with it. `None`: no pod is due.
    pub fn step(&mut self, now: Timestamp) -> Option<Step> {
        self.queue.wake_forgotten(now);
        let pod = self.queue.pop(now)?;
        match self.schedule(&pod) {
            Decision::Node { name, .. } => {
                self.stand(&name, &pod);
                self.assumed.insert(pod.uid().to_string());
                Some(Step::Bind {
                    pod: pod.pod,
                    node: name,
                })
            }
            Decision::Nowhere(diagnosis) => {
                let message = diagnosis.message();
                self.queue.park(&pod.key(), diagnosis.by, now);
                Some(Step::Report {
                    pod: pod.pod,
                    message,
                })
            }
        }
    }

    /// The API has taken the binding.
    pub fn bound(&mut self, pod: &Shared<Pod>) {
        let key = ObjectKey::of(pod.object());
        // Another pod may have taken its name meanwhile.
        if self
            .queue
            .get(&key)
            .is_some_and(|p| p.uid() == pod.object().uid())
        {
            self.queue.remove(&key);
        }
    }

    /// The API has refused the binding: the room is free again and the pod comes back after its back-off.
    pub fn not_bound(&mut self, pod: &Shared<Pod>, now: Timestamp) {
        let uid = pod.object().uid();
        // If the cache has shown the pod bound (or gone) meanwhile, that stands.
        if self.assumed.remove(uid) {
            self.leave(uid);
            self.queue.retry(&ObjectKey::of(pod.object()), now);
            self.room_was_made(now);
        }
    }

    /// When [`Scheduler::step`] may have something to do though nothing changes.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.queue.next_due()
    }
}

#[cfg(test)]
mod tests;
