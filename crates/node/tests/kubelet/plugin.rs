//! What plugins of tests have in common: gRPC over real unix sockets.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use knarr_node::plugins::serve::{self, Answer, Service};
use knarr_node::plugins::{call, watcher};
use knarr_node::podresources::wire::{GetPodResourcesRequest, PodResources};
use tokio::task::AbortHandle;
use tokio::time::{Duration, Instant, sleep};

use super::World;

/// A plugin's server; gone, with its socket, when dropped.
pub struct Serving {
    socket: PathBuf,
    task: AbortHandle,
}

impl Serving {
    pub fn begin<S: Service>(socket: &Path, service: Arc<S>) -> Self {
        let (directory, name) = (socket.parent().unwrap(), socket.file_name().unwrap());
        let listener = serve::listen(directory, name.to_str().unwrap(), 0o750).unwrap();
        let task = tokio::spawn(serve::serve(listener, service));
        Serving {
            socket: socket.into(),
            task: task.abort_handle(),
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
        drop(std::fs::remove_file(&self.socket));
    }
}

/// Registers in the kubelet's registry for a plugin that listens elsewhere.
pub struct Registrar {
    pub info: watcher::PluginInfo,
    pub heard: parking_lot::Mutex<Vec<watcher::RegistrationStatus>>,
}

#[async_trait::async_trait]
impl Service for Registrar {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        match request.uri().path().rsplit('/').next() {
            Some("GetInfo") => {
                serve::unary(request, |_: watcher::InfoRequest| async { Ok(self.info.clone()) }).await
            }
            Some("NotifyRegistrationStatus") => {
                let hear = |status: watcher::RegistrationStatus| async {
                    self.heard.lock().push(status);
                    Ok(watcher::RegistrationStatusResponse {})
                };
                serve::unary(request, hear).await
            }
            _ => serve::unimplemented(&request),
        }
    }
}

impl World {
    /// What the pod-resources API says of a pod.
    pub async fn pod_resources(&self, name: &str) -> PodResources {
        let socket = self.dir.path().join("kubelet/pod-resources/kubelet.sock");
        let asked = GetPodResourcesRequest {
            pod_name: name.into(),
            pod_namespace: "default".into(),
        };
        let answer = call(&socket, asked, Duration::from_secs(5)).await.unwrap();
        answer.pod_resources.unwrap()
    }
}

/// Waits until it is so.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !is_so().await {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        sleep(Duration::from_millis(20)).await;
    }
}
