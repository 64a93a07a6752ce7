//! A pod's termination: its grace periods, its hooks, and the operations that are retried.

use super::*;

#[test]
fn t5_the_object_is_deleted_last() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.take_log();
    life.delete(30);
    assert_eq!(
        life.take_log(),
        ["event Killing: Stopping container c", "stop c0 30"]
    );
    life.exit("c0", 0);
    let log = life.take_log();
    let at = |what: &str| {
        log.iter()
            .position(|l| l.starts_with(what))
            .unwrap_or_else(|| panic!("{what}: {log:#?}"))
    };
    assert!(at("exit c0") < at("sandbox stopped"));
    assert!(at("sandbox stopped") < at("delete") && at("volumes torn down") < at("delete"));
    let statuses: Vec<&String> = log.iter().filter(|l| l.starts_with("status")).collect();
    assert_eq!(statuses, ["status Succeeded c=Completed:0/0"]);
    assert!(at("status") < at("delete"));
    assert_eq!(log.last().unwrap(), "delete");
    life.step(Event::Removed);
    assert_eq!(life.take_log(), ["forget"]);
}

#[test]
fn t2_a_pre_stop_hook_uses_the_grace_period_but_two_seconds() {
    let mut c = container("c");
    c["lifecycle"] = json!({"preStop": {"exec": {"command": ["x"]}}});
    for (used, result, want) in [
        (10, Some(Ok(())), "stop c0 20"),
        (29, Some(Ok(())), "stop c0 2"),
        (3, Some(Err(ActionError::new(""))), "stop c0 27"),
        (30, None, "stop c0 2"),
    ] {
        let mut life = Life::new(json!({"containers": [c.clone()]}));
        life.settle();
        life.delete(30);
        let hung = result.is_none();
        let failed = hung || result == Some(Err(ActionError::new("")));
        life.wait(used);
        if let Some(result) = result {
            life.hook_done(Hook::PreStop, result);
        }
        let log = life.take_log();
        assert_eq!(
            log.iter().filter(|l| l.starts_with("hook PreStop")).count(),
            1,
            "never repeated"
        );
        let recorded = log.contains(&"event !FailedPreStopHook: PreStopHook failed".to_string());
        assert_eq!(recorded, failed, "{log:#?}");
        assert_eq!(log.last().unwrap(), want);
        // A hook that is not waited for any more runs on as long as the container does.
        life.exit("c0", 137);
        let log = life.take_log();
        assert_eq!(log.contains(&"cancel hook c0".to_string()), hung, "{log:#?}");
    }
}

#[test]
fn t2_a_hook_that_finishes_too_late_changes_nothing() {
    let mut c = container("c");
    c["lifecycle"] = json!({"preStop": {"exec": {"command": ["x"]}}});
    let mut life = Life::new(json!({"containers": [c]}));
    life.settle();
    life.delete(30);
    life.wait(31);
    life.take_log();
    life.hook_done(Hook::PreStop, Err(ActionError::new("late")));
    assert!(life.take_log().is_empty(), "its failure is recorded already");
    life.exit("c0", 137);
    let log = life.take_log();
    assert!(!log.contains(&"cancel hook c0".to_string()), "{log:#?}");
}

#[test]
fn t3_a_shorter_grace_takes_effect_at_once_and_a_longer_one_does_not() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.delete(30);
    life.wait(4);
    life.take_log();
    life.delete(60);
    assert!(life.take_log().is_empty());
    life.delete(10);
    assert_eq!(life.take_log(), ["stop c0 6"]);
    life.delete(1);
    assert_eq!(life.take_log(), ["stop c0 1"]);
}

#[test]
fn t6_a_force_deleted_pod_is_stopped_at_once_and_not_deleted_again() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.take_log();
    life.step(Event::Removed);
    assert_eq!(
        life.take_log(),
        ["event Killing: Stopping container c", "stop c0 2"]
    );
    life.exit("c0", 137);
    let log = life.take_log();
    assert!(!log.contains(&"delete".to_string()));
    assert!(!log.iter().any(|l| l.starts_with("status")), "{log:#?}");
    assert_eq!(log.last().unwrap(), "forget");
}

