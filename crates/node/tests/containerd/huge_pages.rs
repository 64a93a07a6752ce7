//! Pods with preallocated huge pages, where this machine can allocate some; and the rejection of such pods where there
//! are none.

use std::fs::File;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use nix::fcntl::{Flock, FlockArg};
use serde_json::{Value, json};

use super::machine::{Machine, OBEDIENT, phase, ready, shell};

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const PAGE: i64 = 2 << 20;

fn number(path: impl AsRef<Path>) -> i64 {
    let path = path.as_ref();
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.trim().parse().unwrap()
}

/// Pages set aside for one test at a time; as many as before when it ends.
struct Pool {
    before: i64,
    _alone: Flock<File>,
}

impl Pool {
    /// None on a machine that cannot allocate so many.
    fn with(pages: i64) -> Option<Pool> {
        let lock = Flock::lock(File::open(POOL).ok()?, FlockArg::LockExclusive).ok()?;
        let pool = Pool {
            before: number(POOL),
            _alone: lock,
        };
        let written = std::fs::write(POOL, (pool.before + pages).to_string());
        (written.is_ok() && number(POOL) == pool.before + pages).then_some(pool)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(POOL, self.before.to_string()) {
            eprintln!("{POOL} stays: {error}");
        }
    }
}

fn resources(huge: &str) -> Value {
    let amounts = json!({"cpu": "100m", "memory": "64Mi", "hugepages-2Mi": huge});
    json!({"requests": amounts, "limits": amounts})
}

