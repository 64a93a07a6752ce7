//! Dynamic resource allocation with structured parameters (KEP-4381, `resource.k8s.io/v1`): what drivers publish
//! ([`inventory`]), which devices claims get on a node ([`allocator`]), and which devices are taken.
//!
//! The features are those whose gates are on by default in v1.36: admin access, prioritized lists, partitionable
//! devices, device taints, extended resources, consumable capacity and binding conditions.

pub mod allocator;
pub mod capacity;
pub mod claims;
pub mod extended;
pub mod inventory;
pub mod pools;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequestAllocationResult};
use knarr_api::k8s_openapi;
use knarr_apimachinery::quantity::Quantity;

pub use allocator::{AllocationError, allocate};
pub use inventory::Inventory;

/// A device; the id is unique in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceId {
    pub driver: String,
    pub pool: String,
    pub device: String,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}

impl DeviceId {
    pub fn new(driver: &str, pool: &str, device: &str) -> Self {
        DeviceId {
            driver: driver.into(),
            pool: pool.into(),
            device: device.into(),
        }
    }

    pub fn of(result: &DeviceRequestAllocationResult) -> Self {
        DeviceId::new(&result.driver, &result.pool, &result.device)
    }
}

/// How much of each capacity is consumed.
pub type Consumed = BTreeMap<String, Quantity>;

/// The devices that are allocated to claims, without those with admin access.
#[derive(Clone, Debug, Default)]
pub struct AllocatedState {
    /// Devices that are allocated exclusively.
    pub devices: BTreeSet<DeviceId>,
    /// Of devices that several claims share: how many shares, and what they consume.
    pub shared: BTreeMap<DeviceId, Shares>,
}

/// What is consumed of one device that can be allocated several times.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    pub count: usize,
    pub consumed: Consumed,
}

impl AllocatedState {
    pub fn is_allocated(&self, id: &DeviceId) -> bool {
        self.devices.contains(id) || self.shared.contains_key(id)
    }

    /// Adds an allocation.
    pub fn add(&mut self, allocation: &AllocationResult) {
        for result in results(allocation) {
            let id = DeviceId::of(result);
            if result.share_id.is_none() {
                self.devices.insert(id);
                continue;
            }
            let shares = self.shared.entry(id).or_default();
            shares.count += 1;
            for (name, amount) in consumed(result) {
                let sum = shares.consumed.entry(name).or_default();
                *sum += amount;
            }
        }
    }

    /// Removes an allocation that was added.
    pub fn remove(&mut self, allocation: &AllocationResult) {
        for result in results(allocation) {
            let id = DeviceId::of(result);
            if result.share_id.is_none() {
                self.devices.remove(&id);
                continue;
            }
            let Some(shares) = self.shared.get_mut(&id) else {
                continue;
            };
            shares.count = shares.count.saturating_sub(1);
            if shares.count == 0 {
                self.shared.remove(&id);
                continue;
            }
            for (name, amount) in consumed(result) {
                if let Some(sum) = shares.consumed.get_mut(&name) {
                    *sum -= amount;
                }
            }
        }
    }
}

/// The devices that an allocation takes.
fn results(allocation: &AllocationResult) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let devices = allocation.devices.as_ref();
    let all = devices.and_then(|d| d.results.as_ref()).into_iter().flatten();
    all.filter(|r| r.admin_access != Some(true))
}

/// Quantities that do not parse count as zero: the API has validated them.
fn consumed(result: &DeviceRequestAllocationResult) -> impl Iterator<Item = (String, Quantity)> {
    let all = result.consumed_capacity.iter().flatten();
    all.filter_map(|(name, amount)| Some((name.clone(), Quantity::of(amount).ok()?)))
}
