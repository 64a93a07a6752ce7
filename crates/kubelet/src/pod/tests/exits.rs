//! Exits that are reported early, twice or with a message, and the exited containers that are kept.

use super::*;

/// Lets all actions succeed but starts.
fn settle_before_starts(life: &mut Life) {
    life.step(Event::Timer);
    while let Some((at, event)) = life
        .open
        .iter()
        .enumerate()
        .filter(|(_, action)| !matches!(action, Action::StartContainer { .. }))
        .find_map(|(at, action)| Some((at, life.success_event(action)?)))
    {
        life.give(at, event);
    }
}

fn exited(life: &mut Life, id: &str, code: i32) {
    let exit = Exit {
        code,
        ..Exit::default()
    };
    life.step(Event::ContainerExited { id: id.into(), exit });
}

#[test]
fn l4_a_container_that_exits_before_its_start_is_reported_has_run_and_exited() {
    for (code, status) in [(0, "Succeeded c=Completed:0/0"), (3, "Failed c=Error:3/0")] {
        let mut life = Life::new(json!({"restartPolicy": "Never"}));
        settle_before_starts(&mut life);
        exited(&mut life, "c0", code);
        life.settle();
        assert_eq!(life.status(), status);
    }
}

#[test]
fn s1_an_exit_that_is_reported_again_does_not_end_a_later_run() {
    let mut hooked = container("c");
    hooked["lifecycle"] = json!({"postStart": {"exec": {"command": ["x"]}}});
    for (spec, has_hook) in [(container("c"), false), (hooked, true)] {
        let mut life = Life::new(json!({"containers": [spec]}));
        life.settle();
        if has_hook {
            life.hook_done(Hook::PostStart, Ok(()));
        }
        life.exit("c0", 1);
        life.wait(20);
        // The second run waits for its hook, or for nothing.
        exited(&mut life, "c0", 1);
        life.settle();
        if has_hook {
            life.hook_done(Hook::PostStart, Ok(()));
        }
        assert_eq!(life.status(), "Running c=running/1", "hook: {has_hook}");
        assert_eq!(life.running.keys().collect::<Vec<_>>(), ["c1"]);
    }
}

#[test]
fn l13_one_exited_run_is_kept_for_the_previous_logs() {
    let mut life = Life::new(json!({}));
    life.settle();
    for run in 0..4 {
        life.exit(&format!("c{run}"), 1);
        life.wait(1000);
    }
    assert!(life.pod.containers[0].runs.is_dead(&"c3".into()));
    assert_eq!(life.removed, ["c0", "c1", "c2"]);
}

#[test]
fn l4_a_message_is_shown_where_there_is_one() {
    for (message, shown) in [("", None), ("out of cheese", Some("out of cheese"))] {
        let mut life = Life::new(json!({"restartPolicy": "Never"}));
        life.settle();
        life.running.clear();
        let exit = Exit {
            code: 1,
            message: message.into(),
            ..Exit::default()
        };
        life.step(Event::ContainerExited {
            id: "c0".into(),
            exit,
        });
        life.settle();
        let statuses = life.pod.status().container_statuses.clone().unwrap();
        let terminated = statuses[0].state.as_ref().unwrap().terminated.clone().unwrap();
        assert_eq!(terminated.message.as_deref(), shown);
    }
}

#[test]
fn t2_a_container_that_fails_its_startup_probe_has_that_probes_grace_period() {
    let probe = |grace: i64| {
        json!({"exec": {"command": ["x"]}, "periodSeconds": 1, "failureThreshold": 1,
            "terminationGracePeriodSeconds": grace})
    };
    for (kind, stop) in [(Kind::Startup, "stop c0 5"), (Kind::Liveness, "stop c0 9")] {
        let mut spec = container("c");
        if kind == Kind::Startup {
            spec["startupProbe"] = probe(5);
        }
        spec["livenessProbe"] = probe(9);
        let mut life = Life::new(json!({"containers": [spec]}));
        life.settle();
        let result = ProbeResult::Failure(String::new());
        life.step(Event::Probed {
            id: "c0".into(),
            kind,
            result,
        });
        life.settle();
        assert!(life.log.contains(&stop.to_string()), "{:?}", life.log);
    }
}

