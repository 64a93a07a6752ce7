//! A fake driver, over real unix sockets: registered, called for volumes, deregistered again.

use std::convert::Infallible;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1::CSINode;
use k8s_openapi::jiff::Timestamp;
use knarr_api::registry;
use knarr_client::TokioClock;
use knarr_client::events::EventRecorder;
use knarr_client::fake::FakeApi;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::task::AbortHandle;
use tonic::{Code, Status};

use super::super::{StorageFailure, StorageManager, VolumeRequest, claimed, inline};
use super::*;
use crate::host::HollowHost;
use crate::plugins::{Watcher, watcher};
use crate::untrusted_fs::Pool;
use crate::volumes::expansion::Expansions;

type Answer = Response<tonic::body::Body>;

/// Its calls, and the one that fails.
struct Driver {
    calls: Mutex<Vec<String>>,
    capabilities: Vec<i32>,
    versions: Vec<String>,
    kind: &'static str,
    failing: Mutex<Option<(&'static str, Code)>>,
}

impl Default for Driver {
    fn default() -> Self {
        Driver {
            calls: Mutex::default(),
            capabilities: vec![wire::STAGE_UNSTAGE],
            versions: vec!["1.0.0".into()],
            kind: "CSIPlugin",
            failing: Mutex::default(),
        }
    }
}

/// A running driver; stopped, with its socket, when dropped.
struct Serving {
    driver: Arc<Driver>,
    socket: PathBuf,
    task: AbortHandle,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
        drop(std::fs::remove_file(&self.socket));
    }
}

impl Driver {
    fn serve(self, socket: &Path) -> Serving {
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(socket).unwrap();
        let driver = Arc::new(self);
        let answering = driver.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let driver = answering.clone();
                let answer = service_fn(move |request| {
                    let driver = driver.clone();
                    async move { Ok::<_, Infallible>(driver.answer(request).await) }
                });
                let connection = http2::Builder::new(TokioExecutor::new());
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), answer));
            }
        });
        Serving {
            driver,
            socket: socket.into(),
            task: task.abort_handle(),
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let call = request.uri().path().rsplit('/').next().unwrap().to_string();
        match call.as_str() {
            "GetInfo" => {
                let info = watcher::PluginInfo {
                    kind: self.kind.into(),
                    name: "d.example".into(),
                    endpoint: String::new(),
                    supported_versions: self.versions.clone(),
                };
                unary(request, |_: watcher::InfoRequest| Ok(info)).await
            }
            "NotifyRegistrationStatus" => {
                let calls = |status: watcher::RegistrationStatus| {
                    self.calls.lock().push(format!(
                        "registered {} {}",
                        status.plugin_registered, status.error
                    ));
                    Ok(watcher::RegistrationStatusResponse {})
                };
                unary(request, calls).await
            }
            "NodeGetInfo" => {
                let info = wire::NodeInfo {
                    node_id: "id-n1".into(),
                    max_volumes_per_node: 7,
                    accessible_topology: Some(wire::Topology {
                        segments: [("d.example/zone".to_string(), "z1".to_string())].into(),
                    }),
                };
                unary(request, |_: wire::NodeGetInfo| Ok(info)).await
            }
            "NodeGetCapabilities" => {
                let rpc = |kind: &i32| wire::Capability {
                    rpc: Some(wire::Rpc { kind: *kind }),
                };
                let capabilities = self.capabilities.iter().map(rpc).collect();
                let calls_made = wire::Capabilities { capabilities };
                unary(request, |_: wire::NodeGetCapabilities| Ok(calls_made)).await
            }
            "NodeStageVolume" => {
                unary(request, |r: wire::StageRequest| {
                    self.called("stage", &r.volume_id, format!("{r:?}"))
                })
                .await
            }
            "NodePublishVolume" => {
                let published = |r: wire::PublishRequest| {
                    match r.volume_capability.as_ref().and_then(|c| c.block.as_ref()) {
                        Some(_) => std::fs::write(&r.target_path, "").unwrap(),
                        None => std::fs::create_dir_all(&r.target_path).unwrap(),
                    }
                    self.called("publish", &r.volume_id, format!("{r:?}"))
                };
                unary(request, published).await
            }
            "NodeUnpublishVolume" => {
                let unpublished = |r: wire::UnpublishRequest| {
                    // Drivers remove what they made.
                    drop(std::fs::remove_dir(&r.target_path));
                    self.called("unpublish", &r.volume_id, String::new())
                };
                unary(request, unpublished).await
            }
            "NodeExpandVolume" => {
                let expanded = |r: wire::ExpandRequest| {
                    let bytes = r.capacity_range.as_ref().unwrap().required_bytes;
                    self.called("expand", &r.volume_id, format!("{bytes} {r:?}"))
                };
                unary(request, expanded).await
            }
            "NodeUnstageVolume" => {
                unary(request, |r: wire::UnstageRequest| {
                    self.called("unstage", &r.volume_id, String::new())
                })
                .await
            }
            other => panic!("a kubelet asked {other}"),
        }
    }

    fn called(&self, what: &str, volume: &str, all: String) -> Result<wire::Empty, Status> {
        if let Some((step, code)) = *self.failing.lock()
            && step == what
        {
            return Err(Status::new(code, "the disk is on fire"));
        }
        self.calls
            .lock()
            .push(format!("{what} {volume} {all}").trim_end().into());
        Ok(wire::Empty {})
    }
}

async fn unary<C: wire::Call>(
    request: Request<Incoming>,
    answer: impl FnOnce(C) -> Result<C::Answer, Status>,
) -> Answer {
    let codec = tonic_prost::ProstCodec::<C::Answer, C>::default();
    let mut answer = Some(answer);
    let service = tower::service_fn(move |request: tonic::Request<C>| {
        let answer = answer.take().expect("asked once");
        std::future::ready(answer(request.into_inner()).map(tonic::Response::new))
    });
    let request = request.map(tonic::body::Body::new);
    tonic::server::Grpc::new(codec).unary(service, request).await
}

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
            storage_manager: StorageManager::new(dir.path().into(), tools),
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
        let name = csi_attachment(handle, "d.example", "n1");
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
    node_info::make(&*node.api, "n1").await.unwrap();
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
    node.storage_manager.tear_down("u-p").await.unwrap();
    assert_eq!(calls(), ["unpublish h"]);
    // A driver that fails is called again, and nothing is forgotten meanwhile.
    *serving.driver.failing.lock() = Some(("unstage", Code::Internal));
    let failed = node.storage_manager.tear_down("u-q").await.unwrap_err();
    assert_eq!(
        failed.to_string(),
        "rpc error: code = Internal desc = the disk is on fire"
    );
    *serving.driver.failing.lock() = None;
    calls();
    node.storage_manager.tear_down("u-q").await.unwrap();
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
    node.storage_manager.tear_down("u-p").await.unwrap();
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
    let handle = inline_handle("u-p", "v");
    let calls = std::mem::take(&mut *serving.driver.calls.lock());
    assert_eq!(first_tokens(&calls), [format!("publish {handle}")]);
    for part in [
        "csi.storage.k8s.io/pod.name\": \"p\"",
        "serviceAccount.name\": \"sa\"",
        "ephemeral\": \"true\"",
    ] {
        assert!(calls[0].contains(part), "{part} in {}", calls[0]);
    }
    node.storage_manager.tear_down("u-p").await.unwrap();
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
    node.storage_manager.tear_down("u-p").await.unwrap();
    assert_eq!(*serving.driver.calls.lock(), ["unpublish h", "unstage h"]);
    assert!(!at.exists());
}

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
