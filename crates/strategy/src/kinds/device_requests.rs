//! What ResourceClaims, ResourceClaimTemplates and DeviceClasses have in common: requests for devices, selectors,
//! constraints and configuration.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceConstraint, DeviceRequest, DeviceSelector, DeviceToleration,
    OpaqueDeviceConfiguration, ResourceClaimSpec,
};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;
use knarr_cel::device::Selector;
use knarr_cel::meter::CALL_COST_MAX;
use serde_json::Value;

use super::checks::{Json, dns_label, dns_subdomain, text};
use crate::facts;

/// Maximum number of requests, of constraints, of configurations and of selectors.
const ITEMS_MAX: usize = 32;
const ALTERNATIVES_MAX: usize = 8;
const EXPRESSION_MAX_BYTES: usize = 10 * 1024;
const PARAMETERS_MAX_BYTES: usize = 10 * 1024;
const DRIVER_MAX_BYTES: usize = 63;
const ID_MAX_BYTES: usize = 32;
const POOL_MAX_BYTES: usize = 253;
const BINDING_CONDITIONS_MAX: usize = 4;
const EXACT_COUNT: &str = "ExactCount";
const ALL: &str = "All";
const NAME_REFERENCE: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

/// Defaults of `allocationMode` and `count`: ExactCount of one device.
fn default_mode(mode: &mut Option<String>, count: &mut Option<i64>) {
    if text(mode).is_empty() {
        *mode = Some(EXACT_COUNT.into());
    }
    if text(mode) == EXACT_COUNT && count.unwrap_or(0) == 0 {
        *count = Some(1);
    }
}

/// The default operator of a toleration is Equal.
pub fn default_operators(tolerations: &mut Option<Vec<DeviceToleration>>) {
    for toleration in tolerations.iter_mut().flatten() {
        if text(&toleration.operator).is_empty() {
            toleration.operator = Some("Equal".into());
        }
    }
}

pub fn set_defaults(spec: &mut ResourceClaimSpec) {
    let devices = spec.devices.get_or_insert_default();
    for request in devices.requests.iter_mut().flatten() {
        if let Some(exactly) = &mut request.exactly {
            default_mode(&mut exactly.allocation_mode, &mut exactly.count);
            default_operators(&mut exactly.tolerations);
        }
        for sub in request.first_available.iter_mut().flatten() {
            default_mode(&mut sub.allocation_mode, &mut sub.count);
            default_operators(&mut sub.tolerations);
        }
    }
}

/// Whether a list has at most `max` entries; adds an error otherwise.
pub fn at_most<T>(errors: &mut ErrorList, path: &Path, list: &[T], max: usize) -> bool {
    if list.len() > max {
        errors.too_many(path, list.len(), max);
    }
    list.len() <= max
}

pub fn validate(errors: &mut ErrorList, path: &Path, spec: &ResourceClaimSpec) {
    let path = path.child("devices");
    let Some(devices) = &spec.devices else { return };
    let requests = devices.requests.as_deref().unwrap_or_default();
    let at = path.child("requests");
    if at_most(errors, &at, requests, ITEMS_MAX) {
        for (i, of) in requests.iter().enumerate() {
            request(errors, &at.index(i), of);
        }
        unique(errors, &at, requests.iter().map(|r| r.name.as_str()));
    }
    let names = request_names(devices);
    let constraints = devices.constraints.as_deref().unwrap_or_default();
    let at = path.child("constraints");
    if at_most(errors, &at, constraints, ITEMS_MAX) {
        for (i, of) in constraints.iter().enumerate() {
            constraint(errors, &at.index(i), of, &names);
        }
    }
    let configurations = devices.config.as_deref().unwrap_or_default();
    let at = path.child("config");
    if at_most(errors, &at, configurations, ITEMS_MAX) {
        for (i, of) in configurations.iter().enumerate() {
            let at = at.index(i);
            let requests = of.requests.as_deref().unwrap_or_default();
            references(errors, &at.child("requests"), requests, &names);
            configuration(errors, &at, of.opaque.as_ref());
        }
    }
}

