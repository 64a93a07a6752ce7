//! A plugin of tests' own: gRPC over real unix sockets, and its registration with the kubelet.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use knarr_node::plugins::serve::{self, Answer, Service};
use knarr_node::plugins::watcher;
use tokio::task::AbortHandle;

/// A plugin's server; stopped, with its socket, when dropped.
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
    pub statuses: parking_lot::Mutex<Vec<watcher::RegistrationStatus>>,
}

#[async_trait::async_trait]
impl Service for Registrar {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        match request.uri().path().rsplit('/').next() {
            Some("GetInfo") => {
                serve::unary(request, |_: watcher::InfoRequest| async { Ok(self.info.clone()) }).await
            }
            Some("NotifyRegistrationStatus") => {
                let record = |status: watcher::RegistrationStatus| async {
                    self.statuses.lock().push(status);
                    Ok(watcher::RegistrationStatusResponse {})
                };
                serve::unary(request, record).await
            }
            _ => serve::unimplemented(&request),
        }
    }
}
