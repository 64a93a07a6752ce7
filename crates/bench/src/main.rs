//! `./dev bench`: measures knarr on this machine, beside what Kubernetes v1.36.2 measured on one like it.

mod api;
mod cluster;
mod process;
mod report;
mod scheduler;
mod store;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use report::{Report, Target};

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
    /// The API server over HTTPS: creates, reads, lists, watches, leases; memory as it fills.
    Api,
    /// The embedded store alone: durable writes, opening.
    Store,
    /// The scheduler's deciding core alone, on 500 to 50 000 nodes.
    Scheduler,
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
        reports.push(store_report().await?);
    }
    if wanted(Name::Start) {
        eprintln!("measuring starts …");
        reports.extend(cluster::start().await?);
    }
    if wanted(Name::Pods) {
        eprintln!("measuring pods …");
        reports.extend(cluster::pods().await?);
    }
    if wanted(Name::Api) {
        eprintln!("measuring the API server (about a minute) …");
        reports.extend(api::all().await?);
    }
    if wanted(Name::Scheduler) {
        eprintln!("measuring the scheduler's core …");
        reports.push(scheduler_report()?);
    }
    if let Some(path) = &cli.json {
        std::fs::write(path, serde_json::to_vec_pretty(&reports)?)
            .map_err(|e| format!("{}: {e}", path.display()))?;
    }
    print!("{}", report::table(&reports));
    Ok(())
}

fn scheduler_report() -> Result<Report, Box<dyn std::error::Error>> {
    let start = tokio::time::Instant::now();
    let mut report = Report::new(
        "scheduler",
        "the deciding core alone: no API, no store; pods of one kind after pods of one kind",
    );
    for workload in scheduler::workloads() {
        let found = scheduler::run(&workload, &|| start.elapsed().as_secs_f64())?;
        let figure = report.figure(&found.workload, found.per_second(), "/s");
        if let Some(target) = workload.target {
            figure.target(Target::AtLeast(target));
        }
    }
    Ok(report)
}

async fn store_report() -> Result<Report, Box<dyn std::error::Error>> {
    // Beside the working directory's build output, so that it is a disk and not a tmpfs that is measured.
    let dir = tempfile::Builder::new()
        .prefix("store-bench-")
        .tempdir_in(std::env::current_exe()?.with_file_name(""))?;
    let options = store::Options {
        dir: dir.path().to_path_buf(),
        ..store::Options::default()
    };
    let workload = format!(
        "embedded store alone, fsync on: {} writers of {} bytes for {} s; then a store with {} keys",
        options.writers, options.value_bytes, options.seconds, options.open_keys
    );
    let found = store::run(options).await?;
    let mut report = Report::new("store", workload);
    report
        .figure("durable writes", found.writes_per_second, "/s")
        .target(Target::AtLeast(20_000.0));
    report.figure("one write, p50", found.p50_micros as f64 / 1000.0, "ms");
    report.figure("one write, p99", found.p99_micros as f64 / 1000.0, "ms");
    if let Some(open) = found.open {
        report.figure("filling", open.fill_seconds, "s");
        report.figure("opening", open.open_seconds, "s");
        report.figure("reading all", open.list_seconds, "s");
    }
    Ok(report)
}
