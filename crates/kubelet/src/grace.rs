//! How long a container has to end (SPEC T2, T3). Whole seconds, as the API and the runtime count.

/// What every process is left with, whatever its hook used up.
pub const MINIMUM_SECONDS: i64 = 2;

/// Everything that has a say in a pod's grace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Graces {
    /// What is in force already, while the pod is ending.
    pub in_force: Option<i64>,
    /// `metadata.deletionGracePeriodSeconds`.
    pub deletion: Option<i64>,
    /// An eviction's, or a node shutdown's.
    pub given: Option<i64>,
    /// `spec.terminationGracePeriodSeconds`.
    pub pod: Option<i64>,
}

/// The smallest of what is said, else the pod's own; never under one second (T3).
pub fn effective_seconds(graces: Graces) -> i64 {
    [graces.in_force, graces.deletion, graces.given]
        .into_iter()
        .flatten()
        .min()
        .or(graces.pod)
        .unwrap_or(0)
        .max(1)
}

/// One container's grace when it alone is ended: the probe's own, if a probe is the reason and has one (T2).
pub fn container_seconds(deletion: Option<i64>, pod: Option<i64>, probe: Option<i64>) -> i64 {
    deletion.or(probe).or(pod).unwrap_or(MINIMUM_SECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t3_the_smallest_grace_counts_and_never_less_than_a_second() {
        let g = |in_force, deletion, given, pod| {
            effective_seconds(Graces {
                in_force,
                deletion,
                given,
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
    fn t2_the_deletion_goes_before_the_probe_and_the_probe_before_the_pod() {
        assert_eq!(container_seconds(Some(7), Some(30), Some(3)), 7);
        assert_eq!(container_seconds(None, Some(30), Some(3)), 3);
        assert_eq!(container_seconds(None, Some(30), None), 30);
        assert_eq!(container_seconds(None, None, None), 2);
    }
}
