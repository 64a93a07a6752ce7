//! Which devices a pod's containers have, and whether they are healthy, for its status (KEP 4680).

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, ResourceStatus};
use knarr_api::k8s_openapi;
use knarr_kubelet::devicemanager::DeviceManager;
use knarr_kubelet::pod::Event;
use tokio::sync::mpsc;
use tracing::debug;

use super::Shared;

/// By container; none for a pod that has no devices.
pub(super) fn of_pod(shared: &Shared, pod: &Pod) -> BTreeMap<String, Vec<ResourceStatus>> {
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    let mut all = BTreeMap::new();
    for container in pod.spec.iter().flat_map(|s| &s.containers) {
        let own = |devices: &DeviceManager| devices.resources_status(uid, &container.name);
        let mut status = shared.devices.with(own);
        match shared.dra.resources_status(pod, container) {
            Ok(claims) => status.extend(claims),
            Err(error) => debug!(pod = pod.metadata.name, %error, "a claim is not in the pod's status"),
        }
        if !status.is_empty() {
            all.insert(container.name.clone(), status);
        }
    }
    all
}

/// Sends pods an event when the health of their devices changes, until dropped.
pub(super) async fn run(shared: Arc<Shared>, mut changed: mpsc::UnboundedReceiver<String>) {
    while let Some(uid) = changed.recv().await {
        let pod = shared.active.lock().get(&uid).cloned();
        if let Some(pod) = pod {
            let event = Event::ResourceHealth(of_pod(&shared, &pod));
            // The receiver is dropped only with the whole kubelet.
            let _ = shared.evictions.send((uid, event));
        }
    }
}
