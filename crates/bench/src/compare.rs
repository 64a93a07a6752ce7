//! Compares results with earlier ones: what changed by more than the runs of each side differ among themselves.
//!
//! A measurement changed if all of its values on one side are greater than all on the other. If nothing changed, this happens by chance
//! in 2 of C(n+m, n) comparisons of n with m rounds: no assumption about the distribution is needed. Values are in units of the
//! calibration of their round, so that a slower day is no change.

use crate::calibration::{Basis, unit_label};
use crate::results::{Results, Samples, calibration_rows, interval};
use crate::stats::{Interval, chance_of_no_overlap};
use crate::table::{Align, lines};

/// Rounds of each side by default: the fewest with which fewer than 1 of 100 unchanged measurements is marked (2 of 252; 4 rounds: 2
/// of 70).
pub const ROUNDS: usize = 5;

/// With so few rounds that an unchanged measurement would be marked more often than this, nothing is decided.
const CHANCE_MAX: f64 = 0.05;

/// What became of one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Better,
    Worse,
    /// Within the noise.
    Same,
    /// There are too few rounds.
    TooFewRounds,
    /// One side has no calibration for it.
    NotCalibrated,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Worse => "WORSE",
            Verdict::Same => "",
            Verdict::TooFewRounds => "too few rounds",
            Verdict::NotCalibrated => "not calibrated",
        }
    }
}

/// One measurement of both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub what: String,
    /// Of the values below.
    pub unit: String,
    pub old: Vec<f64>,
    pub new: Vec<f64>,
    pub verdict: Verdict,
}

/// The measurements of a report that both sides have, and the names of those that one side lacks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportChanges {
    pub name: String,
    pub workload: String,
    pub changes: Vec<Change>,
    pub only_old: Vec<String>,
    pub only_new: Vec<String>,
}

/// Compares the reports of one name and workload.
pub fn compare(old: &Results, new: &Results) -> Vec<ReportChanges> {
    let mut all = Vec::new();
    for report in &new.reports {
        let mut found = ReportChanges {
            name: report.name.clone(),
            workload: report.workload.clone(),
            ..ReportChanges::default()
        };
        let before = old
            .reports
            .iter()
            .find(|r| r.name == report.name && r.workload == report.workload);
        let before = before.map_or(&[][..], |r| &r.measurements);
        for samples in &report.measurements {
            match before.iter().find(|b| is_same(b, samples)) {
                Some(before) => found.changes.push(change(before, samples)),
                None => found.only_new.push(samples.what.clone()),
            }
        }
        let is_missing = |b: &&Samples| !report.measurements.iter().any(|s| is_same(b, s));
        found.only_old = before.iter().filter(is_missing).map(|b| b.what.clone()).collect();
        all.push(found);
    }
    all
}

/// Whether two are one measurement: a changed unit or basis makes it another.
fn is_same(one: &Samples, other: &Samples) -> bool {
    one.what == other.what && one.unit == other.unit && one.basis == other.basis
}

fn change(old: &Samples, new: &Samples) -> Change {
    let label = unit_label(&new.unit, new.basis);
    // Without a basis, or where the unit has no calibrated form, the values themselves are comparable.
    let is_plain = new.basis == Basis::None || label.is_empty();
    let is_calibrated = !is_plain && !old.calibrated.is_empty() && !new.calibrated.is_empty();
    let values = |samples: &Samples| match is_calibrated {
        true => samples.calibrated.clone(),
        false => samples.values.clone(),
    };
    let (before, now) = (values(old), values(new));
    let verdict = match is_plain || is_calibrated {
        true => verdict(&before, &now, new.more_is_better()),
        false => Verdict::NotCalibrated,
    };
    Change {
        what: new.what.clone(),
        unit: if is_calibrated { label } else { new.unit.clone() },
        old: before,
        new: now,
        verdict,
    }
}

fn verdict(old: &[f64], new: &[f64], more_is_better: bool) -> Verdict {
    if chance_of_no_overlap(old.len(), new.len()) > CHANCE_MAX {
        return Verdict::TooFewRounds;
    }
    match (Interval::of(old), Interval::of(new)) {
        (Some(old), Some(new)) if new.is_apart_from(&old) => match (new.min > old.max) == more_is_better {
            true => Verdict::Better,
            false => Verdict::Worse,
        },
        (Some(_), Some(_)) => Verdict::Same,
        _ => Verdict::TooFewRounds,
    }
}

