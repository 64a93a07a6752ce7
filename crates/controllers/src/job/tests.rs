//! Jobs from their first pod until they are finished.

use knarr_api::kinds::pod::is_terminal;
use serde_json::{Value, json};

use super::*;
use crate::action::LiveCheck;
use crate::controller::View;
use crate::world::{World, at, lines};

const KEY: (&str, &str) = ("a", "j");

fn job(spec: Value) -> Job {
    let mut value = json!({
        "metadata": {"namespace": "a", "name": "j"},
        "spec": {
            "parallelism": 1, "completions": 1, "backoffLimit": 6, "selector": {"matchLabels": {"job": "j"}},
            "template": {"metadata": {"labels": {"job": "j"}}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}},
        },
    });
    for (key, of) in spec.as_object().unwrap() {
        value["spec"][key] = of.clone();
    }
    serde_json::from_value(value).unwrap()
}

fn start(spec: Value) -> World {
    let mut world = World::default();
    world.put(job(spec));
    world
}

/// Syncs until there are no more actions; the actions on pods.
fn settle(world: &mut World, second: i64) -> Vec<String> {
    let mut done = Vec::new();
    for _ in 0..20 {
        let actions = world.run(&Jobs, KEY, at(second));
        world.take(&actions);
        let on_pods: Vec<String> = lines(&actions)
            .into_iter()
            .filter(|l| !l.starts_with("requeue"))
            .collect();
        if on_pods.is_empty() {
            return done;
        }
        done.extend(
            on_pods
                .into_iter()
                .filter(|l| l.contains(" pods ") && !l.starts_with("update") && !l.starts_with("require")),
        );
        for pod in pods_of(world) {
            // The API server removes deleted pods that have finished, once they have no finalizers.
            if pod::is_deleting(&pod) && is_terminal(&pod) && !pods::is_tracked(&pod) {
                world.remove(&registry::POD, "a", pod.object().name());
            }
        }
    }
    panic!("it does not settle: {done:?}");
}

fn pods_of(world: &World) -> Vec<Shared<Pod>> {
    let view: &dyn View = world;
    view.list_as("a")
}

fn active(world: &World) -> Vec<Shared<Pod>> {
    let mut pods = pods_of(world);
    pods.retain(|p| pod::is_active(p));
    pods
}

/// Finishes a pod at this second.
fn end(world: &mut World, pod: &Pod, phase: &str, code: i32, second: i64) {
    let mut pod = pod.clone();
    pod.status = serde_json::from_value(json!({"phase": phase, "containerStatuses": [{
        "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "finishedAt": at(second).to_string()}},
    }]}))
    .unwrap();
    world.put(pod);
}

fn end_index(world: &mut World, index: i32, phase: &str, second: i64) {
    let pods = active(world);
    let pod = pods.iter().find(|p| pods::index(p) == Some(index)).unwrap();
    end(world, pod, phase, i32::from(phase == "Failed"), second);
}

fn status(world: &World) -> JobStatus {
    let view: &dyn View = world;
    view.get_as::<Job>("a", "j").unwrap().status.clone().unwrap()
}

/// `Type=Status:Reason` of each condition.
fn conditions(world: &World) -> Vec<String> {
    let conditions = status(world).conditions.unwrap_or_default();
    conditions
        .iter()
        .map(|c| format!("{}={}:{}", c.type_, c.status, c.reason.as_deref().unwrap_or("")))
        .collect()
}

/// Validation rejects a completionTime before the startTime.
#[test]
fn a_job_whose_controllers_clock_was_set_back_completes_when_it_began() {
    let mut world = start(json!({"completions": 1}));
    settle(&mut world, 3_000);
    let pod = active(&world)[0].clone();
    end(&mut world, &pod, "Succeeded", 0, 10);
    settle(&mut world, 10);
    let after = status(&world);
    assert_eq!(after.start_time, Some(seconds(at(3_000))));
    assert_eq!(after.completion_time, after.start_time);
}

