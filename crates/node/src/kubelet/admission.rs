//! Whether this node admits a new or resized pod next to those that it has admitted, by what they are allocated and not
//! what they request. What is allocated is noted here by the pods' workers.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;
use knarr_apimachinery::Error;
use knarr_apimachinery::ids::PodUid;
use knarr_apimachinery::quantity::{Notation, Quantity};
use knarr_kubelet::admission::{self, Rejection};
use knarr_kubelet::preemption;
use parking_lot::Mutex;

use super::bound_pods::{BoundPods, SharedPod};
use super::conditions::NodeConditions;
use super::config::Config;
use super::own_node::OwnNode;
use super::resource_managers::ResourceManagers;
use super::resources;

type AllocatedPods = BTreeMap<PodUid, Arc<core::Pod>>;

/// See the module.
pub(super) struct PodAdmission {
    config: Arc<Config>,
    own_node: Arc<OwnNode>,
    pods: BoundPods,
    managers: Arc<ResourceManagers>,
    conditions: Arc<NodeConditions>,
    /// The pods as they are allocated, by uid: their specs may request more. Locked while a resize is decided: of two
    /// that do not fit together one succeeds.
    allocated: Mutex<AllocatedPods>,
}

impl PodAdmission {
    pub fn new(
        config: Arc<Config>,
        own_node: Arc<OwnNode>,
        pods: BoundPods,
        managers: Arc<ResourceManagers>,
        conditions: Arc<NodeConditions>,
    ) -> Self {
        PodAdmission {
            config,
            own_node,
            pods,
            managers,
            conditions,
            allocated: Mutex::default(),
        }
    }

    /// Reads the node's object, which others may have changed since this kubelet has seen it.
    pub async fn reread_node(&self) -> Result<(), Error> {
        self.own_node.read().await.map(drop)
    }

    /// The pod is allocated this.
    pub fn note_allocated(&self, uid: PodUid, pod: Arc<core::Pod>) {
        self.allocated.lock().insert(uid, pod);
    }

    pub fn forget(&self, uid: &str) {
        self.allocated.lock().remove(uid);
    }

    /// Returns the victims that have to terminate before the pod starts. `is_admitted` is of uids: those pods count
    /// also while their phase is Pending.
    pub fn admit(
        &self,
        pod: &core::Pod,
        is_admitted: impl Fn(&str) -> bool,
    ) -> Result<Vec<SharedPod>, Rejection> {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        if !matches!(phase, None | Some("Pending")) || pod.metadata.deletion_timestamp.is_some() {
            return Ok(Vec::new());
        }
        let best_effort = resources::qos(pod) == resources::Qos::BestEffort;
        knarr_kubelet::eviction::admit(pod, best_effort, &self.conditions.pressures())?;
        let sysctls = &self.config.configuration.allowed_unsafe_sysctls;
        knarr_kubelet::sysctl::admit(pod, sysctls)?;
        let counts = |other: &core::Pod| {
            let phase = other.status.as_ref().and_then(|s| s.phase.as_deref());
            let uid = other.metadata.uid.as_deref().unwrap_or("");
            let taken = is_admitted(uid) || phase == Some("Running");
            taken && !is_terminal(other)
        };
        let known = self.node_and_others(&self.allocated.lock(), pod, counts);
        let victims = match known {
            Some((node, others)) => {
                let candidates: Vec<&core::Pod> = others.iter().map(|other| &**other).collect();
                let victims = preemption::admit_with_preemption(pod, &node, &candidates)?;
                let whole = |victim: &core::Pod| {
                    others
                        .iter()
                        .find(|other| std::ptr::eq::<core::Pod>(&***other, victim))
                };
                victims
                    .into_iter()
                    .filter_map(|victim| whole(victim).cloned())
                    .collect()
            }
            None => Vec::new(),
        };
        knarr_kubelet::app_armor::admit(pod, || self.config.machine.has_app_armor())?;
        match self.conditions.is_shutting_down() {
            true => Err(knarr_kubelet::shutdown::rejection()),
            false => Ok(victims),
        }
    }

    /// Whether the node has enough for a pod's resized requests next to what the others are allocated. If so, it is
    /// allocated at once.
    pub fn admit_resize(&self, pod: &Arc<core::Pod>) -> Result<(), Rejection> {
        let mut allocated = self.allocated.lock();
        if let Some(before) = pod.metadata.uid.as_deref().and_then(|uid| allocated.get(uid)) {
            self.managers.containers.admit_resize(before, pod)?;
        }
        if let Some((node, others)) = self.node_and_others(&allocated, pod, |other| !is_terminal(other)) {
            let others: Vec<&core::Pod> = others.iter().map(|other| &**other).collect();
            admission::admit(pod, &node, &others)?;
        }
        allocated.insert(PodUid::of(&pod.metadata), pod.clone());
        Ok(())
    }

    /// The node and its other pods that count. `None` until its object has `allocatable`: until then no pod is bound to
    /// it.
    fn node_and_others(
        &self,
        allocated: &AllocatedPods,
        pod: &core::Pod,
        counts: impl Fn(&core::Pod) -> bool,
    ) -> Option<(Arc<core::Node>, Vec<SharedPod>)> {
        let has_allocatable =
            |node: &Arc<core::Node>| node.status.as_ref().is_some_and(|s| s.allocatable.is_some());
        let mut node = self.own_node.known().filter(has_allocatable)?;
        let uid = &PodUid::of(&pod.metadata);
        let least = self
            .managers
            .devices
            .with(|devices| devices.least_allocatable(uid));
        if !least.is_empty() {
            raise_allocatable(Arc::make_mut(&mut node), &least);
        }
        let others = self.pods.list().into_iter();
        let others = others.filter(|other| other.metadata.uid != pod.metadata.uid && counts(other));
        let others = others.map(|other| {
            let allocated = allocated.get(other.metadata.uid.as_deref().unwrap_or(""));
            match allocated.filter(|allocated| allocated.spec != other.spec) {
                Some(allocated) => {
                    let mut other = (*other).clone();
                    other.spec.clone_from(&allocated.spec);
                    SharedPod::Own(Arc::new(other))
                }
                None => SharedPod::Bound(other),
            }
        });
        Some((node, others.collect()))
    }
}

/// A pod with devices from before this kubelet started is admitted even if their plugin has not registered again.
fn raise_allocatable(node: &mut core::Node, least: &BTreeMap<String, usize>) {
    let status = node.status.get_or_insert_default();
    let allocatable = status.allocatable.get_or_insert_default();
    for (resource, count) in least {
        let least = i64::try_from(*count).unwrap_or(i64::MAX);
        let known = allocatable.get(resource).and_then(|q| Quantity::of(q).ok());
        if known.is_none_or(|known| known.value() < least) {
            let raised = Quantity::from_value(least, Notation::DecimalSi);
            allocatable.insert(resource.clone(), raised.to_wire());
        }
    }
}
