//! The device manager: the devices of device plugins (v1beta1), and the containers that have them.
//!
//! From the plugins' reports and the containers' requests it chooses devices; `knarr-node` calls the plugins. A device is
//! never assigned twice, except that a container may reuse those of a finished init container of its pod.

mod hints;
pub mod options;
mod pods;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod, ResourceHealth, ResourceStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::PodUid;
use knarr_apimachinery::quantity::Quantity;

pub use options::{Allocation, ContainerOptions, DeviceNode, Mount};
pub use pods::{Assigned, Assignment};

use crate::topologymanager::NumaMask;

/// How long a resource stays in the node's capacity after its plugin has stopped (`endpointStopGracePeriod`).
pub const STOP_GRACE: SignedDuration = SignedDuration::from_mins(5);
/// The NUMA node of a device without topology information.
pub const NO_NUMA_NODE: i64 = -1;

/// A device, as its plugin reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub is_healthy: bool,
    pub numa_nodes: Vec<i64>,
}

/// The optional calls that a plugin supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PluginOptions {
    pub pre_start_required: bool,
    pub get_preferred_allocation: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Running(PluginOptions),
    Stopped { since: Timestamp },
}

/// The devices of one resource.
#[derive(Clone, Debug)]
struct Resource {
    endpoint: Endpoint,
    /// The devices of the plugin's last report.
    devices: BTreeMap<String, Device>,
    /// The devices that can be allocated: none while the plugin is stopped, and until it reports again.
    healthy: BTreeSet<String>,
}

impl Resource {
    fn new(endpoint: Endpoint) -> Self {
        Resource {
            endpoint,
            devices: BTreeMap::new(),
            healthy: BTreeSet::new(),
        }
    }
}

/// A container's request of a resource.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub pod: &'a Pod,
    pub container: &'a str,
    pub resource: &'a str,
    pub count: usize,
    /// The NUMA nodes of the container's other resources, if they are aligned.
    pub affinity: Option<NumaMask>,
}

impl Request<'_> {
    fn uid(&self) -> PodUid {
        PodUid::of(&self.pod.metadata)
    }

    fn key(&self) -> (PodUid, String, String) {
        (self.uid(), self.container.into(), self.resource.into())
    }
}

/// What to do for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The container has its devices, or requests none.
    Nothing,
    /// Call the plugin's GetPreferredAllocation with these.
    Prefer {
        available: BTreeSet<String>,
        must_include: BTreeSet<String>,
        count: usize,
    },
    /// Call the plugin's Allocate with these. They are reserved until they are assigned or released.
    Allocate(BTreeSet<String>),
}

/// Why devices are not allocated, with v1.36's messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoneHealthy(String),
    #[error("previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}")]
    NoLongerHealthy(String),
    #[error(
        "pod {pod:?} container {container:?} changed request for resource {resource:?} from {from} to {to}"
    )]
    Changed {
        pod: String,
        container: String,
        resource: String,
        from: usize,
        to: usize,
    },
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
    )]
    Unavailable {
        resource: String,
        requested: usize,
        available: usize,
    },
}

/// Why PreStartContainer cannot be called, with v1.36's messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreStartError {
    #[error("endpoint not found in cache for a registered resource: {0}")]
    NoEndpoint(String),
    #[error(
        "no devices found allocated in local cache for pod {uid}, container {container}, resource {resource}"
    )]
    NoDevices {
        uid: PodUid,
        container: String,
        resource: String,
    },
}

/// The devices in the node's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    pub capacity: BTreeMap<String, usize>,
    pub allocatable: BTreeMap<String, usize>,
    /// Resources whose plugins have stopped for longer than the grace period.
    pub removed: BTreeSet<String>,
}

