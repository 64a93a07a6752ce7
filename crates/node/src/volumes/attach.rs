//! Volumes that only one node may use at a time, and volumes of drivers that attach: used only while the
//! VolumeAttachment in the API names this node (SPEC S7).
//!
//! Before a pod's container uses such a volume, the node puts its finalizer on the volume's VolumeAttachment, by
//! compare-and-swap: from then on the object cannot be deleted before this node removes it, which it does when its last
//! pod that uses the volume has terminated. What is used is also written to the pod's directory, so that a restarted
//! kubelet knows; an attachment in use by this node, of which no pod here knows, is released then.
//!
//! Each pod that takes the volume into use writes the attachment, also where an earlier one still uses it: a release
//! sent for that one without an answer may be in flight, and must fail when it arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::storage::v1::VolumeAttachment;
use knarr_api::kinds::persistent_volume::{ATTACHED_POD, ATTACHER, Exclusive, IN_USE, USED_BY, unique_name};
use knarr_api::{Error, Object, Shared, finalizer, k8s_openapi, registry};
use knarr_client::{Api, ListOptions, TypedApi};
use parking_lot::Mutex;
use tokio::time::sleep;
use tracing::warn;

use super::POD_DIR_MODE;
use crate::untrusted_fs::{Dir, NewFile};

/// A volume's name is shorter than this.
const MARK_BYTES_MAX: usize = 64 * 1024;
/// In a pod's directory: one file for each attachment it uses, with the volume's name in it.
const MARKS: &str = "attached";
/// How often a pod's start polls an attachment before it reports what it waits for.
const POLLS: u32 = 40;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What is waited for: the attachment of one volume.
#[derive(Clone, Debug)]
pub(super) struct WantedAttachment {
    pub attachment: String,
    /// The attacher: knarr, or a CSI driver's.
    pub attacher: String,
    pub one_pod: bool,
}

impl From<Exclusive> for WantedAttachment {
    fn from(exclusive: Exclusive) -> Self {
        WantedAttachment {
            attachment: exclusive.attachment,
            attacher: ATTACHER.into(),
            one_pod: exclusive.one_pod,
        }
    }
}

/// The users of one attachment.
#[derive(Default)]
struct AttachmentUsers {
    /// The volume's name; a CSI driver's by its name in the node's status.
    volume: String,
    /// Of pods.
    uids: BTreeSet<String>,
    /// The last write that takes it into use did not succeed: it may have been done, or be done later.
    in_doubt: bool,
}

/// The attachments this node uses.
pub(super) struct Attachments {
    api: Arc<dyn Api>,
    node: String,
    root: PathBuf,
    /// By the attachment's name.
    used: Mutex<BTreeMap<String, AttachmentUsers>>,
    /// Held during requests to the API: one change at a time.
    change_lock: tokio::sync::Mutex<()>,
}

impl Attachments {
    /// Restores the uses recorded in the pods' directories.
    pub fn new(api: Arc<dyn Api>, node: String, root: PathBuf) -> Self {
        let used = recovered(&root).unwrap_or_else(|error| {
            warn!(%error, "cannot read which volumes pods use");
            BTreeMap::new()
        });
        Attachments {
            api,
            node,
            root,
            used: Mutex::new(used),
            change_lock: tokio::sync::Mutex::default(),
        }
    }

