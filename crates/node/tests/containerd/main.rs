//! Pods' lives on a real containerd, against an API in memory: what the units cannot show.
//!
//! Needs root, containerd, runc and the CNI plugins; where one is missing the tests print that and pass. Everything is
//! private to one test (directories, bridge, subnet) and removed afterwards.

#![allow(
    clippy::disallowed_methods,
    reason = "tests create the files that they read by name"
)]
// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used)]

mod block_volumes;
mod confined;
mod devices;
mod huge_pages;
mod machine;
mod measured;
mod oci_runtime;
mod pinned;
mod probed;
mod resized;

use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_client::{Api, DeleteOptions, TypedApi};
use knarr_node::containerd::{Containerd, ContainerdConfig};
use knarr_node::images;
use knarr_node::runtime::Runtime;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use machine::{Machine, OBEDIENT, first, phase, ready, shell};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l13_a_pod_runs_and_terminates_and_leaves_nothing() {
    let Some(machine) = Machine::start(1).await else {
        return;
    };
    machine
        .create("warm", json!({"containers": shell(OBEDIENT)}))
        .await;
    machine.wait("warm", "ready", ready).await;
    let links = || -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(machine.dir.path().join("containers")).unwrap();
        entries.map(|e| e.unwrap().path()).collect()
    };
    let id = first(&machine.get("warm").await.unwrap())["containerID"].clone();
    let id = id
        .as_str()
        .unwrap()
        .trim_start_matches("containerd://")
        .to_string();
    let name = format!("warm_default_c-{id}.log");
    let log = links().into_iter().find(|p| p.ends_with(&name)).unwrap();
    assert!(std::fs::canonicalize(log).unwrap().ends_with("c/0.log"));
    let (mut ups, mut downs) = (Vec::new(), Vec::new());
    for i in 0..5 {
        let name = format!("p{i}");
        machine
            .create(&name, json!({"containers": shell(OBEDIENT)}))
            .await;
        ups.push(machine.wait(&name, "ready", ready).await);
        let pod = machine.get(&name).await.unwrap();
        assert_eq!(phase(Some(&pod)), "Running");
        assert!(
            pod.status
                .as_ref()
                .unwrap()
                .pod_ip
                .as_deref()
                .unwrap()
                .starts_with("10.211.1.")
        );
        machine.delete(&name).await;
        downs.push(machine.wait(&name, "deleted", |p| p.is_none()).await);
    }
    eprintln!(
        "create to Running: {ups:?}
    delete to deleted: {downs:?}"
    );
    assert_eq!(machine.containers().await, 1, "only the first is left");
    let events = machine.events("p0").await;
    for expected in [
        "Pulled",
        "Created Container created",
        "Started Container started",
        "Killing Stopping container c",
    ] {
        assert!(
            events.iter().any(|e| e.starts_with(expected)),
            "{expected} is missing: {events:#?}"
        );
    }
    machine.delete("warm").await;
    machine.wait("warm", "deleted", |p| p.is_none()).await;
    let began = Instant::now();
    while !links().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", links());
        sleep(Duration::from_millis(5)).await;
    }
    machine.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_l5_exits_are_reported_with_codes_messages_and_restarts() {
    let Some(machine) = Machine::start(2).await else {
        return;
    };
    let say = "echo said >/dev/termination-log; exit 3";
    machine
        .create(
            "never",
            json!({"containers": shell(say), "restartPolicy": "Never"}),
        )
        .await;
    machine
        .create(
            "again",
            json!({"containers": shell(say), "restartPolicy": "OnFailure"}),
        )
        .await;
    machine
        .create(
            "fine",
            json!({"containers": shell("exit 0"), "restartPolicy": "OnFailure"}),
        )
        .await;
    machine.create("bad", json!({"containers": [{"name": "c", "image": images::BUSYBOX, "command": ["/no/such"]}], "restartPolicy": "Never"})).await;
    machine.wait("never", "failed", |p| phase(p) == "Failed").await;
    let status = first(&machine.get("never").await.unwrap());
    let end = &status["state"]["terminated"];
    assert_eq!(
        (&end["exitCode"], &end["reason"], &end["message"]),
        (&json!(3), &json!("Error"), &json!("said\n"))
    );
    machine
        .wait("fine", "succeeded", |p| phase(p) == "Succeeded")
        .await;
    machine.wait("bad", "failed", |p| phase(p) == "Failed").await;
    let status = first(&machine.get("bad").await.unwrap());
    assert_eq!(status["state"]["terminated"]["reason"], "StartError");
    assert_eq!(status["state"]["terminated"]["exitCode"], 128);
    machine
        .wait("again", "in back-off", |p| {
            p.is_some_and(|p| first(p)["state"]["waiting"]["reason"] == "CrashLoopBackOff")
        })
        .await;
    let status = first(&machine.get("again").await.unwrap());
    assert_eq!(status["restartCount"], 1);
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 3);
    let message = status["state"]["waiting"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("back-off 10s restarting failed container=c pod=again_default("),
        "{message}"
    );
    machine.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t4_what_runs_is_found_again_after_restarts_and_never_runs_twice() {
    let Some(mut machine) = Machine::start(3).await else {
        return;
    };
    machine.create("p", json!({"containers": shell(OBEDIENT)})).await;
    machine.create("q", json!({"containers": shell(OBEDIENT)})).await;
    machine.wait("p", "ready", ready).await;
    machine.wait("q", "ready", ready).await;
    let id = first(&machine.get("p").await.unwrap())["containerID"].clone();

    machine.stop_kubelet().await;
    // Deleted while no kubelet ran: an orphan now.
    let kind = Pod::kind_of();
    let at_once = DeleteOptions {
        grace_period_seconds: Some(0),
        ..DeleteOptions::default()
    };
    machine.api.delete(kind, "default", "q", at_once).await.unwrap();
    machine.start_kubelet();
    let began = Instant::now();
    while machine.containers().await != 1 {
        assert!(began.elapsed() < Duration::from_secs(20), "the orphan still runs");
        sleep(Duration::from_millis(20)).await;
    }
    machine.stop_containerd().await;
    machine.start_containerd().await;
    machine.wait("p", "ready", ready).await;
    sleep(Duration::from_millis(1500)).await;
    let status = first(&machine.get("p").await.unwrap());
    assert_eq!(status["containerID"], id, "the same container runs on");
    assert_eq!(status["restartCount"], 0);
    assert_eq!(machine.containers().await, 1);
    machine.delete("p").await;
    machine.wait("p", "deleted", |p| p.is_none()).await;
    assert_eq!(machine.containers().await, 0);
    machine.end().await;
}

