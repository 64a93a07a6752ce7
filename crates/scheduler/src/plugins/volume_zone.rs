//! VolumeZone: a volume that says its zone or region in its labels is used there only.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PersistentVolume;
use knarr_api::k8s_openapi;

use super::Refusal;
use crate::evaluation::Rejection;
use crate::node_info::NodeInfo;
use crate::pod_info::PodClass;
use crate::pod_volumes::PodVolumes;
use crate::volumes::{Volumes, class_of_claim, volume_of, waits_for_consumer};

pub const NAME: &str = "VolumeZone";

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
/// Labels that say where a volume or a node is, and what is read on a node that has them not.
const LABELS: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", ZONE),
    ("failure-domain.beta.kubernetes.io/region", REGION),
    (ZONE, ZONE),
    (REGION, REGION),
];

/// Several values in one label of a volume.
const SEPARATOR: &str = "__";

/// One label of a volume with the values it allows.
type Topology = (&'static str, &'static str, BTreeSet<String>);

/// Where a pod's volumes are.
#[derive(Debug, Default)]
pub struct Zones(Vec<Topology>);

fn topologies(volume: &PersistentVolume) -> Vec<Topology> {
    let labels = volume.metadata.labels.as_ref();
    let label = |(key, instead): &(&'static str, &'static str)| {
        let values = labels?.get(*key)?.split(SEPARATOR);
        let values: BTreeSet<String> = values.map(|v| v.trim().to_string()).collect();
        // A label with an empty value among others says nothing.
        (!values.contains("")).then_some((*key, *instead, values))
    };
    LABELS.iter().filter_map(label).collect()
}

impl Zones {
    pub fn new(volumes: &Volumes, pod: &PodClass, of: &PodVolumes) -> Result<Self, Rejection> {
        let refused = |words: String| Err(Rejection::Refused(Refusal::of_pod(NAME, words)));
        let mut all = Vec::new();
        for name in of.named() {
            if name.is_empty() {
                return refused("PersistentVolumeClaim had no name".into());
            }
            let Some(claim) = volumes.claim(pod.namespace(), name) else {
                return refused(format!("persistentvolumeclaim {name:?} not found"));
            };
            let bound_to = volume_of(claim);
            if !bound_to.is_empty() {
                match volumes.volume(bound_to) {
                    Some(volume) => all.extend(topologies(volume)),
                    None => return refused(format!("persistentvolume {bound_to:?} not found")),
                }
                continue;
            }
            let class = class_of_claim(claim);
            if class.is_empty() {
                return refused("PersistentVolumeClaim had no pv name and storageClass name".into());
            }
            match volumes.class(class) {
                None => return refused(format!("storageclass.storage.k8s.io {class:?} not found")),
                Some(of) if of.volume_binding_mode.is_none() => {
                    return refused(format!("VolumeBindingMode not set for StorageClass {class:?}"));
                }
                Some(of) if waits_for_consumer(of) => {}
                Some(_) => return refused("PersistentVolume had no name".into()),
            }
        }
        Ok(Zones(all))
    }

    pub fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    pub fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        // A cluster of one zone may not say so on its nodes.
        if !LABELS.iter().any(|(key, _)| node.label(key).is_some()) {
            return Ok(());
        }
        for (key, instead, values) in &self.0 {
            let here = node.label(key).or_else(|| node.label(instead));
            if !here.is_some_and(|value| values.contains(value)) {
                return Err(Refusal::of_node(NAME, "node(s) had no available volume zone"));
            }
        }
        Ok(())
    }
}

/// Whether a volume says another place than before.
pub fn volume_helps(before: Option<&PersistentVolume>, after: Option<&PersistentVolume>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => topologies(before) != topologies(after),
        (None, after) => after.is_some(),
        (Some(_), None) => false,
    }
}
