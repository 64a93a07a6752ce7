//! A kubelet that starts: the containers that it adopts, and those that it does not find.

use super::*;

fn found(name: &str, id: &str, state: ContainerState, at: Timestamp) -> runtime::Container {
    runtime::Container {
        id: id.into(),
        created_at: at,
        ..seen(name, 0, state)
    }
}

fn begin(life: &mut Life, containers: Vec<runtime::Container>) {
    life.step(Event::Observed {
        since: life.now,
        sandboxes: vec![sandbox()],
        containers,
    });
}

#[test]
fn l10_an_init_container_whose_record_is_gone_is_not_run_again() {
    let running = |life: &Life| ContainerState::Running { started_at: life.now };
    let pod = || {
        let mut sidecar = container("side");
        sidecar["restartPolicy"] = json!("Always");
        Life::new(json!({"initContainers": [container("i"), sidecar]}))
    };
    let mut life = pod();
    let state = running(&life);
    let found = found("c", "c0", state, life.now);
    begin(&mut life, vec![found]);
    life.settle();
    assert_eq!(
        life.status(),
        "Running i=Completed:0/0 side=running/0 c=running/0",
        "the sidecar runs again"
    );
    let status = life.pod.status().init_container_statuses.clone().unwrap();
    let terminated = status[0].state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert!(
        terminated
            .message
            .as_ref()
            .unwrap()
            .starts_with("Unable to get init container status")
    );
    assert!(status[0].ready);

    // No app container ran after it: it has still to run.
    let mut life = pod();
    begin(&mut life, vec![]);
    life.step(Event::VolumesReady);
    let inspects = |a: &Action| matches!(a, Action::InspectImage { container, .. } if container == "i");
    assert!(life.open.iter().any(inspects), "{:?}", life.open);
}

#[test]
fn l8_s1_a_restarted_kubelet_adopts_what_runs_and_keeps_it_ready() {
    let mut c = container("c");
    c["readinessProbe"] = json!({"exec": {}, "periodSeconds": 1});
    let mut before = Life::new(json!({"containers": [c]}));
    before.settle();
    before.probed(Kind::Readiness, ProbeResult::Success);
    let mut life = Life::of(before.object.clone());
    let started_at = before.now;
    life.running.insert("c0".into(), "c".into());
    life.step(Event::Observed {
        since: life.now,
        sandboxes: vec![sandbox()],
        containers: vec![seen("c", 0, ContainerState::Running { started_at })],
    });
    life.settle();
    assert_eq!(life.condition("Ready"), "True");
    assert!(
        !life.log.iter().any(|l| l.starts_with("start")),
        "{:#?}",
        life.log
    );
    life.exit("c0", 1);
    assert_eq!(life.status(), "Running c=running/1");
}

#[test]
fn l4_an_exit_without_a_kubelet_is_found_and_one_without_a_record_is_unknown() {
    let mut before = Life::new(json!({"restartPolicy": "Never"}));
    before.settle();
    let exit = Exit {
        code: 4,
        reason: "Error".into(),
        ..Exit::default()
    };
    for (containers, want) in [
        (
            vec![seen("c", 0, ContainerState::Exited(exit))],
            "Failed c=Error:4/0",
        ),
        (vec![], "Failed c=ContainerStatusUnknown:137/0"),
    ] {
        let mut life = Life::of(before.object.clone());
        life.step(Event::Observed {
            since: life.now,
            sandboxes: vec![sandbox()],
            containers,
        });
        life.settle();
        assert_eq!(life.status(), want);
        assert!(
            !life.log.iter().any(|l| l.starts_with("start")),
            "it is not run a second time"
        );
    }
}

#[test]
fn t2_a_lost_sandbox_is_replaced_once_its_containers_have_had_their_grace_period() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.now += SignedDuration::from_secs(5);
    life.step(Event::Observed {
        since: life.now,
        sandboxes: vec![lost_sandbox()],
        containers: vec![seen("c", 0, ContainerState::Running { started_at: life.now })],
    });
    // Stopping it now would kill what still runs in it.
    assert!(life.open.contains(&Action::StopContainer {
        id: "c0".into(),
        grace_seconds: 30
    }));
    let stop = Action::StopSandbox { id: "s0".into() };
    assert!(!life.open.contains(&stop), "{:?}", life.open);
    life.exit("c0", 137);
    assert!(life.log.contains(&"sandbox stopped".to_string()));
    assert_eq!(life.status(), "Running c=running/1");
    let event = "event SandboxChanged: Pod sandbox changed, it will be killed and re-created.";
    assert!(life.log.contains(&event.to_string()));
}

#[test]
fn s1_a_container_is_not_lost_because_an_older_list_does_not_have_it() {
    for (seconds_after_start, lost) in [(-1, false), (0, false), (1, true)] {
        let mut life = Life::new(json!({}));
        life.settle();
        let since = life.now + SignedDuration::from_secs(seconds_after_start);
        life.now += SignedDuration::from_secs(2);
        life.running.clear();
        life.step(Event::Observed {
            since,
            sandboxes: vec![sandbox()],
            containers: vec![],
        });
        life.settle();
        let started_again = life.log.contains(&"start c1".to_string());
        assert_eq!(started_again, lost, "{seconds_after_start}: {:?}", life.log);
    }
}

