//! What this host can do, measured before each round, and every other measurement in units of it: two days on one virtual machine
//! differ by a factor of two, and two machines by more.
//!
//! Each unit is a time. A duration is divided by it, a rate is multiplied with it; both are then without seconds.

mod measure;
mod runc;
mod samples;

pub use measure::measure;
pub use samples::Sizes;

use serde::{Deserialize, Serialize};

/// The part of the calibration that a measurement depends on most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Basis {
    /// Arithmetic on one core.
    Cpu,
    /// Arithmetic on two cores at once.
    TwoCpus,
    /// Copying memory.
    MemoryCopy,
    /// Writing 4 KiB and fdatasync.
    Fdatasync,
    /// A byte over TCP on loopback, and back.
    Loopback,
    /// `runc run true`: T.
    RuncRun,
    /// Bytes, counts, ratios and the accuracy of timers, which do not change with the host's speed.
    None,
}

impl Basis {
    /// As the tables name the unit.
    pub fn label(self) -> &'static str {
        match self {
            Basis::Cpu => "cpu",
            Basis::TwoCpus => "cpu2",
            Basis::MemoryCopy => "copy",
            Basis::Fdatasync => "fsync",
            Basis::Loopback => "rtt",
            Basis::RuncRun => "T",
            Basis::None => "",
        }
    }
}

/// One calibration. Each is the median of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Calibration {
    /// A million dependent steps of integer arithmetic.
    pub cpu_seconds: f64,
    /// The same on each of two threads at once, by the million steps of both.
    pub two_cpus_seconds: f64,
    /// Copying 1 MB from one large buffer to another.
    pub memory_copy_seconds: f64,
    /// Appending 4 KiB to a file in the build's directory, and fdatasync.
    pub fdatasync_seconds: f64,
    /// One byte over a TCP connection on loopback to another thread, and back.
    pub loopback_seconds: f64,
    pub runc_run: RuncRun,
}

/// `runc run` of a container of `runc spec` whose process is `true`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RuncRun {
    Seconds(f64),
    /// Why it was not measured.
    Skipped(String),
}

/// What a measurement's unit says of its value.
enum Dimension {
    /// So many seconds.
    Seconds(f64),
    PerSecond,
    /// Percent of a core: CPU time of a second.
    CpuShare,
    None,
}

fn dimension(unit: &str) -> Dimension {
    match unit {
        "s" => Dimension::Seconds(1.0),
        "ms" => Dimension::Seconds(1e-3),
        "µs" => Dimension::Seconds(1e-6),
        "%" => Dimension::CpuShare,
        _ if is_rate(unit) => Dimension::PerSecond,
        _ => Dimension::None,
    }
}

/// Whether a measurement's unit is something per second.
pub fn is_rate(unit: &str) -> bool {
    unit.ends_with("/s")
}

impl Calibration {
    /// The unit's duration, in seconds; `None` where it was not measured.
    pub fn seconds(&self, basis: Basis) -> Option<f64> {
        let seconds = match basis {
            Basis::Cpu => self.cpu_seconds,
            Basis::TwoCpus => self.two_cpus_seconds,
            Basis::MemoryCopy => self.memory_copy_seconds,
            Basis::Fdatasync => self.fdatasync_seconds,
            Basis::Loopback => self.loopback_seconds,
            Basis::RuncRun => match self.runc_run {
                RuncRun::Seconds(seconds) => seconds,
                RuncRun::Skipped(_) => return None,
            },
            Basis::None => return None,
        };
        (seconds > 0.0).then_some(seconds)
    }

    /// A value of this unit in units of the calibration; `None` if it has none.
    pub fn in_units(&self, value: f64, unit: &str, basis: Basis) -> Option<f64> {
        let seconds = self.seconds(basis)?;
        match dimension(unit) {
            Dimension::Seconds(one) => Some(value * one / seconds),
            Dimension::PerSecond => Some(value * seconds),
            Dimension::CpuShare => Some(value / 100.0 / seconds),
            Dimension::None => None,
        }
    }
}

/// The unit of [`Calibration::in_units`], as tables show it.
pub fn unit_label(unit: &str, basis: Basis) -> String {
    let label = basis.label();
    match dimension(unit) {
        Dimension::Seconds(_) => label.to_owned(),
        Dimension::PerSecond => format!("/{label}"),
        Dimension::CpuShare => format!("{label}/s"),
        Dimension::None => String::new(),
    }
}

#[cfg(test)]
pub fn example(speed: f64) -> Calibration {
    Calibration {
        cpu_seconds: 0.002 * speed,
        two_cpus_seconds: 0.001 * speed,
        memory_copy_seconds: 0.000_1 * speed,
        fdatasync_seconds: 0.005 * speed,
        loopback_seconds: 0.000_02 * speed,
        runc_run: RuncRun::Seconds(0.05 * speed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_in_units_of_what_they_depend_on() {
        let calibration = example(1.0);
        for (value, unit, basis, expected, label) in [
            (200.0, "ms", Basis::RuncRun, Some(4.0), "T"),
            (1.0, "s", Basis::Fdatasync, Some(200.0), "fsync"),
            (40.0, "µs", Basis::Loopback, Some(2.0), "rtt"),
            (1000.0, "/s", Basis::Fdatasync, Some(5.0), "/fsync"),
            (5000.0, "MB/s", Basis::MemoryCopy, Some(0.5), "/copy"),
            (1.0, "%", Basis::Cpu, Some(5.0), "cpu/s"),
            (60.0, "MB", Basis::None, None, ""),
            (3.0, "x", Basis::Cpu, None, ""),
            (90.0, "%", Basis::None, None, "/s"),
        ] {
            let found = calibration.in_units(value, unit, basis);
            match (found, expected) {
                (Some(found), Some(expected)) => {
                    assert!((found - expected).abs() < 1e-9, "{value} {unit}: {found}")
                }
                _ => assert_eq!(found, expected, "{value} {unit}"),
            }
            assert_eq!(unit_label(unit, basis), label, "{value} {unit}");
        }
    }

    #[test]
    fn a_host_of_half_the_speed_has_the_same_results_in_units() {
        let (fast, slow) = (example(1.0), example(2.0));
        for (unit, factor) in [("ms", 2.0), ("/s", 0.5), ("%", 2.0)] {
            let one = fast.in_units(10.0, unit, Basis::Cpu).unwrap();
            let other = slow.in_units(10.0 * factor, unit, Basis::Cpu).unwrap();
            assert!((one - other).abs() < 1e-9, "{unit}");
        }
    }

    #[test]
    fn what_was_skipped_is_no_unit() {
        let calibration = Calibration {
            runc_run: RuncRun::Skipped("runc is not in PATH".into()),
            ..example(1.0)
        };
        assert_eq!(calibration.in_units(200.0, "ms", Basis::RuncRun), None);
    }
}
