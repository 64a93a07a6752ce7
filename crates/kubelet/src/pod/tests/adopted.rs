//! What a kubelet that begins finds running, and what it makes of what it does not find.

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
        "the sidecar is there again"
    );
    let status = life.pod.status().init_container_statuses.clone().unwrap();
    let ended = status[0].state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert!(
        ended
            .message
            .as_ref()
            .unwrap()
            .starts_with("Unable to get init container status")
    );
    assert!(status[0].ready);

    // Nothing ran after it: it has still to run.
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
    before.probed(Kind::Readiness, Answer::Success);
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
fn l4_an_end_nobody_saw_is_found_and_one_without_a_trace_is_unknown() {
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
fn t2_a_lost_sandbox_is_made_anew_once_what_runs_in_it_has_had_its_grace() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.now += SignedDuration::from_secs(5);
    life.step(Event::Observed {
        since: life.now,
        sandboxes: vec![runtime::Sandbox {
            ready: false,
            ..sandbox()
        }],
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
    let told = "event SandboxChanged: Pod sandbox changed, it will be killed and re-created.";
    assert!(life.log.contains(&told.to_string()));
}
