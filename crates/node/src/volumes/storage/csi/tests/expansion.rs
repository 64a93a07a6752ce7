//! Volumes that are expanded on the node, by the driver and in the claim's status.

use knarr_client::events::EventRecorder;

use super::*;
use crate::volumes::expansion::Expansions;

/// A node with a volume in use whose claim is bound.
struct Expanding {
    node: Node,
    serving: Serving,
    expansions: Expansions,
}

impl Expanding {
    async fn new(capabilities: Vec<i32>) -> Self {
        let node = Node::new().await;
        let serving = node.serve(Driver {
            capabilities,
            ..Driver::default()
        });
        node.sync_one().await;
        node.attach("h", json!({"attached": true})).await;
        node.api.create_as(volume("Filesystem", "1Gi")).await.unwrap();
        let claim: core::PersistentVolumeClaim = from(json!({
            "metadata": {"namespace": "a", "name": "c"},
            "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }));
        node.api.create_as(claim).await.unwrap();
        let clock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
        let recorder = EventRecorder::new(node.api.clone(), "kubelet", "n1", clock.clone());
        let expansions = Expansions::new(node.api.clone(), recorder, clock, "n1".into());
        let of = Expanding {
            node,
            serving,
            expansions,
        };
        of.status(json!({"phase": "Bound", "capacity": {"storage": "1Gi"}}))
            .await;
        of
    }

    async fn claim(&self) -> core::PersistentVolumeClaim {
        (*self
            .node
            .api
            .get_as::<core::PersistentVolumeClaim>("a", "c")
            .await
            .unwrap())
        .clone()
    }

    async fn status(&self, status: Value) {
        let mut claim = self.claim().await;
        claim.status = from(status);
        self.node.api.update_status_as(claim).await.unwrap();
    }

    /// What a resizer does.
    async fn grow(&self) {
        let volume = self
            .node
            .api
            .get_as::<core::PersistentVolume>("", "pv")
            .await
            .unwrap();
        let mut grown = (*volume).clone();
        grown.spec = self::volume("Filesystem", "2Gi").spec;
        self.node.api.update_as(grown).await.unwrap();
        self.status(json!({
            "phase": "Bound", "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            "conditions": [{"type": "FileSystemResizePending", "status": "True"}],
        }))
        .await;
    }

    async fn begin(&self) -> Result<(), String> {
        let volume = self
            .node
            .api
            .get_as::<core::PersistentVolume>("", "pv")
            .await
            .unwrap();
        let expected = self.node.expected("p", &volume).await;
        self.node.storage_manager.set_up(&expected).await.unwrap();
        self.serving.driver.calls.lock().clear();
        let claim = self.claim().await;
        self.expansions
            .begin(&self.node.storage_manager, &pod("p"), &claim, &volume, &expected)
            .await
            .map_err(|error| error.to_string())
    }

    async fn sync_one(&self) -> Vec<String> {
        self.expansions.sync_all(&self.node.storage_manager).await;
        std::mem::take(&mut *self.serving.driver.calls.lock())
    }
}

const BYTES: &str = "expand h 2147483648";

#[tokio::test]
async fn a_volume_that_grows_is_expanded_while_it_is_used() {
    let of = Expanding::new(vec![wire::STAGE_UNSTAGE, wire::EXPAND_VOLUME]).await;
    of.begin().await.unwrap();
    assert_eq!(of.sync_one().await, [""; 0]);
    of.grow().await;
    let calls = of.sync_one().await;
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert!(calls[0].starts_with(BYTES), "{calls:?}");
    for part in [
        "globalmount",
        "pods/u-p/volumes/kubernetes.io~csi/pv/mount",
        "fs_type: \"ext4\"",
    ] {
        assert!(calls[0].contains(part), "{part} in {}", calls[0]);
    }
    let status = serde_json::to_value(of.claim().await.status).unwrap();
    assert_eq!(
        status,
        json!({"phase": "Bound", "capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}})
    );
    assert_eq!(of.sync_one().await, [""; 0]);
    of.expansions.forget("u-p");
    of.grow().await;
    assert_eq!(of.sync_one().await, [""; 0]);
}

#[tokio::test]
async fn a_volume_that_grew_before_is_expanded_before_its_pod_starts() {
    let of = Expanding::new(vec![wire::EXPAND_VOLUME]).await;
    of.grow().await;
    *of.serving.driver.failing.lock() = Some(("expand", Code::OutOfRange));
    let failed = of.begin().await.unwrap_err();
    assert!(
        failed.ends_with("code = OutOfRange desc = the disk is on fire"),
        "{failed}"
    );
    let status = of.claim().await.status.unwrap();
    assert_eq!(
        status.allocated_resource_statuses.unwrap()["storage"],
        "NodeResizeInfeasible"
    );
    let conditions = status.conditions.unwrap();
    let types: Vec<&str> = conditions.iter().map(|c| c.type_.as_str()).collect();
    assert_eq!(types, ["FileSystemResizePending", "NodeResizeError"]);
    // It is the resizer's turn.
    *of.serving.driver.failing.lock() = None;
    assert_eq!(of.sync_one().await, [""; 0]);
    of.grow().await;
    assert!(of.sync_one().await[0].starts_with(BYTES));
}

#[tokio::test]
async fn a_driver_without_online_expansion_is_called_once() {
    let of = Expanding::new(vec![wire::EXPAND_VOLUME]).await;
    of.begin().await.unwrap();
    of.grow().await;
    *of.serving.driver.failing.lock() = Some(("expand", Code::FailedPrecondition));
    assert_eq!(of.sync_one().await, [""; 0]);
    *of.serving.driver.failing.lock() = None;
    assert_eq!(of.sync_one().await, [""; 0]);
    let status = of.claim().await.status.unwrap();
    assert_eq!(
        status.allocated_resource_statuses.unwrap()["storage"],
        "NodeResizeInProgress"
    );
}
