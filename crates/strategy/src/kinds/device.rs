//! A device of a ResourceSlice: its attributes, capacity, taints, counters and the nodes that can use it. Limits and
//! messages are those of Kubernetes' `pkg/apis/resource/validation`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Counter, CounterSet, Device, DeviceAttribute,
    DeviceCapacity, DeviceCounterConsumption, DeviceTaint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::kinds::node_affinity::node_selector;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::quantity::Quantity;

use super::checks::{Json, dns_label, dns_subdomain, json, qualified_name, text};
use super::device_requests::{self, at_most, unique};
use crate::facts;

const ATTRIBUTES_AND_CAPACITIES_MAX: usize = 32;
const ATTRIBUTE_VALUES_MAX: usize = 48;
const ATTRIBUTE_VALUE_MAX_BYTES: usize = 64;
const TAINTS_MAX: usize = 16;
const COUNTERS_MAX: usize = 32;
const CONSUMED_SETS_MAX: usize = 2;
const VALID_VALUES_MAX: usize = 10;
/// Maximum length of an attribute's key in a field path: the longest domain, a slash and the longest name.
const ATTRIBUTE_KEY_SHOWN_BYTES: usize = 63 + 1 + 32;
const LABEL_SHOWN_BYTES: usize = 63;
const ONE_VALUE: &str = "exactly one value must be specified";
const ONE_NODE_FIELD: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when \
     `perDeviceNodeSelection` is set to true in the ResourceSlice spec";

/// The fields that select the nodes from which devices can be used.
pub struct NodeSelection<'a> {
    pub name: Option<&'a str>,
    pub selector: Option<&'a NodeSelector>,
    pub all: Option<bool>,
    /// The error detail for an empty name.
    pub empty_name: &'static str,
}

impl NodeSelection<'_> {
    /// Checks the fields that are set and returns their names.
    pub fn validate(&self, errors: &mut ErrorList, path: &Path) -> Vec<&'static str> {
        let mut set = Vec::new();
        let at = path.child("nodeName");
        match self.name {
            Some("") => errors.invalid(&at, "", self.empty_name),
            Some(name) => {
                set.push("`nodeName`");
                dns_subdomain(errors, &at, name);
            }
            None => {}
        }
        if let Some(selector) = self.selector {
            set.push("`nodeSelector`");
            node_selector(selector, &path.child("nodeSelector"), errors);
        }
        set.extend(true_if_set(errors, &path.child("allNodes"), self.all).then_some("`allNodes`"));
        set
    }
}

/// Whether a field is set that may only be true or absent; `false` is an error.
pub fn true_if_set(errors: &mut ErrorList, path: &Path, value: Option<bool>) -> bool {
    if value == Some(false) {
        errors.invalid(path, false, "must be either unset or set to true");
    }
    value == Some(true)
}

pub fn validate(
    errors: &mut ErrorList,
    path: &Path,
    device: &Device,
    old: Option<&Device>,
    has_own_nodes: bool,
) {
    dns_label(errors, &path.child("name"), &device.name);
    let attributes = device.attributes.iter().flatten();
    let capacities = device.capacity.iter().flatten();
    let count = attributes.clone().count() + capacities.clone().count();
    if count > ATTRIBUTES_AND_CAPACITIES_MAX {
        let detail = format!(
            "the total number of attributes and capacities must not exceed {ATTRIBUTES_AND_CAPACITIES_MAX}"
        );
        errors.invalid(path, i64::try_from(count).unwrap_or(i64::MAX), detail);
    }
    let count: usize = attributes.clone().map(|(_, of)| values(of)).sum();
    if count > ATTRIBUTE_VALUES_MAX {
        let detail = format!("the total number of attribute values must not exceed {ATTRIBUTE_VALUES_MAX}");
        errors.invalid(path, i64::try_from(count).unwrap_or(i64::MAX), detail);
    }
    let at = path.child("attributes");
    for (name, of) in attributes {
        device_requests::qualified_name(errors, &at, name);
        attribute(errors, &at.key(&shortened(name, ATTRIBUTE_KEY_SHOWN_BYTES)), of);
    }
    let at = path.child("capacity");
    let is_shared = device.allow_multiple_allocations == Some(true);
    for (name, of) in capacities {
        device_requests::qualified_name(errors, &at, name);
        let at = at.key(&shortened(name, ATTRIBUTE_KEY_SHOWN_BYTES));
        capacity(errors, &at, of, is_shared);
    }
    let old_taints = old.map(|old| old.taints.as_deref().unwrap_or_default());
    let new_taints = device.taints.as_deref().unwrap_or_default();
    let at = path.child("taints");
    if old_taints != Some(new_taints) && at_most(errors, &at, new_taints, TAINTS_MAX) {
        for (i, of) in new_taints.iter().enumerate() {
            taint(errors, &at.index(i), of);
        }
    }
    let consumed = device.consumes_counters.as_deref().unwrap_or_default();
    let at = path.child("consumesCounters");
    if at_most(errors, &at, consumed, CONSUMED_SETS_MAX) {
        for (i, of) in consumed.iter().enumerate() {
            consumption(errors, &at.index(i), of);
        }
        unique(errors, &at, consumed.iter().map(|of| of.counter_set.as_str()));
    }
    own_nodes(errors, path, device, has_own_nodes);
    let conditions = device.binding_conditions.as_deref();
    let failures = device.binding_failure_conditions.as_deref();
    device_requests::binding_conditions(errors, path, conditions, failures);
}

