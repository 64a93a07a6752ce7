//! `knarr agent`: a node that joins a cluster elsewhere.

use clap::Args;
use knarr_client::Api;
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use super::join::{self, JoinArgs, Joined};
use super::running_node::{NodeApis, PreparedNode};
use super::{Failure, shared_settings, shutdown_signal};
use crate::allocator::AllocatorMetrics;
use crate::config::Config;
use crate::lock::DataDir;

pub const AFTER_HELP: &str = "\
A node joins by the command that `knarr token create` prints on the server. It verifies the server by the pin, requests a
certificate with the token, stores it in its data directory and renews it. When it is started again it needs no flags;
only a node whose certificate expired while it was not running needs a token again.";

#[derive(Args)]
pub struct AgentArgs {
    #[command(flatten)]
    join: JoinArgs,
}

pub async fn run(config: Config, args: AgentArgs) -> Result<(), Failure> {
    let _held = DataDir::lock(&config.data_dir)?;
    let Joined {
        api,
        bootstrap,
        rotation,
        metrics,
    } = join::join(&config, &args.join).await?;
    let server = api.server().to_string();
    let authorities: Vec<CertificateDer> = api
        .certificate_authorities()
        .iter()
        .map(|der| der.clone().into())
        .collect();
    let cancel = CancellationToken::new();
    let stop = cancel.clone().drop_guard();
    let client = api.clone();
    let renewal = rotation.run(
        api.clone(),
        bootstrap.map(|b| b as Arc<dyn Api>),
        move |identity| {
            client
                .set_credential(&join::credential(identity))
                .map_err(|e| e.to_string())
        },
        cancel.clone(),
    );
    tokio::spawn(renewal);
    let config = shared_settings::adopted(config, api.clone()).await?;
    let network_agent = join::network_agent(&config, &api, &cancel).await?;
    // With the control plane in the process, as in `knarr up`, its `/metrics` has these.
    metrics.register(AllocatorMetrics::default());
    let apis = NodeApis {
        kubelet: api,
        network_agent,
        is_in_process: false,
        metrics,
    };
    let node = PreparedNode::start(&config, &cancel)
        .await?
        .join(&config, apis, &authorities, &cancel)
        .await?;
    tracing::info!(%server, node = config.node_name, "joined");
    shutdown_signal().await?;
    drop(stop);
    node.wait().await;
    Ok(())
}
