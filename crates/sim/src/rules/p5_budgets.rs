//! P5: a ready pod is evicted only if its PodDisruptionBudget allows it, which is counted before the pod is deleted;
//! and a budget allows what its own counts say.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::ready_since;
use knarr_apimachinery::labels::Selector;

use crate::finding::Finding;
use crate::world::{Observation, World, disrupted_by, phase_of};

/// A server has seen a budget by then, however far behind it is.
const KNOWN_AFTER: SignedDuration = SignedDuration::from_secs(120);
/// A pod that has been ready for so long is ready for every component that evicts it, whose clock may be off.
const READY_FOR: SignedDuration = SignedDuration::from_secs(60);

/// An eviction is counted no longer before the pod is deleted. Meanwhile a controller whose clock is ahead may take the count for one that
/// has timed out, as upstream's does.
const COUNTED_WITHIN: SignedDuration = SignedDuration::from_secs(60);

fn covers(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
    budget.metadata.namespace == pod.metadata.namespace
        && selector.is_some_and(|s| {
            Selector::from_label_selector(s).is_ok_and(|s| s.matches(pod.metadata.labels.as_ref()))
        })
}

fn is_counted(name: &str, pod: &Pod, world: &World) -> bool {
    let pod = pod.metadata.name.clone().unwrap_or_default();
    let at = world.disruptions.get(&(name.to_string(), pod));
    at.is_some_and(|at| world.now.duration_since(*at) < COUNTED_WITHIN)
}

fn evicted(pod: &Pod, world: &World) -> Result<(), Finding> {
    let is_ready = ready_since(pod).is_some_and(|since| world.now.duration_since(since) >= READY_FOR);
    if !is_ready || phase_of(pod) != "Running" {
        return Ok(());
    }
    for (name, (budget, first_seen)) in &world.budgets {
        let is_known = world.now.duration_since(*first_seen) >= KNOWN_AFTER;
        if is_known && covers(budget, pod) && !is_counted(name, pod, world) {
            return Err(Finding(format!(
                "{} is evicted, and its budget {name} has not counted it",
                pod.metadata.name.as_deref().unwrap_or_default()
            )));
        }
    }
    Ok(())
}

fn counted(before: Option<&PodDisruptionBudget>, after: &PodDisruptionBudget) -> Result<(), Finding> {
    let Some(status) = &after.status else {
        return Ok(());
    };
    let name = after.metadata.name.as_deref().unwrap_or_default();
    // No status has been computed yet.
    let (Some(allowed), Some(healthy), Some(desired)) = (
        status.disruptions_allowed,
        status.current_healthy,
        status.desired_healthy,
    ) else {
        return Ok(());
    };
    let left = (healthy - desired).max(0);
    if !(0..=left).contains(&allowed) {
        return Err(Finding(format!(
            "budget {name} allows {allowed} disruptions, {left} at the most are left"
        )));
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
        true => Err(Finding(format!(
            "budget {name} counts {added} more evictions, and allows {allowed} of {had} still"
        ))),
        false => Ok(()),
    }
}

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    match seen {
        Observation::PodWritten { before, after, .. } => {
            let is_evicted = |pod: &Pod| disrupted_by(pod) == Some("EvictionByEvictionAPI");
            match is_evicted(after) && !before.is_some_and(is_evicted) {
                true => evicted(after, world),
                false => Ok(()),
            }
        }
        Observation::BudgetWritten { before, after } => counted(*before, after),
        _ => Ok(()),
    }
}
