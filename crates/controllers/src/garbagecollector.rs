//! The garbage collector: the graph of owner references, and the deletion of dependents whose owners are deleted.
//!
//! Unlike the other controllers it has a state of its own, [`Graph`], of all objects by uid. A dependent is deleted only when none
//! of its owners exists, and an owner that is not in the caches is read live first ([`Work::GetOwner`]), so that a lagging cache
//! never deletes an object. Foreground deletion waits for the blocking dependents; orphaning removes the owner reference from the
//! dependents before the owner is removed.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::k8s_openapi;
use knarr_api::{AnyObject, Kind, Object, ObjectKey};
use knarr_api::{custom, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::finalizer;

use crate::action::{Action, Delete, Dependents};

/// The finalizer of foreground deletion.
pub const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of orphaning.
pub const ORPHAN: &str = "orphan";

/// The size of the cache of owners' uids that do not exist (upstream: absentOwnerCache), so that an owner of a thousand dependents is
/// read once. uids are never reused; the oldest are dropped.
const ABSENT_OWNER_CACHE_SIZE: usize = 4096;

/// The built-in kinds that are collected; kinds of custom resources are added by [`Graph::add_kind`]. Events are left out: they are many,
/// short-lived and own nothing.
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
    /// Whether it waits for the deletion of its dependents.
    fn waits_for_dependents(&self) -> bool {
        self.deleting && self.foreground
    }
}

/// The decision about one object.
#[derive(Debug)]
pub enum Work {
    Nothing,
    /// Read this owner live, pass the result to [`Graph::record_owner`], and decide again.
    GetOwner(OwnerKey),
    /// The kind of this owner is not served any more. Read its definition live: without one the owner does not exist. Pass the result to
    /// [`Graph::record_owner`], and decide again.
    GetDefinition {
        name: String,
        owner: String,
    },
    /// Read each object live, and write it.
    Write(Vec<ObjectWrite>),
    /// An owner exists and is not in the graph. If it was created and is deleted while the watch of its kind is re-established, no event
    /// reports that: decide again, rate-limited, until it is in the graph (upstream: attemptToDeleteWorker on a node that is not observed,
    /// kubernetes issue 56121).
    Requeue,
}

/// An owner that is not in the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerKey {
    pub kind: Kind,
    pub key: ObjectKey,
    pub uid: String,
}

