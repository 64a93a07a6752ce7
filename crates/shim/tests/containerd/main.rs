//! The shim under a real containerd with its own socket and state, driven by `ctr`. It needs root, containerd, ctr, runc
//! and a static busybox; without one of them nothing is run.

// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used)]

mod machine;

use std::time::Duration;

use machine::{Machine, eventually};

#[test]
fn a_container_runs_and_nothing_is_left_of_it() {
    let Some(machine) = Machine::start() else { return };
    let output = machine.ctr(&["run", "--rm", "IMAGE", "@a", "echo", "hello"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\n");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let output = machine.ctr(&["run", "--rm", "IMAGE", "@b", "sh", "-c", "exit 5"]);
    assert_eq!(output.status.code(), Some(5));
    eventually("no shim is left", || machine.shims().is_empty());
    assert!(machine.mounts().is_empty(), "{:?}", machine.mounts());
    assert_eq!(machine.bundles(), Vec::<String>::new());
}

#[test]
fn a_program_that_is_not_there_is_reported() {
    let Some(machine) = Machine::start() else { return };
    let output = machine.ctr(&["run", "--rm", "IMAGE", "@a", "no-such-program"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        text.contains("failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: \"no-such-program\": executable file not found in $PATH: unknown"),
        "{text}"
    );
    eventually("no shim is left", || machine.shims().is_empty());
}

#[test]
fn a_running_container_can_be_asked_and_exec_returns_its_code() {
    let Some(machine) = Machine::start() else { return };
    machine.run("@a", &["sleep", "1000"]);
    let exec = machine.ctr(&[
        "task",
        "exec",
        "--exec-id",
        "e",
        "@a",
        "sh",
        "-c",
        "echo from exec; exit 3",
    ]);
    assert_eq!(String::from_utf8_lossy(&exec.stdout), "from exec\n");
    assert_eq!(exec.status.code(), Some(3));
    let ps = machine.ctr(&["task", "ps", "@a"]);
    assert_eq!(
        String::from_utf8_lossy(&ps.stdout).lines().count(),
        2,
        "a heading and a process"
    );
    let metrics = machine.ctr(&["task", "metrics", "@a"]);
    assert!(metrics.status.success() && !metrics.stdout.is_empty());
    for (command, status) in [("pause", "PAUSED"), ("resume", "RUNNING")] {
        assert!(machine.ctr(&["task", command, "@a"]).status.success());
        assert!(machine.tasks().contains(status), "{}", machine.tasks());
    }
    machine.end("@a");
    eventually("no shim is left", || machine.shims().is_empty());
}

#[test]
fn the_files_of_a_container_are_not_synced_at_its_end_and_its_next_task_has_them() {
    let Some(machine) = Machine::start() else { return };
    machine.run("@a", &["sh", "-c", "echo kept >> /file; sleep 1000"]);
    let overlays = || {
        let mounts = machine.mount_options();
        assert!(!mounts.is_empty());
        mounts.iter().all(|options| options.contains("volatile"))
    };
    assert!(overlays(), "{:?}", machine.mount_options());
    let lines = || {
        machine
            .ctr(&["task", "exec", "--exec-id", "e", "@a", "cat", "/file"])
            .stdout
    };
    eventually("it has written", || lines() == b"kept\n");
    assert!(machine.ctr(&["task", "kill", "-s", "9", "@a"]).status.success());
    eventually("it has stopped", || machine.tasks().contains("STOPPED"));
    machine.ctr(&["task", "delete", "@a"]);
    let started = machine.ctr(&["task", "start", "--detach", "@a"]);
    assert!(
        started.status.success(),
        "{}",
        String::from_utf8_lossy(&started.stderr)
    );
    assert!(overlays(), "{:?}", machine.mount_options());
    eventually("it has written again", || lines() == b"kept\nkept\n");
    machine.end("@a");
    eventually("no shim is left", || machine.shims().is_empty());
}

#[test]
fn containers_and_exit_codes_survive_containerd() {
    let Some(mut machine) = Machine::start() else {
        return;
    };
    machine.run("@stays", &["sleep", "1000"]);
    machine.run(
        "@exits",
        &["sh", "-c", "trap 'exit 6' TERM; while :; do sleep 0.05; done"],
    );
    std::thread::park_timeout(Duration::from_millis(500));
    let pid = machine.pid("@exits");
    machine.kill_containerd();
    // It exits while containerd is away.
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    eventually("it has exited", || {
        rustix::process::test_kill_process(pid).is_err()
    });
    machine.start_containerd();
    assert!(
        machine.task("@stays").unwrap().contains("RUNNING"),
        "{}",
        machine.tasks()
    );
    assert!(
        machine.task("@exits").unwrap().contains("STOPPED"),
        "{}",
        machine.tasks()
    );
    let deleted = machine.ctr(&["task", "delete", "@exits"]);
    let text = String::from_utf8_lossy(&deleted.stderr);
    assert!(text.contains("non-zero exit code 6"), "{text}");
    let exec = machine.ctr(&["task", "exec", "--exec-id", "e", "@stays", "echo", "again"]);
    assert_eq!(String::from_utf8_lossy(&exec.stdout), "again\n");
    machine.end("@stays");
    eventually("no shim is left", || machine.shims().is_empty());
}

#[test]
fn the_container_of_a_killed_shim_is_reported_as_killed_and_cleaned_up() {
    let Some(machine) = Machine::start() else { return };
    machine.run("@a", &["sleep", "1000"]);
    let pid = machine.pid("@a");
    let events = machine.events();
    let shims = machine.shims();
    assert_eq!(shims.len(), 1);
    rustix::process::kill_process(shims[0], rustix::process::Signal::KILL).unwrap();
    eventually("its process is killed", || {
        rustix::process::test_kill_process(pid).is_err()
    });
    eventually("it has no task", || !machine.tasks().contains("RUNNING"));
    eventually("its mounts are gone", || machine.mounts().is_empty());
    let events = events.until("/tasks/exit");
    assert!(events.contains("\"exit_status\":137"), "{events}");
    assert_eq!(machine.bundles(), Vec::<String>::new());
}
