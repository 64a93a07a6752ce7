//! The changes of the kernel's tables.

use std::net::IpAddr;

use crate::nft::{Data, Key};

/// The families of nftables that have a table each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// As in `ipFamilies` of Services.
    pub fn api_name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }

    /// As `nft` names it.
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }
}

/// An element of one of the sets and maps in [`layout`](super::layout).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element {
    pub set: &'static str,
    pub key: Key,
    /// `None` in sets, and in removals, which need the key alone.
    pub data: Option<Data>,
}

/// The change of the table of one family: one transaction, removals first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableChange {
    pub remove: Vec<Element>,
    pub add: Vec<Element>,
}

impl TableChange {
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.add.is_empty()
    }

    pub fn len(&self) -> usize {
        self.remove.len() + self.add.len()
    }
}

/// Conntrack entries that would keep UDP clients with removed endpoints: all of `protocol` UDP whose original
/// destination is the frontend and whose reply source is none of `keep`. Delete them after the commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleUdp {
    pub family: Family,
    /// `None` is a node port: any of the node's addresses.
    pub address: Option<IpAddr>,
    pub port: u16,
    /// Endpoints that serve, whether new connections reach them or not.
    pub keep: Vec<(IpAddr, u16)>,
}

/// The change of one Service on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub v4: TableChange,
    pub v6: TableChange,
    pub stale_udp: Vec<StaleUdp>,
}

impl Change {
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty() && self.stale_udp.is_empty()
    }

    pub fn table(&self, family: Family) -> &TableChange {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    pub fn table_mut(&mut self, family: Family) -> &mut TableChange {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n3_a_change_is_empty_if_no_part_of_it_has_anything() {
        let element = Element {
            set: "services",
            key: Key::exact(vec![1]),
            data: None,
        };
        let removal = TableChange {
            remove: vec![element.clone()],
            add: Vec::new(),
        };
        let addition = TableChange {
            remove: Vec::new(),
            add: vec![element],
        };
        assert!(TableChange::default().is_empty() && Change::default().is_empty());
        for table in [removal, addition] {
            assert!(!table.is_empty());
            for family in Family::ALL {
                let mut change = Change::default();
                *change.table_mut(family) = table.clone();
                assert!(!change.is_empty(), "{family:?}");
            }
        }
        let stale = StaleUdp {
            family: Family::V4,
            address: None,
            port: 53,
            keep: Vec::new(),
        };
        let change = Change {
            stale_udp: vec![stale],
            ..Change::default()
        };
        assert!(!change.is_empty());
    }

    #[test]
    fn n2_families_have_the_names_that_nft_has_for_them() {
        assert_eq!(Family::ALL.map(Family::name), ["ip", "ip6"]);
    }
}