/// The device manager.
#[derive(Clone, Debug, Default)]
pub struct DeviceManager {
    resources: BTreeMap<String, Resource>,
    assigned: Assigned,
    /// Resources whose plugins have stopped for longer than the grace period: the node reports 0 of them.
    removed: BTreeSet<String>,
    /// Devices chosen for a pod, container and resource, whose Allocate call is in flight.
    reserved: BTreeMap<(PodUid, String, String), BTreeSet<String>>,
}

impl DeviceManager {
    /// The state of the checkpoint. Resources have no devices until their plugins register again.
    pub fn restored(resources: BTreeSet<String>, assigned: Assigned, now: Timestamp) -> Self {
        let stopped = |name| (name, Resource::new(Endpoint::Stopped { since: now }));
        DeviceManager {
            resources: resources.into_iter().map(stopped).collect(),
            assigned,
            ..DeviceManager::default()
        }
    }

    /// A plugin has registered. The known devices stay until it reports them.
    pub fn registered(&mut self, resource: &str, options: PluginOptions) {
        let endpoint = Endpoint::Running(options);
        self.removed.remove(resource);
        match self.resources.get_mut(resource) {
            Some(known) => known.endpoint = endpoint,
            None => drop(self.resources.insert(resource.into(), Resource::new(endpoint))),
        }
    }

    /// Applies a plugin's report; returns the pods with a device whose health changed.
    pub fn reported(&mut self, resource: &str, devices: BTreeMap<String, Device>) -> BTreeSet<PodUid> {
        let Some(known) = self.resources.get_mut(resource) else {
            return BTreeSet::new();
        };
        let healthy = devices.iter().filter(|(_, device)| device.is_healthy);
        known.healthy = healthy.map(|(id, _)| id.clone()).collect();
        let before = std::mem::replace(&mut known.devices, devices);
        let is_changed = |id: &str| {
            let health = |of: &BTreeMap<String, Device>| of.get(id).map(|d| d.is_healthy);
            health(&known.devices).is_some() && health(&before) != health(&known.devices)
        };
        self.assigned.pods_with(resource, is_changed)
    }

    /// The plugin has stopped: none of its devices can be allocated.
    pub fn stopped(&mut self, resource: &str, now: Timestamp) {
        if let Some(known) = self.resources.get_mut(resource) {
            known.endpoint = Endpoint::Stopped { since: now };
            known.healthy.clear();
        }
    }

    /// The registered resources, for the checkpoint.
    pub fn resources(&self) -> BTreeMap<String, BTreeSet<String>> {
        let resources = self.resources.iter();
        resources
            .map(|(name, r)| (name.clone(), r.healthy.clone()))
            .collect()
    }

    pub fn assigned(&self) -> &Assigned {
        &self.assigned
    }

    /// The healthy devices of each resource.
    pub fn allocatable_devices(&self) -> impl Iterator<Item = (&str, &str, &Device)> {
        self.resources.iter().flat_map(|(name, resource)| {
            let devices = resource.devices.iter();
            let healthy = devices.filter(|(id, _)| resource.healthy.contains(*id));
            healthy.map(|(id, device)| (name.as_str(), id.as_str(), device))
        })
    }

    /// Whether a device is healthy; an unknown one counts as healthy.
    pub fn is_healthy(&self, resource: &str, id: &str) -> bool {
        let devices = self.resources.get(resource).map(|r| &r.devices);
        devices.and_then(|d| d.get(id)).is_none_or(|d| d.is_healthy)
    }

    /// The devices in a container's status (KEP 4680).
    pub fn resources_status(&self, uid: &PodUid, container: &str) -> Vec<ResourceStatus> {
        let resources = self.assigned.of_container(uid, container).into_iter().flatten();
        let status = |(resource, of): (&String, &Assignment)| {
            let health = |id: String| ResourceHealth {
                health: Some(
                    if self.is_healthy(resource, &id) {
                        "Healthy"
                    } else {
                        "Unhealthy"
                    }
                    .into(),
                ),
                resource_id: id,
                message: None,
            };
            ResourceStatus {
                name: resource.clone(),
                resources: Some(of.ids().into_iter().map(health).collect()),
            }
        };
        resources.map(status).collect()
    }

