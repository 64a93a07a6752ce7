//! Pods that the node terminates by itself (SPEC T8).

use super::*;

fn evict(life: &mut Life, grace_seconds: i64, disruption_target: bool) {
    let message = "The node was low on resource: memory. ";
    life.step(Event::Evict(Eviction {
        reason: "Evicted".into(),
        message: message.into(),
        grace_seconds: Some(grace_seconds),
        disruption: disruption_target.then(|| message.into()),
    }));
    life.settle();
}

#[test]
fn t8_an_evicted_pod_is_failed_with_its_reason_and_a_disruption_target() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.take_log();
    evict(&mut life, 1, true);
    assert!(
        life.take_log().contains(&"stop c0 2".to_string()),
        "never under two seconds"
    );
    assert_eq!(life.status(), "Running c=running/0");
    assert_eq!(life.pod.status().reason, None, "not before it has terminated");
    life.exit("c0", 0);
    assert_eq!(life.status(), "Failed c=Completed:0/0");
    let status = life.pod.status();
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert_eq!(
        life.condition("DisruptionTarget"),
        "True/TerminationByKubelet/The node was low on resource: memory. "
    );
    assert_eq!(life.condition("Ready"), "False/PodFailed");
    assert!(
        !life.take_log().contains(&"delete".to_string()),
        "it stays to be seen"
    );
}

#[test]
fn t8_a_pod_over_its_own_limits_is_no_disruption_target() {
    let mut life = Life::new(json!({}));
    life.settle();
    evict(&mut life, 1, false);
    life.exit("c0", 137);
    assert_eq!(life.status(), "Failed c=Error:137/0");
    let conditions = life.pod.status().conditions.as_ref().unwrap();
    assert!(conditions.iter().all(|c| c.type_ != "DisruptionTarget"));
}

#[test]
fn t3_an_eviction_shortens_a_termination_in_progress_and_never_lengthens_it() {
    for (evicted_with, stops) in [(5, vec!["stop c0 20", "stop c0 5"]), (25, vec!["stop c0 20"])] {
        let mut life = Life::new(json!({}));
        life.settle();
        life.delete(20);
        evict(&mut life, evicted_with, true);
        let log = life.take_log();
        let found: Vec<&String> = log.iter().filter(|l| l.starts_with("stop")).collect();
        assert_eq!(found, stops);
    }
}

#[test]
fn t8_an_eviction_that_overruns_its_grace_period_by_half_is_reported_once() {
    for (grace, overrun_after) in [(1, 10), (20, 30)] {
        let mut life = Life::new(json!({}));
        life.settle();
        evict(&mut life, grace, true);
        let reported = |life: &Life| {
            let is_it = |l: &&String| l.starts_with("event !ExceededGracePeriod");
            life.log.iter().filter(is_it).count()
        };
        life.wait(overrun_after - 1);
        assert_eq!(reported(&life), 0);
        life.wait(2);
        assert_eq!(reported(&life), 1);
        life.wait(100);
        assert_eq!(reported(&life), 1);
    }
}
