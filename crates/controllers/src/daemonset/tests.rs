//! A DaemonSet on a few nodes.

use serde_json::{Value, json};

use super::*;
use crate::world::{World, at, lines};

const KEY: (&str, &str) = ("a", "d");

fn set(image: &str, spec: Value, strategy: Value) -> DaemonSet {
    let mut template = json!({"containers": [{"name": "c", "image": image}]});
    for (key, of) in spec.as_object().unwrap() {
        template[key] = of.clone();
    }
    serde_json::from_value(json!({
        "metadata": {"namespace": "a", "name": "d", "generation": 1},
        "spec": {
            "selector": {"matchLabels": {"app": "d"}},
            "template": {"metadata": {"labels": {"app": "d"}}, "spec": template},
            "updateStrategy": strategy,
        },
    }))
    .unwrap()
}

fn rolling() -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}})
}

fn node(name: &str, labels: Value, taints: Value) -> Node {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}))
        .unwrap()
}

fn world(nodes: usize) -> World {
    let mut world = World::default();
    for n in 0..nodes {
        world.put(node(&format!("n{n}"), json!({}), json!([])));
    }
    world
}

fn sync(world: &mut World, second: i64) -> Vec<String> {
    let actions = world.run(&DaemonSets, KEY, at(second));
    world.take(&actions);
    lines(&actions)
        .into_iter()
        .filter(|l| l.contains(" pods "))
        .collect()
}

fn pods(world: &World) -> Vec<Shared<Pod>> {
    let view: &dyn View = world;
    view.list_as("a")
}

/// Terminating pods are removed, all others run on their node and are ready.
fn settle(world: &mut World) {
    for pod in pods(world) {
        let mut pod = (*pod).clone();
        let name = pod.metadata.name.clone().unwrap();
        if pod::is_deleting(&pod) {
            world.remove(&registry::POD, "a", &name);
            continue;
        }
        let on = placement::target_node(&pod).unwrap().to_string();
        pod.spec.as_mut().unwrap().node_name = Some(on);
        pod.status = serde_json::from_value(json!({"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-12T13:46:40Z"},
        ]}))
        .unwrap();
        world.put(pod);
    }
}

fn status(world: &World) -> DaemonSetStatus {
    let view: &dyn View = world;
    view.get_as::<DaemonSet>("a", "d")
        .unwrap()
        .status
        .clone()
        .unwrap()
}

/// The set with another template, as a user changes it.
fn change(world: &mut World, image: &str) {
    let view: &dyn View = world;
    let mut set = (*view.get_as::<DaemonSet>("a", "d").unwrap()).clone();
    let spec = set.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
    spec.containers[0].image = Some(image.into());
    world.put(set);
}

#[test]
fn every_node_gets_one_pod_that_no_other_node_can_run() {
    let mut world = world(3);
    world.put(set("one", json!({}), rolling()));
    assert_eq!(sync(&mut world, 0), ["create 3 pods a/d-*"]);
    let targets: Vec<String> = pods(&world)
        .iter()
        .map(|p| placement::target_node(p).unwrap().to_string())
        .collect();
    assert_eq!(targets.iter().collect::<BTreeSet<_>>().len(), 3);
    let pod = &pods(&world)[0];
    let tolerations = pod.spec.as_ref().unwrap().tolerations.as_ref().unwrap();
    assert_eq!(tolerations.len(), 6);
    assert!(pod.metadata.labels.as_ref().unwrap().contains_key(REVISION_HASH));
    settle(&mut world);
    assert_eq!(sync(&mut world, 1), [""; 0]);
    let is = status(&world);
    assert_eq!(
        (is.desired_number_scheduled, is.number_ready, is.number_available),
        (3, 3, Some(3))
    );
    assert_eq!(
        (
            is.updated_number_scheduled,
            is.number_unavailable,
            is.number_misscheduled
        ),
        (Some(3), None, 0)
    );
}

#[test]
fn a_node_runs_a_pod_by_name_selector_affinity_and_taints() {
    let gpu = json!({"gpu": "yes", "n": "5"});
    let taint = |effect: &str| json!([{"key": "k", "value": "v", "effect": effect}]);
    let term = |term: Value| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [term]}}}})
    };
    let expression = |key: &str, op: &str, values: Value| {
        term(json!({"matchExpressions": [{"key": key, "operator": op, "values": values}]}))
    };
    // template, labels, taints -> should run, may stay
    let table = [
        (json!({}), json!({}), json!([]), true, true),
        (json!({"nodeName": "n"}), json!({}), json!([]), true, true),
        (json!({"nodeName": "m"}), json!({}), json!([]), false, false),
        (
            json!({"nodeSelector": {"gpu": "yes"}}),
            gpu.clone(),
            json!([]),
            true,
            true,
        ),
        (
            json!({"nodeSelector": {"gpu": "yes"}}),
            json!({}),
            json!([]),
            false,
            false,
        ),
        (
            expression("gpu", "In", json!(["yes"])),
            gpu.clone(),
            json!([]),
            true,
            true,
        ),
        (
            expression("gpu", "NotIn", json!(["yes"])),
            gpu.clone(),
            json!([]),
            false,
            false,
        ),
        (
            expression("n", "Gt", json!(["4"])),
            gpu.clone(),
            json!([]),
            true,
            true,
        ),
        (
            expression("n", "Lt", json!(["5"])),
            gpu.clone(),
            json!([]),
            false,
            false,
        ),
        (
            expression("gpu", "DoesNotExist", json!([])),
            gpu.clone(),
            json!([]),
            false,
            false,
        ),
        (term(json!({})), gpu, json!([]), false, false),
        (json!({}), json!({}), taint("NoSchedule"), false, true),
        (json!({}), json!({}), taint("NoExecute"), false, false),
        (json!({}), json!({}), taint("PreferNoSchedule"), true, true),
        (
            json!({"tolerations": [{"key": "k", "operator": "Exists"}]}),
            json!({}),
            taint("NoExecute"),
            true,
            true,
        ),
        (
            json!({}),
            json!({}),
            json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]),
            true,
            true,
        ),
        (
            json!({}),
            json!({}),
            json!([{"key": "node.kubernetes.io/network-unavailable", "effect": "NoSchedule"}]),
            false,
            true,
        ),
        (
            json!({"hostNetwork": true}),
            json!({}),
            json!([{"key": "node.kubernetes.io/network-unavailable", "effect": "NoSchedule"}]),
            true,
            true,
        ),
    ];
    for (template, labels, taints, should_run, may_stay) in table {
        let set = set("one", template.clone(), rolling());
        let spec = placement::with_daemon_tolerations(&set.spec.unwrap().template);
        let found = placement::placement(&spec, &node("n", labels.clone(), taints.clone()));
        assert_eq!(
            found,
            Placement { should_run, may_stay },
            "{template} {labels} {taints}"
        );
    }
}

