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
//! `crates/sim/tests/at_most_one_model.rs` checks in all orders of events that this is enough, and that it is not without.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use knarr_api::kinds::node::OUT_OF_SERVICE;
use knarr_api::{ObjectKey, k8s_openapi};
use knarr_client::Patch;
use knarr_kubelet::admission::is_static;
use knarr_kubelet::self_fencing::SelfFencing;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::debug;

use super::{Shared, pod_kind};

/// Annotation of a pod that must not run twice: the kubelet that started it last, by its node and start time.
pub const STARTED_BY: &str = "knarr.io/started-by";
/// Pause between two checks of a condition, and between two write attempts.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// What this kubelet has written since it started.
pub(crate) struct StartAnnouncements {
    /// Of this kubelet, and of no other.
    id: String,
    /// The API server has accepted a node status with Ready true.
    is_ready: Mutex<bool>,
    /// By uid.
    pods: Mutex<BTreeSet<String>>,
    changed: Notify,
}

impl StartAnnouncements {
    pub fn new(node_name: &str, began: Timestamp) -> Self {
        StartAnnouncements {
            id: format!("{node_name} {began}"),
            is_ready: Mutex::new(false),
            pods: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// The API server has answered this status of the node.
    pub fn node_written(&self, node: &core::Node) {
        let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
        let is_ready = conditions
            .into_iter()
            .any(|c| c.type_ == "Ready" && c.status == "True");
        if is_ready && !std::mem::replace(&mut *self.is_ready.lock(), true) {
            self.changed.notify_waiters();
        }
    }

    pub fn forget(&self, uid: &str) {
        self.pods.lock().remove(uid);
    }

    /// Whether others see that this node lives.
    fn is_node_known(&self, shared: &Shared) -> bool {
        *self.is_ready.lock()
            && shared.own_node.known().is_some_and(|node| {
                let mut taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
                !taints.any(|t| t.key == OUT_OF_SERVICE)
            })
    }
}

/// Waits until this pod may be started. The error is why it may not be at all.
pub(super) async fn may_start(shared: &Shared, pod: &core::Pod) -> Result<(), String> {
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    let is_concerned = SelfFencing::AtMostOne.ends(pod, shared.volumes.uses_exclusive(uid));
    if is_static(pod) || !is_concerned || shared.announced.pods.lock().contains(uid) {
        return Ok(());
    }
    loop {
        let changed = shared.announced.changed.notified();
        if shared.announced.is_node_known(shared) {
            break;
        }
        // The removal of a taint is polled, and so is whether the pod still has to run.
        let _ = timeout(CHECK_PERIOD, changed).await;
        is_wanted(shared, pod)?;
    }
    loop {
        match announce(shared, pod).await {
            Ok(written) => {
                let ends = written.metadata.deletion_timestamp.is_some();
                let phase = written.status.as_ref().and_then(|s| s.phase.as_deref());
                if ends || matches!(phase, Some("Succeeded" | "Failed")) {
                    return Err("the pod is ending".into());
                }
                shared.announced.pods.lock().insert(uid.to_string());
                return Ok(());
            }
            Err(error) if error.is_not_found() || error.is_conflict() => {
                return Err("another pod has its name by now, or none".into());
            }
            Err(error) => debug!(pod = pod.metadata.name, %error, "cannot announce a pod's start yet"),
        }
        tokio::time::sleep(CHECK_PERIOD).await;
        is_wanted(shared, pod)?;
    }
}

/// Writes to this very pod that this kubelet starts it.
async fn announce(shared: &Shared, pod: &core::Pod) -> Result<core::Pod, knarr_api::Error> {
    let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
    let patch = json!({
        "metadata": {
            "uid": pod.metadata.uid,
            "annotations": {STARTED_BY: shared.announced.id},
        },
    });
    let written = shared
        .api
        .patch(
            pod_kind(),
            namespace.unwrap_or(""),
            name.unwrap_or(""),
            "status",
            Patch::Merge(patch),
        )
        .await?;
    Ok(written.to_typed::<core::Pod>().unwrap_or_default())
}

/// The error: the pod has been deleted or is being deleted.
fn is_wanted(shared: &Shared, pod: &core::Pod) -> Result<(), String> {
    let meta = &pod.metadata;
    let key = ObjectKey::new(
        meta.namespace.as_deref().unwrap_or(""),
        meta.name.as_deref().unwrap_or(""),
    );
    let known = shared.pods.get(&key.namespace, &key.name);
    let known = known.filter(|known| Some(known.uid()) == meta.uid.as_deref());
    match known {
        Some(known) if known.metadata().deletion_timestamp.is_none() => Ok(()),
        _ => Err("the pod is ending".into()),
    }
}
