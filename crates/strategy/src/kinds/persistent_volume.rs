//! PersistentVolume: a piece of storage. Its source is immutable.

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeSpec, PersistentVolumeStatus, VolumeNodeAffinity,
};
use k8s_openapi::jiff::Timestamp;
use knarr_api::kinds::node_affinity::node_selector;
use knarr_api::well_known::BETA_STORAGE_CLASS;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::quantity;

use super::checks::{Json, basic_resource, dns_subdomain, immutable, json, positive_quantity, text};
use super::persistent_volume_claim::{access_modes, short_modes};
use super::pod::internal;
use super::warnings::deprecated_label;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy, facts};

mod source;

/// The deprecated annotation for mount options.
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

const DEPRECATED_ANNOTATIONS: [(&str, &str); 2] = [
    (
        "volume.beta.kubernetes.io/storage-class",
        "deprecated since v1.8; use \"storageClassName\" attribute instead",
    ),
    (
        "volume.beta.kubernetes.io/mount-options",
        "deprecated since v1.31; use \"mountOptions\" attribute instead",
    ),
];

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
        source::set_defaults(spec);
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
        // `lastPhaseTransitionTime` of a changed phase is set by the controller: there is no clock here.
        let before = old.status.clone().unwrap_or_default();
        let status = self.status.get_or_insert_default();
        if status.phase == before.phase && status.last_phase_transition_time.is_none() {
            status.last_phase_transition_time = before.last_phase_transition_time;
        }
    }

    fn validate(&self) -> ErrorList {
        let mut errors = validate_without_plugin(self);
        let spec = self.spec.clone().unwrap_or_default();
        let annotations = self.metadata.annotations.as_ref();
        if !source::supports_mount_options(&spec)
            && annotations.is_some_and(|a| a.contains_key(MOUNT_OPTIONS))
        {
            errors.forbidden(
                &Path::new("metadata").child("annotations").child(MOUNT_OPTIONS),
                "may not specify mount options for this volume type",
            );
        }
        errors
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        if part == Part::Status {
            return ErrorList::new();
        }
        let mut errors = self.validate();
        // v1.36 checks these rules twice and reports their violations twice.
        errors.extend(validate_without_plugin(self));
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
        let before = only_source(&old);
        if allowed != before {
            let difference = internal::difference("PersistentVolumeSource", &before, &allowed);
            errors.forbidden(
                &Path::new("spec").child("persistentvolumesource"),
                format!("spec.persistentvolumesource is immutable after creation\n{difference}"),
            );
        }
        immutable(
            &mut errors,
            &Path::new("volumeMode"),
            &new.volume_mode,
            &old.volume_mode,
        );
        if let Some(affinity) = &old.node_affinity
            && new.node_affinity != Some(with_stable_labels(affinity, new.node_affinity.as_ref()))
        {
            let shown = Json(internal::json("*VolumeNodeAffinity", &new.node_affinity));
            errors.invalid(
                &Path::new("nodeAffinity"),
                shown,
                "field is immutable, except for updating from beta label to GA",
            );
        }
        if old.volume_attributes_class_name.is_some() && new.volume_attributes_class_name.is_none() {
            errors.forbidden(
                &Path::new("spec").child("volumeAttributesClassName"),
                "update from non-nil value to nil is forbidden",
            );
        }
        errors
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (key, deprecation) in DEPRECATED_ANNOTATIONS {
            if self
                .metadata
                .annotations
                .as_ref()
                .is_some_and(|a| a.contains_key(key))
            {
                warnings.push(format!("metadata.annotations[{key}]: {deprecation}"));
            }
        }
        let Some(spec) = &self.spec else {
            return warnings;
        };
        if spec.persistent_volume_reclaim_policy.as_deref() == Some("Recycle") {
            warnings.push(
                "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended \
                 approach is to use dynamic provisioning."
                    .into(),
            );
        }
        let required = spec.node_affinity.iter().filter_map(|a| a.required.as_ref());
        for (i, term) in required.flat_map(|r| r.node_selector_terms.iter().enumerate()) {
            for (j, expression) in term.match_expressions.iter().flatten().enumerate() {
                let Some(deprecation) = deprecated_label(&expression.key) else {
                    continue;
                };
                let at =
                    format!("spec.nodeAffinity.required.nodeSelectorTerms[{i}].matchExpressions[{j}].key");
                warnings.push(format!("{at}: {} is {deprecation}", expression.key));
            }
        }
        let removed = [
            (
                spec.cephfs.is_some(),
                "cephfs: deprecated in v1.28, non-functional in v1.31+",
            ),
            (
                spec.photon_persistent_disk.is_some(),
                "photonPersistentDisk: deprecated in v1.11, non-functional in v1.16+",
            ),
            (
                spec.scale_io.is_some(),
                "scaleIO: deprecated in v1.16, non-functional in v1.22+",
            ),
            (
                spec.storageos.is_some(),
                "storageOS: deprecated in v1.22, non-functional in v1.25+",
            ),
            (
                spec.glusterfs.is_some(),
                "glusterfs: deprecated in v1.25, non-functional in v1.26+",
            ),
            (
                spec.rbd.is_some(),
                "rbd: deprecated in v1.28, non-functional in v1.31+",
            ),
        ];
        let removed = removed.iter().filter(|(is_set, _)| *is_set);
        warnings.extend(removed.map(|(_, deprecation)| format!("spec.{deprecation}")));
        warnings
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
            .and_then(|a| a.get(BETA_STORAGE_CLASS))
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

    fn metadata_checks(part: Part) -> MetadataChecks {
        match part {
            Part::Status => MetadataChecks::UPDATE,
            // The rules for a new volume are checked twice.
            Part::Main | Part::Other(_) => MetadataChecks { full: 2, update: 0 },
        }
    }
}

