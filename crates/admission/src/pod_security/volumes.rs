//! Volume types: no hostPath, and at the restricted level only ephemeral ones
//! and claims.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Volume;

use super::{Check, Level, Subject, Violation, plural, quoted};

pub(super) const HOST_PATH: Check = Check {
    name: "hostPathVolumes",
    level: Level::Baseline,
    versions: &[(0, host_path)],
    instead_of: None,
};

pub(super) const RESTRICTED: Check = Check {
    name: "restrictedVolumes",
    level: Level::Restricted,
    versions: &[(0, restricted)],
    instead_of: Some("hostPathVolumes"),
};

fn volumes<'a>(subject: &Subject<'a>) -> impl Iterator<Item = &'a Volume> {
    subject.spec.volumes.iter().flatten()
}

fn named(names: &[&str]) -> String {
    format!("{} {}", plural(names.len(), "volume", "volumes"), quoted(names))
}

fn host_path(subject: &Subject<'_>) -> Option<Violation> {
    let found = volumes(subject).filter(|v| v.host_path.is_some());
    let names: Vec<&str> = found.map(|v| v.name.as_str()).collect();
    (!names.is_empty()).then(|| Violation::new("hostPath volumes", named(&names)))
}

fn restricted(subject: &Subject<'_>) -> Option<Violation> {
    let found: Vec<(&str, &str)> = volumes(subject)
        .filter_map(|v| Some((v.name.as_str(), forbidden_type(v)?)))
        .collect();
    let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
    let types: BTreeSet<&str> = found.iter().map(|(_, of)| *of).collect();
    (!names.is_empty()).then(|| {
        let detail = format!(
            "{} {} {} {}",
            named(&names),
            plural(names.len(), "uses", "use"),
            plural(types.len(), "restricted volume type", "restricted volume types"),
            quoted(&types)
        );
        Violation::new("restricted volume types", detail)
    })
}

fn forbidden_type(v: &Volume) -> Option<&'static str> {
    let allowed = v.config_map.is_some()
        || v.csi.is_some()
        || v.downward_api.is_some()
        || v.empty_dir.is_some()
        || v.ephemeral.is_some()
        || v.image.is_some()
        || v.persistent_volume_claim.is_some()
        || v.projected.is_some()
        || v.secret.is_some();
    if allowed {
        return None;
    }
    let types = [
        (v.host_path.is_some(), "hostPath"),
        (v.gce_persistent_disk.is_some(), "gcePersistentDisk"),
        (v.aws_elastic_block_store.is_some(), "awsElasticBlockStore"),
        (v.git_repo.is_some(), "gitRepo"),
        (v.nfs.is_some(), "nfs"),
        (v.iscsi.is_some(), "iscsi"),
        (v.glusterfs.is_some(), "glusterfs"),
        (v.rbd.is_some(), "rbd"),
        (v.flex_volume.is_some(), "flexVolume"),
        (v.cinder.is_some(), "cinder"),
        (v.cephfs.is_some(), "cephfs"),
        (v.flocker.is_some(), "flocker"),
        (v.fc.is_some(), "fc"),
        (v.azure_file.is_some(), "azureFile"),
        (v.vsphere_volume.is_some(), "vsphereVolume"),
        (v.quobyte.is_some(), "quobyte"),
        (v.azure_disk.is_some(), "azureDisk"),
        (v.photon_persistent_disk.is_some(), "photonPersistentDisk"),
        (v.portworx_volume.is_some(), "portworxVolume"),
        (v.scale_io.is_some(), "scaleIO"),
        (v.storageos.is_some(), "storageos"),
    ];
    let known = types.iter().find(|(is, _)| *is).map(|(_, name)| *name);
    Some(known.unwrap_or("unknown"))
}
