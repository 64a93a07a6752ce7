//! `knarr agent`: a node that joins a cluster elsewhere.

use clap::Args;
use knarr_client::Api;
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use super::cluster::{NodeApis, PreparedNode};
use super::join::{self, JoinArgs, Joined};
use super::{Failure, asked_to_end, shared_settings};
use crate::config::Config;
use crate::lock::DataDir;

pub const AFTER_HELP: &str = "\
A node joins by the command that `knarr token create` prints on the server. It checks the server by the pin, asks for a
certificate of its own with the token, keeps that in its data directory and renews it. Started again it needs no flags;
only a node whose certificate has ended while it was away needs a token again.";

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
    } = join::join(&config, &args.join).await?;
    let server = api.server().to_string();
    let authorities: Vec<CertificateDer> = api.authorities().iter().map(|der| der.clone().into()).collect();
    let cancel = CancellationToken::new();
    let ended = cancel.clone().drop_guard();
    let shown = api.clone();
    let renewal = rotation.run(
        api.clone(),
        bootstrap.map(|b| b as Arc<dyn Api>),
        move |identity| shown.show(&join::credential(identity)).map_err(|e| e.to_string()),
        cancel.clone(),
    );
    tokio::spawn(renewal);
    let config = shared_settings::adopted(config, api.clone()).await?;
    let network_agent = join::network_agent(&config, &api, &cancel).await?;
    let apis = NodeApis {
        kubelet: api,
        network_agent,
        is_in_process: false,
    };
    let node = PreparedNode::start(&config, &cancel)
        .await?
        .join(&config, apis, &authorities, &cancel)
        .await?;
    tracing::info!(%server, node = config.node_name, "joined");
    asked_to_end().await?;
    drop(ended);
    node.wait().await;
    Ok(())
}
