//! The summary of a node with real containers: every value that this machine's kernel provides is there.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use knarr_api::k8s_openapi;
use knarr_client::TypedApi;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::machine::{Machine, ready, shell};

/// Two processes, and for moments a third; something in its layer and its log.
const BUSY: &str = "echo written > /layer; echo logged; sleep 1000 & trap 'kill %1; exit 0' TERM; \
                    while :; do sleep 0.05; done";

async fn summary(machine: &Machine) -> Value {
    let (kubelet, _) = machine.kubelet.as_ref().unwrap();
    let measured = kubelet.meter().unwrap().measure(Duration::ZERO).await;
    serde_json::to_value(&measured.summary).unwrap()
}

fn of<'a>(list: &'a Value, name: &str) -> &'a Value {
    let list = list.as_array().unwrap();
    let found = list.iter().find(|entry| entry["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {list:#?}"))
}

/// Paths of numbers that must be there and above zero.
fn counted(value: &Value, paths: &[&str]) {
    for path in paths {
        let number = value.pointer(path).and_then(Value::as_f64);
        assert!(number.is_some_and(|n| n > 0.0), "{path}: {number:?} in {value:#}");
    }
}

/// A claim that is bound to a local directory.
async fn claimed(machine: &Machine) {
    let claim = json!({
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
    });
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
    let status = claim.status.clone();
    let created = machine.api.create_as(claim).await.unwrap();
    let mut claim = (*created).clone();
    claim.status = status;
    machine.api.update_status_as(claim.clone()).await.unwrap();
    let path = machine.dir.path().join("pv");
    std::fs::create_dir(&path).unwrap();
    let volume = json!({
        "metadata": {"name": "pv"},
        "spec": {"local": {"path": path}, "claimRef": {"uid": claim.metadata.uid}},
    });
    let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
    machine.api.create_as(volume).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t8_the_summary_contains_what_the_kernel_counts() {
    let Some(machine) = Machine::start(22).await else {
        return;
    };
    machine.ready().await;
    let mut containers = shell(BUSY);
    containers[0]["resources"] = json!({"limits": {"memory": "32Mi"}});
    containers[0]["volumeMounts"] =
        json!([{"name": "v", "mountPath": "/v"}, {"name": "w", "mountPath": "/w"}]);
    claimed(&machine).await;
    let spec = json!({"containers": containers, "volumes": [
        {"name": "v", "emptyDir": {}}, {"name": "w", "persistentVolumeClaim": {"claimName": "data"}},
    ]});
    machine.create("p", spec).await;
    machine.wait("p", "ready", ready).await;
    let began = Instant::now();
    let summary = loop {
        let summary = summary(&machine).await;
        let rate = summary.pointer("/pods/0/containers/0/cpu/usageNanoCores");
        let written = summary.pointer("/pods/0/containers/0/rootfs/usedBytes");
        if rate.is_some() && written.and_then(Value::as_u64).is_some_and(|n| n > 0) {
            break summary;
        }
        // Rates are over two seconds; the runtime counts layers every ten.
        assert!(began.elapsed() < Duration::from_secs(60), "{summary:#}");
        sleep(Duration::from_millis(100)).await;
    };
    let (node, pod) = (&summary["node"], &summary["pods"][0]);
    let processor_and_memory = [
        "/cpu/usageCoreNanoSeconds",
        "/memory/usageBytes",
        "/memory/workingSetBytes",
        "/memory/rssBytes",
        "/memory/pageFaults",
    ];
    for name in ["kubelet", "runtime", "pods"] {
        let daemon = of(&node["systemContainers"], name);
        counted(daemon, &processor_and_memory);
        assert!(daemon["startTime"].is_string(), "{daemon:#}");
        assert!(daemon.get("rootfs").is_none() && daemon.get("logs").is_none());
        assert_eq!(daemon["memory"].get("availableBytes").is_some(), name == "pods");
    }
    counted(node, &processor_and_memory);
    counted(
        node,
        &[
            "/fs/capacityBytes",
            "/fs/usedBytes",
            "/runtime/imageFs/usedBytes",
            "/runtime/containerFs/capacityBytes",
            "/rlimit/maxpid",
            "/rlimit/curproc",
        ],
    );
    assert!(node["network"]["interfaces"].is_array());

    let container = of(&pod["containers"], "c");
    counted(container, &processor_and_memory);
    counted(
        container,
        &[
            "/memory/availableBytes",
            "/logs/usedBytes",
            "/rootfs/capacityBytes",
        ],
    );
    counted(
        pod,
        &[
            "/ephemeral-storage/usedBytes",
            "/network/rxBytes",
            "/network/txBytes",
        ],
    );
    assert_eq!(pod["network"]["name"], "eth0");
    assert_eq!(
        of(&pod["network"]["interfaces"], "eth0")["rxBytes"],
        pod["network"]["rxBytes"]
    );
    let processes = pod["process_stats"]["process_count"].as_u64().unwrap();
    assert!(
        (2..=3).contains(&processes),
        "the shell, and what it waits for: {processes}"
    );
    let stats = ["/capacityBytes", "/usedBytes", "/inodesUsed"];
    counted(of(&pod["volume"], "v"), &stats);
    let claimed = of(&pod["volume"], "w");
    counted(claimed, &stats);
    assert_eq!(claimed["pvcRef"], json!({"name": "data", "namespace": "default"}));

    // Pressure is there for all, or (cgroup v1) for none.
    let unified = knarr_node::cgroup::is_unified();
    for whose in [node, pod, container, of(&node["systemContainers"], "pods")] {
        assert_eq!(whose["cpu"].get("psi").is_some(), unified, "{whose:#}");
        assert_eq!(whose["memory"].get("psi").is_some(), unified, "{whose:#}");
        assert_eq!(whose.get("io").is_some(), unified, "{whose:#}");
        // What is swapped out is counted where the kernel was built to.
        if let Some(swap) = whose.get("swap") {
            assert!(swap["swapUsageBytes"].is_u64(), "{swap}");
        }
    }
    machine.delete("p").await;
    machine.wait("p", "deleted", |p| p.is_none()).await;
    machine.end().await;
}
