//! What a history is by its seed and its options, before anything happens in it.

use super::Simulation;
use super::features::Features;
use super::shape::ClusterShape;
use crate::observer::Observer;
use crate::random::{Stream, stream};
use crate::switches::{Plan, Switch, Switches};
use crate::trouble::Streams;

/// See the module.
pub(super) struct Setting {
    /// The stream of the turns that users and faults take.
    pub(super) chance: Stream,
    pub(super) shape: ClusterShape,
    pub(super) plan: Plan,
    /// The number of nodes.
    pub(super) nodes: usize,
    pub(super) streams: Streams,
    /// The stream of the at-most-one annotation.
    pub(super) caring: Stream,
    pub(super) features: Features,
}

impl Setting {
    pub(super) fn draw(simulation: &Simulation) -> Self {
        let seed = simulation.seed;
        let mut chance = stream(seed, "simulation");
        let shape = ClusterShape::draw_at(simulation.pace, seed, &mut chance);
        let replayed = simulation.replayed.as_ref();
        let reduction = replayed.map(|(_, reduction)| reduction.clone());
        let reduction = reduction.unwrap_or_default();
        let plan = Plan::new(seed, simulation.swarm, reduction.without);
        let nodes = simulation.nodes.unwrap_or(shape.nodes);
        let nodes = reduction.nodes.map_or(nodes, |most| nodes.min(most.max(1)));
        let mut streams = Streams::of(seed);
        let mut caring = stream(seed, "at most one");
        let features = Features::draw(simulation, &plan, shape.rare, &mut streams, &mut caring);
        Setting {
            chance,
            shape,
            plan,
            nodes,
            streams,
            caring,
            features,
        }
    }

    /// The first lines of the trace.
    pub(super) fn record(&self, observer: &Observer) {
        let on = self.features.on;
        let all = Switch::ALL.iter().copied();
        let off: Switches = all.filter(|switch| !on.has(*switch)).collect();
        let how = match self.plan.swarmed() {
            Some(_) => "swarmed",
            None => "not swarmed",
        };
        observer.remark(&format!("switches ({how}), on: {on}"));
        observer.remark(&format!("switches, off: {off}"));
        observer.note(&format!(
            "{} nodes, {} servers, {} replicas of the controllers",
            self.nodes,
            self.shape.servers,
            self.shape.controls.len()
        ));
    }
}