#[test]
fn a_job_is_complete_when_enough_pods_succeeded() {
    let mut world = start(json!({"completions": 3, "parallelism": 2}));
    assert_eq!(settle(&mut world, 0), ["create 2 pods a/j-*"]);
    assert_eq!((status(&world).active, status(&world).ready), (Some(2), Some(0)));
    assert_eq!(status(&world).start_time, Some(seconds(at(0))));
    let first = active(&world)[0].clone();
    end(&mut world, &first, "Succeeded", 0, 1);
    assert_eq!(settle(&mut world, 1), ["create 1 pods a/j-*"]);
    assert_eq!(status(&world).succeeded, Some(1));
    assert!(
        !pods_of(&world)
            .iter()
            .any(|p| is_terminal(p) && pods::is_tracked(p))
    );
    for pod in active(&world) {
        end(&mut world, &pod, "Succeeded", 0, 2);
    }
    assert_eq!(settle(&mut world, 2), [""; 0]);
    let after = status(&world);
    assert_eq!(
        (after.succeeded, after.active, after.failed),
        (Some(3), None, None)
    );
    assert_eq!(after.completion_time, Some(seconds(at(2))));
    assert_eq!(
        conditions(&world),
        [
            "SuccessCriteriaMet=True:CompletionsReached",
            "Complete=True:CompletionsReached"
        ]
    );
    assert_eq!(after.uncounted_terminated_pods, Some(Default::default()));
}

#[test]
fn a_finalizer_is_removed_only_after_the_status_has_recorded_the_pod() {
    let mut world = start(json!({"completions": 2}));
    settle(&mut world, 0);
    let pod = active(&world)[0].clone();
    end(&mut world, &pod, "Succeeded", 0, 1);
    let actions = world.run(&Jobs, KEY, at(1));
    let order: Vec<String> = lines(&actions)
        .into_iter()
        .filter(|l| l.starts_with("update"))
        .collect();
    assert_eq!(
        order,
        [
            "update jobs/status a/j".to_string(),
            format!("update pods a/{}", pod.object().name())
        ]
    );
    // The status is written, then the controller exits: the pod's uid is in the status and is counted once.
    let written: Vec<Action> = actions
        .into_iter()
        .filter(|a| {
            matches!(
                a,
                Action::Update {
                    subresource: "status",
                    ..
                }
            )
        })
        .collect();
    world.take(&written);
    assert_eq!(status(&world).succeeded, None);
    assert_eq!(
        status(&world).uncounted_terminated_pods.unwrap().succeeded,
        Some(vec![pod.object().uid().to_string()])
    );
    settle(&mut world, 2);
    assert_eq!(status(&world).succeeded, Some(1));
}

/// The caches of Jobs and of pods differ in age: the one of pods may have a pod as it was before it was counted, or may not have it yet.
#[test]
fn a_pod_is_recorded_and_counted_after_live_reads_unless_the_cache_has_it_without_the_finalizer() {
    let checks = |world: &World, second: i64| -> Vec<String> {
        let actions = lines(&world.run(&Jobs, KEY, at(second))).into_iter();
        let before_status = actions.take_while(|l| l != "update jobs/status a/j");
        before_status.filter(|l| l.starts_with("require")).collect()
    };
    for phase in ["Succeeded", "Failed"] {
        let mut world = start(json!({"completions": 2}));
        settle(&mut world, 0);
        let pod = active(&world)[0].clone();
        let name = pod.object().name().to_string();
        end(&mut world, &pod, phase, 0, 1);
        let with_finalizer = format!("require pods a/{name} with batch.kubernetes.io/job-tracking");
        assert_eq!(checks(&world, 1), [with_finalizer], "{phase}: it is recorded");
        let mut actions = world.run(&Jobs, KEY, at(1));
        actions.retain(|a| a.to_string() == "update jobs/status a/j");
        world.take(&actions);

        let ended = pods_of(&world)
            .into_iter()
            .find(|p| p.object().name() == name)
            .unwrap();
        let uid = pod.object().uid().to_string();
        world.remove(&registry::POD, "a", &name);
        assert_eq!(
            checks(&world, 1),
            ["require none of 1 pods of a with batch.kubernetes.io/job-tracking"],
            "{phase}: it is not in the cache"
        );
        let checked = world.run(&Jobs, KEY, at(1)).into_iter().find_map(|a| match a {
            Action::Require(LiveCheck::NoneHeld { uids, .. }) => Some(uids),
            _ => None,
        });
        assert_eq!(checked, Some([uid].into()), "{phase}");
        world.put(pods::without_finalizer(&ended));
        assert_eq!(
            checks(&world, 1),
            [""; 0],
            "{phase}: it has no finalizer any more"
        );
    }
    let mut world = start(json!({"completions": 2, "parallelism": 2}));
    settle(&mut world, 0);
    for pod in active(&world) {
        end(&mut world, &pod, "Succeeded", 0, 1);
    }
    let one_read = "require 2 pods of a with batch.kubernetes.io/job-tracking";
    assert_eq!(checks(&world, 1), [one_read]);
}

