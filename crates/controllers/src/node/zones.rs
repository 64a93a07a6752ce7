//! How fast nodes that are lost may have their pods evicted: per zone, by how much of the zone is lost (SPEC S4).
//!
//! One node in a hundred that falls silent is lost; a whole zone that falls silent is more likely our own view that is
//! broken. So each zone has a token bucket, whose rate depends on the zone's state, and when nothing at all is left
//! nobody is evicted. The rules and their numbers are kube-controller-manager's.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

/// Nodes that may wait for no token at once.
const BURST: f64 = 1.0;
/// A zone needs more lost nodes than this to count as partially disrupted.
const FEW: usize = 2;
/// A node with this label says nothing of its zone's health.
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";

/// kube-controller-manager's flags of the same names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvictionRates {
    /// Nodes a second that get their taint in a zone that is well, or wholly lost while others are not
    /// (`--node-eviction-rate`).
    pub node_eviction_rate: f64,
    /// The same in a large zone of which a large part is lost; a small one waits (`--secondary-node-eviction-rate`).
    pub secondary_node_eviction_rate: f64,
    /// A zone with more nodes is large (`--large-cluster-size-threshold`).
    pub large_cluster_size_threshold: usize,
    /// The part of a zone that must be lost for that (`--unhealthy-zone-threshold`).
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
    /// A zone's state by its counts.
    pub fn state(&self, ready: usize, not_ready: usize) -> ZoneState {
        if ready == 0 && not_ready > 0 {
            return ZoneState::FullDisruption;
        }
        let part = not_ready as f64 / (ready + not_ready).max(1) as f64;
        if not_ready > FEW && part >= self.unhealthy_zone_threshold {
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

/// The zone a node is in: region and zone, from its labels; all nodes without are in one.
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
    // A separator that no label's value holds.
    format!("{region}:\u{0}:{zone}")
}

/// What one look showed of a node.
pub struct Look<'a> {
    pub node: &'a Node,
    pub ready: bool,
    /// Not ready, and without the taint that evicts.
    pub waits: bool,
}

/// What is to be done after a look at all nodes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Nodes, by name, that may get the taint now.
    pub taint: BTreeSet<String>,
    /// Nothing is left that is well: all such taints are to go, and nobody is evicted until some node is back.
    pub withdraw: bool,
    /// Some node is back after all were lost: every node has its whole grace again.
    pub forgive: bool,
}

#[derive(Default)]
struct Zone {
    /// `None` until it has been looked at once.
    state: Option<ZoneState>,
    rate: f64,
    tokens: f64,
    filled: Option<Timestamp>,
    /// Those that have their token and not yet their taint.
    granted: BTreeSet<String>,
}

impl Zone {
    fn refill(&mut self, now: Timestamp) {
        let passed = self.filled.map_or(0.0, |at| now.duration_since(at).as_secs_f64());
        self.filled = Some(now);
        self.tokens = (self.tokens + passed.max(0.0) * self.rate).min(BURST);
    }

    fn take(&mut self) -> bool {
        // Under a rate of zero what is saved up is not spent either.
        let may = self.rate > 0.0 && self.tokens >= 1.0;
        if may {
            self.tokens -= 1.0;
        }
        may
    }
}

