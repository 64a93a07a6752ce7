//! Tables of signals, pods and the decisions that follow.

mod limits;
mod signals;

use knarr_apimachinery::field::ErrorList;
use knarr_apimachinery::quantity::{Notation, Quantity};
use serde_json::{Value as Json, json};

use super::threshold::{ThresholdFields, parse, with_container_fs};
use super::*;
use crate::stats::{ContainerStats, FsStats, MemoryStats, PodReference, PodStats, ProcessStats, VolumeStats};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn fields(hard: Json, soft: Json, grace: Json, reclaim: Json) -> ThresholdFields {
    let map = |v: Json| serde_json::from_value(v).unwrap();
    ThresholdFields {
        hard: map(hard),
        soft: map(soft),
        soft_grace_period: map(grace),
        minimum_reclaim: map(reclaim),
    }
}

fn manager(hard: Json, soft: Json, grace: Json, reclaim: Json) -> Manager {
    let mut errors = ErrorList::new();
    let thresholds = parse(&fields(hard, soft, grace, reclaim), false, &mut errors);
    assert!(errors.is_empty(), "{errors:?}");
    Manager::new(Settings {
        thresholds,
        max_pod_grace_seconds: 5,
        ..Settings::default()
    })
}

/// Of a capacity of 1000.
fn seen(signals: &[(Signal, i64)], second: i64) -> Observations {
    signals
        .iter()
        .map(|(signal, available)| {
            let seen = Observation {
                available: *available,
                capacity: 1000,
                at: Some(at(second)),
            };
            (*signal, seen)
        })
        .collect()
}

#[test]
fn t8_the_defaults_are_v1_36s() {
    let text: Vec<String> = threshold::defaults()
        .iter()
        .map(|t| {
            let value = match t.value {
                Value::Quantity(q) => q.to_string(),
                Value::Share(share) => format!("{:.0}%", share * 100.0),
            };
            format!("{} {value} {}", t.signal.name(), t.grace_period.as_secs())
        })
        .collect();
    assert_eq!(
        text,
        [
            "memory.available 100Mi 0",
            "nodefs.available 10% 0",
            "nodefs.inodesFree 5% 0",
            "imagefs.available 15% 0",
            "imagefs.inodesFree 5% 0",
            "allocatableMemory.available 100Mi 0",
        ]
    );
}

#[test]
fn t8_errors_in_thresholds_are_reported_with_their_field() {
    let none = || json!({});
    for (fields, want) in [
        (
            fields(json!({"memory.free": "1Gi"}), none(), none(), none()),
            "evictionHard[memory.free]",
        ),
        (
            fields(json!({"memory.available": "-5"}), none(), none(), none()),
            "evictionHard[memory.available]",
        ),
        (
            fields(json!({"nodefs.available": "120%"}), none(), none(), none()),
            "evictionHard[nodefs.available]",
        ),
        (
            fields(none(), json!({"memory.available": "1Gi"}), none(), none()),
            "evictionSoftGracePeriod[memory.available]",
        ),
        (
            fields(none(), none(), json!({"memory.available": "soon"}), none()),
            "evictionSoftGracePeriod[memory.available]",
        ),
        (
            fields(none(), none(), none(), json!({"memory.available": "0%"})),
            "evictionMinimumReclaim[memory.available]",
        ),
    ] {
        let mut errors = ErrorList::new();
        parse(&fields, true, &mut errors);
        let fields: Vec<String> = errors.iter().map(|e| e.field.to_string()).collect();
        assert_eq!(fields, [want]);
    }
    let ignored = fields(
        json!({"memory.available": "0%", "pid.available": "100%"}),
        none(),
        none(),
        none(),
    );
    assert!(parse(&ignored, true, &mut ErrorList::new()).is_empty());
}