#[test]
fn l8_a_restarted_kubelet_keeps_the_reported_probe_results_and_no_more() {
    let mut c = container("c");
    c["startupProbe"] = json!({"exec": {}, "periodSeconds": 1});
    c["readinessProbe"] = json!({"exec": {}, "periodSeconds": 1});
    for (started, ready) in [(false, false), (true, false), (true, true)] {
        let mut before = Life::new(json!({"containers": [c.clone()]}));
        before.settle();
        before.wait(1);
        if started {
            before.probed(Kind::Startup, ProbeResult::Success);
        }
        if ready {
            before.wait(1);
            before.probed(Kind::Readiness, ProbeResult::Success);
        }
        let mut life = Life::of(before.object.clone());
        life.running.insert("c0".into(), "c".into());
        let started_at = before.now;
        life.now = before.now;
        begin(
            &mut life,
            vec![seen("c", 0, ContainerState::Running { started_at })],
        );
        life.settle();
        life.wait(2);
        let is_probed = life.log.contains(&"probe c Startup".to_string());
        assert_eq!(is_probed, !started, "{started} {ready}: {:?}", life.log);
        assert_eq!(
            life.condition("Ready").starts_with("True"),
            ready,
            "{started} {ready}"
        );
    }
}

#[test]
fn l5_back_off_does_not_outlive_the_kubelet() {
    let exit = Exit {
        code: 1,
        ..Exit::default()
    };
    for attempt in [0, 1, 9] {
        let mut life = Life::new(json!({}));
        let ended = Exit {
            finished_at: Some(life.now),
            ..exit.clone()
        };
        begin(&mut life, vec![seen("c", attempt, ContainerState::Exited(ended))]);
        life.settle();
        assert_eq!(life.status(), format!("Running c=running/{}", attempt + 1));
    }
}

#[test]
fn l4_the_run_before_the_one_that_is_found_is_the_last_state() {
    let mut life = Life::new(json!({}));
    let exit = Exit {
        code: 4,
        ..Exit::default()
    };
    let started_at = life.now;
    let (old, new) = (
        seen("c", 0, ContainerState::Exited(exit)),
        seen("c", 1, ContainerState::Running { started_at }),
    );
    assert_ne!(old.id, new.id);
    let old_id = old.id.clone();
    life.running.insert(new.id.clone(), "c".into());
    begin(&mut life, vec![old, new]);
    life.settle();
    let statuses = life.pod.status().container_statuses.clone().unwrap();
    let last = statuses[0].last_state.clone().unwrap().terminated.unwrap();
    assert_eq!((last.exit_code, statuses[0].restart_count), (4, 1));
    assert!(life.pod.containers[0].runs.is_dead(&old_id));
}

#[test]
fn s1_a_sandbox_is_not_lost_because_an_older_list_does_not_have_it() {
    for (seconds_after_creation, lost) in [(-1, false), (0, false), (1, true)] {
        let mut life = Life::new(json!({}));
        life.settle();
        let started_at = life.now;
        let since = life.now + SignedDuration::from_secs(seconds_after_creation);
        life.now += SignedDuration::from_secs(2);
        life.step(Event::Observed {
            since,
            sandboxes: vec![],
            containers: vec![seen("c", 0, ContainerState::Running { started_at })],
        });
        life.settle();
        let changed = life.log.iter().any(|l| l.starts_with("event SandboxChanged"));
        assert_eq!(changed, lost, "{seconds_after_creation}: {:?}", life.log);
    }
}

#[test]
fn t3_a_failed_start_is_final_only_when_the_earlier_kubelets_request_cannot_start_the_container_any_more() {
    let failed = |still_created| Event::ContainerStartFailed {
        container: "c".into(),
        id: "c0".into(),
        message: "already in starting state".into(),
        still_created,
    };
    // Everything but the start succeeds.
    let proceed = |life: &mut Life| {
        life.step(Event::Timer);
        loop {
            let open = life.open.iter().enumerate();
            let mut others = open.filter(|(_, a)| !matches!(a, Action::StartContainer { .. }));
            let Some((at, event)) = others.find_map(|(at, a)| Some((at, life.success_event(a)?))) else {
                return;
            };
            life.give(at, event);
        }
    };
    let adopted = || {
        let mut life = Life::new(json!({"restartPolicy": "Never"}));
        life.step(Event::Observed {
            since: life.now,
            sandboxes: vec![sandbox()],
            containers: vec![seen("c", 0, ContainerState::Created)],
        });
        proceed(&mut life);
        life
    };
    let starts = |life: &Life| {
        let open = life.open.iter();
        open.filter(|a| matches!(a, Action::StartContainer { .. }))
            .count()
    };
    let fail = |life: &mut Life, still_created| {
        let at = life
            .open
            .iter()
            .position(|a| matches!(a, Action::StartContainer { .. }));
        life.give(at.unwrap(), failed(still_created));
    };

    let mut life = adopted();
    fail(&mut life, true);
    assert_eq!(life.status(), "Pending c=RunContainerError/0");
    assert_eq!(starts(&life), 0, "in back-off");
    life.now += SignedDuration::from_secs(30);
    proceed(&mut life);
    assert_eq!(starts(&life), 1, "it is tried again");
    life.settle();
    assert_eq!(life.status(), "Running c=running/0");

    let mut life = adopted();
    fail(&mut life, false);
    life.settle();
    assert_eq!(
        life.status(),
        "Failed c=StartError:128/0",
        "the runtime has given it up"
    );

    let mut life = adopted();
    for _ in 0..20 {
        fail(&mut life, true);
        life.now += SignedDuration::from_secs(30);
        proceed(&mut life);
        if starts(&life) == 0 {
            break;
        }
    }
    life.settle();
    assert_eq!(
        life.status(),
        "Failed c=StartError:128/0",
        "after two minutes it is final"
    );
}