fn own_nodes(errors: &mut ErrorList, path: &Path, device: &Device, has_own_nodes: bool) {
    if !has_own_nodes {
        if device.node_name.is_some() || device.node_selector.is_some() || device.all_nodes.is_some() {
            let detail = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is \
                         set to true in the ResourceSlice spec";
            errors.invalid(path, Json("null".into()), detail);
        }
        return;
    }
    let nodes = NodeSelection {
        name: device.node_name.as_deref(),
        selector: device.node_selector.as_ref(),
        all: device.all_nodes,
        empty_name: "must not be empty",
    };
    match nodes.validate(errors, path).as_slice() {
        [] => errors.required(path, ONE_NODE_FIELD),
        [_] => {}
        several => errors.invalid(path, format!("{{{}}}", several.join(", ")), ONE_NODE_FIELD),
    }
}

fn values(attribute: &DeviceAttribute) -> usize {
    fn count<T>(list: &Option<Vec<T>>) -> usize {
        list.as_ref().map_or(0, Vec::len)
    }
    let lists = [
        count(&attribute.bools),
        count(&attribute.ints),
        count(&attribute.strings),
        count(&attribute.versions),
    ];
    lists.iter().sum::<usize>().max(1)
}

fn attribute(errors: &mut ErrorList, path: &Path, of: &DeviceAttribute) {
    if let Some(value) = &of.string {
        string_value(errors, &path.child("string"), value);
    }
    if let Some(value) = &of.version {
        version_value(errors, &path.child("version"), value);
    }
    let lists = [
        ("bools", of.bools.as_ref().map(Vec::is_empty)),
        ("ints", of.ints.as_ref().map(Vec::is_empty)),
        ("strings", of.strings.as_ref().map(Vec::is_empty)),
        ("versions", of.versions.as_ref().map(Vec::is_empty)),
    ];
    for (name, is_empty) in lists {
        if is_empty == Some(true) {
            let none: &[i64] = &[];
            errors.invalid(&path.child(name), json(none), "must not be empty if specified");
        }
    }
    for (i, value) in of.strings.iter().flatten().enumerate() {
        string_value(errors, &path.child("strings").index(i), value);
    }
    for (i, value) in of.versions.iter().flatten().enumerate() {
        version_value(errors, &path.child("versions").index(i), value);
    }
    let single = [
        of.bool.is_some(),
        of.int.is_some(),
        of.string.is_some(),
        of.version.is_some(),
    ];
    let set = single
        .into_iter()
        .chain(lists.iter().map(|(_, list)| list.is_some()));
    match set.filter(|is_set| *is_set).count() {
        0 => errors.invalid(path, "", ONE_VALUE),
        1 => {}
        _ => errors.invalid(path, json(&shown(of)), ONE_VALUE),
    }
}

/// An attribute as error messages show it: with the field names of the internal type.
fn shown(of: &DeviceAttribute) -> impl serde::Serialize {
    #[derive(serde::Serialize)]
    #[serde(rename_all = "PascalCase")]
    struct Internal {
        int_value: Option<i64>,
        bool_value: Option<bool>,
        string_value: Option<String>,
        version_value: Option<String>,
        int_values: Option<Vec<i64>>,
        bool_values: Option<Vec<bool>>,
        string_values: Option<Vec<String>>,
        version_values: Option<Vec<String>>,
    }
    let of = of.clone();
    Internal {
        int_value: of.int,
        bool_value: of.bool,
        string_value: of.string,
        version_value: of.version,
        int_values: of.ints,
        bool_values: of.bools,
        string_values: of.strings,
        version_values: of.versions,
    }
}

