//! What users do where the nodes are too small for everything: pods of three priorities that fill the nodes,
//! PodDisruptionBudgets, and evictions.

use k8s_openapi::api::core::v1::Pod;
use knarr_api::{k8s_openapi, registry};
use knarr_client::{DeleteOptions, Error, Patch, Propagation};
use serde_json::{Value, json};

use super::workloads::{self, GeneratedWorkload};
use super::{NAMESPACE, Users, Workload, unless_late};
use crate::random::Stream;

/// The filler: two of its pods fit on one node, and leave too little for a third.
const FILLERS: u64 = 2;
const FILLER_CPU: &str = "3";
const FILLER_PODS: u64 = 6;
/// So little that all other pods fit, each on some node, once the fillers are deleted.
const OTHER_CPU: &str = "200m";

/// With their values and preemption policies.
const PRIORITIES: [(&str, i32, &str); 3] = [
    ("filler", -10, "PreemptLowerPriority"),
    ("important", 1_000, "PreemptLowerPriority"),
    ("patient", 1_000, "Never"),
];

fn request(pod_spec: &mut Value, cpu: &str) {
    pod_spec["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
}

/// Makes a pod fit once the fillers are deleted. Pods of its own priority may fill the only node that it may run on,
/// and nothing moves them to another: it has to preempt them.
fn make_fit(pod_spec: &mut Value, workload: Workload) {
    request(pod_spec, OTHER_CPU);
    if workload == Workload::DaemonSet || pod_spec.get("nodeSelector").is_some() {
        pod_spec["priorityClassName"] = PRIORITIES[1].0.into();
    }
}

impl Users {
    /// From now on all pods that they create have requests.
    pub async fn create_priorities(&mut self) -> Result<(), Error> {
        self.crowded = true;
        for (name, value, preemption) in PRIORITIES {
            self.note(format!("create priorityclasses {name}"));
            let class = json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": preemption});
            self.create(&registry::PRIORITY_CLASS, class).await?;
        }
        Ok(())
    }

    /// Makes a bare pod fit, if the nodes are crowded.
    pub(super) fn fit_bare(&self, pod_spec: &mut Value) {
        if self.crowded {
            make_fit(pod_spec, Workload::Pod);
        }
    }

    /// One user action of this kind.
    pub async fn act_with_room(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let done = match chance.between(0, 15) {
            0..5 => self.fill(chance).await,
            5..9 => self.create_important(chance).await,
            9 => self.scale_filler(chance).await,
            10 | 11 => self.create_budget(chance).await,
            12 => self.delete_budget(chance).await,
            _ => self.evict_some_pod(chance).await,
        };
        match done {
            // Another request was faster.
            Err(e) if e.is_not_found() || e.is_conflict() || e.is_already_exists() => Ok(()),
            other => other,
        }
    }

    /// A Deployment of one of the priorities with large requests.
    async fn create_large(
        &mut self,
        chance: &mut Stream,
        name: &str,
        priority: &str,
        pods: u64,
    ) -> Result<(), Error> {
        let exit_behavior = workloads::exit_behavior(chance);
        let mut spec = workloads::pod_spec(chance, exit_behavior, "Always", false);
        request(&mut spec, FILLER_CPU);
        spec["priorityClassName"] = priority.into();
        let object = json!({
            "metadata": {"namespace": NAMESPACE, "name": name},
            "spec": {
                "replicas": pods,
                "selector": {"matchLabels": {"app": name}},
                "template": workloads::template(name, spec),
            },
        });
        self.note(format!(
            "create deployments {name}: {pods} large replicas that {exit_behavior}, {priority}"
        ));
        self.create(&registry::DEPLOYMENT, object).await.map(drop)
    }

    async fn fill(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let name = format!("filler{}", chance.between(1, FILLERS));
        let pods = chance.between(2, FILLER_PODS);
        self.create_large(chance, &name, "filler", pods).await
    }

    async fn scale_filler(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let name = format!("filler{}", chance.between(1, FILLERS));
        let replicas = chance.between(0, FILLER_PODS);
        self.note(format!("scale {name} to {replicas}"));
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        let patched = self.api.patch(&registry::DEPLOYMENT, NAMESPACE, &name, "", patch);
        patched.await.map(drop)
    }

    /// It has to fit sooner or later: by preemption, or when the fillers are deleted.
    async fn create_important(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let pods = chance.between(1, 2);
        let (name, priority) = match chance.per_mille(700) {
            true => ("important", "important"),
            false => ("patient", "patient"),
        };
        self.create_large(chance, name, priority, pods).await?;
        // It is neither scaled nor rolled out: the nodes have no room for more.
        self.desired.insert((Workload::Large, name.into()), pods);
        Ok(())
    }

    async fn create_budget(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let app = match chance.between(0, 3) {
            0 | 1 => format!("filler{}", chance.between(1, FILLERS)),
            2 => format!("web{}", chance.between(1, workloads::NAMES)),
            _ => format!("db{}", chance.between(1, workloads::NAMES)),
        };
        let spec = match chance.per_mille(500) {
            true => json!({"minAvailable": 1}),
            false => json!({"maxUnavailable": 1}),
        };
        self.note(format!("create poddisruptionbudgets {app}: {spec}"));
        let mut budget = json!({"metadata": {"namespace": NAMESPACE, "name": app}, "spec": spec});
        budget["spec"]["selector"] = json!({"matchLabels": {"app": app}});
        self.create(&registry::POD_DISRUPTION_BUDGET, budget)
            .await
            .map(drop)
    }

    async fn delete_budget(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let budgets = self.list(&registry::POD_DISRUPTION_BUDGET).await?;
        let Some(budget) = chance.pick(&budgets).cloned() else {
            return Ok(());
        };
        self.note(format!("delete poddisruptionbudgets {}", budget.name()));
        let options = DeleteOptions::default();
        let deleted = self.api.delete(
            &registry::POD_DISRUPTION_BUDGET,
            NAMESPACE,
            budget.name(),
            options,
        );
        deleted.await.map(drop)
    }

    async fn evict_some_pod(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let mut pods = self.pods().await?;
        pods.retain(|pod| pod.metadata().deletion_timestamp.is_none() && pod.get::<Pod>().is_some());
        let Some(pod) = chance.pick(&pods).cloned() else {
            return Ok(());
        };
        self.evict(&pod).await
    }

    /// Deletes the fillers.
    pub async fn make_room(&mut self) -> Result<(), Error> {
        if !self.crowded {
            return Ok(());
        }
        for number in 1..=FILLERS {
            let options = DeleteOptions {
                propagation: Some(Propagation::Background),
                ..DeleteOptions::default()
            };
            let name = format!("filler{number}");
            let deleted = self.api.delete(&registry::DEPLOYMENT, NAMESPACE, &name, options);
            unless_late(deleted.await)?;
        }
        Ok(())
    }

    /// Makes the pods of a drawn workload fit, if the nodes are crowded.
    pub(super) fn fit(&self, drawn: &mut GeneratedWorkload) {
        if self.crowded {
            make_fit(&mut drawn.object["spec"]["template"]["spec"], drawn.workload);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use k8s_openapi::api::core::v1::Node;
    use k8s_openapi::jiff::Timestamp;
    use knarr_api::registry::Registered;
    use knarr_api::{Object, Shared};
    use knarr_scheduler::{Action, Scheduler};

    use super::*;
    use crate::users::staging::give_volume;

    fn shared<T: Registered>(value: Value) -> Shared<T> {
        let typed: T = serde_json::from_value(value).unwrap();
        Shared::new(Object::from_typed(T::kind_of(), Box::new(typed)).into()).unwrap()
    }

    /// With the priority that the API server sets.
    fn pod(name: &str, mut spec: Value) -> Shared<Pod> {
        let class = spec["priorityClassName"].as_str();
        let class = PRIORITIES.iter().find(|(name, ..)| class == Some(*name));
        spec["priority"] = class.map_or(0, |(_, value, _)| *value).into();
        shared(json!({"metadata": {"name": name, "namespace": NAMESPACE, "uid": name}, "spec": spec}))
    }

    /// n1 is full: of two large pods that are important, and of small ones.
    fn full() -> Scheduler {
        let now = Timestamp::UNIX_EPOCH;
        let mut scheduler = Scheduler::default();
        for name in ["n1", "n2"] {
            let node = json!({
                "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name}},
                "status": {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"}},
            });
            scheduler.node_changed(name, Some(shared::<Node>(node)), now);
        }
        for number in 0..12 {
            let mut spec = json!({"nodeName": "n1", "containers": [{"name": "c"}]});
            if number < 2 {
                request(&mut spec, FILLER_CPU);
                spec["priorityClassName"] = "important".into();
            } else {
                make_fit(&mut spec, Workload::Deployment);
            }
            scheduler.pod_changed(None, Some(&pod(&format!("other{number}"), spec)), now);
        }
        scheduler
    }

    #[test]
    fn s9_a_pod_gets_on_the_only_node_that_it_may_run_on_although_others_fill_it() {
        let of_daemon = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}],
        }}});
        for (name, affinity, workload, expect) in [
            ("staged1a", json!({}), Workload::Pod, "n2"),
            ("staged5a", json!({}), Workload::Pod, "n1 of others"),
            ("agent-1", of_daemon, Workload::DaemonSet, "n1 of others"),
        ] {
            let mut spec = json!({"containers": [{"name": "c"}], "affinity": affinity});
            give_volume(name, &mut spec);
            // The volumes do not matter here.
            spec["volumes"] = json!([]);
            make_fit(&mut spec, workload);
            let mut scheduler = full();
            scheduler.pod_changed(None, Some(&pod(name, spec)), Timestamp::UNIX_EPOCH);
            let found = match scheduler.schedule_one(Timestamp::UNIX_EPOCH) {
                Some(Action::Bind { node, .. }) => node.into(),
                Some(Action::Preempt { node, .. }) => format!("{node} of others"),
                Some(Action::Report { message, .. }) => message,
                None => "nothing".into(),
            };
            assert_eq!(found, expect, "{name}");
        }
    }
}
