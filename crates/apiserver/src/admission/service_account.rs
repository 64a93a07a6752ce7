//! ServiceAccount: every pod runs as one, and gets a token for it unless told otherwise.

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, Container, DownwardAPIProjection, DownwardAPIVolumeFile, KeyToPath,
    ObjectFieldSelector, Pod, ProjectedVolumeSource, ServiceAccount, ServiceAccountTokenProjection, Volume,
    VolumeMount, VolumeProjection,
};
use knarr_api::{Error, k8s_openapi, registry};

use super::shown_name;
use crate::seams;
use crate::server::Server;

/// Where containers look for their token.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME_PREFIX: &str = "kube-api-access-";
/// Asked for; what is given lives a year, and older clients are warned about, as in Kubernetes.
const TOKEN_SECONDS: i64 = 3607;
const MODE: i32 = 0o644;
/// Marks a static pod's copy in the API.
const MIRROR: &str = "kubernetes.io/config.mirror";

pub(super) fn admit(server: &Server, namespace: &str, pod: &mut Pod) -> Result<(), Error> {
    let name = shown_name(&pod.metadata).to_string();
    let refused = |why: &str| Error::forbidden(registry::POD.about(&name), why);
    let is_mirror = pod
        .metadata
        .annotations
        .as_ref()
        .is_some_and(|a| a.contains_key(MIRROR));
    let Some(spec) = &mut pod.spec else { return Ok(()) };
    let named = spec.service_account_name.clone().filter(|n| !n.is_empty());
    if is_mirror {
        return match named {
            Some(_) => Err(refused("a mirror pod may not reference service accounts")),
            None => Ok(()),
        };
    }
    let account = named.unwrap_or_else(|| "default".to_string());
    let Some(found) = server.cache.get(&registry::SERVICE_ACCOUNT, namespace, &account) else {
        return Err(refused(&format!(
            "error looking up service account {namespace}/{account}: serviceaccount {account:?} not found"
        )));
    };
    let service_account: &ServiceAccount = found
        .get()
        .ok_or_else(|| Error::internal("a ServiceAccount that is none"))?;
    spec.service_account_name = Some(account.clone());
    spec.service_account = Some(account);
    if spec.image_pull_secrets.as_ref().is_none_or(Vec::is_empty) {
        spec.image_pull_secrets
            .clone_from(&service_account.image_pull_secrets);
    }
    let automount = spec
        .automount_service_account_token
        .or(service_account.automount_service_account_token)
        .unwrap_or(true);
    if automount {
        mount_token(server, pod);
    }
    Ok(())
}

fn mount_token(server: &Server, pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    let volumes = spec.volumes.get_or_insert_default();
    let existing = volumes
        .iter()
        .find(|v| v.name.starts_with(VOLUME_PREFIX))
        .map(|v| v.name.clone());
    let has_volume = existing.is_some();
    let volume = existing.unwrap_or_else(|| seams::generated_name(&*server.entropy, VOLUME_PREFIX));
    let mut needed = false;
    let containers = spec
        .init_containers
        .iter_mut()
        .flatten()
        .chain(&mut spec.containers);
    for container in containers {
        needed |= mount_into(container, &volume);
    }
    if needed && !has_volume {
        volumes.push(token_volume(volume));
    }
    if volumes.is_empty() {
        spec.volumes = None;
    }
}

/// A container that has something of its own there keeps it.
fn mount_into(container: &mut Container, volume: &str) -> bool {
    let mounts = container.volume_mounts.get_or_insert_default();
    if mounts.iter().any(|m| m.mount_path == MOUNT_PATH) {
        return false;
    }
    mounts.push(VolumeMount {
        name: volume.to_string(),
        read_only: Some(true),
        mount_path: MOUNT_PATH.into(),
        ..VolumeMount::default()
    });
    true
}

fn token_volume(name: String) -> Volume {
    let token = VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            expiration_seconds: Some(TOKEN_SECONDS),
            path: "token".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let authority = VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name: "kube-root-ca.crt".into(),
            items: Some(vec![KeyToPath {
                key: "ca.crt".into(),
                path: "ca.crt".into(),
                mode: None,
            }]),
            optional: None,
        }),
        ..Default::default()
    };
    let namespace = VolumeProjection {
        downward_api: Some(DownwardAPIProjection {
            items: Some(vec![DownwardAPIVolumeFile {
                path: "namespace".into(),
                field_ref: Some(ObjectFieldSelector {
                    api_version: Some("v1".into()),
                    field_path: "metadata.namespace".into(),
                }),
                ..Default::default()
            }]),
        }),
        ..Default::default()
    };
    Volume {
        name,
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(MODE),
            sources: Some(vec![token, authority, namespace]),
        }),
        ..Volume::default()
    }
}
