//! The garbage collector: who owns whom, and what follows from an owner's end.
//!
//! Unlike the other controllers it keeps a picture of its own, [`Graph`], of all objects by uid. A dependent is deleted
//! only when none of its owners is left, and what the caches do not know is asked for at the API first ([`Work::Ask`]):
//! a cache that lags never costs an object. Foreground deletion waits for the dependents that block it; orphaning takes
//! the owner off its dependents before it goes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{AnyObject, Kind, Object, ObjectKey};

use crate::action::{Action, Delete, Dependents};
use knarr_api::finalizer;

pub const FOREGROUND: &str = "foregroundDeletion";
pub const ORPHAN: &str = "orphan";

/// uids known to be gone for good that are kept, so that a thousand dependents ask for one owner once. uids do not come
/// back; the oldest are forgotten.
const GONE_KEPT: usize = 4096;

/// Every built-in kind that can own or be owned; those that users brought come and go ([`Graph::know`]). Events are left out: they come and go in numbers and own nothing.
pub fn kinds() -> impl Iterator<Item = &'static Kind> {
    registry::ALL.iter().copied().filter(|kind| {
        kind.stored_as().is_none()
            && *kind != &registry::EVENT
            && ["list", "watch", "delete"].iter().all(|v| kind.verbs.contains(v))
    })
}

struct Node {
    kind: Kind,
    key: ObjectKey,
    owners: Vec<OwnerReference>,
    deleting: bool,
    foreground: bool,
    orphaning: bool,
}

impl Node {
    /// It waits for its dependents to go first.
    fn waits_for_dependents(&self) -> bool {
        self.deleting && self.foreground
    }
}

/// What is to be done about one object.
#[derive(Debug)]
pub enum Work {
    Nothing,
    /// Ask the API whether this object is there, tell [`Graph::answered`], and look again.
    Ask(Asked),
    /// Read the object from the API, and change it as each [`Todo`] says.
    Do(Vec<Todo>),
}

/// An object that is named as owner but not in the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub kind: Kind,
    pub key: ObjectKey,
    pub uid: String,
}

/// One change of one object, which is to be read first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Todo {
    pub kind: Kind,
    pub key: ObjectKey,
    pub uid: String,
    pub change: TodoChange,
}

/// See [`Todo`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TodoChange {
    Delete(Dependents),
    RemoveOwners(BTreeSet<String>),
    RemoveFinalizer(&'static str),
}

/// All objects and their owners. See the module.
#[derive(Default)]
pub struct Graph {
    nodes: BTreeMap<String, Node>,
    /// By owner's uid, whether the owner is known or not.
    dependents: BTreeMap<String, BTreeSet<String>>,
    /// Kinds that users brought, by group and kind.
    custom: BTreeMap<(String, String), Kind>,
    gone: BTreeSet<String>,
    gone_order: std::collections::VecDeque<String>,
}

impl Graph {
    /// A kind that users brought is served: the uids of those whose owners are of it, and may be asked for now.
    pub fn know(&mut self, kind: &Kind) -> Vec<String> {
        self.custom
            .insert((kind.group().to_string(), kind.kind().to_string()), kind.clone());
        let of_it = |owner: &OwnerReference| owner.kind == kind.kind() && group(owner) == kind.group();
        let nodes = self.nodes.iter();
        let waiting = nodes.filter(|(_, node)| node.owners.iter().any(of_it));
        waiting.map(|(uid, _)| uid.clone()).collect()
    }

    /// It is served no more, or under other names: nobody can say here of its objects whether they are there.
    pub fn forget(&mut self, kind: &Kind) {
        self.custom
            .remove(&(kind.group().to_string(), kind.kind().to_string()));
        let of_it = |node: &Node| node.kind.group() == kind.group() && node.kind.kind() == kind.kind();
        let lost: Vec<String> = self
            .nodes
            .iter()
            .filter(|(_, node)| of_it(node))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in lost {
            for owner in self.nodes.remove(&uid).iter().flat_map(|n| &n.owners) {
                self.unlink(&owner.uid, &uid);
            }
        }
    }

