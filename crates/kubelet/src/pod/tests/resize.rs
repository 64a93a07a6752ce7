//! Resizes: what is asked for, allocated and there, of containers and of the pod as a whole.

use super::*;

fn requirements(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

/// A running pod that has this as a whole, and nothing but that.
fn running(whole: Value) -> Life {
    let mut life = Life::new(json!({"resources": whole}));
    life.settle();
    life.take_log();
    life
}

/// The spec asks for something else, as its next generation.
fn ask(life: &mut Life, change: impl FnOnce(&mut core::PodSpec)) {
    let generation = &mut life.object.metadata.generation;
    *generation = generation.map(|g| g + 1);
    change(life.object.spec.as_mut().unwrap());
    life.step(Event::Updated(Arc::new(life.object.clone())));
}

fn ask_whole(life: &mut Life, whole: Value) {
    ask(life, |spec| {
        spec.resources = serde_json::from_value(whole).unwrap()
    });
}

fn admit(life: &mut Life) {
    assert_eq!(life.open, [Action::AdmitResize]);
    life.open.clear();
    life.step(Event::ResizeAdmitted(Ok(())));
}

fn refuse(life: &mut Life) {
    assert_eq!(life.open, [Action::AdmitResize]);
    life.open.clear();
    life.step(Event::ResizeAdmitted(Err(Rejection {
        reason: "OutOfmemory".into(),
        message: "full".into(),
    })));
}

fn resized(life: &mut Life, done: &[&str], result: Result<(), String>) {
    assert!(
        matches!(life.open[..], [Action::Resize { .. }]),
        "{:?}",
        life.open
    );
    life.open.clear();
    let done = done.iter().map(|id| (*id).to_string()).collect();
    life.step(Event::Resized { done, result });
}

/// `status.allocatedResources`, `status.resources` and the conditions of a resize, in short.
fn shown(life: &Life) -> String {
    let status = life.pod.status();
    let list = |l: &Option<BTreeMap<String, Quantity>>| -> String {
        let l = l.iter().flatten().map(|(name, q)| format!("{name}={}", q.0));
        l.collect::<Vec<_>>().join(",")
    };
    let resources = status.resources.clone().unwrap();
    let conditions = status.conditions.iter().flatten();
    let conditions = conditions.filter(|c| c.type_.starts_with("PodResize"));
    let conditions: Vec<String> = conditions
        .map(|c| format!(" {}/{}", &c.type_[9..], c.reason.as_deref().unwrap_or("")))
        .collect();
    format!(
        "allocated {} requests {} limits {}{}",
        list(&status.allocated_resources),
        list(&resources.requests),
        list(&resources.limits),
        conditions.concat()
    )
}

fn reasons(life: &mut Life) -> Vec<String> {
    let log = life.take_log();
    let events = log.iter().filter_map(|l| l.strip_prefix("event "));
    events.map(|e| e.split(':').next().unwrap().to_string()).collect()
}

#[test]
fn l4_pod_level_resources_are_allocated_then_brought_about() {
    let mut life = running(requirements("100m", "64Mi"));
    let before = "allocated cpu=100m,memory=64Mi requests cpu=100m,memory=64Mi limits cpu=100m,memory=64Mi";
    assert_eq!(shown(&life), before);
    ask_whole(&mut life, requirements("200m", "32Mi"));
    assert_eq!(shown(&life), before, "the node has not answered");
    admit(&mut life);
    assert_eq!(
        shown(&life),
        "allocated cpu=200m,memory=32Mi requests cpu=100m,memory=64Mi limits cpu=100m,memory=64Mi InProgress/"
    );
    // The container has the pod's limits for want of its own.
    let containers = vec![("c".to_string(), "c0".to_string())];
    assert_eq!(life.open, [Action::Resize { containers }]);
    resized(&mut life, &["c0"], Ok(()));
    assert_eq!(
        shown(&life),
        "allocated cpu=200m,memory=32Mi requests cpu=200m,memory=32Mi limits cpu=200m,memory=32Mi"
    );
    assert_eq!(reasons(&mut life), ["ResizeStarted", "ResizeCompleted"]);
    assert_eq!(life.open, []);
}

#[test]
fn l4_containers_with_limits_of_their_own_are_left_alone_by_the_pods() {
    let mut spec = container("c");
    spec["resources"] = json!({"requests": {"cpu": "2m"}, "limits": {"cpu": "10m"}});
    let whole = |request: &str, limit: &str| json!({"requests": {"cpu": request}, "limits": {"cpu": limit}});
    let mut life = Life::new(json!({"containers": [spec], "resources": whole("4m", "20m")}));
    life.settle();
    ask_whole(&mut life, whole("5m", "25m"));
    admit(&mut life);
    assert_eq!(
        life.open,
        [Action::Resize { containers: vec![] }],
        "its group only"
    );
    resized(&mut life, &[], Ok(()));
    assert_eq!(shown(&life), "allocated cpu=5m requests cpu=5m limits cpu=25m");
}

#[test]
fn l4_pod_level_resources_may_come_later() {
    let mut spec = container("c");
    spec["resources"] = json!({"requests": {"cpu": "20m"}, "limits": {"cpu": "50m"}});
    let mut life = Life::new(json!({"containers": [spec]}));
    life.settle();
    assert_eq!(shown(&life), "allocated cpu=20m requests cpu=20m limits cpu=50m");
    ask_whole(
        &mut life,
        json!({"requests": {"cpu": "30m"}, "limits": {"cpu": "80m"}}),
    );
    admit(&mut life);
    resized(&mut life, &[], Ok(()));
    assert_eq!(shown(&life), "allocated cpu=30m requests cpu=30m limits cpu=80m");
}

#[test]
fn l5_a_container_that_asks_for_it_runs_again_with_the_pods_new_limits() {
    let mut spec = container("c");
    spec["resizePolicy"] = json!([
        {"resourceName": "cpu", "restartPolicy": "NotRequired"},
        {"resourceName": "memory", "restartPolicy": "RestartContainer"},
    ]);
    for (whole, again) in [
        (requirements("200m", "64Mi"), false),
        (requirements("100m", "96Mi"), true),
    ] {
        let mut life =
            Life::new(json!({"containers": [spec.clone()], "resources": requirements("100m", "64Mi")}));
        life.settle();
        ask_whole(&mut life, whole.clone());
        admit(&mut life);
        let stops = |life: &Life| {
            life.open
                .iter()
                .any(|a| matches!(a, Action::StopContainer { .. }))
        };
        assert_eq!(stops(&life), again, "{whole}");
        if !again {
            continue;
        }
        // The group makes room before it runs again.
        let groups = |a: &Action| *a == Action::Resize { containers: vec![] };
        assert!(life.open.iter().any(groups), "{:?}", life.open);
        life.open.clear();
        life.step(Event::Resized {
            done: vec![],
            result: Ok(()),
        });
        // While it takes its time to end it has what it had.
        life.wait(20);
        assert_eq!(
            shown(&life),
            "allocated cpu=100m,memory=96Mi requests cpu=100m,memory=96Mi limits cpu=100m,memory=96Mi InProgress/"
        );
        assert!(!reasons(&mut life).contains(&"ResizeCompleted".to_string()));
        life.exit("c0", 0);
        life.settle();
        assert_eq!(life.status(), "Running c=running/1");
        let order = reasons(&mut life);
        assert_eq!(
            order.last().map(String::as_str),
            Some("ResizeCompleted"),
            "{order:?}"
        );
        assert_eq!(
            shown(&life),
            "allocated cpu=100m,memory=96Mi requests cpu=100m,memory=96Mi limits cpu=100m,memory=96Mi"
        );
    }
}

#[test]
fn l4_what_fails_is_tried_again_until_something_else_is_asked_for() {
    let mut life = running(requirements("100m", "64Mi"));
    ask_whole(&mut life, requirements("100m", "1Mi"));
    admit(&mut life);
    let failed = "allocated cpu=100m,memory=1Mi requests cpu=100m,memory=64Mi limits cpu=100m,memory=64Mi InProgress/Error";
    for _ in 0..2 {
        resized(&mut life, &[], Err("below current usage".into()));
        assert_eq!(shown(&life), failed);
        assert_eq!(life.open, []);
        let waits = life.timer.unwrap();
        life.now = waits;
        life.step(Event::Timer);
    }
    assert_eq!(
        reasons(&mut life),
        ["ResizeStarted", "!ResizeError"],
        "each failure is told once"
    );
    // Only the answer under way is waited for.
    ask_whole(&mut life, requirements("100m", "64Mi"));
    resized(&mut life, &[], Err("below current usage".into()));
    admit(&mut life);
    resized(&mut life, &["c0"], Ok(()));
    assert_eq!(
        shown(&life),
        "allocated cpu=100m,memory=64Mi requests cpu=100m,memory=64Mi limits cpu=100m,memory=64Mi"
    );
    assert_eq!(reasons(&mut life), ["ResizeStarted", "ResizeCompleted"]);
}

#[test]
fn l4_no_container_gets_by_crashing_what_the_node_has_no_room_for() {
    let mut spec = container("c");
    spec["resources"] = requirements("20m", "8Mi");
    let mut life = Life::new(json!({"containers": [spec]}));
    life.settle();
    let of_c = |pod: &core::Pod| pod.spec.as_ref().unwrap().containers[0].resources.clone();
    let before = of_c(&life.object);
    let more: Option<core::ResourceRequirements> =
        serde_json::from_value(requirements("30m", "8Mi")).unwrap();
    ask(&mut life, |spec| spec.containers[0].resources.clone_from(&more));
    refuse(&mut life);
    assert!(shown(&life).ends_with("Pending/Deferred"), "{}", shown(&life));
    life.exit("c0", 1);
    life.refuses = |action| match action {
        Action::AdmitResize => Some(Event::ResizeAdmitted(Err(Rejection {
            reason: "OutOfcpu".into(),
            message: "full".into(),
        }))),
        _ => None,
    };
    life.settle();
    assert_eq!(life.status(), "Running c=running/1");
    assert_eq!(of_c(&life.pod.allocated()), before, "what it runs with");
    assert_eq!(of_c(life.pod.object()), more, "what it asks for");
}

#[test]
fn t4_a_kubelet_that_comes_back_knows_what_was_allocated() {
    let mut life = running(requirements("100m", "64Mi"));
    ask_whole(&mut life, requirements("100m", "128Mi"));
    refuse(&mut life);
    let told = shown(&life);
    let ran = life.pod.containers()[0].run.clone().unwrap();
    let mut next = Life::of(life.object.clone());
    next.now = life.now;
    next.step(Event::Observed {
        since: life.now,
        sandboxes: vec![sandbox()],
        containers: vec![runtime::Container {
            id: ran.id,
            hash: ran.hash,
            created_at: life.now,
            ..seen("c", 0, ContainerState::Running { started_at: life.now })
        }],
    });
    next.open.retain(|a| *a != Action::SetUpVolumes);
    refuse(&mut next);
    assert_eq!(shown(&next), told);
}

#[test]
fn l4_what_a_pod_has_is_shown_as_its_group_holds_it() {
    let with = |name: &str, resources: Value| {
        let mut c = container(name);
        c["resources"] = resources;
        c
    };
    for (spec, pending, running) in [
        (
            json!({}),
            "allocated  requests  limits ",
            "allocated  requests  limits ",
        ),
        (
            // Not all are limited, and what is too small for the kernel is no request.
            json!({"containers": [
                with("c", json!({"requests": {"cpu": "1m"}, "limits": {"cpu": "5m"}})),
                with("d", json!({"requests": {"memory": "1Mi", "ephemeral-storage": "1Mi"}})),
            ]}),
            "allocated cpu=1m,ephemeral-storage=1Mi,memory=1Mi requests cpu=1m,ephemeral-storage=1Mi,memory=1Mi limits cpu=5m",
            "allocated cpu=1m,ephemeral-storage=1Mi,memory=1Mi requests memory=1Mi limits ",
        ),
        (
            json!({"containers": [with("c", requirements("500m", "1Mi")), with("d", requirements("500m", "1Mi"))]}),
            "allocated cpu=1,memory=2Mi requests cpu=1,memory=2Mi limits cpu=1,memory=2Mi",
            "allocated cpu=1,memory=2Mi requests cpu=1,memory=2Mi limits cpu=1,memory=2Mi",
        ),
        (
            // The pod's own come before its containers', and its overhead on top of both.
            json!({"containers": [with("c", json!({"requests": {"cpu": "20m"}}))], "overhead": {"cpu": "5m"},
                   "resources": {"requests": {"cpu": "50m"}, "limits": {"cpu": "60m"}}}),
            "allocated cpu=55m requests cpu=55m limits cpu=65m",
            "allocated cpu=55m requests cpu=55m limits cpu=65m",
        ),
    ] {
        let mut life = Life::new(spec.clone());
        life.step(Event::VolumesReady);
        life.step(Event::Timer);
        life.step(Event::Updated(Arc::new(life.object.clone())));
        assert_eq!(shown(&life), pending, "{spec}");
        life.settle();
        assert!(life.status().starts_with("Running"));
        assert_eq!(shown(&life), running, "{spec}");
    }
}

#[test]
fn l4_a_resize_is_allocated_then_brought_about() {
    let resources = |cpu: &str| json!({"requests": {"cpu": cpu}});
    let mut spec = container("c");
    spec["resources"] = resources("20m");
    let mut life = Life::new(json!({"containers": [spec]}));
    life.settle();
    let shown = |life: &Life| {
        let status = life.pod.status();
        let c = status.container_statuses.as_ref().unwrap()[0].clone();
        let cpu = |l: Option<BTreeMap<String, Quantity>>| l.unwrap()["cpu"].0.clone();
        let progress = |c: &&core::PodCondition| c.type_ == "PodResizeInProgress";
        let busy = status.conditions.iter().flatten().any(|c| progress(&c));
        (
            cpu(c.allocated_resources),
            cpu(c.resources.unwrap().requests),
            busy,
        )
    };
    assert_eq!(shown(&life), ("20m".into(), "20m".into(), false));
    life.object.metadata.generation = Some(2);
    life.object.spec.as_mut().unwrap().containers[0].resources =
        serde_json::from_value(resources("40m")).unwrap();
    life.step(Event::Updated(Arc::new(life.object.clone())));
    assert_eq!(life.open, [Action::AdmitResize]);
    let observed = |life: &Life| life.pod.status().observed_generation;
    assert_eq!(observed(&life), Some(1), "nothing is known of the second yet");
    life.open.clear();
    let full = Rejection {
        reason: "OutOfcpu".into(),
        message: "full".into(),
    };
    life.step(Event::ResizeAdmitted(Err(full)));
    assert_eq!(shown(&life), ("20m".into(), "20m".into(), false), "no room yet");
    assert_eq!(observed(&life), Some(2));
    life.now += SignedDuration::from_secs(10);
    life.step(Event::Timer);
    life.open.clear();
    life.take_log();
    life.step(Event::ResizeAdmitted(Ok(())));
    assert_eq!(shown(&life), ("40m".into(), "20m".into(), true));
    life.open.clear();
    life.step(Event::Resized {
        done: vec!["c0".into()],
        result: Ok(()),
    });
    assert_eq!(shown(&life), ("40m".into(), "40m".into(), false));
    let log = life.take_log();
    let what = r#"{"containers":[{"name":"c","resources":{"requests":{"cpu":"40m"}}}],"generation":2}"#;
    for wanted in [
        "event ResizeStarted: Pod resize started: ",
        "event ResizeCompleted: Pod resize completed: ",
    ] {
        assert!(log.contains(&format!("{wanted}{what}")), "{log:#?}");
    }
}
