//! Which pod is next, and which events requeue a pod that was unschedulable.

use super::*;
use crate::plugins::node_resources_fit;
use crate::queue::QueueingHint;

/// How many pods the event has added to the queue.
fn added(scheduler: &Scheduler, event: &'static str, queue: &'static str) -> u64 {
    let pods = scheduler.incoming_pods().get(&(event, queue));
    pods.copied().unwrap_or(0)
}

#[test]
fn p3_higher_priority_first_then_age_and_none_blocks_those_behind() {
    let mut scheduler = cluster(&[node("n", json!({}))]);
    let with = |name: &str, priority: i32, cpu: &str| {
        let mut pod = serde_json::to_value(&*asking(name, cpu, "1Mi")).unwrap();
        pod["spec"]["priority"] = priority.into();
        shared::<Pod>(pod)
    };
    for p in [
        with("old", 0, "1"),
        with("new", 0, "1"),
        with("high", 10, "1"),
        with("huge", 99, "64"),
    ] {
        scheduler.pod_changed(None, Some(&p), at(0));
    }
    let steps: Vec<String> = (0..5).map(|_| step(&mut scheduler, 0)).collect();
    assert_eq!(steps[0], "huge: 0/1 nodes are available: 1 Insufficient cpu.");
    assert_eq!(steps[1..], ["high -> n", "old -> n", "new -> n", "nothing"]);
}

#[test]
fn p3_an_event_that_may_help_requeues_a_pod_after_its_backoff_and_others_do_not() {
    let small = || json!({"status": {"allocatable": {"cpu": "1"}}});
    let mut scheduler = cluster(&[node("n", small())]);
    scheduler.pod_changed(None, Some(&asking("p", "2", "1Mi")), at(0));
    assert!(step(&mut scheduler, 0).starts_with("p: "));
    // A heartbeat, a node that does not help, a pod's status: not requeued.
    scheduler.node_changed("n", Some(node("n", small())), at(20));
    scheduler.node_changed("m", Some(node("m", small())), at(20));
    scheduler.pod_changed(
        Some(&asking("p", "2", "1Mi")),
        Some(&asking("p", "2", "1Mi")),
        at(20),
    );
    assert_eq!(step(&mut scheduler, 20), "nothing");
    scheduler.node_changed("big", Some(node("big", json!({}))), at(20));
    assert_eq!(step(&mut scheduler, 20), "p -> big");
    assert_eq!(added(&scheduler, "NodeAdd", "active"), 1);

    // Not before the backoff of the first attempt has ended.
    scheduler.pod_changed(None, Some(&asking("q", "3", "1Mi")), at(100));
    assert!(step(&mut scheduler, 100).starts_with("q: "));
    scheduler.pod_changed(Some(&asking("p", "2", "1Mi")), None, at(100));
    assert_eq!(step(&mut scheduler, 100), "nothing");
    assert_eq!(scheduler.next_due(), Some(at(101)));
    assert_eq!(step(&mut scheduler, 101), "q -> big");
    assert_eq!(added(&scheduler, "AssignedPodDelete", "backoff"), 1);
    assert_eq!(added(&scheduler, "BackoffComplete", "active"), 1);
}

#[test]
fn p3_the_event_of_a_node_is_the_property_that_matters_to_the_plugin() {
    let small = json!({"cpu": "1", "memory": "8Gi", "pods": "10"});
    let taints = json!([{"key": "gpu", "effect": "NoSchedule"}]);
    // (pod, node before, node after, event)
    let table = [
        (
            asking("p", "2", "1Mi"),
            json!({"status": {"allocatable": small}}),
            json!({"metadata": {"labels": {"zone": "a"}}}),
            "NodeUpdateNodeAllocatable",
        ),
        (
            pod("p", json!({"nodeSelector": {"zone": "a"}})),
            json!({"status": {"allocatable": small}}),
            json!({"metadata": {"labels": {"zone": "a"}}}),
            "NodeUpdateNodeLabel",
        ),
        (
            pod("p", json!({})),
            json!({"spec": {"taints": taints}}),
            json!({"metadata": {"annotations": {"a": "b"}}}),
            "NodeUpdateNodeTaint",
        ),
        (
            pod("p", json!({})),
            json!({"spec": {"unschedulable": true}}),
            json!({}),
            "NodeUpdateNodeTaint",
        ),
    ];
    for (p, before, after, event) in table {
        let mut scheduler = cluster(&[node("n", before)]);
        scheduler.pod_changed(None, Some(&p), at(0));
        assert!(step(&mut scheduler, 0).starts_with("p: "), "{event}");
        scheduler.node_changed("n", Some(node("n", after)), at(20));
        assert_eq!(added(&scheduler, event, "active"), 1, "{event}");
        assert_eq!(step(&mut scheduler, 20), "p -> n");
    }
}