/// The cache of pods may have a failed one that was counted already, with which the failures are more than the limit.
#[test]
fn pods_are_deleted_only_after_the_live_reads_of_the_finished_ones() {
    let mut world = start(json!({"completions": 2, "parallelism": 2, "backoffLimit": 0}));
    settle(&mut world, 0);
    let failed = active(&world)[0].clone();
    end(&mut world, &failed, "Failed", 1, 1);
    let done = lines(&world.run(&Jobs, KEY, at(1)));
    let position = |part: &str| done.iter().position(|l| l.contains(part));
    let read = position("with batch.kubernetes.io/job-tracking");
    assert!(read.is_some() && read < position("delete pods"), "{done:?}");
}

#[test]
fn failures_back_off_and_fail_the_job_beyond_the_limit() {
    let mut world = start(json!({"backoffLimit": 1}));
    settle(&mut world, 0);
    let pod = active(&world)[0].clone();
    end(&mut world, &pod, "Failed", 1, 5);
    assert_eq!(settle(&mut world, 5), [""; 0], "it waits ten seconds");
    assert_eq!(settle(&mut world, 14), [""; 0]);
    assert_eq!(settle(&mut world, 15), ["create 1 pods a/j-*"]);
    let pod = active(&world)[0].clone();
    end(&mut world, &pod, "Failed", 1, 20);
    assert_eq!(settle(&mut world, 20), [""; 0]);
    assert_eq!(status(&world).failed, Some(2));
    assert_eq!(
        conditions(&world),
        [
            "FailureTarget=True:BackoffLimitExceeded",
            "Failed=True:BackoffLimitExceeded"
        ]
    );
    assert_eq!(status(&world).completion_time, None);
}

#[test]
fn the_wait_after_failures_doubles_up_to_ten_minutes() {
    for (failures, wait) in [(0, 0), (1, 10), (2, 20), (3, 40), (6, 320), (7, 600), (100, 600)] {
        assert_eq!(
            policy::remaining_backoff(failures, Some(at(0)), at(0)),
            Duration::from_secs(wait),
            "{failures}"
        );
    }
    assert_eq!(policy::remaining_backoff(3, Some(at(0)), at(100)), Duration::ZERO);
}

#[test]
fn s2_pods_that_run_when_a_job_finishes_are_deleted_and_the_job_waits_for_them() {
    let mut world = start(json!({"completions": 4, "parallelism": 2, "activeDeadlineSeconds": 30}));
    settle(&mut world, 0);
    let running = active(&world);
    let actions = world.run(&Jobs, KEY, at(10));
    assert!(
        lines(&actions).contains(&"requeue after 20s".to_string()),
        "{:?}",
        lines(&actions)
    );
    let actions = world.run(&Jobs, KEY, at(30));
    let deletes: Vec<&str> = actions
        .iter()
        .flat_map(|a| match a {
            Action::DeleteMany(all) => all.iter().map(|d| d.uid.as_str()).collect(),
            _ => Vec::new(),
        })
        .collect();
    let uids: Vec<&str> = running.iter().map(|p| p.object().uid()).collect();
    assert_eq!(deletes, uids);
    let generation =
        |a: &Action| matches!(a, Action::Require(LiveCheck::Generation { uid, .. }) if uid == "uid-j");
    let deletion = |a: &Action| matches!(a, Action::DeleteMany(_));
    assert!(actions.iter().position(generation) < actions.iter().position(deletion));
    assert!(actions.iter().any(generation), "{:?}", lines(&actions));
    settle(&mut world, 30);
    assert_eq!(conditions(&world), ["FailureTarget=True:DeadlineExceeded"]);
    assert_eq!(
        (status(&world).terminating, status(&world).active),
        (Some(2), None)
    );
    for pod in pods_of(&world) {
        end(&mut world, &pod, "Failed", 137, 40);
    }
    settle(&mut world, 40);
    assert_eq!(conditions(&world)[1..], ["Failed=True:DeadlineExceeded"]);
    assert_eq!(status(&world).failed, Some(2));
}

