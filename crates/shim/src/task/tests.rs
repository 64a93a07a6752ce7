//! The life of a process as tables.

use rustix::process::Pid;

use super::*;
use crate::clock::WallTime;

fn process() -> Process {
    Process::new(Pid::from_raw(7), Stdio::default(), Io::default())
}

fn exit(status: u32) -> Exit {
    Exit {
        status,
        at: WallTime::default(),
    }
}

#[test]
fn only_a_step_that_follows_the_state_begins() {
    use State::*;
    use Step::*;
    for (state, possible) in [
        (Created, vec![Start, Delete]),
        (Running, vec![Pause]),
        (Paused, vec![Resume]),
        (Stopped, vec![Delete]),
    ] {
        for step in [Start, Pause, Resume, Delete] {
            let mut process = process();
            process.state = state;
            assert_eq!(
                process.begin(step).is_ok(),
                possible.contains(&step),
                "{step:?} when {state:?}"
            );
        }
    }
}

#[test]
fn one_step_is_under_way_at_a_time() {
    let mut process = process();
    process.begin(Step::Start).unwrap();
    assert!(process.begin(Step::Start).is_err());
    assert!(process.begin(Step::Delete).is_err());
    process.end(true);
    assert_eq!(process.state, State::Running);
    assert!(process.begin(Step::Pause).is_ok());
    process.end(false);
    assert_eq!(
        process.state,
        State::Running,
        "a step that failed changes nothing"
    );
}

#[test]
fn an_exit_during_the_start_is_reported_after_it_whether_it_succeeds_or_not() {
    for succeeded in [true, false] {
        let mut process = process();
        process.begin(Step::Start).unwrap();
        assert_eq!(process.exited(exit(3)), None);
        assert!(
            process.can_be_signalled().is_err(),
            "its process id may be another's by now"
        );
        assert_eq!(process.end(succeeded), Some(exit(3)));
        process.stop(exit(3));
        assert_eq!((process.state, process.exit), (State::Stopped, Some(exit(3))));
    }
}

#[test]
fn an_exit_is_reported_once_and_ends_all_waits() {
    let mut process = process();
    let reply = ReplyTo {
        connection: 1,
        stream: 3,
    };
    process.waiting.push(reply);
    assert_eq!(process.exited(exit(0)), Some(exit(0)));
    assert_eq!(process.stop(exit(0)), [reply]);
    assert_eq!(process.exited(exit(1)), None);
    assert_eq!(process.exit, Some(exit(0)));
}

#[test]
fn a_process_that_was_never_started_can_exit_and_be_deleted() {
    let mut process = process();
    assert_eq!(process.exited(exit(137)), Some(exit(137)));
    process.stop(exit(137));
    assert!(process.begin(Step::Start).is_err());
    assert!(process.begin(Step::Delete).is_ok());
}

#[test]
fn a_process_id_is_a_processs_own_until_its_exit_has_been_seen() {
    let pid = Pid::from_raw(7).unwrap();
    let mut process = process();
    assert!(process.has(pid));
    process.begin(Step::Start).unwrap();
    process.exited(exit(0));
    assert!(!process.has(pid), "another process may have it by now");
    process.end(true);
    process.stop(exit(0));
    assert!(!process.has(pid));
}

#[test]
fn a_signal_is_sent_only_to_a_process_that_has_not_been_waited_for() {
    use containerd_shim_protos::ttrpc::Code;
    let mut process = process();
    assert_eq!(process.can_be_signalled().ok(), Pid::from_raw(7));
    process.stop(exit(0));
    assert_eq!(process.can_be_signalled().unwrap_err().code, Code::NOT_FOUND);
    process.pid = None;
    assert_eq!(
        process.can_be_signalled().unwrap_err().code,
        Code::FAILED_PRECONDITION
    );
}
