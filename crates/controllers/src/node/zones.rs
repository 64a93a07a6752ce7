//! Rate limits of the tainting of lost nodes: per zone, by how much of the zone is lost (SPEC S4).
//!
//! If one node of a hundred no longer reports it is lost; if a whole zone no longer reports, more likely the control plane is cut off.
//! So each zone has a token bucket, whose rate depends on the zone's state, and when no node at all is ready no pod is evicted. The
//! rules and their numbers are kube-controller-manager's (ComputeZoneState, handleDisruption).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::NodeName;

/// The burst of the token bucket.
const BURST: f64 = 1.0;
/// A zone with more lost nodes than this can be in PartialDisruption.
const FEW_LOST: usize = 2;
/// A node with this label does not count for its zone's state.
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";

/// kube-controller-manager's flags of the same names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvictionRates {
    /// Nodes a second that are tainted in a zone in state Normal, or in FullDisruption while other zones are not
    /// (`--node-eviction-rate`).
    pub node_eviction_rate: f64,
    /// The same in a large zone in PartialDisruption; in a small one no node is tainted (`--secondary-node-eviction-rate`).
    pub secondary_node_eviction_rate: f64,
    /// A zone with more nodes is large (`--large-cluster-size-threshold`).
    pub large_cluster_size_threshold: usize,
    /// The fraction of a zone that is lost in PartialDisruption (`--unhealthy-zone-threshold`).
    pub unhealthy_zone_threshold: f64,
}

impl Default for EvictionRates {
    fn default() -> Self {
        EvictionRates {
            node_eviction_rate: 0.1,
            secondary_node_eviction_rate: 0.01,
            large_cluster_size_threshold: 50,
            unhealthy_zone_threshold: 0.55,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneState {
    Normal,
    PartialDisruption,
    FullDisruption,
}

impl EvictionRates {
    /// The state of a zone with these counts (upstream: ComputeZoneState).
    pub fn state(&self, ready: usize, not_ready: usize) -> ZoneState {
        if ready == 0 && not_ready > 0 {
            return ZoneState::FullDisruption;
        }
        let part = not_ready as f64 / (ready + not_ready).max(1) as f64;
        if not_ready > FEW_LOST && part >= self.unhealthy_zone_threshold {
            ZoneState::PartialDisruption
        } else {
            ZoneState::Normal
        }
    }

    /// Nodes a second, in a zone of this state and size.
    fn rate(&self, state: ZoneState, size: usize) -> f64 {
        match state {
            ZoneState::Normal | ZoneState::FullDisruption => self.node_eviction_rate,
            ZoneState::PartialDisruption if size > self.large_cluster_size_threshold => {
                self.secondary_node_eviction_rate
            }
            ZoneState::PartialDisruption => 0.0,
        }
    }
}

/// The zone of a node: region and zone by its labels; all nodes without these are in one zone.
pub fn zone_of(node: &Node) -> String {
    let label = |keys: [&str; 2]| {
        let labels = node.metadata.labels.as_ref()?;
        keys.iter().find_map(|key| labels.get(*key)).cloned()
    };
    let zone = label([
        "failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/zone",
    ]);
    let region = label([
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/region",
    ]);
    let (zone, region) = (zone.unwrap_or_default(), region.unwrap_or_default());
    if zone.is_empty() && region.is_empty() {
        return String::new();
    }
    // A separator that no label value contains.
    format!("{region}:\u{0}:{zone}")
}

/// The state of a node in one sync.
pub struct NodeObservation<'a> {
    pub node: &'a Node,
    pub ready: bool,
    /// Not ready, and without its NoExecute taint.
    pub waits: bool,
}

/// The decision about all nodes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct EvictionDecision {
    /// The nodes, by name, that may be tainted now.
    pub taint: BTreeSet<NodeName>,
    /// No node is ready: all NoExecute taints are removed, and no pod is evicted until a node is ready again.
    pub remove_all: bool,
    /// A node is ready again after all were lost: every node has its whole grace period again.
    pub restart_grace: bool,
}

#[derive(Default)]
struct Zone {
    /// `None` until the first sync.
    state: Option<ZoneState>,
    rate: f64,
    tokens: f64,
    filled: Option<Timestamp>,
    /// The nodes that have a token but not yet the taint.
    granted: BTreeSet<NodeName>,
}

impl Zone {
    fn refill(&mut self, now: Timestamp) {
        let passed = self.filled.map_or(0.0, |at| now.duration_since(at).as_secs_f64());
        self.filled = Some(now);
        self.tokens = (self.tokens + passed.max(0.0) * self.rate).min(BURST);
    }

