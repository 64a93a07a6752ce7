//! `knarr-sim`: histories of a whole cluster in virtual time, from the command line (`./dev sim`).
//!
//! Exit codes: 0, every rule held (with --mutations: every mistake was found); 1, one did not; 2, the command line is wrong.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser;
use knarr_sim::{Mutation, Pace, Report, Simulation, run_all};
use parking_lot::Mutex;

/// Half of what a history costs otherwise is the allocator's.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Seeds in which a mistake has to be found.
const MUTATION_SEEDS: u64 = 60;
/// Lines of a history that a failure shows.
const SHORT: usize = 25;

/// Runs a whole cluster in virtual time and asks after every step whether it keeps its promises.
///
/// A history follows from its seed alone: users create, scale, roll out and delete; links break, kubelets, controllers
/// and API servers die, stores are cut off, machines reboot, messages are late or lost. Then everything heals, and what
/// was wanted has to come about. The rules carry SPEC's numbers (L1, T3, S1, …).
#[derive(Parser)]
#[command(
    name = "knarr-sim",
    after_help = "\
Examples:
  knarr-sim --seeds 0..200            two hundred histories; stops at nothing, exits with 1 if a rule was broken
  knarr-sim --seed 17 --trace         one history, every line of it
  knarr-sim --mutations               does every deliberate mistake get found?
  knarr-sim --mutation force-away --seed 3 --trace
  knarr-sim --hours 1                 new seeds for an hour

Exit codes: 0 all held, 1 a rule was broken or a mistake was not found, 2 wrong usage."
)]
struct Options {
    /// One history
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Histories from A up to, not including, B
    #[arg(long, value_name = "A..B", value_parser = range, conflicts_with = "seed")]
    seeds: Option<Range<u64>>,
    /// Histories for so long, by the wall clock: seeds from --seed on, or from 0
    #[arg(long, value_name = "H", conflicts_with_all = ["seeds", "mutations", "trace"], value_parser = hours)]
    hours: Option<Duration>,
    /// Make each deliberate mistake in turn, and see that its rule finds it
    #[arg(long)]
    mutations: bool,
    /// Make one mistake
    #[arg(long, value_name = "NAME", value_parser = mutation, conflicts_with = "mutations")]
    mutation: Option<Mutation>,
    /// Print every line of the history
    #[arg(long, requires = "seed")]
    trace: bool,
    /// So many nodes, whatever the seed says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=200))]
    nodes: Option<u64>,
    /// Only histories of this pace: dense (minutes with something every few seconds) or slow (hours with something every
    /// few minutes, and a rest in the end); by default the seed decides
    #[arg(long, value_name = "PACE", value_parser = pace)]
    pace: Option<Pace>,
    /// In every history what happens in three of ten: one-way links, replaced machines, clocks that are set, drained nodes
    #[arg(long)]
    rare: bool,
    /// Threads; one per core by default
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Say nothing of what goes well
    #[arg(long, short)]
    quiet: bool,
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let bad = || format!("expected A..B with A smaller than B, such as 0..100; found {text:?}");
    let (from, to) = text.split_once("..").ok_or_else(bad)?;
    let (from, to) = (from.parse().map_err(|_| bad())?, to.parse().map_err(|_| bad())?);
    if from < to { Ok(from..to) } else { Err(bad()) }
}

fn hours(text: &str) -> Result<Duration, String> {
    let hours: f64 = text
        .parse()
        .map_err(|_| format!("expected hours, such as 0.5; found {text:?}"))?;
    Duration::try_from_secs_f64(hours * 3600.0).map_err(|e| e.to_string())
}

fn pace(text: &str) -> Result<Pace, String> {
    match text {
        "dense" => Ok(Pace::Dense),
        "slow" => Ok(Pace::Slow),
        _ => Err("expected dense or slow".into()),
    }
}

