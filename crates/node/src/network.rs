//! The pod network of one node: a CNI bridge with host-local addresses, and its removal.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;

/// Where the network is configured and what it is.
#[derive(Clone, Debug)]
pub struct PodNetwork {
    /// Interface name of the bridge (15 bytes at the most).
    pub bridge: String,
    /// The node's share of pod addresses, such as `10.244.0.0/24`.
    pub pod_cidr: String,
    /// The folder of CNI configurations.
    pub cni_conf: PathBuf,
    /// Where host-local keeps its leases.
    pub ipam_dir: PathBuf,
}

impl PodNetwork {
    /// Name of the network in CNI's own records.
    pub const NAME: &str = "knarr";

    /// Writes the configuration list; containerd picks it up by itself.
    pub fn write(&self) -> io::Result<()> {
        std::fs::create_dir_all(&self.cni_conf)?;
        std::fs::create_dir_all(&self.ipam_dir)?;
        let text = serde_json::to_vec_pretty(&self.conflist())?;
        write_atomically(&self.cni_conf.join("10-knarr.conflist"), &text)
    }

    fn conflist(&self) -> serde_json::Value {
        json!({
            "cniVersion": "1.0.0",
            "name": Self::NAME,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": self.bridge,
                    "isGateway": true,
                    "isDefaultGateway": true,
                    "ipMasq": true,
                    "hairpinMode": true,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{ "subnet": self.pod_cidr }]],
                        "dataDir": self.ipam_dir,
                    },
                },
                { "type": "portmap", "capabilities": { "portMappings": true }, "snat": true },
            ],
        })
    }
}

fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = path.with_extension("part");
    std::fs::write(&part, bytes)?;
    std::fs::rename(part, path)
}

/// Removes the bridge; it is gone already on most calls' second try, which is fine.
pub async fn remove_bridge(bridge: &str) -> io::Result<()> {
    if !Path::new("/sys/class/net").join(bridge).exists() {
        return Ok(());
    }
    let done = tokio::process::Command::new("ip")
        .args(["link", "delete", bridge])
        .output()
        .await?;
    if done.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "ip link delete {bridge}: {}",
        String::from_utf8_lossy(&done.stderr).trim()
    )))
}
