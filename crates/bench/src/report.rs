//! What one run of a benchmark found.

use serde::{Deserialize, Serialize};

use crate::calibration::Basis;

/// One measured value and what it is compared with.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// What was measured, such as `create to Running, p50`; once in a report.
    pub what: String,
    pub value: f64,
    /// `ms`, `MB`, `/s`, `%`.
    pub unit: &'static str,
    /// The part of the calibration in whose units it is comparable.
    pub basis: Basis,
    /// The value that knarr must reach, if there is a target.
    pub target: Option<Target>,
    /// The value of Kubernetes v1.36.2 on such a host.
    pub kubernetes: Option<f64>,
}

/// A promise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    pub fn met_by(self, value: f64) -> bool {
        match self {
            Target::AtMost(limit) => value <= limit,
            Target::AtLeast(limit) => value >= limit,
        }
    }
}

/// One benchmark's measurements, with their workload.
#[derive(Clone, Debug)]
pub struct Report {
    pub name: &'static str,
    /// In a sentence: what was done, how often, on what.
    pub workload: String,
    pub measurements: Vec<Measurement>,
}

impl Report {
    pub fn new(name: &'static str, workload: impl Into<String>) -> Self {
        Report {
            name,
            workload: workload.into(),
            measurements: Vec::new(),
        }
    }

    pub fn record(
        &mut self,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        basis: Basis,
    ) -> &mut Measurement {
        self.measurements.push(Measurement {
            what: what.into(),
            value,
            unit,
            basis,
            target: None,
            kubernetes: None,
        });
        let last = self.measurements.len() - 1;
        &mut self.measurements[last]
    }
}

impl Measurement {
    pub fn target(&mut self, target: Target) -> &mut Self {
        self.target = Some(target);
        self
    }

    pub fn kubernetes(&mut self, value: f64) -> &mut Self {
        self.kubernetes = Some(value);
        self
    }
}
