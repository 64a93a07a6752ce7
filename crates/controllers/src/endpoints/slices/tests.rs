//! Packing, hints and trigger times of EndpointSlices.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::Object;
use serde_json::json;

use super::*;
use crate::endpoints::tests::{from, pod_at, service, settle, sizes, slices, world};
use crate::world::{World, at, lines};

const KEY: (&str, &str) = ("default", "web");

fn node(name: &str, zone: &str, cpu: &str) -> Node {
    from(json!({
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        "status": {
            "allocatable": {"cpu": cpu},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }))
}

fn pod_on(n: usize, node: &str) -> Pod {
    let mut pod = pod_at(n, true);
    pod.spec.as_mut().unwrap().node_name = Some(node.into());
    pod
}

fn annotated(mode: &str) -> Service {
    let mut service = service(json!({}));
    let annotations = service.metadata.annotations.get_or_insert_default();
    annotations.insert("service.kubernetes.io/topology-mode".into(), mode.into());
    service
}

/// The number of endpoints with a hint for each zone; those without a hint under "-".
fn by_zone(world: &World) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for slice in slices(world) {
        for endpoint in slice.endpoints.iter().flatten() {
            let zones = endpoint.hints.as_ref().and_then(|h| h.for_zones.clone());
            let zone = zones.map(|z| z[0].name.clone()).unwrap_or("-".into());
            *counts.entry(zone).or_default() += 1;
        }
    }
    counts.iter().map(|(zone, n)| format!("{zone} {n}")).collect()
}

fn events(actions: &[Action]) -> Vec<String> {
    let all = lines(actions).into_iter();
    all.filter(|line| line.starts_with("event")).collect()
}

#[test]
fn n2_traffic_distribution_gives_ready_endpoints_hints_for_their_zone_and_node() {
    let zone = json!({"forZones": [{"name": "z"}]});
    let both = json!({"forZones": [{"name": "z"}], "forNodes": [{"name": "n1"}]});
    for (distribution, hints) in [
        (json!("PreferClose"), zone.clone()),
        (json!("PreferSameZone"), zone),
        (json!("PreferSameNode"), both),
        (json!(null), json!(null)),
    ] {
        let mut world = world(service(json!({"trafficDistribution": distribution})));
        world.put(pod_at(1, true));
        world.put(pod_at(2, false));
        settle(&mut world);
        let slice = slices(&world).remove(0);
        let endpoints = serde_json::to_value(slice.endpoints.clone().unwrap()).unwrap();
        assert_eq!(endpoints[0]["hints"], hints, "{distribution}");
        assert_eq!(endpoints[1]["hints"], json!(null), "{distribution}");
    }
    // Hints are added and removed with the field, in slices that do not change otherwise.
    let mut world = world(service(json!({})));
    world.put(pod_at(1, true));
    settle(&mut world);
    world.put(service(json!({"trafficDistribution": "PreferClose"})));
    assert_eq!(settle(&mut world), 1);
    assert_eq!(by_zone(&world), ["z 1"]);
    world.put(service(json!({})));
    settle(&mut world);
    assert_eq!(by_zone(&world), ["- 1"]);
}

#[test]
fn n2_topology_mode_distributes_endpoints_by_the_cpus_of_zones() {
    let mut world = world(annotated("Auto"));
    world.remove(&registry::NODE, "", "n1");
    // Twice as many CPUs in b as in a, all endpoints but two in a.
    world.put(node("na", "a", "2"));
    world.put(node("nb", "b", "4"));
    for n in 0..7 {
        world.put(pod_on(n, "na"));
    }
    world.put(pod_on(7, "nb"));
    world.put(pod_on(8, "nb"));
    let actions = world.run(&EndpointSlices, KEY, at(0));
    assert_eq!(
        events(&actions),
        ["event TopologyAwareHintsEnabled: Topology Aware Hints has been enabled, addressType: IPv4"]
    );
    assert_eq!(settle(&mut world), 2, "the slice and the event");
    assert_eq!(by_zone(&world), ["a 3", "b 6"]);
    // One endpoint is removed: the others keep their zones.
    assert_eq!(settle(&mut world), 0);

    // Without the annotation hints are removed, with an event.
    world.put(service(json!({})));
    assert_eq!(
        events(&world.run(&EndpointSlices, KEY, at(0))),
        ["event TopologyAwareHintsDisabled: Topology Aware Hints has been disabled, addressType: IPv4"]
    );
    settle(&mut world);
    assert_eq!(by_zone(&world), ["- 9"]);
}