#[test]
fn an_indexed_job_has_each_index_succeed_once() {
    let mut world = start(json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed"}));
    assert_eq!(settle(&mut world, 0), ["create 3 pods a/j-0-*"]);
    let one = active(&world)
        .into_iter()
        .find(|p| pods::index(p) == Some(1))
        .unwrap();
    assert_eq!(one.spec.as_ref().unwrap().hostname.as_deref(), Some("j-1"));
    assert!(one.object().name().starts_with("j-1-"));
    let env = one.spec.as_ref().unwrap().containers[0].env.clone().unwrap();
    assert_eq!(env[0].name, "JOB_COMPLETION_INDEX");
    end_index(&mut world, 1, "Succeeded", 1);
    end_index(&mut world, 0, "Failed", 1);
    settle(&mut world, 1);
    assert_eq!(status(&world).completed_indexes.as_deref(), Some("1"));
    assert_eq!(settle(&mut world, 11), ["create 1 pods a/j-0-*"]);
    end_index(&mut world, 0, "Succeeded", 12);
    end_index(&mut world, 2, "Succeeded", 12);
    settle(&mut world, 12);
    let after = status(&world);
    assert_eq!(
        (after.completed_indexes.as_deref(), after.succeeded, after.failed),
        (Some("0-2"), Some(3), Some(1))
    );
    assert_eq!(conditions(&world)[1..], ["Complete=True:CompletionsReached"]);
}

#[test]
fn an_index_fails_by_its_own_limit_and_the_others_continue() {
    let mut world = start(json!({
        "completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1, "backoffLimit": 2147483647,
    }));
    settle(&mut world, 0);
    end_index(&mut world, 0, "Failed", 1);
    assert_eq!(settle(&mut world, 5), [""; 0]);
    assert_eq!(settle(&mut world, 11), ["create 1 pods a/j-0-*"]);
    let again = active(&world)
        .into_iter()
        .find(|p| pods::index(p) == Some(0))
        .unwrap();
    assert_eq!(pods::failures(&again), 1);
    end_index(&mut world, 0, "Failed", 12);
    settle(&mut world, 12);
    assert_eq!(status(&world).failed_indexes.as_deref(), Some("0"));
    assert_eq!(conditions(&world), [""; 0], "index 1 still runs");
    end_index(&mut world, 1, "Succeeded", 13);
    settle(&mut world, 13);
    assert_eq!(
        conditions(&world),
        ["FailureTarget=True:FailedIndexes", "Failed=True:FailedIndexes"]
    );
    assert_eq!(
        (status(&world).succeeded, status(&world).failed),
        (Some(1), Some(2))
    );
}

#[test]
fn pod_failure_and_success_policies_are_applied() {
    let on_exit = |action: &str| {
        json!({"podFailurePolicy": {"rules": [
            {"action": action, "onExitCodes": {"operator": "In", "values": [42]}}]}})
    };
    for (action, code, expected) in [
        (
            "FailJob",
            42,
            vec![
                "FailureTarget=True:PodFailurePolicy",
                "Failed=True:PodFailurePolicy",
            ],
        ),
        ("FailJob", 43, vec![]),
        ("Ignore", 42, vec![]),
        ("Count", 42, vec![]),
    ] {
        let mut world = start(on_exit(action));
        settle(&mut world, 0);
        let pod = active(&world)[0].clone();
        end(&mut world, &pod, "Failed", code, 1);
        settle(&mut world, 1);
        assert_eq!(conditions(&world), expected, "{action} {code}");
        let counted = if action == "Ignore" { None } else { Some(1) };
        assert_eq!(status(&world).failed, counted, "{action} {code}");
        if !expected.is_empty() {
            let name = pod.object().name();
            let message = status(&world).conditions.unwrap()[0].message.clone().unwrap();
            assert_eq!(
                message,
                format!(
                    "Container c for pod a/{name} failed with exit code 42 matching FailJob rule at index 0"
                )
            );
        }
    }
    let mut world = start(json!({
        "completions": 5, "parallelism": 5, "completionMode": "Indexed",
        "successPolicy": {"rules": [{"succeededIndexes": "0-2", "succeededCount": 2}]},
    }));
    settle(&mut world, 0);
    end_index(&mut world, 0, "Succeeded", 1);
    end_index(&mut world, 4, "Succeeded", 1);
    settle(&mut world, 1);
    assert_eq!(conditions(&world), [""; 0]);
    end_index(&mut world, 2, "Succeeded", 2);
    settle(&mut world, 2);
    for pod in pods_of(&world).into_iter().filter(|p| pod::is_deleting(p)) {
        end(&mut world, &pod, "Failed", 137, 3);
    }
    settle(&mut world, 3);
    assert_eq!(
        conditions(&world),
        [
            "SuccessCriteriaMet=True:SuccessPolicy",
            "Complete=True:SuccessPolicy"
        ]
    );
    assert_eq!(status(&world).failed, None, "the rest did not fail");
}

#[test]
fn a_suspended_job_has_no_pods_and_gets_its_start_time_when_resumed() {
    let mut world = start(json!({}));
    settle(&mut world, 0);
    let suspend = |world: &mut World, suspend: bool| {
        let view: &dyn View = world;
        let mut job = (*view.get_as::<Job>("a", "j").unwrap()).clone();
        job.spec.as_mut().unwrap().suspend = Some(suspend);
        world.put(job);
    };
    suspend(&mut world, true);
    assert!(settle(&mut world, 1)[0].starts_with("delete pods"));
    assert_eq!(conditions(&world), ["Suspended=True:JobSuspended"]);
    assert_eq!((status(&world).failed, status(&world).active), (None, None));
    suspend(&mut world, false);
    assert_eq!(settle(&mut world, 9), ["create 1 pods a/j-*"]);
    assert_eq!(conditions(&world), ["Suspended=False:JobResumed"]);
    assert_eq!(status(&world).start_time, Some(seconds(at(9))));
}

#[test]
fn a_replacement_waits_for_the_failed_pod_with_that_replacement_policy() {
    for (policy, replaced) in [("Failed", false), ("TerminatingOrFailed", true)] {
        let mut world = start(json!({"podReplacementPolicy": policy}));
        settle(&mut world, 0);
        let mut pod = (*active(&world)[0]).clone();
        pod.metadata.deletion_timestamp = Some(seconds(at(31)));
        pod.metadata.deletion_grace_period_seconds = Some(30);
        world.put(pod);
        assert_eq!(!settle(&mut world, 60).is_empty(), replaced, "{policy}");
    }
}

#[test]
fn jobs_of_other_controllers_are_not_changed_and_orphan_pods_lose_their_finalizer() {
    let world = start(json!({"managedBy": "example.com/other"}));
    assert_eq!(lines(&world.run(&Jobs, KEY, at(0))), [""; 0]);
    let mut world = start(json!({}));
    settle(&mut world, 0);
    world.remove(&registry::JOB, "a", "j");
    let actions = lines(&world.run(&Jobs, KEY, at(1)));
    assert_eq!(actions[0], "require no jobs a/j");
    assert!(actions[1].starts_with("update pods a/j-"));
}

/// Found by the simulation, seed 983000199: a controller whose cache was old made a pod of the former Job, and the Job of the same name was
/// being deleted in the foreground.
#[test]
fn pods_of_a_former_job_lose_their_finalizer_also_when_its_successor_is_terminating() {
    for is_terminating in [false, true] {
        let mut world = start(json!({}));
        settle(&mut world, 0);
        let mut pod = Pod::clone(&pods_of(&world)[0]);
        let name = pod.metadata.name.clone().unwrap();
        pod.metadata.owner_references.as_mut().unwrap()[0].uid = "former".into();
        world.put(pod);
        let view: &dyn View = &world;
        let mut job = Job::clone(&view.get_as::<Job>("a", "j").unwrap());
        job.metadata.deletion_timestamp = is_terminating.then(|| seconds(at(1)));
        world.put(job);
        let actions = lines(&world.run(&Jobs, KEY, at(2)));
        let expected = [
            "require jobs a/j gone".to_string(),
            format!("update pods a/{name}"),
        ];
        assert_eq!(actions[..2], expected, "{is_terminating}");
    }
}

#[test]
fn a_pod_that_a_job_releases_loses_its_finalizer() {
    let mut world = start(json!({}));
    settle(&mut world, 0);
    let mut pod = Pod::clone(&pods_of(&world)[0]);
    assert!(pods::is_tracked(&pod));
    pod.metadata.labels = None;
    world.put(pod.clone());
    let actions = world.run(&Jobs, KEY, at(1));
    world.take(&actions);
    let name = pod.metadata.name.clone().unwrap();
    let released = pods_of(&world)
        .into_iter()
        .find(|p| p.object().name() == name)
        .unwrap();
    assert!(controller_of(&released.metadata).is_none() && !pods::is_tracked(&released));
    // A user removes the owner reference and all labels: the pod is found nevertheless.
    pod.metadata.owner_references = None;
    world.put(pod);
    let actions = lines(&world.run(&Jobs, ("a", ""), at(2)));
    assert_eq!(actions, [format!("update pods a/{name}")]);
}
