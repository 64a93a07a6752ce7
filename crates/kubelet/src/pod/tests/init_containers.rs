//! Init containers and sidecars, also in a sandbox that replaces another.

use super::*;

#[test]
fn l10_init_containers_run_first_and_sidecars_stop_last() {
    let mut side = container("s");
    side["restartPolicy"] = json!("Always");
    let mut late = container("t");
    late["restartPolicy"] = json!("Always");
    let spec = json!({"initContainers": [container("i"), side, late], "containers": [container("a"), container("b")]});
    let mut life = Life::new(spec);
    life.settle();
    assert_eq!(
        life.status(),
        "Pending i=running/0 s=PodInitializing/0 t=PodInitializing/0 a=PodInitializing/0 b=PodInitializing/0"
    );
    assert_eq!(
        life.condition("Initialized"),
        "False/ContainersNotInitialized/containers with incomplete status: [i s t]"
    );
    life.exit("i0", 0);
    let starts: Vec<_> = life
        .log
        .iter()
        .filter(|l| l.starts_with("start"))
        .cloned()
        .collect();
    assert_eq!(
        starts,
        ["start i0", "start s0", "start t0", "start a0", "start b0"]
    );
    assert_eq!(life.condition("Ready"), "True");
    life.take_log();
    life.delete(30);
    let stops = |life: &mut Life| -> Vec<String> {
        life.take_log()
            .into_iter()
            .filter(|l| l.starts_with("stop"))
            .collect()
    };
    assert_eq!(stops(&mut life), ["stop a0 30", "stop b0 30"]);
    life.wait(4);
    life.exit("a0", 0);
    assert!(stops(&mut life).is_empty(), "b still runs");
    life.exit("b0", 0);
    assert_eq!(stops(&mut life), ["stop t0 26"]);
    life.exit("t0", 0);
    assert_eq!(stops(&mut life), ["stop s0 26"]);
    life.exit("s0", 0);
    assert_eq!(life.log.last().unwrap(), "delete");
}

#[test]
fn l10_sidecars_do_not_keep_a_pod_from_completing() {
    let mut side = container("s");
    side["restartPolicy"] = json!("Always");
    let mut life = Life::new(json!({"initContainers": [side], "restartPolicy": "Never"}));
    life.settle();
    life.exit("c0", 0);
    assert!(life.log.contains(&"stop s0 30".to_string()));
    life.exit("s0", 0);
    assert_eq!(life.status(), "Succeeded s=Completed:0/0 c=Completed:0/0");
}

#[test]
fn l10_a_failed_init_container_fails_a_pod_that_never_restarts() {
    for (policy, want) in [
        ("Never", "Failed i=Error:1/0 c=PodInitializing/0"),
        ("OnFailure", "Pending i=running/1 c=PodInitializing/0"),
    ] {
        let mut life = Life::new(json!({"initContainers": [container("i")], "restartPolicy": policy}));
        life.settle();
        life.exit("i0", 1);
        assert_eq!(life.status(), want);
    }
}

#[test]
fn l10_a_new_sandbox_is_initialized_from_the_beginning() {
    for (app_ran, policy) in [(false, "Always"), (false, "Never"), (true, "Always")] {
        let mut life = Life::new(json!({
            "initContainers": [container("i"), container("j")],
            "restartPolicy": policy,
        }));
        life.settle();
        life.exit("i0", 0);
        if app_ran {
            life.exit("j0", 0);
        }
        let runs = if app_ran { "c0" } else { "j0" };
        life.now += SignedDuration::from_secs(5);
        life.take_log();
        life.step(Event::Observed {
            since: life.now,
            sandboxes: vec![lost_sandbox()],
            containers: vec![seen(
                &runs[..1],
                0,
                ContainerState::Running { started_at: life.now },
            )],
        });
        // It exits with 0 after TERM: that does not count as initialized.
        life.exit(runs, 0);
        life.wait(60);
        life.exit("i1", 0);
        life.wait(60);
        life.exit("j1", 0);
        life.wait(60);
        let log = life.take_log();
        let started: Vec<_> = log
            .iter()
            .filter(|l| l.starts_with("start") || l.starts_with("exit"))
            .collect();
        let app = if app_ran { "start c1" } else { "start c0" };
        let end = format!("exit {runs} 0");
        assert_eq!(
            started,
            [
                end.as_str(),
                "start i1",
                "exit i1 0",
                "start j1",
                "exit j1 0",
                app
            ],
            "{policy}"
        );
    }
}

