//! What users do where there is not room for everything: pods of three priorities that fill the nodes, budgets for what may be
//! disrupted, and evictions.

use k8s_openapi::api::core::v1::Pod;
use knarr_api::{k8s_openapi, registry};
use knarr_client::{DeleteOptions, Error, Patch, Propagation};
use serde_json::{Value, json};

use super::workloads::{self, Drawn};
use super::{NAMESPACE, Users, Workload, unless_late};
use crate::random::Stream;

/// What fills the nodes: two of its pods fit on one, and leave too little for a third.
const FILLERS: u64 = 2;
const FILLER_CPU: &str = "3";
const FILLER_PODS: u64 = 6;
/// So little that all that is wanted fits once what fills the nodes is gone.
const OTHER_CPU: &str = "200m";

/// With their values and what they may do to others.
const PRIORITIES: [(&str, i32, &str); 3] = [
    ("filler", -10, "PreemptLowerPriority"),
    ("important", 1_000, "PreemptLowerPriority"),
    ("patient", 1_000, "Never"),
];

fn request(pod_spec: &mut Value, cpu: &str) {
    pod_spec["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
}

impl Users {
    /// From now on all that they create says how much it needs.
    pub async fn create_priorities(&mut self) -> Result<(), Error> {
        self.crowded = true;
        for (name, value, preemption) in PRIORITIES {
            self.note(format!("create priorityclasses {name}"));
            let class = json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": preemption});
            self.create(&registry::PRIORITY_CLASS, class).await?;
        }
        Ok(())
    }

    pub(super) fn request_little(&self, pod_spec: &mut Value) {
        if self.crowded {
            request(pod_spec, OTHER_CPU);
        }
    }

    /// One thing that one of them does about room.
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
            // Somebody was faster.
            Err(e) if e.is_not_found() || e.is_conflict() || e.is_already_exists() => Ok(()),
            other => other,
        }
    }

    /// A Deployment of one of the priorities that needs much.
    async fn create_large(
        &mut self,
        chance: &mut Stream,
        name: &str,
        priority: &str,
        pods: u64,
    ) -> Result<(), Error> {
        let manners = workloads::manners(chance);
        let mut spec = workloads::pod_spec(chance, manners, "Always", false);
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
            "create deployments {name}: {pods} large replicas that {manners}, {priority}"
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

    /// It has to find room sooner or later: by itself, or when the fillers are gone.
    async fn create_important(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let pods = chance.between(1, 2);
        let (name, priority) = match chance.per_mille(700) {
            true => ("important", "important"),
            false => ("patient", "patient"),
        };
        self.create_large(chance, name, priority, pods).await?;
        // It is neither scaled nor rolled: the nodes have no room for more.
        self.wanted.insert((Workload::Large, name.into()), pods);
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

    /// Deletes what fills the nodes.
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

    /// What is drawn, where it has to say how much it needs.
    pub(super) fn fit(&self, drawn: &mut Drawn) {
        let spec = &mut drawn.object["spec"]["template"]["spec"];
        self.request_little(spec);
        // There is one node only for each of its pods.
        if self.crowded && drawn.workload == Workload::DaemonSet {
            spec["priorityClassName"] = PRIORITIES[1].0.into();
        }
    }
}
