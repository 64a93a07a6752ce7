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
