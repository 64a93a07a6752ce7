//! `knarr server`: the control plane, without a node.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::cluster::{ControlPlane, LocalNode};
use super::{Failure, asked_to_end};
use crate::config::Config;
use crate::lock::DataDir;

pub async fn run(config: Config) -> Result<(), Failure> {
    let _held = DataDir::lock(&config.data_dir)?;
    let cancel = CancellationToken::new();
    let ended = cancel.clone().drop_guard();
    let plane = ControlPlane::start(&config, Arc::new(LocalNode::default()), &cancel).await?;
    asked_to_end().await?;
    drop(ended);
    plane.wait().await;
    Ok(())
}
