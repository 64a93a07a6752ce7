//! The shared pool, and the exclusive CPUs of containers.

use std::collections::BTreeMap;

use knarr_apimachinery::ids::PodUid;

use super::cpuset::{self, CpuSet};

/// The CPU manager's state. Assignments are by pod UID and container name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The shared pool. Reserved CPUs are in it unless they are strictly reserved.
    pub default: CpuSet,
    pub assigned: BTreeMap<PodUid, BTreeMap<String, CpuSet>>,
}

impl State {
    pub fn of_container(&self, uid: &PodUid, container: &str) -> Option<&CpuSet> {
        self.assigned.get(uid)?.get(container)
    }

    pub fn assign(&mut self, uid: &PodUid, container: &str, cpus: CpuSet) {
        self.default.retain(|cpu| !cpus.contains(cpu));
        let containers = self.assigned.entry(uid.clone()).or_default();
        containers.insert(container.into(), cpus);
    }

    /// Returns a pod's CPUs to the shared pool; returns whether it had any.
    pub fn release(&mut self, uid: &PodUid) -> bool {
        let released = self.assigned.remove(uid);
        let is_new = released.is_some();
        self.default
            .extend(released.into_iter().flat_map(BTreeMap::into_values).flatten());
        is_new
    }

    /// All exclusive CPUs.
    pub fn exclusive(&self) -> CpuSet {
        let sets = self.assigned.values().flat_map(BTreeMap::values);
        sets.flatten().copied().collect()
    }
}

/// Why a checkpoint's state does not match this node, with v1.36's messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("default cpuset cannot be empty")]
    EmptyDefault,
    #[error("not all reserved cpus: {reserved:?} are present in defaultCpuSet: {default:?}")]
    ReservedMissing { reserved: String, default: String },
    #[error("some of strictly reserved cpus: {reserved:?} are present in defaultCpuSet: {default:?}")]
    ReservedShared { reserved: String, default: String },
    #[error("pod: {uid}, container: {container} cpuset: {cpus:?} overlaps with default cpuset {default:?}")]
    Overlap {
        uid: PodUid,
        container: String,
        cpus: String,
        default: String,
    },
    #[error("current set of available CPUs {available:?} doesn't match with CPUs in state {known:?}")]
    OtherCpus { available: String, known: String },
}

impl State {
    /// Checks a restored state against the node; an empty one becomes that of a node without pods.
    pub(super) fn validated(
        mut self,
        all: &CpuSet,
        reserved: &CpuSet,
        strict: bool,
    ) -> Result<State, StateError> {
        if self.default.is_empty() {
            if !self.assigned.is_empty() {
                return Err(StateError::EmptyDefault);
            }
            self.default = match strict {
                true => all.difference(reserved).copied().collect(),
                false => all.clone(),
            };
            return Ok(self);
        }
        let default = || cpuset::format(&self.default);
        let shared: CpuSet = reserved.intersection(&self.default).copied().collect();
        if strict && !shared.is_empty() {
            return Err(StateError::ReservedShared {
                reserved: cpuset::format(&shared),
                default: default(),
            });
        }
        if !strict && shared != *reserved {
            return Err(StateError::ReservedMissing {
                reserved: cpuset::format(reserved),
                default: default(),
            });
        }
        for (uid, containers) in &self.assigned {
            if let Some((container, cpus)) = containers.iter().find(|(_, c)| !c.is_disjoint(&self.default)) {
                return Err(StateError::Overlap {
                    uid: uid.clone(),
                    container: container.clone(),
                    cpus: cpuset::format(cpus),
                    default: default(),
                });
            }
        }
        let known: CpuSet = self.default.union(&self.exclusive()).copied().collect();
        // Strictly reserved CPUs are in no set.
        let mut expected = all.clone();
        expected.retain(|cpu| !strict || !reserved.contains(cpu));
        match known == expected {
            true => Ok(self),
            false => Err(StateError::OtherCpus {
                available: cpuset::format(&expected),
                known: cpuset::format(&known),
            }),
        }
    }
}
