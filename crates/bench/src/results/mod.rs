//! The rounds of `./dev bench` together: each measurement's values, also in units of the calibration of its round. As a table, and as
//! a versioned JSON document that a later run is compared with.

mod file;
mod print;

pub use file::{read, write};
pub use print::{calibration_rows, interval, table};

use serde::{Deserialize, Serialize};

use crate::calibration::{Basis, Calibration, is_rate};
use crate::container_runtime::ContainerRuntime;
use crate::report::{Report, Target};

/// Of the JSON document. It changes with its shape, and with the calibration: units of other versions are other units.
pub const VERSION: u32 = 2;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Results {
    pub version: u32,
    pub containers: ContainerRuntime,
    /// One for each round.
    pub calibrations: Vec<Calibration>,
    pub reports: Vec<ReportResults>,
}

/// One benchmark's measurements, of all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportResults {
    pub name: String,
    pub workload: String,
    pub measurements: Vec<Samples>,
}

/// One measurement, of all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Samples {
    pub what: String,
    pub unit: String,
    pub basis: Basis,
    /// In `unit`.
    pub values: Vec<f64>,
    /// In units of the calibration; empty where there is none.
    pub calibrated: Vec<f64>,
    pub target: Option<Target>,
    pub kubernetes: Option<f64>,
}

impl Samples {
    /// Whether a greater value is the better one.
    pub fn more_is_better(&self) -> bool {
        match self.target {
            Some(Target::AtLeast(_)) => true,
            Some(Target::AtMost(_)) => false,
            None => is_rate(&self.unit) || self.unit == "x",
        }
    }
}

impl Results {
    pub fn new(containers: ContainerRuntime) -> Results {
        Results {
            version: VERSION,
            containers,
            calibrations: Vec::new(),
            reports: Vec::new(),
        }
    }

    /// Adds a round.
    pub fn add(&mut self, calibration: Calibration, reports: Vec<Report>) {
        for report in reports {
            let is_same = |r: &ReportResults| r.name == report.name && r.workload == report.workload;
            let at = self.reports.iter().position(is_same).unwrap_or_else(|| {
                self.reports.push(ReportResults {
                    name: report.name.to_owned(),
                    workload: report.workload.clone(),
                    measurements: Vec::new(),
                });
                self.reports.len() - 1
            });
            let all = &mut self.reports[at].measurements;
            for new in report.measurements {
                let at = all.iter().position(|s| s.what == new.what).unwrap_or_else(|| {
                    all.push(Samples {
                        what: new.what.clone(),
                        unit: new.unit.to_owned(),
                        basis: new.basis,
                        values: Vec::new(),
                        calibrated: Vec::new(),
                        target: new.target,
                        kubernetes: new.kubernetes,
                    });
                    all.len() - 1
                });
                all[at].values.push(new.value);
                let calibrated = calibration.in_units(new.value, new.unit, new.basis);
                all[at].calibrated.extend(calibrated);
            }
        }
        self.calibrations.push(calibration);
    }
}

#[cfg(test)]
pub fn example(rounds: &[(f64, f64)]) -> Results {
    let mut results = Results::new(ContainerRuntime::default());
    for (speed, value) in rounds {
        let mut report = Report::new("pod", "pods one after the other");
        report.record("create to Running, p50", *value, "ms", Basis::RuncRun);
        report.record("memory", 40.0, "MB", Basis::None);
        results.add(crate::calibration::example(*speed), vec![report]);
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_is_in_units_of_its_own_calibration() {
        let results = example(&[(1.0, 200.0), (2.0, 400.0), (1.0, 250.0)]);
        let [report] = results.reports.as_slice() else {
            panic!("one report, not one a round: {results:?}")
        };
        assert_eq!(report.measurements[0].values, [200.0, 400.0, 250.0]);
        assert_eq!(report.measurements[0].calibrated, [4.0, 4.0, 5.0]);
        assert_eq!(report.measurements[1].values, [40.0, 40.0, 40.0]);
        assert_eq!(report.measurements[1].calibrated, [0.0; 0]);
        assert_eq!(results.calibrations.len(), 3);
    }

    #[test]
    fn one_benchmark_with_two_workloads_is_two_reports() {
        let mut results = Results::new(ContainerRuntime::default());
        let calibration = crate::calibration::example(1.0);
        results.add(
            calibration,
            vec![
                Report::new("proxy", "10 Services"),
                Report::new("proxy", "20 Services"),
            ],
        );
        assert_eq!(results.reports.len(), 2);
    }

    #[test]
    fn rates_are_better_when_they_are_greater() {
        let mut report = Report::new("x", "");
        report.record("rate", 1.0, "MB/s", Basis::Cpu);
        report.record("time", 1.0, "ms", Basis::Cpu);
        report
            .record("part", 1.0, "%", Basis::None)
            .target(Target::AtLeast(95.0));
        report.record("ratio", 1.0, "x", Basis::None);
        let mut results = Results::new(ContainerRuntime::default());
        results.add(crate::calibration::example(1.0), vec![report]);
        let found: Vec<bool> = results.reports[0]
            .measurements
            .iter()
            .map(Samples::more_is_better)
            .collect();
        assert_eq!(found, [true, false, true, true]);
    }
}
