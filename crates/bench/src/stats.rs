//! Percentiles of samples, and the interval that repeated runs span.

/// The `p`th percentile (0 to 100) of samples, in their unit; 0 for none.
pub fn percentile(samples: &mut [f64], p: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let rank = (p / 100.0 * samples.len() as f64).ceil() as usize;
    samples
        .get(rank.saturating_sub(1).min(samples.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}

/// The values of repeated runs: least, median and greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub runs: usize,
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Interval {
    /// `None` of no values.
    pub fn of(values: &[f64]) -> Option<Interval> {
        let mut sorted = values.to_vec();
        let median = percentile(&mut sorted, 50.0);
        Some(Interval {
            runs: sorted.len(),
            min: *sorted.first()?,
            median,
            max: *sorted.last()?,
        })
    }

    /// Whether no value of one is among the values of the other.
    pub fn is_apart_from(&self, other: &Interval) -> bool {
        self.min > other.max || self.max < other.min
    }
}

/// How probable it is that so many values and so many others of one distribution do not overlap: of the orders in which they may
/// come, all equally probable, two have all of the one side first.
pub fn chance_of_no_overlap(one: usize, other: usize) -> f64 {
    let orders = (1..=one).fold(1.0, |orders, i| orders * (other + i) as f64 / i as f64);
    (2.0 / orders).min(1.0)
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
    fn intervals_that_touch_overlap() {
        let of = |values: &[f64]| Interval::of(values).unwrap();
        let one = of(&[3.0, 1.0, 2.0]);
        assert_eq!((one.runs, one.min, one.median, one.max), (3, 1.0, 2.0, 3.0));
        assert!(!one.is_apart_from(&of(&[3.0, 4.0])));
        assert!(one.is_apart_from(&of(&[3.1, 4.0])));
        assert!(one.is_apart_from(&of(&[0.5, 0.9])));
        assert_eq!(Interval::of(&[]), None);
    }

    #[test]
    fn few_runs_do_not_overlap_by_chance() {
        for (one, other, chance) in [
            (1, 1, 1.0),
            (3, 3, 0.1),
            (4, 4, 2.0 / 70.0),
            (5, 5, 2.0 / 252.0),
            (5, 1, 2.0 / 6.0),
        ] {
            assert!(
                (chance_of_no_overlap(one, other) - chance).abs() < 1e-12,
                "{one} and {other}"
            );
        }
    }
}
