//! The owner of pods that users know, and which pods it has.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use knarr_api::k8s_openapi;
use serde::Serialize;

/// The owner of pods that users know: a ReplicaSet of a Deployment counts as the Deployment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Workload {
    pub namespace: String,
    pub kind: String,
    pub name: String,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// The controllers of ReplicaSets, by namespace and name: with them a pod is mapped to its workload.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owners(BTreeMap<(String, String), OwnerReference>);

impl Owners {
    /// Returns the controller of the ReplicaSet, if it has one.
    pub fn add<'a>(
        &mut self,
        namespace: &str,
        name: &str,
        set: &'a ReplicaSet,
    ) -> Option<&'a OwnerReference> {
        let owner = controller(set.metadata.owner_references.as_ref())?;
        self.0
            .insert((namespace.to_string(), name.to_string()), owner.clone());
        Some(owner)
    }

    /// `None`: the pod has no controller.
    pub fn workload(&self, pod: &Pod) -> Option<Workload> {
        let owner = controller(pod.metadata.owner_references.as_ref())?;
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let key = (namespace, owner.name.clone());
        let above = self.0.get(&key).filter(|_| owner.kind == "ReplicaSet");
        let owner = above.unwrap_or(owner);
        Some(Workload {
            namespace: key.0,
            kind: owner.kind.clone(),
            name: owner.name.clone(),
        })
    }
}

pub(crate) fn controller(references: Option<&Vec<OwnerReference>>) -> Option<&OwnerReference> {
    let mut all = references.into_iter().flatten();
    all.find(|owner| owner.controller == Some(true))
}
