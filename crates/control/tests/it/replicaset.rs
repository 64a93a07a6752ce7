//! ReplicaSets on an in-memory API, in paused time.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::{Event, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_client::fake::FakeApi;
use knarr_client::{Api, Error, ListOptions, TypedApi};
use knarr_control::Config;
use tokio::time::sleep;

use crate::cluster::with_all;

fn set(replicas: i32) -> ReplicaSet {
    let labels = Some([("app".to_string(), "web".to_string())].into());
    ReplicaSet {
        metadata: ObjectMeta {
            namespace: Some("default".into()),
            name: Some("web".into()),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            selector: LabelSelector {
                match_labels: labels.clone(),
                ..LabelSelector::default()
            },
            template: Some(PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels,
                    ..ObjectMeta::default()
                }),
                spec: Some(PodSpec::default()),
            }),
            ..ReplicaSetSpec::default()
        }),
        status: None,
    }
}

async fn pods(api: &FakeApi) -> usize {
    let list = api.list(&registry::POD, ListOptions::default()).await.unwrap();
    list.items.len()
}

#[tokio::test(start_paused = true)]
async fn a_set_gets_exactly_its_pods_follows_its_replicas_and_replaces_deleted_ones() {
    let (api, _running) = with_all(Config::default());
    api.create_as(set(40)).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(pods(&api).await, 40);
    let creates = |api: &FakeApi| {
        let asked = api.requests();
        asked
            .iter()
            .filter(|r| r.verb == "create" && r.kind == registry::POD)
            .count()
    };
    assert_eq!(creates(&api), 40, "none was created twice and taken back");

    api.edit::<ReplicaSet>("default", "web", "", |set| {
        set.spec.get_or_insert_default().replicas = Some(7);
    })
    .await
    .unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(pods(&api).await, 7);

    let list = api.list(&registry::POD, ListOptions::default()).await.unwrap();
    api.delete(
        &registry::POD,
        "default",
        list.items[0].name(),
        Default::default(),
    )
    .await
    .unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(pods(&api).await, 7);
    assert_eq!(creates(&api), 41);
    let set = api.get_as::<ReplicaSet>("default", "web").await.unwrap();
    assert_eq!(set.status.as_ref().unwrap().replicas, 7);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_pod_shows_in_status_and_events_and_is_retried_one_at_a_time() {
    let (api, _running) = with_all(Config::default());
    let open = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let gate = open.clone();
    api.intercept(move |request| {
        let closed = !gate.load(std::sync::atomic::Ordering::Relaxed);
        (closed && request.verb == "create" && request.kind == registry::POD)
            .then(|| Error::forbidden(registry::POD.resource_ref("web-x"), "exceeded quota"))
    });
    api.create_as(set(100)).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    let tries = api
        .requests()
        .iter()
        .filter(|r| r.verb == "create" && r.kind == registry::POD)
        .count();
    assert!(
        (3..20).contains(&tries),
        "{tries} attempts in 2 s of doubling back-off"
    );
    let set = api.get_as::<ReplicaSet>("default", "web").await.unwrap();
    let conditions = set.status.as_ref().unwrap().conditions.clone().unwrap();
    assert_eq!(conditions[0].reason.as_deref(), Some("FailedCreate"));
    let events = api.list(&registry::EVENT, ListOptions::default()).await.unwrap();
    let event: &Event = events.items[0].get().unwrap();
    assert_eq!(event.reason.as_deref(), Some("FailedCreate"));
    assert_eq!(
        event.message.as_deref(),
        Some("Error creating: pods \"web-x\" is forbidden: exceeded quota")
    );

    open.store(true, std::sync::atomic::Ordering::Relaxed);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(pods(&api).await, 100);
    let set = api.get_as::<ReplicaSet>("default", "web").await.unwrap();
    assert_eq!(set.status.as_ref().unwrap().conditions, None);
    let events = api.list(&registry::EVENT, ListOptions::default()).await.unwrap();
    let created = events
        .items
        .iter()
        .filter_map(|e| e.get::<Event>())
        .find(|e| e.reason.as_deref() == Some("SuccessfulCreate"));
    assert!(
        created
            .unwrap()
            .message
            .as_deref()
            .unwrap()
            .starts_with("Created pod: web-")
    );
}
