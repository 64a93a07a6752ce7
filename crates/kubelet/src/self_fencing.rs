//! When a node that cannot renew its lease ends its at-most-one pods by itself (SPEC B4).
//!
//! # The arithmetic
//!
//! All that others know of a node is when its lease last moved. Let `t` be the moment, by this node's clock, at which it
//! sent the last renewal that was answered: the lease moved at `t` or later. The node begins to end its pods at
//! `t` + [`BEGIN`] and lets no process of theirs live past `t` + [`END`]. Others take the node for lost when the lease has
//! not moved for 40 s by their clock ([`LOST`]), and nothing of it is released before that: a fencing policy begins
//! then at the earliest, and a user who forces it looks at a node that is lost.
//!
//! Clocks drift. If no clock that counts seconds is wrong by more than [`DRIFT_PERCENT`] (quartz is wrong by a hundredth
//! of a percent), the node's end comes at the latest `END` · (1 + d) after `t`, and others' 40 s pass at the
//! earliest in `LOST` / (1 + d). The first is the smaller one, which a test checks.
//!
//! # The watchdog
//!
//! Where the machine has one ([`WATCHDOG`]: it resets the machine so long after it was last fed), it is fed until
//! `t` + [`RESET`] − `WATCHDOG`, which is after `BEGIN`; later only when all such pods are seen to have ended. Between
//! `END`, when the last KILL is sent, and `RESET` there is time to see that. So the machine stands at `t` + `RESET` at the latest,
//! and `RESET` · (1 + d)² is smaller than `LOST`, too: what KILL could not end, or a kubelet that died did not, has
//! ended by then.
//!
//! # What it is not
//!
//! Evidence. A kubelet that has died ends nothing, a machine that stands still neither, nor does a process end that the
//! kernel cannot kill; and whether a watchdog does what it should only its machine knows. So nobody releases pods because of it: it makes the time short in which two might
//! run if somebody was wrong.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::{AT_MOST_ONE, at_most_one};

/// From the last renewal to the first TERM: two renewals have failed, and five seconds of trying again.
pub const BEGIN: Duration = Duration::from_secs(25);
/// From the last renewal to the last KILL.
pub const END: Duration = Duration::from_secs(35);
/// What others wait for at the least (the node controller's grace period).
pub const LOST: Duration = Duration::from_secs(40);
/// From the last renewal to the reset of a machine with a watchdog on which not all has ended.
pub const RESET: Duration = Duration::from_secs(36);
/// How long a watchdog may wait for food, at the most.
pub const WATCHDOG: Duration = Duration::from_secs(10);
/// How wrong any clock may count.
pub const DRIFT_PERCENT: u32 = 5;

/// Which pods a node ends by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SelfFencing {
    /// Those whose annotation `knarr.io/at-most-one` says `true`: what their users asked for.
    #[default]
    Annotated,
    /// All that must not run twice: those of StatefulSets and users of volumes for one node, too.
    AtMostOne,
}

impl SelfFencing {
    /// Whether the node ends this pod; `exclusive` is whether it uses a volume that is for one node or pod.
    pub fn ends(self, pod: &Pod, exclusive: bool) -> bool {
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

/// How a node that is cut off ends a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// TERM, and KILL when there is no time left.
    Terminate,
    /// KILL. A container that answers TERM with exit code 0 would be taken for done: the next container of its pod would
    /// be started (SPEC S3), or the pod would have succeeded.
    Kill,
}

impl Ending {
    /// Of this container, which a pod of a node has.
    pub fn of(pod: &Pod, container: &str) -> Self {
        let Some(spec) = &pod.spec else {
            return Ending::Terminate;
        };
        // An init container that says nothing else runs to its end.
        let init = spec.init_containers.iter().flatten().map(|c| (c, "Never"));
        let policy = spec.restart_policy.as_deref().unwrap_or("Always");
        let mut all = init.chain(spec.containers.iter().map(|c| (c, policy)));
        match all.find(|(c, _)| c.name == container) {
            Some((c, policy)) if c.restart_policy.as_deref().unwrap_or(policy) != "Always" => Ending::Kill,
            _ => Ending::Terminate,
        }
    }
}

/// What a node may do about such pods now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Run them, and look again after this time.
    Run { look_after: Duration },
    /// End them, with this much time before KILL, and start none.
    End { grace: Duration },
}

