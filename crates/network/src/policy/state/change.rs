//! The changes to make in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Policies;
use super::groups::{GroupId, SetId};
use crate::nft::{Data, Key};
use crate::policy::peers::SetKey;
use crate::policy::ruleset::{Chain, ChainRule, FIXED_SETS, Ruleset, Set, SetType};

/// An element that is in a set (with its data) or is not.
type Presence = Option<Option<Data>>;

/// An element that is added, removed or gets other data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub set: Arc<str>,
    pub key: Key,
    /// What the kernel has.
    pub before: Presence,
    /// The desired state.
    pub after: Presence,
}

/// Carried out in the order of the fields. Only `operations` change what is in force, and they do it in one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// New sets, with all their elements.
    pub sets: BTreeMap<Arc<str>, Set>,
    /// New chains.
    pub chains: BTreeMap<Arc<str>, Chain>,
    pub operations: Vec<Operation>,
    /// Chains that no element leads to any more.
    pub unused_chains: Vec<Arc<str>>,
    /// Sets that no chain reads any more.
    pub unused_sets: Vec<Arc<str>>,
}

impl Change {
    pub fn is_empty(&self) -> bool {
        *self == Change::default()
    }

    /// Makes the sets, without elements, and the chains.
    pub fn additions(&self, table: &str) -> String {
        additions(&self.sets, &self.chains, table)
    }

    /// Deletes what is not used any more.
    pub fn deletions(&self, table: &str) -> String {
        deletions(&self.unused_chains, &self.unused_sets, table)
    }
}

fn additions(sets: &BTreeMap<Arc<str>, Set>, chains: &BTreeMap<Arc<str>, Chain>, table: &str) -> String {
    let sets = sets.iter().filter(|(name, _)| !FIXED_SETS.contains(&&***name));
    let sets = sets.map(|(name, set)| set.declaration(table, name));
    let chains = chains.iter().map(|(name, chain)| chain.script(table, name));
    sets.chain(chains).collect()
}

fn deletions(chains: &[Arc<str>], sets: &[Arc<str>], table: &str) -> String {
    let chains = chains
        .iter()
        .map(|name| format!("delete chain inet {table} {name}\n"));
    let sets = sets
        .iter()
        .map(|name| format!("delete set inet {table} {name}\n"));
    chains.chain(sets).collect()
}

impl Ruleset {
    /// Makes all sets of peers, without elements, and all chains; those that are there already are made equal.
    pub fn additions(&self, table: &str) -> String {
        additions(&self.sets, &self.chains, table)
    }

    /// Deletes those of these chains and sets that are of peers and groups and not in the ruleset.
    pub fn deletions(&self, table: &str, chains: &[Arc<str>], sets: &[Arc<str>]) -> String {
        let is_unused = |name: &&Arc<str>| {
            let is_known = self.sets.contains_key(*name) || self.chains.contains_key(*name);
            Ruleset::is_numbered(name) && !is_known
        };
        let unused =
            |names: &[Arc<str>]| -> Vec<Arc<str>> { names.iter().filter(is_unused).cloned().collect() };
        deletions(&unused(chains), &unused(sets), table)
    }
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    pub new_groups: BTreeSet<GroupId>,
    pub unused_groups: BTreeSet<GroupId>,
    pub new_sets: BTreeSet<SetId>,
    pub unused_sets: BTreeSet<SetId>,
    members: BTreeMap<(SetId, bool), BTreeMap<Key, (Presence, Presence)>>,
    locals: BTreeMap<(&'static str, Key), (Presence, Presence)>,
}

impl Pending {
    /// Elements of new sets are taken from the state when the change is, and are not recorded one by one.
    pub fn note_member(&mut self, id: SetId, is_ipv4: bool, key: &Key, is_in: bool) {
        if self.new_sets.contains(&id) {
            return;
        }
        let of_set = self.members.entry((id, is_ipv4)).or_default();
        let before = (!is_in).then_some(None);
        let noted = of_set.entry(key.clone()).or_insert((before, None));
        noted.1 = is_in.then_some(None);
    }

    pub fn note_local(&mut self, set: &'static str, key: Key, before: Presence, after: Presence) {
        let noted = self.locals.entry((set, key)).or_insert((before, None));
        noted.1 = after;
    }

