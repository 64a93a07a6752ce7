//! A set of NUMA nodes.

/// The largest number of NUMA nodes in a mask: upstream's bound, 64 bits.
pub const MAX_NODES: u32 = u64::BITS;

/// A set of NUMA nodes. Masks compare as numbers: the one with lower nodes is the lesser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NumaMask(u64);

impl NumaMask {
    /// `None` if a NUMA node's id is not below [`MAX_NODES`].
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
}

/// The most NUMA nodes of hints: the number of sets is 2 to the power of it (v1.36 has no bound, and does not terminate).
const NODES_OF_HINTS_MAX: usize = 16;

/// All non-empty sets of these NUMA nodes, the narrower ones first. Of more than 16 only the set of all.
pub fn masks_of<'a>(nodes: impl IntoIterator<Item = &'a u32>) -> Vec<NumaMask> {
    let bits: Vec<u64> = nodes
        .into_iter()
        .filter_map(|node| 1_u64.checked_shl(*node))
        .collect();
    if bits.len() > NODES_OF_HINTS_MAX {
        return vec![NumaMask(bits.into_iter().sum())];
    }
    let mut masks = vec![0_u64];
    for bit in bits {
        let with: Vec<u64> = masks.iter().map(|mask| mask | bit).collect();
        masks.extend(with);
    }
    let mut masks: Vec<NumaMask> = masks.into_iter().filter(|m| *m != 0).map(NumaMask).collect();
    masks.sort_by_key(|mask| (mask.count(), *mask));
    masks
}
