//! An exit of one container that restarts all of them in place (SPEC L5).

use super::*;

fn life() -> Life {
    let mut source = container("c");
    source["restartPolicy"] = json!("Never");
    source["restartPolicyRules"] =
        json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let mut side = container("side");
    side["restartPolicy"] = json!("Always");
    Life::new(json!({
        "restartPolicy": "Never",
        "initContainers": [container("i"), side],
        "containers": [source, container("d")],
    }))
}

fn running(life: &Life) -> Vec<&str> {
    life.running.keys().map(ContainerId::as_str).collect()
}

#[test]
fn l5_a_rule_restarts_all_containers_from_the_beginning_in_the_same_sandbox() {
    let mut life = life();
    life.settle();
    life.exit("i0", 0);
    assert_eq!(running(&life), ["c0", "d0", "side0"]);
    assert_eq!(life.condition("AllContainersRestarting"), "False");
    life.take_log();
    life.exit("c0", 42);
    let log = life.take_log();
    for stopped in ["stop side0 2", "stop d0 2"] {
        assert!(log.iter().any(|l| l == stopped), "{stopped} is not in {log:?}");
    }
    assert_eq!(
        life.condition("AllContainersRestarting"),
        "True/RestartAllContainersStarted/container exited with restart policy rule"
    );
    life.exit("d0", 137);
    assert_eq!(running(&life), ["side0"], "nothing starts before all have exited");
    life.exit("side0", 143);
    assert_eq!(running(&life), ["i1"], "init containers run first again");
    assert_eq!(life.condition("AllContainersRestarting"), "False");
    assert_eq!(life.condition("Initialized"), "True", "once it was, it is");
    let status = life.pod.status();
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    let there = core::PodStatus {
        phase: Some("Running".into()),
        ..core::PodStatus::default()
    };
    assert_eq!(
        merge(&there, status).phase.as_deref(),
        Some("Pending"),
        "and so it is written"
    );
    let of_source = &status.container_statuses.as_ref().unwrap()[0];
    let waiting = of_source.state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(
        (waiting.reason.as_deref(), &waiting.message),
        (Some("PodInitializing"), &None)
    );
    assert_eq!(of_source.restart_count, 1);
    let last = of_source
        .last_state
        .as_ref()
        .unwrap()
        .terminated
        .as_ref()
        .unwrap();
    assert_eq!(
        (last.reason.as_deref(), last.exit_code),
        (Some("RestartingAllContainers"), 137)
    );
    assert_eq!(
        last.message.as_deref(),
        Some("The container is removed because RestartAllContainers in place")
    );
    life.exit("i1", 0);
    assert_eq!(running(&life), ["c1", "d1", "side1"]);
    let counts = |life: &Life| -> Vec<i32> {
        let status = life.pod.status();
        let lists = [&status.init_container_statuses, &status.container_statuses];
        let all = lists.into_iter().flat_map(|l| l.iter().flatten());
        all.map(|s| s.restart_count).collect()
    };
    assert_eq!(counts(&life), [1, 1, 1, 1]);
    assert!(!life.log.iter().any(|l| l.contains("sandbox")), "{:?}", life.log);
    // It may happen again; other exit codes have their usual effect.
    life.exit("c1", 42);
    for id in ["d1", "side1"] {
        life.exit(id, 137);
    }
    life.exit("i2", 0);
    assert_eq!(running(&life), ["c2", "d2", "side2"]);
    life.exit("c2", 1);
    assert_eq!(running(&life), ["d2", "side2"]);
}

#[test]
fn l5_a_pod_that_is_deleted_during_a_restart_of_all_terminates() {
    let mut life = life();
    life.settle();
    life.exit("i0", 0);
    life.exit("c0", 42);
    life.delete(30);
    for id in ["d0", "side0"] {
        life.exit(id, 137);
    }
    assert!(running(&life).is_empty());
    assert_eq!(life.log.last().unwrap(), "delete");
    assert!(!life.log.iter().any(|l| l == "start i1"), "{:?}", life.log);
}

#[test]
fn l5_the_exits_of_a_restart_of_all_do_not_complete_the_pod() {
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let mut source = container("source");
    source["restartPolicy"] = json!("Always");
    source["restartPolicyRules"] = rules;
    let mut life = Life::new(json!({
        "restartPolicy": "Never",
        "initContainers": [source.clone()],
        "containers": [container("d")],
    }));
    life.settle();
    life.exit("source0", 42);
    life.exit("d0", 137);
    assert_eq!(running(&life), ["d1", "source1"], "{:?}", life.log);
    assert_eq!(life.status(), "Running source=running/1 d=running/1");

    // Nor does the exit of an init container that was stopped.
    let mut life = Life::new(json!({
        "restartPolicy": "Never",
        "initContainers": [source, container("i")],
        "containers": [container("d")],
    }));
    life.settle();
    assert_eq!(running(&life), ["i0", "source0"]);
    life.exit("source0", 42);
    assert_eq!(life.pod.status().phase.as_deref(), Some("Pending"));
    life.exit("i0", 137);
    assert_eq!(running(&life), ["i1", "source1"], "{:?}", life.log);
    life.exit("i1", 0);
    assert_eq!(running(&life), ["d0", "source1"]);
}

#[test]
fn l5_a_restart_of_all_runs_no_hooks_and_leaves_ephemeral_containers_alone() {
    let mut source = container("c");
    source["restartPolicy"] = json!("Never");
    source["restartPolicyRules"] =
        json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let mut hooked = container("d");
    hooked["lifecycle"] = json!({"preStop": {"exec": {"command": ["x"]}}});
    let mut life = Life::new(json!({
        "containers": [source, hooked],
        "ephemeralContainers": [container("debug")],
    }));
    life.settle();
    assert_eq!(running(&life), ["c0", "d0", "debug0"]);
    life.take_log();
    life.exit("c0", 42);
    let log = life.take_log();
    let stops: Vec<&String> = log
        .iter()
        .filter(|l| l.starts_with("stop") || l.starts_with("hook"))
        .collect();
    assert_eq!(stops, ["stop d0 2"], "{log:#?}");
    life.exit("d0", 137);
    assert_eq!(running(&life), ["c1", "d1", "debug0"]);
}

#[test]
fn l6_the_condition_of_a_restart_of_all_shows_how_the_pod_ended() {
    for (code, phase, condition) in [
        (0, "Succeeded", "False/PodCompleted"),
        (1, "Failed", "False/PodFailed"),
    ] {
        let mut life = life();
        life.settle();
        for (id, code) in [("i0", 0), ("c0", code), ("d0", 0), ("side0", 0)] {
            life.exit(id, code);
        }
        assert_eq!(life.pod.status().phase.as_deref(), Some(phase));
        assert_eq!(life.condition("AllContainersRestarting"), condition);
    }
}

#[test]
fn l1_a_phase_that_an_earlier_kubelet_reported_is_not_reset_without_a_restart_of_all() {
    let of = |phase: &str| core::PodStatus {
        phase: Some(phase.into()),
        ..core::PodStatus::default()
    };
    let merged = merge(&of("Running"), &of("Pending"));
    assert_eq!(merged.phase.as_deref(), Some("Running"));
    // The next kubelet finds nothing of what ran.
    let mut before = Life::new(json!({}));
    before.object.status = Some(of("Running"));
    let mut life = Life::of(before.object);
    life.step(Event::Timer);
    assert_eq!(life.log, ["status Running c=ContainerCreating/0"]);
}
