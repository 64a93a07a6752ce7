//! The snapshot of storage: claims, volumes, classes, and what drivers publish about nodes. What was decided and is
//! not yet written (the volume of a claim, the node for which one is provisioned) is assumed on top of what the API
//! shows, until it shows something newer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use knarr_api::well_known::{BETA_STORAGE_CLASS, BIND_COMPLETED, SELECTED_NODE};
use knarr_api::{Object, Shared, k8s_openapi};
use knarr_apimachinery::ids::NodeName;
use knarr_apimachinery::quantity::Quantity;

use crate::pod_info::PodClass;

const STORAGE: &str = "storage";
const READ_WRITE_ONCE_POD: &str = "ReadWriteOncePod";
const WAIT_FOR_FIRST_CONSUMER: &str = "WaitForFirstConsumer";

/// Namespace and name.
pub type Name = (String, String);

/// The claim of a volume (`claimRef`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRef {
    pub namespace: String,
    pub name: String,
    /// Empty: any claim of that name.
    pub uid: String,
}

impl ClaimRef {
    pub fn to(claim: &Shared<PersistentVolumeClaim>) -> Self {
        let object = claim.object();
        ClaimRef {
            namespace: object.namespace().to_string(),
            name: object.name().to_string(),
            uid: object.uid().to_string(),
        }
    }

    pub fn is_to(&self, claim: &Shared<PersistentVolumeClaim>) -> bool {
        let object = claim.object();
        self.namespace == object.namespace()
            && self.name == object.name()
            && (self.uid.is_empty() || self.uid == object.uid())
    }
}

/// A storage object was added, updated or deleted.
#[derive(Clone, Debug)]
pub enum Change {
    Claim {
        before: Option<Shared<PersistentVolumeClaim>>,
        after: Option<Shared<PersistentVolumeClaim>>,
    },
    Volume {
        before: Option<Shared<PersistentVolume>>,
        after: Option<Shared<PersistentVolume>>,
    },
    Class {
        before: Option<Shared<StorageClass>>,
        after: Option<Shared<StorageClass>>,
    },
    Node {
        before: Option<Shared<CSINode>>,
        after: Option<Shared<CSINode>>,
    },
    Driver {
        before: Option<Shared<CSIDriver>>,
        after: Option<Shared<CSIDriver>>,
    },
    Capacity {
        before: Option<Shared<CSIStorageCapacity>>,
        after: Option<Shared<CSIStorageCapacity>>,
    },
    Attachment {
        before: Option<Shared<VolumeAttachment>>,
        after: Option<Shared<VolumeAttachment>>,
    },
}

