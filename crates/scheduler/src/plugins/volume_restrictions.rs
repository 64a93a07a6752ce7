//! VolumeRestrictions: a ReadWriteOncePod claim is used by one pod; a disk named in pods is used by one pod of a
//! node, or by several read-only.

use super::{PreFilterError, UnschedulableStatus};
use crate::node_info::NodeInfo;
use crate::pod_info::{PodClass, PodInfo};
use crate::pod_volumes::{Disk, PodVolumes};
use crate::volumes::{Volumes, is_exclusive};

pub const NAME: &str = "VolumeRestrictions";

const IN_USE: &str = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";

/// The volumes of a pod that it cannot share.
#[derive(Debug, Default)]
pub struct Restrictions {
    disks: Vec<Disk>,
    /// The pod's claims with access mode ReadWriteOncePod.
    exclusive: Vec<String>,
    /// How many of those are in use somewhere.
    in_use: i64,
}

impl Restrictions {
    pub fn new(volumes: &Volumes, pod: &PodClass, of: &PodVolumes) -> Result<Self, PreFilterError> {
        let mut restrictions = Restrictions {
            disks: of.disks.clone(),
            ..Restrictions::default()
        };
        for name in of.named() {
            let Some(claim) = volumes.claim(pod.namespace(), name) else {
                let reason = format!("persistentvolumeclaim {name:?} not found");
                return Err(PreFilterError::Unschedulable(UnschedulableStatus::unresolvable(
                    NAME, reason,
                )));
            };
            if is_exclusive(claim) && !restrictions.exclusive.iter().any(|c| c == name) {
                restrictions.exclusive.push(name.to_string());
                restrictions.in_use += i64::from(volumes.is_used(pod.namespace(), name));
            }
        }
        Ok(restrictions)
    }

    pub fn is_nothing(&self) -> bool {
        self.disks.is_empty() && self.in_use == 0
    }

    /// The pod's claims with access mode ReadWriteOncePod, if one of them is in use.
    pub fn exclusive_claims(&self) -> &[String] {
        if self.in_use == 0 { &[] } else { &self.exclusive }
    }

    /// `pod_changes`: pods that are added (1) or removed (-1) in a simulation, compared with the snapshot.
    pub fn filter(
        &self,
        namespace: &str,
        node: &NodeInfo,
        pod_changes: &[(&PodInfo, i64)],
    ) -> Result<(), UnschedulableStatus> {
        if node.groups().iter().any(|g| shares_disk(&self.disks, &g.class)) {
            return Err(UnschedulableStatus::unschedulable(
                NAME,
                "node(s) had no available disk",
            ));
        }
        if self.in_use == 0 {
            return Ok(());
        }
        let uses = |pod: &PodClass| {
            let named = pod.volumes.iter().flat_map(|v| v.named());
            let of = named.filter(|name| self.exclusive.iter().any(|c| c == name));
            i64::try_from(of.count()).unwrap_or(i64::MAX)
        };
        let moved = pod_changes
            .iter()
            .filter(|(pod, _)| pod.class.namespace() == namespace)
            .map(|(pod, one)| one * uses(&pod.class));
        if self.in_use + moved.sum::<i64>() > 0 {
            return Err(in_use());
        }
        Ok(())
    }
}

/// Whether a pod of the class uses a disk that no other pod of the node may use as well.
fn shares_disk(disks: &[Disk], other: &PodClass) -> bool {
    let Some(volumes) = other.volumes.as_ref().filter(|_| !disks.is_empty()) else {
        return false;
    };
    disks
        .iter()
        .any(|disk| volumes.disks.iter().any(|o| disk.conflicts(o)))
}

/// A claim with access mode ReadWriteOncePod is in use.
pub fn in_use() -> UnschedulableStatus {
    UnschedulableStatus::unschedulable(NAME, IN_USE)
}

/// Whether pods of the two classes use the same claim, with access mode ReadWriteOncePod.
pub fn share_exclusive_claim(volumes: &Volumes, pod: &PodClass, other: &PodClass) -> bool {
    let (Some(mine), Some(theirs)) = (&pod.volumes, &other.volumes) else {
        return false;
    };
    let is_exclusive = |name: &str| {
        volumes
            .claim(pod.namespace(), name)
            .is_some_and(|claim| is_exclusive(claim))
    };
    pod.namespace() == other.namespace()
        && mine
            .named()
            .any(|name| theirs.named().any(|other| other == name) && is_exclusive(name))
}

/// Whether the deletion of a pod may help.
pub fn pod_leaving_helps(pod: &PodClass, other: &PodClass) -> bool {
    let (Some(mine), Some(theirs)) = (&pod.volumes, &other.volumes) else {
        return false;
    };
    pod.namespace() == other.namespace()
        && (shares_disk(&mine.disks, other) || mine.named().any(|claim| theirs.named().any(|o| o == claim)))
}
