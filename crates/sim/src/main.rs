//! `knarr-sim`: runs histories of a whole cluster in virtual time from the command line (`./dev sim`).
//!
//! Exit codes: 0, every rule held (with --mutations: every mutant was found); 1, one did not; 2, invalid command
//! line.

mod command;

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, TryFromFloatSecsError};

use clap::Parser;
use knarr_sim::{
    Coverage, Mutation, Pace, Reduction, Report, Simulation, Steps, Swarm, Switches, run_all, steer,
};
use parking_lot::Mutex;
use serde_json::json;

/// Half of the cost of a history would be the default allocator's.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The seeds in which a mutant has to be found.
const MUTATION_SEEDS: u64 = 60;
/// The lines of a history that a failure shows.
const SHORT: usize = 25;

/// Runs a whole cluster in virtual time and checks all rules after every step.
///
/// A history is determined by its seed: users create, scale, roll out and delete; links break, kubelets, controllers
/// and API servers crash, stores are cut off, hosts reboot, messages are late or lost. Then all faults end, and the
/// desired state has to come about. The rules have the numbers of the specification (L1, T3, S1, …).
///
/// In half of the seeds from 100000000 on (--swarm: in all) each feature, user action, error rate and fault is on or
/// off, so that rare combinations occur. The first lines of a history say what was on; see docs/simulation.md.
#[derive(Parser)]
#[command(
    name = "knarr-sim",
    group = clap::ArgGroup::new("reduction").multiple(true).requires("seed")
        .conflicts_with_all(["seeds", "hours", "mutations", "shrink", "steer", "coverage_file"]),
    after_help = "\
Examples:
  knarr-sim --seeds 0..200            two hundred histories; stops at nothing, exits with 1 if a rule was broken
  knarr-sim --seed 17 --trace         one history, with every line of its trace
  knarr-sim --mutations               is every mutant found by its rule?
  knarr-sim --mutation force-away --seed 3 --trace
  knarr-sim --hours 1 --seed 200000000          seeds from there on for an hour
  knarr-sim --swarm --seeds 0..200 --coverage   which faults hit pods in which states, and which pairs never occurred
  knarr-sim --steer --coverage-file met.json --seeds 300000000..300000200
                                      histories with switches that favor pairs that have not occurred yet
  knarr-sim --shrink 17 --mutation cut-the-grace
                                      the same rule broken by fewer steps, nodes and features, with its story
  knarr-sim --seed 17 --skip 3,7-20 --without disks,late --keep-nodes 2 --until 95 --story
                                      a history with some of it left out, as --shrink prints it

Exit codes: 0 all held, 1 a rule was broken or a mutant was not found, 2 invalid command line."
)]
struct Options {
    /// Run one history
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Run the histories from A up to, not including, B
    #[arg(long, value_name = "A..B", value_parser = range, conflicts_with = "seed")]
    seeds: Option<Range<u64>>,
    /// Run histories for so many hours of wall-clock time: seeds from --seed on, or from 0
    #[arg(long, value_name = "H", conflicts_with_all = ["seeds", "mutations", "trace"], value_parser = hours)]
    hours: Option<Duration>,
    /// Run each mutant in turn, and check that its rule finds it
    #[arg(long)]
    mutations: bool,
    /// Run one mutant
    #[arg(long, value_name = "NAME", conflicts_with = "mutations")]
    mutation: Option<Mutation>,
    /// Print every line of the history
    #[arg(long, requires = "seed", conflicts_with = "seeds")]
    trace: bool,
    /// Use this number of nodes, whatever the seed says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=200))]
    nodes: Option<u64>,
    /// Only histories of this pace: dense (minutes with an event every few seconds) or slow (hours with an event
    /// every few minutes, and a rest at the end); by default the seed decides
    #[arg(long, value_name = "PACE")]
    pace: Option<Pace>,
    /// Rare faults in every history, not only in three of ten: one-way links, replaced machines, clocks that are set,
    /// drained nodes
    #[arg(long)]
    rare: bool,
    /// Swarm every history: only some of all features, user actions and faults are on, as the seed says
    #[arg(long, conflicts_with_all = ["no_swarm", "only", "steer"])]
    swarm: bool,
    /// Swarm no history, whatever its seed says
    #[arg(long, conflicts_with_all = ["only", "steer"])]
    no_swarm: bool,
    /// Swarm with these switches on and no others (an unknown name prints the list)
    #[arg(long, value_name = "SWITCHES", conflicts_with = "steer")]
    only: Option<Switches>,
    /// Swarm every history with the switches that make those states likely that the coverage file has seldom or never
    #[arg(long, requires = "coverage_file", conflicts_with_all = ["mutations", "shrink"])]
    steer: bool,
    /// Print at the end which faults hit pods in which states of their lives, how often, and which pairs never
    /// occurred
    #[arg(long, conflicts_with_all = ["mutations", "trace", "shrink", "story"])]
    coverage: bool,
    /// Add the coverage to this file; it is created if it does not exist
    #[arg(long, value_name = "FILE", conflicts_with_all = ["mutations", "trace", "shrink", "story"])]
    coverage_file: Option<PathBuf>,
    /// The format of the summary, text or json: totals, broken histories and the coverage
    #[arg(long, short, value_name = "FORMAT", value_parser = ["text", "json"], default_value = "text", conflicts_with_all = ["mutations", "trace", "shrink", "story"])]
    output: String,
    /// Reduce a broken history and print its story
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seed", "seeds", "hours", "mutations", "trace"])]
    shrink: Option<u64>,
    /// The time limit of --shrink
    #[arg(long, value_name = "M", requires = "shrink", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: u64,
    /// Print which component knew what when in a broken history, for the objects of the broken rule
    #[arg(long, requires = "seed", conflicts_with_all = ["trace", "seeds", "hours", "mutations"])]
    story: bool,
    /// Leave these steps out; --trace numbers them
    #[arg(long, value_name = "STEPS", group = "reduction")]
    skip: Option<Steps>,
    /// Suppress these features, error rates and faults, with everything else drawn as before
    #[arg(long, value_name = "SWITCHES", group = "reduction")]
    without: Option<Switches>,
    /// Leave out all nodes but the first so many, with everything else drawn as before
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=200), group = "reduction")]
    keep_nodes: Option<u64>,
    /// End the faults after so many seconds
    #[arg(long, value_name = "S", group = "reduction")]
    until: Option<u64>,
    /// The number of threads; one per core by default
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Print failures only
    #[arg(long, short)]
    quiet: bool,
}