impl Change {
    /// The change of storage that a change of an object is; `None`: the object is of another kind.
    pub fn of(before: Option<&Arc<Object>>, after: Option<&Arc<Object>>) -> Option<Self> {
        let object = after.or(before)?;
        fn typed<T: 'static>(object: Option<&Arc<Object>>) -> Option<Shared<T>> {
            object.and_then(|o| Shared::new(o.clone()).ok())
        }
        macro_rules! change {
            ($($kind:ty => $variant:ident,)*) => {
                $(if object.get::<$kind>().is_some() {
                    return Some(Change::$variant { before: typed(before), after: typed(after) });
                })*
            };
        }
        change! {
            PersistentVolumeClaim => Claim,
            PersistentVolume => Volume,
            StorageClass => Class,
            CSINode => Node,
            CSIDriver => Driver,
            CSIStorageCapacity => Capacity,
            VolumeAttachment => Attachment,
        }
        None
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Volumes {
    claims: BTreeMap<Name, Shared<PersistentVolumeClaim>>,
    volumes: BTreeMap<String, Shared<PersistentVolume>>,
    /// Names of volumes by their class.
    by_class: BTreeMap<String, BTreeSet<String>>,
    classes: BTreeMap<String, Shared<StorageClass>>,
    nodes: BTreeMap<NodeName, Shared<CSINode>>,
    drivers: BTreeMap<String, Shared<CSIDriver>>,
    capacities: BTreeMap<Name, Shared<CSIStorageCapacity>>,
    /// By node, then by name.
    attachments: BTreeMap<NodeName, BTreeMap<String, Shared<VolumeAttachment>>>,
    /// How many assigned pods use each claim.
    users: BTreeMap<Name, usize>,
    /// Volumes with an assumed claimRef.
    given: BTreeMap<String, ClaimRef>,
    /// Claims with an assumed selected node.
    selected: BTreeMap<Name, NodeName>,
    /// Incremented by every change.
    pub version: u64,
}

/// Inserts or removes the object and returns the previous one.
fn set<K: Ord, T>(all: &mut BTreeMap<K, T>, key: K, new: Option<T>) -> Option<T> {
    match new {
        Some(new) => all.insert(key, new),
        None => all.remove(&key),
    }
}

fn key<T: knarr_api::registry::Registered>(of: &Shared<T>) -> Name {
    let object = of.object();
    (object.namespace().to_string(), object.name().to_string())
}

impl Volumes {
    /// Applies a change.
    pub fn apply(&mut self, change: &Change) {
        self.version += 1;
        match change {
            Change::Claim { before, after } => {
                if let Some(of) = after.as_ref().or(before.as_ref()) {
                    self.selected.remove(&key(of));
                    set(&mut self.claims, key(of), after.clone());
                }
            }
            Change::Volume { before, after } => {
                if let Some(of) = after.as_ref().or(before.as_ref()) {
                    let name = of.object().name().to_string();
                    self.given.remove(&name);
                    if let Some(was) = set(&mut self.volumes, name.clone(), after.clone())
                        && let Some(names) = self.by_class.get_mut(class_of_volume(&was))
                    {
                        names.remove(&name);
                    }
                    if let Some(is) = after {
                        let class = class_of_volume(is).to_string();
                        self.by_class.entry(class).or_default().insert(name);
                    }
                }
            }
            Change::Class { before, after } => {
                if let Some(of) = after.as_ref().or(before.as_ref()) {
                    set(&mut self.classes, of.object().name().to_string(), after.clone());
                }
            }
            Change::Node { before, after } => {
                if let Some(of) = after.as_ref().or(before.as_ref()) {
                    set(&mut self.nodes, of.object().name().into(), after.clone());
                }
            }
            Change::Driver { before, after } => {
                if let Some(of) = after.as_ref().or(before.as_ref()) {
                    set(&mut self.drivers, of.object().name().to_string(), after.clone());
                }
            }
            Change::Capacity { before, after } => {
                if let Some(of) = after.as_ref().or(before.as_ref()) {
                    set(&mut self.capacities, key(of), after.clone());
                }
            }
            Change::Attachment { before, after } => {
                if let Some(was) = before
                    && let Some(there) = self.attachments.get_mut(was.spec.node_name.as_str())
                {
                    there.remove(was.object().name());
                }
                if let Some(is) = after {
                    let there = self
                        .attachments
                        .entry(is.spec.node_name.as_str().into())
                        .or_default();
                    there.insert(is.object().name().to_string(), is.clone());
                }
            }
        }
    }

    pub fn claim(&self, namespace: &str, name: &str) -> Option<&Shared<PersistentVolumeClaim>> {
        self.claims.get(&(namespace.to_string(), name.to_string()))
    }

    pub fn volume(&self, name: &str) -> Option<&Shared<PersistentVolume>> {
        self.volumes.get(name)
    }

    pub fn class(&self, name: &str) -> Option<&Shared<StorageClass>> {
        self.classes.get(name)
    }

    pub fn node(&self, name: &str) -> Option<&Shared<CSINode>> {
        self.nodes.get(name)
    }

    pub fn driver(&self, name: &str) -> Option<&Shared<CSIDriver>> {
        self.drivers.get(name)
    }

    pub fn capacities(&self) -> impl Iterator<Item = &Shared<CSIStorageCapacity>> {
        self.capacities.values()
    }

    /// The attachments to a node, existing or requested.
    pub fn attachments(&self, node: &str) -> impl Iterator<Item = &Shared<VolumeAttachment>> {
        let there = self.attachments.get(node);
        there.into_iter().flat_map(BTreeMap::values)
    }

    /// The volumes of a class, by name.
    pub fn of_class(&self, class: &str) -> impl Iterator<Item = &Shared<PersistentVolume>> {
        let names = self.by_class.get(class).into_iter().flatten();
        names.filter_map(|name| self.volumes.get(name))
    }

    /// The claim of a volume, from the API or assumed.
    pub fn claim_ref(&self, volume: &Shared<PersistentVolume>) -> Option<ClaimRef> {
        match self.given.get(volume.object().name()) {
            Some(given) => Some(given.clone()),
            None => claim_ref(volume),
        }
    }

    /// The selected node of a claim, from the API or assumed.
    pub fn selected_node<'a>(&'a self, claim: &'a Shared<PersistentVolumeClaim>) -> Option<&'a str> {
        match self.selected.get(&key(claim)) {
            Some(node) => Some(node),
            None => selected_node(claim),
        }
    }

