//! The users: they create, scale, roll out, delete (with the full grace period, a shorter one, by force), create an
//! object of the same name again at once, hold objects with finalizers, and declare nodes out of service.
//!
//! They use the first server, which never fails: its answers are correct, and define the desired state.

mod at_once;
mod crowding;
mod custom;
mod desired;
mod fencing;
mod nodes;
mod placement;
mod policies;
mod quotas;
pub(crate) mod staging;
mod storage;
mod workloads;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use knarr_api::kinds::pod::AT_MOST_ONE;
use knarr_api::{k8s_openapi, registry};
use knarr_client::{Api, DeleteOptions, Error, Kind, ListOptions, Object, Patch, Propagation};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::coverage::Scope;
use crate::observer::Observer;
use crate::random::Stream;
use crate::switches::{Plan, Switch};
use workloads::Workload;

pub(crate) const NAMESPACE: &str = "default";
const FINALIZER: &str = "sim.knarr.dev/hold";

/// One user action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UserAction {
    CreateWorkload,
    /// The action of a switch.
    Switched(Switch),
    LetGo,
}

/// With their weights.
const ACTIONS: [(UserAction, u64); 10] = [
    (UserAction::CreateWorkload, 20),
    (UserAction::Switched(Switch::Scale), 12),
    (UserAction::Switched(Switch::Roll), 10),
    (UserAction::Switched(Switch::DeleteWorkloads), 5),
    (UserAction::Switched(Switch::BarePods), 15),
    (UserAction::Switched(Switch::DeletePods), 19),
    (UserAction::Switched(Switch::ForceDelete), 5),
    (UserAction::Switched(Switch::ReplacePods), 6),
    (UserAction::Switched(Switch::DeletedNode), 2),
    (UserAction::LetGo, 6),
];

pub(crate) struct Users {
    api: Arc<dyn Api>,
    observer: Arc<Observer>,
    chance: Stream,
    plan: Plan,
    /// The desired workloads, with the number of pods where it is set.
    desired: BTreeMap<(Workload, String), u64>,
    /// The stream for the at-most-one annotation, if users set it.
    careful: Option<Stream>,
    /// Their pods have requests, because the nodes are too small for everything.
    crowded: bool,
    /// The namespace with quotas, if there is one.
    metered: Option<quotas::Metered>,
    /// The namespace of knarr's own placement, if there is one.
    placed: Option<placement::Placed>,
    /// Set if there are custom resources.
    following: Option<custom::CustomKindInformer>,
}

impl Users {
    pub fn new(api: Arc<dyn Api>, observer: Arc<Observer>, chance: Stream, plan: Plan) -> Self {
        Users {
            api,
            observer,
            chance,
            plan,
            desired: BTreeMap::new(),
            careful: None,
            crowded: false,
            metered: None,
            placed: None,
            following: None,
        }
    }

    /// The positions of their streams.
    pub fn positions(&self) -> [u64; 2] {
        let careful = self.careful.as_ref().map_or(0, Stream::position);
        [self.chance.position(), careful]
    }

    /// Draws from these positions on.
    pub fn go_to(&mut self, [chance, careful]: [u64; 2]) {
        self.chance.go_to(chance);
        if let Some(stream) = &mut self.careful {
            stream.go_to(careful);
        }
    }

    /// From now on some of their pods have the at-most-one annotation.
    pub fn use_at_most_one(&mut self, chance: Stream) {
        self.careful = Some(chance);
    }

    /// The annotations of a pod or a template.
    fn annotate(&mut self, pod: &mut Value) {
        if self.careful.as_mut().is_some_and(|chance| chance.per_mille(500)) {
            pod["metadata"]["annotations"][AT_MOST_ONE] = "true".into();
        }
    }

    /// A Service for each name of a workload with labels.
    pub async fn create_services(&mut self) -> Result<(), Error> {
        for (prefix, cluster_ip) in [("web", None), ("db", Some("None"))] {
            for number in 1..=workloads::NAMES {
                let name = format!("{prefix}{number}");
                self.note(format!("create services {name}"));
                let service = json!({
                    "metadata": {"namespace": NAMESPACE, "name": name},
                    "spec": {"selector": {"app": name}, "ports": [{"port": 80}], "clusterIP": cluster_ip},
                });
                self.create(&registry::SERVICE, service).await?;
            }
        }
        Ok(())
    }

    /// Deletes all pods of a Service at once: for some time all its endpoints are terminating.
    pub async fn delete_endpoints(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let app = format!("web{}", chance.between(1, workloads::NAMES));
        let options = ListOptions {
            namespace: NAMESPACE.into(),
            label_selector: format!("app={app}"),
            ..ListOptions::default()
        };
        let grace = chance.per_mille(300).then_some(5);
        for pod in self.api.list(&registry::POD, options).await?.items {
            unless_late(self.delete(&pod, grace).await)?;
        }
        Ok(())
    }

