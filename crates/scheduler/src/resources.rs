//! Amounts of resources: allocatable on nodes, requested by pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_api::k8s_openapi;
use knarr_apimachinery::quantity::{Notation, Quantity};

/// The request that a container without one counts with in scores (not in filters).
pub const DEFAULT_MILLI_CPU: i64 = 100;
pub const DEFAULT_MEMORY_BYTES: i64 = 200 * 1024 * 1024;

const CPU: &str = "cpu";
const MEMORY: &str = "memory";
const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
const PODS: &str = "pods";

/// A list of quantities in an object.
pub type ResourceList = BTreeMap<String, ApiQuantity>;

/// One amount of each resource. `pods` is set on nodes only.
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
    /// Quantities that do not parse count as zero (validation rejects them).
    pub fn from_list(list: &ResourceList) -> Self {
        let mut resources = Resources::default();
        for (name, quantity) in list {
            let quantity = Quantity::parse(&quantity.0).unwrap_or_default();
            *resources.entry(name) = in_units(name, quantity);
        }
        resources
    }

    /// The amount of a resource, to be changed.
    pub(crate) fn entry(&mut self, name: &str) -> &mut i64 {
        match name {
            CPU => &mut self.milli_cpu,
            MEMORY => &mut self.memory_bytes,
            EPHEMERAL_STORAGE => &mut self.ephemeral_storage_bytes,
            PODS => &mut self.pods,
            _ => self.scalars.entry(name.to_string()).or_default(),
        }
    }

    /// As [`Resources::from_list`] counts it.
    pub fn get(&self, name: &str) -> i64 {
        match name {
            CPU => self.milli_cpu,
            MEMORY => self.memory_bytes,
            EPHEMERAL_STORAGE => self.ephemeral_storage_bytes,
            PODS => self.pods,
            _ => self.scalars.get(name).copied().unwrap_or(0),
        }
    }

    /// Whether it has less of any resource than the other.
    pub fn less_of_any(&self, other: &Resources) -> bool {
        self.milli_cpu < other.milli_cpu
            || self.memory_bytes < other.memory_bytes
            || self.ephemeral_storage_bytes < other.ephemeral_storage_bytes
            || other
                .scalars
                .iter()
                .any(|(name, amount)| self.get(name) < *amount)
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

    /// Whether a sum has saturated: what was added cannot be subtracted again.
    pub fn is_saturated(&self) -> bool {
        let own = [
            self.milli_cpu,
            self.memory_bytes,
            self.ephemeral_storage_bytes,
            self.pods,
        ];
        own.iter()
            .chain(self.scalars.values())
            .any(|amount| *amount == i64::MAX)
    }
}

/// Quantities while they are summed: exactly, and rounded up once in the end, as in kube-scheduler.
#[derive(Clone, Debug, Default)]
struct Amounts(BTreeMap<String, Quantity>);

impl Amounts {
    fn from_list(list: &ResourceList) -> Self {
        let amount = |q: &ApiQuantity| Quantity::parse(&q.0).unwrap_or_default();
        Amounts(list.iter().map(|(name, q)| (name.clone(), amount(q))).collect())
    }

    fn add(&mut self, other: &Amounts) {
        for (name, amount) in &other.0 {
            *self.0.entry(name.clone()).or_default() += *amount;
        }
    }

    fn max(&mut self, other: &Amounts) {
        for (name, amount) in &other.0 {
            let mine = self.0.entry(name.clone()).or_default();
            *mine = (*mine).max(*amount);
        }
    }

    /// The pod-level request replaces the sum of the containers.
    fn replace(&mut self, list: &ResourceList) {
        let given = Amounts::from_list(list).0.into_iter();
        self.0.extend(given.filter(|(name, _)| is_pod_level(name)));
    }

    fn rounded(&self) -> Resources {
        let mut resources = Resources::default();
        for (name, amount) in &self.0 {
            *resources.entry(name) = in_units(name, *amount);
        }
        resources
    }
}

/// Millicores, bytes, or whole devices.
fn in_units(name: &str, amount: Quantity) -> i64 {
    match name {
        CPU => amount.milli_value(),
        _ => amount.value(),
    }
}

