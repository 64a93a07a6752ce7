//! Volumes of external storage systems.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, AzureDiskVolumeSource, AzureFileVolumeSource, CSIVolumeSource,
    CinderVolumeSource, FCVolumeSource, FlexVolumeSource, FlockerVolumeSource, GCEPersistentDiskVolumeSource,
    GitRepoVolumeSource, GlusterfsVolumeSource, ISCSIVolumeSource, NFSVolumeSource, QuobyteVolumeSource,
    RBDVolumeSource, ScaleIOVolumeSource, StorageOSVolumeSource,
};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::local_paths::local_descending_path;
use super::{required, text};
use crate::facts;

/// Maximum length of a CSI driver's name in bytes.
const CSI_DRIVER_MAX: usize = 63;

fn partition(number: Option<i32>, path: &Path, errors: &mut ErrorList) {
    let number = number.unwrap_or(0);
    if !(0..=255).contains(&number) {
        errors.invalid(
            &path.child("partition"),
            number,
            names::inclusive_range_error(1, 255),
        );
    }
}

pub(in crate::kinds) fn git_repo(v: &GitRepoVolumeSource, path: &Path, errors: &mut ErrorList) {
    required(&v.repository, &path.child("repository"), errors);
    local_descending_path(text(&v.directory), &path.child("directory"), errors);
}

pub(in crate::kinds) fn gce(v: &GCEPersistentDiskVolumeSource, path: &Path, errors: &mut ErrorList) {
    required(&v.pd_name, &path.child("pdName"), errors);
    partition(v.partition, path, errors);
}

pub(in crate::kinds) fn aws(v: &AWSElasticBlockStoreVolumeSource, path: &Path, errors: &mut ErrorList) {
    required(&v.volume_id, &path.child("volumeID"), errors);
    partition(v.partition, path, errors);
}

pub(in crate::kinds) fn nfs(v: &NFSVolumeSource, path: &Path, errors: &mut ErrorList) {
    facts::check(errors, path, v, &["server", "path"]);
    if !v.path.starts_with('/') {
        errors.invalid(&path.child("path"), &v.path, "must be an absolute path");
    }
}

/// Whether a text is a valid iSCSI name of a target or initiator.
pub(in crate::kinds) fn is_iscsi_name(name: &str) -> bool {
    match name {
        n if n.starts_with("iqn") => is_iqn(n),
        n if n.starts_with("eui") => n.len() == 20 && alphanumeric_tail(n),
        n if n.starts_with("naa") => n.len() == 36 && alphanumeric_tail(n),
        _ => false,
    }
}

fn iscsi_name(name: &str, path: &Path, errors: &mut ErrorList) {
    let begins = ["iqn", "eui", "naa"].iter().any(|b| name.starts_with(b));
    if !begins {
        errors.invalid(path, name, "must be valid format starting with iqn, eui, or naa");
    } else if !is_iscsi_name(name) {
        errors.invalid(path, name, "must be valid format");
    }
}

fn alphanumeric_tail(name: &str) -> bool {
    name.bytes().skip(4).all(|c| c.is_ascii_alphanumeric())
}

/// Whether a text is an iSCSI qualified name, such as `iqn.2001-04.com.example:storage`.
fn is_iqn(name: &str) -> bool {
    let bytes = name.as_bytes();
    let dated = bytes.len() > 12
        && bytes.starts_with(b"iqn.")
        && bytes[4..8].iter().all(u8::is_ascii_digit)
        && bytes[8] == b'-'
        && bytes[9..11].iter().all(u8::is_ascii_digit)
        && bytes[11] == b'.';
    if !dated {
        return false;
    }
    let rest = name.get(12..).unwrap_or("");
    let (authority, own) = match rest.split_once(':') {
        Some((authority, own)) => (authority, Some(own)),
        None => (rest, None),
    };
    !authority.is_empty()
        && authority
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.'))
        && own.is_none_or(|own| {
            !own.is_empty()
                && !own
                    .contains(|c: char| matches!(c, ',' | ';' | '*' | '&' | '$' | '|') || c.is_whitespace())
        })
}

