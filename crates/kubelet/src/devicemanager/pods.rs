//! The devices that are assigned to pods' containers.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::resources::is_sidecar;
use knarr_apimachinery::ids::PodUid;

use super::options::{Allocation, ContainerOptions};

/// The devices of one resource that a container has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// By NUMA node; a device with several NUMA nodes is listed with each.
    pub devices: BTreeMap<i64, Vec<String>>,
    pub allocation: Allocation,
}

impl Assignment {
    pub fn ids(&self) -> BTreeSet<String> {
        self.devices.values().flatten().cloned().collect()
    }
}

type ByResource = BTreeMap<String, Assignment>;
type ByContainer = BTreeMap<String, ByResource>;

/// The assignments, by pod UID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned(BTreeMap<PodUid, ByContainer>);

impl Assigned {
    pub fn insert(&mut self, uid: &PodUid, container: &str, resource: &str, assignment: Assignment) {
        let containers = self.0.entry(uid.clone()).or_default();
        let resources = containers.entry(container.into()).or_default();
        resources.insert(resource.into(), assignment);
    }

    /// All assignments: pod, container, resource.
    pub fn iter(&self) -> impl Iterator<Item = (&PodUid, &str, &str, &Assignment)> {
        self.0.iter().flat_map(|(uid, containers)| {
            containers.iter().flat_map(move |(container, resources)| {
                let resources = resources.iter();
                resources.map(move |(name, of)| (uid, container.as_str(), name.as_str(), of))
            })
        })
    }

    /// A container's assignments, by resource.
    pub fn of_container(&self, uid: &PodUid, container: &str) -> Option<&ByResource> {
        self.0.get(uid)?.get(container)
    }

    pub fn options(&self, uid: &PodUid, container: &str) -> ContainerOptions {
        let resources = self.of_container(uid, container).into_iter().flatten();
        ContainerOptions::of(resources.map(|(_, assignment)| &assignment.allocation))
    }

    pub(super) fn has_pod(&self, uid: &PodUid) -> bool {
        self.0.contains_key(uid)
    }

    pub(super) fn has_resource(&self, resource: &str) -> bool {
        self.iter().any(|(_, _, name, _)| name == resource)
    }

    pub(super) fn remove(&mut self, uid: &PodUid) -> bool {
        self.0.remove(uid).is_some()
    }

    pub(super) fn retain_pods(&mut self, is_there: impl Fn(&str) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|uid, _| is_there(uid));
        before != self.0.len()
    }

    /// `None` if nothing was ever assigned.
    pub(super) fn devices_of(
        &self,
        uid: &PodUid,
        container: &str,
        resource: &str,
    ) -> Option<BTreeSet<String>> {
        self.of_container(uid, container)?
            .get(resource)
            .map(Assignment::ids)
    }

    pub(super) fn devices(&self, resource: &str) -> BTreeSet<String> {
        let all = self.iter().filter(|(_, _, name, _)| *name == resource);
        all.flat_map(|(_, _, _, assignment)| assignment.ids()).collect()
    }

    /// How many devices of each resource are assigned.
    pub(super) fn counts(&self) -> BTreeMap<String, usize> {
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (_, _, name, assignment) in self.iter() {
            all.entry(name.into()).or_default().extend(assignment.ids());
        }
        all.into_iter().map(|(name, ids)| (name, ids.len())).collect()
    }

    pub(super) fn pods_with(&self, resource: &str, matches: impl Fn(&str) -> bool) -> BTreeSet<PodUid> {
        let all = self.iter().filter(|(_, _, name, _)| *name == resource);
        let having = all.filter(|(_, _, _, assignment)| assignment.ids().iter().any(|id| matches(id)));
        having.map(|(uid, _, _, _)| uid.clone()).collect()
    }

    /// The devices that a container of the pod may reuse: those of init containers that have finished when it starts, unless
    /// another container reuses them.
    pub(super) fn reusable(&self, pod: &Pod, container: &str, resource: &str) -> BTreeSet<String> {
        let uid = PodUid::of(&pod.metadata);
        let Some(spec) = &pod.spec else {
            return BTreeSet::new();
        };
        let mut reusable = BTreeSet::new();
        let inits = spec.init_containers.iter().flatten().map(|c| (c, !is_sidecar(c)));
        for (other, ends) in inits.chain(spec.containers.iter().map(|c| (c, false))) {
            if other.name == container {
                break;
            }
            let devices = self.devices_of(&uid, &other.name, resource).unwrap_or_default();
            match ends {
                true => reusable.extend(devices),
                false => reusable.retain(|id| !devices.contains(id)),
            }
        }
        reusable
    }
}
