//! The command: flags, configuration and wiring. What it wires is in the other crates.
//!
//! How a node joins: `command/token.rs`, `command/join.rs`. Wiring of the network: `command/network.rs`; what explains it (`knarr net`):
//! `command/net/`. `knarr why` and `knarr whatif` read a copy of the cluster: `command/snapshot.rs`. Modes of knarr's own files: `private.rs`.
//! `knarr node shutdown` reaches the node through `node_socket.rs`. End-to-end tests: `tests/e2e` (machines of their own with links that can be
//! cut: `fleet.rs`; hostile pods, nodes and tenants: `security/`); recorded lives of pods on a real node: `tests/golden-life`.

mod command;
mod config;
mod lock;
mod logging;
mod node_socket;
mod private;
mod program_pages;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use config::{Config, Flags, heading};

/// Many objects of many sizes come and go on all threads: this one is quick at that and gives memory back.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A Kubernetes-compatible cluster in one process.
///
/// `knarr up` starts everything on this machine: API server, scheduler, controllers and one node that runs
/// containers through a containerd of its own. Use it with unmodified kubectl:
///
///     knarr up &
///     export KUBECONFIG=/etc/knarr/kubeconfig
///     kubectl get nodes
///
/// `server` and `agent` run one half each, on machines of their own. `knarr COMMAND --help` shows a command's flags, which
/// can be set by environment variables and by a file (`--config`), too.
#[derive(Parser)]
#[command(name = "knarr", version = command::VERSION, max_term_width = 110, verbatim_doc_comment)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Subcommand)]
enum Command {
    /// Run a whole cluster in this process, until TERM or Ctrl-C. Pods go on running when it ends.
    #[command(after_help = "Pods, images and objects survive an end; `knarr down` ends the pods too.")]
    Up,
    /// Run the API server, scheduler and controllers, without a node.
    Server,
    /// Run a node that joins a cluster elsewhere.
    #[command(after_help = command::agent::AFTER_HELP)]
    Agent(command::agent::AgentArgs),
    /// End the cluster of this data directory: its pods, its containerd, its network.
    Down(command::down::DownArgs),
    /// Have a lost node fenced by the agents of its FencingPolicy, and tell what comes of it.
    #[command(after_help = command::fence::AFTER_HELP)]
    Fence(command::fence::FenceArgs),
    /// Tell whether the cluster of this data directory runs, and how it is.
    Status(command::status::StatusArgs),
    /// Tell the node of this machine what becomes of the machine.
    Node(command::node::NodeArgs),
    /// Say why a pod is on no node: the rule that refuses each node, and the smallest change that would help.
    Why(command::why::WhyArgs),
    /// Say what a change would do to the pods: a drain, a scale, a lost zone, another priority. Nothing is done.
    #[command(name = "whatif")]
    WhatIf(command::whatif::WhatIfArgs),
    /// Say what a Service leads to, whether a connection arrives, and how nodes reach each other's pods.
    Net(command::net::NetArgs),
    /// Make, list and delete the tokens by which nodes join.
    Token(command::token::TokenArgs),
    /// Print the version.
    Version(command::version::VersionArgs),
}

/// Exit code for a configuration or command line that cannot be used.
const EXIT_USAGE: u8 = 2;

/// Reads the command line, and prints the help that was asked for.
fn command_line(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = heading::shaped(Cli::command());
    let matches = command.try_get_matches_from_mut(words)?;
    Cli::from_arg_matches(&matches).map_err(|e| e.format(&mut command))
}

fn main() -> ExitCode {
    // containerd runs this program for every pod, under the name of a CNI plugin.
    if let Some(code) = knarr_node_network::pods::cni::run_if_called() {
        return code;
    }
    let cli = command_line(std::env::args_os()).unwrap_or_else(|e| e.exit());
    if let Command::Version(args) = &cli.command {
        return finish(command::version::run(args));
    }
    let config = match Config::load(&cli.flags) {
        Ok(config) => config,
        Err(mistakes) => {
            eprintln!("knarr: {mistakes}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let role = match &cli.command {
        Command::Up | Command::Agent(_) | Command::Down(_) => private::Role::Node,
        Command::Server => private::Role::Server,
        _ => private::Role::Client,
    };
    // Before there are threads, which share it.
    if let Err(failure) = private::close_process(role) {
        return finish(Err(failure));
    }
    let kubeconfig_named = cli.flags.kubeconfig.is_some();
    logging::start(&config);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            return finish(Err(
                command::Failure::new("cannot start the async runtime").because(e)
            ));
        }
    };
    runtime.block_on(async move {
        if matches!(cli.command, Command::Up | Command::Server | Command::Agent(_)) {
            tokio::spawn(program_pages::give_back_what_is_not_used());
        }
        let done = match cli.command {
            Command::Up => command::up::run(config).await,
            Command::Server => command::server::run(config).await,
            Command::Agent(args) => command::agent::run(config, args).await,
            Command::Down(args) => command::down::run(config, args).await,
            Command::Fence(args) => command::fence::run(config, args).await,
            Command::Node(args) => command::node::run(config, args).await,
            Command::Status(args) => command::status::run(config, args).await,
            Command::Token(args) => command::token::run(config, args).await,
            Command::Why(args) => command::why::run(config, args, kubeconfig_named).await,
            Command::WhatIf(args) => command::whatif::run(config, args, kubeconfig_named).await,
            Command::Net(args) => return answered(command::net::run(config, args, kubeconfig_named).await),
            Command::Version(args) => command::version::run(&args),
        };
        finish(done)
    })
}