fn string_value(errors: &mut ErrorList, path: &Path, value: &str) {
    if value.len() > ATTRIBUTE_VALUE_MAX_BYTES {
        errors.too_long(path, ATTRIBUTE_VALUE_MAX_BYTES);
    }
}

fn version_value(errors: &mut ErrorList, path: &Path, value: &str) {
    if !is_semantic_version(value) {
        errors.invalid(
            path,
            value,
            "must be a string compatible with semver.org spec 2.0.0",
        );
    }
    string_value(errors, path, value);
}

/// Whether a text is a version as defined by semver.org, such as `1.2.3-alpha.1+build.7`.
fn is_semantic_version(text: &str) -> bool {
    let is_word = |id: &str| !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let is_digits = |id: &str| !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit());
    let is_number = |id: &str| is_digits(id) && (id == "0" || !id.starts_with('0'));
    let (text, build) = match text.split_once('+') {
        Some((text, build)) => (text, Some(build)),
        None => (text, None),
    };
    let (core, pre_release) = match text.split_once('-') {
        Some((core, pre_release)) => (core, Some(pre_release)),
        None => (text, None),
    };
    core.split('.').count() == 3
        && core.split('.').all(is_number)
        && pre_release.is_none_or(|ids| {
            ids.split('.')
                .all(|id| is_word(id) && (!is_digits(id) || is_number(id)))
        })
        && build.is_none_or(|ids| ids.split('.').all(is_word))
}

fn taint(errors: &mut ErrorList, path: &Path, taint: &DeviceTaint) {
    qualified_name(errors, &path.child("key"), &taint.key);
    let value = text(&taint.value);
    if !value.is_empty() {
        errors.all_invalid(&path.child("value"), value, names::label_value(value));
    }
    facts::check(errors, path, taint, &["effect"]);
}

pub fn counter_set(errors: &mut ErrorList, path: &Path, set: &CounterSet) {
    counters(errors, path, "name", &set.name, &set.counters);
}

fn consumption(errors: &mut ErrorList, path: &Path, consumed: &DeviceCounterConsumption) {
    counters(
        errors,
        path,
        "counterSet",
        &consumed.counter_set,
        &consumed.counters,
    );
}

/// Checks counters and the name of their counter set, which is in the field of the given name.
fn counters(
    errors: &mut ErrorList,
    path: &Path,
    field: &str,
    set: &str,
    counters: &BTreeMap<String, Counter>,
) {
    let at = path.child(field);
    match set {
        "" => errors.required(&at, ""),
        name => dns_label(errors, &at, name),
    }
    let at = path.child("counters");
    match counters.len() {
        0 => errors.required(&at, ""),
        count if count > COUNTERS_MAX => errors.too_many(&at, count, COUNTERS_MAX),
        _ => counters.keys().for_each(|name| dns_label(errors, &at, name)),
    }
    for (name, counter) in counters {
        let at = at.key(&shortened(name, LABEL_SHOWN_BYTES)).child("value");
        let _ = quantity(errors, &at, &counter.value);
    }
}

fn capacity(errors: &mut ErrorList, path: &Path, capacity: &DeviceCapacity, is_shared: bool) {
    let Some(value) = quantity(errors, &path.child("value"), &capacity.value) else {
        return;
    };
    let Some(policy) = &capacity.request_policy else {
        return;
    };
    let path = path.child("requestPolicy");
    if is_shared {
        request_policy(errors, &path, value, policy);
    } else {
        errors.forbidden(&path, "allowMultipleAllocations must be true");
    }
}

fn request_policy(errors: &mut ErrorList, path: &Path, capacity: Quantity, policy: &CapacityRequestPolicy) {
    let values = policy.valid_values.as_deref().unwrap_or_default();
    let kind = match (values, &policy.valid_range) {
        ([], None) => return,
        ([_, ..], Some(_)) => {
            let detail = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at \
                         the same time";
            return errors.forbidden(path, detail);
        }
        ([_, ..], None) => "validValues",
        ([], Some(_)) => "validRange",
    };
    let at = path.child("default");
    let Some(default) = &policy.default else {
        return errors.required(&at, format!("required when {kind} is defined"));
    };
    let Some(default) = quantity(errors, &at, default) else {
        return;
    };
    match &policy.valid_range {
        None => valid_values(errors, &path.child(kind), capacity, default, values),
        Some(range) => valid_range(errors, &path.child(kind), capacity, default, range),
    }
}