/// A text that is no range of seeds.
#[derive(Debug, thiserror::Error)]
#[error("expected A..B with A smaller than B, such as 0..100; found {0:?}")]
struct InvalidRange(String);

fn range(text: &str) -> Result<Range<u64>, InvalidRange> {
    let bad = || InvalidRange(text.to_string());
    let (from, to) = text.split_once("..").ok_or_else(bad)?;
    let (from, to) = (from.parse().map_err(|_| bad())?, to.parse().map_err(|_| bad())?);
    if from < to { Ok(from..to) } else { Err(bad()) }
}

/// A text that is no time in hours.
#[derive(Debug, thiserror::Error)]
enum InvalidHours {
    #[error("expected hours, such as 0.5; found {0:?}")]
    Number(String),
    #[error(transparent)]
    Duration(#[from] TryFromFloatSecsError),
}

fn hours(text: &str) -> Result<Duration, InvalidHours> {
    let hours: f64 = text.parse().map_err(|_| InvalidHours::Number(text.to_string()))?;
    Ok(Duration::try_from_secs_f64(hours * 3600.0)?)
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = if options.mutations {
        mutations(&options)
    } else if let Some(seed) = options.shrink {
        let passed = stopwatch();
        let long = Duration::from_secs(options.minutes * 60);
        let (simulation, flags) = (of_seed(&options, seed, None), flags(&options, None));
        command::shrink::run(&simulation, (seed, &flags), jobs(&options), long, passed)
    } else if options.trace || options.story {
        trace(&options)
    } else {
        sweep(&options)
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("knarr-sim: {error}");
            ExitCode::from(1)
        }
    }
}

/// The simulation of a seed with these options, and the coverage so far if they steer by it.
fn of_seed(options: &Options, seed: u64, before: Option<&Coverage>) -> Simulation {
    let mut simulation = Simulation::new(seed).swarm(swarm(options, seed, before));
    if let Some(nodes) = options.nodes {
        simulation = simulation.nodes(usize::try_from(nodes).unwrap_or(usize::MAX));
    }
    if let Some(pace) = options.pace {
        simulation = simulation.pace(pace);
    }
    if options.rare {
        simulation = simulation.rare();
    }
    match options.mutation {
        Some(mutation) => simulation.mutation(mutation),
        None => simulation,
    }
}

/// The same, without the reductions of the options.
fn simulation(options: &Options, seed: u64, before: Option<&Coverage>) -> std::io::Result<Simulation> {
    let (simulation, reduction) = (of_seed(options, seed, before), reduction(options));
    match reduction.is_empty() {
        true => Ok(simulation),
        false => simulation.reduced(reduction),
    }
}

