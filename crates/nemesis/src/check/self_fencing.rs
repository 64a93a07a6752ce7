//! SPEC B4 on ground truth: on a node that reaches no server, a pod with `knarr.io/at-most-one: "true"` runs no longer than
//! 40 s, after which the control plane may consider the node lost. Only where no other fault hit the node meanwhile: a kubelet
//! that is dead or paused fences nothing, and the guarantee requires clocks that run at almost the right rate
//! (`docs/safety.md`).

use super::Violation;
use super::at_most_one::ContainerProcess;
use crate::history::Micros;

const RULE: &str = "self-fencing";
const SECOND: Micros = 1_000_000;
/// `NODE_LOST_AFTER` of the kubelet: the last renewal was acknowledged before the cut.
const LOST: Micros = 40 * SECOND;
/// The longest delay until the exit of a killed process is seen on a host with more processes than cores.
const SLACK: Micros = 2 * SECOND;

/// A time in which a node reached no server, and no other fault hit it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolation {
    pub node: String,
    pub from: Micros,
    pub until: Micros,
}

/// Checks the processes of pods that are self-fenced; `processes` must have no others.
pub fn check(processes: &[ContainerProcess], isolations: &[Isolation]) -> Result<(), Violation> {
    for isolation in isolations {
        let (lost, until) = (isolation.from + LOST + SLACK, isolation.until);
        let runs = |process: &&ContainerProcess| {
            process.node == isolation.node && process.started < until && process.last_seen.min(until) > lost
        };
        if let Some(process) = processes.iter().find(runs) {
            return Err(Violation::new(
                RULE,
                &process.pod,
                format!(
                    "pid {} ({}) still ran on {} at {}, which has reached no server since {}",
                    process.pid,
                    process.uid,
                    process.node,
                    process.last_seen.min(until),
                    isolation.from
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(node: &str, started: u64, last_seen: u64) -> bool {
        let process = ContainerProcess {
            pod: "p/a".into(),
            uid: "u".into(),
            container: "c".into(),
            node: node.into(),
            pid: 1,
            stubborn_grace_seconds: None,
            started: started * SECOND,
            last_seen: last_seen * SECOND,
            gone: None,
        };
        let isolation = Isolation {
            node: "node1".into(),
            from: 100 * SECOND,
            until: 155 * SECOND,
        };
        check(&[process], &[isolation]).is_err()
    }

    #[test]
    fn b4_what_still_runs_after_40_s_without_a_server_is_a_violation() {
        for (node, started, last_seen, expected) in [
            ("node1", 50, 135, false),
            ("node1", 50, 141, false),
            ("node1", 50, 143, true),
            ("node1", 50, 500, true),
            // Started although the node was isolated.
            ("node1", 150, 154, true),
            // After the cut, or elsewhere.
            ("node1", 160, 500, false),
            ("node2", 50, 500, false),
        ] {
            assert_eq!(
                found(node, started, last_seen),
                expected,
                "{node} {started}..{last_seen}"
            );
        }
    }
}
