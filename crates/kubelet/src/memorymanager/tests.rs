//! Tables of the memory manager's static policy, after v1.36's tests.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_api::k8s_openapi;
use serde_json::{Value, json};

use super::*;
use crate::guaranteed;
use crate::topologymanager::{Hint, NumaMask, ProviderHints};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const HUGE: &str = "hugepages-1Gi";

fn container(name: &str, memory: &str, huge: &str) -> Value {
    let mut amounts = json!({"cpu": "1", "memory": memory});
    if !huge.is_empty() {
        amounts[HUGE] = json!(huge);
    }
    json!({"name": name, "resources": {"requests": amounts, "limits": amounts}})
}

/// Init containers and containers by their requests of memory, and of huge pages if given.
fn pod_with_huge(uid: &str, inits: &[&str], containers: &[&str], huge: &str) -> Pod {
    let all = |kind: &str, of: &[&str]| -> Vec<Value> {
        let of = of.iter().enumerate();
        of.map(|(i, memory)| {
            let (memory, is_sidecar) = match memory.strip_suffix('s') {
                Some(memory) => (memory, true),
                None => (*memory, false),
            };
            let mut container = container(&format!("{kind}{i}"), memory, huge);
            if is_sidecar {
                container["restartPolicy"] = json!("Always");
            }
            container
        })
        .collect()
    };
    serde_json::from_value(json!({
        "metadata": {"uid": uid, "name": uid},
        "spec": {"initContainers": all("i", inits), "containers": all("c", containers)},
    }))
    .unwrap()
}

fn pod(uid: &str, inits: &[&str], containers: &[&str]) -> Pod {
    pod_with_huge(uid, inits, containers, "")
}

/// This many NUMA nodes, each with this much allocatable memory, 512Mi for the system and 1Gi of huge pages.
fn nodes(count: u32, allocatable: u64) -> (BTreeMap<u32, NodeMemory>, Vec<ReservedMemory>) {
    let has = NodeMemory {
        memory: allocatable + 512 * MIB + GIB,
        huge_pages: BTreeMap::from([(HUGE.to_string(), GIB)]),
    };
    let reserved = |numa_node| ReservedMemory {
        numa_node,
        limits: BTreeMap::from([(MEMORY.to_string(), 512 * MIB)]),
    };
    (
        (0..count).map(|n| (n, has.clone())).collect(),
        (0..count).map(reserved).collect(),
    )
}

fn withheld(count: u64) -> BTreeMap<String, u64> {
    BTreeMap::from([(MEMORY.to_string(), count * 512 * MIB), ("cpu".to_string(), 1)])
}

fn manager(count: u32, allocatable: u64) -> MemoryManager {
    let (nodes, reserved) = nodes(count, allocatable);
    MemoryManager::new_static(&nodes, &withheld(u64::from(count)), &reserved, State::default()).unwrap()
}

fn hint(nodes: &[u32], is_preferred: bool) -> Hint {
    Hint {
        affinity: (!nodes.is_empty()).then(|| NumaMask::of(nodes.iter().copied()).unwrap()),
        is_preferred,
    }
}

fn allocate(manager: &mut MemoryManager, pod: &Pod, hint: Hint) -> Result<Vec<Block>, AllocationError> {
    for container in guaranteed::containers(pod) {
        manager.allocate(pod, container, hint)?;
    }
    let last: Vec<&Container> = guaranteed::containers(pod).collect();
    Ok(manager
        .blocks(&guaranteed::uid(pod), &last[last.len() - 1].name)
        .to_vec())
}

/// Free and reserved memory of each NUMA node, in MiB, with its group and number of assignments.
fn memory(manager: &MemoryManager) -> Vec<(u64, u64, Vec<u32>, u64)> {
    let nodes = manager.state().machine.values();
    nodes
        .map(|node| {
            let table = &node.memory_map[MEMORY];
            let (free, reserved) = (table.free / MIB, table.reserved / MIB);
            (free, reserved, node.cells.clone(), node.number_of_assignments)
        })
        .collect()
}

#[test]
fn l4_memory_of_guaranteed_pods_is_assigned_from_the_hinted_node() {
    let mut manager = manager(2, 2 * GIB);
    let own = allocate(
        &mut manager,
        &pod_with_huge("p", &[], &["1Gi"], "1Gi"),
        hint(&[1], true),
    )
    .unwrap();
    let block = |resource: &str| Block {
        nodes: vec![1],
        resource: resource.into(),
        bytes: GIB,
    };
    assert_eq!(own, [block(HUGE), block(MEMORY)]);
    assert_eq!(
        memory(&manager),
        [(2048, 0, vec![0], 0), (1024, 1024, vec![1], 2)]
    );
    assert!(manager.numa_nodes(&"p".into(), "c0").into_iter().eq([1]));
    assert!(manager.release(&"p".into()) && !manager.release(&"p".into()));
    assert_eq!(memory(&manager), [(2048, 0, vec![0], 0), (2048, 0, vec![1], 0)]);
    let mut burstable = pod("b", &[], &["1Gi"]);
    burstable.spec.as_mut().unwrap().containers[0]
        .resources
        .as_mut()
        .unwrap()
        .limits = None;
    assert_eq!(
        allocate(&mut manager, &burstable, hint(&[0], true)),
        Ok(Vec::new())
    );
}

