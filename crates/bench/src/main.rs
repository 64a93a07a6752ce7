//! `./dev bench`: measures knarr on this machine, beside what Kubernetes v1.36.2 measured on one like it.

mod cluster;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use report::Report;

/// Measures knarr and prints a table, with the workload of each figure.
#[derive(Parser)]
#[command(name = "./dev bench")]
struct Cli {
    /// Which benchmark; all of them if none is named.
    #[arg(value_enum)]
    name: Option<Name>,
    /// Writes the figures here too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Process start to API ready and to node Ready.
    Start,
    /// Pods singly and thirty at once; memory and idle CPU.
    Pods,
    /// The embedded store alone: durable writes, opening.
    Store,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("bench: {e}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<(), Box<dyn std::error::Error>> {
    let wanted = |name| cli.name.is_none_or(|only| only == name);
    let mut reports: Vec<Report> = Vec::new();
    if wanted(Name::Store) {
        eprintln!("measuring the store …");
    }
    if wanted(Name::Start) {
        eprintln!("measuring starts …");
        reports.extend(cluster::start().await?);
    }
    if wanted(Name::Pods) {
        eprintln!("measuring pods …");
        reports.extend(cluster::pods().await?);
    }
    if let Some(path) = &cli.json {
        std::fs::write(path, serde_json::to_vec_pretty(&reports)?)
            .map_err(|e| format!("{}: {e}", path.display()))?;
    }
    print!("{}", report::table(&reports));
    Ok(())
}