#[test]
fn t8_a_hard_threshold_counts_at_once_and_its_condition_stays_for_the_transition_period() {
    let mut manager = manager(
        json!({"memory.available": "10%"}),
        json!({}),
        json!({}),
        json!({}),
    );
    let memory = |available, second| seen(&[(Signal::MemoryAvailable, available)], second);
    assert_eq!(manager.synchronize(&memory(100, 0), at(0)), Outcome::default());
    let outcome = manager.synchronize(&memory(99, 10), at(10));
    assert_eq!(outcome.met.len(), 1);
    assert!(outcome.pressures.contains(&Pressure::Memory));
    // The same measurement again changes nothing.
    assert!(manager.synchronize(&memory(99, 10), at(20)).met.is_empty());
    let over = manager.synchronize(&memory(500, 30), at(30));
    assert!(over.met.is_empty());
    assert!(over.pressures.contains(&Pressure::Memory), "last seen at 20");
    assert!(
        !manager
            .synchronize(&memory(500, 319), at(319))
            .pressures
            .is_empty()
    );
    assert!(
        manager
            .synchronize(&memory(500, 320), at(320))
            .pressures
            .is_empty()
    );
}

#[test]
fn t8_a_soft_threshold_is_met_after_its_grace_period_which_restarts_after_relief() {
    let mut manager = manager(
        json!({}),
        json!({"memory.available": "300"}),
        json!({"memory.available": "30s"}),
        json!({}),
    );
    let mut met = |available, second| {
        let seen = seen(&[(Signal::MemoryAvailable, available)], second);
        !manager.synchronize(&seen, at(second)).met.is_empty()
    };
    assert!(!met(200, 0));
    assert!(!met(200, 29));
    assert!(met(200, 30));
    assert!(!met(400, 40));
    assert!(!met(200, 50), "the grace period starts again");
    assert!(met(200, 80));
}

#[test]
fn t8_a_met_threshold_stays_met_until_min_reclaim_is_available() {
    let mut manager = manager(
        json!({"nodefs.available": "100"}),
        json!({}),
        json!({}),
        json!({"nodefs.available": "50"}),
    );
    let disk = |available, second| seen(&[(Signal::NodeFsAvailable, available)], second);
    assert!(manager.synchronize(&disk(120, 0), at(0)).met.is_empty());
    assert_eq!(manager.synchronize(&disk(90, 1), at(1)).met.len(), 1);
    assert_eq!(manager.synchronize(&disk(149, 2), at(2)).met.len(), 1);
    assert!(!manager.is_relieved(&disk(149, 3)));
    assert!(manager.is_relieved(&disk(150, 3)));
    assert!(manager.synchronize(&disk(150, 3), at(3)).met.is_empty());
    assert!(manager.synchronize(&disk(149, 4), at(4)).met.is_empty());
}

#[test]
fn t8_memory_is_reclaimed_before_all_else() {
    let mut manager = manager(
        json!({"nodefs.available": "100", "pid.available": "100", "memory.available": "100"}),
        json!({}),
        json!({}),
        json!({}),
    );
    let all = seen(
        &[
            (Signal::NodeFsAvailable, 1),
            (Signal::PidAvailable, 1),
            (Signal::MemoryAvailable, 1),
        ],
        0,
    );
    let outcome = manager.synchronize(&all, at(0));
    assert_eq!(outcome.met[0].signal, Signal::MemoryAvailable);
    assert_eq!(outcome.pressures.len(), 3);
}

#[test]
fn t8_the_container_filesystem_has_the_thresholds_of_the_one_it_is_on() {
    let parsed = parse(
        &fields(
            json!({"nodefs.available": "1", "imagefs.available": "2", "containerfs.available": "9"}),
            json!({}),
            json!({}),
            json!({}),
        ),
        false,
        &mut ErrorList::new(),
    );
    for (dedicated, split, want) in [(false, false, 1), (true, false, 2), (true, true, 1)] {
        let disks = Disks {
            dedicated_image_fs: dedicated,
            split_container_fs: split,
        };
        let all = with_container_fs(&parsed, disks);
        let own: Vec<_> = all
            .iter()
            .filter(|t| t.signal == Signal::ContainerFsAvailable)
            .map(|t| t.value)
            .collect();
        let want = Value::Quantity(Quantity::from_value(want, Notation::DecimalSi));
        assert_eq!(own, [want], "{disks:?}");
    }
}

