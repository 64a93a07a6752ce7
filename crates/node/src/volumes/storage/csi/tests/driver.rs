//! A fake CSI driver, over a real unix socket.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::task::AbortHandle;
use tonic::{Code, Status};

use super::wire;
use crate::plugins::watcher;

type Answer = Response<tonic::body::Body>;

/// Its calls, and the one that fails.
pub(super) struct Driver {
    pub calls: Mutex<Vec<String>>,
    pub capabilities: Vec<i32>,
    pub versions: Vec<String>,
    pub kind: &'static str,
    pub failing: Mutex<Option<(&'static str, Code)>>,
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
pub(super) struct Serving {
    pub driver: Arc<Driver>,
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
    pub fn serve(self, socket: &Path) -> Serving {
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
