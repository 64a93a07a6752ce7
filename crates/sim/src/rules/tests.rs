//! What no fault or mutant at the seams can bring about (the API server itself would reject it) is passed to the
//! rules directly.

#![allow(clippy::unwrap_used)]

mod placement;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use serde_json::json;

use super::ALL;
use crate::world::{
    Disk, DiskUser, Holder, Kubelet, Life, Observation, Process, Switch, WITHOUT_LEASE, World,
};

fn broken(seen: &Observation<'_>, world: &World) -> Vec<&'static str> {
    let failed = ALL.iter().filter(|(_, check)| check(seen, world).is_err());
    failed.map(|(rule, _)| *rule).collect()
}

fn pod(phase: &str, node: &str, deadline: Option<(&str, i64)>) -> Pod {
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "default", "uid": "u"},
        "spec": {"nodeName": node, "containers": [{"name": "c"}], "initContainers": [{"name": "i"}]},
        "status": {"phase": phase},
    }))
    .unwrap();
    if let Some((at, grace)) = deadline {
        pod.metadata.deletion_timestamp = serde_json::from_value(json!(at)).unwrap();
        pod.metadata.deletion_grace_period_seconds = Some(grace);
    }
    pod
}

fn life(pod: Pod) -> Life {
    Life::new(Arc::new(pod), Timestamp::UNIX_EPOCH)
}

/// The pod with the reason of its disruption, which the API server or the scheduler has written.
fn disrupted(mut pod: Pod, reason: &str) -> Pod {
    let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": reason});
    let status = pod.status.get_or_insert_default();
    let conditions = status.conditions.get_or_insert_default();
    conditions.push(serde_json::from_value(condition).unwrap());
    pod
}

fn written<'a>(before: &'a Pod, after: &'a Pod) -> Observation<'a> {
    Observation::PodWritten {
        uid: "u",
        before: Some(before),
        after,
    }
}

#[test]
fn l1_l2_t1_backward_transitions_are_seen() {
    let early = Some(("2026-01-01T00:00:10Z", 10));
    let late = Some(("2026-01-01T00:00:20Z", 20));
    for (before, after, expect) in [
        (pod("Running", "n1", None), pod("Running", "n1", None), vec![]),
        (pod("Pending", "", None), pod("Pending", "n1", None), vec![]),
        (pod("Running", "n1", None), pod("Pending", "n1", None), vec!["L1"]),
        (pod("Failed", "n1", None), pod("Running", "n1", None), vec!["L1"]),
        (
            pod("Succeeded", "n1", None),
            pod("Failed", "n1", None),
            vec!["L1"],
        ),
        (pod("Running", "n1", None), pod("Running", "n2", None), vec!["L2"]),
        (pod("Running", "n1", late), pod("Running", "n1", early), vec![]),
        (
            pod("Running", "n1", early),
            pod("Running", "n1", late),
            vec!["T1"],
        ),
        (
            pod("Running", "n1", early),
            pod("Running", "n1", None),
            vec!["T1"],
        ),
    ] {
        let seen = Observation::PodWritten {
            uid: "u",
            before: Some(&before),
            after: &after,
        };
        assert_eq!(broken(&seen, &World::default()), expect, "{before:?} → {after:?}");
    }
    let last = pod("Running", "n1", None);
    let seen = Observation::PodRemoved {
        uid: "u",
        last: &last,
    };
    assert_eq!(broken(&seen, &World::default()), ["T1"], "unmarked");
}

