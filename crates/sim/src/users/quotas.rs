//! What users do in a namespace with ResourceQuotas and a LimitRange: they create several objects at once through
//! different API servers, delete them, and change, delete and create the quotas in between.

use std::sync::Arc;

use knarr_api::registry;
use knarr_client::{DeleteOptions, Error, ListOptions, Patch, Propagation};
use serde_json::{Value, json};

use super::at_once::{Request, at_once, number_of};
use super::desired::{of_pod, of_workload};
use super::{Users, Workload, unless_late, workloads};
use crate::finding::Finding;
use crate::metering::{CONFIG_MAPS, CPU, NAMESPACE as METERED, PODS};
use crate::random::Stream;
use crate::servers::ApiServer;

/// So few names of each kind that requests collide.
const NAMES: u64 = 8;
/// The most requests at once.
const AT_ONCE: u64 = 6;
const QUOTAS: [&str; 2] = ["all", "some"];
const RANGE: &str = "usual";
/// The Deployment whose pods its controller creates.
const DEPLOYMENT: &str = "metered";
/// The last request that uses up the quota.
const PLENTY: &str = "100";

/// The desired state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Metered {
    /// Of the Deployment, if there is one.
    replicas: Option<u64>,
    /// The quotas allow everything.
    is_raised: bool,
}

fn quota(name: &str, chance: &mut Stream) -> Value {
    let mut hard =
        json!({PODS: chance.between(1, 5).to_string(), CONFIG_MAPS: chance.between(2, 6).to_string()});
    if name == QUOTAS[0] {
        hard[CPU] = format!("{}m", 250 * chance.between(2, 8)).into();
    }
    json!({"metadata": {"namespace": METERED, "name": name}, "spec": {"hard": hard}})
}

fn range(chance: &mut Stream) -> Value {
    let (given, most) = (50 * chance.between(1, 4), 250 * chance.between(2, 4));
    json!({
        "metadata": {"namespace": METERED, "name": RANGE},
        "spec": {"limits": [{
            "type": "Container",
            "defaultRequest": {"cpu": format!("{given}m")},
            "default": {"cpu": format!("{most}m")},
            "max": {"cpu": format!("{most}m")},
        }]},
    })
}

impl Users {
    /// Creates the namespace, its quotas and its range.
    pub async fn create_quotas(&mut self) -> Result<(), Error> {
        self.note(format!("create namespaces {METERED}"));
        let namespace = json!({"metadata": {"name": METERED}});
        self.create(&registry::NAMESPACE, namespace).await?;
        self.metered = Some(Metered::default());
        Ok(())
    }

    /// One user action there.
    pub async fn act_with_quotas(
        &mut self,
        chance: &mut Stream,
        servers: &[Arc<ApiServer>],
    ) -> Result<(), Error> {
        if self.metered.is_none() {
            return Ok(());
        }
        let done = match chance.between(0, 19) {
            0..5 => self.create_config_maps(chance, servers).await,
            5..9 => self.create_metered_pods(chance, servers).await,
            9..13 => self.delete_metered(chance, servers).await,
            13 | 14 => self.change_quota(chance).await,
            15 => self.delete_quota(chance).await,
            16 => self.change_range(chance).await,
            _ => self.deploy_metered(chance).await,
        };
        match done {
            // Another write came first, or a quota is exceeded.
            Err(e) if matches!(e.code(), 403 | 404 | 409) => Ok(()),
            // A pod requests more than the limit that the LimitRange gives it.
            Err(e)
                if e.code() == 422 && e.to_string().contains("must be less than or equal to cpu limit") =>
            {
                Ok(())
            }
            other => other,
        }
    }

    async fn create_config_maps(
        &mut self,
        chance: &mut Stream,
        servers: &[Arc<ApiServer>],
    ) -> Result<(), Error> {
        let count = chance.between(2, AT_ONCE);
        self.note(format!("create {count} configmaps at once"));
        let mut requests = Vec::new();
        for _ in 0..count {
            let name = format!("c{}", chance.between(1, NAMES));
            let map = json!({"metadata": {"namespace": METERED, "name": name}});
            let server = number_of(chance, servers);
            requests.push((server, Request::Create(registry::CONFIG_MAP.clone(), map)));
        }
        at_once(servers, requests).await
    }

