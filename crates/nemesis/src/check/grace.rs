//! SPEC T2 to T4 on ground truth: a container that ignores SIGTERM is not killed before its effective grace period has passed
//! since it received SIGTERM, and never without having received it. Such containers record themselves when they received it.

use std::collections::BTreeMap;

use super::Violation;
use super::at_most_one::ContainerProcess;
use crate::history::Micros;

const RULE: &str = "grace";
const SECOND: Micros = 1_000_000;
/// SIGTERM is recorded when the shell runs its trap, which takes time on a host with more processes than cores; and the exit
/// of a process is seen at most one sample late, which makes its grace period appear longer.
const SLACK: Micros = 2 * SECOND;
/// The shortest grace period (SPEC T3).
const SHORTEST_SECONDS: u64 = 1;
/// When a start is interrupted the runtime kills the process with SIGKILL. No start takes longer than this.
const START: Micros = 15 * SECOND;

/// Deletions with a grace period, whether or not they succeeded, by the pod's UID: when they were sent, and the seconds.
pub type Deletions = BTreeMap<String, Vec<(Micros, u64)>>;

/// A time in which a node's runtime or kubelet was killed, paused, or had a full disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disruption {
    pub node: String,
    pub from: Micros,
    pub until: Micros,
}

/// Checks the processes of containers that ignore SIGTERM. `terms` has the times at which each pod's processes received it.
pub fn check(
    processes: &[ContainerProcess],
    deletions: &Deletions,
    terms: &BTreeMap<String, Vec<Micros>>,
    disruptions: &[Disruption],
) -> Result<(), Violation> {
    for process in processes {
        let (Some(gone), Some(own_seconds)) = (process.gone, process.stubborn_grace_seconds) else {
            continue;
        };
        let received = terms.get(&process.uid).into_iter().flatten();
        // A tick before its start is accepted: the record and the kernel round differently.
        let received = received
            .copied()
            .find(|at| (process.started.saturating_sub(SECOND / 10)..=gone).contains(at));
        let Some(received) = received else {
            if is_interrupted_start(process, gone, disruptions) {
                continue;
            }
            return Err(Violation::new(
                RULE,
                &process.pod,
                format!(
                    "{} of {} was killed on {} between {} and {gone} without SIGTERM, its grace period is {own_seconds} s",
                    process.container, process.uid, process.node, process.last_seen
                ),
            ));
        };
        let requested = deletions.get(&process.uid).into_iter().flatten();
        let requested = requested.copied().filter(|(at, _)| *at <= gone);
        let grace = effective_seconds(own_seconds, requested);
        let had = gone - received;
        if had + SLACK < grace * SECOND {
            return Err(Violation::new(
                RULE,
                &process.pod,
                format!(
                    "{} of {} was killed on {} at {gone}, {} ms after SIGTERM at {received}; its grace period is {grace} s",
                    process.container,
                    process.uid,
                    process.node,
                    had / 1_000
                ),
            ));
        }
    }
    Ok(())
}

/// The shortest grace period that the API server sets by these deletions, which are in the order of their times. One that
/// shortens a grace period whose end has then passed sets one second (`BeforeDelete` of v1.36): on a node that learns of
/// both deletions later, too.
fn effective_seconds(own_seconds: u64, requested: impl Iterator<Item = (Micros, u64)>) -> u64 {
    let mut shortest = own_seconds;
    let mut in_force: Option<(Micros, u64)> = None;
    for (at, grace) in requested {
        let grace = match in_force {
            Some((first, before)) if grace < before && first + grace * SECOND < at => SHORTEST_SECONDS,
            _ => grace,
        };
        let (first, before) = in_force.unwrap_or((at, grace));
        in_force = Some((first, before.min(grace)));
        shortest = shortest.min(grace);
    }
    shortest.max(SHORTEST_SECONDS)
}

