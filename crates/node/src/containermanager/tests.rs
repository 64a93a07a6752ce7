//! Pods on a machine with two NUMA nodes: CPUs and memory of their containers together, and over a restart.

use std::time::Duration;

use knarr_client::SystemClock;
use knarr_kubelet::cpumanager;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::admission::{CONTAINER, NUMA_NODE};
use super::*;

/// Two nodes, each with two cores of one thread and 1 GiB of memory.
fn write_machine(root: &Path) {
    let write = |path: String, text: &str| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("cpu/online".into(), "0-3");
    write("node/online".into(), "0-1");
    for cpu in 0..4 {
        write(
            format!("cpu/cpu{cpu}/topology/physical_package_id"),
            &(cpu / 2).to_string(),
        );
        write(
            format!("cpu/cpu{cpu}/topology/thread_siblings_list"),
            &cpu.to_string(),
        );
    }
    for (node, cpus, distance) in [(0, "0-1", "10 20"), (1, "2-3", "20 10")] {
        write(format!("node/node{node}/cpulist"), cpus);
        write(format!("node/node{node}/distance"), distance);
        write(
            format!("node/node{node}/meminfo"),
            &format!("Node {node} MemTotal: {} kB", 1 << 20),
        );
    }
}

fn configuration(policy: &str, scope: &str) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cpuManagerPolicy": "static",
        "systemReserved": {"cpu": "500m", "memory": "256Mi"},
        "evictionHard": {},
        "memoryManagerPolicy": "Static",
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "256Mi"}}],
        "topologyManagerPolicy": policy,
        "topologyManagerScope": scope,
    })
}

struct Node {
    directory: tempfile::TempDir,
    configuration: Value,
}

impl Node {
    fn new(configuration: Value) -> Self {
        let directory = tempfile::tempdir().unwrap();
        write_machine(&directory.path().join("machine"));
        Node {
            directory,
            configuration,
        }
    }

    /// A kubelet that starts on this node.
    async fn start(&self) -> Result<Arc<ContainerManager>, StartError> {
        let root = self.directory.path();
        let (health, _) = mpsc::unbounded_channel();
        let devices = Devices::new(
            root,
            Pool::inline(CancellationToken::new()),
            Arc::new(SystemClock),
            health,
        );
        let configuration = knarr_kubelet::configuration::read(&self.configuration).unwrap();
        let capacity = BTreeMap::from([("memory".to_string(), Quantity("2Gi".into()))]);
        let mut manager = ContainerManager::new(
            root,
            Pool::inline(CancellationToken::new()),
            devices,
            &configuration,
            &capacity,
        );
        manager.machine = root.join("machine");
        manager.start().await?;
        Ok(Arc::new(manager))
    }
}

/// Containers by the CPUs and memory they request and are limited to.
fn pod(uid: &str, containers: &[(&str, &str)]) -> Pod {
    let containers = containers.iter().enumerate().map(|(i, (cpu, memory))| {
        let amounts = json!({"cpu": cpu, "memory": memory});
        json!({"name": format!("c{i}"), "resources": {"requests": amounts, "limits": amounts}})
    });
    let containers: Vec<Value> = containers.collect();
    serde_json::from_value(json!({"metadata": {"uid": uid, "name": uid}, "spec": {"containers": containers}}))
        .unwrap()
}

fn placed(manager: &Arc<ContainerManager>, pod: &Pod) -> Vec<(String, String)> {
    let placement = |c: &Container| {
        let placement = manager.placement(pod, &c.name);
        (placement.cpus, placement.memory_nodes)
    };
    guaranteed::containers(pod).map(placement).collect()
}

fn on(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter()
        .map(|(cpus, nodes)| (cpus.to_string(), nodes.to_string()))
        .collect()
}

#[tokio::test]
async fn l4_cpus_and_memory_of_a_container_come_from_one_numa_node() {
    let node = Node::new(configuration("single-numa-node", "container"));
    let manager = node.start().await.unwrap();
    // CPU 0 is reserved: of node 0 there is one, and less memory.
    let large = pod("large", &[("1", "1Gi")]);
    manager.admit(&large).await.unwrap();
    assert_eq!(
        placed(&manager, &large),
        on(&[("2", "1")]),
        "only node 1 has the memory"
    );
    let wide = pod("wide", &[("2", "64Mi")]);
    let rejection = manager.admit(&wide).await.unwrap_err();
    assert_eq!(rejection.reason, "TopologyAffinityError");
    assert_eq!(
        rejection.message,
        "Resources cannot be allocated with Topology locality"
    );
    let two = pod("two", &[("1", "64Mi"), ("1", "64Mi")]);
    let rejection = manager.admit(&two).await.unwrap_err();
    assert_eq!(
        rejection.reason, "TopologyAffinityError",
        "the second container has no memory near CPU 3"
    );
    assert_eq!(
        manager.exclusive(&"two".into(), "c0").0,
        CpuSet::new(),
        "what the first one had is free"
    );
    let small = pod("small", &[("1", "64Mi")]);
    manager.admit(&small).await.unwrap();
    assert_eq!(placed(&manager, &small), on(&[("1", "0")]));
    let burstable = pod("burstable", &[("500m", "64Mi")]);
    assert_eq!(placed(&manager, &burstable), on(&[("0,3", "")]));
    let metrics = manager.metrics();
    assert_eq!(
        (metrics.exclusive_cpus, metrics.shared_pool_millicores),
        (2, 1000)
    );
    assert_eq!(metrics.exclusive_by_numa_node, BTreeMap::from([(0, 1), (1, 1)]));
    assert_eq!(
        (metrics.counts.admission_requests, metrics.counts.admission_errors),
        (4, 2)
    );
    assert_eq!(metrics.counts.not_aligned[&(CONTAINER, NUMA_NODE)], 2);
}

