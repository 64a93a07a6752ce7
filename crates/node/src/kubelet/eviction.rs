//! Keeps the node from running out of memory, disk and process ids: measures, deletes unused images and containers, and
//! evicts one pod at a time (SPEC T8). Which one, and when, `knarr_kubelet::eviction` decides.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::{Shared, k8s_openapi};
use knarr_apimachinery::ids::PodUid;
use knarr_client::events::EventType;
use knarr_client::{Clock, TokioClock};
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

use super::bound_pods::BoundPods;
use super::conditions::NodeConditions;
use super::events::Events;
use super::garbage::GarbageCollector;
use super::inbox::PodEvents;
use crate::stats::{Measured, Meter};

/// Between two synchronizations, as kubelet's `evictionMonitoringPeriod`.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long an evicted pod's termination is awaited before the next eviction, beyond its grace period.
const CLEANUP: Duration = Duration::from_secs(30);
const CLEANUP_POLL: Duration = Duration::from_millis(250);

/// What the loop acts with.
pub(super) struct EvictionParts {
    pub settings: Settings,
    pub pods: BoundPods,
    pub conditions: Arc<NodeConditions>,
    pub garbage: Arc<GarbageCollector>,
    pub events: Events,
    pub pod_events: PodEvents,
    /// Is never set.
    pub steady: TokioClock,
}

/// Never returns.
pub(super) async fn run(parts: EvictionParts, meter: Arc<dyn Meter>) {
    let settings = &parts.settings;
    if settings.thresholds.is_empty() && !settings.local_storage_capacity_isolation {
        return std::future::pending().await;
    }
    let mut eviction = EvictionLoop {
        parts,
        meter,
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
    parts: EvictionParts,
    meter: Arc<dyn Meter>,
    /// Created with the first stats, which show which filesystems are shared.
    manager: Option<(Manager, Disks)>,
}

/// A pod that is being evicted.
struct Evicted {
    uid: PodUid,
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
                thresholds: with_container_fs(&self.parts.settings.thresholds, *disks),
                ..self.parts.settings.clone()
            };
            (Manager::new(settings), *disks)
        });
        let outcome = manager.synchronize(&seen, self.parts.steady.now());
        self.parts.conditions.set_pressures(outcome.pressures);
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
        let text = format!("Attempting to reclaim {resource}");
        self.parts
            .events
            .of_node(EventType::Warning, "EvictionThresholdMet", text);
        if threshold.signal.pressure() == Pressure::Disk && self.free_disk(manager).await {
            info!(resource, "enough was freed without an eviction");
            return Vec::new();
        }
        let listed: Vec<&core::Pod> = pods.iter().map(|pod| &**pod).collect();
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
            "the node is under resource pressure, and no pod can be evicted"
        );
        Vec::new()
    }

    fn over_their_limits(&self, pods: &[Shared<core::Pod>], disks: Disks, summary: &Summary) -> Vec<Evicted> {
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
        self.parts.garbage.free_all().await;
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
        let (uid, name) = (
            PodUid::from(pod.metadata.uid.as_deref()?),
            pod.metadata.name.clone()?,
        );
        if admission::is_critical(pod) {
            warn!(pod = name, "a critical pod is not evicted");
            return None;
        }
        info!(pod = name, why = why.message, grace_seconds, "evicting");
        self.parts
            .events
            .annotated_warning(pod, why.annotations, eviction::REASON, why.message.clone());
        let event = Event::Evict(Eviction {
            reason: eviction::REASON.into(),
            disruption: disruption_target.then(|| why.message.clone()),
            message: why.message,
            grace_seconds: Some(grace_seconds),
        });
        self.parts.pod_events.send(uid.clone(), event);
        Some(Evicted { uid, grace_seconds })
    }

    /// Pods of which something may run.
    fn active_pods(&self) -> Vec<Shared<core::Pod>> {
        let pods = self.parts.pods.list().into_iter();
        pods.filter(|pod| !is_terminal(pod)).collect()
    }

    /// Until they have terminated, or their time is over: stats are not meaningful before.
    async fn wait_for(&self, evicted: &[Evicted]) {
        let grace = evicted.iter().map(|e| e.grace_seconds).max().unwrap_or(0);
        let kill = u64::try_from(grace + grace / 2).unwrap_or(0).max(10);
        let until = Instant::now() + Duration::from_secs(kill) + CLEANUP;
        while Instant::now() < until {
            let active = self.active_pods();
            let is_there = |e: &Evicted| {
                active
                    .iter()
                    .any(|p| p.metadata.uid.as_deref() == Some(e.uid.as_str()))
            };
            if !evicted.iter().any(is_there) {
                return;
            }
            sleep(CLEANUP_POLL).await;
        }
        warn!("an evicted pod has not terminated yet");
    }
}
