//! Terminates this node's at-most-one pods when its lease cannot be renewed, and starts none until it can (SPEC B4):
//! the doing half of [`knarr_kubelet::self_fencing`], where the times are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::ContainerId;
use knarr_client::{Api, TypedApi};
use knarr_kubelet::admission::is_static;
use knarr_kubelet::pod::Event;
use knarr_kubelet::runtime::{Container, ContainerState};
use knarr_kubelet::self_fencing::{SelfFencing, TerminationMode, Verdict};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::bound_pods::BoundPods;
use super::inbox::PodEvents;
use super::lease_trust::LeaseTrust;
use super::start_denied::StartDenied;
use crate::runtime::{Runtime, RuntimeError};
use crate::volumes::Volumes;

/// Poll interval of whether everything has terminated.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct SelfFencer {
    /// Which pods are concerned.
    pub mode: SelfFencing,
    pub trust: Arc<LeaseTrust>,
    pub api: Arc<dyn Api>,
    pub runtime: Arc<dyn Runtime>,
    pub pods: BoundPods,
    pub volumes: Arc<Volumes>,
    /// Receives which containers are stopped.
    pub pod_events: PodEvents,
}

impl SelfFencer {
    /// Whether this node terminates the pod when it is cut off.
    pub fn is_concerned(&self, pod: &core::Pod) -> bool {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        // Static pods are never moved to another node.
        !is_static(pod) && self.mode.applies_to(pod, self.volumes.uses_exclusive(uid))
    }

    /// Waits until a process of this pod may be started. The error is why it may not be at all: the pod was given away while
    /// this node could not know.
    pub async fn may_start(&self, pod: &core::Pod) -> Result<(), StartDenied> {
        if !self.is_concerned(pod) {
            return Ok(());
        }
        let trust = &self.trust;
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        loop {
            let changed = trust.changed();
            if !trust.may_start() {
                changed.await;
                continue;
            }
            // The cached pod may be outdated: the API confirms whose it is now. The node may be cut off meanwhile.
            match trust.to_confirm(uid) {
                None => return Ok(()),
                Some(round) => {
                    self.check_owner(pod).await?;
                    trust.confirm(uid, round);
                }
            }
        }
    }

    /// Whether a process of this pod may be started at this moment, without a request.
    pub fn may_start_now(&self, pod: &core::Pod) -> bool {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        !self.is_concerned(pod) || (self.trust.may_start() && self.trust.to_confirm(uid).is_none())
    }

    /// The error: the API does not confirm that this pod exists.
    async fn check_owner(&self, pod: &core::Pod) -> Result<(), StartDenied> {
        let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
        let live = self
            .api
            .get_as::<core::Pod>(namespace.unwrap_or(""), name.unwrap_or(""))
            .await;
        match live {
            Ok(live) if live.metadata.uid == pod.metadata.uid => Ok(()),
            Ok(_) => Err(StartDenied::GivenAway),
            Err(source) => Err(StartDenied::Unconfirmed { source }),
        }
    }

    /// Watches the lease, until dropped.
    pub async fn run(&self) {
        let mut cut_off = false;
        loop {
            match self.trust.verdict() {
                Verdict::Run { check_after } => {
                    if std::mem::take(&mut cut_off) {
                        info!("the lease is renewed again: at-most-one pods may run");
                    }
                    sleep(check_after).await;
                }
                Verdict::Terminate { .. } => {
                    self.trust.cut_off();
                    if !std::mem::replace(&mut cut_off, true) {
                        warn!("the lease cannot be renewed: terminating the pods that must not run twice");
                    }
                    self.end_all().await;
                    // Renewed in between or not: the verdict is computed again.
                    let _ = timeout(CHECK_PERIOD, self.trust.changed()).await;
                }
            }
        }
    }

    /// The running containers of the pods concerned, and how each is terminated. Where the pod is not known, because the
    /// API was not reachable since this kubelet started or has deleted it, the container's annotations decide.
    async fn running(&self) -> Result<Vec<(Container, TerminationMode)>, RuntimeError> {
        let pods = self.pods.list();
        let known: BTreeMap<&str, &core::Pod> = pods
            .iter()
            .map(|pod| (pod.metadata.uid.as_deref().unwrap_or_default(), &**pod))
            .collect();
        let mut running = Vec::new();
        for container in self.runtime.containers().await? {
            if !matches!(container.state, ContainerState::Running { .. }) {
                continue;
            }
            let ending = match known.get(container.pod.uid.as_str()) {
                Some(pod) => self
                    .is_concerned(pod)
                    .then(|| TerminationMode::of(pod, &container.name)),
                None => container.self_fenced,
            };
            running.extend(ending.map(|ending| (container, ending)));
        }
        Ok(running)
    }

    /// Whether no process of a pod concerned is left, as far as can be seen.
    pub async fn all_exited(&self) -> bool {
        self.running().await.is_ok_and(|containers| containers.is_empty())
    }

    /// Terminates the containers of all pods concerned, concurrently.
    async fn end_all(&self) {
        let running = match self.running().await {
            Ok(running) => running,
            Err(error) => return warn!(%error, "cannot list the runtime's containers"),
        };
        let ends = running.iter().map(|(c, ending)| async move {
            warn!(
                container = %c.id,
                pod = c.pod.name,
                "ending what must not run twice"
            );
            let stopped = Event::SelfFenced { id: c.id.clone() };
            self.pod_events.send(c.pod.uid.clone(), stopped);
            end(self.runtime.as_ref(), &self.trust, &c.id, *ending).await;
        });
        futures::future::join_all(ends).await;
    }
}

/// Terminates a container within the time left, computed at the call and not at the decision: a runtime that is slow or
/// fails shortens the grace period, and KILL comes in time.
async fn end(runtime: &dyn Runtime, trust: &LeaseTrust, id: &ContainerId, ending: TerminationMode) {
    while let Verdict::Terminate { grace } = trust.verdict() {
        let grace = match ending {
            TerminationMode::Terminate => grace,
            TerminationMode::Kill => Duration::ZERO,
        };
        let stopped = match timeout(grace, runtime.stop_container(id, grace)).await {
            Ok(stopped) => stopped,
            Err(_) => runtime.stop_container(id, Duration::ZERO).await,
        };
        let Err(error) = stopped else { return };
        warn!(container = %id, %error, "cannot end a container");
        if grace.is_zero() {
            // The next check shows whether it runs.
            return;
        }
        sleep(CHECK_PERIOD.min(grace)).await;
    }
}