pub fn unique<'a>(errors: &mut ErrorList, path: &Path, names: impl Iterator<Item = &'a str>) {
    let mut seen = BTreeSet::new();
    for (i, name) in names.enumerate() {
        if !seen.insert(name) {
            errors.duplicate(&path.index(i), name);
        }
    }
}

/// The names by which constraints and configuration may refer to requests and subrequests.
pub fn request_names(devices: &DeviceClaim) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for request in devices.requests.iter().flatten() {
        names.insert(request.name.clone());
        let alternatives = request.first_available.iter().flatten();
        names.extend(alternatives.map(|sub| format!("{}/{}", request.name, sub.name)));
    }
    names
}

fn request(errors: &mut ErrorList, path: &Path, request: &DeviceRequest) {
    dns_label(errors, &path.child("name"), &request.name);
    let alternatives = request.first_available.as_deref().unwrap_or_default();
    match (&request.exactly, alternatives) {
        (None, []) => errors.required(path, "exactly one of `exactly` or `firstAvailable` is required"),
        (Some(_), [_, ..]) => errors.invalid(
            path,
            Json("null".into()),
            "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
        ),
        (Some(exactly), []) => {
            let path = path.child("exactly");
            class_name(errors, &path.child("deviceClassName"), &exactly.device_class_name);
            selectors(errors, &path.child("selectors"), exactly.selectors.as_deref());
            mode(errors, &path, text(&exactly.allocation_mode), exactly.count);
            tolerations(errors, &path.child("tolerations"), exactly.tolerations.as_deref());
        }
        (None, alternatives) => {
            let path = path.child("firstAvailable");
            if !at_most(errors, &path, alternatives, ALTERNATIVES_MAX) {
                return;
            }
            for (i, sub) in alternatives.iter().enumerate() {
                let path = path.index(i);
                dns_label(errors, &path.child("name"), &sub.name);
                class_name(errors, &path.child("deviceClassName"), &sub.device_class_name);
                selectors(errors, &path.child("selectors"), sub.selectors.as_deref());
                mode(errors, &path, text(&sub.allocation_mode), sub.count);
                tolerations(errors, &path.child("tolerations"), sub.tolerations.as_deref());
            }
            unique(errors, &path, alternatives.iter().map(|sub| sub.name.as_str()));
        }
    }
}

fn class_name(errors: &mut ErrorList, path: &Path, name: &str) {
    if name.is_empty() {
        errors.required(path, "");
    } else {
        dns_subdomain(errors, path, name);
    }
}

fn mode(errors: &mut ErrorList, path: &Path, mode: &str, count: Option<i64>) {
    let count = count.unwrap_or(0);
    let at = path.child("count");
    match mode {
        ALL if count != 0 => {
            errors.invalid(&at, count, "must not be specified when allocationMode is 'All'");
        }
        EXACT_COUNT if count <= 0 => errors.invalid(&at, count, "must be greater than zero"),
        ALL | EXACT_COUNT => {}
        other => errors.not_supported(&path.child("allocationMode"), other, &[ALL, EXACT_COUNT]),
    }
}

pub fn selectors(errors: &mut ErrorList, path: &Path, selectors: Option<&[DeviceSelector]>) {
    let selectors = selectors.unwrap_or_default();
    if !at_most(errors, path, selectors, ITEMS_MAX) {
        return;
    }
    for (i, selector) in selectors.iter().enumerate() {
        let path = path.index(i).child("cel");
        let Some(cel) = &selector.cel else {
            errors.required(&path, "");
            continue;
        };
        let path = path.child("expression");
        if cel.expression.len() > EXPRESSION_MAX_BYTES {
            errors.too_long(&path, EXPRESSION_MAX_BYTES);
            continue;
        }
        match Selector::compile(&cel.expression) {
            Err(error) => errors.invalid(&path, cel.expression.as_str(), error.to_string()),
            Ok(selector) if selector.cost_max > CALL_COST_MAX => {
                errors.forbidden(&path, "too complex, exceeds cost limit");
            }
            Ok(_) => {}
        }
    }
}

