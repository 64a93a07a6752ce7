//! What a benchmark found, as a table for people and as JSON for scripts.

use serde::Serialize;

/// One measured value and what it is compared with.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// What was measured, such as `create to Running, p50`.
    pub what: String,
    pub value: f64,
    /// `ms`, `MB`, `/s`, `%`.
    pub unit: &'static str,
    /// The value that knarr must reach, if there is a target.
    pub target: Option<Target>,
    /// The value of Kubernetes v1.36.2 on such a host.
    pub kubernetes: Option<f64>,
}

/// A promise.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    fn met_by(self, value: f64) -> bool {
        match self {
            Target::AtMost(limit) => value <= limit,
            Target::AtLeast(limit) => value >= limit,
        }
    }
}

/// One benchmark's measurements, with their workload.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub name: &'static str,
    /// In a sentence: what was done, how often, on what.
    pub workload: String,
    #[serde(rename = "figures")]
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

    pub fn record(&mut self, what: impl Into<String>, value: f64, unit: &'static str) -> &mut Measurement {
        self.measurements.push(Measurement {
            what: what.into(),
            value,
            unit,
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

/// All reports as one table.
pub fn table(reports: &[Report]) -> String {
    let mut out = String::new();
    for report in reports {
        out += &format!("\n{}: {}\n\n", report.name, report.workload);
        let mut rows = vec![[
            "".into(),
            "knarr".into(),
            "must be".into(),
            "".into(),
            "Kubernetes v1.36.2".to_string(),
        ]];
        for f in &report.measurements {
            let (target, met) = match f.target {
                None => (String::new(), String::new()),
                Some(t) => {
                    let text = match t {
                        Target::AtMost(v) => format!("≤ {}", number(v)),
                        Target::AtLeast(v) => format!("≥ {}", number(v)),
                    };
                    (
                        text,
                        if t.met_by(f.value) {
                            "yes".into()
                        } else {
                            "NO".into()
                        },
                    )
                }
            };
            let kubernetes = f
                .kubernetes
                .map(|v| format!("{} {}", number(v), f.unit))
                .unwrap_or_default();
            rows.push([
                f.what.clone(),
                format!("{} {}", number(f.value), f.unit),
                target,
                met,
                kubernetes,
            ]);
        }
        let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..5).map(width).collect();
        for row in &rows {
            let pad = |i: usize| " ".repeat(widths[i] - row[i].chars().count());
            let line = format!(
                "  {}{}  {}{}  {}{}  {}{}  {}{}",
                row[0],
                pad(0),
                pad(1),
                row[1],
                pad(2),
                row[2],
                row[3],
                pad(3),
                pad(4),
                row[4]
            );
            out += line.trim_end();
            out.push('\n');
        }
    }
    out
}

/// More than three significant digits are not reproducible on a shared host.
fn number(v: f64) -> String {
    match v.abs() {
        a if a >= 100.0 => {
            let digits = format!("{v:.0}");
            let mut out = String::new();
            for (i, c) in digits.chars().enumerate() {
                if i > 0 && (digits.len() - i) % 3 == 0 && c != '-' {
                    out.push(' ');
                }
                out.push(c);
            }
            out
        }
        a if a >= 10.0 => format!("{v:.1}"),
        _ => format!("{v:.2}"),
    }
}

/// The `p`th percentile (0 to 100) of samples, in their unit; 0 for none.
pub fn percentile(samples: &mut [f64], p: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let rank = (p / 100.0 * samples.len() as f64).ceil() as usize;
    samples
        .get(rank.saturating_sub(1).min(samples.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let mut samples = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(percentile(&mut samples, 50.0), 2.0);
        assert_eq!(percentile(&mut samples, 99.0), 4.0);
        assert_eq!(percentile(&mut [], 50.0), 0.0);
    }

    #[test]
    fn a_missed_target_is_reported() {
        let mut report = Report::new("x", "nothing");
        report
            .record("size", 70.0, "MB")
            .target(Target::AtMost(60.0))
            .kubernetes(576.0);
        let text = table(&[report]);
        assert!(
            text.contains("size  70.0 MB   ≤ 60.0  NO              576 MB"),
            "{text}"
        );
    }
}
