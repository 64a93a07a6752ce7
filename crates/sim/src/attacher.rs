//! A simulated external-attacher of the CSI driver: it attaches a volume for a VolumeAttachment and detaches it when
//! that is being deleted, as kubernetes-csi/external-attacher does. It answers at once, late, twice, with an error,
//! or for a while not at all.
//!
//! A VolumeAttachment may be created for a second node: its creation timed out for the controller, which decided again
//! when the pod was deleted, and it is committed only then. Nothing in Kubernetes excludes that; CSI demands that the
//! driver rejects to publish the volume there, and this one does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeError};
use knarr_api::{k8s_openapi, registry};
use knarr_apimachinery::finalizer;
use knarr_client::{Api, Error, ListOptions, TypedApi};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::observer::Observer;
use crate::random::Stream;
use crate::servers::ApiServer;
use crate::staging::DRIVER;
use crate::world::Step;

/// The finalizer of an attachment until its volume is detached.
const FINALIZER: &str = "external-attacher/csi-sim";
/// The time between two lists of the attachments.
const POLL: Duration = Duration::from_millis(250);
/// How long an operation takes: usually, and, in so many of a thousand, late or very late.
const USUAL_MILLIS: u64 = 200;
const LATE_PER_MILLE: u32 = 250;
const LATE_MILLIS: u64 = 5_000;
const VERY_LATE_PER_MILLE: u32 = 50;
const VERY_LATE_MILLIS: u64 = 60_000;
/// Operations that fail, and those whose result is written twice, per mille.
const FAILED_PER_MILLE: u32 = 100;
const TWICE_PER_MILLE: u32 = 200;

/// Why a volume is not published to a node.
#[derive(Debug, thiserror::Error)]
enum PublishError {
    /// FAILED_PRECONDITION.
    #[error("volume {volume} is published to another node: {node}")]
    OtherNode { volume: String, node: String },
    #[error("the storage does not answer")]
    Unavailable,
}

/// The driver's controller service, for volumes without the MULTI_NODE capability.
#[derive(Default)]
struct Driver {
    /// The node that each volume is published to.
    published: BTreeMap<String, String>,
}

impl Driver {
    /// ControllerPublishVolume; FAILED_PRECONDITION while the volume is published to another node.
    fn publish(&mut self, volume: &str, node: &str) -> Result<(), PublishError> {
        let at = self.published.entry(volume.into()).or_insert_with(|| node.into());
        match at == node {
            true => Ok(()),
            false => Err(PublishError::OtherNode {
                volume: volume.into(),
                node: at.clone(),
            }),
        }
    }

    /// ControllerUnpublishVolume, which succeeds also if the volume is not published to the node.
    fn unpublish(&mut self, volume: &str, node: &str) {
        self.published
            .retain(|of, at| (of.as_str(), at.as_str()) != (volume, node));
    }
}

/// See the module.
pub(crate) struct Attacher {
    server: Arc<ApiServer>,
    observer: Arc<Observer>,
    state: Mutex<State>,
}

struct State {
    chance: Stream,
    is_well: bool,
    /// It does nothing until then.
    down_until: Option<Instant>,
    /// Attachments with an operation in progress, by UID.
    busy: BTreeSet<String>,
    driver: Driver,
}

impl Attacher {
    pub fn start(server: Arc<ApiServer>, observer: Arc<Observer>, chance: Stream) -> Arc<Self> {
        let attacher = Arc::new(Attacher {
            server,
            observer,
            state: Mutex::new(State {
                chance,
                is_well: false,
                down_until: None,
                busy: BTreeSet::new(),
                driver: Driver::default(),
            }),
        });
        tokio::spawn(attacher.clone().run());
        attacher
    }

    /// Stops it for so long.
    pub fn crash(&self, length: Duration) {
        self.state.lock().down_until = Some(Instant::now() + length);
    }

