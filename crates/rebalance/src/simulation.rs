//! Where the scheduler would place a pod: its own filters and scores, on the plan's copy of its snapshot. All nodes with
//! the best score are the answer, because the scheduler may choose any of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use knarr_scheduler::cluster::NodeIndex;
use knarr_scheduler::evaluation::{ClassState, CycleState};
use knarr_scheduler::plugins::{self, PreFilterError, node_affinity};
use knarr_scheduler::pod_info::{ClassId, PodClass, PodInfo};
use knarr_scheduler::{Cluster, Profile};

use crate::reason::Reason;

/// The most memory for the cached results of classes.
const STATES_BYTES: usize = 32 << 20;
/// The approximate memory of the results of one class for one node.
const STATE_BYTES_PER_NODE: usize = 96;
/// The fewest classes whose results are cached.
const STATES_MIN: usize = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct Simulation {
    pub cluster: Cluster,
    /// With the time of the last use.
    states: BTreeMap<ClassId, (u64, Box<ClassState>)>,
    uses: u64,
    cycle: CycleState,
}

impl Simulation {
    pub fn new(cluster: Cluster) -> Self {
        Simulation {
            cluster,
            states: BTreeMap::new(),
            uses: 0,
            cycle: CycleState::default(),
        }
    }

    /// Whether DynamicResources would allocate devices for the class, which is not simulated.
    pub fn needs_devices(&self, class: &PodClass, from: NodeIndex) -> bool {
        let classes = &self.cluster.at(from).device_class_resources;
        let mut scalars = class.requests.resources.scalars.keys();
        !classes.is_empty() && scalars.any(|name| classes.contains(name))
    }

    /// Whether the filters that read one node accept the class there.
    pub fn fits(&self, profile: &Profile, class: &PodClass, node: NodeIndex) -> Result<(), &'static str> {
        let node = self.cluster.at(node);
        if node.node.is_none() {
            return Err("");
        }
        plugins::filter(profile, class, node).map_err(|status| status.plugin)
    }

    /// The nodes with the best score, by index, or why there is none. The pod is assigned nowhere.
    pub fn best_nodes(&mut self, profile: &Arc<Profile>, pod: &PodInfo) -> Result<Vec<NodeIndex>, Reason> {
        let id = pod.class.id;
        let known = self.states.remove(&id).map(|(_, state)| state);
        let known = known.filter(|state| state.knows_storage(&self.cluster));
        let mut state = match known {
            Some(state) => state,
            None => {
                let state = ClassState::new(profile, &mut self.cluster, pod.class.clone(), "");
                Box::new(state.map_err(|error| unschedulable(&error))?)
            }
        };
        state.catch_up(profile, &mut self.cluster);
        let mut cycle = std::mem::take(&mut self.cycle);
        state.filter(profile, &mut self.cluster, pod, None, &mut cycle);
        cycle.collect();
        let found = if cycle.feasible.is_empty() {
            let mut rejected_by: BTreeMap<&'static str, usize> = BTreeMap::new();
            for (status, nodes) in state.histogram(&cycle) {
                let plugin = match status.plugin {
                    "" => node_affinity::NAME,
                    plugin => plugin,
                };
                *rejected_by.entry(plugin).or_default() += nodes;
            }
            Err(Reason::NoNodeFits { rejected_by })
        } else {
            state.score(profile, &self.cluster, &mut cycle, None);
            let best = cycle.totals.iter().copied().max();
            let scored = cycle.feasible.iter().zip(&cycle.totals);
            let nodes = scored.filter(|(_, total)| Some(**total) == best);
            Ok(nodes.map(|(node, _)| *node).collect())
        };
        self.cycle = cycle;
        self.put_back(id, state);
        found
    }

    fn put_back(&mut self, id: ClassId, state: Box<ClassState>) {
        self.uses += 1;
        let per_state = STATE_BYTES_PER_NODE * self.cluster.slots().max(1);
        if self.states.len() >= (STATES_BYTES / per_state).max(STATES_MIN) {
            let oldest = self.states.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                self.states.remove(&oldest);
            }
        }
        self.states.insert(id, (self.uses, state));
    }
}

fn unschedulable(error: &PreFilterError) -> Reason {
    let error = match error {
        PreFilterError::Unschedulable(status) => status.reasons.join(", "),
        PreFilterError::Error(error) => error.to_string(),
    };
    Reason::Unschedulable { error }
}
