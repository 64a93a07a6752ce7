//! A table of ours in the kernel: what was decided in `knarr-network` is written by `knarr-nftables`, and read back to be
//! compared.

use std::collections::BTreeMap;
use std::sync::Arc;

use knarr_network::nft;
use knarr_nftables::{Batch, Data, Element, Elements, Family, Nftables, Set, Verdict};

#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error(transparent)]
    Nftables(#[from] knarr_nftables::Error),
    #[error("the table {family} {table} has no set {set}")]
    NoSet {
        family: Family,
        table: String,
        set: String,
    },
    #[error("a thread of the network failed")]
    Thread(#[from] tokio::task::JoinError),
}

impl TableError {
    /// A table, a set or an element that should be there is not.
    pub fn is_not_found(&self) -> bool {
        match self {
            TableError::Nftables(error) => error.is_not_found(),
            TableError::NoSet { .. } => true,
            TableError::Thread(_) => false,
        }
    }
}

type Result<T> = std::result::Result<T, TableError>;

/// The sets and maps of one table, as they were declared when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    family: Family,
    name: String,
    sets: BTreeMap<Arc<str>, Arc<Set>>,
}

impl Table {
    /// What the kernel has of it: no sets, if there is no such table.
    pub fn read(nftables: &mut Nftables, family: Family, name: &str) -> Result<Self> {
        let sets = nftables.sets(family, name)?;
        Ok(Table {
            family,
            name: name.into(),
            sets: sets.into_iter().map(|set| (set.name.clone(), set)).collect(),
        })
    }

    pub fn family(&self) -> Family {
        self.family
    }

    pub fn set(&self, name: &str) -> Result<&Arc<Set>> {
        self.sets.get(name).ok_or_else(|| TableError::NoSet {
            family: self.family,
            table: self.name.clone(),
            set: name.into(),
        })
    }

    /// All elements of a set, in the form in which decisions are made.
    pub fn elements(&self, nftables: &mut Nftables, set: &str) -> Result<nft::Elements> {
        let elements = nftables.elements(self.set(set)?)?;
        Ok(elements
            .iter()
            .map(|e| (key_of(&e), e.data.map(data_of)))
            .collect())
    }
}

/// Removes the tables of every family whose names `is_ours`, all of them or none.
pub fn remove(nftables: &mut Nftables, is_ours: &dyn Fn(&str) -> bool) -> Result<()> {
    let mut batch = Batch::new();
    for (family, name) in nftables.tables()? {
        if is_ours(&name) {
            batch.delete_table(family, &name);
        }
    }
    Ok(nftables.commit(&batch)?)
}

/// An element as it is written, without a copy.
pub fn element<'a>(key: &'a nft::Key, data: Option<&'a nft::Data>) -> Element<'a> {
    Element {
        key: &key.start,
        key_end: key.end.as_deref(),
        data: data.map(|data| match data {
            nft::Data::Value(value) => Data::Value(value),
            nft::Data::Verdict(verdict) => Data::Verdict(match verdict {
                nft::Verdict::Accept => Verdict::Accept,
                nft::Verdict::Drop => Verdict::Drop,
                nft::Verdict::Continue => Verdict::Continue,
                nft::Verdict::Return => Verdict::Return,
                nft::Verdict::Jump(chain) => Verdict::Jump(chain),
                nft::Verdict::Goto(chain) => Verdict::Goto(chain),
            }),
        }),
        timeout: None,
    }
}

fn key_of(element: &Element<'_>) -> nft::Key {
    nft::Key {
        start: element.key.into(),
        end: element.key_end.map(Box::from),
    }
}