/// Starts containerd under a supervisor that exits at once, as if knarr were killed. Returns its process id.
async fn left_behind(config: ContainerdConfig) -> String {
    let killed = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let start = Containerd::start(config.clone(), CancellationToken::new());
    killed.spawn(start).await.unwrap().unwrap();
    killed.shutdown_background();
    noted_pid(&config)
}

fn noted_pid(config: &ContainerdConfig) -> String {
    std::fs::read_to_string(config.run.join("containerd.pid")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t4_a_containerd_left_behind_is_kept_if_it_is_what_would_be_started() {
    let Some(mut machine) = Machine::start(9).await else {
        return;
    };
    let config = machine.containerd_config();
    machine.stop_containerd().await;
    let left = left_behind(config.clone()).await;
    machine.start_containerd().await;
    let pid = noted_pid(&config);
    assert_eq!(pid, left, "the same process keeps running");

    // An adopted one is supervised like a child.
    let killed = nix::unistd::Pid::from_raw(pid.parse().unwrap());
    nix::sys::signal::kill(killed, nix::sys::signal::Signal::SIGKILL).unwrap();
    let began = Instant::now();
    while noted_pid(&config) == pid || machine.runtime.sandboxes().await.is_err() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "it is not started again"
        );
        sleep(Duration::from_millis(20)).await;
    }

    // And it is terminated like one.
    machine.stop_containerd().await;
    let left = left_behind(config.clone()).await;
    machine.start_containerd().await;
    machine.stop_containerd().await;
    assert!(
        !Path::new("/proc").join(&left).join("cwd").exists(),
        "an adopted one ends with knarr"
    );

    // No note of it, as when knarr is killed right after it started one: it is found all the same.
    let changed = ContainerdConfig {
        sandbox_image: "localhost/other:1".into(),
        ..config.clone()
    };
    let left = left_behind(changed).await;
    std::fs::remove_file(config.run.join("containerd.pid")).unwrap();
    machine.start_containerd().await;
    assert_ne!(noted_pid(&config), left, "its configuration is another");
    assert!(
        !Path::new("/proc").join(&left).join("cwd").exists(),
        "there is only one"
    );
    machine.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_pods_at_once_run_and_go() {
    let Some(machine) = Machine::start(4).await else {
        return;
    };
    let names: Vec<String> = (0..30).map(|i| format!("p{i}")).collect();
    let began = Instant::now();
    for name in &names {
        machine.create(name, json!({"containers": shell(OBEDIENT)})).await;
    }
    for name in &names {
        machine.wait(name, "ready", ready).await;
    }
    let up = began.elapsed();
    let began = Instant::now();
    for name in &names {
        machine.delete(name).await;
    }
    for name in &names {
        machine.wait(name, "deleted", |p| p.is_none()).await;
    }
    eprintln!(
        "30 pods: all Running after {up:?}, all deleted after {:?}",
        began.elapsed()
    );
    assert_eq!(machine.containers().await, 0);
    assert!(machine.runtime.sandboxes().await.unwrap().is_empty());
    machine.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t2_t6_hooks_graces_and_force() {
    let Some(machine) = Machine::start(5).await else {
        return;
    };
    let mut containers = shell("trap '' TERM; while :; do sleep 0.05; done");
    containers[0]["lifecycle"] = json!({"preStop": {"exec": {"command": ["sh", "-c", "sleep 1; exit 4"]}}});
    machine
        .create(
            "stubborn",
            json!({"containers": containers, "terminationGracePeriodSeconds": 3}),
        )
        .await;
    machine
        .create(
            "forced",
            json!({"containers": shell("trap '' TERM; while :; do sleep 0.05; done")}),
        )
        .await;
    machine.wait("stubborn", "ready", ready).await;
    machine.wait("forced", "ready", ready).await;
    machine.delete("stubborn").await;
    let took = machine.wait("stubborn", "deleted", |p| p.is_none()).await;
    assert!(
        (2900..4500).contains(&took.as_millis()),
        "the grace is 3 s: {took:?}"
    );
    let events = machine.events("stubborn").await;
    assert!(
        events.iter().any(|e| e == "FailedPreStopHook PreStopHook failed"),
        "{events:#?}"
    );
    let at_once = DeleteOptions {
        grace_period_seconds: Some(0),
        ..DeleteOptions::default()
    };
    machine
        .api
        .delete(Pod::kind_of(), "default", "forced", at_once)
        .await
        .unwrap();
    let began = Instant::now();
    while machine.containers().await > 0 {
        assert!(
            began.elapsed() < Duration::from_secs(6),
            "what was forced away still runs"
        );
        sleep(Duration::from_millis(20)).await;
    }
    machine.end().await;
}

/// A container that ends with a certain code has all of its pod's containers begin again, in the same sandbox.
async fn all_again(machine: &Machine) {
    let mounts = json!([{"name": "e", "mountPath": "/e"}]);
    let once = "echo main >>/e/log; [ -e /e/again ] && exec cat /e/log >/dev/termination-log; touch /e/again; exit 42";
    let spec = json!({
        "restartPolicy": "Never",
        "volumes": [{"name": "e", "emptyDir": {}}],
        "initContainers": [
            {"name": "i", "image": images::BUSYBOX, "command": ["sh", "-c", "echo init >>/e/log"], "volumeMounts": mounts},
            {"name": "side", "image": images::BUSYBOX, "restartPolicy": "Always", "volumeMounts": mounts,
             "startupProbe": {"exec": {"command": ["test", "-e", "/dev/shm/up"]}, "periodSeconds": 1, "failureThreshold": 60},
             "command": ["sh", "-c", format!("echo side >>/e/log; touch /dev/shm/up; {OBEDIENT}")]},
        ],
        "containers": [{
            "name": "c", "image": images::BUSYBOX, "command": ["sh", "-c", once], "volumeMounts": mounts,
            "restartPolicy": "Never",
            "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}],
        }],
    });
    machine.create("again", spec).await;
    machine.wait("again", "done", |p| phase(p) == "Succeeded").await;
    let pod = machine.get("again").await.unwrap();
    let status = serde_json::to_value(&pod.status).unwrap();
    let ended = &status["containerStatuses"][0];
    let log = "init\nside\nmain\ninit\nside\nmain\n";
    assert_eq!(ended["state"]["terminated"]["message"], log, "{status}");
    assert_eq!(
        ended["lastState"]["terminated"]["reason"],
        "RestartingAllContainers"
    );
    for of in [
        ended,
        &status["initContainerStatuses"][0],
        &status["initContainerStatuses"][1],
    ] {
        assert_eq!(of["restartCount"], 1, "{of}");
    }
    machine.delete("again").await;
    machine.wait("again", "deleted", |p| p.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l10_l9_l8_l5_init_containers_hooks_probes_volumes_and_all_of_it_again() {
    let Some(machine) = Machine::start(6).await else {
        return;
    };
    let map = json!({"metadata": {"name": "m", "namespace": "default"}, "data": {"k": "from-map"}});
    machine
        .api
        .create_as::<ConfigMap>(serde_json::from_value(map).unwrap())
        .await
        .unwrap();
    let spec = json!({
        "initContainers": [
            {"name": "i", "image": images::BUSYBOX, "command": ["sh", "-c", "echo init >/e/log; umask 077; echo \"FILE='from file'\" >/e/env"], "volumeMounts": [{"name": "e", "mountPath": "/e"}]},
            {"name": "side", "image": images::BUSYBOX, "restartPolicy": "Always", "command": ["sh", "-c", format!("echo side >>/e/log; {OBEDIENT}")], "volumeMounts": [{"name": "e", "mountPath": "/e"}]},
        ],
        "containers": [{
            "name": "c", "image": images::BUSYBOX,
            "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, {"name": "K", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
                {"name": "FILE", "valueFrom": {"fileKeyRef": {"volumeName": "e", "path": "env", "key": "FILE"}}},
                {"name": "NONE", "valueFrom": {"fileKeyRef": {"volumeName": "e", "path": "env", "key": "NONE", "optional": true}}}],
            "command": ["sh", "-c", "while [ ! -e /e/hook ]; do sleep 0.02; done; echo $POD $K $FILE${NONE-} $(cat /m/k) $(cat /s/log) $(cat /d/name) >/dev/termination-log; sleep 0.7"],
            "lifecycle": {"postStart": {"exec": {"command": ["touch", "/e/hook"]}}},
            "readinessProbe": {"exec": {"command": ["test", "-e", "/e/hook"]}, "periodSeconds": 1},
            "volumeMounts": [
                {"name": "e", "mountPath": "/e"}, {"name": "m", "mountPath": "/m"}, {"name": "e", "mountPath": "/s/log", "subPath": "log"}, {"name": "d", "mountPath": "/d"},
            ],
        }],
        "restartPolicy": "Never",
        "volumes": [
            {"name": "e", "emptyDir": {"medium": "Memory"}}, {"name": "m", "configMap": {"name": "m"}},
            {"name": "d", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ],
    });
    machine.create("p", spec).await;
    machine.wait("p", "ready", ready).await;
    machine.wait("p", "succeeded", |p| phase(p) == "Succeeded").await;
    let pod = machine.get("p").await.unwrap();
    assert_eq!(
        first(&pod)["state"]["terminated"]["message"],
        "p from-map from file from-map init side p\n"
    );
    machine.delete("p").await;
    all_again(&machine).await;
    machine.wait("p", "deleted", |p| p.is_none()).await;
    machine.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_is_registered_and_its_lease_renewed() {
    let Some(machine) = Machine::start(7).await else {
        return;
    };
    let node = machine.ready().await;
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "n1");
    assert!(
        node["status"]["nodeInfo"]["containerRuntimeVersion"]
            .as_str()
            .unwrap()
            .starts_with("containerd://1.")
    );
    let lease = machine.lease().await;
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
    let mut events = machine.runtime.events().await.unwrap();
    machine
        .create(
            "p",
            json!({"containers": shell("exit 0"), "restartPolicy": "Never"}),
        )
        .await;
    let event = tokio::time::timeout(Duration::from_secs(10), events.next()).await;
    assert!(event.unwrap().is_some(), "containerd reports exits");
    machine.wait("p", "succeeded", |p| phase(p) == "Succeeded").await;
    machine.end().await;
}
