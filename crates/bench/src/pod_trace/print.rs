//! Traced pods as a table and as JSON: the median and the 90th percentile of each step.

use serde::Serialize;

use super::steps::{Nanos, Step, Traced, outside};
use crate::calibration::{Basis, Calibration};
use crate::container_runtime::ContainerRuntime;
use crate::results::calibration_rows;
use crate::stats::percentile;
use crate::table::{Align, lines, number};

/// Of the JSON document.
const VERSION: u32 = 1;

/// What `--trace` found.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    /// Of the document's shape. It is not that of `./dev bench --json`, hence another name.
    pub trace_version: u32,
    pub containers: ContainerRuntime,
    pub pods: usize,
    pub calibration: Calibration,
    /// Why there are no times from inside of containerd's calls.
    pub events_missing: Option<String>,
    pub start: Vec<StepStats>,
    pub end: Vec<StepStats>,
}

/// One step of all pods.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StepStats {
    pub name: String,
    pub depth: usize,
    /// Pods that had it.
    pub pods: usize,
    /// From the request to the step's beginning, median; `None` of totals.
    pub at_ms: Option<f64>,
    pub p50_ms: f64,
    pub p90_ms: f64,
    /// The median in units of T; `None` without T.
    pub p50_in_t: Option<f64>,
}

impl Document {
    pub fn new(
        traced: &[Traced],
        containers: ContainerRuntime,
        calibration: Calibration,
        events_missing: Option<String>,
    ) -> Document {
        let start = ways(traced, |t| (t.start.as_slice(), t.marks.created, t.marks.running));
        let end = ways(traced, |t| (t.end.as_slice(), t.marks.deleted, t.marks.gone));
        let t = calibration.seconds(Basis::RuncRun);
        Document {
            trace_version: VERSION,
            containers,
            pods: traced.len(),
            events_missing,
            start: stats(&start, "create to Running", t),
            end: stats(&end, "delete to deleted", t),
            calibration,
        }
    }
}

/// One pod's way in one direction.
struct Way<'a> {
    steps: &'a [Step],
    begin: Nanos,
    end: Nanos,
}

fn ways<'a>(traced: &'a [Traced], of: fn(&'a Traced) -> (&'a [Step], Nanos, Nanos)) -> Vec<Way<'a>> {
    let way = |t| {
        let (steps, begin, end) = of(t);
        Way { steps, begin, end }
    };
    traced.iter().map(way).collect()
}

fn ms(nanos: Nanos) -> f64 {
    nanos as f64 / 1e6
}

/// A step is known by its name and the step it is a part of.
type Key = (&'static str, usize, &'static str);

/// The keys of a way's steps, in their order.
fn keys(steps: &[Step]) -> Vec<Key> {
    let mut whole = "";
    let key = |step: &Step| {
        if step.depth == 0 {
            whole = step.name;
        }
        (whole, step.depth, step.name)
    };
    steps.iter().map(key).collect()
}

/// All steps' keys, each after the one it first follows.
fn order(ways: &[Way]) -> Vec<Key> {
    let mut order: Vec<Key> = Vec::new();
    for way in ways {
        let mut at = 0;
        for key in keys(way.steps) {
            match order.iter().position(|known| *known == key) {
                Some(found) => at = found + 1,
                None => {
                    order.insert(at, key);
                    at += 1;
                }
            }
        }
    }
    order
}

fn stats(ways: &[Way], total: &str, t_seconds: Option<f64>) -> Vec<StepStats> {
    let of = |name: &str, depth, begins: Option<Vec<f64>>, mut took: Vec<f64>| {
        let p50_ms = percentile(&mut took, 50.0);
        StepStats {
            name: name.to_owned(),
            depth,
            pods: took.len(),
            at_ms: begins.map(|mut begins| percentile(&mut begins, 50.0)),
            p50_ms,
            p90_ms: percentile(&mut took, 90.0),
            p50_in_t: t_seconds.map(|t| p50_ms / 1e3 / t),
        }
    };
    let mut all = Vec::new();
    for key in order(ways) {
        let (mut begins, mut took) = (Vec::new(), Vec::new());
        for way in ways {
            let position = keys(way.steps).iter().position(|k| *k == key);
            if let Some(step) = position.and_then(|i| way.steps.get(i)) {
                begins.push(ms(step.begin - way.begin));
                took.push(ms(step.end - step.begin));
            }
        }
        all.push(of(key.2, key.1, Some(begins), took));
    }
    let between = ways.iter().map(|w| ms(outside(w.steps, w.begin, w.end)));
    all.push(of("in none of these", 0, None, between.collect()));
    let totals = ways.iter().map(|w| ms(w.end - w.begin));
    all.push(of(total, 0, None, totals.collect()));
    all
}

