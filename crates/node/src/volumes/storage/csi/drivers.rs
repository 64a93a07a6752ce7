//! The CSI drivers of this node. Each shows a socket in the kubelet's `plugins_registry`; who answers there as a
//! `CSIPlugin` of a version that is spoken is asked what it calls this node, told to the cluster, and told that it is
//! registered. One whose socket has gone is forgotten.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use knarr_client::Api;
use parking_lot::Mutex;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::{node_info, wire};
use crate::untrusted_fs::{Dir, Kind};

/// Between two looks at the directory: reading it costs less than a watch would explain.
const LOOK: Duration = Duration::from_secs(1);
const TYPE: &str = "CSIPlugin";
/// Entries of the directory that are looked at.
const SOCKETS_MAX: usize = 4096;

/// A driver that is registered.
#[derive(Clone, Debug)]
struct Driver {
    name: String,
    /// Its own socket.
    socket: PathBuf,
}

/// See the module.
#[derive(Default)]
pub struct Drivers {
    /// By the socket in the registry.
    registered: Mutex<BTreeMap<PathBuf, Driver>>,
    /// What was last said of a socket that is refused: it is not said again each second.
    refused: Mutex<BTreeMap<PathBuf, String>>,
}

impl Drivers {
    /// The socket of the driver of this name.
    pub fn socket(&self, name: &str) -> Option<PathBuf> {
        let all = self.registered.lock();
        all.values().find(|d| d.name == name).map(|d| d.socket.clone())
    }

    /// Follows the directory, until dropped.
    pub async fn run(&self, api: Arc<dyn Api>, node: &str, directory: &Path) {
        while let Err(error) = node_info::make(&*api, node).await {
            debug!(%error, "cannot make this node's CSINode yet");
            sleep(LOOK).await;
        }
        loop {
            self.look(&*api, node, directory).await;
            sleep(LOOK).await;
        }
    }

    /// One look.
    pub(in crate::volumes::storage) async fn look(&self, api: &dyn Api, node: &str, directory: &Path) {
        let there = sockets(directory).unwrap_or_else(|error| {
            warn!(%error, directory = %directory.display(), "cannot see which plugins there are");
            Vec::new()
        });
        let gone: Vec<PathBuf> = {
            let registered = self.registered.lock();
            registered
                .keys()
                .filter(|at| !there.contains(at))
                .cloned()
                .collect()
        };
        for at in gone {
            self.forget(api, node, &at).await;
        }
        self.refused.lock().retain(|at, _| there.contains(at));
        for at in there {
            if self.registered.lock().contains_key(&at) {
                continue;
            }
            if let Err(why) = self.register(api, node, &at).await {
                let again = self.refused.lock().insert(at.clone(), why.clone());
                if again.as_ref() != Some(&why) {
                    warn!(socket = %at.display(), why, "a plugin is not registered");
                }
            }
        }
    }

    async fn register(&self, api: &dyn Api, node: &str, at: &Path) -> Result<(), String> {
        let plugin = wire::call(at, wire::GetInfo {}).await?;
        let accepted = self.accept(api, node, at, &plugin).await;
        let error = accepted.clone().err().unwrap_or_default();
        let told = wire::RegistrationStatus {
            plugin_registered: accepted.is_ok(),
            error,
        };
        // A registrar that does not listen is registered all the same.
        if let Err(why) = wire::call(at, told).await {
            debug!(
                driver = plugin.name,
                why, "a plugin did not hear what became of it"
            );
        }
        accepted
    }

    async fn accept(
        &self,
        api: &dyn Api,
        node: &str,
        at: &Path,
        plugin: &wire::PluginInfo,
    ) -> Result<(), String> {
        let name = &plugin.name;
        if plugin.kind != TYPE {
            return Err(format!(
                "plugin {name} is a {:?}; this kubelet has use for {TYPE} only",
                plugin.kind
            ));
        }
        let spoken = |v: &String| v.trim_start_matches('v').split('.').next() == Some("1");
        if !plugin.supported_versions.iter().any(spoken) {
            return Err(format!(
                "driver {name} speaks versions {:?} of CSI, expected one of 1.x",
                plugin.supported_versions
            ));
        }
        let socket = match plugin.endpoint.as_str() {
            "" => at.to_path_buf(),
            endpoint => PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint)),
        };
        let info = wire::call(&socket, wire::NodeGetInfo {}).await?;
        if info.node_id.is_empty() {
            return Err(format!(
                "driver {name} has no name for this node (node_id is empty)"
            ));
        }
        let told = node_info::tell(api, node, name, Some(&info)).await;
        told.map_err(|e| format!("error updating CSINode object with CSI driver node info: {e}"))?;
        info!(driver = name, socket = %socket.display(), "registered a CSI driver");
        let driver = Driver {
            name: name.clone(),
            socket,
        };
        self.registered.lock().insert(at.into(), driver);
        Ok(())
    }

    async fn forget(&self, api: &dyn Api, node: &str, at: &Path) {
        let Some(driver) = self.registered.lock().get(at).cloned() else {
            return;
        };
        let others =
            |all: &BTreeMap<PathBuf, Driver>| all.iter().any(|(key, d)| key != at && d.name == driver.name);
        // One that came back by another name of its socket is still there.
        if !others(&self.registered.lock())
            && let Err(error) = node_info::tell(api, node, &driver.name, None).await
        {
            // It is still registered, and forgotten at the next look.
            warn!(driver = driver.name, %error, "cannot say that a CSI driver is gone");
            return;
        }
        info!(driver = driver.name, "a CSI driver is gone");
        self.registered.lock().remove(at);
    }
}

fn sockets(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = match Dir::open_named(directory) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?.entries(SOCKETS_MAX)?,
    };
    let sockets = entries.into_iter().filter(|e| e.kind == Kind::Socket);
    Ok(sockets.map(|e| directory.join(e.name)).collect())
}
