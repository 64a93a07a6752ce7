//! The source of a PersistentVolume: exactly one, validated by the rules of its type. Many types have the same rules as a
//! pod's volume; others refer to a Secret with its namespace.

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, FlexPersistentVolumeSource, GlusterfsPersistentVolumeSource,
    ISCSIPersistentVolumeSource, LocalVolumeSource, PersistentVolumeSpec, SecretReference,
    StorageOSPersistentVolumeSource,
};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use crate::facts;
use crate::kinds::checks::{dns_label, dns_subdomain, text};
use crate::kinds::pod::validation::local_paths::no_backsteps;
use crate::kinds::pod::validation::volumes::host_path;
use crate::kinds::pod::validation::{
    required, volume_plugins as plugins,
    volume_plugins::{csi_driver, flex_options, is_iscsi_name},
};

const ONE_SOURCE: &str = "may not specify more than 1 volume type";
/// Maximum length of the volume's name and its portal together, which are the name of an iSCSI interface.
const ISCSI_SESSION_MAX: usize = 64;

/// Validates the source of the volume `name`.
pub(super) fn validate(spec: &PersistentVolumeSpec, name: &str, path: &Path, errors: &mut ErrorList) {
    let mut found = false;
    macro_rules! sources {
        ($($given:ident: $field:literal => $check:expr;)*) => {$(
            if let Some(given) = &spec.$given {
                if found {
                    errors.forbidden(&path.child($field), ONE_SOURCE);
                } else {
                    found = true;
                    let check: fn(_, &Path, &mut ErrorList) = $check;
                    check(given, path, errors);
                }
            }
        )*};
    }
    sources! {
        host_path: "hostPath" => |v: &_, p, e| host_path(v, &p.child("hostPath"), e);
        // The path in errors differs from the field's name, as in `ValidatePersistentVolumeSpec`.
        gce_persistent_disk: "gcePersistentDisk" => |v: &_, p, e| plugins::gce(v, &p.child("persistentDisk"), e);
        aws_elastic_block_store: "awsElasticBlockStore"
            => |v: &_, p, e| plugins::aws(v, &p.child("awsElasticBlockStore"), e);
        glusterfs: "glusterfs" => |v: &_, p, e| glusterfs(v, &p.child("glusterfs"), e);
        flocker: "flocker" => |v: &_, p, e| plugins::flocker(v, &p.child("flocker"), e);
        nfs: "nfs" => |v: &_, p, e| plugins::nfs(v, &p.child("nfs"), e);
        rbd: "rbd" => |v: &k8s_openapi::api::core::v1::RBDPersistentVolumeSource, p, e| {
            let at = p.child("rbd");
            if v.monitors.is_empty() {
                e.required(&at.child("monitors"), "");
            }
            required(&v.image, &at.child("image"), e);
        };
        quobyte: "quobyte" => |v: &_, p, e| plugins::quobyte(v, &p.child("quobyte"), e);
        cephfs: "cephFS" => |v: &k8s_openapi::api::core::v1::CephFSPersistentVolumeSource, p, e| {
            if v.monitors.is_empty() {
                e.required(&p.child("cephfs").child("monitors"), "");
            }
        };
    }
    if let Some(source) = &spec.iscsi {
        if found {
            errors.forbidden(&path.child("iscsi"), ONE_SOURCE);
        } else {
            found = true;
            iscsi(source, name, &path.child("iscsi"), errors);
        }
    }
    sources! {
        cinder: "cinder" => |v: &k8s_openapi::api::core::v1::CinderPersistentVolumeSource, p, e| {
            let at = p.child("cinder");
            required(&v.volume_id, &at.child("volumeID"), e);
            named_secret(v.secret_ref.as_ref(), &at.child("secretRef"), e);
        };
        fc: "fc" => |v: &_, p, e| plugins::fc(v, &p.child("fc"), e);
    }
    if let Some(source) = &spec.flex_volume {
        // The only source that may be set in addition to another.
        found = true;
        flex(source, &path.child("flexVolume"), errors);
    }
    sources! {
        azure_file: "azureFile" => |v: &k8s_openapi::api::core::v1::AzureFilePersistentVolumeSource, p, e| {
            let at = p.child("azureFile");
            facts::check(e, &at, v, &["secretName", "shareName"]);
            if v.secret_namespace.as_deref() == Some("") {
                e.required(&at.child("secretNamespace"), "");
            }
        };
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
        azure_disk: "azureDisk" => |v: &_, p, e| plugins::azure_disk(v, &p.child("azureDisk"), e);
        scale_io: "scaleIO" => |v: &k8s_openapi::api::core::v1::ScaleIOPersistentVolumeSource, p, e| {
            facts::check(e, &p.child("scaleIO"), v, &["gateway", "system", "volumeName"]);
        };
    }
    if let Some(source) = &spec.local {
        if found {
            errors.forbidden(&path.child("local"), ONE_SOURCE);
        } else {
            found = true;
            local(source, &path.child("local"), errors);
            if spec.node_affinity.is_none() {
                errors.required(&path.child("nodeAffinity"), "Local volume requires node affinity");
            }
        }
    }
    sources! {
        storageos: "storageos" => |v: &_, p, e| storage_os(v, &p.child("storageos"), e);
        csi: "csi" => |v: &_, p, e| csi(v, &p.child("csi"), e);
    }
    if !found {
        errors.required(path, "must specify a volume type");
    }
}