    pub fn forget_set(&mut self, id: SetId) {
        for is_ipv4 in [true, false] {
            self.members.remove(&(id, is_ipv4));
        }
    }
}

impl Policies {
    /// What has to be done since the last call. If it cannot be done, the next thing to do is to make the kernel equal
    /// to [`Policies::ruleset`].
    pub fn take_change(&mut self) -> Change {
        self.settle();
        let pending = std::mem::take(&mut self.pending);
        let members = pending.members.into_iter().flat_map(|((id, is_ipv4), elements)| {
            let set = id.name(is_ipv4);
            elements
                .into_iter()
                .map(move |(key, noted)| (set.clone(), key, noted))
        });
        let locals = pending.locals.into_iter();
        let locals = locals.map(|((set, key), noted)| (Arc::from(set), key, noted));
        let operations = members.chain(locals);
        let operations = operations.filter(|(_, _, (before, after))| before != after);
        let operations = operations.map(|(set, key, (before, after))| Operation {
            set,
            key,
            before,
            after,
        });
        let both = |id: SetId| [true, false].map(|is_ipv4| id.name(is_ipv4));
        Change {
            operations: operations.collect(),
            sets: pending
                .new_sets
                .iter()
                .flat_map(|id| self.sets_named(*id))
                .collect(),
            chains: pending
                .new_groups
                .iter()
                .filter_map(|id| self.chain(*id))
                .collect(),
            unused_chains: pending.unused_groups.iter().map(|id| id.chain()).collect(),
            unused_sets: pending.unused_sets.into_iter().flat_map(both).collect(),
        }
    }

    /// The desired content of the table. Pending changes are included.
    pub fn ruleset(&mut self) -> Ruleset {
        self.settle();
        self.pending = Pending::default();
        let mut ruleset = Ruleset {
            sets: self.sets.ids().flat_map(|id| self.sets_named(id)).collect(),
            chains: self.groups.ids().filter_map(|id| self.chain(id)).collect(),
        };
        for name in FIXED_SETS {
            let set = Set {
                kind: SetType::Addresses,
                is_ipv4: name.ends_with('4'),
                elements: BTreeMap::new(),
            };
            ruleset.sets.insert(name.into(), set);
        }
        for address in self.local_addresses.keys() {
            for (name, key, data) in self.local_elements(*address) {
                if let Some(set) = ruleset.sets.get_mut(name) {
                    set.elements.insert(key, data);
                }
            }
        }
        ruleset
    }

    fn settle(&mut self) {
        while let Some(sandbox) = self.dirty.pop_first() {
            self.compile(&sandbox);
        }
    }

    fn sets_named(&self, id: SetId) -> Vec<(Arc<str>, Set)> {
        let Some(kind) = self.sets.key(id).map(set_type) else {
            return Vec::new();
        };
        let set = |is_ipv4| Set {
            kind,
            is_ipv4,
            elements: self.elements_of(id, is_ipv4),
        };
        [true, false]
            .map(|is_ipv4| (id.name(is_ipv4), set(is_ipv4)))
            .into()
    }

    fn chain(&self, id: GroupId) -> Option<(Arc<str>, Chain)> {
        let group = self.groups.get(id)?;
        let rules = group.rules.iter().zip(&group.sets);
        // A rule of peers without its set would allow all peers, so it is left out; there is none.
        let rules = rules.filter_map(|(rule, set)| {
            let peers = match &rule.peers {
                None => None,
                Some(key) => Some(((*set)?, set_type(key))),
            };
            Some(ChainRule {
                peers: peers.map(|(set, kind)| ([set.name(true), set.name(false)], kind)),
                ports: rule.ports.clone(),
            })
        });
        let chain = Chain {
            direction: group.direction,
            rules: rules.collect(),
        };
        Some((id.chain(), chain))
    }
}

fn set_type(key: &SetKey) -> SetType {
    match key {
        SetKey::Pods(_) => SetType::Addresses,
        SetKey::Blocks(_) => SetType::Ranges,
        SetKey::NamedPort { .. } => SetType::AddressesAndPorts,
    }
}