#[test]
fn l10_an_ephemeral_container_keeps_every_field_it_has_and_is_found_by_its_name() {
    let given = json!({
        "name": "debug", "image": "busybox", "imagePullPolicy": "Always", "command": ["sh"], "args": ["-x"],
        "env": [{"name": "A", "value": "b"}], "envFrom": [{"configMapRef": {"name": "m"}}], "resources": {},
        "securityContext": {"privileged": true}, "stdin": true, "stdinOnce": true, "tty": true,
        "terminationMessagePath": "/m", "terminationMessagePolicy": "File", "workingDir": "/w",
        "volumeDevices": [{"devicePath": "/dev/x", "name": "x"}], "volumeMounts": [{"mountPath": "/v", "name": "v"}],
    });
    let spec: core::PodSpec = serde_json::from_value(json!({
        "containers": [container("c")],
        "ephemeralContainers": [container("other"), given],
    }))
    .unwrap();
    let found = find_spec(&spec, "debug").unwrap();
    assert_eq!(serde_json::to_value(&*found).unwrap(), given);
    assert!(find_spec(&spec, "none").is_none());
}

#[test]
fn l5_a_rule_restarts_a_container_by_the_codes_it_lists_or_by_all_others() {
    for (operator, code, status) in [
        ("In", 42, "Running c=running/1"),
        ("In", 1, "Failed c=Error:1/0"),
        ("NotIn", 1, "Running c=running/1"),
        ("NotIn", 42, "Failed c=Error:42/0"),
    ] {
        let mut spec = container("c");
        spec["restartPolicy"] = json!("Never");
        spec["restartPolicyRules"] =
            json!([{"action": "Restart", "exitCodes": {"operator": operator, "values": [42]}}]);
        let mut life = Life::new(json!({"restartPolicy": "Never", "containers": [spec]}));
        life.settle();
        life.exit("c0", code);
        life.wait(20);
        assert_eq!(life.status(), status, "{operator} {code}");
    }
}

#[test]
fn s1_an_exit_that_is_reported_again_does_not_end_the_run_that_is_being_started() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.is_held = |action| matches!(action, Action::StartContainer { .. });
    life.exit("c0", 1);
    exited(&mut life, "c0", 1);
    life.is_held = |_| false;
    life.settle();
    assert_eq!(life.status(), "Running c=running/1", "{:?}", life.log);
}

#[test]
fn l9_a_container_that_is_restarted_after_its_hook_failed_still_shows_why_it_waits() {
    let mut hooked = container("c");
    hooked["lifecycle"] = json!({"postStart": {"exec": {"command": ["x"]}}});
    let mut life = Life::new(json!({"containers": [hooked]}));
    life.settle();
    life.hook_done(Hook::PostStart, Err(ActionError::new("no")));
    life.exit("c0", 137);
    assert_eq!(life.status(), "Running c=PostStartHookError/0");
}

#[test]
fn l4_exits_in_a_terminating_pod_are_reported_once_all_its_containers_have_exited() {
    let mut life = Life::new(json!({"containers": [container("a"), container("b")]}));
    life.settle();
    life.delete(30);
    life.take_log();
    life.exit("a0", 0);
    assert_eq!(life.take_log(), ["exit a0 0"]);
    let exit = Exit {
        started_at: Some(life.now),
        finished_at: Some(life.now),
        ..Exit::default()
    };
    // Nor does a list of the runtime change that.
    life.step(Event::Observed {
        since: life.now,
        sandboxes: vec![sandbox()],
        containers: vec![
            seen("a", 0, ContainerState::Exited(exit)),
            seen("b", 0, ContainerState::Running { started_at: life.now }),
        ],
    });
    assert!(life.take_log().is_empty());
    life.exit("b0", 0);
    assert_eq!(life.status(), "Succeeded a=Completed:0/0 b=Completed:0/0");
}

#[test]
fn l5_an_exit_of_one_container_shows_the_back_off_of_another() {
    let mut life = Life::new(json!({"containers": [container("a"), container("b")]}));
    life.settle();
    life.exit("b0", 1);
    life.exit("b1", 1);
    assert_eq!(life.status(), "Running a=running/0 b=Error:1/1");
    life.exit("a0", 1);
    assert_eq!(life.status(), "Running a=running/1 b=CrashLoopBackOff/1");
}

#[test]
fn l5_a_restart_after_a_back_off_that_the_status_has_not_shown_is_preceded_by_it() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.exit("c0", 1);
    life.exit("c1", 1);
    assert_eq!(life.status(), "Running c=Error:1/1");
    life.take_log();
    // The node was busy: the status was due a second ago.
    life.now += SignedDuration::from_secs(10);
    life.settle();
    assert_eq!(life.status(), "Running c=running/2");
    let log = life.take_log();
    let shown = "status Running c=CrashLoopBackOff/1".to_string();
    assert!(log.contains(&shown), "{log:#?}");
}

#[test]
fn l13_only_the_run_that_began_last_is_the_latest() {
    let mut life = Life::new(json!({}));
    life.settle();
    let latest = |life: &Life| ["c0", "c1"].map(|id| life.pod.is_latest_run(&id.into()));
    assert_eq!(latest(&life), [true, false]);
    life.exit("c0", 1);
    assert_eq!(latest(&life), [false, true]);
}