    async fn create_metered_pods(
        &mut self,
        chance: &mut Stream,
        servers: &[Arc<ApiServer>],
    ) -> Result<(), Error> {
        let count = chance.between(2, AT_ONCE);
        self.note(format!("create {count} pods at once"));
        let mut requests = Vec::new();
        for _ in 0..count {
            let name = format!("p{}", chance.between(1, NAMES));
            let (container, restarts) = match chance.between(0, 2) {
                0 => ("completes", "Never"),
                _ => (workloads::exit_behavior(chance), "Always"),
            };
            let mut spec = workloads::pod_spec(chance, container, restarts, false);
            if let Some(cpu) = [None, Some("100m"), Some("300m"), Some("2")][Self::one_of_four(chance)] {
                spec["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
            }
            let pod = json!({"metadata": {"namespace": METERED, "name": name}, "spec": spec});
            let server = number_of(chance, servers);
            requests.push((server, Request::Create(registry::POD.clone(), pod)));
        }
        at_once(servers, requests).await
    }

    fn one_of_four(chance: &mut Stream) -> usize {
        usize::try_from(chance.between(0, 3)).unwrap_or_default()
    }

    async fn delete_metered(&mut self, chance: &mut Stream, servers: &[Arc<ApiServer>]) -> Result<(), Error> {
        let count = chance.between(1, AT_ONCE);
        self.note(format!("delete {count} configmaps or pods at once"));
        let mut requests = Vec::new();
        for _ in 0..count {
            let number = chance.between(1, NAMES);
            let request = match chance.per_mille(500) {
                true => Request::Delete(registry::CONFIG_MAP.clone(), METERED, format!("c{number}")),
                false => Request::Delete(registry::POD.clone(), METERED, format!("p{number}")),
            };
            requests.push((number_of(chance, servers), request));
        }
        at_once(servers, requests).await
    }

    /// Creates a quota, or changes the limits of one.
    async fn change_quota(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let name = QUOTAS[usize::from(chance.per_mille(500))];
        let quota = quota(name, chance);
        self.note(format!(
            "create or change resourcequotas {name}: {}",
            quota["spec"]
        ));
        match self.create(&registry::RESOURCE_QUOTA, quota.clone()).await {
            Err(e) if e.is_already_exists() => {
                let patch = Patch::Merge(json!({"spec": quota["spec"]}));
                let patched = self
                    .api
                    .patch(&registry::RESOURCE_QUOTA, METERED, name, "", patch);
                patched.await.map(drop)
            }
            other => other.map(drop),
        }
    }

    /// In half of the cases another one of the name is created at once.
    async fn delete_quota(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let name = QUOTAS[usize::from(chance.per_mille(500))];
        let (again, quota) = (chance.per_mille(500), quota(name, chance));
        self.note(format!("delete resourcequotas {name}, again: {again}"));
        let options = DeleteOptions::default();
        let deleted = self.api.delete(&registry::RESOURCE_QUOTA, METERED, name, options);
        deleted.await?;
        match again {
            true => self.create(&registry::RESOURCE_QUOTA, quota).await.map(drop),
            false => Ok(()),
        }
    }

    /// Creates the LimitRange, changes its amounts, or deletes it.
    async fn change_range(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let (range, deletes) = (range(chance), chance.per_mille(250));
        let kind = &registry::LIMIT_RANGE;
        self.note(format!(
            "change limitranges {RANGE}: {}, deletes: {deletes}",
            range["spec"]
        ));
        if deletes {
            let deleted = self.api.delete(kind, METERED, RANGE, DeleteOptions::default());
            return deleted.await.map(drop);
        }
        match self.create(kind, range.clone()).await {
            Err(e) if e.is_already_exists() => {
                let patch = Patch::Merge(json!({"spec": range["spec"]}));
                self.api.patch(kind, METERED, RANGE, "", patch).await.map(drop)
            }
            other => other.map(drop),
        }
    }

    /// Creates, scales or deletes a Deployment whose pods may exceed a quota.
    async fn deploy_metered(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let (replicas, deletes) = (chance.between(1, 4), chance.per_mille(300));
        let exit_behavior = workloads::exit_behavior(chance);
        let mut spec = workloads::pod_spec(chance, exit_behavior, "Always", false);
        // As much as any range allows; without a quota for it, the request could be left out.
        spec["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}});
        let kind = &registry::DEPLOYMENT;
        if deletes {
            self.note(format!("delete deployments {DEPLOYMENT}"));
            self.set_replicas(None);
            let options = DeleteOptions {
                propagation: Some(Propagation::Background),
                ..DeleteOptions::default()
            };
            let deleted = self.api.delete(kind, METERED, DEPLOYMENT, options);
            return deleted.await.map(drop);
        }
        let object = json!({
            "metadata": {"namespace": METERED, "name": DEPLOYMENT},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": DEPLOYMENT}},
                "template": workloads::template(DEPLOYMENT, spec),
            },
        });
        self.note(format!("create or scale deployments {DEPLOYMENT} to {replicas}"));
        let done = match self.create(kind, object).await {
            Err(e) if e.is_already_exists() => {
                let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
                self.api.patch(kind, METERED, DEPLOYMENT, "", patch).await
            }
            other => other,
        };
        done?;
        self.set_replicas(Some(replicas));
        Ok(())
    }

    fn set_replicas(&mut self, replicas: Option<u64>) {
        if let Some(metered) = &mut self.metered {
            metered.replicas = replicas;
        }
    }

    /// Changes every quota to allow everything, once.
    pub async fn raise_quotas(&mut self) -> Result<(), Error> {
        let Some(metered) = self.metered.as_mut().filter(|metered| !metered.is_raised) else {
            return Ok(());
        };
        metered.is_raised = true;
        self.note("raise all resourcequotas".into());
        for name in QUOTAS {
            let hard = json!({PODS: PLENTY, CONFIG_MAPS: PLENTY});
            let patch = Patch::Merge(json!({"spec": {"hard": hard}}));
            let mut patched = self
                .api
                .patch(&registry::RESOURCE_QUOTA, METERED, name, "", patch)
                .await;
            if patched.is_ok() && name == QUOTAS[0] {
                let patch = Patch::Merge(json!({"spec": {"hard": {CPU: PLENTY}}}));
                patched = self
                    .api
                    .patch(&registry::RESOURCE_QUOTA, METERED, name, "", patch)
                    .await;
            }
            unless_late(patched)?;
        }
        Ok(())
    }

    /// How that namespace differs from the desired state.
    pub(super) async fn missing_of_metered(&self) -> Result<Option<Finding>, Error> {
        let Some(metered) = self.metered else {
            return Ok(None);
        };
        if let Some(replicas) = metered.replicas {
            let object = match self.api.get(&registry::DEPLOYMENT, METERED, DEPLOYMENT).await {
                Ok(object) => object,
                Err(e) if e.is_not_found() => {
                    return Ok(Some(Finding(format!("{DEPLOYMENT} has been lost"))));
                }
                Err(e) => return Err(e),
            };
            let replicas = i32::try_from(replicas).unwrap_or(i32::MAX);
            if let Err(found) = of_workload(Workload::Deployment, &object, replicas) {
                return Ok(Some(Finding(format!("{DEPLOYMENT} {found}"))));
            }
        }
        let options = ListOptions {
            namespace: METERED.into(),
            ..ListOptions::default()
        };
        for pod in self.api.list(&registry::POD, options).await?.items {
            if let Err(found) = of_pod(&pod) {
                return Ok(Some(Finding(format!("pod {METERED}/{} {found}", pod.name()))));
            }
        }
        Ok(None)
    }
}
