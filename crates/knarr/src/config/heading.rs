//! The groups of flags, and which of them each command shows.
//!
//! Every command accepts every flag, before or after its name, since one configuration file and one environment serve all; its help
//! shows what it uses.

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

/// What `-h` shows of a long list; `--help` shows all.
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
fn of(command: &str) -> &'static [&'static str] {
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

/// Each command with the flags that it uses in its help, and the others out of it.
pub fn shaped(command: Command) -> Command {
    // Whether `-h` and `--help` differ is settled when commands are built, and so are the flags that all share.
    let mut command = command.mut_args(|arg| {
        let is_short = IN_SHORT_HELP.contains(&arg.get_id().as_str());
        arg.hide_short_help(!is_short)
    });
    command.build();
    let names: Vec<String> = command
        .get_subcommands()
        .map(|c| c.get_name().to_string())
        .collect();
    // The page of all commands names commands only.
    let command = shown(command, &[]);
    names.into_iter().fold(command, |command, name| {
        let headings = of(&name);
        command.mut_subcommand(name, |c| with_nested(c, headings))
    })
}

/// With commands within commands, such as `knarr token create`.
fn with_nested(command: Command, headings: &'static [&'static str]) -> Command {
    let nested: Vec<String> = command
        .get_subcommands()
        .map(|c| c.get_name().to_string())
        .collect();
    let command = shown(command, headings);
    nested.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |c| with_nested(c, headings))
    })
}

fn shown(command: Command, headings: &'static [&'static str]) -> Command {
    command.mut_args(|arg| {
        let is_used = arg.get_help_heading().is_some_and(|h| headings.contains(&h));
        let is_own = !arg.is_global_set();
        arg.hide(!is_own && !is_used)
    })
}
