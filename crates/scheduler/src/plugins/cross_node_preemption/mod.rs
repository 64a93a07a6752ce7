//! Cross-node preemption (SPEC B5), which kube-scheduler does not have: a node fits the pod after the eviction of pods on
//! other nodes.
//!
//! It runs for pods that request it, where the profile allows it, and only after [`super::default_preemption`] has found no
//! candidate. It considers the nodes that are rejected for nothing but pods elsewhere: by required anti-affinity (of the
//! pod or of existing pods), a DoNotSchedule topology spread constraint, or a ReadWriteOncePod claim in use. Victims are
//! pods that these rules name, all of lower priority than the preemptor; the set with the least cost by the order of
//! [`super::default_preemption`] is chosen. Each set is verified by the filters themselves. The search is bounded by the constants
//! below; where they cut it off, a candidate may be missed, but none is wrong.
//!
//! Not considered: nodes that also lack resources, devices or host ports, and pods with resource claims.

mod blocking;
mod search;

use std::collections::{BTreeMap, BTreeSet};

use knarr_api::kinds::pod::requests_cross_node_preemption;

use super::default_preemption::{Candidate, is_terminating_for_preemption};
use super::{inter_pod_affinity, pod_topology_spread, volume_restrictions};
use crate::budgets::BudgetName;
use crate::cluster::{Cluster, NodeIndex};
use crate::evaluation::{ClassState, CycleState};
use crate::pod_info::PodInfo;
use crate::profile::Profile;
use blocking::BlockingPods;
use search::Search;

/// The most victims of one preemption: a pod that needs more than this disturbs more than it is worth.
pub const VICTIMS_MAX: usize = 8;
/// The most nodes on which victims are, in addition to the preemptor's.
pub const OTHER_NODES_MAX: usize = 4;
/// The most sets of victims that are tried for one pod. Each costs a run of the filters on one node, some 5 µs.
pub const SETS_MAX: usize = 256;
/// The most nodes that are tried for one pod, the least costly first.
pub const NODES_MAX: usize = 64;
/// The most nodes that are tried of those that are equal to the pod's rules: they differ only by nominated pods.
const NODES_PER_DOMAIN_MAX: usize = 4;
/// The most pods of one topology domain that are considered for a spread constraint, those of the lowest priority: four
/// times as many as there can be victims.
const PODS_PER_DOMAIN_MAX: usize = 4 * VICTIMS_MAX;

/// Why there is no candidate. A later one is closer to a candidate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum NoCandidate {
    #[error("no node is rejected for pods on other nodes alone")]
    NoNode,
    #[error("evicting the pods that the rules name is not enough")]
    NotEnough,
    #[error("pods of equal or higher priority are in the way")]
    Priority,
    #[error(
        "more than {VICTIMS_MAX} victims, or victims on more than {OTHER_NODES_MAX} other nodes, would be needed"
    )]
    TooMany,
    #[error("a PodDisruptionBudget would be violated")]
    ViolatesBudgets(BTreeSet<BudgetName>),
    /// What was evicted for the pod earlier has not terminated.
    #[error("victims on other nodes are terminating")]
    Terminating,
}

/// What is searched in: the results of the filters for the pod, none of which was feasible.
#[derive(Clone, Copy)]
pub struct Attempt<'a> {
    pub profile: &'a Profile,
    pub cluster: &'a Cluster,
    pub state: &'a ClassState,
    pub cycle: &'a CycleState,
    pub pod: &'a PodInfo,
    /// The node that the pod is nominated to.
    pub own: Option<NodeIndex>,
}

/// Whether the profile allows cross-node preemption and the pod requests it.
pub fn is_requested(profile: &Profile, pod: &PodInfo) -> bool {
    profile.cross_node_preemption && requests_cross_node_preemption(pod.pod.metadata.annotations.as_ref())
}

/// Whether only pods reject the node, as far as the filters have run.
fn is_rejected_by_pods(attempt: &Attempt<'_>, index: NodeIndex) -> bool {
    const PLUGINS: [&str; 3] = [
        inter_pod_affinity::NAME,
        pod_topology_spread::NAME,
        volume_restrictions::NAME,
    ];
    let rejection = attempt.state.rejection(attempt.cycle, index);
    rejection.is_some_and(|r| r.resolvable && PLUGINS.contains(&r.plugin))
}

/// The node and the victims of the least cost; see the module. A node that the pod is nominated to comes first, so that a
/// preemption that was interrupted is finished.
pub fn preempt(attempt: Attempt<'_>) -> Result<Candidate, NoCandidate> {
    let columns = attempt.state.rule_columns();
    let mut domains: BTreeMap<Vec<u32>, Vec<NodeIndex>> = BTreeMap::new();
    for (index, _) in attempt
        .cluster
        .iter()
        .filter(|(index, _)| is_rejected_by_pods(&attempt, *index))
    {
        let values = columns
            .iter()
            .map(|column| attempt.cluster.column(*column).at(index));
        domains.entry(values.collect()).or_default().push(index);
    }
    if domains.is_empty() {
        return Err(NoCandidate::NoNode);
    }
    let blocking = BlockingPods::new(&attempt, columns);
    let mut search = Search::new(attempt, &blocking);
    if let Some(own) = attempt.own.filter(|own| is_rejected_by_pods(&attempt, *own)) {
        let waits_for =
            |pod: &PodInfo| pod.priority() < attempt.pod.priority() && is_terminating_for_preemption(pod);
        if blocking.all_of(own).iter().any(|named| waits_for(&named.pod)) {
            return Err(NoCandidate::Terminating);
        }
        match blocking.must_leave(own) {
            Ok(must_leave) => {
                search.try_node(own, must_leave);
            }
            Err(why) => search.failed(why),
        }
        if let Some(candidate) = search.take_best() {
            return Ok(candidate);
        }
    }
    // The least that has to be evicted, whatever else: the domain with the lowest bound comes first.
    let mut bounds = Vec::new();
    for nodes in domains.values() {
        match nodes.first().map(|first| blocking.must_leave(*first)) {
            Some(Ok(must_leave)) => bounds.push((
                search::bound(0, must_leave.iter().map(|r| &r.pod)),
                must_leave,
                nodes,
            )),
            Some(Err(why)) => search.failed(why),
            None => {}
        }
    }
    bounds.sort_by_key(|(bound, ..)| *bound);
    let mut tried = 0;
    for (_, must_leave, nodes) in bounds {
        for index in nodes.iter().take(NODES_PER_DOMAIN_MAX) {
            if tried == NODES_MAX {
                break;
            }
            tried += 1;
            if search.try_node(*index, must_leave.clone()) {
                break;
            }
        }
    }
    search.finish()
}