    fn marks(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid).join(MARKS)
    }

    /// Waits a moment until the pod may use the volume, and from then on holds it. The error is what it waits for.
    pub async fn hold(
        &self,
        uid: &str,
        volume: &str,
        wanted_attachment: &WantedAttachment,
    ) -> Result<(), String> {
        let mut tries = 0;
        loop {
            match self.try_hold(uid, volume, wanted_attachment).await {
                Err(_) if tries < POLLS => tries += 1,
                done => return done,
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn try_hold(
        &self,
        uid: &str,
        volume: &str,
        wanted_attachment: &WantedAttachment,
    ) -> Result<(), String> {
        let name = &wanted_attachment.attachment;
        let _change = self.change_lock.lock().await;
        let attachment = self.api.get_as::<VolumeAttachment>("", name).await;
        let attachment = match attachment {
            Ok(attachment) => attachment,
            Err(error) if error.is_not_found() => {
                return Err(format!("volume {volume} is not attached to any node yet"));
            }
            // It may not read what is not its own.
            Err(error) if error.is_forbidden() => {
                return Err(format!("volume {volume} is not attached to this node yet"));
            }
            Err(error) => return Err(format!("cannot see whether volume {volume} is attached: {error}")),
        };
        if let Some(why) = self.conflict(&attachment, uid, volume, wanted_attachment) {
            return Err(why);
        }
        // First, so that a kubelet that dies in between knows what it may have used.
        let marked = mark(&self.marks(uid), name, volume);
        marked.map_err(|e| format!("cannot note that volume {volume} is in use: {e}"))?;
        // Before the write, too: one without an answer, or with a conflict because something between here and the API
        // sent it twice, may have been done all the same, and then this node has to release it.
        {
            let mut used = self.used.lock();
            let users = used.entry(name.clone()).or_default();
            users.volume = volume.into();
            users.uids.insert(uid.into());
            users.in_doubt = true;
        }
        if !is_held(&attachment) || user(&attachment) != Some(uid) {
            let mut held = (*attachment).clone();
            finalizer::hold(&mut held.metadata, IN_USE);
            let annotations = held.metadata.annotations.get_or_insert_default();
            annotations.insert(USED_BY.into(), uid.into());
            // With the resourceVersion that was read: it fails if the object has changed since.
            if let Err(error) = self.api.update_as(held).await {
                return Err(format!("cannot take volume {volume} into use: {error}"));
            }
        }
        if let Some(users) = self.used.lock().get_mut(name) {
            users.in_doubt = false;
        }
        Ok(())
    }

    fn conflict(
        &self,
        attachment: &VolumeAttachment,
        uid: &str,
        volume: &str,
        wanted_attachment: &WantedAttachment,
    ) -> Option<String> {
        let at = &attachment.spec.node_name;
        let annotations = attachment.metadata.annotations.as_ref();
        let pod = annotations.and_then(|a| a.get(ATTACHED_POD));
        let error = attachment.status.as_ref().and_then(|s| s.attach_error.as_ref());
        if attachment.spec.attacher != wanted_attachment.attacher {
            let (by, expected) = (&attachment.spec.attacher, &wanted_attachment.attacher);
            Some(format!(
                "volume {volume} is attached by {by}, expected {expected}"
            ))
        } else if *at != self.node {
            Some(format!("volume {volume} is attached to node {at}"))
        } else if attachment.metadata.deletion_timestamp.is_some() && !self.has(attachment) {
            Some(format!("volume {volume} is being detached"))
        } else if attachment.status.as_ref().is_none_or(|s| !s.attached) {
            // The attacher's message, if it has failed so far.
            let why = error.and_then(|e| e.message.clone());
            Some(why.unwrap_or_else(|| format!("volume {volume} is being attached")))
        } else if wanted_attachment.one_pod && pod.is_none_or(|p| p != uid) {
            Some(format!("volume {volume} is for one pod, and another has it"))
        } else {
            None
        }
    }

    /// Whether the attachment exists until this node releases it. Its pending deletion does not keep pods of this node
    /// from the volume then: the deletion waits for this node, and such a pod would wait for ever for what its own node
    /// holds.
    fn has(&self, attachment: &VolumeAttachment) -> bool {
        let name = attachment.metadata.name.as_deref().unwrap_or_default();
        is_held(attachment) && self.used.lock().contains_key(name)
    }

    /// Releases what this pod used, where no other pod of this node uses it. Its containers have terminated.
    pub async fn release(&self, uid: &str) -> Result<(), Error> {
        let _change = self.change_lock.lock().await;
        let of_pod: Vec<(String, bool, bool)> = self
            .used
            .lock()
            .iter()
            .filter(|(_, users)| users.uids.contains(uid))
            .map(|(name, users)| (name.clone(), users.uids.len() == 1, users.in_doubt))
            .collect();
        for (name, is_last, in_doubt) in of_pod {
            if is_last {
                // If this fails it is still known as used, and tried again.
                self.end_use(&name, in_doubt.then_some(uid)).await?;
                self.used.lock().remove(&name);
            } else if let Some(users) = self.used.lock().get_mut(&name) {
                users.uids.remove(uid);
            }
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
            field_selector: format!("spec.nodeName={}", self.node),
            ..ListOptions::default()
        };
        Ok(self.api.list(&registry::VOLUME_ATTACHMENT, options).await?.items)
    }

    /// `in_doubt` is a pod whose write to take it into use may still arrive: the object is written then even where
    /// nothing is released, so that the late write has an outdated resourceVersion.
    async fn end_use(&self, name: &str, in_doubt: Option<&str>) -> Result<(), Error> {
        let Some(attachment) = self.find(name).await? else {
            return Ok(());
        };
        let is_held = is_held(&attachment);
        // What is another's by now, this node has been relieved of.
        if attachment.spec.node_name != self.node || (!is_held && in_doubt.is_none()) {
            return Ok(());
        }
        let mut free = (*attachment).clone();
        finalizer::release(&mut free.metadata, IN_USE);
        if let Some(uid) = in_doubt.filter(|_| !is_held) {
            let annotations = free.metadata.annotations.get_or_insert_default();
            annotations.insert(USED_BY.into(), uid.into());
        }
        match self.api.update_as(free).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }

    /// Releases what no pod here uses: a pod's directory was removed, and the kubelet exited before it could release.
    pub async fn release_unknown(&self) -> Result<(), Error> {
        let _change = self.change_lock.lock().await;
        for object in &self.list().await? {
            let ours = object
                .get::<VolumeAttachment>()
                .is_some_and(|a| a.spec.node_name == self.node && is_held(a));
            if ours && !self.used.lock().contains_key(object.name()) {
                self.end_use(object.name(), None).await?;
            }
        }
        Ok(())
    }

    /// Whether this pod uses one.
    pub fn uses(&self, uid: &str) -> bool {
        self.used.lock().values().any(|users| users.uids.contains(uid))
    }

    /// What this node uses, by the names in its status.
    pub fn in_use(&self) -> Vec<String> {
        let used = self.used.lock();
        let name = |users: &AttachmentUsers| match users.volume.contains('/') {
            true => users.volume.clone(),
            false => unique_name(&users.volume),
        };
        used.values().map(name).collect()
    }
}

fn is_held(attachment: &VolumeAttachment) -> bool {
    finalizer::is_held(&attachment.metadata, IN_USE)
}

/// The pod that took it into use last.
fn user(attachment: &VolumeAttachment) -> Option<&str> {
    let annotations = attachment.metadata.annotations.as_ref()?;
    annotations.get(USED_BY).map(String::as_str)
}

fn mark(marks: &Path, attachment: &str, volume: &str) -> std::io::Result<()> {
    let file = NewFile {
        bytes: volume.as_bytes(),
        mode: 0o600,
        ..NewFile::default()
    };
    Dir::make(marks, POD_DIR_MODE)?.replace(attachment, file)
}

fn recovered(root: &Path) -> std::io::Result<BTreeMap<String, AttachmentUsers>> {
    let mut used: BTreeMap<String, AttachmentUsers> = BTreeMap::new();
    let pods = root.join("pods");
    for uid in names(&pods)? {
        let marks = pods.join(&uid).join(MARKS);
        for name in names(&marks)? {
            // Half a mark of a kubelet that was killed.
            if name.starts_with('.') {
                continue;
            }
            let volume = Dir::open(&marks)?.read_whole(&name, MARK_BYTES_MAX)?;
            let users = used.entry(name).or_default();
            users.volume = String::from_utf8_lossy(&volume).into_owned();
            users.uids.insert(uid.clone());
        }
    }
    Ok(used)
}

/// What is in a directory, nothing if it is not there.
fn names(directory: &Path) -> std::io::Result<Vec<String>> {
    let entries = match Dir::open(directory) {
        Ok(directory) => directory.entries(usize::MAX)?,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Vec::new(),
        Err(e) => return Err(e),
    };
    Ok(entries
        .into_iter()
        .filter_map(|e| e.name.into_string().ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use knarr_client::TokioClock;
    use knarr_client::fake::FakeApi;
    use serde_json::json;

    use super::*;

    fn exclusive(one_pod: bool) -> WantedAttachment {
        WantedAttachment::from(Exclusive {
            attachment: "knarr-u".into(),
            one_pod,
        })
    }

    async fn attachment(api: &FakeApi, node: &str, pod: &str) {
        let value = json!({
            "metadata": {"name": "knarr-u", "annotations": {ATTACHED_POD: pod}},
            "spec": {"attacher": ATTACHER, "nodeName": node, "source": {"persistentVolumeName": "v"}},
        });
        let created = api
            .create_as::<VolumeAttachment>(serde_json::from_value(value).unwrap())
            .await
            .unwrap();
        let mut attached = (*created).clone();
        attached.status.get_or_insert_default().attached = true;
        api.update_status_as(attached).await.unwrap();
    }

    struct Node {
        api: Arc<FakeApi>,
        dir: tempfile::TempDir,
    }

    impl Node {
        fn new() -> Self {
            let clock = Arc::new(TokioClock::new(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
            Node {
                api: Arc::new(FakeApi::new(clock)),
                dir: tempfile::tempdir().unwrap(),
            }
        }

        fn start(&self) -> Attachments {
            Attachments::new(self.api.clone(), "n1".into(), self.dir.path().into())
        }

        async fn is_held(&self) -> bool {
            let found = self.api.get_as::<VolumeAttachment>("", "knarr-u").await;
            found.is_ok_and(|a| is_held(&a))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn s7_a_volume_is_used_only_while_its_record_names_this_node_and_pod() {
        for (node, pod, one_pod, rejected) in [
            ("", "", false, Some("is not attached to any node yet")),
            ("n2", "p", false, Some("is attached to node n2")),
            ("n1", "other", true, Some("another has it")),
            ("n1", "other", false, None),
            ("n1", "p", true, None),
        ] {
            let n = Node::new();
            if !node.is_empty() {
                attachment(&n.api, node, pod).await;
            }
            let held = n.start().hold("p", "v", &exclusive(one_pod)).await;
            match rejected {
                None => assert_eq!(held, Ok(())),
                Some(word) => assert!(held.as_ref().is_err_and(|e| e.contains(word)), "{held:?}"),
            }
            assert_eq!(n.is_held().await, rejected.is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn s7_the_last_pod_releases_the_volume_and_a_restart_forgets_none() {
        let n = Node::new();
        attachment(&n.api, "n1", "").await;
        let node = n.start();
        node.hold("one", "v", &exclusive(false)).await.unwrap();
        node.hold("two", "v", &exclusive(false)).await.unwrap();
        node.release("one").await.unwrap();
        assert!(n.is_held().await, "another pod uses it");
        std::fs::remove_dir_all(n.dir.path().join("pods/one")).unwrap();
        // The kubelet dies and is restarted while the pod keeps running.
        let node = n.start();
        node.release_unknown().await.unwrap();
        assert!(n.is_held().await);
        assert_eq!(node.in_use(), ["exclusive.knarr.io/v"]);
        node.release("two").await.unwrap();
        assert!(!n.is_held().await);
        // The kubelet dies between a pod's end and its release: the next one releases.
        node.hold("three", "v", &exclusive(false)).await.unwrap();
        std::fs::remove_dir_all(n.dir.path().join("pods")).unwrap();
        n.start().release_unknown().await.unwrap();
        assert!(!n.is_held().await);
    }

    /// The release gets no answer and arrives late: by then another pod uses the volume.
    #[tokio::test(start_paused = true)]
    async fn s7_a_late_answer_for_one_pod_does_not_release_what_the_next_one_uses() {
        let n = Node::new();
        attachment(&n.api, "n1", "").await;
        let node = n.start();
        node.hold("one", "v", &exclusive(false)).await.unwrap();
        let on_its_way = Arc::new(AtomicBool::new(true));
        let lost = on_its_way.clone();
        n.api.intercept(move |request| {
            let lost = request.verb == "update" && lost.load(Ordering::SeqCst);
            lost.then(|| Error::timeout("no answer"))
        });
        assert!(node.release("one").await.is_err());
        on_its_way.store(false, Ordering::SeqCst);
        let mut late = (*n.api.get_as::<VolumeAttachment>("", "knarr-u").await.unwrap()).clone();
        finalizer::release(&mut late.metadata, IN_USE);
        node.hold("two", "v", &exclusive(false)).await.unwrap();
        let arrived = n.api.update_as(late).await;
        assert!(arrived.is_err_and(|e| e.is_conflict()));
        assert!(n.is_held().await);
        // It is sent again, and then without a user.
        node.release("one").await.unwrap();
        assert!(n.is_held().await);
        node.release("two").await.unwrap();
        assert!(!n.is_held().await);
    }

    /// The write that takes the volume into use is done but answered with an error (its answer was lost, or a proxy
    /// sent it twice), or is done only when the pod was deleted.
    #[tokio::test(start_paused = true)]
    async fn s7_an_attachment_taken_into_use_without_an_answer_is_released() {
        for arrives_late in [false, true] {
            let n = Node::new();
            attachment(&n.api, "n1", "").await;
            let lost = Arc::new(AtomicBool::new(true));
            let is_lost = lost.clone();
            n.api.intercept(move |request| {
                let lost = request.verb == "update" && is_lost.load(Ordering::SeqCst);
                lost.then(|| Error::timeout("no answer"))
            });
            let node = n.start();
            assert!(node.hold("one", "v", &exclusive(false)).await.is_err());
            lost.store(false, Ordering::SeqCst);
            let mut write = (*n.api.get_as::<VolumeAttachment>("", "knarr-u").await.unwrap()).clone();
            finalizer::hold(&mut write.metadata, IN_USE);
            let kind = &registry::VOLUME_ATTACHMENT;
            if arrives_late {
                node.release("one").await.unwrap();
                assert!(n.api.update_as(write).await.is_err_and(|e| e.is_conflict()));
            } else {
                n.api.update_as(write).await.unwrap();
                n.api
                    .delete(kind, "", "knarr-u", Default::default())
                    .await
                    .unwrap();
                node.release("one").await.unwrap();
                assert!(n.api.get(kind, "", "knarr-u").await.unwrap_err().is_not_found());
            }
            assert!(!n.is_held().await, "arrives late: {arrives_late}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn s7_a_record_under_deletion_admits_no_new_user_of_the_volume() {
        let n = Node::new();
        attachment(&n.api, "n1", "").await;
        let mut node = n.start();
        node.hold("one", "v", &exclusive(false)).await.unwrap();
        let kind = &registry::VOLUME_ATTACHMENT;
        n.api
            .delete(kind, "", "knarr-u", Default::default())
            .await
            .unwrap();
        // The attachment's deletion was requested without knowledge of these pods: it waits for this node.
        for pod in ["one", "two"] {
            assert_eq!(node.hold(pod, "v", &exclusive(false)).await, Ok(()));
            node = n.start();
        }
        let another = node.hold("three", "v", &exclusive(true)).await;
        assert_eq!(another, Err("volume v is for one pod, and another has it".into()));
        node.release("two").await.unwrap();
        assert!(n.is_held().await);
        // No pod here uses it, and its finalizer will be removed: too late.
        std::fs::remove_dir_all(n.dir.path().join("pods")).unwrap();
        let node = n.start();
        let late = node.hold("four", "v", &exclusive(false)).await;
        assert_eq!(late, Err("volume v is being detached".into()));
        node.release_unknown().await.unwrap();
        assert!(n.api.get(kind, "", "knarr-u").await.unwrap_err().is_not_found());
    }
}
