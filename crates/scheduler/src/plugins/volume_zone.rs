//! VolumeZone: a volume with a zone or region label is used on nodes of that zone or region only.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PersistentVolume;
use knarr_api::k8s_openapi;
use knarr_api::well_known::ZONE;

use super::{PreFilterError, UnschedulableStatus};
use crate::node_info::NodeInfo;
use crate::pod_info::PodClass;
use crate::pod_volumes::PodVolumes;
use crate::volumes::{Volumes, class_of_claim, volume_of, waits_for_consumer};

pub const NAME: &str = "VolumeZone";

const REGION: &str = "topology.kubernetes.io/region";
/// The zone and region labels of volumes and nodes, and the label that is read instead on a node without the first.
const LABELS: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", ZONE),
    ("failure-domain.beta.kubernetes.io/region", REGION),
    (ZONE, ZONE),
    (REGION, REGION),
];

/// Separates several values in one label of a volume.
const SEPARATOR: &str = "__";

/// One label of a volume with the allowed values.
type Topology = (&'static str, &'static str, BTreeSet<String>);

/// The zones and regions of a pod's volumes.
#[derive(Debug, Default)]
pub struct Zones(Vec<Topology>);

fn topologies(volume: &PersistentVolume) -> Vec<Topology> {
    let labels = volume.metadata.labels.as_ref();
    let label = |(key, instead): &(&'static str, &'static str)| {
        let values = labels?.get(*key)?.split(SEPARATOR);
        let values: BTreeSet<String> = values.map(|v| v.trim().to_string()).collect();
        // An empty value makes the label ignored.
        (!values.contains("")).then_some((*key, *instead, values))
    };
    LABELS.iter().filter_map(label).collect()
}

impl Zones {
    pub fn new(volumes: &Volumes, pod: &PodClass, of: &PodVolumes) -> Result<Self, PreFilterError> {
        let rejected = |reason: String| {
            Err(PreFilterError::Unschedulable(UnschedulableStatus::unresolvable(
                NAME, reason,
            )))
        };
        let mut all = Vec::new();
        for name in of.named() {
            if name.is_empty() {
                return rejected("PersistentVolumeClaim had no name".into());
            }
            let Some(claim) = volumes.claim(pod.namespace(), name) else {
                return rejected(format!("persistentvolumeclaim {name:?} not found"));
            };
            let bound_to = volume_of(claim);
            if !bound_to.is_empty() {
                match volumes.volume(bound_to) {
                    Some(volume) => all.extend(topologies(volume)),
                    None => return rejected(format!("persistentvolume {bound_to:?} not found")),
                }
                continue;
            }
            let class = class_of_claim(claim);
            if class.is_empty() {
                return rejected("PersistentVolumeClaim had no pv name and storageClass name".into());
            }
            match volumes.class(class) {
                None => return rejected(format!("storageclass.storage.k8s.io {class:?} not found")),
                Some(of) if of.volume_binding_mode.is_none() => {
                    return rejected(format!("VolumeBindingMode not set for StorageClass {class:?}"));
                }
                Some(of) if waits_for_consumer(of) => {}
                Some(_) => return rejected("PersistentVolume had no name".into()),
            }
        }
        Ok(Zones(all))
    }

    pub fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    pub fn filter(&self, node: &NodeInfo) -> Result<(), UnschedulableStatus> {
        // The nodes of a cluster with one zone may have no labels.
        if !LABELS.iter().any(|(key, _)| node.label(key).is_some()) {
            return Ok(());
        }
        for (key, instead, values) in &self.0 {
            let here = node.label(key).or_else(|| node.label(instead));
            if !here.is_some_and(|value| values.contains(value)) {
                return Err(UnschedulableStatus::unresolvable(
                    NAME,
                    "node(s) had no available volume zone",
                ));
            }
        }
        Ok(())
    }
}

/// Whether the zone labels of a volume changed.
pub fn volume_helps(before: Option<&PersistentVolume>, after: Option<&PersistentVolume>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => topologies(before) != topologies(after),
        (None, after) => after.is_some(),
        (Some(_), None) => false,
    }
}
