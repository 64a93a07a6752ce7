//! Each validation rule for devices of a ResourceSlice with a value that violates it.

use k8s_openapi::api::resource::v1::ResourceSlice;
use serde_json::{Value, json};

use crate::{Part, Strategy};

fn slice(with: &Value) -> ResourceSlice {
    let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
    let mut spec = json!({"driver": "gpu.example", "nodeName": "n1", "pool": pool});
    knarr_api::patch::merge::apply(&mut spec, with);
    serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": spec})).unwrap()
}

fn errors(with: &Value) -> Vec<String> {
    let mut slice = slice(with);
    slice.prepare_for_create();
    slice.validate().iter().map(ToString::to_string).collect()
}

/// The errors of a slice with one device `d` with these fields.
fn of_device(with: Value) -> Vec<String> {
    let mut device = json!({"name": "d"});
    knarr_api::patch::merge::apply(&mut device, &with);
    errors(&json!({"devices": [device]}))
}

#[test]
fn a1_a_slice_selects_its_nodes_by_exactly_one_field() {
    let one = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    let term = json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]});
    for (with, expect) in [
        (json!({}), vec![]),
        (json!({"nodeName": null, "allNodes": true}), vec![]),
        (
            json!({"nodeName": null, "nodeSelector": {"nodeSelectorTerms": [term]}}),
            vec![],
        ),
        (
            json!({"nodeName": null}),
            vec![format!("spec: Required value: {one}")],
        ),
        (
            json!({"allNodes": true}),
            vec![format!(
                "spec: Invalid value: \"{{`nodeName`, `allNodes`}}\": {one}, but multiple fields are set"
            )],
        ),
        (
            json!({"allNodes": false}),
            vec!["spec.allNodes: Invalid value: false: must be either unset or set to true".into()],
        ),
        (
            json!({"pool": {"resourceSliceCount": 0, "generation": -1}, "driver": ""}),
            vec![
                "spec.driver: Required value".into(),
                "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero".into(),
                "spec.pool.generation: Invalid value: -1: must be greater than or equal to zero".into(),
            ],
        ),
        (
            json!({"devices": [], "sharedCounters": []}),
            vec!["spec: Invalid value: \"\": only one of `sharedCounters` or `devices` is allowed".into()],
        ),
    ] {
        assert_eq!(errors(&with), expect, "{with}");
    }
    let devices = |count: usize, with: &Value| -> Value {
        let device = |i: usize| {
            let mut device = json!({"name": format!("d{i}")});
            knarr_api::patch::merge::apply(&mut device, with);
            device
        };
        json!({"devices": (0..count).map(device).collect::<Vec<_>>()})
    };
    let tainted = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
    for (count, with, max) in [(128, json!({}), 128), (64, tainted, 64)] {
        assert_eq!(errors(&devices(count, &with)), Vec::<String>::new());
        let expect = format!(
            "spec.devices: Too many: {}: must have at most {max} items",
            count + 1
        );
        assert_eq!(errors(&devices(count + 1, &with)), [expect]);
    }
}

