//! Requests that are served now, counted as long as their guard exists.

use std::sync::Arc;

use super::{Metrics, Series};

/// Counts a watch or stream while it runs.
pub(crate) struct LongRunningGauge {
    metrics: Arc<Metrics>,
    series: Series,
}

impl LongRunningGauge {
    pub fn new(metrics: Arc<Metrics>, series: Series) -> Self {
        metrics.long_running(&series, 1);
        LongRunningGauge { metrics, series }
    }
}

impl Drop for LongRunningGauge {
    fn drop(&mut self) {
        self.metrics.long_running(&self.series, -1);
    }
}

/// Counts a request in flight, also if its client closes the connection meanwhile.
pub(crate) struct InFlightGauge {
    metrics: Arc<Metrics>,
    mutating: bool,
}

impl InFlightGauge {
    pub fn new(metrics: Arc<Metrics>, mutating: bool) -> Self {
        metrics.in_flight(mutating, 1);
        InFlightGauge { metrics, mutating }
    }
}

impl Drop for InFlightGauge {
    fn drop(&mut self) {
        self.metrics.in_flight(self.mutating, -1);
    }
}
