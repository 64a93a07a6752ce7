//! The decision about a surge-first eviction, as tables.

use knarr_api::kinds::pod::AT_MOST_ONE;
use knarr_api::kinds::pod::surge_first::record_eviction_request;
use knarr_apimachinery::time::seconds;
use serde_json::{Value, json};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn set(replicas: i32) -> ReplicaSet {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "uid": "set"},
        "spec": {"replicas": replicas, "selector": {}},
    }))
    .unwrap()
}

/// A pod created at a second, with its conditions as they are printed.
fn pod(name: &str, created: i64, conditions: &[(&str, &str)]) -> Pod {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(type_, status)| json!({"type": type_, "status": status}))
        .collect();
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "uid": name, "annotations": {EVICTION: SURGE_FIRST}},
        "status": {"phase": "Running", "conditions": conditions},
    }))
    .unwrap();
    pod.metadata.creation_timestamp = Some(seconds(at(created)));
    pod
}

fn ready(name: &str, created: i64) -> Pod {
    pod(name, created, &[("PodScheduled", "True"), ("Ready", "True")])
}

fn starting(name: &str, created: i64) -> Pod {
    pod(name, created, &[("PodScheduled", "True"), ("Ready", "False")])
}

fn requested(mut pod: Pod, second: i64) -> Pod {
    record_eviction_request(&mut pod, at(second));
    pod
}

fn terminating(mut pod: Pod) -> Pod {
    pod.metadata.deletion_timestamp = Some(seconds(at(0)));
    pod
}

/// The decision about the first of these pods, as it is answered.
fn decided(set: &ReplicaSet, pods: &[Pod], now: i64) -> String {
    let pods: Vec<&Pod> = pods.iter().collect();
    let decision = decide(&Known {
        pod: pods[0],
        set,
        pods: &pods,
        unserved: &|pod: &Pod| {
            let is_behind = pod.metadata.name.as_deref() == Some("unserved");
            is_behind.then(|| "Service web does not have it".to_string())
        },
        now: at(now),
    });
    match decision {
        Decision::Proceed => "proceed".into(),
        Decision::Record(wait) => format!("record: {wait}"),
        Decision::Wait(wait) => format!("wait: {wait}"),
    }
}

#[test]
fn b6_an_eviction_waits_until_a_single_replica_is_replaced() {
    let a = || requested(ready("a", -100), 0);
    for (what, pods, now, expected) in [
        (
            "the first request",
            vec![ready("a", -100)],
            0,
            "record: a replacement was requested from ReplicaSet web (0 of 1 Ready)",
        ),
        (
            "not created",
            vec![a()],
            5,
            "wait: ReplicaSet web has not created the replacement yet (0 of 1 Ready)",
        ),
        (
            "not Ready",
            vec![a(), starting("b", 1)],
            5,
            "wait: replacement b is not Ready yet (0 of 1 Ready)",
        ),
        (
            "not served",
            vec![a(), ready("unserved", 1)],
            5,
            "wait: replacement unserved is Ready but not an endpoint yet: Service web does not have it (0 of 1 Ready)",
        ),
        ("Ready", vec![a(), ready("b", 1)], 5, "proceed"),
        (
            "terminating",
            vec![a(), terminating(ready("b", 1))],
            5,
            "wait: ReplicaSet web has not created the replacement yet (0 of 1 Ready)",
        ),
        (
            "evicted itself",
            vec![
                a(),
                pod("b", 1, &[("Ready", "True"), ("DisruptionTarget", "True")]),
            ],
            5,
            "wait: ReplicaSet web has not created the replacement yet (0 of 1 Ready)",
        ),
        (
            "not Ready until the window's end",
            vec![a(), starting("b", 1)],
            600,
            "proceed",
        ),
        (
            "and requested again later",
            vec![a()],
            1200,
            "record: a replacement was requested from ReplicaSet web (0 of 1 Ready)",
        ),
    ] {
        assert_eq!(decided(&set(1), &pods, now), expected, "{what}");
    }
}

#[test]
fn b6_a_pod_whose_granted_eviction_failed_is_evicted_again() {
    let evicted = pod("a", -100, &[("Ready", "True"), ("DisruptionTarget", "True")]);
    let pods = [requested(evicted, 0), ready("b", 1)];
    assert_eq!(decided(&set(1), &pods, 5), "proceed");
}

