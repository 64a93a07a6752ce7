//! What users do with knarr's own placement features: they spread a workload over zones, scale it, evict and delete its pods, declare
//! the zones, and create pods that preempt others across nodes, or that would have to break a budget.

use std::collections::BTreeMap;

use knarr_api::kinds::pod::{CROSS_NODE_PREEMPTION, PREEMPTION_BUDGETS};
use knarr_api::registry;
use knarr_client::{DeleteOptions, Error, ListOptions, Object, Patch, Propagation};
use knarr_control::rebalancing_kinds;
use knarr_control::topology_domains_kinds::TopologyDomains;
use serde_json::{Value, json};

use super::desired::{of_pod, of_workload};
use super::{Users, Workload, unless_late, workloads};
use crate::finding::Finding;
use crate::placement::{
    GUARDED, HARD, LANDLORD, NAMESPACE as PLACED, SPREAD, TENANT, WAITING, ZONE, zones_of,
};
use crate::random::Stream;
use crate::switches::{Switch, Switches};

/// The most pods of [`SPREAD`].
const PODS: u64 = 6;
const TENANTS: u64 = 4;
/// Two such pods do not fit on one node.
const LARGE_CPU: &str = "5";
/// With their values.
const PRIORITIES: [(&str, i32); 2] = [(HARD, 2_000), ("placed-high", 500)];
/// What is only for histories with enough nodes: the zone of the landlord has two.
const LANDLORDS_ZONE: &str = "z1";

/// The desired state of the namespace.
#[derive(Default)]
pub(super) struct Placed {
    on: Switches,
    /// How many pods of each Deployment.
    desired: BTreeMap<&'static str, u64>,
    /// The objects of kinds that exist once the controllers run, to be created.
    pending: Vec<(knarr_client::Kind, Value)>,
    /// Pods whose eviction is requested until it is granted, by name and UID.
    evicting: Vec<(String, String)>,
    has_room: bool,
}