#[test]
fn topology_mode_gives_no_hints_where_they_would_overload_a_zone() {
    let no = |set_up: &dyn Fn(&mut World)| {
        let mut world = world(annotated("auto"));
        world.remove(&registry::NODE, "", "n1");
        set_up(&mut world);
        let actions = world.run(&EndpointSlices, KEY, at(0));
        world.take(&actions);
        assert!(by_zone(&world).iter().all(|z| z.starts_with('-')));
        events(&actions).remove(0)
    };
    let pods = |world: &mut World, count: usize, node: &str| {
        for n in 0..count {
            world.put(pod_on(n, node));
        }
    };
    assert_eq!(
        no(&|w| {
            w.put(node("na", "a", "2"));
            w.put(node("nb", "b", "2"));
            pods(w, 1, "na");
        }),
        "event TopologyAwareHintsDisabled: Insufficient number of endpoints (1 endpoints, 2 zones), addressType: IPv4"
    );
    assert_eq!(
        no(&|w| {
            w.put(node("na", "a", "2"));
            w.put(node("nb", "b", "2"));
            pods(w, 3, "na");
        }),
        "event TopologyAwareHintsDisabled: Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (3 endpoints, 2 zones), addressType: IPv4"
    );
    let unknown = "event TopologyAwareHintsDisabled: Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4";
    assert_eq!(
        no(&|w| {
            w.put(node("na", "a", "2"));
            w.put(node("nb", "", "2"));
            pods(w, 4, "na");
        }),
        unknown
    );
    assert_eq!(
        no(&|w| {
            w.put(node("na", "a", "2"));
            w.put(node("nb", "a", "2"));
            pods(w, 4, "na");
        }),
        unknown
    );
}

#[test]
fn a_zones_size_enqueues_only_services_with_topology_mode() {
    let mut world = world(annotated("Auto"));
    let old = world.put(node("nx", "a", "2"));
    let keys = |world: &World, old: Option<&Object>, new: Option<&Object>| {
        let kind = &registry::NODE;
        EndpointSlices.keys(world, ObjectChange { kind, old, new }).len()
    };
    let new = world.put(node("nx", "a", "3"));
    assert_eq!(keys(&world, Some(&old), Some(&new)), 1);
    assert_eq!(keys(&world, Some(&new), Some(&new)), 0);
    assert_eq!(keys(&world, Some(&new), None), 1);
    world.put(service(json!({})));
    assert_eq!(keys(&world, Some(&old), Some(&new)), 0);
}

#[test]
fn new_endpoints_are_added_to_one_slice_that_has_room_for_all_or_to_a_new_one() {
    let mut world = world(service(json!({})));
    for n in 0..150 {
        world.put(pod_at(n, true));
    }
    settle(&mut world);
    assert_eq!(sizes(&world), [50, 100]);
    // Forty fit into the second.
    for n in 200..240 {
        world.put(pod_at(n, true));
    }
    assert_eq!(settle(&mut world), 1);
    assert_eq!(sizes(&world), [90, 100]);
    // Twenty do not.
    for n in 300..320 {
        world.put(pod_at(n, true));
    }
    assert_eq!(settle(&mut world), 1);
    assert_eq!(sizes(&world), [20, 90, 100]);
}