    /// One user action.
    pub async fn act(&mut self) -> Result<(), Error> {
        let plan = self.plan;
        let can = |action| match action {
            UserAction::CreateWorkload => workloads::KINDS.iter().any(|(kind, _)| plan.draws(*kind)),
            UserAction::Switched(switch) => plan.draws(switch),
            UserAction::LetGo => true,
        };
        let Some(action) = self.chance.weighted(&ACTIONS, can) else {
            return Ok(());
        };
        let done = match action {
            UserAction::CreateWorkload => self.create_workload().await,
            UserAction::LetGo => self.drop_finalizers().await,
            UserAction::Switched(switch) if !plan.does(switch) => Ok(()),
            UserAction::Switched(switch) => match switch {
                Switch::Scale => self.scale().await,
                Switch::Roll => self.roll().await,
                Switch::DeleteWorkloads => self.delete_workload().await,
                Switch::DeletePods => self.delete_some_pod().await,
                Switch::ForceDelete => self.force().await,
                Switch::ReplacePods => self.replace_pod().await,
                Switch::DeletedNode => self.give_up_a_node().await,
                _ => self.create_pod().await,
            },
        };
        match done {
            // Another request was faster, or the object does not exist.
            Err(e) if e.is_not_found() || e.is_conflict() || e.is_already_exists() => Ok(()),
            other => other,
        }
    }

    fn note(&self, line: String) {
        self.observer.note(&format!("user: {line}"));
    }

    async fn create(&self, kind: &Kind, value: Value) -> Result<Arc<Object>, Error> {
        let bytes = serde_json::to_vec(&value).map_err(Error::internal)?;
        let object = kind.ops.decode(&bytes).map_err(Error::internal)?.object;
        self.api.create(kind, object).await
    }

    async fn create_workload(&mut self) -> Result<(), Error> {
        let plan = self.plan;
        match Workload::draw(&mut self.chance, |kind| plan.draws(kind)) {
            Some((kind, drawn)) if plan.does(kind) => self.create_drawn(drawn).await,
            _ => Ok(()),
        }
    }

    async fn create_drawn(&mut self, mut drawn: workloads::GeneratedWorkload) -> Result<(), Error> {
        self.annotate(&mut drawn.object["spec"]["template"]);
        self.fit(&mut drawn);
        let (name, desired) = (drawn.name.clone(), drawn.pods);
        self.note(format!(
            "create {} {name}: {}",
            drawn.workload.kind().plural(),
            drawn.summary
        ));
        self.create(drawn.workload.kind(), drawn.object).await?;
        self.desired.insert((drawn.workload, name), desired);
        Ok(())
    }

    /// A desired workload of a kind that the filter allows.
    fn some(&mut self, asked: impl Fn(Workload) -> bool) -> Option<(Workload, String)> {
        let keys = self.desired.keys().filter(|(workload, _)| asked(*workload));
        let keys: Vec<_> = keys.cloned().collect();
        self.chance.pick(&keys).cloned()
    }

    async fn scale(&mut self) -> Result<(), Error> {
        let Some((workload, name)) = self.some(Workload::scales) else {
            return Ok(());
        };
        let replicas = self.chance.between(0, workloads::REPLICAS);
        self.note(format!("scale {name} to {replicas}"));
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        self.api
            .patch(workload.kind(), NAMESPACE, &name, "", patch)
            .await?;
        self.desired.insert((workload, name), replicas);
        Ok(())
    }

    async fn roll(&mut self) -> Result<(), Error> {
        let Some((workload, name)) = self.some(Workload::rolls) else {
            return Ok(());
        };
        let version = self.chance.between(1, 3);
        self.note(format!("roll {name} to v{version}"));
        let patch = Patch::Merge(json!({"spec": {"template": {"metadata": {"annotations": {
            "version": version.to_string(),
        }}}}}));
        let patched = self.api.patch(workload.kind(), NAMESPACE, &name, "", patch).await;
        patched.map(drop)
    }

    async fn delete_workload(&mut self) -> Result<(), Error> {
        let Some((workload, name)) = self.some(|w| w != Workload::Pod) else {
            return Ok(());
        };
        let foreground = self.chance.per_mille(400);
        self.note(format!("delete {name}, foreground: {foreground}"));
        let propagation = match foreground {
            true => Propagation::Foreground,
            false => Propagation::Background,
        };
        let options = DeleteOptions {
            propagation: Some(propagation),
            ..DeleteOptions::default()
        };
        self.desired.remove(&(workload, name.clone()));
        let deleted = self.api.delete(workload.kind(), NAMESPACE, &name, options).await;
        deleted.map(drop)
    }