#[test]
fn t8_a_hard_eviction_is_immediate_and_a_soft_one_takes_the_smaller_grace() {
    let manager = manager(
        json!({"memory.available": "1"}),
        json!({"memory.available": "2"}),
        json!({"memory.available": "1m"}),
        json!({}),
    );
    let hard = manager.settings.thresholds[0].clone();
    let soft = manager.settings.thresholds[1].clone();
    let with = |grace: Option<i64>| -> Pod {
        serde_json::from_value(json!({"spec": {"containers": [], "terminationGracePeriodSeconds": grace}}))
            .unwrap()
    };
    for (threshold, own, want) in [
        (&hard, Some(30), 1),
        (&soft, Some(30), 5),
        (&soft, Some(3), 3),
        (&soft, None, 5),
    ] {
        assert_eq!(manager.grace_seconds(threshold, &with(own)), want);
    }
}

/// `name priority memory-request: working set, processes, layer, logs, volume`.
struct Case {
    name: &'static str,
    priority: i32,
    request: i64,
    memory: u64,
    processes: u64,
    disk: [u64; 3],
}

fn pod(case: &Case) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": case.name, "uid": case.name},
        "spec": {
            "priority": case.priority,
            "containers": [{"name": "c", "resources": {"requests": {
                "memory": case.request.to_string(), "ephemeral-storage": case.request.to_string()}}}],
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "ram", "emptyDir": {"medium": "Memory"}}],
        },
    }))
    .unwrap()
}

fn fs(used: u64) -> FsStats {
    FsStats {
        used_bytes: Some(used),
        inodes_used: Some(used / 10),
        ..FsStats::default()
    }
}

fn memory(used: u64) -> Option<MemoryStats> {
    Some(MemoryStats {
        working_set_bytes: Some(used),
        ..MemoryStats::default()
    })
}

fn stats(case: &Case) -> PodStats {
    let volume = |name: &str, used| VolumeStats {
        fs: fs(used),
        name: name.into(),
        pvc_ref: None,
    };
    PodStats {
        pod_ref: PodReference {
            uid: case.name.into(),
            ..PodReference::default()
        },
        containers: vec![ContainerStats {
            name: "c".into(),
            memory: memory(case.memory),
            rootfs: Some(fs(case.disk[0])),
            logs: Some(fs(case.disk[1])),
            ..ContainerStats::default()
        }],
        memory: memory(case.memory),
        process_stats: Some(ProcessStats {
            count: Some(case.processes),
        }),
        // A memory-backed volume does not count as disk.
        volumes: vec![volume("v", case.disk[2]), volume("ram", 1_000_000)],
        ephemeral_storage: Some(fs(case.disk.iter().sum())),
        ..PodStats::default()
    }
}