/// All zones, from look to look.
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

    /// Those that wait get their tokens in the order they are named.
    pub fn look(&mut self, nodes: &[Look<'_>], now: Timestamp) -> Verdict {
        let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for look in nodes {
            // A node that does not count still is in a zone, whose tokens it needs.
            let (ready, not_ready) = counts.entry(zone_of(look.node)).or_default();
            let labels = look.node.metadata.labels.as_ref();
            if labels.is_some_and(|l| l.contains_key(EXCLUDED)) {
                continue;
            }
            if look.ready {
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
        let verdict = self.judge(&counts, now);
        if verdict.withdraw {
            return verdict;
        }
        self.grant(nodes, verdict)
    }

    fn judge(&mut self, counts: &BTreeMap<String, (usize, usize)>, now: Timestamp) -> Verdict {
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
        Verdict {
            withdraw: all_are,
            forgive: all_were && !all_are,
            taint: BTreeSet::new(),
        }
    }

    fn grant(&mut self, nodes: &[Look<'_>], mut verdict: Verdict) -> Verdict {
        let mut waiting: BTreeSet<&str> = BTreeSet::new();
        for look in nodes.iter().filter(|l| l.waits) {
            let name = look.node.metadata.name.as_deref().unwrap_or_default();
            waiting.insert(name);
            let Some(zone) = self.zones.get_mut(&zone_of(look.node)) else {
                continue;
            };
            // A write that failed costs no second token.
            if zone.granted.contains(name) || zone.take() {
                zone.granted.insert(name.to_string());
                verdict.taint.insert(name.to_string());
            }
        }
        for zone in self.zones.values_mut() {
            zone.granted.retain(|name| waiting.contains(name.as_str()));
        }
        verdict
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

    /// Looks at nodes of these names (`zone/name`); those after `!` are lost. Answers who gets its taint.
    fn sync(zones: &mut Zones, nodes: &str, tainted: &[&str], second: i64) -> String {
        let all: Vec<(Node, bool)> = nodes
            .split(' ')
            .map(|n| {
                let lost = n.starts_with('!');
                let (zone, name) = n.trim_start_matches('!').split_once('/').unwrap();
                (node(name, zone), !lost)
            })
            .collect();
        let looks: Vec<Look<'_>> = all
            .iter()
            .map(|(node, ready)| Look {
                node,
                ready: *ready,
                waits: !ready && !tainted.contains(&node.metadata.name.as_deref().unwrap()),
            })
            .collect();
        let verdict = zones.look(&looks, at(second));
        let mut words: Vec<String> = verdict.taint.into_iter().collect();
        words.extend(verdict.withdraw.then(|| "withdraw".into()));
        words.extend(verdict.forgive.then(|| "forgive".into()));
        words.join(" ")
    }

    #[test]
    fn s4_lost_nodes_are_tainted_one_in_ten_seconds_and_a_failed_write_costs_no_token() {
        let mut zones = Zones::default();
        let nodes = "a/n1 a/n2 a/n3 !a/l1 !a/l2";
        assert_eq!(sync(&mut zones, nodes, &[], 0), "l1");
        assert_eq!(
            sync(&mut zones, nodes, &[], 5),
            "l1",
            "its taint is not there yet"
        );
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
            "no more than one is saved up"
        );
    }

    #[test]
    fn s4_a_small_zone_that_is_mostly_lost_waits_and_the_others_do_not() {
        let mut zones = Zones::default();
        let nodes = "a/n1 !a/l1 !a/l2 !a/l3 b/n2 b/n3 !b/l4";
        assert_eq!(sync(&mut zones, nodes, &[], 0), "l4");
        assert_eq!(sync(&mut zones, nodes, &["l4"], 1000), "");
        // A zone lost wholly beside one that is well is evicted at the usual rate.
        let nodes = "!a/n1 !a/l1 !a/l2 !a/l3 b/n2 b/n3 b/l4";
        assert_eq!(sync(&mut zones, nodes, &[], 1001), "n1");
        assert_eq!(sync(&mut zones, nodes, &["n1"], 1011), "l1");
    }

    #[test]
    fn s4_when_all_is_lost_nobody_is_evicted_until_somebody_is_back() {
        let mut zones = Zones::default();
        assert_eq!(sync(&mut zones, "a/n1 b/n2", &[], 0), "");
        assert_eq!(sync(&mut zones, "!a/n1 !b/n2", &[], 50), "withdraw");
        assert_eq!(sync(&mut zones, "!a/n1 !b/n2", &[], 5000), "withdraw");
        assert_eq!(sync(&mut zones, "a/n1 !b/n2", &[], 5005), "n2 forgive");
        assert_eq!(sync(&mut zones, "a/n1 !b/n2", &["n2"], 5010), "");
        let single = "!/only";
        assert_eq!(sync(&mut Zones::default(), single, &[], 0), "withdraw");
    }

    #[test]
    fn s4_a_zone_of_excluded_nodes_only_does_not_keep_the_others_from_being_lost_wholly() {
        let mut zones = Zones::default();
        assert_eq!(sync(&mut zones, "!a/n1 !a/n2 c/excluded", &[], 0), "withdraw");
    }

    #[test]
    fn s4_whether_a_zone_is_small_is_a_question_of_the_sum_of_its_nodes() {
        let mut zones = Zones::default();
        let lost: Vec<String> = (0..13).map(|n| format!("!a/l{n}")).collect();
        let nodes = format!("a/n1 a/n2 a/n3 a/n4 {}", lost.join(" "));
        assert_eq!(sync(&mut zones, &nodes, &[], 0), "");
    }
}