/// By the time since the last answered renewal was sent; `None`: there has been none.
pub fn decide(since_renewal: Option<Duration>) -> Verdict {
    let Some(since) = since_renewal else {
        return Verdict::End {
            grace: Duration::ZERO,
        };
    };
    match BEGIN.checked_sub(since) {
        Some(rest) if !rest.is_zero() => Verdict::Run { look_after: rest },
        _ => Verdict::End {
            grace: END.saturating_sub(since),
        },
    }
}

/// Whether an at-most-one container may be started, by the time since the kubelet that starts it sent its own last renewal that
/// was answered; `None`: there has been none.
///
/// What an earlier kubelet wrote down does not count, nor does the time since this one was started. After a reboot there may be
/// nothing, or what was written before it; the lease may not have moved for longer than [`LOST`] by then.
pub fn may_start(since_own_renewal: Option<Duration>) -> bool {
    matches!(decide(since_own_renewal), Verdict::Run { .. })
}

/// Whether the watchdog may be fed: by the time since the last answered renewal was sent, and by whether all that must not
/// run twice has ended.
pub fn may_feed(since_renewal: Option<Duration>, all_ended: impl FnOnce() -> bool) -> bool {
    since_renewal.is_some_and(|since| since < RESET - WATCHDOG) || all_ended()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn b4_all_have_ended_before_anybody_may_take_the_node_for_lost_however_clocks_drift() {
        // END * (1 + d) < LOST / (1 + d), in whole numbers.
        let with_drift = |d: Duration| d.as_millis() * u128::from(100 + DRIFT_PERCENT);
        let ended_at_the_latest = with_drift(END) * u128::from(100 + DRIFT_PERCENT);
        let lost_at_the_earliest = LOST.as_millis() * 100 * 100;
        assert!(ended_at_the_latest < lost_at_the_earliest);
        // Time for TERM is left, and a lease that is renewed every ten seconds may miss twice.
        assert!(END - BEGIN >= Duration::from_secs(10) && BEGIN > 2 * Duration::from_secs(10));
    }

    #[test]
    fn b4_a_machine_with_a_watchdog_stands_before_anybody_may_take_it_for_lost() {
        let with_drift =
            RESET.as_millis() * u128::from(100 + DRIFT_PERCENT) * u128::from(100 + DRIFT_PERCENT);
        assert!(with_drift < LOST.as_millis() * 100 * 100);
        // Fed until the end has begun, and again once it is seen to be over.
        assert!(RESET - WATCHDOG > BEGIN && RESET > END);
        let seconds = Duration::from_secs;
        for (since, ended, fed) in [
            (Some(seconds(0)), false, true),
            (Some(seconds(25)), false, true),
            (Some(seconds(26)), false, false),
            (Some(seconds(26)), true, true),
            (Some(seconds(900)), true, true),
            (None, false, false),
            (None, true, true),
        ] {
            assert_eq!(may_feed(since, || ended), fed, "{since:?} {ended}");
        }
    }

    #[test]
    fn b4_grace_never_reaches_past_the_end() {
        let seconds = Duration::from_secs;
        for (since, verdict) in [
            (Some(seconds(0)), Verdict::Run { look_after: BEGIN }),
            (
                Some(seconds(24)),
                Verdict::Run {
                    look_after: seconds(1),
                },
            ),
            (Some(seconds(25)), Verdict::End { grace: seconds(10) }),
            (Some(seconds(33)), Verdict::End { grace: seconds(2) }),
            (Some(seconds(35)), Verdict::End { grace: seconds(0) }),
            (Some(seconds(900)), Verdict::End { grace: seconds(0) }),
            (None, Verdict::End { grace: seconds(0) }),
        ] {
            assert_eq!(decide(since), verdict, "{since:?}");
        }
    }

    #[test]
    fn b4_s3_what_would_be_taken_for_done_if_it_exited_with_0_is_killed() {
        use Ending::{Kill, Terminate};
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
            assert_eq!(Ending::of(&pod, "init"), init, "{policy} {own:?}");
            assert_eq!(Ending::of(&pod, "main"), main, "{policy} {own:?}");
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
    fn b4_who_is_ended_is_said_by_the_pod_its_set_and_its_volumes() {
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
        for (mode, annotation, set, exclusive, ends) in [
            (Annotated, "", true, true, false),
            (Annotated, "true", false, false, true),
            (AtMostOne, "true", false, false, true),
            (AtMostOne, "", true, false, true),
            (AtMostOne, "", false, true, true),
            (AtMostOne, "", false, false, false),
            (AtMostOne, "false", true, true, false),
        ] {
            let is = mode.ends(&pod(annotation, set), exclusive);
            assert_eq!(is, ends, "{mode:?} {annotation:?} {set} {exclusive}");
        }
    }
}
