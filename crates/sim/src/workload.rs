//! The users: they create, scale, roll out, delete (with grace, with less, by force), take a name again at once, and
//! hold objects with finalizers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::{k8s_openapi, registry};
use knarr_client::{Api, DeleteOptions, Error, Kind, ListOptions, Object, Patch, Propagation};
use serde_json::{Value, json};

use crate::observer::Observer;
use crate::random::Stream;

const NAMESPACE: &str = "default";
const FINALIZER: &str = "sim.knarr.dev/hold";
/// So many at most of each, that they meet.
const DEPLOYMENTS: u64 = 3;
const BARE_PODS: u64 = 4;
const REPLICAS: u64 = 4;

pub(crate) struct Users {
    api: Arc<dyn Api>,
    observer: Arc<Observer>,
    chance: Stream,
    /// With the replicas they are to have.
    pub deployments: BTreeMap<String, u64>,
    /// Names that are meant to be there.
    pub bare_pods: BTreeSet<String>,
}

impl Users {
    pub fn new(api: Arc<dyn Api>, observer: Arc<Observer>, chance: Stream) -> Self {
        Users {
            api,
            observer,
            chance,
            deployments: BTreeMap::new(),
            bare_pods: BTreeSet::new(),
        }
    }

    /// One thing that one of them does.
    pub async fn act(&mut self) -> Result<(), Error> {
        let done = match self.chance.between(0, 99) {
            0..15 => self.deploy().await,
            15..28 => self.scale().await,
            28..36 => self.roll().await,
            36..41 => self.delete_deployment().await,
            41..62 => self.create_pod().await,
            62..82 => self.delete_some_pod().await,
            82..87 => self.force().await,
            87..93 => self.replace_pod().await,
            _ => self.let_go().await,
        };
        match done {
            // Somebody was faster, or there is nothing left to do it to.
            Err(e) if e.is_not_found() || e.is_conflict() || e.is_already_exists() => Ok(()),
            other => other,
        }
    }

    async fn create(&self, kind: &'static Kind, value: Value) -> Result<Arc<Object>, Error> {
        let bytes = serde_json::to_vec(&value).map_err(Error::internal)?;
        let object = kind.ops.decode(&bytes).map_err(Error::internal)?.object;
        self.api.create(kind, object).await
    }

