//! `./dev bench`: measures knarr on this host, and compares with Kubernetes v1.36.2 on a similar one.

mod api;
mod calibration;
mod cluster;
mod compare;
mod container_runtime;
mod controllers;
mod interruption;
mod memory;
mod network;
mod node;
mod pod_trace;
mod process;
mod progress;
mod report;
mod results;
mod scheduler;
mod stats;
mod store;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use calibration::{Basis, Calibration};
use container_runtime::ContainerRuntime;
use process::Setup;
use progress::Progress;
use report::{Report, Target};
use results::Results;

/// Measures knarr and prints a table, with the workload of each measurement.
///
/// Each round begins with a calibration of the host (a few seconds), and each measurement is also printed in units of the part of it
/// that it depends on most, so that two days and two machines can be compared.
#[derive(Parser)]
#[command(name = "./dev bench")]
struct Cli {
    /// Which benchmark; all of them if none is named.
    #[arg(value_enum)]
    name: Option<Name>,
    /// Write the measurements to this file, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure so many times; with --trace, so many pods [default: 1; 5 with --compare or --json, the fewest with which an
    /// unchanged measurement is marked in fewer than 1 of 100 comparisons; 20 pods].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeat: Option<u16>,
    /// Compare with what `--json` wrote, and mark what changed by more than noise: all values of one side are greater than all of
    /// the other, in units of the calibration.
    #[arg(long, value_name = "OLD.json")]
    compare: Option<PathBuf>,
    /// With `pods`: the steps of a pod's start and end and how long each takes, one pod at a time.
    #[arg(long, conflicts_with_all = ["compare", "only"])]
    trace: bool,
    #[command(flatten)]
    containers: ContainerRuntime,
    /// Run only this part of the API server's benchmark (small, pods, watches, leases), or only the scheduler's workloads
    /// whose title contains TEXT; the workload `large` runs only when it is named.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Runs one workload through the API in this process and prints its result: each is measured alone.
    #[arg(long, hide = true, value_name = "NUMBER")]
    workload: Option<usize>,
    /// Makes one plan of a rebalancer in this process and prints its result.
    #[arg(long, hide = true, value_name = "NUMBER")]
    plan: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Process start to API ready and to node Ready.
    Start,
    /// Pods singly and thirty at once; memory and idle CPU; a full node's cost and timers (`--only node`: these alone).
    Pods,
    /// The API server over HTTPS: creates, reads, lists, watches, leases; memory as it fills.
    Api,
    /// Memory idle, with ten thousand Services, and after everything is deleted.
    Memory,
    /// The embedded store alone: durable writes, opening.
    Store,
    /// StatefulSets coming up on a thousand nodes, a lost node's pods, ten thousand pods at rest.
    Controllers,
    /// The scheduler through the API with the embedded store, and its deciding core alone, on 500 to 50 000 nodes.
    Scheduler,
    /// The service proxy with 1 000 to 100 000 Services: cold, one change, connections, memory (`--only 10000`: one of them).
    Network,
}

