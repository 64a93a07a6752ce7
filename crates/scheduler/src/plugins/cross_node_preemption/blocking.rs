//! The pods that the rules of the preemptor's class name, by topology domain: found in one pass over the groups of pods
//! on the nodes, without iterating over pods.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

use super::{Attempt, NoCandidate, OTHER_NODES_MAX, PODS_PER_DOMAIN_MAX, VICTIMS_MAX};
use crate::cluster::{ColumnId, NodeIndex};
use crate::evaluation::RemovedPod;
use crate::node_info::Group;
use crate::pod_info::ClassId;

/// Pods of one class on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PodGroup {
    priority: i32,
    node: NodeIndex,
    class: ClassId,
    pods: usize,
}

impl PodGroup {
    fn new(node: NodeIndex, group: &Group, pods: u32) -> Self {
        PodGroup {
            priority: group.class.priority,
            node,
            class: group.class.id,
            pods: usize::try_from(pods).unwrap_or(usize::MAX),
        }
    }
}

/// See the module.
pub(super) struct BlockingPods<'a> {
    attempt: Attempt<'a>,
    columns: Vec<ColumnId>,
    /// Pods that exclude the preemptor from a domain, by anti-affinity: by topology key and value. Not more than are
    /// necessary to know that they are too many.
    excluding: BTreeMap<(ColumnId, u32), Vec<PodGroup>>,
    /// Pods that a spread constraint counts: by the number of the constraint, and domain. Of lower priority only.
    counted: BTreeMap<(usize, u32), Vec<PodGroup>>,
    /// The pods that use a claim that only one pod may use.
    users: Vec<PodGroup>,
}

impl<'a> BlockingPods<'a> {
    /// `columns`: [`crate::evaluation::ClassState::rule_columns`].
    pub(super) fn new(attempt: &Attempt<'a>, columns: Vec<ColumnId>) -> Self {
        let mut blocking = BlockingPods {
            attempt: *attempt,
            columns,
            excluding: BTreeMap::new(),
            counted: BTreeMap::new(),
            users: Vec::new(),
        };
        let state = attempt.state;
        let exclusive = state.exclusive_claims();
        for (index, node) in attempt.cluster.iter() {
            if !exclusive.is_empty() {
                let uses = |group: &&Group| {
                    let volumes = group.class.volumes.iter().flat_map(|v| v.named());
                    let mut volumes = volumes.filter(|name| exclusive.iter().any(|claim| claim == name));
                    group.class.namespace() == state.class.namespace() && volumes.next().is_some()
                };
                let users = node.groups().iter().filter(uses);
                blocking
                    .users
                    .extend(users.map(|g| PodGroup::new(index, g, g.count)));
            }
            if state.names_pods_on(index) {
                for group in node.groups() {
                    blocking.add(index, group);
                }
            }
        }
        for groups in blocking.counted.values_mut() {
            groups.sort_unstable();
            let mut pods = 0;
            groups.retain(|group| {
                let is_wanted = pods < PODS_PER_DOMAIN_MAX;
                pods += group.pods;
                is_wanted
            });
        }
        blocking
    }

    fn add(&mut self, index: NodeIndex, group: &Group) {
        let Attempt {
            cluster, state, pod, ..
        } = self.attempt;
        for column in state.excluded_by(group.class.id) {
            let of = self
                .excluding
                .entry((column, cluster.column(column).at(index)))
                .or_default();
            if of.iter().map(|g| g.pods).sum::<usize>() <= VICTIMS_MAX {
                of.push(PodGroup::new(index, group, group.count));
            }
        }
        let live = group.count.saturating_sub(group.terminating);
        if live > 0 && group.class.priority < pod.priority() {
            for key in state.counted_for(group.class.id, index) {
                self.counted
                    .entry(key)
                    .or_default()
                    .push(PodGroup::new(index, group, live));
            }
        }
    }

    /// The groups that exclude the preemptor from the node, whatever their priority.
    fn excluding(&self, index: NodeIndex) -> BTreeSet<PodGroup> {
        let value = |column: &ColumnId| (*column, self.attempt.cluster.column(*column).at(index));
        let here = self
            .columns
            .iter()
            .filter_map(|column| self.excluding.get(&value(column)));
        here.flatten().chain(&self.users).copied().collect()
    }

    /// All pods that exclude the preemptor from the node, whatever their priority; some of them if they are many.
    pub(super) fn all_of(&self, index: NodeIndex) -> Vec<RemovedPod> {
        self.excluding(index)
            .iter()
            .flat_map(|group| self.pods_of(group))
            .collect()
    }

    /// The pods without whose eviction the node can never fit.
    pub(super) fn must_leave(&self, index: NodeIndex) -> Result<Vec<RemovedPod>, NoCandidate> {
        let groups = self.excluding(index);
        if groups
            .iter()
            .any(|group| group.priority >= self.attempt.pod.priority())
        {
            return Err(NoCandidate::Priority);
        }
        let nodes: BTreeSet<NodeIndex> = groups.iter().map(|group| group.node).collect();
        // One of the nodes may be the preemptor's.
        if groups.iter().map(|group| group.pods).sum::<usize>() > VICTIMS_MAX
            || nodes.len() > OTHER_NODES_MAX + 1
        {
            return Err(NoCandidate::TooMany);
        }
        Ok(groups.iter().flat_map(|group| self.pods_of(group)).collect())
    }

    /// The pods of lower priority that a spread constraint counts in a domain, in the order in which they are victims.
    pub(super) fn counted(&self, constraint: usize, domain: u32) -> Vec<RemovedPod> {
        let groups = self.counted.get(&(constraint, domain)).into_iter().flatten();
        let pods = groups
            .flat_map(|group| self.pods_of(group))
            .filter(|r| !r.pod.is_terminating());
        let mut pods: Vec<RemovedPod> = pods.take(PODS_PER_DOMAIN_MAX).collect();
        let budgets = self.attempt.cluster.budgets();
        pods.sort_by_cached_key(|removed| {
            let pod = &removed.pod;
            let violates = !budgets.violated_by(std::slice::from_ref(pod)).is_empty();
            (
                violates,
                pod.priority(),
                Reverse(pod.start_time().unwrap_or(Timestamp::MAX)),
            )
        });
        pods
    }

    fn pods_of(&self, group: &PodGroup) -> impl Iterator<Item = RemovedPod> {
        let PodGroup { node, class, .. } = *group;
        let pods = self.attempt.cluster.at(node).pods().iter();
        let pods = pods.filter(move |pod| pod.class.id == class);
        pods.map(move |pod| RemovedPod {
            node,
            pod: pod.clone(),
        })
    }
}
