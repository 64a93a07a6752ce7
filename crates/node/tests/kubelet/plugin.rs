//! What plugins of tests have in common, and the kubelet's view of them.

use knarr_node::plugins::call;
use knarr_node::podresources::wire::{GetPodResourcesRequest, PodResources};
use tokio::time::{Duration, Instant, sleep};

use super::World;
pub use super::plugin_support::{Registrar, Serving};

impl World {
    /// The pod-resources API's answer for a pod.
    pub async fn pod_resources(&self, name: &str) -> PodResources {
        let socket = self.dir.path().join("kubelet/pod-resources/kubelet.sock");
        let asked = GetPodResourcesRequest {
            pod_name: name.into(),
            pod_namespace: "default".into(),
        };
        let answer = call(&socket, asked, Duration::from_secs(5)).await.unwrap();
        answer.pod_resources.unwrap()
    }
}

/// Waits until it is so.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !is_so().await {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        sleep(Duration::from_millis(20)).await;
    }
}
