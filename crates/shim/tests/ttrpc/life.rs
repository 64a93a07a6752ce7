//! Lives of containers and execs.

use std::path::Path;

use containerd_shim_protos::api::{
    ConnectRequest, DeleteResponse, PauseRequest, PidsRequest, ResumeRequest, StateRequest, StatsRequest,
    Status, UpdateTaskRequest,
};
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::ttrpc::Code;
use serde_json::json;

use crate::pod::{Container, Pod, eventually, message, read_fifo, shims_in, started_pid, wait};

fn state(container: &Container, exec: &str) -> (Status, u32, u32) {
    let request = StateRequest {
        id: container.id.clone(),
        exec_id: exec.into(),
        ..StateRequest::default()
    };
    let state = container.task.state(wait(), &request).unwrap();
    (state.status.enum_value().unwrap(), state.pid, state.exit_status)
}

fn is_mounted(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

#[test]
fn a_life_is_reported_in_order_and_nothing_is_left_of_it() {
    let Some(mut pod) = Pod::new() else { return };
    let (id, bundle) = pod.bundle("a", &["sh", "-c", "echo out; echo err >&2; exit 7"], |_| {});
    let container = pod.start_shim(id, bundle);
    let (out, err) = (pod.fifo("out"), pod.fifo("err"));
    let pid = container
        .create(&pod, |request| {
            request.stdout = out.display().to_string();
            request.stderr = err.display().to_string();
        })
        .unwrap();
    let (out, err) = (read_fifo(&out), read_fifo(&err));
    assert_eq!(state(&container, ""), (Status::CREATED, pid, 0));
    assert!(is_mounted(&container.bundle.join("rootfs")));
    assert_eq!(container.start("").unwrap().pid, pid);
    let exit = container.wait("").unwrap();
    assert_eq!(exit.exit_status, 7);
    assert!(exit.exited_at.seconds > 1_700_000_000);
    assert_eq!(state(&container, ""), (Status::STOPPED, pid, 7));
    assert_eq!(
        (out.join().unwrap(), err.join().unwrap()),
        (b"out\n".to_vec(), b"err\n".to_vec())
    );
    let deleted = container.delete("").unwrap();
    assert_eq!((deleted.pid, deleted.exit_status), (pid, 7));
    assert!(!is_mounted(&container.bundle.join("rootfs")));
    assert_eq!(message(container.wait("")).0, Code::NOT_FOUND);
    assert_eq!(shims_in(&container.bundle).len(), 1);
    container.shutdown();
    eventually("the shim exits", || shims_in(&container.bundle).is_empty());
    // containerd runs this after every deletion.
    let printed = pod.command(&container.id, &container.bundle, "delete").stdout;
    let printed = DeleteResponse::parse_from_bytes(&printed).unwrap();
    assert_eq!((printed.pid, printed.exit_status), (pid, 7));
    assert_eq!(
        pod.topics(),
        ["/tasks/create", "/tasks/start", "/tasks/exit", "/tasks/delete"]
    );
    let events = pod.events();
    assert_eq!(started_pid(&events[1]), pid);
    assert_eq!(events[2].kind, "containerd.events.TaskExit");
    assert_eq!(pod.exit_event(&container.id).exit_status, 7);
    assert!(!Path::new(container.address.strip_prefix("unix://").unwrap()).exists());
    assert!(
        !Path::new(&pod.options.root)
            .join("shim-test")
            .join(&container.id)
            .exists(),
        "runc's state"
    );
    let left: Vec<_> = std::fs::read_dir(&container.bundle)
        .unwrap()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    for name in left {
        let known = [
            "config.json",
            "rootfs",
            "log",
            "address",
            "init.pid",
            "options.json",
            "runtime",
            "deleted",
        ];
        assert!(
            known.iter().any(|known| name == *known),
            "{name:?} is left in the bundle"
        );
    }
}

#[test]
fn no_exit_code_is_lost_however_soon_a_process_exits() {
    let Some(mut pod) = Pod::new() else { return };
    let container = pod.create("a", &["sleep", "1000"], |_| {});
    container.start("").unwrap();
    for code in 0..12 {
        let exec = format!("e{code}");
        container
            .exec(&exec, &["sh", "-c", &format!("exit {code}")], |_| {})
            .unwrap();
        container.start(&exec).unwrap();
        assert_eq!(container.wait(&exec).unwrap().exit_status, code, "of exec {exec}");
        assert_eq!(pod.exit_event(&exec).exit_status, code);
        assert_eq!(container.delete(&exec).unwrap().exit_status, code);
    }
    container.end();
    for code in 0..4 {
        let container = pod.create(
            &format!("c{code}"),
            &["sh", "-c", &format!("exit {code}")],
            |_| {},
        );
        container.start("").unwrap();
        assert_eq!(container.wait("").unwrap().exit_status, code);
        container.delete("").unwrap();
        container.shutdown();
        assert_eq!(pod.exit_event(&container.id).exit_status, code);
    }
    // A start is reported before its exit.
    let mut started = Vec::new();
    for event in pod.events() {
        match event.topic.as_str() {
            "/tasks/exec-started" => started.push(event),
            "/tasks/exit" if event.bytes.len() > 1000 => unreachable!(),
            _ => {}
        }
    }
    assert_eq!(started.len(), 12);
}

#[test]
fn signals_reach_the_process_and_one_that_has_ended_is_not_found() {
    let Some(mut pod) = Pod::new() else { return };
    let container = pod.create(
        "a",
        &["sh", "-c", "trap 'exit 3' TERM; while :; do sleep 0.05; done"],
        |_| {},
    );
    container.start("").unwrap();
    // The shell has to set its trap.
    std::thread::park_timeout(std::time::Duration::from_millis(500));
    container.kill("", 15).unwrap();
    assert_eq!(container.wait("").unwrap().exit_status, 3);
    let (code, text) = message(container.kill("", 9));
    assert_eq!(
        (code, text.as_str()),
        (Code::NOT_FOUND, "process already finished: not found")
    );
    container.delete("").unwrap();
    container.shutdown();
    let killed = pod.create("b", &["sleep", "1000"], |_| {});
    killed.start("").unwrap();
    assert!(
        message(killed.delete(""))
            .1
            .contains("cannot delete a running process")
    );
    killed.kill("", 9).unwrap();
    assert_eq!(killed.wait("").unwrap().exit_status, 137);
    killed.delete("").unwrap();
    killed.shutdown();
}

#[test]
fn a_signal_without_a_name_is_sent_by_the_runtime() {
    let Some(mut pod) = Pod::new() else { return };
    let container = pod.create(
        "a",
        &["sh", "-c", "trap 'exit 9' 37; while :; do sleep 0.05; done"],
        |_| {},
    );
    container.start("").unwrap();
    std::thread::park_timeout(std::time::Duration::from_millis(500));
    container.kill("", 37).unwrap();
    assert_eq!(container.wait("").unwrap().exit_status, 9);
    container.end();
}

#[test]
fn containers_of_a_pod_have_one_shim_that_exits_with_the_last() {
    let Some(mut pod) = Pod::new() else { return };
    let sandbox = pod.id("sandbox");
    let group =
        |spec: &mut serde_json::Value| spec["annotations"] = json!({"io.kubernetes.cri.sandbox-id": sandbox});
    let first = pod.create("sandbox", &["sleep", "1000"], group);
    let second = pod.create("c", &["sleep", "1000"], group);
    assert_eq!(first.address, second.address);
    assert_eq!(
        std::fs::read_to_string(second.bundle.join("address")).unwrap(),
        first.address
    );
    assert!(shims_in(&second.bundle).is_empty());
    first.start("").unwrap();
    second.start("").unwrap();
    let connect = |container: &Container| {
        let request = ConnectRequest {
            id: container.id.clone(),
            ..ConnectRequest::default()
        };
        container.task.connect(wait(), &request).unwrap()
    };
    assert_eq!(connect(&first).shim_pid, connect(&second).shim_pid);
    assert_ne!(connect(&first).task_pid, connect(&second).task_pid);
    first.end();
    second.kill("", 9).unwrap();
    assert_eq!(
        second.wait("").unwrap().exit_status,
        137,
        "it still serves the second"
    );
    second.delete("").unwrap();
    second.shutdown();
    eventually("the shim exits", || shims_in(&first.bundle).is_empty());
}

#[test]
fn a_container_is_frozen_updated_and_measured() {
    let Some(mut pod) = Pod::new() else { return };
    let container = pod.create("a", &["sleep", "1000"], |_| {});
    container.start("").unwrap();
    container.exec("e", &["sleep", "1000"], |_| {}).unwrap();
    let exec_pid = container.start("e").unwrap().pid;
    let id = || container.id.clone();
    let pids = container
        .task
        .pids(
            wait(),
            &PidsRequest {
                id: id(),
                ..PidsRequest::default()
            },
        )
        .unwrap();
    assert_eq!(pids.processes.len(), 2);
    let exec = pids
        .processes
        .iter()
        .find(|process| process.pid == exec_pid)
        .unwrap();
    assert_eq!(exec.info.type_url, "containerd.runc.v1.ProcessDetails");
    let stats = container
        .task
        .stats(
            wait(),
            &StatsRequest {
                id: id(),
                ..StatsRequest::default()
            },
        )
        .unwrap();
    assert!(stats.stats.type_url.starts_with("io.containerd.cgroups.v"));
    let resources = Any {
        type_url: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources".into(),
        value: json!({"memory": {"limit": 64 << 20}}).to_string().into_bytes(),
        ..Any::default()
    };
    let update = UpdateTaskRequest {
        id: id(),
        resources: MessageField::some(resources),
        ..UpdateTaskRequest::default()
    };
    container.task.update(wait(), &update).unwrap();
    let limit = || {
        let stats = container
            .task
            .stats(
                wait(),
                &StatsRequest {
                    id: id(),
                    ..StatsRequest::default()
                },
            )
            .unwrap();
        match stats.stats.type_url.as_str() {
            "io.containerd.cgroups.v1.Metrics" => {
                let metrics =
                    containerd_shim_protos::cgroups::metrics::Metrics::parse_from_bytes(&stats.stats.value);
                metrics.unwrap().memory.usage.limit
            }
            _ => {
                let metrics = containerd_shim_protos::cgroups_v2::metrics::Metrics::parse_from_bytes(
                    &stats.stats.value,
                );
                metrics.unwrap().memory.usage_limit
            }
        }
    };
    assert_eq!(limit(), 64 << 20);
    container
        .task
        .pause(
            wait(),
            &PauseRequest {
                id: id(),
                ..PauseRequest::default()
            },
        )
        .unwrap();
    assert_eq!(state(&container, "").0, Status::PAUSED);
    assert_eq!(state(&container, "e").0, Status::PAUSED);
    assert!(
        message(container.exec("f", &["true"], |_| {}))
            .1
            .contains("cannot exec in a paused state")
    );
    container
        .task
        .resume(
            wait(),
            &ResumeRequest {
                id: id(),
                ..ResumeRequest::default()
            },
        )
        .unwrap();
    assert_eq!(state(&container, "").0, Status::RUNNING);
    // A frozen container can be killed.
    container
        .task
        .pause(
            wait(),
            &PauseRequest {
                id: id(),
                ..PauseRequest::default()
            },
        )
        .unwrap();
    container.kill("", 9).unwrap();
    assert_eq!(container.wait("").unwrap().exit_status, 137);
    assert_eq!(container.wait("e").unwrap().exit_status, 137);
    container.delete("e").unwrap();
    container.delete("").unwrap();
    container.shutdown();
    assert!(pod.topics().contains(&"/tasks/paused".to_owned()));
}

#[test]
fn without_a_pid_namespace_of_its_own_what_a_container_leaves_is_killed_with_it() {
    let Some(mut pod) = Pod::new() else { return };
    let container = pod.create("a", &["sh", "-c", "sleep 1000 & sleep 0.3; exit 4"], |spec| {
        spec["linux"]["namespaces"] = json!([{"type": "mount"}, {"type": "ipc"}]);
    });
    container.start("").unwrap();
    assert_eq!(container.wait("").unwrap().exit_status, 4);
    eventually("what it left is killed", || {
        let request = PidsRequest {
            id: container.id.clone(),
            ..PidsRequest::default()
        };
        container
            .task
            .pids(wait(), &request)
            .unwrap()
            .processes
            .is_empty()
    });
    container.delete("").unwrap();
    container.shutdown();
}
