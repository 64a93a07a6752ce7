//! cgroup v1: a hierarchy for each controller, mounted below `/sys/fs/cgroup`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use containerd_shim_protos::cgroups::metrics::{
    CPUStat, CPUUsage, MemoryEntry, MemoryOomControl, MemoryStat, Metrics, PidsStat, Throttle,
};
use containerd_shim_protos::protobuf::MessageField;

use super::{Fields, number, read_text, value};

/// The controllers that runc puts containers into.
pub const CONTROLLERS: [&str; 14] = [
    "pids",
    "memory",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "blkio",
    "hugetlb",
    "net_cls",
    "net_prio",
    "perf_event",
    "rdma",
    "misc",
];
/// cpuacct.stat counts in USER_HZ, which is 100 on every architecture that Rust's std has Linux for.
const NANOS_PER_TICK: u64 = 10_000_000;

/// The groups of a process by controller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Groups(BTreeMap<&'static str, PathBuf>);

impl Groups {
    /// From `/proc/PID/cgroup`: lines "ID:CONTROLLER,CONTROLLER:PATH".
    pub fn parse(text: &str, root: &Path) -> Self {
        let mut groups = BTreeMap::new();
        for line in text.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(names), Some(path)) = (fields.next(), fields.next()) else {
                continue;
            };
            for name in names.split(',') {
                if let Some(controller) = CONTROLLERS.iter().find(|controller| **controller == name) {
                    groups.insert(
                        *controller,
                        root.join(controller).join(path.trim_start_matches('/')),
                    );
                }
            }
        }
        Groups(groups)
    }

    /// The groups with one path below the hierarchies that there are.
    pub fn below(path: &str) -> Self {
        let root = Path::new(super::ROOT);
        let mounted = CONTROLLERS
            .into_iter()
            .filter(|controller| root.join(controller).is_dir());
        Groups(
            mounted
                .map(|controller| (controller, root.join(controller).join(path)))
                .collect(),
        )
    }

    pub fn get(&self, controller: &str) -> Option<&Path> {
        self.0.get(controller).map(PathBuf::as_path)
    }

    /// One that lists the container's processes.
    pub fn any(&self) -> Option<&Path> {
        CONTROLLERS.iter().find_map(|controller| self.get(controller))
    }

    pub fn stats(&self) -> io::Result<Metrics> {
        let mut metrics = Metrics::new();
        if let Some(directory) = self.get("pids") {
            metrics.pids = MessageField::some(PidsStat {
                current: value(directory, "pids.current"),
                // No limit is 0 here, as with containerd's cgroups package.
                limit: match value(directory, "pids.max") {
                    u64::MAX => 0,
                    limit => limit,
                },
                ..PidsStat::default()
            });
        }
        metrics.cpu = MessageField::some(CPUStat {
            usage: MessageField::some(self.get("cpuacct").map_or_else(CPUUsage::default, cpu_usage)),
            throttling: MessageField::some(self.get("cpu").map_or_else(Throttle::default, throttling)),
            ..CPUStat::default()
        });
        if let Some(directory) = self.get("memory") {
            metrics.memory = MessageField::some(memory(directory));
            let oom = Fields::read(directory, "memory.oom_control");
            metrics.memory_oom_control = MessageField::some(MemoryOomControl {
                oom_kill_disable: oom.get("oom_kill_disable"),
                under_oom: oom.get("under_oom"),
                oom_kill: oom.get("oom_kill"),
                ..MemoryOomControl::default()
            });
        }
        Ok(metrics)
    }
}

fn cpu_usage(directory: &Path) -> CPUUsage {
    let ticks = Fields::read(directory, "cpuacct.stat");
    let by_cpu = read_text(&directory.join("cpuacct.usage_percpu")).unwrap_or_default();
    CPUUsage {
        total: value(directory, "cpuacct.usage"),
        user: ticks.get("user").saturating_mul(NANOS_PER_TICK),
        kernel: ticks.get("system").saturating_mul(NANOS_PER_TICK),
        per_cpu: by_cpu.split_whitespace().map(number).collect(),
        ..CPUUsage::default()
    }
}

fn throttling(directory: &Path) -> Throttle {
    let stat = Fields::read(directory, "cpu.stat");
    Throttle {
        periods: stat.get("nr_periods"),
        throttled_periods: stat.get("nr_throttled"),
        throttled_time: stat.get("throttled_time"),
        ..Throttle::default()
    }
}

