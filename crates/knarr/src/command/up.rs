//! `knarr up`: everything in one process.

use std::sync::Arc;

use knarr_client::Component;
use tokio_util::sync::CancellationToken;

use super::control_plane::{ControlPlane, LocalNode};
use super::running_node::{NodeApis, PreparedNode};
use super::{Failure, shutdown_signal};
use crate::config::Config;
use crate::lock::DataDir;

pub async fn run(config: Config) -> Result<(), Failure> {
    let _held = DataDir::lock(&config.data_dir)?;
    let cancel = CancellationToken::new();
    let stop = cancel.clone().drop_guard();
    let local = Arc::new(LocalNode::default());
    // containerd takes longest to start, and control plane and node do not wait for each other.
    let (plane, prepared) = tokio::try_join!(
        ControlPlane::start(&config, local.clone(), &cancel),
        PreparedNode::start(&config, &cancel),
    )?;
    let apis = NodeApis {
        kubelet: plane.server.api(&Component::Node(config.node_name.clone())),
        network_agent: plane
            .server
            .api(&Component::NetworkAgent(config.node_name.clone())),
        is_in_process: true,
        metrics: Default::default(),
    };
    let node = prepared
        .join(&config, apis, std::slice::from_ref(&plane.authority), &cancel)
        .await?;
    local.set(&config, node.server.clone());
    shutdown_signal().await?;
    drop(stop);
    tokio::join!(plane.wait(), node.wait());
    Ok(())
}
