//! What allocates CPUs, memory, devices and claims of the node's pods, and the loops that keep it current.
//!
//! Nothing is decided about a pod before they are restored and started.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, ResourceStatus};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::PodUid;
use knarr_client::{Api, TokioClock};
use knarr_kubelet::devicemanager::DeviceManager;
use knarr_kubelet::pod::Event;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{debug, error};

use super::conditions::NodeConditions;
use super::config::Config;
use super::inbox::PodEvents;
use super::node_resources::NodeResources;
use crate::containermanager::{self, ContainerManager, reconcile};
use crate::devicemanager::{self, Devices};
use crate::dra::{self, Dra};
use crate::host::Host;
use crate::plugins::watcher::{self, Handler, Watcher};
use crate::podresources::{self, ActivePods, PodResourcesServer};
use crate::runtime::Runtime;
use crate::untrusted_fs::Pool;
use crate::volumes::Volumes;

/// Between attempts to start the resource managers.
const RETRY: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct ResourceManagers {
    /// The pods that have not terminated, as they are allocated.
    pub active: Arc<ActivePods>,
    pub devices: Arc<Devices>,
    pub containers: Arc<ContainerManager>,
    pub dra: Arc<Dra>,
}

impl ResourceManagers {
    /// Also returns the uids of pods with a device whose health has changed.
    pub fn new(
        config: &Config,
        files: &Pool,
        api: Arc<dyn Api>,
        steady: TokioClock,
        node: &NodeResources,
    ) -> (Self, mpsc::UnboundedReceiver<PodUid>) {
        let (health_changed, health) = mpsc::unbounded_channel();
        let root = &config.root_dir;
        let node_name = config.node_name.clone();
        let changed = health_changed.clone();
        let dra = Dra::new(root, files.clone(), api, node_name, Arc::new(steady), changed);
        let devices = Devices::new(root, files.clone(), Arc::new(steady), health_changed);
        let (configuration, capacity) = (&config.configuration, &node.capacity);
        let containers = ContainerManager::new(root, files.clone(), devices.clone(), configuration, capacity);
        let managers = ResourceManagers {
            active: Arc::default(),
            devices,
            containers: Arc::new(containers),
            dra: Arc::new(dra),
        };
        (managers, health)
    }

    /// Restores what an earlier kubelet allocated, and starts the managers. While they cannot start, the node is not
    /// ready: an administrator drains it and removes the state, or corrects the configuration.
    pub async fn start(&self, conditions: &NodeConditions) {
        self.devices.restore().await;
        self.dra.restore().await;
        while let Err(error) = self.containers.start().await {
            let error = containermanager::shown(&error);
            error!(error, "cannot start the resource managers");
            conditions.notify();
            sleep(RETRY).await;
        }
        conditions.notify();
    }

    /// The loops of a node that is a host, once the managers have started.
    pub fn spawn_loops(
        self: &Arc<Self>,
        tasks: &mut JoinSet<()>,
        runtime: Arc<dyn Runtime>,
        root: PathBuf,
        plugins: Arc<Watcher>,
        health: mpsc::UnboundedReceiver<PodUid>,
        pod_events: PodEvents,
    ) {
        tasks.spawn(reconcile::run(
            self.containers.clone(),
            runtime,
            self.active.clone(),
        ));
        let drivers = self.dra.drivers();
        tasks.spawn(async move { drivers.run().await });
        tasks.spawn(self.devices.clone().run());
        tasks.spawn(plugins.run());
        let managers = self.clone();
        tasks.spawn(async move { managers.report_health(health, &pod_events).await });
        let server = PodResourcesServer {
            pods: self.active.clone(),
            devices: self.devices.clone(),
            containers: self.containers.clone(),
            dra: self.dra.clone(),
        };
        tasks.spawn(async move { podresources::run(server, &root).await });
    }

    /// What registers the plugins of this node.
    pub fn plugins(&self, config: &Config, volumes: &Volumes, host: Arc<dyn Host>) -> Arc<Watcher> {
        let handlers: Vec<Arc<dyn Handler>> = vec![
            Arc::new(volumes.csi_registrar()),
            Arc::new(devicemanager::Registrar(self.devices.clone())),
            Arc::new(dra::drivers::Registrar(self.dra.drivers())),
        ];
        Watcher::new(config.root_dir.join(watcher::REGISTRY), handlers, host)
    }

    /// Which devices a pod's containers have, by container, and whether they are healthy, for its status (KEP 4680); none
    /// for a pod that has no devices.
    pub fn health_of(&self, pod: &Pod) -> BTreeMap<String, Vec<ResourceStatus>> {
        let uid = &PodUid::of(&pod.metadata);
        let mut all = BTreeMap::new();
        for container in pod.spec.iter().flat_map(|s| &s.containers) {
            let own = |devices: &DeviceManager| devices.resources_status(uid, &container.name);
            let mut status = self.devices.with(own);
            match self.dra.resources_status(pod, container) {
                Ok(claims) => status.extend(claims),
                Err(error) => debug!(pod = pod.metadata.name, %error, "a claim is not in the pod's status"),
            }
            if !status.is_empty() {
                all.insert(container.name.clone(), status);
            }
        }
        all
    }

    /// Sends pods an event when the health of their devices changes, until dropped.
    async fn report_health(&self, mut changed: mpsc::UnboundedReceiver<PodUid>, pod_events: &PodEvents) {
        while let Some(uid) = changed.recv().await {
            let pod = self.active.lock().get(&uid).cloned();
            if let Some(pod) = pod {
                pod_events.send(uid, Event::ResourceHealth(self.health_of(&pod)));
            }
        }
    }

    /// A pod has terminated: its CPUs, memory and devices are free.
    pub fn release(&self, uid: &PodUid) {
        self.active.lock().remove(uid);
        self.containers.release(uid);
    }

    /// A pod is gone from the API.
    pub fn forget(&self, uid: &PodUid) {
        self.release(uid);
        self.dra.forget(uid);
    }
}
