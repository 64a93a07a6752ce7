//! Live checks on an in-memory API: each holds for the object in the state that was decided on, and in no other.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::jiff::Timestamp;
use knarr_api::kinds::persistent_volume::csi_attachment;
use knarr_api::{k8s_openapi, registry};
use knarr_apimachinery::time::microseconds;
use knarr_client::fake::FakeApi;
use knarr_client::{Api, DeleteOptions, ObjectKey, TypedApi};
use knarr_control::executor::Executor;
use knarr_controllers::action::{Action, LiveCheck};
use serde_json::json;

use crate::cluster::{create, with_base};

const FINALIZER: &str = "batch.kubernetes.io/job-tracking";

struct Checks {
    api: Arc<FakeApi>,
    executor: Executor,
}

impl Checks {
    fn new() -> Self {
        let (api, base) = with_base();
        let executor = Executor::new(api.clone(), base.events);
        Checks { api, executor }
    }

    async fn holds(&self, check: LiveCheck) -> bool {
        let outcome = self.executor.run(vec![Action::Require(check)]).await;
        outcome.failure.is_none()
    }
}

#[tokio::test(start_paused = true)]
async fn a_generation_changes_with_the_spec_and_not_with_the_status() {
    let checks = Checks::new();
    let labels = json!({"app": "web"});
    let set = json!({
        "metadata": {"namespace": "a", "name": "web"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": {"containers": []}}},
    });
    create::<ReplicaSet>(&checks.api, set).await;
    let read = checks.api.get_as::<ReplicaSet>("a", "web").await.unwrap();
    let uid = read.object().uid();
    let of = |name: &str, uid: &str| LiveCheck::Generation {
        kind: registry::REPLICA_SET.clone(),
        key: ObjectKey::new("a", name),
        uid: uid.into(),
        generation: read.metadata.generation,
    };
    assert!(read.metadata.generation.is_some() && checks.holds(of("web", uid)).await);
    assert!(!checks.holds(of("web", "another")).await);
    assert!(!checks.holds(of("removed", uid)).await);
    for (subresource, holds) in [("status", true), ("", false)] {
        let edited = checks.api.edit::<ReplicaSet>("a", "web", subresource, |set| {
            set.status.get_or_insert_default().replicas = 2;
            set.spec.get_or_insert_default().replicas = Some(2);
        });
        edited.await.unwrap();
        assert_eq!(checks.holds(of("web", uid)).await, holds, "{subresource:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_held_by_its_finalizer_and_by_the_controller_that_it_has() {
    let checks = Checks::new();
    let owner =
        json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "uid-j", "controller": true});
    let pod = json!({
        "metadata": {"namespace": "a", "name": "p", "finalizers": [FINALIZER], "ownerReferences": [owner]},
        "spec": {"containers": []},
    });
    create::<Pod>(&checks.api, pod).await;
    let read = checks.api.get_as::<Pod>("a", "p").await.unwrap();
    let uid = read.object().uid();
    // Whether it is being deleted, is held, and whether none of the Job's is held.
    let found = async |uid: &str| {
        let deleting = LiveCheck::Deleting {
            kind: registry::POD.clone(),
            key: ObjectKey::new("a", "p"),
            uid: uid.into(),
        };
        let held = LiveCheck::Held {
            namespace: "a".into(),
            pods: [("p".to_string(), uid.to_string())].into(),
            finalizer: FINALIZER,
        };
        let none_held = LiveCheck::NoneHeld {
            namespace: "a".into(),
            owner: "uid-j".into(),
            uids: [uid.to_string()].into(),
            finalizer: FINALIZER,
        };
        [
            checks.holds(deleting).await,
            checks.holds(held).await,
            checks.holds(none_held).await,
        ]
    };
    assert_eq!(found(uid).await, [false, true, false], "it is there");
    assert_eq!(found("another").await, [false, false, true]);
    let now = DeleteOptions {
        grace_period_seconds: Some(0),
        ..DeleteOptions::default()
    };
    checks.api.delete(&registry::POD, "a", "p", now).await.unwrap();
    assert_eq!(found(uid).await, [true, true, false], "it is being deleted");
    assert_eq!(found("another").await, [false, false, true]);
    let orphaned = checks.api.edit::<Pod>("a", "p", "", |pod| {
        pod.metadata.owner_references = None;
    });
    orphaned.await.unwrap();
    assert_eq!(
        found(uid).await,
        [true, true, true],
        "the Job does not control it"
    );
    let released = checks.api.edit::<Pod>("a", "p", "", |pod| {
        pod.metadata.finalizers = None;
    });
    released.await.unwrap();
    assert_eq!(found(uid).await, [false, false, true], "it is removed");
}

#[tokio::test(start_paused = true)]
async fn pods_are_held_if_each_of_them_is() {
    let checks = Checks::new();
    for (name, finalizers) in [
        ("p", json!([FINALIZER])),
        ("q", json!([FINALIZER])),
        ("r", json!([])),
    ] {
        let meta = json!({"namespace": "a", "name": name, "finalizers": finalizers});
        create::<Pod>(&checks.api, json!({"metadata": meta, "spec": {"containers": []}})).await;
    }
    for (names, removed, holds) in [
        ("p", "", true),
        ("p q", "", true),
        ("p r", "", false),
        ("r", "", false),
        ("p q", "q", false),
    ] {
        let mut pods = BTreeMap::new();
        for name in names.split(' ') {
            let pod = checks.api.get_as::<Pod>("a", name).await.unwrap();
            let uid = match name == removed {
                true => "removed",
                false => pod.object().uid(),
            };
            pods.insert(name.to_string(), uid.to_string());
        }
        let check = LiveCheck::Held {
            namespace: "a".into(),
            pods,
            finalizer: FINALIZER,
        };
        assert_eq!(checks.holds(check).await, holds, "{names} {removed}");
    }
}

#[tokio::test(start_paused = true)]
async fn s4_a_node_is_lost_only_while_its_lease_its_condition_and_its_taints_are_the_same() {
    let checks = Checks::new();
    let time = |second: i64| Some(microseconds(Timestamp::from_second(second).unwrap()));
    let not_renewed = |second: Option<i64>| LiveCheck::NotRenewed {
        lease: ObjectKey::new("kube-node-lease", "n"),
        renewed: second.and_then(time),
    };
    for second in [None, Some(7)] {
        assert!(checks.holds(not_renewed(second)).await, "there is no Lease");
    }
    let lease =
        json!({"metadata": {"namespace": "kube-node-lease", "name": "n"}, "spec": {"renewTime": time(7)}});
    create::<Lease>(&checks.api, lease).await;
    for (second, holds) in [(None, false), (Some(6), false), (Some(7), true)] {
        assert_eq!(checks.holds(not_renewed(second)).await, holds, "{second:?}");
    }

    let taint = json!({"key": "t", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"});
    let unreachable = || LiveCheck::Unreachable { node: "n".into() };
    let tainted = || LiveCheck::Tainted {
        node: "n".into(),
        taints: vec![serde_json::from_value(taint.clone()).unwrap()],
    };
    assert!(!checks.holds(unreachable()).await && !checks.holds(tainted()).await);
    create::<Node>(&checks.api, json!({"metadata": {"name": "n"}})).await;
    for (ready, taints, expected) in [
        ("Unknown", json!([taint]), (true, true)),
        ("Unknown", json!([]), (true, false)),
        ("True", json!([taint]), (false, true)),
    ] {
        for subresource in ["status", ""] {
            let edited = checks.api.edit::<Node>("", "n", subresource, |node| {
                let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
                node.status = serde_json::from_value(status).unwrap();
                let spec = json!({"taints": taints});
                node.spec = serde_json::from_value(spec).unwrap();
            });
            edited.await.unwrap();
        }
        let found = (checks.holds(unreachable()).await, checks.holds(tainted()).await);
        assert_eq!(found, expected, "{ready} {taints}");
    }
}

#[tokio::test(start_paused = true)]
async fn s7_a_volume_is_attached_elsewhere_until_the_attachment_is_removed() {
    let checks = Checks::new();
    let check = |volume: &str, node: &str| LiveCheck::NotAttachedElsewhere {
        volume: volume.into(),
        node: node.into(),
    };
    assert!(checks.holds(check("v", "n2")).await);
    let name = csi_attachment("h", "d", &"n1".into());
    let attachment = json!({
        "metadata": {"name": name, "finalizers": ["external-attacher/d"]},
        "spec": {"attacher": "d", "nodeName": "n1", "source": {"persistentVolumeName": "v"}},
    });
    create::<VolumeAttachment>(&checks.api, attachment).await;
    for is_deleted in [false, true] {
        if is_deleted {
            let options = DeleteOptions::default();
            let deleted = checks
                .api
                .delete(&registry::VOLUME_ATTACHMENT, "", &name, options);
            deleted.await.unwrap();
        }
        for (volume, node, holds) in [("v", "n2", false), ("v", "n1", true), ("w", "n2", true)] {
            let found = checks.holds(check(volume, node)).await;
            assert_eq!(found, holds, "{is_deleted} {volume} {node}");
        }
    }
    let detached = checks.api.edit::<VolumeAttachment>("", &name, "", |attachment| {
        attachment.metadata.finalizers = None;
    });
    detached.await.unwrap();
    assert!(checks.holds(check("v", "n2")).await);
}
