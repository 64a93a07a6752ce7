//! Which pods proxies send new connections to, as EndpointSlices say, and when that ends (SPEC B7).

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_client::Store;
use tokio::sync::watch;
use tokio::time::sleep;

/// What proxies need, after they were told, to change the kernel's tables.
const PROXIES_NEED: Duration = Duration::from_millis(50);

/// The slices of the cluster, and a bell that rings when one changes.
pub(super) struct Endpoints {
    slices: Arc<Store>,
    changed: watch::Receiver<()>,
}

impl Default for Endpoints {
    fn default() -> Self {
        let slices = Arc::new(Store::new(EndpointSlice::kind_of(), &[]));
        let (ring, changed) = watch::channel(());
        slices.subscribe(move |_| {
            ring.send_replace(());
        });
        Endpoints { slices, changed }
    }
}

impl Endpoints {
    pub fn slices(&self) -> Arc<Store> {
        self.slices.clone()
    }

    /// Returns when no slice offers the pod any more; at once if none does. Whoever waits bounds the wait.
    pub async fn dropped(&self, pod: &core::Pod) {
        let mut changed = self.changed.clone();
        let mut was_offered = false;
        loop {
            changed.mark_unchanged();
            if !self.offers(pod) {
                break;
            }
            was_offered = true;
            if changed.changed().await.is_err() {
                return;
            }
        }
        if was_offered {
            sleep(PROXIES_NEED).await;
        }
    }

    fn offers(&self, pod: &core::Pod) -> bool {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let slices = self.slices.list(namespace);
        slices
            .iter()
            .filter_map(|s| s.to_typed::<EndpointSlice>())
            .any(|slice| offers(&slice, pod))
    }
}

/// Not said is ready.
fn offers(slice: &EndpointSlice, pod: &core::Pod) -> bool {
    slice.endpoints.iter().flatten().any(|endpoint| {
        let about = endpoint.target_ref.as_ref();
        let ready = endpoint.conditions.as_ref().and_then(|c| c.ready);
        about.is_some_and(|r| r.uid.is_some() && r.uid == pod.metadata.uid) && ready != Some(false)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn b7_a_pod_is_offered_until_its_endpoint_is_no_longer_ready() {
        let pod: core::Pod = serde_json::from_value(json!({"metadata": {"uid": "u"}})).unwrap();
        for (endpoint, want) in [
            (json!({"addresses": [], "targetRef": {"uid": "u"}}), true),
            (
                json!({"addresses": [], "targetRef": {"uid": "u"}, "conditions": {"ready": true}}),
                true,
            ),
            (
                json!({"addresses": [], "targetRef": {"uid": "u"}, "conditions": {"ready": false, "serving": true}}),
                false,
            ),
            (json!({"addresses": [], "targetRef": {"uid": "other"}}), false),
            (json!({"addresses": ["10.0.0.1"]}), false),
        ] {
            let slice = json!({"metadata": {}, "addressType": "IPv4", "endpoints": [endpoint]});
            let slice: EndpointSlice = serde_json::from_value(slice).unwrap();
            assert_eq!(offers(&slice, &pod), want, "{slice:?}");
        }
    }
}
