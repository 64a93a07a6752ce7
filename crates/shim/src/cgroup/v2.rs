//! cgroup v2: one hierarchy, mounted at `/sys/fs/cgroup`.

use std::io;
use std::path::{Path, PathBuf};

use containerd_shim_protos::cgroups_v2::metrics::{
    CPUStat, IOEntry, IOStat, MemoryEvents, MemoryStat, Metrics, PidsStat,
};
use containerd_shim_protos::protobuf::MessageField;

use super::{Fields, number, read_text, value};

/// Processes that the kernel killed in the group and below, for want of memory.
pub const EVENTS: &str = "memory.events";

/// From `/proc/PID/cgroup`: the line "0::PATH".
pub fn path(text: &str, root: &Path) -> Option<PathBuf> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(root.join(path.trim_start_matches('/')))
}

/// How many processes the kernel has killed for want of memory.
pub fn oom_kills(directory: &Path) -> u64 {
    Fields::read(directory, EVENTS).get("oom_kill")
}

pub fn stats(directory: &Path) -> io::Result<Metrics> {
    // An error, not zeros, when the group is gone.
    read_text(&directory.join("cgroup.controllers"))?;
    let mut metrics = Metrics::new();
    metrics.pids = MessageField::some(PidsStat {
        current: value(directory, "pids.current"),
        limit: value(directory, "pids.max"),
        ..PidsStat::default()
    });
    let cpu = Fields::read(directory, "cpu.stat");
    metrics.cpu = MessageField::some(CPUStat {
        usage_usec: cpu.get("usage_usec"),
        user_usec: cpu.get("user_usec"),
        system_usec: cpu.get("system_usec"),
        nr_periods: cpu.get("nr_periods"),
        nr_throttled: cpu.get("nr_throttled"),
        throttled_usec: cpu.get("throttled_usec"),
        ..CPUStat::default()
    });
    metrics.memory = MessageField::some(memory(directory));
    let events = Fields::read(directory, EVENTS);
    if !events.is_empty() {
        metrics.memory_events = MessageField::some(MemoryEvents {
            low: events.get("low"),
            high: events.get("high"),
            max: events.get("max"),
            oom: events.get("oom"),
            oom_kill: events.get("oom_kill"),
            ..MemoryEvents::default()
        });
    }
    let io = read_text(&directory.join("io.stat")).unwrap_or_default();
    metrics.io = MessageField::some(IOStat {
        usage: io.lines().filter_map(io_entry).collect(),
        ..IOStat::default()
    });
    Ok(metrics)
}

fn memory(directory: &Path) -> MemoryStat {
    let stat = Fields::read(directory, "memory.stat");
    MemoryStat {
        anon: stat.get("anon"),
        file: stat.get("file"),
        kernel_stack: stat.get("kernel_stack"),
        slab: stat.get("slab"),
        sock: stat.get("sock"),
        shmem: stat.get("shmem"),
        file_mapped: stat.get("file_mapped"),
        file_dirty: stat.get("file_dirty"),
        file_writeback: stat.get("file_writeback"),
        anon_thp: stat.get("anon_thp"),
        inactive_anon: stat.get("inactive_anon"),
        active_anon: stat.get("active_anon"),
        inactive_file: stat.get("inactive_file"),
        active_file: stat.get("active_file"),
        unevictable: stat.get("unevictable"),
        slab_reclaimable: stat.get("slab_reclaimable"),
        slab_unreclaimable: stat.get("slab_unreclaimable"),
        pgfault: stat.get("pgfault"),
        pgmajfault: stat.get("pgmajfault"),
        workingset_refault: stat.get("workingset_refault"),
        workingset_activate: stat.get("workingset_activate"),
        workingset_nodereclaim: stat.get("workingset_nodereclaim"),
        pgrefill: stat.get("pgrefill"),
        pgscan: stat.get("pgscan"),
        pgsteal: stat.get("pgsteal"),
        pgactivate: stat.get("pgactivate"),
        pgdeactivate: stat.get("pgdeactivate"),
        pglazyfree: stat.get("pglazyfree"),
        pglazyfreed: stat.get("pglazyfreed"),
        thp_fault_alloc: stat.get("thp_fault_alloc"),
        thp_collapse_alloc: stat.get("thp_collapse_alloc"),
        usage: value(directory, "memory.current"),
        usage_limit: value(directory, "memory.max"),
        swap_usage: value(directory, "memory.swap.current"),
        swap_limit: value(directory, "memory.swap.max"),
        ..MemoryStat::default()
    }
}

/// A line of io.stat: "MAJOR:MINOR rbytes=1 wbytes=2 …".
fn io_entry(line: &str) -> Option<IOEntry> {
    let mut fields = line.split_whitespace();
    let (major, minor) = fields.next()?.split_once(':')?;
    let mut entry = IOEntry {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        ..IOEntry::default()
    };
    for (name, text) in fields.filter_map(|field| field.split_once('=')) {
        match name {
            "rbytes" => entry.rbytes = number(text),
            "wbytes" => entry.wbytes = number(text),
            "rios" => entry.rios = number(text),
            "wios" => entry.wios = number(text),
            _ => {}
        }
    }
    Some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_that_of_the_unified_hierarchy() {
        let text = "1:cpu:/a\n0::/kubepods/pod1/c1\n";
        assert_eq!(path(text, Path::new("/cg")), Some("/cg/kubepods/pod1/c1".into()));
        assert_eq!(path("1:cpu:/a\n", Path::new("/cg")), None);
    }

    #[test]
    fn statistics_are_read_and_a_group_that_is_gone_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        assert!(stats(directory.path()).is_err());
        file("cgroup.controllers", "cpu memory pids\n");
        file("pids.max", "max\n");
        file("cpu.stat", "usage_usec 10\nuser_usec 4\n");
        file("memory.stat", "anon 1\ninactive_file 2\n");
        file("memory.current", "77\n");
        file("memory.max", "max\n");
        file("memory.events", "low 0\noom 2\noom_kill 3\n");
        file("io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5\nbad\n");
        let stats = stats(directory.path()).unwrap();
        assert_eq!(
            (stats.pids.limit, stats.cpu.usage_usec, stats.memory.usage),
            (u64::MAX, 10, 77)
        );
        assert_eq!(
            (stats.memory.usage_limit, stats.memory_events.oom_kill),
            (u64::MAX, 3)
        );
        assert_eq!(stats.io.usage.len(), 1);
        assert_eq!((stats.io.usage[0].major, stats.io.usage[0].wios), (8, 4));
        assert_eq!(oom_kills(directory.path()), 3);
    }
}
