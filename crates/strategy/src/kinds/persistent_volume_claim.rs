//! PersistentVolumeClaim: a request for storage. After creation only the requested size and `volumeAttributesClassName` may
//! change, and only while it is bound.

use std::cmp::Ordering;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus, TypedLocalObjectReference,
    TypedObjectReference,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::Timestamp;
use knarr_api::well_known::BETA_STORAGE_CLASS;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::quantity;

use super::checks::{basic_resource, immutable, qualified_name, text};
use super::pod::{internal, set_claim_spec_defaults, validate_claim_spec, validate_resource_quantity};
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

pub(super) const ACCESS_MODES: &[&str] = &[
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];
const STORAGE: &str = "storage";
const IMMUTABLE_SPEC: &str = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";

impl Strategy for PersistentVolumeClaim {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        set_claim_spec_defaults(spec);
        let status = self.status.get_or_insert_default();
        if text(&status.phase).is_empty() {
            status.phase = Some("Pending".into());
        }
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(PersistentVolumeClaimStatus {
            phase: Some("Pending".into()),
            ..PersistentVolumeClaimStatus::default()
        });
        let spec = self.spec.get_or_insert_default();
        drop_disabled_fields(spec, None);
        normalize_data_sources(spec);
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        match part {
            Part::Status => self.spec = old.spec.clone(),
            Part::Main | Part::Other(_) => {
                self.status = old.status.clone();
                let spec = self.spec.get_or_insert_default();
                drop_disabled_fields(spec, old.spec.as_ref());
                normalize_data_sources(spec);
            }
        }
    }

    fn validate(&self) -> ErrorList {
        let spec = self.spec.clone().unwrap_or_default();
        validate_claim_spec(&spec, &Path::new("spec"))
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        if part == Part::Status {
            return validate_status(self);
        }
        let mut errors = self.validate();
        validate_spec_update(self, old, &mut errors);
        errors
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self
            .metadata
            .annotations
            .as_ref()
            .is_some_and(|a| a.contains_key(BETA_STORAGE_CLASS))
        {
            warnings.push(format!(
                "metadata.annotations[{BETA_STORAGE_CLASS}]: deprecated since v1.8; use \"storageClassName\" attribute instead"
            ));
        }
        let spec = self.spec.iter();
        warnings.extend(spec.flat_map(|spec| claim_spec_warnings(spec, &Path::new("spec"))));
        warnings
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Status"),
            Column::string("Volume"),
            Column::string("Capacity"),
            Column::string("Access Modes"),
            Column::string("StorageClass"),
            Column::string("VolumeAttributesClass"),
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
        let volume = text(&spec.volume_name);
        let (capacity, modes) = match volume {
            "" => (String::new(), String::new()),
            _ => {
                let capacity = status.capacity.as_ref().and_then(|c| c.get(STORAGE));
                (
                    capacity.map_or("0".to_string(), |q| q.0.clone()),
                    short_modes(status.access_modes.as_deref().unwrap_or(&[])),
                )
            }
        };
        let annotations = self.metadata.annotations.as_ref();
        let class = annotations
            .and_then(|a| a.get(BETA_STORAGE_CLASS))
            .or(spec.storage_class_name.as_ref());
        vec![
            table::name(&self.metadata),
            phase.into(),
            volume.into(),
            capacity.into(),
            modes.into(),
            class.map_or("", String::as_str).into(),
            spec.volume_attributes_class_name
                .as_deref()
                .unwrap_or("<unset>")
                .into(),
            table::created(&self.metadata, now),
            spec.volume_mode.as_deref().unwrap_or("<unset>").into(),
        ]
    }

    fn metadata_checks(part: Part) -> MetadataChecks {
        match part {
            Part::Status => MetadataChecks::UPDATE,
            Part::Main | Part::Other(_) => MetadataChecks::BOTH,
        }
    }
}

