//! Keeps the node from running out of memory, disk and process ids: measures, deletes unused images and containers, and
//! evicts one pod at a time (SPEC T8). Which one, and when, `knarr_kubelet::eviction` decides.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{self as core, ObjectReference};
use knarr_api::registry::Registered;
use knarr_api::{AnyObject, k8s_openapi};
use knarr_client::Clock;
use knarr_client::events::{EventType, reference_to};
use knarr_kubelet::admission;
use knarr_kubelet::eviction::threshold::with_container_fs;
use knarr_kubelet::eviction::{
    self, Disks, IMMEDIATE_GRACE_SECONDS, Manager, Observations, Pressure, Settings, Threshold,
    local_storage, message, ranking,
};
use knarr_kubelet::pod::{Event, Eviction};
use knarr_kubelet::stats::Summary;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{Shared, garbage, pod_kind};
use crate::stats::{Measured, Meter};

/// Between two synchronizations, as kubelet's `evictionMonitoringPeriod`.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long an evicted pod's termination is awaited before the next eviction, beyond its grace period.
const CLEANUP: Duration = Duration::from_secs(30);
const CLEANUP_POLL: Duration = Duration::from_millis(250);

/// Never returns.
pub(super) async fn run(shared: Arc<Shared>, meter: Arc<dyn Meter>) {
    let settings = shared.config.configuration.eviction.clone();
    if settings.thresholds.is_empty() && !settings.local_storage_capacity_isolation {
        return std::future::pending().await;
    }
    let mut eviction = EvictionLoop {
        shared,
        meter,
        settings,
        manager: None,
    };
    loop {
        let evicted = eviction.synchronize().await;
        if evicted.is_empty() {
            sleep(INTERVAL).await;
        } else {
            eviction.wait_for(&evicted).await;
        }
    }
}

struct EvictionLoop {
    shared: Arc<Shared>,
    meter: Arc<dyn Meter>,
    settings: Settings,
    /// Created with the first stats, which show which filesystems are shared.
    manager: Option<(Manager, Disks)>,
}

/// A pod that is being evicted.
struct Evicted {
    uid: String,
    grace_seconds: i64,
}

impl EvictionLoop {
    async fn synchronize(&mut self) -> Vec<Evicted> {
        let measured = self.meter.measure(Duration::ZERO).await;
        let Measured { summary, disks } = &*measured;
        let seen = eviction::observations(summary);
        let known = self.manager.take().filter(|(_, known)| known == disks);
        let (mut manager, disks) = known.unwrap_or_else(|| {
            let settings = Settings {
                thresholds: with_container_fs(&self.settings.thresholds, *disks),
                ..self.settings.clone()
            };
            (Manager::new(settings), *disks)
        });
        let outcome = manager.look(&seen, self.shared.steady.now());
        self.shared.set_pressures(outcome.pressures);
        let evicted = self.act(&manager, disks, summary, &seen, &outcome.met).await;
        self.manager = Some((manager, disks));
        evicted
    }

    async fn act(
        &self,
        manager: &Manager,
        disks: Disks,
        summary: &Summary,
        seen: &Observations,
        met: &[Threshold],
    ) -> Vec<Evicted> {
        let pods = self.active_pods();
        if manager.settings().local_storage_capacity_isolation {
            let over = self.over_their_limits(&pods, disks, summary);
            if !over.is_empty() {
                return over;
            }
        }
        let Some(threshold) = met.first() else {
            return Vec::new();
        };
        let resource = threshold.signal.resource();
        info!(
            resource,
            threshold = threshold.signal.name(),
            "the node is short of something"
        );
        let about = node_reference(&self.shared.config.node_name);
        let text = format!("Attempting to reclaim {resource}");
        let recorder = &self.shared.recorder;
        recorder.event(&about, EventType::Warning, "EvictionThresholdMet", text);
        if threshold.signal.pressure() == Pressure::Disk && self.free_disk(manager).await {
            info!(resource, "enough was freed without an eviction");
            return Vec::new();
        }
        let listed: Vec<&core::Pod> = pods.iter().collect();
        for pod in ranking::rank(threshold.signal, disks, &listed, summary) {
            let uid = pod.metadata.uid.as_deref().unwrap_or("");
            let why = message::node_pressure(pod, summary.pod(uid), met, seen);
            let grace_seconds = manager.grace_seconds(threshold, pod);
            if let Some(evicted) = self.evict(pod, why, grace_seconds, true) {
                return vec![evicted];
            }
        }
        warn!(
            resource,
            "the node is short of something, and no pod may be ended for it"
        );
        Vec::new()
    }

