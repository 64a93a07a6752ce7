//! The pools of devices that a node can use, built from ResourceSlices: the newest generation only, and only pools of
//! which all slices are there.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{CounterSet, Device, ResourceSlice};
use knarr_api::{Shared, k8s_openapi};

use crate::node_info::NodeInfo;
use crate::plugins::node_affinity;

/// Driver and name.
pub type PoolKey = (String, String);
/// The slices of one pool, by name.
pub type PoolSlices = BTreeMap<String, Shared<ResourceSlice>>;

/// Whether devices of a pool can be allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolState {
    Complete,
    /// The driver is still publishing it.
    Incomplete,
    /// The slices contradict each other.
    Invalid(PoolError),
}

/// How the slices of a pool contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    #[error("duplicate device name {0}")]
    DuplicateDevice(String),
    #[error("duplicate counter set name {0}")]
    DuplicateCounterSet(String),
    #[error("counter set {0} not found")]
    NoCounterSet(String),
    #[error("counter {counter} not found in counter set {set}")]
    NoCounter { counter: String, set: String },
}

/// A pool as one node sees it.
#[derive(Debug)]
pub struct Pool<'a> {
    pub driver: &'a str,
    pub name: &'a str,
    pub state: PoolState,
    /// Slices with devices that the node may use, by name.
    pub slices: Vec<&'a ResourceSlice>,
    /// The other slices of the pool, whose devices share its counters.
    pub elsewhere: Vec<&'a ResourceSlice>,
    pub counters: BTreeMap<&'a str, &'a CounterSet>,
}

/// Whether the node selection of a slice or a device matches this node.
pub fn node_matches(
    node: &NodeInfo,
    name: Option<&str>,
    all_nodes: Option<bool>,
    selector: Option<&NodeSelector>,
) -> bool {
    match name.filter(|n| !n.is_empty()) {
        Some(name) => node.name == name,
        None if all_nodes == Some(true) => true,
        None => selector.is_some_and(|s| node_affinity::matches(s, node)),
    }
}

/// The same for a device in a slice with perDeviceNodeSelection.
pub fn device_matches(node: &NodeInfo, device: &Device) -> bool {
    let (name, selector) = (device.node_name.as_deref(), device.node_selector.as_ref());
    node_matches(node, name, device.all_nodes, selector)
}

pub fn has_counters(slice: &ResourceSlice) -> bool {
    slice.spec.shared_counters.as_ref().is_some_and(|c| !c.is_empty())
}

pub fn devices(slice: &ResourceSlice) -> &[Device] {
    slice.spec.devices.as_deref().unwrap_or_default()
}

/// Whether the slice matters for the node.
fn is_relevant(slice: &ResourceSlice, node: &NodeInfo) -> bool {
    let spec = &slice.spec;
    let name = spec.node_name.as_deref().filter(|n| !n.is_empty());
    if has_counters(slice) {
        true
    } else if name.is_some() || spec.all_nodes == Some(true) || spec.node_selector.is_some() {
        node_matches(node, name, spec.all_nodes, spec.node_selector.as_ref())
    } else {
        spec.per_device_node_selection == Some(true) && devices(slice).iter().any(|d| device_matches(node, d))
    }
}

/// The pools of a node; those with devices that have binding conditions come last.
pub fn gather<'a>(
    pools: impl IntoIterator<Item = (&'a PoolKey, &'a PoolSlices)>,
    node: &NodeInfo,
) -> Vec<Pool<'a>> {
    let pools = pools.into_iter();
    let mut all: Vec<Pool<'a>> = pools
        .filter_map(|((driver, name), slices)| gather_pool(driver, name, slices, node))
        .collect();
    all.sort_by_key(|pool| (has_binding_conditions(pool), pool.driver, pool.name));
    all
}

fn has_binding_conditions(pool: &Pool<'_>) -> bool {
    let mut all = pool.slices.iter().flat_map(|s| devices(s));
    all.any(|d| d.binding_conditions.is_some())
}

fn name_of(slice: &ResourceSlice) -> &str {
    slice.metadata.name.as_deref().unwrap_or_default()
}

/// `None`: the pool has nothing for the node.
fn gather_pool<'a>(
    driver: &'a str,
    name: &'a str,
    slices: &'a PoolSlices,
    node: &NodeInfo,
) -> Option<Pool<'a>> {
    let all = || slices.values().map(|s| &**s);
    let relevant: Vec<&ResourceSlice> = all().filter(|s| is_relevant(s, node)).collect();
    let generation = relevant.iter().map(|s| s.spec.pool.generation).max()?;
    let here: Vec<&ResourceSlice> = relevant
        .into_iter()
        .filter(|s| s.spec.pool.generation == generation)
        .collect();
    let expected = here.first()?.spec.pool.resource_slice_count;
    let is_all = |count: usize| i64::try_from(count).is_ok_and(|n| n == expected);
    let pool = |state, slices, elsewhere, counters| Pool {
        driver,
        name,
        state,
        slices,
        elsewhere,
        counters,
    };
    let empty = |state| pool(state, Vec::new(), Vec::new(), BTreeMap::new());
    let mut elsewhere: Vec<&ResourceSlice> = Vec::new();
    if !is_all(here.len()) {
        // A newer generation is being published for other nodes: this one is obsolete.
        if all().any(|s| s.spec.pool.generation > generation) {
            return None;
        }
        let names: BTreeSet<&str> = here.iter().map(|s| name_of(s)).collect();
        let same = all().filter(|s| s.spec.pool.generation == generation);
        elsewhere.extend(same.filter(|s| !names.contains(name_of(s))));
        if !is_all(here.len() + elsewhere.len()) {
            return Some(empty(PoolState::Incomplete));
        }
    }
    let (with_counters, with_devices): (Vec<_>, Vec<_>) = here.into_iter().partition(|s| has_counters(s));
    Some(match check(&with_counters, &with_devices, &elsewhere) {
        Ok(counters) => pool(PoolState::Complete, with_devices, elsewhere, counters),
        Err(why) => empty(PoolState::Invalid(why)),
    })
}

/// The counter sets of a pool, if they are consistent.
fn check<'a>(
    with_counters: &[&'a ResourceSlice],
    with_devices: &[&'a ResourceSlice],
    elsewhere: &[&'a ResourceSlice],
) -> Result<BTreeMap<&'a str, &'a CounterSet>, PoolError> {
    let mut names = BTreeSet::new();
    for device in with_devices.iter().flat_map(|s| devices(s)) {
        if !names.insert(&device.name) {
            return Err(PoolError::DuplicateDevice(device.name.clone()));
        }
    }
    let mut counters: BTreeMap<&str, &CounterSet> = BTreeMap::new();
    let sets = with_counters
        .iter()
        .flat_map(|s| s.spec.shared_counters.iter().flatten());
    for set in sets {
        if counters.insert(&set.name, set).is_some() {
            return Err(PoolError::DuplicateCounterSet(set.name.clone()));
        }
    }
    let all = with_devices.iter().chain(elsewhere).flat_map(|s| devices(s));
    for consumption in all.flat_map(|d| d.consumes_counters.iter().flatten()) {
        let Some(set) = counters.get(consumption.counter_set.as_str()) else {
            return Err(PoolError::NoCounterSet(consumption.counter_set.clone()));
        };
        for name in consumption.counters.keys() {
            if !set.counters.contains_key(name) {
                return Err(PoolError::NoCounter {
                    counter: name.clone(),
                    set: set.name.clone(),
                });
            }
        }
    }
    Ok(counters)
}