fn constraint(errors: &mut ErrorList, path: &Path, constraint: &DeviceConstraint, names: &BTreeSet<String>) {
    let requests = constraint.requests.as_deref().unwrap_or_default();
    references(errors, &path.child("requests"), requests, names);
    match (&constraint.match_attribute, &constraint.distinct_attribute) {
        (Some(name), _) => fully_qualified_name(errors, &path.child("matchAttribute"), name),
        (None, Some(name)) => fully_qualified_name(errors, &path.child("distinctAttribute"), name),
        (None, None) => errors.required(
            path,
            "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set",
        ),
    }
}

pub fn references(errors: &mut ErrorList, path: &Path, requests: &[String], names: &BTreeSet<String>) {
    if !at_most(errors, path, requests, ITEMS_MAX) {
        return;
    }
    for (i, name) in requests.iter().enumerate() {
        reference(errors, &path.index(i), name, names);
    }
    unique(errors, path, requests.iter().map(String::as_str));
}

/// Checks a reference to a request, or to a subrequest as `request/subrequest`.
pub fn reference(errors: &mut ErrorList, path: &Path, name: &str, names: &BTreeSet<String>) {
    if name.split('/').count() > 2 {
        return errors.invalid(path, name, NAME_REFERENCE);
    }
    for part in name.split('/') {
        dns_label(errors, path, part);
    }
    if !names.contains(name) {
        errors.invalid(path, name, NAME_REFERENCE);
    }
}

/// Checks the name of an attribute or capacity, with or without a domain.
pub fn qualified_name(errors: &mut ErrorList, path: &Path, name: &str) {
    let parts: Vec<&str> = name.split('/').collect();
    match parts.as_slice() {
        [id] => identifier(errors, path, id),
        [domain, id] => {
            if domain.is_empty() {
                errors.invalid(path, "", "the domain must not be empty");
            } else {
                driver_name(errors, path, domain);
            }
            if id.is_empty() {
                errors.invalid(path, "", "the name must not be empty");
            } else {
                identifier(errors, path, id);
            }
        }
        // A name of more than two parts is not checked, as in `validateQualifiedName`.
        _ => {}
    }
}

/// Checks the name of an attribute or capacity that must have a domain.
fn fully_qualified_name(errors: &mut ErrorList, path: &Path, name: &str) {
    qualified_name(errors, path, name);
    if !name.contains('/') {
        let detail = "a fully qualified name must be a domain and a name separated by a slash";
        errors.invalid(path, name, detail);
    }
}

fn identifier(errors: &mut ErrorList, path: &Path, id: &str) {
    if id.len() > ID_MAX_BYTES {
        errors.too_long(path, ID_MAX_BYTES);
    }
    errors.all_invalid(path, id, names::c_identifier(id));
}

pub fn driver_name(errors: &mut ErrorList, path: &Path, name: &str) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    if name.len() > DRIVER_MAX_BYTES {
        errors.too_long(path, DRIVER_MAX_BYTES);
    }
    errors.all_invalid(path, name, names::dns1123_subdomain(&name.to_lowercase()));
}

/// Checks a pool's name: one DNS subdomain or several separated by slashes.
pub fn pool_name(errors: &mut ErrorList, path: &Path, name: &str) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    if name.len() > POOL_MAX_BYTES {
        errors.too_long(path, POOL_MAX_BYTES);
    }
    for part in name.split('/') {
        dns_subdomain(errors, path, part);
    }
}

