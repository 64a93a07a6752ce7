//! Volumes of CSI drivers: the calls of a driver for a pod, and their reversal.
//!
//! Attaching (`ControllerPublish`) is the driver's external-attacher's. That it is done is waited for, and held to, with
//! all other attachments ([`crate::volumes::attach`]); here is only read what the attacher has left for the node.

use knarr_apimachinery::ids::PodUid;

pub mod drivers;
mod expand;
pub mod node_info;
#[cfg(test)]
mod tests;
pub mod wire;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Secret, SecretReference};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use knarr_api::k8s_openapi;
use knarr_api::kinds::persistent_volume::{csi_attachment, sha256};
use knarr_client::{Api, TypedApi};
use serde::{Deserialize, Serialize};

pub use expand::uncertain;

use super::error::{SecretError, StorageError, StorageFailure};
use super::plugin::{MountTerms, Storage, Tools, VolumeMode};

/// The operation that failed where there is no driver, with kubelet's messages.
const STAGE: &str = "attacher.MountDevice failed to create newCsiDriverClient";
const PUBLISH: &str = "mounter.SetUpAt failed to get CSI client";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Csi {
    pub driver: String,
    pub handle: String,
    pub filesystem: String,
    pub attributes: BTreeMap<String, String>,
    /// An inline volume: created with one pod for it, and never attached nor staged.
    pub inline: bool,
    #[serde(skip)]
    pub stage_secret: Option<SecretReference>,
    #[serde(skip)]
    pub publish_secret: Option<SecretReference>,
    #[serde(skip)]
    pub expand_secret: Option<SecretReference>,
}

/// The handle of an inline volume: of this pod and of this name, always the same.
pub fn inline_handle(uid: &PodUid, volume: &str) -> String {
    format!("csi-{}", sha256(&format!("{uid}{volume}")))
}

/// Whether the driver's volumes are attached before a node uses them: true, unless its CSIDriver object disables it.
pub async fn is_attached(api: &dyn Api, driver: &str) -> Result<bool, StorageError> {
    match api.get_as::<CSIDriver>("", driver).await {
        Ok(driver) => Ok(driver.spec.attach_required != Some(false)),
        Err(error) if error.is_not_found() => Ok(true),
        Err(source) => Err(StorageError::CsiDriver {
            driver: driver.into(),
            source,
        }),
    }
}

/// The capabilities that a driver reports.
struct DriverCapabilities {
    stage: bool,
    expand: bool,
    mount_group: bool,
    multi_writer: bool,
}

impl Csi {
    async fn can(&self, tools: &Tools, socket: &Path) -> Result<DriverCapabilities, StorageError> {
        let calls_made = wire::call(&*tools.host, socket, wire::NodeGetCapabilities {}).await?;
        let kinds: Vec<i32> = calls_made
            .capabilities
            .iter()
            .filter_map(|c| c.rpc.as_ref())
            .map(|r| r.kind)
            .collect();
        Ok(DriverCapabilities {
            stage: kinds.contains(&wire::STAGE_UNSTAGE),
            expand: kinds.contains(&wire::EXPAND_VOLUME),
            mount_group: kinds.contains(&wire::VOLUME_MOUNT_GROUP),
            multi_writer: kinds.contains(&wire::SINGLE_NODE_MULTI_WRITER),
        })
    }

    fn socket(&self, tools: &Tools, doing: &'static str) -> Result<PathBuf, StorageError> {
        let socket = tools.drivers.socket(&self.driver);
        socket.ok_or_else(|| StorageError::NotRegistered {
            doing,
            driver: self.driver.clone(),
        })
    }

