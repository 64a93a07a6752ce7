//! Replacements of pods whose evictions wait (SPEC B6).

use k8s_openapi::api::apps::v1::Deployment;
use knarr_api::kinds::pod::surge_first::{
    EVICTION, SURGE_FIRST, eviction_requested, record_eviction_request,
};
use serde_json::json;

use super::*;
use crate::controller::View;
use crate::deployment::Deployments;

fn surge_first(name: &str) -> Pod {
    let mut pod = ready(owned(bare_pod(name)), 0);
    pod.metadata.annotations = Some(labels(&[(EVICTION, SURGE_FIRST)]));
    pod
}

fn requested(name: &str, second: i64) -> Pod {
    let mut pod = surge_first(name);
    record_eviction_request(&mut pod, at(second));
    pod
}

fn world(replicas: i32, pods: impl IntoIterator<Item = Pod>) -> World {
    let mut world = World::default();
    world.put(set(replicas));
    for pod in pods {
        world.put(pod);
    }
    world
}

/// What is done with the pods, and the counts of the status.
fn synced(world: &mut World, second: i64) -> (Vec<String>, [i32; 3]) {
    let actions = world.run(&ReplicaSets::default(), KEY, at(second));
    world.take(&actions);
    let mut done = lines(&actions);
    done.retain(|line| line.contains(" pods "));
    let view: &dyn View = world;
    let set = view.get_as::<ReplicaSet>(KEY.0, KEY.1).unwrap();
    let status = set.status.clone().unwrap();
    let counts = [
        status.replicas,
        status.ready_replicas.unwrap_or(0),
        status.available_replicas.unwrap_or(0),
    ];
    (done, counts)
}

fn name_of_created(world: &World) -> String {
    let view: &dyn View = world;
    let pods = view.list_as::<Pod>(KEY.0);
    let created = pods.iter().find(|p| p.object().name().starts_with("web-"));
    created.unwrap().object().name().to_string()
}

#[test]
fn b6_a_requested_eviction_gets_a_replacement_which_the_status_does_not_count() {
    let mut world = world(1, [requested("a", 0)]);
    let create = "create 1 pods default/web-*".to_string();
    assert_eq!(synced(&mut world, 1), (vec![create], [1, 1, 1]));
    assert_eq!(synced(&mut world, 2), (vec![], [1, 1, 1]), "one is enough");
    let name = name_of_created(&world);
    let mut replacement = surge_first(&name);
    replacement.metadata.creation_timestamp = Some(seconds(at(1)));
    world.put(replacement);
    assert_eq!(synced(&mut world, 3), (vec![], [1, 1, 1]), "both are Ready");
    world.put(ending(requested("a", 0)));
    assert_eq!(
        synced(&mut world, 4),
        (vec![], [1, 1, 1]),
        "the replacement is left"
    );
}

#[test]
fn b6_the_replacement_is_deleted_when_the_request_expires() {
    let mut replacement = surge_first("new");
    replacement.metadata.creation_timestamp = Some(seconds(at(1)));
    for (what, replacement) in [
        ("Ready", ready(replacement.clone(), 600)),
        ("not Ready", {
            let mut starting = replacement;
            starting.status.get_or_insert_default().conditions = None;
            starting
        }),
    ] {
        let mut world = world(1, [requested("a", 0), replacement]);
        let actions = world.run(&ReplicaSets::default(), KEY, at(659));
        assert_eq!(lines(&actions).last().unwrap(), "requeue after 1s", "{what}");
        let delete = "delete pods default/new".to_string();
        assert_eq!(synced(&mut world, 660).0, [delete], "{what}");
        assert_eq!(synced(&mut world, 661), (vec![], [1, 1, 1]), "{what}");
    }
}

#[test]
fn b6_without_the_annotation_or_a_request_there_is_no_replacement() {
    let mut opted_out = requested("a", 0);
    opted_out.metadata.annotations = None;
    for pod in [opted_out, surge_first("a"), ending(requested("a", 0))] {
        let terminating = pod.metadata.deletion_timestamp.is_some();
        let mut world = world(if terminating { 0 } else { 1 }, [pod]);
        assert_eq!(synced(&mut world, 1).0, [""; 0]);
    }
}

#[test]
fn b6_a_quarter_of_the_size_is_the_limit_however_many_requests_are_recorded() {
    for (replicas, created) in [(1, 1), (4, 1), (5, 2), (20, 5)] {
        let pods = (0..replicas).map(|i| requested(&format!("p{i}"), 0));
        let mut world = world(replicas, pods);
        let (done, [shown, ..]) = synced(&mut world, 1);
        assert_eq!(done, [format!("create {created} pods default/web-*")]);
        assert_eq!(shown, replicas);
        assert_eq!(synced(&mut world, 2).0, [""; 0], "{replicas}");
    }
}