    /// Assumes that the volume has this claimRef.
    pub fn assume_claim_ref(&mut self, volume: &str, to: ClaimRef) {
        self.given.insert(volume.to_string(), to);
        self.version += 1;
    }

    /// Assumes that the claim has this selected node.
    pub fn assume_selected_node(&mut self, claim: Name, node: &NodeName) {
        self.selected.insert(claim, node.clone());
        self.version += 1;
    }

    /// Drops the assumed claimRef.
    pub fn unreserve(&mut self, volume: &str) {
        if self.given.remove(volume).is_some() {
            self.version += 1;
        }
    }

    pub fn restore_selected_node(&mut self, claim: &Name) {
        if self.selected.remove(claim).is_some() {
            self.version += 1;
        }
    }

    /// A pod with claims was assigned to a node or removed from it.
    pub fn count_users(&mut self, pod: &PodClass, came: bool) {
        let Some(volumes) = &pod.volumes else { return };
        for name in volumes.named() {
            let claim = (pod.namespace().to_string(), name.to_string());
            let exclusive = self.claims.get(&claim).is_some_and(|c| is_exclusive(c));
            let users = self.users.entry(claim.clone()).or_default();
            *users = if came { *users + 1 } else { users.saturating_sub(1) };
            if *users == 0 {
                self.users.remove(&claim);
            }
            // The users of other claims do not matter to any plugin.
            if exclusive {
                self.version += 1;
            }
        }
    }

    pub fn is_used(&self, namespace: &str, claim: &str) -> bool {
        self.users
            .contains_key(&(namespace.to_string(), claim.to_string()))
    }
}

fn claim_ref(volume: &PersistentVolume) -> Option<ClaimRef> {
    let of = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some(ClaimRef {
        namespace: of.namespace.clone().unwrap_or_default(),
        name: of.name.clone().unwrap_or_default(),
        uid: of.uid.clone().unwrap_or_default(),
    })
}

fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    let annotations = claim.metadata.annotations.as_ref()?;
    annotations.get(SELECTED_NODE).map(String::as_str)
}

/// Whether its only access mode is ReadWriteOncePod.
pub fn is_exclusive(claim: &PersistentVolumeClaim) -> bool {
    let modes = claim.spec.as_ref().and_then(|s| s.access_modes.as_ref());
    modes.into_iter().flatten().any(|m| m == READ_WRITE_ONCE_POD)
}

/// Empty: none.
pub fn class_of_claim(claim: &PersistentVolumeClaim) -> &str {
    let annotated = claim.metadata.annotations.as_ref();
    let annotated = annotated.and_then(|a| a.get(BETA_STORAGE_CLASS));
    let named = claim.spec.as_ref().and_then(|s| s.storage_class_name.as_ref());
    annotated.or(named).map(String::as_str).unwrap_or_default()
}

/// Empty: none.
pub fn class_of_volume(volume: &PersistentVolume) -> &str {
    let annotated = volume.metadata.annotations.as_ref();
    let annotated = annotated.and_then(|a| a.get(BETA_STORAGE_CLASS));
    let named = volume.spec.as_ref().and_then(|s| s.storage_class_name.as_ref());
    annotated.or(named).map(String::as_str).unwrap_or_default()
}

/// The volume that a claim is bound to or names; empty: none.
pub fn volume_of(claim: &PersistentVolumeClaim) -> &str {
    let spec = claim.spec.as_ref();
    spec.and_then(|s| s.volume_name.as_deref()).unwrap_or_default()
}

/// Whether claim and volume are both bound to each other.
pub fn is_fully_bound(claim: &PersistentVolumeClaim) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    !volume_of(claim).is_empty() && annotations.is_some_and(|a| a.contains_key(BIND_COMPLETED))
}

/// The requested size of a claim.
pub fn requested(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    Quantity::of(resources.requests.as_ref()?.get(STORAGE)?).ok()
}

/// The capacity of a volume.
pub fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    let capacity = volume.spec.as_ref()?.capacity.as_ref()?;
    Quantity::of(capacity.get(STORAGE)?).ok()
}

/// Whether the class has the binding mode WaitForFirstConsumer.
pub fn waits_for_consumer(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some(WAIT_FOR_FIRST_CONSUMER)
}

/// The largest volume that can be provisioned there, in bytes.
pub fn volume_limit(capacity: &CSIStorageCapacity) -> Option<i64> {
    let of = capacity
        .maximum_volume_size
        .as_ref()
        .or(capacity.capacity.as_ref())?;
    Quantity::of(of).ok().map(|q| q.value())
}
