//! Probes and the postStart hook: what counts as running, as ready, and as failed.

use super::*;

#[test]
fn l8_the_first_restarts_after_a_failed_probe_are_immediate() {
    let probe = json!({"exec": {"command": ["x"]}, "periodSeconds": 1, "failureThreshold": 1});
    let mut spec = container("c");
    spec["livenessProbe"] = probe;
    let mut life = Life::new(json!({"containers": [spec]}));
    life.settle();
    let end = |life: &mut Life, id: &str| {
        life.step(Event::Probed {
            id: id.into(),
            kind: Kind::Liveness,
            result: ProbeResult::Failure(String::new()),
        });
        life.open.retain(|a| !matches!(a, Action::StopContainer { .. }));
        life.exit(id, 0);
    };
    end(&mut life, "c0");
    assert_eq!(
        life.status(),
        "Running c=running/1",
        "no container had exited before"
    );
    end(&mut life, "c1");
    assert_eq!(life.status(), "Running c=running/2", "the first that counts");
    end(&mut life, "c2");
    assert_eq!(life.status(), "Running c=Completed:0/2", "now it waits");
    life.wait(1);
    assert_eq!(
        life.status(),
        "Running c=CrashLoopBackOff/2",
        "which is shown soon"
    );
    life.wait(10);
    assert_eq!(life.status(), "Running c=running/3");
}

#[test]
fn l9_a_container_does_not_count_as_running_before_its_hook_is_done() {
    let mut a = container("a");
    a["lifecycle"] = json!({"postStart": {"exec": {"command": ["x"]}}});
    let mut life = Life::new(json!({"containers": [a, container("b")]}));
    life.settle();
    assert_eq!(
        life.status(),
        "Pending a=ContainerCreating/0 b=ContainerCreating/0"
    );
    life.hook_done(Hook::PostStart, Ok(()));
    assert_eq!(life.status(), "Running a=running/0 b=running/0");
}

#[test]
fn l9_a_failed_post_start_hook_stops_the_container() {
    let mut c = container("c");
    c["lifecycle"] = json!({"postStart": {"exec": {"command": ["x"]}}});
    let mut life = Life::new(json!({"containers": [c], "restartPolicy": "Never"}));
    life.settle();
    life.hook_done(Hook::PostStart, Err(ActionError::new("no")));
    assert!(
        life.log
            .contains(&"event !FailedPostStartHook: PostStartHook failed".to_string())
    );
    assert!(
        life.log
            .contains(&"event Killing: FailedPostStartHook".to_string())
    );
    life.exit("c0", 0);
    assert_eq!(life.status(), "Succeeded c=Completed:0/0");
}

#[test]
fn l8_readiness_decides_ready_and_liveness_restarts_with_its_own_grace() {
    let mut c = container("c");
    c["readinessProbe"] = json!({"exec": {}, "periodSeconds": 1, "failureThreshold": 1});
    c["livenessProbe"] =
        json!({"exec": {}, "periodSeconds": 5, "failureThreshold": 1, "terminationGracePeriodSeconds": 7});
    let mut life = Life::new(json!({"containers": [c]}));
    life.settle();
    assert_eq!(
        life.condition("Ready"),
        "False/ContainersNotReady/containers with unready status: [c]"
    );
    life.probed(Kind::Readiness, ProbeResult::Success);
    assert_eq!(life.condition("Ready"), "True");
    life.wait(5);
    life.take_log();
    life.probed(Kind::Liveness, ProbeResult::Failure("no".into()));
    let log = life.take_log();
    assert!(log.contains(&"event !Unhealthy: Liveness probe failed: no".to_string()));
    assert!(log.contains(&"event Killing: Container c failed liveness probe, will be restarted".to_string()));
    assert_eq!(log.last().unwrap(), "stop c0 7");
    life.exit("c0", 137);
    assert_eq!(life.status(), "Running c=running/1");
    assert_ne!(life.condition("Ready"), "True", "a new run begins unready");
}

#[test]
fn t2_l8_a_terminating_pod_is_probed_for_readiness_only() {
    let mut life = Life::new(json!({"containers": [{
        "name": "c", "image": "busybox",
        "readinessProbe": {"exec": {"command": ["x"]}, "periodSeconds": 1, "failureThreshold": 1},
        "livenessProbe": {"exec": {"command": ["x"]}, "periodSeconds": 1, "failureThreshold": 1},
    }]}));
    life.settle();
    life.wait(1);
    life.probed(Kind::Readiness, ProbeResult::Success);
    life.probed(Kind::Liveness, ProbeResult::Success);
    assert_eq!(life.condition("Ready"), "True");
    life.delete(30);
    life.take_log();
    life.wait(2);
    life.probed(Kind::Readiness, ProbeResult::Failure("gone".into()));
    assert!(
        life.condition("Ready").starts_with("False"),
        "{}",
        life.condition("Ready")
    );
    let log = life.take_log();
    assert!(!log.iter().any(|what| what.contains("Liveness")), "{log:#?}");
    assert!(
        log.contains(&"event !Unhealthy: Readiness probe failed: gone".to_string()),
        "{log:#?}"
    );
}

