//! A short run of the nemesis over each store: one round of every kind of fault, healing, every check. `./dev nemesis` runs
//! longer ones.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use knarr_nemesis::run::{Options, Store, run};
use knarr_nemesis::schedule::FaultKind;

use crate::{KNARR, Outcome, StandaloneScenario};

pub const SCENARIOS: &[StandaloneScenario] = &[
    (
        "s9_three_servers_on_etcd_keep_every_promise_under_kills_cuts_pauses_clocks_and_full_disks",
        || short(Store::Etcd),
    ),
    (
        "s9_a_server_with_the_embedded_store_keeps_every_promise_under_kills_cuts_pauses_clocks_and_full_disks",
        || short(Store::Embedded),
    ),
];

/// The time of faults. With the start, healing and the removal of everything a run takes about a minute.
const ROUND: Duration = Duration::from_secs(25);
/// The faults of the everyday run: another seed is another run, `KNARR_TEST_NEMESIS_SEED=7`.
const SEED: u64 = 20;

fn short(store: Store) -> Outcome {
    let configured = std::env::var("KNARR_TEST_NEMESIS_SEED").ok();
    let seed = configured.and_then(|n| n.parse().ok()).unwrap_or(SEED);
    let directory = tempfile::Builder::new().prefix("knarr-nemesis-").tempdir()?;
    let options = Options {
        knarr: PathBuf::from(KNARR),
        store,
        seed,
        kinds: FaultKind::ALL.to_vec(),
        length: Duration::ZERO,
        round: ROUND,
        directory: directory.path().join("run"),
        is_verbose: false,
    };
    let report = run(&options, &Arc::default())?;
    if report.violations.is_empty() {
        return Ok(());
    }
    let violations: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    Err(format!(
        "seed {seed}: {}\nhistory and logs: {}",
        violations.join("\n"),
        directory.keep().display()
    )
    .into())
}
