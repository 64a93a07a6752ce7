//! B6: a preemption for a pod whose budgets are hard evicts no pod whose PodDisruptionBudget allows no disruption.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use super::placed::is_calm;
use crate::finding::Finding;
use crate::placement::{GUARDED, HARD, KNOWN_AFTER, NAMESPACE, is_of};
use crate::world::{Life, Observation, World, disrupted_by};

/// As for P4.
const DECIDED_WITHIN: SignedDuration = SignedDuration::from_secs(60);

fn priority(pod: &Pod) -> i32 {
    let spec = pod.spec.as_ref();
    spec.and_then(|s| s.priority).unwrap_or_default()
}

fn is_hard(pod: &Pod) -> bool {
    let class = pod.spec.as_ref().and_then(|s| s.priority_class_name.as_deref());
    class == Some(HARD)
}

/// Whether it may have preempted others, with budgets as best effort.
fn is_soft_preemptor(life: &Life, victim: i32, world: &World) -> bool {
    let lately = |at| world.now.duration_since(at) <= DECIDED_WITHIN;
    let waited = life.bound_at.is_none_or(lately) && life.removed_at.is_none_or(lately);
    waited && priority(&life.pod) > victim && !is_hard(&life.pod)
}

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::PodWritten { before, after, .. } = seen else {
        return Ok(());
    };
    let is_preempted = |pod: &Pod| disrupted_by(pod) == Some("PreemptionByScheduler");
    if !is_of(after, GUARDED) || !is_preempted(after) || before.is_some_and(is_preempted) {
        return Ok(());
    }
    let Some((budget, first_seen)) = world.budgets.get(&format!("{NAMESPACE}/{GUARDED}")) else {
        return Ok(());
    };
    let allowed = budget.status.as_ref().and_then(|s| s.disruptions_allowed);
    // The scheduler reads budgets from its watch. This one has allowed nothing since it was counted first.
    let is_known = world.now.duration_since(*first_seen) >= KNOWN_AFTER && is_calm(world);
    let is_soft = world
        .pods
        .values()
        .any(|life| is_soft_preemptor(life, priority(after), world));
    match is_known && allowed == Some(0) && !is_soft {
        true => Err(Finding(format!(
            "{} is preempted, its budget allows no disruption, and all preemptors have hard budgets",
            after.metadata.name.as_deref().unwrap_or_default()
        ))),
        false => Ok(()),
    }
}
