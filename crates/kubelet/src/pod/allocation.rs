//! The allocated resources of a pod and its containers, and their actual ones (upstream: the allocation manager).
//!
//! Both may differ from the spec while a resize is in progress (`resize.rs`). Containers are created and restarted with
//! the allocated resources: a deferred resize does not happen by a crash. After a restart of the
//! kubelet both are taken from the last reported status.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::k8s_openapi;
use knarr_apimachinery::quantity::Quantity;

use super::PodPhase;
use crate::resources;

/// The resources of a container, or the pod-level ones of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Allocation {
    /// What the node has allocated.
    allocated: Option<core::ResourceRequirements>,
    /// What the cgroup has (actuated resources, KEP 1287).
    actual: Option<core::ResourceRequirements>,
}

impl Allocation {
    pub(super) fn allocated(&self) -> Option<&core::ResourceRequirements> {
        self.allocated.as_ref()
    }

    pub(super) fn actual(&self) -> Option<&core::ResourceRequirements> {
        self.actual.as_ref()
    }

    /// Allocates these resources in place of the earlier ones.
    pub(super) fn allocate(&mut self, desired: Option<core::ResourceRequirements>) {
        self.allocated = desired;
    }

    /// Of a container that this kubelet starts to manage: by its status in the API.
    pub(super) fn recall(&mut self, reported: Option<core::ResourceRequirements>) {
        self.allocated = reported;
    }

    /// Allocates to a container that has nothing allocated.
    pub(super) fn allocate_first(&mut self, desired: core::ResourceRequirements) {
        self.allocated.get_or_insert(desired);
    }

    /// The container is created with its allocated resources.
    pub(super) fn create(&mut self, desired: core::ResourceRequirements) {
        self.allocate_first(desired);
        self.actuate();
    }

    /// A container is found that runs with these resources.
    pub(super) fn adopt(&mut self, actual: core::ResourceRequirements) {
        self.allocated = Some(actual);
        self.actuate();
    }

    /// The cgroup has the allocated resources.
    pub(super) fn actuate(&mut self) {
        self.actual.clone_from(&self.allocated);
    }

    /// The pod-level ones of a pod that this kubelet starts to manage: a running pod has the resources of its status, as far as its spec sets
    /// pod-level ones.
    pub(super) fn of_pod(pod: &core::Pod) -> Self {
        let desired = pod.spec.as_ref().and_then(|s| s.resources.clone());
        let status = pod.status.as_ref();
        let running = status.filter(|s| PodPhase::of(s) == PodPhase::Running);
        let reported = running.and_then(|s| Some((s.allocated_resources.as_ref()?, s.resources.as_ref()?)));
        let (Some(mut own), Some((allocated, actual))) = (desired.clone(), reported) else {
            return Allocation {
                allocated: desired.clone(),
                actual: desired,
            };
        };
        let overhead = pod
            .spec
            .as_ref()
            .and_then(|s| s.overhead.clone())
            .unwrap_or_default();
        for (list, reported) in [
            (&mut own.requests, Some(allocated)),
            (&mut own.limits, actual.limits.as_ref()),
        ] {
            let list = list.get_or_insert_default();
            list.retain(|name, _| reported.is_some_and(|reported| reported.contains_key(name)));
            for (name, amount) in list.iter_mut() {
                if let Some(reported) = reported.and_then(|reported| reported.get(name)) {
                    *amount = without(reported, overhead.get(name));
                }
            }
        }
        own.requests = own.requests.filter(|l| !l.is_empty());
        own.limits = own.limits.filter(|l| !l.is_empty());
        Allocation {
            allocated: Some(own.clone()),
            actual: Some(own),
        }
    }
}

fn without(reported: &Wire, overhead: Option<&Wire>) -> Wire {
    let both = overhead.and_then(|o| Some((Quantity::of(reported).ok()?, Quantity::of(o).ok()?)));
    both.map_or_else(
        || reported.clone(),
        |(reported, overhead)| (reported - overhead).to_wire(),
    )
}

/// Equal amounts, however they are written.
pub(super) fn same(one: &core::ResourceRequirements, other: &core::ResourceRequirements) -> bool {
    let amounts = |r: &core::ResourceRequirements| {
        (
            resources::amounts(r.requests.as_ref()),
            resources::amounts(r.limits.as_ref()),
        )
    };
    amounts(one) == amounts(other)
}
