//! PersistentVolume: a piece of storage. Its source stays what it is.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec, PersistentVolumeStatus};
use k8s_openapi::jiff::Timestamp;

use super::checks::{Json, dns_subdomain, immutable, json, positive_quantity, text};
use super::persistent_volume_claim::{CLASS_ANNOTATION, VOLUME_MODES, access_modes, short_modes};
use crate::field::{Errors, Path};
use crate::quantity;
use crate::strategy::{Part, Strategy};
use crate::table::{self, Cell, Column};

/// Who makes volumes of nodes' own directories.
pub const LOCAL_PROVISIONER: &str = "knarr.io/local";
/// Label of such a volume: the node whose directory it is.
pub const LOCAL_NODE: &str = "knarr.io/node";
/// Annotation of a node: the directory below which such volumes are.
pub const LOCAL_PATH: &str = "knarr.io/local-volumes";
/// Holds such a volume until its node has removed the directory.
pub const LOCAL_FINALIZER: &str = "knarr.io/local-volume";

/// The attacher of volumes that may be used from one node at a time and have no lock of their own (SPEC S7).
pub const ATTACHER: &str = "knarr.io/exclusive";
/// Finalizer of an attachment: its node uses the volume, and takes this off when it does so no longer.
pub const IN_USE: &str = "knarr.io/in-use";
/// Annotation of an attachment of a volume for one pod: the pod's uid.
pub const ATTACHED_POD: &str = "knarr.io/pod-uid";
/// Annotation of an attachment that is in use: the uid of the pod that its node took it into use for last.
pub const USED_BY: &str = "knarr.io/used-by";

/// That a volume may be used from one place at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exclusive {
    /// The name of its attachment: one for the volume, whatever node it is for, so that only one can be there.
    pub attachment: String,
    /// From one pod, not from one node.
    pub one_pod: bool,
}

/// Whether a volume needs an attachment of knarr's before it may be used: one for a single node or pod, unless it cannot
/// be reached from another node anyway, or has a driver that attaches it.
pub fn exclusive(volume: &PersistentVolume) -> Option<Exclusive> {
    let spec = volume.spec.as_ref()?;
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let single = |mode: &String| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod";
    if modes.is_empty() || !modes.iter().all(single) || spec.csi.is_some() {
        return None;
    }
    let one_pod = modes.iter().all(|mode| mode == "ReadWriteOncePod");
    let labels = volume.metadata.labels.as_ref();
    let pinned = labels.is_some_and(|l| l.contains_key(LOCAL_NODE));
    let uid = volume.metadata.uid.as_deref().unwrap_or("");
    (one_pod || !pinned).then(|| Exclusive {
        attachment: format!("knarr-{uid}"),
        one_pod,
    })
}

/// The volume's name in `volumesAttached` and `volumesInUse` of a node's status.
pub fn unique_name(volume: &str) -> String {
    format!("{ATTACHER}/{volume}")
}

/// The name of the attachment of a CSI driver's volume to a node, as external attachers and kubelets know it.
pub fn csi_attachment(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256(&format!("{handle}{driver}{node}")))
}

/// In hexadecimal digits, as names of attachments and of mounts are made.
pub fn sha256(text: &str) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(text)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A CSI driver's volume in `volumesInUse` of a node's status.
pub fn csi_unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

const POLICIES: &[&str] = &["Delete", "Recycle", "Retain"];
const ONE_SOURCE: &str = "may not specify more than 1 volume type";

