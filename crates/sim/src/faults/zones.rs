//! Zones that lose all their nodes at once: cut off, or scaled to zero.

use std::sync::Arc;

use super::{Faults, cut_for};
use crate::components::Node;
use crate::later::later;
use crate::placement::{zone_of, zones_of};
use crate::random::Stream;

impl Faults {
    /// Cuts a zone off, or switches its nodes off: then these have to be deleted. At most half of the nodes, so that pods find another.
    pub fn lose_a_zone(&self, chance: &mut Stream) -> Option<Vec<String>> {
        let zones: Vec<&str> = zones_of(self.nodes.len()).into_iter().collect();
        let zone = chance.pick(&zones).copied().unwrap_or_default();
        let (length, is_deleted) = (chance.millis(30_000, 240_000), chance.per_mille(600));
        let numbered = (1..)
            .zip(&self.nodes)
            .filter(|(number, _)| zone_of(*number) == zone);
        let nodes: Vec<Arc<Node>> = numbered.map(|(_, node)| node.clone()).collect();
        if nodes.len() * 2 > self.nodes.len() {
            return None;
        }
        let how = if is_deleted { "has no nodes" } else { "is cut off" };
        let seconds = length.as_secs();
        self.observer
            .note(&format!("fault: zone {zone} {how} for {seconds} s"));
        if !is_deleted {
            cut_for(nodes.iter().map(|node| node.network.clone()).collect(), length);
            self.report_health();
            return None;
        }
        let names = nodes.iter().map(|node| node.name.clone()).collect();
        nodes.iter().for_each(|node| node.reboot());
        later(length, move || nodes.iter().for_each(|node| node.start()));
        self.report_health();
        Some(names)
    }
}