#[test]
fn slices_that_would_be_deleted_are_reused() {
    let mut world = world(service(json!({})));
    world.put(pod_at(1, true));
    settle(&mut world);
    let name = slices(&world)[0].object().name().to_string();
    // Another port: one write, and watchers never see a Service without endpoints.
    let mut other = service(json!({}));
    other.spec.as_mut().unwrap().ports.as_mut().unwrap()[0].target_port = Some(IntOrString::Int(9090));
    world.put(other);
    let actions = world.run(&EndpointSlices, KEY, at(0));
    assert_eq!(lines(&actions), [format!("update endpointslices default/{name}")]);
    settle(&mut world);
    assert_eq!(slices(&world)[0].ports.clone().unwrap()[0].port, Some(9090));
    // The last endpoint is removed: its slice becomes the placeholder.
    world.remove(&registry::POD, "default", "p001");
    let actions = world.run(&EndpointSlices, KEY, at(0));
    assert_eq!(lines(&actions), [format!("update endpointslices default/{name}")]);
}

#[test]
fn b7_a_pod_that_a_slice_has_as_terminating_is_ready_again_only_after_a_live_read() {
    let deleting = |n: usize| {
        let mut pod = pod_at(n, true);
        pod.metadata.deletion_timestamp = Some(Time(at(0)));
        pod
    };
    for (what, shown, cached, first) in [
        (
            "a cache that lags",
            vec![deleting(1), pod_at(2, true)],
            vec![pod_at(1, true), pod_at(2, true)],
            Some("require pods default/p001"),
        ),
        (
            "a cache that lags, with another change to write",
            vec![deleting(1)],
            vec![pod_at(1, false), pod_at(2, true)],
            Some("require pods default/p001"),
        ),
        ("no change to write", vec![deleting(1)], vec![deleting(1)], None),
        (
            "a pod that was not terminating",
            vec![pod_at(1, false)],
            vec![pod_at(1, true)],
            Some("update endpointslices"),
        ),
        (
            "the first one that reports",
            vec![pod_at(1, true)],
            vec![deleting(1)],
            Some("update endpointslices"),
        ),
    ] {
        let mut world = world(service(json!({})));
        shown.into_iter().for_each(|pod| drop(world.put(pod)));
        settle(&mut world);
        cached.into_iter().for_each(|pod| drop(world.put(pod)));
        let actions = lines(&world.run(&EndpointSlices, KEY, at(0)));
        match first {
            None => assert_eq!(actions, [""; 0], "{what}"),
            Some(first) => assert!(actions[0].starts_with(first), "{what}: {actions:?}"),
        }
        let writes = actions.iter().filter(|line| line.starts_with("update")).count();
        assert_eq!(writes, usize::from(first.is_some()), "{what}: {actions:?}");
    }
    // A pod of the same name is another pod: no live read is needed.
    let mut world = world(service(json!({})));
    world.put(deleting(1));
    settle(&mut world);
    world.remove(&registry::POD, "default", "p001");
    let mut namesake = pod_at(1, true);
    namesake.metadata.uid = Some("another".into());
    world.put(namesake);
    let actions = lines(&world.run(&EndpointSlices, KEY, at(0)));
    assert!(actions[0].starts_with("update endpointslices"), "{actions:?}");
}

#[test]
fn a_slice_has_the_trigger_time_of_its_change() {
    let time = |second| Time(at(second));
    let annotation = |world: &World| {
        let annotations = slices(world)[0].metadata.annotations.clone();
        annotations
            .unwrap_or_default()
            .get(LAST_CHANGE_TRIGGER_TIME)
            .cloned()
    };
    let ready_since = |n, second| {
        let mut pod = pod_at(n, true);
        let conditions = pod.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions[0].last_transition_time = Some(time(second));
        pod
    };
    let mut created = service(json!({}));
    created.metadata.creation_timestamp = Some(time(10));
    let mut world = world(created);
    settle(&mut world);
    assert_eq!(annotation(&world), Some(at(10).to_string()));
    world.put(ready_since(1, 30));
    world.put(ready_since(2, 20));
    settle(&mut world);
    assert_eq!(annotation(&world), Some(at(20).to_string()));
    world.put(ready_since(3, 40));
    settle(&mut world);
    assert_eq!(annotation(&world), Some(at(40).to_string()));
    // The readiness of no pod has changed.
    world.remove(&registry::POD, "default", "p003");
    settle(&mut world);
    assert_eq!(annotation(&world), None);
}
