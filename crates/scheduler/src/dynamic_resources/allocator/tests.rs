//! The allocator with small inventories: objects are written as JSON, results as `request: device` lines. The cases
//! are those of kube-scheduler's allocator.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::DeviceClass;
use knarr_api::registry::Registered;
use knarr_api::{Object, Shared};
use serde_json::{Value, json};

use super::*;

pub(crate) fn shared<T: Registered>(value: Value) -> Shared<T> {
    let typed: T = serde_json::from_value(value).unwrap();
    Shared::new(Arc::new(Object::from_typed(T::kind_of(), Box::new(typed)))).unwrap()
}

struct World {
    inventory: Inventory,
    allocated: AllocatedState,
}

/// Two classes, `gpu` for the driver gpu.example and `any`.
fn world(slices: &[Value]) -> World {
    let mut inventory = Inventory::default();
    let selector = json!([{"cel": {"expression": "device.driver == 'gpu.example'"}}]);
    let config = json!([{"opaque": {"driver": "gpu.example", "parameters": {"mode": "class"}}}]);
    for (name, spec) in [
        ("gpu", json!({"selectors": selector, "config": config})),
        ("any", json!({})),
    ] {
        let class: Shared<DeviceClass> = shared(json!({"metadata": {"name": name}, "spec": spec}));
        inventory.set_class(name, Some(class));
    }
    for slice in slices {
        inventory.set_slice(None, Some(&shared(slice.clone())));
    }
    World {
        inventory,
        allocated: AllocatedState::default(),
    }
}

/// A slice of the pool `pool`, with `spec` merged into it.
fn slice(name: &str, devices: Value, spec: Value) -> Value {
    let mut all = json!({
        "driver": "gpu.example",
        "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    });
    let all_spec = all.as_object_mut().unwrap();
    for (key, value) in spec.as_object().unwrap() {
        all_spec.insert(key.clone(), value.clone());
    }
    json!({"metadata": {"name": name}, "spec": all})
}

fn here() -> Value {
    json!({"nodeName": "node"})
}

/// Devices without attributes.
fn plain(names: &[&str]) -> Value {
    names.iter().map(|n| json!({"name": n})).collect()
}

fn claim(devices: Value) -> ResourceClaim {
    let metadata = json!({"name": "claim", "namespace": "ns", "uid": "1"});
    serde_json::from_value(json!({"metadata": metadata, "spec": {"devices": devices}})).unwrap()
}

/// A claim with these requests, each `exactly` of the class `gpu` unless it names another.
fn asks(requests: &[(&str, Value)]) -> ResourceClaim {
    claim(json!({"requests": exactly(requests)}))
}

fn exactly(requests: &[(&str, Value)]) -> Value {
    let requests = requests.iter().map(|(name, with)| {
        let mut exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1});
        for (key, value) in with.as_object().unwrap() {
            exactly[key] = value.clone();
        }
        json!({"name": name, "exactly": exactly})
    });
    requests.collect()
}

impl World {
    fn results(&self, claims: &[&ResourceClaim]) -> Result<Option<Vec<AllocationResult>>, AllocationError> {
        let labels = json!({"zone": "a"});
        let node: Shared<Node> = shared(json!({"metadata": {"name": "node", "labels": labels}}));
        allocate(&self.inventory, &self.allocated, &NodeInfo::bare(node), claims)
    }

    fn one(&self, claim: &ResourceClaim) -> AllocationResult {
        self.results(&[claim]).unwrap().unwrap().remove(0)
    }

    /// `request: device, …` of all claims; `nothing`, or the error.
    fn found(&self, claims: &[&ResourceClaim]) -> String {
        match self.results(claims) {
            Err(error) => format!("error: {error}"),
            Ok(None) => "nothing".into(),
            Ok(Some(results)) => {
                let results = results.iter().flat_map(devices_of);
                let results = results.map(|r| format!("{}: {}", r.request, r.device));
                results.collect::<Vec<_>>().join(", ")
            }
        }
    }

    fn allocate(&mut self, claim: &ResourceClaim) {
        let result = self.one(claim);
        self.allocated.add(&result);
    }
}

fn devices_of(result: &AllocationResult) -> &[k8s_openapi::api::resource::v1::DeviceRequestAllocationResult] {
    let devices = result.devices.as_ref().unwrap();
    devices.results.as_deref().unwrap_or_default()
}