    async fn create_pod(&mut self) -> Result<(), Error> {
        let name = workloads::pod_name(&mut self.chance);
        self.create_named(name).await
    }

    async fn create_named(&mut self, name: String) -> Result<(), Error> {
        let held = self.chance.per_mille(200).then_some(FINALIZER);
        let (mut pod, summary) = workloads::pod(&mut self.chance, &name, held);
        storage::give_disk(&name, &mut pod["spec"]);
        staging::give_volume(&name, &mut pod["spec"]);
        self.annotate(&mut pod);
        self.fit_bare(&mut pod["spec"]);
        self.note(format!("create {name}, which {summary}"));
        self.create(&registry::POD, pod).await?;
        self.desired.insert((Workload::Pod, name), 1);
        Ok(())
    }

    async fn list(&self, kind: &Kind) -> Result<Vec<Arc<Object>>, Error> {
        let options = ListOptions {
            namespace: NAMESPACE.into(),
            ..ListOptions::default()
        };
        Ok(self.api.list(kind, options).await?.items)
    }

    async fn pods(&self) -> Result<Vec<Arc<Object>>, Error> {
        self.list(&registry::POD).await
    }

    /// As `kubectl drain` for each pod: what its budget does not allow stays.
    async fn evict(&mut self, pod: &Object) -> Result<(), Error> {
        self.note(format!("evict {}", pod.name()));
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": NAMESPACE, "name": pod.name()},
            "deleteOptions": {"preconditions": {"uid": pod.uid()}},
        });
        let evicted = self
            .api
            .create_subresource(&registry::POD, NAMESPACE, pod.name(), "eviction", eviction)
            .await;
        match evicted {
            Err(e) if e.code() == 429 => Ok(()),
            other => {
                unless_late(other)?;
                self.desired.remove(&(Workload::Pod, pod.name().to_string()));
                Ok(())
            }
        }
    }

    async fn delete(&mut self, pod: &Object, grace: Option<i64>) -> Result<(), Error> {
        self.note(format!("delete {} grace {grace:?}", pod.name()));
        self.desired.remove(&(Workload::Pod, pod.name().to_string()));
        if grace == Some(0) {
            self.observer.release(pod.uid());
        }
        let mut options = DeleteOptions {
            grace_period_seconds: grace,
            ..DeleteOptions::default()
        };
        options.preconditions.uid = Some(pod.uid().to_string());
        let deleted = self
            .api
            .delete(&registry::POD, NAMESPACE, pod.name(), options)
            .await;
        deleted.map(drop)
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

    /// Creates an object of the same name as soon as it is free.
    async fn replace_pod(&mut self) -> Result<(), Error> {
        let Some((_, name)) = self.some(|w| w == Workload::Pod) else {
            return Ok(());
        };
        let pod = self.api.get(&registry::POD, NAMESPACE, &name).await?;
        self.delete(&pod, None).await?;
        for _ in 0..50 {
            match self.create_named(name.clone()).await {
                Err(e) if e.is_already_exists() => sleep(Duration::from_millis(100)).await,
                other => return other,
            }
        }
        Ok(())
    }

    /// Deletes the Node of a node that is lost for good, whether it is or not (S5).
    async fn give_up_a_node(&mut self) -> Result<(), Error> {
        let nodes = self
            .api
            .list(&registry::NODE, ListOptions::default())
            .await?
            .items;
        let silent: Vec<_> = nodes
            .into_iter()
            .filter(|node| {
                let typed: Option<&k8s_openapi::api::core::v1::Node> = node.get();
                typed.is_some_and(|node| !crate::world::is_ready(node)) || self.chance.per_mille(250)
            })
            .collect();
        let Some(node) = self.chance.pick(&silent).cloned() else {
            return Ok(());
        };
        self.note(format!("delete node {}", node.name()));
        self.observer
            .strikes(Switch::DeletedNode, Scope::Node(node.name()));
        let deleted = self
            .api
            .delete(&registry::NODE, "", node.name(), DeleteOptions::default())
            .await;
        deleted.map(drop)
    }

    /// Removes the finalizers of objects that wait for nothing else.
    pub async fn drop_finalizers(&mut self) -> Result<(), Error> {
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
            unless_late(patched)?;
        }
        Ok(())
    }
}

/// A user whose object was deleted or changed by another request gives up.
fn unless_late<T>(done: Result<T, Error>) -> Result<(), Error> {
    match done {
        Err(e) if !e.is_not_found() && !e.is_conflict() => Err(e),
        _ => Ok(()),
    }
}
