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

/// Creates pods with these names and grace periods, and reads them, as the scheduler does before it decides. Then `changed` is
/// written, and so many other pods that the server keeps the encoding alone of these.
async fn read_earlier(c: &Cluster, pods: &[(&str, i64)], are_bound: bool) -> Vec<Shared<Pod>> {
    let others = async |count: usize, name: &str| {
        for n in 0..count {
            c.api.create_as(pod(&format!("{name}-{n}"), 0)).await.unwrap();
        }
    };
    others(PODS_BEFORE, "before").await;
    let mut read = Vec::new();
    for &(name, grace_seconds) in pods {
        let created = c.api.create_as(pod(name, grace_seconds)).await.unwrap();
        if are_bound {
            c.api.bind_read(&created, &"n1".into()).await.unwrap();
        }
        read.push(c.api.get_as::<Pod>("default", name).await.unwrap());
    }
    let labels = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    c.api.patch(&POD, "default", "changed", "", labels).await.unwrap();
    others(PODS_AFTER, "after").await;
    read
}

/// What the scheduler has read is the stored pod, or an earlier version of it.
#[tokio::test(start_paused = true)]
async fn p4_a_victim_gets_its_condition_and_deletion_as_it_is_stored_whatever_the_scheduler_has_read() {
    let c = cluster().await;
    let victims = [("same", 60), ("changed", 60), ("no-grace", 0)];
    let read = read_earlier(&c, &victims, true).await;
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

/// What the scheduler writes after a preemption: a conflict if the pod was written since the scheduler has read it.
#[tokio::test(start_paused = true)]
async fn p4_a_nomination_is_written_to_the_pod_as_it_is_stored_whatever_the_scheduler_has_read() {
    let c = cluster().await;
    let read = read_earlier(&c, &[("same", 60), ("changed", 60)], false).await;
    for read in &read {
        let name = read.object().name();
        let stored = c.api.get(&POD, "default", name).await.unwrap();
        assert!(stored.is_slim() && !read.object().is_slim(), "{name}");
        let mut new: Pod = (**read).clone();
        new.status.get_or_insert_default().nominated_node_name = Some("n1".into());
        let written = c.api.update_status(read.object(), Box::new(new)).await;
        let now = c.api.get(&POD, "default", name).await.unwrap();
        if name == "changed" {
            assert_eq!(written.unwrap_err().code(), 409);
            assert_eq!(now.revision(), stored.revision());
            continue;
        }
        assert!(stored.is_slim(), "it was not decoded again");
        assert_eq!(now.json(), written.unwrap().json());
        let status = now.get::<Pod>().unwrap().status.as_ref().unwrap();
        assert_eq!(status.nominated_node_name.as_deref(), Some("n1"));
    }
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

/// A store may make both changes in one write; watchers see two.
#[tokio::test]
async fn p4_a_victim_without_a_grace_period_is_seen_with_its_condition_before_it_is_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let embedded = knarr_store::Config::Embedded {
        dir: directory.path().join("store"),
    };
    for (config, in_one_write) in [(knarr_store::Config::Memory, false), (embedded, true)] {
        let store = knarr_store::open(config).await.unwrap();
        assert_eq!(store.deletes_in_one_write(), in_one_write);
        let c = server_over(store).await;
        let account = br#"{"metadata":{"name":"default","namespace":"default"}}"#;
        let account = SERVICE_ACCOUNT.ops.decode(account).unwrap();
        c.api.create(&SERVICE_ACCOUNT, account.object).await.unwrap();
        let created = c.api.create_as(pod("p", 0)).await.unwrap();
        c.api.bind_read(&created, &"n1".into()).await.unwrap();
        let read = c.api.get_as::<Pod>("default", "p").await.unwrap();
        let from_here = WatchOptions {
            after: Some(read.object().revision()),
            ..WatchOptions::default()
        };
        let mut watch = c.api.watch(&POD, from_here).await.unwrap();
        let answer = c.api.disrupt(&read, target(), of_uid(&read)).await.unwrap();
        let mut seen = Vec::new();
        while seen.len() < 2 {
            match watch.next().await.unwrap().unwrap() {
                WatchEvent::Modified(object) => seen.push(("modified", object)),
                WatchEvent::Deleted(object) => seen.push(("deleted", object)),
                WatchEvent::Added(_) | WatchEvent::Bookmark(_) => {}
            }
        }
        assert_eq!(
            seen.iter().map(|(what, _)| *what).collect::<Vec<_>>(),
            ["modified", "deleted"]
        );
        for (what, object) in &seen {
            let pod: &Pod = object.get().unwrap();
            let conditions = pod.status.as_ref().unwrap().conditions.as_deref();
            let has_target = conditions
                .unwrap_or_default()
                .iter()
                .any(|c| c.type_ == "DisruptionTarget");
            assert!(has_target && pod.metadata.deletion_timestamp.is_some(), "{what}");
        }
        let revisions = [seen[0].1.revision(), seen[1].1.revision()];
        assert!(revisions[0] < revisions[1]);
        assert!(!in_one_write || revisions[0] + 1 == revisions[1], "{revisions:?}");
        assert_eq!(answer.json(), seen[1].1.json());
        let gone = c.api.get(&POD, "default", "p").await.unwrap_err();
        assert_eq!(gone.code(), 404);
    }
}
