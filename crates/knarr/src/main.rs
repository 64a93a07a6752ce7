//! The `knarr` command: flags, configuration, and the start of the components, which are in the other crates.
//!
//! How a node joins: `command/token.rs`, `command/join.rs`. The node's network components: `command/network.rs`; `knarr net`:
//! `command/net/`. The objects that `knarr why`, `whatif` and `plan` read: `command/snapshot.rs`. Permissions of knarr's own files:
//! `private.rs`. The socket of `knarr node shutdown`: `node_socket.rs`. End-to-end tests: `tests/e2e` (hosts of their own with links that
//! can be cut: `fleet.rs`; hostile pods, nodes and tenants: `security/`); recorded pod lifecycles on a real node: `tests/golden-life`.

mod allocator;
mod command;
mod config;
mod lock;
mod logging;
mod node_socket;
mod private;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use config::{Config, Flags, heading};

/// Many objects of many sizes are allocated and freed on all threads: jemalloc is fast at that and returns memory to the kernel.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A Kubernetes-compatible cluster in one process.
///
/// `knarr up` starts everything on this host: API server, scheduler, controllers and one node that runs
/// containers with a containerd of its own. Use it with unmodified kubectl:
///
///     knarr up &
///     export KUBECONFIG=/etc/knarr/kubeconfig
///     kubectl get nodes
///
/// `server` runs the control plane only, and `agent` a node only. `knarr COMMAND --help` shows a command's flags, which
/// can also be set by environment variables and by a file (`--config`).
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
    /// Run a whole cluster in this process, until SIGTERM or Ctrl-C. Pods continue to run when it exits.
    #[command(
        after_help = "Pods, images and objects are kept when knarr exits; `knarr down` terminates the pods."
    )]
    Up,
    /// Run the API server, scheduler and controllers, without a node.
    Server,
    /// Run a node that joins the cluster of a `knarr server`.
    #[command(after_help = command::agent::AFTER_HELP)]
    Agent(command::agent::AgentArgs),
    /// Stop the cluster of this data directory: its pods, its containerd, its network.
    Down(command::down::DownArgs),
    /// Fence a node with the agents of its FencingPolicy, and report the outcome.
    #[command(after_help = command::fence::AFTER_HELP)]
    Fence(command::fence::FenceArgs),
    /// Show whether the cluster of this data directory is running, and whether its nodes are Ready.
    Status(command::status::StatusArgs),
    /// Manage the node of this host: graceful node shutdown.
    Node(command::node::NodeArgs),
    /// Explain why a pod is not scheduled: the plugin that rejects each node, and the smallest change that would help.
    Why(command::why::WhyArgs),
    /// Show what a change would do to the pods: a drain, a scale, a lost zone, another priority. Nothing is changed.
    #[command(name = "whatif")]
    WhatIf(command::whatif::WhatIfArgs),
    /// Show what a rebalancer would do: which pods it would move, where to and why. Nothing is changed.
    Plan(command::plan::PlanArgs),
    /// Show what a Service resolves to, whether a connection is allowed, and how nodes reach each other's pods.
    Net(command::net::NetArgs),
    /// Create, list and delete bootstrap tokens, with which nodes join.
    Token(command::token::TokenArgs),
    /// Print the version.
    Version(command::version::VersionArgs),
}

/// Exit code for a configuration or command line that cannot be used.
const EXIT_USAGE: u8 = 2;

/// Parses the command line; help is returned as an error, as clap does.
fn command_line(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = heading::hide_unused(Cli::command());
    let matches = command.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches(&matches).map_err(|e| e.format(&mut command))
}

fn main() -> ExitCode {
    // containerd runs this program for every pod, as the shim (which forks) and as the CNI plugins, if the small one is missing.
    if let Some(code) = knarr_shim::run_if_called() {
        return code;
    }
    if let Some(code) = knarr_cni::run_if_called() {
        return code;
    }
    let cli = command_line(std::env::args_os()).unwrap_or_else(|e| e.exit());
    if let Command::Version(args) = &cli.command {
        return finish(command::version::run(args));
    }
    let config = match Config::load(&cli.flags) {
        Ok(config) => config,
        Err(errors) => {
            eprintln!("knarr: {errors}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let role = match &cli.command {
        Command::Up | Command::Agent(_) | Command::Down(_) => private::Role::Node,
        Command::Server => private::Role::Server,
        _ => private::Role::Client,
    };
    // Before the first thread is started: the umask is the process's.
    if let Err(failure) = private::restrict_process(role) {
        return finish(Err(failure));
    }
    let kubeconfig_named = cli.flags.kubeconfig.is_some();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            return finish(Err(
                command::Failure::new("cannot start the async runtime").because(e)
            ));
        }
    };
    let traces = {
        let _entered = runtime.enter();
        logging::start(&config)
    };
    let _traces = match traces {
        Ok(traces) => traces,
        Err(e) => return finish(Err(command::Failure::new("cannot export traces").because(e))),
    };
    runtime.block_on(async move {
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
            Command::Plan(args) => command::plan::run(config, args, kubeconfig_named).await,
            Command::Net(args) => {
                return exit_with_verdict(command::net::run(config, args, kubeconfig_named).await);
            }
            Command::Version(args) => command::version::run(&args),
        };
        finish(done)
    })
}

/// The exit code of a command with a yes-or-no result; an error has a code of its own.
fn exit_with_verdict(result: Result<bool, command::Failure>) -> ExitCode {
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

    fn help(args: &[&str]) -> String {
        let args = ["knarr"].iter().chain(args).map(OsString::from);
        match command_line(args) {
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
        let plan = help(&["plan", "rebalance", "--help"]);
        for part in [
            "--policy <FILE>",
            "--all",
            "knarr plan rebalance --name shop/spread",
        ] {
            assert!(plan.contains(part), "{part:?} is missing in:\n{plan}");
        }
        assert!(!plan.contains("--listen"), "{plan}");
    }

    #[test]
    fn a5_flags_are_read_before_and_after_the_command() {
        for args in [["--node-name", "n1", "up"], ["up", "--node-name", "n1"]] {
            let args = ["knarr"].iter().chain(&args).map(OsString::from);
            assert_eq!(command_line(args).unwrap().flags.node_name.as_deref(), Some("n1"));
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

    /// The command lines of the systemd units, whose flags no other test checks.
    #[test]
    fn a5_the_units_start_existing_commands_with_existing_flags() {
        let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
        let mut found = 0;
        for entry in std::fs::read_dir(units).unwrap() {
            let path = entry.unwrap().path();
            let unit = std::fs::read_to_string(&path).unwrap();
            for line in unit.lines().filter_map(|l| l.strip_prefix("ExecStart=")) {
                let args: Vec<&str> = line.split_whitespace().collect();
                assert_eq!(args.first(), Some(&"/usr/bin/knarr"), "{}", path.display());
                let cli = Cli::try_parse_from(&args).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
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