/// Warnings about sizes with a fraction of a byte.
pub(super) fn claim_spec_warnings(spec: &PersistentVolumeClaimSpec, path: &Path) -> Vec<String> {
    let lists = spec
        .resources
        .as_ref()
        .map(|r| [("requests", &r.requests), ("limits", &r.limits)]);
    let sizes = lists.into_iter().flatten().filter_map(|(field, list)| {
        let size = list.as_ref()?.get("storage")?;
        let is_fraction = quantity::Quantity::of(size).is_ok_and(|q| q.milli_value() % 1000 != 0);
        let at = path.child("resources").child(field).key("storage");
        is_fraction.then(|| {
            format!(
                "{at}: fractional byte value {:?} is invalid, must be an integer",
                size.0
            )
        })
    });
    sizes.collect()
}

/// Validates the status of a claim: its amounts and the states of their resize.
fn validate_status(claim: &PersistentVolumeClaim) -> ErrorList {
    const RESIZE: &[&str] = &[
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizePending",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
    ];
    let mut errors = ErrorList::new();
    let status = claim.status.clone().unwrap_or_default();
    let path = Path::new("status");
    let at = path.child("capacity");
    for (name, amount) in status.capacity.iter().flatten() {
        basic_resource(&mut errors, &at.key(name), amount);
    }
    let at = path.child("allocatedResourceStatuses");
    for (name, state) in status.allocated_resource_statuses.iter().flatten() {
        resource_key(name, &at, &mut errors);
        if !RESIZE.contains(&state.as_str()) {
            // The error shows the resource instead of its state, as in `ValidatePersistentVolumeClaimStatusUpdate`.
            errors.not_supported(&at, name, RESIZE);
        }
    }
    let at = path.child("allocatedResources");
    for (name, amount) in status.allocated_resources.iter().flatten() {
        let before = errors.len();
        resource_key(name, &at, &mut errors);
        if errors.len() > before {
            continue;
        }
        basic_resource(&mut errors, &at.key(name), amount);
        if errors.len() == before {
            errors.extend(validate_resource_quantity(STORAGE, amount, &at.key(name)));
        }
    }
    errors
}

/// Checks the name of a resource in a claim's status: `storage`, or a name with a domain that is not Kubernetes' own.
fn resource_key(name: &str, path: &Path, errors: &mut ErrorList) {
    let before = errors.len();
    qualified_name(errors, path, name);
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    if errors.len() == before && native && name != STORAGE {
        errors.not_supported(path, name, &[STORAGE]);
    }
}

/// Access modes in short form: `RWO,ROX,RWX,RWOP`, each once, in this order.
pub(super) fn short_modes(modes: &[String]) -> String {
    let short: Vec<&str> = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ]
    .into_iter()
    .filter(|(mode, _)| modes.iter().any(|m| m == mode))
    .map(|(_, short)| short)
    .collect();
    short.join(",")
}

