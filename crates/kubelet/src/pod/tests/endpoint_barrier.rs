//! The endpoint barrier: TERM waits for the proxies and for connections that are not accepted, within bounds (SPEC B7).

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

/// No proxy sends new connections any more, to a pod that a Service offered or that none offered.
fn dropped(was_endpoint: bool) -> Event {
    Event::EndpointsDropped { was_endpoint }
}

/// How many reads of the accept queues are in flight.
fn reads(life: &Life) -> usize {
    let is_read = |action: &&Action| matches!(action, Action::ReadAcceptQueues { .. });
    life.open.iter().filter(is_read).count()
}

/// The result of the read in flight.
fn queues_read(life: &mut Life, has_connections: bool) {
    let is_read = |action: &Action| *action == Action::ReadAcceptQueues { sandbox: "s0".into() };
    let at = life.open.iter().position(is_read).expect("a read is in flight");
    life.give(at, Event::AcceptQueuesRead { has_connections });
}

/// Time passes until the state machine's timer.
fn until_timer(life: &mut Life) {
    life.now = life.timer.expect("the wait is bounded");
    life.step(Event::Timer);
}

#[test]
fn b7_term_waits_until_proxies_have_dropped_the_address_and_the_wait_is_part_of_the_grace() {
    let mut life = life(json!({}));
    life.delete(30);
    assert!(stops(&mut life).is_empty());
    assert!(life.open.contains(&Action::AwaitEndpoints));
    life.now += SignedDuration::from_millis(300);
    life.step(dropped(false));
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
    life.step(dropped(false));
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

#[test]
fn b7_term_waits_until_every_connection_that_was_sent_before_is_accepted() {
    for waiting in [0, 1, 3] {
        let mut life = life(json!({}));
        life.delete(30);
        assert_eq!(reads(&life), 0, "proxies still send connections");
        life.step(dropped(true));
        let began = life.now;
        for _ in 0..waiting {
            queues_read(&mut life, true);
            assert_eq!(reads(&life), 0, "not at once again");
            assert!(stops(&mut life).is_empty());
            until_timer(&mut life);
            assert_eq!(reads(&life), 1);
        }
        let waited = life.now.duration_since(began);
        assert_eq!(waited.as_millis(), 20 * waiting);
        assert!(stops(&mut life).is_empty(), "a read is in flight");
        queues_read(&mut life, false);
        assert_eq!(stops(&mut life), ["stop c0 30"], "{waiting}");
    }
}

#[test]
fn b7_accept_queues_are_read_for_pods_of_services_with_a_network_of_their_own_only() {
    for (spec, was_endpoint, is_read) in [
        (json!({}), true, true),
        (json!({}), false, false),
        (json!({"hostNetwork": true}), true, false),
    ] {
        let mut life = life(spec.clone());
        life.delete(30);
        assert!(stops(&mut life).is_empty(), "{spec}");
        life.step(dropped(was_endpoint));
        assert_eq!(reads(&life), usize::from(is_read), "{spec} {was_endpoint}");
        assert_eq!(stops(&mut life).is_empty(), is_read, "{spec} {was_endpoint}");
    }
}

#[test]
fn b7_accept_queues_that_are_never_empty_or_never_read_delay_term_by_the_limit_at_most() {
    for answers in [true, false] {
        for (grace, waits_millis, stop) in [(30, 1000, "stop c0 29"), (3, 1000, "stop c0 2")] {
            let mut life = life(json!({}));
            let began = life.now;
            life.delete(grace);
            life.now += SignedDuration::from_millis(300);
            life.step(dropped(true));
            let mut found = stops(&mut life);
            let mut read = 0;
            while found.is_empty() {
                if answers && reads(&life) > 0 {
                    queues_read(&mut life, true);
                    read += 1;
                }
                until_timer(&mut life);
                found = stops(&mut life);
            }
            assert_eq!(found, [stop], "{answers} {grace}");
            let waited = life.now.duration_since(began);
            assert_eq!(waited.as_millis(), waits_millis, "{answers} {grace}");
            assert_eq!(
                read,
                if answers { 35 } else { 0 },
                "every 20 ms of the 700 that are left"
            );
            // A result that arrives later changes nothing.
            life.step(Event::AcceptQueuesRead {
                has_connections: true,
            });
            assert!(stops(&mut life).is_empty());
            life.exit("c0", 143);
            let timeline = life.history().timeline;
            let is_shown = timeline
                .iter()
                .any(|entry| entry.what == "ConnectionsNotAccepted");
            assert!(is_shown, "{timeline:?}");
        }
    }
}

#[test]
fn b7_a_shorter_grace_period_ends_the_wait_for_connections() {
    let mut life = life(json!({}));
    life.delete(30);
    life.step(dropped(true));
    queues_read(&mut life, true);
    assert!(stops(&mut life).is_empty());
    life.delete(1);
    assert_eq!(stops(&mut life), ["stop c0 2"]);
}

#[test]
fn b7_a_jump_of_the_clock_changes_no_wait_for_connections() {
    for by in [3, -3].map(SignedDuration::from_hours) {
        let mut life = life(json!({}));
        life.delete(30);
        let began = life.now;
        life.step(dropped(true));
        queues_read(&mut life, true);
        life.now += by;
        life.step(Event::ClockJumped { by });
        assert_eq!(reads(&life), 0, "{by:?}");
        until_timer(&mut life);
        assert_eq!(reads(&life), 1, "{by:?}");
        assert_eq!(life.now.duration_since(began + by).as_millis(), 20, "{by:?}");
    }
}

#[test]
fn b7_a_sandbox_that_is_lost_meanwhile_ends_the_wait_for_connections() {
    let mut life = life(json!({}));
    life.delete(30);
    life.step(dropped(true));
    queues_read(&mut life, true);
    assert!(stops(&mut life).is_empty());
    life.step(Event::Observed {
        since: life.now,
        sandboxes: vec![lost_sandbox()],
        containers: vec![seen("c", 0, ContainerState::Running { started_at: life.now })],
    });
    until_timer(&mut life);
    assert_eq!(reads(&life), 0, "its network namespace may be removed");
    assert_eq!(stops(&mut life), ["stop c0 30"]);
}

#[test]
fn b7_a_connection_that_waited_during_a_hook_is_read_again_after_it() {
    let hooked = json!([{"name": "c", "image": "busybox", "imagePullPolicy": "IfNotPresent",
        "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}]);
    let mut life = life(json!({"containers": hooked}));
    life.delete(30);
    life.step(dropped(true));
    queues_read(&mut life, true);
    life.now += SignedDuration::from_millis(500);
    life.step(Event::Timer);
    assert_eq!(reads(&life), 0, "TERM is not due");
    stops(&mut life);
    life.hook_done(Hook::PreStop, Ok(()));
    assert!(stops(&mut life).is_empty());
    queues_read(&mut life, false);
    assert_eq!(stops(&mut life), ["stop c0 30"]);
}
