//! The machine's CPUs, caches and NUMA nodes, read from `/sys`.
//!
//! Offline CPUs are not there. Numbers are the kernel's: a core is named by its first thread, since core ids are unique on
//! their socket only.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use knarr_apimachinery::quantity::{Notation, Quantity};
use knarr_kubelet::cpumanager::cpuset::{self, CpuSet};
use knarr_kubelet::cpumanager::{Cpu, CpuTopology};
use knarr_kubelet::memorymanager::NodeMemory;
use knarr_kubelet::topologymanager::{Distances, MAX_NODES};

use crate::host_fs;

/// The kernel's directory of devices.
pub const DEVICES: &str = "/sys/devices/system";
const MEMORY_OF_ALL: &str = "/proc/meminfo";
const HUGE_PAGES_OF_ALL: &str = "/sys/kernel/mm/hugepages";
/// The largest file read here, `meminfo` of a NUMA node, has some kilobytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// Levels of caches below the ones that several cores share.
const OWN_CACHE_LEVELS: u32 = 2;
/// Caches of one CPU.
const CACHES_MAX: u32 = 16;
const KIB: u64 = 1024;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct MachineTopology {
    pub cpus: CpuTopology,
    pub memory: BTreeMap<u32, NodeMemory>,
    pub distances: Distances,
}

/// Reads below `root`, which is [`DEVICES`].
pub fn read(root: &Path) -> io::Result<MachineTopology> {
    let nodes = numa_nodes(root)?;
    let mut topology = MachineTopology::default();
    let mut node_of = BTreeMap::new();
    for node in nodes {
        let directory = root.join(format!("node/node{node}"));
        let cpus = set(&directory.join("cpulist"))?;
        node_of.extend(cpus.into_iter().map(|cpu| (cpu, node)));
        let memory = memory(&directory.join("meminfo"), &directory.join("hugepages"))?;
        topology.memory.insert(node, memory);
        let distances = text(&directory.join("distance"))?;
        let distances = distances.split_whitespace().map(str::parse);
        let distances: Vec<u64> = distances.collect::<Result<_, _>>().map_err(invalid)?;
        topology.distances.insert(node, (0..).zip(distances).collect());
    }
    if topology.memory.is_empty() {
        let memory = memory(Path::new(MEMORY_OF_ALL), Path::new(HUGE_PAGES_OF_ALL))?;
        topology.memory.insert(0, memory);
        topology.distances.insert(0, BTreeMap::new());
    }
    // Distances are listed for the nodes that are online, in their order.
    let online: Vec<u32> = topology.memory.keys().copied().collect();
    for of in topology.distances.values_mut() {
        *of = online.iter().copied().zip(of.values().copied()).collect();
    }
    let mut cpus = BTreeMap::new();
    for cpu in set(&root.join("cpu/online"))? {
        let directory = root.join(format!("cpu/cpu{cpu}"));
        let socket = number(&directory.join("topology/physical_package_id"))?;
        let threads = set(&directory.join("topology/thread_siblings_list"))?;
        let shared = shared_cache(&directory)?;
        let of = Cpu {
            core: threads.first().copied().unwrap_or(cpu),
            socket,
            numa_node: node_of.get(&cpu).copied().unwrap_or(0),
            // Without such a cache the socket is used, as in v1.36.
            uncore_cache: shared.unwrap_or(socket),
        };
        cpus.insert(cpu, of);
    }
    topology.cpus = CpuTopology::new(cpus);
    Ok(topology)
}

/// `None` where the kernel has no NUMA nodes: everything is on node 0 then.
fn numa_nodes(root: &Path) -> io::Result<CpuSet> {
    let nodes = match set(&root.join("node/online")) {
        Err(error) if error.kind() == ErrorKind::NotFound => CpuSet::new(),
        other => other?,
    };
    match nodes.last().is_some_and(|last| *last >= MAX_NODES) {
        true => Err(invalid(format!("NUMA nodes beyond {MAX_NODES}"))),
        false => Ok(nodes),
    }
}

/// The first CPU of the last-level cache that the CPU shares with other cores.
fn shared_cache(cpu: &Path) -> io::Result<Option<u32>> {
    let mut last = None;
    for index in 0..CACHES_MAX {
        let directory = cpu.join(format!("cache/index{index}"));
        let level = match number(&directory.join("level")) {
            Ok(level) => level,
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        };
        if level > OWN_CACHE_LEVELS {
            let cpus = set(&directory.join("shared_cpu_list"))?;
            last = last.max(cpus.first().map(|first| (level, *first)));
        }
    }
    Ok(last.map(|(_, first)| first))
}