#[test]
fn t5_what_runs_when_its_pod_has_ended_is_seen_unless_it_may_run_twice_on_a_fenced_node_that_came_back() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let tainted = |value: &str| -> Node {
        let taint =
            json!({"key": "node.kubernetes.io/out-of-service", "value": value, "effect": "NoExecute"});
        serde_json::from_value(json!({"metadata": {"name": "n1"}, "spec": {"taints": [taint]}})).unwrap()
    };
    let end = Some(("2026-01-01T00:00:10Z", 10));
    let (running, failed) = (pod("Running", "n1", end), pod("Failed", "n1", end));
    let on_again = Switch {
        off: false,
        last_off: Some(at(90)),
    };
    let usual = (Some("fenced"), None, Some(on_again), Some(100), None, false);
    let never_off = Switch::default();
    // the taint's value, when it was removed, the host's switch, when the pod was deleted, its annotation, whether it has a
    // disk open -> whether that is seen
    for ((taint, unfenced, switch, deleted, at_most_one, disk), expect) in [
        (usual, false),
        // PodGC's request is late.
        ((None, Some(110), Some(on_again), Some(100), None, false), false),
        ((None, Some(95), Some(on_again), Some(100), None, false), true),
        ((None, None, Some(on_again), Some(100), None, false), true),
        ((Some("fenced"), None, Some(on_again), None, None, false), true),
        (
            (Some("fenced"), None, Some(never_off), Some(100), None, false),
            true,
        ),
        ((Some("fenced"), None, None, Some(100), None, false), true),
        // Its kubelet reports Ready, and writes to the pod, before it starts it.
        (
            (
                Some("fenced"),
                None,
                Some(on_again),
                Some(100),
                Some("true"),
                false,
            ),
            true,
        ),
        (
            (Some("fenced"), None, Some(on_again), Some(100), None, true),
            true,
        ),
        (
            (
                Some("fenced"),
                None,
                Some(on_again),
                Some(100),
                Some("false"),
                true,
            ),
            false,
        ),
    ] {
        let mut failed = failed.clone();
        let annotation =
            at_most_one.map(|value: &str| ("knarr.io/at-most-one".to_string(), value.to_string()));
        failed.metadata.annotations = Some(annotation.into_iter().collect());
        let mut world = World::default();
        let node = taint.map(|value| ("n1".to_string(), tainted(value)));
        world.nodes.extend(node);
        let removal = unfenced.map(|second| ("n1".to_string(), at(second)));
        world.unfenced.extend(removal);
        world
            .switches
            .extend(switch.map(|switch| ("n1".to_string(), switch)));
        let life = Life {
            deleted_at: deleted.map(at),
            ..life(failed.clone())
        };
        world.pods.insert("u".into(), life);
        let process = Process::example("c");
        world.processes.insert(("n1".into(), "1".into()), process);
        if disk {
            let holder = Holder {
                node: "n1".into(),
                uid: "u".into(),
                by: DiskUser::Process("1".into()),
            };
            let open = BTreeMap::from([(holder, at(100))]);
            world.disks.insert("d".into(), Disk { one_pod: false, open });
        }
        let removed = Observation::PodRemoved {
            uid: "u",
            last: &failed,
        };
        for seen in [written(&running, &failed), removed] {
            let expect: &[&str] = if expect { &["T5"] } else { &[] };
            assert_eq!(
                broken(&seen, &world),
                expect,
                "{taint:?} {unfenced:?} {deleted:?} {at_most_one:?} {disk}"
            );
        }
    }
}

#[test]
fn s3_what_starts_out_of_turn_is_seen() {
    let process = |node: &str, container: &str| Process {
        node: node.into(),
        ..Process::example(container)
    };
    for (started, done, removed, expect) in [
        (process("n1", "i"), false, false, vec![]),
        (process("n1", "c"), true, false, vec![]),
        (process("n1", "c"), false, false, vec!["S3"]),
        (process("n2", "i"), false, false, vec!["S3"]),
        (process("n1", "c"), true, true, vec!["S3"]),
    ] {
        let completed = done.then(|| ("i".to_string(), process("n1", "i").sandbox));
        let life = Life {
            removed_at: removed.then_some(Timestamp::UNIX_EPOCH),
            completed: completed.into_iter().collect(),
            ..life(pod("Pending", "n1", None))
        };
        let mut world = World::default();
        world.pods.insert("u".into(), life);
        assert_eq!(
            broken(&Observation::Started(&started), &world),
            expect,
            "{started:?}"
        );
    }
    let nobodys = process("n1", "c");
    assert_eq!(broken(&Observation::Started(&nobodys), &World::default()), ["S3"]);
}

