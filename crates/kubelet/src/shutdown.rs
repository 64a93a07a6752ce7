//! The machine goes down: pods end by priority, the lowest first, each group within its own budget (SPEC T9).
//!
//! A group ends when all of its pods have ended or its budget is used up, whichever is sooner; then comes the next.
//! A group without pods takes no time. Which pods there are is settled when the shutdown begins: none are taken on
//! after that. The answers of [`Shutdown::step`] are the whole of it; whoever asks hands in the time.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use crate::admission::{CRITICAL_PRIORITY, Rejection};
use crate::configuration;
use crate::pod::Eviction;

/// `status.reason` of a pod that was ended for it.
pub const REASON: &str = "Terminated";
pub const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// What the node says of itself meanwhile.
pub const NOT_READY: &str = "node is shutting down";
/// Of the events about the node.
pub const EVENT: &str = "NodeShutdown";
pub const DETECTED: &str = "Shutdown manager detected shutdown event";
pub const CANCELLED: &str = "Shutdown manager detected shutdown cancellation";

/// What pods hear that come meanwhile.
pub fn rejection() -> Rejection {
    Rejection::new("NodeShutdown", "Pod was rejected as the node is shutting down.")
}

/// Pods from this priority on, up to the next group's, and what they are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub priority: i32,
    pub seconds: i64,
}

/// Lowest priority first. Empty: the administrator gave pods no time.
pub fn budgets(of: &configuration::Shutdown) -> Vec<Budget> {
    let mut budgets: Vec<Budget> = of
        .by_priority
        .iter()
        .map(|(priority, seconds)| Budget {
            priority: *priority,
            seconds: (*seconds).max(0),
        })
        .collect();
    if budgets.is_empty() && !of.grace.is_zero() {
        let plain = of.grace - of.critical;
        budgets = vec![
            Budget {
                priority: 0,
                seconds: plain.as_secs(),
            },
            Budget {
                priority: CRITICAL_PRIORITY,
                seconds: of.critical.as_secs(),
            },
        ];
    }
    budgets.sort_by_key(|b| b.priority);
    budgets
}

/// The group a pod of this priority belongs to: the highest that is not above it, else the lowest.
fn group_of(priority: i32, budgets: &[Budget]) -> usize {
    budgets
        .partition_point(|b| b.priority <= priority)
        .saturating_sub(1)
}

#[derive(Clone, Debug)]
struct Group {
    budget: Budget,
    /// Uids, and the grace of each.
    pods: Vec<(String, i64)>,
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The turn of these has come: pods' uids, and why and how each ends.
    End {
        budget: Budget,
        pods: Vec<(String, Eviction)>,
    },
    /// Sync again then, or when a pod has ended.
    WaitUntil(Timestamp),
    /// Every group has had its time.
    Done,
}

/// A shutdown under way.
#[derive(Clone, Debug)]
pub struct Shutdown {
    /// Those whose turn is still to come, the next one last.
    waiting: Vec<Group>,
    /// The one whose turn it is, and until when.
    current: Option<(Group, Timestamp)>,
}

impl Shutdown {
    pub fn new(budgets: &[Budget], pods: &[&Pod]) -> Self {
        let mut groups: Vec<Group> = budgets
            .iter()
            .map(|budget| Group {
                budget: *budget,
                pods: Vec::new(),
            })
            .collect();
        for pod in pods {
            let spec = pod.spec.as_ref();
            let priority = spec.and_then(|s| s.priority).unwrap_or(0);
            let Some(group) = groups.get_mut(group_of(priority, budgets)) else {
                continue;
            };
            let own = spec.and_then(|s| s.termination_grace_period_seconds);
            let seconds = own.map_or(group.budget.seconds, |own| own.min(group.budget.seconds));
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            group.pods.push((uid, seconds));
        }
        groups.retain(|g| !g.pods.is_empty());
        groups.reverse();
        Shutdown {
            waiting: groups,
            current: None,
        }
    }

    /// How many seconds it may take at the most.
    pub fn longest_seconds(&self) -> i64 {
        self.waiting.iter().map(|g| g.budget.seconds).sum()
    }

    /// What is next. `has_ended` says of a uid whether nothing is left of that pod: no process, no volume.
    pub fn step(&mut self, has_ended: impl Fn(&str) -> bool, now: Timestamp) -> Step {
        if let Some((group, until)) = &self.current {
            let ended = group.pods.iter().all(|(uid, _)| has_ended(uid));
            if !ended && now < *until {
                return Step::WaitUntil(*until);
            }
            self.current = None;
        }
        let Some(group) = self.waiting.pop() else {
            return Step::Done;
        };
        let pods = group
            .pods
            .iter()
            .map(|(uid, seconds)| (uid.clone(), ends(*seconds)))
            .collect();
        let budget = group.budget;
        let until = now
            .checked_add(SignedDuration::from_secs(budget.seconds))
            .unwrap_or(Timestamp::MAX);
        self.current = Some((group, until));
        Step::End { budget, pods }
    }
}