#[test]
fn b6_the_reason_names_what_keeps_the_replacement() {
    let a = || requested(ready("a", -100), 0);
    let mut unscheduled = pod("b", 1, &[("PodScheduled", "False")]);
    let conditions = unscheduled.status.as_mut().unwrap().conditions.as_mut().unwrap();
    conditions[0].message = Some("0/2 nodes are available: 2 node(s) were unschedulable.".into());
    assert_eq!(
        decided(&set(1), &[a(), unscheduled], 5),
        "wait: replacement b is not scheduled: 0/2 nodes are available: 2 node(s) were unschedulable. (0 of 1 Ready)"
    );
    let mut failing = set(1);
    failing.status = serde_json::from_value(json!({"replicas": 1, "conditions": [
        {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"},
    ]}))
    .unwrap();
    assert_eq!(
        decided(&failing, &[a()], 5),
        "wait: ReplicaSet web has not created the replacement yet: exceeded quota (0 of 1 Ready)"
    );
    // A pod that was not Ready before is no replacement.
    assert_eq!(
        decided(&set(2), &[a(), starting("old", -50)], 5),
        "wait: pod old is not Ready yet (0 of 2 Ready)"
    );
}

#[test]
fn b6_a_replacement_counts_after_min_ready_seconds() {
    let mut set = set(1);
    set.spec.as_mut().unwrap().min_ready_seconds = Some(10);
    let mut replacement = ready("b", 1);
    let conditions = replacement.status.as_mut().unwrap().conditions.as_mut().unwrap();
    conditions[1].last_transition_time = Some(seconds(at(20)));
    let pods = [requested(ready("a", -100), 0), replacement];
    assert_eq!(
        decided(&set, &pods, 29),
        "wait: replacement b has been Ready for 9 s of 10 (minReadySeconds) (0 of 1 Ready)"
    );
    assert_eq!(decided(&set, &pods, 30), "proceed");
}

#[test]
fn b6_of_two_evictions_neither_counts_the_pod_of_the_other() {
    // Of eight pods two may be replaced at once.
    let others = |n: usize| (0..n).map(|i| ready(&format!("other-{i}"), -100));
    let a = requested(ready("a", -100), 0);
    let b = requested(ready("b", -100), 1);
    let one = starting("new-2", 3);
    for (first, second) in [(&a, &b), (&b, &a)] {
        let mut pods = vec![first.clone(), second.clone(), ready("new-1", 2), one.clone()];
        pods.extend(others(6));
        assert_eq!(
            decided(&set(8), &pods, 5),
            "wait: replacement new-2 is not Ready yet (7 of 8 Ready)"
        );
        pods[3] = ready("new-2", 3);
        assert_eq!(decided(&set(8), &pods, 5), "proceed");
    }
}

#[test]
fn b6_no_more_than_a_quarter_of_the_pods_is_replaced_at_once() {
    let a = || requested(ready("a", -100), 0);
    let full = "ReplicaSet web replaces 1 of its pods at the same time at most, and 1 are being replaced";
    for (what, first, expected) in [
        (
            "a further request is not recorded",
            ready("b", -100),
            format!("wait: {full}"),
        ),
        (
            "the older request is first",
            requested(ready("b", -100), 1),
            format!("wait: {full}"),
        ),
        (
            "the oldest is granted",
            requested(ready("b", -100), -1),
            "proceed".to_string(),
        ),
    ] {
        let pods = [first, a(), ready("c", 1), ready("d", -100)];
        assert_eq!(decided(&set(2), &pods, 5), expected, "{what}");
    }
    // When the older one is evicted or given up, the next is replaced.
    let record = "record: a replacement was requested from ReplicaSet web (1 of 2 Ready)";
    let evicted = [ready("b", -100), terminating(a()), ready("c", 1)];
    assert_eq!(decided(&set(2), &evicted, 5), record);
    let given_up = [ready("b", -100), a()];
    assert_eq!(decided(&set(2), &given_up, 659), format!("wait: {full}"));
    assert_eq!(decided(&set(2), &given_up, 660), record);
}

#[test]
fn b6_a_set_that_creates_no_pods_replaces_none() {
    let pods = [ready("a", -100)];
    assert_eq!(decided(&set(0), &pods, 5), "proceed");
    let mut deleted = set(1);
    deleted.metadata.deletion_timestamp = Some(seconds(at(0)));
    assert_eq!(decided(&deleted, &pods, 5), "proceed");
}

#[test]
fn b6_only_pods_of_replica_sets_with_the_annotation_are_replaced_first() {
    let owner = |kind: &str, api: &str| json!([{"apiVersion": api, "kind": kind, "name": "o", "uid": "u", "controller": true}]);
    let surge = json!({EVICTION: SURGE_FIRST});
    for (annotations, owners, expected) in [
        (json!({}), owner("ReplicaSet", "apps/v1"), "no"),
        (surge.clone(), owner("ReplicaSet", "apps/v1"), "by o"),
        (
            json!({EVICTION: "surge"}),
            owner("ReplicaSet", "apps/v1"),
            "metadata.annotations[knarr.io/eviction] of pod \"p\" is \"surge\", expected \"SurgeFirst\": it is evicted without a \
             replacement",
        ),
        (
            json!({EVICTION: SURGE_FIRST, AT_MOST_ONE: "true"}),
            owner("ReplicaSet", "apps/v1"),
            "knarr.io/eviction: SurgeFirst has no effect on pod \"p\", which must never run twice",
        ),
        (
            surge.clone(),
            owner("StatefulSet", "apps/v1"),
            "knarr.io/eviction: SurgeFirst has no effect on pod \"p\", which must never run twice",
        ),
        (
            surge.clone(),
            owner("DaemonSet", "apps/v1"),
            "knarr.io/eviction: SurgeFirst has no effect on pod \"p\": only a ReplicaSet creates a replacement first, and its \
             controller is the DaemonSet \"o\"",
        ),
        (
            surge.clone(),
            owner("ReplicaSet", "other.example/v1"),
            "knarr.io/eviction: SurgeFirst has no effect on pod \"p\": only a ReplicaSet creates a replacement first, and its \
             controller is the ReplicaSet \"o\"",
        ),
        (
            surge,
            Value::Null,
            "knarr.io/eviction: SurgeFirst has no effect on pod \"p\", which has no controller",
        ),
    ] {
        let pod = json!({"metadata": {"name": "p", "annotations": annotations, "ownerReferences": owners}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let found = match opt_in(&pod) {
            OptIn::No => "no".to_string(),
            OptIn::NotSupported(warning) => warning,
            OptIn::By(owner) => format!("by {}", owner.name),
        };
        assert_eq!(found, expected, "{annotations} {owners}");
    }
}
