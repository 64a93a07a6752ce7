//! Workloads on an in-memory API, with all controllers running, in paused time: that what each decides is carried out.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_client::fake::FakeApi;
use knarr_client::{Api, ListOptions, TypedApi};
use knarr_control::Config;
use serde_json::json;
use tokio::time::sleep;

use crate::cluster::with_all;

/// Names of pods, in order.
async fn pods(api: &FakeApi) -> Vec<String> {
    let list = api.list(&registry::POD, ListOptions::default()).await.unwrap();
    list.items.iter().map(|p| p.name().to_string()).collect()
}

async fn set_phase(api: &FakeApi, name: &str, phase: &str, ready: &str) {
    let status = json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready}]});
    api.edit::<Pod>("default", name, "status", |pod| {
        pod.status = serde_json::from_value(status.clone()).unwrap();
    })
    .await
    .unwrap();
    sleep(Duration::from_secs(2)).await;
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_grows_pod_by_pod() {
    let (api, _running) = with_all(Config::default());
    let set: StatefulSet = serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": "db"},
        "spec": {
            "replicas": 3, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": []}},
        },
    }))
    .unwrap();
    api.create_as(set).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(pods(&api).await, ["db-0"]);
    set_phase(&api, "db-0", "Running", "True").await;
    assert_eq!(pods(&api).await, ["db-0", "db-1"]);
    set_phase(&api, "db-1", "Running", "True").await;
    set_phase(&api, "db-2", "Running", "True").await;
    let set = api.get_as::<StatefulSet>("default", "db").await.unwrap();
    let status = set.status.clone().unwrap();
    assert_eq!((status.replicas, status.ready_replicas), (3, Some(3)));
    assert_eq!(status.current_revision, status.update_revision);
}

#[tokio::test(start_paused = true)]
async fn a_cron_job_starts_a_job_whose_pod_is_counted_once() {
    let (api, _running) = with_all(Config::default());
    let cron: CronJob = serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": "c"},
        "spec": {"schedule": "*/5 * * * *", "jobTemplate": {"spec": {
            "completions": 1, "parallelism": 1, "backoffLimit": 6, "selector": {"matchLabels": {"job": "c"}},
            "template": {"metadata": {"labels": {"job": "c"}}, "spec": {"containers": [], "restartPolicy": "Never"}},
        }}},
    }))
    .unwrap();
    api.create_as(cron).await.unwrap();
    sleep(Duration::from_secs(290)).await;
    assert_eq!(pods(&api).await, [""; 0]);
    sleep(Duration::from_secs(20)).await;
    let names = pods(&api).await;
    assert_eq!(names.len(), 1, "{names:?}");
    set_phase(&api, &names[0], "Succeeded", "False").await;
    let job = api.get_as::<Job>("default", "c-5").await.unwrap();
    let status = job.status.clone().unwrap();
    assert_eq!((status.succeeded, status.active), (Some(1), None));
    let types: Vec<String> = status.conditions.unwrap().into_iter().map(|c| c.type_).collect();
    assert_eq!(types, ["SuccessCriteriaMet", "Complete"]);
    let pod = api.get_as::<Pod>("default", &names[0]).await.unwrap();
    assert_eq!(pod.metadata.finalizers, None);
    let cron = api.get_as::<CronJob>("default", "c").await.unwrap();
    assert_eq!(cron.status.as_ref().unwrap().active, None);
    assert!(cron.status.as_ref().unwrap().last_schedule_time.is_some());
}
