//! Logs on standard error, for people or for machines.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat};

/// Starts logging as configured. Colours only on a terminal.
pub fn start(config: &Config) {
    // What boringtun has to say of nodes that do not answer names none of them.
    // rustls warns of each handshake with a server name that is none; the API server says it once.
    let filter = EnvFilter::new(format!(
        "boringtun=off,rustls::msgs::handshake=error,{}",
        config.log
    ));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Json => builder.json().flatten_event(true).init(),
        LogFormat::Human => builder
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .init(),
    }
}
