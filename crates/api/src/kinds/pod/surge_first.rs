//! Surge-first eviction (SPEC B6): how a pod opts in, how a requested eviction is recorded on it, and for how long the record counts.
//!
//! The API server records the request as a condition of the pod: `pods/status` is not writable by the roles of users, and the kubelet keeps
//! conditions of others. The record is never removed: what it means follows from its age, so that nothing has to be written when a
//! drain is given up.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_apimachinery::time::seconds;

/// Annotation of a pod: with the value [`SURGE_FIRST`] its eviction waits for a replacement.
pub const EVICTION: &str = "knarr.io/eviction";
/// The only value of [`EVICTION`].
pub const SURGE_FIRST: &str = "SurgeFirst";
/// Condition of a pod: its eviction was requested at `lastTransitionTime`.
pub const EVICTION_REQUESTED: &str = "knarr.io/EvictionRequested";

/// How long an eviction waits for the replacement: as long as a Deployment's rollout may be without progress
/// (the default of `progressDeadlineSeconds`).
pub const WINDOW: SignedDuration = SignedDuration::from_secs(600);
/// How much longer the ReplicaSet keeps the replacement. An eviction that is granted at the window's end is in the controller's cache by then,
/// also if their clocks differ; otherwise it could delete the replacement of a pod that has just been evicted.
const MARGIN: SignedDuration = SignedDuration::from_secs(60);
/// From the record to the time when another eviction may request a replacement again: a workload whose replacement does not become Ready
/// has one more pod for at most half of the time, however often its eviction is requested.
const RETRY: SignedDuration = SignedDuration::from_secs(1200);
/// How far in the future a record may be: the clocks of two servers differ. A record beyond is ignored, so that none lasts for longer.
const SKEW: SignedDuration = SignedDuration::from_secs(60);

/// What part of a ReplicaSet's pods is replaced at the same time, rounded up: a Deployment's default `maxSurge`.
const LIMIT_PERCENT: usize = 25;

/// What a recorded request means at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SurgeWindow {
    /// No request is recorded, or one that is so old that another may follow.
    Unrequested,
    /// The eviction waits for the replacement.
    Open,
    /// There was no replacement in time: PodDisruptionBudgets alone decide.
    Closed,
}

/// Whether the pod has opted in.
pub fn is_surge_first(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations
        .and_then(|a| a.get(EVICTION))
        .is_some_and(|value| value == SURGE_FIRST)
}

/// When the eviction of a pod that has opted in was requested.
pub fn eviction_requested(pod: &Pod) -> Option<Timestamp> {
    if !is_surge_first(pod) {
        return None;
    }
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let requested = conditions
        .iter()
        .find(|c| c.type_ == EVICTION_REQUESTED && c.status == "True")?;
    requested.last_transition_time.as_ref().map(|t| t.0)
}

/// What the pod's record means now.
pub fn surge_window(pod: &Pod, now: Timestamp) -> SurgeWindow {
    let Some(requested) = eviction_requested(pod) else {
        return SurgeWindow::Unrequested;
    };
    let age = now.duration_since(requested);
    if age < -SKEW || age >= RETRY {
        SurgeWindow::Unrequested
    } else if age < WINDOW {
        SurgeWindow::Open
    } else {
        SurgeWindow::Closed
    }
}

/// For how much longer the pod's ReplicaSet has one more pod for it; `None` if it has none.
pub fn surge_remaining(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let age = now.duration_since(eviction_requested(pod)?);
    if age < -SKEW {
        return None;
    }
    let rest = Duration::try_from(WINDOW + MARGIN - age).ok()?;
    (!rest.is_zero()).then_some(rest)
}

/// How many pods of a ReplicaSet of this size are replaced at the same time, and how many pods it has above its size at most.
pub fn surge_limit(replicas: i32) -> usize {
    let replicas = usize::try_from(replicas).unwrap_or(0);
    replicas.saturating_mul(LIMIT_PERCENT).div_ceil(100)
}

/// The pods that are replaced first, of those for which the ReplicaSet has one more pod: the oldest requests. `pods` are active and of one
/// ReplicaSet of this size.
pub fn replaced_first<'a>(
    pods: impl Iterator<Item = &'a Pod>,
    replicas: i32,
    now: Timestamp,
) -> Vec<&'a Pod> {
    let mut requested: Vec<&Pod> = pods.filter(|p| surge_remaining(p, now).is_some()).collect();
    requested.sort_by_key(|p| (eviction_requested(p), p.metadata.uid.as_deref()));
    requested.truncate(surge_limit(replicas));
    requested
}