/// A Deployment of this namespace.
fn deployment(name: &str, replicas: u64, spec: Value, annotations: &Value) -> Value {
    let mut template = workloads::template(name, spec);
    template["metadata"]["annotations"] = annotations.clone();
    json!({
        "metadata": {"namespace": PLACED, "name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
    })
}

impl Users {
    /// Creates the namespace and what is in it from the beginning.
    pub async fn create_placed(
        &mut self,
        on: Switches,
        nodes: usize,
        chance: &mut Stream,
    ) -> Result<(), Error> {
        self.note(format!("create namespaces {PLACED}"));
        let namespace = json!({"metadata": {"name": PLACED}});
        self.create(&registry::NAMESPACE, namespace).await?;
        let mut placed = Placed {
            on,
            ..Placed::default()
        };
        for (name, value) in PRIORITIES {
            let mut class = json!({"metadata": {"name": name}, "value": value});
            if name == HARD {
                class["metadata"]["annotations"] = json!({PREEMPTION_BUDGETS: "Hard"});
            }
            self.create(&registry::PRIORITY_CLASS, class).await?;
        }
        if on.has(Switch::TopologyDomains) {
            let zones = zones_of(nodes);
            let domains: Vec<Value> = zones.iter().map(|zone| json!({"name": zone})).collect();
            let mut spec = json!({"topologyKey": ZONE, "domains": domains});
            if chance.per_mille(400) {
                spec["lostAfterSeconds"] = json!(chance.between(20, 60));
            }
            let object = json!({
                "apiVersion": "placement.knarr.io/v1alpha1", "kind": "TopologyDomains",
                "metadata": {"name": "zones"}, "spec": spec,
            });
            placed.pending.push((TopologyDomains::kind().clone(), object));
        }
        if on.has(Switch::Rebalancing) {
            let most = if chance.per_mille(400) { 2 } else { 12 };
            let is_timed = !on.has(Switch::ClockSet);
            self.observer.change_placement(|placement, _| {
                placement.moves_per_hour = is_timed.then_some(usize::try_from(most).unwrap_or(usize::MAX));
            });
            let [_, kind] = rebalancing_kinds::kinds();
            let policy = json!({
                "apiVersion": "placement.knarr.io/v1alpha1", "kind": "RebalancePolicy",
                "metadata": {"namespace": PLACED, "name": "even"},
                "spec": {
                    "dryRun": false,
                    "budgets": {"perHour": 60, "perNode": 20, "perWorkload": most},
                    "strategies": {"topologySpread": {}},
                },
            });
            placed.pending.push((kind.clone(), policy));
        }
        self.placed = Some(placed);
        self.create_spread(chance).await?;
        if on.has(Switch::CrossNodePreemption) {
            let tenants = chance.between(2, TENANTS);
            self.deploy_tenants(chance, tenants).await?;
        }
        if on.has(Switch::HardBudgets) {
            self.create_guarded(chance).await?;
        }
        Ok(())
    }

    async fn create_spread(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let Some(on) = self.placed.as_ref().map(|placed| placed.on) else {
            return Ok(());
        };
        let pods = chance.between(2, PODS);
        let exit_behavior = workloads::exit_behavior(chance);
        let mut spec = workloads::pod_spec(chance, exit_behavior, "Always", false);
        let mut constraint = json!({
            "topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": SPREAD}},
        });
        if !on.has(Switch::TopologyDomains) {
            // A zone whose nodes are lost does not hold the others up: its pods are to be moved back later.
            constraint["nodeTaintsPolicy"] = "Honor".into();
        }
        spec["topologySpreadConstraints"] = json!([constraint]);
        let annotations = match on.has(Switch::SurgeFirst) {
            true => json!({"knarr.io/eviction": "SurgeFirst"}),
            false => json!({}),
        };
        let mut object = deployment(SPREAD, pods, spec, &annotations);
        if on.has(Switch::ScaleDown) {
            object["metadata"]["annotations"] = json!({"knarr.io/scale-down": "spread"});
            self.observer
                .change_placement(|placement, _| placement.scales_down_by_spread = true);
        }
        self.note(format!(
            "create deployments {SPREAD}: {pods} replicas that {exit_behavior}"
        ));
        self.create(&registry::DEPLOYMENT, object).await?;
        if chance.per_mille(600) {
            self.create_placed_budget(SPREAD, json!({"maxUnavailable": 1}))
                .await?;
        }
        self.want_placed(SPREAD, Some(pods));
        Ok(())
    }

    async fn create_placed_budget(&self, app: &str, mut spec: Value) -> Result<(), Error> {
        spec["selector"] = json!({"matchLabels": {"app": app}});
        let budget = json!({"metadata": {"namespace": PLACED, "name": app}, "spec": spec});
        self.create(&registry::POD_DISRUPTION_BUDGET, budget)
            .await
            .map(drop)
    }

    fn want_placed(&mut self, name: &'static str, pods: Option<u64>) {
        let Some(placed) = &mut self.placed else { return };
        match pods {
            Some(pods) => placed.desired.insert(name, pods),
            None => placed.desired.remove(name),
        };
    }

    /// A Deployment of one of these names, created or scaled.
    async fn deploy_placed(
        &mut self,
        name: &'static str,
        pods: u64,
        spec: Value,
        annotations: Value,
    ) -> Result<(), Error> {
        self.note(format!("create or scale deployments {name} to {pods}"));
        let object = deployment(name, pods, spec, &annotations);
        match self.create(&registry::DEPLOYMENT, object).await {
            Err(e) if e.is_already_exists() => self.scale_placed(name, pods).await?,
            other => drop(other?),
        }
        self.want_placed(name, Some(pods));
        Ok(())
    }

    async fn scale_placed(&mut self, name: &'static str, pods: u64) -> Result<(), Error> {
        let patch = Patch::Merge(json!({"spec": {"replicas": pods}}));
        self.api
            .patch(&registry::DEPLOYMENT, PLACED, name, "", patch)
            .await?;
        self.want_placed(name, Some(pods));
        Ok(())
    }

    async fn deploy_tenants(&mut self, chance: &mut Stream, pods: u64) -> Result<(), Error> {
        let exit_behavior = workloads::exit_behavior(chance);
        let mut spec = workloads::pod_spec(chance, exit_behavior, "Always", false);
        spec["topologySpreadConstraints"] = json!([{
            "topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": TENANT}},
        }]);
        self.deploy_placed(TENANT, pods, spec, json!({})).await
    }

    /// It excludes tenants from its zone, and preempts those that are there.
    async fn deploy_landlord(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let exit_behavior = workloads::exit_behavior(chance);
        let mut spec = workloads::pod_spec(chance, exit_behavior, "Always", false);
        spec["priorityClassName"] = PRIORITIES[1].0.into();
        spec["nodeSelector"] = json!({ZONE: LANDLORDS_ZONE});
        spec["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": TENANT}}},
        ]}});
        let annotations = json!({CROSS_NODE_PREEMPTION: "true"});
        self.deploy_placed(LANDLORD, 1, spec, annotations).await
    }

    /// A pod that fills a node, and whose budget allows no disruption.
    async fn create_guarded(&mut self, chance: &mut Stream) -> Result<(), Error> {
        self.create_placed_budget(GUARDED, json!({"minAvailable": 1}))
            .await?;
        let spec = large(chance);
        self.deploy_placed(GUARDED, 1, spec, json!({})).await?;
        // It may never run: others fill its node.
        self.want_placed(GUARDED, None);
        Ok(())
    }

    async fn deploy_waiting(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let mut spec = large(chance);
        spec["priorityClassName"] = HARD.into();
        self.deploy_placed(WAITING, 1, spec, json!({})).await
    }

    /// Creates the objects whose kinds exist by now.
    async fn create_pending(&mut self) -> Result<(), Error> {
        let pending = self
            .placed
            .as_mut()
            .map(|placed| std::mem::take(&mut placed.pending));
        for (kind, object) in pending.unwrap_or_default() {
            match self.create(&kind, object.clone()).await {
                Ok(_) => self.created_pending(&kind, &object),
                Err(e) if e.is_already_exists() => {}
                Err(e) if e.is_not_found() => {
                    if let Some(placed) = &mut self.placed {
                        placed.pending.push((kind, object));
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn created_pending(&self, kind: &knarr_client::Kind, object: &Value) {
        self.note(format!("create {}: {}", kind.plural(), object["spec"]));
        let is_never_lost = object["spec"].get("lostAfterSeconds").is_none();
        if kind == TopologyDomains::kind() && is_never_lost {
            let domains = object["spec"]["domains"].as_array().into_iter().flatten();
            let zones = domains
                .filter_map(|domain| domain["name"].as_str().map(String::from))
                .collect();
            self.observer
                .change_placement(|placement, now| placement.declared = Some((zones, now)));
        }
    }

    /// One user action there.
    pub async fn act_with_placement(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let Some(on) = self
            .placed
            .as_ref()
            .map(|placed| placed.on)
            .filter(|on| on.has_placement())
        else {
            return Ok(());
        };
        self.create_pending().await?;
        self.evict_again().await?;
        let done = match chance.between(0, 19) {
            0..6 => {
                let pods = chance.between(1, PODS);
                self.note(format!("scale {SPREAD} to {pods}"));
                self.scale_placed(SPREAD, pods).await
            }
            6..9 if on.has(Switch::CrossNodePreemption) => self.deploy_landlord(chance).await,
            9 if on.has(Switch::CrossNodePreemption) => self.delete_landlord().await,
            10 if on.has(Switch::CrossNodePreemption) => {
                let tenants = chance.between(2, TENANTS);
                self.deploy_tenants(chance, tenants).await
            }
            11 | 12 if on.has(Switch::HardBudgets) => self.deploy_waiting(chance).await,
            13..17 => self.begin_eviction(chance).await,
            17 => self.delete_spread(chance).await,
            _ => self.give_nodes_back().await,
        };
        match done {
            // Another request was faster.
            Err(e) if e.is_not_found() || e.is_conflict() || e.is_already_exists() => Ok(()),
            other => other,
        }
    }

    async fn delete_landlord(&mut self) -> Result<(), Error> {
        self.note(format!("delete deployments {LANDLORD}"));
        self.want_placed(LANDLORD, None);
        let options = DeleteOptions {
            propagation: Some(Propagation::Background),
            ..DeleteOptions::default()
        };
        let deleted = self.api.delete(&registry::DEPLOYMENT, PLACED, LANDLORD, options);
        deleted.await.map(drop)
    }

    async fn placed_pods(&self) -> Result<Vec<std::sync::Arc<Object>>, Error> {
        let options = ListOptions {
            namespace: PLACED.into(),
            ..ListOptions::default()
        };
        Ok(self.api.list(&registry::POD, options).await?.items)
    }

    async fn spread_pods(&self) -> Result<Vec<std::sync::Arc<Object>>, Error> {
        let mut pods = self.placed_pods().await?;
        let is_spread = |pod: &Object| {
            pod.metadata()
                .labels
                .as_ref()
                .is_some_and(|l| l.get("app").is_some_and(|app| app == SPREAD))
        };
        pods.retain(|pod| is_spread(pod) && pod.metadata().deletion_timestamp.is_none());
        Ok(pods)
    }

    async fn delete_spread(&mut self, chance: &mut Stream) -> Result<(), Error> {
        for pod in self.spread_pods().await? {
            if chance.per_mille(500) {
                self.note(format!("delete {PLACED}/{}", pod.name()));
                let mut options = DeleteOptions::default();
                options.preconditions.uid = Some(pod.uid().to_string());
                unless_late(self.api.delete(&registry::POD, PLACED, pod.name(), options).await)?;
            }
        }
        Ok(())
    }

    /// As `kubectl drain`, which repeats requests that are answered with 429; one in four gives up at once.
    async fn begin_eviction(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let pods = self.spread_pods().await?;
        let (cordons, repeats) = (chance.per_mille(400), chance.per_mille(750));
        let Some(pod) = chance.pick(&pods) else {
            return Ok(());
        };
        let (name, uid) = (pod.name().to_string(), pod.uid().to_string());
        let node = pod.field("spec.nodeName").unwrap_or_default();
        if cordons && !node.is_empty() {
            self.cordon(&node, true).await?;
        }
        if !self.evict_placed(&name, &uid).await?
            && repeats
            && let Some(placed) = &mut self.placed
        {
            placed.evicting.push((name, uid));
        }
        Ok(())
    }

    async fn evict_again(&mut self) -> Result<(), Error> {
        let evicting = self
            .placed
            .as_mut()
            .map(|placed| std::mem::take(&mut placed.evicting));
        for (name, uid) in evicting.unwrap_or_default() {
            if !self.evict_placed(&name, &uid).await?
                && let Some(placed) = &mut self.placed
            {
                placed.evicting.push((name, uid));
            }
        }
        Ok(())
    }

    /// Whether the pod is evicted, or is there no more.
    async fn evict_placed(&self, name: &str, uid: &str) -> Result<bool, Error> {
        self.note(format!("evict {PLACED}/{name}"));
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"namespace": PLACED, "name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        });
        let evicted = self
            .api
            .create_subresource(&registry::POD, PLACED, name, "eviction", eviction)
            .await;
        match evicted {
            Err(e) if e.code() == 429 => Ok(false),
            other => unless_late(other).map(|()| true),
        }
    }

    /// What a pod waits for that only users can give: room, by deleting what is guarded. Requests for evictions end.
    pub async fn make_placed_room(&mut self) -> Result<(), Error> {
        self.create_pending().await?;
        let Some(placed) = self.placed.as_mut().filter(|placed| !placed.has_room) else {
            return Ok(());
        };
        placed.evicting.clear();
        placed.has_room = true;
        if placed.on.has(Switch::HardBudgets) {
            self.note(format!("delete deployments {GUARDED}"));
            let options = DeleteOptions {
                propagation: Some(Propagation::Background),
                ..DeleteOptions::default()
            };
            unless_late(
                self.api
                    .delete(&registry::DEPLOYMENT, PLACED, GUARDED, options)
                    .await,
            )?;
        }
        Ok(())
    }

    /// How the namespace differs from the desired state.
    pub(super) async fn missing_of_placed(&self) -> Result<Option<Finding>, Error> {
        let Some(placed) = &self.placed else {
            return Ok(None);
        };
        for (name, pods) in &placed.desired {
            let object = match self.api.get(&registry::DEPLOYMENT, PLACED, name).await {
                Ok(object) => object,
                Err(e) if e.is_not_found() => return Ok(Some(Finding(format!("{name} has been lost")))),
                Err(e) => return Err(e),
            };
            let pods = i32::try_from(*pods).unwrap_or(i32::MAX);
            if let Err(found) = of_workload(Workload::Deployment, &object, pods) {
                return Ok(Some(Finding(format!("{name} {found}"))));
            }
        }
        for pod in self.placed_pods().await? {
            if let Err(found) = of_pod(&pod) {
                return Ok(Some(Finding(format!("pod {PLACED}/{} {found}", pod.name()))));
            }
        }
        Ok(None)
    }
}

/// The spec of a pod that fills the first node.
fn large(chance: &mut Stream) -> Value {
    let exit_behavior = workloads::exit_behavior(chance);
    let mut spec = workloads::pod_spec(chance, exit_behavior, "Always", false);
    spec["containers"][0]["resources"] = json!({"requests": {"cpu": LARGE_CPU}});
    spec["nodeSelector"] = json!({"kubernetes.io/hostname": "n1"});
    spec
}
