//! The cluster of a configuration: its DNS domain, clients of its API, and how long that is waited for.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use knarr_client::Api;
use knarr_client::remote::RemoteApi;

use super::Failure;
use crate::config::Config;

/// The default DNS domain of the cluster.
pub const CLUSTER_DOMAIN: &str = "cluster.local";

/// How long a server may be unreachable when a node joins or starts, as kubeadm waits.
pub const SERVER_LIMIT: Duration = Duration::from_secs(300);
/// Between two attempts.
pub const PAUSE: Duration = Duration::from_secs(1);

/// The DNS domain of the cluster: that of the KubeletConfiguration, else the default.
pub fn cluster_domain(config: &Config) -> String {
    match config.kubelet.cluster_domain.as_str() {
        "" => CLUSTER_DOMAIN.into(),
        domain => domain.into(),
    }
}

/// A client of the cluster of this configuration with the admin's credentials, over HTTPS, and the API's address.
pub async fn admin(config: &Config) -> Result<(Arc<dyn Api>, String), Failure> {
    let remote = remote(&config.kubeconfig).await?;
    let server = remote.server().to_string();
    Ok((Arc::new(remote), server))
}

/// A client of the cluster of a kubeconfig, over HTTPS.
pub async fn remote(kubeconfig: &Path) -> Result<RemoteApi, Failure> {
    RemoteApi::from_kubeconfig(kubeconfig).await.map_err(|e| {
        Failure::new(format!("the kubeconfig {} is not usable", kubeconfig.display())).because(e)
    })
}