    /// The node's capacity. A resource whose plugin has stopped for longer than the grace period is removed.
    pub fn capacity(&mut self, now: Timestamp) -> Capacity {
        let mut of = Capacity::default();
        let removed = &mut self.removed;
        self.resources.retain(|name, resource| {
            let is_over = match resource.endpoint {
                Endpoint::Stopped { since } => now.duration_since(since) > STOP_GRACE,
                Endpoint::Running(_) => false,
            };
            if is_over {
                removed.insert(name.clone());
                return false;
            }
            of.capacity.insert(name.clone(), resource.devices.len());
            of.allocatable.insert(name.clone(), resource.healthy.len());
            true
        });
        of.removed.clone_from(&self.removed);
        of
    }

    /// A container's requests of device plugin resources, by its limits (extended resources are not overcommitted).
    pub fn requests(&self, pod: &Pod, container: &Container) -> Vec<(String, usize)> {
        let limits = container.resources.iter().flat_map(|r| r.limits.iter().flatten());
        let counted = limits.filter_map(|(name, amount)| {
            let count = usize::try_from(Quantity::of(amount).ok()?.value()).ok()?;
            Some((name.clone(), count))
        });
        counted
            .filter(|(name, count)| *count > 0 && self.is_of_a_plugin(name))
            .filter(|(name, _)| !is_of_a_claim(pod, &container.name, name))
            .collect()
    }

    fn is_of_a_plugin(&self, resource: &str) -> bool {
        self.resources.contains_key(resource) || self.assigned.has_resource(resource)
    }

    /// Chooses the devices of a container. `preferred` is what the plugin answered to [`Choice::Prefer`].
    pub fn choose(
        &mut self,
        request: &Request<'_>,
        preferred: Option<&BTreeSet<String>>,
    ) -> Result<Choice, Error> {
        let resource = || request.resource.to_string();
        let own = self
            .assigned
            .devices_of(&request.uid(), request.container, request.resource);
        if let Some(own) = own.as_ref().filter(|own| own.len() != request.count) {
            return Err(Error::Changed {
                pod: request.uid().into(),
                container: request.container.into(),
                resource: resource(),
                from: own.len(),
                to: request.count,
            });
        }
        let Some(known) = self.resources.get(request.resource) else {
            return Err(Error::Unregistered(resource()));
        };
        let healthy = &known.healthy;
        if healthy.is_empty() {
            return Err(Error::NoneHealthy(resource()));
        }
        match own {
            Some(own) if !own.is_subset(healthy) => return Err(Error::NoLongerHealthy(resource())),
            Some(_) => return Ok(Choice::Nothing),
            None => {}
        }
        let reusable = self
            .assigned
            .reusable(request.pod, request.container, request.resource);
        let mut chosen: BTreeSet<String> = reusable.into_iter().take(request.count).collect();
        let missing = request.count - chosen.len();
        let in_use = self.in_use(request.resource);
        let available: BTreeSet<String> = healthy.difference(&in_use).cloned().collect();
        if available.len() < missing {
            return Err(Error::Unavailable {
                resource: resource(),
                requested: missing,
                available: available.len(),
            });
        }
        let near = known.by_affinity(&available, request.affinity);
        let mut from = available;
        match missing < near.aligned.len() {
            true => from = near.aligned.clone(),
            false => chosen.extend(near.aligned.iter().cloned()),
        }
        let asks = matches!(known.endpoint, Endpoint::Running(o) if o.get_preferred_allocation);
        let preferred = match preferred {
            None if asks && chosen.len() < request.count => {
                return Ok(Choice::Prefer {
                    available: from.union(&chosen).cloned().collect(),
                    must_include: chosen,
                    count: request.count,
                });
            }
            preferred => preferred.cloned().unwrap_or_default(),
        };
        let preferred: BTreeSet<String> = preferred.intersection(&from).cloned().collect();
        for more in [preferred, near.aligned, near.unaligned, near.others] {
            let missing = request.count - chosen.len();
            let more: Vec<String> = more.difference(&chosen).take(missing).cloned().collect();
            chosen.extend(more);
        }
        self.reserved.insert(request.key(), chosen.clone());
        Ok(Choice::Allocate(chosen))
    }

