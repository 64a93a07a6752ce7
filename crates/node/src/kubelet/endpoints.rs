//! Until when proxies send new connections to a terminating pod (SPEC B7): as the node's network reports it, otherwise by
//! the EndpointSlices.
//!
//! Slices are watched only while a pod of their namespace terminates, and only in that namespace: a node may read no
//! others.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::k8s_openapi;
use knarr_api::kinds::endpoint_slice::has_ready;
use knarr_api::registry::Registered;
use knarr_client::informer::{self, Scope};
use knarr_client::{Api, Store};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::network::NodeNetwork;

/// How long proxies need, after they have received the change, to update the kernel's tables.
const PROXIES_NEED: Duration = Duration::from_millis(50);

/// Delays TERM until proxies have dropped the pod, for `bound` at the most.
pub(super) struct EndpointBarrier {
    network: Option<Arc<dyn NodeNetwork>>,
    bound: Duration,
    slices: Endpoints,
}

impl EndpointBarrier {
    pub fn new(api: Arc<dyn Api>, network: Option<Arc<dyn NodeNetwork>>, bound: Duration) -> Self {
        EndpointBarrier {
            network: network.filter(|network| network.reports_endpoints()),
            bound,
            slices: Endpoints::new(api),
        }
    }

    /// Waits until proxies have dropped the pod, and returns whether a Service offered it before; `None` if they have not.
    pub async fn dropped(&self, pod: &core::Pod) -> Option<bool> {
        let dropped = async {
            match &self.network {
                Some(network) => network.withdrawn(pod).await,
                None => self.slices.dropped(pod).await,
            }
        };
        timeout(self.bound, dropped).await.ok()
    }
}

/// The slices of namespaces in which pods of this node are terminating.
struct Endpoints {
    api: Arc<dyn Api>,
    followed: Mutex<BTreeMap<String, Weak<WatchedSlices>>>,
}

/// The slices of one namespace, and a bell that rings when one changes.
struct WatchedSlices {
    slices: Arc<Store>,
    changed: watch::Receiver<()>,
    task: AbortHandle,
}

impl Drop for WatchedSlices {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl WatchedSlices {
    fn begin(api: Arc<dyn Api>, namespace: &str) -> Self {
        let slices = Arc::new(Store::new(EndpointSlice::kind_of(), &[]));
        let (ring, changed) = watch::channel(());
        slices.add_event_handler(move |_| {
            ring.send_replace(());
        });
        let scope = Scope {
            namespace: namespace.to_string(),
            ..Scope::default()
        };
        let follow = informer::run(api, EndpointSlice::kind_of().clone(), scope, slices.clone());
        WatchedSlices {
            task: crate::task::spawn(follow).abort_handle(),
            slices,
            changed,
        }
    }

    fn offers(&self, namespace: &str, pod: &core::Pod) -> bool {
        let slices = self.slices.list(namespace);
        slices
            .iter()
            .filter_map(|slice| slice.get::<EndpointSlice>())
            .any(|slice| has_ready(slice, pod))
    }
}

impl Endpoints {
    fn new(api: Arc<dyn Api>) -> Self {
        Endpoints {
            api,
            followed: Mutex::default(),
        }
    }

    /// Shared by all that wait in the namespace.
    fn of(&self, namespace: &str) -> Arc<WatchedSlices> {
        let mut followed = self.followed.lock();
        followed.retain(|_, of| of.strong_count() > 0);
        if let Some(there) = followed.get(namespace).and_then(Weak::upgrade) {
            return there;
        }
        let new = Arc::new(WatchedSlices::begin(self.api.clone(), namespace));
        followed.insert(namespace.to_string(), Arc::downgrade(&new));
        new
    }

    /// Returns when no slice lists the pod any more; at once if none does. The result is whether one did. The caller bounds
    /// the wait.
    async fn dropped(&self, pod: &core::Pod) -> bool {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let followed = self.of(namespace);
        followed.slices.synced().await;
        let mut changed = followed.changed.clone();
        let (mut was_offered, mut was_ever_offered) = (false, false);
        loop {
            changed.mark_unchanged();
            if followed.offers(namespace, pod) {
                (was_offered, was_ever_offered) = (true, true);
                if changed.changed().await.is_err() {
                    return was_ever_offered;
                }
                continue;
            }
            if !was_offered {
                return was_ever_offered;
            }
            // A controller that has not seen the deletion yet may list it again meanwhile.
            was_offered = false;
            sleep(PROXIES_NEED).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use knarr_client::fake::FakeApi;
    use knarr_client::{TokioClock, TypedApi};
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
            assert_eq!(has_ready(&slice, &pod), want, "{slice:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn b7_a_pod_that_is_offered_again_while_proxies_change_their_tables_is_waited_for_again() {
        let api = Arc::new(FakeApi::new(Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH))));
        let slice = |ready: bool| -> EndpointSlice {
            let endpoint =
                json!({"addresses": ["10.0.0.1"], "targetRef": {"uid": "u"}, "conditions": {"ready": ready}});
            serde_json::from_value(json!({
                "metadata": {"namespace": "ns", "name": "s"}, "addressType": "IPv4", "endpoints": [endpoint],
            }))
            .unwrap()
        };
        api.create_as(slice(true)).await.unwrap();
        let pod: core::Pod =
            serde_json::from_value(json!({"metadata": {"namespace": "ns", "name": "p", "uid": "u"}}))
                .unwrap();
        let endpoints = Endpoints::new(api.clone());
        let wait = tokio::spawn(async move { endpoints.dropped(&pod).await });
        sleep(PROXIES_NEED * 4).await;
        assert!(!wait.is_finished(), "the pod is offered");
        api.update_as(slice(false)).await.unwrap();
        sleep(PROXIES_NEED / 2).await;
        api.update_as(slice(true)).await.unwrap();
        sleep(PROXIES_NEED * 4).await;
        assert!(!wait.is_finished(), "it is offered again");
        api.update_as(slice(false)).await.unwrap();
        assert!(wait.await.unwrap(), "a slice offered it");
        let other: core::Pod =
            serde_json::from_value(json!({"metadata": {"namespace": "ns", "name": "q", "uid": "v"}}))
                .unwrap();
        assert!(!Endpoints::new(api).dropped(&other).await, "no slice offered it");
    }
}