#[test]
fn p3_the_event_of_a_pod_is_the_property_that_has_changed() {
    let before = asking("p", "6", "1Mi");
    let with = |change: Value| {
        let mut pod = serde_json::to_value(&*before).unwrap();
        overlay(&mut pod, change);
        shared::<Pod>(pod)
    };
    let labels = json!({"metadata": {"labels": {"app": "x"}}});
    let tolerations = json!({"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}});
    let claims = json!([{"name": "a", "resourceClaimName": "p-a"}]);
    for (after, event) in [
        (with(labels), "UnschedulablePodUpdatePodLabel"),
        (asking("p", "5", "1Mi"), "UnschedulablePodUpdatePodScaleDown"),
        (with(tolerations), "UnschedulablePodUpdatePodToleration"),
        (
            with(json!({"spec": {"priority": 5}, "status": {"resourceClaimStatuses": claims}})),
            "UnschedulablePodUpdatePodGeneratedResourceClaim",
        ),
        (with(json!({"spec": {"priority": 5}})), "UnschedulablePodUpdate"),
    ] {
        let mut scheduler = cluster(&[node("n", json!({}))]);
        scheduler.pod_changed(None, Some(&before), at(0));
        assert!(step(&mut scheduler, 0).starts_with("p: "), "{event}");
        scheduler.pod_changed(Some(&before), Some(&after), at(20));
        assert_eq!(added(&scheduler, event, "active"), 1, "{event}");
    }
}

#[test]
fn p3_an_assigned_pod_whose_labels_change_requeues_a_pod_that_avoids_it() {
    let labelled = |app: &str| {
        shared::<Pod>(json!({
            "metadata": {"name": "a", "namespace": "default", "uid": "a", "labels": {"app": app}},
            "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
        }))
    };
    let avoided =
        json!([{"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}]);
    let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": avoided}});
    let mut scheduler = cluster(&[node("n", json!({}))]);
    scheduler.pod_changed(None, Some(&labelled("x")), at(0));
    scheduler.pod_changed(None, Some(&pod("p", json!({ "affinity": affinity }))), at(0));
    assert!(step(&mut scheduler, 0).starts_with("p: "));
    scheduler.pod_changed(Some(&labelled("x")), Some(&labelled("y")), at(20));
    assert_eq!(added(&scheduler, "AssignedPodUpdatePodLabel", "active"), 1);
    assert_eq!(step(&mut scheduler, 20), "p -> n");
}

#[test]
fn p4_a_nominated_pod_skips_its_backoff_unless_other_pods_are_due() {
    let with = |name: &str, priority: i32, node: &str| {
        let mut pod = serde_json::to_value(&*asking(name, "3", "1Mi")).unwrap();
        pod["spec"]["priority"] = priority.into();
        pod["spec"]["nodeName"] = node.into();
        shared::<Pod>(pod)
    };
    // Its victim may be deleted before or after the scheduler learns that it was evicted.
    for deleted_first in [false, true] {
        let mut scheduler = cluster(&[node("n", json!({}))]);
        let (low, high) = (with("low", 0, "n"), with("high", 10, ""));
        scheduler.pod_changed(None, Some(&low), at(0));
        scheduler.pod_changed(None, Some(&high), at(0));
        let Some(Action::Preempt { pod, .. }) = scheduler.schedule_one(at(0)) else {
            panic!("low is in the way")
        };
        if deleted_first {
            scheduler.pod_changed(Some(&low), None, at(0));
            assert_eq!(step(&mut scheduler, 0), "nothing");
        }
        scheduler.preempted(&pod, false, at(0));
        if !deleted_first {
            assert_eq!(step(&mut scheduler, 0), "nothing");
            scheduler.pod_changed(Some(&low), None, at(0));
        }
        scheduler.pod_changed(None, Some(&asking("other", "64", "1Mi")), at(0));
        assert!(step(&mut scheduler, 0).starts_with("other: "));
        assert_eq!(
            step(&mut scheduler, 0),
            "high -> n",
            "deleted first: {deleted_first}"
        );
        assert_eq!(step(&mut scheduler, 0), "nothing");
        // Also if the victim was deleted first it was not popped before.
        assert_eq!(added(&scheduler, "PopFromBackoffQ", "active"), 1);
    }
}

#[test]
fn p4_a_pod_whose_victims_are_being_evicted_is_requeued_once_for_all_events_of_pods() {
    let with = |name: &str, priority: i32, cpu: &str, node: &str| {
        let mut pod = serde_json::to_value(&*asking(name, cpu, "1Mi")).unwrap();
        pod["spec"]["priority"] = priority.into();
        pod["spec"]["nodeName"] = node.into();
        shared::<Pod>(pod)
    };
    let lows = ["low-1", "low-2", "low-3"].map(|name| with(name, 0, "1", "n"));
    let rest = with("rest", 100, "1", "n");
    let elsewhere = with("elsewhere", 100, "2", "m");
    let small = json!({"status": {"allocatable": {"cpu": "2"}}});
    // (deleted meanwhile, whether an eviction failed, the next attempt, how often it was requeued)
    let table: [(&[&Shared<Pod>], bool, &str, u64); 5] = [
        (&[], false, "nothing", 0),
        (&[], true, "high preempts ", 1),
        (&[&lows[0], &lows[1], &lows[2]], false, "high -> n", 1),
        (&[&lows[0], &lows[1], &lows[2]], true, "high -> n", 1),
        (&[&elsewhere], false, "high preempts ", 1),
    ];
    for (at_case, (deleted, failed, next, requeued)) in table.into_iter().enumerate() {
        let mut scheduler = cluster(&[node("n", json!({})), node("m", small.clone())]);
        for pod in lows.iter().chain([&rest, &elsewhere]) {
            scheduler.pod_changed(None, Some(pod), at(0));
        }
        scheduler.pod_changed(None, Some(&with("high", 10, "3", "")), at(0));
        let Some(Action::Preempt { pod, .. }) = scheduler.schedule_one(at(0)) else {
            panic!("case {at_case}: the pods of low priority are in the way")
        };
        for gone in deleted.iter().copied() {
            scheduler.pod_changed(Some(gone), None, at(0));
            assert_eq!(step(&mut scheduler, 0), "nothing", "case {at_case}");
        }
        // It waits in unschedulablePods all the time.
        assert_eq!(scheduler.queue_lengths().unschedulable, 1, "case {at_case}");
        scheduler.preempted(&pod, failed, at(0));
        let found = step(&mut scheduler, i64::from(failed));
        assert!(found.starts_with(next), "case {at_case}: {found}");
        let deletions = added(&scheduler, "AssignedPodDelete", "backoff");
        let activations = added(&scheduler, "ForceActivate", "backoff");
        assert_eq!(deletions + activations, requeued, "case {at_case}");
    }
}

#[test]
fn p4_no_event_is_compared_with_a_pod_that_is_requeued_later_in_any_case() {
    let pod = Arc::new(cluster(&[]).info(&asking("p", "1", "1Mi")));
    let key = pod.key();
    // (the hint, how often it is asked for two events, how often for two more after the pod was returned once more)
    for (hint, asked, asked_again) in [
        (QueueingHint::Skip, 2, 2),
        (QueueingHint::Queue, 1, 1),
        (QueueingHint::Defer, 1, 1),
    ] {
        let mut queue = SchedulingQueue::default();
        queue.put(pod.clone(), None, at(0));
        for (round, asked) in [(0, asked), (100, asked_again)] {
            assert!(queue.pop(at(round)).is_some(), "{hint:?}");
            let plugins = [node_resources_fit::NAME].into_iter().collect();
            queue.add_unschedulable(&key, plugins, at(round));
            let mut found = 0;
            for _ in 0..2 {
                let count = |_: &'static str, _: &PodInfo| {
                    found += 1;
                    hint
                };
                queue.requeue_by_hint(|_| event::ASSIGNED_POD_DELETE, at(round + 50), count);
            }
            assert_eq!(found, asked, "{hint:?}");
            let waits = hint != QueueingHint::Queue;
            assert_eq!(queue.lengths().unschedulable, usize::from(waits), "{hint:?}");
            let by_plugin: Vec<_> = queue.unschedulable_pods().map(|(plugin, _)| plugin).collect();
            let expected = waits.then_some(node_resources_fit::NAME);
            assert_eq!(by_plugin, Vec::from_iter(expected), "{hint:?}");
            queue.requeue_pod(&key, event::ASSIGNED_POD_DELETE, at(round + 50));
            assert_eq!(queue.lengths().active, 1, "{hint:?}");
        }
    }
}

#[test]
fn p3_an_unschedulable_pod_is_flushed_after_five_minutes() {
    let mut scheduler = cluster(&[node("n", json!({"status": {"allocatable": {"cpu": "1"}}}))]);
    scheduler.pod_changed(None, Some(&asking("p", "2", "1Mi")), at(0));
    assert!(step(&mut scheduler, 0).starts_with("p: "));
    assert_eq!(step(&mut scheduler, 299), "nothing");
    assert!(step(&mut scheduler, 300).starts_with("p: "));
}

#[test]
fn pods_of_other_schedulers_gated_and_terminating_pods_are_not_scheduled() {
    let mut scheduler = cluster(&[node("n", json!({}))]);
    let deleted = shared(json!({
        "metadata": {"name": "d", "namespace": "default", "uid": "d", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": []},
    }));
    for p in [
        pod("other", json!({"schedulerName": "mine"})),
        pod("gated", json!({"schedulingGates": [{"name": "wait"}]})),
        deleted,
    ] {
        scheduler.pod_changed(None, Some(&p), at(0));
    }
    assert_eq!(step(&mut scheduler, 0), "nothing");
    assert_eq!(added(&scheduler, "UnschedulablePodAdd", "unschedulable"), 1);
    scheduler.pod_changed(
        Some(&pod("gated", json!({"schedulingGates": [{"name": "wait"}]}))),
        Some(&pod("gated", json!({}))),
        at(1),
    );
    assert_eq!(step(&mut scheduler, 1), "gated -> n");
    let event = "UnschedulablePodUpdatePodSchedulingGatesEliminated";
    assert_eq!(added(&scheduler, event, "active"), 1);
}