#[test]
fn s3_l10_a_start_that_began_in_a_lost_sandbox_does_not_go_on_in_the_next() {
    let inspects = |a: &Action| matches!(a, Action::InspectImage { container, .. } if container != "i");
    let pulls = |a: &Action| matches!(a, Action::PullImage { .. });
    for is_held in [inspects as fn(&Action) -> bool, pulls] {
        for (has_sidecar, starts) in [
            (false, vec!["start i0", "start i1", "start c0"]),
            (true, vec!["start i0", "start i1", "start s0", "start c0"]),
        ] {
            let mut side = container("s");
            side["restartPolicy"] = json!("Always");
            let mut init = vec![container("i")];
            init.extend(has_sidecar.then_some(side));
            let mut life = Life::new(json!({"initContainers": init}));
            life.failure_of = |action| match action {
                Action::InspectImage { container, .. } if container != "i" => Some(Event::ImageInspected {
                    container: container.clone(),
                    present: Ok(false),
                }),
                _ => None,
            };
            life.settle();
            life.is_held = is_held;
            life.exit("i0", 0);
            assert!(life.open.iter().any(is_held), "{:?}", life.open);
            life.now += SignedDuration::from_secs(5);
            life.step(Event::Observed {
                since: life.now,
                sandboxes: vec![lost_sandbox()],
                containers: vec![],
            });
            life.settle();
            assert_eq!(life.pod.sandboxes.ready(), Some(&"s1".into()));
            life.is_held = |_| false;
            life.settle();
            life.exit("i1", 0);
            life.wait(60);
            let log = life.take_log();
            let started: Vec<_> = log.iter().filter(|l| l.starts_with("start")).collect();
            assert_eq!(started, starts);
        }
    }
}

#[test]
fn l10_a_rebooted_nodes_pods_are_initialized_again() {
    let mut life = Life::new(json!({"initContainers": [container("i")]}));
    life.settle();
    life.exit("i0", 0);
    // Another kubelet, after the reboot.
    let mut life = Life::of(life.object);
    life.now += SignedDuration::from_secs(100);
    let exited = |name: &str, code: i32| {
        let exit = Exit {
            code,
            started_at: Some(life.now),
            finished_at: Some(life.now),
            ..Exit::default()
        };
        seen(name, 0, ContainerState::Exited(exit))
    };
    life.step(Event::Observed {
        since: life.now,
        sandboxes: vec![lost_sandbox()],
        containers: vec![exited("i", 0), exited("c", 255)],
    });
    let made =
        |action: &Action| matches!(action, Action::CreateContainer { container, .. } if container == "i");
    while !life.open.iter().any(made) {
        let at = life
            .open
            .iter()
            .position(|a| life.success_event(a).is_some())
            .unwrap();
        life.give(at, life.success_event(&life.open[at]).unwrap());
    }
    // The first attempt fails, which does not count as completed.
    life.open.retain(|a| !made(a));
    life.step(Event::ContainerCreateFailed {
        container: "i".into(),
        reason: CreateFailure::Creation,
        message: "x".into(),
    });
    life.settle();
    life.wait(60);
    assert!(!life.log.contains(&"start c1".to_string()), "{:?}", life.log);
    let init = life.running.keys().next().unwrap().clone();
    assert_eq!(life.running[&init], "i");
    life.exit(&init, 0);
    life.wait(60);
    assert!(life.running.contains_key("c1"), "{:?}", life.log);
}
