//! ResourceSlice: devices that a DRA driver publishes, of one node or of several.

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{immutable, json_list, text, update_generation};
use super::device::{self, NodeSelection, true_if_set};
use super::device_requests::{at_most, driver_name, pool_name, unique};
use crate::table::{self, Cell, Column};
use crate::{Part, Strategy};

const DEVICES_MAX: usize = 128;
/// Maximum number of devices if any has taints, consumes counters or has list attributes.
const ADVANCED_DEVICES_MAX: usize = 64;
const COUNTER_SETS_MAX: usize = 8;
const ONE_NODE_FIELD: &str =
    "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";

fn has_lists(of: &DeviceAttribute) -> bool {
    of.bools.is_some() || of.ints.is_some() || of.strings.is_some() || of.versions.is_some()
}

fn attributes(device: &Device) -> impl Iterator<Item = &DeviceAttribute> {
    device.attributes.iter().flat_map(|of| of.values())
}

/// Drops the fields of features that are disabled by default (DRAListTypeAttributes, DRANodeAllocatableResources),
/// unless the old object has them.
fn drop_disabled(spec: &mut ResourceSliceSpec, old: Option<&ResourceSliceSpec>) {
    let mut old_devices = old.and_then(|old| old.devices.as_ref()).into_iter().flatten();
    let keeps_lists = old_devices
        .clone()
        .any(|device| attributes(device).any(has_lists));
    let keeps_mappings = old_devices.any(|device| {
        let mappings = device.node_allocatable_resource_mappings.as_ref();
        mappings.is_some_and(|mappings| !mappings.is_empty())
    });
    for device in spec.devices.iter_mut().flatten() {
        if !keeps_mappings {
            device.node_allocatable_resource_mappings = None;
        }
        for of in device.attributes.iter_mut().flat_map(|of| of.values_mut()) {
            if !keeps_lists {
                (of.bools, of.ints, of.strings, of.versions) = (None, None, None, None);
            }
        }
    }
}

fn validate(spec: &ResourceSliceSpec, old: Option<&ResourceSliceSpec>) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("spec");
    driver_name(&mut errors, &path.child("driver"), &spec.driver);
    let at = path.child("pool");
    pool_name(&mut errors, &at.child("name"), &spec.pool.name);
    if spec.pool.resource_slice_count <= 0 {
        let detail = "must be greater than zero";
        errors.invalid(
            &at.child("resourceSliceCount"),
            spec.pool.resource_slice_count,
            detail,
        );
    }
    if spec.pool.generation < 0 {
        let detail = "must be greater than or equal to zero";
        errors.invalid(&at.child("generation"), spec.pool.generation, detail);
    }
    if let Some(old) = old {
        immutable(&mut errors, &at.child("name"), &spec.pool.name, &old.pool.name);
        immutable(&mut errors, &path.child("driver"), &spec.driver, &old.driver);
        immutable(
            &mut errors,
            &path.child("nodeName"),
            &spec.node_name,
            &old.node_name,
        );
    }
    nodes(&mut errors, &path, spec);
    if spec.shared_counters.is_some() && spec.devices.is_some() {
        errors.invalid(&path, "", "only one of `sharedCounters` or `devices` is allowed");
    }
    let devices = spec.devices.as_deref().unwrap_or_default();
    let is_advanced = devices.iter().any(|device| {
        device.taints.as_ref().is_some_and(|taints| !taints.is_empty())
            || device.consumes_counters.as_ref().is_some_and(|of| !of.is_empty())
            || attributes(device).any(has_lists)
    });
    let max = if is_advanced {
        ADVANCED_DEVICES_MAX
    } else {
        DEVICES_MAX
    };
    let at = path.child("devices");
    if at_most(&mut errors, &at, devices, max) {
        let has_own_nodes = spec.per_device_node_selection == Some(true);
        for (i, of) in devices.iter().enumerate() {
            let mut old_devices = old.and_then(|old| old.devices.as_ref()).into_iter().flatten();
            let old = old_devices.find(|old| old.name == of.name);
            device::validate(&mut errors, &at.index(i), of, old, has_own_nodes);
        }
        unique(&mut errors, &at, devices.iter().map(|of| of.name.as_str()));
    }
    let sets = spec.shared_counters.as_deref().unwrap_or_default();
    let at = path.child("sharedCounters");
    if at_most(&mut errors, &at, sets, COUNTER_SETS_MAX) {
        for (i, set) in sets.iter().enumerate() {
            device::counter_set(&mut errors, &at.index(i), set);
        }
        unique(&mut errors, &at, sets.iter().map(|set| set.name.as_str()));
    }
    errors
}

