//! The decisions of the ReplicaSet controller, as tables.

mod eviction_surge;

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use knarr_apimachinery::Error;

use super::*;
use crate::action::LiveCheck;
use crate::world::{World, at, lines, updated};

mod scale_down;

const KEY: (&str, &str) = ("default", "web");

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect()
}

fn set(replicas: i32) -> ReplicaSet {
    let web = labels(&[("app", "web")]);
    ReplicaSet {
        metadata: ObjectMeta {
            namespace: Some("default".into()),
            name: Some("web".into()),
            generation: Some(3),
            ..ObjectMeta::default()
        },
        spec: Some(k8s_openapi::api::apps::v1::ReplicaSetSpec {
            replicas: Some(replicas),
            selector: LabelSelector {
                match_labels: Some(web.clone()),
                ..LabelSelector::default()
            },
            template: Some(PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(web),
                    ..ObjectMeta::default()
                }),
                spec: Some(PodSpec::default()),
            }),
            ..Default::default()
        }),
        status: None,
    }
}

fn bare_pod(name: &str) -> Pod {
    Pod {
        metadata: ObjectMeta {
            namespace: Some("default".into()),
            name: Some(name.into()),
            labels: Some(labels(&[("app", "web")])),
            creation_timestamp: Some(seconds(at(0))),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            node_name: Some("n1".into()),
            ..PodSpec::default()
        }),
        status: Some(PodStatus {
            phase: Some("Running".into()),
            ..PodStatus::default()
        }),
    }
}

fn owned(mut pod: Pod) -> Pod {
    pod.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "apps/v1".into(),
        kind: "ReplicaSet".into(),
        name: "web".into(),
        uid: "uid-web".into(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }]);
    pod
}

fn ready(mut pod: Pod, since: i64) -> Pod {
    pod.status.get_or_insert_default().conditions = Some(vec![PodCondition {
        type_: "Ready".into(),
        status: "True".into(),
        last_transition_time: Some(seconds(at(since))),
        ..PodCondition::default()
    }]);
    pod
}

fn ending(mut pod: Pod) -> Pod {
    pod.metadata.deletion_timestamp = Some(seconds(at(30)));
    pod
}

fn finished(mut pod: Pod) -> Pod {
    pod.status.get_or_insert_default().phase = Some("Failed".into());
    pod
}

#[test]
fn missing_pods_are_created_from_the_template_with_a_controller_reference() {
    let mut world = World::default();
    world.put(set(3));
    world.put(owned(bare_pod("a")));
    let actions = world.run(&ReplicaSets::default(), KEY, at(0));
    assert_eq!(
        lines(&actions),
        [
            "create 2 pods default/web-*",
            "update replicasets/status default/web"
        ]
    );
    let Action::CreateMany(creates) = &actions[0] else {
        panic!("creates first")
    };
    let pod: &Pod = creates[0].object.as_any().downcast_ref().unwrap();
    assert_eq!(
        pod.metadata.owner_references,
        owned(bare_pod("x")).metadata.owner_references
    );
    assert_eq!(pod.metadata.labels, Some(labels(&[("app", "web")])));
    let status = updated::<ReplicaSet>(&actions, "status").unwrap().status.unwrap();
    assert_eq!(status.replicas, 1);
    assert_eq!(status.observed_generation, Some(3));
    assert_eq!(
        (status.ready_replicas, status.terminating_replicas),
        (None, Some(0))
    );
}

#[test]
fn t7_terminating_and_finished_pods_are_not_replicas() {
    let mut world = World::default();
    world.put(set(2));
    world.put(owned(ready(bare_pod("a"), 0)));
    world.put(ending(owned(ready(bare_pod("b"), 0))));
    world.put(finished(owned(bare_pod("c"))));
    let actions = world.run(&ReplicaSets::default(), KEY, at(1));
    assert_eq!(lines(&actions)[0], "create 1 pods default/web-*");
    let status = updated::<ReplicaSet>(&actions, "status").unwrap().status.unwrap();
    assert_eq!(status.replicas, 1);
    assert_eq!(status.ready_replicas, Some(1));
    assert_eq!(status.terminating_replicas, Some(1));
}

