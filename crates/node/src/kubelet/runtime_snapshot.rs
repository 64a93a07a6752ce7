//! What the container runtime holds of pods, as one listing found it.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::PodUid;
use knarr_kubelet::runtime::{Container, Sandbox};

use crate::runtime::{Result, Runtime};

/// What the runtime holds, by pod.
pub(super) struct RuntimeSnapshot {
    pub since: Timestamp,
    pub pods: BTreeMap<PodUid, (Vec<Sandbox>, Vec<Container>)>,
}

/// What the runtime was found to hold of a pod, and since when that is so.
pub(super) type RunningPod = (Timestamp, Vec<Sandbox>, Vec<Container>);

impl RuntimeSnapshot {
    /// What is there of a pod; it is handed out once.
    pub fn take(&mut self, uid: &str) -> Option<RunningPod> {
        self.pods.remove(uid).map(|(s, c)| (self.since, s, c))
    }

    /// `now` is when the listing begins.
    pub async fn list(runtime: &dyn Runtime, now: Timestamp) -> Result<RuntimeSnapshot> {
        let since = now;
        let sandboxes = runtime.sandboxes().await?;
        let containers = runtime.containers().await?;
        let mut pods: BTreeMap<PodUid, (Vec<Sandbox>, Vec<Container>)> = BTreeMap::new();
        for sandbox in sandboxes {
            pods.entry(sandbox.pod.uid.clone()).or_default().0.push(sandbox);
        }
        for container in containers {
            pods.entry(container.pod.uid.clone())
                .or_default()
                .1
                .push(container);
        }
        Ok(RuntimeSnapshot { since, pods })
    }
}