#[test]
fn a_request_gets_all_of_its_devices_or_none() {
    let world = world(&[slice("s", plain(&["a", "b", "c"]), here())]);
    for (with, expect) in [
        (json!({}), "r: a"),
        (json!({"count": 3}), "r: a, r: b, r: c"),
        (json!({"count": 4}), "nothing"),
        (json!({"allocationMode": "All"}), "r: a, r: b, r: c"),
        (json!({"deviceClassName": "any"}), "r: a"),
        (
            json!({"count": 33}),
            "error: claim ns/claim: number of requested devices 33 exceeds the claim limit of 32",
        ),
        (
            json!({"deviceClassName": "gone"}),
            "error: claim ns/claim, request r: could not retrieve device class gone: \
             deviceclass.resource.k8s.io \"gone\" not found",
        ),
        (
            json!({"allocationMode": "Other"}),
            "error: claim ns/claim, request r: unsupported count mode Other",
        ),
    ] {
        assert_eq!(world.found(&[&asks(&[("r", with.clone())])]), expect, "{with}");
    }
}

#[test]
fn claims_and_requests_do_not_get_the_same_device() {
    let mut world = world(&[slice("s", plain(&["a", "b", "c"]), here())]);
    let two = asks(&[("x", json!({})), ("y", json!({}))]);
    let one = asks(&[("z", json!({}))]);
    assert_eq!(world.found(&[&two, &one]), "x: a, y: b, z: c");
    assert_eq!(world.found(&[&two, &two]), "nothing");
    world.allocate(&one);
    assert_eq!(world.found(&[&two]), "x: b, y: c");
    let result = world.one(&one);
    world.allocated.add(&result);
    assert_eq!(world.found(&[&two]), "nothing");
    world.allocated.remove(&result);
    assert_eq!(world.found(&[&two]), "x: b, y: c");
}

