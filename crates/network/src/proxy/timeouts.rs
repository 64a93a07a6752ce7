//! The timeouts of session affinity that a table may have chains for.
//!
//! A rule that learns carries its timeout, so each timeout is a chain, created when a Service has it. Common values
//! are exact; others are rounded up by less than a tenth, so that there are never more than some hundred chains.

/// Ranges of seconds and the step between the timeouts in them.
const STEPS: [(u32, u32); 6] = [
    (60, 1),
    (300, 5),
    (900, 15),
    (3_600, 60),
    (21_600, 300),
    // v1.36's validation allows a day at most.
    (86_400, 1_800),
];

/// The timeout whose chain is used for this many seconds.
pub fn rounded(seconds: u32) -> u32 {
    let seconds = seconds.max(1);
    let (_, step) = STEPS
        .iter()
        .find(|(up_to, _)| seconds <= *up_to)
        .unwrap_or(&STEPS[5]);
    seconds.next_multiple_of(*step).min(86_400)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// All timeouts there are, ascending.
    fn all() -> impl Iterator<Item = u32> {
        let starts = [0, 60, 300, 900, 3_600, 21_600];
        starts
            .into_iter()
            .zip(STEPS)
            .flat_map(|(start, (end, step))| (1..=(end - start) / step).map(move |n| start + n * step))
    }

    #[test]
    fn n2_every_timeout_has_a_chain_and_is_off_by_less_than_a_tenth() {
        let chains: BTreeSet<u32> = all().collect();
        assert_eq!(chains.len(), 289);
        for seconds in 1..=86_400 {
            let used = rounded(seconds);
            assert!(chains.contains(&used), "{seconds}: {used}");
            assert!(
                used >= seconds && used - seconds <= seconds / 10,
                "{seconds}: {used}"
            );
        }
        for exact in [
            1, 10, 30, 60, 90, 120, 600, 1800, 3600, 7200, 10_800, 43_200, 86_400,
        ] {
            assert_eq!(rounded(exact), exact);
        }
    }
}