/// Both ways, for people.
pub fn table(document: &Document) -> String {
    let mut out = format!(
        "\n{} pods one after the other, image present, process obeys TERM, traces exported; {}\n\n",
        document.pods, document.containers
    );
    let rows: Vec<Vec<String>> = calibration_rows(&document.calibration)
        .into_iter()
        .map(Vec::from)
        .collect();
    out += &lines(&rows, &[Align::Left, Align::Left, Align::Right]);
    if let Some(why) = &document.events_missing {
        out += &format!("\n  no times from inside of containerd: {why}\n");
    }
    for (title, steps) in [("start", &document.start), ("end", &document.end)] {
        let head = [title, "begins at ms", "p50 ms", "p90 ms", "p50 in T"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(steps.iter().map(|step| row(step, document.pods)));
        let columns = [
            Align::Left,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Right,
        ];
        out.push('\n');
        out += &lines(&rows, &columns);
    }
    out
}

fn row(step: &StepStats, pods: usize) -> Vec<String> {
    let some = match step.pods == pods {
        true => String::new(),
        false => format!(" ({} of {pods} pods)", step.pods),
    };
    vec![
        format!("{}{}{some}", "  ".repeat(step.depth), step.name),
        step.at_ms.map(number).unwrap_or_default(),
        number(step.p50_ms),
        number(step.p90_ms),
        step.p50_in_t.map(number).unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::{RuncRun, example};
    use crate::pod_trace::steps::Marks;

    fn step(name: &'static str, depth: usize, begin: Nanos, end: Nanos) -> Step {
        Step {
            name,
            depth,
            begin: begin * 1_000_000,
            end: end * 1_000_000,
        }
    }

    /// A pod whose sandbox takes so many milliseconds, and that pulls its image or does not.
    fn traced(sandbox: Nanos, pulls: bool) -> Traced {
        let mut start = vec![step("sandbox", 0, 10, 10 + sandbox), step("answer", 1, 10, 12)];
        if pulls {
            start.push(step("image pull", 0, 10 + sandbox, 15 + sandbox));
        }
        start.push(step("container start", 0, 20 + sandbox, 50 + sandbox));
        start.push(step("answer", 1, 40 + sandbox, 50 + sandbox));
        let millis = |ms: Nanos| ms * 1_000_000;
        Traced {
            start,
            end: vec![step("container stop", 0, 1000, 1100)],
            marks: Marks {
                name: "p".into(),
                uid: "u".into(),
                created: 0,
                running: millis(50 + sandbox),
                deleted: millis(1000),
                gone: millis(1100),
            },
        }
    }

    #[test]
    fn steps_are_medians_of_the_pods_that_had_them() {
        let pods = [traced(100, false), traced(120, true), traced(200, false)];
        let rust = ContainerRuntime {
            shim: Some("rust".into()),
            ..ContainerRuntime::default()
        };
        let document = Document::new(&pods, rust, example(1.0), None);
        let found: Vec<_> = document
            .start
            .iter()
            .map(|s| (s.name.as_str(), s.depth, s.pods, s.p50_ms, s.p90_ms))
            .collect();
        assert_eq!(
            found,
            [
                ("sandbox", 0, 3, 120.0, 200.0),
                ("answer", 1, 3, 2.0, 2.0),
                ("image pull", 0, 1, 5.0, 5.0),
                ("container start", 0, 3, 30.0, 30.0),
                ("answer", 1, 3, 10.0, 10.0),
                ("in none of these", 0, 3, 20.0, 20.0),
                ("create to Running", 0, 3, 170.0, 250.0),
            ]
        );
        assert_eq!(document.start[0].p50_in_t.map(number).as_deref(), Some("2.40"));
        let text = table(&document);
        assert!(text.contains("image pull (1 of 3 pods)"), "{text}");
        assert!(text.contains("exported; --shim rust\n"), "{text}");
        assert!(text.contains("container stop"), "{text}");
    }

    #[test]
    fn without_t_there_are_milliseconds_only() {
        let calibration = Calibration {
            runc_run: RuncRun::Skipped("containers need root".into()),
            ..example(1.0)
        };
        let document = Document::new(
            &[traced(100, false)],
            ContainerRuntime::default(),
            calibration,
            Some("no ctr".into()),
        );
        assert!(document.start.iter().all(|s| s.p50_in_t.is_none()));
        let text = table(&document);
        assert!(
            text.contains("containers need root") && text.contains("no ctr"),
            "{text}"
        );
    }
}
