//! ResourceClaims as in the API, with the decided and not yet written allocations (assumed, as in kube-scheduler's
//! AssumeCache), and which devices are allocated in total.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice};
use knarr_api::{Object, Shared, k8s_openapi};
use knarr_apimachinery::ids::PodUid;

use super::{AllocatedState, Inventory, extended};

/// Namespace and name.
pub type Name = (String, String);

/// An object of dynamic resource allocation was added, updated or deleted.
#[derive(Clone, Debug)]
pub enum Change {
    Claim {
        before: Option<Shared<ResourceClaim>>,
        after: Option<Shared<ResourceClaim>>,
    },
    Slice {
        before: Option<Shared<ResourceSlice>>,
        after: Option<Shared<ResourceSlice>>,
    },
    Class {
        before: Option<Shared<DeviceClass>>,
        after: Option<Shared<DeviceClass>>,
    },
}

impl Change {
    /// `None`: the object is of another kind.
    pub fn of(before: Option<&Arc<Object>>, after: Option<&Arc<Object>>) -> Option<Self> {
        let object = after.or(before)?;
        fn typed<T: 'static>(object: Option<&Arc<Object>>) -> Option<Shared<T>> {
            object.and_then(|o| Shared::new(o.clone()).ok())
        }
        if object.get::<ResourceClaim>().is_some() {
            let (before, after) = (typed(before), typed(after));
            return Some(Change::Claim { before, after });
        }
        if object.get::<ResourceSlice>().is_some() {
            let (before, after) = (typed(before), typed(after));
            return Some(Change::Slice { before, after });
        }
        object.get::<DeviceClass>()?;
        let (before, after) = (typed(before), typed(after));
        Some(Change::Class { before, after })
    }
}

/// Slices, classes and claims, as the scheduler uses them.
#[derive(Debug, Default)]
pub struct Devices {
    pub inventory: Inventory,
    claims: BTreeMap<Name, Shared<ResourceClaim>>,
    /// Allocations that were decided and are not in the API yet, by the claim's UID.
    pending: BTreeMap<String, AllocationResult>,
    allocated: AllocatedState,
}

pub fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

fn name(claim: &Shared<ResourceClaim>) -> Name {
    let object = claim.object();
    (object.namespace().to_string(), object.name().to_string())
}

fn version(claim: &ResourceClaim) -> u64 {
    let version = claim.metadata.resource_version.as_deref();
    version.and_then(|v| v.parse().ok()).unwrap_or(0)
}

impl Devices {
    /// Applies a change.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Claim {
                after: Some(claim), ..
            } => self.set_claim(claim),
            Change::Claim {
                before: Some(claim),
                after: None,
            } => {
                let same = |known: &Shared<ResourceClaim>| known.object().uid() == claim.object().uid();
                if self.claims.get(&name(claim)).is_some_and(same) {
                    self.forget_claim(&name(claim));
                }
            }
            Change::Slice { before, after } => self.inventory.set_slice(before.as_ref(), after.as_ref()),
            Change::Class { before, after } => {
                if let Some(of) = after.as_ref().or(before.as_ref()) {
                    self.inventory.set_class(of.object().name(), after.clone());
                }
            }
            Change::Claim {
                before: None,
                after: None,
            } => {}
        }
    }

    /// Applies a claim, from a watch or from the response of a write. An older version than the known one is ignored:
    /// caches lag behind writes.
    pub fn set_claim(&mut self, claim: &Shared<ResourceClaim>) {
        let key = name(claim);
        if let Some(known) = self.claims.get(&key) {
            if known.object().uid() == claim.object().uid() {
                if version(known) > version(claim) {
                    return;
                }
                if let Some(was) = self.effective(known).cloned() {
                    self.allocated.remove(&was);
                }
            } else {
                self.forget_claim(&key);
            }
        }
        if allocation(claim).is_some() {
            self.pending.remove(claim.object().uid());
        }
        if let Some(is) = self.effective(claim).cloned() {
            self.allocated.add(&is);
        }
        let devices = claim.spec.devices.as_ref();
        for request in devices.and_then(|d| d.requests.as_ref()).into_iter().flatten() {
            let exactly = request.exactly.as_ref().and_then(|e| e.selectors.as_deref());
            self.inventory.compile(exactly);
            for sub in request.first_available.iter().flatten() {
                self.inventory.compile(sub.selectors.as_deref());
            }
        }
        self.claims.insert(key, claim.clone());
    }

    fn forget_claim(&mut self, key: &Name) {
        let Some(claim) = self.claims.remove(key) else {
            return;
        };
        if let Some(was) = self.effective(&claim).cloned() {
            self.allocated.remove(&was);
        }
        self.pending.remove(claim.object().uid());
    }

    fn effective<'a>(&'a self, claim: &'a Shared<ResourceClaim>) -> Option<&'a AllocationResult> {
        allocation(claim).or_else(|| self.pending.get(claim.object().uid()))
    }

    pub fn claim(&self, namespace: &str, name: &str) -> Option<&Shared<ResourceClaim>> {
        self.claims.get(&(namespace.to_string(), name.to_string()))
    }

    /// The claim that was created for the pod's extended resources.
    pub fn extended_claim(&self, namespace: &str, pod_uid: &PodUid) -> Option<&Shared<ResourceClaim>> {
        let first = (namespace.to_string(), String::new());
        let here = self.claims.range(first..);
        let mut here = here
            .take_while(|((of, _), _)| of == namespace)
            .map(|(_, claim)| claim);
        here.find(|claim| extended::is_for_extended_resources(claim, pod_uid))
    }

    /// The allocation that was decided for a claim before its creation now belongs to this claim.
    pub fn created(&mut self, claim: &Shared<ResourceClaim>, before: &str) {
        let decided = self.pending.get(before).cloned();
        self.release(before);
        self.set_claim(claim);
        if let Some(decided) = decided.filter(|_| allocation(claim).is_none()) {
            self.reserve(claim.object().uid(), &decided);
        }
    }

    pub fn allocated(&self) -> &AllocatedState {
        &self.allocated
    }

    /// Whether an allocation was decided for the claim and is being written.
    pub fn is_pending(&self, uid: &str) -> bool {
        self.pending.contains_key(uid)
    }

    /// Assumes this allocation of the claim until the API shows it.
    pub fn reserve(&mut self, uid: &str, allocation: &AllocationResult) {
        self.release(uid);
        self.allocated.add(allocation);
        self.pending.insert(uid.to_string(), allocation.clone());
    }

    /// Drops the assumed allocation.
    pub fn release(&mut self, uid: &str) {
        if let Some(pending) = self.pending.remove(uid) {
            self.allocated.remove(&pending);
        }
    }
}