fn memory(meminfo: &Path, huge_pages_of: &Path) -> io::Result<NodeMemory> {
    let meminfo = text(meminfo)?;
    let total = meminfo.lines().find_map(|line| {
        let rest = line.split_once("MemTotal:")?.1;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    });
    let total = total.ok_or_else(|| invalid("no MemTotal"))?;
    let mut huge_pages = BTreeMap::new();
    let sizes = match host_fs::read_dir(huge_pages_of) {
        Ok(sizes) => sizes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(of(total, huge_pages)),
        Err(error) => return Err(error),
    };
    for size in sizes {
        let size = size?;
        let name = size.file_name();
        let kib = name
            .to_str()
            .and_then(|n| n.strip_prefix("hugepages-")?.strip_suffix("kB"));
        let Some(kib) = kib.and_then(|n| n.parse::<u64>().ok()) else {
            continue;
        };
        let count = u64::from(number(&size.path().join("nr_hugepages"))?);
        let page = i64::try_from(kib.saturating_mul(KIB)).unwrap_or(i64::MAX);
        let page = Quantity::from_value(page, Notation::BinarySi);
        let bytes = count.saturating_mul(kib).saturating_mul(KIB);
        huge_pages.insert(format!("hugepages-{page}"), bytes);
    }
    Ok(of(total, huge_pages))
}

fn of(kib: u64, huge_pages: BTreeMap<String, u64>) -> NodeMemory {
    NodeMemory {
        memory: kib.saturating_mul(KIB),
        huge_pages,
    }
}

fn text(path: &Path) -> io::Result<String> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut text = String::new();
    let file = host_fs::open(path).map_err(named)?;
    file.take(FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(named)?;
    Ok(text)
}

fn set(path: &Path) -> io::Result<CpuSet> {
    cpuset::parse(text(path)?.trim()).map_err(invalid)
}

fn number(path: &Path) -> io::Result<u32> {
    text(path)?.trim().parse().map_err(invalid)
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l4_the_topology_of_this_machine_is_read() {
        let topology = read(Path::new(DEVICES)).unwrap();
        let cpus = topology.cpus.cpus();
        let available = std::thread::available_parallelism().unwrap().get();
        assert!(cpus.len() >= available, "{cpus:?}");
        assert!(topology.memory.values().all(|node| node.memory > 0));
        let of_itself = |(node, of): (&u32, &BTreeMap<u32, u64>)| of.get(node) == Some(&10);
        assert!(topology.distances.iter().all(of_itself));
    }

    /// Two sockets with a NUMA node each, two cores with two threads on each, CPU 7 offline.
    fn machine(root: &Path) {
        let write = |path: String, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("cpu/online".into(), "0-6\n");
        write("node/online".into(), "0,2\n");
        for cpu in 0..7 {
            let (core, socket) = (cpu % 4, cpu % 4 / 2);
            let threads = if core == 3 {
                "3".into()
            } else {
                format!("{core},{}", core + 4)
            };
            write(
                format!("cpu/cpu{cpu}/topology/physical_package_id"),
                &socket.to_string(),
            );
            write(format!("cpu/cpu{cpu}/topology/thread_siblings_list"), &threads);
            write(format!("cpu/cpu{cpu}/cache/index0/level"), "1");
            if socket == 1 {
                write(format!("cpu/cpu{cpu}/cache/index1/level"), "3");
                write(format!("cpu/cpu{cpu}/cache/index1/shared_cpu_list"), "2-3,6");
            }
        }
        for (node, cpus, distance) in [(0, "0-1,4-5", "10 21"), (2, "2-3,6", "21 10")] {
            write(format!("node/node{node}/cpulist"), cpus);
            write(format!("node/node{node}/distance"), distance);
            write(
                format!("node/node{node}/meminfo"),
                &format!("Node {node} MemTotal:  1024 kB\nNode {node} MemFree: 3 kB\n"),
            );
            write(
                format!("node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"),
                "3",
            );
        }
    }

    #[test]
    fn l4_cores_sockets_caches_and_numa_nodes_are_distinguished() {
        let directory = tempfile::tempdir().unwrap();
        machine(directory.path());
        let topology = read(directory.path()).unwrap();
        let cpu = |core, socket, numa_node, uncore_cache| Cpu {
            core,
            socket,
            numa_node,
            uncore_cache,
        };
        for (number, expected) in [(0, cpu(0, 0, 0, 0)), (5, cpu(1, 0, 0, 0)), (6, cpu(2, 1, 2, 2))] {
            assert_eq!(topology.cpus.get(number), Some(&expected), "{number}");
        }
        assert_eq!(topology.cpus.get(7), None);
        assert_eq!(topology.distances[&2], BTreeMap::from([(0, 21), (2, 10)]));
        let node = &topology.memory[&2];
        assert_eq!(
            (node.memory, node.huge_pages["hugepages-2Mi"]),
            (1 << 20, 6 << 20)
        );
        std::fs::write(directory.path().join("node/online"), "0,64").unwrap();
        assert!(read(directory.path()).is_err());
        std::fs::remove_dir_all(directory.path().join("node")).unwrap();
        let without = read(directory.path()).unwrap();
        assert_eq!(without.cpus.get(6), Some(&cpu(2, 1, 0, 2)));
        assert_eq!(without.memory.keys().collect::<Vec<_>>(), [&0]);
    }
}
