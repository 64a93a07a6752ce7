//! Capacity that is returned after many elements were removed: a container keeps room for the most elements that it ever had, which after
//! the deletion of thousands of objects is memory that nothing uses.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};

/// Room for so many elements is never returned: it is small, and soon needed again.
const KEPT_ELEMENTS: usize = 64;

/// Whether less than a quarter of a capacity is used, and it is worth returning. A container doubles its capacity when it is full: with
/// a half instead of a quarter, one whose length varies a little would be reallocated over and over.
fn is_sparse(len: usize, capacity: usize) -> bool {
    capacity > KEPT_ELEMENTS && len < capacity / 4
}

/// A container that can return capacity. See the module.
pub trait ShrinkSparse {
    /// Reallocates the container to what it needs if less than a quarter of its capacity is used. To be called after removals: where
    /// elements are removed one by one, all calls together cost as much as the removals.
    fn shrink_sparse(&mut self);
}

impl<T> ShrinkSparse for VecDeque<T> {
    fn shrink_sparse(&mut self) {
        if is_sparse(self.len(), self.capacity()) {
            self.shrink_to_fit();
        }
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> ShrinkSparse for HashMap<K, V, S> {
    fn shrink_sparse(&mut self) {
        if is_sparse(self.len(), self.capacity()) {
            self.shrink_to_fit();
        }
    }
}

impl<T: Eq + Hash, S: BuildHasher> ShrinkSparse for HashSet<T, S> {
    fn shrink_sparse(&mut self) {
        if is_sparse(self.len(), self.capacity()) {
            self.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_sparse_below_a_quarter_of_it_unless_it_is_small() {
        for (len, capacity, expected) in [
            (0, 0, false),
            (0, KEPT_ELEMENTS, false),
            (0, KEPT_ELEMENTS + 1, true),
            (24, 100, true),
            (25, 100, false),
            (100, 100, false),
        ] {
            assert_eq!(is_sparse(len, capacity), expected, "{len} of {capacity}");
        }
    }

    #[test]
    fn a_container_that_was_emptied_returns_its_capacity_and_keeps_the_rest_of_its_elements() {
        let mut queue: VecDeque<usize> = (0..10_000).collect();
        let mut map: HashMap<usize, usize> = (0..10_000).map(|n| (n, n)).collect();
        let mut set: HashSet<usize> = (0..10_000).collect();
        for n in 0..9_990 {
            queue.pop_front();
            map.remove(&n);
            set.remove(&n);
            queue.shrink_sparse();
            map.shrink_sparse();
            set.shrink_sparse();
        }
        for capacity in [queue.capacity(), map.capacity(), set.capacity()] {
            assert!(capacity <= KEPT_ELEMENTS, "{capacity}");
        }
        assert_eq!(queue, (9_990..10_000).collect::<VecDeque<_>>());
        assert!((9_990..10_000).all(|n| map.contains_key(&n) && set.contains(&n)));
    }
}
