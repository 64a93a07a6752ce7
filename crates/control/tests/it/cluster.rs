//! The API in memory, in the time of tokio, and what runs on it until a guard is dropped: all components, or one.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_client::fake::FakeApi;
use knarr_client::identity::SingleUser;
use knarr_client::{Api, Caches, Clock, EventRecorder, TokioClock, TypedApi};
use knarr_control::{Base, Config};
use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};

/// An empty API, and its clock, which shows this time now.
pub fn empty_api(now: Timestamp) -> (Arc<FakeApi>, Arc<dyn Clock>) {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new(now));
    (Arc::new(FakeApi::new(clock.clone())), clock)
}

/// Runs all components.
pub fn run_all(api: &Arc<FakeApi>, clock: &Arc<dyn Clock>, config: Config) -> DropGuard {
    let cancel = CancellationToken::new();
    let identities = Arc::new(SingleUser(api.clone()));
    tokio::spawn(knarr_control::run(
        identities,
        config,
        clock.clone(),
        cancel.clone(),
    ));
    cancel.drop_guard()
}

/// An empty API with all components.
pub fn with_all(config: Config) -> (Arc<FakeApi>, DropGuard) {
    let (api, clock) = empty_api(Timestamp::UNIX_EPOCH);
    let running = run_all(&api, &clock, config);
    (api, running)
}

/// An empty API, and what one component needs to run on it.
pub fn with_base() -> (Arc<FakeApi>, Base) {
    let (fake, clock) = empty_api(Timestamp::UNIX_EPOCH);
    let api: Arc<dyn Api> = fake.clone();
    let base = Base {
        caches: Arc::new(Caches::new(api.clone())),
        events: EventRecorder::new(api.clone(), "test", "", clock.clone()),
        identities: Arc::new(SingleUser(api)),
        clock,
        metrics: Default::default(),
    };
    (fake, base)
}

/// Runs one component.
pub fn run_one(component: impl Future<Output = ()> + Send + 'static) -> DropGuard {
    let cancel = CancellationToken::new();
    tokio::spawn(cancel.clone().run_until_cancelled_owned(component));
    cancel.drop_guard()
}

pub async fn create<T: Registered>(api: &FakeApi, object: Value) {
    let object: T = serde_json::from_value(object).unwrap();
    api.create_as(object).await.unwrap();
}

pub async fn node_of(api: &FakeApi, pod: &str) -> Option<String> {
    let pod = api.get_as::<Pod>("default", pod).await.unwrap();
    pod.spec.as_ref().unwrap().node_name.clone()
}
