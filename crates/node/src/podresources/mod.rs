//! The pod-resources API (v1): which devices, claims, CPUs and memory the containers of this node have to themselves, for
//! monitoring agents and network plugins, at `pod-resources/kubelet.sock`.

pub mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::Request;
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::PodUid;
use knarr_kubelet::devicemanager::NO_NUMA_NODE;
use knarr_kubelet::dra::claim;
use knarr_kubelet::memorymanager::Block;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tonic::Status;
use tracing::warn;

use crate::containermanager::ContainerManager;
use crate::devicemanager::Devices;
use crate::dra::Dra;
use crate::plugins::Call;
use crate::plugins::serve::{self, Answer, Service};
use wire::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, CdiDevice, ClaimResource, ContainerDevices,
    ContainerMemory, ContainerResources, DynamicResource, GetPodResourcesRequest, GetPodResourcesResponse,
    ListPodResourcesRequest, ListPodResourcesResponse, NumaNode, PodResources, TopologyInfo,
};

/// In the kubelet's directory.
const DIRECTORY: &str = "pod-resources";
const SOCKET: &str = "kubelet.sock";
const MODE: u32 = 0o750;
/// Between attempts to listen.
const RETRY: Duration = Duration::from_secs(1);
/// Requests a second that are answered, and at once (v1.36's `DefaultQPS` and `DefaultBurstTokens`).
const QPS: f64 = 100.0;
const BURST: f64 = 10.0;

/// The pods that have not terminated, by uid.
pub type ActivePods = Mutex<BTreeMap<PodUid, Arc<Pod>>>;

/// See the module.
pub struct PodResourcesServer {
    pub pods: Arc<ActivePods>,
    pub devices: Arc<Devices>,
    pub containers: Arc<ContainerManager>,
    pub dra: Arc<Dra>,
}

/// Serves until dropped; `root` is the kubelet's directory.
pub async fn run(server: PodResourcesServer, root: &Path) {
    let directory = root.join(DIRECTORY);
    let listener = loop {
        match serve::listen(&directory, SOCKET, MODE) {
            Ok(listener) => break listener,
            Err(error) => {
                warn!(%error, directory = %directory.display(), "cannot serve the pod-resources API yet");
                sleep(RETRY).await;
            }
        }
    };
    let limited = RateLimited {
        server,
        tokens: Mutex::new((BURST, Instant::now())),
    };
    serve::serve(listener, Arc::new(limited)).await;
}

/// Answers so many requests only.
struct RateLimited {
    server: PodResourcesServer,
    /// What is left of the burst, and when that was so.
    tokens: Mutex<(f64, Instant)>,
}

impl RateLimited {
    fn admits(&self) -> bool {
        let mut tokens = self.tokens.lock();
        let now = Instant::now();
        let gained = now.duration_since(tokens.1).as_secs_f64() * QPS;
        *tokens = ((tokens.0 + gained).min(BURST), now);
        let admits = tokens.0 >= 1.0;
        if admits {
            tokens.0 -= 1.0;
        }
        admits
    }
}

#[async_trait]
impl Service for RateLimited {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        if !self.admits() {
            return Status::resource_exhausted("rejected by rate limit").into_http();
        }
        let server = &self.server;
        match request.uri().path() {
            ListPodResourcesRequest::PATH | wire::LIST_V1ALPHA1 => {
                serve::unary(request, |_: ListPodResourcesRequest| async { Ok(server.list()) }).await
            }
            AllocatableResourcesRequest::PATH => {
                serve::unary(request, |_: AllocatableResourcesRequest| async {
                    Ok(server.allocatable())
                })
                .await
            }
            GetPodResourcesRequest::PATH => {
                serve::unary(request, |request| async move { server.get(&request) }).await
            }
            _ => serve::unimplemented(&request),
        }
    }
}

impl PodResourcesServer {
    fn list(&self) -> ListPodResourcesResponse {
        let pods: Vec<Arc<Pod>> = self.pods.lock().values().cloned().collect();
        ListPodResourcesResponse {
            pod_resources: pods.iter().map(|pod| self.of_pod(pod)).collect(),
        }
    }

    fn get(&self, request: &GetPodResourcesRequest) -> Result<GetPodResourcesResponse, Status> {
        let (name, namespace) = (&request.pod_name, &request.pod_namespace);
        let found = {
            let pods = self.pods.lock();
            let is_requested = |pod: &&Arc<Pod>| {
                let meta = &pod.metadata;
                meta.name.as_ref() == Some(name) && meta.namespace.as_ref() == Some(namespace)
            };
            pods.values().find(is_requested).cloned()
        };
        match found {
            Some(pod) => Ok(GetPodResourcesResponse {
                pod_resources: Some(self.of_pod(&pod)),
            }),
            None => Err(Status::unknown(format!(
                "pod {name} in namespace {namespace} not found"
            ))),
        }
    }