pub(in crate::kinds) fn iscsi(v: &ISCSIVolumeSource, path: &Path, errors: &mut ErrorList) {
    required(&v.target_portal, &path.child("targetPortal"), errors);
    if v.iqn.is_empty() {
        errors.required(&path.child("iqn"), "");
    } else {
        iscsi_name(&v.iqn, &path.child("iqn"), errors);
    }
    if !(0..=255).contains(&v.lun) {
        errors.invalid(&path.child("lun"), v.lun, names::inclusive_range_error(0, 255));
    }
    let chap = v.chap_auth_discovery == Some(true) || v.chap_auth_session == Some(true);
    if chap && v.secret_ref.is_none() {
        errors.required(&path.child("secretRef"), "");
    }
    if let Some(initiator) = &v.initiator_name {
        iscsi_name(initiator, &path.child("initiatorname"), errors);
    }
}

pub(in crate::kinds) fn glusterfs(v: &GlusterfsVolumeSource, path: &Path, errors: &mut ErrorList) {
    facts::check(errors, path, v, &["endpoints", "path"]);
}

pub(in crate::kinds) fn flocker(v: &FlockerVolumeSource, path: &Path, errors: &mut ErrorList) {
    let (name, uuid) = (text(&v.dataset_name), text(&v.dataset_uuid));
    if name.is_empty() && uuid.is_empty() {
        errors.required(path, "one of datasetName and datasetUUID is required");
    }
    if !name.is_empty() && !uuid.is_empty() {
        errors.invalid(
            path,
            "resource",
            "datasetName and datasetUUID can not be specified simultaneously",
        );
    }
    if name.contains('/') {
        errors.invalid(&path.child("datasetName"), name, "must not contain '/'");
    }
}

pub(in crate::kinds) fn rbd(v: &RBDVolumeSource, path: &Path, errors: &mut ErrorList) {
    if v.monitors.is_empty() {
        errors.required(&path.child("monitors"), "");
    }
    required(&v.image, &path.child("image"), errors);
}

pub(in crate::kinds) fn cinder(v: &CinderVolumeSource, path: &Path, errors: &mut ErrorList) {
    required(&v.volume_id, &path.child("volumeID"), errors);
    if let Some(secret) = &v.secret_ref {
        required(&secret.name, &path.child("secretRef").child("name"), errors);
    }
}

pub(in crate::kinds) fn quobyte(v: &QuobyteVolumeSource, path: &Path, errors: &mut ErrorList) {
    const DETAIL: &str = "must be a host:port pair or multiple pairs separated by commas";
    if v.registry.is_empty() {
        errors.required(&path.child("registry"), DETAIL);
    } else if text(&v.tenant).len() >= 65 {
        errors.required(
            &path.child("tenant"),
            "must be a UUID and may not exceed a length of 64 characters",
        );
    } else {
        for pair in v.registry.split(',') {
            let valid = match pair.rsplit_once(':') {
                None => false,
                Some((host, _)) if host.starts_with('[') => host.ends_with(']'),
                Some((host, _)) => !host.contains([':', '[', ']']),
            };
            if !valid {
                errors.invalid(&path.child("registry"), &v.registry, DETAIL);
            }
        }
    }
    required(&v.volume, &path.child("volume"), errors);
}

pub(in crate::kinds) fn fc(v: &FCVolumeSource, path: &Path, errors: &mut ErrorList) {
    let names_given = v.target_wwns.as_deref().unwrap_or_default();
    let ids = v.wwids.as_deref().unwrap_or_default();
    let at = path.child("targetWWNs");
    if names_given.is_empty() && ids.is_empty() {
        errors.required(&at, "must specify either targetWWNs or wwids, but not both");
    }
    if !names_given.is_empty() && !ids.is_empty() {
        errors.invalid(
            &at,
            serde_json::Value::from(names_given),
            "targetWWNs and wwids can not be specified simultaneously",
        );
    }
    if !names_given.is_empty() {
        match v.lun {
            None => errors.required(&path.child("lun"), "lun is required if targetWWNs is specified"),
            Some(lun) if !(0..=255).contains(&lun) => {
                errors.invalid(&path.child("lun"), lun, names::inclusive_range_error(0, 255));
            }
            Some(_) => {}
        }
    }
}