#[test]
fn nothing_is_done_when_the_desired_state_is_reached() {
    let mut world = World::default();
    world.put(set(1));
    world.put(owned(ready(bare_pod("a"), 0)));
    let first = world.run(&ReplicaSets::default(), KEY, at(1));
    assert_eq!(lines(&first), ["update replicasets/status default/web"]);
    world.take_updates(&first);
    assert_eq!(lines(&world.run(&ReplicaSets::default(), KEY, at(1))), [""; 0]);
}

#[test]
fn a_set_that_is_being_deleted_neither_creates_nor_deletes_nor_adopts() {
    let mut world = World::default();
    let mut set = set(3);
    set.metadata.deletion_timestamp = Some(seconds(at(0)));
    world.put(set);
    world.put(bare_pod("orphan"));
    assert_eq!(
        lines(&world.run(&ReplicaSets::default(), KEY, at(1))),
        ["update replicasets/status default/web"]
    );
}

#[test]
fn an_orphan_is_adopted_only_after_a_live_read_of_its_owner() {
    let mut world = World::default();
    world.put(set(1));
    world.put(bare_pod("orphan"));
    world.put(finished(bare_pod("old")));
    let actions = world.run(&ReplicaSets::default(), KEY, at(1));
    assert_eq!(
        lines(&actions),
        [
            "require replicasets default/web",
            "update pods default/orphan",
            "update replicasets/status default/web"
        ]
    );
    let pod = updated::<Pod>(&actions, "").unwrap();
    assert_eq!(
        pod.metadata.owner_references,
        owned(bare_pod("x")).metadata.owner_references
    );
    assert_eq!(pod.metadata.resource_version.as_deref(), Some("1"));
}

#[test]
fn a_pod_that_no_longer_matches_is_released_and_replaced() {
    let mut world = World::default();
    world.put(set(1));
    let mut pod = owned(bare_pod("a"));
    pod.metadata.labels = Some(labels(&[("app", "debug")]));
    world.put(pod);
    let actions = world.run(&ReplicaSets::default(), KEY, at(1));
    assert_eq!(
        lines(&actions)[..2],
        ["update pods default/a", "create 1 pods default/web-*"]
    );
    let released = updated::<Pod>(&actions, "").unwrap();
    assert_eq!(released.metadata.owner_references, None);
}

