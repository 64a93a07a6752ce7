//! Volumes: each has one source, validated here if Kubernetes itself provides it. Those of external storage systems are in
//! `volume_plugins`, projected ones in `projected`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, PersistentVolumeClaimTemplate, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::meta;
use knarr_apimachinery::names;
use knarr_apimachinery::quantity::Quantity;

use super::local_paths::no_backsteps;
use super::volume_files::{downward_file, items, mode};
use super::{projected, required, resource_requirements, text, volume_plugins};
use crate::facts;
use crate::kinds::checks::Json;

const ACCESS_MODES: [&str; 4] = [
    "ReadWriteOnce",
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOncePod",
];

/// Validates all volumes and returns the valid ones by name.
pub(super) fn validate<'a>(
    spec: &'a PodSpec,
    meta: Option<&ObjectMeta>,
    path: &Path,
    errors: &mut ErrorList,
) -> BTreeMap<&'a str, &'a Volume> {
    let pod_name = meta.and_then(|m| m.name.as_deref()).unwrap_or("");
    let volumes = spec.volumes.as_deref().unwrap_or_default();
    let created: BTreeSet<String> = volumes
        .iter()
        .filter(|v| v.ephemeral.is_some() && !pod_name.is_empty())
        .map(|v| format!("{pod_name}-{}", v.name))
        .collect();
    let mut known = BTreeMap::new();
    for (i, volume) in volumes.iter().enumerate() {
        let at = path.index(i);
        let name_at = at.child("name");
        let mut own = ErrorList::new();
        source(volume, meta, &at, &mut own);
        if volume.name.is_empty() {
            own.required(&name_at, "");
        } else {
            own.all_invalid(&name_at, &volume.name, names::dns1123_label(&volume.name));
        }
        if known.contains_key(volume.name.as_str()) {
            own.duplicate(&name_at, &volume.name);
        }
        if own.is_empty() {
            known.insert(volume.name.as_str(), volume);
        } else {
            errors.extend(own);
        }
        if let Some(claim) = &volume.persistent_volume_claim
            && created.contains(&claim.claim_name)
        {
            errors.invalid(
                &at.child("persistentVolumeClaim").child("claimName"),
                &claim.claim_name,
                "must not reference a PVC that gets created for an ephemeral volume",
            );
        }
    }
    known
}

