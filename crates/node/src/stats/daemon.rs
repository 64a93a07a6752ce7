//! What the node's own daemons use: its kubelet and its container runtime.
//!
//! One with its own cgroup (a systemd service) is measured as that cgroup. One that shares its cgroup with others, as a
//! containerd started by knarr does, is measured as a process: the cgroup's stats would include the others.

use std::path::Path;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::time;
use knarr_kubelet::stats::ContainerStats;
use nix::unistd::{SysconfVar, sysconf};

use super::Measuring;
use super::cgroup::Usage;
use crate::host_fs;

const PROC: &str = "/proc";

impl Measuring<'_> {
    /// None for a process that is not there.
    pub(super) fn daemon(&mut self, name: &str, pid: u32) -> Option<ContainerStats> {
        let process = Process::read(Path::new(PROC), pid)?;
        let booted = self.boot_time().map(|t| t.0);
        let start_time = booted.and_then(|booted| process.started(booted));
        let (key, usage) = match self.cgroups.own_group(pid) {
            Some(group) => {
                let usage = self.cgroups.usage(&group);
                (group, usage)
            }
            None => (format!("process {pid}"), process.usage()),
        };
        Some(ContainerStats {
            name: name.into(),
            start_time,
            cpu: self.cpu(&key, &usage),
            memory: self.memory_stats(&usage, usage.memory_limit_bytes),
            io: self.io(&usage),
            swap: self.swap(&usage),
            ..ContainerStats::default()
        })
    }
}

/// The kernel's data of one process.
struct Process {
    stat: String,
    status: String,
    ticks_per_second: u64,
}

impl Process {
    fn read(proc_dir: &Path, pid: u32) -> Option<Self> {
        let file = |name: &str| host_fs::read_to_string(proc_dir.join(pid.to_string()).join(name)).ok();
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten();
        Some(Process {
            stat: file("stat")?,
            status: file("status")?,
            ticks_per_second: ticks.and_then(|t| u64::try_from(t).ok()).filter(|t| *t > 0)?,
        })
    }

    /// By its number in proc(5), from 1; the second is the name, which may contain any character.
    fn stat(&self, number: usize) -> Option<u64> {
        let (_, rest) = self.stat.rsplit_once(')')?;
        rest.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
    }

    fn status_bytes(&self, name: &str) -> Option<u64> {
        let mut lines = self.status.lines();
        let value = lines.find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kibibytes * 1024)
    }

    fn started(&self, booted: Timestamp) -> Option<Time> {
        let seconds = i64::try_from(self.stat(22)? / self.ticks_per_second).ok()?;
        let at = booted.checked_add(SignedDuration::from_secs(seconds)).ok()?;
        Some(time::seconds(at))
    }

    /// Mapped files count as used, but not to the working set.
    fn usage(&self) -> Usage {
        let ticks = self
            .stat(14)
            .zip(self.stat(15))
            .map(|(user, system)| user + system);
        let resident = self.status_bytes("VmRSS");
        let files = self.status_bytes("RssFile").unwrap_or(0);
        Usage {
            cpu_nanoseconds: ticks.map(|ticks| ticks * (1_000_000_000 / self.ticks_per_second)),
            memory_bytes: resident,
            working_set_bytes: resident.map(|bytes| bytes.saturating_sub(files)),
            rss_bytes: self.status_bytes("RssAnon"),
            page_faults: self.stat(10),
            major_page_faults: self.stat(12),
            swap_bytes: self.status_bytes("VmSwap"),
            processes: Some(1),
            ..Usage::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t8_a_process_is_read_whatever_its_name_is() {
        let process = Process {
            stat: "42 (a) b (c)) S 1 42 42 0 -1 4194560 900 11 7 12 250 50 3 4 20 0 9 0 1200 1 2 3".into(),
            status: "Name:\ta) b (c)\nVmRSS:\t    2000 kB\nRssAnon:\t 1500 kB\nRssFile:\t 400 kB\nVmSwap:\t 8 kB\n"
                .into(),
            ticks_per_second: 100,
        };
        let want = Usage {
            cpu_nanoseconds: Some(3_000_000_000),
            memory_bytes: Some(2000 << 10),
            working_set_bytes: Some(1600 << 10),
            rss_bytes: Some(1500 << 10),
            page_faults: Some(900),
            major_page_faults: Some(7),
            swap_bytes: Some(8 << 10),
            processes: Some(1),
            ..Usage::default()
        };
        assert_eq!(process.usage(), want);
        let booted = Timestamp::from_second(1_800_000_000).unwrap();
        let started = process.started(booted).unwrap().0;
        assert_eq!(started.duration_since(booted), SignedDuration::from_secs(12));
    }

    #[test]
    fn t8_this_process_is_measured_and_one_that_does_not_exist_is_not() {
        let own = Process::read(Path::new(PROC), std::process::id())
            .unwrap()
            .usage();
        assert!(own.working_set_bytes.unwrap() > 0 && own.page_faults.unwrap() > 0);
        assert!(Process::read(Path::new(PROC), u32::MAX).is_none());
    }
}