#[test]
fn l8_a_startup_probe_holds_the_others_back() {
    let mut c = container("c");
    c["startupProbe"] = json!({"exec": {}, "periodSeconds": 1});
    c["livenessProbe"] = json!({"exec": {}, "periodSeconds": 1});
    let mut life = Life::new(json!({"containers": [c]}));
    life.settle();
    life.wait(3);
    assert!(life.log.iter().all(|l| l != "probe c Liveness"));
    assert_ne!(life.condition("Ready"), "True");
    life.probed(Kind::Startup, ProbeResult::Success);
    assert_eq!(life.condition("Ready"), "True");
    assert!(life.log.contains(&"probe c Liveness".to_string()));
}

#[test]
fn l8_liveness_waits_for_a_tick_of_the_pod_in_every_run_of_a_container() {
    let mut c = container("c");
    c["livenessProbe"] = json!({"exec": {}, "periodSeconds": 10, "failureThreshold": 1});
    let mut life = Life::new(json!({"containers": [c]}));
    life.settle();
    let is_probed = |life: &mut Life| life.take_log().iter().any(|l| l == "probe c Liveness");
    life.wait(9);
    assert!(!is_probed(&mut life), "the process may not listen yet");
    life.wait(1);
    assert!(is_probed(&mut life));
    life.probed(Kind::Liveness, ProbeResult::Success);
    life.wait(4);
    life.exit("c0", 1);
    life.settle();
    assert_eq!(life.status(), "Running c=running/1");
    life.take_log();
    life.wait(5);
    assert!(!is_probed(&mut life));
    life.wait(1);
    assert!(is_probed(&mut life), "ticks are the pod's");
}

#[test]
fn l8_containers_that_begin_together_are_shown_running_before_one_is_ready() {
    let ready = |name: &str| {
        let mut of = container(name);
        of["readinessProbe"] = json!({"exec": {"command": ["x"]}, "periodSeconds": 1});
        of
    };
    let mut life = Life::new(json!({"containers": [ready("a"), ready("b")]}));
    life.settle();
    let at = |line: &str| life.log.iter().position(|l| l.starts_with(line));
    let both = at("status Running a=running/0 b=running/0").expect("both run");
    assert!(
        at("probe a Readiness").is_some_and(|probed| probed > both),
        "{:?}",
        life.log
    );
    assert!(at("probe b Readiness").is_some());
}

#[test]
fn l8_a_container_that_is_not_ready_any_more_is_not_stopped() {
    let mut c = container("c");
    c["readinessProbe"] = json!({"exec": {}, "periodSeconds": 1, "failureThreshold": 1});
    let mut life = Life::new(json!({"containers": [c]}));
    life.settle();
    life.probed(Kind::Readiness, ProbeResult::Success);
    life.wait(1);
    life.take_log();
    life.probed(Kind::Readiness, ProbeResult::Failure("no".into()));
    assert!(life.condition("Ready").starts_with("False"));
    let log = life.take_log();
    assert!(!log.iter().any(|l| l.starts_with("stop")), "{log:#?}");
}

#[test]
fn l8_a_container_that_starts_again_does_not_suspend_the_readiness_probes_of_the_others() {
    let mut a = container("a");
    a["readinessProbe"] = json!({"exec": {}, "periodSeconds": 1});
    let mut life = Life::new(json!({"containers": [a, container("b")]}));
    life.settle();
    life.probed(Kind::Readiness, ProbeResult::Success);
    life.is_held = |action| matches!(action, Action::StartContainer { .. });
    life.exit("b0", 1);
    life.take_log();
    life.wait(1);
    let log = life.take_log();
    assert!(log.contains(&"probe a Readiness".to_string()), "{log:#?}");
}

#[test]
fn t2_l8_a_container_that_is_stopped_alone_is_not_probed_for_startup_or_liveness() {
    for (field, kind) in [("startupProbe", Kind::Startup), ("livenessProbe", Kind::Liveness)] {
        let mut c = container("c");
        c[field] = json!({"exec": {}, "periodSeconds": 1});
        let mut life = Life::new(json!({"containers": [c]}));
        life.settle();
        life.wait(1);
        life.probed(kind, ProbeResult::Failure("not yet".into()));
        life.object.spec.as_mut().unwrap().containers[0].image = Some("other".into());
        life.step(Event::Updated(Arc::new(life.object.clone())));
        let log = life.take_log();
        assert!(log.contains(&"stop c0 30".to_string()), "{log:#?}");
        life.wait(5);
        let log = life.take_log();
        assert!(!log.iter().any(|l| l.starts_with("probe")), "{log:#?}");
    }
}

#[test]
fn t2_l8_a_liveness_probe_that_fails_once_the_pod_terminates_only_records_an_event() {
    let mut b = container("b");
    b["livenessProbe"] = json!({"exec": {}, "periodSeconds": 1, "failureThreshold": 1});
    let mut life = Life::new(json!({"containers": [container("a"), b]}));
    life.settle();
    life.wait(1);
    life.delete(30);
    // The status has not shown this yet.
    life.exit("a0", 0);
    life.take_log();
    life.probed(Kind::Liveness, ProbeResult::Failure("no".into()));
    assert_eq!(life.take_log(), ["event !Unhealthy: Liveness probe failed: no"]);
}
