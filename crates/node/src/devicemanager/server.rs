//! The socket where device plugins register: `device-plugins/kubelet.sock`. A plugin watches that socket: when a
//! kubelet creates it again, the plugin registers again.

use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::Request;
use hyper::body::Incoming;
use tokio::time::sleep;
use tonic::Status;
use tracing::{info, warn};

use super::{Devices, VERSION, wire};
use crate::plugins::Call;
use crate::plugins::serve::{self, Answer, Service};
use crate::untrusted_fs::{Dir, Kind};

const SOCKET: &str = "kubelet.sock";
const MODE: u32 = 0o750;
/// Between attempts to listen.
const RETRY: Duration = Duration::from_secs(1);
/// Entries of the directory.
const ENTRIES_MAX: usize = 4096;

/// Serves until dropped.
pub(super) async fn run(devices: &Arc<Devices>, directory: &Path) {
    let listener = loop {
        match remove_sockets(directory).and_then(|()| serve::listen(directory, SOCKET, MODE)) {
            Ok(listener) => break listener,
            Err(error) => {
                warn!(%error, directory = %directory.display(), "device plugins cannot register yet");
                sleep(RETRY).await;
            }
        }
    };
    let registration = Arc::new(Registration(devices.clone()));
    serve::serve(listener, registration).await;
}

/// Sockets of plugins that had registered with an earlier kubelet: the plugins create them again.
fn remove_sockets(directory: &Path) -> std::io::Result<()> {
    let open = Dir::make(directory, MODE)?;
    for entry in open.entries(ENTRIES_MAX)? {
        if entry.kind == Kind::Socket {
            open.remove_file(&entry.name)?;
        }
    }
    Ok(())
}

struct Registration(Arc<Devices>);

#[async_trait]
impl Service for Registration {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        match request.uri().path() {
            wire::RegisterRequest::PATH => serve::unary(request, |request| self.register(request)).await,
            _ => serve::unimplemented(&request),
        }
    }
}

impl Registration {
    async fn register(&self, request: wire::RegisterRequest) -> Result<wire::Empty, Status> {
        let resource = &request.resource_name;
        info!(resource, version = request.version, "a device plugin registers");
        if request.version != VERSION {
            return Err(Status::unknown(format!(
                "requested API version {:?} is not supported by kubelet. Supported version is [{VERSION:?}]",
                request.version
            )));
        }
        if !knarr_api::kinds::pod::resources::is_extended(resource) {
            return Err(Status::unknown(format!(
                "the ResourceName {resource:?} is invalid"
            )));
        }
        let mut parts = Path::new(&request.endpoint).components();
        let (Some(Component::Normal(name)), None) = (parts.next(), parts.next()) else {
            return Err(Status::unknown(format!(
                "endpoint {:?} is not the name of a socket in the kubelet's directory",
                request.endpoint
            )));
        };
        let socket = self.0.directory.join(name);
        let connected = self.0.connect(resource, &socket).await;
        connected.map_err(|error| Status::unknown(error.to_string()))?;
        Ok(wire::Empty {})
    }
}
