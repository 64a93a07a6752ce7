//! Cascading deletion, with all controllers running on an in-memory API, in paused time.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Namespace, Service, ServiceAccount};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_client::fake::FakeApi;
use knarr_client::{Api, DeleteOptions, Kind, ListOptions, Propagation, TypedApi};
use knarr_control::Config;
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::DropGuard;

use crate::cluster::with_all;

fn cluster() -> (Arc<FakeApi>, DropGuard) {
    let mut config = Config::default();
    config.controllers.root_ca = Some("PEM".into());
    with_all(config)
}

fn deployment(namespace: &str, replicas: i32) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"namespace": namespace, "name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    }))
    .unwrap()
}

async fn settle() {
    sleep(Duration::from_secs(5)).await;
}

async fn count(api: &FakeApi, kind: &Kind, namespace: &str) -> usize {
    let options = ListOptions {
        namespace: namespace.into(),
        ..ListOptions::default()
    };
    api.list(kind, options).await.unwrap().items.len()
}

async fn delete(api: &FakeApi, kind: &Kind, namespace: &str, name: &str, propagation: Propagation) {
    let options = DeleteOptions {
        propagation: Some(propagation),
        ..DeleteOptions::default()
    };
    api.delete(kind, namespace, name, options).await.unwrap();
}

async fn sizes(api: &FakeApi) -> [usize; 3] {
    [
        count(api, &registry::DEPLOYMENT, "default").await,
        count(api, &registry::REPLICA_SET, "default").await,
        count(api, &registry::POD, "default").await,
    ]
}

#[tokio::test(start_paused = true)]
async fn a_deployment_takes_its_sets_and_pods_along_in_the_background_and_in_the_foreground() {
    for propagation in [Propagation::Background, Propagation::Foreground] {
        let (api, _running) = cluster();
        api.create_as(deployment("default", 3)).await.unwrap();
        settle().await;
        assert_eq!(sizes(&api).await, [1, 1, 3]);
        delete(&api, &registry::DEPLOYMENT, "default", "web", propagation).await;
        settle().await;
        assert_eq!(sizes(&api).await, [0, 0, 0], "{propagation:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn orphans_stay_and_are_taken_up_again() {
    let (api, _running) = cluster();
    api.create_as(deployment("default", 2)).await.unwrap();
    settle().await;
    delete(&api, &registry::DEPLOYMENT, "default", "web", Propagation::Orphan).await;
    settle().await;
    assert_eq!(sizes(&api).await, [0, 1, 2]);
    let owner = |set: &ReplicaSet| set.metadata.owner_references.clone().unwrap_or_default();
    let list = api
        .list(&registry::REPLICA_SET, ListOptions::default())
        .await
        .unwrap();
    assert_eq!(owner(list.items[0].get().unwrap()), []);
    let again = api.create_as(deployment("default", 2)).await.unwrap();
    settle().await;
    assert_eq!(sizes(&api).await, [1, 1, 2]);
    let list = api
        .list(&registry::REPLICA_SET, ListOptions::default())
        .await
        .unwrap();
    assert_eq!(owner(list.items[0].get().unwrap())[0].uid, again.object().uid());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_gets_its_defaults_and_is_deleted_with_everything_in_it() {
    let (api, _running) = cluster();
    let namespace: Namespace = serde_json::from_value(json!({
        "metadata": {"name": "a"}, "spec": {"finalizers": ["kubernetes"]},
    }))
    .unwrap();
    api.create_as(namespace).await.unwrap();
    api.create_as(deployment("a", 2)).await.unwrap();
    let service: Service = serde_json::from_value(json!({
        "metadata": {"namespace": "a", "name": "web"},
        "spec": {"clusterIP": "10.0.0.1", "selector": {"app": "web"}, "ports": [{"port": 80}]},
    }))
    .unwrap();
    api.create_as(service).await.unwrap();
    settle().await;
    assert!(api.get_as::<ServiceAccount>("a", "default").await.is_ok());
    for (kind, n) in [
        (&registry::POD, 2),
        (&registry::CONFIG_MAP, 1),
        (&registry::ENDPOINTS, 1),
        (&registry::ENDPOINT_SLICE, 1),
    ] {
        assert_eq!(count(&api, kind, "a").await, n, "{kind:?}");
    }
    // The real API holds a namespace by its spec's finalizers; the in-memory one knows only those of metadata.
    api.edit::<Namespace>("", "a", "", |n| {
        n.metadata.finalizers = Some(vec!["test/hold".into()])
    })
    .await
    .unwrap();
    api.delete(&registry::NAMESPACE, "", "a", DeleteOptions::default())
        .await
        .unwrap();
    sleep(Duration::from_secs(60)).await;
    for kind in knarr_controllers::namespace::contents() {
        // Events about the deletion come last; the real API rejects them in a terminating namespace.
        if kind != &registry::EVENT {
            assert_eq!(count(&api, kind, "a").await, 0, "{kind:?}");
        }
    }
    let left = api.get_as::<Namespace>("", "a").await.unwrap();
    let status = left.status.clone().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Terminating"));
    assert_eq!(left.spec.clone().unwrap().finalizers, Some(vec![]));
}
