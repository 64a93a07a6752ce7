//! Node-pressure eviction (SPEC T8): when a node is low on a resource, and which pod is evicted first.
//!
//! [`Manager::synchronize`] takes the measured signals and the time, and returns the node's conditions and the threshold to
//! reclaim for, if any. [`ranking`] orders the pods, [`local_storage`] finds those over their own limits, [`message`] has
//! v1.36's messages. Nothing here measures or evicts.

pub mod local_storage;
pub mod message;
pub mod ranking;
pub mod threshold;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use crate::admission::{self, Rejection};
use crate::stats::Summary;
pub use threshold::{Signal, Threshold, Value};

/// `status.reason` of an evicted pod, and of one that is rejected because the node is under pressure.
pub const REASON: &str = "Evicted";
/// The reason of the DisruptionTarget condition.
pub const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";
/// The grace period of an eviction for a hard threshold or a limit of the pod.
pub const IMMEDIATE_GRACE_SECONDS: i64 = 1;

/// The eviction settings of the KubeletConfiguration.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub thresholds: Vec<Threshold>,
    /// How long a condition stays true after its threshold was last met.
    pub pressure_transition_period: SignedDuration,
    /// The longest grace period of a soft eviction.
    pub max_pod_grace_seconds: i64,
    /// Whether pods over their local storage limits are evicted.
    pub local_storage_capacity_isolation: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            thresholds: threshold::defaults(),
            pressure_transition_period: SignedDuration::from_secs(300),
            max_pod_grace_seconds: 0,
            local_storage_capacity_isolation: true,
        }
    }
}

/// The layout of the node's filesystems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disks {
    /// Images are on another filesystem than pods' volumes and logs.
    pub dedicated_image_fs: bool,
    /// Writable layers are on the node filesystem although images are not (KEP 4191).
    pub split_container_fs: bool,
}

/// A condition of the node that eviction sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    Memory,
    Disk,
    Pid,
}

impl Pressure {
    /// The condition's type.
    pub fn condition(self) -> &'static str {
        match self {
            Pressure::Memory => "MemoryPressure",
            Pressure::Disk => "DiskPressure",
            Pressure::Pid => "PIDPressure",
        }
    }
}

/// The measured values of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    pub available: i64,
    pub capacity: i64,
    /// When it was measured.
    pub at: Option<Timestamp>,
}

pub type Observations = BTreeMap<Signal, Observation>;

/// The signals in the node's stats.
pub fn observations(summary: &Summary) -> Observations {
    let mut found = Observations::new();
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let node = &summary.node;
    let memory = |memory: &crate::stats::MemoryStats| {
        let available = memory.available_bytes?;
        Some(Observation {
            available: signed(available),
            capacity: signed(available.saturating_add(memory.working_set_bytes?)),
            at: memory.time.as_ref().map(|t| t.0),
        })
    };
    if let Some(seen) = node.memory.as_ref().and_then(memory) {
        found.insert(Signal::MemoryAvailable, seen);
    }
    let pods = node.system_containers.iter().find(|c| c.name == "pods");
    if let Some(seen) = pods.and_then(|c| c.memory.as_ref()).and_then(memory) {
        found.insert(Signal::AllocatableMemoryAvailable, seen);
    }
    let runtime = node.runtime.as_ref();
    for (fs, bytes, inodes) in [
        (
            node.fs.as_ref(),
            Signal::NodeFsAvailable,
            Signal::NodeFsInodesFree,
        ),
        (
            runtime.and_then(|r| r.image_fs.as_ref()),
            Signal::ImageFsAvailable,
            Signal::ImageFsInodesFree,
        ),
        (
            runtime.and_then(|r| r.container_fs.as_ref()),
            Signal::ContainerFsAvailable,
            Signal::ContainerFsInodesFree,
        ),
    ] {
        let Some(fs) = fs else { continue };
        for (signal, available, capacity) in [
            (bytes, fs.available_bytes, fs.capacity_bytes),
            (inodes, fs.inodes_free, fs.inodes),
        ] {
            let (Some(available), Some(capacity)) = (available, capacity) else {
                continue;
            };
            // Filesystems that allocate inodes dynamically report none.
            if capacity == 0 {
                continue;
            }
            let seen = Observation {
                available: signed(available),
                capacity: signed(capacity),
                at: fs.time.as_ref().map(|t| t.0),
            };
            found.insert(signal, seen);
        }
    }
    if let Some(limits) = &node.rlimit
        && let (Some(most), Some(now)) = (limits.max_pid, limits.running)
    {
        let seen = Observation {
            available: most.saturating_sub(now),
            capacity: most,
            at: limits.time.as_ref().map(|t| t.0),
        };
        found.insert(Signal::PidAvailable, seen);
    }
    found
}