/// Checks `bindingConditions`, which a driver sets when a device is ready for a pod, and `bindingFailureConditions`, which it
/// sets when preparation failed: both or neither.
pub fn binding_conditions(
    errors: &mut ErrorList,
    path: &Path,
    conditions: Option<&[String]>,
    failures: Option<&[String]>,
) {
    let (conditions, failures) = (conditions.unwrap_or_default(), failures.unwrap_or_default());
    let (at, at_failures) = (
        path.child("bindingConditions"),
        path.child("bindingFailureConditions"),
    );
    for (at, list) in [(&at, conditions), (&at_failures, failures)] {
        if at_most(errors, at, list, BINDING_CONDITIONS_MAX) {
            for (i, name) in list.iter().enumerate() {
                errors.all_invalid(&at.index(i), name.as_str(), names::qualified_name(name));
            }
        }
    }
    unique(errors, &at, conditions.iter().map(String::as_str));
    unique(errors, &at_failures, failures.iter().map(String::as_str));
    for (i, name) in failures.iter().enumerate() {
        if conditions.contains(name) {
            let detail = "bindingFailureConditions must not overlap with bindingConditions";
            errors.invalid(&at_failures.index(i), name.as_str(), detail);
        }
    }
    let missing = Json("null".into());
    match (conditions, failures) {
        ([], [_, ..]) => {
            let detail = "bindingConditions are required to use bindingFailureConditions";
            errors.invalid(&at, missing, detail);
        }
        ([_, ..], []) => {
            let detail = "bindingFailureConditions are required to use bindingConditions";
            errors.invalid(&at_failures, missing, detail);
        }
        _ => {}
    }
}

pub fn configuration(errors: &mut ErrorList, path: &Path, opaque: Option<&OpaqueDeviceConfiguration>) {
    let path = path.child("opaque");
    let Some(opaque) = opaque else {
        return errors.required(&path, "");
    };
    driver_name(errors, &path.child("driver"), &opaque.driver);
    driver_data(errors, &path.child("parameters"), &opaque.parameters.0);
}

/// Checks opaque parameters: a JSON object whose content only the driver knows.
pub fn driver_data(errors: &mut ErrorList, at: &Path, data: &Value) {
    match data {
        Value::Null => errors.required(at, ""),
        value if value.to_string().len() > PARAMETERS_MAX_BYTES => errors.too_long(at, PARAMETERS_MAX_BYTES),
        Value::Object(_) => {}
        _ => errors.invalid(at, "<value omitted>", "must be a valid JSON object"),
    }
}

