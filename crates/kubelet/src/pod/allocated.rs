//! The pod with its allocated or its actual resources in place of the spec's, and what its status reports of both.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::resources::{RequirementKind, pod_resources};
use knarr_apimachinery::quantity::Quantity;

use super::allocation::same;
use super::{Container, Pod, PodPhase};
use crate::resources;

/// CPU requests up to this are not visible in the cgroup (upstream: `MinShares`).
const LEAST_SHARE_MILLIS: i64 = 2;
/// CPU limits up to this are not visible in the cgroup (upstream: `MinQuotaPeriod`).
const LEAST_QUOTA_MILLIS: i64 = 10;

/// Resource amounts as the API has them.
pub(super) type List = BTreeMap<String, Wire>;

impl Pod {
    /// The object with its allocated resources in place of the spec's.
    pub fn allocated(&self) -> Arc<core::Pod> {
        self.with_resources(self.pod_level.allocated(), |c| c.resources.allocated())
    }

    /// The object with its actual resources in place of the spec's.
    pub fn actual(&self) -> Arc<core::Pod> {
        self.with_resources(self.pod_level.actual(), |c| {
            c.resources.actual().or(c.resources.allocated())
        })
    }

    fn with_resources(
        &self,
        pod_level: Option<&core::ResourceRequirements>,
        of: impl Fn(&Container) -> Option<&core::ResourceRequirements>,
    ) -> Arc<core::Pod> {
        if pod_level == self.object.spec().resources.as_ref() {
            let same =
                |c: &Container| of(c).is_none_or(|given| *given == self.object.desired_resources(&c.name));
            if self.containers.iter().all(same) {
                return self.object.get().clone();
            }
        }
        let mut object = (**self.object.get()).clone();
        let Some(spec) = &mut object.spec else {
            return self.object.get().clone();
        };
        spec.resources = pod_level.cloned();
        let listed = spec
            .init_containers
            .iter_mut()
            .flatten()
            .chain(&mut spec.containers);
        for container in listed {
            let known = self.containers.iter().find(|c| c.name == container.name);
            if let Some(given) = known.filter(|c| c.is_resizable()).and_then(&of) {
                container.resources = Some(given.clone());
            }
        }
        Arc::new(object)
    }

    /// Whether the spec's resources differ from the allocated ones.
    pub(super) fn resize_requested(&self) -> bool {
        let none = core::ResourceRequirements::default();
        let (pod_level, desired) = (self.pod_level.allocated(), self.object.spec().resources.as_ref());
        let differs = |c: &&Container| {
            let allocated = c.resources.allocated().filter(|_| c.is_resizable());
            allocated.is_some_and(|allocated| !same(allocated, &self.object.desired_resources(&c.name)))
        };
        !same(pod_level.unwrap_or(&none), desired.unwrap_or(&none))
            || self.containers.iter().any(|c| differs(&c))
    }

    /// Allocates the spec's resources.
    pub(super) fn allocate(&mut self) {
        self.pod_level.allocate(self.object.spec().resources.clone());
        for i in 0..self.containers.len() {
            if self.containers[i].is_resizable() {
                let container = &mut self.containers[i];
                let desired = self.object.desired_resources(&container.name);
                container.resources.allocate(Some(desired));
            }
        }
        if !self.sandboxes.is_ready() && !self.sandboxes.is_creating() {
            // Its cgroup is created with the new sandbox.
            self.pod_level.actuate();
        }
    }

    /// A container's allocated and actual resources, with the limits of the pod.
    pub(super) fn allocated_and_actual(
        &self,
        i: usize,
    ) -> (core::ResourceRequirements, core::ResourceRequirements) {
        let container = &self.containers[i];
        let allocated = container
            .resources
            .allocated()
            .cloned()
            .unwrap_or_else(|| self.object.desired_resources(&container.name));
        let actual = container
            .resources
            .actual()
            .cloned()
            .unwrap_or_else(|| allocated.clone());
        (
            resources::with_limits_of_pod(&allocated, self.pod_level.allocated()),
            resources::with_limits_of_pod(&actual, self.pod_level.actual()),
        )
    }

    /// `status.resources` and `status.allocatedResources`. Of a running pod the former is read from its cgroup:
    /// requests and limits that are too small for the cgroup, and limits that not all containers have, are not in it.
    pub(super) fn resources_status(&self, phase: PodPhase) -> (core::ResourceRequirements, Option<List>) {
        let wires = |amounts: BTreeMap<String, Quantity>| -> List {
            let wires = amounts.into_iter().map(|(name, amount)| (name, amount.to_wire()));
            wires.collect()
        };
        let none = core::PodSpec::default();
        let allocated = self.allocated();
        let spec = allocated.spec.as_ref().unwrap_or(&none);
        let requests = wires(pod_resources(spec, RequirementKind::Requests));
        let some = |list: List| Some(list).filter(|l| !l.is_empty());
        if phase != PodPhase::Running {
            let resources = core::ResourceRequirements {
                claims: None,
                limits: some(wires(pod_resources(spec, RequirementKind::Limits))),
                requests: some(requests.clone()),
            };
            return (resources, some(requests));
        }
        let actual = self.actual();
        let spec = actual.spec.as_ref().unwrap_or(&none);
        let own = spec.resources.clone().unwrap_or_default();
        let (mut promised, mut limits) = (own.requests.unwrap_or_default(), own.limits.unwrap_or_default());
        let sums = pod_resources(spec, RequirementKind::Requests);
        for (name, least_request, least_limit) in
            [("cpu", LEAST_SHARE_MILLIS, LEAST_QUOTA_MILLIS), ("memory", 0, 0)]
        {
            let request = sums.get(name).filter(|a| a.milli_value() > least_request);
            promised.extend(request.map(|a| (name.to_string(), a.to_wire())));
            let limit = resources::limit_of_all(&actual, name).filter(|a| a.milli_value() > least_limit);
            limits.extend(limit.map(|a| (name.to_string(), a.to_wire())));
        }
        let resources = core::ResourceRequirements {
            claims: None,
            limits: some(limits),
            requests: some(promised),
        };
        (resources, some(requests))
    }
}
