//! A set of NUMA nodes, as hints name them.

/// The largest number of NUMA nodes a mask can hold: the kubelet's own bound, 64 bits.
pub const MAX_NODES: u32 = u64::BITS;

/// A set of NUMA nodes. Masks compare as numbers: the one with lower nodes is the lesser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NumaMask(u64);

impl NumaMask {
    /// None when a node's id is not below [`MAX_NODES`].
    pub fn of(nodes: impl IntoIterator<Item = u32>) -> Option<NumaMask> {
        let mut bits = 0;
        for node in nodes {
            bits |= 1_u64.checked_shl(node)?;
        }
        Some(NumaMask(bits))
    }

    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn contains(self, node: u32) -> bool {
        1_u64.checked_shl(node).is_some_and(|bit| self.0 & bit != 0)
    }

    #[must_use]
    pub fn and(self, other: NumaMask) -> NumaMask {
        NumaMask(self.0 & other.0)
    }

    pub fn nodes(self) -> impl Iterator<Item = u32> {
        (0..MAX_NODES).filter(move |node| self.contains(*node))
    }

    /// Fewer nodes, or as many with lower ids.
    pub fn is_narrower_than(self, other: NumaMask) -> bool {
        (self.count(), self) < (other.count(), other)
    }
}
