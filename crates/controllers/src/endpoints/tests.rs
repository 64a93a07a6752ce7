//! How a Service's endpoints follow from its pods.

use k8s_openapi::api::core::v1::{Endpoints as EndpointsObject, Node};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::registry::Registered;
use serde_json::{Value, json};

use super::legacy::Endpoints;
use super::slices::EndpointSlices;
use super::*;
use crate::action::Action;
use crate::world::{World, at, lines, updated};

const KEY: (&str, &str) = ("default", "web");

pub(super) fn from<T: Registered>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub(super) fn service(with: Value) -> Service {
    let mut spec = json!({
        "clusterIP": "10.96.0.1",
        "ipFamilies": ["IPv4"],
        "selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
    });
    for (key, value) in with.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let labels = json!({"team": "a"});
    from(json!({"metadata": {"namespace": "default", "name": "web", "labels": labels}, "spec": spec}))
}

pub(super) fn pod_at(n: usize, ready: bool) -> Pod {
    let status = if ready { "True" } else { "False" };
    from(json!({
        "metadata": {"namespace": "default", "name": format!("p{n:03}"), "labels": {"app": "web"}},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]}],
        },
        "status": {
            "phase": "Running",
            "podIP": format!("10.0.{}.{}", n / 250, n % 250),
            "podIPs": [{"ip": format!("10.0.{}.{}", n / 250, n % 250)}],
            "conditions": [{"type": "Ready", "status": status}],
        },
    }))
}

pub(super) fn world(service: Service) -> World {
    let mut world = World::default();
    world.put(service);
    world.put::<Node>(from(
        json!({"metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "z"}}}),
    ));
    world
}

/// Runs the EndpointSlice controller until nothing is left to do; the number of writes.
pub(super) fn settle(world: &mut World) -> usize {
    let mut writes = 0;
    for _ in 0..5 {
        let actions = world.run(&EndpointSlices, KEY, at(0));
        if actions.is_empty() {
            return writes;
        }
        writes += actions.len();
        world.take(&actions);
    }
    panic!("it never settles");
}

pub(super) fn slices(world: &World) -> Vec<Shared<EndpointSlice>> {
    let view: &dyn View = world;
    view.list_as::<EndpointSlice>("default")
}

pub(super) fn sizes(world: &World) -> Vec<usize> {
    let mut sizes: Vec<usize> = slices(world)
        .iter()
        .map(|s| s.endpoints.iter().flatten().count())
        .collect();
    sizes.sort();
    sizes
}

#[test]
fn a_slice_has_address_port_target_node_and_zone() {
    let mut world = world(service(json!({})));
    world.put(pod_at(1, true));
    settle(&mut world);
    let slice = slices(&world).remove(0);
    let labels = slice.metadata.labels.clone().unwrap();
    assert_eq!(labels["kubernetes.io/service-name"], "web");
    assert_eq!(
        labels["endpointslice.kubernetes.io/managed-by"],
        "endpointslice-controller.k8s.io"
    );
    assert_eq!(labels["team"], "a");
    assert!(!labels.contains_key(HEADLESS));
    assert_eq!(slice.metadata.generate_name.as_deref(), Some("web-"));
    assert_eq!(slice.address_type, "IPv4");
    let ports = slice.ports.clone().unwrap();
    assert_eq!(
        (ports[0].name.as_deref(), ports[0].port),
        (Some("http"), Some(8080))
    );
    let shown = serde_json::to_value(&slice.endpoints.clone().unwrap()[0]).unwrap();
    assert_eq!(
        shown,
        json!({
            "addresses": ["10.0.0.1"],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "n1",
            "zone": "z",
            "targetRef": {"kind": "Pod", "namespace": "default", "name": "p001", "uid": "uid-p001"},
        })
    );
}

#[test]
fn t7_a_pod_stops_being_ready_when_its_deletion_is_recorded() {
    // (ready, deleting, publishNotReadyAddresses) -> ready, serving, terminating; where in Endpoints
    let table = [
        ((true, false, false), (true, true, false), "ready"),
        ((false, false, false), (false, false, false), "not ready"),
        ((true, true, false), (false, true, true), "absent"),
        ((false, true, false), (false, false, true), "absent"),
        ((false, false, true), (true, false, false), "ready"),
        ((true, true, true), (true, true, true), "ready"),
    ];
    for ((ready, deleting, publish), conditions, in_endpoints) in table {
        let mut world = world(service(json!({"publishNotReadyAddresses": publish})));
        let mut pod = pod_at(1, ready);
        if deleting {
            pod.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(9)));
        }
        world.put(pod);
        settle(&mut world);
        let endpoint = slices(&world)[0].endpoints.clone().unwrap().remove(0);
        let c = endpoint.conditions.unwrap();
        let found = (c.ready.unwrap(), c.serving.unwrap(), c.terminating.unwrap());
        assert_eq!(
            found, conditions,
            "ready {ready}, deleting {deleting}, publish {publish}"
        );

        let actions = world.run(&Endpoints, KEY, at(0));
        let Action::Create(create) = &actions[0] else {
            panic!("Endpoints are created")
        };
        let object: &EndpointsObject = create.object.as_any().downcast_ref().unwrap();
        let found = match object.subsets.as_deref() {
            None => "absent",
            Some([one]) if one.addresses.is_some() => "ready",
            Some(_) => "not ready",
        };
        assert_eq!(
            found, in_endpoints,
            "ready {ready}, deleting {deleting}, publish {publish}"
        );
    }
}

