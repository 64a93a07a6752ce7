//! Self-fencing: when a node that cannot renew its lease terminates its at-most-one pods by itself (SPEC B4).
//!
//! # The arithmetic
//!
//! Other components know of a node only when its lease was last renewed. Let `t` be the time, by this node's clock, at
//! which it sent the last renewal that succeeded: the lease was renewed at `t` or later. The node begins to terminate its
//! pods at `t` + [`TERM_AFTER`] and kills the rest of their processes at `t` + [`KILL_AFTER`]. The node is lost when its
//! lease was not renewed for 40 s by the controllers' clock ([`NODE_LOST_AFTER`]), and none of its pods is released before:
//! a fencing policy begins then at the earliest, and a user who forces the release sees a lost node.
//!
//! Clocks drift. If no clock is wrong by more than [`DRIFT_PERCENT`] (quartz is wrong by a hundredth of a percent), the last
//! KILL is sent at the latest `KILL_AFTER` · (1 + d) after `t`, and the controllers' 40 s pass at the earliest after
//! `NODE_LOST_AFTER` / (1 + d). The first is smaller, which a test checks.
//!
//! # The watchdog
//!
//! A host with a watchdog ([`WATCHDOG_TIMEOUT`]: the time after its last feeding at which it resets the host) feeds it until
//! `t` + [`WATCHDOG_RESET_AFTER`] − `WATCHDOG_TIMEOUT`, which is after `TERM_AFTER`; later only when all such pods are known
//! to have exited. Between `KILL_AFTER`, when the last KILL is sent, and `WATCHDOG_RESET_AFTER` there is time to find that
//! out. So the host is reset at `t` + `WATCHDOG_RESET_AFTER` at the latest, and `WATCHDOG_RESET_AFTER` · (1 + d)² is smaller
//! than `NODE_LOST_AFTER`, too: a process that KILL could not end, or that a crashed kubelet did not, is gone by then.
//!
//! # What it is not
//!
//! Evidence. A crashed kubelet terminates nothing, nor does a suspended host, and a process that the kernel cannot kill does
//! not exit; and only the host knows whether its watchdog works. So no component releases pods because of self-fencing: it
//! bounds the time in which two could run if a release was wrong.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::{AT_MOST_ONE, at_most_one};

/// From the last renewal to the first TERM: two renewals have failed, and five seconds of retries.
pub const TERM_AFTER: Duration = Duration::from_secs(25);
/// From the last renewal to the last KILL.
pub const KILL_AFTER: Duration = Duration::from_secs(35);
/// After this time without a renewal the node is lost (the node lifecycle controller's grace period).
pub const NODE_LOST_AFTER: Duration = Duration::from_secs(40);
/// From the last renewal to the reset of a host with a watchdog on which not all such pods have exited.
pub const WATCHDOG_RESET_AFTER: Duration = Duration::from_secs(36);
/// The longest timeout of a watchdog.
pub const WATCHDOG_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest error of a clock's rate.
pub const DRIFT_PERCENT: u32 = 5;

/// Which pods a node terminates by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SelfFencing {
    /// Those with the annotation `knarr.io/at-most-one: "true"`.
    #[default]
    Annotated,
    /// All at-most-one pods: also those of StatefulSets, and those with a volume that only one node or pod may use.
    AtMostOne,
}

impl SelfFencing {
    /// Whether the node terminates this pod; `exclusive` says whether it uses a volume that only one node or pod may use.
    pub fn applies_to(self, pod: &Pod, exclusive: bool) -> bool {
        match self {
            SelfFencing::Annotated => {
                let annotations = pod.metadata.annotations.as_ref();
                annotations
                    .and_then(|a| a.get(AT_MOST_ONE))
                    .is_some_and(|v| v == "true")
            }
            SelfFencing::AtMostOne => at_most_one(pod).unwrap_or(exclusive),
        }
    }
}