pub(in crate::kinds) fn flex(v: &FlexVolumeSource, path: &Path, errors: &mut ErrorList) {
    required(&v.driver, &path.child("driver"), errors);
    flex_options(v.options.as_ref(), path, errors);
}

/// Checks that options do not use the reserved domains of Kubernetes.
pub(in crate::kinds) fn flex_options(
    options: Option<&BTreeMap<String, String>>,
    path: &Path,
    errors: &mut ErrorList,
) {
    for key in options.into_iter().flat_map(|o| o.keys()) {
        let namespace = key
            .split_once('/')
            .map_or(key.as_str(), |(namespace, _)| namespace);
        let dotted = format!(".{}", namespace.to_lowercase());
        if dotted.ends_with(".kubernetes.io") || dotted.ends_with(".k8s.io") {
            errors.invalid(
                &path.child("options").key(key),
                key,
                "kubernetes.io and k8s.io namespaces are reserved",
            );
        }
    }
}

pub(in crate::kinds) fn azure_file(v: &AzureFileVolumeSource, path: &Path, errors: &mut ErrorList) {
    facts::check(errors, path, v, &["secretName", "shareName"]);
}

pub(in crate::kinds) fn azure_disk(v: &AzureDiskVolumeSource, path: &Path, errors: &mut ErrorList) {
    facts::check(errors, path, v, &["diskName", "diskURI", "cachingMode", "kind"]);
    let Some(kind) = v.kind.as_deref() else {
        return;
    };
    let (start, form) = if kind == "Managed" {
        (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        )
    } else {
        (
            "https://",
            "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",
        )
    };
    if !v.disk_uri.starts_with(start) {
        errors.not_supported(&path.child("diskURI"), &v.disk_uri, &[form]);
    }
}

pub(in crate::kinds) fn scale_io(v: &ScaleIOVolumeSource, path: &Path, errors: &mut ErrorList) {
    facts::check(errors, path, v, &["gateway", "system", "volumeName"]);
}

pub(in crate::kinds) fn storage_os(v: &StorageOSVolumeSource, path: &Path, errors: &mut ErrorList) {
    let (name, namespace) = (text(&v.volume_name), text(&v.volume_namespace));
    if name.is_empty() {
        errors.required(&path.child("volumeName"), "");
    } else {
        errors.all_invalid(&path.child("volumeName"), name, names::dns1123_label(name));
    }
    if !namespace.is_empty() {
        let at = path.child("volumeNamespace");
        errors.all_invalid(&at, namespace, names::dns1123_label(namespace));
    }
    if let Some(secret) = &v.secret_ref {
        required(&secret.name, &path.child("secretRef").child("name"), errors);
    }
}

pub(in crate::kinds) fn csi(v: &CSIVolumeSource, path: &Path, errors: &mut ErrorList) {
    csi_driver(&v.driver, &path.child("driver"), errors);
    if let Some(secret) = &v.node_publish_secret_ref {
        if secret.name.is_empty() {
            errors.required(&path.child("nodePublishSecretRef").child("name"), "");
        } else {
            let messages = names::dns1123_subdomain(&secret.name);
            errors.all_invalid(&path.child("name"), &secret.name, messages);
        }
    }
}

/// Checks the name of a CSI driver: a DNS subdomain in upper or lower case.
pub(in crate::kinds) fn csi_driver(driver: &str, path: &Path, errors: &mut ErrorList) {
    if driver.is_empty() {
        return errors.required(path, "");
    }
    if driver.len() > CSI_DRIVER_MAX {
        errors.too_long(path, CSI_DRIVER_MAX);
    }
    errors.all_invalid(path, driver, names::dns1123_subdomain(&driver.to_lowercase()));
}