#[test]
fn b7_term_before_the_kernel_of_a_reporting_node_has_dropped_the_address_is_seen() {
    let process = Process {
        id: "c1".into(),
        sandbox: "s1".into(),
        ..Process::example("c")
    };
    let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
    for (ready, offers, well_since, is_replaced, expect) in [
        ("True", true, 0, false, vec!["B7"]),
        // It is not Ready, and forwards what its kernel has.
        ("False", true, 0, false, vec!["B7"]),
        ("False", false, 0, false, vec![]),
        // Lost, or back for a moment only.
        ("Unknown", true, 0, false, vec![]),
        ("False", true, 590, false, vec![]),
        // The pod's kubelet was replaced at the moment of the deletion, and resumes the termination.
        ("True", true, 0, true, vec![]),
    ] {
        let mut pod = pod("Running", "n1", Some(("2026-01-01T00:10:30Z", 30)));
        pod.status =
            serde_json::from_value(json!({"phase": "Running", "podIPs": [{"ip": "10.1.0.1"}]})).unwrap();
        let life = Life {
            deleted_at: Some(now),
            ..life(pod)
        };
        let mut world = World {
            now,
            ..World::default()
        };
        world.pods.insert("u".into(), life);
        let began: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        world.well_since.insert("node/n1".into(), Some(began));
        let since = began + SignedDuration::from_secs(well_since);
        world.well_since.insert("node/n2".into(), Some(since));
        let node = json!({
            "metadata": {"name": "n2"}, "status": {"conditions": [{"type": "Ready", "status": ready}]},
        });
        world
            .nodes
            .insert("n2".into(), serde_json::from_value(node).unwrap());
        let addresses = offers.then(|| "10.1.0.1".parse().unwrap());
        world.kernels.insert("n2".into(), addresses.into_iter().collect());
        let seen = Observation::Asked(&process);
        let kubelet = Kubelet {
            began: if is_replaced { now } else { began },
            is_former: false,
        };
        world.kubelets.insert("n1".into(), kubelet);
        assert_eq!(
            broken(&seen, &world),
            expect,
            "{ready} {offers} {well_since} {is_replaced}"
        );
    }
}

#[test]
fn p4_preemption_for_nothing_more_important_that_may_preempt_is_seen() {
    let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
    let long_ago: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let of_priority = |priority: i32, policy: &str| {
        let mut pod = pod("Pending", "", None);
        let spec = pod.spec.as_mut().unwrap();
        spec.priority = Some(priority);
        spec.preemption_policy = Some(policy.into());
        pod
    };
    let victim = of_priority(5, "PreemptLowerPriority");
    let preempted = disrupted(victim.clone(), "PreemptionByScheduler");
    for (priority, policy, bound_at, removed_at, expect) in [
        (6, "PreemptLowerPriority", None, None, vec![]),
        (6, "PreemptLowerPriority", Some(now), None, vec![]),
        (5, "PreemptLowerPriority", None, None, vec!["P4"]),
        (6, "Never", None, None, vec!["P4"]),
        (6, "PreemptLowerPriority", Some(long_ago), None, vec!["P4"]),
        (6, "PreemptLowerPriority", None, Some(long_ago), vec!["P4"]),
    ] {
        let mut world = World {
            now,
            ..World::default()
        };
        let other = Life {
            bound_at,
            removed_at,
            ..life(of_priority(priority, policy))
        };
        world.pods.insert("other".into(), other);
        world.pods.insert("u".into(), life(victim.clone()));
        let found = broken(&written(&victim, &preempted), &world);
        assert_eq!(found, expect, "{priority} {policy} {bound_at:?} {removed_at:?}");
        // It is checked once, when it happens.
        assert!(broken(&written(&preempted, &preempted), &world).is_empty());
    }
}

/// Seed 1107000023: such a manager had received nothing for 13 minutes.
#[test]
fn p4_a_manager_without_the_lease_may_preempt_by_what_it_knew_before_a_fault() {
    let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
    let before = |seconds: i64| now - SignedDuration::from_secs(seconds);
    for (manager, well_since, priority, expect) in [
        (WITHOUT_LEASE, None, 6, vec![]),
        (WITHOUT_LEASE, Some(before(10)), 6, vec![]),
        (WITHOUT_LEASE, Some(before(90)), 6, vec!["P4"]),
        (WITHOUT_LEASE, None, 5, vec!["P4"]),
        ("control-b", None, 6, vec!["P4"]),
    ] {
        let mut world = World {
            now,
            ..World::default()
        };
        world.well_since.insert(manager.into(), well_since);
        let mut victim = pod("Pending", "", None);
        victim.spec.as_mut().unwrap().priority = Some(5);
        let mut other = pod("Running", "n1", None);
        other.spec.as_mut().unwrap().priority = Some(priority);
        let other = Life {
            bound_at: Some(before(600)),
            ..life(other)
        };
        world.pods.insert("other".into(), other);
        world.pods.insert("u".into(), life(victim.clone()));
        let preempted = disrupted(victim.clone(), "PreemptionByScheduler");
        let found = broken(&written(&victim, &preempted), &world);
        assert_eq!(found, expect, "{manager} {well_since:?} {priority}");
    }
}