/// Whether the source's plugin supports mount options, also by the deprecated annotation.
pub(super) fn supports_mount_options(spec: &PersistentVolumeSpec) -> bool {
    spec.gce_persistent_disk.is_some()
        || spec.aws_elastic_block_store.is_some()
        || spec.glusterfs.is_some()
        || spec.nfs.is_some()
        || spec.rbd.is_some()
        || spec.quobyte.is_some()
        || spec.iscsi.is_some()
        || spec.cinder.is_some()
        || spec.cephfs.is_some()
        || spec.azure_file.is_some()
        || spec.vsphere_volume.is_some()
        || spec.azure_disk.is_some()
        || spec.photon_persistent_disk.is_some()
}

fn glusterfs(v: &GlusterfsPersistentVolumeSource, path: &Path, errors: &mut ErrorList) {
    facts::check(errors, path, v, &["endpoints", "path"]);
    let Some(namespace) = v.endpoints_namespace.as_deref() else {
        return;
    };
    let at = path.child("endpointsNamespace");
    if namespace.is_empty() {
        errors.invalid(
            &at,
            namespace,
            "if the endpointnamespace is set, it must be a valid namespace name",
        );
    } else {
        dns_label(errors, &at, namespace);
    }
}

/// Defaults of the sources; the same as those of volumes in pods.
pub(super) fn set_defaults(spec: &mut PersistentVolumeSpec) {
    fn or(field: &mut Option<String>, default: &str) {
        if text(field).is_empty() {
            *field = Some(default.into());
        }
    }
    if let Some(iscsi) = &mut spec.iscsi {
        or(&mut iscsi.iscsi_interface, "default");
    }
    if let Some(rbd) = &mut spec.rbd {
        or(&mut rbd.pool, "rbd");
        or(&mut rbd.user, "admin");
        or(&mut rbd.keyring, "/etc/ceph/keyring");
    }
    if let Some(disk) = &mut spec.azure_disk {
        disk.caching_mode.get_or_insert_with(|| "ReadWrite".into());
        disk.fs_type.get_or_insert_with(|| "ext4".into());
        disk.read_only.get_or_insert(false);
        disk.kind.get_or_insert_with(|| "Shared".into());
    }
    if let Some(scale_io) = &mut spec.scale_io {
        or(&mut scale_io.storage_mode, "ThinProvisioned");
        or(&mut scale_io.fs_type, "xfs");
    }
}

