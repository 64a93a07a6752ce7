//! The endpoint barrier: TERM waits for the proxies, within bounds (SPEC B7).

use super::*;

fn life(spec: Value) -> Life {
    let mut life = Life::new(spec);
    life.pod.node.endpoint_barrier = SignedDuration::from_secs(1);
    life.settle();
    life.take_log();
    life
}

fn stops(life: &mut Life) -> Vec<String> {
    let log = life.take_log().into_iter();
    log.filter(|l| l.starts_with("stop") || l.starts_with("hook"))
        .collect()
}

#[test]
fn b7_term_waits_until_proxies_have_dropped_the_address_and_the_wait_is_part_of_the_grace() {
    let mut life = life(json!({}));
    life.delete(30);
    assert!(stops(&mut life).is_empty());
    assert!(life.open.contains(&Action::AwaitEndpoints));
    life.now += SignedDuration::from_millis(300);
    life.step(Event::EndpointsDropped);
    assert_eq!(stops(&mut life), ["stop c0 30"], "29.7 s, in whole seconds");
}

#[test]
fn b7_the_wait_is_bounded_and_leaves_every_process_its_two_seconds() {
    for (grace, waits_millis, stop) in [
        (30, 1000, "stop c0 29"),
        (4, 1000, "stop c0 3"),
        (3, 1000, "stop c0 2"),
        (2, 0, "stop c0 2"),
        (1, 0, "stop c0 2"),
    ] {
        let mut life = life(json!({}));
        let began = life.now;
        life.delete(grace);
        let mut found = stops(&mut life);
        while found.is_empty() {
            life.now = life.timer.expect("it is bounded");
            life.settle();
            found = stops(&mut life);
        }
        assert_eq!(found, [stop], "{grace}");
        assert_eq!(
            life.now.duration_since(began).as_millis(),
            waits_millis,
            "{grace}"
        );
    }
}

#[test]
fn b7_a_shorter_grace_period_ends_the_wait() {
    let mut life = life(json!({}));
    life.delete(30);
    assert!(stops(&mut life).is_empty());
    life.delete(1);
    assert_eq!(stops(&mut life), ["stop c0 2"]);
}

#[test]
fn b7_hooks_do_not_wait_and_term_comes_after_both() {
    let hooked = json!([{"name": "c", "image": "busybox", "imagePullPolicy": "IfNotPresent",
        "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}]);
    let mut life = life(json!({"containers": hooked}));
    life.delete(30);
    assert_eq!(stops(&mut life), ["hook PreStop c0"]);
    life.step(Event::EndpointsDropped);
    assert!(stops(&mut life).is_empty(), "the hook still runs");
    life.hook_done(Hook::PreStop, Ok(()));
    assert_eq!(stops(&mut life), ["stop c0 30"]);
}

#[test]
fn b7_off_by_the_flag_and_not_for_pods_that_are_deleted_without_grace() {
    let mut off = Life::new(json!({}));
    off.settle();
    off.take_log();
    off.delete(30);
    assert_eq!(stops(&mut off), ["stop c0 30"]);
    let mut forced = life(json!({}));
    forced.step(Event::Removed);
    assert_eq!(stops(&mut forced), ["stop c0 2"]);
}
