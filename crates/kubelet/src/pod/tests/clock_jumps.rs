//! The wall clock is set while a pod runs: nothing happens sooner or later for it.

use super::*;

/// A pod and what happens to it.
struct Script {
    spec: Value,
    seconds: i64,
    /// Runs exit after this many seconds, with this code.
    runs: Option<(i64, i32)>,
    /// Deleted at this second, with this grace period.
    deleted: Option<(i64, i64)>,
    failure_of: fn(&Action) -> Option<Event>,
}

impl Default for Script {
    fn default() -> Self {
        Script {
            spec: json!({}),
            seconds: 90,
            runs: None,
            deleted: None,
            failure_of: |_| None,
        }
    }
}

/// The log with the second of each entry. With a jump, the clock is set at the end of that second.
fn history(script: &Script, jump: Option<(i64, SignedDuration)>) -> Vec<(i64, String)> {
    let mut life = Life::new(script.spec.clone());
    life.failure_of = script.failure_of;
    let mut happened = Vec::new();
    let mut since: BTreeMap<ContainerId, i64> = BTreeMap::new();
    for second in 0..script.seconds {
        life.wait(1);
        probes(&mut life);
        if let Some((at, grace)) = script.deleted
            && at == second
        {
            life.delete(grace);
        }
        let stops: Vec<ContainerId> = life
            .open
            .iter()
            .filter_map(|a| match a {
                Action::StopContainer { id, .. } => Some(id.clone()),
                _ => None,
            })
            .collect();
        let running: Vec<ContainerId> = life.running.keys().cloned().collect();
        for id in running {
            let ran = second - *since.entry(id.clone()).or_insert(second);
            match script.runs {
                Some((seconds, code)) if ran >= seconds => life.exit(&id, code),
                // It exits on TERM, but not at once.
                _ if stops.contains(&id) && second % 30 == 0 => life.exit(&id, 143),
                _ => {}
            }
        }
        happened.extend(life.take_log().into_iter().map(|what| (second, what)));
        if let Some((at, by)) = jump
            && at == second
        {
            life.now += by;
            life.timer = life.timer.map(|at| at + by);
            life.step(Event::ClockJumped { by });
            life.settle();
        }
    }
    happened
}

/// Readiness succeeds, liveness fails.
fn probes(life: &mut Life) {
    for (kind, answer) in [
        (Kind::Liveness, ProbeResult::Failure("no".into())),
        (Kind::Readiness, ProbeResult::Success),
    ] {
        let is_probe = |a: &Action| matches!(a, Action::Probe { kind: k, .. } if *k == kind);
        while life.open.iter().any(is_probe) {
            life.probed(kind, answer.clone());
        }
    }
}

fn no_sandbox(action: &Action) -> Option<Event> {
    let message = "no".into();
    matches!(action, Action::CreateSandbox { .. }).then_some(Event::SandboxFailed { message })
}

fn no_image(action: &Action) -> Option<Event> {
    match action.clone() {
        Action::PullImage { container, .. } => Some(Event::ImagePulled {
            container,
            result: Err(ActionError::new("no")),
        }),
        _ => None,
    }
}

#[test]
fn t2_l5_l8_a_clock_that_jumps_by_hours_changes_nothing() {
    let probed = json!({
        "name": "c", "image": "busybox",
        "livenessProbe": {"exec": {"command": ["x"]}, "periodSeconds": 5, "failureThreshold": 2, "initialDelaySeconds": 3},
        "readinessProbe": {"exec": {"command": ["x"]}, "periodSeconds": 4},
    });
    let hooked = json!({
        "name": "c", "image": "busybox", "lifecycle": {"preStop": {"exec": {"command": ["x"]}}},
    });
    let scripts = [
        (
            "crashes",
            Script {
                runs: Some((2, 1)),
                ..Script::default()
            },
        ),
        (
            "completes",
            Script {
                spec: json!({"restartPolicy": "Never"}),
                runs: Some((30, 0)),
                ..Script::default()
            },
        ),
        (
            "is probed",
            Script {
                spec: json!({"containers": [probed]}),
                ..Script::default()
            },
        ),
        (
            "has a deadline",
            Script {
                spec: json!({"activeDeadlineSeconds": 40}),
                ..Script::default()
            },
        ),
        (
            "is deleted",
            Script {
                deleted: Some((10, 30)),
                ..Script::default()
            },
        ),
        (
            "has a hook that hangs",
            Script {
                spec: json!({"containers": [hooked]}),
                deleted: Some((10, 20)),
                ..Script::default()
            },
        ),
        (
            "gets no sandbox",
            Script {
                failure_of: no_sandbox,
                ..Script::default()
            },
        ),
        (
            "gets no image",
            Script {
                spec: json!({"containers": [{"name": "c", "image": "x", "imagePullPolicy": "Always"}]}),
                failure_of: no_image,
                ..Script::default()
            },
        ),
    ];
    for (what, script) in scripts {
        let calm = history(&script, None);
        assert!(
            calm.iter().any(|(second, _)| *second > 20),
            "{what}: too short to say anything"
        );
        for at in 0..script.seconds {
            for by in [3, -3].map(SignedDuration::from_hours) {
                let jumped = history(&script, Some((at, by)));
                assert_eq!(jumped, calm, "a pod that {what}, the clock {by} at second {at}");
            }
        }
    }
}
