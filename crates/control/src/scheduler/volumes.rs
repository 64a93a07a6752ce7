//! Binds a pod's volumes before the pod is bound: writes which volume a claim gets and for which node one has to be
//! provisioned, and waits until the volume controller and the provisioner have done the rest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};

use knarr_api::well_known::{BOUND_BY_CONTROLLER, SELECTED_NODE};
use knarr_api::{Kind, k8s_openapi, registry};
use knarr_apimachinery::ids::NodeName;
use knarr_client::events::reference;
use knarr_client::{Caches, Error, Shared, TypedApi};
use knarr_scheduler::plugins::volume_binding::VolumesToBind;
use knarr_scheduler::pre_bind::PreBindError;
use knarr_scheduler::volumes::Change;
use tokio::time::timeout;

use super::Driver;

/// The kinds that volume plugins read.
pub(crate) const KINDS: [&Kind; 7] = [
    &registry::PERSISTENT_VOLUME_CLAIM,
    &registry::PERSISTENT_VOLUME,
    &registry::STORAGE_CLASS,
    &registry::CSI_NODE,
    &registry::CSI_DRIVER,
    &registry::CSI_STORAGE_CAPACITY,
    &registry::VOLUME_ATTACHMENT,
];

/// Why the volumes of a pod are not bound: the message of the pod's condition, with its cause, as kube-scheduler's.
#[derive(Debug, thiserror::Error)]
pub(super) enum VolumeBindingError {
    #[error("running PreBind plugin \"VolumeBinding\": {0}")]
    Write(#[from] Error),
    #[error("running PreBind plugin \"VolumeBinding\": binding volumes: {0}")]
    NotBound(#[from] PreBindError),
    #[error("running PreBind plugin \"VolumeBinding\": binding volumes: context deadline exceeded")]
    Timeout,
}

impl Driver {
    /// Watches volumes, claims and the objects about them.
    pub(super) async fn follow_storage(&self, caches: &Arc<Caches>) {
        for kind in KINDS {
            let store = caches.store(kind);
            let driver = self.clone();
            store.add_event_handler(move |change| {
                if let Some(change) = Change::of(change.before(), change.after()) {
                    let now = driver.clock.now();
                    driver.scheduler.lock().storage_changed(&change, now);
                    driver.storage_changed.notify_waiters();
                    driver.wake.notify_one();
                }
            });
            store.synced().await;
        }
    }

    pub(super) async fn bind_volumes(
        &self,
        pod: &Shared<Pod>,
        node: &NodeName,
        volumes: &VolumesToBind,
    ) -> Result<(), VolumeBindingError> {
        let written = self.write(node, volumes).await?;
        let within = Duration::try_from(volumes.timeout).unwrap_or_default();
        let bound = timeout(within, self.bound(pod, node, &written)).await;
        Ok(bound.map_err(|_| VolumeBindingError::Timeout)??)
    }

    async fn bound(
        &self,
        pod: &Shared<Pod>,
        node: &NodeName,
        volumes: &VolumesToBind,
    ) -> Result<(), PreBindError> {
        loop {
            // Before reading, so that no change in between is missed.
            let changed = self.storage_changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.scheduler.lock().volumes_bound(pod, node, volumes)? {
                return Ok(());
            }
            changed.await;
        }
    }

    /// Each write fails if the object has changed since the decision.
    async fn write(&self, node: &NodeName, volumes: &VolumesToBind) -> Result<VolumesToBind, Error> {
        let mut written = VolumesToBind {
            timeout: volumes.timeout,
            ..VolumesToBind::default()
        };
        for (volume, claim) in &volumes.bindings {
            let volume = match given(volume, claim) {
                Some(given) => self.api.update_as(given).await?,
                None => volume.clone(),
            };
            written.bindings.push((volume, claim.clone()));
        }
        for claim in &volumes.provisions {
            let mut selected: PersistentVolumeClaim = (**claim).clone();
            let annotations = selected.metadata.annotations.get_or_insert_default();
            let was = annotations.insert(SELECTED_NODE.into(), node.into());
            let claim = if was.as_deref() == Some(node.as_str()) {
                claim.clone()
            } else {
                self.api.update_as(selected).await?
            };
            written.provisions.push(claim);
        }
        Ok(written)
    }
}

/// The volume reserved for the claim; `None` if it is reserved already.
fn given(
    volume: &Shared<PersistentVolume>,
    claim: &Shared<PersistentVolumeClaim>,
) -> Option<PersistentVolume> {
    let to = reference(claim.object());
    let has = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
    let is_to = |has: &ObjectReference| has.name == to.name && has.namespace == to.namespace;
    // A volume that a user reserved for the claim was not bound by the controller, even if the claim's uid is still missing.
    let by_user = has.is_some_and(|has| {
        is_to(has)
            && has
                .uid
                .as_ref()
                .is_none_or(|uid| uid.is_empty() || Some(uid) == to.uid.as_ref())
    });
    if has.is_some_and(|has| is_to(has) && has.uid == to.uid) {
        return None;
    }
    let mut given: PersistentVolume = (**volume).clone();
    given.spec.get_or_insert_default().claim_ref = Some(to);
    if !by_user {
        let annotations: &mut BTreeMap<_, _> = given.metadata.annotations.get_or_insert_default();
        annotations.insert(BOUND_BY_CONTROLLER.into(), "yes".into());
    }
    Some(given)
}
