//! The conditions of a pod.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::DISRUPTION_TARGET;
use knarr_apimachinery::time::seconds;

use crate::eviction::TERMINATION_BY_KUBELET;
use crate::pod::condition::ConditionValue;
use crate::pod::{Pod, PodPhase, Role};

/// The conditions that the kubelet owns; all others are kept as other components wrote them.
const OWN_CONDITIONS: [&str; 5] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
];

impl Pod {
    pub(super) fn conditions(
        &self,
        init: &[ContainerStatus],
        apps: &[ContainerStatus],
        phase: PodPhase,
        now: Timestamp,
    ) -> Vec<PodCondition> {
        let sandbox = self.sandboxes.is_ready();
        let containers_ready = self.containers_ready(init, apps, phase);
        let ready = if containers_ready.0 {
            self.gates_ready()
        } else {
            containers_ready.clone()
        };
        let values = [
            (sandbox, None, None),
            self.initialized_condition(init, apps, phase),
            ready,
            containers_ready,
            (true, None, None),
        ];
        let known = self.status.last.conditions.iter().flatten();
        let known: Vec<&PodCondition> = known
            .chain(
                self.object
                    .status()
                    .into_iter()
                    .flat_map(|s| s.conditions.iter().flatten()),
            )
            .collect();
        let mut conditions = Vec::new();
        let passing = self
            .resize_conditions()
            .into_iter()
            .map(|(type_, reason, message)| (type_, (true, reason, message)));
        let passing = passing.chain(self.restart_all_condition(phase));
        for (type_, (good, reason, message)) in OWN_CONDITIONS.into_iter().zip(values).chain(passing) {
            let status = if good { "True" } else { "False" };
            let before = known.iter().find(|c| c.type_ == type_);
            let flipped = before.is_none_or(|c| c.status != status);
            conditions.push(PodCondition {
                type_: type_.into(),
                status: status.into(),
                reason,
                message,
                last_probe_time: None,
                last_transition_time: match before {
                    Some(c) if !flipped => c.last_transition_time.clone(),
                    _ => Some(seconds(now)),
                },
                observed_generation: self.object.generation(),
            });
        }
        conditions
    }

    pub(super) fn disruption_target(&self, now: Timestamp) -> Option<PodCondition> {
        let message = self.eviction.requested()?.disruption.clone()?;
        let known = self
            .status
            .last
            .conditions
            .iter()
            .flatten()
            .find(|c| c.type_ == DISRUPTION_TARGET);
        Some(PodCondition {
            type_: DISRUPTION_TARGET.into(),
            status: "True".into(),
            reason: Some(TERMINATION_BY_KUBELET.into()),
            message: Some(message),
            last_probe_time: None,
            last_transition_time: known.map_or(Some(seconds(now)), |c| c.last_transition_time.clone()),
            observed_generation: self.object.generation(),
        })
    }

    fn containers_ready(
        &self,
        init: &[ContainerStatus],
        apps: &[ContainerStatus],
        phase: PodPhase,
    ) -> ConditionValue {
        match phase {
            PodPhase::Succeeded => return condition_false("PodCompleted", None),
            PodPhase::Failed => return condition_false("PodFailed", None),
            _ => {}
        }
        let is_sidecar = |s: &&ContainerStatus| {
            self.by_name(&s.name)
                .is_some_and(|i| self.containers[i].role == Role::Sidecar)
        };
        let unready: Vec<&str> = init
            .iter()
            .filter(is_sidecar)
            .chain(apps)
            .filter(|s| !s.ready)
            .map(|s| s.name.as_str())
            .collect();
        if unready.is_empty() {
            return (true, None, None);
        }
        let message = format!("containers with unready status: [{}]", unready.join(" "));
        condition_false("ContainersNotReady", Some(message))
    }

    fn gates_ready(&self) -> ConditionValue {
        let conditions = self.object.status().and_then(|s| s.conditions.as_deref());
        let mut unready = Vec::new();
        for gate in self.object.spec().readiness_gates.iter().flatten() {
            let name = &gate.condition_type;
            match conditions.unwrap_or_default().iter().find(|c| c.type_ == *name) {
                None => unready.push(format!(
                    "corresponding condition of pod readiness gate \"{name}\" does not exist."
                )),
                Some(c) if c.status != "True" => unready.push(format!(
                    "the status of pod readiness gate \"{name}\" is not \"True\", but {}",
                    c.status
                )),
                Some(_) => {}
            }
        }
        if unready.is_empty() {
            return (true, None, None);
        }
        condition_false("ReadinessGatesNotReady", Some(unready.join(", ")))
    }

    fn initialized_condition(
        &self,
        init: &[ContainerStatus],
        apps: &[ContainerStatus],
        phase: PodPhase,
    ) -> ConditionValue {
        if phase == PodPhase::Succeeded {
            return (true, Some("PodCompleted".into()), None);
        }
        let app_ran = apps.iter().any(|s| {
            let state = s.state.as_ref();
            state.is_some_and(|s| s.running.is_some() || s.terminated.is_some())
                || s.last_state.as_ref().is_some_and(|s| s.terminated.is_some())
        });
        let incomplete: Vec<&str> = init
            .iter()
            .filter(|s| {
                let sidecar = self
                    .by_name(&s.name)
                    .is_some_and(|i| self.containers[i].role == Role::Sidecar);
                if sidecar {
                    s.started != Some(true)
                } else {
                    !s.ready
                }
            })
            .map(|s| s.name.as_str())
            .collect();
        if app_ran || incomplete.is_empty() {
            return (true, None, None);
        }
        let message = format!("containers with incomplete status: [{}]", incomplete.join(" "));
        condition_false("ContainersNotInitialized", Some(message))
    }
}

fn condition_false(reason: &str, message: Option<String>) -> ConditionValue {
    (false, Some(reason.into()), message)
}