/// In percent of the old median; `None` if that is 0.
fn percent(change: &Change) -> Option<f64> {
    let (old, new) = (Interval::of(&change.old)?, Interval::of(&change.new)?);
    (old.median != 0.0).then(|| (new.median - old.median) / old.median.abs() * 100.0)
}

/// The comparison as a table, with both calibrations.
pub fn table(old: &Results, new: &Results) -> String {
    let mut out = format!("\ncompared: {}\n\n", sides(old, new));
    out += &calibrations(old, new);
    for report in compare(old, new) {
        out += &format!("\n{}: {}\n\n", report.name, report.workload);
        let mut rows = vec![["", "old", "new", "", ""].map(str::to_owned).to_vec()];
        for change in &report.changes {
            let by = percent(change).map(|p| format!("{p:+.1} %"));
            rows.push(vec![
                change.what.clone(),
                interval(&change.old, &change.unit).unwrap_or_default(),
                interval(&change.new, &change.unit).unwrap_or_default(),
                by.unwrap_or_default(),
                change.verdict.text().to_owned(),
            ]);
        }
        if !report.changes.is_empty() {
            let columns = [Align::Left, Align::Right, Align::Right, Align::Right, Align::Left];
            out += &lines(&rows, &columns);
        }
        for (side, names) in [("old", &report.only_old), ("new", &report.only_new)] {
            if !names.is_empty() {
                out += &format!("  only {side}: {}\n", names.join("; "));
            }
        }
    }
    out
}

fn sides(old: &Results, new: &Results) -> String {
    let (before, now) = (old.calibrations.len(), new.calibrations.len());
    let chance = chance_of_no_overlap(before, now) * 100.0;
    let marked = match chance > CHANCE_MAX * 100.0 {
        true => "too few to decide anything".to_owned(),
        false => format!("an unchanged measurement is marked with a probability of {chance:.1} %"),
    };
    let containers = match old.containers == new.containers {
        true => String::new(),
        false => format!("; old with {}, new with {}", old.containers, new.containers),
    };
    format!("{before} rounds with {now}: {marked}{containers}")
}

