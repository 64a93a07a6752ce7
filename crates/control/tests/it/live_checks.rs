//! Live checks on an in-memory API: each holds for the object in the state that was decided on, and in no other.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::{k8s_openapi, registry};
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
        let (kind, key) = (registry::POD.clone(), ObjectKey::new("a", "p"));
        let deleting = LiveCheck::Deleting {
            kind: kind.clone(),
            key: key.clone(),
            uid: uid.into(),
        };
        let held = LiveCheck::Held {
            kind,
            key,
            uid: uid.into(),
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