    fn over_their_limits(&self, pods: &[core::Pod], disks: Disks, summary: &Summary) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        for pod in pods {
            let stats = summary.pod(pod.metadata.uid.as_deref().unwrap_or(""));
            let Some(text) = stats.and_then(|s| local_storage::exceeded(pod, s, disks)) else {
                continue;
            };
            let why = message::Eviction {
                message: text,
                ..message::Eviction::default()
            };
            evicted.extend(self.evict(pod, why, IMMEDIATE_GRACE_SECONDS, false));
        }
        evicted
    }

    /// Removes unused containers and images. Whether that was enough.
    async fn free_disk(&self, manager: &Manager) -> bool {
        garbage::free_all(&self.shared).await;
        let measured = self.meter.measure(Duration::ZERO).await;
        manager.is_relieved(&eviction::observations(&measured.summary))
    }

    /// None for a pod that the node itself needs.
    fn evict(
        &self,
        pod: &core::Pod,
        why: message::Eviction,
        grace_seconds: i64,
        disruption_target: bool,
    ) -> Option<Evicted> {
        let (uid, name) = (pod.metadata.uid.clone()?, pod.metadata.name.clone()?);
        if admission::is_critical(pod) {
            warn!(pod = name, "a critical pod is not evicted");
            return None;
        }
        info!(pod = name, why = why.message, grace_seconds, "evicting");
        let about = reference_to(pod_kind(), pod as &dyn AnyObject);
        self.shared.recorder.annotated_event(
            &about,
            why.annotations,
            EventType::Warning,
            eviction::REASON,
            why.message.clone(),
        );
        let event = Event::Evict(Eviction {
            reason: eviction::REASON.into(),
            disruption: disruption_target.then(|| why.message.clone()),
            message: why.message,
            grace_seconds: Some(grace_seconds),
        });
        // The kubelet's loop ends only with this task.
        let _ = self.shared.evictions.send((uid.clone(), event));
        Some(Evicted { uid, grace_seconds })
    }

    /// Pods of which something may run.
    fn active_pods(&self) -> Vec<core::Pod> {
        let objects = self.shared.pods.list("");
        let pods = objects.iter().filter_map(|o| o.to_typed::<core::Pod>());
        pods.filter(|pod| {
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
            !matches!(phase, Some("Succeeded" | "Failed"))
        })
        .collect()
    }

    /// Until they have terminated, or their time is over: stats are not meaningful before.
    async fn wait_for(&self, evicted: &[Evicted]) {
        let grace = evicted.iter().map(|e| e.grace_seconds).max().unwrap_or(0);
        let kill = u64::try_from(grace + grace / 2).unwrap_or(0).max(10);
        let until = Instant::now() + Duration::from_secs(kill) + CLEANUP;
        while Instant::now() < until {
            let active = self.active_pods();
            let is_there = |e: &Evicted| active.iter().any(|p| p.metadata.uid.as_ref() == Some(&e.uid));
            if !evicted.iter().any(is_there) {
                return;
            }
            sleep(CLEANUP_POLL).await;
        }
        warn!("an evicted pod has not terminated yet");
    }
}

/// As kubelets refer to their own node in events.
pub(super) fn node_reference(name: &str) -> ObjectReference {
    ObjectReference {
        kind: Some(core::Node::kind_of().kind().into()),
        name: Some(name.into()),
        uid: Some(name.into()),
        ..ObjectReference::default()
    }
}
