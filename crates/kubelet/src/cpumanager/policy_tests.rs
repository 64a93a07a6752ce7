//! Tables of the CPU manager's static policy, after v1.36's tests.

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use serde_json::{Value, json};

use super::tests::{dual_socket_ht, dual_socket_multi_numa_ht, options, set, single_socket_ht, topology};
use super::*;
use crate::admission::Rejection;
use crate::topologymanager::NumaMask;

fn container(name: &str, cpus: &str, is_sidecar: bool) -> Value {
    let amounts = json!({"cpu": cpus, "memory": "1Gi"});
    let mut container = json!({"name": name, "resources": {"requests": amounts, "limits": amounts}});
    if is_sidecar {
        container["restartPolicy"] = json!("Always");
    }
    container
}

/// `i2 s1 c3`: an init container with 2 CPUs, a sidecar with 1, a container with 3.
fn pod(uid: &str, of: &str) -> Pod {
    let (mut inits, mut containers) = (Vec::new(), Vec::new());
    for (index, part) in of.split(' ').enumerate() {
        let (kind, cpus) = part.split_at(1);
        let container = container(&format!("{kind}{index}"), cpus, kind == "s");
        match kind {
            "c" => containers.push(container),
            _ => inits.push(container),
        }
    }
    serde_json::from_value(json!({
        "metadata": {"uid": uid, "name": uid},
        "spec": {"initContainers": inits, "containers": containers},
    }))
    .unwrap()
}

fn settings(of: &str, reserved: &str) -> Settings {
    let reserved_milli_cpus = i64::try_from(set(reserved).len().max(1)).unwrap() * 1000;
    Settings {
        options: options(of).unwrap(),
        reserved_milli_cpus,
        reserved: set(reserved),
        is_single_numa_node: false,
    }
}

/// A node on which another pod has these exclusive CPUs.
fn manager(topology: CpuTopology, settings: Settings, others: &str) -> CpuManager {
    let mut state = State {
        default: topology.cpus(),
        ..State::default()
    };
    if !others.is_empty() {
        state.assign(&"other".into(), "c", set(others));
    }
    CpuManager::new_static(topology, settings, state).unwrap()
}

fn allocate(
    manager: &mut CpuManager,
    pod: &Pod,
    affinity: Option<NumaMask>,
) -> Result<CpuSet, AllocationError> {
    let mut last = CpuSet::new();
    for container in crate::guaranteed::containers(pod) {
        manager.allocate(pod, container, affinity)?;
        let own = manager.exclusive(&crate::guaranteed::uid(pod), &container.name);
        last = own.cloned().unwrap_or_default();
    }
    Ok(last)
}

#[test]
fn l4_guaranteed_containers_get_exclusive_cpus() {
    for of in ["", "full-pcpus-only=true"] {
        for (topology, others, request, cpus) in [
            (single_socket_ht(), "2,3,6,7", "c2", "1,5"),
            (dual_socket_ht(), "2", "c6", "1,3,5,7,9,11"),
            (dual_socket_ht(), "1,5", "c6", "2,3,4,8,9,10"),
            (dual_socket_ht(), "2", "c8", "1,3,4,5,7,9,10,11"),
            (single_socket_ht(), "", "c977m", ""),
        ] {
            let mut manager = manager(topology, settings(of, "0"), others);
            let own = allocate(&mut manager, &pod("p", request), None);
            assert_eq!(own, Ok(set(cpus)), "{request} with {others} with {of:?}");
            assert!(manager.state().default.is_disjoint(&set(cpus)));
        }
    }
    let mut manager = manager(single_socket_ht(), settings("", "0"), "");
    assert_eq!(allocate(&mut manager, &pod("p", "c1"), None), Ok(set("4")));
    let mut burstable = pod("b", "c2");
    burstable.spec.as_mut().unwrap().containers[0]
        .resources
        .as_mut()
        .unwrap()
        .limits = None;
    assert_eq!(allocate(&mut manager, &burstable, None), Ok(set("")));
    let mut of_pod = pod("w", "c2");
    of_pod.spec.as_mut().unwrap().resources = of_pod.spec.as_ref().unwrap().containers[0].resources.clone();
    assert_eq!(allocate(&mut manager, &of_pod, None), Ok(set("")));
}

