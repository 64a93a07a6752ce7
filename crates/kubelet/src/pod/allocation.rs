//! What the node has set aside for a pod and its containers, and what they really have.
//!
//! Neither need be what the spec asks for while a resize is under way (`resize.rs`). What is made new, a container that
//! runs again among it, is made from the allocation ([`Pod::allocated`]): a resize that waits for room is not got by
//! crashing. After a restart of the kubelet both are what the API was told last.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::resources::{Side, asked};
use knarr_api::quantity::Quantity;

use super::container::{Container, Role, find_spec};
use super::{Pod, Sandbox};
use crate::resources;

/// The kernel counts shares of CPU from here on: of less, nothing can be told apart.
const LEAST_SHARE_MILLIS: i64 = 2;
/// Likewise of limits.
const LEAST_QUOTA_MILLIS: i64 = 10;

/// Of the pod as a whole (`spec.resources`).
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Whole {
    pub allocated: Option<core::ResourceRequirements>,
    pub actual: Option<core::ResourceRequirements>,
}

impl Whole {
    /// Of a pod that this kubelet begins to know: a running one has what was told of it, as far as it asks for it
    /// itself.
    pub fn recall(pod: &core::Pod) -> Self {
        let wanted = pod.spec.as_ref().and_then(|s| s.resources.clone());
        let status = pod.status.as_ref();
        let running = status.filter(|s| s.phase.as_deref() == Some("Running"));
        let told = running.and_then(|s| Some((s.allocated_resources.as_ref()?, s.resources.as_ref()?)));
        let (Some(mut own), Some((allocated, actual))) = (wanted.clone(), told) else {
            return Whole {
                allocated: wanted.clone(),
                actual: wanted,
            };
        };
        let overhead = pod
            .spec
            .as_ref()
            .and_then(|s| s.overhead.clone())
            .unwrap_or_default();
        for (list, told) in [
            (&mut own.requests, Some(allocated)),
            (&mut own.limits, actual.limits.as_ref()),
        ] {
            let list = list.get_or_insert_default();
            list.retain(|name, _| told.is_some_and(|told| told.contains_key(name)));
            for (name, amount) in list.iter_mut() {
                if let Some(told) = told.and_then(|told| told.get(name)) {
                    *amount = without(told, overhead.get(name));
                }
            }
        }
        own.requests = own.requests.filter(|l| !l.is_empty());
        own.limits = own.limits.filter(|l| !l.is_empty());
        Whole {
            allocated: Some(own.clone()),
            actual: Some(own),
        }
    }
}

fn without(told: &Wire, overhead: Option<&Wire>) -> Wire {
    let both = overhead.and_then(|o| Some((Quantity::of(told).ok()?, Quantity::of(o).ok()?)));
    both.map_or_else(|| told.clone(), |(told, overhead)| (told - overhead).to_wire())
}

impl Container {
    /// What it is given can be changed.
    pub(super) fn is_resizable(&self) -> bool {
        matches!(self.role, Role::Init | Role::Sidecar | Role::App)
    }
}

impl Pod {
    /// The object with what is allocated in place of what is asked for.
    pub fn allocated(&self) -> Arc<core::Pod> {
        self.given(&self.whole.allocated, |c| c.allocated.as_ref())
    }

    /// The object with what it has in place of what is asked for.
    pub fn actual(&self) -> Arc<core::Pod> {
        self.given(&self.whole.actual, |c| c.actual.as_ref().or(c.allocated.as_ref()))
    }

    fn given(
        &self,
        whole: &Option<core::ResourceRequirements>,
        of: impl Fn(&Container) -> Option<&core::ResourceRequirements>,
    ) -> Arc<core::Pod> {
        if !self.is_asked_for_more() && *whole == self.spec().resources {
            let same = |c: &Container| of(c).is_none_or(|given| *given == self.wanted(c));
            if self.containers.iter().all(same) {
                return self.object.clone();
            }
        }
        let mut object = (*self.object).clone();
        let Some(spec) = &mut object.spec else {
            return self.object.clone();
        };
        spec.resources.clone_from(whole);
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

    pub(super) fn wanted(&self, container: &Container) -> core::ResourceRequirements {
        find_spec(self.spec(), &container.name)
            .and_then(|c| c.resources.clone())
            .unwrap_or_default()
    }

    /// Whether the spec asks for something else than is allocated.
    pub(super) fn is_asked_for_more(&self) -> bool {
        let none = core::ResourceRequirements::default();
        let (whole, wanted) = (self.whole.allocated.as_ref(), self.spec().resources.as_ref());
        let differs = |c: &&Container| {
            let allocated = c.allocated.as_ref().filter(|_| c.is_resizable());
            allocated.is_some_and(|allocated| !same(allocated, &self.wanted(c)))
        };
        !same(whole.unwrap_or(&none), wanted.unwrap_or(&none)) || self.containers.iter().any(|c| differs(&c))
    }

    /// Everything that is asked for is allocated.
    pub(super) fn allocate(&mut self) {
        self.whole.allocated = self.spec().resources.clone();
        for i in 0..self.containers.len() {
            if self.containers[i].is_resizable() {
                self.containers[i].allocated = Some(self.wanted(&self.containers[i]));
            }
        }
        if !matches!(self.sandbox, Sandbox::Ready { .. } | Sandbox::Creating) {
            // Its group is made with it.
            self.whole.actual.clone_from(&self.whole.allocated);
        }
    }

    /// What a container is allocated and what it has, the pod's own limits included.
    pub(super) fn allocated_and_actual(
        &self,
        i: usize,
    ) -> (core::ResourceRequirements, core::ResourceRequirements) {
        let container = &self.containers[i];
        let allocated = container
            .allocated
            .clone()
            .unwrap_or_else(|| self.wanted(container));
        let actual = container.actual.clone().unwrap_or_else(|| allocated.clone());
        (
            resources::with_limits_of_pod(&allocated, self.whole.allocated.as_ref()),
            resources::with_limits_of_pod(&actual, self.whole.actual.as_ref()),
        )
    }

    /// `status.resources` and `status.allocatedResources`. Of a running pod the former is what its control group
    /// holds: what is too small for it, and limits that not all containers have, are not in it.
    pub(super) fn resources_status(&self, phase: &str) -> (core::ResourceRequirements, Option<List>) {
        let wires = |amounts: BTreeMap<String, Quantity>| -> List {
            let wires = amounts.into_iter().map(|(name, amount)| (name, amount.to_wire()));
            wires.collect()
        };
        let none = core::PodSpec::default();
        let allocated = self.allocated();
        let spec = allocated.spec.as_ref().unwrap_or(&none);
        let requests = wires(asked(spec, Side::Requests));
        let some = |list: List| Some(list).filter(|l| !l.is_empty());
        if phase != "Running" {
            let resources = core::ResourceRequirements {
                claims: None,
                limits: some(wires(asked(spec, Side::Limits))),
                requests: some(requests.clone()),
            };
            return (resources, some(requests));
        }
        let actual = self.actual();
        let spec = actual.spec.as_ref().unwrap_or(&none);
        let own = spec.resources.clone().unwrap_or_default();
        let (mut promised, mut limits) = (own.requests.unwrap_or_default(), own.limits.unwrap_or_default());
        let sums = asked(spec, Side::Requests);
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

pub(super) type List = BTreeMap<String, Wire>;

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
