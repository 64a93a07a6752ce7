//! Pods that are given other resources while they run, as the kernel has it before and after.

use std::path::Path;

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use knarr_api::k8s_openapi;
use knarr_client::TypedApi;
use serde_json::{Value, json};

use super::machine::{Machine, OBEDIENT, first, ready, shell};

const CGROUPS: &str = "/sys/fs/cgroup";

/// Shares or weight, quota in microseconds and memory in bytes, of a group below the root of the hierarchies.
fn held(group: &str) -> (i64, i64, i64) {
    let read = |path: String| -> String {
        let path = Path::new(CGROUPS).join(path);
        let text = std::fs::read_to_string(&path);
        text.unwrap_or_else(|e| panic!("{}: {e}", path.display()))
            .trim()
            .to_string()
    };
    let number = |text: &str| text.parse().unwrap_or(i64::MAX);
    if knarr_node::cgroup::is_unified() {
        let quota = read(format!("{group}/cpu.max"));
        return (
            number(&read(format!("{group}/cpu.weight"))),
            number(quota.split(' ').next().unwrap_or("")),
            number(&read(format!("{group}/memory.max"))),
        );
    }
    (
        number(&read(format!("cpu/{group}/cpu.shares"))),
        number(&read(format!("cpu/{group}/cpu.cfs_quota_us"))),
        number(&read(format!("memory/{group}/memory.limit_in_bytes"))),
    )
}

/// As the kernel counts it here.
fn shares(shares: i64) -> i64 {
    match knarr_node::cgroup::is_unified() {
        true => knarr_kubelet::cgroup::weight(shares),
        false => shares,
    }
}

fn requirements(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

async fn ask(machine: &Machine, name: &str, resources: Value) {
    let resources: ResourceRequirements = serde_json::from_value(resources).unwrap();
    loop {
        let mut pod = (*machine.get(name).await.unwrap()).clone();
        pod.metadata.generation = pod.metadata.generation.map(|g| g + 1);
        pod.spec.as_mut().unwrap().resources = Some(resources.clone());
        match machine.api.update_as(pod).await {
            Ok(_) => return,
            Err(error) => assert!(error.is_conflict(), "{error}"),
        }
    }
}

/// The condition of a resize, by its type's end.
fn condition(pod: Option<&Pod>, type_: &str) -> Option<(String, String)> {
    let conditions = pod?.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|c| c.type_ == type_)?;
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    Some((text(&found.reason), text(&found.message)))
}

fn shown(pod: Option<&Pod>) -> Value {
    let status = pod.and_then(|p| p.status.as_ref());
    json!([
        status.and_then(|s| s.resources.as_ref()),
        status.and_then(|s| s.allocated_resources.as_ref())
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_t8_the_pods_own_group_follows_its_resources() {
    let Some(machine) = Machine::start(12).await else {
        return;
    };
    machine.ready().await;
    let mut containers = shell(OBEDIENT);
    let mut own = shell(OBEDIENT)[0].clone();
    own["name"] = json!("own");
    own["resources"] = requirements("50m", "16Mi");
    containers.as_array_mut().unwrap().push(own);
    let spec = json!({"containers": containers, "resources": requirements("200m", "64Mi")});
    machine.create("p", spec).await;
    machine.wait("p", "ready", ready).await;
    let pod = machine.get("p").await.unwrap();
    let uid = pod.metadata.uid.clone().unwrap();
    let before = json!([requirements("200m", "64Mi"), {"cpu": "200m", "memory": "64Mi"}]);
    assert_eq!(shown(Some(&pod)), before);
    let class = match pod.status.as_ref().and_then(|s| s.qos_class.as_deref()) {
        Some("Burstable") => "kubepods/burstable",
        _ => "kubepods",
    };
    let group = format!("{class}/pod{uid}");
    let group_of = |i: usize| -> String {
        let statuses = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap();
        let id = statuses[i].container_id.clone().unwrap();
        format!("{group}/{}", id.rsplit('/').next().unwrap())
    };
    let (bare, own) = (group_of(0), group_of(1));
    assert_eq!(held(&group), (shares(204), 20_000, 64 << 20));
    assert_eq!(
        held(&bare),
        (shares(204), 20_000, 64 << 20),
        "the pod's limits hold"
    );
    assert_eq!(held(&own), (shares(51), 5000, 16 << 20));
    assert_eq!(
        held("kubepods/besteffort").0,
        shares(2),
        "who asks for nothing weighs least"
    );

    // More of one, less of the other.
    ask(&machine, "p", requirements("300m", "32Mi")).await;
    let expected = json!([requirements("300m", "32Mi"), {"cpu": "300m", "memory": "32Mi"}]);
    let resized = |p: Option<&Pod>| shown(p) == expected && condition(p, "PodResizeInProgress").is_none();
    machine.wait("p", "resized", resized).await;
    assert_eq!(held(&group), (shares(307), 30_000, 32 << 20));
    assert_eq!(held(&bare), (shares(307), 30_000, 32 << 20));
    assert_eq!(held(&own), (shares(51), 5000, 16 << 20), "left alone");

    // What is in use is not taken away.
    ask(&machine, "p", requirements("300m", "64Ki")).await;
    let failed = |p: Option<&Pod>| condition(p, "PodResizeInProgress").is_some_and(|c| c.0 == "Error");
    machine.wait("p", "found impossible", failed).await;
    let pod = machine.get("p").await;
    let (_, message) = condition(pod.as_deref(), "PodResizeInProgress").unwrap();
    assert!(
        message.contains("attempting to set pod memory limit (65536) below current usage ("),
        "{message}"
    );
    assert_eq!(
        held(&group),
        (shares(307), 30_000, 32 << 20),
        "nothing is half done"
    );
    let status = shown(pod.as_deref());
    assert_eq!(status[0], requirements("300m", "32Mi"), "what it has");
    assert_eq!(status[1]["memory"], "64Ki", "what it was allocated");

    ask(&machine, "p", requirements("200m", "64Mi")).await;
    let back = |p: Option<&Pod>| shown(p) == before && condition(p, "PodResizeInProgress").is_none();
    machine.wait("p", "as it was", back).await;
    assert_eq!(held(&group), (shares(204), 20_000, 64 << 20));
    assert_eq!(held(&bare), (shares(204), 20_000, 64 << 20));
    let status = first(&machine.get("p").await.unwrap());
    assert_eq!(status["restartCount"], 0);

    // By now the node has also kept itself from being filled by its pods.
    let enforced = machine.events("n1").await;
    let enforced = enforced.iter().any(|e| e.starts_with("NodeAllocatableEnforced "));
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = text.lines().find_map(|l| l.strip_prefix("MemTotal:")).unwrap();
    let kibibytes: i64 = total.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(enforced);
    assert_eq!(held("kubepods").2, kibibytes * 1024);

    machine.delete("p").await;
    machine.wait("p", "deleted", |p| p.is_none()).await;
    machine.end().await;
}
