//! SPEC S1 on ground truth: of a pod's name, and of a container of one pod, never two processes run at the same time in the
//! cluster. It is checked on the host's processes, not on what the API shows.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Violation;
use crate::history::Micros;

const RULE: &str = "at-most-one";
/// The kernel has the start of a process in ticks of 10 ms, rounded down.
const TICK: Micros = 10_000;

/// A container's first process, as it was seen on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContainerProcess {
    /// `namespace/name` of its pod.
    pub pod: String,
    pub uid: String,
    pub container: String,
    pub node: String,
    pub pid: u32,
    /// `terminationGracePeriodSeconds` of its pod, if the container ignores SIGTERM and only records it.
    pub stubborn_grace_seconds: Option<u64>,
    /// From the kernel.
    pub started: Micros,
    /// The last time at which it was seen running.
    pub last_seen: Micros,
    /// The first time at which it was no longer running.
    pub gone: Option<Micros>,
}

/// Checks all processes.
pub fn check(processes: &[ContainerProcess]) -> Result<(), Violation> {
    let mut by_pod: BTreeMap<&str, Vec<&ContainerProcess>> = BTreeMap::new();
    for process in processes {
        by_pod.entry(&process.pod).or_default().push(process);
    }
    for (pod, mut processes) in by_pod {
        processes.sort_by_key(|process| process.started);
        for (n, process) in processes.iter().enumerate() {
            let excludes = |other: &&&ContainerProcess| {
                let is_another = other.uid != process.uid || other.container == process.container;
                is_another && process.started + TICK < other.last_seen
            };
            if let Some(other) = processes[..n].iter().find(excludes) {
                return Err(Violation::new(
                    RULE,
                    pod,
                    format!(
                        "pid {} ({} of {}) was started on {} at {} while pid {} ({} of {}) ran on {}, at least from {} until {}",
                        process.pid,
                        process.container,
                        process.uid,
                        process.node,
                        process.started,
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

    fn process(
        pod: &str,
        uid: &str,
        container: &str,
        started: Micros,
        last_seen: Micros,
    ) -> ContainerProcess {
        ContainerProcess {
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
        for processes in [
            vec![],
            vec![
                process("p/a", "1", "c", S, 5 * S),
                process("p/a", "2", "c", 5 * S, 9 * S),
            ],
            // A restart in place.
            vec![
                process("p/a", "1", "c", S, 5 * S),
                process("p/a", "1", "c", 6 * S, 9 * S),
            ],
            // Two containers of one pod, two pods.
            vec![
                process("p/a", "1", "c", S, 5 * S),
                process("p/a", "1", "d", S, 5 * S),
            ],
            vec![
                process("p/a", "1", "c", S, 5 * S),
                process("p/b", "2", "c", S, 5 * S),
            ],
        ] {
            assert_eq!(check(&processes), Ok(()), "{processes:?}");
        }
    }

    #[test]
    fn s1_two_at_one_time_are_a_violation_whichever_was_seen_first() {
        for (one, other) in [
            // Another pod of the name, while the first runs or ends.
            (
                process("p/a", "1", "c", S, 5 * S),
                process("p/a", "2", "c", 2 * S, 3 * S),
            ),
            (
                process("p/a", "1", "c", S, 5 * S),
                process("p/a", "2", "c", 5 * S - 100_000, 9 * S),
            ),
            // Its other container.
            (
                process("p/a", "1", "c", S, 5 * S),
                process("p/a", "2", "d", 2 * S, 3 * S),
            ),
            // One container twice.
            (
                process("p/a", "1", "c", S, 5 * S),
                process("p/a", "1", "c", 2 * S, 3 * S),
            ),
        ] {
            for processes in [[one.clone(), other.clone()], [other, one]] {
                let violation = check(&processes).unwrap_err();
                assert_eq!((violation.rule, violation.of.as_str()), (RULE, "p/a"));
            }
        }
    }
}