    async fn deploy(&mut self) -> Result<(), Error> {
        let name = format!("web{}", self.chance.between(1, DEPLOYMENTS));
        let replicas = self.chance.between(1, REPLICAS);
        let manners = self.manners();
        let grace = self.grace();
        self.observer.note(&format!(
            "user: deploy {name}, {replicas} replicas that {manners}"
        ));
        let deployment = json!({
            "metadata": {"namespace": NAMESPACE, "name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": pod_spec(manners, grace, "Always", false),
                },
            },
        });
        self.create(&registry::DEPLOYMENT, deployment).await?;
        self.deployments.insert(name, replicas);
        Ok(())
    }

    fn manners(&mut self) -> &'static str {
        ["obeys", "obeys", "lingers", "ignores"]
            .get(self.chance.between(0, 3) as usize)
            .copied()
            .unwrap_or("obeys")
    }

    fn grace(&mut self) -> u64 {
        self.chance.between(1, 30)
    }

    fn some_deployment(&mut self) -> Option<String> {
        let names: Vec<String> = self.deployments.keys().cloned().collect();
        self.chance.pick(&names).cloned()
    }

    async fn scale(&mut self) -> Result<(), Error> {
        let Some(name) = self.some_deployment() else {
            return Ok(());
        };
        let replicas = self.chance.between(0, REPLICAS);
        self.observer.note(&format!("user: scale {name} to {replicas}"));
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        self.api
            .patch(&registry::DEPLOYMENT, NAMESPACE, &name, "", patch)
            .await?;
        self.deployments.insert(name, replicas);
        Ok(())
    }

    async fn roll(&mut self) -> Result<(), Error> {
        let Some(name) = self.some_deployment() else {
            return Ok(());
        };
        let version = self.chance.between(1, 3);
        self.observer.note(&format!("user: roll {name} to v{version}"));
        let patch = Patch::Merge(json!({"spec": {"template": {"metadata": {"annotations": {
            "version": version.to_string(),
        }}}}}));
        self.api
            .patch(&registry::DEPLOYMENT, NAMESPACE, &name, "", patch)
            .await
            .map(drop)
    }

    async fn delete_deployment(&mut self) -> Result<(), Error> {
        let Some(name) = self.some_deployment() else {
            return Ok(());
        };
        let foreground = self.chance.per_mille(400);
        self.observer
            .note(&format!("user: delete {name}, foreground: {foreground}"));
        let options = DeleteOptions {
            propagation: Some(if foreground {
                Propagation::Foreground
            } else {
                Propagation::Background
            }),
            ..DeleteOptions::default()
        };
        self.deployments.remove(&name);
        self.api
            .delete(&registry::DEPLOYMENT, NAMESPACE, &name, options)
            .await
            .map(drop)
    }

    async fn create_pod(&mut self) -> Result<(), Error> {
        let name = format!("pod{}", self.chance.between(1, BARE_PODS));
        self.create_named(name).await
    }

    async fn create_named(&mut self, name: String) -> Result<(), Error> {
        let (container, restart) = match self.chance.between(0, 5) {
            0 => ("completes", "Never"),
            1 => ("fails", "Never"),
            2 => ("fails", "OnFailure"),
            _ => (self.manners(), "Always"),
        };
        let mut pod = json!({
            "metadata": {"namespace": NAMESPACE, "name": name},
            "spec": pod_spec(container, self.grace(), restart, self.chance.per_mille(300)),
        });
        if self.chance.per_mille(200) {
            pod["metadata"]["finalizers"] = json!([FINALIZER]);
        }
        self.observer
            .note(&format!("user: create {name}, which {container} ({restart})"));
        self.create(&registry::POD, pod).await?;
        self.bare_pods.insert(name);
        Ok(())
    }

    async fn pods(&self) -> Result<Vec<Arc<Object>>, Error> {
        let options = ListOptions {
            namespace: NAMESPACE.into(),
            ..ListOptions::default()
        };
        Ok(self.api.list(&registry::POD, options).await?.items)
    }

    async fn delete(&mut self, pod: &Object, grace: Option<i64>) -> Result<(), Error> {
        self.observer
            .note(&format!("user: delete {} grace {grace:?}", pod.name()));
        self.bare_pods.remove(pod.name());
        if grace == Some(0) {
            self.observer.release(pod.uid());
        }
        let mut options = DeleteOptions {
            grace_period_seconds: grace,
            ..DeleteOptions::default()
        };
        options.preconditions.uid = Some(pod.uid().to_string());
        self.api
            .delete(&registry::POD, NAMESPACE, pod.name(), options)
            .await
            .map(drop)
    }

    async fn delete_some_pod(&mut self) -> Result<(), Error> {
        let pods = self.pods().await?;
        let Some(pod) = self.chance.pick(&pods).cloned() else {
            return Ok(());
        };
        let grace = self.chance.between(1, 20);
        let shorter = self.chance.per_mille(350);
        let grace = i64::try_from(grace).ok().filter(|_| shorter);
        self.delete(&pod, grace).await
    }

    async fn force(&mut self) -> Result<(), Error> {
        let pods = self.pods().await?;
        let Some(pod) = self.chance.pick(&pods).cloned() else {
            return Ok(());
        };
        self.delete(&pod, Some(0)).await
    }

    /// Takes a name again as soon as it is free.
    async fn replace_pod(&mut self) -> Result<(), Error> {
        let bare: Vec<String> = self.bare_pods.iter().cloned().collect();
        let Some(name) = self.chance.pick(&bare).cloned() else {
            return Ok(());
        };
        let pod = self.api.get(&registry::POD, NAMESPACE, &name).await?;
        self.delete(&pod, None).await?;
        for _ in 0..50 {
            match self.create_named(name.clone()).await {
                Err(e) if e.is_already_exists() => {
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
                other => return other,
            }
        }
        Ok(())
    }

    /// Drops the finalizers of what waits for nothing else.
    pub async fn let_go(&mut self) -> Result<(), Error> {
        for pod in self.pods().await? {
            let held = pod.metadata().finalizers.iter().flatten().any(|f| f == FINALIZER);
            if !held {
                continue;
            }
            let patch = Patch::Merge(json!({
                "metadata": {"uid": pod.uid(), "finalizers": null},
            }));
            let patched = self
                .api
                .patch(&registry::POD, NAMESPACE, pod.name(), "", patch)
                .await;
            match patched {
                Err(e) if !e.is_not_found() && !e.is_conflict() => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether what they want is so, and if not, what is missing.
    pub async fn satisfied(&self) -> Result<Result<(), String>, Error> {
        for (name, replicas) in &self.deployments {
            let deployment = self.api.get(&registry::DEPLOYMENT, NAMESPACE, name).await?;
            let deployment: &k8s_openapi::api::apps::v1::Deployment = match deployment.get() {
                Some(deployment) => deployment,
                None => return Ok(Err(format!("{name} is no deployment"))),
            };
            let status = deployment.status.clone().unwrap_or_default();
            let replicas = i32::try_from(*replicas).unwrap_or(i32::MAX);
            let counts = [
                status.replicas,
                status.updated_replicas,
                status.available_replicas,
            ];
            let counts = counts.map(Option::unwrap_or_default);
            if counts != [replicas; 3] || status.observed_generation != deployment.metadata.generation {
                return Ok(Err(format!(
                    "deployment {name} has {counts:?} replicas (all, updated, available), {replicas} are wanted"
                )));
            }
        }
        let there = self.pods().await?;
        for pod in &there {
            if pod.metadata().deletion_timestamp.is_some() {
                return Ok(Err(format!("pod {} does not end", pod.name())));
            }
            let Some(typed) = pod.get::<Pod>() else {
                return Ok(Err(format!("{} is no pod", pod.name())));
            };
            let phase = crate::world::phase_of(typed);
            let spec = typed.spec.clone().unwrap_or_default();
            if phase != "Running" && !crate::world::is_finished(typed) {
                return Ok(Err(format!("pod {} is {phase:?}", pod.name())));
            }
            if phase == "Running" && spec.restart_policy.as_deref() == Some("Never") {
                return Ok(Err(format!("pod {} is not done", pod.name())));
            }
        }
        let names: BTreeSet<&str> = there.iter().map(|p| p.name()).collect();
        match self.bare_pods.iter().find(|name| !names.contains(name.as_str())) {
            Some(lost) => Ok(Err(format!("pod {lost} has been lost"))),
            None => Ok(Ok(())),
        }
    }
}

fn pod_spec(main: &str, grace: u64, restart: &str, init: bool) -> Value {
    let container = |name: &str| json!({"name": name, "image": "docker.io/library/app:v1", "imagePullPolicy": "IfNotPresent"});
    let mut spec = json!({
        "terminationGracePeriodSeconds": grace,
        "restartPolicy": restart,
        "automountServiceAccountToken": false,
        "containers": [container(main)],
    });
    // Container names are unique in a pod.
    if init && main != "completes" {
        spec["initContainers"] = json!([container("completes")]);
    }
    spec
}
