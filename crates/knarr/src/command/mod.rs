//! The subcommands, one file each.

pub mod agent;
mod api_for_pods;
mod client_ca;
pub mod cluster;
mod columns;
mod control_plane;
mod descriptors;
pub mod down;
pub mod fence;
pub mod join;
pub mod kubelet_port;
pub mod net;
mod network;
pub mod node;
mod node_address;
mod node_config;
pub mod plan;
mod running_node;
pub mod server;
mod shared_settings;
mod snapshot;
pub mod status;
pub mod token;
pub mod up;
pub mod version;
pub mod whatif;
pub mod why;

use std::fmt::{self, Display, Write};

/// knarr's own version; the Kubernetes version it speaks is in [`KUBERNETES`].
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The Kubernetes version whose API and behaviour this is.
pub const KUBERNETES: &str = "v1.36.2";

/// What servers and nodes report as their version, in Kubernetes' form.
pub fn git_version() -> String {
    format!("{KUBERNETES}+knarr.{VERSION}")
}

/// Why a command failed, as the user reads it: what could not be done, followed by every cause.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    pub fn new(what: impl Into<String>) -> Self {
        Failure(what.into())
    }

    /// Adds the cause and the causes behind it.
    pub fn because(mut self, cause: impl std::error::Error) -> Self {
        let _ = write!(self.0, ": {cause}");
        let mut next = cause.source();
        while let Some(e) = next {
            let text = e.to_string();
            if !self.0.contains(&text) {
                let _ = write!(self.0, ": {text}");
            }
            next = e.source();
        }
        self
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name in `NAME` or `KIND/NAME`, where the kind is one of these.
fn bare_name<'a>(named: &'a str, kinds: &[&str]) -> Result<&'a str, Failure> {
    match named.split_once('/') {
        None => Ok(named),
        Some((kind, name)) if kinds.contains(&kind) => Ok(name),
        Some((kind, _)) => Err(Failure::new(format!(
            "{named:?} is of the kind {kind:?}: expected NAME or {}/NAME",
            kinds.first().unwrap_or(&"")
        ))),
    }
}

fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(value)
        .map_err(|e| Failure::new("cannot write the output as JSON").because(e))?;
    println!("{json}");
    Ok(())
}

/// Completes on SIGTERM or SIGINT.
pub async fn shutdown_signal() -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let catch = |kind| signal(kind).map_err(|e| Failure::new("cannot install a signal handler").because(e));
    let (mut term, mut int) = (catch(SignalKind::terminate())?, catch(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => tracing::info!("received SIGTERM, shutting down"),
        _ = int.recv() => tracing::info!("received SIGINT, shutting down"),
    }
    Ok(())
}
