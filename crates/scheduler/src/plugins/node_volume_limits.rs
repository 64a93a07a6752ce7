//! NodeVolumeLimits: a CSI driver attaches a limited number of volumes to a node.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::storage::v1::CSINode;
use knarr_api::k8s_openapi;

use super::UnschedulableStatus;
use crate::node_info::NodeInfo;
use crate::pod_info::PodClass;
use crate::pod_volumes::{Attachable, PodVolumes, attachable, migrated};
use crate::volumes::{Volumes, class_of_claim, volume_of};

pub const NAME: &str = "NodeVolumeLimits";

/// The volumes of a pod that are attached. kube-scheduler counts those of a CSI driver that replaces an in-tree
/// plugin only where the CSINode says so; that makes no difference here, because without a CSINode there is no limit.
#[derive(Debug, Default)]
pub struct Limits(BTreeSet<Attachable>);

/// The prefix of the name of a volume that is still to be provisioned; no driver's own names begin so.
const TO_BE_MADE: &str = "\u{0}";

/// The volumes of the claims and in-tree volumes of a pod.
fn collect(volumes: &Volumes, namespace: &str, of: &PodVolumes, mut add: impl FnMut(Attachable)) {
    for used in &of.claims {
        let Some(claim) = volumes.claim(namespace, &used.claim) else {
            continue;
        };
        if let Some(volume) = volumes.volume(volume_of(claim)) {
            if let Some(attachable) = attachable(volume) {
                add(attachable);
            }
            continue;
        }
        // A claim without a volume will get one of its class' driver.
        let Some(class) = volumes.class(class_of_claim(claim)) else {
            continue;
        };
        let driver = migrated(&class.provisioner).unwrap_or(&class.provisioner);
        add(Attachable {
            driver: driver.to_string(),
            handle: format!("{TO_BE_MADE}{namespace}/{}", used.claim),
        });
    }
    for attachable in &of.inline {
        add(attachable.clone());
    }
}

fn limits(node: &CSINode) -> impl Iterator<Item = (&str, i64)> {
    node.spec.drivers.iter().filter_map(|d| {
        let count = d.allocatable.as_ref()?.count?;
        Some((d.name.as_str(), i64::from(count)))
    })
}

impl Limits {
    pub fn new(volumes: &Volumes, pod: &PodClass, of: &PodVolumes) -> Self {
        let mut needs = BTreeSet::new();
        collect(volumes, pod.namespace(), of, |attachable| {
            needs.insert(attachable);
        });
        Limits(needs)
    }

    pub fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    pub fn filter(&self, volumes: &Volumes, node: &NodeInfo) -> Result<(), UnschedulableStatus> {
        // Without this object there is no limit.
        let Some(csi) = volumes.node(&node.name) else {
            return Ok(());
        };
        let limits: BTreeMap<&str, i64> = limits(csi)
            .filter(|(driver, _)| self.0.iter().any(|n| n.driver == *driver))
            .collect();
        if limits.is_empty() {
            return Ok(());
        }
        let attachments = volumes.attachments(&node.name);
        // No more volumes are attached than all of these together, and that is mostly few.
        let attached = node.groups().iter().map(|g| {
            let of = g.class.volumes.as_ref();
            of.map_or(0, |v| v.claims.len() + v.inline.len()) * g.count as usize
        });
        let most = attached.sum::<usize>() + attachments.count() + self.0.len();
        if limits
            .values()
            .all(|limit| i64::try_from(most).is_ok_and(|most| most <= *limit))
        {
            return Ok(());
        }
        let mut attached: BTreeSet<Attachable> = BTreeSet::new();
        for group in node.groups() {
            if let Some(of) = &group.class.volumes {
                collect(volumes, group.class.namespace(), of, |attachable| {
                    attached.insert(attachable);
                });
            }
        }
        let new: Vec<&Attachable> = self.0.iter().filter(|n| !attached.contains(*n)).collect();
        for attachment in volumes.attachments(&node.name) {
            let name = attachment.spec.source.persistent_volume_name.as_deref();
            let volume = name.and_then(|name| volumes.volume(name));
            let csi = volume.and_then(|v| v.spec.as_ref()?.csi.as_ref());
            if let Some(csi) = csi.filter(|_| !attachment.spec.attacher.is_empty()) {
                attached.insert(Attachable {
                    driver: attachment.spec.attacher.clone(),
                    handle: csi.volume_handle.clone(),
                });
            }
        }
        for (driver, limit) in limits {
            let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
            let there = count(attached.iter().filter(|a| a.driver == driver).count());
            let more = count(new.iter().filter(|a| a.driver == driver).count());
            if more > 0 && there.saturating_add(more) > limit {
                return Err(UnschedulableStatus::unschedulable(
                    NAME,
                    "node(s) exceed max volume count",
                ));
            }
        }
        Ok(())
    }
}

/// Whether the limits of a node have grown.
pub fn csi_node_helps(before: Option<&CSINode>, after: Option<&CSINode>) -> bool {
    let (Some(before), Some(after)) = (before, after) else {
        return after.is_some();
    };
    let was: BTreeMap<&str, i64> = limits(before).collect();
    limits(after).any(|(driver, limit)| limit > was.get(driver).copied().unwrap_or(0))
}

/// Whether the deletion of a pod may help.
pub fn pod_leaving_helps(other: &PodClass) -> bool {
    let volumes = other.volumes.as_ref();
    volumes.is_some_and(|v| !v.claims.is_empty() || !v.inline.is_empty())
}
