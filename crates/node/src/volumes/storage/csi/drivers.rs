//! The CSI drivers of this node: plugins of the type `CSIPlugin` of a supported version. A driver returns its name of
//! this node, which is published in the CSINode and Node objects; one whose socket was removed is removed there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use knarr_apimachinery::ids::NodeName;
use knarr_client::Api;
use parking_lot::Mutex;
use tracing::info;

use super::{node_info, wire};
use crate::host::Host;
use crate::plugins::{Handler, HandlerError, Plugin};

/// The drivers that are registered.
#[derive(Default)]
pub struct Drivers {
    /// By the socket in the registry.
    registered: Mutex<BTreeMap<PathBuf, Plugin>>,
}

impl Drivers {
    /// The socket of the driver of this name.
    pub fn socket(&self, name: &str) -> Option<PathBuf> {
        let all = self.registered.lock();
        all.values().find(|d| d.name == name).map(|d| d.endpoint.clone())
    }
}

/// Registers drivers as this node's.
pub struct Registrar {
    pub drivers: Arc<Drivers>,
    pub api: Arc<dyn Api>,
    pub node: NodeName,
    pub host: Arc<dyn Host>,
}

/// Why a driver is not registered or deregistered; it is notified of it.
#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error("driver {driver} speaks versions {versions:?} of CSI, expected one of 1.x")]
    Version { driver: String, versions: Vec<String> },
    #[error("driver {driver} has no name for this node (node_id is empty)")]
    NoNodeId { driver: String },
    #[error("error updating CSINode object with CSI driver node info: {0}")]
    AddNodeInfo(#[source] knarr_client::Error),
    #[error("error updating CSINode object: {0}")]
    RemoveNodeInfo(#[source] knarr_client::Error),
}

#[async_trait]
impl Handler for Registrar {
    fn kind(&self) -> &'static str {
        "CSIPlugin"
    }

    fn validate(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        let supported = |v: &String| v.trim_start_matches('v').split('.').next() == Some("1");
        match plugin.versions.iter().any(supported) {
            true => Ok(()),
            false => Err(RegistrationError::Version {
                driver: plugin.name.clone(),
                versions: plugin.versions.clone(),
            }
            .into()),
        }
    }

    async fn register(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        let name = &plugin.name;
        let info = wire::call(&*self.host, &plugin.endpoint, wire::NodeGetInfo {}).await?;
        if info.node_id.is_empty() {
            let driver = name.clone();
            return Err(RegistrationError::NoNodeId { driver }.into());
        }
        let published = node_info::publish_driver(&*self.api, &self.node, name, Some(&info)).await;
        published.map_err(RegistrationError::AddNodeInfo)?;
        info!(driver = name, socket = %plugin.endpoint.display(), "registered a CSI driver");
        let mut registered = self.drivers.registered.lock();
        registered.insert(plugin.socket.clone(), plugin.clone());
        Ok(())
    }

    async fn deregister(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        let is_elsewhere = {
            let registered = self.drivers.registered.lock();
            registered
                .iter()
                .any(|(socket, other)| *socket != plugin.socket && other.name == plugin.name)
        };
        // One that registered again with another socket still exists.
        if !is_elsewhere {
            let removed = node_info::publish_driver(&*self.api, &self.node, &plugin.name, None).await;
            removed.map_err(RegistrationError::RemoveNodeInfo)?;
        }
        info!(driver = plugin.name, "a CSI driver was deregistered");
        self.drivers.registered.lock().remove(&plugin.socket);
        Ok(())
    }
}
