//! SPEC T2 to T4 on ground truth: a container that ignores TERM is not killed before the grace in force has run out since it
//! received TERM, and never without having received it. Such containers write down when they received TERM themselves.

use std::collections::BTreeMap;

use super::Violation;
use super::at_most_one::Life;
use crate::history::Micros;

const RULE: &str = "grace";
const SECOND: Micros = 1_000_000;
/// TERM is received when the shell comes to its trap, which takes a machine with more processes than cores its time; and the
/// end of a process is seen at most one sample late, which is in its favor.
const SLACK: Micros = 2 * SECOND;
/// No grace is shorter (SPEC T3).
const SHORTEST_SECONDS: u64 = 1;
/// A start that is cut off is called back by the runtime, with KILL. Nothing takes longer to be started than this.
const START: Micros = 15 * SECOND;

/// Deletions that were sent with a grace of their own, whatever they were answered, by the pod's uid: when, and how many
/// seconds.
pub type Deletions = BTreeMap<String, Vec<(Micros, u64)>>;

/// A time in which a node's runtime or kubelet was killed, paused, or had no disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub node: String,
    pub from: Micros,
    pub until: Micros,
}

/// Checks the lives of containers that ignore TERM. `terms` has when the processes of each pod received it, in order.
pub fn check(
    lives: &[Life],
    deletions: &Deletions,
    terms: &BTreeMap<String, Vec<Micros>>,
    troubles: &[Trouble],
) -> Result<(), Violation> {
    for life in lives {
        let (Some(gone), Some(own_seconds)) = (life.gone, life.stubborn_grace_seconds) else {
            continue;
        };
        let received = terms.get(&life.uid).into_iter().flatten();
        // A tick before its start: the record and the kernel round differently.
        let received = received
            .copied()
            .find(|at| (life.started.saturating_sub(SECOND / 10)..=gone).contains(at));
        let Some(received) = received else {
            if is_called_back(life, gone, troubles) {
                continue;
            }
            return Err(Violation::new(
                RULE,
                &life.pod,
                format!(
                    "{} of {} was killed on {} between {} and {gone} without TERM, it has {own_seconds} s",
                    life.container, life.uid, life.node, life.last_seen
                ),
            ));
        };
        let asked = deletions.get(&life.uid).into_iter().flatten();
        let asked = asked.filter(|(at, _)| *at <= gone);
        let grace = asked
            .map(|(_, grace)| *grace)
            .chain([own_seconds])
            .min()
            .unwrap_or_default();
        let grace = grace.max(SHORTEST_SECONDS);
        let had = gone - received;
        if had + SLACK < grace * SECOND {
            return Err(Violation::new(
                RULE,
                &life.pod,
                format!(
                    "{} of {} was killed on {} at {gone}, {} ms after TERM at {received}; it has {grace} s",
                    life.container,
                    life.uid,
                    life.node,
                    had / 1_000
                ),
            ));
        }
    }
    Ok(())
}

/// Whether its start was cut off by what happened to its node.
fn is_called_back(life: &Life, gone: Micros, troubles: &[Trouble]) -> bool {
    let is_young = gone - life.started <= START;
    let meets = |trouble: &&Trouble| {
        trouble.node == life.node && trouble.from <= gone && trouble.until + START >= life.started
    };
    is_young && troubles.iter().any(|t| meets(&t))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(started: u64, gone: u64) -> Life {
        Life {
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

    /// A pod with 10 s of grace.
    fn checked(
        life: &Life,
        terms: &[u64],
        deletions: &[(u64, u64)],
        trouble: Option<(&str, u64, u64)>,
    ) -> Result<(), Violation> {
        let deletions = deletions.iter().map(|(at, g)| (at * SECOND, *g)).collect();
        let terms = terms.iter().map(|at| at * SECOND).collect();
        let trouble = trouble.map(|(node, from, until)| Trouble {
            node: node.into(),
            from: from * SECOND,
            until: until * SECOND,
        });
        check(
            std::slice::from_ref(life),
            &[("u".to_string(), deletions)].into(),
            &[("u".to_string(), terms)].into(),
            trouble.as_slice(),
        )
    }

    #[test]
    fn t3_whole_graces_and_shortened_ones_hold() {
        assert_eq!(checked(&life(100, 130), &[120], &[], None), Ok(()));
        // Longer, and TERM again after a restart of the kubelet.
        assert_eq!(checked(&life(100, 145), &[120, 130], &[], None), Ok(()));
        // Shortened while it ends.
        assert_eq!(
            checked(&life(100, 125), &[120], &[(119, 30), (122, 4)], None),
            Ok(())
        );
        // Still alive, or one that exits on TERM.
        let mut alive = life(100, 121);
        alive.gone = None;
        assert_eq!(checked(&alive, &[120], &[], None), Ok(()));
        let mut other = life(100, 121);
        other.stubborn_grace_seconds = None;
        assert_eq!(checked(&other, &[], &[], None), Ok(()));
    }

    #[test]
    fn t3_a_kill_before_the_grace_is_a_violation() {
        let found =
            |terms: &[u64], deletions: &[(u64, u64)]| checked(&life(100, 125), terms, deletions, None);
        assert!(found(&[120], &[]).is_err());
        // A longer grace does not help, a shorter one after its end neither.
        assert!(found(&[120], &[(119, 30)]).is_err());
        assert!(found(&[120], &[(126, 1)]).is_err());
        // The shortened grace holds, too.
        assert!(found(&[124], &[(120, 8)]).is_err());
        // TERM of an earlier container of the pod.
        assert!(found(&[90], &[]).is_err());
    }

    #[test]
    fn t2_a_kill_without_term_is_a_violation_unless_its_start_was_cut_off() {
        assert!(checked(&life(100, 200), &[], &[], None).is_err());
        assert!(checked(&life(100, 200), &[], &[], Some(("node1", 150, 201))).is_err());
        assert!(checked(&life(100, 103), &[], &[], None).is_err());
        assert!(checked(&life(100, 103), &[], &[], Some(("node2", 99, 102))).is_err());
        assert_eq!(
            checked(&life(100, 103), &[], &[], Some(("node1", 99, 102))),
            Ok(())
        );
    }
}