#[tokio::test]
async fn l4_all_containers_of_a_pod_are_on_one_numa_node_in_pod_scope() {
    let two = pod("two", &[("1", "64Mi"), ("1", "64Mi")]);
    for (policy, scope, placement) in [
        ("restricted", "container", [("1", "0"), ("2", "1")]),
        ("restricted", "pod", [("2", "1"), ("3", "1")]),
        ("best-effort", "pod", [("2", "1"), ("3", "1")]),
    ] {
        let node = Node::new(configuration(policy, scope));
        let manager = node.start().await.unwrap();
        manager.admit(&two).await.unwrap();
        assert_eq!(placed(&manager, &two), on(&placement), "{policy} {scope}");
    }
    // Without enough on one node, best-effort allocates what is available and restricted rejects.
    let wide = pod("wide", &[("2", "64Mi"), ("1", "64Mi")]);
    for (policy, is_admitted) in [("best-effort", true), ("single-numa-node", false)] {
        let node = Node::new(configuration(policy, "pod"));
        let manager = node.start().await.unwrap();
        assert_eq!(manager.admit(&wide).await.is_ok(), is_admitted, "{policy}");
        assert_eq!(manager.metrics().exclusive_cpus, if is_admitted { 3 } else { 0 });
    }
}

#[tokio::test]
async fn l4_what_is_allocated_survives_a_restart_and_is_released_with_its_pod() {
    let node = Node::new(configuration("best-effort", "container"));
    let manager = node.start().await.unwrap();
    let (a, b) = (pod("a", &[("1", "64Mi")]), pod("b", &[("1", "64Mi")]));
    manager.admit(&a).await.unwrap();
    manager.admit(&b).await.unwrap();
    let before = (placed(&manager, &a), placed(&manager, &b));
    let manager = node.start().await.unwrap();
    assert_eq!((placed(&manager, &a), placed(&manager, &b)), before);
    manager.retain_pods(|uid| uid == "a");
    let file = node.directory.path().join(cpumanager::checkpoint::FILE);
    let entries = || {
        let file: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        file["entries"].as_object().map_or(0, |entries| entries.len())
    };
    let written = async |count: usize| {
        let begin = Instant::now();
        while entries() != count {
            assert!(begin.elapsed() < Duration::from_secs(10), "{} entries", entries());
            tokio::task::yield_now().await;
        }
    };
    written(1).await;
    assert_eq!(placed(&manager, &a), before.0);
    manager.release(&"a".into());
    written(0).await;
    assert_eq!(manager.metrics().exclusive_cpus, 0);
}

#[tokio::test]
async fn l4_a_kubelet_does_not_start_with_a_state_that_is_not_its_own() {
    let node = Node::new(configuration("none", "container"));
    node.start().await.unwrap();
    let file = node.directory.path().join(cpumanager::checkpoint::FILE);
    let written = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, written.replace("0-3", "0-2")).unwrap();
    let error = |started: Result<Arc<ContainerManager>, StartError>| shown(&started.err().unwrap());
    assert_eq!(
        error(node.start().await),
        "could not restore state from checkpoint: checkpoint is corrupted, please drain this node and delete the CPU \
         manager checkpoint file \"cpu_manager_state\" before restarting Kubelet"
    );
    let other = json!({"policyName": "static", "defaultCpuSet": "0-2", "checksum": 0});
    std::fs::write(&file, other.to_string()).unwrap();
    assert_eq!(
        error(node.start().await),
        "new static policy error: invalid state, please drain node and remove policy state file: current set of \
         available CPUs \"0-3\" doesn't match with CPUs in state \"0-2\""
    );
    std::fs::write(&file, written).unwrap();
    let mut offline = configuration("none", "container");
    offline["reservedSystemCPUs"] = json!("4");
    let node = Node {
        directory: node.directory,
        configuration: offline,
    };
    assert_eq!(
        error(node.start().await),
        "reserved-cpus: 4 is not a subset of online-cpus: 0-3"
    );
    let mut none = configuration("none", "container");
    none["cpuManagerPolicy"] = json!("none");
    let none = Node {
        directory: node.directory,
        configuration: none,
    };
    assert_eq!(
        error(none.start().await),
        "the state of the CPU manager is of the policy \"static\", please drain node and remove policy state file"
    );
}

#[tokio::test]
async fn l4_a_pod_that_ran_before_the_policy_gets_cpus_while_it_runs() {
    let node = Node::new(configuration("none", "container"));
    let manager = node.start().await.unwrap();
    let before = pod("before", &[("1", "64Mi")]);
    manager.readmit(&before).await;
    assert_eq!(placed(&manager, &before), on(&[("1", "0")]));
    manager.readmit(&before).await;
    assert_eq!(placed(&manager, &before), on(&[("1", "0")]), "as it has");
    // There are not that many: it shares the others.
    let wide = pod("wide", &[("3", "64Mi")]);
    manager.readmit(&wide).await;
    assert_eq!(manager.placement(&wide, "c0").cpus, "0,2-3");
}
