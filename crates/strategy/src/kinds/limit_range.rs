//! LimitRange: minimum, maximum and default amounts of resources in a namespace.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{LimitRange, LimitRangeItem};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::quantity::{self, Quantity};

use super::checks::{Json, json, quantity_of};
use super::pod::{container_resource_name, validate_resource_name};
use crate::{MetadataChecks, Part, Strategy};

const TYPES: &[&str] = &["Pod", "Container", "PersistentVolumeClaim"];
const NOT_ON_POD: &str = "may not be specified when `type` is 'Pod'";

type Amounts = Option<BTreeMap<String, Wire>>;

impl Strategy for LimitRange {
    fn set_defaults(&mut self) {
        for item in &mut self.spec.get_or_insert_default().limits {
            for amounts in [
                &mut item.default,
                &mut item.default_request,
                &mut item.max,
                &mut item.max_limit_request_ratio,
                &mut item.min,
            ] {
                amounts
                    .iter_mut()
                    .flatten()
                    .for_each(|(_, q)| quantity::canonicalize(q));
            }
            if item.type_ == "Container" {
                let mut default = item.default.take().unwrap_or_default();
                set_missing(&mut default, &item.max);
                let mut request = item.default_request.take().unwrap_or_default();
                set_missing(&mut request, &Some(default.clone()));
                set_missing(&mut request, &item.min);
                item.default = (!default.is_empty()).then_some(default);
                item.default_request = (!request.is_empty()).then_some(request);
            }
        }
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec").child("limits");
        let mut seen = BTreeSet::new();
        let items = self.spec.iter().flat_map(|s| &s.limits);
        for (i, item) in items.enumerate() {
            let path = path.index(i);
            type_name(&item.type_, &path.child("type"), &mut errors);
            if !seen.insert(&item.type_) {
                errors.duplicate(&path.child("type"), &item.type_);
            }
            check_item(item, &path, &mut errors);
        }
        errors
    }

    const CREATE_ON_UPDATE: bool = true;

    const GENERATES_NAME: bool = true;

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::FULL
    }
}

fn set_missing(into: &mut BTreeMap<String, Wire>, from: &Amounts) {
    for (name, amount) in from.iter().flatten() {
        into.entry(name.clone()).or_insert_with(|| amount.clone());
    }
}

fn type_name(name: &str, path: &Path, errors: &mut ErrorList) {
    let messages = names::qualified_name(name);
    if messages.is_empty() && !name.contains('/') && !TYPES.contains(&name) {
        errors.invalid(path, name, "must be a standard limit type or fully qualified");
    }
    errors.all_invalid(path, name, messages);
}

fn resource_name(of: &str, name: &str, path: &Path, errors: &mut ErrorList) {
    match of {
        "Pod" | "Container" => container_resource_name(name, path, errors),
        _ => errors.extend(validate_resource_name(name, path)),
    }
}

fn check_item(item: &LimitRangeItem, path: &Path, errors: &mut ErrorList) {
    let on_pod = item.type_ == "Pod";
    let mut all = BTreeSet::new();
    for (field, amounts, not_on_pod) in [
        ("max", &item.max, false),
        ("min", &item.min, false),
        ("default", &item.default, true),
        ("defaultRequest", &item.default_request, true),
        ("maxLimitRequestRatio", &item.max_limit_request_ratio, false),
    ] {
        let at = path.child(field);
        if on_pod && not_on_pod {
            if amounts.as_ref().is_some_and(|a| !a.is_empty()) {
                errors.forbidden(&at, NOT_ON_POD);
            }
            continue;
        }
        for name in amounts.iter().flatten().map(|(name, _)| name) {
            resource_name(&item.type_, name, &at.key(name), errors);
            all.insert(name);
        }
    }
    let has_storage = |a: &Amounts| a.as_ref().is_some_and(|a| a.contains_key("storage"));
    if item.type_ == "PersistentVolumeClaim" && !has_storage(&item.min) && !has_storage(&item.max) {
        errors.required(
            &path.child("limits"),
            "either minimum or maximum storage value is required, but neither was provided",
        );
    }
    for name in all {
        check_amounts(item, name, path, errors);
    }
}

/// Compares the amounts of one resource with each other.
fn check_amounts(item: &LimitRangeItem, name: &str, path: &Path, errors: &mut ErrorList) {
    let on_pod = item.type_ == "Pod";
    let get = |amounts: &Amounts| quantity_of(amounts.as_ref()?.get(name)?);
    let (min, max) = (get(&item.min), get(&item.max));
    let default = get(&item.default).filter(|_| !on_pod);
    let request = get(&item.default_request).filter(|_| !on_pod);
    let ratio = get(&item.max_limit_request_ratio);
    // The first amount must not exceed the second; the third is the value that the error shows.
    let mut ordered = |field: &str,
                       small: (&str, Option<Quantity>),
                       large: (&str, Option<Quantity>),
                       shown: Option<Quantity>| {
        if let ((a, Some(small)), (b, Some(large)), Some(shown)) = (small, large, shown)
            && small > large
        {
            errors.invalid(
                &path.child(field).key(name),
                wire(shown),
                format!(
                    "{a} value {} is greater than {b} value {}",
                    small.to_wire().0,
                    large.to_wire().0
                ),
            );
        }
    };
    ordered("min", ("min", min), ("max", max), min);
    ordered(
        "defaultRequest",
        ("min", min),
        ("default request", request),
        request,
    );
    ordered(
        "defaultRequest",
        ("default request", request),
        ("max", max),
        request,
    );
    ordered(
        "defaultRequest",
        ("default request", request),
        ("default limit", default),
        request,
    );
    ordered("default", ("min", min), ("default", default), min);
    ordered("default", ("default", default), ("max", max), max);
    let Some(ratio) = ratio else { return };
    let at = path.child("maxLimitRequestRatio").key(name);
    let shown = ratio.to_wire().0;
    if ratio.milli_value() < 1000 {
        errors.invalid(&at, wire(ratio), format!("ratio {shown} is less than 1"));
    }
    if let (Some(min), Some(max)) = (min, max) {
        let limit = max.milli_value() as f64 / min.milli_value() as f64;
        if ratio.milli_value() as f64 / 1000.0 > limit {
            errors.invalid(
                &at,
                wire(ratio),
                format!("ratio {shown} is greater than max/min = {limit:.6}"),
            );
        }
    }
}

fn wire(quantity: Quantity) -> Json {
    json(&quantity.to_wire())
}
