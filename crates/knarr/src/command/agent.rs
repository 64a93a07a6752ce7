//! `knarr agent`: a node that joins a cluster elsewhere.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;

use super::cluster::{self, PreparedNode};
use super::{Failure, asked_to_end};
use crate::config::Config;
use crate::lock::DataDir;

#[derive(Args)]
pub struct AgentArgs {
    /// Kubeconfig of the cluster to join.
    #[arg(long, value_name = "FILE", env = "KNARR_SERVER_KUBECONFIG")]
    server_kubeconfig: PathBuf,
}

pub async fn run(config: Config, args: AgentArgs) -> Result<(), Failure> {
    let remote = cluster::remote(&args.server_kubeconfig).await?;
    let server = remote.server().to_string();
    let authorities: Vec<CertificateDer> = remote
        .authorities()
        .iter()
        .map(|der| der.clone().into())
        .collect();
    let _held = DataDir::lock(&config.data_dir)?;
    let cancel = CancellationToken::new();
    let ended = cancel.clone().drop_guard();
    let node = PreparedNode::start(&config, &cancel)
        .await?
        .join(&config, Arc::new(remote), &authorities, &cancel)
        .await?;
    tracing::info!(%server, node = config.node_name, "joined");
    asked_to_end().await?;
    drop(ended);
    node.wait().await;
    Ok(())
}
