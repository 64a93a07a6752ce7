//! The Secrets and ConfigMaps that pods and volumes reference.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, PersistentVolume, PodSpec, SecretReference, Volume};
use knarr_api::k8s_openapi;

/// The kind of referenced object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Referenced {
    Secret,
    ConfigMap,
}

/// The names of all Secrets or ConfigMaps that the pod references.
pub(crate) fn referenced_names(spec: &PodSpec, what: Referenced) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for volume in spec.volumes.iter().flatten() {
        match what {
            Referenced::Secret => volume_secret_names(volume, &mut names),
            Referenced::ConfigMap => names.extend(volume.config_map.iter().map(|c| c.name.as_str())),
        }
        for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            match what {
                Referenced::Secret => names.extend(source.secret.iter().map(|s| s.name.as_str())),
                Referenced::ConfigMap => names.extend(source.config_map.iter().map(|c| c.name.as_str())),
            }
        }
    }
    let main = spec.init_containers.iter().flatten().chain(&spec.containers);
    for c in main {
        container_names(&c.env, &c.env_from, what, &mut names);
    }
    for c in spec.ephemeral_containers.iter().flatten() {
        container_names(&c.env, &c.env_from, what, &mut names);
    }
    if what == Referenced::Secret {
        names.extend(spec.image_pull_secrets.iter().flatten().map(|s| s.name.as_str()));
    }
    names.retain(|n| !n.is_empty());
    names
}

fn volume_secret_names<'a>(volume: &'a Volume, names: &mut Vec<&'a str>) {
    names.extend(volume.secret.iter().filter_map(|s| s.secret_name.as_deref()));
    names.extend(volume.azure_file.iter().map(|s| s.secret_name.as_str()));
    let local = [
        volume.cephfs.as_ref().and_then(|s| s.secret_ref.as_ref()),
        volume.cinder.as_ref().and_then(|s| s.secret_ref.as_ref()),
        volume.flex_volume.as_ref().and_then(|s| s.secret_ref.as_ref()),
        volume.iscsi.as_ref().and_then(|s| s.secret_ref.as_ref()),
        volume.rbd.as_ref().and_then(|s| s.secret_ref.as_ref()),
        volume.scale_io.as_ref().map(|s| &s.secret_ref),
        volume.storageos.as_ref().and_then(|s| s.secret_ref.as_ref()),
        volume
            .csi
            .as_ref()
            .and_then(|s| s.node_publish_secret_ref.as_ref()),
    ];
    names.extend(local.into_iter().flatten().map(|r| r.name.as_str()));
}

fn container_names<'a>(
    env: &'a Option<Vec<EnvVar>>,
    from: &'a Option<Vec<EnvFromSource>>,
    what: Referenced,
    names: &mut Vec<&'a str>,
) {
    for source in from.iter().flatten() {
        match what {
            Referenced::Secret => names.extend(source.secret_ref.iter().map(|s| s.name.as_str())),
            Referenced::ConfigMap => names.extend(source.config_map_ref.iter().map(|c| c.name.as_str())),
        }
    }
    for value in env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
        match what {
            Referenced::Secret => names.extend(value.secret_key_ref.iter().map(|s| s.name.as_str())),
            Referenced::ConfigMap => names.extend(value.config_map_key_ref.iter().map(|c| c.name.as_str())),
        }
    }
}

/// A Secret, as [`volume_secrets`] names it.
pub(crate) fn secret_key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// The Secrets that a node needs for a volume, as [`secret_key`] writes them.
pub(crate) fn volume_secrets(volume: &PersistentVolume) -> Vec<String> {
    let Some(spec) = &volume.spec else {
        return Vec::new();
    };
    let claimed = spec.claim_ref.as_ref().and_then(|c| c.namespace.as_deref());
    let mut refs: Vec<&SecretReference> = Vec::new();
    if let Some(csi) = &spec.csi {
        refs.extend(&csi.node_publish_secret_ref);
        refs.extend(&csi.node_stage_secret_ref);
        refs.extend(&csi.node_expand_secret_ref);
    }
    refs.extend(spec.cephfs.iter().filter_map(|s| s.secret_ref.as_ref()));
    refs.extend(spec.flex_volume.iter().filter_map(|s| s.secret_ref.as_ref()));
    refs.extend(spec.iscsi.iter().filter_map(|s| s.secret_ref.as_ref()));
    refs.extend(spec.rbd.iter().filter_map(|s| s.secret_ref.as_ref()));
    refs.extend(spec.scale_io.iter().map(|s| &s.secret_ref));
    let key = |namespace: Option<&str>, name: &str| {
        let namespace = namespace.filter(|namespace| !namespace.is_empty());
        secret_key(namespace.or(claimed).unwrap_or_default(), name)
    };
    let referenced = refs.into_iter();
    let mut all: Vec<String> = referenced
        .map(|secret| {
            key(
                secret.namespace.as_deref(),
                secret.name.as_deref().unwrap_or_default(),
            )
        })
        .collect();
    let files = spec.azure_file.iter();
    all.extend(files.map(|file| key(file.secret_namespace.as_deref(), &file.secret_name)));
    all
}