    /// All devices of a resource that a container has or will have.
    fn in_use(&self, resource: &str) -> BTreeSet<String> {
        let mut in_use = self.assigned.devices(resource);
        let reserved = self.reserved.iter();
        let reserved = reserved.filter(|((_, _, of), _)| of == resource);
        in_use.extend(reserved.flat_map(|(_, devices)| devices.iter().cloned()));
        in_use
    }

    /// The plugin has allocated the chosen devices: they are assigned to the container.
    pub fn assign(&mut self, request: &Request<'_>, allocation: Allocation) {
        let Some(chosen) = self.reserved.remove(&request.key()) else {
            return;
        };
        let known = self.resources.get(request.resource).map(|r| &r.devices);
        let mut devices: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for id in chosen {
            let nodes = known.and_then(|d| d.get(&id)).map(|d| d.numa_nodes.as_slice());
            match nodes {
                None | Some([]) => devices.entry(NO_NUMA_NODE).or_default().push(id),
                Some(nodes) => {
                    for node in nodes {
                        devices.entry(*node).or_default().push(id.clone());
                    }
                }
            }
        }
        let assignment = Assignment { devices, allocation };
        self.assigned
            .insert(&request.uid(), request.container, request.resource, assignment);
    }

    /// The plugin has not allocated the chosen devices.
    pub fn release_reserved(&mut self, request: &Request<'_>) {
        self.reserved.remove(&request.key());
    }

    /// Releases the devices of a terminated pod; returns whether it had any.
    pub fn release(&mut self, uid: &PodUid) -> bool {
        self.reserved.retain(|(of, _, _), _| of != uid);
        self.assigned.remove(uid)
    }

    /// Releases the devices of pods that do not exist any more; returns whether there were any.
    pub fn retain_pods(&mut self, is_there: impl Fn(&str) -> bool) -> bool {
        self.assigned.retain_pods(is_there)
    }

    /// The devices of a container whose plugin requires PreStartContainer.
    pub fn pre_start(
        &self,
        uid: &PodUid,
        container: &str,
        resource: &str,
    ) -> Result<Option<Vec<String>>, PreStartError> {
        let Some(known) = self.resources.get(resource) else {
            return Err(PreStartError::NoEndpoint(resource.into()));
        };
        if !matches!(known.endpoint, Endpoint::Running(o) if o.pre_start_required) {
            return Ok(None);
        }
        match self.assigned.devices_of(uid, container, resource) {
            Some(devices) => Ok(Some(devices.into_iter().collect())),
            None => Err(PreStartError::NoDevices {
                uid: uid.clone(),
                container: container.into(),
                resource: resource.into(),
            }),
        }
    }

    /// The least allocatable amounts of a node that has fewer devices than are assigned, so that its pods are admitted again.
    pub fn least_allocatable(&self, uid: &PodUid) -> BTreeMap<String, usize> {
        match self.assigned.has_pod(uid) {
            true => self.assigned.counts(),
            false => BTreeMap::new(),
        }
    }
}

/// Whether a ResourceClaim provides an extended resource of a container (KEP 5004).
fn is_of_a_claim(pod: &Pod, container: &str, resource: &str) -> bool {
    let status = pod.status.as_ref();
    let claim = status.and_then(|s| s.extended_resource_claim_status.as_ref());
    claim.is_some_and(|claim| {
        let mut mappings = claim.request_mappings.iter();
        mappings.any(|m| m.container_name == container && m.resource_name == resource)
    })
}
