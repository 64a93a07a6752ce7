//! A DRA driver of tests' own, over real unix sockets.

use std::path::Path;
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use knarr_node::dra::wire::*;
use knarr_node::plugins;
use knarr_node::plugins::serve::{Answer, Service};
use knarr_node::plugins::watcher;
use parking_lot::Mutex;
use tonic::Status;

use super::plugin_support::{Registrar, Serving};

/// Prepares every claim with its one device `d` of the pool `pool`.
#[derive(Default)]
pub struct Driver {
    pub calls: Mutex<Vec<String>>,
    /// The CDI device of every claim; without it, each has one that is named like the claim.
    pub cdi_device: Option<String>,
    pub failing: Mutex<Option<&'static str>>,
    pub hangs: std::sync::atomic::AtomicBool,
    /// Whether it reports the health of its device, and what that is.
    pub reports: bool,
    pub health: tokio::sync::watch::Sender<i32>,
}

impl Driver {
    pub fn calls(&self) -> Vec<String> {
        self.calls.lock().clone()
    }

    fn call(&self, path: &str, claims: &[Claim]) {
        let version = if path.contains("v1beta1") { "v1beta1" } else { "v1" };
        let method = path.rsplit('/').next().unwrap();
        let names: Vec<_> = claims.iter().map(|c| c.name.as_str()).collect();
        self.calls
            .lock()
            .push(format!("{version} {method} {}", names.join(",")));
    }
}

type Healths = (tokio::sync::watch::Receiver<i32>, bool);

async fn next_health(
    (mut health, said): Healths,
) -> Option<(Result<NodeWatchResourcesResponse, Status>, Healths)> {
    if said {
        health.changed().await.ok()?;
    }
    let device = DeviceHealth {
        device: Some(DeviceIdentifier {
            pool_name: "pool".into(),
            device_name: "d".into(),
        }),
        health: *health.borrow_and_update(),
        message: "as it is".into(),
        ..DeviceHealth::default()
    };
    let devices = vec![device];
    Some((Ok(NodeWatchResourcesResponse { devices }), (health, true)))
}

#[async_trait::async_trait]
impl Service for Driver {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path().to_string();
        if path.ends_with("/NodePrepareResources") {
            let prepare = |asked: NodePrepareResourcesRequest| async move {
                self.call(&path, &asked.claims);
                if self.hangs.load(std::sync::atomic::Ordering::Relaxed) {
                    std::future::pending::<()>().await;
                }
                let error = self.failing.lock().unwrap_or_default();
                let one = |claim: Claim| {
                    let of_claim = || format!("example.com/gpu={}", claim.name);
                    let device = Device {
                        request_names: vec!["r".into()],
                        pool_name: "pool".into(),
                        device_name: "d".into(),
                        cdi_device_ids: vec![self.cdi_device.clone().unwrap_or_else(of_claim)],
                        share_id: None,
                    };
                    let devices = if error.is_empty() { vec![device] } else { vec![] };
                    let error = error.to_string();
                    (claim.uid, NodePrepareResourceResponse { devices, error })
                };
                let claims = asked.claims.into_iter().map(one).collect();
                Ok::<_, Status>(NodePrepareResourcesResponse { claims })
            };
            plugins::serve::unary(request, prepare).await
        } else if path.ends_with("/NodeUnprepareResources") {
            let unprepare = |asked: NodeUnprepareResourcesRequest| async move {
                self.call(&path, &asked.claims);
                let one = |claim: Claim| (claim.uid, NodeUnprepareResourceResponse::default());
                let claims = asked.claims.into_iter().map(one).collect();
                Ok::<_, Status>(NodeUnprepareResourcesResponse { claims })
            };
            plugins::serve::unary(request, unprepare).await
        } else if path.ends_with("/NodeWatchResources") && self.reports {
            let codec =
                tonic_prost::ProstCodec::<NodeWatchResourcesResponse, NodeWatchResourcesRequest>::default();
            let health = self.health.subscribe();
            let mut reports = Some(Box::pin(futures::stream::unfold((health, false), next_health)));
            let service = tower::service_fn(move |_: tonic::Request<NodeWatchResourcesRequest>| {
                let reports = reports.take().unwrap();
                async { Ok::<_, Status>(tonic::Response::new(reports)) }
            });
            let request = request.map(tonic::body::Body::new);
            tonic::server::Grpc::new(codec)
                .server_streaming(service, request)
                .await
        } else {
            plugins::serve::unimplemented(&request)
        }
    }
}

/// Serves a driver at `socket` and registers it with the kubelet of this directory.
pub fn serve(
    driver: &Arc<Driver>,
    name: &str,
    socket: &Path,
    kubelet: &Path,
    versions: &[&str],
) -> [Serving; 2] {
    let registrar = Registrar {
        info: watcher::PluginInfo {
            kind: "DRAPlugin".into(),
            name: name.into(),
            endpoint: socket.display().to_string(),
            supported_versions: versions.iter().map(|v| v.to_string()).collect(),
        },
        statuses: Mutex::default(),
    };
    let registry = kubelet.join(format!("plugins_registry/{name}.sock"));
    [
        Serving::begin(socket, driver.clone()),
        Serving::begin(&registry, Arc::new(registrar)),
    ]
}