/// The medians of both sides' calibrations, unit by unit.
fn calibrations(old: &Results, new: &Results) -> String {
    let all = [
        Basis::Cpu,
        Basis::TwoCpus,
        Basis::MemoryCopy,
        Basis::Fdatasync,
        Basis::Loopback,
        Basis::RuncRun,
    ];
    let names = new.calibrations.first().map(calibration_rows).unwrap_or_default();
    let micros = |of: &Results, basis: Basis| {
        let seconds = of.calibrations.iter().filter_map(|c| c.seconds(basis));
        let micros: Vec<f64> = seconds.map(|s| s * 1e6).collect();
        interval(&micros, "µs").unwrap_or_else(|| "skipped".into())
    };
    let mut rows = vec![["", "calibration", "old", "new"].map(str::to_owned).to_vec()];
    for (basis, [label, what, _]) in all.into_iter().zip(names) {
        rows.push(vec![label, what, micros(old, basis), micros(new, basis)]);
    }
    lines(&rows, &[Align::Left, Align::Left, Align::Right, Align::Right])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::{self, Calibration, RuncRun};
    use crate::container_runtime::ContainerRuntime;
    use crate::report::{Report, Target};
    use crate::results::example;

    #[test]
    fn only_values_that_do_not_overlap_are_a_change() {
        let five = [10.0, 11.0, 12.0, 13.0, 14.0];
        for (new, more_is_better, expected) in [
            (&[15.0, 16.0, 17.0, 18.0, 14.5][..], false, Verdict::Worse),
            (&[15.0, 16.0, 17.0, 18.0, 14.5], true, Verdict::Better),
            (&[15.0, 16.0, 17.0, 18.0, 13.9], false, Verdict::Same),
            (&[1.0, 2.0, 3.0, 4.0, 9.9], false, Verdict::Better),
            (&[1.0, 2.0, 3.0, 4.0, 9.9], true, Verdict::Worse),
            (&[1.0, 2.0, 3.0], false, Verdict::Better),
            (&[1.0], false, Verdict::TooFewRounds),
            (&[], false, Verdict::TooFewRounds),
            (&five, false, Verdict::Same),
        ] {
            assert_eq!(verdict(&five, new, more_is_better), expected, "{new:?}");
        }
        assert_eq!(
            verdict(&[1.0, 1.1, 1.2], &[5.0, 6.0, 7.0], false),
            Verdict::TooFewRounds
        );
        assert_eq!(verdict(&[0.0; 5], &[0.0; 5], false), Verdict::Same);
    }

    fn verdicts(old: &Results, new: &Results) -> Vec<Verdict> {
        let all = compare(old, new);
        all.iter()
            .flat_map(|r| &r.changes)
            .map(|change| change.verdict)
            .collect()
    }

    #[test]
    fn a_slower_day_is_no_change_and_a_slower_start_on_it_is_one() {
        let speeds = [1.0, 1.1, 1.05, 0.95, 1.02];
        let noise = [1.0, 1.02, 0.98, 1.01, 0.99];
        let rounds = |slow: f64, factor: f64| -> Vec<(f64, f64)> {
            let pairs = speeds.iter().zip(noise);
            pairs
                .map(|(speed, noise)| (speed * slow, 200.0 * speed * slow * factor * noise))
                .collect()
        };
        let old = example(&rounds(1.0, 1.0));
        let slow_day = example(&rounds(2.0, 1.0));
        assert_eq!(verdicts(&old, &slow_day), [Verdict::Same, Verdict::Same]);
        let regression = example(&rounds(2.0, 1.1));
        assert_eq!(verdicts(&old, &regression), [Verdict::Worse, Verdict::Same]);
        let text = table(&old, &regression);
        assert!(text.contains("WORSE") && text.contains("+10.0 %"), "{text}");
        assert!(
            text.contains("5 rounds with 5") && text.contains("0.8 %"),
            "{text}"
        );
    }

    #[test]
    fn without_a_calibration_on_both_sides_nothing_is_decided() {
        let old = example(&[(1.0, 200.0); 5]);
        let mut new = Results::new(ContainerRuntime {
            shim: Some("rust".into()),
            ..ContainerRuntime::default()
        });
        for _ in 0..5 {
            let skipped = Calibration {
                runc_run: RuncRun::Skipped("containers need root".into()),
                ..calibration::example(1.0)
            };
            let mut report = Report::new("pod", "pods one after the other");
            report.record("create to Running, p50", 100.0, "ms", Basis::RuncRun);
            report.record("memory", 30.0, "MB", Basis::None);
            new.add(skipped, vec![report]);
        }
        assert_eq!(verdicts(&old, &new), [Verdict::NotCalibrated, Verdict::Better]);
        let text = table(&old, &new);
        assert!(
            text.contains("not calibrated") && text.contains("skipped"),
            "{text}"
        );
        assert!(text.contains("new with --shim rust"), "{text}");
    }

    #[test]
    fn measurements_of_one_side_are_listed() {
        let of = |what: &str, unit, workload: &str| {
            let mut report = Report::new("x", workload);
            report.record("both", 1.0, "ms", Basis::Cpu);
            report
                .record(what, 1.0, unit, Basis::Cpu)
                .target(Target::AtMost(2.0));
            let mut results = Results::new(ContainerRuntime::default());
            results.add(calibration::example(1.0), vec![report]);
            results
        };
        let [found] = &compare(&of("a", "ms", "w"), &of("b", "ms", "w"))[..] else {
            panic!("one report")
        };
        assert_eq!(
            (&found.only_old[..], &found.only_new[..]),
            (&["a".to_owned()][..], &["b".to_owned()][..])
        );
        assert_eq!(found.changes.len(), 1);
        let [other_unit] = &compare(&of("a", "ms", "w"), &of("a", "µs", "w"))[..] else {
            panic!("one report")
        };
        assert_eq!(other_unit.only_new, ["a"]);
        let [other_workload] = &compare(&of("a", "ms", "w"), &of("a", "ms", "v"))[..] else {
            panic!("one report")
        };
        assert_eq!(
            (other_workload.changes.len(), other_workload.only_new.len()),
            (0, 2)
        );
    }
}