/// Records a request at `now`, unless one counts already.
pub fn record_eviction_request(pod: &mut Pod, now: Timestamp) {
    if surge_window(pod, now) != SurgeWindow::Unrequested {
        return;
    }
    let conditions = pod
        .status
        .get_or_insert_default()
        .conditions
        .get_or_insert_default();
    conditions.retain(|c| c.type_ != EVICTION_REQUESTED);
    conditions.push(PodCondition {
        type_: EVICTION_REQUESTED.into(),
        status: "True".into(),
        reason: Some(SURGE_FIRST.into()),
        message: Some(format!(
            "The eviction waits for a replacement for {} s at most",
            WINDOW.as_secs()
        )),
        last_transition_time: Some(seconds(now)),
        ..PodCondition::default()
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn pod(name: &str, annotation: &str) -> Pod {
        let pod = json!({"metadata": {"name": name, "uid": name, "annotations": {EVICTION: annotation}}});
        serde_json::from_value(pod).unwrap()
    }

    fn requested(name: &str, second: i64) -> Pod {
        let mut pod = pod(name, SURGE_FIRST);
        record_eviction_request(&mut pod, at(second));
        pod
    }

    #[test]
    fn b6_a_request_counts_for_a_bounded_time_and_can_be_repeated_after_a_pause() {
        use SurgeWindow::{Closed, Open, Unrequested};
        for (age, window, held) in [
            (-61, Unrequested, None),
            (-60, Open, Some(720)),
            (0, Open, Some(660)),
            (599, Open, Some(61)),
            (600, Closed, Some(60)),
            (659, Closed, Some(1)),
            (660, Closed, None),
            (1199, Closed, None),
            (1200, Unrequested, None),
        ] {
            let pod = requested("p", 0);
            assert_eq!(surge_window(&pod, at(age)), window, "{age}");
            let rest = surge_remaining(&pod, at(age));
            assert_eq!(rest, held.map(Duration::from_secs), "{age}");
        }
    }

    #[test]
    fn b6_without_the_annotation_a_recorded_request_means_nothing() {
        let mut pod = requested("p", 0);
        for value in ["", "surgeFirst", "true"] {
            pod.metadata.annotations = Some([(EVICTION.to_string(), value.to_string())].into());
            assert_eq!(surge_window(&pod, at(1)), SurgeWindow::Unrequested, "{value}");
            assert_eq!(surge_remaining(&pod, at(1)), None, "{value}");
        }
        pod.metadata.annotations = None;
        assert_eq!(eviction_requested(&pod), None);
    }

    #[test]
    fn b6_a_request_that_counts_is_not_renewed() {
        let mut pod = requested("p", 0);
        for (second, expected) in [(599, 0), (1199, 0), (1200, 1200)] {
            record_eviction_request(&mut pod, at(second));
            assert_eq!(eviction_requested(&pod), Some(at(expected)), "{second}");
        }
        let conditions = pod.status.unwrap().conditions.unwrap();
        assert_eq!(conditions.len(), 1, "{conditions:?}");
    }

    #[test]
    fn b6_a_quarter_of_the_pods_is_replaced_at_once_and_the_oldest_requests_are_first() {
        for (replicas, limit) in [
            (-1, 0),
            (0, 0),
            (1, 1),
            (4, 1),
            (5, 2),
            (8, 2),
            (9, 3),
            (1000, 250),
        ] {
            assert_eq!(surge_limit(replicas), limit, "{replicas}");
        }
        let pods = [
            requested("later", 5),
            requested("second-b", 3),
            requested("second-a", 3),
            pod("unrequested", SURGE_FIRST),
            requested("first", 1),
        ];
        let names = |replicas, now| -> Vec<&str> {
            let first = replaced_first(pods.iter(), replicas, at(now));
            first.iter().filter_map(|p| p.metadata.name.as_deref()).collect()
        };
        assert_eq!(names(8, 10), ["first", "second-a"]);
        assert_eq!(names(100, 10), ["first", "second-a", "second-b", "later"]);
        assert_eq!(names(8, 663), ["later"], "those of the others have expired");
        assert_eq!(names(0, 10), [""; 0]);
    }
}
