//! What this node and its pods use, measured: from cgroups, `/proc`, filesystems, and the runtime's own counts.
//!
//! Evictions are based on it (SPEC T8), and `/stats/summary`, `/metrics/*` and `kubectl top` report it. Nothing is
//! measured without a request; requests in quick succession get the same stats. Directories are counted by walking
//! them, and the longer that takes, the longer the count is kept.

mod cgroup;
mod claimed;
mod daemon;
mod disk;
mod network;
mod pod;
mod pressure;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::{Shared, k8s_openapi};
use knarr_apimachinery::ids::{ContainerId, NodeName, PodUid, SandboxId};
use knarr_apimachinery::time::seconds;
use knarr_client::{Clock, Store, TokioClock};
use knarr_kubelet::cgroup::{CgroupDriver, CgroupName};
use knarr_kubelet::eviction::Disks;
use knarr_kubelet::runtime::{Container, ContainerState, Sandbox};
use knarr_kubelet::stats::{
    ContainerStats, CpuStats, FsStats, IoStats, MemoryStats, NodeStats, RlimitStats, RuntimeStats, Summary,
    SwapStats,
};
use tokio::sync::Mutex;
use tracing::debug;

use crate::runtime::{self, ImageFs, Runtime};
use crate::volumes;
use cgroup::{Cgroups, Usage};
use claimed::ClaimedVolumes;
use disk::{Filesystem, Taken};

/// A directory's count is kept at least so long, …
const COUNT_KEPT: SignedDuration = SignedDuration::from_secs(9);
/// … and so many times as long as the counting took: at most a twentieth of a core is spent on it.
const COUNT_KEPT_TIMES: i32 = 20;
/// A processor rate is worked out over at least this time.
const RATE_OVER: SignedDuration = SignedDuration::from_secs(2);

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    pub summary: Summary,
    pub disks: Disks,
}

/// Measures the node.
#[async_trait]
pub trait Meter: Send + Sync + 'static {
    /// Not older than `max_age`.
    async fn measure(&self, max_age: Duration) -> Arc<Measured>;
}

/// The host this process runs on.
pub struct HostMeter {
    parts: Arc<MeterConfig>,
    runtime: Arc<dyn Runtime>,
    pods: Arc<Store>,
    clock: Arc<dyn Clock>,
    /// Where claimed volumes are.
    claimed: volumes::ClaimedPaths,
    /// A monotonic clock for ages and rates.
    steady: TokioClock,
    state: Mutex<State>,
}

/// What to measure.
pub struct MeterConfig {
    pub node_name: NodeName,
    /// Pods' directories are below it.
    pub root_dir: PathBuf,
    pub log_dir: PathBuf,
    pub memory_bytes: i64,
    pub cgroup_driver: CgroupDriver,
}

#[derive(Default)]
struct State {
    latest: Option<(Timestamp, Arc<Measured>)>,
    memory: Previous,
    /// The first process of each sandbox.
    pids: BTreeMap<SandboxId, Option<u32>>,
    claimed: ClaimedVolumes,
}

/// What one measuring leaves for the next.
#[derive(Default)]
struct Previous {
    cpu: BTreeMap<String, Rate>,
    taken: BTreeMap<PathBuf, (Option<Taken>, Timestamp)>,
}

/// A group's processor time, and its rate over the time before.
#[derive(Clone, Copy)]
struct Rate {
    nanoseconds: u64,
    at: Timestamp,
    nano_cores: Option<u64>,
}

/// What the runtime holds.
struct RuntimeState {
    sandboxes: Vec<Sandbox>,
    containers: Vec<Container>,
    usage: BTreeMap<ContainerId, runtime::Usage>,
    pids: BTreeMap<SandboxId, Option<u32>>,
    image_fs: Option<ImageFs>,
    process: Option<u32>,
    /// Claimed volumes' filesystems, by the pod's uid and the volume's name.
    claimed: BTreeMap<(PodUid, String), Filesystem>,
}