#[test]
fn l4_memory_that_no_node_has_comes_from_a_group_of_nodes() {
    let mut manager = manager(4, 512 * MIB);
    let pod = pod_with_huge("p", &[], &["1Gi"], "1Gi");
    let own = allocate(&mut manager, &pod, hint(&[], true)).unwrap();
    assert!(own.iter().all(|block| block.nodes == [0, 1]));
    let free = |node: u32, resource: &str| manager.state().machine[&node].memory_map[resource].free;
    assert_eq!(
        [free(0, MEMORY), free(1, MEMORY), free(2, MEMORY)],
        [0, 0, 512 * MIB]
    );
    assert_eq!([free(0, HUGE), free(1, HUGE)], [0, GIB]);
    let groups: Vec<Vec<u32>> = memory(&manager)
        .into_iter()
        .map(|(_, _, cells, _)| cells)
        .collect();
    assert_eq!(groups, [vec![0, 1], vec![0, 1], vec![2], vec![3]]);
    // NUMA nodes of a group are not used alone, and others not together with one of it.
    let small = self::pod("q", &[], &["256Mi"]);
    let container = &small.spec.as_ref().unwrap().containers[0];
    let hints = manager.hints(&small, container);
    let masks: Vec<Hint> = hints[MEMORY].clone().unwrap();
    assert_eq!(masks, [hint(&[2], true), hint(&[3], true), hint(&[2, 3], false)]);
    let error = allocate(
        &mut manager,
        &self::pod("r", &[], &["256Mi"]),
        hint(&[1, 2], false),
    );
    assert_eq!(error, Err(AllocationError::ViolatesGroups));
}

#[test]
fn l4_a_group_of_nodes_is_used_together_until_its_last_container_is_released() {
    let mut manager = manager(4, 512 * MIB);
    allocate(&mut manager, &pod("p", &[], &["768Mi"]), hint(&[], true)).unwrap();
    assert!(manager.numa_nodes(&"p".into(), "c0").into_iter().eq([0, 1]));
    // NUMA node 1 has enough free memory, but is in a group.
    let small = pod("q", &[], &["256Mi"]);
    let container = &small.spec.as_ref().unwrap().containers[0];
    assert_eq!(
        manager.hints(&small, container)[MEMORY].clone().unwrap(),
        [
            hint(&[2], true),
            hint(&[3], true),
            hint(&[0, 1], false),
            hint(&[2, 3], false)
        ]
    );
    allocate(&mut manager, &small, hint(&[0, 1], false)).unwrap();
    let group = |manager: &MemoryManager| memory(manager)[..2].to_vec();
    assert_eq!(
        group(&manager),
        [(0, 512, vec![0, 1], 2), (0, 512, vec![0, 1], 2)]
    );
    manager.release(&"p".into());
    assert_eq!(
        group(&manager),
        [(512, 0, vec![0, 1], 1), (256, 256, vec![0, 1], 1)]
    );
    manager.release(&"q".into());
    assert_eq!(group(&manager), [(512, 0, vec![0], 0), (512, 0, vec![1], 0)]);
}

#[test]
fn l4_hints_of_assigned_memory_are_its_nodes_unless_the_request_has_changed() {
    let mut manager = manager(2, 2 * GIB);
    let check = |manager: &MemoryManager, pod: &Pod, nodes: &[Hint]| {
        let expected = match nodes.is_empty() {
            true => ProviderHints::new(),
            false => ProviderHints::from([(MEMORY.to_string(), Some(nodes.to_vec()))]),
        };
        let container = &pod.spec.as_ref().unwrap().containers[0];
        assert_eq!(manager.hints(pod, container), expected);
        assert_eq!(manager.pod_hints(pod), expected);
    };
    let of = |memory: &str| pod("p", &[], &[memory]);
    let each = [hint(&[0], true), hint(&[1], true), hint(&[0, 1], false)];
    check(&manager, &of("1Gi"), &each);
    check(&manager, &of("3Gi"), &[hint(&[0, 1], true)]);
    check(&manager, &of("5Gi"), &[]);
    allocate(&mut manager, &of("1Gi"), hint(&[1], true)).unwrap();
    check(&manager, &of("1Gi"), &[hint(&[1], true)]);
    check(&manager, &of("2Gi"), &[]);
    check(&manager, &pod_with_huge("p", &[], &["1Gi"], "1Gi"), &[]);
}