    /// Takes in an object as it is; the uids to look at because of it.
    pub fn put(&mut self, object: &Object) -> Vec<String> {
        let meta = object.metadata();
        let has = |finalizer: &str| finalizer::is_held(meta, finalizer);
        // Most updates (heartbeats, statuses) say nothing new about owners or endings: as in Kubernetes nobody looks again.
        // But for those whose owner has not been seen yet, which may have gone while nobody was told.
        if let Some(known) = self.nodes.get(object.uid())
            && known.kind == *object.kind()
            && (known.key.namespace.as_str(), known.key.name.as_str()) == (object.namespace(), object.name())
            && known.owners == meta.owner_references.as_deref().unwrap_or_default()
            && known
                .owners
                .iter()
                .all(|owner| self.nodes.contains_key(&owner.uid))
            && known.deleting == meta.deletion_timestamp.is_some()
            && (known.foreground, known.orphaning) == (has(FOREGROUND), has(ORPHAN))
        {
            return Vec::new();
        }
        let uid = object.uid().to_string();
        let node = Node {
            kind: object.kind().clone(),
            key: ObjectKey::of(object),
            owners: meta.owner_references.clone().unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            foreground: has(FOREGROUND),
            orphaning: has(ORPHAN),
        };
        let begins_to_wait = node.deleting && (node.foreground || node.orphaning);
        let mut look = Vec::new();
        let old = self.nodes.remove(&uid);
        let had: Vec<String> = old
            .iter()
            .flat_map(|n| &n.owners)
            .map(|o| o.uid.clone())
            .collect();
        for owner in &had {
            self.unlink(owner, &uid);
        }
        for owner in &node.owners {
            self.dependents
                .entry(owner.uid.clone())
                .or_default()
                .insert(uid.clone());
        }
        // An owner that waits for this one may wait no longer.
        look.extend(
            had.into_iter()
                .filter(|owner| self.nodes.get(owner).is_some_and(Node::waits_for_dependents)),
        );
        if !node.owners.is_empty() || begins_to_wait {
            look.push(uid.clone());
        }
        if node.waits_for_dependents() {
            look.extend(self.dependents.get(&uid).into_iter().flatten().cloned());
        }
        self.nodes.insert(uid, node);
        look
    }

    /// An object has gone for good; the uids to look at because of it.
    pub fn remove(&mut self, uid: &str) -> Vec<String> {
        let mut look: Vec<String> = self.dependents.get(uid).into_iter().flatten().cloned().collect();
        if let Some(node) = self.nodes.remove(uid) {
            for owner in &node.owners {
                self.unlink(&owner.uid, uid);
                if self.nodes.get(&owner.uid).is_some_and(Node::waits_for_dependents) {
                    look.push(owner.uid.clone());
                }
            }
        }
        self.remember_gone(uid);
        look
    }

    /// The API's answer about an owner that was asked for.
    pub fn answered(&mut self, uid: &str, there: bool) {
        if !there {
            self.remember_gone(uid);
        }
    }

