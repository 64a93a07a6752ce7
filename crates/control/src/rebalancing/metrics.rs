//! The metrics of the rebalancing controller.

use knarr_client::metrics::{Registry, count};
use knarr_rebalance::controller::Outcome;
use prometheus::{IntCounterVec, IntGauge};

/// See the module. Clones share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    evictions: IntCounterVec,
    planned: IntGauge,
}

impl Metrics {
    pub fn new(registry: &Registry) -> Self {
        Metrics {
            evictions: registry.counters(
                "knarr_rebalance_evictions_total",
                "Number of evictions that rebalance policies requested, by the rule that the pod is moved for and the result of the request.",
                &["rule", "result"],
            ),
            planned: registry.gauge(
                "knarr_rebalance_planned_moves",
                "Number of moves in the last plans of all rebalance policies.",
            ),
        }
    }

    pub(super) fn evicted(&self, rule: &str, outcome: &Outcome) {
        self.evictions.with_label_values(&[rule, outcome.name()]).inc();
    }

    pub(super) fn planned(&self, moves: usize) {
        self.planned.set(count(moves));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b3_evictions_are_counted_by_rule_and_result() {
        let registry = Registry::default();
        let metrics = Metrics::new(&registry);
        metrics.planned(7);
        metrics.evicted("TopologySpread", &Outcome::Evicted);
        let message = String::new();
        metrics.evicted("TopologySpread", &Outcome::DisruptionBudget { message });
        let page = registry.text();
        for line in [
            "knarr_rebalance_planned_moves 7",
            "knarr_rebalance_evictions_total{result=\"disruption_budget\",rule=\"TopologySpread\"} 1",
            "knarr_rebalance_evictions_total{result=\"evicted\",rule=\"TopologySpread\"} 1",
        ] {
            assert!(page.contains(line), "{line} in {page}");
        }
    }
}
