//! The volumes of a pod for the scheduler: claims, disks that two pods cannot use at once, and the ids that CSI
//! drivers give to in-tree volumes.

use k8s_openapi::api::core::v1::{PersistentVolume, Pod, Volume};
use knarr_api::k8s_openapi;

/// A claim that a pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimUse {
    /// In the pod's namespace.
    pub claim: String,
    /// It is created for the pod (ephemeral volume) and must be owned by it.
    pub ephemeral: bool,
}

/// A disk named in the pod spec itself, which exists once in the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disk {
    Gce {
        name: String,
        read_only: bool,
    },
    Aws {
        id: String,
    },
    Iscsi {
        iqn: String,
        read_only: bool,
    },
    Rbd {
        monitors: Vec<String>,
        pool: String,
        image: String,
        read_only: bool,
    },
}

impl Disk {
    fn of(volume: &Volume) -> Vec<Disk> {
        let mut disks = Vec::new();
        if let Some(gce) = &volume.gce_persistent_disk {
            disks.push(Disk::Gce {
                name: gce.pd_name.clone(),
                read_only: gce.read_only.unwrap_or(false),
            });
        }
        if let Some(aws) = &volume.aws_elastic_block_store {
            let id = aws.volume_id.clone();
            disks.push(Disk::Aws { id });
        }
        if let Some(iscsi) = &volume.iscsi {
            disks.push(Disk::Iscsi {
                iqn: iscsi.iqn.clone(),
                read_only: iscsi.read_only.unwrap_or(false),
            });
        }
        if let Some(rbd) = &volume.rbd {
            disks.push(Disk::Rbd {
                monitors: rbd.monitors.clone(),
                pool: rbd.pool.clone().unwrap_or_default(),
                image: rbd.image.clone(),
                read_only: rbd.read_only.unwrap_or(false),
            });
        }
        disks
    }

    /// Whether two pods of one node cannot both use them.
    pub fn conflicts(&self, other: &Disk) -> bool {
        match (self, other) {
            (
                Disk::Gce { name, read_only },
                Disk::Gce {
                    name: n,
                    read_only: ro,
                },
            ) => name == n && !(*read_only && *ro),
            (Disk::Aws { id }, Disk::Aws { id: other }) => id == other,
            (
                Disk::Iscsi { iqn, read_only },
                Disk::Iscsi {
                    iqn: n,
                    read_only: ro,
                },
            ) => iqn == n && !(*read_only && *ro),
            (
                Disk::Rbd {
                    monitors,
                    pool,
                    image,
                    read_only,
                },
                Disk::Rbd {
                    monitors: m,
                    pool: p,
                    image: i,
                    read_only: ro,
                },
            ) => {
                monitors.iter().any(|monitor| m.contains(monitor))
                    && pool == p
                    && image == i
                    && !(*read_only && *ro)
            }
            _ => false,
        }
    }
}

/// A volume as its driver counts it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachable {
    pub driver: String,
    pub handle: String,
}

impl Attachable {
    fn new(driver: &str, handle: &str) -> Self {
        Attachable {
            driver: driver.to_string(),
            handle: handle.to_string(),
        }
    }
}

/// In-tree plugins and the CSI drivers that replace them (CSI migration).
const MIGRATED: &[(&str, &str)] = &[
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
];

/// The CSI driver that replaces an in-tree plugin.
pub fn migrated(plugin: &str) -> Option<&'static str> {
    MIGRATED
        .iter()
        .find(|(name, _)| *name == plugin)
        .map(|(_, driver)| *driver)
}

/// The last part of `aws://zone/id`.
fn ebs_id(id: &str) -> &str {
    id.strip_prefix("aws://")
        .and_then(|rest| rest.rsplit('/').next())
        .unwrap_or(id)
}

/// The driver and id of a volume for the attach limit. `None`: no limit counts it.
pub fn attachable(volume: &PersistentVolume) -> Option<Attachable> {
    let spec = volume.spec.as_ref()?;
    if let Some(csi) = &spec.csi {
        return Some(Attachable::new(&csi.driver, &csi.volume_handle));
    }
    let in_tree = if let Some(aws) = &spec.aws_elastic_block_store {
        Attachable::new("ebs.csi.aws.com", ebs_id(&aws.volume_id))
    } else if let Some(gce) = &spec.gce_persistent_disk {
        Attachable::new("pd.csi.storage.gke.io", &gce.pd_name)
    } else if let Some(azure) = &spec.azure_disk {
        Attachable::new("disk.csi.azure.com", &azure.disk_uri)
    } else if let Some(cinder) = &spec.cinder {
        Attachable::new("cinder.csi.openstack.org", &cinder.volume_id)
    } else if let Some(portworx) = &spec.portworx_volume {
        Attachable::new("pxd.portworx.com", &portworx.volume_id)
    } else {
        return None;
    };
    Some(in_tree)
}

fn inline(volume: &Volume) -> Option<Attachable> {
    let of = if let Some(aws) = &volume.aws_elastic_block_store {
        Attachable::new("ebs.csi.aws.com", ebs_id(&aws.volume_id))
    } else if let Some(gce) = &volume.gce_persistent_disk {
        Attachable::new("pd.csi.storage.gke.io", &gce.pd_name)
    } else if let Some(azure) = &volume.azure_disk {
        Attachable::new("disk.csi.azure.com", &azure.disk_uri)
    } else if let Some(cinder) = &volume.cinder {
        Attachable::new("cinder.csi.openstack.org", &cinder.volume_id)
    } else if let Some(portworx) = &volume.portworx_volume {
        Attachable::new("pxd.portworx.com", &portworx.volume_id)
    } else {
        return None;
    };
    Some(of)
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodVolumes {
    /// In the order of the pod's volumes; a claim of two volumes is there twice.
    pub claims: Vec<ClaimUse>,
    pub disks: Vec<Disk>,
    /// In-tree volumes in the pod spec.
    pub inline: Vec<Attachable>,
}

impl PodVolumes {
    pub fn of(pod: &Pod) -> Self {
        let mut all = PodVolumes::default();
        let spec = pod.spec.as_ref();
        for volume in spec.and_then(|s| s.volumes.as_ref()).into_iter().flatten() {
            if let Some(claim) = &volume.persistent_volume_claim {
                all.claims.push(ClaimUse {
                    claim: claim.claim_name.clone(),
                    ephemeral: false,
                });
            } else if volume.ephemeral.is_some() {
                let pod = pod.metadata.name.as_deref().unwrap_or_default();
                all.claims.push(ClaimUse {
                    claim: format!("{pod}-{}", volume.name),
                    ephemeral: true,
                });
            }
            all.disks.extend(Disk::of(volume));
            all.inline.extend(inline(volume));
        }
        all
    }

    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.disks.is_empty() && self.inline.is_empty()
    }

    /// The claims that its volumes name.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        self.claims
            .iter()
            .filter(|c| !c.ephemeral)
            .map(|c| c.claim.as_str())
    }

    /// Whether any of its volumes uses that claim.
    pub fn uses(&self, claim: &str) -> bool {
        self.claims.iter().any(|c| c.claim == claim)
    }
}