impl HostMeter {
    pub(crate) fn new(
        parts: MeterConfig,
        runtime: Arc<dyn Runtime>,
        pods: Arc<Store>,
        claimed: volumes::ClaimedPaths,
        clock: Arc<dyn Clock>,
    ) -> Self {
        HostMeter {
            parts: Arc::new(parts),
            runtime,
            pods,
            steady: TokioClock::new(clock.now()),
            claimed,
            clock,
            state: Mutex::default(),
        }
    }

    async fn held(&self, state: &mut State) -> runtime::Result<RuntimeState> {
        let mut sandboxes = self.runtime.sandboxes().await?;
        sandboxes.retain(|s| s.ready);
        let mut containers = self.runtime.containers().await?;
        containers.retain(|c| matches!(c.state, ContainerState::Running { .. }));
        let usage = self.runtime.usage().await?;
        let image_fs = self.runtime.image_fs().await?;
        let process = match self.runtime.process().await {
            Ok(process) => process,
            Err(error) => {
                debug!(%error, "what the runtime itself uses is not measured");
                None
            }
        };
        let claimed = self.claimed.lock().clone();
        let answers = state.claimed.measure(claimed.values().cloned()).await;
        let claimed = claimed.into_iter();
        let claimed = claimed.filter_map(|(volume, path)| Some((volume, *answers.get(&path)?)));
        state.pids.retain(|id, _| sandboxes.iter().any(|s| s.id == *id));
        for sandbox in &sandboxes {
            if state.pids.contains_key(&sandbox.id) {
                continue;
            }
            match self.runtime.sandbox(&sandbox.id).await {
                Ok(detail) => drop(state.pids.insert(sandbox.id.clone(), detail.pid)),
                Err(error) => debug!(sandbox = %sandbox.id, %error, "its network is not measured"),
            }
        }
        Ok(RuntimeState {
            sandboxes,
            containers,
            usage: usage.into_iter().map(|u| (u.container_id.clone(), u)).collect(),
            pids: state.pids.clone(),
            image_fs,
            process,
            claimed: claimed.collect(),
        })
    }
}

#[async_trait]
impl Meter for HostMeter {
    async fn measure(&self, max_age: Duration) -> Arc<Measured> {
        let mut state = self.state.lock().await;
        let now = self.steady.now();
        if let Some((at, measured)) = &state.latest
            && now.duration_since(*at).unsigned_abs() <= max_age
        {
            return measured.clone();
        }
        let held = match self.held(&mut state).await {
            Ok(held) => Some(held),
            Err(error) => {
                debug!(%error, "cannot read the containers' usage from the runtime");
                None
            }
        };
        let mut memory = std::mem::take(&mut state.memory);
        let (parts, clock, measured_at) = (self.parts.clone(), self.steady, self.clock.now());
        let pods = self.pods.list("").into_iter();
        let pods: Vec<Shared<core::Pod>> = pods.filter_map(|pod| Shared::new(pod).ok()).collect();
        let work = move || {
            let measured = Measuring {
                parts: &parts,
                held: held.as_ref(),
                memory: &mut memory,
                clock: &clock,
                measured_at,
                cgroups: Cgroups::of_host(),
                now,
            }
            .all(&pods);
            memory.forget(now);
            (measured, memory)
        };
        let measured = match tokio::task::spawn_blocking(work).await {
            Ok((measured, memory)) => {
                state.memory = memory;
                Arc::new(measured)
            }
            Err(error) => {
                tracing::warn!(%error, "a measurement failed");
                Arc::default()
            }
        };
        state.latest = Some((self.steady.now(), measured.clone()));
        measured
    }
}

impl Previous {
    /// Entries that have not been requested for a while belong to deleted pods.
    fn forget(&mut self, now: Timestamp) {
        const KEPT: SignedDuration = SignedDuration::from_secs(3600);
        self.cpu.retain(|_, rate| now.duration_since(rate.at) < KEPT);
        self.taken
            .retain(|_, (_, until)| now.duration_since(*until) < KEPT);
    }
}

