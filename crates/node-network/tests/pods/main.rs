//! The pod network in the kernel (SPEC N1, N8): nodes, pods and an outside host are network namespaces, which end with
//! the threads that hold them; the plugin is this very program, run as a runtime runs it. Needs root and `nft`.

#![allow(clippy::disallowed_methods, reason = "real processes run on the real clock")]
#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod agent;
mod attachments;
mod faults;
mod host_ports;
mod limits;
mod measure;
mod namespace;
mod node;
mod traffic;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// A test, by name; it panics when it fails.
type Case = (&'static str, fn());

fn main() -> ExitCode {
    if let Some(code) = knarr_cni::run_if_called() {
        return code;
    }
    if let Some(code) = agent::run_if_called() {
        return code;
    }
    let arguments = Arguments::from_args();
    let trial = |(name, run): &Case| {
        let run = *run;
        Trial::test(*name, move || {
            run();
            Ok(())
        })
    };
    let cases = [
        attachments::CASES,
        faults::CASES,
        host_ports::CASES,
        limits::CASES,
    ];
    let mut trials: Vec<Trial> = cases.into_iter().flatten().map(trial).collect();
    trials.extend(
        measure::CASES
            .iter()
            .map(trial)
            .map(|trial| trial.with_ignored_flag(true)),
    );
    libtest_mimic::run(&arguments, trials).exit_code()
}