/// Checks that there is exactly one source: the first one is validated, any other is forbidden.
fn source(volume: &Volume, meta: Option<&ObjectMeta>, path: &Path, errors: &mut ErrorList) {
    let mut found = false;
    let mut first = |present: bool, field: &str, errors: &mut ErrorList| -> bool {
        if !present {
            return false;
        }
        if found {
            errors.forbidden(&path.child(field), "may not specify more than 1 volume type");
            return false;
        }
        found = true;
        true
    };
    macro_rules! sources {
        ($($given:ident: $field:literal => $check:expr;)*) => {$(
            if let Some(given) = &volume.$given
                && first(true, $field, errors)
            {
                let check: fn(_, &Path, &mut ErrorList) = $check;
                check(given, path, errors);
            }
        )*};
    }
    if let Some(dir) = &volume.empty_dir {
        first(true, "emptyDir", errors);
        let size = dir.size_limit.as_ref().and_then(|q| Quantity::of(q).ok());
        if size.is_some_and(|s| s.is_negative()) {
            errors.forbidden(
                &path.child("emptyDir").child("sizeLimit"),
                "SizeLimit field must be a valid resource quantity",
            );
        }
    }
    sources! {
        host_path: "hostPath" => |v: &_, p, e| host_path(v, &p.child("hostPath"), e);
        git_repo: "gitRepo" => |v: &_, p, e| volume_plugins::git_repo(v, &p.child("gitRepo"), e);
        // The path in errors differs from the field's name, as in `validateVolumeSource`.
        gce_persistent_disk: "gcePersistentDisk" => |v: &_, p, e| volume_plugins::gce(v, &p.child("persistentDisk"), e);
        aws_elastic_block_store: "awsElasticBlockStore"
            => |v: &_, p, e| volume_plugins::aws(v, &p.child("awsElasticBlockStore"), e);
        secret: "secret" => |v: &k8s_openapi::api::core::v1::SecretVolumeSource, p, e| {
            let at = p.child("secret");
            required(text(&v.secret_name), &at.child("secretName"), e);
            mode(v.default_mode, &at.child("defaultMode"), e);
            items(v.items.as_deref(), &at.child("items"), e);
        };
        nfs: "nfs" => |v: &_, p, e| volume_plugins::nfs(v, &p.child("nfs"), e);
        iscsi: "iscsi" => |v: &_, p, e| volume_plugins::iscsi(v, &p.child("iscsi"), e);
    }
    if let Some(iscsi) = &volume.iscsi
        && iscsi.initiator_name.is_some()
        && volume.name.len() + 1 + iscsi.target_portal.len() > 64
    {
        errors.invalid(
            &path.child("name"),
            &volume.name,
            "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
             iscsi.initiatorName is specified.",
        );
    }
    sources! {
        glusterfs: "glusterfs" => |v: &_, p, e| volume_plugins::glusterfs(v, &p.child("glusterfs"), e);
        flocker: "flocker" => |v: &_, p, e| volume_plugins::flocker(v, &p.child("flocker"), e);
        persistent_volume_claim: "persistentVolumeClaim"
            => |v: &k8s_openapi::api::core::v1::PersistentVolumeClaimVolumeSource, p, e| {
                required(&v.claim_name, &p.child("persistentVolumeClaim").child("claimName"), e);
            };
        rbd: "rbd" => |v: &_, p, e| volume_plugins::rbd(v, &p.child("rbd"), e);
        cinder: "cinder" => |v: &_, p, e| volume_plugins::cinder(v, &p.child("cinder"), e);
        cephfs: "cephFS" => |v: &k8s_openapi::api::core::v1::CephFSVolumeSource, p, e| {
            if v.monitors.is_empty() {
                e.required(&p.child("cephfs").child("monitors"), "");
            }
        };
        quobyte: "quobyte" => |v: &_, p, e| volume_plugins::quobyte(v, &p.child("quobyte"), e);
        downward_api: "downwarAPI" => |v: &k8s_openapi::api::core::v1::DownwardAPIVolumeSource, p, e| {
            let at = p.child("downwardAPI");
            mode(v.default_mode, &at.child("defaultMode"), e);
            for file in v.items.iter().flatten() {
                downward_file(file, &at, e);
            }
        };
        fc: "fc" => |v: &_, p, e| volume_plugins::fc(v, &p.child("fc"), e);
        flex_volume: "flexVolume" => |v: &_, p, e| volume_plugins::flex(v, &p.child("flexVolume"), e);
        config_map: "configMap" => |v: &k8s_openapi::api::core::v1::ConfigMapVolumeSource, p, e| {
            let at = p.child("configMap");
            required(&v.name, &at.child("name"), e);
            mode(v.default_mode, &at.child("defaultMode"), e);
            items(v.items.as_deref(), &at.child("items"), e);
        };
        azure_file: "azureFile" => |v: &_, p, e| volume_plugins::azure_file(v, &p.child("azureFile"), e);
        vsphere_volume: "vsphereVolume"
            => |v: &k8s_openapi::api::core::v1::VsphereVirtualDiskVolumeSource, p, e| {
                required(&v.volume_path, &p.child("vsphereVolume").child("volumePath"), e);
            };
        photon_persistent_disk: "photonPersistentDisk"
            => |v: &k8s_openapi::api::core::v1::PhotonPersistentDiskVolumeSource, p, e| {
                required(&v.pd_id, &p.child("photonPersistentDisk").child("pdID"), e);
            };
        portworx_volume: "portworxVolume" => |v: &k8s_openapi::api::core::v1::PortworxVolumeSource, p, e| {
            required(&v.volume_id, &p.child("portworxVolume").child("volumeID"), e);
        };
        azure_disk: "azureDisk" => |v: &_, p, e| volume_plugins::azure_disk(v, &p.child("azureDisk"), e);
        storageos: "storageos" => |v: &_, p, e| volume_plugins::storage_os(v, &p.child("storageos"), e);
        projected: "projected" => |v: &_, p, e| projected::validate(v, &p.child("projected"), e);
        scale_io: "scaleIO" => |v: &_, p, e| volume_plugins::scale_io(v, &p.child("scaleIO"), e);
        csi: "csi" => |v: &_, p, e| volume_plugins::csi(v, &p.child("csi"), e);
    }
    if let Some(ephemeral) = &volume.ephemeral
        && first(true, "ephemeral", errors)
    {
        let at = path.child("ephemeral").child("volumeClaimTemplate");
        match &ephemeral.volume_claim_template {
            None => errors.required(&at, ""),
            Some(template) => claim_template(template, &at, errors),
        }
        let pod_name = meta.and_then(|m| m.name.as_deref()).unwrap_or("");
        if !pod_name.is_empty() && !volume.name.is_empty() {
            let claim = format!("{pod_name}-{}", volume.name);
            for detail in names::dns1123_subdomain(&claim) {
                errors.invalid(
                    &path.child("name"),
                    &volume.name,
                    format!("PVC name {claim:?}: {detail}"),
                );
            }
        }
    }
    if let Some(image) = &volume.image
        && first(true, "image", errors)
    {
        let at = path.child("image");
        if meta.is_some() {
            required(text(&image.reference), &at.child("reference"), errors);
        }
        facts::check(errors, &at, image, &["pullPolicy"]);
    }
    if !found {
        errors.required(path, "must specify a volume type");
    }
}