#[test]
fn l4_memory_of_deleted_pods_is_released() {
    let mut manager = manager(1, 2 * GIB);
    allocate(&mut manager, &pod("p", &[], &["1Gi"]), hint(&[0], true)).unwrap();
    assert!(!manager.retain_pods(|uid| uid == "p"));
    assert_eq!(memory(&manager), [(1024, 1024, vec![0], 1)]);
    assert!(manager.retain_pods(|uid| uid != "p"));
    assert_eq!(memory(&manager), [(2048, 0, vec![0], 0)]);
}

#[test]
fn l4_allocatable_memory_is_listed_by_node_and_resource() {
    let (mut nodes, reserved) = nodes(2, 2 * GIB);
    for node in nodes.values_mut() {
        node.huge_pages.insert("hugepages-2Mi".into(), 0);
    }
    let manager = MemoryManager::new_static(&nodes, &withheld(2), &reserved, State::default()).unwrap();
    let block = |node: u32, resource: &str, bytes: u64| Block {
        nodes: vec![node],
        resource: resource.into(),
        bytes,
    };
    assert_eq!(
        manager.allocatable(),
        [
            block(0, HUGE, GIB),
            block(0, MEMORY, 2 * GIB),
            block(1, HUGE, GIB),
            block(1, MEMORY, 2 * GIB)
        ]
    );
    assert!(manager.is_static() && !MemoryManager::default().is_static());
}

#[test]
fn l4_a_hint_with_too_little_memory_is_extended_or_the_pod_rejected() {
    let mut manager = manager(2, 512 * MIB);
    let huge = pod("p", &[], &["2Gi"]);
    let error = allocate(&mut manager, &huge, hint(&[], false)).unwrap_err();
    assert_eq!(error, AllocationError::NoDefault);
    let rejection: crate::admission::Rejection = error.into();
    assert_eq!(rejection.reason, "UnexpectedAdmissionError");
    assert_eq!(
        rejection.message,
        "Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough \
         memory is available, which is unexpected"
    );
    let error = allocate(&mut manager, &huge, hint(&[0], false));
    assert_eq!(error, Err(AllocationError::NoExtension));
    let own = allocate(&mut manager, &pod("q", &[], &["768Mi"]), hint(&[0], true)).unwrap();
    assert_eq!(own[0].nodes, [0, 1]);
}

#[test]
fn l4_memory_of_init_containers_is_reused_by_those_after_them() {
    for (inits, containers, reserved, left) in [
        (["1Gi", "2Gi"], ["3Gi", "4Gi"], 7, [0, 0]),
        (["4Gi", "3Gi"], ["2Gi", "1Gi"], 4, [0, 1]),
        (["7Gi", "4Gi"], ["4Gi", "3Gi"], 7, [0, 0]),
        (["7Gi", "4Gi"], ["5Gi", "2Gi"], 7, [0, 0]),
        (["2Gis", "1Gi"], ["1Gi", "1Gi"], 4, [2, 0]),
    ] {
        let mut manager = manager(2, 10 * GIB);
        let pod = pod("p", &inits, &containers);
        allocate(&mut manager, &pod, hint(&[0], true)).unwrap();
        let table = manager.state().machine[&0].memory_map[MEMORY];
        assert_eq!(table.reserved / GIB, reserved, "{inits:?} {containers:?}");
        let of_init = |name: &str| manager.blocks(&"p".into(), name)[0].bytes / GIB;
        assert_eq!([of_init("i0"), of_init("i1")], left, "{inits:?} {containers:?}");
        // When the first container starts, the init containers have finished.
        assert!(manager.started(&pod, "c0") && !manager.started(&pod, "c1"));
        assert!(manager.blocks(&"p".into(), "i1").is_empty());
        manager.release(&"p".into());
        assert_eq!(memory(&manager)[0], (10 * 1024, 0, vec![0], 0));
    }
}

#[test]
fn l4_memory_of_init_containers_on_other_nodes_is_not_reused() {
    let mut manager = manager(2, 2 * GIB);
    let pod = pod("p", &["1Gi"], &["1Gi"]);
    for (node, container) in (0..).zip(guaranteed::containers(&pod)) {
        manager.allocate(&pod, container, hint(&[node], true)).unwrap();
    }
    let of_container = (1024, 1024, vec![1], 1);
    assert_eq!(memory(&manager), [(1024, 1024, vec![0], 1), of_container.clone()]);
    assert!(manager.started(&pod, "c0"));
    assert_eq!(memory(&manager), [(2048, 0, vec![0], 0), of_container]);
}