impl Strategy for PersistentVolume {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        if text(&spec.persistent_volume_reclaim_policy).is_empty() {
            spec.persistent_volume_reclaim_policy = Some("Retain".into());
        }
        spec.volume_mode.get_or_insert_with(|| "Filesystem".into());
        spec.capacity
            .iter_mut()
            .flatten()
            .for_each(|(_, q)| quantity::canonicalize(q));
        if let Some(host_path) = &mut spec.host_path {
            host_path.type_.get_or_insert_default();
        }
        let status = self.status.get_or_insert_default();
        if text(&status.phase).is_empty() {
            status.phase = Some("Pending".into());
        }
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(PersistentVolumeStatus {
            phase: Some("Pending".into()),
            last_phase_transition_time: self.metadata.creation_timestamp.clone(),
            ..PersistentVolumeStatus::default()
        });
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        if part != Part::Status {
            self.status = old.status.clone();
            return;
        }
        self.spec = old.spec.clone();
        // A phase that changes carries its time: it is the controller's to set, there is no clock here.
        let before = old.status.clone().unwrap_or_default();
        let status = self.status.get_or_insert_default();
        if status.phase == before.phase && status.last_phase_transition_time.is_none() {
            status.last_phase_transition_time = before.last_phase_transition_time;
        }
    }

    fn validate(&self) -> Errors {
        let mut errors = Errors::new();
        validate_spec(&self.spec.clone().unwrap_or_default(), &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self, part: Part) -> Errors {
        if part == Part::Status {
            return Errors::new();
        }
        let mut errors = self.validate();
        let (new, old) = (
            self.spec.clone().unwrap_or_default(),
            old.spec.clone().unwrap_or_default(),
        );
        let mut allowed = only_source(&new);
        if let (Some(new), Some(old)) = (&mut allowed.csi, &old.csi)
            && old.controller_expand_secret_ref.is_none()
        {
            new.controller_expand_secret_ref = None;
        }
        if allowed != only_source(&old) {
            errors.forbidden(
                &Path::new("spec").child("persistentvolumesource"),
                "spec.persistentvolumesource is immutable after creation",
            );
        }
        immutable(
            &mut errors,
            &Path::new("volumeMode"),
            &new.volume_mode,
            &old.volume_mode,
        );
        if old.volume_attributes_class_name.is_some() && new.volume_attributes_class_name.is_none() {
            errors.forbidden(
                &Path::new("spec").child("volumeAttributesClassName"),
                "update from non-nil value to nil is forbidden",
            );
        }
        errors
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Capacity"),
            Column::string("Access Modes"),
            Column::string("Reclaim Policy"),
            Column::string("Status"),
            Column::string("Claim"),
            Column::string("StorageClass"),
            Column::string("VolumeAttributesClass"),
            Column::string("Reason"),
            table::AGE,
            Column::string("VolumeMode").wide(),
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let spec = self.spec.clone().unwrap_or_default();
        let status = self.status.clone().unwrap_or_default();
        let phase = match self.metadata.deletion_timestamp {
            Some(_) => "Terminating",
            None => text(&status.phase),
        };
        let claim = spec
            .claim_ref
            .as_ref()
            .map(|c| format!("{}/{}", text(&c.namespace), text(&c.name)));
        let capacity = spec.capacity.as_ref().and_then(|c| c.get("storage"));
        let annotations = self.metadata.annotations.as_ref();
        let class = annotations
            .and_then(|a| a.get(CLASS_ANNOTATION))
            .or(spec.storage_class_name.as_ref());
        vec![
            table::name(&self.metadata),
            capacity.map_or("0", |q| q.0.as_str()).into(),
            short_modes(spec.access_modes.as_deref().unwrap_or(&[])).into(),
            text(&spec.persistent_volume_reclaim_policy).into(),
            phase.into(),
            claim.unwrap_or_default().into(),
            class.map_or("", String::as_str).into(),
            spec.volume_attributes_class_name
                .as_deref()
                .unwrap_or("<unset>")
                .into(),
            text(&status.reason).into(),
            table::created(&self.metadata, now),
            spec.volume_mode.as_deref().unwrap_or("<unset>").into(),
        ]
    }
}

/// The spec with nothing but where the storage is.
fn only_source(spec: &PersistentVolumeSpec) -> PersistentVolumeSpec {
    PersistentVolumeSpec {
        access_modes: None,
        capacity: None,
        claim_ref: None,
        mount_options: None,
        node_affinity: None,
        persistent_volume_reclaim_policy: None,
        storage_class_name: None,
        volume_attributes_class_name: None,
        volume_mode: None,
        ..spec.clone()
    }
}