#[test]
fn all_devices_are_allocated_when_none_is_in_use_and_there_is_one_and_the_pool_is_complete() {
    let all = asks(&[("r", json!({"allocationMode": "All"}))]);
    let none = world(&[]);
    assert_eq!(none.found(&[&all]), "nothing");
    let mut some = world(&[slice("s", plain(&["a", "b"]), here())]);
    some.allocate(&asks(&[("r", json!({}))]));
    assert_eq!(some.found(&[&all]), "nothing");
    let pool =
        json!({"nodeName": "node", "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 2}});
    let incomplete = world(&[slice("s", plain(&["a"]), pool)]);
    let expect = "error: claim ns/claim, request r: asks for all devices, but resource pool \
                  gpu.example/pool is currently being updated";
    assert_eq!(incomplete.found(&[&all]), expect);
    assert_eq!(incomplete.found(&[&asks(&[("r", json!({}))])]), "nothing");
}

#[test]
fn only_the_newest_generation_of_a_pool_counts() {
    let of = |generation: i64| {
        json!({"nodeName": "node",
               "pool": {"name": "pool", "generation": generation, "resourceSliceCount": 1}})
    };
    let elsewhere =
        json!({"nodeName": "other", "pool": {"name": "pool", "generation": 3, "resourceSliceCount": 1}});
    let one = asks(&[("r", json!({}))]);
    let newer = world(&[
        slice("s", plain(&["old"]), of(1)),
        slice("t", plain(&["new"]), of(2)),
    ]);
    assert_eq!(newer.found(&[&one]), "r: new");
    // For its node only: the slices of this one are the last published.
    let both = world(&[
        slice("s", plain(&["old"]), of(1)),
        slice("t", plain(&["new"]), elsewhere),
    ]);
    assert_eq!(both.found(&[&one]), "r: old");
}

#[test]
fn a_pool_that_contradicts_itself_is_invalid() {
    let twice = world(&[slice("s", plain(&["a", "a"]), here())]);
    let one = asks(&[("r", json!({}))]);
    assert_eq!(
        twice.found(&[&one]),
        "error: invalid resource pools were encountered"
    );
    let unknown = json!([{"name": "a", "consumesCounters":
        [{"counterSet": "gone", "counters": {"memory": {"value": "1"}}}]}]);
    let unknown = world(&[slice("s", unknown, here())]);
    assert_eq!(
        unknown.found(&[&one]),
        "error: invalid resource pools were encountered"
    );
}

#[test]
fn devices_are_allocated_on_the_nodes_that_their_slice_selects() {
    let selector = |value: &str| {
        json!({"nodeSelectorTerms": [{"matchExpressions":
            [{"key": "zone", "operator": "In", "values": [value]}]}]})
    };
    let one = asks(&[("r", json!({}))]);
    let by_name = json!([{"key": "metadata.name", "operator": "In", "values": ["node"]}]);
    for (spec, devices, expect) in [
        (
            here(),
            plain(&["a"]),
            Some(json!({"nodeSelectorTerms": [{"matchFields": by_name}]})),
        ),
        (json!({"allNodes": true}), plain(&["a"]), None),
        (
            json!({"nodeSelector": selector("a")}),
            plain(&["a"]),
            Some(selector("a")),
        ),
        (
            json!({"allNodes": true}),
            json!([{"name": "a", "bindsToNode": true}]),
            Some(json!({"nodeSelectorTerms": [{"matchFields": by_name}]})),
        ),
        (
            json!({"perDeviceNodeSelection": true}),
            json!([{"name": "z", "nodeName": "other"}, {"name": "a", "nodeSelector": selector("a")}]),
            Some(selector("a")),
        ),
    ] {
        let world = world(&[slice("s", devices, spec.clone())]);
        let result = world.one(&one);
        assert_eq!(devices_of(&result)[0].device, "a", "{spec}");
        let found = result.node_selector.map(|s| serde_json::to_value(s).unwrap());
        assert_eq!(found, expect, "{spec}");
    }
    for spec in [
        json!({"nodeName": "other"}),
        json!({"nodeSelector": selector("b")}),
        json!({}),
    ] {
        let world = world(&[slice("s", plain(&["a"]), spec.clone())]);
        assert_eq!(world.found(&[&one]), "nothing", "{spec}");
    }
}

#[test]
fn selectors_choose_devices_and_their_errors_end_the_attempt() {
    let devices = json!([
        {"name": "small", "attributes": {"model": {"string": "s"}}, "capacity": {"memory": {"value": "1Gi"}}},
        {"name": "large", "attributes": {"model": {"string": "l"}}, "capacity": {"memory": {"value": "8Gi"}}},
    ]);
    let world = world(&[slice("s", devices, here())]);
    for (expression, expect) in [
        (r#"device.attributes["gpu.example"].model == "l""#, "r: large"),
        (
            r#"device.capacity["gpu.example"].memory.compareTo(quantity("2Gi")) > 0"#,
            "r: large",
        ),
        ("false", "nothing"),
        (
            r#"device.attributes["gpu.example"].gone == "l""#,
            "error: claim ns/claim: selector #0: CEL runtime error: no such key: gone",
        ),
    ] {
        let with = json!({"selectors": [{"cel": {"expression": expression}}]});
        assert_eq!(world.found(&[&asks(&[("r", with)])]), expect, "{expression}");
    }
    let with = json!({"selectors": [{"cel": {"expression": "noSuchVariable"}}]});
    let error = world.found(&[&asks(&[("r", with)])]);
    let expect = "error: claim ns/claim: selector #0: CEL compile error: compilation failed: ERROR";
    assert!(error.starts_with(expect), "{error}");
}

#[test]
fn constraints_hold_for_all_devices_of_a_claim() {
    let devices = |numa: &[i64]| -> Value {
        let devices = numa.iter().enumerate();
        devices
            .map(|(n, numa)| json!({"name": format!("d{n}"), "attributes": {"numa": {"int": numa}}}))
            .collect()
    };
    for (numa, constraint, count, expect) in [
        // The first device is released when no other matches it.
        (vec![0, 1, 1], "matchAttribute", 2, "r: d1, r: d2"),
        (vec![0, 1, 2], "matchAttribute", 2, "nothing"),
        (vec![0, 0, 2], "distinctAttribute", 2, "r: d0, r: d2"),
        (vec![0, 0, 1, 1], "distinctAttribute", 3, "nothing"),
    ] {
        let world = world(&[slice("s", devices(&numa), here())]);
        let claim = claim(json!({
            "requests": exactly(&[("r", json!({"count": count}))]),
            "constraints": [{constraint: "gpu.example/numa"}],
        }));
        assert_eq!(world.found(&[&claim]), expect, "{numa:?} {constraint}");
    }
    let world = world(&[slice("s", plain(&["a", "b"]), here())]);
    let about = |requests: &[&str]| {
        claim(json!({
            "requests": exactly(&[("x", json!({})), ("y", json!({}))]),
            "constraints": [{"matchAttribute": "gpu.example/numa", "requests": requests}],
        }))
    };
    assert_eq!(
        world.found(&[&about(&["x"])]),
        "nothing",
        "the attribute is missing"
    );
    assert_eq!(world.found(&[&about(&["z"])]), "x: a, y: b");
    let all = claim(json!({
        "requests": exactly(&[("x", json!({"allocationMode": "All"}))]),
        "constraints": [{"matchAttribute": "gpu.example/numa"}],
    }));
    let expect = "error: claim ns/claim, request x: cannot add device gpu.example/pool/a because a \
                  claim constraint would not be satisfied";
    assert_eq!(world.found(&[&all]), expect);
    let empty = claim(json!({"requests": exactly(&[("x", json!({}))]), "constraints": [{}]}));
    let expect = "error: claim ns/claim, constraint #0: empty constraint (unsupported constraint type?)";
    assert_eq!(world.found(&[&empty]), expect);
}

#[test]
fn the_first_available_alternatives_are_chosen_for_all_requests_together() {
    let world = world(&[slice("s", plain(&["a", "b", "c"]), here())]);
    let sub = |name: &str, count: i64| json!({"name": name, "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count});
    let list =
        |first: i64, second: i64| json!({"name": "r", "firstAvailable": [sub("x", first), sub("y", second)]});
    for (first, second, expect) in [
        (2, 1, "r/x: a, r/x: b"),
        (4, 1, "r/y: a"),
        (4, 5, "nothing"),
        // More than the maximum of a claim.
        (33, 1, "r/y: a"),
    ] {
        let claim = claim(json!({"requests": [list(first, second)]}));
        assert_eq!(world.found(&[&claim]), expect, "{first} {second}");
    }
    // A later request changes what an earlier one gets.
    let mut requests = exactly(&[("z", json!({"count": 2}))]);
    requests.as_array_mut().unwrap().insert(0, list(2, 1));
    let both = claim(json!({
        "requests": requests,
        "config": [
            {"requests": ["r/x"], "opaque": {"driver": "gpu.example", "parameters": {"of": "x"}}},
            {"requests": ["r/y"], "opaque": {"driver": "gpu.example", "parameters": {"of": "y"}}},
            {"opaque": {"driver": "gpu.example", "parameters": {"of": "all"}}},
        ],
    }));
    assert_eq!(world.found(&[&both]), "r/y: a, z: b, z: c");
    let config = world.one(&both).devices.unwrap().config.unwrap();
    let config: Vec<_> = config
        .iter()
        .map(|c| {
            (
                c.source.as_str(),
                c.requests.clone().unwrap_or_default().join(","),
            )
        })
        .collect();
    let expect = [("FromClass", "r/y,z"), ("FromClaim", "r/y"), ("FromClaim", "")];
    assert_eq!(config, expect.map(|(source, of)| (source, of.to_string())));
}

#[test]
fn admin_access_shares_devices_and_blocks_no_other_claim() {
    let mut world = world(&[slice("s", plain(&["a"]), here())]);
    world.allocate(&asks(&[("r", json!({}))]));
    let admin = asks(&[("admin", json!({"adminAccess": true}))]);
    assert_eq!(world.found(&[&admin]), "admin: a");
    let result = world.one(&admin);
    assert_eq!(devices_of(&result)[0].admin_access, Some(true));
    let before = world.allocated.devices.len();
    world.allocated.add(&result);
    assert_eq!(world.allocated.devices.len(), before);
    let twice = asks(&[
        ("x", json!({"adminAccess": true})),
        ("y", json!({"adminAccess": true})),
    ]);
    assert_eq!(world.found(&[&twice]), "nothing", "once per claim");
}

#[test]
fn device_taints_exclude_requests_that_do_not_tolerate_them() {
    let taint =
        |effect: &str| json!([{"name": "a", "taints": [{"key": "k", "value": "v", "effect": effect}]}]);
    for (effect, tolerations, expect) in [
        ("NoSchedule", json!([]), "nothing"),
        ("NoExecute", json!([]), "nothing"),
        ("None", json!([]), "r: a"),
        ("NoSchedule", json!([{"operator": "Exists"}]), "r: a"),
        (
            "NoSchedule",
            json!([{"key": "k", "operator": "Equal", "value": "v"}]),
            "r: a",
        ),
        (
            "NoSchedule",
            json!([{"key": "k", "operator": "Equal", "value": "w"}]),
            "nothing",
        ),
        (
            "NoSchedule",
            json!([{"key": "x", "operator": "Exists"}]),
            "nothing",
        ),
        (
            "NoExecute",
            json!([{"operator": "Exists", "effect": "NoSchedule"}]),
            "nothing",
        ),
    ] {
        let world = world(&[slice("s", taint(effect), here())]);
        let claim = asks(&[("r", json!({ "tolerations": tolerations }))]);
        assert_eq!(world.found(&[&claim]), expect, "{effect} {tolerations}");
    }
}

#[test]
fn partitions_share_the_counters_of_their_pool() {
    let pool = json!({"name": "pool", "generation": 1, "resourceSliceCount": 2});
    let counters = json!({
        "metadata": {"name": "counters"},
        "spec": {"driver": "gpu.example", "pool": pool, "nodeName": "node",
                 "sharedCounters": [{"name": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]},
    });
    let part = |name: &str, memory: &str| {
        json!({"name": name, "consumesCounters":
            [{"counterSet": "gpu-0", "counters": {"memory": {"value": memory}}}]})
    };
    let devices = json!([
        part("whole", "40Gi"),
        part("half-0", "20Gi"),
        part("half-1", "20Gi"),
        part("more", "1Gi")
    ]);
    let mut world = world(&[
        counters,
        slice("s", devices, json!({"nodeName": "node", "pool": pool})),
    ]);
    assert_eq!(world.found(&[&asks(&[("r", json!({}))])]), "r: whole");
    assert_eq!(
        world.found(&[&asks(&[("r", json!({"count": 2}))])]),
        "r: half-0, r: half-1"
    );
    assert_eq!(world.found(&[&asks(&[("r", json!({"count": 3}))])]), "nothing");
    world
        .allocated
        .devices
        .insert(DeviceId::new("gpu.example", "pool", "half-1"));
    assert_eq!(world.found(&[&asks(&[("r", json!({}))])]), "r: half-0");
    world
        .allocated
        .devices
        .insert(DeviceId::new("gpu.example", "pool", "half-0"));
    assert_eq!(world.found(&[&asks(&[("r", json!({}))])]), "nothing");
}

#[test]
fn a_device_that_allows_it_is_shared_until_its_capacity_is_consumed() {
    let devices = json!([{
        "name": "nic", "allowMultipleAllocations": true,
        "capacity": {"bandwidth": {"value": "10", "requestPolicy": {"default": "2",
            "validRange": {"min": "2", "step": "2", "max": "8"}}}},
    }]);
    let mut world = world(&[slice("s", devices, here())]);
    let wants = |amount: &str| asks(&[("r", json!({"capacity": {"requests": {"bandwidth": amount}}}))]);
    let first = world.one(&wants("3"));
    let device = &devices_of(&first)[0];
    let consumed = device.consumed_capacity.as_ref().unwrap();
    assert_eq!(consumed["bandwidth"].0, "4", "rounded up to a step");
    let share = device.share_id.clone().unwrap();
    assert_eq!(share.len(), 36, "{share}");
    assert_eq!(
        world.one(&wants("3")),
        first,
        "the same state gives the same answer"
    );
    assert_eq!(
        world.found(&[&wants("10")]),
        "nothing",
        "more than the policy allows"
    );
    world.allocated.add(&first);
    assert_eq!(world.found(&[&wants("8")]), "nothing");
    let two = asks(&[
        ("x", json!({"capacity": {"requests": {"bandwidth": "4"}}})),
        ("y", json!({})),
    ]);
    assert_eq!(world.found(&[&two]), "x: nic, y: nic");
    assert_eq!(world.found(&[&two, &asks(&[("z", json!({}))])]), "nothing");
    world.allocated.remove(&first);
    assert!(world.allocated.shared.is_empty());
    let unknown = asks(&[("r", json!({"capacity": {"requests": {"gone": "1"}}}))]);
    assert_eq!(world.found(&[&unknown]), "nothing");
}

#[test]
fn devices_with_binding_conditions_are_the_last_choice_and_pass_them_on() {
    let other = json!({"driver": "gpu.example", "nodeName": "node",
        "pool": {"name": "a-fabric", "generation": 1, "resourceSliceCount": 1}});
    let fabric =
        json!([{"name": "far", "bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]}]);
    let world = world(&[slice("f", fabric, other), slice("s", plain(&["near"]), here())]);
    let two = asks(&[("r", json!({"count": 2}))]);
    assert_eq!(world.found(&[&two]), "r: near, r: far");
    let result = world.one(&two);
    assert_eq!(
        devices_of(&result)[1].binding_conditions,
        Some(vec!["ready".to_string()])
    );
    let failed = devices_of(&result)[1].binding_failure_conditions.clone();
    assert_eq!(failed, Some(vec!["failed".to_string()]));
}

#[test]
fn a_search_with_too_many_steps_times_out() {
    let names: Vec<String> = (0..64).map(|n| format!("d{n}")).collect();
    let devices: Value = names
        .iter()
        .enumerate()
        .map(|(n, name)| json!({"name": name, "attributes": {"n": {"int": n % 15}}}))
        .collect();
    let world = world(&[slice("s", devices, here())]);
    let claim = claim(json!({
        "requests": exactly(&[("r", json!({"count": 16}))]),
        "constraints": [{"distinctAttribute": "gpu.example/n"}],
    }));
    assert_eq!(
        world.found(&[&claim]),
        "error: node node: timed out trying to allocate devices"
    );
}
