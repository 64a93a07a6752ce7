//! ServiceAccount: every pod has a service account, and gets a token volume for it unless automounting is off.

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, Container, DownwardAPIProjection, DownwardAPIVolumeFile, KeyToPath,
    ObjectFieldSelector, Pod, ProjectedVolumeSource, ServiceAccount, ServiceAccountTokenProjection, Volume,
    VolumeMount, VolumeProjection,
};
use knarr_api::kinds::pod::is_mirror;
use knarr_api::{k8s_openapi, registry};
use knarr_apimachinery::Error;

use super::{Admission, resource_name};
use crate::seams;

/// Where clients in containers read their token.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME_PREFIX: &str = "kube-api-access-";
/// The requested lifetime. TokenRequest extends it to a year and warns of clients that do not renew, as in Kubernetes.
const TOKEN_SECONDS: i64 = 3607;
const MODE: i32 = 0o644;

pub(super) fn mutate(admission: &Admission, namespace: &str, pod: &mut Pod) -> Result<(), Error> {
    let name = resource_name(&pod.metadata).to_string();
    let denied = |why: &str| Error::forbidden(registry::POD.resource_ref(&name), why);
    // A mirror pod stays as the kubelet wrote it.
    if is_mirror(pod) {
        return Ok(());
    }
    let Some(spec) = &mut pod.spec else { return Ok(()) };
    let named = spec.service_account_name.clone().filter(|n| !n.is_empty());
    let account = named.unwrap_or_else(|| "default".to_string());
    let Some(found) = admission
        .cache
        .get(&registry::SERVICE_ACCOUNT, namespace, &account)
    else {
        return Err(denied(&format!(
            "error looking up service account {namespace}/{account}: serviceaccount {account:?} not found"
        )));
    };
    let service_account: &ServiceAccount = found
        .get()
        .ok_or_else(|| Error::internal("an object stored as a ServiceAccount does not decode as one"))?;
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
        mount_token(admission, pod);
    }
    Ok(())
}

fn mount_token(admission: &Admission, pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    let volumes = spec.volumes.get_or_insert_default();
    let existing = volumes
        .iter()
        .find(|v| v.name.starts_with(VOLUME_PREFIX))
        .map(|v| v.name.clone());
    let has_volume = existing.is_some();
    let volume = existing.unwrap_or_else(|| seams::generated_name(&*admission.entropy, VOLUME_PREFIX));
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

/// A container that already mounts something at the path keeps it.
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
