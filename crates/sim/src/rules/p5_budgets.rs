//! P5: a pod that is ready is evicted only by what its budget has left, which is counted before the pod is asked to go; and a
//! budget has left what its own counts leave.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_api::selector::label::Selector;

use crate::world::{Seen, World, disrupted_by, phase_of};

/// A server has seen a budget by then, however far behind it is.
const KNOWN_AFTER: SignedDuration = SignedDuration::from_secs(120);
/// A pod that has been ready for so long is ready for whoever evicts it, whose clock may be off.
const READY_FOR: SignedDuration = SignedDuration::from_secs(60);

fn covers(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
    budget.metadata.namespace == pod.metadata.namespace
        && selector.is_some_and(|s| {
            Selector::from_label_selector(s).is_ok_and(|s| s.matches(pod.metadata.labels.as_ref()))
        })
}

fn is_counted(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let counted = budget.status.as_ref().and_then(|s| s.disrupted_pods.as_ref());
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    counted.is_some_and(|counted| counted.contains_key(name))
}

fn evicted(pod: &Pod, world: &World) -> Result<(), String> {
    let mut conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let ready = conditions.find(|c| c.type_ == "Ready" && c.status == "True");
    let since = ready.and_then(|c| c.last_transition_time.as_ref());
    let is_ready = since.is_some_and(|since| world.now.duration_since(since.0) >= READY_FOR);
    if !is_ready || phase_of(pod) != "Running" {
        return Ok(());
    }
    for (name, (budget, first_seen)) in &world.budgets {
        let is_known = world.now.duration_since(*first_seen) >= KNOWN_AFTER;
        if is_known && covers(budget, pod) && !is_counted(budget, pod) {
            return Err(format!(
                "{} is evicted, and its budget {name} has not counted it",
                pod.metadata.name.as_deref().unwrap_or_default()
            ));
        }
    }
    Ok(())
}

fn counted(before: Option<&PodDisruptionBudget>, after: &PodDisruptionBudget) -> Result<(), String> {
    let Some(status) = &after.status else {
        return Ok(());
    };
    let name = after.metadata.name.as_deref().unwrap_or_default();
    // A status that nobody has computed yet.
    let (Some(allowed), Some(healthy), Some(desired)) = (
        status.disruptions_allowed,
        status.current_healthy,
        status.desired_healthy,
    ) else {
        return Ok(());
    };
    let left = (healthy - desired).max(0);
    if !(0..=left).contains(&allowed) {
        return Err(format!(
            "budget {name} allows {allowed} disruptions, {left} at the most are left"
        ));
    }
    let names = |of: &PodDisruptionBudget| {
        let pods = of.status.iter().flat_map(|s| s.disrupted_pods.iter().flatten());
        pods.map(|(name, _)| name.clone())
            .collect::<std::collections::BTreeSet<_>>()
    };
    let Some(before) = before else { return Ok(()) };
    let had = before
        .status
        .as_ref()
        .and_then(|s| s.disruptions_allowed)
        .unwrap_or_default();
    let (old, new) = (names(before), names(after));
    let added = i32::try_from(new.difference(&old).count()).unwrap_or(i32::MAX);
    match added > 0 && allowed > had.saturating_sub(added) {
        true => Err(format!(
            "budget {name} counts {added} more evictions, and allows {allowed} of {had} still"
        )),
        false => Ok(()),
    }
}

pub(crate) fn check(seen: &Seen<'_>, world: &World) -> Result<(), String> {
    match seen {
        Seen::PodWritten { before, after, .. } => {
            let is_evicted = |pod: &Pod| disrupted_by(pod) == Some("EvictionByEvictionAPI");
            match is_evicted(after) && !before.is_some_and(is_evicted) {
                true => evicted(after, world),
                false => Ok(()),
            }
        }
        Seen::BudgetWritten { before, after } => counted(*before, after),
        _ => Ok(()),
    }
}
