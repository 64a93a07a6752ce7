//! The sums of scores of the nodes that are feasible for a class, kept so that the best of them is found by reading
//! one number for every [`BLOCK`] nodes, however large the cluster is.

use crate::cluster::NodeIndex;

/// Nodes under one maximum: so many are read again when the best of them is no longer the best.
const BLOCK: usize = 256;

/// The sum of nodes that are not feasible; other sums are not negative.
pub(super) const NOT_FEASIBLE: i32 = -1;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct FeasibleSums {
    /// By node index; small numbers, so that a pass over them is short.
    sums: Vec<i32>,
    /// The largest sum of each block.
    tops: Vec<i32>,
    feasible: usize,
}

impl FeasibleSums {
    pub fn resize(&mut self, slots: usize) {
        self.sums.resize(slots, NOT_FEASIBLE);
        self.tops.resize(slots.div_ceil(BLOCK), NOT_FEASIBLE);
    }

    pub fn sums(&self) -> &[i32] {
        &self.sums
    }

    pub fn set(&mut self, at: usize, sum: i32) {
        let Some(known) = self.sums.get_mut(at) else {
            return;
        };
        let was = std::mem::replace(known, sum);
        self.feasible = self.feasible + usize::from(sum != NOT_FEASIBLE) - usize::from(was != NOT_FEASIBLE);
        let block = at / BLOCK;
        let Some(top) = self.tops.get_mut(block) else {
            return;
        };
        if sum >= *top {
            *top = sum;
        } else if was == *top {
            let end = self.sums.len().min((block + 1) * BLOCK);
            let of = self.sums.get(block * BLOCK..end).unwrap_or_default();
            *top = of.iter().copied().max().unwrap_or(NOT_FEASIBLE);
        }
    }

    /// One of the nodes with the best sum, another one for another rotation, and how many nodes are feasible.
    pub fn one_of_the_best(&self, rotation: usize) -> Option<(NodeIndex, usize)> {
        let best = self
            .tops
            .iter()
            .copied()
            .max()
            .filter(|best| *best != NOT_FEASIBLE)?;
        let start = rotation % self.sums.len().max(1);
        let at = self
            .first(best, start, self.sums.len())
            .or_else(|| self.first(best, 0, start))?;
        Some((NodeIndex::try_from(at).ok()?, self.feasible))
    }

    /// The first node in a range with this sum.
    fn first(&self, sum: i32, from: usize, to: usize) -> Option<usize> {
        let mut at = from;
        while at < to {
            let end = to.min((at / BLOCK + 1) * BLOCK);
            if self.tops.get(at / BLOCK) == Some(&sum)
                && let Some(found) = self.sums.get(at..end)?.iter().position(|s| *s == sum)
            {
                return Some(at + found);
            }
            at = end;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_sum_is_that_of_a_full_scan() {
        let slots = 3 * BLOCK + 7;
        let mut feasible_sums = FeasibleSums::default();
        feasible_sums.resize(slots);
        assert_eq!(feasible_sums.one_of_the_best(0), None);
        // Numbers without a pattern that follows the blocks; a few of them are the best.
        for n in 0..4 * slots {
            let at = n * 7919 % slots;
            let sum = i32::try_from(n * 31 % 11).unwrap() - 1;
            feasible_sums.set(at, sum);
            let best = feasible_sums.sums().iter().copied().max().unwrap();
            let feasible = feasible_sums
                .sums()
                .iter()
                .filter(|s| **s != NOT_FEASIBLE)
                .count();
            let found = feasible_sums.one_of_the_best(n);
            let Some((index, count)) = found else {
                assert_eq!(best, NOT_FEASIBLE);
                continue;
            };
            assert_eq!(
                (feasible_sums.sums()[index as usize], count),
                (best, feasible),
                "after {n}"
            );
        }
    }

    #[test]
    fn equally_good_nodes_rotate() {
        let mut feasible_sums = FeasibleSums::default();
        feasible_sums.resize(2 * BLOCK);
        for at in [3, BLOCK + 1] {
            feasible_sums.set(at, 9);
        }
        let indices: Vec<NodeIndex> = [0, 4, 2 * BLOCK]
            .iter()
            .map(|rotation| feasible_sums.one_of_the_best(*rotation).unwrap().0)
            .collect();
        assert_eq!(indices, [3, NodeIndex::try_from(BLOCK).unwrap() + 1, 3]);
    }
}