/// The result of a synchronization.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The conditions that are true.
    pub pressures: BTreeSet<Pressure>,
    /// The thresholds that have been met for their full grace period, the one to reclaim for first.
    pub met: Vec<Threshold>,
}

/// The eviction manager's state between two synchronizations.
#[derive(Clone, Debug)]
pub struct Manager {
    settings: Settings,
    first_seen: Vec<(Threshold, Timestamp)>,
    met: Vec<Threshold>,
    pressure_seen: BTreeMap<Pressure, Timestamp>,
    pressures: BTreeSet<Pressure>,
    last: Observations,
}

impl Manager {
    pub fn new(settings: Settings) -> Self {
        Manager {
            settings,
            first_seen: Vec::new(),
            met: Vec::new(),
            pressure_seen: BTreeMap::new(),
            pressures: BTreeSet::new(),
            last: Observations::new(),
        }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The conditions that are true.
    pub fn pressures(&self) -> &BTreeSet<Pressure> {
        &self.pressures
    }

    /// Compares the signals with the thresholds; called once in every monitoring interval (upstream: `synchronize`).
    pub fn synchronize(&mut self, seen: &Observations, now: Timestamp) -> Outcome {
        let mut crossed = threshold::crossed(&self.settings.thresholds, seen, false);
        // A met threshold stays met until minReclaim is available in addition.
        for threshold in threshold::crossed(&self.met, seen, true) {
            if !crossed.contains(&threshold) {
                crossed.push(threshold);
            }
        }
        let before = std::mem::take(&mut self.first_seen);
        self.first_seen = crossed
            .iter()
            .map(|threshold| {
                let known = before.iter().find(|(t, _)| t == threshold);
                (threshold.clone(), known.map_or(now, |(_, at)| *at))
            })
            .collect();
        for threshold in &crossed {
            self.pressure_seen.insert(threshold.signal.pressure(), now);
        }
        let period = self.settings.pressure_transition_period;
        self.pressures = self
            .pressure_seen
            .iter()
            .filter(|(_, at)| now.duration_since(**at) < period)
            .map(|(pressure, _)| *pressure)
            .collect();
        self.met = self
            .first_seen
            .iter()
            .filter(|(threshold, at)| now.duration_since(*at) >= threshold.grace_period)
            .map(|(threshold, _)| threshold.clone())
            .collect();
        let mut met = self.met.clone();
        // Old measurements have been acted on already.
        met.retain(|threshold| {
            let (now, before) = (seen.get(&threshold.signal), self.last.get(&threshold.signal));
            match (now, before) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(now), Some(before)) => now.at.is_none() || now.at > before.at,
            }
        });
        self.last.clone_from(seen);
        // Memory comes first.
        met.sort_by_key(|threshold| threshold.signal.pressure() != Pressure::Memory);
        Outcome {
            pressures: self.pressures.clone(),
            met,
        }
    }

    /// Whether no threshold, with its minReclaim, is met by these values.
    pub fn is_relieved(&self, seen: &Observations) -> bool {
        threshold::crossed(&self.settings.thresholds, seen, true).is_empty()
    }

    /// The grace period of an evicted pod.
    pub fn grace_seconds(&self, threshold: &Threshold, pod: &Pod) -> i64 {
        if threshold.is_hard() {
            return IMMEDIATE_GRACE_SECONDS;
        }
        let own = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
        own.map_or(self.settings.max_pod_grace_seconds, |own| {
            own.min(self.settings.max_pod_grace_seconds)
        })
    }
}

/// Whether a node with these pressure conditions admits a pod.
pub fn admit(pod: &Pod, best_effort: bool, pressures: &BTreeSet<Pressure>) -> Result<(), Rejection> {
    if pressures.is_empty() || admission::is_critical(pod) {
        return Ok(());
    }
    if pressures.iter().all(|p| *p == Pressure::Memory) {
        let taint = Taint {
            key: "node.kubernetes.io/memory-pressure".into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        let tolerations: &[Toleration] = pod
            .spec
            .as_ref()
            .and_then(|s| s.tolerations.as_deref())
            .unwrap_or_default();
        if !best_effort || tolerations.iter().any(|t| admission::tolerates(t, &taint)) {
            return Ok(());
        }
    }
    let names: Vec<&str> = pressures.iter().map(|p| p.condition()).collect();
    Err(Rejection {
        reason: REASON.into(),
        message: format!("The node had condition: [{}]. ", names.join(" ")),
    })
}

#[cfg(test)]
mod tests;