    /// From now on it does everything at once and without faults.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        (state.is_well, state.down_until) = (true, None);
    }

    pub fn is_healed(&self) -> bool {
        self.state.lock().is_well
    }

    fn is_down(&self) -> bool {
        self.state
            .lock()
            .down_until
            .is_some_and(|until| Instant::now() < until)
    }

    async fn run(self: Arc<Self>) {
        loop {
            sleep(POLL).await;
            let (Some(api), false) = (self.server.admin(), self.is_down()) else {
                continue;
            };
            let listed = api.list(&registry::VOLUME_ATTACHMENT, ListOptions::default());
            // It lists again soon.
            let Ok(listed) = listed.await else { continue };
            for object in listed.items {
                let Some(attachment) = object.get::<VolumeAttachment>() else {
                    continue;
                };
                let is_ours = attachment.spec.attacher == DRIVER && is_to_do(attachment);
                let uid = object.uid().to_string();
                if !is_ours || !self.state.lock().busy.insert(uid.clone()) {
                    continue;
                }
                let (attacher, api, attachment) = (self.clone(), api.clone(), attachment.clone());
                tokio::spawn(async move {
                    // A failed operation is tried again after the next list.
                    let _ = attacher.work(&*api, attachment).await;
                    attacher.state.lock().busy.remove(&uid);
                });
            }
        }
    }

    /// How long an operation takes, whether it fails, and whether its result is written twice.
    fn draw(&self) -> (Duration, bool, bool) {
        let mut state = self.state.lock();
        if state.is_well {
            return (Duration::ZERO, false, false);
        }
        let chance = &mut state.chance;
        let most = if chance.per_mille(VERY_LATE_PER_MILLE) {
            VERY_LATE_MILLIS
        } else if chance.per_mille(LATE_PER_MILLE) {
            LATE_MILLIS
        } else {
            USUAL_MILLIS
        };
        (
            chance.millis(0, most),
            chance.per_mille(FAILED_PER_MILLE),
            chance.per_mille(TWICE_PER_MILLE),
        )
    }

    /// Whether the attachment still needs the operation that was begun for it.
    async fn current(&self, api: &dyn Api, begun: &VolumeAttachment) -> Result<VolumeAttachment, Error> {
        let name = begun.metadata.name.as_deref().unwrap_or_default();
        let now = (*api.get_as::<VolumeAttachment>("", name).await?).clone();
        let is_same = now.metadata.uid == begun.metadata.uid && is_to_do(&now);
        match is_same && !self.is_down() {
            true => Ok(now),
            false => Err(Error::internal("there is nothing to be done any more")),
        }
    }

    async fn work(&self, api: &dyn Api, begun: VolumeAttachment) -> Result<(), Error> {
        let (takes, fails, twice) = self.draw();
        sleep(takes).await;
        let mut attachment = self.current(api, &begun).await?;
        let volume = attachment.spec.source.persistent_volume_name.clone();
        let (volume, node) = (volume.unwrap_or_default(), attachment.spec.node_name.clone());
        if attachment.metadata.deletion_timestamp.is_some() {
            if fails {
                return Ok(());
            }
            self.state.lock().driver.unpublish(&volume, &node);
            self.observer
                .stored(&Step::Detached(volume.clone(), node.clone()));
            finalizer::remove(&mut attachment.metadata, FINALIZER);
            attachment = (*api.update_as(attachment).await?).clone();
            attachment.status.get_or_insert_default().attached = false;
            return api.update_status_as(attachment).await.map(drop);
        }
        if !finalizer::contains(&attachment.metadata, FINALIZER) {
            finalizer::add(&mut attachment.metadata, FINALIZER);
            attachment = (*api.update_as(attachment).await?).clone();
        }
        let published = match fails {
            true => Err(PublishError::Unavailable),
            false => self.state.lock().driver.publish(&volume, &node),
        };
        let status = attachment.status.get_or_insert_default();
        match published {
            Ok(()) => {
                (status.attached, status.attach_error) = (true, None);
                self.observer.stored(&Step::Attached(volume, node));
            }
            Err(why) => {
                status.attach_error = Some(VolumeError {
                    message: Some(why.to_string()),
                    ..VolumeError::default()
                });
            }
        }
        let (takes, ..) = self.draw();
        sleep(takes).await;
        api.update_status_as(attachment.clone()).await?;
        if twice {
            sleep(takes).await;
            // The attachment has another version by now.
            let _ = api.update_status_as(attachment).await;
        }
        Ok(())
    }
}

/// Whether an attachment needs an operation.
fn is_to_do(attachment: &VolumeAttachment) -> bool {
    match attachment.metadata.deletion_timestamp.is_some() {
        true => finalizer::contains(&attachment.metadata, FINALIZER),
        false => attachment.status.as_ref().is_none_or(|status| !status.attached),
    }
}

/// For [`Mutation::DetachInUse`](crate::Mutation::DetachInUse): deletes each VolumeAttachment that has been attached
/// for a while.
pub(crate) async fn detach_in_use(api: Arc<dyn Api>) {
    const LASTS: Duration = Duration::from_secs(20);
    let mut waits: std::collections::BTreeMap<String, Instant> = Default::default();
    loop {
        sleep(Duration::from_secs(1)).await;
        let listed = api.list(&registry::VOLUME_ATTACHMENT, ListOptions::default());
        let Ok(listed) = listed.await else { continue };
        for object in listed.items {
            let of_driver = object
                .get::<VolumeAttachment>()
                .is_some_and(|a| a.spec.attacher == DRIVER && a.metadata.deletion_timestamp.is_none());
            let since = waits.entry(object.uid().to_string()).or_insert_with(Instant::now);
            if of_driver && since.elapsed() >= LASTS {
                // It tries again in a second.
                let deleted = api.delete(
                    &registry::VOLUME_ATTACHMENT,
                    "",
                    object.name(),
                    Default::default(),
                );
                let _ = deleted.await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s7_a_volume_for_one_node_is_published_to_a_second_one_only_after_the_first() {
        let mut driver = Driver::default();
        let to = |node| Some(("v", node));
        // What is unpublished, then published, and whether that succeeds.
        for (unpublished, (volume, node), succeeds) in [
            (None, ("v", "n2"), true),
            // A request that the network delivered late.
            (None, ("v", "n1"), false),
            (None, ("v", "n2"), true),
            (None, ("w", "n1"), true),
            // The deletion of what was never attached.
            (to("n1"), ("v", "n1"), false),
            (to("n2"), ("v", "n1"), true),
            (None, ("v", "n2"), false),
        ] {
            if let Some((volume, node)) = unpublished {
                driver.unpublish(volume, node);
            }
            let published = driver.publish(volume, node);
            assert_eq!(published.is_ok(), succeeds, "{volume} {node}: {published:?}");
        }
    }
}