#[test]
fn misplaced_pods_are_deleted_and_failed_ones_are_replaced_not_too_often() {
    let mut world = world(2);
    world.put(set("one", json!({}), rolling()));
    sync(&mut world, 0);
    settle(&mut world);
    world.put(node(
        "n1",
        json!({}),
        json!([{"key": "k", "effect": "NoExecute"}]),
    ));
    assert_eq!(sync(&mut world, 1).len(), 1);
    assert_eq!(status(&world).number_misscheduled, 1);
    settle(&mut world);
    assert_eq!(sync(&mut world, 2), [""; 0]);
    let mut failed = (*pods(&world)[0]).clone();
    failed.status = serde_json::from_value(json!({"phase": "Failed"})).unwrap();
    failed.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(3)));
    world.put(failed);
    let actions = lines(&world.run(&DaemonSets, KEY, at(5)));
    assert!(actions.contains(&"requeue after 8s".to_string()), "{actions:?}");
    let actions = lines(&world.run(&DaemonSets, KEY, at(13)));
    let position = |start: &str| actions.iter().position(|l| l.starts_with(start));
    let read = position("require daemonsets a/d of generation");
    let event = position("event FailedDaemonPod: Found failed daemon pod a/d-");
    assert!(
        read.is_some() && read < event && event < position("delete pods"),
        "{actions:?}"
    );
    assert_eq!(sync(&mut world, 13).len(), 1);
}

#[test]
fn an_update_deletes_as_many_as_may_be_unavailable() {
    let mut world = world(3);
    world.put(set("one", json!({}), rolling()));
    sync(&mut world, 0);
    settle(&mut world);
    change(&mut world, "two");
    let done = lines(&world.run(&DaemonSets, KEY, at(1)));
    let at = |start: &str| done.iter().position(|l| l.starts_with(start));
    let read = at("require daemonsets a/d of generation");
    assert!(read.is_some() && read < at("delete pods"), "{done:?}");
    for round in 0..3 {
        let deleted = sync(&mut world, 1);
        assert_eq!(deleted.len(), 1, "{round} {deleted:?}");
        assert!(deleted[0].starts_with("delete pods"));
        assert_eq!(sync(&mut world, 2), [""; 0], "the next waits");
        settle(&mut world);
        assert_eq!(sync(&mut world, 3), ["create 1 pods a/d-*"]);
        assert_eq!(sync(&mut world, 4), [""; 0], "until the new one is available");
        settle(&mut world);
    }
    assert_eq!(sync(&mut world, 5), [""; 0]);
    sync(&mut world, 6);
    assert_eq!(status(&world).updated_number_scheduled, Some(3));
}

#[test]
fn a_surge_creates_the_new_pod_before_the_old_one_is_deleted() {
    let mut world = world(2);
    world.put(set(
        "one",
        json!({}),
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}),
    ));
    sync(&mut world, 0);
    settle(&mut world);
    change(&mut world, "two");
    for _ in 0..2 {
        assert_eq!(sync(&mut world, 1), ["create 1 pods a/d-*"]);
        assert_eq!(sync(&mut world, 2), [""; 0]);
        settle(&mut world);
        let deleted = sync(&mut world, 3);
        assert!(
            deleted.len() == 1 && deleted[0].starts_with("delete pods"),
            "{deleted:?}"
        );
        settle(&mut world);
    }
    assert_eq!(sync(&mut world, 4), [""; 0]);
    assert_eq!(pods(&world).len(), 2);
}

#[test]
fn on_delete_waits_for_the_user() {
    let mut world = world(1);
    world.put(set("one", json!({}), json!({"type": "OnDelete"})));
    sync(&mut world, 0);
    settle(&mut world);
    change(&mut world, "two");
    assert_eq!(sync(&mut world, 1), [""; 0]);
    let name = pods(&world)[0].object().name().to_string();
    world.remove(&registry::POD, "a", &name);
    assert_eq!(sync(&mut world, 2), ["create 1 pods a/d-*"]);
    assert_eq!(
        pods(&world)[0].spec.as_ref().unwrap().containers[0]
            .image
            .as_deref(),
        Some("two")
    );
}