fn mutation(text: &str) -> Result<Mutation, String> {
    let mut all = Mutation::ALL.into_iter();
    all.find(|m| m.name() == text).ok_or_else(|| {
        let names: Vec<_> = Mutation::ALL.iter().map(|m| m.name()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = if options.mutations {
        mutations(&options)
    } else if options.trace {
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

/// What the options make of a seed.
fn simulation(options: &Options, seed: u64) -> Simulation {
    let mut simulation = Simulation::new(seed);
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

fn jobs(options: &Options) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
    options.jobs.unwrap_or_else(cores)
}

fn trace(options: &Options) -> std::io::Result<bool> {
    let report = simulation(options, options.seed.unwrap_or_default())
        .whole_trace()
        .run()?;
    report.trace.iter().for_each(|line| println!("{line}"));
    println!("{report}");
    Ok(report.violation.is_none())
}

#[derive(Default)]
struct Totals {
    histories: u64,
    virtual_time: Duration,
    /// Of that, while faults struck.
    troubled: Duration,
    events: u64,
    broken: Vec<(u64, &'static str)>,
}

fn sweep(options: &Options) -> std::io::Result<bool> {
    let first = options.seed.unwrap_or_default();
    let seeds = match (&options.seeds, options.hours) {
        (Some(seeds), _) => seeds.clone(),
        (None, Some(_)) => first..u64::MAX,
        (None, None) if options.seed.is_some() => first..first + 1,
        (None, None) => 0..100,
    };
    let began = stopwatch();
    let totals = Mutex::new(Totals::default());
    let next = seeds
        .take_while(|_| options.hours.is_none_or(|hours| began() < hours))
        .map(|seed| simulation(options, seed));
    run_all(jobs(options), next, |report| {
        let mut totals = totals.lock();
        totals.histories += 1;
        totals.virtual_time += report.lasted;
        totals.troubled += report.troubled;
        totals.events += report.events;
        if let Some(violation) = &report.violation {
            totals.broken.push((report.seed, violation.rule));
            println!("{}\n", short(&report, options));
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
    let totals = totals.into_inner();
    let (hours, took) = (totals.virtual_time.as_secs_f64() / 3600.0, began().as_secs_f64());
    println!(
        "{} histories, {} steps, {hours:.1} cluster-hours ({:.1} of them under faults) in {took:.1} s on {} threads: {:.0} \
cluster-hours a minute and thread",
        totals.histories,
        totals.events,
        totals.troubled.as_secs_f64() / 3600.0,
        jobs(options),
        hours * 60.0 / took / jobs(options) as f64
    );
    let mut broken = totals.broken;
    broken.sort_unstable();
    if broken.is_empty() {
        println!("every rule held");
    } else {
        let seeds: Vec<_> = broken
            .iter()
            .map(|(seed, rule)| format!("{seed} ({rule})"))
            .collect();
        println!("{} broken: {}", broken.len(), seeds.join(", "));
    }
    Ok(broken.is_empty())
}

/// The end of a broken history, and how to see all of it.
fn short(report: &Report, options: &Options) -> String {
    let from = report.trace.len().saturating_sub(SHORT);
    let mut lines: Vec<String> = report.trace.iter().skip(from).cloned().collect();
    let mut with = options
        .mutation
        .map(|m| format!(" --mutation {m}"))
        .unwrap_or_default();
    if options.rare {
        with.push_str(" --rare");
    }
    if let Some(pace) = options.pace {
        with.push_str(match pace {
            Pace::Dense => " --pace dense",
            Pace::Slow => " --pace slow",
        });
    }
    lines.push(report.to_string());
    lines.push(format!(
        "all of it: ./dev sim --seed {}{with} --trace",
        report.seed
    ));
    lines.join("\n")
}

fn mutations(options: &Options) -> std::io::Result<bool> {
    let seeds = options.seeds.clone().unwrap_or(0..MUTATION_SEEDS);
    let mut all_found = true;
    for mutation in Mutation::ALL {
        let tried = AtomicU64::new(0);
        let found = Mutex::new(None::<Report>);
        let next = seeds
            .clone()
            // Dense ones find them sooner.
            .map(|seed| {
                simulation(options, seed)
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
                    "MISSED  {mutation}: {} in {tried} seeds; the mistake: {}",
                    mutation.rule(),
                    mutation.what()
                );
            }
        }
    }
    Ok(all_found)
}

/// How long it has been, by the wall clock.
#[allow(
    clippy::disallowed_methods,
    reason = "a person waits for this; no history sees it"
)]
fn stopwatch() -> impl Fn() -> Duration + Send + Sync {
    let began = std::time::Instant::now();
    move || began.elapsed()
}
