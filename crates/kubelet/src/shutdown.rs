//! Graceful node shutdown: pods are terminated by priority, the lowest first, each group within its own budget (SPEC T9;
//! KEP 2000, KEP 2712).
//!
//! A group is done when all of its pods have terminated or its budget is used up, whichever is sooner; then the next one
//! follows. A group without pods takes no time. The pods are those at the beginning of the shutdown: none is admitted
//! after that. [`Shutdown::step`] returns what to do at the given time.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::PodUid;

use crate::admission::{CRITICAL_PRIORITY, Rejection};
use crate::configuration;
use crate::pod::Eviction;

/// `status.reason` of a pod that the shutdown terminated.
pub const REASON: &str = "Terminated";
pub const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// The message of the node's Ready condition during the shutdown.
pub const NOT_READY: &str = "node is shutting down";
/// The reason of events about the node.
pub const EVENT: &str = "NodeShutdown";
pub const DETECTED: &str = "Shutdown manager detected shutdown event";
pub const CANCELLED: &str = "Shutdown manager detected shutdown cancellation";

/// The rejection of pods that are bound to the node during the shutdown.
pub fn rejection() -> Rejection {
    Rejection::new("NodeShutdown", "Pod was rejected as the node is shutting down.")
}

/// The grace period of pods with this priority or a higher one, up to the next group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub priority: i32,
    pub seconds: i64,
}

/// The budgets, the lowest priority first. Empty: graceful node shutdown is not configured.
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

/// The group of a pod with this priority: the highest one that is not above it, else the lowest.
fn group_of(priority: i32, budgets: &[Budget]) -> usize {
    budgets
        .partition_point(|b| b.priority <= priority)
        .saturating_sub(1)
}

#[derive(Clone, Debug)]
struct Group {
    budget: Budget,
    /// The pods' UIDs, and the grace period of each.
    pods: Vec<(PodUid, i64)>,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShutdownAction {
    /// Terminate the pods of the next group: their UIDs, and the eviction of each.
    Terminate {
        budget: Budget,
        pods: Vec<(PodUid, Eviction)>,
    },
    /// Call again at this time, or when a pod has terminated.
    WaitUntil(Timestamp),
    /// All groups are done.
    Done,
}

/// A shutdown in progress.
#[derive(Clone, Debug)]
pub struct Shutdown {
    /// The groups that follow, the next one last.
    waiting: Vec<Group>,
    /// The group that is being terminated, and the end of its budget.
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
            let uid = PodUid::of(&pod.metadata);
            group.pods.push((uid, seconds));
        }
        groups.retain(|g| !g.pods.is_empty());
        groups.reverse();
        Shutdown {
            waiting: groups,
            current: None,
        }
    }

    /// The most seconds that the shutdown may take.
    pub fn max_seconds(&self) -> i64 {
        self.waiting.iter().map(|g| g.budget.seconds).sum()
    }

    /// The next action. `has_terminated` says of a uid whether nothing is left of that pod: no process, no volume.
    pub fn step(&mut self, has_terminated: impl Fn(&str) -> bool, now: Timestamp) -> ShutdownAction {
        if let Some((group, until)) = &self.current {
            let terminated = group.pods.iter().all(|(uid, _)| has_terminated(uid));
            if !terminated && now < *until {
                return ShutdownAction::WaitUntil(*until);
            }
            self.current = None;
        }
        let Some(group) = self.waiting.pop() else {
            return ShutdownAction::Done;
        };
        let pods = group
            .pods
            .iter()
            .map(|(uid, seconds)| (uid.clone(), eviction(*seconds)))
            .collect();
        let budget = group.budget;
        let until = now
            .checked_add(SignedDuration::from_secs(budget.seconds))
            .unwrap_or(Timestamp::MAX);
        self.current = Some((group, until));
        ShutdownAction::Terminate { budget, pods }
    }
}

fn eviction(grace_seconds: i64) -> Eviction {
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

    /// Runs a shutdown whose pods terminate at the given seconds; the log of what happened when.
    fn play(settings: &configuration::Shutdown, pods: &[(Pod, Option<i64>)]) -> Vec<String> {
        let listed: Vec<&Pod> = pods.iter().map(|(pod, _)| pod).collect();
        let mut shutdown = Shutdown::new(&budgets(settings), &listed);
        let mut log = Vec::new();
        let mut second = 0;
        loop {
            let has_terminated = |uid: &str| {
                let eviction = pods.iter().find(|(p, _)| p.metadata.uid.as_deref() == Some(uid));
                eviction.and_then(|(_, at)| *at).is_some_and(|at| at <= second)
            };
            match shutdown.step(has_terminated, at(second)) {
                ShutdownAction::Terminate { pods, .. } => {
                    let named = pods
                        .iter()
                        .map(|(uid, e)| format!("{uid}:{}", e.grace_seconds.unwrap_or(-1)));
                    log.push(format!("{second} {}", named.collect::<Vec<_>>().join(" ")));
                }
                ShutdownAction::WaitUntil(_) => second += 1,
                ShutdownAction::Done => {
                    let left = listed
                        .iter()
                        .filter(|p| !has_terminated(p.metadata.uid.as_deref().unwrap_or("")));
                    log.push(format!("{second} done, {} left", left.count()));
                    return log;
                }
            }
        }
    }

    #[test]
    fn t9_groups_terminate_one_after_the_other_each_within_its_budget() {
        let plain = settings(30, 10, &[]);
        for (settings, pods, want) in [
            // The next group follows at once when one is done; the pods' own grace periods are capped.
            (
                &plain,
                vec![
                    (pod("a", 0, 30), Some(3)),
                    (pod("b", 5, 2), Some(2)),
                    (pod("c", CRITICAL_PRIORITY, 30), Some(4)),
                ],
                vec!["0 a:20 b:2", "3 c:10", "4 done, 0 left"],
            ),
            // A pod that does not terminate takes its group's budget and no more.
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
            // A group without budget: its pods are terminated and not waited for.
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
    fn t9_without_any_budget_no_pod_is_terminated() {
        let a = pod("a", 0, 30);
        let mut shutdown = Shutdown::new(&[], &[&a]);
        assert_eq!(shutdown.step(|_| false, at(0)), ShutdownAction::Done);
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
            assert_eq!(Shutdown::new(&budgets, &pods).max_seconds(), seconds);
        }
    }
}
