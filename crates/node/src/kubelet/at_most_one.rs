//! Before a pod that must not run twice is started, the API server knows that this kubelet will (SPEC S1, S5, S6).
//!
//! Such a pod is removed by force where nothing of its node can run: the Node object was deleted, or a node that is not
//! ready has an out-of-service taint. A node that was off may come back at that moment, with a kubelet that has read
//! the pod before it was removed. So a pod that must not run twice is started only after, since this kubelet started,
//!
//! 1. the API server has accepted a node status with Ready true, and the node has no out-of-service taint: a client
//!    that reads the node afterwards sees that it is alive;
//! 2. it has accepted a write to the pod ([`STARTED_BY`]), which was neither being deleted nor terminated: a client
//!    that read the node before, and removes the pod by the resourceVersion of that time, fails.
//!
//! Volumes that one node may use at a time are mounted after the same two steps, with their VolumeAttachment in place of
//! the pod ([`crate::volumes`]).
//!
//! `crates/sim/tests/at_most_one_model.rs` checks in all orders of events that this is enough, and that it is not without.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::registry::Registered;
use knarr_api::{ObjectKey, Shared, k8s_openapi};
use knarr_client::{Api, Patch};
use knarr_kubelet::admission::is_static;
use knarr_kubelet::self_fencing::SelfFencing;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::debug;

use super::bound_pods::BoundPods;
use super::own_node::OwnNode;
use super::pod_object::STARTED_BY;
use super::start_denied::StartDenied;
use crate::volumes::Volumes;

/// Pause between two checks of a condition, and between two write attempts.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// What this kubelet has written since it started.
pub(super) struct StartAnnouncements {
    api: Arc<dyn Api>,
    own_node: Arc<OwnNode>,
    bound: BoundPods,
    volumes: Arc<Volumes>,
    /// By uid.
    pods: Mutex<BTreeSet<String>>,
    changed: Notify,
}

impl StartAnnouncements {
    pub fn new(api: Arc<dyn Api>, own_node: Arc<OwnNode>, bound: BoundPods, volumes: Arc<Volumes>) -> Self {
        StartAnnouncements {
            api,
            own_node,
            bound,
            volumes,
            pods: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// The API server has answered this status of the node.
    pub fn node_written(&self, node: &core::Node) {
        if self.own_node.status_written(node) {
            self.changed.notify_waiters();
        }
    }

    pub fn forget(&self, uid: &str) {
        self.pods.lock().remove(uid);
    }

    /// Waits until this pod may be started. The error is why it may not be at all.
    pub async fn may_start(&self, pod: &core::Pod) -> Result<(), StartDenied> {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let is_concerned = SelfFencing::AtMostOne.applies_to(pod, self.volumes.uses_exclusive(uid));
        if is_static(pod) || !is_concerned || self.pods.lock().contains(uid) {
            return Ok(());
        }
        loop {
            let changed = self.changed.notified();
            if self.own_node.is_seen_alive() {
                break;
            }
            // The removal of a taint is polled, and so is whether the pod still has to run.
            let _ = timeout(CHECK_PERIOD, changed).await;
            self.is_desired(pod)?;
        }
        loop {
            match self.announce(pod).await {
                Ok(written) => {
                    let ends = written.metadata.deletion_timestamp.is_some();
                    if ends || is_terminal(&written) {
                        return Err(StartDenied::Terminating);
                    }
                    self.pods.lock().insert(uid.to_string());
                    return Ok(());
                }
                Err(error) if error.is_not_found() || error.is_conflict() => {
                    return Err(StartDenied::Replaced);
                }
                Err(error) => debug!(pod = pod.metadata.name, %error, "cannot announce a pod's start yet"),
            }
            tokio::time::sleep(CHECK_PERIOD).await;
            self.is_desired(pod)?;
        }
    }

    /// Writes to this very pod that this kubelet starts it.
    async fn announce(&self, pod: &core::Pod) -> Result<Shared<core::Pod>, knarr_apimachinery::Error> {
        let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
        let patch = json!({
            "metadata": {
                "uid": pod.metadata.uid,
                "annotations": {STARTED_BY: self.own_node.kubelet_id()},
            },
        });
        let written = self
            .api
            .patch(
                core::Pod::kind_of(),
                namespace.unwrap_or(""),
                name.unwrap_or(""),
                "status",
                Patch::Merge(patch),
            )
            .await?;
        Shared::new(written)
    }

    /// The error: the pod has been deleted or is being deleted.
    fn is_desired(&self, pod: &core::Pod) -> Result<(), StartDenied> {
        let meta = &pod.metadata;
        let key = ObjectKey::new(
            meta.namespace.as_deref().unwrap_or(""),
            meta.name.as_deref().unwrap_or(""),
        );
        let known = self.bound.store().get(&key.namespace, &key.name);
        let known = known.filter(|known| Some(known.uid()) == meta.uid.as_deref());
        match known {
            Some(known) if known.metadata().deletion_timestamp.is_none() => Ok(()),
            _ => Err(StartDenied::Terminating),
        }
    }
}