fn iscsi(v: &ISCSIPersistentVolumeSource, name: &str, path: &Path, errors: &mut ErrorList) {
    const FORM: &str = "must be valid format";
    required(&v.target_portal, &path.child("targetPortal"), errors);
    let session = name.len() + 1 + v.target_portal.len();
    if v.initiator_name.is_some() && session > ISCSI_SESSION_MAX {
        errors.invalid(
            &path.child("targetportal"),
            &v.target_portal,
            "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName \
             is specified.",
        );
    }
    let at = path.child("iqn");
    if v.iqn.is_empty() {
        errors.required(&at, "");
    } else if !is_iscsi_name(&v.iqn) {
        errors.invalid(&at, &v.iqn, FORM);
    }
    if !(0..=255).contains(&v.lun) {
        errors.invalid(&path.child("lun"), v.lun, names::inclusive_range_error(0, 255));
    }
    let at = path.child("secretRef");
    let chap = v.chap_auth_discovery == Some(true) || v.chap_auth_session == Some(true);
    match &v.secret_ref {
        None if chap => errors.required(&at, ""),
        None => {}
        Some(secret) => required(text(&secret.name), &at.child("name"), errors),
    }
    if let Some(initiator) = v.initiator_name.as_deref().filter(|i| !is_iscsi_name(i)) {
        errors.invalid(&path.child("initiatorname"), initiator, FORM);
    }
}

fn flex(v: &FlexPersistentVolumeSource, path: &Path, errors: &mut ErrorList) {
    required(&v.driver, &path.child("driver"), errors);
    flex_options(v.options.as_ref(), path, errors);
}

fn local(v: &LocalVolumeSource, path: &Path, errors: &mut ErrorList) {
    let at = path.child("path");
    match v.path.as_str() {
        "" => errors.required(&at, ""),
        target => no_backsteps(target, &at, errors),
    }
}

fn storage_os(v: &StorageOSPersistentVolumeSource, path: &Path, errors: &mut ErrorList) {
    let (name, namespace) = (text(&v.volume_name), text(&v.volume_namespace));
    match name {
        "" => errors.required(&path.child("volumeName"), ""),
        name => dns_label(errors, &path.child("volumeName"), name),
    }
    if !namespace.is_empty() {
        dns_label(errors, &path.child("volumeNamespace"), namespace);
    }
    if let Some(secret) = &v.secret_ref {
        let at = path.child("secretRef");
        required(text(&secret.name), &at.child("name"), errors);
        required(text(&secret.namespace), &at.child("namespace"), errors);
    }
}

fn csi(v: &CSIPersistentVolumeSource, path: &Path, errors: &mut ErrorList) {
    csi_driver(&v.driver, &path.child("driver"), errors);
    required(&v.volume_handle, &path.child("volumeHandle"), errors);
    for (field, secret) in [
        ("controllerPublishSecretRef", &v.controller_publish_secret_ref),
        ("controllerExpandSecretRef", &v.controller_expand_secret_ref),
        ("nodePublishSecretRef", &v.node_publish_secret_ref),
        ("nodeExpandSecretRef", &v.node_expand_secret_ref),
    ] {
        let Some(secret) = secret else { continue };
        let at = path.child(field);
        match text(&secret.name) {
            "" => errors.required(&at.child("name"), ""),
            name => dns_subdomain(errors, &at.child("name"), name),
        }
        match text(&secret.namespace) {
            "" => errors.required(&at.child("namespace"), ""),
            namespace => dns_label(errors, &at.child("namespace"), namespace),
        }
    }
}

/// Checks a reference to a Secret, which needs a name and a namespace.
fn named_secret(secret: Option<&SecretReference>, path: &Path, errors: &mut ErrorList) {
    if let Some(secret) = secret {
        facts::check(errors, path, secret, &["name", "namespace"]);
    }
}
