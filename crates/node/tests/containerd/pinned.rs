//! Containers with CPUs and memory of their own, as the kernel has it before and after a restart of the kubelet.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_client::{Api, TypedApi};
use knarr_kubelet::cpumanager::{CpuSet, cpuset};
use knarr_node::plugins::call;
use knarr_node::podresources::wire::{AllocatableResourcesRequest, ListPodResourcesRequest};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::machine::{Machine, OBEDIENT, first, phase, ready, shell};

const CGROUPS: &str = "/sys/fs/cgroup";

/// A file of the control group that the pod's one container is in, by its hierarchy in version 1.
fn held(pod: &Pod, hierarchy: &str, file: &str) -> String {
    let id = first(pod)["containerID"].as_str().unwrap().to_string();
    let id = id.rsplit('/').next().unwrap();
    let class = match pod.status.as_ref().and_then(|s| s.qos_class.as_deref()) {
        Some("Guaranteed") => "kubepods",
        Some("Burstable") => "kubepods/burstable",
        _ => "kubepods/besteffort",
    };
    let uid = pod.metadata.uid.as_deref().unwrap();
    let group = format!("{class}/pod{uid}/{id}/{file}");
    let path = match knarr_node::cgroup::is_unified() {
        true => Path::new(CGROUPS).join(group),
        false => Path::new(CGROUPS).join(hierarchy).join(group),
    };
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.trim().to_string()
}

async fn cpus(machine: &Machine, name: &str) -> CpuSet {
    let pod = machine.get(name).await.unwrap();
    cpuset::parse(&held(&pod, "cpuset", "cpuset.cpus")).unwrap()
}

async fn wait_for_cpus(machine: &Machine, name: &str, expected: &CpuSet) {
    let began = Instant::now();
    loop {
        let found = cpus(machine, name).await;
        if found == *expected {
            return;
        }
        let waited = began.elapsed();
        assert!(
            waited < Duration::from_secs(30),
            "{name} is on {found:?}, not {expected:?}"
        );
        sleep(Duration::from_millis(20)).await;
    }
}

fn guaranteed() -> Value {
    let mut containers = shell(OBEDIENT);
    let amounts = json!({"cpu": "1", "memory": "32Mi"});
    containers[0]["resources"] = json!({"limits": amounts, "requests": amounts});
    json!({"containers": containers})
}

fn online() -> CpuSet {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    cpuset::parse(text.trim()).unwrap()
}

