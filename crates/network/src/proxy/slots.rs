//! The slots of a frontend's endpoints, and the chains that pick one.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// Up to this many endpoints a chain for their exact number picks one.
pub const EXACT: usize = 16;
/// More endpoints than this of one port are not used: 65 slices of 1 000 are not realistic, and slots are 16 bit.
pub const MOST: usize = 1 << 16;
/// How often a chain draws a slot before it takes one of the lower half, which are all filled. At most 2^-7 of the
/// connections reach that.
pub const TRIES: usize = 7;
/// Slots of endpoints of this node, for `externalTrafficPolicy: Local`, begin here.
pub const LOCAL_OFFSET: u32 = 1 << 16;

/// An address and port that connections are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend {
    pub address: IpAddr,
    pub port: u16,
    /// It runs on this node.
    pub local: bool,
}

impl Backend {
    fn identity(self) -> (IpAddr, u16) {
        (self.address, self.port)
    }

    /// Its id in session affinity: 32 bits of FNV-1a. Two endpoints of one Service with the same id share
    /// their clients, which is all that a collision does.
    pub fn affinity_id(self) -> u32 {
        let hash = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        let address = match self.address {
            IpAddr::V4(address) => address.octets().iter().fold(0x811c_9dc5, hash),
            IpAddr::V6(address) => address.octets().iter().fold(0x811c_9dc5, hash),
        };
        // 0 is the default of packets' priority, in which ids are carried.
        self.port.to_be_bytes().iter().fold(address, hash).max(1)
    }
}

/// How many slots the chain for so many endpoints draws from.
pub fn size_class(endpoints: usize) -> usize {
    match endpoints <= EXACT {
        true => endpoints,
        false => endpoints.min(MOST).next_power_of_two(),
    }
}

/// All results of [`size_class`] but 0.
pub fn size_classes() -> impl Iterator<Item = usize> {
    let doubled = std::iter::successors(Some(EXACT * 2), |size| Some(size * 2));
    (1..=EXACT).chain(doubled.take_while(|size| *size <= MOST))
}

/// Gives each endpoint a slot, without a gap. Those that have one keep it where they can: a removal moves one other
/// endpoint at most. `desired` is sorted and without repetition.
pub fn place(previous: &[(IpAddr, u16)], desired: &[Backend]) -> Box<[Backend]> {
    let desired = &desired[..desired.len().min(MOST)];
    let mut slots: Vec<Option<Backend>> = vec![None; desired.len()];
    let mut placed = BTreeSet::new();
    for (slot, before) in slots.iter_mut().zip(previous) {
        let found = desired
            .binary_search_by(|backend| backend.identity().cmp(before))
            .ok();
        if let Some(backend) = found.map(|index| desired[index])
            && placed.insert(backend.identity())
        {
            *slot = Some(backend);
        }
    }
    let mut others = desired
        .iter()
        .filter(|backend| !placed.contains(&backend.identity()));
    slots
        .into_iter()
        .filter_map(|slot| slot.or_else(|| others.next().copied()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backends(last: impl IntoIterator<Item = u8>) -> Vec<Backend> {
        last.into_iter()
            .map(|n| Backend {
                address: IpAddr::from([10, 1, 0, n]),
                port: 80,
                local: false,
            })
            .collect()
    }

    fn last(slots: &[Backend]) -> Vec<u8> {
        let octets = |b: &Backend| match b.address {
            IpAddr::V4(v4) => v4.octets()[3],
            IpAddr::V6(_) => 0,
        };
        slots.iter().map(octets).collect()
    }

    #[test]
    fn n3_a_removal_moves_the_last_slot_only() {
        let all = place(&[], &backends(1..=5));
        let previous: Vec<_> = all.iter().map(|b| b.identity()).collect();
        assert_eq!(last(&place(&previous, &backends([1, 3, 4, 5]))), [1, 5, 3, 4]);
        assert_eq!(last(&place(&previous, &backends(1..=6))), [1, 2, 3, 4, 5, 6]);
        assert_eq!(last(&place(&previous, &backends([2, 7]))), [7, 2]);
        assert_eq!(last(&place(&previous, &[])), [0; 0]);
        let twice = [previous[0], previous[0], previous[1]];
        assert_eq!(
            last(&place(&twice, &backends(1..=3))),
            [1, 3, 2],
            "what was read may be wrong"
        );
    }

    #[test]
    fn n2_every_number_of_endpoints_has_a_chain_and_at_least_half_of_its_slots_are_filled() {
        let classes: BTreeSet<usize> = size_classes().collect();
        for endpoints in (1..=2000).chain([40_000, MOST, MOST + 1]) {
            let class = size_class(endpoints);
            assert!(classes.contains(&class), "{endpoints}");
            let used = endpoints.min(MOST);
            assert!(
                used <= class && (used == class || used > class / 2),
                "{endpoints}"
            );
        }
        assert_eq!((classes.len(), size_classes().count()), (28, 28), "each once");
    }
}