#[test]
fn slices_have_a_hundred_endpoints_and_change_as_little_as_possible() {
    let mut world = world(service(json!({})));
    for n in 0..250 {
        world.put(pod_at(n, true));
    }
    settle(&mut world);
    assert_eq!(sizes(&world), [50, 100, 100]);
    // One pod is removed, one is added: one slice is written, with both changes.
    world.remove(&registry::POD, "default", "p005");
    world.put(pod_at(400, true));
    assert_eq!(settle(&mut world), 1);
    assert_eq!(sizes(&world), [50, 100, 100]);
    // No endpoint changes: nothing is written.
    assert_eq!(settle(&mut world), 0);
    for n in 0..250 {
        world.remove(&registry::POD, "default", &format!("p{n:03}"));
    }
    settle(&mut world);
    assert_eq!(sizes(&world), [1]);
}

#[test]
fn a_service_without_pods_has_one_empty_slice_and_one_without_a_selector_none() {
    let mut world = world(service(json!({"clusterIP": "None"})));
    assert_eq!(settle(&mut world), 1);
    assert_eq!(sizes(&world), [0]);
    assert!(
        slices(&world)[0]
            .metadata
            .labels
            .as_ref()
            .unwrap()
            .contains_key(HEADLESS)
    );
    world.put(pod_at(1, true));
    settle(&mut world);
    assert_eq!(sizes(&world), [1]);
    world.remove(&registry::POD, "default", "p001");
    settle(&mut world);
    assert_eq!(sizes(&world), [0]);

    for with in [json!({"selector": null}), json!({"type": "ExternalName"})] {
        let mut none = self::world(service(with));
        none.put(pod_at(1, true));
        assert_eq!(lines(&none.run(&EndpointSlices, KEY, at(0))), [""; 0]);
        assert_eq!(lines(&none.run(&Endpoints, KEY, at(0))), [""; 0]);
    }
}

#[test]
fn pods_with_other_ports_get_slices_and_subsets_of_their_own() {
    let mut world = world(service(json!({})));
    world.put(pod_at(1, true));
    let mut other = pod_at(2, true);
    other.spec.as_mut().unwrap().containers[0].ports.as_mut().unwrap()[0].container_port = 9090;
    world.put(other);
    settle(&mut world);
    assert_eq!(sizes(&world), [1, 1]);
    let actions = world.run(&Endpoints, KEY, at(0));
    let Action::Create(create) = &actions[0] else {
        panic!("Endpoints are created")
    };
    let mut object = create
        .object
        .as_any()
        .downcast_ref::<EndpointsObject>()
        .unwrap()
        .clone();
    let ports: Vec<i32> = object
        .subsets
        .iter()
        .flatten()
        .map(|s| s.ports.clone().unwrap()[0].port)
        .collect();
    assert_eq!(ports, [8080, 9090]);
    // They are deleted with the Service, but those of other owners are not.
    world.remove(&registry::SERVICE, "default", "web");
    world.put(object.clone());
    assert_eq!(
        lines(&world.run(&Endpoints, KEY, at(0))),
        ["require no services default/web", "delete endpoints default/web"]
    );
    object.metadata.labels = None;
    world.put(object);
    assert_eq!(lines(&world.run(&Endpoints, KEY, at(0))), [""; 0]);
}

#[test]
fn endpoints_follow_a_pod_that_becomes_ready() {
    let mut world = world(service(json!({})));
    world.put(pod_at(1, false));
    let first = world.run(&Endpoints, KEY, at(0));
    let Action::Create(create) = &first[0] else {
        panic!("Endpoints are created")
    };
    world.put(
        create
            .object
            .as_any()
            .downcast_ref::<EndpointsObject>()
            .unwrap()
            .clone(),
    );
    assert_eq!(lines(&world.run(&Endpoints, KEY, at(0))), [""; 0]);
    world.put(pod_at(1, true));
    let second = world.run(&Endpoints, KEY, at(0));
    let subset = updated::<EndpointsObject>(&second, "")
        .unwrap()
        .subsets
        .unwrap()
        .remove(0);
    assert_eq!(subset.addresses.unwrap()[0].ip, "10.0.0.1");
    assert_eq!(subset.not_ready_addresses, None);
}
