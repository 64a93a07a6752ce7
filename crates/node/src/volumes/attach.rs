//! Volumes that only one node may use at a time, and volumes of drivers that attach: used only while the
//! VolumeAttachment in the API names this node (SPEC S7).
//!
//! Before a pod's container uses such a volume, the node puts its finalizer on the volume's VolumeAttachment, by
//! compare-and-swap: from then on the object cannot be deleted before this node removes it, which it does when its last
//! pod that uses the volume has terminated, and the volume is not staged any more. What is used is also written to the
//! pod's directory, and what is staged to the node's ([`staged`]), so that a restarted kubelet knows; an attachment in use
//! by this node, of which neither knows, is released then.
//!
//! Each pod that takes the volume into use writes the attachment, also where an earlier one still uses it: a release
//! sent for that one without an answer may be in flight, and must fail when it arrives. So does each kubelet, also where
//! the one before it did, and only once others see that its node is alive. The attach-detach controller reads the
//! attachment and then the node from the API server, and detaches by the attachment's resourceVersion from a node that
//! is out of service: if that node came back in between, one of the two writes fails.

use knarr_apimachinery::ids::PodUid;

mod checkpoint;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::storage::v1::VolumeAttachment;
use knarr_api::kinds::node::OUT_OF_SERVICE;
use knarr_api::kinds::persistent_volume::{
    ATTACHED_POD, ATTACHER, ExclusiveAttachment, IN_USE, USED_BY, unique_name,
};
use knarr_api::{Object, Shared, k8s_openapi, registry};
use knarr_apimachinery::{Error, finalizer};
use knarr_client::{Api, ListOptions, TypedApi};
use knarr_kubelet::attached_volumes::Step;
use parking_lot::Mutex;
use tokio::time::sleep;
use tracing::warn;

use super::storage::{VolumesInUse, staged};
use crate::kubelet::own_node::OwnNode;

/// How often a pod's start polls an attachment before it reports what it waits for.
const POLLS: u32 = 40;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What is waited for: the attachment of one volume.
#[derive(Clone, Debug)]
pub(super) struct DesiredAttachment {
    pub attachment: String,
    /// The attacher: knarr, or a CSI driver's.
    pub attacher: String,
    pub one_pod: bool,
}

impl From<ExclusiveAttachment> for DesiredAttachment {
    fn from(exclusive: ExclusiveAttachment) -> Self {
        DesiredAttachment {
            attachment: exclusive.attachment,
            attacher: ATTACHER.into(),
            one_pod: exclusive.one_pod,
        }
    }
}

/// What a pod waits for before it may use a volume; shown to the user.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    #[error(
        "volume {volume} is not used before this node has reported Ready, and while it has the taint {OUT_OF_SERVICE}"
    )]
    NodeNotSeen { volume: String },
    #[error("volume {volume} is not attached to any node yet")]
    Unattached { volume: String },
    #[error("volume {volume} is not attached to this node yet")]
    NotHere { volume: String },
    #[error("cannot see whether volume {volume} is attached: {source}")]
    Get { volume: String, source: Error },
    #[error("volume {volume} is attached by {by}, expected {expected}")]
    OtherAttacher {
        volume: String,
        by: String,
        expected: String,
    },
    #[error("volume {volume} is attached to node {at}")]
    OtherNode { volume: String, at: String },
    #[error("volume {volume} is being detached")]
    Detaching { volume: String },
    #[error("volume {volume} is being attached")]
    Attaching { volume: String },
    /// The attacher has failed so far.
    #[error("{message}")]
    Attacher { message: String },
    #[error("volume {volume} is for one pod, and another has it")]
    OtherPod { volume: String },
    #[error("cannot note that volume {volume} is in use: {source}")]
    Mark { volume: String, source: std::io::Error },
    #[error("cannot take volume {volume} into use: {source}")]
    Update { volume: String, source: Error },
}