    fn allocatable(&self) -> AllocatableResourcesResponse {
        let devices = self.devices.with(|devices| {
            let all = devices.allocatable_devices();
            let one = |(resource, id, device): (&str, &str, &knarr_kubelet::devicemanager::Device)| {
                of_device(resource, id, device.numa_nodes.iter().copied())
            };
            all.map(one).collect()
        });
        let (cpus, memory) = self.containers.allocatable();
        AllocatableResourcesResponse {
            devices,
            cpu_ids: cpus.into_iter().map(i64::from).collect(),
            memory: memory.into_iter().map(of_block).collect(),
        }
    }

    fn of_pod(&self, pod: &Pod) -> PodResources {
        let spec = pod.spec.iter();
        let containers = spec.flat_map(|spec| {
            let sidecars = spec.init_containers.iter().flatten();
            let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
            sidecars.chain(&spec.containers)
        });
        PodResources {
            name: pod.metadata.name.clone().unwrap_or_default(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            containers: containers
                .map(|container| self.of_container(pod, container))
                .collect(),
        }
    }

    fn of_container(&self, pod: &Pod, container: &Container) -> ContainerResources {
        let uid = &PodUid::of(&pod.metadata);
        let (cpus, memory) = self.containers.exclusive(uid, &container.name);
        ContainerResources {
            name: container.name.clone(),
            devices: self.devices_of(uid, &container.name),
            cpu_ids: cpus.into_iter().map(i64::from).collect(),
            memory: memory.into_iter().map(of_block).collect(),
            dynamic_resources: self.claims_of(pod, container),
        }
    }

    fn devices_of(&self, uid: &PodUid, container: &str) -> Vec<ContainerDevices> {
        self.devices.with(|devices| {
            let mut all = Vec::new();
            for (resource, assignment) in devices
                .assigned()
                .of_container(uid, container)
                .into_iter()
                .flatten()
            {
                let mut nodes: BTreeMap<&str, BTreeSet<i64>> = BTreeMap::new();
                for (node, ids) in &assignment.devices {
                    for id in ids {
                        let of = nodes.entry(id).or_default();
                        of.extend((*node != NO_NUMA_NODE).then_some(*node));
                    }
                }
                all.extend(
                    nodes
                        .into_iter()
                        .map(|(id, nodes)| of_device(resource, id, nodes)),
                );
            }
            all
        })
    }

    fn claims_of(&self, pod: &Pod, container: &Container) -> Vec<DynamicResource> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let names = match claim::of_container(pod, container) {
            Ok(names) => names,
            Err(error) => {
                warn!(pod = pod.metadata.name, %error, "cannot list the claims of a container");
                return Vec::new();
            }
        };
        self.dra.with(|claims| {
            let known = names.into_iter().filter_map(|name| {
                let claim = claims.get(namespace, &name)?;
                let drivers = claim.drivers.iter();
                let devices = drivers.flat_map(|(driver, devices)| devices.iter().map(move |d| (driver, d)));
                let resource = |(driver, device): (&String, &knarr_kubelet::dra::Device)| ClaimResource {
                    cdi_devices: {
                        let ids = device.cdi_device_ids.iter();
                        ids.map(|name| CdiDevice { name: name.clone() }).collect()
                    },
                    driver_name: driver.clone(),
                    pool_name: device.pool_name.clone(),
                    device_name: device.device_name.clone(),
                    share_id: device.share_id.clone(),
                };
                let claim_resources = devices.map(resource).collect();
                Some(DynamicResource {
                    claim_name: name,
                    claim_namespace: namespace.to_string(),
                    claim_resources,
                })
            });
            known.collect()
        })
    }
}

fn of_block(block: Block) -> ContainerMemory {
    let nodes = block.nodes.into_iter().map(|node| NumaNode { id: node.into() });
    ContainerMemory {
        memory_type: block.resource,
        size: block.bytes,
        topology: Some(TopologyInfo {
            nodes: nodes.collect(),
        }),
    }
}

fn of_device(resource: &str, id: &str, nodes: impl IntoIterator<Item = i64>) -> ContainerDevices {
    let nodes: Vec<NumaNode> = nodes.into_iter().map(|id| NumaNode { id }).collect();
    ContainerDevices {
        resource_name: resource.to_string(),
        device_ids: vec![id.to_string()],
        topology: (!nodes.is_empty()).then_some(TopologyInfo { nodes }),
    }
}