/// Of a command that answers yes or no: no answer is neither.
fn answered(result: Result<bool, command::Failure>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("knarr: {failure}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}

fn finish(result: Result<(), command::Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("knarr: {failure}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn help(words: &[&str]) -> String {
        let words = ["knarr"].iter().chain(words).map(OsString::from);
        match command_line(words) {
            Ok(_) => panic!("this is not help"),
            Err(help) => help.to_string(),
        }
    }

    #[test]
    fn a5_each_command_shows_its_own_flags_in_groups() {
        let all = help(&["--help"]);
        assert!(
            all.contains("Commands:") && !all.contains("--listen") && !all.contains("Node:"),
            "{all}"
        );
        let server = help(&["server", "--help"]);
        for part in [
            "API server:\n",
            "Storage:\n",
            "Controllers:\n",
            "--listen",
            "--etcd-cafile",
            "KNARR_LISTEN",
        ] {
            assert!(server.contains(part), "{part:?} is missing in:\n{server}");
        }
        assert!(!server.contains("--kubelet-config"), "{server}");
        let agent = help(&["agent", "--help"]);
        assert!(
            agent.contains("--kubelet-config") && agent.contains("--token"),
            "{agent}"
        );
        assert!(
            !agent.contains("--etcd") && !agent.contains("--scheduler-config"),
            "{agent}"
        );
        let short = help(&["up", "-h"]);
        assert!(short.lines().count() < 70, "{short}");
        assert!(
            short.contains("--listen") && !short.contains("--node-eviction-rate"),
            "{short}"
        );
        let token = help(&["token", "create", "--help"]);
        assert!(
            token.contains("--data-dir") && !token.contains("--listen"),
            "{token}"
        );
        assert!(!help(&["version", "--help"]).contains("--data-dir"));
    }

    #[test]
    fn a5_flags_are_read_before_and_after_the_command() {
        for words in [["--node-name", "n1", "up"], ["up", "--node-name", "n1"]] {
            let words = ["knarr"].iter().chain(&words).map(OsString::from);
            assert_eq!(
                command_line(words).unwrap().flags.node_name.as_deref(),
                Some("n1")
            );
        }
    }

    #[test]
    fn a5_every_flag_of_the_configuration_has_a_heading() {
        let mut command = Cli::command();
        command.build();
        let global = command.get_arguments().filter(|a| a.is_global_set());
        let without: Vec<_> = global
            .filter(|a| a.get_help_heading().is_none())
            .map(|a| a.get_id())
            .collect();
        assert!(without.is_empty(), "{without:?}");
    }

    /// What the units start, for systemd's unit files have no other test of their flags.
    #[test]
    fn a5_the_units_start_commands_that_there_are() {
        let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
        let mut found = 0;
        for entry in std::fs::read_dir(units).unwrap() {
            let path = entry.unwrap().path();
            let unit = std::fs::read_to_string(&path).unwrap();
            for line in unit.lines().filter_map(|l| l.strip_prefix("ExecStart=")) {
                let words: Vec<&str> = line.split_whitespace().collect();
                assert_eq!(words.first(), Some(&"/usr/bin/knarr"), "{}", path.display());
                let cli = Cli::try_parse_from(&words).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                Config::load(&cli.flags).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                found += 1;
            }
            for variable in unit
                .split([' ', ',', '#', '\n'])
                .filter(|w| w.starts_with("KNARR_"))
            {
                let mut command = <Cli as clap::CommandFactory>::command();
                command.build();
                let known = command
                    .get_arguments()
                    .chain(command.get_subcommands().flat_map(|c| c.get_arguments()))
                    .any(|a| a.get_env().is_some_and(|e| e == variable));
                assert!(known, "{}: {variable}", path.display());
            }
        }
        assert_eq!(found, 3);
    }
}