#[test]
fn l4_an_allocation_reports_whether_its_cpus_share_an_uncore_cache() {
    let new = |is_uncore_aligned| Allocated::New { is_uncore_aligned };
    for (request, first, second) in [
        ("c977m", Allocated::Shared, Allocated::Shared),
        ("c6", new(true), Allocated::Existing),
        ("c7", new(false), Allocated::Existing),
    ] {
        let mut manager = manager(two_nodes(), settings("", "0"), "");
        let pod = pod("p", request);
        let container = &pod.spec.as_ref().unwrap().containers[0];
        for allocated in [first, second] {
            assert_eq!(
                manager.allocate(&pod, container, None),
                Ok(allocated),
                "{request}"
            );
        }
        let has_exclusive = manager.has_exclusive(&"p".into());
        assert_eq!(has_exclusive, first != Allocated::Shared, "{request}");
    }
}

#[test]
fn l4_exclusive_cpus_are_counted_by_numa_node() {
    let manager = manager(two_nodes(), settings("full-pcpus-only=true", "0"), "1,3,4");
    assert_eq!(manager.exclusive_by_numa_node(), BTreeMap::from([(0, 1), (1, 2)]));
    assert!(manager.is_static());
    assert_eq!(manager.options(), options("full-pcpus-only=true").unwrap());
    let none = CpuManager::default();
    assert!(!none.is_static() && none.exclusive_by_numa_node().is_empty());
    assert_eq!(none.options(), Options::default());
}

#[test]
fn l4_reserved_cpus_are_shared_and_never_assigned() {
    let mut manager = manager(single_socket_ht(), settings("", "0"), "");
    assert_eq!(manager.allocatable(), set("1-7"));
    let rejection: Rejection = allocate(&mut manager, &pod("p", "c8"), None).unwrap_err().into();
    assert_eq!(rejection.reason, "UnexpectedAdmissionError");
    assert_eq!(
        rejection.message,
        "Allocate failed due to not enough cpus available to satisfy request: requested=8, available=7, which is \
         unexpected"
    );
    allocate(&mut manager, &pod("p", "c7"), None).unwrap();
    assert_eq!(manager.affinity(&"q".into(), "c"), Some(&set("0")));
}

#[test]
fn l4_only_whole_cores_are_assigned_with_the_option() {
    let mut manager = manager(dual_socket_ht(), settings("full-pcpus-only=true", "1,6"), "");
    let mut reject = |of: &str| -> Rejection {
        let error = allocate(&mut manager, &pod("p", of), None).unwrap_err();
        error.into()
    };
    let odd = reject("c1");
    assert_eq!(odd.reason, "SMTAlignmentError");
    assert_eq!(
        odd.message,
        "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2"
    );
    assert_eq!(
        reject("c10").message,
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 8, requested CPUs = 10, CPUs \
         per core = 2"
    );
    let mut manager = self::manager(dual_socket_ht(), settings("full-pcpus-only=true", "0,6"), "");
    let all = allocate(&mut manager, &pod("p", "c10"), None);
    assert_eq!(all, Ok(set("1-5,7-11")));
}

#[test]
fn l4_cpus_come_from_the_numa_nodes_or_sockets_of_the_hint() {
    for (of, cpus) in [("", "2,21"), ("align-by-socket=true", "2,11")] {
        let others = "1,3-10,12-20,23-79";
        let mut manager = manager(dual_socket_multi_numa_ht(), settings(of, "0"), others);
        let own = allocate(&mut manager, &pod("p", "c2"), NumaMask::of([0, 2]));
        assert_eq!(own, Ok(set(cpus)), "{of}");
    }
}

#[test]
fn l4_cpus_of_init_containers_are_reused_and_those_of_sidecars_are_not() {
    let mut manager = manager(single_socket_ht(), settings("", "0"), "");
    assert_eq!(allocate(&mut manager, &pod("p", "i4 c2"), None), Ok(set("1,5")));
    assert_eq!(manager.exclusive(&"p".into(), "i0"), Some(&set("1,2,5,6")));
    assert_eq!(manager.state().default, set("0,3,4,7"));
    assert!(manager.release(&"p".into()) && !manager.release(&"p".into()));
    assert_eq!(manager.state().default, set("0-7"));
    allocate(&mut manager, &pod("p", "s2 c2"), None).unwrap();
    assert_eq!(manager.state().default, set("0,3,4,7"));
    assert!(manager.retain_pods(|uid| uid != "p"));
    assert_eq!(manager.available(), set("1-7"));
}

/// Two NUMA nodes with CPUs 0-2,6-8 and 3-5,9-11.
fn two_nodes() -> CpuTopology {
    topology(12, |n| [n % 6, n % 6 / 3, n % 6 / 3, n % 6 / 3])
}