#[test]
fn t4_a_failed_stop_is_retried_though_the_pod_is_not_being_deleted() {
    let not_listed = |life: &Life| Event::Observed {
        since: life.now,
        sandboxes: vec![lost_sandbox()],
        containers: vec![seen("c", 0, ContainerState::Running { started_at: life.now })],
    };
    let mut life = Life::new(json!({}));
    life.settle();
    life.now += SignedDuration::from_secs(5);
    life.step(not_listed(&life));
    life.open.clear();
    life.step(Event::StopFailed {
        id: "c0".into(),
        message: "x".into(),
    });
    // Another event arrives before the retry is due.
    life.step(not_listed(&life));
    life.take_log();
    life.wait(2);
    assert_eq!(life.take_log(), ["stop c0 30"]);
    life.exit("c0", 0);
    assert_eq!(life.status(), "Running c=running/1");
}

#[test]
fn t4_a_failed_stop_is_retried_with_the_full_grace_period_however_late() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.delete(30);
    life.open.clear();
    life.step(Event::StopFailed {
        id: "c0".into(),
        message: "x".into(),
    });
    life.take_log();
    // The host was suspended: no timer fired.
    life.now += SignedDuration::from_secs(70);
    life.step(Event::Timer);
    assert_eq!(life.take_log(), ["stop c0 30"]);
}

#[test]
fn t3_containers_of_an_old_sandbox_have_their_grace_period_after_a_kubelet_restart() {
    for (ready, deleted) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut before = Life::new(json!({}));
        before.settle();
        let mut object = before.object.clone();
        if deleted {
            object.metadata.deletion_timestamp = Some(Time(before.now));
            object.metadata.deletion_grace_period_seconds = Some(30);
        }
        let mut life = Life::of(object);
        life.running.insert("c0".into(), "c".into());
        let started_at = before.now;
        let newer = runtime::Sandbox {
            id: "s1".into(),
            attempt: 1,
            ..sandbox()
        };
        life.step(Event::Observed {
            since: life.now,
            sandboxes: vec![runtime::Sandbox { ready, ..sandbox() }, newer],
            containers: vec![seen("c", 0, ContainerState::Running { started_at })],
        });
        let case = format!("ready: {ready}, deleted: {deleted}: {:?}", life.open);
        assert!(life.log.contains(&"stop c0 30".to_string()), "{case}");
        let stop = Action::StopSandbox { id: "s0".into() };
        assert!(!life.open.contains(&stop), "{case}");
        life.exit("c0", 0);
        assert!(life.log.contains(&"sandbox stopped".to_string()), "{case}");
    }
}

#[test]
fn t4_a_termination_found_in_progress_has_its_grace_period_again_or_keeps_its_deadline() {
    let mut spec = container("c");
    spec["lifecycle"] = json!({"preStop": {"exec": {"command": ["x"]}}});
    for (resume, since_deletion, want) in [
        (TerminationResume::Full, 20, "hook PreStop c0"),
        (TerminationResume::Deadline, 20, "stop c0 10"),
        // The deadline has passed: the minimum that every process has.
        (TerminationResume::Deadline, 50, "stop c0 2"),
    ] {
        let mut before = Life::new(json!({"containers": [spec.clone()]}));
        before.settle();
        let mut object = before.object.clone();
        object.metadata.deletion_timestamp = Some(Time(before.now + SignedDuration::from_secs(30)));
        object.metadata.deletion_grace_period_seconds = Some(30);
        let mut life = Life::of(object.clone());
        let node = Node {
            ips: vec!["192.0.2.1".into()],
            resume,
            ..Node::default()
        };
        life.pod = Pod::new(Arc::new(object), node);
        life.now = before.now + SignedDuration::from_secs(since_deletion);
        let pod = PodRef {
            uid: "u".into(),
            namespace: "n".into(),
            name: "p".into(),
        };
        life.step(Event::Observed {
            since: life.now,
            sandboxes: vec![runtime::Sandbox {
                id: "s0".into(),
                pod: pod.clone(),
                ready: true,
                ..runtime::Sandbox::default()
            }],
            containers: vec![runtime::Container {
                id: "c0".into(),
                sandbox_id: "s0".into(),
                pod,
                name: "c".into(),
                attempt: 0,
                hash: String::new(),
                self_fenced: None,
                state: ContainerState::Running {
                    started_at: before.now,
                },
                created_at: before.now,
                image: String::new(),
                image_id: String::new(),
            }],
        });
        let log = life.take_log();
        assert!(
            log.contains(&want.to_string()),
            "{resume:?} {since_deletion}: {log:#?}"
        );
    }
}

