//! The command: flags, configuration and wiring. What it wires stands in the other crates.

mod command;
mod config;
mod lock;
mod logging;
mod node_socket;
mod private;
mod program_pages;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use config::{Config, Flags};

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
/// `server` and `agent` run one half each, on machines of their own.
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

fn main() -> ExitCode {
    // containerd runs this program for every pod, under the name of a CNI plugin.
    if let Some(code) = knarr_node_network::pods::cni::run_if_called() {
        return code;
    }
    let cli = Cli::parse();
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
