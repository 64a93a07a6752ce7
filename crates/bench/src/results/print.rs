//! Results as a table.

use super::{Results, Samples};
use crate::calibration::{Basis, Calibration, RuncRun, unit_label};
use crate::report::Target;
use crate::stats::Interval;
use crate::table::{Align, lines, number};

/// Name and value of each part of a calibration, the unit's name first.
pub fn calibration_rows(calibration: &Calibration) -> Vec<[String; 3]> {
    let micros = |seconds: f64| format!("{} µs", number(seconds * 1e6));
    let millis = |seconds: f64| format!("{} ms", number(seconds * 1e3));
    let row = |basis: Basis, what: &str, value: String| [basis.label().to_owned(), what.to_owned(), value];
    vec![
        row(
            Basis::Cpu,
            "a million steps of arithmetic on one core",
            micros(calibration.cpu_seconds),
        ),
        row(
            Basis::TwoCpus,
            "the same on two cores at once, a million of both",
            micros(calibration.two_cpus_seconds),
        ),
        row(
            Basis::MemoryCopy,
            "copying 1 MB of memory",
            micros(calibration.memory_copy_seconds),
        ),
        row(
            Basis::Fdatasync,
            "writing 4 KiB and fdatasync",
            micros(calibration.fdatasync_seconds),
        ),
        row(
            Basis::Loopback,
            "a byte over TCP on loopback and back",
            micros(calibration.loopback_seconds),
        ),
        row(
            Basis::RuncRun,
            "`runc run true`",
            match &calibration.runc_run {
                RuncRun::Seconds(seconds) => millis(*seconds),
                RuncRun::Skipped(why) => format!("skipped: {why}"),
            },
        ),
    ]
}

/// All reports as one table, each measurement by its median.
pub fn table(results: &Results) -> String {
    let mut out = String::new();
    let rounds = results.calibrations.len();
    for (round, calibration) in results.calibrations.iter().enumerate() {
        out += &match rounds {
            1 => "\ncalibration\n\n".to_owned(),
            _ => format!("\ncalibration of round {} of {rounds}\n\n", round + 1),
        };
        let rows: Vec<Vec<String>> = calibration_rows(calibration).into_iter().map(Vec::from).collect();
        out += &lines(&rows, &[Align::Left, Align::Left, Align::Right]);
    }
    for report in &results.reports {
        out += &format!("\n{}: {}\n\n", report.name, report.workload);
        let mut head = ["", "knarr", "in units", "must be", "", "Kubernetes v1.36.2"].map(str::to_owned);
        if rounds > 1 {
            head[1] = "knarr, median".into();
        }
        let mut rows = vec![Vec::from(head)];
        rows.extend(report.measurements.iter().filter_map(row));
        let columns = [
            Align::Left,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Left,
            Align::Right,
        ];
        out += &lines(&rows, &columns);
    }
    out
}

/// A median, with least and greatest of several.
pub fn interval(values: &[f64], unit: &str) -> Option<String> {
    let of = Interval::of(values)?;
    let value = format!("{} {unit}", number(of.median));
    let value = value.trim_end();
    Some(match of.runs {
        1 => value.to_owned(),
        _ => format!("{value} ({}…{})", number(of.min), number(of.max)),
    })
}

fn row(samples: &Samples) -> Option<Vec<String>> {
    let median = Interval::of(&samples.values)?.median;
    let (target, met) = match samples.target {
        None => (String::new(), ""),
        Some(target) => {
            let text = match target {
                Target::AtMost(v) => format!("≤ {}", number(v)),
                Target::AtLeast(v) => format!("≥ {}", number(v)),
            };
            (text, if target.met_by(median) { "yes" } else { "NO" })
        }
    };
    let kubernetes = samples
        .kubernetes
        .map(|v| format!("{} {}", number(v), samples.unit))
        .unwrap_or_default();
    let label = unit_label(&samples.unit, samples.basis);
    Some(vec![
        samples.what.clone(),
        interval(&samples.values, &samples.unit)?,
        interval(&samples.calibrated, &label).unwrap_or_default(),
        target,
        met.to_owned(),
        kubernetes,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container_runtime::ContainerRuntime;
    use crate::report::Report;
    use crate::results::example;

    #[test]
    fn a_missed_target_is_reported() {
        let mut report = Report::new("x", "nothing");
        report
            .record("size", 70.0, "MB", Basis::None)
            .target(Target::AtMost(60.0))
            .kubernetes(576.0);
        report.record("start", 200.0, "ms", Basis::RuncRun);
        let mut results = Results::new(ContainerRuntime::default());
        results.add(crate::calibration::example(1.0), vec![report]);
        let text = table(&results);
        let cells = |of: &str| {
            let line = text.lines().find(|line| line.contains(of)).unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(cells("size"), "size 70.0 MB ≤ 60.0 NO 576 MB");
        assert_eq!(cells("start"), "start 200 ms 4.00 T");
        assert!(text.contains("`runc run true`"), "{text}");
    }

    #[test]
    fn several_rounds_show_how_far_they_are_apart() {
        let text = table(&example(&[(1.0, 200.0), (1.0, 400.0), (1.0, 250.0)]));
        assert!(text.contains("250 ms (200…400)"), "{text}");
        assert!(text.contains("5.00 T (4.00…8.00)"), "{text}");
        assert!(text.contains("calibration of round 3 of 3"), "{text}");
    }

    #[test]
    fn a_skipped_part_shows_its_reason_and_no_units() {
        let calibration = Calibration {
            runc_run: RuncRun::Skipped("runc is not in PATH".into()),
            ..crate::calibration::example(1.0)
        };
        let mut report = Report::new("x", "");
        report.record("start", 200.0, "ms", Basis::RuncRun);
        let mut results = Results::new(ContainerRuntime::default());
        results.add(calibration, vec![report]);
        let text = table(&results);
        assert!(text.contains("skipped: runc is not in PATH"), "{text}");
        assert!(text.contains("start  200 ms\n"), "{text}");
    }
}
