//! Containers that failed a probe, and restart policies.

use super::*;

#[test]
fn l5_l8_on_failure_restarts_a_container_that_failed_its_probe_whatever_its_exit_code() {
    for (own, pods, again) in [
        (None, "OnFailure", true),
        (Some("OnFailure"), "Never", true),
        (None, "Never", false),
        (Some("Never"), "Always", false),
    ] {
        for kind in [Kind::Liveness, Kind::Startup] {
            let mut spec = container("c");
            let name = match kind {
                Kind::Startup => "startupProbe",
                _ => "livenessProbe",
            };
            spec[name] = json!({"exec": {"command": ["x"]}, "periodSeconds": 1, "failureThreshold": 1});
            if let Some(own) = own {
                spec["restartPolicy"] = json!(own);
            }
            let mut life = Life::new(json!({"containers": [spec], "restartPolicy": pods}));
            life.settle();
            let end = |life: &mut Life, id: &str| {
                life.step(Event::Probed {
                    id: id.into(),
                    kind,
                    result: ProbeResult::Failure(String::new()),
                });
                life.open.retain(|a| !matches!(a, Action::StopContainer { .. }));
                life.exit(id, 0);
            };
            end(&mut life, "c0");
            if !again {
                assert_eq!(
                    life.status(),
                    "Succeeded c=Completed:0/0",
                    "{own:?} {pods} {kind:?}"
                );
                continue;
            }
            assert_eq!(life.status(), "Running c=running/1", "{own:?} {pods} {kind:?}");
            end(&mut life, "c1");
            assert_eq!(life.status(), "Running c=running/2", "{own:?} {pods} {kind:?}");
            // A container in back-off is handled by its exit code meanwhile.
            end(&mut life, "c2");
            assert_eq!(
                life.status(),
                "Succeeded c=Completed:0/2",
                "{own:?} {pods} {kind:?}"
            );
        }
    }
}

/// A container with a liveness probe whose failureThreshold is 1.
fn probed(name: &str) -> Value {
    let mut spec = container(name);
    spec["livenessProbe"] = json!({
        "exec": {"command": ["x"]},
        "periodSeconds": 1,
        "failureThreshold": 1,
        "terminationGracePeriodSeconds": 7,
    });
    spec
}

fn fails(life: &mut Life, id: &str) {
    life.step(Event::Probed {
        id: id.into(),
        kind: Kind::Liveness,
        result: ProbeResult::Failure(String::new()),
    });
    life.settle();
}

#[test]
fn l8_l10_a_failed_probe_of_the_last_container_terminates_the_pod_and_its_sidecars() {
    let mut sidecar = probed("side");
    sidecar["restartPolicy"] = json!("Always");
    let mut life = Life::new(json!({
        "initContainers": [sidecar],
        "containers": [probed("a"), container("b")],
        "restartPolicy": "Never",
    }));
    life.settle();
    life.take_log();
    fails(&mut life, "a0");
    let log = life.take_log();
    assert!(
        log.contains(&"event Killing: Container a failed liveness probe".to_string()),
        "{log:#?}"
    );
    assert!(
        log.contains(&"stop a0 7".to_string()),
        "the probe's own grace: {log:#?}"
    );
    life.exit("a0", 0);
    life.exit("b0", 0);
    assert!(life.pod.is_terminating());

    let mut sidecar = probed("side");
    sidecar["restartPolicy"] = json!("Always");
    let mut life = Life::new(json!({
        "initContainers": [sidecar],
        "containers": [probed("a")],
        "restartPolicy": "Never",
    }));
    life.settle();
    life.take_log();
    fails(&mut life, "a0");
    let log = life.take_log();
    assert!(
        log.contains(&"event Killing: Stopping container a".to_string()),
        "{log:#?}"
    );
    assert!(
        log.contains(&"stop a0 30".to_string()),
        "the pod's grace: {log:#?}"
    );
    assert!(
        !log.iter().any(|l| l.starts_with("stop side0")),
        "in its turn: {log:#?}"
    );
    assert_eq!(life.status(), "Running side=running/0 a=running/0");
    life.wait(5);
    let log = life.take_log();
    assert!(
        !log.contains(&"probe side Liveness".to_string()),
        "it is not probed any more: {log:#?}"
    );
    // Nor is it started again.
    life.exit("side0", 1);
    life.wait(20);
    let log = life.take_log();
    assert!(!log.iter().any(|l| l.starts_with("start ")), "{log:#?}");
    life.exit("a0", 0);
    assert!(life.status().starts_with("Succeeded"), "{}", life.status());
}
