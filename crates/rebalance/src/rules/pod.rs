//! Rules on one pod and its node, and on the pod alone: taints, node affinity, lifetime, restarts, failures.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_scheduler::NodeInfo;
use knarr_scheduler::plugins::node_affinity::matches_term;
use knarr_scheduler::plugins::taint_toleration::tolerates;
use knarr_scheduler::pod_info::PodClass;

use crate::policy::{ConditionFilter, FailedPods, NodeTaints, PodLifeTime, TooManyRestarts};

/// How many taints of the node the strategy counts and the pod does not tolerate.
pub(crate) fn untolerated(policy: &NodeTaints, class: &PodClass, node: &NodeInfo) -> u64 {
    let taints = node.taints().iter();
    let counts = |taint: &&Taint| {
        let effect = match taint.effect.as_str() {
            "NoSchedule" => true,
            "PreferNoSchedule" => policy.include_prefer_no_schedule,
            _ => false,
        };
        let value = taint.value.as_deref().filter(|v| !v.is_empty());
        let named = |names: &BTreeSet<String>| {
            names.contains(&taint.key)
                || value.is_some_and(|value| names.contains(&format!("{}={value}", taint.key)))
        };
        effect && policy.included.as_ref().is_none_or(named) && !named(&policy.excluded)
    };
    let untolerated = |taint: &&Taint| !class.tolerations().iter().any(|t| tolerates(t, taint));
    let number = taints.filter(counts).filter(untolerated).count();
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// The weights of the preferred terms of node affinity that the node does not match.
pub(crate) fn missed_weight(class: &PodClass, node: &NodeInfo) -> u64 {
    let affinity = class.node_affinity();
    let terms = affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
    let missed = terms
        .into_iter()
        .flatten()
        .filter(|term| !matches_term(&term.preference, node));
    missed.map(|term| u64::try_from(term.weight).unwrap_or(0)).sum()
}

fn seconds_since(time: Option<&Time>, now: Timestamp) -> Option<i64> {
    Some(now.duration_since(time?.0).as_secs())
}

fn all(
    status: &PodStatus,
    init_containers: bool,
    ephemeral_containers: bool,
) -> impl Iterator<Item = &ContainerStatus> {
    let main = status.container_statuses.iter().flatten();
    let init = status.init_container_statuses.iter().flatten();
    let ephemeral = status.ephemeral_container_statuses.iter().flatten();
    main.chain(init.filter(move |_| init_containers))
        .chain(ephemeral.filter(move |_| ephemeral_containers))
}

fn waiting_reason(status: &ContainerStatus) -> Option<&str> {
    status.state.as_ref()?.waiting.as_ref()?.reason.as_deref()
}

fn terminated_reason(status: &ContainerStatus) -> Option<&str> {
    status.state.as_ref()?.terminated.as_ref()?.reason.as_deref()
}

fn exit_code(status: &ContainerStatus) -> Option<i32> {
    Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)
}

fn has_phase(status: &PodStatus, states: &BTreeSet<String>) -> bool {
    let named = |text: Option<&String>| text.is_some_and(|text| states.contains(text));
    named(status.phase.as_ref()) || named(status.reason.as_ref())
}

impl PodLifeTime {
    pub(crate) fn applies(&self, pod: &Pod, now: Timestamp) -> bool {
        let age = seconds_since(pod.metadata.creation_timestamp.as_ref(), now);
        if self
            .max_seconds
            .is_some_and(|max| age.is_none_or(|age| age <= max))
        {
            return false;
        }
        let empty = PodStatus::default();
        let status = pod.status.as_ref().unwrap_or(&empty);
        let named = |reason: Option<&str>| reason.is_some_and(|reason| self.states.contains(reason));
        let mut states = all(status, self.init_containers, self.ephemeral_containers);
        let in_state = self.states.is_empty()
            || has_phase(status, &self.states)
            || states.any(|s| named(waiting_reason(s)) || named(terminated_reason(s)));
        let conditions = status.conditions.iter().flatten();
        let in_condition = self.conditions.is_empty()
            || conditions.into_iter().any(|condition| {
                let matches = |filter: &ConditionFilter| {
                    let is = |wanted: &str, has: &str| wanted.is_empty() || wanted == has;
                    let age = seconds_since(condition.last_transition_time.as_ref(), now);
                    is(&filter.condition_type, &condition.type_)
                        && is(&filter.status, &condition.status)
                        && is(&filter.reason, condition.reason.as_deref().unwrap_or_default())
                        && filter
                            .min_seconds_since_transition
                            .is_none_or(|min| age.is_some_and(|age| age >= min))
                };
                self.conditions.iter().any(matches)
            });
        let mut codes = all(status, self.init_containers, false).filter_map(exit_code);
        in_state
            && in_condition
            && (self.exit_codes.is_empty() || codes.any(|code| self.exit_codes.contains(&code)))
    }
}

impl TooManyRestarts {
    pub(crate) fn applies(&self, pod: &Pod) -> bool {
        let Some(status) = &pod.status else { return false };
        let restarts = all(status, self.init_containers, false).map(|s| i64::from(s.restart_count));
        if restarts.sum::<i64>() < self.threshold {
            return false;
        }
        let named = |reason: Option<&str>| reason.is_some_and(|reason| self.states.contains(reason));
        let phase = status.phase.as_deref();
        self.states.is_empty()
            || named(phase)
            || all(status, self.init_containers, false).any(|s| named(waiting_reason(s)))
    }
}

impl FailedPods {
    pub(crate) fn applies(&self, pod: &Pod, now: Timestamp) -> bool {
        let Some(status) = &pod.status else { return false };
        if status.phase.as_deref() != Some("Failed") {
            return false;
        }
        let age = seconds_since(pod.metadata.creation_timestamp.as_ref(), now);
        if self
            .min_seconds
            .is_some_and(|min| age.is_none_or(|age| age < min))
        {
            return false;
        }
        let named = |reason: Option<&str>| reason.is_some_and(|reason| self.reasons.contains(reason));
        let reasons = self.reasons.is_empty()
            || named(status.reason.as_deref())
            || all(status, self.init_containers, false)
                .any(|s| named(waiting_reason(s)) || named(terminated_reason(s)));
        let mut codes = all(status, self.init_containers, false).filter_map(exit_code);
        reasons && (self.exit_codes.is_empty() || codes.any(|code| self.exit_codes.contains(&code)))
    }
}
