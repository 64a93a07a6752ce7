//! Requests for extended resources, and which container gets which.

use std::sync::Arc;

use k8s_openapi::api::resource::v1::DeviceClass;
use knarr_api::registry::Registered;
use knarr_api::{Object, Shared};
use serde_json::{Value, json};

use super::*;

fn class(name: &str, resource: Option<&str>, created: &str) -> Shared<DeviceClass> {
    let class: DeviceClass = serde_json::from_value(json!({
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {"extendedResourceName": resource},
    }))
    .unwrap();
    Shared::new(Arc::new(Object::from_typed(
        DeviceClass::kind_of(),
        Box::new(class),
    )))
    .unwrap()
}

const OLD: &str = "2026-01-01T00:00:00Z";
const NEW: &str = "2026-01-02T00:00:00Z";

/// The requests and the mappings of a pod, as text.
fn check(init: Value, containers: Value, expect: &[&str]) {
    let mut inventory = Inventory::default();
    inventory.set_class("gpu", Some(class("gpu", Some("example.com/gpu"), OLD)));
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {"initContainers": init, "containers": containers},
    }))
    .unwrap();
    let resources = ["deviceclass.resource.kubernetes.io/gpu", "example.com/gpu"];
    let made = ExtendedClaim::new(&inventory, &pod, &resources);
    let requests = made.claim.spec.devices.unwrap().requests.unwrap().into_iter();
    let mut all: Vec<String> = requests
        .map(|request| {
            let exactly = request.exactly.unwrap();
            format!(
                "{}: {} {}",
                request.name,
                exactly.count.unwrap(),
                exactly.device_class_name
            )
        })
        .collect();
    let mappings = made.mappings.iter();
    all.extend(mappings.map(|m| format!("{} {} {}", m.container_name, m.resource_name, m.request_name)));
    assert_eq!(all, expect);
}

fn asks(name: &str, requests: Value) -> Value {
    json!({"name": name, "resources": {"requests": requests}})
}

#[test]
fn each_container_has_its_own_request_named_by_its_index() {
    let a = asks("a", json!({"cpu": "1", "example.com/gpu": "2"}));
    let b = asks(
        "b",
        json!({"deviceclass.resource.kubernetes.io/gpu": "1", "example.com/gpu": "1"}),
    );
    let c = asks("c", json!({"cpu": "1"}));
    let expect = [
        "container-0-request-1: 2 gpu",
        "container-1-request-0: 1 gpu",
        "container-1-request-1: 1 gpu",
        "b deviceclass.resource.kubernetes.io/gpu container-1-request-0",
        "a example.com/gpu container-0-request-1",
        "b example.com/gpu container-1-request-1",
    ];
    check(json!([]), json!([a, b, c]), &expect);
}

#[test]
fn an_init_container_uses_the_devices_of_those_that_start_after_it() {
    let init = asks("init", json!({"example.com/gpu": "2"}));
    let main = asks("main", json!({"example.com/gpu": "3"}));
    let expect = [
        "container-1-request-0: 3 gpu",
        "main example.com/gpu container-1-request-0",
        "init example.com/gpu container-1-request-0",
    ];
    check(json!([init]), json!([main]), &expect);
}

#[test]
fn init_containers_share_one_request_for_additional_devices() {
    let few = asks("few", json!({"example.com/gpu": "2"}));
    let many = asks("many", json!({"example.com/gpu": "4"}));
    let main = asks("main", json!({"example.com/gpu": "1"}));
    let expect = [
        "container-1-request-0: 3 gpu",
        "container-2-request-0: 1 gpu",
        "main example.com/gpu container-2-request-0",
        "few example.com/gpu container-2-request-0",
        "few example.com/gpu container-1-request-0",
        "many example.com/gpu container-2-request-0",
        "many example.com/gpu container-1-request-0",
    ];
    check(json!([few, many]), json!([main]), &expect);
}

#[test]
fn the_devices_of_a_sidecar_are_not_those_of_an_init_container_after_it() {
    let mut sidecar = asks("sidecar", json!({"example.com/gpu": "1"}));
    sidecar["restartPolicy"] = json!("Always");
    let init = asks("init", json!({"example.com/gpu": "1"}));
    let expect = [
        "container-0-request-0: 1 gpu",
        "container-1-request-0: 1 gpu",
        "sidecar example.com/gpu container-0-request-0",
        "init example.com/gpu container-1-request-0",
    ];
    check(json!([sidecar, init]), json!([{"name": "main"}]), &expect);
}

#[test]
fn the_newest_class_provides_a_resource_and_of_equally_old_ones_the_first_by_name() {
    let mut inventory = Inventory::default();
    let class_of =
        |inventory: &Inventory, resource: &str| inventory.class_of_resource(resource).map(str::to_string);
    inventory.set_class("b", Some(class("b", Some("example.com/gpu"), OLD)));
    inventory.set_class("a", Some(class("a", Some("example.com/gpu"), OLD)));
    assert_eq!(class_of(&inventory, "example.com/gpu").as_deref(), Some("a"));
    inventory.set_class("c", Some(class("c", Some("example.com/gpu"), NEW)));
    assert_eq!(class_of(&inventory, "example.com/gpu").as_deref(), Some("c"));
    inventory.set_class("c", Some(class("c", None, NEW)));
    assert_eq!(class_of(&inventory, "example.com/gpu").as_deref(), Some("a"));
    let implicit = "deviceclass.resource.kubernetes.io/c";
    assert_eq!(class_of(&inventory, implicit).as_deref(), Some("c"));
    inventory.set_class("c", None);
    assert_eq!(class_of(&inventory, implicit), None);
}
