//! Resizes: requested, allocated and actual resources, of containers and of the pod.

use super::*;

fn requirements(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

/// A running pod with these pod-level resources and no others.
fn running(pod_level: Value) -> Life {
    let mut life = Life::new(json!({"resources": pod_level}));
    life.settle();
    life.take_log();
    life
}

/// The spec changes, with the next generation.
fn change_spec(life: &mut Life, change: impl FnOnce(&mut core::PodSpec)) {
    let generation = &mut life.object.metadata.generation;
    *generation = generation.map(|g| g + 1);
    change(life.object.spec.as_mut().unwrap());
    life.step(Event::Updated(Arc::new(life.object.clone())));
}

fn resize_pod_level(life: &mut Life, pod_level: Value) {
    change_spec(life, |spec| {
        spec.resources = serde_json::from_value(pod_level).unwrap()
    });
}

fn admit(life: &mut Life) {
    assert_eq!(life.open, [Action::AdmitResize]);
    life.open.clear();
    life.step(Event::ResizeAdmitted(Ok(())));
}

fn defer(life: &mut Life) {
    assert_eq!(life.open, [Action::AdmitResize]);
    life.open.clear();
    life.step(Event::ResizeAdmitted(Err(Rejection {
        reason: "OutOfmemory".into(),
        message: "full".into(),
    })));
}

fn resized(life: &mut Life, done: &[&str], result: Result<(), ActionError>) {
    assert!(
        matches!(life.open[..], [Action::Resize { .. }]),
        "{:?}",
        life.open
    );
    life.open.clear();
    let done = done.iter().map(|id| (*id).into()).collect();
    life.step(Event::Resized { done, result });
}

/// `status.allocatedResources`, `status.resources` and the conditions of a resize, as short text.
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
fn l4_pod_level_resources_are_allocated_then_actuated() {
    let mut life = running(requirements("100m", "64Mi"));
    let before = "allocated cpu=100m,memory=64Mi requests cpu=100m,memory=64Mi limits cpu=100m,memory=64Mi";
    assert_eq!(shown(&life), before);
    resize_pod_level(&mut life, requirements("200m", "32Mi"));
    assert_eq!(shown(&life), before, "the node has not decided");
    admit(&mut life);
    assert_eq!(
        shown(&life),
        "allocated cpu=200m,memory=32Mi requests cpu=100m,memory=64Mi limits cpu=100m,memory=64Mi InProgress/"
    );
    // The container has the pod's limits because it has none of its own.
    let containers = vec![("c".to_string(), "c0".into())];
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
    let pod_level =
        |request: &str, limit: &str| json!({"requests": {"cpu": request}, "limits": {"cpu": limit}});
    let mut life = Life::new(json!({"containers": [spec], "resources": pod_level("4m", "20m")}));
    life.settle();
    resize_pod_level(&mut life, pod_level("5m", "25m"));
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
    resize_pod_level(
        &mut life,
        json!({"requests": {"cpu": "30m"}, "limits": {"cpu": "80m"}}),
    );
    admit(&mut life);
    resized(&mut life, &[], Ok(()));
    assert_eq!(shown(&life), "allocated cpu=30m requests cpu=30m limits cpu=80m");
}

#[test]
fn l5_a_container_whose_resize_policy_says_so_restarts_with_the_pods_new_limits() {
    let mut spec = container("c");
    spec["resizePolicy"] = json!([
        {"resourceName": "cpu", "restartPolicy": "NotRequired"},
        {"resourceName": "memory", "restartPolicy": "RestartContainer"},
    ]);
    for (pod_level, again) in [
        (requirements("200m", "64Mi"), false),
        (requirements("100m", "96Mi"), true),
    ] {
        let mut life =
            Life::new(json!({"containers": [spec.clone()], "resources": requirements("100m", "64Mi")}));
        life.settle();
        resize_pod_level(&mut life, pod_level.clone());
        admit(&mut life);
        let stops = |life: &Life| {
            life.open
                .iter()
                .any(|a| matches!(a, Action::StopContainer { .. }))
        };
        assert_eq!(stops(&life), again, "{pod_level}");
        if !again {
            continue;
        }
        // The cgroup is resized before the container runs again.
        let groups = |a: &Action| *a == Action::Resize { containers: vec![] };
        assert!(life.open.iter().any(groups), "{:?}", life.open);
        life.open.clear();
        life.step(Event::Resized {
            done: vec![],
            result: Ok(()),
        });
        // Until it has exited it keeps its resources.
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
fn l4_a_failed_resize_is_retried_until_the_spec_changes() {
    let mut life = running(requirements("100m", "64Mi"));
    resize_pod_level(&mut life, requirements("100m", "1Mi"));
    admit(&mut life);
    let failed = "allocated cpu=100m,memory=1Mi requests cpu=100m,memory=64Mi limits cpu=100m,memory=64Mi InProgress/Error";
    for _ in 0..2 {
        resized(&mut life, &[], Err(ActionError::new("below current usage")));
        assert_eq!(shown(&life), failed);
        assert_eq!(life.open, []);
        let waits = life.timer.unwrap();
        life.now = waits;
        life.step(Event::Timer);
    }
    assert_eq!(
        reasons(&mut life),
        ["ResizeStarted", "!ResizeError"],
        "each failure is recorded once"
    );
    // Only the attempt in flight is waited for.
    resize_pod_level(&mut life, requirements("100m", "64Mi"));
    resized(&mut life, &[], Err(ActionError::new("below current usage")));
    admit(&mut life);
    resized(&mut life, &["c0"], Ok(()));
    assert_eq!(
        shown(&life),
        "allocated cpu=100m,memory=64Mi requests cpu=100m,memory=64Mi limits cpu=100m,memory=64Mi"
    );
    assert_eq!(reasons(&mut life), ["ResizeStarted", "ResizeCompleted"]);
}

#[test]
fn l4_a_crash_does_not_apply_a_deferred_resize() {
    let mut spec = container("c");
    spec["resources"] = requirements("20m", "8Mi");
    let mut life = Life::new(json!({"containers": [spec]}));
    life.settle();
    let of_c = |pod: &core::Pod| pod.spec.as_ref().unwrap().containers[0].resources.clone();
    let before = of_c(&life.object);
    let more: Option<core::ResourceRequirements> =
        serde_json::from_value(requirements("30m", "8Mi")).unwrap();
    change_spec(&mut life, |spec| spec.containers[0].resources.clone_from(&more));
    defer(&mut life);
    assert!(shown(&life).ends_with("Pending/Deferred"), "{}", shown(&life));
    life.exit("c0", 1);
    life.failure_of = |action| match action {
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
fn t4_a_restarted_kubelet_knows_the_allocated_resources() {
    let mut life = running(requirements("100m", "64Mi"));
    resize_pod_level(&mut life, requirements("100m", "128Mi"));
    defer(&mut life);
    let reported = shown(&life);
    let mut next = restarted(&life);
    next.open.retain(|a| *a != Action::SetUpVolumes);
    defer(&mut next);
    assert_eq!(shown(&next), reported);
}

/// The same pod under the next kubelet, which finds its container running.
fn restarted(life: &Life) -> Life {
    let ran = life.pod.containers[0].runs.latest().cloned().unwrap();
    let mut next = Life::of(life.object.clone());
    next.now = life.now;
    next.step(Event::Observed {
        since: life.now,
        sandboxes: vec![sandbox()],
        containers: vec![runtime::Container {
            id: ran.id.unwrap(),
            hash: ran.hash,
            created_at: life.now,
            ..seen("c", 0, ContainerState::Running { started_at: life.now })
        }],
    });
    next
}

#[test]
fn t4_a_container_that_a_restarted_kubelet_found_is_resized() {
    let mut life = restarted(&running_with_cpu("20m"));
    life.settle();
    request_cpu(&mut life, "40m");
    admit(&mut life);
    let containers = vec![("c".to_string(), "c0".into())];
    assert_eq!(life.open, [Action::Resize { containers }]);
}

#[test]
fn t4_a_restarted_kubelet_knows_the_allocated_resources_of_a_container_that_does_not_run() {
    let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
    let pod = json!({
        "spec": {"containers": [{"name": "c", "image": "busybox", "resources": cpu("40m")}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{
                "name": "c", "image": "busybox", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 1}}, "resources": cpu("20m"),
            }],
        },
    });
    let life = Life::of(serde_json::from_value(pod).unwrap());
    let allocated = life.pod.allocated().spec.clone().unwrap().containers[0]
        .resources
        .clone();
    assert_eq!(serde_json::to_value(allocated).unwrap(), cpu("20m"));
}

#[test]
fn l4_a_pod_that_is_resized_before_it_has_a_sandbox_begins_with_its_new_resources() {
    let mut life = Life::new(json!({"resources": requirements("100m", "64Mi")}));
    life.step(Event::Timer);
    resize_pod_level(&mut life, requirements("200m", "32Mi"));
    assert_eq!(life.open, [Action::SetUpVolumes, Action::AdmitResize]);
    life.open.pop();
    life.step(Event::ResizeAdmitted(Ok(())));
    life.settle();
    assert_eq!(life.open, [], "it is created with them");
    assert_eq!(
        shown(&life),
        "allocated cpu=200m,memory=32Mi requests cpu=200m,memory=32Mi limits cpu=200m,memory=32Mi"
    );
}

#[test]
fn l4_the_status_has_the_resources_of_the_pods_cgroup() {
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
            // Not all containers have limits, and requests below the kernel's minimum are not shown.
            json!({"containers": [
                with("c", json!({"requests": {"cpu": "1m"}, "limits": {"cpu": "5m"}})),
                with("d", json!({"requests": {"memory": "1Mi", "ephemeral-storage": "1Mi"}})),
            ]}),
            "allocated cpu=1m,ephemeral-storage=1Mi,memory=1Mi requests cpu=1m,ephemeral-storage=1Mi,memory=1Mi limits cpu=5m",
            "allocated cpu=1m,ephemeral-storage=1Mi,memory=1Mi requests memory=1Mi limits ",
        ),
        (
            // Nor are those that equal it.
            json!({"containers": [with("c", json!({"requests": {"cpu": "2m"}, "limits": {"cpu": "10m"}}))]}),
            "allocated cpu=2m requests cpu=2m limits cpu=10m",
            "allocated cpu=2m requests  limits ",
        ),
        (
            json!({"containers": [with("c", requirements("500m", "1Mi")), with("d", requirements("500m", "1Mi"))]}),
            "allocated cpu=1,memory=2Mi requests cpu=1,memory=2Mi limits cpu=1,memory=2Mi",
            "allocated cpu=1,memory=2Mi requests cpu=1,memory=2Mi limits cpu=1,memory=2Mi",
        ),
        (
            // The pod's own resources override its containers', and the overhead is added to either.
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
fn l4_a_resize_is_allocated_then_actuated() {
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
    assert_eq!(observed(&life), Some(1), "the second is not observed yet");
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
    for expected in [
        "event ResizeStarted: Pod resize started: ",
        "event ResizeCompleted: Pod resize completed: ",
    ] {
        assert!(log.contains(&format!("{expected}{what}")), "{log:#?}");
    }
}

/// A running pod whose container has these requests of CPU.
fn running_with_cpu(cpu: &str) -> Life {
    let mut spec = container("c");
    spec["resources"] = json!({"requests": {"cpu": cpu}});
    let mut life = Life::new(json!({"containers": [spec]}));
    life.settle();
    life.take_log();
    life
}

fn request_cpu(life: &mut Life, cpu: &str) {
    let resources = json!({"requests": {"cpu": cpu}});
    change_spec(life, |spec| {
        spec.containers[0].resources = serde_json::from_value(resources).unwrap()
    });
}

fn reject(life: &mut Life, reason: &str) {
    assert_eq!(life.open, [Action::AdmitResize]);
    life.open.clear();
    life.step(Event::ResizeAdmitted(Err(Rejection {
        reason: reason.into(),
        message: "full".into(),
    })));
}

#[test]
fn l4_the_pods_status_has_its_containers_former_resources_until_the_new_ones_are_actuated() {
    let mut life = running_with_cpu("20m");
    request_cpu(&mut life, "40m");
    admit(&mut life);
    assert_eq!(
        shown(&life),
        "allocated cpu=40m requests cpu=20m limits  InProgress/"
    );
    resized(&mut life, &["c0"], Ok(()));
    assert_eq!(shown(&life), "allocated cpu=40m requests cpu=40m limits ");
}

#[test]
fn l4_a_resize_is_in_progress_until_each_container_has_its_resources() {
    let mut life = running_with_cpu("20m");
    request_cpu(&mut life, "40m");
    admit(&mut life);
    let containers = vec![("c".to_string(), "c0".into())];
    // The pod's cgroup has them, the container's does not.
    resized(&mut life, &[], Ok(()));
    assert_eq!(life.open, [Action::Resize { containers }]);
    assert_eq!(
        shown(&life),
        "allocated cpu=40m requests cpu=20m limits  InProgress/"
    );
    resized(&mut life, &["c0"], Ok(()));
    assert_eq!(reasons(&mut life), ["ResizeStarted", "ResizeCompleted"]);
}

#[test]
fn l4_a_container_in_back_off_gets_its_new_resources_when_it_is_created() {
    let mut life = running_with_cpu("20m");
    life.exit("c0", 1);
    life.exit("c1", 1);
    request_cpu(&mut life, "40m");
    admit(&mut life);
    assert_eq!(
        life.open,
        [Action::Resize { containers: vec![] }],
        "the pod's cgroup only"
    );
    resized(&mut life, &[], Ok(()));
    life.wait(10);
    assert_eq!(life.status(), "Running c=running/2");
    assert_eq!(shown(&life), "allocated cpu=40m requests cpu=40m limits ");
}

#[test]
fn l4_ephemeral_containers_are_not_resized_with_their_pod() {
    let mut life = Life::new(json!({
        "resources": requirements("100m", "64Mi"),
        "ephemeralContainers": [container("debug")],
    }));
    life.settle();
    assert_eq!(life.running.len(), 2, "{:?}", life.running);
    resize_pod_level(&mut life, requirements("200m", "64Mi"));
    admit(&mut life);
    let containers = vec![("c".to_string(), "c0".into())];
    assert_eq!(life.open, [Action::Resize { containers }]);
}

#[test]
fn l4_a_resize_that_is_not_admitted_says_why_once_and_is_tried_again_after_ten_seconds() {
    for (reason, condition, event) in [
        ("OutOfcpu", "Pending/Deferred", "!ResizeDeferred"),
        (INFEASIBLE, "Pending/Infeasible", "!ResizeInfeasible"),
    ] {
        let mut life = running_with_cpu("20m");
        request_cpu(&mut life, "40m");
        for events in [vec![event], vec![]] {
            reject(&mut life, reason);
            assert!(shown(&life).ends_with(condition), "{}", shown(&life));
            assert_eq!(reasons(&mut life), events, "{reason}");
            assert_eq!(life.timer, Some(life.now + SignedDuration::from_secs(10)));
            life.now += SignedDuration::from_secs(10);
            life.step(Event::Timer);
        }
        admit(&mut life);
    }
}

#[test]
fn l4_the_admission_of_a_spec_that_has_changed_since_does_not_count() {
    let mut life = running_with_cpu("20m");
    request_cpu(&mut life, "40m");
    request_cpu(&mut life, "60m");
    admit(&mut life);
    assert_eq!(life.open, [Action::AdmitResize], "of the present spec");
    assert_eq!(reasons(&mut life), Vec::<String>::new());
    admit(&mut life);
    assert!(
        shown(&life).starts_with("allocated cpu=60m requests cpu=20m"),
        "{}",
        shown(&life)
    );
}

#[test]
fn t4_a_restarted_kubelet_takes_the_overhead_out_of_the_reported_pod_level_resources() {
    let reported = json!({
        "spec": {
            "containers": [container("c")],
            "overhead": {"cpu": "5m"},
            "resources": {"requests": {"cpu": "80m"}, "limits": {"cpu": "90m"}},
        },
        "status": {
            "phase": "Running",
            "allocatedResources": {"cpu": "55m"},
            "resources": {"limits": {"cpu": "65m"}},
        },
    });
    let pod: core::Pod = serde_json::from_value(reported).unwrap();
    let own = json!({"requests": {"cpu": "50m"}, "limits": {"cpu": "60m"}});
    let own: core::ResourceRequirements = serde_json::from_value(own).unwrap();
    let allocation = Allocation::of_pod(&pod);
    assert_eq!(allocation.allocated(), Some(&own));
    assert_eq!(allocation.actual(), Some(&own));
}