impl OwnerKey {
    /// Whether this owner exists, by the response to a live read. The error is one that does not answer that.
    pub fn exists(&self, response: Result<&Object, Error>) -> Result<bool, Error> {
        match response {
            Ok(live) => Ok(live.uid() == self.uid),
            Err(error) if is_absent(&error, &self.key.name) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Whether the error says that the object of this name does not exist. Another 404 says that the server does not serve the kind, or not
/// this version of it any more, whose objects may exist: kube-controller-manager would delete their dependents
/// (`isDangling` in garbagecollector.go).
pub fn is_absent(error: &Error, name: &str) -> bool {
    let details = error.status().details.as_ref();
    error.is_not_found() && details.is_some_and(|details| details.name.as_deref() == Some(name))
}

/// A write of an object, which has to be read live first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectWrite {
    pub kind: Kind,
    pub key: ObjectKey,
    pub uid: String,
    pub change: WriteKind,
}

/// See [`ObjectWrite`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteKind {
    Delete(Dependents),
    RemoveOwners(BTreeSet<String>),
    RemoveFinalizer(&'static str),
}

/// All objects and their owners. See the module.
#[derive(Default)]
pub struct Graph {
    /// By uid. Boxed: a third of each of the map's nodes is empty.
    nodes: BTreeMap<Box<str>, Box<Node>>,
    /// By the owner's uid, whether the owner is in the graph or not.
    dependents: BTreeMap<String, BTreeSet<String>>,
    /// The kinds of custom resources, by group and kind.
    custom: BTreeMap<(String, String), Kind>,
    /// The kinds of custom resources that were removed and not added again.
    removed_kinds: BTreeMap<(String, String), Kind>,
    absent_owners: BTreeSet<String>,
    absent_order: std::collections::VecDeque<String>,
}

impl Graph {
    /// Adds a kind of custom resources; returns the uids of the objects with owners of this kind, which can be read now.
    pub fn add_kind(&mut self, kind: &Kind) -> Vec<String> {
        let name = (kind.group().to_string(), kind.kind().to_string());
        self.removed_kinds.remove(&name);
        self.custom.insert(name, kind.clone());
        self.with_owners_of(kind)
    }

    /// The uids of the objects with owners of this kind.
    fn with_owners_of(&self, kind: &Kind) -> Vec<String> {
        let of_it = |owner: &OwnerReference| owner.kind == kind.kind() && group(owner) == kind.group();
        let nodes = self.nodes.iter();
        let owned = nodes.filter(|(_, node)| node.owners.iter().any(of_it));
        owned.map(|(uid, _)| uid.to_string()).collect()
    }

    /// Removes a kind that is no longer served, or has other names: whether its objects exist cannot be known here. Returns the uids of the
    /// objects with owners of this kind: if its definition was deleted, these owners do not exist.
    pub fn remove_kind(&mut self, kind: &Kind) -> Vec<String> {
        let name = (kind.group().to_string(), kind.kind().to_string());
        self.custom.remove(&name);
        self.removed_kinds.insert(name, kind.clone());
        let of_it = |node: &Node| node.kind.group() == kind.group() && node.kind.kind() == kind.kind();
        let lost: Vec<String> = self
            .nodes
            .iter()
            .filter(|(_, node)| of_it(node))
            .map(|(uid, _)| uid.to_string())
            .collect();
        for uid in lost {
            for owner in self.nodes.remove(&*uid).iter().flat_map(|n| &n.owners) {
                self.unlink(&owner.uid, &uid);
            }
        }
        self.with_owners_of(kind)
    }

    /// Adds or updates an object; returns the uids to enqueue.
    pub fn put(&mut self, object: &Object) -> Vec<String> {
        let meta = object.metadata();
        let has = |finalizer: &str| finalizer::contains(meta, finalizer);
        // Most updates (heartbeats, statuses) change neither owners nor the deletion: as in Kubernetes they enqueue nothing.
        // Except objects whose owner has not been seen yet: it may have been deleted without an event.
        if let Some(known) = self.node(object.uid())
            && known.kind == *object.kind()
            && (known.key.namespace.as_str(), known.key.name.as_str()) == (object.namespace(), object.name())
            && known.owners == meta.owner_references.as_deref().unwrap_or_default()
            && known.owners.iter().all(|owner| self.node(&owner.uid).is_some())
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
        let mut to_process = Vec::new();
        let old = self.nodes.remove(&*uid);
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
        // An owner that waits for this object may no longer have to.
        to_process.extend(
            had.into_iter()
                .filter(|owner| self.node(owner).is_some_and(Node::waits_for_dependents)),
        );
        if !node.owners.is_empty() || begins_to_wait {
            to_process.push(uid.clone());
        }
        if node.waits_for_dependents() {
            to_process.extend(self.dependents.get(&uid).into_iter().flatten().cloned());
        }
        self.nodes.insert(uid.into(), Box::new(node));
        to_process
    }

    /// Removes an object that was deleted; returns the uids to enqueue.
    ///
    /// A custom resource is read live before its dependents are deleted: when a definition is deleted, all objects of its kind are
    /// reported as deleted, among them those that the informer has already received of the next definition of its name. Once the kind is
    /// not served any more, its definition is read instead.
    ///
    /// An object without dependents is not recorded as an absent owner (as in `processGraphChanges`): most objects
    /// never have one, and the owner of one that appears later is read live.
    pub fn remove(&mut self, uid: &str) -> Vec<String> {
        let mut to_process: Vec<String> = self.dependents.get(uid).into_iter().flatten().cloned().collect();
        let is_owner = !to_process.is_empty();
        let node = self.nodes.remove(uid);
        for owner in node.iter().flat_map(|node| &node.owners) {
            self.unlink(&owner.uid, uid);
            if self.node(&owner.uid).is_some_and(Node::waits_for_dependents) {
                to_process.push(owner.uid.clone());
            }
        }
        if is_owner && node.is_none_or(|node| node.kind.ops.custom().is_none()) {
            self.add_absent_owner(uid);
        }
        to_process
    }

    /// Records whether an owner that was read exists.
    pub fn record_owner(&mut self, uid: &str, there: bool) {
        if !there {
            self.add_absent_owner(uid);
        }
    }

    fn node(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid).map(|node| &**node)
    }

    fn unlink(&mut self, owner: &str, dependent: &str) {
        if let Some(dependents) = self.dependents.get_mut(owner) {
            dependents.remove(dependent);
            if dependents.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }

    fn add_absent_owner(&mut self, uid: &str) {
        if self.absent_owners.insert(uid.to_string()) {
            self.absent_order.push_back(uid.to_string());
        }
        while self.absent_order.len() > ABSENT_OWNER_CACHE_SIZE {
            if let Some(oldest) = self.absent_order.pop_front() {
                self.absent_owners.remove(&oldest);
            }
        }
    }

    /// Decides about this object (upstream: attemptToDeleteItem). `there` are the owners that a live read has just found.
    pub fn decide(&self, uid: &str, there: &BTreeSet<String>) -> Work {
        let Some(node) = self.node(uid) else {
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
        let mut unobserved = false;
        let mut absent = BTreeSet::new();
        let mut waiting = BTreeSet::new();
        for owner in &node.owners {
            match self.node(&owner.uid) {
                Some(known) if names(owner, node, known) => {
                    if known.waits_for_dependents() {
                        waiting.insert(owner.uid.clone());
                    } else {
                        solid = true;
                    }
                }
                _ if there.contains(&owner.uid) => {
                    solid = true;
                    unobserved = true;
                }
                _ if self.absent_owners.contains(&owner.uid) => {
                    absent.insert(owner.uid.clone());
                }
                _ => match self.owner_key(owner, node) {
                    Some(key) => return Work::GetOwner(key),
                    None => match self
                        .removed_kinds
                        .get(&(group(owner).to_string(), owner.kind.clone()))
                    {
                        Some(kind) => {
                            return Work::GetDefinition {
                                name: custom::definition_name(kind),
                                owner: owner.uid.clone(),
                            };
                        }
                        // Its kind is not known here: the owner counts as existing.
                        None => solid = true,
                    },
                },
            }
        }
        let write = |change| {
            Work::Write(vec![ObjectWrite {
                kind: node.kind.clone(),
                key: node.key.clone(),
                uid: uid.to_string(),
                change,
            }])
        };
        if solid {
            absent.extend(waiting);
            if absent.is_empty() {
                return if unobserved { Work::Requeue } else { Work::Nothing };
            }
            // The update enqueues the object again.
            return write(WriteKind::RemoveOwners(absent));
        }
        let has_dependents = self.dependents.contains_key(uid);
        // An owner waits for this object, whose own dependents have to be deleted before it.
        if !waiting.is_empty() && has_dependents {
            return write(WriteKind::Delete(Dependents::Foreground));
        }
        let dependents = if node.orphaning {
            Dependents::Orphan
        } else if node.foreground {
            Dependents::Foreground
        } else {
            Dependents::Background
        };
        write(WriteKind::Delete(dependents))
    }

    fn owner_key(&self, owner: &OwnerReference, dependent: &Node) -> Option<OwnerKey> {
        let built_in = registry::by_kind(&owner.api_version, &owner.kind);
        let custom = || self.custom.get(&(group(owner).to_string(), owner.kind.clone()));
        let kind = built_in.or_else(custom)?;
        let namespace = if kind.namespaced() {
            dependent.key.namespace.clone()
        } else {
            String::new()
        };
        Some(OwnerKey {
            kind: kind.clone(),
            key: ObjectKey::new(namespace, &owner.name),
            uid: owner.uid.clone(),
        })
    }

    fn write(&self, uid: &str, change: WriteKind) -> Option<ObjectWrite> {
        let node = self.node(uid)?;
        Some(ObjectWrite {
            kind: node.kind.clone(),
            key: node.key.clone(),
            uid: uid.to_string(),
            change,
        })
    }

    /// Removes the owner reference from all dependents, then the finalizer `orphan`.
    fn orphan(&self, uid: &str, _node: &Node) -> Work {
        let dependents = self.dependents.get(uid).into_iter().flatten();
        let owner = BTreeSet::from([uid.to_string()]);
        let mut write: Vec<ObjectWrite> = dependents
            .filter_map(|d| self.write(d, WriteKind::RemoveOwners(owner.clone())))
            .collect();
        write.extend(self.write(uid, WriteKind::RemoveFinalizer(ORPHAN)));
        Work::Write(write)
    }

    /// Removes the finalizer `foregroundDeletion` when no blocking dependent is left. (The dependents are processed on their own.)
    /// Dependents that wait, directly or indirectly, for this object do not count: in a circle one object has to be deleted first.
    fn foreground(&self, uid: &str, _node: &Node) -> Work {
        let mut blocking = self.blocking(uid);
        if blocking.any(|dependent| !self.waits_for(dependent, uid)) {
            return Work::Nothing;
        }
        let write = self.write(uid, WriteKind::RemoveFinalizer(FOREGROUND));
        write.map_or(Work::Nothing, |t| Work::Write(vec![t]))
    }

    /// The dependents that block the deletion of `owner`.
    fn blocking<'a>(&'a self, owner: &'a str) -> impl Iterator<Item = &'a str> {
        let dependents = self.dependents.get(owner).into_iter().flatten();
        dependents.map(String::as_str).filter(move |dependent| {
            self.node(dependent).is_some_and(|node| {
                let mut owners = node.owners.iter();
                owners.any(|o| o.uid == owner && o.block_owner_deletion == Some(true))
            })
        })
    }

    /// Whether `uid` waits for `other`, directly or indirectly.
    fn waits_for(&self, uid: &str, other: &str) -> bool {
        let mut seen = BTreeSet::new();
        let mut to_process = vec![uid];
        while let Some(uid) = to_process.pop() {
            if !self.node(uid).is_some_and(Node::waits_for_dependents) || !seen.insert(uid) {
                continue;
            }
            for next in self.blocking(uid) {
                if next == other {
                    return true;
                }
                to_process.push(next);
            }
        }
        false
    }
}

/// Whether the reference is to this object: the uid alone could be forged.
fn names(owner: &OwnerReference, dependent: &Node, known: &Node) -> bool {
    owner.kind == known.kind.kind()
        && group(owner) == known.kind.group()
        && owner.name == known.key.name
        && (known.key.namespace.is_empty() || known.key.namespace == dependent.key.namespace)
}

fn group(owner: &OwnerReference) -> &str {
    owner.api_version.split_once('/').map_or("", |(group, _)| group)
}

/// The action for an [`ObjectWrite`] on the live object; `None` if it is no longer needed. The resourceVersion is the
/// precondition: after a change in between the object is processed again.
pub fn action(write: &ObjectWrite, live: &Object) -> Option<Action> {
    if live.uid() != write.uid {
        return None;
    }
    let meta = live.metadata();
    match &write.change {
        WriteKind::Delete(dependents) => {
            if meta.deletion_timestamp.is_some() {
                return None;
            }
            Some(Action::Delete(Delete {
                dependents: *dependents,
                resource_version: meta.resource_version.clone(),
                ..Delete::of(live)
            }))
        }
        WriteKind::RemoveOwners(uids) => {
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
        WriteKind::RemoveFinalizer(finalizer) => finalizer::contains(meta, finalizer)
            .then(|| edit(live, |meta| finalizer::remove(meta, finalizer))),
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
