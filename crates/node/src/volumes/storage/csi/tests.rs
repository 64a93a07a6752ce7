//! A driver that plays, over real unix sockets: registered, asked for volumes, gone again.

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
use knarr_client::fake::FakeApi;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::task::AbortHandle;
use tonic::Status;

use super::super::{Failure, Hollow, Shelf, claimed, inline};
use super::*;
use crate::plugins::{Watcher, watcher};
use crate::untrusted_fs::Pool;

type Answer = Response<tonic::body::Body>;

/// What it was told, and what it refuses.
struct Driver {
    told: Mutex<Vec<String>>,
    capabilities: Vec<i32>,
    versions: Vec<String>,
    kind: &'static str,
    refuses: Mutex<Option<&'static str>>,
}

impl Default for Driver {
    fn default() -> Self {
        Driver {
            told: Mutex::default(),
            capabilities: vec![wire::STAGE_UNSTAGE],
            versions: vec!["1.0.0".into()],
            kind: "CSIPlugin",
            refuses: Mutex::default(),
        }
    }
}

/// Running; gone, with its socket, when dropped.
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
                let told = |status: watcher::RegistrationStatus| {
                    self.told.lock().push(format!(
                        "registered {} {}",
                        status.plugin_registered, status.error
                    ));
                    Ok(watcher::RegistrationStatusResponse {})
                };
                unary(request, told).await
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
                let said = wire::Capabilities { capabilities };
                unary(request, |_: wire::NodeGetCapabilities| Ok(said)).await
            }
            "NodeStageVolume" => {
                unary(request, |r: wire::StageRequest| {
                    self.asked("stage", &r.volume_id, format!("{r:?}"))
                })
                .await
            }
            "NodePublishVolume" => {
                let published = |r: wire::PublishRequest| {
                    std::fs::create_dir_all(&r.target_path).unwrap();
                    self.asked("publish", &r.volume_id, format!("{r:?}"))
                };
                unary(request, published).await
            }
            "NodeUnpublishVolume" => {
                let unpublished = |r: wire::UnpublishRequest| {
                    // Drivers remove what they made.
                    drop(std::fs::remove_dir(&r.target_path));
                    self.asked("unpublish", &r.volume_id, String::new())
                };
                unary(request, unpublished).await
            }
            "NodeUnstageVolume" => {
                unary(request, |r: wire::UnstageRequest| {
                    self.asked("unstage", &r.volume_id, String::new())
                })
                .await
            }
            other => panic!("a kubelet asked {other}"),
        }
    }

    fn asked(&self, what: &str, volume: &str, all: String) -> Result<wire::Empty, Status> {
        if *self.refuses.lock() == Some(what) {
            return Err(Status::internal("the disk is on fire"));
        }
        self.told
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
    shelf: Shelf,
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
        };
        let tools = Tools {
            host: Arc::new(Hollow),
            drivers: drivers.clone(),
            api: api.clone(),
            node: "n1".into(),
            files: Pool::new(),
        };
        Node {
            shelf: Shelf::new(dir.path().into(), tools),
            watcher: Watcher::new(dir.path().join(watcher::REGISTRY), vec![Arc::new(registrar)]),
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

    async fn look(&self) {
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

    async fn set_up(&self, of: &str) -> Result<PathBuf, Failure> {
        let volume = from(
            json!({"metadata": {"name": "pv"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "d.example", "volumeHandle": "h", "fsType": "ext4", "volumeAttributes": {"a": "1"}}}}),
        );
        let wanted = claimed(&*self.api, &pod(of), &volume, false, None).await.unwrap();
        self.shelf.set_up(&wanted.unwrap()).await
    }
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pod(name: &str) -> core::Pod {
    from(
        json!({"metadata": {"namespace": "a", "name": name, "uid": format!("u-{name}")},
        "spec": {"containers": [], "serviceAccountName": "sa"}}),
    )
}

fn first_words(told: &[String]) -> Vec<String> {
    let two = |line: &String| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    told.iter().map(two).collect()
}

#[tokio::test]
async fn a_driver_that_shows_a_socket_is_told_to_the_cluster_and_forgotten_with_it() {
    let node = Node::new().await;
    node_info::make(&*node.api, "n1").await.unwrap();
    assert_eq!(node.csi_node().await, json!([]));
    let serving = node.serve(Driver::default());
    node.look().await;
    node.look().await;
    assert_eq!(*serving.driver.told.lock(), ["registered true "]);
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
    node.look().await;
    assert_eq!(node.csi_node().await, json!([]));
    assert_eq!(node.drivers.socket("d.example"), None);
    let found = node.api.get_as::<core::Node>("", "n1").await.unwrap();
    let annotations = found.metadata.annotations.clone().unwrap_or_default();
    assert!(annotations.is_empty(), "{annotations:?}");
}

#[tokio::test]
async fn what_is_no_driver_that_is_spoken_with_is_told_so() {
    for (driver, word) in [
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
        node.look().await;
        let told = serving.driver.told.lock().join(" ");
        assert!(
            told.starts_with("registered false") && told.contains(word),
            "{told}"
        );
        assert_eq!(node.drivers.socket("d.example"), None);
    }
}

#[tokio::test]
async fn s7_a_volume_is_staged_once_a_node_and_published_once_a_pod() {
    let node = Node::new().await;
    let serving = node.serve(Driver::default());
    node.look().await;
    let told = || std::mem::take(&mut *serving.driver.told.lock());
    told();
    let failed = node.set_up("p").await;
    let Err(Failure::Stage(why)) = failed else {
        panic!("{failed:?}")
    };
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
    let said = told();
    assert_eq!(first_words(&said), ["stage h", "publish h"]);
    let staged = format!("plugins/kubernetes.io/csi/d.example/{}/globalmount", sha256("h"));
    for line in &said {
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
    told();
    node.shelf.tear_down("u-p").await.unwrap();
    assert_eq!(told(), ["unpublish h"]);
    // A driver that fails is asked again, and nothing is forgotten meanwhile.
    *serving.driver.refuses.lock() = Some("unstage");
    let failed = node.shelf.tear_down("u-q").await.unwrap_err();
    assert_eq!(failed, "rpc error: code = Internal desc = the disk is on fire");
    *serving.driver.refuses.lock() = None;
    told();
    node.shelf.tear_down("u-q").await.unwrap();
    assert_eq!(told(), ["unpublish h", "unstage h"]);
    assert!(!node.dir.path().join(staged).exists());
}

#[tokio::test]
async fn a_driver_that_is_not_there_or_fails_is_told_in_the_words_of_the_step() {
    let node = Node::new().await;
    let failed = node.set_up("p").await;
    let missing = "kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: driver name d.example not \
                   found in the list of registered CSI drivers";
    assert_eq!(failed, Err(Failure::Stage(missing.into())));
    // Nothing can have been begun, so such a pod's end waits for no driver.
    node.shelf.tear_down("u-p").await.unwrap();
    let serving = node.serve(Driver::default());
    node.look().await;
    node.attach("h", json!({"attached": true})).await;
    *serving.driver.refuses.lock() = Some("publish");
    let refused = "rpc error: code = Internal desc = the disk is on fire";
    assert_eq!(node.set_up("p").await, Err(Failure::Publish(refused.into())));
}

#[tokio::test]
async fn an_inline_volume_is_only_published_and_its_driver_told_of_the_pod() {
    let node = Node::new().await;
    let serving = node.serve(Driver::default());
    node.look().await;
    let volume: core::Volume = from(json!({"name": "v", "csi": {"driver": "d.example"}}));
    let wanted = inline(&*node.api, &pod("p"), &volume, None)
        .await
        .unwrap()
        .unwrap();
    let failed = node.shelf.set_up(&wanted).await;
    let Err(Failure::Publish(why)) = failed else {
        panic!("{failed:?}")
    };
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
    serving.driver.told.lock().clear();
    node.shelf.set_up(&wanted).await.unwrap();
    let handle = inline_handle("u-p", "v");
    let told = std::mem::take(&mut *serving.driver.told.lock());
    assert_eq!(first_words(&told), [format!("publish {handle}")]);
    for part in [
        "csi.storage.k8s.io/pod.name\": \"p\"",
        "serviceAccount.name\": \"sa\"",
        "ephemeral\": \"true\"",
    ] {
        assert!(told[0].contains(part), "{part} in {}", told[0]);
    }
    node.shelf.tear_down("u-p").await.unwrap();
    assert_eq!(*serving.driver.told.lock(), [format!("unpublish {handle}")]);
}
