//! Events in any order: nothing runs twice and nothing is deleted too early.

use super::*;

/// Results in any order, failures, exits and deletions at any time: nothing runs twice, nothing starts once the pod is
/// terminating, and the object is deleted only after everything else.
#[test]
fn s1_t5_no_order_of_events_runs_anything_twice_or_deletes_too_early() {
    for seed in 0..400_u64 {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            usize::try_from(random % below as u64).unwrap()
        };
        let mut side = container("s");
        side["restartPolicy"] = json!("Always");
        let mut a = container("a");
        a["lifecycle"] = json!({"preStop": {"exec": {}}, "postStart": {"exec": {}}});
        a["livenessProbe"] = json!({"exec": {}, "periodSeconds": 1, "failureThreshold": 2});
        let policy = ["Always", "OnFailure", "Never"][next(3)];
        let spec = json!({"initContainers": [container("i"), side], "containers": [a, container("b")], "restartPolicy": policy});
        let mut life = Life::new(spec);
        life.step(Event::Timer);
        let delete_at = next(150);
        let mut made_before_the_end = usize::MAX;
        let being_made = |life: &Life| {
            let of = |a: &&Action| matches!(a, Action::CreateContainer { .. } | Action::CreateSandbox { .. });
            life.open.iter().filter(of).count()
        };
        for turn in 0..5000 {
            if turn == delete_at {
                life.object.metadata.deletion_timestamp = Some(Time(life.now));
                life.object.metadata.deletion_grace_period_seconds = Some(5);
                life.step(Event::Updated(Arc::new(life.object.clone())));
            }
            match next(10) {
                0 => {
                    life.now += SignedDuration::from_millis(700);
                    life.step(Event::Timer);
                }
                1 if !life.running.is_empty() => {
                    let at = next(life.running.len());
                    let id = life.running.keys().nth(at).cloned().unwrap();
                    life.running.remove(&id);
                    let exit = Exit {
                        code: i32::try_from(next(2)).unwrap(),
                        finished_at: Some(life.now),
                        ..Exit::default()
                    };
                    life.step(Event::ContainerExited { id, exit });
                }
                _ if !life.open.is_empty() => {
                    let at = next(life.open.len());
                    let action = life.open[at].clone();
                    let fails = next(6) == 0;
                    let event = match action {
                        Action::SetUpVolumes if fails => Event::VolumesFailed {
                            reason: "FailedMount",
                            message: "x".into(),
                            is_external: false,
                        },
                        Action::CreateSandbox { .. } if fails => Event::SandboxFailed { message: "x".into() },
                        Action::CreateContainer { container, .. } if fails => Event::ContainerCreateFailed {
                            container,
                            reason: CreateFailure::Creation,
                            message: "x".into(),
                        },
                        Action::StartContainer { container, id } if fails => Event::ContainerStartFailed {
                            container,
                            id,
                            message: "x".into(),
                            still_created: false,
                        },
                        Action::RunHook { id, hook, .. } => Event::HookDone {
                            id,
                            hook,
                            result: if fails { Err(ActionError::new("x")) } else { Ok(()) },
                        },
                        Action::Probe { id, kind, .. } => Event::Probed {
                            id,
                            kind,
                            result: if fails {
                                ProbeResult::Failure("x".into())
                            } else {
                                ProbeResult::Success
                            },
                        },
                        Action::StopContainer { id, .. } if fails => Event::StopFailed {
                            id,
                            message: "x".into(),
                        },
                        Action::StopContainer { id, .. } => {
                            if life.running.remove(&id).is_none() {
                                life.open.remove(at);
                                continue;
                            }
                            Event::ContainerExited {
                                id,
                                exit: Exit::default(),
                            }
                        }
                        other => life.success_event(&other).expect("every action has a result"),
                    };
                    life.give(at, event);
                }
                _ => {}
            }
            if life.pod.is_terminating() {
                let now_made = being_made(&life);
                assert!(
                    now_made <= made_before_the_end,
                    "seed {seed}: something is started during the termination"
                );
                made_before_the_end = now_made;
            }
            if let Some(deleted) = life.log.iter().position(|l| l == "delete") {
                assert!(
                    life.running.is_empty(),
                    "seed {seed}: something still runs: {:?}",
                    life.running
                );
                assert!(
                    life.log[deleted..].iter().all(|l| !l.starts_with("start")),
                    "seed {seed}"
                );
                break;
            }
        }
        assert!(
            life.log.contains(&"delete".to_string()),
            "seed {seed} never ends: open {:?} log {:#?}",
            life.open,
            &life.log[life.log.len().saturating_sub(12)..]
        );
    }
}