    fn take(&mut self) -> bool {
        // At a rate of zero no tokens are used.
        let may = self.rate > 0.0 && self.tokens >= 1.0;
        if may {
            self.tokens -= 1.0;
        }
        may
    }
}

/// The state of all zones.
#[derive(Default)]
pub struct Zones {
    rates: EvictionRates,
    zones: BTreeMap<String, Zone>,
}

impl Zones {
    pub fn new(rates: EvictionRates) -> Self {
        Zones {
            rates,
            zones: BTreeMap::new(),
        }
    }

    /// Nodes that wait get tokens in the order of `nodes`.
    pub fn sync(&mut self, nodes: &[NodeObservation<'_>], now: Timestamp) -> EvictionDecision {
        let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for observation in nodes {
            // A node that does not count is still in a zone, whose tokens it needs.
            let (ready, not_ready) = counts.entry(zone_of(observation.node)).or_default();
            let labels = observation.node.metadata.labels.as_ref();
            if labels.is_some_and(|l| l.contains_key(EXCLUDED)) {
                continue;
            }
            if observation.ready {
                *ready += 1;
            } else {
                *not_ready += 1;
            }
        }
        self.zones.retain(|key, _| counts.contains_key(key));
        for key in counts.keys() {
            self.zones.entry(key.clone()).or_insert_with(|| Zone {
                tokens: BURST,
                ..Zone::default()
            });
        }
        let decision = self.update_states(&counts, now);
        if decision.remove_all {
            return decision;
        }
        self.grant_tokens(nodes, decision)
    }

    fn update_states(
        &mut self,
        counts: &BTreeMap<String, (usize, usize)>,
        now: Timestamp,
    ) -> EvictionDecision {
        let full = Some(ZoneState::FullDisruption);
        let counted = || counts.iter().filter(|(_, (ready, not))| ready + not > 0);
        let state = |(ready, not): (usize, usize)| self.rates.state(ready, not);
        let all_are = counted().next().is_some() && counted().all(|(_, c)| Some(state(*c)) == full);
        let all_were = !self.zones.is_empty() && self.zones.values().all(|z| z.state == full);
        for (key, zone) in &mut self.zones {
            zone.refill(now);
            let (ready, not) = counts.get(key).copied().unwrap_or_default();
            let state = self.rates.state(ready, not);
            zone.state = Some(if all_are { ZoneState::FullDisruption } else { state });
            zone.rate = if all_are {
                0.0
            } else {
                self.rates.rate(state, ready + not)
            };
        }
        EvictionDecision {
            remove_all: all_are,
            restart_grace: all_were && !all_are,
            taint: BTreeSet::new(),
        }
    }

    fn grant_tokens(
        &mut self,
        nodes: &[NodeObservation<'_>],
        mut decision: EvictionDecision,
    ) -> EvictionDecision {
        let mut waiting: BTreeSet<&str> = BTreeSet::new();
        for observation in nodes.iter().filter(|l| l.waits) {
            let name = observation.node.metadata.name.as_deref().unwrap_or_default();
            waiting.insert(name);
            let Some(zone) = self.zones.get_mut(&zone_of(observation.node)) else {
                continue;
            };
            // After a failed write no second token is needed.
            if zone.granted.contains(name) || zone.take() {
                let name = NodeName::from(name);
                zone.granted.insert(name.clone());
                decision.taint.insert(name);
            }
        }
        for zone in self.zones.values_mut() {
            zone.granted.retain(|name| waiting.contains(name.as_str()));
        }
        decision
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::world::at;

    #[test]
    fn s4_a_zones_state_follows_from_how_many_of_its_nodes_are_lost() {
        use ZoneState::{FullDisruption, Normal, PartialDisruption};
        let rates = EvictionRates::default();
        for (ready, not_ready, state) in [
            (3, 0, Normal),
            (0, 0, Normal),
            (0, 1, FullDisruption),
            (1, 2, Normal),
            (2, 3, PartialDisruption),
            (9, 11, PartialDisruption),
            (46, 55, Normal),
            (45, 55, PartialDisruption),
        ] {
            assert_eq!(rates.state(ready, not_ready), state, "{ready} {not_ready}");
        }
        for (state, size, rate) in [
            (Normal, 3, 0.1),
            (FullDisruption, 3, 0.1),
            (PartialDisruption, 50, 0.0),
            (PartialDisruption, 51, 0.01),
        ] {
            assert_eq!(rates.rate(state, size), rate, "{state:?} {size}");
        }
    }

    fn node(name: &str, zone: &str) -> Node {
        let mut labels = json!({});
        if !zone.is_empty() {
            labels["topology.kubernetes.io/zone"] = zone.into();
        }
        if name == "excluded" {
            labels[EXCLUDED] = "".into();
        }
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
    }

    /// Syncs nodes of these names (`zone/name`); those with `!` are lost. Returns the nodes to taint.
    fn sync(zones: &mut Zones, nodes: &str, tainted: &[&str], second: i64) -> String {
        let all: Vec<(Node, bool)> = nodes
            .split(' ')
            .map(|n| {
                let lost = n.starts_with('!');
                let (zone, name) = n.trim_start_matches('!').split_once('/').unwrap();
                (node(name, zone), !lost)
            })
            .collect();
        let observations: Vec<NodeObservation<'_>> = all
            .iter()
            .map(|(node, ready)| NodeObservation {
                node,
                ready: *ready,
                waits: !ready && !tainted.contains(&node.metadata.name.as_deref().unwrap()),
            })
            .collect();
        let decision = zones.sync(&observations, at(second));
        let mut parts: Vec<String> = decision.taint.into_iter().map(String::from).collect();
        parts.extend(decision.remove_all.then(|| "remove_all".into()));
        parts.extend(decision.restart_grace.then(|| "restart_grace".into()));
        parts.join(" ")
    }

    #[test]
    fn s4_lost_nodes_are_tainted_one_in_ten_seconds_and_a_failed_write_costs_no_token() {
        let mut zones = Zones::default();
        let nodes = "a/n1 a/n2 a/n3 !a/l1 !a/l2";
        assert_eq!(sync(&mut zones, nodes, &[], 0), "l1");
        assert_eq!(sync(&mut zones, nodes, &[], 5), "l1", "it is not tainted yet");
        assert_eq!(sync(&mut zones, nodes, &["l1"], 9), "");
        assert_eq!(sync(&mut zones, nodes, &["l1"], 10), "l2");
        assert_eq!(sync(&mut zones, nodes, &["l1", "l2"], 60), "");
        assert_eq!(
            sync(
                &mut zones,
                "a/n1 a/n2 a/n3 !a/l1 !a/l2 !a/l3 !a/l4 a/n4 a/n5",
                &["l1", "l2"],
                61
            ),
            "l3",
            "the burst is one"
        );
    }

    #[test]
    fn s4_a_small_zone_that_is_mostly_lost_waits_and_the_others_do_not() {
        let mut zones = Zones::default();
        let nodes = "a/n1 !a/l1 !a/l2 !a/l3 b/n2 b/n3 !b/l4";
        assert_eq!(sync(&mut zones, nodes, &[], 0), "l4");
        assert_eq!(sync(&mut zones, nodes, &["l4"], 1000), "");
        // If one zone is lost and another is not, its nodes are tainted at the usual rate.
        let nodes = "!a/n1 !a/l1 !a/l2 !a/l3 b/n2 b/n3 b/l4";
        assert_eq!(sync(&mut zones, nodes, &[], 1001), "n1");
        assert_eq!(sync(&mut zones, nodes, &["n1"], 1011), "l1");
    }

    #[test]
    fn s4_when_all_nodes_are_lost_none_is_tainted_until_one_is_ready_again() {
        let mut zones = Zones::default();
        assert_eq!(sync(&mut zones, "a/n1 b/n2", &[], 0), "");
        assert_eq!(sync(&mut zones, "!a/n1 !b/n2", &[], 50), "remove_all");
        assert_eq!(sync(&mut zones, "!a/n1 !b/n2", &[], 5000), "remove_all");
        assert_eq!(sync(&mut zones, "a/n1 !b/n2", &[], 5005), "n2 restart_grace");
        assert_eq!(sync(&mut zones, "a/n1 !b/n2", &["n2"], 5010), "");
        let single = "!/only";
        assert_eq!(sync(&mut Zones::default(), single, &[], 0), "remove_all");
    }

    #[test]
    fn s4_a_zone_of_excluded_nodes_only_does_not_keep_the_others_from_being_lost_wholly() {
        let mut zones = Zones::default();
        assert_eq!(sync(&mut zones, "!a/n1 !a/n2 c/excluded", &[], 0), "remove_all");
    }

    #[test]
    fn s4_the_size_of_a_zone_is_the_number_of_all_its_nodes() {
        let mut zones = Zones::default();
        let lost: Vec<String> = (0..13).map(|n| format!("!a/l{n}")).collect();
        let nodes = format!("a/n1 a/n2 a/n3 a/n4 {}", lost.join(" "));
        assert_eq!(sync(&mut zones, &nodes, &[], 0), "");
    }
}