fn valid_values(errors: &mut ErrorList, path: &Path, capacity: Quantity, default: Quantity, values: &[Wire]) {
    let parsed: Vec<Option<Quantity>> = values
        .iter()
        .enumerate()
        .map(|(i, value)| quantity(errors, &path.index(i), value))
        .collect();
    let parsed: Vec<Quantity> = match parsed.into_iter().collect() {
        Some(parsed) => parsed,
        None => return,
    };
    for (i, pair) in parsed.windows(2).enumerate() {
        if let [first, second] = pair
            && first > second
        {
            let detail = "values must be sorted in ascending order";
            errors.invalid(&path.index(i + 1), second.to_string(), detail);
        }
    }
    if at_most(errors, path, values, VALID_VALUES_MAX) {
        for (i, value) in parsed.iter().enumerate().filter(|(_, value)| **value > capacity) {
            let detail = format!("option is larger than capacity value: {capacity}");
            errors.invalid(&path.index(i), value.to_string(), detail);
        }
        let shown: Vec<String> = parsed.iter().map(|v| v.value().to_string()).collect();
        unique(errors, path, shown.iter().map(String::as_str));
    }
    if values.len() > VALID_VALUES_MAX || !parsed.contains(&default) {
        let detail = "default value is not valid according to the requestPolicy";
        errors.invalid(path, default.to_string(), detail);
    }
}

fn valid_range(
    errors: &mut ErrorList,
    path: &Path,
    capacity: Quantity,
    default: Quantity,
    range: &CapacityRequestPolicyRange,
) {
    let mut optional = |name, value: &Option<Wire>| match value {
        Some(value) => quantity(errors, &path.child(name), value).map(Some),
        None => Some(None),
    };
    let (Some(max), Some(step)) = (optional("max", &range.max), optional("step", &range.step)) else {
        return;
    };
    let at = path.child("min");
    if range.min.0.is_empty() {
        return errors.required(&at, "required when validRange is defined");
    }
    let Some(min) = quantity(errors, &at, &range.min) else {
        return;
    };
    let mut check = |at: &Path, wrong: bool, shown: Quantity, detail: String| {
        if wrong {
            errors.invalid(at, shown.to_string(), detail);
        }
    };
    let larger = format!("min is larger than capacity value: {capacity}");
    check(&at, min > capacity, min, larger);
    check(
        &at,
        default < min,
        default,
        format!("default is less than min: {min}"),
    );
    if let Some(max) = max {
        let at = path.child("max");
        check(&at, min > max, min, format!("min is larger than max: {max}"));
        let larger = format!("max is larger than capacity value: {capacity}");
        check(&at, max > capacity, max, larger);
        check(
            &at,
            default > max,
            default,
            format!("default is more than max: {max}"),
        );
    }
    if let Some(step) = step {
        let at = path.child("step");
        let first = min + step;
        let larger = format!("one step {first} is larger than capacity value: {capacity}");
        check(&at, first > capacity, step, larger);
        for value in [Some(default), max].into_iter().flatten() {
            // With a step of zero only the minimum is valid.
            let above = value.value().saturating_sub(min.value());
            let is_reached = above.checked_rem(step.value()).unwrap_or(above) == 0;
            let detail = format!("value is not a multiple of a given step ({step}) from ({min})");
            check(&at, !is_reached, value, detail);
        }
    }
}

fn quantity(errors: &mut ErrorList, path: &Path, value: &Wire) -> Option<Quantity> {
    match Quantity::of(value) {
        Ok(quantity) => Some(quantity),
        Err(detail) => {
            errors.invalid(path, value.0.as_str(), detail);
            None
        }
    }
}

/// A key as field paths show it: if it is too long, its middle is replaced by dots.
fn shortened(key: &str, max_bytes: usize) -> String {
    let kept = max_bytes.saturating_sub(3);
    let (head, tail) = (kept.div_ceil(2), key.len().saturating_sub(kept / 2));
    match (key.get(..head), key.get(tail..)) {
        (Some(start), Some(end)) if key.len() > max_bytes => format!("{start}...{end}"),
        _ => key.to_string(),
    }
}

#[cfg(test)]
mod tests;