pub(in crate::kinds) fn host_path(
    source: &k8s_openapi::api::core::v1::HostPathVolumeSource,
    path: &Path,
    errors: &mut ErrorList,
) {
    if source.path.is_empty() {
        return errors.required(&path.child("path"), "");
    }
    no_backsteps(&source.path, &path.child("path"), errors);
    facts::check(errors, path, source, &["type"]);
}

fn claim_template(template: &PersistentVolumeClaimTemplate, path: &Path, errors: &mut ErrorList) {
    if let Some(metadata) = &template.metadata {
        template_metadata(metadata, &path.child("metadata"), errors);
    }
    errors.extend(validate_claim_spec(&template.spec, &path.child("spec")));
}

/// `ValidateTemplateObjectMeta`: the metadata in a template has only labels and annotations.
pub(crate) fn template_metadata(metadata: &ObjectMeta, path: &Path, errors: &mut ErrorList) {
    errors.extend(meta::annotations(
        metadata.annotations.as_ref(),
        &path.child("annotations"),
    ));
    errors.extend(meta::labels(metadata.labels.as_ref(), &path.child("labels")));
    for (field, given) in [
        ("name", metadata.name.is_some()),
        ("generateName", metadata.generate_name.is_some()),
        ("namespace", metadata.namespace.is_some()),
        ("selfLink", metadata.self_link.is_some()),
        ("uID", metadata.uid.is_some()),
        ("resourceVersion", metadata.resource_version.is_some()),
        ("generation", metadata.generation.is_some()),
        ("creationTimestamp", metadata.creation_timestamp.is_some()),
        ("deletionTimestamp", metadata.deletion_timestamp.is_some()),
        (
            "deletionGracePeriodSeconds",
            metadata.deletion_grace_period_seconds.is_some(),
        ),
        ("ownerReferences", metadata.owner_references.is_some()),
        ("finalizers", metadata.finalizers.is_some()),
        ("managedFields", metadata.managed_fields.is_some()),
    ] {
        if given {
            errors.forbidden(&path.child(field), "cannot be set");
        }
    }
}