/// Whether its start was interrupted by a disruption of its node.
fn is_interrupted_start(process: &ContainerProcess, gone: Micros, disruptions: &[Disruption]) -> bool {
    let is_young = gone - process.started <= START;
    let meets = |disruption: &&Disruption| {
        disruption.node == process.node
            && disruption.from <= gone
            && disruption.until + START >= process.started
    };
    is_young && disruptions.iter().any(|t| meets(&t))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(started: u64, gone: u64) -> ContainerProcess {
        ContainerProcess {
            pod: "p/a".into(),
            uid: "u".into(),
            container: "c".into(),
            node: "node1".into(),
            pid: 1,
            stubborn_grace_seconds: Some(10),
            started: started * SECOND,
            last_seen: gone * SECOND - SECOND / 10,
            gone: Some(gone * SECOND),
        }
    }

    /// Checks the process of a pod with a grace period of 10 s.
    fn checked(
        process: &ContainerProcess,
        terms: &[u64],
        deletions: &[(u64, u64)],
        disruption: Option<(&str, u64, u64)>,
    ) -> Result<(), Violation> {
        let deletions = deletions.iter().map(|(at, g)| (at * SECOND, *g)).collect();
        let terms = terms.iter().map(|at| at * SECOND).collect();
        let disruption = disruption.map(|(node, from, until)| Disruption {
            node: node.into(),
            from: from * SECOND,
            until: until * SECOND,
        });
        check(
            std::slice::from_ref(process),
            &[("u".to_string(), deletions)].into(),
            &[("u".to_string(), terms)].into(),
            disruption.as_slice(),
        )
    }

    #[test]
    fn t3_full_grace_periods_and_shortened_ones_hold() {
        assert_eq!(checked(&process(100, 130), &[120], &[], None), Ok(()));
        // Longer, and SIGTERM again after a restart of the kubelet.
        assert_eq!(checked(&process(100, 145), &[120, 130], &[], None), Ok(()));
        // Shortened while it terminates.
        assert_eq!(
            checked(&process(100, 125), &[120], &[(119, 30), (122, 4)], None),
            Ok(())
        );
        // Still running, or one that exits on SIGTERM.
        let mut alive = process(100, 121);
        alive.gone = None;
        assert_eq!(checked(&alive, &[120], &[], None), Ok(()));
        let mut other = process(100, 121);
        other.stubborn_grace_seconds = None;
        assert_eq!(checked(&other, &[], &[], None), Ok(()));
    }

    #[test]
    fn t3_a_deletion_that_shortens_a_grace_period_into_the_past_leaves_a_second() {
        // (the deletions of a node that was cut off until 120, the effective seconds)
        for (deletions, seconds) in [
            (vec![], 10),
            (vec![(100, 8)], 8),
            (vec![(100, 30)], 10),
            (vec![(100, 8), (103, 5)], 5),
            (vec![(100, 8), (105, 5)], 5),
            (vec![(100, 8), (106, 5)], 1),
            // Not shorter: without effect.
            (vec![(100, 5), (106, 8)], 5),
            (vec![(100, 12), (106, 8), (107, 6)], 1),
        ] {
            let requested = deletions.iter().map(|(at, grace)| (at * SECOND, *grace));
            assert_eq!(effective_seconds(10, requested), seconds, "{deletions:?}");
        }
        assert_eq!(
            checked(&process(100, 121), &[120], &[(106, 8), (115, 5)], None),
            Ok(())
        );
    }

    #[test]
    fn t3_a_kill_before_the_grace_is_a_violation() {
        let found =
            |terms: &[u64], deletions: &[(u64, u64)]| checked(&process(100, 125), terms, deletions, None);
        assert!(found(&[120], &[]).is_err());
        // A longer grace period has no effect, nor a shorter one after its exit.
        assert!(found(&[120], &[(119, 30)]).is_err());
        assert!(found(&[120], &[(126, 1)]).is_err());
        // The shortened grace period holds, too.
        assert!(found(&[124], &[(120, 8)]).is_err());
        // SIGTERM to an earlier container of the pod.
        assert!(found(&[90], &[]).is_err());
    }

    #[test]
    fn t2_a_kill_without_term_is_a_violation_unless_the_start_was_interrupted() {
        assert!(checked(&process(100, 200), &[], &[], None).is_err());
        assert!(checked(&process(100, 200), &[], &[], Some(("node1", 150, 201))).is_err());
        assert!(checked(&process(100, 103), &[], &[], None).is_err());
        assert!(checked(&process(100, 103), &[], &[], Some(("node2", 99, 102))).is_err());
        assert_eq!(
            checked(&process(100, 103), &[], &[], Some(("node1", 99, 102))),
            Ok(())
        );
    }
}