    /// The driver's object, if it has one.
    async fn about(&self, tools: &Tools) -> Result<Option<knarr_api::Shared<CSIDriver>>, StorageError> {
        match tools.api.get_as::<CSIDriver>("", &self.driver).await {
            Ok(driver) => Ok(Some(driver)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(source) => Err(StorageError::CsiDriver {
                driver: self.driver.clone(),
                source,
            }),
        }
    }

    /// The publish context of the attachment; empty if the driver does not attach.
    async fn attachment(&self, tools: &Tools) -> Result<HashMap<String, String>, StorageError> {
        if self.inline || !is_attached(&*tools.api, &self.driver).await? {
            return Ok(HashMap::new());
        }
        let name = csi_attachment(&self.handle, &self.driver, &tools.node);
        let handle = self.handle.clone();
        let attachment = tools.api.get_as::<VolumeAttachment>("", &name).await;
        let attachment = match attachment {
            Ok(attachment) => attachment,
            Err(source) => return Err(StorageError::GetAttachment { handle, name, source }),
        };
        let status = attachment.status.clone().unwrap_or_default();
        match status.attached {
            true => Ok(status
                .attachment_metadata
                .unwrap_or_default()
                .into_iter()
                .collect()),
            false => Err(StorageError::NotAttached { handle, name }),
        }
    }

    async fn secret(
        &self,
        tools: &Tools,
        of: Option<&SecretReference>,
        what: &str,
    ) -> Result<HashMap<String, String>, SecretError> {
        let Some(SecretReference {
            name: Some(name),
            namespace,
        }) = of
        else {
            return Ok(HashMap::new());
        };
        let namespace = namespace.as_deref().unwrap_or("");
        let secret = tools.api.get_as::<Secret>(namespace, name).await;
        let secret = secret.map_err(|source| SecretError {
            doing: format!("fetching {what}"),
            namespace: namespace.into(),
            name: name.clone(),
            failed: " failed",
            source,
        })?;
        let data = secret.data.clone().unwrap_or_default().into_iter();
        Ok(data
            .map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned()))
            .collect())
    }

    fn capability(&self, can: &DriverCapabilities, terms: &MountTerms) -> wire::VolumeCapability {
        // Drivers that distinguish one pod from several on one node have separate access modes for it.
        let mode = match (terms.access_mode.as_str(), can.multi_writer) {
            ("ReadWriteOnce", true) => 7,
            ("ReadWriteOncePod", true) => 6,
            ("ReadOnlyMany", _) => 3,
            ("ReadWriteMany", _) => 5,
            _ => 1,
        };
        let group = terms.fs_group.filter(|_| can.mount_group);
        let mount = || wire::MountVolume {
            fs_type: self.filesystem.clone(),
            mount_flags: terms.options.clone(),
            volume_mount_group: group.map(|g| g.id.to_string()).unwrap_or_default(),
        };
        let is_block = terms.mode == VolumeMode::Block;
        wire::VolumeCapability {
            block: is_block.then_some(wire::Empty {}),
            mount: (!is_block).then(mount),
            access_mode: Some(wire::AccessMode { mode }),
        }
    }

    /// The volume context for the driver, with the pod's info if it requests that.
    fn context(&self, about: Option<&CSIDriver>, terms: &MountTerms) -> HashMap<String, String> {
        let mut context: HashMap<_, _> = self.attributes.clone().into_iter().collect();
        if about.is_some_and(|d| d.spec.pod_info_on_mount == Some(true)) {
            for (key, value) in [
                ("pod.name", terms.pod.name.as_str()),
                ("pod.namespace", terms.pod.namespace.as_str()),
                ("pod.uid", terms.pod.uid.as_str()),
                ("serviceAccount.name", terms.pod.service_account.as_str()),
                ("ephemeral", &*self.inline.to_string()),
            ] {
                context.insert(format!("csi.storage.k8s.io/{key}"), value.to_string());
            }
        }
        context
    }

    /// Whether the kubelet gives the files to the pod's group.
    fn is_given_to_group(&self, about: Option<&CSIDriver>, terms: &MountTerms) -> bool {
        match about.and_then(|d| d.spec.fs_group_policy.as_deref()) {
            Some("None") => false,
            Some("File") => true,
            _ => {
                !self.filesystem.is_empty()
                    && matches!(&*terms.access_mode, "ReadWriteOnce" | "ReadWriteOncePod")
            }
        }
    }

    /// Whether the driver serves volumes of this kind: inline ones, or claimed ones.
    fn is_served(&self, about: Option<&CSIDriver>) -> Result<(), StorageError> {
        let modes = about.and_then(|d| d.spec.volume_lifecycle_modes.as_deref());
        let mode = if self.inline { "Ephemeral" } else { "Persistent" };
        // Unset, claimed ones only.
        let modes = modes
            .filter(|m| !m.is_empty())
            .map_or(vec!["Persistent"], |m| m.iter().map(String::as_str).collect());
        if modes.contains(&mode) {
            return Ok(());
        }
        Err(StorageError::LifecycleMode {
            mode,
            driver: self.driver.clone(),
            modes: modes.into_iter().map(str::to_string).collect(),
        })
    }
}