/// Once a pod's phase is terminal, other pods may get its claims.
#[test]
fn l4_the_phase_is_not_terminal_before_the_claims_are_unprepared() {
    for (claims, ends_at_once) in [
        (json!([]), true),
        (json!([{"name": "gpu", "resourceClaimName": "g"}]), false),
    ] {
        let mut life = Life::new(json!({"restartPolicy": "Never", "resourceClaims": claims}));
        life.settle();
        // Another event arrives while the sandbox is stopped, and volumes and claims are not released yet.
        life.failure_of = |action| {
            let device = core::ResourceStatus {
                name: "claim:gpu".into(),
                resources: None,
            };
            let health = [("c".to_string(), vec![device])];
            matches!(action, Action::TearDownVolumes).then(|| Event::ResourceHealth(health.into()))
        };
        life.take_log();
        life.exit("c0", 0);
        let shows = |log: Vec<String>| log.iter().any(|l| l.starts_with("status Succeeded"));
        assert_eq!(shows(life.take_log()), ends_at_once);
        life.step(Event::VolumesTornDown);
        life.settle();
        assert_eq!(shows(life.take_log()), !ends_at_once);
    }
}

#[test]
fn t5_the_containers_of_a_pod_that_has_finished_stay_for_their_logs_until_it_is_deleted() {
    let mut life = Life::new(json!({"restartPolicy": "Never"}));
    life.settle();
    life.exit("c0", 0);
    assert!(life.pod.has_terminated());
    assert!(life.removed.is_empty(), "{:?}", life.removed);
    life.delete(30);
    assert_eq!(life.removed, ["c0"]);
    assert_eq!(life.log.last().unwrap(), "delete");
}

#[test]
fn t2_a_sidecar_whose_turn_does_not_come_is_stopped_when_the_grace_period_is_over() {
    let mut side = container("s");
    side["restartPolicy"] = json!("Always");
    let mut life = Life::new(json!({"initContainers": [side]}));
    life.settle();
    life.delete(30);
    assert_eq!(life.timer, Some(life.now + SignedDuration::from_secs(30)));
    life.take_log();
    life.wait(30);
    assert_eq!(life.take_log(), ["stop s0 2"]);
}

#[test]
fn l4_the_back_off_of_a_pod_that_is_deleted_ends_with_a_status_of_its_own() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.exit("c0", 1);
    life.exit("c1", 1);
    life.wait(9);
    assert_eq!(life.status(), "Running c=CrashLoopBackOff/1");
    life.take_log();
    life.delete(30);
    let log = life.take_log();
    let mut statuses = log.iter().filter(|l| l.starts_with("status"));
    assert_eq!(
        statuses.next().map(String::as_str),
        Some("status Running c=Error:1/1"),
        "{log:#?}"
    );
    assert_eq!(
        statuses.next().map(String::as_str),
        Some("status Failed c=Error:1/1"),
        "{log:#?}"
    );
}

#[test]
fn l11_a_container_in_back_off_is_shown_so_when_the_deadline_fails_its_pod() {
    let mut life = Life::new(json!({"activeDeadlineSeconds": 5}));
    life.settle();
    life.exit("c0", 1);
    life.exit("c1", 1);
    life.take_log();
    life.wait(5);
    let log = life.take_log();
    assert!(
        log.contains(&"status Running c=CrashLoopBackOff/1".to_string()),
        "{log:#?}"
    );
}