fn configuration(more: &Value) -> knarr_kubelet::configuration::KubeletConfiguration {
    let first = online().first().copied().unwrap();
    let mut document = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": first.to_string(),
        "memoryManagerPolicy": "Static",
        "systemReserved": {"memory": "100Mi"},
        "evictionHard": {},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
        "topologyManagerPolicy": "single-numa-node",
        "topologyManagerScope": "pod",
    });
    document
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    knarr_kubelet::configuration::read(&document).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_a_guaranteed_container_keeps_its_cpus_over_a_restart_of_the_kubelet() {
    let all = online();
    if all.len() < 2 {
        eprintln!("not run: this machine has one CPU");
        return;
    }
    let Some(mut machine) = Machine::start_configured(41, configuration(&json!({}))).await else {
        return;
    };
    machine.ready().await;
    machine
        .create("shared", json!({"containers": shell(OBEDIENT)}))
        .await;
    machine.wait("shared", "ready", ready).await;
    assert_eq!(cpus(&machine, "shared").await, all);
    machine.create("own", guaranteed()).await;
    machine.wait("own", "ready", ready).await;
    let own = cpus(&machine, "own").await;
    assert_eq!(own.len(), 1);
    assert!(!own.contains(all.first().unwrap()), "that one is reserved");
    let pod = machine.get("own").await.unwrap();
    assert_eq!(held(&pod, "cpuset", "cpuset.mems"), "0");
    let quota = match knarr_node::cgroup::is_unified() {
        true => held(&pod, "cpu", "cpu.max").split(' ').next() == Some("max"),
        false => held(&pod, "cpu", "cpu.cfs_quota_us") == "-1",
    };
    assert!(quota, "no quota holds for a container with its own CPUs");
    let rest: CpuSet = all.difference(&own).copied().collect();
    wait_for_cpus(&machine, "shared", &rest).await;

    let socket = machine.dir.path().join("kubelet/pod-resources/kubelet.sock");
    let list = call(&socket, ListPodResourcesRequest {}, Duration::from_secs(5))
        .await
        .unwrap();
    let listed = list.pod_resources.iter().find(|pod| pod.name == "own").unwrap();
    let container = &listed.containers[0];
    assert_eq!(
        container.cpu_ids,
        own.iter().map(|cpu| i64::from(*cpu)).collect::<Vec<_>>()
    );
    assert_eq!(
        (container.memory[0].memory_type.as_str(), container.memory[0].size),
        ("memory", 32 << 20)
    );
    let allocatable = call(&socket, AllocatableResourcesRequest {}, Duration::from_secs(5)).await;
    let allocatable = allocatable.unwrap();
    assert_eq!(allocatable.cpu_ids.len(), all.len() - 1);
    assert!(allocatable.memory.iter().any(|of| of.memory_type == "memory"));

    // What is allocated exclusively is not resized.
    let mut asked = (*machine.get("own").await.unwrap()).clone();
    asked.metadata.generation = asked.metadata.generation.map(|g| g + 1);
    let resources =
        json!({"limits": {"cpu": "500m", "memory": "32Mi"}, "requests": {"cpu": "500m", "memory": "32Mi"}});
    asked.spec.as_mut().unwrap().containers[0].resources = serde_json::from_value(resources).unwrap();
    machine.api.update_as(asked).await.unwrap();
    let infeasible = |pod: Option<&Pod>| {
        let conditions = pod.and_then(|p| p.status.as_ref()?.conditions.as_ref());
        conditions.into_iter().flatten().any(|c| {
            let message = "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
            c.reason.as_deref() == Some("Infeasible") && c.message.as_deref() == Some(message)
        })
    };
    machine
        .wait("own", "found infeasible to resize", infeasible)
        .await;

    machine.stop_kubelet().await;
    machine.start_kubelet();
    machine
        .create("later", json!({"containers": shell(OBEDIENT)}))
        .await;
    machine.wait("later", "ready", ready).await;
    assert_eq!(cpus(&machine, "later").await, rest);
    assert_eq!(cpus(&machine, "own").await, own);
    let file = std::fs::read(machine.dir.path().join("kubelet/cpu_manager_state")).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    assert_eq!(
        (&file["policyName"], &file["defaultCpuSet"]),
        (&json!("static"), &json!(cpuset::format(&rest)))
    );
    let uid = pod.metadata.uid.clone().unwrap();
    assert_eq!(file["entries"][&uid]["c"], cpuset::format(&own));

    machine.delete("own").await;
    machine.wait("own", "deleted", |p| p.is_none()).await;
    wait_for_cpus(&machine, "shared", &all).await;
    for name in ["shared", "later"] {
        machine.delete(name).await;
        machine.wait(name, "deleted", |p| p.is_none()).await;
    }
    machine.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_a_container_that_is_not_of_whole_cores_is_rejected_with_the_option() {
    let threads =
        std::fs::read_to_string("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").unwrap();
    let per_core = cpuset::parse(threads.trim()).unwrap().len();
    let whole = json!({"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}});
    let Some(machine) = Machine::start_configured(42, configuration(&whole)).await else {
        return;
    };
    machine.ready().await;
    machine.create("own", guaranteed()).await;
    match per_core {
        1 if online().len() > 1 => drop(machine.wait("own", "ready", ready).await),
        1 => {}
        _ => {
            machine.wait("own", "rejected", |p| phase(p) == "Failed").await;
            let pod = machine.get("own").await.unwrap();
            let status = pod.status.as_ref().unwrap();
            assert_eq!(status.reason.as_deref(), Some("SMTAlignmentError"));
            let message = format!(
                "Pod was rejected: SMT Alignment Error: requested 1 cpus not multiple cpus per core = {per_core}"
            );
            assert_eq!(status.message.as_deref(), Some(message.as_str()));
        }
    }
    machine.delete("own").await;
    machine.wait("own", "deleted", |p| p.is_none()).await;
    machine.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_a_node_whose_state_is_of_another_policy_is_not_ready() {
    let Some(mut machine) = Machine::start_configured(43, configuration(&json!({}))).await else {
        return;
    };
    machine.ready().await;
    let state = ["cpu_manager_state", "memory_manager_state"]
        .map(|file| machine.dir.path().join("kubelet").join(file));
    let began = Instant::now();
    while !state.iter().all(|file| file.exists()) {
        assert!(began.elapsed() < Duration::from_secs(30), "no state in {state:?}");
        sleep(Duration::from_millis(20)).await;
    }
    machine.stop_kubelet().await;
    machine.configuration = knarr_kubelet::configuration::KubeletConfiguration::default();
    machine.start_kubelet();
    let began = Instant::now();
    loop {
        let node = machine
            .api
            .get(&knarr_api::registry::NODE, "", "n1")
            .await
            .unwrap();
        let node: Value = serde_json::from_slice(node.json()).unwrap();
        let conditions = node["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let ready = conditions.iter().find(|c| c["type"] == "Ready").unwrap();
        let message = ready["message"].as_str().unwrap_or("");
        if ready["status"] == "False" && message.contains("please drain node and remove policy state file") {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{ready}");
        sleep(Duration::from_millis(20)).await;
    }
    for file in &state {
        std::fs::remove_file(file).unwrap();
    }
    machine.ready().await;
    machine.end().await;
}