/// How a node terminates a container when it fences itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminationMode {
    /// TERM, and KILL when the time is over.
    Terminate,
    /// KILL. A container that exits with 0 after TERM would count as completed: the next container of its pod would be
    /// started (SPEC S3), or the pod would succeed.
    Kill,
}

impl TerminationMode {
    /// The mode of the pod's container with this name.
    pub fn of(pod: &Pod, container: &str) -> Self {
        let Some(spec) = &pod.spec else {
            return TerminationMode::Terminate;
        };
        // An init container without a restartPolicy of its own runs to completion.
        let init = spec.init_containers.iter().flatten().map(|c| (c, "Never"));
        let policy = spec.restart_policy.as_deref().unwrap_or("Always");
        let mut all = init.chain(spec.containers.iter().map(|c| (c, policy)));
        match all.find(|(c, _)| c.name == container) {
            Some((c, policy)) if c.restart_policy.as_deref().unwrap_or(policy) != "Always" => {
                TerminationMode::Kill
            }
            _ => TerminationMode::Terminate,
        }
    }
}

/// What a node does with its at-most-one pods now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They may run; decide again after this time.
    Run { check_after: Duration },
    /// They are terminated, with this time until KILL, and none is started.
    Terminate { grace: Duration },
}

/// Decides by the time since the last successful renewal was sent; `None`: there was none.
pub fn decide(since_renewal: Option<Duration>) -> Verdict {
    let Some(since) = since_renewal else {
        return Verdict::Terminate {
            grace: Duration::ZERO,
        };
    };
    match TERM_AFTER.checked_sub(since) {
        Some(rest) if !rest.is_zero() => Verdict::Run { check_after: rest },
        _ => Verdict::Terminate {
            grace: KILL_AFTER.saturating_sub(since),
        },
    }
}

/// Whether an at-most-one container may be started, by the time since this kubelet sent its own last successful renewal;
/// `None`: there was none.
///
/// Renewals that an earlier kubelet recorded do not count, nor does the time since this one started. After a reboot there may
/// be no record, or one from before it; the lease may not have been renewed for longer than [`NODE_LOST_AFTER`] by then.
pub fn may_start(since_own_renewal: Option<Duration>) -> bool {
    matches!(decide(since_own_renewal), Verdict::Run { .. })
}