fn tolerations(errors: &mut ErrorList, path: &Path, tolerations: Option<&[DeviceToleration]>) {
    for (i, toleration) in tolerations.into_iter().flatten().enumerate() {
        let path = path.index(i);
        let (key, value) = (text(&toleration.key), text(&toleration.value));
        if !key.is_empty() {
            errors.all_invalid(&path.child("key"), key, names::qualified_name(key));
        }
        let at = path.child("value");
        match text(&toleration.operator) {
            "Exists" if !value.is_empty() => {
                errors.invalid(&at, value, "must be empty for operator `Exists`");
            }
            "Exists" => {}
            // Equal is the default.
            "Equal" | "" => errors.all_invalid(&at, value, names::label_value(value)),
            other => errors.not_supported(&path.child("operator"), other, &["Equal", "Exists"]),
        }
        facts::check(errors, &path, toleration, &["effect"]);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn errors(devices: Value) -> Vec<String> {
        let mut spec: ResourceClaimSpec = serde_json::from_value(json!({ "devices": devices })).unwrap();
        set_defaults(&mut spec);
        let mut errors = ErrorList::new();
        validate(&mut errors, &Path::new("spec"), &spec);
        errors.iter().map(ToString::to_string).collect()
    }

    /// The errors of a claim with one request `r` with these fields.
    fn of_request(with: Value) -> Vec<String> {
        let mut exactly = json!({"deviceClassName": "gpu"});
        knarr_api::patch::merge::apply(&mut exactly, &with);
        errors(json!({"requests": [{"name": "r", "exactly": exactly}]}))
    }

    #[test]
    fn a_request_is_for_one_device_by_default() {
        let request = json!([{"name": "r", "exactly": {"deviceClassName": "gpu"}}]);
        let spec = json!({"devices": {"requests": request}});
        let mut spec: ResourceClaimSpec = serde_json::from_value(spec).unwrap();
        set_defaults(&mut spec);
        let request = spec.devices.unwrap().requests.unwrap().remove(0).exactly.unwrap();
        assert_eq!(
            (request.allocation_mode.as_deref(), request.count),
            (Some("ExactCount"), Some(1))
        );
    }

    #[test]
    fn each_error_in_a_request_is_reported() {
        let expression = |text: &str| json!({"selectors": [{"cel": {"expression": text}}]});
        for (with, expect) in [
            (json!({}), vec![]),
            (json!({"count": 2}), vec![]),
            (json!({"allocationMode": "All"}), vec![]),
            (
                json!({"count": -1}),
                vec!["spec.devices.requests[0].exactly.count: Invalid value: -1: must be greater than zero"],
            ),
            (
                json!({"allocationMode": "All", "count": 1}),
                vec![
                    "spec.devices.requests[0].exactly.count: Invalid value: 1: must not be specified when \
                     allocationMode is 'All'",
                ],
            ),
            (
                json!({"allocationMode": "Some"}),
                vec![
                    "spec.devices.requests[0].exactly.allocationMode: Unsupported value: \"Some\": supported \
                     values: \"All\", \"ExactCount\"",
                ],
            ),
            (
                json!({"deviceClassName": ""}),
                vec!["spec.devices.requests[0].exactly.deviceClassName: Required value"],
            ),
            (expression("device.driver == 'x'"), vec![]),
            (
                json!({"selectors": [{}]}),
                vec!["spec.devices.requests[0].exactly.selectors[0].cel: Required value"],
            ),
            (
                expression("device.driver"),
                vec![
                    "spec.devices.requests[0].exactly.selectors[0].cel.expression: Invalid value: \
                     \"device.driver\": must evaluate to bool or the unknown type, not string",
                ],
            ),
            (
                json!({"tolerations": [{"operator": "Exists", "value": "v"}]}),
                vec![
                    "spec.devices.requests[0].exactly.tolerations[0].value: Invalid value: \"v\": must be \
                     empty for operator `Exists`",
                ],
            ),
        ] {
            assert_eq!(of_request(with.clone()), expect, "{with}");
        }
        let nothing = errors(json!({"requests": [{"name": "r"}]}));
        let expect = "spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required";
        assert_eq!(nothing, [expect]);
        let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu"}});
        let twice = errors(json!({"requests": [request, request]}));
        assert_eq!(twice, ["spec.devices.requests[1]: Duplicate value: \"r\""]);
    }

    #[test]
    fn constraints_and_configuration_refer_to_existing_requests() {
        let request = json!({"name": "r", "firstAvailable": [{"name": "s", "deviceClassName": "gpu"}]});
        for name in ["r", "r/s"] {
            let constraint = json!({"requests": [name], "matchAttribute": "a.example/b"});
            let accepted = errors(json!({"requests": [request], "constraints": [constraint]}));
            assert!(accepted.is_empty(), "{name}: {accepted:?}");
        }
        let constraint = json!({"requests": ["x"], "matchAttribute": "b"});
        let configuration = json!({"opaque": {"driver": "gpu.example", "parameters": "text"}});
        let devices = json!({"requests": [request], "constraints": [constraint], "config": [configuration]});
        let expect = [
            format!("spec.devices.constraints[0].requests[0]: Invalid value: \"x\": {NAME_REFERENCE}"),
            "spec.devices.constraints[0].matchAttribute: Invalid value: \"b\": a fully qualified name must be a \
             domain and a name separated by a slash"
                .into(),
            "spec.devices.config[0].opaque.parameters: Invalid value: \"<value omitted>\": must be a valid JSON object"
                .into(),
        ];
        assert_eq!(errors(devices), expect);
    }
}
