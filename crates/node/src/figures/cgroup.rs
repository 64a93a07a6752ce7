//! What a group of processes uses, as the kernel counts it, on cgroup v1 and v2.
//!
//! A group that is not there, or a count that the kernel does not keep, is none.

use std::fs;
use std::path::{Path, PathBuf};

/// More than any machine has: the kernel's way to say that there is no limit.
const UNLIMITED_BYTES: u64 = 1 << 62;

/// See the module. Bytes and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_nanoseconds: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// Without file pages that can be taken back at once.
    pub working_set_bytes: Option<u64>,
    pub rss_bytes: Option<u64>,
    pub page_faults: Option<u64>,
    pub major_page_faults: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
    pub processes: Option<u64>,
}

/// The hierarchies of this machine.
#[derive(Clone, Debug)]
pub struct Cgroups {
    root: PathBuf,
    unified: bool,
    proc_dir: PathBuf,
}

impl Cgroups {
    pub fn of_this_machine() -> Self {
        Self::below(Path::new("/sys/fs/cgroup"), Path::new("/proc"))
    }

    fn below(root: &Path, proc_dir: &Path) -> Self {
        Cgroups {
            root: root.into(),
            unified: root.join("cgroup.controllers").exists(),
            proc_dir: proc_dir.into(),
        }
    }

    fn file(&self, controller: &str, group: &str, name: &str) -> Option<String> {
        let base = if self.unified {
            self.root.clone()
        } else {
            self.root.join(controller)
        };
        fs::read_to_string(base.join(group.trim_start_matches('/')).join(name)).ok()
    }

    fn number(&self, controller: &str, group: &str, name: &str) -> Option<u64> {
        self.file(controller, group, name)?.trim().parse().ok()
    }

    /// Of `group`, below the root of the hierarchies; `/` is the whole machine.
    pub fn usage(&self, group: &str) -> Usage {
        if self.unified {
            self.usage_unified(group)
        } else {
            self.usage_per_controller(group)
        }
    }

    fn usage_per_controller(&self, group: &str) -> Usage {
        let stat = self.file("memory", group, "memory.stat").unwrap_or_default();
        let memory = self.number("memory", group, "memory.usage_in_bytes");
        let limit = self.number("memory", group, "memory.limit_in_bytes");
        let cpu = self.number("cpuacct", group, "cpuacct.usage");
        Usage {
            cpu_nanoseconds: cpu.or_else(|| self.number("cpu,cpuacct", group, "cpuacct.usage")),
            memory_bytes: memory,
            working_set_bytes: memory
                .map(|m| m.saturating_sub(field(&stat, "total_inactive_file").unwrap_or(0))),
            rss_bytes: field(&stat, "total_rss"),
            page_faults: field(&stat, "total_pgfault").or_else(|| field(&stat, "pgfault")),
            major_page_faults: field(&stat, "total_pgmajfault").or_else(|| field(&stat, "pgmajfault")),
            memory_limit_bytes: limit.filter(|limit| *limit < UNLIMITED_BYTES),
            swap_bytes: field(&stat, "total_swap"),
            processes: self.number("pids", group, "pids.current"),
        }
    }

    fn usage_unified(&self, group: &str) -> Usage {
        let stat = self.file("", group, "memory.stat").unwrap_or_default();
        // The root counts no memory of its own: all that is not free is used.
        let memory = self
            .number("", group, "memory.current")
            .or_else(|| (group == "/").then(|| self.used_of_machine()).flatten());
        let cpu = self.file("", group, "cpu.stat").unwrap_or_default();
        Usage {
            cpu_nanoseconds: field(&cpu, "usage_usec").map(|micros| micros.saturating_mul(1000)),
            memory_bytes: memory,
            working_set_bytes: memory.map(|m| m.saturating_sub(field(&stat, "inactive_file").unwrap_or(0))),
            rss_bytes: field(&stat, "anon"),
            page_faults: field(&stat, "pgfault"),
            major_page_faults: field(&stat, "pgmajfault"),
            memory_limit_bytes: self.number("", group, "memory.max"),
            swap_bytes: self.number("", group, "memory.swap.current"),
            processes: self.number("", group, "pids.current"),
        }
    }

    fn used_of_machine(&self) -> Option<u64> {
        let text = fs::read_to_string(self.proc_dir.join("meminfo")).ok()?;
        let kib = |name: &str| {
            let line = text
                .lines()
                .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
        };
        Some(kib("MemTotal")?.saturating_sub(kib("MemFree")?) * 1024)
    }
}

/// A line `name number`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn t8_version_one_is_read_controller_by_controller() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &[
                ("memory/kubepods/podx/memory.usage_in_bytes", "5000\n"),
                (
                    "memory/kubepods/podx/memory.limit_in_bytes",
                    "9223372036854771712\n",
                ),
                (
                    "memory/kubepods/podx/memory.stat",
                    "inactive_file 1\ntotal_inactive_file 2000\ntotal_rss 700\ntotal_pgfault 9\ntotal_pgmajfault 3\n",
                ),
                ("cpuacct/kubepods/podx/cpuacct.usage", "12345\n"),
                ("pids/kubepods/podx/pids.current", "4\n"),
            ],
        );
        let usage = Cgroups::below(dir.path(), dir.path()).usage("/kubepods/podx");
        let want = Usage {
            cpu_nanoseconds: Some(12345),
            memory_bytes: Some(5000),
            working_set_bytes: Some(3000),
            rss_bytes: Some(700),
            page_faults: Some(9),
            major_page_faults: Some(3),
            memory_limit_bytes: None,
            swap_bytes: None,
            processes: Some(4),
        };
        assert_eq!(usage, want);
        let gone = Cgroups::below(dir.path(), dir.path()).usage("/kubepods/pody");
        assert_eq!(gone, Usage::default());
    }

    #[test]
    fn t8_version_two_is_read_from_one_directory_and_its_root_from_proc() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &[
                ("cgroup.controllers", "cpu memory pids"),
                ("memory.stat", "anon 10\ninactive_file 1024\n"),
                ("cpu.stat", "usage_usec 7\nuser_usec 5\n"),
                ("kubepods/podx/memory.current", "5000"),
                ("kubepods/podx/memory.max", "6000"),
                (
                    "kubepods/podx/memory.stat",
                    "anon 600\ninactive_file 500\npgfault 8\n",
                ),
                ("kubepods/podx/memory.swap.current", "11"),
                ("kubepods/podx/pids.current", "2"),
                ("proc/meminfo", "MemTotal:  100 kB\nMemFree:    60 kB\n"),
            ],
        );
        let cgroups = Cgroups::below(dir.path(), &dir.path().join("proc"));
        let pod = cgroups.usage("/kubepods/podx");
        assert_eq!(pod.working_set_bytes, Some(4500));
        assert_eq!(pod.memory_limit_bytes, Some(6000));
        assert_eq!((pod.swap_bytes, pod.processes), (Some(11), Some(2)));
        let machine = cgroups.usage("/");
        assert_eq!(machine.memory_bytes, Some(40 * 1024));
        assert_eq!(machine.working_set_bytes, Some(39 * 1024));
        assert_eq!(machine.cpu_nanoseconds, Some(7000));
    }
}