/// Where the storage is, in the order in which Kubernetes looks: what is there, and its field.
fn sources(spec: &PersistentVolumeSpec) -> [(bool, &'static str); 22] {
    [
        (spec.host_path.is_some(), "hostPath"),
        (spec.gce_persistent_disk.is_some(), "gcePersistentDisk"),
        (spec.aws_elastic_block_store.is_some(), "awsElasticBlockStore"),
        (spec.glusterfs.is_some(), "glusterfs"),
        (spec.flocker.is_some(), "flocker"),
        (spec.nfs.is_some(), "nfs"),
        (spec.rbd.is_some(), "rbd"),
        (spec.quobyte.is_some(), "quobyte"),
        (spec.cephfs.is_some(), "cephFS"),
        (spec.iscsi.is_some(), "iscsi"),
        (spec.cinder.is_some(), "cinder"),
        (spec.fc.is_some(), "fc"),
        (spec.flex_volume.is_some(), "flexVolume"),
        (spec.azure_file.is_some(), "azureFile"),
        (spec.vsphere_volume.is_some(), "vsphereVolume"),
        (spec.photon_persistent_disk.is_some(), "photonPersistentDisk"),
        (spec.portworx_volume.is_some(), "portworxVolume"),
        (spec.azure_disk.is_some(), "azureDisk"),
        (spec.scale_io.is_some(), "scaleIO"),
        (spec.local.is_some(), "local"),
        (spec.storageos.is_some(), "storageos"),
        (spec.csi.is_some(), "csi"),
    ]
}

fn validate_spec(spec: &PersistentVolumeSpec, errors: &mut Errors) {
    let path = Path::new("spec");
    let modes = spec.access_modes.as_deref().unwrap_or(&[]);
    if modes.is_empty() {
        errors.required(&path.child("accessModes"), "");
    }
    access_modes(modes, &path.child("accessModes"), errors);
    let capacity = spec.capacity.clone().unwrap_or_default();
    let at = path.child("capacity");
    if capacity.is_empty() {
        errors.required(&at, "");
    }
    if capacity.len() != 1 || !capacity.contains_key("storage") {
        let shown = match capacity.is_empty() {
            true => Json("null".into()),
            false => json(&capacity),
        };
        errors.not_supported_in_order(&at, shown, &["storage"]);
    }
    for (name, amount) in &capacity {
        positive_quantity(errors, &at.key(name), amount);
    }
    let policy = text(&spec.persistent_volume_reclaim_policy);
    let at = path.child("persistentVolumeReclaimPolicy");
    if !policy.is_empty() && !POLICIES.contains(&policy) {
        errors.not_supported_in_order(&at, policy, POLICIES);
    }
    let given: Vec<&str> = sources(spec)
        .iter()
        .filter(|(is, _)| *is)
        .map(|(_, f)| *f)
        .collect();
    match given.split_first() {
        None => errors.required(&path, "must specify a volume type"),
        Some((_, others)) => {
            for other in others {
                errors.forbidden(&path.child(other), ONE_SOURCE);
            }
        }
    }
    source(spec, errors);
    if spec.host_path.as_ref().is_some_and(|h| is_root(&h.path)) && policy == "Recycle" {
        errors.forbidden(&at, "may not be 'recycle' for a hostPath mount of '/'");
    }
    if !text(&spec.storage_class_name).is_empty() {
        dns_subdomain(
            errors,
            &path.child("storageClassName"),
            text(&spec.storage_class_name),
        );
    }
    if let Some(mode) = &spec.volume_mode
        && !VOLUME_MODES.contains(&mode.as_str())
    {
        errors.not_supported_in_order(&path.child("volumeMode"), mode, VOLUME_MODES);
    }
    if let Some(class) = &spec.volume_attributes_class_name {
        let at = path.child("volumeAttributesClassName");
        if class.is_empty() {
            errors.required(&at, "an empty string is disallowed");
        } else {
            dns_subdomain(errors, &at, class);
        }
        if spec.csi.is_none() {
            errors.required(
                &path.child("csi"),
                "has to be specified when using volumeAttributesClassName",
            );
        }
    }
}

/// The sources of one's own machines in detail; those of clouds are left to the drivers.
fn source(spec: &PersistentVolumeSpec, errors: &mut Errors) {
    let path = Path::new("spec");
    let no_backsteps = |errors: &mut Errors, path: &Path, value: &str| {
        if value.split('/').any(|part| part == "..") {
            errors.invalid(path, value, "must not contain '..'");
        }
    };
    if let Some(host_path) = &spec.host_path {
        const TYPES: &[&str] = &[
            "",
            "BlockDevice",
            "CharDevice",
            "Directory",
            "DirectoryOrCreate",
            "File",
            "FileOrCreate",
            "Socket",
        ];
        let path = path.child("hostPath");
        if host_path.path.is_empty() {
            errors.required(&path.child("path"), "");
        } else {
            no_backsteps(errors, &path.child("path"), &host_path.path);
            let of = text(&host_path.type_);
            if !TYPES.contains(&of) {
                errors.not_supported_in_order(&path.child("type"), of, TYPES);
            }
        }
    } else if let Some(nfs) = &spec.nfs {
        let path = path.child("nfs");
        if nfs.server.is_empty() {
            errors.required(&path.child("server"), "");
        }
        if nfs.path.is_empty() {
            errors.required(&path.child("path"), "");
        }
        if !nfs.path.starts_with('/') {
            errors.invalid(&path.child("path"), &nfs.path, "must be an absolute path");
        }
    }
    if let Some(local) = &spec.local {
        if local.path.is_empty() {
            errors.required(&path.child("local").child("path"), "");
        } else {
            no_backsteps(errors, &path.child("local").child("path"), &local.path);
        }
        if spec.node_affinity.as_ref().is_none_or(|a| a.required.is_none()) {
            errors.required(&path.child("nodeAffinity"), "Local volume requires node affinity");
        }
    }
    if let Some(csi) = &spec.csi {
        let path = path.child("csi");
        if csi.driver.is_empty() {
            errors.required(&path.child("driver"), "");
        } else {
            dns_subdomain(errors, &path.child("driver"), &csi.driver.to_lowercase());
        }
        if csi.volume_handle.is_empty() {
            errors.required(&path.child("volumeHandle"), "");
        }
    }
}

/// Whether a path is `/`, however it is written.
fn is_root(path: &str) -> bool {
    let mut depth = 0;
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => depth = i32::max(depth - 1, 0),
            _ => depth += 1,
        }
    }
    path.starts_with('/') && depth == 0
}
