//! Which storage a pod's volume or a PersistentVolume names.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{self as core, Secret, SecretReference};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::PodUid;
use knarr_client::{Api, TypedApi};
use serde::{Deserialize, Serialize};

use super::csi::{Csi, inline_handle};
use super::error::SecretError;
use super::filesystem::FsGroup;
use super::iscsi::{Iscsi, portal};
use super::nfs::Nfs;
use super::plugin::{MountTerms, PodInfo, Storage, VolumeMode};

const EXT4: &str = "ext4";

fn pod_info(pod: &core::Pod) -> PodInfo {
    let meta = &pod.metadata;
    let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
    PodInfo {
        name: meta.name.clone().unwrap_or_default(),
        namespace: meta.namespace.clone().unwrap_or_default(),
        uid: PodUid::of(meta),
        service_account: account.unwrap_or_default(),
    }
}

/// What a volume is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    Nfs(Nfs),
    Iscsi(Iscsi),
    Csi(Csi),
}

impl Source {
    pub fn storage(&self) -> &dyn Storage {
        match self {
            Source::Nfs(nfs) => nfs,
            Source::Iscsi(iscsi) => iscsi,
            Source::Csi(csi) => csi,
        }
    }
}

/// A volume of a pod: its name (the PersistentVolume's, or its own) and its source.
#[derive(Clone, Debug)]
pub struct VolumeRequest {
    pub name: String,
    pub source: Source,
    pub terms: MountTerms,
    /// The VolumeAttachment that the pod uses it by.
    pub attachment: Option<String>,
}

impl VolumeRequest {
    /// Whether the node can expand it.
    pub fn is_expandable(&self) -> bool {
        matches!(&self.source, Source::Csi(csi) if !csi.inline)
    }
}

/// Why a volume's source cannot be used; shown to the user.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("NFS volumes have no device: volumeMode Block is not supported")]
    NfsBlock,
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// What a pod names itself; none if it is no storage from elsewhere.
pub async fn inline(
    api: &dyn Api,
    pod: &core::Pod,
    volume: &core::Volume,
    fs_group: Option<FsGroup>,
) -> Result<Option<VolumeRequest>, SourceError> {
    let pod = pod_info(pod);
    let (source, read_only) = if let Some(nfs) = &volume.nfs {
        let source = Nfs {
            server: nfs.server.clone(),
            path: nfs.path.clone(),
        };
        (Source::Nfs(source), nfs.read_only)
    } else if let Some(iscsi) = &volume.iscsi {
        let secret = iscsi.secret_ref.as_ref().map(|r| SecretReference {
            name: Some(r.name.clone()),
            namespace: Some(pod.namespace.clone()),
        });
        let source = Iscsi {
            portals: portals(&iscsi.target_portal, iscsi.portals.as_deref()),
            iqn: iscsi.iqn.clone(),
            lun: iscsi.lun,
            interface: iscsi.iscsi_interface.clone().unwrap_or_else(|| "default".into()),
            filesystem: iscsi.fs_type.clone().unwrap_or_else(|| EXT4.into()),
            chap_discovery: iscsi.chap_auth_discovery == Some(true),
            chap_session: iscsi.chap_auth_session == Some(true),
            secret: chap(api, secret.as_ref()).await?,
        };
        (Source::Iscsi(source), iscsi.read_only)
    } else if let Some(csi) = &volume.csi {
        let secret = csi.node_publish_secret_ref.as_ref().map(|r| SecretReference {
            name: Some(r.name.clone()),
            namespace: Some(pod.namespace.clone()),
        });
        let source = Csi {
            driver: csi.driver.clone(),
            handle: inline_handle(&pod.uid, &volume.name),
            filesystem: csi.fs_type.clone().unwrap_or_default(),
            attributes: csi.volume_attributes.clone().unwrap_or_default(),
            inline: true,
            stage_secret: None,
            publish_secret: secret,
            expand_secret: None,
        };
        (Source::Csi(source), csi.read_only)
    } else {
        return Ok(None);
    };
    Ok(Some(VolumeRequest {
        name: volume.name.clone(),
        source,
        terms: MountTerms {
            read_only: read_only == Some(true),
            options: Vec::new(),
            access_mode: "ReadWriteOnce".into(),
            mode: VolumeMode::Filesystem,
            fs_group,
            pod,
        },
        attachment: None,
    }))
}

