//! Keeps the claimed volumes that pods of this node use at the size of their PersistentVolumes, as far as their drivers can.
//!
//! What is to be done is decided by [`knarr_kubelet::volume_expansion`]: when a volume is set up, and while it is used.
//! Nodes cannot watch claims; those of drivers' volumes are read again every [`SYNC_INTERVAL`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{
    ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus, Pod,
};
use knarr_api::{k8s_openapi, registry};
use knarr_apimachinery::ids::{NodeName, PodUid};
use knarr_client::Error;
use knarr_client::events::{EventRecorder, EventType, reference_to};
use knarr_client::{Api, Clock, TypedApi};
use knarr_kubelet::volume_expansion::{Decision, Failure, NodeVolume, Outcome, Plan, decide, may_concern};
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tracing::debug;

use super::storage::{StorageManager, VolumeRequest};

/// Sync period of the claims in use: kubelet checks with each sync of a pod, about once a minute.
const SYNC_INTERVAL: Duration = Duration::from_secs(30);
/// Drivers that are called at the same time.
const CALLS_MAX: usize = 8;

/// Why a volume has not its size; shown to the user.
#[derive(Debug, thiserror::Error)]
pub enum ExpandError {
    #[error("{}", .0.message())]
    Storage(Failure),
    #[error("update pvc status failed: {0}")]
    UpdateStatus(#[source] Error),
}

/// A volume of a pod that its driver may expand.
#[derive(Clone)]
struct ExpandableVolume {
    pod: ObjectReference,
    claim: String,
    desired: VolumeRequest,
    known: NodeVolume,
}

/// By the pod's uid and the volume's name.
type Key = (PodUid, String);

pub(super) struct Expansions {
    api: Arc<dyn Api>,
    recorder: EventRecorder,
    clock: Arc<dyn Clock>,
    node: NodeName,
    used: Mutex<BTreeMap<Key, ExpandableVolume>>,
}

impl Expansions {
    pub fn new(api: Arc<dyn Api>, recorder: EventRecorder, clock: Arc<dyn Clock>, node: NodeName) -> Self {
        Expansions {
            api,
            recorder,
            clock,
            node,
            used: Mutex::default(),
        }
    }

    /// A pod has a volume now, which may have grown before. The error is why it has not its size.
    pub async fn begin(
        &self,
        storage_manager: &StorageManager,
        pod: &Pod,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        desired: &VolumeRequest,
    ) -> Result<(), ExpandError> {
        let about = reference_to(&registry::POD, pod);
        if desired.terms.read_only {
            if NodeVolume::new(claim).is_behind(volume) {
                let text = self.text(
                    "MountVolume.NodeExpandVolume failed",
                    desired,
                    "requested read-only file system",
                );
                for about in [about, reference_to(&registry::PERSISTENT_VOLUME_CLAIM, claim)] {
                    self.recorder
                        .event(&about, EventType::Warning, "FileSystemResizeFailed", text.clone());
                }
            }
            return Ok(());
        }
        let key = (desired.terms.pod.uid.clone(), desired.name.clone());
        let used = ExpandableVolume {
            pod: about,
            claim: claim.metadata.name.clone().unwrap_or_default(),
            desired: desired.clone(),
            known: NodeVolume::new(claim),
        };
        self.used.lock().entry(key.clone()).or_insert(used);
        self.sync(storage_manager, &key, claim, volume).await
    }

    /// A pod has none of its volumes any more.
    pub fn forget(&self, uid: &str) {
        self.used.lock().retain(|(of, _), _| of != uid);
    }

    /// Expands what grows while it is used, until dropped.
    pub async fn run(&self, storage_manager: &StorageManager) {
        let mut ticks = interval(SYNC_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.sync_all(storage_manager).await;
        }
    }

    /// Expands what has grown since the last sync.
    pub async fn sync_all(&self, storage_manager: &StorageManager) {
        let keys: Vec<Key> = self.used.lock().keys().cloned().collect();
        let all = futures::stream::iter(keys);
        all.for_each_concurrent(CALLS_MAX, |key| async move {
            self.sync_one(storage_manager, &key).await
        })
        .await;
    }

