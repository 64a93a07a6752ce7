//! What a group of processes uses, as the kernel counts it, on cgroup v1 and v2.
//!
//! A missing cgroup, or a value that the kernel does not provide, is `None`.

use std::path::{Path, PathBuf};

use knarr_kubelet::stats::PsiStats;

use super::pressure;
use crate::host_fs;

/// More than any machine has: the kernel's value for no limit.
const UNLIMITED_BYTES: u64 = 1 << 62;
/// The number of cgroups of one container whose processes are counted: further ones are skipped.
const GROUPS_MAX: usize = 1000;

/// See the module. Bytes and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    pub cpu_nanoseconds: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// Without file pages that can be reclaimed at once.
    pub working_set_bytes: Option<u64>,
    pub rss_bytes: Option<u64>,
    pub page_faults: Option<u64>,
    pub major_page_faults: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
    /// None is no limit.
    pub swap_limit_bytes: Option<u64>,
    /// Not threads; those in groups below too.
    pub processes: Option<u64>,
    /// Cgroup v2 only.
    pub cpu_pressure: Option<PsiStats>,
    pub memory_pressure: Option<PsiStats>,
    pub io_pressure: Option<PsiStats>,
}

/// The cgroup hierarchies of this host.
#[derive(Clone, Debug)]
pub struct Cgroups {
    root: PathBuf,
    unified: bool,
    proc_dir: PathBuf,
}

impl Cgroups {
    pub fn of_host() -> Self {
        Self::below(Path::new("/sys/fs/cgroup"), Path::new("/proc"))
    }

    fn below(root: &Path, proc_dir: &Path) -> Self {
        Cgroups {
            root: root.into(),
            unified: host_fs::exists(root.join("cgroup.controllers")),
            proc_dir: proc_dir.into(),
        }
    }

    fn file(&self, controller: &str, group: &str, name: &str) -> Option<String> {
        host_fs::read_to_string(self.directory(controller, group).join(name)).ok()
    }

    fn number(&self, controller: &str, group: &str, name: &str) -> Option<u64> {
        self.file(controller, group, name)?.trim().parse().ok()
    }