/// What a claim's volume is; none if it is a directory of the node.
pub async fn claimed(
    api: &dyn Api,
    pod: &core::Pod,
    volume: &core::PersistentVolume,
    read_only: bool,
    fs_group: Option<FsGroup>,
) -> Result<Option<VolumeRequest>, SourceError> {
    let Some(spec) = &volume.spec else { return Ok(None) };
    let source = if let Some(nfs) = &spec.nfs {
        Source::Nfs(Nfs {
            server: nfs.server.clone(),
            path: nfs.path.clone(),
        })
    } else if let Some(iscsi) = &spec.iscsi {
        Source::Iscsi(Iscsi {
            portals: portals(&iscsi.target_portal, iscsi.portals.as_deref()),
            iqn: iscsi.iqn.clone(),
            lun: iscsi.lun,
            interface: iscsi.iscsi_interface.clone().unwrap_or_else(|| "default".into()),
            filesystem: iscsi.fs_type.clone().unwrap_or_else(|| EXT4.into()),
            chap_discovery: iscsi.chap_auth_discovery == Some(true),
            chap_session: iscsi.chap_auth_session == Some(true),
            secret: chap(api, iscsi.secret_ref.as_ref()).await?,
        })
    } else if let Some(csi) = &spec.csi {
        Source::Csi(Csi {
            driver: csi.driver.clone(),
            handle: csi.volume_handle.clone(),
            filesystem: csi.fs_type.clone().unwrap_or_default(),
            attributes: csi.volume_attributes.clone().unwrap_or_default(),
            inline: false,
            stage_secret: csi.node_stage_secret_ref.clone(),
            publish_secret: csi.node_publish_secret_ref.clone(),
            expand_secret: csi.node_expand_secret_ref.clone(),
        })
    } else {
        return Ok(None);
    };
    let mode = VolumeMode::of(spec.volume_mode.as_deref());
    if mode == VolumeMode::Block && matches!(source, Source::Nfs(_)) {
        return Err(SourceError::NfsBlock);
    }
    let read_only = read_only || spec.csi.as_ref().is_some_and(|csi| csi.read_only == Some(true));
    let access_mode = spec.access_modes.iter().flatten().next();
    Ok(Some(VolumeRequest {
        name: volume.metadata.name.clone().unwrap_or_default(),
        source,
        terms: MountTerms {
            read_only,
            options: spec.mount_options.clone().unwrap_or_default(),
            access_mode: access_mode.cloned().unwrap_or_else(|| "ReadWriteOnce".into()),
            mode,
            fs_group,
            pod: pod_info(pod),
        },
        attachment: None,
    }))
}

fn portals(first: &str, more: Option<&[String]>) -> Vec<String> {
    let more = more.unwrap_or_default().iter().map(String::as_str);
    std::iter::once(first).chain(more).map(portal).collect()
}

async fn chap(api: &dyn Api, of: Option<&SecretReference>) -> Result<Vec<(String, String)>, SecretError> {
    let Some(SecretReference {
        name: Some(name),
        namespace,
    }) = of
    else {
        return Ok(Vec::new());
    };
    let namespace = namespace.as_deref().unwrap_or("");
    let secret = api.get_as::<Secret>(namespace, name).await;
    let secret = secret.map_err(|source| SecretError {
        doing: "couldn't get secret".into(),
        namespace: namespace.into(),
        name: name.clone(),
        failed: "",
        source,
    })?;
    let data: BTreeMap<_, _> = secret.data.clone().unwrap_or_default();
    Ok(data
        .into_iter()
        .map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned()))
        .collect())
}
