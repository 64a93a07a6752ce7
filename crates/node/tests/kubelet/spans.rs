//! The spans of a pod's start and end, from which traces and `./dev bench pods --trace` are made.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::k8s_openapi;
use knarr_client::TypedApi;
use knarr_node::Config;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::sleep;
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

use super::World;

/// The names of the spans of one pod, in the order of their beginnings.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<Vec<&'static str>>>);

/// The field `pod` of a span.
#[derive(Default)]
struct PodName(Option<String>);

impl Visit for PodName {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "pod" {
            self.0 = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl<S: Subscriber> Layer<S> for Names {
    fn on_new_span(&self, span: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        let mut pod = PodName::default();
        span.record(&mut pod);
        if pod.0.as_deref() == Some("a") {
            self.0.lock().push(span.metadata().name());
        }
    }
}

impl Names {
    /// Those since the last call, without the steps of the worker.
    fn take(&self) -> Vec<&'static str> {
        let mut names = std::mem::take(&mut *self.0.lock());
        names.retain(|name| *name != "pod_worker_step");
        names
    }
}

#[tokio::test(start_paused = true)]
async fn s3_the_actions_of_a_pods_start_and_end_are_spans_in_their_order() {
    let names = Names::default();
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(names.clone()));
    let world = World::new();
    let (_kubelet, _cancel) = world.kubelet();
    world.create("other").await;
    world.create("a").await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.phase("a").await.as_deref(), Some("Running"));
    let start = [
        "set_up_volumes",
        "create_sandbox",
        "inspect_image",
        "create_container",
        "start_container",
    ];
    assert_eq!(names.take(), start);
    world.delete("a").await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.phase("a").await, None);
    let end = names.take();
    for expected in [
        "stop_container",
        "stop_sandbox",
        "tear_down_volumes",
        "remove_sandbox",
    ] {
        let count = end.iter().filter(|name| **name == expected).count();
        assert_eq!(count, 1, "{expected} in {end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn b7_accept_queues_are_read_before_term_if_a_service_offered_the_pod() {
    let names = Names::default();
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(names.clone()));
    for is_offered in [true, false] {
        let world = World::new();
        let config = Config {
            endpoint_barrier: Duration::from_secs(1),
            ..world.config()
        };
        let (kubelet, cancel) = world.start(config, None);
        world.create("a").await;
        sleep(Duration::from_secs(1)).await;
        let uid = world.pod("a").await.unwrap().metadata.uid;
        let slice = |is_ready: bool| -> EndpointSlice {
            let endpoint = json!({
                "addresses": ["10.0.0.1"], "targetRef": {"uid": uid}, "conditions": {"ready": is_ready},
            });
            serde_json::from_value(json!({
                "metadata": {"namespace": "default", "name": "s"},
                "addressType": "IPv4", "endpoints": [endpoint],
            }))
            .unwrap()
        };
        world.api.create_as(slice(is_offered)).await.unwrap();
        names.take();
        world.delete("a").await;
        sleep(Duration::from_millis(300)).await;
        let mut all = names.take();
        assert_eq!(all.contains(&"stop_container"), !is_offered, "{all:?}");
        if is_offered {
            world.api.update_as(slice(false)).await.unwrap();
        }
        sleep(Duration::from_millis(300)).await;
        all.extend(names.take());
        let read = all.iter().position(|name| *name == "read_accept_queues");
        assert_eq!(read.is_some(), is_offered, "{all:?}");
        // The runtime in memory has no network namespaces: what cannot be read delays nothing.
        let stop = all.iter().position(|name| *name == "stop_container");
        assert!(stop.is_some() && read < stop, "{all:?}");
        cancel.cancel();
        kubelet.wait().await;
    }
}