/// Why an attachment is not released.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReleaseError {
    #[error("cannot read which volumes pods use: {0}")]
    Read(#[from] io::Error),
    #[error(transparent)]
    Api(#[from] Error),
}

/// The attachments this node uses.
pub(super) struct Attachments {
    api: Arc<dyn Api>,
    own_node: Arc<OwnNode>,
    root: PathBuf,
    used: VolumesInUse,
    /// Whether what earlier kubelets noted is in it. Until then no volume is known to be without users.
    is_recovered: Mutex<bool>,
    /// Held during requests to the API: one change at a time.
    change_lock: tokio::sync::Mutex<()>,
}

impl Attachments {
    /// Restores the uses recorded in the pods' directories, and what is staged.
    pub fn new(api: Arc<dyn Api>, own_node: Arc<OwnNode>, root: PathBuf, used: VolumesInUse) -> Self {
        let attachments = Attachments {
            api,
            own_node,
            root,
            used,
            is_recovered: Mutex::new(false),
            change_lock: tokio::sync::Mutex::default(),
        };
        if let Err(error) = attachments.recover() {
            warn!(%error, "cannot read which volumes pods use; none is released");
        }
        attachments
    }

    /// The users by the pods' checkpoints, before a volume is taken for unused: nothing if they are known already. Their kubelet
    /// has died: its last writes may have been done or not.
    pub fn recover(&self) -> io::Result<()> {
        let mut is_recovered = self.is_recovered.lock();
        if *is_recovered {
            return Ok(());
        }
        let (users, all_staged) = (checkpoint::read(&self.root)?, staged::read(&self.root)?);
        let mut used = self.used.lock();
        for user in users {
            used.take(&user.attachment, &user.volume, &user.uid);
        }
        for found in all_staged {
            let attachment = found.attachment.as_str();
            match found.staged {
                Ok(of) => used.recovered_staged(attachment, &of.volume, Some(of.source)),
                Err(error) => {
                    warn!(attachment, %error, "cannot read how a volume is staged; its attachment is kept");
                    used.recovered_staged(attachment, "", None);
                }
            }
        }
        *is_recovered = true;
        Ok(())
    }

    /// Waits a moment until the pod may use the volume, and from then on holds it. The error is what it waits for.
    pub async fn hold(
        &self,
        uid: &PodUid,
        volume: &str,
        desired_attachment: &DesiredAttachment,
    ) -> Result<(), HoldError> {
        let mut tries = 0;
        loop {
            match self.try_hold(uid, volume, desired_attachment).await {
                Err(_) if tries < POLLS => tries += 1,
                done => return done,
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn try_hold(
        &self,
        uid: &PodUid,
        volume: &str,
        desired_attachment: &DesiredAttachment,
    ) -> Result<(), HoldError> {
        if !self.own_node.is_seen_alive() {
            return Err(HoldError::NodeNotSeen {
                volume: volume.into(),
            });
        }
        let name = &desired_attachment.attachment;
        let _change = self.change_lock.lock().await;
        let attachment = self.api.get_as::<VolumeAttachment>("", name).await;
        let attachment = match attachment {
            Ok(attachment) => attachment,
            Err(error) if error.is_not_found() => {
                return Err(HoldError::Unattached {
                    volume: volume.into(),
                });
            }
            // It may not read what is not its own.
            Err(error) if error.is_forbidden() => {
                return Err(HoldError::NotHere {
                    volume: volume.into(),
                });
            }
            Err(source) => {
                let volume = volume.into();
                return Err(HoldError::Get { volume, source });
            }
        };
        if let Some(why) = self.conflict(&attachment, uid, volume, desired_attachment) {
            return Err(why);
        }
        // First, so that a kubelet that dies in between knows what it may have used.
        let marked = checkpoint::write(&self.root, uid, name, volume);
        marked.map_err(|source| HoldError::Mark {
            volume: volume.into(),
            source,
        })?;
        // Before the write, too: one without an answer, or with a conflict because something between here and the API
        // sent it twice, may have been done all the same, and then this node has to release it.
        self.used.lock().take(name, volume, uid);
        let used_by = format!("{uid} {}", self.own_node.kubelet_id());
        if !is_held(&attachment) || user(&attachment) != Some(used_by.as_str()) {
            let mut held = (*attachment).clone();
            finalizer::add(&mut held.metadata, IN_USE);
            let annotations = held.metadata.annotations.get_or_insert_default();
            annotations.insert(USED_BY.into(), used_by);
            // With the resourceVersion that was read: it fails if the object has changed since.
            if let Err(source) = self.api.update_as(held).await {
                let volume = volume.into();
                return Err(HoldError::Update { volume, source });
            }
        }
        self.used.lock().taken(name);
        Ok(())
    }

    fn conflict(
        &self,
        attachment: &VolumeAttachment,
        uid: &PodUid,
        volume: &str,
        desired_attachment: &DesiredAttachment,
    ) -> Option<HoldError> {
        let volume = volume.to_string();
        let at = &attachment.spec.node_name;
        let annotations = attachment.metadata.annotations.as_ref();
        let pod = annotations.and_then(|a| a.get(ATTACHED_POD));
        let error = attachment.status.as_ref().and_then(|s| s.attach_error.as_ref());
        if attachment.spec.attacher != desired_attachment.attacher {
            let (by, expected) = (&attachment.spec.attacher, &desired_attachment.attacher);
            let (by, expected) = (by.clone(), expected.clone());
            Some(HoldError::OtherAttacher { volume, by, expected })
        } else if *at != self.own_node.name() {
            Some(HoldError::OtherNode {
                volume,
                at: at.clone(),
            })
        } else if attachment.metadata.deletion_timestamp.is_some() && !self.has(attachment) {
            Some(HoldError::Detaching { volume })
        } else if attachment.status.as_ref().is_none_or(|s| !s.attached) {
            // The attacher's message, if it has failed so far.
            Some(match error.and_then(|e| e.message.clone()) {
                Some(message) => HoldError::Attacher { message },
                None => HoldError::Attaching { volume },
            })
        } else if desired_attachment.one_pod && pod.is_none_or(|p| *uid != *p) {
            Some(HoldError::OtherPod { volume })
        } else {
            None
        }
    }

    /// Whether the attachment exists until this node releases it. Its pending deletion does not keep pods of this node
    /// from the volume then: the deletion waits for this node, and such a pod would wait for ever for what its own node
    /// holds.
    fn has(&self, attachment: &VolumeAttachment) -> bool {
        let name = attachment.metadata.name.as_deref().unwrap_or_default();
        is_held(attachment) && self.used.lock().contains(name)
    }

    /// This pod has none of its volumes mounted any more, and its containers have terminated.
    pub fn leave(&self, uid: &PodUid) {
        self.used.lock().leave(uid);
    }

    /// What is to be done about the volumes that this pod left last; without a pod, that were left under an earlier kubelet.
    pub fn steps(&self, last_user: Option<&PodUid>) -> Vec<Step> {
        self.used.lock().steps(last_user)
    }

    /// Releases an attachment that no pod of this node uses, if its volume is not staged. If this fails the attachment is
    /// still known as used, and the caller tries again.
    pub async fn release(&self, name: &str) -> Result<(), ReleaseError> {
        let _change = self.change_lock.lock().await;
        let (is_releasable, in_doubt) = {
            let used = self.used.lock();
            (used.is_releasable(name), used.in_doubt(name).cloned())
        };
        if is_releasable {
            self.end_use(name, in_doubt.as_ref()).await?;
            self.used.lock().released(name);
        }
        Ok(())
    }

    /// The attachment, if it is this node's: it may list those and no others.
    async fn find(&self, name: &str) -> Result<Option<Shared<VolumeAttachment>>, Error> {
        let mut own = self.list().await?.into_iter();
        own.find(|object| object.name() == name)
            .map(Shared::new)
            .transpose()
    }

    async fn list(&self) -> Result<Vec<Arc<Object>>, Error> {
        let options = ListOptions {
            field_selector: format!("spec.nodeName={}", self.own_node.name()),
            ..ListOptions::default()
        };
        Ok(self.api.list(&registry::VOLUME_ATTACHMENT, options).await?.items)
    }

    /// `in_doubt` is a pod whose write to take it into use may still arrive: the object is written then even where
    /// nothing is released, so that the late write has an outdated resourceVersion.
    async fn end_use(&self, name: &str, in_doubt: Option<&PodUid>) -> Result<(), Error> {
        let Some(attachment) = self.find(name).await? else {
            return Ok(());
        };
        let is_held = is_held(&attachment);
        // What is another's by now, this node has been relieved of.
        if attachment.spec.node_name != self.own_node.name() || (!is_held && in_doubt.is_none()) {
            return Ok(());
        }
        let mut free = (*attachment).clone();
        finalizer::remove(&mut free.metadata, IN_USE);
        if let Some(uid) = in_doubt.filter(|_| !is_held) {
            let annotations = free.metadata.annotations.get_or_insert_default();
            annotations.insert(USED_BY.into(), uid.into());
        }
        match self.api.update_as(free).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }

    /// Releases what is unknown here: a pod's directory was removed, and the kubelet exited before it could release.
    pub async fn release_unknown(&self) -> Result<(), ReleaseError> {
        self.recover()?;
        let _change = self.change_lock.lock().await;
        for object in &self.list().await? {
            let ours = object
                .get::<VolumeAttachment>()
                .is_some_and(|a| a.spec.node_name == self.own_node.name() && is_held(a));
            if ours && !self.used.lock().contains(object.name()) {
                self.end_use(object.name(), None).await?;
            }
        }
        Ok(())
    }

    /// Whether this pod uses one.
    pub fn uses(&self, uid: &str) -> bool {
        self.used.lock().uses(uid)
    }

    /// What this node uses, by the names in its status.
    pub fn in_use(&self) -> Vec<String> {
        let used = self.used.lock();
        let name = |volume: &str| match volume.contains('/') {
            true => volume.to_string(),
            false => unique_name(volume),
        };
        // One whose record cannot be read has no name.
        used.in_use()
            .filter(|volume| !volume.is_empty())
            .map(name)
            .collect()
    }
}

fn is_held(attachment: &VolumeAttachment) -> bool {
    finalizer::contains(&attachment.metadata, IN_USE)
}

/// The pod, and its kubelet, that took it into use last.
fn user(attachment: &VolumeAttachment) -> Option<&str> {
    let annotations = attachment.metadata.annotations.as_ref()?;
    annotations.get(USED_BY).map(String::as_str)
}
