//! Merging hints: one of each resource, in all combinations; the best of their intersections is the result.
//!
//! The comparison is a total order, so combinations with the same intersection are examined once: their number is bounded by
//! the sets of NUMA nodes, not by the product of the hints of all resources.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::{Hint, NumaMask, Policy, ProviderHints, TopologyManager};

/// A combination of hints: their intersection, and whether all are preferred and name the same NUMA nodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Merged {
    common: NumaMask,
    /// The NUMA nodes that all hints name so far; meaningful while `is_preferred`.
    same: Option<NumaMask>,
    is_preferred: bool,
}

impl Merged {
    fn with(self, hint: &Hint) -> Merged {
        let common = hint.affinity.map_or(self.common, |a| self.common.and(a));
        let is_same = match (self.same, hint.affinity) {
            (Some(same), Some(affinity)) => same == affinity,
            _ => true,
        };
        let is_preferred = self.is_preferred && hint.is_preferred && is_same;
        let same = self.same.or(hint.affinity).filter(|_| is_preferred);
        Merged {
            common,
            same,
            is_preferred,
        }
    }
}

/// The hints of each resource, with defaults for providers without hints.
pub(super) fn of_each_resource(providers: &[ProviderHints]) -> Vec<Vec<Hint>> {
    let any = |is_preferred| {
        vec![Hint {
            affinity: None,
            is_preferred,
        }]
    };
    let mut all = Vec::new();
    for provider in providers {
        if provider.is_empty() {
            all.push(any(true));
        }
        all.extend(provider.values().map(|hints| match hints.as_deref() {
            None => any(true),
            Some([]) => any(false),
            Some(hints) => hints.to_vec(),
        }));
    }
    all
}

/// The number of NUMA nodes of the resource that needs most of them.
fn most_needed(hints: &[Vec<Hint>]) -> u32 {
    let fewest = |of: &Vec<Hint>| of.iter().filter_map(|h| Some(h.affinity?.count())).min();
    hints.iter().filter_map(fewest).max().unwrap_or(0)
}

impl TopologyManager {
    pub(super) fn best(&self, hints: &[Vec<Hint>]) -> Hint {
        let mut merged = BTreeSet::from([Merged {
            common: self.all,
            same: None,
            is_preferred: true,
        }]);
        for of in hints {
            let with_all = |m: &Merged| of.iter().map(|h| m.with(h)).collect::<Vec<_>>();
            merged = merged.iter().flat_map(with_all).collect();
        }
        let needed = most_needed(hints);
        let usable = merged.into_iter().filter(|m| !m.common.is_empty());
        let best = usable.min_by(|a, b| {
            let hint = |m: &Merged| (m.common, m.is_preferred);
            self.compare(hint(a), hint(b), needed)
        });
        Hint {
            affinity: Some(best.map_or(self.all, |m| m.common)),
            is_preferred: best.is_some_and(|m| m.is_preferred),
        }
    }

    /// The better one is less. Of two that are not preferred it is the one whose number of NUMA nodes comes closest to the
    /// needed number without exceeding it.
    pub(super) fn compare(&self, a: (NumaMask, bool), b: (NumaMask, bool), needed: u32) -> Ordering {
        let rank = |(mask, is_preferred): (NumaMask, bool)| match (is_preferred, mask.count()) {
            (true, _) => (0, 0),
            (false, count) if count <= needed => (1, needed - count),
            (false, _) => (2, 0),
        };
        rank(a).cmp(&rank(b)).then_with(|| self.compare_masks(a.0, b.0))
    }

    fn compare_masks(&self, a: NumaMask, b: NumaMask) -> Ordering {
        let by_distance = match self.options.prefer_closest && self.policy != Policy::SingleNumaNode {
            true => self.average_distance(a).total_cmp(&self.average_distance(b)),
            false => Ordering::Equal,
        };
        a.count().cmp(&b.count()).then(by_distance).then(a.cmp(&b))
    }

    fn average_distance(&self, mask: NumaMask) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0_f64);
        for from in mask.nodes() {
            for to in mask.nodes() {
                let distance = self.distances.get(&from).and_then(|d| d.get(&to));
                // Distances are a byte in the firmware's table.
                sum += distance.map_or(0.0, |d| f64::from(u32::try_from(*d).unwrap_or(u32::MAX)));
                count += 1.0;
            }
        }
        sum / count.max(1.0)
    }
}