fn data_of(data: Data<'_>) -> nft::Data {
    match data {
        Data::Value(value) => nft::Data::Value(value.into()),
        Data::Verdict(verdict) => nft::Data::Verdict(match verdict {
            Verdict::Accept => nft::Verdict::Accept,
            Verdict::Drop => nft::Verdict::Drop,
            Verdict::Continue => nft::Verdict::Continue,
            Verdict::Return => nft::Verdict::Return,
            Verdict::Jump(chain) => nft::Verdict::Jump(chain.into()),
            Verdict::Goto(chain) => nft::Verdict::Goto(chain.into()),
        }),
    }
}

/// A set's elements in the order of their keys.
struct Dump {
    set: Arc<Set>,
    elements: Elements,
    /// Indexes of elements.
    order: Vec<u32>,
    /// In this order, too.
    is_desired: Vec<bool>,
}

fn ends<'a>(element: &Element<'a>) -> (&'a [u8], &'a [u8]) {
    (element.key, element.key_end.unwrap_or(element.key))
}

impl Dump {
    fn read(nftables: &mut Nftables, set: &Arc<Set>) -> Result<Self> {
        let elements = nftables.elements(set)?;
        let mut order: Vec<u32> = (0..).take(elements.len()).collect();
        order.sort_unstable_by_key(|index| elements.get(*index as usize).as_ref().map(ends));
        Ok(Dump {
            set: set.clone(),
            is_desired: vec![false; order.len()],
            elements,
            order,
        })
    }

    fn find(&self, element: &Element<'_>) -> Option<usize> {
        let desired = Some(ends(element));
        let key = |index: &u32| self.elements.get(*index as usize).as_ref().map(ends);
        self.order.binary_search_by_key(&desired, key).ok()
    }
}

/// The changes from the kernel's sets to the desired ones.
pub struct Comparison {
    sets: BTreeMap<Arc<str>, Dump>,
    removals: Batch,
    additions: Batch,
}

impl Comparison {
    /// Reads these sets of a table; to one of another table use another comparison.
    pub fn read(nftables: &mut Nftables, table: &Table, sets: &[&str]) -> Result<Self> {
        let mut dumps = BTreeMap::new();
        for name in sets {
            let set = table.set(name)?;
            dumps.insert(set.name.clone(), Dump::read(nftables, set)?);
        }
        Ok(Comparison {
            sets: dumps,
            removals: Batch::new(),
            additions: Batch::new(),
        })
    }

    /// Elements that the kernel has.
    pub fn elements(&self) -> usize {
        self.sets.values().map(|dump| dump.order.len()).sum()
    }

    /// What was read of a set.
    pub fn of_set(&self, name: &str) -> nft::Elements {
        let elements = self
            .sets
            .get(name)
            .into_iter()
            .flat_map(|dump| dump.elements.iter());
        elements.map(|e| (key_of(&e), e.data.map(data_of))).collect()
    }

    /// Adds a desired element. Elements of sets that were not read are ignored.
    pub fn want(&mut self, set: &str, key: &nft::Key, data: Option<&nft::Data>) -> Result<()> {
        let Some(dump) = self.sets.get_mut(set) else {
            return Ok(());
        };
        let desired = element(key, data);
        if let Some(place) = dump.find(&desired) {
            if let Some(is_desired) = dump.is_desired.get_mut(place) {
                *is_desired = true;
            }
            let index = dump.order.get(place).map_or(0, |index| *index as usize);
            if dump.elements.get(index).is_some_and(|e| e.data == desired.data) {
                return Ok(());
            }
            self.removals.delete(&dump.set, desired)?;
        }
        self.additions.add(&dump.set, desired)?;
        Ok(())
    }

    /// One batch that does it all; empty if there is nothing to do.
    pub fn batch(mut self) -> Result<Batch> {
        for dump in self.sets.values() {
            let undesired = dump
                .order
                .iter()
                .zip(&dump.is_desired)
                .filter(|(_, is_desired)| !**is_desired);
            for element in undesired.filter_map(|(index, _)| dump.elements.get(*index as usize)) {
                self.removals.delete(&dump.set, element)?;
            }
        }
        self.removals.append(&self.additions);
        Ok(self.removals)
    }
}
