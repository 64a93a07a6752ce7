//! `knarr-nemesis`: the real binaries under real faults, from the command line (`./dev nemesis`).
//!
//! Exit codes: 0, no violation; 1, a violation, or the run could not be carried out; 2, a usage error.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use knarr_nemesis::run::{Options, Report, Store, run};
use knarr_nemesis::schedule::FaultKind;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Runs real clusters under real faults and checks their guarantees against ground truth.
///
/// Three servers on an etcd of three members (or one server with the embedded store) and three agents run in network
/// namespaces of their own, each with a disk of its own. In each round, processes are killed and paused, links cut, clocks
/// changed and disks filled, while clients write, read and watch and pods are created, deleted and rolled out. Then all
/// faults end, the cluster has to converge to the desired state, and the recorded history is checked: linearizable
/// registers, watches that neither skip nor repeat events, at most one process of a pod's name, full grace periods, and
/// nothing left on the host.
///
/// The faults follow from the seed; the host's timing does not, so a seed with a violation may need several runs.
#[derive(Parser)]
#[command(
    name = "knarr-nemesis",
    after_help = "\
Examples:
  knarr-nemesis --minutes 60                     an hour with etcd, every kind of fault
  knarr-nemesis --store embedded --seed 7        the embedded store, the faults of seed 7
  knarr-nemesis --only kill,cut --seed 7         of them only kills and cuts
  knarr-nemesis --seed 7 --plan                  the faults of the first round with their times; nothing is run

A violation is printed and ends the run. Its directory then has the history (history.jsonl, a JSON object a line), the
logs of all processes, and the objects of the API; docs/nemesis.md describes how to read them.

It needs root, containerd, runc, nftables and iproute2, for --store etcd the program etcd, and for clock faults Debian's \
package faketime.

Exit codes: 0 no violation, 1 a violation or the run could not be carried out, 2 usage error."
)]
struct Flags {
    /// Minutes after which no further round begins; a round that has begun is finished
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=10_080))]
    minutes: u64,
    /// The seed from which the faults follow [default: a random one]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The store of the servers
    #[arg(long, value_enum, default_value = "etcd")]
    store: StoreName,
    /// Only these kinds of fault: kill, cut, pause, clock, disk
    #[arg(
        long,
        value_name = "KINDS",
        value_delimiter = ',',
        default_value = "kill,cut,pause,clock,disk"
    )]
    only: Vec<FaultKind>,
    /// The duration of the faults in a round
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(5..=3_600))]
    round_seconds: u64,
    /// Print the result as text or json
    #[arg(long, short, value_name = "FORMAT", value_parser = ["text", "json"], default_value = "text")]
    output: String,
    /// Print the faults of the first round, and run nothing
    #[arg(long)]
    plan: bool,
    /// The program under test [default: `knarr` in the directory of this program]
    #[arg(long, value_name = "FILE")]
    knarr: Option<PathBuf>,
    /// Directory of the history and, after a violation, the logs [default: .knarr/nemesis/STORE-SEED]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum StoreName {
    /// Three servers on an etcd of three members
    Etcd,
    /// One server with its own store
    Embedded,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    // If the system's random generator fails, the run has seed 0.
    let seed = flags.seed.unwrap_or_else(|| {
        let random = StdRng::try_from_rng(&mut rand::rngs::SysRng);
        random.map_or(0, |mut random| random.random_range(0..1_000_000))
    });
    let (store, name) = match flags.store {
        StoreName::Etcd => (Store::Etcd, "etcd"),
        StoreName::Embedded => (Store::Embedded, "embedded"),
    };
    let round = Duration::from_secs(flags.round_seconds);
    if flags.plan {
        for planned in store.plan(seed, &flags.only, round) {
            println!(
                "{:8.2} {} for {:.1} s",
                planned.at_millis as f64 / 1e3,
                planned.fault,
                planned.lasts_millis as f64 / 1e3
            );
        }
        return ExitCode::SUCCESS;
    }
    let knarr = flags.knarr.or_else(|| {
        let own = std::env::current_exe().ok()?;
        Some(own.with_file_name("knarr"))
    });
    let Some(knarr) = knarr.filter(|k| k.is_file()) else {
        eprintln!("knarr-nemesis: the program under test does not exist: build it, or name it with --knarr");
        return ExitCode::FAILURE;
    };
    let options = Options {
        knarr,
        store,
        seed,
        kinds: flags.only,
        length: Duration::from_secs(60 * flags.minutes),
        round,
        directory: flags
            .directory
            .unwrap_or_else(|| PathBuf::from(format!(".knarr/nemesis/{name}-{seed}"))),
        is_verbose: true,
    };
    eprintln!("store {name}, seed {seed}");
    let stop = Arc::new(AtomicBool::new(false));
    if let Err(e) = stop_on_signals(&stop) {
        eprintln!("knarr-nemesis: cannot install a signal handler: {e}");
        return ExitCode::FAILURE;
    }
    match run(&options, &stop) {
        Ok(report) => {
            print(&report, &flags.output);
            match report.violations.is_empty() {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            }
        }
        Err(e) => {
            eprintln!("knarr-nemesis: {}", e.message().unwrap_or("failed"));
            ExitCode::FAILURE
        }
    }
}

/// After SIGINT or SIGTERM the run stops and removes everything that it has started.
fn stop_on_signals(stop: &Arc<AtomicBool>) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let guard = runtime.enter();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    drop(guard);
    let stop = stop.clone();
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                eprintln!("interrupted: stopping everything");
                stop.store(true, Ordering::Relaxed);
            }
        });
    });
    Ok(())
}

fn print(report: &Report, format: &str) {
    if format == "json" {
        match serde_json::to_string_pretty(report) {
            Ok(text) => println!("{text}"),
            Err(e) => eprintln!("knarr-nemesis: {e}"),
        }
        return;
    }
    let faults: Vec<_> = report
        .faults
        .iter()
        .map(|(kind, n)| format!("{n} {kind}"))
        .collect();
    println!(
        "{} rounds in {} s: {} calls ({} without a response), {} watch events over {} watches ({} expired), {} processes of pods; faults: {}",
        report.rounds,
        report.seconds,
        report.calls,
        report.unknown_calls,
        report.watch_events,
        report.watches,
        report.watches_expired,
        report.processes,
        faults.join(", ")
    );
    if report.undecided > 0 {
        println!(
            "{} registers had too many writes without a response to be decided",
            report.undecided
        );
    }
    for violation in &report.violations {
        println!("VIOLATION {violation}");
    }
    match &report.directory {
        Some(directory) => println!("history and logs: {}", directory.display()),
        None if report.is_interrupted => println!("interrupted, no violation until then"),
        None => println!("no violation"),
    }
}
