//! End to end, as a user: the built `knarr` with real containerd, driven by unmodified kubectl.
//!
//! One cluster is started for all scenarios and stopped after them; each scenario has a namespace of its own.
//! Everything waits for conditions with a limit; nothing sleeps in their place.

#![allow(clippy::disallowed_methods, reason = "real processes run on the real clock")]

mod access;
mod autoscaling;
mod bad_input;
mod claims;
mod cluster;
mod crash;
mod disk;
mod javascript;
mod joining;
mod kube_rs;
mod kubectl;
mod kubectl_pods;
mod kubectl_streams;
mod nemesis;
mod network;
mod node;
mod operator;
mod partitions;
mod pod_lifecycle;
mod python;
mod quorum;
mod reachability;
mod rebalancing;
mod safety;
mod security;
mod shim;
mod shutdown;
mod startup_errors;
mod steps;
mod why_whatif;

#[allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]
#[path = "../../../node/tests/support/dra_driver.rs"]
mod dra_driver;
#[allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]
#[path = "../../../node/tests/support/plugin.rs"]
mod plugin_support;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};

use cluster::Cluster;

pub use knarr_nemesis::wait::Outcome;

/// The program under test.
pub const KNARR: &str = env!("CARGO_BIN_EXE_knarr");

/// A scenario that starts its own clusters.
pub type StandaloneScenario = (&'static str, fn() -> Outcome);

/// Scenarios that run now, each with a read lock. A scenario that depends on seconds takes the write lock; no other runs then.
/// Other test programs may: `./dev test` runs the simulator at the same time, with the lowest priority.
static RUNNING: RwLock<()> = RwLock::new(());

/// Runs a scenario, with others at the same time.
pub fn with_others(run: impl FnOnce() -> Outcome) -> Outcome {
    let _running = RUNNING.read().unwrap_or_else(PoisonError::into_inner);
    run()
}

/// Runs after the scenarios that run now have ended, and before any other begins. Not within [`with_others`].
pub fn alone(run: impl FnOnce() -> Outcome) -> Outcome {
    let _running = RUNNING.write().unwrap_or_else(PoisonError::into_inner);
    run()
}

/// How long each scenario took, with what it waited for others.
static DURATIONS: Mutex<Vec<(&str, Duration)>> = Mutex::new(Vec::new());

fn timed(name: &'static str, run: impl FnOnce() -> Outcome) -> Outcome {
    let begin = Instant::now();
    let outcome = run();
    DURATIONS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push((name, begin.elapsed()));
    outcome
}

/// Prints the scenarios that took longest.
fn print_longest() {
    let mut durations = DURATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    durations.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
    println!("the longest scenarios:");
    for (name, took) in durations.iter().take(15) {
        println!("{:6.1} s  {name}", took.as_secs_f64());
    }
}

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let mut trials = Vec::new();
    let mut shared: Option<Arc<Cluster>> = None;
    if !args.list {
        match Cluster::start("e2e") {
            Ok(cluster) => shared = Some(Arc::new(cluster)),
            Err(e) => {
                eprintln!("the end-to-end tests cannot start their cluster: {e}");
                return ExitCode::FAILURE;
            }
        }
    }
    let scenarios = kubectl::SCENARIOS
        .iter()
        .chain(kubectl_pods::SCENARIOS)
        .chain(kubectl_streams::SCENARIOS)
        .chain(why_whatif::SCENARIOS)
        .chain(rebalancing::SCENARIOS)
        .chain(reachability::SCENARIOS)
        .chain(autoscaling::SCENARIOS)
        .chain(node::SCENARIOS)
        .chain(bad_input::SCENARIOS)
        .chain(network::bad_input::SCENARIOS)
        .chain(python::SCENARIOS)
        .chain(javascript::SCENARIOS)
        .chain(kube_rs::SCENARIOS)
        .chain(safety::SCENARIOS)
        .chain(security::identities::SCENARIOS)
        .chain(security::certificates::SCENARIOS)
        .chain(security::bounds::SCENARIOS)
        .chain(security::files::SCENARIOS)
        .chain(security::at_rest::SCENARIOS)
        .chain(operator::SCENARIOS);
    for (name, run) in scenarios {
        let cluster = shared.clone();
        trials.push(Trial::test(*name, move || match cluster {
            Some(cluster) => timed(name, || with_others(|| cluster.in_namespace(name, *run))),
            None => Ok(()),
        }));
    }
    for (name, run) in pod_lifecycle::SCENARIOS_THAT_LOCK {
        let cluster = shared.clone();
        trials.push(Trial::test(*name, move || match cluster {
            Some(cluster) => timed(name, || cluster.in_namespace(name, *run)),
            None => Ok(()),
        }));
    }
    for (name, run) in pod_lifecycle::STANDALONE_THAT_LOCK {
        trials.push(Trial::test(*name, move || timed(name, run)));
    }
    let standalone = crash::SCENARIOS
        .iter()
        .chain(security::at_rest::STANDALONE)
        .chain(access::SCENARIOS)
        .chain(claims::SCENARIOS)
        .chain(disk::SCENARIOS)
        .chain(joining::SCENARIOS)
        .chain(network::SCENARIOS)
        .chain(network::bad_input::STANDALONE)
        .chain(security::authorities::SCENARIOS)
        .chain(security::bounds::STANDALONE)
        .chain(security::stalled_disk::STANDALONE)
        .chain(shim::SCENARIOS)
        .chain(partitions::SCENARIOS)
        .chain(shutdown::SCENARIOS)
        .chain(steps::SCENARIOS)
        .chain(quorum::SCENARIOS)
        .chain(nemesis::SCENARIOS)
        .chain(startup_errors::SCENARIOS);
    for (name, run) in standalone {
        trials.push(Trial::test(*name, move || timed(name, || with_others(run))));
    }
    let conclusion = libtest_mimic::run(&args, trials);
    if !args.list {
        print_longest();
    }
    if let Some(cluster) = shared
        && let Err(e) = cluster.end()
    {
        eprintln!("the cluster was not stopped cleanly: {e}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}
