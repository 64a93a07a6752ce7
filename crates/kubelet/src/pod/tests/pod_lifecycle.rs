//! The pod: its addresses, its volumes, and that nothing of a finished pod is started.

use super::*;

#[test]
fn s3_nothing_of_a_pod_that_has_finished_or_was_rejected_is_started() {
    for phase in ["Succeeded", "Failed"] {
        let object = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"restartPolicy": "Always", "containers": [container("c")]}, "status": {"phase": phase},
        });
        let mut life = Life::of(serde_json::from_value(object).unwrap());
        life.settle();
        life.wait(1000);
        assert!(
            life.pod.is_terminating() && life.running.is_empty(),
            "{phase}: {:?}",
            life.log
        );
        assert!(!life.log.iter().any(|l| l.starts_with("start")), "{:?}", life.log);
        assert_eq!(life.object.status.as_ref().unwrap().phase.as_deref(), Some(phase));
    }
    let mut life = Life::new(json!({}));
    life.step(Event::Reject(crate::admission::Rejection {
        reason: "OutOfcpu".into(),
        message: "too little".into(),
    }));
    life.settle();
    assert_eq!(life.pod.status().phase.as_deref(), Some("Failed"));
    assert!(
        life.pod.is_terminating() && life.running.is_empty(),
        "{:?}",
        life.log
    );
}

#[test]
fn l6_a_pod_in_the_hosts_network_has_the_nodes_address() {
    for (host, address) in [(true, "192.0.2.1"), (false, "10.0.0.1")] {
        let mut life = Life::new(json!({"hostNetwork": host}));
        life.settle();
        assert_eq!(life.pod.ips(), [address]);
        assert_eq!(life.pod.status().pod_ip.as_deref(), Some(address));
    }
}

#[test]
fn t5_a_pod_has_terminated_when_its_volumes_are_torn_down_and_not_before() {
    let mut life = Life::new(json!({}));
    life.settle();
    assert!(!life.pod.has_terminated());
    life.delete(30);
    assert!(!life.pod.has_terminated(), "its process still runs");
    life.exit("c0", 0);
    assert!(life.log.contains(&"volumes torn down".to_string()));
    assert!(life.pod.has_terminated());
}

#[test]
fn l1_failed_volumes_are_retried_with_exponential_back_off() {
    let mut life = Life::new(json!({}));
    life.failure_of = |action| {
        matches!(action, Action::SetUpVolumes).then(|| Event::VolumesFailed {
            reason: "FailedMount",
            message: "no such server".into(),
            is_external: false,
        })
    };
    life.settle();
    let mut waits = Vec::new();
    for _ in 0..4 {
        let next = life.timer.unwrap();
        waits.push(next.duration_since(life.now));
        life.now = next;
        life.settle();
    }
    assert!(waits[0] > SignedDuration::ZERO, "{waits:?}");
    for pair in waits.windows(2) {
        assert_eq!(pair[1], pair[0] * 2, "{waits:?}");
    }
}

#[test]
fn t5_a_final_delete_that_failed_is_sent_again_later_and_once() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.delete(30);
    life.exit("c0", 0);
    let deletes = |life: &mut Life| life.take_log().iter().filter(|l| *l == "delete").count();
    assert_eq!(deletes(&mut life), 1);
    life.step(Event::FinalDeleteFailed);
    life.settle();
    assert_eq!(deletes(&mut life), 0, "not at once");
    let again = life.timer.unwrap();
    assert!(again > life.now);
    life.now = again;
    life.settle();
    assert_eq!(deletes(&mut life), 1);
    life.wait(1000);
    assert_eq!(deletes(&mut life), 0);
}

#[test]
fn l9_a_post_start_hook_has_no_longer_than_the_pods_grace_period() {
    let mut hooked = container("c");
    hooked["lifecycle"] = json!({"postStart": {"exec": {"command": ["x"]}}});
    let mut life = Life::new(json!({"containers": [hooked]}));
    life.settle();
    life.delete(10);
    life.wait(9);
    assert!(
        !life.log.iter().any(|l| l.starts_with("cancel")),
        "{:?}",
        life.log
    );
    life.wait(1);
    assert!(life.log.contains(&"cancel hook c0".to_string()), "{:?}", life.log);
    assert!(
        life.log.iter().any(|l| l.starts_with("stop c0")),
        "{:?}",
        life.log
    );
}

#[test]
fn l10_sidecars_are_stopped_one_after_the_other_from_the_last() {
    let sidecar = |name: &str| {
        let mut spec = container(name);
        spec["restartPolicy"] = json!("Always");
        spec
    };
    let mut life = Life::new(json!({"initContainers": [sidecar("x"), sidecar("y")]}));
    life.settle();
    life.take_log();
    life.delete(30);
    let stopped = |life: &mut Life| -> Vec<String> {
        let log = life.take_log().into_iter();
        log.filter(|l| l.starts_with("stop "))
            .map(|l| l[5..7].to_string())
            .collect()
    };
    assert_eq!(stopped(&mut life), ["c0"]);
    for (exits, next) in [("c0", "y0"), ("y0", "x0")] {
        life.exit(exits, 0);
        assert_eq!(stopped(&mut life), [next]);
    }
}

#[test]
fn l4_the_health_of_devices_before_a_container_runs_is_part_of_the_next_status() {
    let health = || {
        let device = core::ResourceStatus {
            name: "example.com/gpu".into(),
            resources: None,
        };
        BTreeMap::from([("c".to_string(), vec![device])])
    };
    let shown = |life: &Life| {
        let statuses = life.pod.status().container_statuses.clone().unwrap();
        statuses[0].allocated_resources_status.clone()
    };
    let mut known = Life::new(json!({}));
    known.pod.note_resource_health(health());
    known.step(Event::Timer);
    assert_eq!(shown(&known), health().remove("c"));
    let mut learned = Life::new(json!({}));
    learned.step(Event::Timer);
    learned.take_log();
    learned.step(Event::ResourceHealth(health()));
    assert!(learned.take_log().is_empty());
    learned.settle();
    assert_eq!(shown(&learned), health().remove("c"));
}

#[test]
fn l1_volumes_that_could_not_be_set_up_are_reported_while_the_pod_waits_for_them() {
    let failed = || Event::VolumesFailed {
        reason: "FailedMount",
        message: "no such server".into(),
        is_external: false,
    };
    let reported = |life: &mut Life| {
        life.take_log();
        life.step(failed());
        let event = "event !FailedMount: no such server".to_string();
        life.take_log().contains(&event)
    };
    let mut life = Life::new(json!({}));
    life.step(Event::Timer);
    assert!(reported(&mut life));

    let mut life = Life::new(json!({}));
    life.settle();
    assert!(!reported(&mut life), "they were set up");

    let mut life = Life::new(json!({}));
    life.is_held = |action| matches!(action, Action::SetUpVolumes);
    life.settle();
    life.delete(30);
    assert!(!reported(&mut life), "nothing of the pod starts any more");
}
