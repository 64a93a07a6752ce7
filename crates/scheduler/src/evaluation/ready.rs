//! The sums of the nodes that take a pod of a class by the rules on one node, kept so that finding the best of them
//! looks at one number for every [`BLOCK`] nodes, whatever else stands in the cluster.

use crate::cluster::Place;

/// Nodes under one maximum: so many are looked at again when the best of them is so no more.
const BLOCK: usize = 256;

/// In the sums of nodes that do not take the pod; other sums are not negative.
pub(super) const NOT_READY: i32 = -1;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// By place; small numbers, so that a pass over them is short.
    sums: Vec<i32>,
    /// The largest sum of each block.
    tops: Vec<i32>,
    feasible: usize,
}

impl Ready {
    pub fn resize(&mut self, places: usize) {
        self.sums.resize(places, NOT_READY);
        self.tops.resize(places.div_ceil(BLOCK), NOT_READY);
    }

    pub fn sums(&self) -> &[i32] {
        &self.sums
    }

    pub fn set(&mut self, at: usize, sum: i32) {
        let Some(known) = self.sums.get_mut(at) else {
            return;
        };
        let was = std::mem::replace(known, sum);
        self.feasible = self.feasible + usize::from(sum != NOT_READY) - usize::from(was != NOT_READY);
        let block = at / BLOCK;
        let Some(top) = self.tops.get_mut(block) else {
            return;
        };
        if sum >= *top {
            *top = sum;
        } else if was == *top {
            let end = self.sums.len().min((block + 1) * BLOCK);
            let of = self.sums.get(block * BLOCK..end).unwrap_or_default();
            *top = of.iter().copied().max().unwrap_or(NOT_READY);
        }
    }

    /// One of the places with the best sum, another one in another turn; and how many will do.
    pub fn one_of_the_best(&self, turn: usize) -> Option<(Place, usize)> {
        let best = self
            .tops
            .iter()
            .copied()
            .max()
            .filter(|best| *best != NOT_READY)?;
        let start = turn % self.sums.len().max(1);
        let at = self
            .first(best, start, self.sums.len())
            .or_else(|| self.first(best, 0, start))?;
        Some((Place::try_from(at).ok()?, self.feasible))
    }

    /// The first place in a range with this sum.
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
    fn the_best_is_what_a_walk_over_all_places_finds() {
        let places = 3 * BLOCK + 7;
        let mut ready = Ready::default();
        ready.resize(places);
        assert_eq!(ready.one_of_the_best(0), None);
        // Numbers without a pattern that blocks have; a few of them are the best.
        for n in 0..4 * places {
            let at = n * 7919 % places;
            let sum = i32::try_from(n * 31 % 11).unwrap() - 1;
            ready.set(at, sum);
            let best = ready.sums().iter().copied().max().unwrap();
            let feasible = ready.sums().iter().filter(|s| **s != NOT_READY).count();
            let found = ready.one_of_the_best(n);
            let Some((place, count)) = found else {
                assert_eq!(best, NOT_READY);
                continue;
            };
            assert_eq!(
                (ready.sums()[place as usize], count),
                (best, feasible),
                "after {n}"
            );
        }
    }

    #[test]
    fn equals_take_turns() {
        let mut ready = Ready::default();
        ready.resize(2 * BLOCK);
        for at in [3, BLOCK + 1] {
            ready.set(at, 9);
        }
        let places: Vec<Place> = [0, 4, 2 * BLOCK]
            .iter()
            .map(|turn| ready.one_of_the_best(*turn).unwrap().0)
            .collect();
        assert_eq!(places, [3, Place::try_from(BLOCK).unwrap() + 1, 3]);
    }
}
