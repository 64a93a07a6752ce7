//! The changes of several Services, put in order for one commit: all removals, then all additions, each set's together.

use std::collections::BTreeMap;
use std::sync::Arc;

use knarr_network::proxy::{Change, Element, Family};
use knarr_nftables::{Batch, Set};

use crate::table::{self, Table, TableError};

/// Elements of one commit: the kernel's transaction lock is held for some milliseconds.
const FULL_ELEMENTS: usize = 8192;

pub(super) const FAMILIES: [Family; 2] = Family::ALL;

/// As netlink names it.
pub(super) fn nft_family(family: Family) -> knarr_nftables::Family {
    match family {
        Family::V4 => knarr_nftables::Family::Ip,
        Family::V6 => knarr_nftables::Family::Ip6,
    }
}

/// The tables of both families.
#[derive(Debug)]
pub(super) struct Tables {
    pub v4: Table,
    pub v6: Table,
}

impl Tables {
    pub fn of(&self, family: Family) -> &Table {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }
}

#[derive(Default)]
struct OfSet {
    removals: Batch,
    additions: Batch,
}

/// See the module.
#[derive(Default)]
pub(super) struct Transaction {
    sets: BTreeMap<(Family, &'static str), OfSet>,
    elements: usize,
}

impl Transaction {
    /// A change that shall be made at one moment.
    pub fn put(&mut self, tables: &Tables, change: &Change) -> Result<(), TableError> {
        for family in FAMILIES {
            let of_family = change.table(family);
            let table = tables.of(family);
            for element in &of_family.remove {
                let set = table.set(element.set)?;
                let removals = &mut self.of_set(family, element).removals;
                removals.delete(set, table::element(&element.key, None))?;
            }
            for element in &of_family.add {
                let set: &Arc<Set> = table.set(element.set)?;
                let additions = &mut self.of_set(family, element).additions;
                additions.add(set, table::element(&element.key, element.data.as_ref()))?;
            }
            self.elements += of_family.len();
        }
        Ok(())
    }

    fn of_set(&mut self, family: Family, element: &Element) -> &mut OfSet {
        self.sets.entry((family, element.set)).or_default()
    }

    pub fn is_full(&self) -> bool {
        self.elements >= FULL_ELEMENTS
    }

    /// One batch; nothing is left.
    pub fn take(&mut self) -> Batch {
        let sets = std::mem::take(&mut self.sets);
        self.elements = 0;
        let mut batch = Batch::new();
        for of_set in sets.values() {
            batch.append(&of_set.removals);
        }
        for of_set in sets.values() {
            batch.append(&of_set.additions);
        }
        batch
    }
}