/// `01` preferred, `01?` not: the nodes of each hint.
fn hints(of: &crate::topologymanager::ProviderHints) -> Vec<String> {
    let hints = of.get("cpu").and_then(Option::as_ref).into_iter().flatten();
    let hint = |hint: &crate::topologymanager::Hint| {
        let nodes: String = hint.affinity.unwrap().nodes().map(|n| n.to_string()).collect();
        if hint.is_preferred { nodes } else { nodes + "?" }
    };
    hints.map(hint).collect()
}

#[test]
fn l4_hints_name_the_numa_nodes_with_enough_cpus() {
    for (others, request, expected) in [
        ("", "c2", vec!["0", "1", "01?"]),
        ("", "c5", vec!["0", "1", "01?"]),
        ("", "c7", vec!["01"]),
        ("", "c11", vec!["01"]),
        ("", "c12", vec![]),
        ("1,2,6-8", "c2", vec!["1", "01?"]),
        ("1-4,6-10", "c2", vec!["1", "01?"]),
        ("1-4,6-8,10,11", "c2", vec!["1", "01?"]),
        ("1-4,6-11", "c1", vec!["1", "01?"]),
        ("1-5,6-11", "c1", vec![]),
    ] {
        let manager = manager(two_nodes(), settings("", "0"), others);
        let pod = pod("p", request);
        let container = &pod.spec.as_ref().unwrap().containers[0];
        assert_eq!(
            hints(&manager.hints(&pod, container)),
            expected,
            "{request} with {others}"
        );
        assert_eq!(
            hints(&manager.pod_hints(&pod)),
            expected,
            "{request} with {others}"
        );
    }
    let mut manager = manager(two_nodes(), settings("", "0"), "");
    let pod = pod("p", "c2");
    allocate(&mut manager, &pod, NumaMask::of([1])).unwrap();
    let container = &pod.spec.as_ref().unwrap().containers[0];
    assert_eq!(
        hints(&manager.hints(&pod, container)),
        ["1", "01?"],
        "as assigned"
    );
    assert_eq!(hints(&manager.pod_hints(&pod)), ["1", "01?"], "as assigned");
    for request in ["c1", "c3"] {
        let changed = self::pod("p", request);
        let container = &changed.spec.as_ref().unwrap().containers[0];
        for of in [manager.hints(&changed, container), manager.pod_hints(&changed)] {
            assert_eq!(
                of.get("cpu"),
                Some(&Some(Vec::new())),
                "{request}, not as assigned"
            );
        }
    }
    let fraction = self::pod("q", "c977m");
    let container = &fraction.spec.as_ref().unwrap().containers[0];
    for of in [manager.hints(&fraction, container), manager.pod_hints(&fraction)] {
        assert!(of.is_empty(), "{of:?}");
    }
}

#[test]
fn l4_hints_count_the_cpus_of_init_containers_as_free() {
    let mut manager = manager(two_nodes(), settings("", "0"), "");
    let pod = pod("p", "i4 c6");
    let spec = pod.spec.as_ref().unwrap();
    let init = &spec.init_containers.as_ref().unwrap()[0];
    manager.allocate(&pod, init, NumaMask::of([1])).unwrap();
    for of in [manager.hints(&pod, &spec.containers[0]), manager.pod_hints(&pod)] {
        assert_eq!(hints(&of), ["1", "01?"]);
    }
}

#[test]
fn l4_hints_of_as_few_sockets_as_possible_are_preferred_with_the_option() {
    // Free are CPUs 2, 3 and 11, or most of NUMA nodes 0 to 2.
    let (few, many) = ("1,4-10,12-79", "29-39,58-79");
    for (of, others, request, expected) in [
        (
            "",
            few,
            "c2",
            &["0", "01?", "02?", "03?", "012?", "013?", "023?", "0123?"][..],
        ),
        (
            "align-by-socket=true",
            few,
            "c2",
            &["0", "01", "02?", "03?", "012?", "013?", "023?", "0123?"],
        ),
        ("", many, "c41", &["012", "0123?"]),
        ("align-by-socket=true", many, "c41", &["012", "0123"]),
    ] {
        let manager = manager(dual_socket_multi_numa_ht(), settings(of, "0"), others);
        let hints = hints(&manager.pod_hints(&pod("p", request)));
        assert_eq!(hints, expected, "{request} with {of:?}");
    }
}

#[test]
fn l4_the_cpus_a_pod_needs_at_a_time_include_its_init_containers() {
    for (of, count) in [
        ("i2 c2", 2),
        ("i2 c5", 5),
        ("i5 c2", 5),
        ("s1 c1", 2),
        ("i5 s1 s2 s3 c1", 7),
        ("i5 s1 s2 i5 s3 c1", 8),
        ("s10 i200 c100", 210),
    ] {
        let cpus = |c: &_| u64::try_from(crate::guaranteed::cpus(c)).unwrap();
        assert_eq!(
            crate::guaranteed::most_at_a_time(&pod("p", of), cpus),
            count,
            "{of}"
        );
    }
}

