//! Quotas are charged before anything is stored, and never exceeded.

use futures::future::join_all;
use k8s_openapi::api::core::v1::ResourceQuota;
use knarr_api::registry::RESOURCE_QUOTA;
use serde_json::Value;

use super::*;

/// A quota as its controller leaves it in an empty namespace.
async fn quota(c: &Cluster, hard: Value) {
    let quota: ResourceQuota = serde_json::from_value(json!({
        "metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard},
    }))
    .unwrap();
    c.api.create_as(quota).await.unwrap();
    let none: serde_json::Map<String, Value> = hard
        .as_object()
        .unwrap()
        .keys()
        .map(|name| (name.clone(), json!("0")))
        .collect();
    report(c, json!({"hard": hard, "used": none})).await.unwrap();
}

/// Writes the quota's status, as the controller does: with the resourceVersion that it read.
async fn report(c: &Cluster, status: Value) -> Result<(), Error> {
    let found = c.api.get(&RESOURCE_QUOTA, "default", "q").await.unwrap();
    let mut quota: ResourceQuota = found.to_typed().unwrap();
    quota.status = serde_json::from_value(status).unwrap();
    c.api.update_status_as(quota).await.map(drop)
}

async fn used(c: &Cluster) -> Value {
    let found = c.api.get(&RESOURCE_QUOTA, "default", "q").await.unwrap();
    let quota: Value = serde_json::from_slice(found.json()).unwrap();
    quota["status"]["used"].clone()
}

#[tokio::test(start_paused = true)]
async fn however_many_create_at_once_a_quota_is_never_exceeded() {
    let c = cluster().await;
    quota(&c, json!({"configmaps": "20"})).await;
    let all = join_all((0..60).map(|i| {
        let api = c.api.clone();
        async move { api.create_as(config_map(&format!("m{i}"), "v")).await }
    }))
    .await;
    let (made, rejected): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), rejected.len()), (20, 40));
    for error in rejected.into_iter().filter_map(Result::err) {
        assert_eq!((error.code(), error.reason()), (403, "Forbidden"));
        let message = error.message();
        assert!(
            message.ends_with(
                "exceeded quota: q, requested: configmaps=1, used: configmaps=20, limited: configmaps=20"
            ),
            "{message}"
        );
    }
    assert_eq!(used(&c).await, json!({"configmaps": "20"}));
}

#[tokio::test(start_paused = true)]
async fn what_was_not_written_is_not_charged() {
    let c = cluster().await;
    quota(&c, json!({"count/configmaps": "3"})).await;
    c.api.create_as(config_map("m", "v")).await.unwrap();
    let again = c.api.create_as(config_map("m", "v")).await.unwrap_err();
    assert!(again.is_already_exists(), "{again}");
    assert_eq!(used(&c).await, json!({"count/configmaps": "1"}));
    // Of concurrent creations of one name, one is charged.
    let race = join_all((0..8).map(|_| c.api.create_as(config_map("n", "v")))).await;
    assert_eq!(race.iter().filter(|r| r.is_ok()).count(), 1);
    assert_eq!(used(&c).await, json!({"count/configmaps": "2"}));
}

#[tokio::test(start_paused = true)]
async fn a_status_with_a_stale_resource_version_is_rejected() {
    let c = cluster().await;
    quota(&c, json!({"configmaps": "5"})).await;
    for name in ["a", "b", "c"] {
        c.api.create_as(config_map(name, "v")).await.unwrap();
    }
    let status = |used: &str| json!({"hard": {"configmaps": "5"}, "used": {"configmaps": used}});
    let rejected = report(&c, status("2")).await.unwrap_err();
    assert!(rejected.is_conflict(), "{rejected}");
    c.api
        .delete(&CONFIG_MAP, "default", "c", DeleteOptions::default())
        .await
        .unwrap();
    report(&c, status("2")).await.unwrap();
    assert_eq!(used(&c).await, json!({"configmaps": "2"}));
}

#[tokio::test(start_paused = true)]
async fn objects_of_custom_kinds_are_counted() {
    let c = cluster().await;
    let crd = custom::definition();
    let crd = custom::decode(&knarr_api::registry::CUSTOM_RESOURCE_DEFINITION, &crd);
    c.api
        .create(&knarr_api::registry::CUSTOM_RESOURCE_DEFINITION, crd)
        .await
        .unwrap();
    let kind = &custom::established(&c).await;
    quota(&c, json!({"count/widgets.example.com": "1"})).await;
    let widget =
        |name: &str| custom::decode(kind, &json!({"metadata": {"name": name, "namespace": "default"}}));
    c.api.create(kind, widget("a")).await.unwrap();
    let rejected = c.api.create(kind, widget("b")).await.unwrap_err();
    assert_eq!(
        rejected.message(),
        "widgets.example.com \"b\" is forbidden: exceeded quota: q, requested: count/widgets.example.com=1, \
used: count/widgets.example.com=1, limited: count/widgets.example.com=1"
    );
}
