//! A fake driver is registered, called for volumes, and deregistered again.

mod attached;
mod driver;
mod expansion;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1::CSINode;
use k8s_openapi::jiff::Timestamp;
use knarr_api::registry;
use knarr_client::TokioClock;
use knarr_client::fake::FakeApi;
use serde_json::{Value, json};
use std::sync::Arc;
use tonic::Code;

use super::super::{StorageFailure, StorageManager, VolumeRequest, VolumesInUse, claimed, inline};
use super::*;
use crate::host::HollowHost;
use crate::plugins::{Watcher, watcher};
use crate::untrusted_fs::Pool;
use driver::{Driver, Serving};

struct Node {
    dir: tempfile::TempDir,
    api: Arc<FakeApi>,
    watcher: Arc<Watcher>,
    drivers: Arc<drivers::Drivers>,
    storage_manager: StorageManager,
}

impl Node {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let api = Arc::new(FakeApi::new(Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH))));
        api.create_as::<core::Node>(from(json!({"metadata": {"name": "n1"}})))
            .await
            .unwrap();
        let drivers: Arc<drivers::Drivers> = Arc::default();
        let registrar = drivers::Registrar {
            drivers: drivers.clone(),
            api: api.clone(),
            node: "n1".into(),
            host: Arc::new(HollowHost),
        };
        let tools = Tools {
            host: Arc::new(HollowHost),
            drivers: drivers.clone(),
            api: api.clone(),
            node: "n1".into(),
            files: Pool::new(),
        };
        Node {
            storage_manager: StorageManager::new(dir.path().into(), tools, VolumesInUse::default()),
            watcher: Watcher::new(
                dir.path().join(watcher::REGISTRY),
                vec![Arc::new(registrar)],
                Arc::new(HollowHost),
            ),
            dir,
            api,
            drivers,
        }
    }

    fn registry(&self) -> PathBuf {
        self.dir.path().join("plugins_registry")
    }

    fn serve(&self, driver: Driver) -> Serving {
        driver.serve(&self.registry().join("d.sock"))
    }

    async fn sync_one(&self) {
        futures::future::join_all(self.watcher.scan()).await;
    }

    async fn csi_node(&self) -> Value {
        let found = self.api.get_as::<CSINode>("", "n1").await.unwrap();
        serde_json::to_value(&found.spec.drivers).unwrap()
    }

    async fn attach(&self, handle: &str, status: Value) {
        let name = csi_attachment(handle, "d.example", &"n1".into());
        let made = json!({"metadata": {"name": name}, "spec": {"attacher": "d.example", "nodeName": "n1",
            "source": {"persistentVolumeName": "pv"}}, "status": status});
        let made: VolumeAttachment = from(made);
        let status = made.status.clone();
        let created = self.api.create_as(made).await.unwrap();
        let mut attached = (*created).clone();
        attached.status = status;
        self.api.update_status_as(attached).await.unwrap();
    }

    async fn expected(&self, of: &str, volume: &core::PersistentVolume) -> VolumeRequest {
        let expected = claimed(&*self.api, &pod(of), volume, false, None).await;
        expected.unwrap().unwrap()
    }

    async fn set_up(&self, of: &str) -> Result<PathBuf, StorageFailure> {
        self.storage_manager
            .set_up(&self.expected(of, &volume("Filesystem", "1Gi")).await)
            .await
    }
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn volume(mode: &str, size: &str) -> core::PersistentVolume {
    from(json!({
        "metadata": {"name": "pv"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeMode": mode, "capacity": {"storage": size},
            "csi": {"driver": "d.example", "volumeHandle": "h", "fsType": "ext4", "volumeAttributes": {"a": "1"}},
        },
    }))
}

fn pod(name: &str) -> core::Pod {
    from(
        json!({"metadata": {"namespace": "a", "name": name, "uid": format!("u-{name}")},
        "spec": {"containers": [], "serviceAccountName": "sa"}}),
    )
}

fn first_tokens(calls: &[String]) -> Vec<String> {
    let two = |line: &String| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    calls.iter().map(two).collect()
}