/// Checks access modes: supported ones, and ReadWriteOncePod only by itself.
pub(super) fn access_modes(modes: &[String], path: &Path, errors: &mut ErrorList) {
    for mode in modes {
        if !ACCESS_MODES.contains(&mode.as_str()) {
            errors.not_supported_in_order(path, mode, ACCESS_MODES);
        }
    }
    let of_pod = |mode: &&String| *mode == "ReadWriteOncePod";
    let known = modes.iter().filter(|m| ACCESS_MODES.contains(&m.as_str()));
    let (alone, others): (Vec<&String>, Vec<&String>) = known.partition(of_pod);
    if !alone.is_empty() && !others.is_empty() {
        errors.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

/// Validates a volume claim template of a StatefulSet.
pub(super) fn validate_template(claim: &PersistentVolumeClaim, path: &Path, errors: &mut ErrorList) {
    let spec = claim.spec.clone().unwrap_or_default();
    errors.extend(validate_claim_spec(&spec, &path.child("spec")));
}

fn storage(spec: &PersistentVolumeClaimSpec) -> Option<Quantity> {
    let requests = spec.resources.as_ref()?.requests.as_ref()?;
    requests.get(STORAGE).cloned()
}

/// Drops what v1.36 does not accept: data sources in other namespaces (CrossNamespaceVolumeDataSource is disabled by default)
/// and, in `dataSource`, what is neither a claim nor a snapshot, unless the old object has a data source.
fn drop_disabled_fields(spec: &mut PersistentVolumeClaimSpec, old: Option<&PersistentVolumeClaimSpec>) {
    let has_reference = old.is_some_and(|old| old.data_source_ref.is_some());
    let is_elsewhere = spec
        .data_source_ref
        .as_ref()
        .is_some_and(|r| !text(&r.namespace).is_empty());
    if is_elsewhere && !has_reference {
        spec.data_source_ref = None;
    }
    let has_source = has_reference || old.is_some_and(|old| old.data_source.is_some());
    let is_known = |source: &TypedLocalObjectReference| {
        matches!(
            (text(&source.api_group), source.kind.as_str()),
            ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
        )
    };
    if !has_source && spec.data_source_ref.is_none() {
        spec.data_source.take_if(|source| !is_known(source));
    }
}

/// Copies `dataSource` to `dataSourceRef` or the reverse if only one of the two is set (`NormalizeDataSources`).
fn normalize_data_sources(spec: &mut PersistentVolumeClaimSpec) {
    match (&spec.data_source, &spec.data_source_ref) {
        (None, Some(reference)) if text(&reference.namespace).is_empty() => {
            spec.data_source = Some(TypedLocalObjectReference {
                api_group: reference.api_group.clone(),
                kind: reference.kind.clone(),
                name: reference.name.clone(),
            });
        }
        (Some(source), None) => {
            spec.data_source_ref = Some(TypedObjectReference {
                api_group: source.api_group.clone(),
                kind: source.kind.clone(),
                name: source.name.clone(),
                namespace: None,
            });
        }
        _ => {}
    }
}

fn validate_spec_update(claim: &PersistentVolumeClaim, old: &PersistentVolumeClaim, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let new = claim.spec.clone().unwrap_or_default();
    let mut before = old.spec.clone().unwrap_or_default();
    let mut compared = new.clone();
    let status = old.status.clone().unwrap_or_default();
    let annotation = |c: &PersistentVolumeClaim| {
        let annotations = c.metadata.annotations.as_ref();
        annotations.and_then(|a| a.get(BETA_STORAGE_CLASS).cloned())
    };
    if text(&before.volume_name).is_empty() {
        before.volume_name.clone_from(&compared.volume_name);
    }
    let from_annotation = annotation(old)
        .is_some_and(|class| before.storage_class_name.is_none() && new.storage_class_name == Some(class));
    // A default StorageClass may be set later, as long as the claim has none.
    let filled_in = annotation(old).is_none() && before.storage_class_name.is_none();
    if from_annotation || filled_in {
        compared.storage_class_name.clone_from(&before.storage_class_name);
    }
    if text(&status.phase) == "Bound" {
        let requests = compared.resources.as_mut().and_then(|r| r.requests.as_mut());
        if let (Some(requests), Some(size)) = (requests, storage(&before)) {
            requests.insert(STORAGE.into(), size);
        }
        compared
            .volume_attributes_class_name
            .clone_from(&before.volume_attributes_class_name);
    }
    if compared != before {
        let diff = internal::difference("PersistentVolumeClaimSpec", &before, &compared);
        errors.forbidden(&path, format!("{IMMUTABLE_SPEC}\n{diff}"));
    }
    let parsed = |q: Option<Quantity>| {
        q.and_then(|q| quantity::Quantity::parse(&q.0).ok())
            .unwrap_or_default()
    };
    let (size, old_size) = (
        parsed(storage(&new)),
        parsed(storage(&old.spec.clone().unwrap_or_default())),
    );
    let capacity = parsed(status.capacity.and_then(|c| c.get(STORAGE).cloned()));
    if size.cmp(&old_size) == Ordering::Less && size.cmp(&capacity) != Ordering::Greater {
        errors.forbidden(
            &path.child("resources").child("requests").child("storage"),
            "field can not be less than status.capacity",
        );
    }
    immutable(
        errors,
        &Path::new("volumeMode"),
        &new.volume_mode,
        &old.spec.as_ref().and_then(|s| s.volume_mode.clone()),
    );
    if status.current_volume_attributes_class_name.is_some()
        && new.volume_attributes_class_name != before.volume_attributes_class_name
    {
        let at = path.child("volumeAttributesClassName");
        match new.volume_attributes_class_name.as_deref() {
            None => errors.forbidden(
                &at,
                "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil",
            ),
            Some("") => errors.forbidden(
                &at,
                "update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil",
            ),
            Some(_) => {}
        }
    }
}