fn ends(grace_seconds: i64) -> Eviction {
    Eviction {
        reason: REASON.into(),
        message: MESSAGE.into(),
        grace_seconds: Some(grace_seconds),
        disruption: Some(MESSAGE.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn settings(grace: i64, critical: i64, by_priority: &[(i32, i64)]) -> configuration::Shutdown {
        configuration::Shutdown {
            grace: SignedDuration::from_secs(grace),
            critical: SignedDuration::from_secs(critical),
            by_priority: by_priority.to_vec(),
        }
    }

    fn pod(uid: &str, priority: i32, grace: i64) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"uid": uid},
            "spec": {"priority": priority, "terminationGracePeriodSeconds": grace, "containers": []},
        }))
        .unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn t9_two_settings_are_two_groups_and_a_list_is_its_own() {
        let pairs = |of: &configuration::Shutdown| -> Vec<(i32, i64)> {
            budgets(of).iter().map(|b| (b.priority, b.seconds)).collect()
        };
        for (settings, want) in [
            (settings(0, 0, &[]), vec![]),
            (settings(30, 10, &[]), vec![(0, 20), (CRITICAL_PRIORITY, 10)]),
            (settings(30, 30, &[]), vec![(0, 0), (CRITICAL_PRIORITY, 30)]),
            (
                settings(0, 0, &[(10, 5), (-10, 7), (0, -3)]),
                vec![(-10, 7), (0, 0), (10, 5)],
            ),
        ] {
            assert_eq!(pairs(&settings), want, "{settings:?}");
        }
    }

    #[test]
    fn t9_a_pod_belongs_to_the_highest_group_that_is_not_above_it() {
        let budgets = budgets(&settings(0, 0, &[(-5, 1), (0, 1), (100, 1)]));
        for (priority, want) in [
            (i32::MIN, 0),
            (-6, 0),
            (-5, 0),
            (-1, 0),
            (0, 1),
            (99, 1),
            (100, 2),
            (CRITICAL_PRIORITY, 2),
        ] {
            assert_eq!(group_of(priority, &budgets), want, "{priority}");
        }
    }

    /// Plays a shutdown whose pods end at the given seconds; what happened when.
    fn play(settings: &configuration::Shutdown, pods: &[(Pod, Option<i64>)]) -> Vec<String> {
        let listed: Vec<&Pod> = pods.iter().map(|(pod, _)| pod).collect();
        let mut shutdown = Shutdown::new(&budgets(settings), &listed);
        let mut log = Vec::new();
        let mut second = 0;
        loop {
            let gone = |uid: &str| {
                let ends = pods.iter().find(|(p, _)| p.metadata.uid.as_deref() == Some(uid));
                ends.and_then(|(_, at)| *at).is_some_and(|at| at <= second)
            };
            match shutdown.step(gone, at(second)) {
                Step::End { pods, .. } => {
                    let named = pods
                        .iter()
                        .map(|(uid, e)| format!("{uid}:{}", e.grace_seconds.unwrap_or(-1)));
                    log.push(format!("{second} {}", named.collect::<Vec<_>>().join(" ")));
                }
                Step::WaitUntil(_) => second += 1,
                Step::Done => {
                    let left = listed
                        .iter()
                        .filter(|p| !gone(p.metadata.uid.as_deref().unwrap_or("")));
                    log.push(format!("{second} done, {} left", left.count()));
                    return log;
                }
            }
        }
    }

    #[test]
    fn t9_groups_go_one_after_the_other_each_within_its_budget() {
        let plain = settings(30, 10, &[]);
        for (settings, pods, want) in [
            // A group that has ended makes room for the next at once; own graces are capped.
            (
                &plain,
                vec![
                    (pod("a", 0, 30), Some(3)),
                    (pod("b", 5, 2), Some(2)),
                    (pod("c", CRITICAL_PRIORITY, 30), Some(4)),
                ],
                vec!["0 a:20 b:2", "3 c:10", "4 done, 0 left"],
            ),
            // One that does not end costs its group's budget, and no more.
            (
                &plain,
                vec![
                    (pod("a", 0, 60), None),
                    (pod("c", CRITICAL_PRIORITY + 1, 5), Some(22)),
                ],
                vec!["0 a:20", "20 c:5", "22 done, 1 left"],
            ),
            // Groups without pods take no time.
            (
                &plain,
                vec![(pod("c", CRITICAL_PRIORITY, 30), Some(6))],
                vec!["0 c:10", "6 done, 0 left"],
            ),
            (&plain, vec![], vec!["0 done, 0 left"]),
            // No budget for a group: its pods are told, and not waited for.
            (
                &settings(10, 10, &[]),
                vec![(pod("a", 0, 30), None), (pod("c", CRITICAL_PRIORITY, 3), Some(3))],
                vec!["0 a:0", "0 c:3", "3 done, 1 left"],
            ),
        ] {
            assert_eq!(play(settings, &pods), want);
        }
    }

    #[test]
    fn t9_without_any_budget_nobody_is_ended() {
        let a = pod("a", 0, 30);
        let mut shutdown = Shutdown::new(&[], &[&a]);
        assert_eq!(shutdown.step(|_| false, at(0)), Step::Done);
    }

    #[test]
    fn t9_the_longest_a_shutdown_takes_is_the_budgets_of_the_groups_that_have_pods() {
        let budgets = budgets(&settings(30, 10, &[]));
        let (ordinary, critical) = (pod("a", 0, 5), pod("b", CRITICAL_PRIORITY, 5));
        for (pods, seconds) in [
            (vec![], 0),
            (vec![&ordinary], 20),
            (vec![&critical], 10),
            (vec![&ordinary, &critical], 30),
        ] {
            assert_eq!(Shutdown::new(&budgets, &pods).longest_seconds(), seconds);
        }
    }
}