    async fn sync_one(&self, storage_manager: &StorageManager, key: &Key) {
        let Some(used) = self.used.lock().get(key).cloned() else {
            return;
        };
        let namespace = &used.desired.terms.pod.namespace;
        let synced = async {
            let claim = self.api.get_as::<PersistentVolumeClaim>(namespace, &used.claim);
            let claim = claim.await.map_err(|e| (false, e.to_string()))?;
            if !may_concern(&claim, &used.known) {
                return Ok(());
            }
            let volume = self.api.get_as::<PersistentVolume>("", &used.desired.name).await;
            let volume = volume.map_err(|e| (false, e.to_string()))?;
            let synced = self.sync(storage_manager, key, &claim, &volume).await;
            synced.map_err(|e| (true, e.to_string()))
        };
        let synced: Result<(), (bool, String)> = synced.await;
        if let Err((is_failure, why)) = synced {
            debug!(
                volume = used.desired.name,
                why, "a volume in use is not expanded yet"
            );
            if is_failure {
                let text = self.text(
                    "NodeExpandVolume.NodeExpandVolume failed",
                    &used.desired,
                    &format!(": {why}"),
                );
                self.recorder
                    .event(&used.pod, EventType::Warning, "VolumeResizeFailed", text);
            }
        }
    }

    /// kubelet's messages name the volume between the operation and its result.
    fn text(&self, what: &str, desired: &VolumeRequest, result: &str) -> String {
        format!("{what} for volume {:?} {result}", desired.name)
    }

    async fn sync(
        &self,
        storage_manager: &StorageManager,
        key: &Key,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<(), ExpandError> {
        let Some(mut used) = self.used.lock().get(key).cloned() else {
            return Ok(());
        };
        let synced = match decide(claim, volume, &used.known) {
            Decision::Wait => return Ok(()),
            Decision::Done(size) => {
                used.known.size = size;
                Ok(())
            }
            Decision::Expand(plan) => {
                self.expand(storage_manager, &mut used, &plan, claim.clone())
                    .await
            }
        };
        // Its pod may have been deleted meanwhile.
        if let Some(of) = self.used.lock().get_mut(key) {
            of.known = used.known;
        }
        synced
    }

    async fn expand(
        &self,
        storage_manager: &StorageManager,
        used: &mut ExpandableVolume,
        plan: &Plan,
        mut claim: PersistentVolumeClaim,
    ) -> Result<(), ExpandError> {
        if let Some(status) = plan.begun(&claim) {
            claim = self.write(claim, status).await?;
        }
        let Err(failure) = storage_manager.expand(&used.desired, plan.to.value()).await else {
            used.known.size = plan.to;
            let text = self.text(
                "MountVolume.NodeExpandVolume succeeded",
                &used.desired,
                &self.node,
            );
            for about in [
                &used.pod,
                &reference_to(&registry::PERSISTENT_VOLUME_CLAIM, &claim),
            ] {
                self.recorder.event(
                    about,
                    EventType::Normal,
                    "FileSystemResizeSuccessful",
                    text.clone(),
                );
            }
            return match plan.finished(&claim) {
                Some(status) => self.write(claim, status).await.map(drop),
                None => Ok(()),
            };
        };
        match plan.failed(&claim, &mut used.known, &failure, self.clock.now()) {
            Outcome::Done => Ok(()),
            Outcome::Skipped => {
                debug!(
                    volume = used.desired.name,
                    why = failure.message(),
                    "a volume is not expanded while it is used"
                );
                Ok(())
            }
            Outcome::Failed(status) => {
                if let Some(status) = status {
                    self.write(claim, status).await?;
                }
                Err(ExpandError::Storage(failure))
            }
        }
    }

    async fn write(
        &self,
        mut claim: PersistentVolumeClaim,
        status: PersistentVolumeClaimStatus,
    ) -> Result<PersistentVolumeClaim, ExpandError> {
        claim.status = Some(status);
        match self.api.update_status_as(claim).await {
            Ok(written) => Ok((*written).clone()),
            Err(error) => Err(ExpandError::UpdateStatus(error)),
        }
    }
}