#[tokio::test]
async fn a_driver_with_a_socket_is_published_to_the_cluster_and_removed_with_it() {
    let node = Node::new().await;
    node_info::make(&*node.api, &"n1".into()).await.unwrap();
    assert_eq!(node.csi_node().await, json!([]));
    let serving = node.serve(Driver::default());
    node.sync_one().await;
    node.sync_one().await;
    assert_eq!(*serving.driver.calls.lock(), ["registered true "]);
    assert_eq!(
        node.csi_node().await,
        json!([{"name": "d.example", "nodeID": "id-n1", "topologyKeys": ["d.example/zone"], "allocatable": {"count": 7}}])
    );
    let found = node.api.get_as::<core::Node>("", "n1").await.unwrap();
    let meta = &found.metadata;
    assert_eq!(meta.labels.as_ref().unwrap()["d.example/zone"], "z1");
    assert_eq!(
        meta.annotations.as_ref().unwrap()["csi.volume.kubernetes.io/nodeid"],
        r#"{"d.example":"id-n1"}"#
    );
    drop(serving);
    node.sync_one().await;
    assert_eq!(node.csi_node().await, json!([]));
    assert_eq!(node.drivers.socket("d.example"), None);
    let found = node.api.get_as::<core::Node>("", "n1").await.unwrap();
    let annotations = found.metadata.annotations.clone().unwrap_or_default();
    assert!(annotations.is_empty(), "{annotations:?}");
}

#[tokio::test]
async fn an_unsupported_driver_receives_the_error_as_its_registration_status() {
    for (driver, part) in [
        (
            Driver {
                kind: "DevicePlugin",
                ..Driver::default()
            },
            "no handler registered for plugin type: DevicePlugin",
        ),
        (
            Driver {
                versions: vec!["0.3.0".into()],
                ..Driver::default()
            },
            "expected one of 1.x",
        ),
    ] {
        let node = Node::new().await;
        let serving = node.serve(driver);
        node.sync_one().await;
        let calls = serving.driver.calls.lock().join(" ");
        assert!(
            calls.starts_with("registered false") && calls.contains(part),
            "{calls}"
        );
        assert_eq!(node.drivers.socket("d.example"), None);
    }
}

