//! The grace period of a pod and of a container (SPEC T2, T3), in whole seconds as in the API and CRI.

/// The time that every process has after TERM, however long its preStop hook took (upstream: `minimumGracePeriodInSeconds`).
pub const MINIMUM_SECONDS: i64 = 2;

/// The grace periods that may apply to a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GracePeriods {
    /// The one in force, of a pod that is terminating.
    pub in_force: Option<i64>,
    /// `metadata.deletionGracePeriodSeconds`.
    pub deletion: Option<i64>,
    /// The upper bound of an eviction or a node shutdown.
    pub eviction: Option<i64>,
    /// `spec.terminationGracePeriodSeconds`.
    pub pod: Option<i64>,
}

/// The smallest of those in force, of the deletion and of the eviction, else the pod's own; at least one second (T3).
pub fn effective_seconds(periods: GracePeriods) -> i64 {
    [periods.in_force, periods.deletion, periods.eviction]
        .into_iter()
        .flatten()
        .min()
        .or(periods.pod)
        .unwrap_or(0)
        .max(1)
}

/// The grace period of one container that is stopped alone: the probe's own, if a probe is the reason and has one (T2).
pub fn container_seconds(deletion: Option<i64>, pod: Option<i64>, probe: Option<i64>) -> i64 {
    deletion.or(probe).or(pod).unwrap_or(MINIMUM_SECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t3_the_smallest_grace_counts_and_never_less_than_a_second() {
        let g = |in_force, deletion, eviction, pod| {
            effective_seconds(GracePeriods {
                in_force,
                deletion,
                eviction,
                pod,
            })
        };
        for (got, want) in [
            (g(None, None, None, None), 1),
            (g(None, None, None, Some(30)), 30),
            (g(None, Some(6), None, Some(2)), 6),
            (g(Some(30), Some(5), None, Some(30)), 5),
            (g(Some(5), Some(30), None, Some(30)), 5),
            (g(None, Some(30), Some(1), Some(30)), 1),
            (g(None, Some(0), None, Some(30)), 1),
            (g(None, None, Some(0), Some(30)), 1),
        ] {
            assert_eq!(got, want);
        }
    }

    #[test]
    fn t2_the_deletions_grace_period_overrides_the_probes_and_that_the_pods() {
        assert_eq!(container_seconds(Some(7), Some(30), Some(3)), 7);
        assert_eq!(container_seconds(None, Some(30), Some(3)), 3);
        assert_eq!(container_seconds(None, Some(30), None), 30);
        assert_eq!(container_seconds(None, None, None), 2);
    }
}