/// Whether the watchdog may be fed: by the time since the last successful renewal was sent, and by whether all at-most-one
/// pods that it applies to have exited.
pub fn may_feed(since_renewal: Option<Duration>, all_exited: impl FnOnce() -> bool) -> bool {
    since_renewal.is_some_and(|since| since < WATCHDOG_RESET_AFTER - WATCHDOG_TIMEOUT) || all_exited()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn b4_all_are_killed_before_the_node_can_be_lost_however_clocks_drift() {
        // END * (1 + d) < LOST / (1 + d), in whole numbers.
        let with_drift = |d: Duration| d.as_millis() * u128::from(100 + DRIFT_PERCENT);
        let killed_at_the_latest = with_drift(KILL_AFTER) * u128::from(100 + DRIFT_PERCENT);
        let lost_at_the_earliest = NODE_LOST_AFTER.as_millis() * 100 * 100;
        assert!(killed_at_the_latest < lost_at_the_earliest);
        // There is time for TERM, and two renewals, one every ten seconds, may fail.
        assert!(
            KILL_AFTER - TERM_AFTER >= Duration::from_secs(10) && TERM_AFTER > 2 * Duration::from_secs(10)
        );
    }

    #[test]
    fn b4_a_host_with_a_watchdog_is_reset_before_the_node_can_be_lost() {
        let with_drift = WATCHDOG_RESET_AFTER.as_millis()
            * u128::from(100 + DRIFT_PERCENT)
            * u128::from(100 + DRIFT_PERCENT);
        assert!(with_drift < NODE_LOST_AFTER.as_millis() * 100 * 100);
        // Fed until the termination has begun, and again once all have exited.
        assert!(WATCHDOG_RESET_AFTER - WATCHDOG_TIMEOUT > TERM_AFTER && WATCHDOG_RESET_AFTER > KILL_AFTER);
        let seconds = Duration::from_secs;
        for (since, exited, fed) in [
            (Some(seconds(0)), false, true),
            (Some(seconds(25)), false, true),
            (Some(seconds(26)), false, false),
            (Some(seconds(26)), true, true),
            (Some(seconds(900)), true, true),
            (None, false, false),
            (None, true, true),
        ] {
            assert_eq!(may_feed(since, || exited), fed, "{since:?} {exited}");
        }
    }

    #[test]
    fn b4_the_grace_period_never_ends_after_the_last_kill() {
        let seconds = Duration::from_secs;
        for (since, verdict) in [
            (
                Some(seconds(0)),
                Verdict::Run {
                    check_after: TERM_AFTER,
                },
            ),
            (
                Some(seconds(24)),
                Verdict::Run {
                    check_after: seconds(1),
                },
            ),
            (Some(seconds(25)), Verdict::Terminate { grace: seconds(10) }),
            (Some(seconds(33)), Verdict::Terminate { grace: seconds(2) }),
            (Some(seconds(35)), Verdict::Terminate { grace: seconds(0) }),
            (Some(seconds(900)), Verdict::Terminate { grace: seconds(0) }),
            (None, Verdict::Terminate { grace: seconds(0) }),
        ] {
            assert_eq!(decide(since), verdict, "{since:?}");
        }
    }

    #[test]
    fn b4_s3_a_container_that_would_complete_by_exiting_with_0_is_killed() {
        use TerminationMode::{Kill, Terminate};
        for (policy, own, init, main) in [
            ("Always", None, Kill, Terminate),
            ("Always", Some("Always"), Terminate, Terminate),
            ("OnFailure", None, Kill, Kill),
            ("Never", None, Kill, Kill),
            ("Never", Some("Always"), Terminate, Terminate),
            ("Always", Some("Never"), Kill, Kill),
        ] {
            let container = |name: &str| json!({"name": name, "restartPolicy": own});
            let pod = json!({"metadata": {}, "spec": {
                "restartPolicy": policy,
                "initContainers": [container("init")],
                "containers": [container("main")],
            }});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            assert_eq!(TerminationMode::of(&pod, "init"), init, "{policy} {own:?}");
            assert_eq!(TerminationMode::of(&pod, "main"), main, "{policy} {own:?}");
        }
    }

    #[test]
    fn b4_nothing_starts_before_the_kubelets_own_renewal_nor_when_it_is_old() {
        let seconds = Duration::from_secs;
        for (since, starts) in [
            (None, false),
            (Some(seconds(0)), true),
            (Some(seconds(24)), true),
            (Some(seconds(25)), false),
            (Some(seconds(900)), false),
        ] {
            assert_eq!(may_start(since), starts, "{since:?}");
        }
    }

    #[test]
    fn b4_the_pod_its_owner_and_its_volumes_decide_whether_it_is_terminated() {
        let pod = |annotation: &str, set: bool| -> Pod {
            let owners = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "u", "controller": true}]);
            let mut pod = json!({"metadata": {}});
            if set {
                pod["metadata"]["ownerReferences"] = owners;
            }
            if !annotation.is_empty() {
                pod["metadata"]["annotations"] = json!({AT_MOST_ONE: annotation});
            }
            serde_json::from_value(pod).unwrap()
        };
        use SelfFencing::{Annotated, AtMostOne};
        for (mode, annotation, set, exclusive, applies_to) in [
            (Annotated, "", true, true, false),
            (Annotated, "true", false, false, true),
            (AtMostOne, "true", false, false, true),
            (AtMostOne, "", true, false, true),
            (AtMostOne, "", false, true, true),
            (AtMostOne, "", false, false, false),
            (AtMostOne, "false", true, true, false),
        ] {
            let is = mode.applies_to(&pod(annotation, set), exclusive);
            assert_eq!(is, applies_to, "{mode:?} {annotation:?} {set} {exclusive}");
        }
    }
}