/// Checks that exactly one field selects the nodes that can use the devices.
fn nodes(errors: &mut ErrorList, path: &Path, spec: &ResourceSliceSpec) {
    let nodes = NodeSelection {
        name: spec.node_name.as_deref(),
        selector: spec.node_selector.as_ref(),
        all: spec.all_nodes,
        empty_name: "must be either unset or set to a non-empty string",
    };
    let mut set = nodes.validate(errors, path);
    // The selectors of several slices are merged in an allocation, so each must have one term.
    if let Some(terms) = spec.node_selector.as_ref().map(|of| &of.node_selector_terms)
        && terms.len() != 1
    {
        let at = path.child("nodeSelector").child("nodeSelectorTerms");
        errors.invalid(&at, json_list(terms), "must have exactly one node selector term");
    }
    let at = path.child("perDeviceNodeSelection");
    if true_if_set(errors, &at, spec.per_device_node_selection) {
        set.push("`perDeviceNodeSelection`");
    }
    match set.as_slice() {
        [] => errors.required(path, ONE_NODE_FIELD),
        [_] => {}
        several => errors.invalid(
            path,
            format!("{{{}}}", several.join(", ")),
            format!("{ONE_NODE_FIELD}, but multiple fields are set"),
        ),
    }
}

/// Sets an empty quantity to zero, the zero value of Go's type.
fn default_amount(amount: &mut Quantity) {
    if amount.0.is_empty() {
        amount.0.push('0');
    }
}

impl Strategy for ResourceSlice {
    fn set_defaults(&mut self) {
        let spec = &mut self.spec;
        for device in spec.devices.iter_mut().flatten() {
            let capacity = device.capacity.iter_mut().flat_map(|of| of.values_mut());
            capacity.for_each(|c| default_amount(&mut c.value));
            let consumed = device.consumes_counters.iter_mut().flatten();
            consumed
                .flat_map(|of| of.counters.values_mut())
                .for_each(|c| default_amount(&mut c.value));
        }
        let sets = spec.shared_counters.iter_mut().flatten();
        sets.flat_map(|set| set.counters.values_mut())
            .for_each(|c| default_amount(&mut c.value));
    }

    fn prepare_for_create(&mut self) {
        self.metadata.generation = Some(1);
        drop_disabled(&mut self.spec, None);
    }

    fn prepare_for_update(&mut self, old: &Self, _part: Part) {
        let changed = self.spec != old.spec;
        update_generation(&mut self.metadata, &old.metadata, changed);
        drop_disabled(&mut self.spec, Some(&old.spec));
    }

    fn validate(&self) -> ErrorList {
        validate(&self.spec, None)
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        validate(&self.spec, Some(&old.spec))
    }

    fn warnings(&self) -> Vec<String> {
        let driver = &self.spec.driver;
        let has_capitals = *driver != driver.to_lowercase();
        let warning = format!(
            "spec.driver: driver names should be lowercase; {driver:?} contains uppercase characters"
        );
        has_capitals.then_some(warning).into_iter().collect()
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Node"),
            Column::string("Driver"),
            Column::string("Pool"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            table::name(&self.metadata),
            text(&self.spec.node_name).into(),
            self.spec.driver.as_str().into(),
            self.spec.pool.name.as_str().into(),
            table::created(&self.metadata, now),
        ]
    }
}