/// How the requests of a pod are summed (PodResourcesOptions).
#[derive(Clone, Copy, Debug, Default)]
struct RequestOptions {
    /// Whether a container without a request counts with [`DEFAULT_MILLI_CPU`].
    fill_in_cpu: bool,
    fill_in_memory: bool,
    /// Whether the resources in the containers' status count, where they are more than the spec's.
    status: bool,
    /// Whether pod-level requests replace those of the containers.
    pod_level: bool,
}

fn max_of_lists(lists: &[Option<&ResourceList>]) -> ResourceList {
    let mut all = ResourceList::new();
    for (name, quantity) in lists.iter().flatten().flat_map(|list| list.iter()) {
        let value = |q: &ApiQuantity| Quantity::parse(&q.0).unwrap_or_default();
        match all.get(name) {
            Some(have) if value(have) >= value(quantity) => {}
            _ => {
                all.insert(name.clone(), quantity.clone());
            }
        }
    }
    all
}

/// Whether the kubelet has rejected the resize of the pod (PodResizePending, Infeasible), so that the pod does not
/// get what its spec says.
fn resize_is_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let mut pending = conditions.filter(|c| c.type_ == "PodResizePending");
    pending
        .next()
        .is_some_and(|c| c.reason.as_deref() == Some("Infeasible"))
}

fn of_list(list: &ResourceList, options: RequestOptions) -> Amounts {
    let mut amounts = Amounts::from_list(list);
    if options.fill_in_cpu && !list.contains_key(CPU) {
        let cpu = Quantity::from_milli(DEFAULT_MILLI_CPU, Notation::DecimalSi);
        amounts.0.insert(CPU.into(), cpu);
    }
    if options.fill_in_memory && !list.contains_key(MEMORY) {
        let memory = Quantity::from_value(DEFAULT_MEMORY_BYTES, Notation::BinarySi);
        amounts.0.insert(MEMORY.into(), memory);
    }
    amounts
}

fn of_container(pod: &Pod, container: &Container, options: RequestOptions, from_status: bool) -> Amounts {
    let empty = ResourceList::new();
    let spec = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let given = pod.status.as_ref().filter(|_| options.status && from_status);
    let given = given.and_then(|status| {
        let all = status.container_statuses.iter().flatten();
        let mut all = all.chain(status.init_container_statuses.iter().flatten());
        all.find(|s| s.name == container.name)
    });
    if let Some(given) = given
        && let Some(actuated) = &given.resources
    {
        let spec = spec.filter(|_| !resize_is_infeasible(pod));
        let lists = [
            spec,
            actuated.requests.as_ref(),
            given.allocated_resources.as_ref(),
        ];
        return of_list(&max_of_lists(&lists), options);
    }
    of_list(spec.unwrap_or(&empty), options)
}

/// The effective requests of a pod: all containers and sidecars, or an init container with the sidecars before it,
/// whichever is more; pod-level requests replace them, and the overhead is added.
fn requests(pod: &Pod, options: RequestOptions) -> Resources {
    let Some(spec) = &pod.spec else {
        return Resources::default();
    };
    let mut running = Amounts::default();
    for container in &spec.containers {
        running.add(&of_container(pod, container, options, true));
    }
    let mut sidecars = Amounts::default();
    let mut starting = Amounts::default();
    for container in spec.init_containers.iter().flatten() {
        let is_sidecar = container.restart_policy.as_deref() == Some("Always");
        let mut needs = of_container(pod, container, options, is_sidecar);
        if is_sidecar {
            running.add(&needs);
            sidecars.add(&needs);
            needs = sidecars.clone();
        } else {
            needs.add(&sidecars);
        }
        starting.max(&needs);
    }
    running.max(&starting);
    if let Some(requests) = pod_requests(pod).filter(|_| options.pod_level) {
        let status = pod.status.as_ref().filter(|_| options.status);
        match status.and_then(|s| s.resources.as_ref().map(|r| (s, r))) {
            Some((status, actuated)) => {
                let wanted = Some(requests).filter(|_| !resize_is_infeasible(pod));
                let lists = [
                    wanted,
                    actuated.requests.as_ref(),
                    status.allocated_resources.as_ref(),
                ];
                let mut given = max_of_lists(&lists);
                given.retain(|name, _| requests.contains_key(name));
                running.replace(&given);
            }
            None => running.replace(requests),
        }
    }
    if let Some(overhead) = &spec.overhead {
        running.add(&Amounts::from_list(overhead));
    }
    let mut rounded = running.rounded();
    rounded.scalars.retain(|_, amount| *amount != 0);
    rounded
}