#[test]
fn b6_a_scale_while_an_eviction_waits_deletes_pods_that_are_not_ready_first_and_then_that_pod() {
    let mut starting = surge_first("new");
    starting.status.get_or_insert_default().conditions = None;
    let mut world_of = world(1, [requested("a", 0), surge_first("b"), starting]);
    assert_eq!(synced(&mut world_of, 1).0, ["delete pods default/new"]);
    // Two are left: one is the size, and one is replaced.
    assert_eq!(synced(&mut world_of, 2).0, [""; 0]);
    // The pod is younger in no respect, and cheap is only the other one.
    let mut cheap = surge_first("b");
    let cost = ("controller.kubernetes.io/pod-deletion-cost", "-5");
    cheap.metadata.annotations = Some(labels(&[cost, (EVICTION, SURGE_FIRST)]));
    let pods = [requested("a", 0), cheap, surge_first("c")];
    assert_eq!(synced(&mut world(1, pods), 1).0, ["delete pods default/a"]);
    // Scaled up, it is replaced as well; scaled to 0, nothing is.
    let mut up = world(3, [requested("a", 0)]);
    assert_eq!(
        synced(&mut up, 1),
        (vec!["create 3 pods default/web-*".into()], [1, 1, 1])
    );
    assert_eq!(synced(&mut up, 2).1, [3, 1, 1]);
    let mut down = world(0, [requested("a", 0)]);
    assert_eq!(synced(&mut down, 1).0, ["delete pods default/a"]);
}

/// A Deployment of four pods, of which three must be available.
fn deployment(image: &str) -> Deployment {
    let template = json!({
        "metadata": {"labels": {"app": "web"}, "annotations": {EVICTION: SURGE_FIRST}},
        "spec": {"containers": [{"name": "c", "image": image}]},
    });
    serde_json::from_value(json!({
        "metadata": {"namespace": KEY.0, "name": KEY.1},
        "spec": {
            "replicas": 4, "selector": {"matchLabels": {"app": "web"}}, "template": template,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
        },
    }))
    .unwrap()
}

fn pods(world: &World) -> Vec<Shared<Pod>> {
    let view: &dyn View = world;
    view.list_as(KEY.0)
}

/// One sync of the Deployment and of each ReplicaSet. In every third second kubelets make pods Ready and remove those that terminate.
fn sync(world: &mut World, second: i64) {
    let actions = world.run(&Deployments, KEY, at(second));
    world.take(&actions);
    let view: &dyn View = world;
    for set in view.list_as::<ReplicaSet>(KEY.0) {
        let actions = world.run(&ReplicaSets::default(), (KEY.0, set.object().name()), at(second));
        world.take(&actions);
    }
    if second % 3 != 0 {
        return;
    }
    for found in pods(world) {
        if pod::is_terminating(&found) {
            world.remove(&registry::POD, KEY.0, found.object().name());
        } else if !pod::is_ready(&found) {
            let mut running = (*found).clone();
            running.spec.get_or_insert_default().node_name = Some("n1".into());
            running.status.get_or_insert_default().phase = Some("Running".into());
            world.put(ready(running, second));
        }
    }
}

#[test]
fn b6_a_rollout_while_an_eviction_waits_keeps_enough_pods_without_the_evicted_one() {
    let is_left = |p: &Pod| pod::is_active(p) && pod::is_ready(p) && eviction_requested(p).is_none();
    let left = |world: &World| pods(world).iter().filter(|p| is_left(p)).count();
    let mut world = World::default();
    world.put(deployment("v1"));
    (0..6).for_each(|second| sync(&mut world, second));
    assert_eq!(left(&world), 4);
    let mut evicted = (*pods(&world)[0]).clone();
    record_eviction_request(&mut evicted, at(6));
    world.put(evicted);
    (6..12).for_each(|second| sync(&mut world, second));
    assert_eq!((left(&world), pods(&world).len()), (4, 5), "the pod is replaced");

    let view: &dyn View = &world;
    let mut changed = (*view.get_as::<Deployment>(KEY.0, KEY.1).unwrap()).clone();
    changed.spec = deployment("v2").spec;
    world.put(changed);
    for second in 13..60 {
        sync(&mut world, second);
        assert!(left(&world) >= 3, "{} pods are left at {second}", left(&world));
    }
    let images: Vec<_> = pods(&world)
        .iter()
        .map(|p| p.spec.as_ref().unwrap().containers[0].image.clone().unwrap())
        .collect();
    assert_eq!(images, ["v2"; 4]);
    let view: &dyn View = &world;
    let status = view
        .get_as::<Deployment>(KEY.0, KEY.1)
        .unwrap()
        .status
        .clone()
        .unwrap();
    assert_eq!(
        (
            status.replicas,
            status.updated_replicas,
            status.available_replicas
        ),
        (Some(4), Some(4), Some(4))
    );
}
