//! The condition DisruptionTarget of pods that were not deleted after all (KEP-3329): a component that sets it deletes the pod next, and may stop in
//! between. After two minutes the condition becomes False.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::{DISRUPTION_TARGET, condition, is_terminal};
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey};
use knarr_apimachinery::time::seconds;

use super::DELETION_TIMEOUT;
use crate::action::Action;
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::pod::is_deleting;

/// A kubelet may set its condition long before the pod is deleted; the pod terminates all the same.
const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";

/// See the module.
pub struct StaleDisruptions;

/// Since when a pod that is neither terminating nor terminal has the condition.
fn disruption_target(pod: &Pod) -> Option<&PodCondition> {
    let target = condition(pod, DISRUPTION_TARGET).filter(|c| c.status == "True");
    target.filter(|c| {
        c.reason.as_deref() != Some(TERMINATION_BY_KUBELET) && !is_deleting(pod) && !is_terminal(pod)
    })
}

fn time_left(target: &PodCondition, now: Timestamp) -> SignedDuration {
    let since = target.last_transition_time.as_ref();
    since.map_or(SignedDuration::ZERO, |since| {
        DELETION_TIMEOUT - now.duration_since(since.0)
    })
}

impl Controller for StaleDisruptions {
    fn name(&self) -> &'static str {
        "controllermanager"
    }

    fn queue(&self) -> &'static str {
        "stale_pod_disruption"
    }

    fn account(&self) -> &'static str {
        "disruption-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::POD]
    }

    fn keys(&self, _view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        let pod = changed.new.filter(|object| {
            object
                .get::<Pod>()
                .is_some_and(|pod| disruption_target(pod).is_some())
        });
        pod.map(ObjectKey::of).into_iter().collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let key = context.key;
        let pod = context.view.get_as::<Pod>(&key.namespace, &key.name);
        let Some((pod, target)) = pod
            .as_deref()
            .and_then(|pod| disruption_target(pod).map(|t| (pod, t)))
        else {
            return Vec::new();
        };
        match Duration::try_from(time_left(target, context.now)) {
            Ok(left) if !left.is_zero() => vec![Action::RequeueAfter(left)],
            _ => vec![Action::update_status(without_disruption(pod, context.now))],
        }
    }
}

fn without_disruption(pod: &Pod, now: Timestamp) -> Pod {
    let mut changed = pod.clone();
    let conditions = changed.status.as_mut().and_then(|s| s.conditions.as_mut());
    for target in conditions
        .into_iter()
        .flatten()
        .filter(|c| c.type_ == DISRUPTION_TARGET)
    {
        *target = PodCondition {
            type_: DISRUPTION_TARGET.into(),
            status: "False".into(),
            last_transition_time: Some(seconds(now)),
            observed_generation: pod.metadata.generation,
            ..PodCondition::default()
        };
    }
    changed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::world::{World, at, lines, updated};

    fn world(reason: &str, phase: &str, is_deleting: bool) -> World {
        let mut world = World::default();
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "a", "name": "p", "generation": 3},
            "status": {"phase": phase, "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "m", "lastTransitionTime": seconds(at(100))},
            ]},
        }))
        .unwrap();
        pod.metadata.deletion_timestamp = is_deleting.then(|| seconds(at(100)));
        world.put(pod);
        world
    }

    #[test]
    fn b5_a_disruption_after_which_the_pod_is_not_deleted_is_reset_after_two_minutes() {
        let world = world("PreemptionByScheduler", "Running", false);
        let sync = |second| world.run(&StaleDisruptions, ("a", "p"), at(second));
        assert_eq!(lines(&sync(130)), ["requeue after 90s"]);
        let actions = sync(220);
        let pod = updated::<Pod>(&actions, "status").unwrap();
        let target = condition(&pod, "DisruptionTarget").unwrap();
        assert_eq!(
            serde_json::to_value(target).unwrap(),
            json!({"type": "DisruptionTarget", "status": "False", "lastTransitionTime": seconds(at(220)), "observedGeneration": 3})
        );
        assert_eq!(condition(&pod, "Ready").unwrap().status, "True");
    }

    #[test]
    fn b5_pods_that_terminate_keep_the_condition() {
        for (reason, phase, is_deleting) in [
            ("PreemptionByScheduler", "Running", true),
            ("PreemptionByScheduler", "Failed", false),
            (TERMINATION_BY_KUBELET, "Running", false),
        ] {
            let world = world(reason, phase, is_deleting);
            let actions = world.run(&StaleDisruptions, ("a", "p"), at(1000));
            assert!(actions.is_empty(), "{reason} {phase}");
        }
    }
}