/// The node affinity with its deprecated labels replaced by their successors where `new` has those.
fn with_stable_labels(affinity: &VolumeNodeAffinity, new: Option<&VolumeNodeAffinity>) -> VolumeNodeAffinity {
    let mut affinity = affinity.clone();
    let new = new.and_then(|w| w.required.as_ref());
    let terms = affinity
        .required
        .iter_mut()
        .flat_map(|r| &mut r.node_selector_terms);
    for (term, new_term) in terms.zip(new.iter().flat_map(|r| &r.node_selector_terms)) {
        let requirements = term.match_expressions.iter_mut().flatten();
        for (requirement, new_requirement) in requirements.zip(new_term.match_expressions.iter().flatten()) {
            let stable = STABLE_LABELS.iter().find(|(beta, _)| *beta == requirement.key);
            if let Some((_, stable)) = stable.filter(|(_, stable)| *stable == new_requirement.key) {
                requirement.key = (*stable).into();
            }
        }
    }
    affinity
}

/// Deprecated node labels and their replacements.
const STABLE_LABELS: &[(&str, &str)] = &[
    (
        "failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/zone",
    ),
    (
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/region",
    ),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    (
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
    ),
];

/// Validates a volume without the rules of its plugin.
fn validate_without_plugin(volume: &PersistentVolume) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = volume.spec.clone().unwrap_or_default();
    validate_spec(&spec, text(&volume.metadata.name), &mut errors);
    errors
}

/// The spec with only the volume source.
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

fn validate_spec(spec: &PersistentVolumeSpec, name: &str, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let modes = spec.access_modes.as_deref().unwrap_or(&[]);
    if modes.is_empty() {
        errors.required(&path.child("accessModes"), "");
    }
    access_modes(modes, &path.child("accessModes"), errors);
    let at = path.child("capacity");
    let shown = spec.capacity.as_ref().map_or_else(|| Json("null".into()), json);
    let capacity = spec.capacity.clone().unwrap_or_default();
    if capacity.is_empty() {
        errors.required(&at, "");
    }
    if capacity.len() != 1 || !capacity.contains_key("storage") {
        errors.not_supported_in_order(&at, shown, &["storage"]);
    }
    for (name, amount) in &capacity {
        basic_resource(errors, &at.key(name), amount);
        positive_quantity(errors, &at.key(name), amount);
    }
    facts::check(errors, &path, spec, &["persistentVolumeReclaimPolicy"]);
    if let Some(affinity) = &spec.node_affinity {
        let required = path.child("nodeAffinity").child("required");
        match &affinity.required {
            Some(selector) => node_selector(selector, &required, errors),
            None => errors.required(&required, "must specify required node constraints"),
        }
    }
    source::validate(spec, name, &path, errors);
    let policy = text(&spec.persistent_volume_reclaim_policy);
    if spec.host_path.as_ref().is_some_and(|h| is_root(&h.path)) && policy == "Recycle" {
        let at = path.child("persistentVolumeReclaimPolicy");
        errors.forbidden(&at, "may not be 'recycle' for a hostPath mount of '/'");
    }
    if !text(&spec.storage_class_name).is_empty() {
        dns_subdomain(
            errors,
            &path.child("storageClassName"),
            text(&spec.storage_class_name),
        );
    }
    facts::check(errors, &path, spec, &["volumeMode"]);
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

/// Whether a path is equivalent to `/`.
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

/// Validates `inlineVolumeSpec` of a VolumeAttachment: a CSI volume with only its source.
pub(super) fn validate_inline(spec: &PersistentVolumeSpec, path: &Path, errors: &mut ErrorList) {
    const INLINE: &str = "may not be specified in the context of inline volumes";
    if spec.claim_ref.is_some() {
        errors.forbidden(&path.child("claimRef"), INLINE);
    }
    if spec.capacity.as_ref().is_some_and(|c| !c.is_empty()) {
        errors.forbidden(&path.child("capacity"), INLINE);
    }
    if spec.csi.is_none() {
        errors.required(
            &path.child("csi"),
            "has to be specified in the context of inline volumes",
        );
    }
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    if modes.is_empty() {
        errors.required(&path.child("accessModes"), "");
    }
    access_modes(modes, &path.child("accessModes"), errors);
    let policy = text(&spec.persistent_volume_reclaim_policy);
    if !matches!(policy, "" | "Retain") {
        errors.forbidden(
            &path.child("persistentVolumeReclaimPolicy"),
            "may only be Retain in the context of inline volumes",
        );
    }
    if spec.node_affinity.is_some() {
        errors.forbidden(&path.child("nodeAffinity"), INLINE);
    }
    source::validate(spec, "", path, errors);
    if !text(&spec.storage_class_name).is_empty() {
        errors.forbidden(&path.child("storageClassName"), INLINE);
    }
    if spec.volume_mode.as_deref().is_some_and(|m| m != "Filesystem") {
        errors.forbidden(
            &path.child("volumeMode"),
            "may not specify volumeMode other than Filesystem in the context of inline volumes",
        );
    }
}
