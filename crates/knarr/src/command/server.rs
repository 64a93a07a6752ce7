//! `knarr server`: the control plane, without a node.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::control_plane::{ControlPlane, LocalNode};
use super::{Failure, shutdown_signal};
use crate::config::Config;
use crate::lock::DataDir;

pub async fn run(config: Config) -> Result<(), Failure> {
    let _held = DataDir::lock(&config.data_dir)?;
    let cancel = CancellationToken::new();
    let stop = cancel.clone().drop_guard();
    let plane = ControlPlane::start(&config, Arc::new(LocalNode::default()), &cancel).await?;
    shutdown_signal().await?;
    drop(stop);
    plane.wait().await;
    Ok(())
}