#[test]
fn l4_a_state_that_does_not_match_the_node_is_rejected() {
    let check = |of: &str, default: &str, assigned: &[(&str, &str)]| {
        let containers = assigned
            .iter()
            .map(|(name, cpus)| ((*name).to_string(), set(cpus)));
        let containers: BTreeMap<String, CpuSet> = containers.collect();
        let mut state = State {
            default: set(default),
            ..State::default()
        };
        if !containers.is_empty() {
            state.assigned.insert("fakePod".into(), containers);
        }
        match CpuManager::new_static(dual_socket_ht(), settings(of, "0"), state) {
            Ok(manager) => Ok(cpuset::format(&manager.state().default)),
            Err(PolicyError::State(error)) => Err(error.to_string()),
            Err(other) => panic!("{other}"),
        }
    };
    let strict = "strict-cpu-reservation=true";
    assert_eq!(check("", "", &[]), Ok("0-11".into()));
    assert_eq!(check(strict, "", &[]), Ok("1-11".into()));
    assert_eq!(check(strict, "2-11", &[("0", "1")]), Ok("2-11".into()));
    for (of, default, assigned, message) in [
        ("", "", &[("0", "0")][..], "default cpuset cannot be empty"),
        (
            "",
            "1-11",
            &[],
            "not all reserved cpus: \"0\" are present in defaultCpuSet: \"1-11\"",
        ),
        (
            strict,
            "0-1",
            &[],
            "some of strictly reserved cpus: \"0\" are present in defaultCpuSet: \"0-1\"",
        ),
        (
            "",
            "0,2-11",
            &[("0", "1-2")],
            "pod: fakePod, container: 0 cpuset: \"1-2\" overlaps with default cpuset \"0,2-11\"",
        ),
        (
            "",
            "0,5-12",
            &[("0", "1-2"), ("1", "3-4")],
            "current set of available CPUs \"0-11\" doesn't match with CPUs in state \"0-12\"",
        ),
        (
            "",
            "0,5-10",
            &[("0", "1-2"), ("1", "3-4")],
            "current set of available CPUs \"0-11\" doesn't match with CPUs in state \"0-10\"",
        ),
    ] {
        assert_eq!(check(of, default, assigned), Err(message.to_string()));
    }
}

#[test]
fn l4_the_static_policy_needs_reserved_cpus() {
    let error = |settings| {
        let made = CpuManager::new_static(single_socket_ht(), settings, State::default());
        made.unwrap_err().to_string()
    };
    assert_eq!(
        error(Settings::default()),
        "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
    );
    let too_many = Settings {
        reserved_milli_cpus: 8001,
        ..Settings::default()
    };
    assert_eq!(
        error(too_many),
        "[cpumanager] unable to reserve the required amount of CPUs (size of  did not equal 9)"
    );
    let half = Settings {
        reserved_milli_cpus: 1500,
        ..Settings::default()
    };
    let manager = CpuManager::new_static(single_socket_ht(), half, State::default()).unwrap();
    assert_eq!(
        manager.allocatable(),
        set("1-3,5-7"),
        "rounded up, by whole cores"
    );
}

#[test]
fn l4_checkpoints_are_those_of_the_kubelet() {
    let mut state = State {
        default: set("1-3"),
        ..State::default()
    };
    state.assigned = BTreeMap::from([(
        "pod".into(),
        BTreeMap::from([("container1".into(), set("4-6")), ("container2".into(), set("7"))]),
    )]);
    let bytes = checkpoint::encode(&state).unwrap();
    assert_eq!(checkpoint::decode(&bytes).unwrap(), state);
    let written: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(written["policyName"], "static");
    assert_eq!(written["defaultCpuSet"], "1-3");
    // As a kubelet wrote them: their checksums are right, and their policy differs.
    for (default, entries, checksum) in [
        ("4-6", json!({}), 354_655_845),
        (
            "1-3",
            json!({"pod": {"container1": "4-6", "container2": "1-3"}}),
            3_610_638_499_u64,
        ),
    ] {
        let mut file = json!({
            "policyName": "none", "defaultCPUSet": default, "entries": entries, "checksum": checksum,
        });
        let decode = |file: &Value| {
            checkpoint::decode(file.to_string().as_bytes())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            decode(&file),
            "configured policy \"static\" differs from state checkpoint policy \"none\""
        );
        file["checksum"] = json!(1337);
        assert_eq!(decode(&file), "checkpoint is corrupted");
    }
}