fn budget(allowed: i32, healthy: i32, counted: &[&str]) -> PodDisruptionBudget {
    let counted: BTreeMap<&str, &str> = counted.iter().map(|n| (*n, "2026-01-01T00:00:00Z")).collect();
    serde_json::from_value(json!({
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
        "status": {
            "disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": 1, "expectedPods": 3,
            "disruptedPods": counted,
        },
    }))
    .unwrap()
}

#[test]
fn p5_evictions_that_no_budget_counted_are_seen() {
    let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
    let ready_since = |at: &str, app: &str| {
        let mut pod = pod("Running", "n1", None);
        pod.metadata.labels = Some(BTreeMap::from([("app".into(), app.into())]));
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": at});
        let status = pod.status.as_mut().unwrap();
        status.conditions = Some(vec![serde_json::from_value(ready).unwrap()]);
        pod
    };
    let (long, lately) = ("2026-01-01T00:00:00Z", "2026-01-01T00:09:50Z");
    for (ready, app, counted, known_since, expect) in [
        (long, "a", Some(lately), long, vec![]),
        (long, "a", Some(long), long, vec!["P5"]),
        (long, "a", None, long, vec!["P5"]),
        (long, "other", None, long, vec![]),
        // The component that evicted it may not have seen that it is ready, or that there is a budget.
        (lately, "a", None, long, vec![]),
        (long, "a", None, lately, vec![]),
    ] {
        let mut world = World {
            now,
            ..World::default()
        };
        let known_since: Timestamp = known_since.parse().unwrap();
        world
            .budgets
            .insert("default/b".into(), (budget(0, 2, &[]), known_since));
        let before = ready_since(ready, app);
        let name = before.metadata.name.clone().unwrap_or_default();
        let counted = counted.map(|at| (("default/b".to_string(), name), at.parse().unwrap()));
        world.disruptions.extend(counted);
        let after = disrupted(before.clone(), "EvictionByEvictionAPI");
        assert_eq!(
            broken(&written(&before, &after), &world),
            expect,
            "{ready} {app} {known_since}"
        );
    }
}

#[test]
fn p5_budgets_that_allow_more_than_is_left_are_seen() {
    for (before, after, expect) in [
        (None, budget(2, 3, &[]), vec![]),
        (None, budget(0, 0, &[]), vec![]),
        (None, budget(3, 3, &[]), vec!["P5"]),
        (None, budget(1, 0, &[]), vec!["P5"]),
        (None, budget(-1, 3, &[]), vec!["P5"]),
        (Some(budget(2, 3, &[])), budget(1, 3, &["a"]), vec![]),
        (Some(budget(2, 3, &[])), budget(2, 3, &["a"]), vec!["P5"]),
        (Some(budget(2, 3, &[])), budget(1, 3, &["a", "b"]), vec!["P5"]),
        (Some(budget(1, 3, &["a"])), budget(2, 3, &["a"]), vec![]),
    ] {
        let seen = Observation::BudgetWritten {
            before: before.as_ref(),
            after: &after,
        };
        assert_eq!(broken(&seen, &World::default()), expect, "{before:?} {after:?}");
    }
}

#[test]
fn s9_a_controller_that_creates_pods_without_end_is_seen() {
    let owned = |name: String| {
        let mut pod = pod("Pending", "", None);
        pod.metadata.owner_references = serde_json::from_value(json!([
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "set", "controller": true}
        ]))
        .unwrap();
        pod.metadata.name = Some(name);
        pod
    };
    let mut world = World::default();
    let mut first_broken = None;
    for number in 1..=200 {
        let after = owned(format!("d-{number}"));
        world.pods.insert(format!("u{number}"), life(after.clone()));
        let seen = Observation::PodWritten {
            uid: "u",
            before: None,
            after: &after,
        };
        if broken(&seen, &world).contains(&"S9") {
            first_broken = Some(number);
            break;
        }
    }
    assert_eq!(first_broken, Some(101));
}