fn reduction(options: &Options) -> Reduction {
    Reduction {
        skip: options.skip.clone().unwrap_or_default(),
        without: options.without.unwrap_or_default(),
        nodes: options
            .keep_nodes
            .map(|nodes| usize::try_from(nodes).unwrap_or(usize::MAX)),
        until: options.until.map(Duration::from_secs),
    }
}

fn swarm(options: &Options, seed: u64, before: Option<&Coverage>) -> Swarm {
    match (options.only, before) {
        (Some(only), _) => Swarm::Only(only),
        (None, Some(before)) if options.steer => Swarm::Only(steer(seed, before)),
        _ if options.swarm => Swarm::Always,
        _ if options.no_swarm => Swarm::Never,
        _ => Swarm::BySeed,
    }
}

/// The flags that make a seed's history what it is, each with a leading space; `steered`: the switches that were on,
/// if the coverage of other histories has chosen them.
fn flags(options: &Options, steered: Option<Switches>) -> String {
    let mut flags = String::new();
    let mut add = |flag: String| {
        flags.push(' ');
        flags.push_str(&flag);
    };
    if let Some(mutation) = options.mutation {
        add(format!("--mutation {mutation}"));
    }
    if let Some(nodes) = options.nodes {
        add(format!("--nodes {nodes}"));
    }
    if options.rare {
        add("--rare".into());
    }
    match options.pace {
        Some(Pace::Dense) => add("--pace dense".into()),
        Some(Pace::Slow) => add("--pace slow".into()),
        None => {}
    }
    match (options.only.or(steered), options.swarm, options.no_swarm) {
        (Some(on), ..) => add(format!("--only {on}")),
        (None, true, _) => add("--swarm".into()),
        (None, _, true) => add("--no-swarm".into()),
        (None, false, false) => {}
    }
    flags
}

fn jobs(options: &Options) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
    options.jobs.unwrap_or_else(cores)
}

fn trace(options: &Options) -> std::io::Result<bool> {
    let simulation = simulation(options, options.seed.unwrap_or_default(), None)?;
    let report = match options.story {
        true => simulation.story().run()?,
        false => simulation.whole_trace().run()?,
    };
    match options.story {
        true => report.story().iter().for_each(|story| println!("{story}")),
        false => report.trace.iter().for_each(|line| println!("{line}")),
    }
    println!("{report}");
    Ok(report.violation.is_none())
}