#[test]
fn t8_pods_are_evicted_by_usage_over_requests_then_priority_then_amount() {
    let case = |name, priority, request, memory, processes, disk| Case {
        name,
        priority,
        request,
        memory,
        processes,
        disk,
    };
    let cases = [
        case("within-low", -10, 900, 800, 9, [10, 10, 10]),
        case("over-high", 100, 100, 900, 1, [500, 0, 0]),
        case("over-a-little", 0, 100, 150, 3, [0, 500, 0]),
        case("over-a-lot", 0, 100, 400, 2, [0, 0, 600]),
        case("within-high", 100, 500, 499, 4, [0, 0, 0]),
    ];
    let pods: Vec<Pod> = cases.iter().map(pod).collect();
    let mut summary = Summary {
        pods: cases.iter().map(stats).collect(),
        ..Summary::default()
    };
    let order = |signal, disks, summary: &Summary| -> String {
        let listed: Vec<&Pod> = pods.iter().collect();
        let ranked = ranking::rank(signal, disks, &listed, summary);
        let names = ranked.iter().filter_map(|p| p.metadata.name.clone());
        names.collect::<Vec<_>>().join(" ")
    };
    let one = Disks::default();
    let two = Disks {
        dedicated_image_fs: true,
        split_container_fs: false,
    };
    for (signal, disks, want) in [
        (
            Signal::MemoryAvailable,
            one,
            "over-a-lot over-a-little over-high within-low within-high",
        ),
        (
            Signal::PidAvailable,
            one,
            "within-low over-a-little over-a-lot within-high over-high",
        ),
        (
            Signal::NodeFsAvailable,
            one,
            "over-a-lot over-a-little over-high within-low within-high",
        ),
        // On the image filesystem only layers count, on the node filesystem only logs and volumes.
        (
            Signal::ImageFsAvailable,
            two,
            "over-high within-low over-a-little over-a-lot within-high",
        ),
        (
            Signal::NodeFsAvailable,
            two,
            "over-a-lot over-a-little within-low over-high within-high",
        ),
        (
            Signal::ContainerFsAvailable,
            two,
            "over-high within-low over-a-little over-a-lot within-high",
        ),
        // There are no requests of inodes: a pod that uses one is over its request.
        (
            Signal::NodeFsInodesFree,
            one,
            "within-low over-a-lot over-a-little over-high within-high",
        ),
    ] {
        assert_eq!(order(signal, disks, &summary), want, "{signal:?} {disks:?}");
    }
    // A pod without stats is evicted first.
    summary.pods.retain(|p| p.pod_ref.uid != "within-high");
    assert!(order(Signal::MemoryAvailable, one, &summary).starts_with("within-high"));
    assert_eq!(
        order(Signal::PidAvailable, one, &summary),
        "within-low over-a-little over-a-lot within-high over-high",
        "but not before those of a lower priority"
    );
}

#[test]
fn t8_what_a_pod_uses_is_compared_with_its_request_of_the_same_resource() {
    // Its request of memory and of storage, and its use of both.
    let cases: [(&'static str, [i64; 2], u64, u64); 2] =
        [("much", [600, 100], 700, 1000), ("little", [100, 600], 650, 900)];
    let pods: Vec<Pod> = cases
        .iter()
        .map(|(name, [memory, storage], ..)| {
            let requests = json!({"memory": memory.to_string(), "ephemeral-storage": storage.to_string()});
            serde_json::from_value(json!({
                "metadata": {"name": name, "uid": name},
                "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]},
            }))
            .unwrap()
        })
        .collect();
    let of = |(name, _, memory, storage): &(&'static str, [i64; 2], u64, u64)| {
        stats(&Case {
            name,
            priority: 0,
            request: 0,
            memory: *memory,
            processes: 0,
            disk: [*storage, 0, 0],
        })
    };
    let summary = Summary {
        pods: cases.iter().map(of).collect(),
        ..Summary::default()
    };
    let first = |signal| {
        let pods: Vec<&Pod> = pods.iter().collect();
        let ranked = ranking::rank(signal, Disks::default(), &pods, &summary);
        ranked[0].metadata.name.clone().unwrap()
    };
    // 550 over the request are more than 100, and 900 more than 300.
    assert_eq!(first(Signal::MemoryAvailable), "little");
    assert_eq!(first(Signal::NodeFsAvailable), "much");
}

#[test]
fn t8_pods_over_local_storage_limits_are_evicted() {
    let check = |spec: Json, layer: u64, logs: u64, volume: u64, disks: Disks| -> Option<String> {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "p"}, "spec": spec})).unwrap();
        let stats = stats(&Case {
            name: "p",
            priority: 0,
            request: 0,
            memory: 0,
            processes: 0,
            disk: [layer, logs, volume],
        });
        local_storage::exceeded(&pod, &stats, disks)
    };
    let one = Disks::default();
    let two = Disks {
        dedicated_image_fs: true,
        split_container_fs: false,
    };
    let empty_dir = json!({"containers": [], "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Ki"}}]});
    assert_eq!(check(empty_dir.clone(), 0, 0, 1024, one), None);
    assert_eq!(
        check(empty_dir, 0, 0, 1025, one).as_deref(),
        Some("Usage of EmptyDir volume \"v\" exceeds the limit \"1Ki\". ")
    );
    let limited = |limit: &str| json!({"containers": [{"name": "c", "resources": {"limits": {"ephemeral-storage": limit}}}]});
    assert_eq!(
        check(limited("1Ki"), 500, 500, 100, one).as_deref(),
        Some("Pod ephemeral local storage usage exceeds the total limit of containers 1Ki. ")
    );
    let with_sidecar = json!({"containers": [{"name": "c", "resources": {"limits": {"ephemeral-storage": "1k"}}},
        {"name": "d", "resources": {"limits": {"ephemeral-storage": "5k"}}}]});
    assert_eq!(
        check(with_sidecar.clone(), 600, 600, 0, one).as_deref(),
        Some("Container c exceeded its local ephemeral storage limit \"1k\". ")
    );
    assert_eq!(
        check(with_sidecar, 600, 600, 0, two),
        None,
        "its layer is on another filesystem"
    );
}