/// The pod-level requests.
fn pod_requests(pod: &Pod) -> Option<&ResourceList> {
    pod.spec.as_ref()?.resources.as_ref()?.requests.as_ref()
}

fn names(pod: &Pod, resource: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let mut lists = containers.filter_map(|c| c.resources.as_ref()?.requests.as_ref());
    lists.any(|l| l.contains_key(resource))
        || pod_requests(pod).is_some_and(|l| l.contains_key(resource))
        || spec.overhead.as_ref().is_some_and(|l| l.contains_key(resource))
}

/// CPU and memory, with defaults for containers without requests, for scoring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NonZeroRequests {
    pub milli_cpu: i64,
    pub memory_bytes: i64,
}

impl NonZeroRequests {
    pub fn add(&mut self, other: NonZeroRequests) {
        self.milli_cpu = self.milli_cpu.saturating_add(other.milli_cpu);
        self.memory_bytes = self.memory_bytes.saturating_add(other.memory_bytes);
    }

    pub fn subtract(&mut self, other: NonZeroRequests) {
        self.milli_cpu = self.milli_cpu.saturating_sub(other.milli_cpu);
        self.memory_bytes = self.memory_bytes.saturating_sub(other.memory_bytes);
    }

    /// As [`Resources::is_saturated`].
    pub fn is_saturated(&self) -> bool {
        self.milli_cpu == i64::MAX || self.memory_bytes == i64::MAX
    }

    fn of(resources: &Resources) -> Self {
        NonZeroRequests {
            milli_cpu: resources.milli_cpu,
            memory_bytes: resources.memory_bytes,
        }
    }
}

/// The requests of one pod, in the three ways in which they are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// What must be free on the node.
    pub resources: Resources,
    /// What an assigned pod adds to its node for scoring.
    pub assigned: NonZeroRequests,
    /// What the incoming pod adds for scoring: kube-scheduler ignores pod-level requests here.
    pub incoming: NonZeroRequests,
}

impl Requests {
    /// `assigned`: the pod is assigned to a node, so the resources in its status count.
    pub fn of(pod: &Pod, assigned: bool) -> Self {
        let plain = RequestOptions {
            status: assigned,
            pod_level: true,
            ..RequestOptions::default()
        };
        let resources = requests(pod, plain);
        let pod_level = pod_requests(pod).is_some_and(|list| list.keys().any(|name| is_pod_level(name)));
        let defaulted = RequestOptions {
            fill_in_cpu: !(pod_level && names(pod, CPU)),
            fill_in_memory: !(pod_level && names(pod, MEMORY)),
            ..plain
        };
        let with_defaults = requests(pod, defaulted);
        let for_incoming = RequestOptions {
            fill_in_cpu: true,
            fill_in_memory: true,
            pod_level: false,
            ..plain
        };
        Requests {
            resources,
            assigned: NonZeroRequests::of(&with_defaults),
            incoming: if pod_level {
                NonZeroRequests::of(&requests(pod, for_incoming))
            } else {
                NonZeroRequests::of(&with_defaults)
            },
        }
    }

    /// Whether the pod's status may change its requests.
    pub fn depends_on_status(pod: &Pod) -> bool {
        pod.status.as_ref().is_some_and(|s| {
            let mut all = s.container_statuses.iter().flatten();
            let mut init = s.init_container_statuses.iter().flatten();
            s.resources.is_some() || all.any(|c| c.resources.is_some()) || init.any(|c| c.resources.is_some())
        })
    }
}

/// The resources that pod-level requests support.
fn is_pod_level(name: &str) -> bool {
    name == CPU || name == MEMORY || name.starts_with("hugepages-")
}
