//! Failures: programs that are not there, memory that is used up, containerd away, the shim killed.

use std::path::Path;

use containerd_shim_protos::api::DeleteResponse;
use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::ttrpc::Code;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::json;

use crate::pod::{Pod, eventually, message, shims_in};

#[test]
fn a_program_that_is_not_there_is_reported_as_with_gos_shim() {
    let Some(mut pod) = Pod::new() else { return };
    let (id, bundle) = pod.bundle("a", &["no-such-program"], |_| {});
    let container = pod.start_shim(id, bundle);
    let (code, text) = message(container.create(&pod, |_| {}));
    assert_eq!(code, Code::UNKNOWN);
    assert!(
        text.starts_with("OCI runtime create failed: runc create failed: unable to start container process: exec: \"no-such-program\""),
        "{text}"
    );
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !mounts.contains(container.bundle.to_str().unwrap()),
        "the root file system is unmounted"
    );
    container.shutdown();
    eventually("the shim exits", || shims_in(&container.bundle).is_empty());

    let container = pod.create("b", &["sleep", "1000"], |_| {});
    container.start("").unwrap();
    container.exec("e", &["no-such-program"], |_| {}).unwrap();
    let (code, text) = message(container.start("e"));
    assert_eq!(code, Code::UNKNOWN);
    assert!(text.starts_with("OCI runtime exec failed: exec failed: unable to start container process: exec: \"no-such-program\""), "{text}");
    assert_eq!(
        container.wait("e").unwrap().exit_status,
        255,
        "requests that wait for it are answered"
    );
    container.delete("e").unwrap();
    container.end();
}

#[test]
fn requests_that_cannot_be_right_are_rejected() {
    let Some(mut pod) = Pod::new() else { return };
    let container = pod.create("a", &["sleep", "1000"], |_| {});
    assert_eq!(message(container.create(&pod, |_| {})).0, Code::ALREADY_EXISTS);
    assert_eq!(
        message(container.create(&pod, |request| request.id = "../b".into())).0,
        Code::INVALID_ARGUMENT
    );
    let restore = |request: &mut containerd_shim_protos::api::CreateTaskRequest| {
        request.id = "b".into();
        request.checkpoint = "/x".into();
    };
    assert_eq!(message(container.create(&pod, restore)).0, Code::UNIMPLEMENTED);
    assert_eq!(
        message(container.exec("../e", &["true"], |_| {})).0,
        Code::INVALID_ARGUMENT
    );
    assert_eq!(message(container.start("e")).0, Code::NOT_FOUND);
    container.start("").unwrap();
    assert!(
        message(container.start(""))
            .1
            .contains("cannot start a running process")
    );
    container.end();
}

#[test]
fn memory_that_is_used_up_is_reported_before_the_exit() {
    let Some(mut pod) = Pod::new() else { return };
    let container = pod.create("a", &["sh", "-c", "tail /dev/zero"], |spec| {
        spec["linux"]["resources"] = json!({"memory": {"limit": 16 << 20, "swap": 16 << 20}});
    });
    container.start("").unwrap();
    assert_eq!(container.wait("").unwrap().exit_status, 137);
    pod.exit_event(&container.id);
    let topics = pod.topics();
    let position = |topic: &str| topics.iter().position(|seen| seen == topic);
    assert!(position("/tasks/oom").is_some(), "{topics:?}");
    assert!(position("/tasks/oom") < position("/tasks/exit"), "{topics:?}");
    container.delete("").unwrap();
    container.shutdown();
}

#[test]
fn events_wait_for_containerd_and_arrive_in_order() {
    let Some(mut pod) = Pod::new() else { return };
    let container = pod.create("a", &["sleep", "1000"], |_| {});
    pod.await_topic("/tasks/create");
    pod.deafen();
    container.start("").unwrap();
    container.exec("e", &["sh", "-c", "exit 4"], |_| {}).unwrap();
    container.start("e").unwrap();
    assert_eq!(container.wait("e").unwrap().exit_status, 4);
    std::thread::park_timeout(std::time::Duration::from_millis(1500));
    pod.listen();
    pod.await_topic("/tasks/exit");
    let topics = pod.topics();
    let order = [
        "/tasks/create",
        "/tasks/start",
        "/tasks/exec-added",
        "/tasks/exec-started",
        "/tasks/exit",
    ];
    let distinct = topics.iter().fold(Vec::<&str>::new(), |mut seen, topic| {
        if !seen.contains(&topic.as_str()) {
            seen.push(topic);
        }
        seen
    });
    assert_eq!(distinct, order);
    assert_eq!(pod.exit_event("e").exit_status, 4);
    container.end();
}

#[test]
fn after_a_killed_shim_its_containers_are_cleaned_up_and_reported_as_killed() {
    let Some(mut pod) = Pod::new() else { return };
    let sandbox = pod.id("sandbox");
    let group =
        |spec: &mut serde_json::Value| spec["annotations"] = json!({"io.kubernetes.cri.sandbox-id": sandbox});
    let first = pod.create("sandbox", &["sleep", "1000"], group);
    let second = pod.create("c", &["sleep", "1000"], group);
    let mut pids = Vec::new();
    for container in [&first, &second] {
        pids.push(container.start("").unwrap().pid);
    }
    for shim in shims_in(&first.bundle) {
        kill_process(shim, Signal::KILL).unwrap();
    }
    eventually("the shim is gone", || shims_in(&first.bundle).is_empty());
    for (container, pid) in [(&first, pids[0]), (&second, pids[1])] {
        let process = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        assert!(test_kill_process(process).is_ok(), "the container lives on");
        let output = pod.command(&container.id, &container.bundle, "delete");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let response = DeleteResponse::parse_from_bytes(&output.stdout).unwrap();
        assert_eq!((response.pid, response.exit_status), (pid, 137));
        eventually("its process is gone", || test_kill_process(process).is_err());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(container.bundle.to_str().unwrap()));
    }
    assert!(!Path::new(first.address.strip_prefix("unix://").unwrap()).exists());
    // Deleting again is no error.
    assert!(pod.command(&first.id, &first.bundle, "delete").status.success());
    // The next container of the group gets a shim of its own.
    let third = pod.create("d", &["true"], group);
    third.start("").unwrap();
    third.end();
}

#[test]
fn a_shim_is_small() {
    let Some(mut pod) = Pod::new() else { return };
    let container = pod.create("a", &["sleep", "1000"], |_| {});
    container.start("").unwrap();
    for number in 0..3 {
        let exec = format!("e{number}");
        container.exec(&exec, &["true"], |_| {}).unwrap();
        container.start(&exec).unwrap();
        container.wait(&exec).unwrap();
        container.delete(&exec).unwrap();
    }
    let shim = shims_in(&container.bundle)[0];
    let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", shim.as_raw_nonzero())).unwrap();
    let kilobytes = |name: &str| -> u64 {
        let line = rollup.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let private = kilobytes("Private_Dirty:") + kilobytes("Private_Clean:");
    let dirty = kilobytes("Private_Dirty:");
    eprintln!(
        "shim: {} kB resident, {private} kB private, {dirty} kB private and dirty",
        kilobytes("Rss:")
    );
    assert!(dirty <= 2048, "{rollup}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", shim.as_raw_nonzero())).unwrap();
    assert!(status.lines().any(|line| line == "Threads:\t1"));
    container.end();
}