#[test]
fn t8_the_message_names_the_threshold_and_the_containers_over_their_requests() {
    let mut manager = manager(
        json!({"memory.available": "1Ki"}),
        json!({}),
        json!({}),
        json!({}),
    );
    let signals = seen(&[(Signal::MemoryAvailable, 512)], 0);
    let met = manager.synchronize(&signals, at(0)).met;
    let case = Case {
        name: "p",
        priority: 0,
        request: 100,
        memory: 2048,
        processes: 0,
        disk: [0; 3],
    };
    let eviction = message::node_pressure(&pod(&case), Some(&stats(&case)), &met, &signals);
    assert_eq!(
        eviction.message,
        "The node was low on resource: memory. Threshold quantity: 1Ki, available: 512. \
         Container c was using 2Ki, request is 100, has larger consumption of memory. "
    );
    let annotations: Vec<(&str, &str)> = eviction
        .annotations
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(
        annotations,
        [
            ("offending_containers", "c"),
            ("offending_containers_usage", "2Ki"),
            ("starved_resource", "memory")
        ]
    );
    let unmeasured = message::node_pressure(&pod(&case), None, &met, &signals);
    assert_eq!(
        unmeasured.message,
        "The node was low on resource: memory. Threshold quantity: 1Ki, available: 512. "
    );
}

#[test]
fn t8_a_node_under_pressure_admits_only_critical_and_tolerating_pods() {
    let pod = |spec: Json| -> Pod { serde_json::from_value(json!({"spec": spec})).unwrap() };
    let plain = || pod(json!({"containers": []}));
    let tolerant = || {
        pod(json!({"containers": [], "tolerations": [
            {"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"}]}))
    };
    let critical = || pod(json!({"containers": [], "priority": 2_000_000_000}));
    let (memory, disk) = (Pressure::Memory, Pressure::Disk);
    for (pod, best_effort, pressures, taken) in [
        (plain(), true, vec![], true),
        (plain(), true, vec![memory], false),
        (plain(), false, vec![memory], true),
        (tolerant(), true, vec![memory], true),
        (plain(), false, vec![disk], false),
        (tolerant(), false, vec![memory, disk], false),
        (critical(), true, vec![memory, disk], true),
    ] {
        let pressures: BTreeSet<Pressure> = pressures.into_iter().collect();
        let result = admit(&pod, best_effort, &pressures);
        assert_eq!(result.is_ok(), taken, "{pod:?} {pressures:?}");
        if let Err(rejection) = result {
            assert_eq!(rejection.reason, "Evicted");
            assert!(rejection.message.starts_with("The node had condition: ["));
        }
    }
}