#[test]
fn surplus_pods_are_deleted_in_their_order() {
    let restarted = |mut pod: Pod, n| {
        pod.status.get_or_insert_default().container_statuses = Some(vec![ContainerStatus {
            restart_count: n,
            ..ContainerStatus::default()
        }]);
        pod
    };
    let on = |mut pod: Pod, node: &str| {
        pod.spec.get_or_insert_default().node_name = (!node.is_empty()).then(|| node.to_string());
        pod
    };
    let phase = |mut pod: Pod, phase: &str| {
        pod.status.get_or_insert_default().phase = Some(phase.into());
        pod
    };
    let cost = |mut pod: Pod, cost: &str| {
        let key = "controller.kubernetes.io/pod-deletion-cost";
        pod.metadata.annotations = Some(labels(&[(key, cost)]));
        pod
    };
    let created = |mut pod: Pod, when| {
        pod.metadata.creation_timestamp = Some(seconds(at(when)));
        pod
    };
    let p = |name: &str| owned(bare_pod(name));
    // (why, deleted first, deleted later)
    let table = [
        ("unbound", on(p("z"), ""), p("a")),
        ("pending", phase(p("z"), "Pending"), p("a")),
        ("unknown", phase(p("z"), "Unknown"), p("a")),
        ("not ready", p("z"), ready(p("a"), 0)),
        ("cheaper", cost(p("z"), "-5"), p("a")),
        ("ready for less time", ready(p("z"), 900), ready(p("a"), 10)),
        ("restarted more", restarted(p("z"), 4), p("a")),
        ("newer", created(p("z"), 990), created(p("a"), 1)),
        ("the same magnitude: by uid", ready(p("a"), 11), ready(p("z"), 10)),
    ];
    for (why, first, second) in table {
        let mut world = World::default();
        world.put(set(1));
        let name = first.metadata.name.clone().unwrap();
        world.put(first);
        world.put(second);
        let actions = world.run(&ReplicaSets::default(), KEY, at(1000));
        // Of a set that was scaled up since, it must not be deleted.
        let Some(Action::Require(LiveCheck::Generation { uid, generation, .. })) = actions.first() else {
            panic!("the set is read first: {:?}", lines(&actions))
        };
        assert_eq!(
            (uid.as_str(), *generation),
            ("uid-web", set(1).metadata.generation)
        );
        assert_eq!(lines(&actions)[1], format!("delete pods default/{name}"), "{why}");
    }
    // Two on one node: one of them is deleted, though the third is younger.
    let mut world = World::default();
    world.put(set(2));
    world.put(created(on(p("b1"), "n1"), 1));
    world.put(created(on(p("b2"), "n1"), 2));
    world.put(created(on(p("c"), "n2"), 999));
    let actions = world.run(&ReplicaSets::default(), KEY, at(1000));
    assert!(
        lines(&actions)[1].starts_with("delete pods default/b"),
        "{:?}",
        lines(&actions)
    );
}

#[test]
fn a_failed_create_sets_a_condition_that_is_removed_with_success() {
    let mut world = World::default();
    world.put(set(2));
    let failure = Failure {
        verb: Verb::Create,
        kind: registry::POD.clone(),
        name: "web-".into(),
        error: Error::forbidden(registry::POD.resource_ref("web-x"), "exceeded quota"),
    };
    let actions = world.run_after(&ReplicaSets::default(), KEY, at(5), Some(&failure));
    assert_eq!(lines(&actions), ["update replicasets/status default/web"]);
    let conditions = updated::<ReplicaSet>(&actions, "status")
        .unwrap()
        .status
        .unwrap()
        .conditions
        .unwrap();
    assert_eq!(conditions.len(), 1);
    assert_eq!(conditions[0].type_, "ReplicaFailure");
    assert_eq!(conditions[0].reason.as_deref(), Some("FailedCreate"));
    assert_eq!(
        conditions[0].message.as_deref(),
        Some("pods \"web-x\" is forbidden: exceeded quota")
    );
    world.take_updates(&actions);
    let again = world.run_after(&ReplicaSets::default(), KEY, at(9), Some(&failure));
    assert_eq!(lines(&again), [""; 0], "the condition does not change");
    let actions = world.run(&ReplicaSets::default(), KEY, at(10));
    let status = updated::<ReplicaSet>(&actions, "status").unwrap().status.unwrap();
    assert_eq!(status.conditions, None);
}

#[test]
fn min_ready_seconds_delays_availability_and_requeues_the_set() {
    let mut world = World::default();
    let mut set = set(1);
    set.spec.as_mut().unwrap().min_ready_seconds = Some(10);
    world.put(set);
    world.put(owned(ready(bare_pod("a"), 0)));
    let actions = world.run(&ReplicaSets::default(), KEY, at(4));
    let status = updated::<ReplicaSet>(&actions, "status").unwrap().status.unwrap();
    assert_eq!(
        (status.ready_replicas, status.available_replicas),
        (Some(1), None)
    );
    assert_eq!(lines(&actions)[1], "requeue after 6s");
    let actions = world.run(&ReplicaSets::default(), KEY, at(10));
    let status = updated::<ReplicaSet>(&actions, "status").unwrap().status.unwrap();
    assert_eq!(status.available_replicas, Some(1));
}
