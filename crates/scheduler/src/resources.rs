//! Amounts of resources, as nodes have them and pods ask for them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_api::k8s_openapi;
use knarr_api::quantity::Quantity;

/// What a container without a request counts for when nodes are compared (not when room is made).
pub const DEFAULT_MILLI_CPU: i64 = 100;
pub const DEFAULT_MEMORY_BYTES: i64 = 200 * 1024 * 1024;

const CPU: &str = "cpu";
const MEMORY: &str = "memory";
const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
const PODS: &str = "pods";

/// A list of amounts as it stands in an object.
pub type ResourceList = BTreeMap<String, ApiQuantity>;

/// One amount of each resource. `pods` is only a node's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub milli_cpu: i64,
    pub memory_bytes: i64,
    pub ephemeral_storage_bytes: i64,
    pub pods: i64,
    /// Huge pages and extended resources.
    pub scalars: BTreeMap<String, i64>,
}

impl Resources {
    /// Amounts that cannot be read count as none (validation keeps them out).
    pub fn from_list(list: &ResourceList) -> Self {
        let mut resources = Resources::default();
        for (name, quantity) in list {
            let quantity = Quantity::parse(&quantity.0).unwrap_or_default();
            *resources.entry(name) = if name == CPU {
                quantity.milli_value()
            } else {
                quantity.value()
            };
        }
        resources
    }

    fn entry(&mut self, name: &str) -> &mut i64 {
        match name {
            CPU => &mut self.milli_cpu,
            MEMORY => &mut self.memory_bytes,
            EPHEMERAL_STORAGE => &mut self.ephemeral_storage_bytes,
            PODS => &mut self.pods,
            _ => self.scalars.entry(name.to_string()).or_default(),
        }
    }

    pub fn is_nothing(&self) -> bool {
        self.milli_cpu == 0
            && self.memory_bytes == 0
            && self.ephemeral_storage_bytes == 0
            && self.scalars.is_empty()
    }

    fn combine(&mut self, other: &Resources, with: fn(i64, i64) -> i64) {
        self.milli_cpu = with(self.milli_cpu, other.milli_cpu);
        self.memory_bytes = with(self.memory_bytes, other.memory_bytes);
        self.ephemeral_storage_bytes = with(self.ephemeral_storage_bytes, other.ephemeral_storage_bytes);
        self.pods = with(self.pods, other.pods);
        for (name, amount) in &other.scalars {
            let mine = self.scalars.entry(name.clone()).or_default();
            *mine = with(*mine, *amount);
        }
    }

    pub fn add(&mut self, other: &Resources) {
        self.combine(other, i64::saturating_add);
    }

    pub fn subtract(&mut self, other: &Resources) {
        self.combine(other, i64::saturating_sub);
    }

    fn max(&mut self, other: &Resources) {
        self.combine(other, i64::max);
    }

    /// What the pod as a whole asks for replaces what its containers come to.
    fn replace(&mut self, list: &ResourceList) {
        let given = Resources::from_list(list);
        for name in list.keys() {
            let value = match name.as_str() {
                CPU => given.milli_cpu,
                MEMORY => given.memory_bytes,
                // Only these can be asked for by the pod as a whole.
                _ if name.starts_with("hugepages-") => given.scalars.get(name).copied().unwrap_or(0),
                _ => continue,
            };
            *self.entry(name) = value;
        }
    }
}

/// What a container asks for; `fill_in` as said at [`DEFAULT_MILLI_CPU`].
fn of_container(container: &Container, fill_in: bool) -> Resources {
    let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let empty = ResourceList::new();
    let list = requests.unwrap_or(&empty);
    let mut resources = Resources::from_list(list);
    if fill_in {
        if !list.contains_key(CPU) {
            resources.milli_cpu = DEFAULT_MILLI_CPU;
        }
        if !list.contains_key(MEMORY) {
            resources.memory_bytes = DEFAULT_MEMORY_BYTES;
        }
    }
    resources
}

/// What a pod needs at the moment it needs most: all containers and sidecars, or an init container with the sidecars
/// before it; with the pod's own requests in their place, and the overhead of its runtime on top.
pub fn requests(pod: &Pod, fill_in: bool) -> Resources {
    let Some(spec) = &pod.spec else {
        return Resources::default();
    };
    let mut running = Resources::default();
    for container in &spec.containers {
        running.add(&of_container(container, fill_in));
    }
    let mut sidecars = Resources::default();
    let mut starting = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        let mut needs = of_container(container, fill_in);
        if container.restart_policy.as_deref() == Some("Always") {
            running.add(&needs);
            sidecars.add(&needs);
            needs = sidecars.clone();
        } else {
            needs.add(&sidecars);
        }
        starting.max(&needs);
    }
    running.max(&starting);
    if let Some(requests) = spec.resources.as_ref().and_then(|r| r.requests.as_ref()) {
        running.replace(requests);
    }
    if let Some(overhead) = &spec.overhead {
        running.add(&Resources::from_list(overhead));
    }
    running.scalars.retain(|_, amount| *amount != 0);
    running
}
