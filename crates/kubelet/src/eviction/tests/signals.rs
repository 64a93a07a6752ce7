//! The stats from which each signal is read, and the node's conditions.

use super::*;
use crate::stats::{NodeStats, RlimitStats, RuntimeStats};

fn disk(available: u64, inodes: u64) -> FsStats {
    FsStats {
        available_bytes: Some(available),
        capacity_bytes: Some(1000),
        inodes_free: Some(inodes),
        inodes: Some(100),
        ..FsStats::default()
    }
}

fn free_memory(available: u64, used: u64) -> Option<MemoryStats> {
    Some(MemoryStats {
        available_bytes: Some(available),
        working_set_bytes: Some(used),
        ..MemoryStats::default()
    })
}

#[test]
fn t8_every_signal_is_read_from_its_own_stats() {
    let system = |name: &str, available| ContainerStats {
        name: name.into(),
        memory: free_memory(available, 5),
        ..ContainerStats::default()
    };
    let node = NodeStats {
        memory: free_memory(70, 30),
        system_containers: vec![system("kubelet", 1), system("pods", 40)],
        fs: Some(disk(11, 21)),
        runtime: Some(RuntimeStats {
            image_fs: Some(disk(12, 22)),
            container_fs: Some(disk(13, 23)),
        }),
        rlimit: Some(RlimitStats {
            max_pid: Some(500),
            running: Some(100),
            time: None,
        }),
        ..NodeStats::default()
    };
    let summary = Summary {
        node,
        ..Summary::default()
    };
    let found: Vec<(&str, i64, i64)> = observations(&summary)
        .iter()
        .map(|(s, seen)| (s.name(), seen.available, seen.capacity))
        .collect();
    let mut expected = [
        ("memory.available", 70, 100),
        ("allocatableMemory.available", 40, 45),
        ("nodefs.available", 11, 1000),
        ("nodefs.inodesFree", 21, 100),
        ("imagefs.available", 12, 1000),
        ("imagefs.inodesFree", 22, 100),
        ("containerfs.available", 13, 1000),
        ("containerfs.inodesFree", 23, 100),
        ("pid.available", 400, 500),
    ];
    let mut found = found;
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn t8_missing_stats_and_zero_capacity_are_no_signal() {
    let mut without_inodes = disk(11, 0);
    without_inodes.inodes = Some(0);
    let summary = Summary {
        node: NodeStats {
            fs: Some(without_inodes),
            ..NodeStats::default()
        },
        ..Summary::default()
    };
    let found: Vec<&str> = observations(&summary).keys().map(|s| s.name()).collect();
    assert_eq!(found, ["nodefs.available"]);
}

#[test]
fn t8_a_pressure_is_the_nodes_condition_of_its_name() {
    let mut manager = manager(json!({"pid.available": "10%"}), json!({}), json!({}), json!({}));
    assert_eq!(manager.settings().max_pod_grace_seconds, 5);
    assert!(manager.pressures().is_empty());
    manager.synchronize(&seen(&[(Signal::PidAvailable, 9)], 0), at(0));
    let held: Vec<&str> = manager.pressures().iter().map(|p| p.condition()).collect();
    assert_eq!(held, ["PIDPressure"]);
    let names = [Pressure::Memory, Pressure::Disk].map(Pressure::condition);
    assert_eq!(names, ["MemoryPressure", "DiskPressure"]);
}

#[test]
fn t8_inodes_of_the_container_filesystem_follow_the_one_it_is_on() {
    let thresholds = threshold::defaults();
    for (disks, followed) in [
        (Disks::default(), Signal::NodeFsInodesFree),
        (
            Disks {
                dedicated_image_fs: true,
                split_container_fs: false,
            },
            Signal::ImageFsInodesFree,
        ),
        (
            Disks {
                dedicated_image_fs: true,
                split_container_fs: true,
            },
            Signal::NodeFsInodesFree,
        ),
    ] {
        let all = with_container_fs(&thresholds, disks);
        let of = |signal| all.iter().find(|t| t.signal == signal).map(|t| t.value);
        assert!(of(followed).is_some());
        assert_eq!(of(Signal::ContainerFsInodesFree), of(followed), "{disks:?}");
    }
}
