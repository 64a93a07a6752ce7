//! SPEC S1 on ground truth: of a pod's name, and of a container of one pod, never two processes run at one time in the whole
//! cluster. Known from the machine's processes, never from the API.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Violation;
use crate::history::Micros;

const RULE: &str = "at-most-one";
/// The kernel keeps the start of a process in ticks of 10 ms, rounded down.
const TICK: Micros = 10_000;

/// A container's first process, as it was seen on the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Life {
    /// `namespace/name` of its pod.
    pub pod: String,
    pub uid: String,
    pub container: String,
    pub node: String,
    pub pid: u32,
    /// `terminationGracePeriodSeconds` of its pod, if the container does nothing on TERM but to write it down.
    pub stubborn_grace_seconds: Option<u64>,
    /// From the kernel.
    pub started: Micros,
    /// It ran at this time.
    pub last_seen: Micros,
    /// It did not run any more at this time.
    pub gone: Option<Micros>,
}

/// Checks all lives.
pub fn check(lives: &[Life]) -> Result<(), Violation> {
    let mut by_pod: BTreeMap<&str, Vec<&Life>> = BTreeMap::new();
    for life in lives {
        by_pod.entry(&life.pod).or_default().push(life);
    }
    for (pod, mut lives) in by_pod {
        lives.sort_by_key(|life| life.started);
        for (n, life) in lives.iter().enumerate() {
            let excludes = |other: &&&Life| {
                let is_another = other.uid != life.uid || other.container == life.container;
                is_another && life.started + TICK < other.last_seen
            };
            if let Some(other) = lives[..n].iter().find(excludes) {
                return Err(Violation::new(
                    RULE,
                    pod,
                    format!(
                        "pid {} ({} of {}) was started on {} at {} while pid {} ({} of {}) ran on {}, from {} until {} at least",
                        life.pid,
                        life.container,
                        life.uid,
                        life.node,
                        life.started,
                        other.pid,
                        other.container,
                        other.uid,
                        other.node,
                        other.started,
                        other.last_seen
                    ),
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(pod: &str, uid: &str, container: &str, started: Micros, last_seen: Micros) -> Life {
        Life {
            pod: pod.into(),
            uid: uid.into(),
            container: container.into(),
            node: "node1".into(),
            pid: 1,
            stubborn_grace_seconds: None,
            started,
            last_seen,
            gone: Some(last_seen + 100_000),
        }
    }

    const S: Micros = 1_000_000;

    #[test]
    fn one_after_the_other_and_different_names_hold() {
        for lives in [
            vec![],
            vec![
                life("p/a", "1", "c", S, 5 * S),
                life("p/a", "2", "c", 5 * S, 9 * S),
            ],
            // A restart in place.
            vec![
                life("p/a", "1", "c", S, 5 * S),
                life("p/a", "1", "c", 6 * S, 9 * S),
            ],
            // Two containers of one pod, two pods.
            vec![life("p/a", "1", "c", S, 5 * S), life("p/a", "1", "d", S, 5 * S)],
            vec![life("p/a", "1", "c", S, 5 * S), life("p/b", "2", "c", S, 5 * S)],
        ] {
            assert_eq!(check(&lives), Ok(()), "{lives:?}");
        }
    }

    #[test]
    fn s1_two_at_one_time_are_a_violation_whichever_was_seen_first() {
        for (one, other) in [
            // Another pod of the name, while the first runs or ends.
            (
                life("p/a", "1", "c", S, 5 * S),
                life("p/a", "2", "c", 2 * S, 3 * S),
            ),
            (
                life("p/a", "1", "c", S, 5 * S),
                life("p/a", "2", "c", 5 * S - 100_000, 9 * S),
            ),
            // Its other container.
            (
                life("p/a", "1", "c", S, 5 * S),
                life("p/a", "2", "d", 2 * S, 3 * S),
            ),
            // One container twice.
            (
                life("p/a", "1", "c", S, 5 * S),
                life("p/a", "1", "c", 2 * S, 3 * S),
            ),
        ] {
            for lives in [[one.clone(), other.clone()], [other, one]] {
                let violation = check(&lives).unwrap_err();
                assert_eq!((violation.rule, violation.of.as_str()), (RULE, "p/a"));
            }
        }
    }
}
