//! The groups of flags, and which of them the help of each command shows.
//!
//! Every command accepts every flag, before or after its name, because all share one configuration file and environment; its
//! help shows the flags that it uses.

use clap::Command;

pub const CONFIGURATION: &str = "Configuration";
pub const API_SERVER: &str = "API server";
pub const STORAGE: &str = "Storage";
pub const SCHEDULER: &str = "Scheduler";
pub const CONTROLLERS: &str = "Controllers";
pub const NODE: &str = "Node";
pub const NETWORK: &str = "Network";
pub const SECURITY: &str = "Security";
pub const LOGGING: &str = "Logging";

/// The flags that `-h` shows; `--help` shows all.
const IN_SHORT_HELP: [&str; 16] = [
    "config",
    "data_dir",
    "kubeconfig",
    "listen",
    "tls_sans",
    "store",
    "etcd_endpoints",
    "scheduler_config",
    "node_name",
    "node_labels",
    "kubelet_config",
    "service_cidr",
    "cluster_cidr",
    "node_ip",
    "disable",
    "log",
];

/// The headings whose flags this command uses.
fn headings(command: &str) -> &'static [&'static str] {
    match command {
        "up" => &[
            CONFIGURATION,
            API_SERVER,
            STORAGE,
            SCHEDULER,
            CONTROLLERS,
            NODE,
            NETWORK,
            SECURITY,
            LOGGING,
        ],
        "server" => &[
            CONFIGURATION,
            API_SERVER,
            STORAGE,
            SCHEDULER,
            CONTROLLERS,
            NETWORK,
            SECURITY,
            LOGGING,
        ],
        "agent" => &[CONFIGURATION, NODE, NETWORK, LOGGING],
        "down" => &[CONFIGURATION, LOGGING],
        "version" => &[],
        _ => &[CONFIGURATION],
    }
}

/// Hides in the help of each command the flags that it does not use.
pub fn hide_unused(command: Command) -> Command {
    // `build` copies the global flags to all commands and decides whether `-h` and `--help` differ, so the short help is set before.
    let mut command = command.mut_args(|arg| {
        let is_short = IN_SHORT_HELP.contains(&arg.get_id().as_str());
        arg.hide_short_help(!is_short)
    });
    command.build();
    let names: Vec<String> = command
        .get_subcommands()
        .map(|c| c.get_name().to_string())
        .collect();
    // `knarr --help` shows commands only.
    let command = show_only(command, &[]);
    names.into_iter().fold(command, |command, name| {
        let headings = headings(&name);
        command.mut_subcommand(name, |c| with_nested(c, headings))
    })
}

/// The same for nested commands, such as `knarr token create`.
fn with_nested(command: Command, headings: &'static [&'static str]) -> Command {
    let nested: Vec<String> = command
        .get_subcommands()
        .map(|c| c.get_name().to_string())
        .collect();
    let command = show_only(command, headings);
    nested.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |c| with_nested(c, headings))
    })
}

fn show_only(command: Command, headings: &'static [&'static str]) -> Command {
    command.mut_args(|arg| {
        let is_used = arg.get_help_heading().is_some_and(|h| headings.contains(&h));
        let is_own = !arg.is_global_set();
        arg.hide(!is_own && !is_used)
    })
}