    fn unlink(&mut self, owner: &str, dependent: &str) {
        if let Some(dependents) = self.dependents.get_mut(owner) {
            dependents.remove(dependent);
            if dependents.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }

    fn remember_gone(&mut self, uid: &str) {
        if self.gone.insert(uid.to_string()) {
            self.gone_order.push_back(uid.to_string());
        }
        while self.gone_order.len() > GONE_KEPT {
            if let Some(oldest) = self.gone_order.pop_front() {
                self.gone.remove(&oldest);
            }
        }
    }

    /// What is to be done about this object. `there` are owners that the API has just said are there.
    pub fn look(&self, uid: &str, there: &BTreeSet<String>) -> Work {
        let Some(node) = self.nodes.get(uid) else {
            return Work::Nothing;
        };
        if node.deleting && node.orphaning {
            return self.orphan(uid, node);
        }
        if node.waits_for_dependents() {
            return self.foreground(uid, node);
        }
        if node.deleting || node.owners.is_empty() {
            return Work::Nothing;
        }
        let mut solid = false;
        let mut gone = BTreeSet::new();
        let mut waiting = BTreeSet::new();
        for owner in &node.owners {
            match self.nodes.get(&owner.uid) {
                Some(known) if names(owner, node, known) => {
                    if known.waits_for_dependents() {
                        waiting.insert(owner.uid.clone());
                    } else {
                        solid = true;
                    }
                }
                _ if there.contains(&owner.uid) => solid = true,
                _ if self.gone.contains(&owner.uid) => {
                    gone.insert(owner.uid.clone());
                }
                _ => match self.asked(owner, node) {
                    Some(asked) => return Work::Ask(asked),
                    // A kind that is not served here: nobody can say that it is gone.
                    None => solid = true,
                },
            }
        }
        let todo = |change| {
            Work::Do(vec![Todo {
                kind: node.kind.clone(),
                key: node.key.clone(),
                uid: uid.to_string(),
                change,
            }])
        };
        if solid {
            gone.extend(waiting);
            if gone.is_empty() {
                return Work::Nothing;
            }
            return todo(TodoChange::RemoveOwners(gone));
        }
        let has_dependents = self.dependents.contains_key(uid);
        // An owner waits for this one, and this one has dependents that must not be overtaken.
        if !waiting.is_empty() && has_dependents {
            return todo(TodoChange::Delete(Dependents::Foreground));
        }
        let dependents = if node.orphaning {
            Dependents::Orphan
        } else if node.foreground {
            Dependents::Foreground
        } else {
            Dependents::Background
        };
        todo(TodoChange::Delete(dependents))
    }

    fn asked(&self, owner: &OwnerReference, dependent: &Node) -> Option<Asked> {
        let built_in = registry::by_kind(&owner.api_version, &owner.kind);
        let custom = || self.custom.get(&(group(owner).to_string(), owner.kind.clone()));
        let kind = built_in.or_else(custom)?;
        let namespace = if kind.namespaced() {
            dependent.key.namespace.clone()
        } else {
            String::new()
        };
        Some(Asked {
            kind: kind.clone(),
            key: ObjectKey::new(namespace, &owner.name),
            uid: owner.uid.clone(),
        })
    }

    fn todo(&self, uid: &str, change: TodoChange) -> Option<Todo> {
        let node = self.nodes.get(uid)?;
        Some(Todo {
            kind: node.kind.clone(),
            key: node.key.clone(),
            uid: uid.to_string(),
            change,
        })
    }

    /// Takes the owner off all its dependents, then its finalizer.
    fn orphan(&self, uid: &str, _node: &Node) -> Work {
        let dependents = self.dependents.get(uid).into_iter().flatten();
        let owner = BTreeSet::from([uid.to_string()]);
        let mut todo: Vec<Todo> = dependents
            .filter_map(|d| self.todo(d, TodoChange::RemoveOwners(owner.clone())))
            .collect();
        todo.extend(self.todo(uid, TodoChange::RemoveFinalizer(ORPHAN)));
        Work::Do(todo)
    }

    /// Takes the finalizer off when no dependent that blocks is left. (The dependents themselves are looked at on their
    /// own.) Those that wait, in the end, for this very object do not count: somebody in a circle has to go first.
    fn foreground(&self, uid: &str, _node: &Node) -> Work {
        let mut blocking = self.blocking(uid);
        if blocking.any(|dependent| !self.waits_for(dependent, uid)) {
            return Work::Nothing;
        }
        let todo = self.todo(uid, TodoChange::RemoveFinalizer(FOREGROUND));
        todo.map_or(Work::Nothing, |t| Work::Do(vec![t]))
    }

    /// The dependents that have to be gone before `owner` goes.
    fn blocking<'a>(&'a self, owner: &'a str) -> impl Iterator<Item = &'a str> {
        let dependents = self.dependents.get(owner).into_iter().flatten();
        dependents.map(String::as_str).filter(move |dependent| {
            self.nodes.get(*dependent).is_some_and(|node| {
                let mut owners = node.owners.iter();
                owners.any(|o| o.uid == owner && o.block_owner_deletion == Some(true))
            })
        })
    }

    /// Whether `uid` waits for `other`, itself or through those it waits for.
    fn waits_for(&self, uid: &str, other: &str) -> bool {
        let mut seen = BTreeSet::new();
        let mut look = vec![uid];
        while let Some(uid) = look.pop() {
            if !self.nodes.get(uid).is_some_and(Node::waits_for_dependents) || !seen.insert(uid) {
                continue;
            }
            for next in self.blocking(uid) {
                if next == other {
                    return true;
                }
                look.push(next);
            }
        }
        false
    }
}

/// Whether the reference is to this object: the uid alone can be made up.
fn names(owner: &OwnerReference, dependent: &Node, known: &Node) -> bool {
    owner.kind == known.kind.kind()
        && group(owner) == known.kind.group()
        && owner.name == known.key.name
        && (known.key.namespace.is_empty() || known.key.namespace == dependent.key.namespace)
}

fn group(owner: &OwnerReference) -> &str {
    owner.api_version.split_once('/').map_or("", |(group, _)| group)
}

/// The action that carries a [`Todo`] out on the object as the API has it; `None` if there is nothing to be done any
/// more. Its resourceVersion is the precondition: what changes meanwhile is looked at again.
pub fn action(todo: &Todo, live: &Object) -> Option<Action> {
    if live.uid() != todo.uid {
        return None;
    }
    let meta = live.metadata();
    match &todo.change {
        TodoChange::Delete(dependents) => {
            if meta.deletion_timestamp.is_some() {
                return None;
            }
            Some(Action::Delete(Delete {
                dependents: *dependents,
                resource_version: meta.resource_version.clone(),
                ..Delete::of(live)
            }))
        }
        TodoChange::RemoveOwners(uids) => {
            let owned = |meta: &ObjectMeta| {
                meta.owner_references
                    .iter()
                    .flatten()
                    .any(|o| uids.contains(&o.uid))
            };
            owned(meta).then(|| {
                edit(live, |meta| {
                    let mut owners = meta.owner_references.take().unwrap_or_default();
                    owners.retain(|o| !uids.contains(&o.uid));
                    meta.owner_references = (!owners.is_empty()).then_some(owners);
                })
            })
        }
        TodoChange::RemoveFinalizer(finalizer) => finalizer::is_held(meta, finalizer)
            .then(|| edit(live, |meta| finalizer::release(meta, finalizer))),
    }
}

fn edit(live: &Object, edit: impl FnOnce(&mut ObjectMeta)) -> Action {
    let mut object: Box<dyn AnyObject> = live.typed().clone_box();
    edit(object.metadata_mut());
    Action::Update {
        kind: live.kind().clone(),
        object,
        subresource: "",
    }
}

#[cfg(test)]
mod tests;