    /// Of `group`, below the root of the hierarchies; `/` is the whole host.
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
            swap_limit_bytes: match group {
                "/" => self.meminfo("SwapTotal"),
                _ => self
                    .number("memory", group, "memory.memsw.limit_in_bytes")
                    .filter(|limit| *limit < UNLIMITED_BYTES),
            },
            processes: self.processes("pids", group),
            ..Usage::default()
        }
    }

    fn usage_unified(&self, group: &str) -> Usage {
        let stat = self.file("", group, "memory.stat").unwrap_or_default();
        // The root cgroup has no memory count of its own: everything that is not free is used.
        let memory = self
            .number("", group, "memory.current")
            .or_else(|| (group == "/").then(|| self.host_usage()).flatten());
        let cpu = self.file("", group, "cpu.stat").unwrap_or_default();
        Usage {
            cpu_nanoseconds: field(&cpu, "usage_usec").map(|micros| micros.saturating_mul(1000)),
            memory_bytes: memory,
            working_set_bytes: memory.map(|m| m.saturating_sub(field(&stat, "inactive_file").unwrap_or(0))),
            rss_bytes: field(&stat, "anon"),
            page_faults: field(&stat, "pgfault"),
            major_page_faults: field(&stat, "pgmajfault"),
            memory_limit_bytes: self.number("", group, "memory.max"),
            swap_bytes: match group {
                "/" => self
                    .meminfo("SwapTotal")
                    .zip(self.meminfo("SwapFree"))
                    .map(|(all, free)| all.saturating_sub(free)),
                _ => self.number("", group, "memory.swap.current"),
            },
            swap_limit_bytes: match group {
                "/" => self.meminfo("SwapTotal"),
                _ => self.number("", group, "memory.swap.max"),
            },
            processes: self.processes("", group),
            cpu_pressure: self.pressure(group, "cpu"),
            memory_pressure: self.pressure(group, "memory"),
            io_pressure: self.pressure(group, "io"),
        }
    }

    fn host_usage(&self) -> Option<u64> {
        Some(self.meminfo("MemTotal")?.saturating_sub(self.meminfo("MemFree")?))
    }

    fn meminfo(&self, name: &str) -> Option<u64> {
        let text = host_fs::read_to_string(self.proc_dir.join("meminfo")).ok()?;
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
        Some(kibibytes * 1024)
    }

    /// For the whole host older kernels have it in `/proc` only.
    fn pressure(&self, group: &str, of: &str) -> Option<PsiStats> {
        let text = self.file("", group, &format!("{of}.pressure"));
        let machine = || host_fs::read_to_string(self.proc_dir.join("pressure").join(of)).ok();
        let text = text.or_else(|| (group == "/").then(machine).flatten())?;
        pressure::parse(&text)
    }

    fn directory(&self, controller: &str, group: &str) -> PathBuf {
        let base = if self.unified {
            self.root.clone()
        } else {
            self.root.join(controller)
        };
        base.join(group.trim_start_matches('/'))
    }

    fn processes(&self, controller: &str, group: &str) -> Option<u64> {
        let mut open = vec![self.directory(controller, group)];
        let mut count = None;
        let mut visited = 0;
        while let Some(directory) = open.pop().filter(|_| visited < GROUPS_MAX) {
            visited += 1;
            // A cgroup may be removed meanwhile.
            let Ok(text) = host_fs::read_to_string(directory.join("cgroup.procs")) else {
                continue;
            };
            count = Some(count.unwrap_or(0) + text.lines().count() as u64);
            let entries = host_fs::read_dir(&directory).into_iter().flatten().flatten();
            open.extend(
                entries
                    .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
                    .map(|e| e.path()),
            );
        }
        count
    }

    /// The group of a process, if it has one to itself.
    pub fn own_group(&self, pid: u32) -> Option<String> {
        let text = host_fs::read_to_string(self.proc_dir.join(pid.to_string()).join("cgroup")).ok()?;
        let of = |controller: &str| {
            text.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let names = parts.next()?;
                let path = parts.next()?;
                names.split(',').any(|name| name == controller).then_some(path)
            })
        };
        let (group, controller) = match self.unified {
            true => (of("")?, ""),
            // What one counts and another does not would not fit together.
            false => (
                of("memory").filter(|group| of("cpuacct") == Some(*group))?,
                "memory",
            ),
        };
        let procs = host_fs::read_to_string(self.directory(controller, group).join("cgroup.procs")).ok()?;
        let alone = procs.lines().all(|line| line.trim() == pid.to_string());
        (group != "/" && alone).then(|| group.to_string())
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
    use std::fs;

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
                ("memory/kubepods/podx/memory.memsw.limit_in_bytes", "8000\n"),
                ("pids/kubepods/podx/cgroup.procs", "4\n5\n"),
                ("pids/kubepods/podx/inner/cgroup.procs", "6\n"),
                ("memory/memory.stat", "total_swap 1024\n"),
                ("meminfo", "SwapTotal:  4 kB\nSwapFree:  1 kB\n"),
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
            swap_limit_bytes: Some(8000),
            processes: Some(3),
            ..Usage::default()
        };
        assert_eq!(usage, want);
        let gone = Cgroups::below(dir.path(), dir.path()).usage("/kubepods/pody");
        assert_eq!(gone, Usage::default());
        let machine = Cgroups::below(dir.path(), dir.path()).usage("/");
        assert_eq!(
            (machine.swap_bytes, machine.swap_limit_bytes),
            (Some(1024), Some(4096))
        );
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
                ("kubepods/podx/memory.swap.max", "max"),
                ("kubepods/podx/cgroup.procs", ""),
                ("kubepods/podx/c0/cgroup.procs", "2\n3\n"),
                (
                    "kubepods/podx/cpu.pressure",
                    "some avg10=1.50 avg60=0.00 avg300=0.00 total=9\n",
                ),
                (
                    "kubepods/podx/io.pressure",
                    "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
                ),
                (
                    "proc/pressure/memory",
                    "some avg10=0.00 avg60=0.00 avg300=0.00 total=3\n",
                ),
                (
                    "proc/meminfo",
                    "MemTotal:  100 kB\nMemFree:    60 kB\nSwapTotal:  8 kB\nSwapFree:  5 kB\n",
                ),
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
        assert_eq!(
            (machine.swap_bytes, machine.swap_limit_bytes),
            (Some(3 << 10), Some(8 << 10))
        );
        assert_eq!(pod.swap_limit_bytes, None);
        let total = |of: Option<PsiStats>| of.map(|psi| psi.some.total);
        for (usage, cpu, memory, io) in [(pod, Some(9), None, Some(5)), (machine, None, Some(3), None)] {
            let got = [usage.cpu_pressure, usage.memory_pressure, usage.io_pressure].map(total);
            assert_eq!(got, [cpu, memory, io]);
        }
    }

    #[test]
    fn t8_a_cgroup_is_a_daemons_own_only_if_it_holds_no_other_process() {
        for (unified, groups, procs, want) in [
            (true, "0::/knarr\n", "7\n", Some("/knarr")),
            (true, "0::/knarr\n", "7\n8\n", None),
            (true, "0::/\n", "7\n", None),
            (
                false,
                "5:memory:/knarr\n4:cpu,cpuacct:/knarr\n0::/\n",
                "7\n",
                Some("/knarr"),
            ),
            (
                false,
                "5:memory:/knarr\n4:cpu,cpuacct:/\n0::/knarr\n",
                "7\n",
                None,
            ),
        ] {
            let dir = tempfile::tempdir().unwrap();
            write(
                dir.path(),
                &[
                    ("proc/7/cgroup", groups),
                    ("knarr/cgroup.procs", procs),
                    ("cgroup.procs", procs),
                    ("memory/knarr/cgroup.procs", procs),
                ],
            );
            if unified {
                write(dir.path(), &[("cgroup.controllers", "cpu memory")]);
            }
            let cgroups = Cgroups::below(dir.path(), &dir.path().join("proc"));
            assert_eq!(cgroups.own_group(7).as_deref(), want, "{groups} {procs}");
        }
    }
}