/// As knarr has it, or its speed would not be measured.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let ended = interruption::unless_interrupted(run(Cli::parse()), |interrupted| {
        std::process::exit(interrupted.code().into())
    });
    match ended.await {
        Ok(Ok(Ok(()))) => ExitCode::SUCCESS,
        Ok(Ok(Err(e))) => {
            eprintln!("bench: {e}");
            ExitCode::FAILURE
        }
        Ok(Err(interrupted)) => ExitCode::from(interrupted.code()),
        Err(e) => {
            eprintln!("bench: cannot install a signal handler: {e}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<(), Box<dyn std::error::Error>> {
    if let (Some(number), Some(Name::Network)) = (cli.workload, cli.name) {
        let found = network::run(number).await?;
        println!("{found}");
        return Ok(());
    }
    if let Some(number) = cli.workload {
        let workloads = scheduler::through_api();
        let workload = workloads.get(number).ok_or("there is no such workload")?;
        let found = scheduler::cluster::run(workload).await?;
        println!("{}", serde_json::to_string(&found)?);
        return Ok(());
    }
    if let Some(number) = cli.plan {
        let workloads = scheduler::rebalance::WORKLOADS_OF_PLANS;
        let workload = workloads.get(number).ok_or("there is no such plan")?;
        let start = tokio::time::Instant::now();
        let found = scheduler::rebalance::run(workload, &|| start.elapsed().as_secs_f64())?;
        println!("{}", serde_json::to_string(&found)?);
        return Ok(());
    }
    if cli.trace {
        return trace(cli).await;
    }
    // Before anything is measured: a file that cannot be compared with is known at once.
    let old = cli.compare.as_deref().map(results::read).transpose()?;
    let is_compared = old.is_some() || cli.json.is_some();
    let rounds = match cli.repeat {
        Some(rounds) => usize::from(rounds),
        None if is_compared => compare::ROUNDS,
        None => 1,
    };
    let mut results = Results::new(cli.containers.clone());
    for round in 1..=rounds {
        if rounds > 1 {
            eprintln!("round {round} of {rounds}");
        }
        let calibration = calibrate().await?;
        results.add(calibration, measure(&cli).await?);
    }
    if let Some(path) = &cli.json {
        results::write(path, &results)?;
    }
    print!("{}", results::table(&results));
    if let Some(old) = &old {
        print!("{}", compare::table(old, &results));
    }
    Ok(())
}

/// What the host can do now. Its disk is that of the build's output, where the benchmarks' stores are.
async fn calibrate() -> Result<Calibration, Box<dyn std::error::Error>> {
    let _progress = Progress::start("calibrating (a few seconds)");
    let directory = std::env::current_exe()?.with_file_name("");
    let measured =
        tokio::task::spawn_blocking(move || calibration::measure(&calibration::Sizes::default(), &directory));
    Ok(measured.await??)
}

/// `pods --trace`.
async fn trace(cli: Cli) -> Result<(), Box<dyn std::error::Error>> {
    if cli.name != Some(Name::Pods) {
        return Err("--trace: expected `pods` as the benchmark's name".into());
    }
    let calibration = calibrate().await?;
    let pods = cli.repeat.map_or(pod_trace::PODS, usize::from);
    let document = pod_trace::run(pods, cli.containers, calibration).await?;
    if let Some(path) = &cli.json {
        std::fs::write(path, serde_json::to_vec_pretty(&document)?)
            .map_err(|e| format!("{}: {e}", path.display()))?;
    }
    print!("{}", pod_trace::table(&document));
    Ok(())
}

/// One round of what is selected.
async fn measure(cli: &Cli) -> Result<Vec<Report>, Box<dyn std::error::Error>> {
    let selected = |name| cli.name.is_none_or(|only| only == name);
    let setup = Setup {
        containers: cli.containers.clone(),
        ..Setup::default()
    };
    let mut reports: Vec<Report> = Vec::new();
    if selected(Name::Store) {
        let _progress = Progress::start("measuring the store");
        reports.push(store_report().await?);
    }
    if selected(Name::Start) {
        let _progress = Progress::start("measuring starts");
        reports.extend(cluster::start(&setup).await?);
    }
    if selected(Name::Pods) {
        if !only_node(cli) {
            let _progress = Progress::start("measuring pods");
            reports.extend(cluster::pods(&setup).await?);
        }
        let _progress = Progress::start("measuring a full node (about two minutes)");
        reports.push(node::full(&setup).await?);
    }
    let only = cli.only.as_deref().unwrap_or("");
    if selected(Name::Api) {
        let _progress = Progress::start("measuring the API server (about a minute)");
        reports.extend(api::all(only).await?);
    }
    if selected(Name::Memory) {
        let _progress = Progress::start("measuring memory (about six minutes)");
        reports.push(memory::report(&setup).await?);
    }
    if selected(Name::Controllers) {
        let _progress = Progress::start("measuring the controllers (about two minutes)");
        reports.extend(controllers::all().await?);
    }
    if selected(Name::Scheduler) {
        let progress = Progress::start("measuring the scheduler through the API");
        reports.extend(scheduler_reports(only)?);
        drop(progress);
        let _progress = Progress::start("measuring the scheduler's core");
        let core = core_report(only)?;
        if !core.measurements.is_empty() {
            reports.push(core);
        }
        if "preemption across nodes".contains(only) {
            reports.push(cross_node_report()?);
        }
        if "plans of a rebalancer".contains(only) {
            reports.push(plans_report()?);
        }
    }
    if selected(Name::Network) {
        let _progress = Progress::start("measuring the service proxy (some minutes)");
        reports.extend(network::all(only).await?);
    }
    Ok(reports)
}

fn only_node(cli: &Cli) -> bool {
    cli.only.as_deref() == Some("node")
}

/// Measures one of the scheduler's workloads in a process of its own, so that its memory is its own.
fn in_own_process<T: serde::de::DeserializeOwned>(
    flag: &str,
    number: usize,
) -> Result<T, Box<dyn std::error::Error>> {
    let out = std::process::Command::new(std::env::current_exe()?)
        .args(["scheduler", flag, &number.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()?;
    if !out.status.success() {
        return Err(format!("scheduler {flag} {number} could not be measured").into());
    }
    Ok(serde_json::from_slice(&out.stdout)?)
}

fn scheduler_reports(only: &str) -> Result<Vec<Report>, Box<dyn std::error::Error>> {
    let mut reports = Vec::new();
    for (number, workload) in scheduler::through_api().iter().enumerate() {
        if !workload.title().contains(only) {
            continue;
        }
        let found: scheduler::cluster::Found = in_own_process("--workload", number)?;
        let what = "API, embedded store with fsync, scheduler and load generator in one process";
        let mut report = Report::new("scheduler", format!("{}; {what}", workload.title()));
        let pods = report.record("pods bound", found.pods_per_second, "/s", Basis::TwoCpus);
        if let Some(target) = workload.target {
            pods.target(Target::AtLeast(target));
        }
        if let Some(kubernetes) = workload.kubernetes {
            pods.kubernetes(kubernetes);
            report.record(
                "times kube-scheduler",
                found.pods_per_second / kubernetes,
                "x",
                Basis::None,
            );
        }
        report.record(
            "pods bound in the worst second",
            found.worst_second,
            "/s",
            Basis::TwoCpus,
        );
        report.record(
            "one attempt with its binding, p99",
            found.p99_attempt_ms,
            "ms",
            Basis::Fdatasync,
        );
        report.record("CPU time of all for one pod", found.cpu_micros, "µs", Basis::Cpu);
        report.record("memory in the end", found.memory_mb, "MB", Basis::None);
        reports.push(report);
    }
    Ok(reports)
}

fn core_report(only: &str) -> Result<Report, Box<dyn std::error::Error>> {
    let start = tokio::time::Instant::now();
    let mut report = Report::new(
        "scheduler, deciding core",
        "no API, no store; pods of one kind after pods of one kind",
    );
    let mut measure = |workload: &scheduler::Workload| -> Result<(), Box<dyn std::error::Error>> {
        let found = scheduler::core::run(workload, &|| start.elapsed().as_secs_f64())?;
        let record = report.record(workload.title(), found.per_second(), "/s", Basis::Cpu);
        if let Some(target) = workload.target {
            record.target(Target::AtLeast(target));
        }
        Ok(())
    };
    for workload in scheduler::core_alone()
        .iter()
        .filter(|w| w.title().contains(only))
    {
        measure(workload)?;
    }
    let large = scheduler::large();
    if only == large.name {
        process::forget_own_peak()?;
        measure(&large)?;
        let memory = process::own_peak_memory_mb()?;
        report
            .record("memory at most", memory, "MB", Basis::None)
            .target(Target::AtMost(12.0 * 1024.0));
    }
    Ok(report)
}

fn cross_node_report() -> Result<Report, Box<dyn std::error::Error>> {
    use scheduler::cross_node::{DECISIONS, NODES, run};
    let start = tokio::time::Instant::now();
    let mut decisions = run(&|| start.elapsed().as_secs_f64())?;
    let mut report = Report::new(
        "preemption across nodes",
        format!(
            "deciding core: {DECISIONS} decisions at {NODES} nodes, each because of anti-affinity or topology spread with pods of 3 or 4 nodes"
        ),
    );
    report.record(
        "one decision, p50",
        stats::percentile(&mut decisions, 50.0),
        "ms",
        Basis::Cpu,
    );
    report
        .record(
            "one decision, p99",
            stats::percentile(&mut decisions, 99.0),
            "ms",
            Basis::Cpu,
        )
        .target(Target::AtMost(5.0));
    Ok(report)
}

fn plans_report() -> Result<Report, Box<dyn std::error::Error>> {
    let mut report = Report::new(
        "plans of a rebalancer",
        "5 000 nodes in 3 zones, 100 000 pods of 1 000 workloads; the memory is that of the snapshot and its objects, and the most during the plan",
    );
    for (number, workload) in scheduler::rebalance::WORKLOADS_OF_PLANS.iter().enumerate() {
        let found: scheduler::rebalance::Found = in_own_process("--plan", number)?;
        let name = format!("{}: {} moves", workload.name, found.moves);
        report
            .record(name.clone(), found.seconds, "s", Basis::Cpu)
            .target(Target::AtMost(1.0));
        report
            .record(
                format!("{name}, memory by the snapshot's"),
                found.times_snapshot,
                "x",
                Basis::None,
            )
            .target(Target::AtMost(1.5));
    }
    Ok(report)
}

async fn store_report() -> Result<Report, Box<dyn std::error::Error>> {
    // In the working directory's build output, so that it is a disk and not a tmpfs that is measured.
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
        .record("durable writes", found.writes_per_second, "/s", Basis::Fdatasync)
        .target(Target::AtLeast(20_000.0));
    report.record(
        "one write, p50",
        found.p50_micros as f64 / 1000.0,
        "ms",
        Basis::Fdatasync,
    );
    report.record(
        "one write, p99",
        found.p99_micros as f64 / 1000.0,
        "ms",
        Basis::Fdatasync,
    );
    if let Some(open) = found.open {
        report.record("filling", open.fill_seconds, "s", Basis::Fdatasync);
        report.record("opening", open.open_seconds, "s", Basis::Cpu);
        report.record("reading all", open.list_seconds, "s", Basis::Cpu);
    }
    Ok(report)
}