#[tokio::test]
async fn s7_a_volume_is_staged_once_a_node_and_published_once_a_pod() {
    let node = Node::new().await;
    let serving = node.serve(Driver::default());
    node.sync_one().await;
    let calls = || std::mem::take(&mut *serving.driver.calls.lock());
    calls();
    let failed = node.set_up("p").await;
    let Err(StorageFailure::Stage(why)) = failed else {
        panic!("{failed:?}")
    };
    let why = why.to_string();
    assert!(
        why.starts_with("volume h has GET error for volume attachment csi-"),
        "{why}"
    );
    node.attach("h", json!({"attached": true, "attachmentMetadata": {"lun": "4"}}))
        .await;
    let at = node.set_up("p").await.unwrap();
    assert_eq!(
        at,
        node.dir
            .path()
            .join("pods/u-p/volumes/kubernetes.io~csi/pv/mount")
    );
    let calls_made = calls();
    assert_eq!(first_tokens(&calls_made), ["stage h", "publish h"]);
    let staged = format!("plugins/kubernetes.io/csi/d.example/{}/globalmount", sha256("h"));
    for line in &calls_made {
        for part in [
            staged.as_str(),
            r#""lun": "4""#,
            r#""a": "1""#,
            r#"fs_type: "ext4""#,
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }
    node.set_up("q").await.unwrap();
    calls();
    node.storage_manager.tear_down(&"u-p".into()).await.unwrap();
    assert_eq!(calls(), ["unpublish h"]);
    // A driver that fails is called again, and nothing is forgotten meanwhile.
    *serving.driver.failing.lock() = Some(("unstage", Code::Internal));
    let failed = node.storage_manager.tear_down(&"u-q".into()).await.unwrap_err();
    assert_eq!(
        failed.to_string(),
        "rpc error: code = Internal desc = the disk is on fire"
    );
    *serving.driver.failing.lock() = None;
    calls();
    node.storage_manager.tear_down(&"u-q".into()).await.unwrap();
    assert_eq!(calls(), ["unpublish h", "unstage h"]);
    assert!(!node.dir.path().join(staged).exists());
}

#[tokio::test]
async fn a_missing_or_failing_driver_is_reported_with_the_message_of_the_step() {
    let node = Node::new().await;
    let failed = node.set_up("p").await;
    let missing = "kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: driver name d.example not \
                   found in the list of registered CSI drivers";
    let Err(StorageFailure::Stage(why)) = failed else {
        panic!("{failed:?}")
    };
    assert_eq!(why.to_string(), missing);
    // Nothing can have been started, so such a pod's teardown waits for no driver.
    node.storage_manager.tear_down(&"u-p".into()).await.unwrap();
    let serving = node.serve(Driver::default());
    node.sync_one().await;
    node.attach("h", json!({"attached": true})).await;
    *serving.driver.failing.lock() = Some(("publish", Code::Internal));
    let step = "rpc error: code = Internal desc = the disk is on fire";
    let failed = node.set_up("p").await;
    let Err(StorageFailure::Publish(why)) = failed else {
        panic!("{failed:?}")
    };
    assert_eq!(why.to_string(), step);
}

#[tokio::test]
async fn an_inline_volume_is_only_published_with_the_pods_info() {
    let node = Node::new().await;
    let serving = node.serve(Driver::default());
    node.sync_one().await;
    let volume: core::Volume = from(json!({"name": "v", "csi": {"driver": "d.example"}}));
    let expected = inline(&*node.api, &pod("p"), &volume, None)
        .await
        .unwrap()
        .unwrap();
    let failed = node.storage_manager.set_up(&expected).await;
    let Err(StorageFailure::Publish(why)) = failed else {
        panic!("{failed:?}")
    };
    let why = why.to_string();
    assert!(
        why.contains("volume mode \"Ephemeral\" not supported by driver d.example"),
        "{why}"
    );
    let driver: CSIDriver = from(json!({"metadata": {"name": "d.example"},
        "spec": {"podInfoOnMount": true, "volumeLifecycleModes": ["Ephemeral"]}}));
    node.api
        .create(&registry::CSI_DRIVER, Box::new(driver))
        .await
        .unwrap();
    serving.driver.calls.lock().clear();
    node.storage_manager.set_up(&expected).await.unwrap();
    let handle = inline_handle(&"u-p".into(), "v");
    let calls = std::mem::take(&mut *serving.driver.calls.lock());
    assert_eq!(first_tokens(&calls), [format!("publish {handle}")]);
    for part in [
        "csi.storage.k8s.io/pod.name\": \"p\"",
        "serviceAccount.name\": \"sa\"",
        "ephemeral\": \"true\"",
    ] {
        assert!(calls[0].contains(part), "{part} in {}", calls[0]);
    }
    node.storage_manager.tear_down(&"u-p".into()).await.unwrap();
    assert_eq!(*serving.driver.calls.lock(), [format!("unpublish {handle}")]);
}

#[tokio::test]
async fn a_block_volume_is_published_as_a_device() {
    let node = Node::new().await;
    let serving = node.serve(Driver::default());
    node.sync_one().await;
    node.attach("h", json!({"attached": true})).await;
    serving.driver.calls.lock().clear();
    let expected = node.expected("p", &volume("Block", "1Gi")).await;
    let at = node.storage_manager.set_up(&expected).await.unwrap();
    assert_eq!(
        at,
        node.dir
            .path()
            .join("pods/u-p/volumeDevices/kubernetes.io~csi/pv")
    );
    assert!(at.is_file());
    let calls = std::mem::take(&mut *serving.driver.calls.lock());
    assert_eq!(first_tokens(&calls), ["stage h", "publish h"]);
    for line in &calls {
        assert!(
            line.contains("block: Some") && line.contains("mount: None"),
            "{line}"
        );
    }
    // The driver leaves the file behind.
    node.storage_manager.tear_down(&"u-p".into()).await.unwrap();
    assert_eq!(*serving.driver.calls.lock(), ["unpublish h", "unstage h"]);
    assert!(!at.exists());
}
