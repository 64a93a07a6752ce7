//! Groups and sets of peers that are in use, and how often.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Policies;
use crate::policy::compile::GroupRule;
use crate::policy::peers::SetKey;
use crate::policy::spec::Direction;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SetId(pub u64);

impl GroupId {
    pub fn chain(self) -> Arc<str> {
        format!("group{}", self.0).into()
    }
}

impl SetId {
    /// Of the set of IPv4 or IPv6.
    pub fn name(self, is_ipv4: bool) -> Arc<str> {
        format!("peers{}v{}", self.0, if is_ipv4 { 4 } else { 6 }).into()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Group {
    pub direction: Direction,
    pub rules: Arc<[GroupRule]>,
    /// For each rule.
    pub sets: Vec<Option<SetId>>,
    references: usize,
}

#[derive(Debug, Default)]
pub(super) struct Groups {
    by_rules: BTreeMap<(Direction, Arc<[GroupRule]>), GroupId>,
    groups: BTreeMap<GroupId, Group>,
    /// Of the next group or set. 2^64 are enough for all time.
    next: u64,
}

impl Groups {
    pub fn numbered_from(next: u64) -> Self {
        Groups {
            next,
            ..Groups::default()
        }
    }

    pub fn get(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(&id)
    }

    pub fn ids(&self) -> impl Iterator<Item = GroupId> {
        self.groups.keys().copied()
    }

    pub fn len(&self) -> usize {
        self.groups.len()
    }

    fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }
}

#[derive(Clone, Debug)]
struct Active {
    key: SetKey,
    references: usize,
}

#[derive(Debug, Default)]
pub(super) struct Sets {
    by_key: BTreeMap<SetKey, SetId>,
    active: BTreeMap<SetId, Active>,
    /// By the only namespace whose pods belong to it; `None` for all others.
    by_namespace: BTreeMap<Option<Arc<str>>, BTreeSet<SetId>>,
}

impl Sets {
    pub fn key(&self, id: SetId) -> Option<&SetKey> {
        self.active.get(&id).map(|active| &active.key)
    }

    pub fn ids(&self) -> impl Iterator<Item = SetId> {
        self.active.keys().copied()
    }

    pub fn len(&self) -> usize {
        self.active.len()
    }

    pub fn needs_pods(&self) -> bool {
        self.by_namespace.values().any(|sets| !sets.is_empty())
    }

    /// Those that pods of this namespace may belong to.
    pub fn of_namespace(&self, namespace: &Arc<str>) -> impl Iterator<Item = (SetId, &SetKey)> {
        let buckets = [None, Some(namespace.clone())];
        let ids = buckets
            .into_iter()
            .filter_map(|bucket| self.by_namespace.get(&bucket))
            .flatten();
        ids.filter_map(|id| Some((*id, self.key(*id)?)))
    }
}

impl Policies {
    /// The group of these rules, made if it is new.
    pub(super) fn hold(&mut self, direction: Direction, rules: Arc<[GroupRule]>) -> GroupId {
        let key = (direction, rules);
        if let Some(id) = self.groups.by_rules.get(&key).copied() {
            if let Some(group) = self.groups.groups.get_mut(&id) {
                group.references += 1;
            }
            return id;
        }
        let keys = key.1.iter().map(|rule| rule.peers.as_ref());
        let sets = keys.map(|key| Some(self.hold_set(key?))).collect();
        let id = GroupId(self.groups.number());
        let group = Group {
            direction,
            rules: key.1.clone(),
            sets,
            references: 1,
        };
        self.groups.groups.insert(id, group);
        self.groups.by_rules.insert(key, id);
        self.pending.new_groups.insert(id);
        id
    }

    pub(super) fn release_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.groups.get_mut(&id) else {
            return;
        };
        group.references -= 1;
        if group.references > 0 {
            return;
        }
        let Some(group) = self.groups.groups.remove(&id) else {
            return;
        };
        self.groups.by_rules.remove(&(group.direction, group.rules));
        if !self.pending.new_groups.remove(&id) {
            self.pending.unused_groups.insert(id);
        }
        for set in group.sets.into_iter().flatten() {
            self.release_set(set);
        }
    }

    fn hold_set(&mut self, key: &SetKey) -> SetId {
        if let Some(id) = self.sets.by_key.get(key).copied() {
            if let Some(active) = self.sets.active.get_mut(&id) {
                active.references += 1;
            }
            return id;
        }
        let id = SetId(self.groups.number());
        let active = Active {
            key: key.clone(),
            references: 1,
        };
        self.sets.active.insert(id, active);
        self.sets.by_key.insert(key.clone(), id);
        if key.needs_pods() {
            let bucket = key.only_namespace().cloned();
            self.enroll(id, key, bucket.as_ref());
            self.sets.by_namespace.entry(bucket).or_default().insert(id);
        }
        self.pending.new_sets.insert(id);
        id
    }

    fn release_set(&mut self, id: SetId) {
        let Some(active) = self.sets.active.get_mut(&id) else {
            return;
        };
        active.references -= 1;
        if active.references > 0 {
            return;
        }
        let Some(active) = self.sets.active.remove(&id) else {
            return;
        };
        self.sets.by_key.remove(&active.key);
        if active.key.needs_pods() {
            let bucket = active.key.only_namespace().cloned();
            self.expel(id, bucket.as_ref());
            if let Some(of) = self.sets.by_namespace.get_mut(&bucket) {
                of.remove(&id);
                if of.is_empty() {
                    self.sets.by_namespace.remove(&bucket);
                }
            }
        }
        self.pending.forget_set(id);
        if !self.pending.new_sets.remove(&id) {
            self.pending.unused_sets.insert(id);
        }
    }
}
