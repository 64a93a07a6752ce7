//! The external-attacher of the CSI driver, played: it attaches a volume that a VolumeAttachment asks for and detaches it when
//! that is being deleted, as kubernetes-csi/external-attacher does. It answers at once, late, twice, with an error, or not at all for a
//! while.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeError};
use knarr_api::{finalizer, k8s_openapi, registry};
use knarr_client::{Api, Error, ListOptions, TypedApi};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::observer::Observer;
use crate::random::Stream;
use crate::rules::s7_staging::Step;
use crate::servers::ApiServer;
use crate::staging::DRIVER;

/// What keeps an attachment until its volume is detached.
const FINALIZER: &str = "external-attacher/csi-sim";
/// Between two lists of the attachments.
const POLL: Duration = Duration::from_millis(250);
/// How long an operation takes: usually, and, in so many of a thousand, late or very late.
const USUAL_MILLIS: u64 = 200;
const LATE_PER_MILLE: u32 = 250;
const LATE_MILLIS: u64 = 5_000;
const VERY_LATE_PER_MILLE: u32 = 50;
const VERY_LATE_MILLIS: u64 = 60_000;
/// Operations that fail, and those that are answered twice, in thousandths.
const FAILED_PER_MILLE: u32 = 100;
const TWICE_PER_MILLE: u32 = 200;

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
    /// Attachments that it is at work for, by uid.
    busy: BTreeSet<String>,
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
            }),
        });
        tokio::spawn(attacher.clone().run());
        attacher
    }

    /// It is gone for so long.
    pub fn crash(&self, length: Duration) {
        self.state.lock().down_until = Some(Instant::now() + length);
    }

    /// From now on it does all at once.
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
                    // What failed is found by the next list.
                    let _ = attacher.work(&*api, attachment).await;
                    attacher.state.lock().busy.remove(&uid);
                });
            }
        }
    }

    /// How long it takes, whether it fails, and whether it is answered twice.
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

    /// Whether it is still what it was asked when it was begun.
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
            self.observer
                .stored(&Step::Detached(volume.clone(), node.clone()));
            finalizer::release(&mut attachment.metadata, FINALIZER);
            attachment = (*api.update_as(attachment).await?).clone();
            attachment.status.get_or_insert_default().attached = false;
            return api.update_status_as(attachment).await.map(drop);
        }
        if !finalizer::is_held(&attachment.metadata, FINALIZER) {
            finalizer::hold(&mut attachment.metadata, FINALIZER);
            attachment = (*api.update_as(attachment).await?).clone();
        }
        let status = attachment.status.get_or_insert_default();
        if fails {
            status.attach_error = Some(VolumeError {
                message: Some("the storage does not answer".into()),
                ..VolumeError::default()
            });
        } else {
            (status.attached, status.attach_error) = (true, None);
            self.observer.stored(&Step::Attached(volume, node));
        }
        let (takes, ..) = self.draw();
        sleep(takes).await;
        api.update_status_as(attachment.clone()).await?;
        if twice {
            sleep(takes).await;
            // It is another version by now.
            let _ = api.update_status_as(attachment).await;
        }
        Ok(())
    }
}

/// Whether an attachment asks for something that has not been done.
fn is_to_do(attachment: &VolumeAttachment) -> bool {
    match attachment.metadata.deletion_timestamp.is_some() {
        true => finalizer::is_held(&attachment.metadata, FINALIZER),
        false => attachment.status.as_ref().is_none_or(|status| !status.attached),
    }
}

/// For [`Mutation::DetachInUse`](crate::Mutation::DetachInUse): asks for each volume to be detached that has been attached for a while.
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