#[async_trait]
impl Storage for Csi {
    fn plugin(&self) -> &'static str {
        "kubernetes.io~csi"
    }

    fn staging(&self) -> Option<PathBuf> {
        let volume = sha256(&self.handle);
        let base = Path::new("kubernetes.io/csi").join(&self.driver);
        (!self.inline).then(|| base.join(volume).join("globalmount"))
    }

    fn staging_parts(&self) -> usize {
        5
    }

    fn is_possible(&self, tools: &Tools) -> Result<(), StorageFailure> {
        let socket = if self.inline {
            self.socket(tools, PUBLISH).map_err(StorageFailure::Publish)
        } else {
            self.socket(tools, STAGE).map_err(StorageFailure::Stage)
        };
        socket.map(drop)
    }

    async fn stage(&self, tools: &Tools, at: &Path, terms: &MountTerms) -> Result<(), StorageError> {
        let socket = self.socket(tools, STAGE)?;
        let can = self.can(tools, &socket).await?;
        if !can.stage {
            return Ok(());
        }
        let publish_context = self.attachment(tools).await?;
        tools.make_dir(at).await?;
        let request = wire::StageRequest {
            volume_id: self.handle.clone(),
            publish_context,
            staging_target_path: at.display().to_string(),
            volume_capability: Some(self.capability(&can, terms)),
            secrets: self
                .secret(tools, self.stage_secret.as_ref(), "NodeStageSecretRef")
                .await?,
            volume_context: self.attributes.clone().into_iter().collect(),
        };
        wire::call(&*tools.host, &socket, request).await?;
        Ok(())
    }

    async fn publish(
        &self,
        tools: &Tools,
        staged: Option<&Path>,
        target: &Path,
        terms: &MountTerms,
    ) -> Result<(), StorageError> {
        let socket = self.socket(tools, PUBLISH)?;
        let about = self.about(tools).await?;
        self.is_served(about.as_deref())?;
        let can = self.can(tools, &socket).await?;
        let staged = staged.filter(|_| can.stage);
        // The driver makes the last directory, or the device's file, itself.
        if let Some(parent) = target.parent() {
            tools.make_dir(parent).await?;
        }
        let request = wire::PublishRequest {
            volume_id: self.handle.clone(),
            publish_context: self.attachment(tools).await?,
            staging_target_path: staged.map(|p| p.display().to_string()).unwrap_or_default(),
            target_path: target.display().to_string(),
            volume_capability: Some(self.capability(&can, terms)),
            readonly: terms.read_only,
            secrets: self
                .secret(tools, self.publish_secret.as_ref(), "NodePublishSecretRef")
                .await?,
            volume_context: self.context(about.as_deref(), terms),
        };
        wire::call(&*tools.host, &socket, request).await?;
        if let Some(group) = terms.fs_group.filter(|_| !can.mount_group)
            && terms.mode == VolumeMode::Filesystem
            && self.is_given_to_group(about.as_deref(), terms)
        {
            tools
                .give_to(group, target, terms.read_only, &self.handle)
                .await?;
        }
        Ok(())
    }

    async fn unpublish(&self, tools: &Tools, target: &Path) -> Result<(), StorageError> {
        let socket = self.socket(tools, "Unmounter.TearDownAt failed to get CSI client")?;
        let request = wire::UnpublishRequest {
            volume_id: self.handle.clone(),
            target_path: target.display().to_string(),
        };
        wire::call(&*tools.host, &socket, request).await?;
        Ok(())
    }

    async fn unstage(&self, tools: &Tools, at: &Path) -> Result<(), StorageError> {
        let socket = self.socket(
            tools,
            "attacher.UnmountDevice failed to create newCsiDriverClient",
        )?;
        if self.can(tools, &socket).await?.stage {
            let request = wire::UnstageRequest {
                volume_id: self.handle.clone(),
                staging_target_path: at.display().to_string(),
            };
            wire::call(&*tools.host, &socket, request).await?;
        }
        for gone in [Some(at), at.parent()].into_iter().flatten() {
            tools.remove_dir(gone).await?;
        }
        Ok(())
    }
}