/// One container with these pages, and one volume of this medium at `/huge`.
fn pod(script: &str, huge: Option<&str>, medium: &str) -> Value {
    let mut containers = shell(script);
    if let Some(huge) = huge {
        containers[0]["resources"] = resources(huge);
    }
    containers[0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/huge"}]);
    json!({"containers": containers, "volumes": [{"name": "v", "emptyDir": {"medium": medium}}]})
}

/// What of 2 MiB pages a group may use and uses; none without a controller for them.
fn held(group: &str) -> Option<(i64, i64)> {
    let root = Path::new("/sys/fs/cgroup");
    let (hierarchy, limit, usage) = match knarr_node::cgroup::is_unified() {
        true => (PathBuf::from(root), "max", "current"),
        false => (root.join("hugetlb"), "limit_in_bytes", "usage_in_bytes"),
    };
    let file = |name: &str| hierarchy.join(group).join(format!("hugetlb.2MB.{name}"));
    let there = match knarr_node::cgroup::is_unified() {
        true => std::fs::read_to_string(root.join("cgroup.controllers"))
            .unwrap()
            .split_whitespace()
            .any(|c| c == "hugetlb"),
        false => hierarchy.exists(),
    };
    there.then(|| (number(file(limit)), number(file(usage))))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_huge_pages_are_the_nodes_to_give() {
    let pool = Pool::with(8);
    let Some(machine) = Machine::start(21).await else {
        return;
    };
    let node = machine.ready().await;
    let has = match Path::new(POOL).exists() {
        true => number(POOL) * PAGE,
        false => 0,
    };
    let capacity = &node["status"]["capacity"];
    let mebibytes =
        |value: &Value| knarr_apimachinery::quantity::Quantity::parse(value.as_str().unwrap()).unwrap();
    if Path::new(POOL).exists() {
        assert_eq!(mebibytes(&capacity["hugepages-2Mi"]).value(), has);
    }
    let huge: i64 = capacity
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| name.starts_with("hugepages-"))
        .map(|(_, amount)| mebibytes(amount).value())
        .sum();
    let left = mebibytes(&node["status"]["allocatable"]["memory"]).value();
    assert_eq!(left, mebibytes(&capacity["memory"]).value() - huge);

    // More than there is.
    let more = format!("{}", has + PAGE);
    machine
        .create("more", pod(OBEDIENT, Some(&more), "HugePages"))
        .await;
    machine.wait("more", "rejected", |p| phase(p) == "Failed").await;
    let rejected = machine.get("more").await.unwrap();
    let status = rejected.status.clone().unwrap();
    assert_eq!(status.reason.as_deref(), Some("OutOfhugepages-2Mi"));

    // A volume of a page size that no container requests.
    machine.create("unasked", pod(OBEDIENT, None, "HugePages")).await;
    let message =
        "medium HugePages: hugePages storage requested, but there is no resource request for huge pages";
    loop {
        let events = machine.events("unasked").await;
        if events
            .iter()
            .any(|e| e.starts_with("FailedMount") && e.ends_with(message))
        {
            break;
        }
        machine.wait("unasked", "still there", |p| p.is_some()).await;
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    for name in ["more", "unasked"] {
        machine.delete(name).await;
        machine.wait(name, "deleted", |p| p.is_none()).await;
    }
    match &pool {
        Some(_) => used(&machine).await,
        None => eprintln!("not run further: no huge pages can be set aside here"),
    }
    machine.end().await;
}

/// A pod allocates pages by files in its volume, within its limit if the kernel counts them, and releases them.
async fn used(machine: &Machine) {
    let free = Path::new(POOL).with_file_name("free_hugepages");
    let before = number(&free);
    let script = "grep ' /huge hugetlbfs .*pagesize=2M' /proc/mounts && fallocate -l 4194304 /huge/a || exit 7; \
                  fallocate -l 2097152 /huge/b 2>/dev/null && echo more > /dev/termination-log; \
                  trap 'exit 0' TERM; echo > /tmp/up; while :; do sleep 0.05; done";
    let mut spec = pod(script, Some("4Mi"), "HugePages-2Mi");
    spec["containers"][0]["startupProbe"] =
        json!({"exec": {"command": ["test", "-e", "/tmp/up"]}, "periodSeconds": 1});
    // A second container without huge pages.
    let mut other = shell(OBEDIENT)[0].clone();
    other["name"] = json!("other");
    other["resources"] =
        json!({"limits": {"cpu": "50m", "memory": "16Mi"}, "requests": {"cpu": "50m", "memory": "16Mi"}});
    spec["containers"].as_array_mut().unwrap().push(other);
    machine.create("p", spec).await;
    machine.wait("p", "ready", ready).await;
    let running = machine.get("p").await.unwrap();
    let uid = running.metadata.uid.clone().unwrap();
    let class = match running.status.as_ref().and_then(|s| s.qos_class.as_deref()) {
        Some("Burstable") => "kubepods/burstable",
        _ => "kubepods",
    };
    let group = format!("{class}/pod{uid}");
    let id_of = |pod: &Pod, name: &str| -> String {
        let statuses = pod.status.as_ref().unwrap().container_statuses.iter().flatten();
        let mut of = statuses.filter(|s| s.name == name);
        let id = of.next().unwrap().container_id.clone().unwrap();
        id.rsplit('/').next().unwrap().to_string()
    };
    let taken = before - number(&free);
    match held(&group) {
        Some(of_pod) => {
            assert_eq!(of_pod, (2 * PAGE, 2 * PAGE), "the pod's limit, and what it uses");
            assert_eq!(taken, 2, "the third page was denied");
            assert_eq!(
                held("kubepods").map(|(limit, _)| limit),
                Some(number(POOL) * PAGE)
            );
            let of = |name: &str| held(&format!("{group}/{}", id_of(&running, name)));
            assert_eq!(of("c"), Some((2 * PAGE, 2 * PAGE)));
            assert_eq!(of("other"), Some((0, 0)));
        }
        // Without a limit only the pool bounds it.
        None => assert_eq!(taken, 3),
    }
    machine.delete("p").await;
    machine.wait("p", "deleted", |p| p.is_none()).await;
    assert_eq!(number(&free), before, "released with the volume");
}