#[test]
fn a1_each_error_in_a_device_is_reported() {
    let attribute = |value: Value| json!({"attributes": {"a": value}});
    for (with, expect) in [
        (attribute(json!({"bool": false})), vec![]),
        (attribute(json!({"version": "1.2.3-alpha.1+b.7"})), vec![]),
        (
            attribute(json!({"version": "1.2"})),
            vec![
                "spec.devices[0].attributes[a].version: Invalid value: \"1.2\": must be a string compatible \
                 with semver.org spec 2.0.0",
            ],
        ),
        (
            attribute(json!({})),
            vec!["spec.devices[0].attributes[a]: Invalid value: \"\": exactly one value must be specified"],
        ),
        (
            attribute(json!({"int": 1, "bool": true})),
            vec![
                "spec.devices[0].attributes[a]: Invalid value: {\"IntValue\":1,\"BoolValue\":true,\
                 \"StringValue\":null,\"VersionValue\":null,\"IntValues\":null,\"BoolValues\":null,\
                 \"StringValues\":null,\"VersionValues\":null}: exactly one value must be specified",
            ],
        ),
        (
            json!({"capacity": {"/x": {"value": "1"}}}),
            vec!["spec.devices[0].capacity: Invalid value: \"\": the domain must not be empty"],
        ),
        (
            json!({"taints": [{"key": "k", "effect": "Some"}]}),
            vec![
                "spec.devices[0].taints[0].effect: Unsupported value: \"Some\": supported values: \
                 \"NoExecute\", \"NoSchedule\", \"None\"",
            ],
        ),
        (
            json!({"bindingConditions": ["a"]}),
            vec![
                "spec.devices[0].bindingFailureConditions: Invalid value: null: bindingFailureConditions are \
                 required to use bindingConditions",
            ],
        ),
        (
            json!({"bindingConditions": ["a"], "bindingFailureConditions": ["a"]}),
            vec![
                "spec.devices[0].bindingFailureConditions[0]: Invalid value: \"a\": bindingFailureConditions \
                 must not overlap with bindingConditions",
            ],
        ),
        (
            json!({"allNodes": true}),
            vec![
                "spec.devices[0]: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only \
                 be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
            ],
        ),
        (
            json!({"consumesCounters": [{"counterSet": "", "counters": {}}]}),
            vec![
                "spec.devices[0].consumesCounters[0].counterSet: Required value",
                "spec.devices[0].consumesCounters[0].counters: Required value",
            ],
        ),
    ] {
        assert_eq!(of_device(with.clone()), expect, "{with}");
    }
}

#[test]
fn a1_request_policies_fit_the_capacity_of_a_shared_device() {
    let policy = |policy: Value| {
        let capacity = json!({"m": {"value": "10", "requestPolicy": policy}});
        of_device(json!({"allowMultipleAllocations": true, "capacity": capacity}))
    };
    let at = "spec.devices[0].capacity[m].requestPolicy";
    for (of, expect) in [
        (json!({"default": "2", "validValues": ["2", "4"]}), vec![]),
        (
            json!({"default": "4", "validRange": {"min": "2", "max": "8", "step": "2"}}),
            vec![],
        ),
        (
            json!({"validValues": ["2"]}),
            vec!["default: Required value: required when validValues is defined"],
        ),
        (
            json!({"default": "3", "validValues": ["4", "2"]}),
            vec![
                "validValues[1]: Invalid value: \"2\": values must be sorted in ascending order",
                "validValues: Invalid value: \"3\": default value is not valid according to the requestPolicy",
            ],
        ),
        (
            json!({"default": "1", "validRange": {"min": "2", "max": "11"}}),
            vec![
                "validRange.min: Invalid value: \"1\": default is less than min: 2",
                "validRange.max: Invalid value: \"11\": max is larger than capacity value: 10",
            ],
        ),
        (
            json!({"default": "3", "validRange": {"min": "2", "step": "2"}}),
            vec![
                "validRange.step: Invalid value: \"3\": value is not a multiple of a given step (2) from (2)",
            ],
        ),
        (
            json!({"default": "3", "validRange": {"min": "2", "step": "0"}}),
            vec![
                "validRange.step: Invalid value: \"3\": value is not a multiple of a given step (0) from (2)",
            ],
        ),
    ] {
        let expect: Vec<String> = expect.iter().map(|text| format!("{at}.{text}")).collect();
        assert_eq!(policy(of.clone()), expect, "{of}");
    }
    let capacity = json!({"m": {"value": "10", "requestPolicy": {"default": "1"}}});
    let expect = format!("{at}: Forbidden: allowMultipleAllocations must be true");
    assert_eq!(of_device(json!({ "capacity": capacity })), [expect]);
}

#[test]
fn a1_fields_of_disabled_features_are_dropped() {
    let device = json!({"name": "d", "attributes": {"a": {"int": 1, "ints": [1, 2]}},
        "nodeAllocatableResourceMappings": {"cpu": {"capacityKey": "x"}}});
    let mut slice = slice(&json!({"devices": [device]}));
    let before = slice.clone();
    slice.prepare_for_create();
    let kept = json!(slice.spec.devices.as_ref().unwrap()[0]);
    assert_eq!(kept, json!({"name": "d", "attributes": {"a": {"int": 1}}}));
    let mut again = before.clone();
    again.prepare_for_update(&before, Part::Main);
    assert_eq!(again.spec, before.spec, "an object that has them keeps them");
}