fn memory(directory: &Path) -> MemoryStat {
    let stat = Fields::read(directory, "memory.stat");
    let entry = |kind: &str| {
        let file = |name: &str| value(directory, &format!("memory.{kind}{name}"));
        MessageField::some(MemoryEntry {
            limit: file("limit_in_bytes"),
            usage: file("usage_in_bytes"),
            max: file("max_usage_in_bytes"),
            failcnt: file("failcnt"),
            ..MemoryEntry::default()
        })
    };
    MemoryStat {
        cache: stat.get("cache"),
        rss: stat.get("rss"),
        rss_huge: stat.get("rss_huge"),
        mapped_file: stat.get("mapped_file"),
        dirty: stat.get("dirty"),
        writeback: stat.get("writeback"),
        pg_pg_in: stat.get("pgpgin"),
        pg_pg_out: stat.get("pgpgout"),
        pg_fault: stat.get("pgfault"),
        pg_maj_fault: stat.get("pgmajfault"),
        inactive_anon: stat.get("inactive_anon"),
        active_anon: stat.get("active_anon"),
        inactive_file: stat.get("inactive_file"),
        active_file: stat.get("active_file"),
        unevictable: stat.get("unevictable"),
        hierarchical_memory_limit: stat.get("hierarchical_memory_limit"),
        hierarchical_swap_limit: stat.get("hierarchical_memsw_limit"),
        total_cache: stat.get("total_cache"),
        total_rss: stat.get("total_rss"),
        total_rss_huge: stat.get("total_rss_huge"),
        total_mapped_file: stat.get("total_mapped_file"),
        total_dirty: stat.get("total_dirty"),
        total_writeback: stat.get("total_writeback"),
        total_pg_pg_in: stat.get("total_pgpgin"),
        total_pg_pg_out: stat.get("total_pgpgout"),
        total_pg_fault: stat.get("total_pgfault"),
        total_pg_maj_fault: stat.get("total_pgmajfault"),
        total_inactive_anon: stat.get("total_inactive_anon"),
        total_active_anon: stat.get("total_active_anon"),
        total_inactive_file: stat.get("total_inactive_file"),
        total_active_file: stat.get("total_active_file"),
        total_unevictable: stat.get("total_unevictable"),
        usage: entry(""),
        swap: entry("memsw."),
        kernel: entry("kmem."),
        kernel_tcp: entry("kmem.tcp."),
        ..MemoryStat::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_for_each_controller_also_of_a_shared_hierarchy() {
        let text = "9:name=systemd:/x\n4:memory:/pods/a:b\n2:cpu,cpuacct:/pods/c\n0::/y\nbad\n";
        let groups = Groups::parse(text, Path::new("/cg"));
        assert_eq!(groups.get("memory"), Some(Path::new("/cg/memory/pods/a:b")));
        assert_eq!(groups.get("cpuacct"), Some(Path::new("/cg/cpuacct/pods/c")));
        assert_eq!(groups.get("pids"), None);
        assert_eq!(groups.any(), groups.get("memory"));
    }

    #[test]
    fn statistics_are_read_from_the_controllers_files_and_missing_ones_are_zero() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        file("pids/p/pids.current", "3\n");
        file("pids/p/pids.max", "max\n");
        file("cpuacct/p/cpuacct.usage", "123456789\n");
        file("cpuacct/p/cpuacct.stat", "user 5\nsystem 7\n");
        file("cpuacct/p/cpuacct.usage_percpu", "100 23 \n");
        file("memory/p/memory.usage_in_bytes", "4096\n");
        file(
            "memory/p/memory.stat",
            "cache 1\ntotal_inactive_file 2\ntotal_rss 3\n",
        );
        let groups = Groups::parse("1:pids:/p\n2:cpuacct:/p\n3:memory:/p\n", directory.path());
        let stats = groups.stats().unwrap();
        assert_eq!((stats.pids.current, stats.pids.limit), (3, 0));
        assert_eq!(
            (
                stats.cpu.usage.total,
                stats.cpu.usage.user,
                stats.cpu.usage.kernel
            ),
            (123_456_789, 50_000_000, 70_000_000)
        );
        assert_eq!(stats.cpu.usage.per_cpu, [100, 23]);
        assert_eq!(
            (
                stats.memory.usage.usage,
                stats.memory.total_inactive_file,
                stats.memory.total_rss
            ),
            (4096, 2, 3)
        );
        assert_eq!(stats.cpu.throttling.periods, 0);
    }
}
