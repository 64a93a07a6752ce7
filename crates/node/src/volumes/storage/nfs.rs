//! NFS: each pod has its own mount of the export.

use std::path::Path;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::error::StorageError;
use super::filesystem::{mount, unmount};
use super::plugin::{MountTerms, Storage, Tools};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nfs {
    pub server: String,
    pub path: String,
}

#[async_trait]
impl Storage for Nfs {
    fn plugin(&self) -> &'static str {
        "kubernetes.io~nfs"
    }

    async fn publish(
        &self,
        tools: &Tools,
        _staged: Option<&Path>,
        target: &Path,
        terms: &MountTerms,
    ) -> Result<(), StorageError> {
        if tools.host.is_mounted(target).map_err(StorageError::IsMounted)? {
            return Ok(());
        }
        tools.make_dir(target).await?;
        let server = match self.server.parse::<std::net::Ipv6Addr>() {
            Ok(address) => format!("[{address}]"),
            Err(_) => self.server.clone(),
        };
        let source = format!("{server}:{}", self.path);
        let mounted = mount(&*tools.host, Some("nfs"), &source, target, &terms.mount_options()).await;
        if mounted.is_err() {
            // The remains of a mount that failed half way would be taken for the volume.
            unmount(&*tools.host, target).await?;
        }
        mounted
    }

    async fn unpublish(&self, tools: &Tools, target: &Path) -> Result<(), StorageError> {
        unmount(&*tools.host, target).await
    }
}
