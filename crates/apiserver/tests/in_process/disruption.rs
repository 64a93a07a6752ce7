//! A pod's condition DisruptionTarget and its deletion, requested by a component in this process.

use k8s_openapi::api::core::v1::PodCondition;
use knarr_api::Shared;

use super::*;

/// With so many pods the server keeps the encoding alone of those that have not changed lately.
const PODS_BEFORE: usize = 260;
/// After so many changes a pod has not changed lately.
const PODS_AFTER: usize = 140;

fn pod(name: &str, grace_seconds: i64) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": [{"name": "c", "image": "img:1"}],
            "terminationGracePeriodSeconds": grace_seconds,
            "automountServiceAccountToken": false,
        },
    }))
    .unwrap()
}

fn target() -> PodCondition {
    PodCondition {
        type_: "DisruptionTarget".into(),
        status: "True".into(),
        reason: Some("PreemptionByScheduler".into()),
        ..PodCondition::default()
    }
}

fn of_uid(pod: &Shared<Pod>) -> DeleteOptions {
    DeleteOptions {
        preconditions: Preconditions {
            uid: Some(pod.object().uid().to_string()),
            ..Preconditions::default()
        },
        ..DeleteOptions::default()
    }
}

/// What the scheduler has read is the stored pod, or an earlier version of it.
#[tokio::test(start_paused = true)]
async fn p4_a_victim_gets_its_condition_and_deletion_as_it_is_stored_whatever_the_scheduler_has_read() {
    let c = cluster().await;
    let others = async |count: usize, name: &str| {
        for n in 0..count {
            c.api.create_as(pod(&format!("{name}-{n}"), 0)).await.unwrap();
        }
    };
    others(PODS_BEFORE, "before").await;
    let mut read = Vec::new();
    for (name, grace_seconds) in [("same", 60), ("changed", 60), ("no-grace", 0)] {
        let created = c.api.create_as(pod(name, grace_seconds)).await.unwrap();
        c.api.bind_read(&created, &"n1".into()).await.unwrap();
        read.push(c.api.get_as::<Pod>("default", name).await.unwrap());
    }
    let labels = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    c.api.patch(&POD, "default", "changed", "", labels).await.unwrap();
    others(PODS_AFTER, "after").await;
    for read in &read {
        let name = read.object().name();
        let stored = c.api.get(&POD, "default", name).await.unwrap();
        assert!(stored.is_slim() && !read.object().is_slim(), "{name}");
        let is_same = stored.revision() == read.object().revision();
        assert_eq!(is_same, name != "changed");
        let written = c.api.disrupt(read, target(), of_uid(read)).await.unwrap();
        assert_eq!(
            stored.is_slim(),
            is_same,
            "{name}: decoded only if it is another one than was read"
        );
        let pod: &Pod = written.get().unwrap();
        assert!(pod.metadata.deletion_timestamp.is_some(), "{name}");
        let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get("a"));
        assert_eq!(label.is_some(), name == "changed");
        let status = pod.status.as_ref().unwrap();
        let conditions = status.conditions.as_deref().unwrap_or_default();
        let types: Vec<&str> = conditions.iter().map(|c| c.type_.as_str()).collect();
        assert_eq!(types, ["PodScheduled", "DisruptionTarget"], "{name}");
        let now = c.api.get(&POD, "default", name).await;
        match name {
            "no-grace" => assert_eq!(now.unwrap_err().code(), 404),
            _ => assert_eq!(now.unwrap().json(), written.json(), "{name}"),
        }
    }
    let stale = c.api.disrupt(&read[2], target(), of_uid(&read[2])).await;
    assert_eq!(stale.unwrap_err().code(), 404, "it is deleted");
}

#[tokio::test(start_paused = true)]
async fn a_victims_managed_fields_are_those_of_an_update_of_its_status() {
    let c = cluster().await;
    let fields = |object: &Object| object.get::<Pod>().unwrap().metadata.managed_fields.clone();
    // The first status of the writer, one that adds fields to its own, and one that takes fields from another manager.
    for (case, writers) in [
        ("first", vec![]),
        ("more", vec!["same"]),
        ("other", vec!["other"]),
    ] {
        let mut pods = Vec::new();
        for name in [format!("disrupted-{case}"), format!("patched-{case}")] {
            let created = c.api.create_as(pod(&name, 60)).await.unwrap();
            c.api.bind_read(&created, &"n1".into()).await.unwrap();
            for writer in &writers {
                let api = match *writer {
                    "same" => c.api.clone(),
                    name => c.server.api_as(name, ["system:masters"]),
                };
                let condition = json!({"type": "DisruptionTarget", "status": "False", "reason": "Before"});
                let status = Patch::Strategic(json!({"status": {"message": "m", "conditions": [condition]}}));
                api.patch(&POD, "default", &name, "status", status).await.unwrap();
            }
            pods.push(c.api.get_as::<Pod>("default", &name).await.unwrap());
        }
        let disrupted = c.api.disrupt(&pods[0], target(), of_uid(&pods[0])).await.unwrap();
        let status = Patch::Strategic(json!({"status": {"conditions": [target()]}}));
        let name = pods[1].object().name();
        let patched = c
            .api
            .patch(&POD, "default", name, "status", status)
            .await
            .unwrap();
        assert!(fields(&patched).is_some_and(|all| all.iter().any(|e| e.subresource.is_some())));
        assert_eq!(fields(&disrupted), fields(&patched), "{case}");
    }
}