/// Validates the spec of a PersistentVolumeClaim or of a claim template at `path`.
pub fn validate_claim_spec(spec: &PersistentVolumeClaimSpec, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let at = path.child("accessModes");
    if modes.is_empty() {
        errors.required(&at, "at least 1 access mode is required");
    }
    errors.extend(meta::label_selector(
        spec.selector.as_ref(),
        &path.child("selector"),
    ));
    for mode in modes.iter().filter(|m| !ACCESS_MODES.contains(&m.as_str())) {
        errors.not_supported(&at, mode, &ACCESS_MODES);
    }
    let alone = modes.iter().any(|m| m == "ReadWriteOncePod");
    let others = modes
        .iter()
        .any(|m| m != "ReadWriteOncePod" && ACCESS_MODES.contains(&m.as_str()));
    if alone && others {
        errors.forbidden(&at, "may not use ReadWriteOncePod with other access modes");
    }
    let at = path.child("resources").key("storage");
    let storage = spec
        .resources
        .as_ref()
        .and_then(|r| r.requests.as_ref()?.get("storage"));
    match storage.map(Quantity::of) {
        None => errors.required(&at, ""),
        Some(Ok(amount)) if amount <= Quantity::default() => {
            errors.invalid(&at, amount.to_string(), "must be greater than zero");
        }
        Some(Ok(_)) => {
            if let Some(wire) = storage {
                resource_requirements::quantity("storage", wire, &at, &mut errors);
            }
        }
        Some(Err(detail)) => errors.invalid(&at, storage.map_or("", |q| q.0.as_str()), detail),
    }
    for (field, class) in [
        ("storageClassName", text(&spec.storage_class_name)),
        (
            "volumeAttributesClassName",
            text(&spec.volume_attributes_class_name),
        ),
    ] {
        if !class.is_empty() {
            errors.all_invalid(&path.child(field), class, names::dns1123_subdomain(class));
        }
    }
    facts::check(&mut errors, path, spec, &["volumeMode"]);
    data_sources(spec, path, &mut errors);
    errors
}

fn data_sources(spec: &PersistentVolumeClaimSpec, path: &Path, errors: &mut ErrorList) {
    let mut check = |name: &str, kind: &str, group: &str, at: &Path| {
        required(name, &at.child("name"), errors);
        required(kind, &at.child("kind"), errors);
        if group.is_empty() && kind != "PersistentVolumeClaim" {
            errors.invalid(
                at,
                kind,
                "must be 'PersistentVolumeClaim' when referencing the default apiGroup",
            );
        }
        if !group.is_empty() {
            errors.all_invalid(&at.child("apiGroup"), group, names::dns1123_subdomain(group));
        }
    };
    if let Some(source) = &spec.data_source {
        check(
            &source.name,
            &source.kind,
            text(&source.api_group),
            &path.child("dataSource"),
        );
    }
    if let Some(source) = &spec.data_source_ref {
        let at = path.child("dataSourceRef");
        check(&source.name, &source.kind, text(&source.api_group), &at);
        let namespace = text(&source.namespace);
        if !namespace.is_empty() {
            let messages = names::dns1123_label(namespace);
            errors.all_invalid(&at.child("namespace"), namespace, messages);
        }
    }
    if let (Some(old), Some(new)) = (&spec.data_source, &spec.data_source_ref) {
        // Upstream passes a field path as the value, whose JSON is `{}`.
        let shown = Json("{}".into());
        if !text(&new.namespace).is_empty() {
            errors.invalid(
                path,
                shown,
                "may not be specified when dataSourceRef.namespace is specified",
            );
        } else if (&old.api_group, &old.kind, &old.name) != (&new.api_group, &new.kind, &new.name) {
            errors.invalid(path, shown, "must match dataSourceRef");
        }
    }
}