/// One measuring.
struct Measuring<'a> {
    parts: &'a MeterConfig,
    held: Option<&'a RuntimeState>,
    memory: &'a mut Previous,
    clock: &'a dyn Clock,
    cgroups: Cgroups,
    now: Timestamp,
    /// The time of day of this measurement.
    measured_at: Timestamp,
}

impl Measuring<'_> {
    fn all(&mut self, pods: &[Shared<core::Pod>]) -> Measured {
        let node_fs = disk::filesystem(&self.parts.root_dir);
        let images = self.held.and_then(|h| h.image_fs.as_ref());
        let image_fs = images.and_then(|i| disk::filesystem(&i.path)).or(node_fs);
        let disks = Disks {
            dedicated_image_fs: image_fs.map(|f| f.device) != node_fs.map(|f| f.device),
            // containerd keeps layers and images in one directory.
            split_container_fs: false,
        };
        let all = self.cgroups.usage("/");
        let root = CgroupName::root().path(self.parts.cgroup_driver);
        let kubepods = self.cgroups.usage(&root);
        let mut system_containers = vec![ContainerStats {
            name: "pods".into(),
            start_time: self.boot_time(),
            cpu: self.cpu(&root, &kubepods),
            memory: self.memory_stats(&kubepods, kubepods.memory_limit_bytes),
            io: self.io(&kubepods),
            swap: self.swap(&kubepods),
            ..ContainerStats::default()
        }];
        system_containers.extend(self.daemon("kubelet", std::process::id()));
        let runtime = self.held.and_then(|h| h.process);
        system_containers.extend(runtime.and_then(|pid| self.daemon("runtime", pid)));
        // The images' usage of their file system, as the runtime counts it: without other files.
        let images = image_fs.map(|fs| FsStats {
            used_bytes: images.and_then(|i| i.used_bytes).or(Some(fs.used_bytes)),
            ..self.fs(&fs)
        });
        let node = NodeStats {
            node_name: self.parts.node_name.to_string(),
            system_containers,
            start_time: self.boot_time(),
            cpu: self.cpu("/", &all),
            memory: self.memory_stats(&all, u64::try_from(self.parts.memory_bytes).ok()),
            io: self.io(&all),
            network: network::of_process("self", self.time()),
            fs: node_fs.map(|fs| self.fs(&fs)),
            runtime: Some(RuntimeStats {
                image_fs: images.clone(),
                container_fs: images,
            }),
            rlimit: self.rlimit(),
            swap: self.swap(&all),
        };
        let pods = match self.held {
            Some(held) => pods
                .iter()
                .filter_map(|pod| self.pod(pod, held, node_fs, image_fs))
                .collect(),
            None => Vec::new(),
        };
        Measured {
            summary: Summary { node, pods },
            disks,
        }
    }

    fn time(&self) -> Option<Time> {
        Some(seconds(self.measured_at))
    }

    fn boot_time(&self) -> Option<Time> {
        let text = crate::host_fs::read_to_string("/proc/stat").ok()?;
        let line = text.lines().find_map(|l| l.strip_prefix("btime "))?;
        Some(Time(Timestamp::from_second(line.trim().parse().ok()?).ok()?))
    }

    fn cpu(&mut self, group: &str, usage: &Usage) -> Option<CpuStats> {
        let nanoseconds = usage.cpu_nanoseconds?;
        let known = self.memory.cpu.get(group).copied();
        let rate = match known {
            Some(before) if self.now.duration_since(before.at) < RATE_OVER => before,
            before => Rate {
                nanoseconds,
                at: self.now,
                nano_cores: before.and_then(|b| b.until(nanoseconds, self.now)),
            },
        };
        self.memory.cpu.insert(group.to_string(), rate);
        Some(CpuStats {
            time: self.time(),
            usage_nano_cores: rate.nano_cores,
            usage_core_nano_seconds: Some(nanoseconds),
            psi: usage.cpu_pressure,
        })
    }

    fn memory_stats(&self, usage: &Usage, limit: Option<u64>) -> Option<MemoryStats> {
        let working_set = usage.working_set_bytes?;
        Some(MemoryStats {
            time: self.time(),
            available_bytes: limit.map(|limit| limit.saturating_sub(working_set)),
            usage_bytes: usage.memory_bytes,
            working_set_bytes: Some(working_set),
            rss_bytes: usage.rss_bytes,
            page_faults: usage.page_faults,
            major_page_faults: usage.major_page_faults,
            psi: usage.memory_pressure,
        })
    }

    /// Of a disk only the pressure is reported.
    fn io(&self, usage: &Usage) -> Option<IoStats> {
        Some(IoStats {
            time: self.time(),
            psi: Some(usage.io_pressure?),
        })
    }

    fn swap(&self, usage: &Usage) -> Option<SwapStats> {
        Some(SwapStats {
            time: self.time(),
            swap_available_bytes: usage
                .swap_limit_bytes
                .map(|limit| limit.saturating_sub(usage.swap_bytes.unwrap_or(0))),
            swap_usage_bytes: Some(usage.swap_bytes?),
        })
    }

    fn fs(&self, fs: &Filesystem) -> FsStats {
        FsStats {
            time: self.time(),
            available_bytes: Some(fs.available_bytes),
            capacity_bytes: Some(fs.capacity_bytes),
            used_bytes: Some(fs.used_bytes),
            inodes_free: Some(fs.inodes_free),
            inodes: Some(fs.inodes),
            inodes_used: Some(fs.inodes.saturating_sub(fs.inodes_free)),
        }
    }

    fn part(&self, of: Option<&Filesystem>, taken: Taken) -> FsStats {
        FsStats {
            used_bytes: Some(taken.bytes),
            inodes_used: Some(taken.inodes),
            ..of.map(|fs| self.fs(fs)).unwrap_or_else(|| FsStats {
                time: self.time(),
                ..FsStats::default()
            })
        }
    }

    /// What a directory uses, counted again when the last count is old enough.
    fn taken(&mut self, directory: PathBuf) -> Option<Taken> {
        if let Some((taken, until)) = self.memory.taken.get(&directory)
            && *until > self.now
        {
            return *taken;
        }
        let began = self.clock.now();
        let taken = disk::taken(&directory);
        let took = self.clock.now().duration_since(began);
        let kept = (took * COUNT_KEPT_TIMES).max(COUNT_KEPT);
        self.memory.taken.insert(directory, (taken, self.now + kept));
        taken
    }

    fn rlimit(&self) -> Option<RlimitStats> {
        let number =
            |path: &str| -> Option<i64> { crate::host_fs::read_to_string(path).ok()?.trim().parse().ok() };
        let limits = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
        let most = limits.into_iter().filter_map(number).min();
        let load = crate::host_fs::read_to_string("/proc/loadavg").ok()?;
        let running = load.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok();
        Some(RlimitStats {
            time: self.time(),
            max_pid: most,
            running,
        })
    }
}

impl Rate {
    fn until(&self, nanoseconds: u64, now: Timestamp) -> Option<u64> {
        let took = u64::try_from(now.duration_since(self.at).as_nanos()).ok()?;
        let used = u128::from(nanoseconds.checked_sub(self.nanoseconds)?);
        u64::try_from(used * 1_000_000_000 / u128::from(took.max(1))).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t8_a_rate_is_time_used_over_time_passed() {
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let before = Rate {
            nanoseconds: 1_000_000_000,
            at: at(0),
            nano_cores: None,
        };
        for (nanoseconds, second, want) in [
            (2_000_000_000, 10, Some(100_000_000)),
            (21_000_000_000, 10, Some(2_000_000_000)),
            // A cgroup of the same name was created again.
            (5, 10, None),
        ] {
            assert_eq!(before.until(nanoseconds, at(second)), want);
        }
    }
}
