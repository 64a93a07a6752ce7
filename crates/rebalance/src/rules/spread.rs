//! One topology spread constraint as pods have it: the matching pods of each domain, and by how much they violate it. A
//! violation is the number of pods above the fewest in a domain plus maxSkew, over all domains; so a move from one of two
//! fullest domains lessens it, which the skew alone would not show.

use std::collections::BTreeMap;
use std::sync::Arc;

use knarr_scheduler::cluster::NodeIndex;
use knarr_scheduler::pod_info::SpreadConstraint;

use super::domains::Domains;

/// See the module.
#[derive(Debug)]
pub(crate) struct SpreadRule {
    pub namespace: String,
    pub constraint: SpreadConstraint,
    domains: Arc<Domains>,
    /// Matching pods, of the domains that have any.
    counts: BTreeMap<u32, u32>,
    /// How many domains have each number of pods.
    histogram: BTreeMap<u32, u32>,
}

impl SpreadRule {
    pub fn new(namespace: &str, constraint: SpreadConstraint, domains: Arc<Domains>) -> Self {
        let mut histogram = BTreeMap::new();
        if domains.number > 0 {
            histogram.insert(0, domains.number);
        }
        SpreadRule {
            namespace: namespace.to_string(),
            constraint,
            domains,
            counts: BTreeMap::new(),
            histogram,
        }
    }

    fn count(&self, domain: u32) -> u32 {
        self.counts.get(&domain).copied().unwrap_or(0)
    }

    fn set(&mut self, domain: u32, to: u32) {
        let was = self.count(domain);
        if let Some(domains) = self.histogram.get_mut(&was) {
            *domains -= 1;
            if *domains == 0 {
                self.histogram.remove(&was);
            }
        }
        *self.histogram.entry(to).or_default() += 1;
        if to == 0 {
            self.counts.remove(&domain);
        } else {
            self.counts.insert(domain, to);
        }
    }

    pub fn add(&mut self, node: NodeIndex, pods: u32) {
        if let Some(domain) = self.domains.of(node) {
            self.set(domain, self.count(domain) + pods);
        }
    }

    pub fn remove(&mut self, node: NodeIndex) {
        if let Some(domain) = self.domains.of(node) {
            self.set(domain, self.count(domain).saturating_sub(1));
        }
    }

    /// The most pods of a domain that violate nothing.
    fn limit(&self, fewest: u32) -> u32 {
        let fewest = if (self.domains.number as usize) < self.constraint.min_domains {
            0
        } else {
            fewest
        };
        fewest.saturating_add(u32::try_from(self.constraint.max_skew).unwrap_or(u32::MAX))
    }

    fn fewest(&self) -> u32 {
        self.histogram.keys().next().copied().unwrap_or(0)
    }

    fn above(&self, limit: u32) -> u64 {
        let Some(first) = limit.checked_add(1) else {
            return 0;
        };
        let over = self.histogram.range(first..);
        over.map(|(count, domains)| u64::from(count - limit) * u64::from(*domains))
            .sum()
    }

    pub fn value(&self) -> u64 {
        self.above(self.limit(self.fewest()))
    }

    /// The violation with one more pod on the node.
    pub fn value_with(&self, node: NodeIndex) -> u64 {
        let Some(domain) = self.domains.of(node) else {
            return self.value();
        };
        let count = self.count(domain);
        let fewest = self.fewest();
        let is_last = count == fewest && self.histogram.get(&count) == Some(&1);
        let limit = self.limit(if is_last {
            let next = self.histogram.keys().nth(1).copied();
            next.map_or(count + 1, |next| next.min(count + 1))
        } else {
            fewest
        });
        let over = |count: u32| u64::from(count.saturating_sub(limit));
        (self.above(limit) + over(count + 1)).saturating_sub(over(count))
    }

    /// By how many pods the node's domain is above the limit.
    pub fn excess(&self, node: NodeIndex) -> u32 {
        let Some(domain) = self.domains.of(node) else {
            return 0;
        };
        self.count(domain).saturating_sub(self.limit(self.fewest()))
    }

    /// The domain of the node, if it counts.
    pub fn domain(&self, node: NodeIndex) -> Option<u32> {
        self.domains.of(node)
    }
}
