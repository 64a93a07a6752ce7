//! How often each part of a calibration is measured, and the median of it.

use std::time::Duration;

use tokio::time::Instant;

use crate::stats::percentile;

/// How much of each is done at most, and how long each part takes at most.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Steps of arithmetic of one sample.
    pub steps: u64,
    pub copy_bytes: usize,
    /// Round trips of one sample.
    pub round_trips: u32,
    pub samples: usize,
    /// Runs of a container; 0 leaves them out.
    pub containers: usize,
    pub fdatasyncs: usize,
    /// Of each part: the six together take no longer than ten seconds.
    pub limit: Duration,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes {
            // About 4 ms a million.
            steps: 5_000_000,
            // Larger than the caches of any host that runs this.
            copy_bytes: 64_000_000,
            round_trips: 200,
            samples: 25,
            containers: 25,
            fdatasyncs: 200,
            limit: Duration::from_millis(1500),
        }
    }
}

/// The median duration of so many calls, in seconds; fewer where they take too long.
pub fn median<E>(count: usize, limit: Duration, mut call: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let begin = Instant::now();
    let mut seconds = Vec::with_capacity(count);
    while seconds.len() < count && (seconds.is_empty() || begin.elapsed() < limit) {
        let before = Instant::now();
        call()?;
        seconds.push(before.elapsed().as_secs_f64());
    }
    Ok(percentile(&mut seconds, 50.0))
}

/// As [`median`], of calls that cannot fail.
pub fn median_of(count: usize, limit: Duration, mut call: impl FnMut()) -> f64 {
    let Ok(seconds) = median(count, limit, || {
        call();
        Ok::<(), std::convert::Infallible>(())
    });
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_calls_are_measured_once_at_least_and_not_for_long() {
        let mut calls = 0;
        let seconds = median(1_000, Duration::ZERO, || {
            calls += 1;
            Ok::<(), ()>(())
        });
        assert!(seconds.is_ok());
        assert_eq!(calls, 1);
    }
}
