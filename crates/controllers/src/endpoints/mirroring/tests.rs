//! Which Endpoints are mirrored, and which slices are deleted.

use serde_json::{Value, json};

use super::*;
use crate::world::{World, at, lines, updated};

const KEY: (&str, &str) = ("default", "db");

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn service(selector: Value) -> Service {
    from(json!({
        "metadata": {"namespace": "default", "name": "db"},
        "spec": {"selector": selector, "ports": [{"port": 80, "protocol": "TCP"}]},
    }))
}

fn endpoints(subsets: Value) -> EndpointsObject {
    from(json!({
        "metadata": {
            "namespace": "default", "name": "db",
            "labels": {"team": "a"},
            "annotations": {"note": "n", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
        },
        "subsets": subsets,
    }))
}

fn one(ip: &str, port: i32) -> Value {
    json!([{"addresses": [{"ip": ip}], "ports": [{"name": "db", "port": port, "protocol": "TCP"}]}])
}

fn world(subsets: Value) -> World {
    let mut world = World::default();
    world.put(service(Value::Null));
    world.put(endpoints(subsets));
    world
}

fn run(world: &mut World) -> Vec<String> {
    let actions = world.run(&EndpointSliceMirroring, KEY, at(0));
    world.take(&actions);
    lines(&actions)
}

fn slices(world: &World) -> Vec<Shared<EndpointSlice>> {
    let view: &dyn View = world;
    view.list_as("default")
}

#[test]
fn n2_endpoints_of_a_service_without_selector_are_mirrored_through_create_update_and_delete() {
    let mut world = world(one("10.1.2.3", 9000));
    assert_eq!(run(&mut world), ["create endpointslices default/db-*"]);
    let slice = slices(&world).remove(0);
    let labels = slice.metadata.labels.clone().unwrap();
    assert_eq!(labels["kubernetes.io/service-name"], "db");
    assert_eq!(
        labels["endpointslice.kubernetes.io/managed-by"],
        "endpointslicemirroring-controller.k8s.io"
    );
    assert_eq!(labels["team"], "a");
    assert_eq!(
        slice.metadata.annotations,
        Some([("note".to_string(), "n".to_string())].into())
    );
    let owner = slice.metadata.owner_references.clone().unwrap().remove(0);
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Endpoints", "uid-db"));
    assert_eq!(
        serde_json::to_value(&*slice).unwrap()["endpoints"],
        json!([{"addresses": ["10.1.2.3"], "conditions": {"ready": true}}])
    );
    assert_eq!(
        serde_json::to_value(&*slice).unwrap()["ports"],
        json!([{"name": "db", "port": 9000, "protocol": "TCP"}])
    );
    assert_eq!(run(&mut world), [""; 0]);

    // Another port: the existing slice is updated.
    world.put(endpoints(one("10.1.2.4", 9001)));
    let name = slice.object().name().to_string();
    assert_eq!(run(&mut world), [format!("update endpointslices default/{name}")]);
    assert_eq!(slices(&world)[0].ports.clone().unwrap()[0].port, Some(9001));
    assert_eq!(run(&mut world), [""; 0]);

    world.remove(&registry::ENDPOINTS, "default", "db");
    assert_eq!(run(&mut world), [format!("delete endpointslices default/{name}")]);
    assert!(slices(&world).is_empty());
}

#[test]
fn endpoints_that_are_not_mirrored_have_no_slices() {
    let label = |o: &mut EndpointsObject| {
        let labels = o.metadata.labels.get_or_insert_default();
        labels.insert(SKIP_MIRROR.into(), "true".into());
    };
    let leader = |o: &mut EndpointsObject| {
        let annotations = o.metadata.annotations.get_or_insert_default();
        annotations.insert(LEADER.into(), "{}".into());
    };
    let changes: [&dyn Fn(&mut World); 5] = [
        &|w| w.remove(&registry::SERVICE, "default", "db"),
        &|w| drop(w.put(service(json!({"app": "db"})))),
        &|w| {
            let mut skipped = endpoints(one("10.0.0.1", 1));
            label(&mut skipped);
            w.put(skipped);
        },
        &|w| {
            let mut skipped = endpoints(one("10.0.0.1", 1));
            leader(&mut skipped);
            w.put(skipped);
        },
        &|w| drop(w.put(endpoints(Value::Null))),
    ];
    for (n, change) in changes.iter().enumerate() {
        let mut mirrored = world(one("10.0.0.1", 1));
        run(&mut mirrored);
        change(&mut mirrored);
        assert_eq!(
            run(&mut mirrored),
            ["delete endpointslices default/db-1"],
            "change {n}"
        );
        // And for new Endpoints.
        let mut never = world(one("10.0.0.1", 1));
        change(&mut never);
        assert_eq!(run(&mut never), [""; 0], "change {n}");
    }
    // An empty selector is no selector.
    let mut mirrored = world(one("10.0.0.1", 1));
    mirrored.put(service(json!({})));
    assert_eq!(run(&mut mirrored), ["create endpointslices default/db-*"]);
}

#[test]
fn slices_of_others_are_not_changed_and_own_slices_are_corrected() {
    let mut world = world(one("10.0.0.1", 1));
    let other: EndpointSlice = from(json!({
        "metadata": {"namespace": "default", "name": "other", "labels": {SERVICE_NAME: "db"}},
        "addressType": "IPv4", "endpoints": [],
    }));
    world.put(other);
    run(&mut world);
    assert_eq!(slices(&world).len(), 2);

    let mut spoilt = (**slices(&world)
        .iter()
        .find(|s| s.object().name() != "other")
        .unwrap())
    .clone();
    spoilt.endpoints = None;
    spoilt.metadata.labels.as_mut().unwrap().remove("team");
    world.put(spoilt);
    let actions = world.run(&EndpointSliceMirroring, KEY, at(0));
    let right = updated::<EndpointSlice>(&actions, "").unwrap();
    assert_eq!(right.endpoints.unwrap().len(), 1);
    assert_eq!(right.metadata.labels.unwrap()["team"], "a");
    assert_eq!(right.metadata.resource_version.as_deref(), Some("1"));
    world.take(&world.run(&EndpointSliceMirroring, KEY, at(0)));

    // Endpoints that were created again own the slice from then on.
    let mut again = endpoints(one("10.0.0.1", 1));
    again.metadata.uid = Some("second".into());
    world.put(again);
    let actions = world.run(&EndpointSliceMirroring, KEY, at(0));
    let right = updated::<EndpointSlice>(&actions, "").unwrap();
    assert_eq!(right.metadata.owner_references.unwrap()[0].uid, "second");
}

#[test]
fn too_many_and_wrong_addresses_are_left_out_with_an_event() {
    let ips: Vec<Value> = (0..1003)
        .map(|n| json!({"ip": format!("10.0.{}.{}", n / 250, n % 250)}))
        .collect();
    let mut many = world(json!([{"addresses": ips, "ports": [{"port": 1}]}]));
    assert_eq!(
        run(&mut many),
        [
            "create endpointslices default/db-*",
            "event TooManyAddressesToMirror: A max of 1000 addresses can be mirrored to EndpointSlices per Endpoints subset. 3 addresses were skipped",
        ]
    );
    assert_eq!(slices(&many)[0].endpoints.as_ref().unwrap().len(), 1000);

    let mut wrong = world(json!([{"addresses": [{"ip": "x"}, {"ip": "10.0.0.1"}], "ports": [{"port": 1}]}]));
    assert_eq!(
        run(&mut wrong),
        [
            "create endpointslices default/db-*",
            "event InvalidIPAddress: Skipped 1 invalid IP addresses when mirroring to EndpointSlices",
        ]
    );
}

#[test]
fn both_families_and_several_ports_have_slices_of_their_own() {
    let mut world = world(json!([
        {"addresses": [{"ip": "10.0.0.1"}, {"ip": "2001:db8::1"}], "ports": [{"port": 1}]},
        {"addresses": [{"ip": "10.0.0.2"}], "ports": [{"port": 2}]},
    ]));
    assert_eq!(run(&mut world).len(), 3);
    assert_eq!(run(&mut world), [""; 0]);
    let mut types: Vec<String> = slices(&world).iter().map(|s| s.address_type.clone()).collect();
    types.sort();
    assert_eq!(types, ["IPv4", "IPv4", "IPv6"]);
    world.put(endpoints(one("10.0.0.1", 1)));
    run(&mut world);
    assert_eq!(slices(&world).len(), 1);
}

#[test]
fn changes_concern_endpoints_that_may_be_mirrored_only() {
    let mut world = world(one("10.0.0.1", 1));
    let key = |world: &World, object: &Object| {
        EndpointSliceMirroring.keys(
            world,
            ObjectChange {
                kind: object.kind(),
                old: None,
                new: Some(object),
            },
        )
    };
    let object = world.put(endpoints(one("10.0.0.1", 1)));
    assert_eq!(key(&world, &object), [ObjectKey::new("default", "db")]);
    run(&mut world);
    let slice = slices(&world).remove(0);
    assert_eq!(key(&world, slice.object()), [ObjectKey::new("default", "db")]);
    let with_selector = world.put(service(json!({"app": "db"})));
    assert_eq!(key(&world, &with_selector), []);
    assert_eq!(key(&world, &object), []);
    let without = world.put(service(Value::Null));
    assert_eq!(key(&world, &without), [ObjectKey::new("default", "db")]);
    world.remove(&registry::ENDPOINTS, "default", "db");
    assert_eq!(key(&world, &without), [], "there is nothing to mirror");
    assert_eq!(
        key(&world, slice.object()),
        [ObjectKey::new("default", "db")],
        "a slice that is left is deleted"
    );
}
