//! Containers that their node stops because it is cut off from the API.

use super::*;

fn fence(life: &mut Life, id: &str) {
    life.step(Event::SelfFenced { id: id.into() });
}

#[test]
fn b4_l5_a_container_that_fenced_itself_is_restarted_without_back_off_as_often_as_that_happens() {
    let mut life = Life::new(json!({}));
    life.settle();
    for run in 0..8 {
        let id = format!("c{run}");
        fence(&mut life, &id);
        life.exit(&id, 143);
        assert_eq!(life.status(), format!("Running c=running/{}", run + 1));
        life.wait(45);
    }
    let log = life.take_log();
    let count = |text: &str| log.iter().filter(|line| line.contains(text)).count();
    let killing = "event Killing: Stopping container c: the node cannot renew its Lease";
    assert_eq!((count(killing), count("BackOff")), (8, 0), "{log:#?}");
}

#[test]
fn b4_l5_an_exit_that_is_reported_before_its_reason_does_not_wait_either() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.exit("c0", 1);
    life.exit("c1", 143);
    assert_eq!(life.status(), "Running c=Error:143/1", "in back-off");
    fence(&mut life, "c1");
    life.settle();
    assert_eq!(life.status(), "Running c=running/2");
}

#[test]
fn b4_the_exit_of_a_container_that_fenced_itself_is_reported_before_its_next_run() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.take_log();
    fence(&mut life, "c0");
    life.is_held = |action| matches!(action, Action::StartContainer { .. });
    life.exit("c0", 143);
    assert_eq!(life.status(), "Running c=Error:143/0");
}

#[test]
fn b4_only_the_run_that_was_stopped_is_restarted_without_back_off() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.exit("c0", 1);
    assert_eq!(life.status(), "Running c=running/1");
    // The event of the run before comes late.
    fence(&mut life, "c0");
    life.exit("c1", 1);
    assert_eq!(life.status(), "Running c=Error:1/1", "in back-off");
    life.wait(10);
    assert_eq!(life.status(), "Running c=running/2");
    fence(&mut life, "c2");
    life.exit("c2", 143);
    assert_eq!(life.status(), "Running c=running/3");
    life.exit("c3", 1);
    life.wait(1);
    assert_eq!(life.status(), "Running c=Error:1/3", "a crash after it waits");
    life.wait(9);
    assert_eq!(life.status(), "Running c=running/4", "as long as the first one");
}

#[test]
fn b4_a_stop_that_is_tried_again_is_recorded_once() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.take_log();
    for _ in 0..3 {
        fence(&mut life, "c0");
    }
    let killing = |l: &&String| l.starts_with("event Killing");
    assert_eq!(life.take_log().iter().filter(killing).count(), 1);
}

#[test]
fn b4_the_restart_policy_decides_whether_it_runs_again() {
    for (policy, code, want) in [
        ("Always", 0, "Running c=running/1"),
        ("OnFailure", 143, "Running c=running/1"),
        // The node interrupted it: it has not completed.
        ("OnFailure", 0, "Running c=running/1"),
        ("Never", 143, "Failed c=Error:143/0"),
    ] {
        let mut life = Life::new(json!({"restartPolicy": policy}));
        life.settle();
        fence(&mut life, "c0");
        life.exit("c0", code);
        assert_eq!(life.status(), want, "{policy} {code}");
    }
}