#[derive(Default)]
struct Totals {
    histories: u64,
    virtual_time: Duration,
    /// The part of it with faults.
    troubled: Duration,
    events: u64,
    /// By seed and rule, with the violation and how to reproduce it.
    broken: Vec<Broken>,
    coverage: Coverage,
    /// The error that stops the sweep.
    failed: Option<std::io::Error>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Broken {
    seed: u64,
    rule: &'static str,
    what: String,
    again: String,
}

fn sweep(options: &Options) -> std::io::Result<bool> {
    let first = options.seed.unwrap_or_default();
    let seeds = match (&options.seeds, options.hours) {
        (Some(seeds), _) => seeds.clone(),
        (None, Some(_)) => first..u64::MAX,
        (None, None) if options.seed.is_some() => first..first + 1,
        (None, None) => 0..100,
    };
    let json = options.output == "json";
    let before = options.coverage_file.as_deref();
    let before = before.map(command::coverage::read).transpose()?;
    let began = stopwatch();
    let totals = Mutex::new(Totals::default());
    let next = seeds
        .take_while(|_| options.hours.is_none_or(|hours| began() < hours))
        .map_while(|seed| {
            let simulation = simulation(options, seed, before.as_ref());
            // It is returned once the running histories have ended.
            simulation.map_err(|e| totals.lock().failed = Some(e)).ok()
        });
    run_all(jobs(options), next, |report| {
        let mut totals = totals.lock();
        totals.histories += 1;
        totals.virtual_time += report.lasted;
        totals.troubled += report.troubled;
        totals.events += report.events;
        totals.coverage.add(&report.coverage);
        if let Some(violation) = &report.violation {
            let again = again(&report, options, before.as_ref());
            if !json {
                println!("{}\n", short(&report, &again));
            }
            totals.broken.push(Broken {
                seed: report.seed,
                rule: violation.rule,
                what: violation.what.clone(),
                again,
            });
        }
        if !options.quiet && totals.histories.is_power_of_two() || totals.histories % 100 == 0 {
            eprintln!(
                "{} histories, {} broken, {:.0} s",
                totals.histories,
                totals.broken.len(),
                began().as_secs_f64()
            );
        }
        true
    })?;
    let mut totals = totals.into_inner();
    if let Some(failed) = totals.failed.take() {
        return Err(failed);
    }
    totals.broken.sort_unstable();
    if let (Some(file), Some(mut sum)) = (&options.coverage_file, before) {
        sum.add(&totals.coverage);
        command::coverage::write(file, &sum)?;
    }
    let took = began().as_secs_f64();
    match json {
        true => println!("{:#}", as_json(&totals, took)?),
        false => print(&totals, options, took),
    }
    Ok(totals.broken.is_empty())
}

fn as_json(totals: &Totals, took: f64) -> serde_json::Result<serde_json::Value> {
    let broken = totals.broken.iter().map(|broken| {
        json!({"seed": broken.seed, "rule": broken.rule, "what": broken.what, "again": broken.again})
    });
    let coverage: serde_json::Value = serde_json::from_str(&totals.coverage.to_json()?)?;
    Ok(json!({
        "histories": totals.histories,
        "steps": totals.events,
        "clusterSeconds": totals.virtual_time.as_secs(),
        "troubledSeconds": totals.troubled.as_secs(),
        "seconds": took,
        "broken": broken.collect::<Vec<_>>(),
        "coverage": coverage,
    }))
}

fn print(totals: &Totals, options: &Options, took: f64) {
    if options.coverage {
        println!("{}\n", totals.coverage);
    }
    let hours = totals.virtual_time.as_secs_f64() / 3600.0;
    println!(
        "{} histories, {} steps, {hours:.1} cluster-hours ({:.1} of them under faults) in {took:.1} s on {} threads: {:.0} \
cluster-hours a minute and thread",
        totals.histories,
        totals.events,
        totals.troubled.as_secs_f64() / 3600.0,
        jobs(options),
        hours * 60.0 / took / jobs(options) as f64
    );
    if totals.broken.is_empty() {
        println!("every rule held");
    } else {
        let seeds = totals.broken.iter();
        let seeds: Vec<_> = seeds.map(|b| format!("{} ({})", b.seed, b.rule)).collect();
        println!("{} broken: {}", seeds.len(), seeds.join(", "));
    }
}

/// The flags that reproduce a history.
fn again(report: &Report, options: &Options, before: Option<&Coverage>) -> String {
    let steered = before
        .filter(|_| options.steer)
        .map(|before| steer(report.seed, before));
    let flags = flags(options, steered);
    format!("--seed {}{flags}{}", report.seed, reduction(options))
}

/// The end of a broken history, and how to see all of it.
fn short(report: &Report, again: &str) -> String {
    let from = report.trace.len().saturating_sub(SHORT);
    let mut lines: Vec<String> = report.trace.iter().skip(from).cloned().collect();
    lines.push(report.to_string());
    lines.push(format!("all of it: ./dev sim {again} --trace"));
    if !again.contains("--skip") {
        let small = again.replacen("--seed", "--shrink", 1);
        lines.push(format!("reduced, with its story: ./dev sim {small}"));
    }
    lines.join("\n")
}

fn mutations(options: &Options) -> std::io::Result<bool> {
    let seeds = options.seeds.clone().unwrap_or(0..MUTATION_SEEDS);
    let mut all_found = true;
    for mutation in Mutation::ALL.into_iter() {
        let tried = AtomicU64::new(0);
        let found = Mutex::new(None::<Report>);
        let next = seeds
            .clone()
            // Dense histories find them sooner.
            .map(|seed| {
                of_seed(options, seed, None)
                    .pace(options.pace.unwrap_or(Pace::Dense))
                    .mutation(mutation)
            });
        run_all(jobs(options), next, |report| {
            tried.fetch_add(1, Ordering::Relaxed);
            let hit = report
                .violation
                .as_ref()
                .is_some_and(|v| v.rule == mutation.rule());
            let mut found = found.lock();
            if hit && found.as_ref().is_none_or(|before| before.seed > report.seed) {
                *found = Some(report);
            }
            found.is_none()
        })?;
        match (found.into_inner(), tried.into_inner()) {
            (Some(report), tried) => {
                let what = report.violation.map(|v| v.what).unwrap_or_default();
                println!(
                    "found   {mutation}: {} by seed {} ({tried} tried): {what}",
                    mutation.rule(),
                    report.seed
                );
            }
            (None, tried) => {
                all_found = false;
                println!(
                    "MISSED  {mutation}: {} in {tried} seeds; the mutant: {}",
                    mutation.rule(),
                    mutation.what()
                );
            }
        }
    }
    Ok(all_found)
}

/// The elapsed wall-clock time.
#[allow(
    clippy::disallowed_methods,
    reason = "wall-clock time for the user; no history depends on it"
)]
fn stopwatch() -> impl Fn() -> Duration + Send + Sync {
    let began = std::time::Instant::now();
    move || began.elapsed()
}