#[test]
fn l4_reserved_memory_equals_the_memory_that_is_not_allocatable() {
    let (nodes, reserved) = nodes(2, GIB);
    let error = |withheld: &BTreeMap<String, u64>, reserved: &[ReservedMemory]| {
        let made = MemoryManager::new_static(&nodes, withheld, reserved, State::default());
        made.unwrap_err().to_string()
    };
    assert_eq!(
        error(&withheld(1), &reserved),
        "the total amount \"1073741824\" of type \"memory\" is not equal to the value \"536870912\" determined by Node \
         Allocatable feature"
    );
    assert_eq!(
        error(&withheld(1), &[]),
        "the total amount \"0\" of type \"memory\" is not equal to the value \"536870912\" determined by Node \
         Allocatable feature"
    );
    assert_eq!(
        error(&BTreeMap::new(), &[]),
        "[memorymanager] you should specify the system reserved memory"
    );
    let elsewhere = ReservedMemory {
        numa_node: 7,
        ..ReservedMemory::default()
    };
    assert_eq!(
        error(&withheld(1), &[elsewhere]),
        "the reserved memory configuration references a NUMA node 7 that does not exist on this machine"
    );
}

#[test]
fn l4_a_state_that_does_not_match_the_node_is_rejected() {
    let mut first = manager(2, 2 * GIB);
    allocate(&mut first, &pod("p", &[], &["3Gi"]), hint(&[], false)).unwrap();
    let restore = |state: State, allocatable| {
        let (nodes, reserved) = nodes(2, allocatable);
        match MemoryManager::new_static(&nodes, &withheld(2), &reserved, state) {
            Ok(manager) => Ok(manager.state().clone()),
            Err(PolicyError::State(error)) => Err(error),
            Err(other) => panic!("{other}"),
        }
    };
    let state = first.state().clone();
    assert_eq!(restore(state.clone(), 2 * GIB), Ok(state.clone()));
    assert_eq!(restore(state.clone(), 3 * GIB), Err(StateError::OtherMachine));
    // The distribution of reservations within a group is not compared.
    let mut moved = state.clone();
    for (node, free) in [(0, GIB), (1, 0)] {
        let table = moved
            .machine
            .get_mut(&node)
            .unwrap()
            .memory_map
            .get_mut(MEMORY)
            .unwrap();
        (table.free, table.reserved) = (free, 2 * GIB - free);
    }
    assert!(restore(moved, 2 * GIB).is_ok());
    let edits: [fn(&mut NodeState); 3] = [
        |node| node.number_of_assignments += 1,
        |node| node.cells = vec![0],
        |node| node.memory_map.get_mut(MEMORY).unwrap().free += 1,
    ];
    for edit in edits {
        let mut other = state.clone();
        edit(other.machine.get_mut(&0).unwrap());
        assert_eq!(restore(other, 2 * GIB), Err(StateError::OtherMachine));
    }
    let mut other = state.clone();
    other.assigned.get_mut("p").unwrap().get_mut("c0").unwrap()[0].nodes = vec![0, 5];
    let no_node = StateError::NoNode("p".into(), "c0".into());
    assert_eq!(restore(other, 2 * GIB), Err(no_node));
    let mut empty = state;
    empty.machine.clear();
    assert_eq!(restore(empty, 2 * GIB), Err(StateError::EmptyMachine));
}

#[test]
fn l4_checkpoints_are_those_of_the_kubelet() {
    let file = json!({
        "policyName": "static",
        "machineState": {"0": {
            "numberOfAssignments": 0,
            "memoryMap": {"memory": {
                "total": 2048, "systemReserved": 512, "allocatable": 1536, "reserved": 512, "free": 1024,
            }},
            "cells": [],
        }},
        "entries": {"pod": {"container1": [{"numaAffinity": [0], "type": "memory", "size": 512}]}},
        "checksum": 4_215_593_881_u64,
    });
    // The checksum is right, and the policy's name is not that of the kubelet's own policy.
    let error = |file: &Value| {
        checkpoint::decode(file.to_string().as_bytes())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error(&file),
        "[memorymanager] configured policy \"Static\" differs from state checkpoint policy \"static\""
    );
    let mut corrupt = file;
    corrupt["checksum"] = json!(101_010);
    assert_eq!(error(&corrupt), "checkpoint is corrupted");
    let mut manager = manager(2, 2 * GIB);
    allocate(&mut manager, &pod("p", &[], &["3Gi"]), hint(&[], false)).unwrap();
    let bytes = checkpoint::encode(manager.state()).unwrap();
    assert_eq!(&checkpoint::decode(&bytes).unwrap(), manager.state());
}
