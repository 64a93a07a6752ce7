//! Garbage collection: images, replaced sandboxes, directories of deleted pods. What may be removed,
//! `knarr_kubelet::garbage` decides. Images are collected only where disk usage is measured.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;
use knarr_apimachinery::ids::PodUid;
use knarr_client::events::EventType;
use knarr_client::{Clock, TokioClock};
use knarr_kubelet::configuration::ImageGc;
use knarr_kubelet::garbage::containers::{self, Pods};
use knarr_kubelet::garbage::images::{Image, ImageRecords, excess};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::bound_pods::BoundPods;
use super::config::Config;
use super::events::Events;
use super::remove::{remove_container, remove_logs};
use crate::runtime::{Result, Runtime, RuntimeError};
use crate::stats::Meter;
use crate::volumes::Volumes;

/// Between two collections of dead containers, sandboxes and directories.
const CONTAINER_GC_PERIOD: Duration = Duration::from_secs(60);
/// Between two image collections.
const IMAGE_GC_PERIOD: Duration = Duration::from_secs(300);

/// Why unused images are not deleted; shown to the user.
#[derive(Debug, thiserror::Error)]
enum ImageGcError {
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// [`Excess::message`](knarr_kubelet::garbage::images::Excess::message).
    #[error("{message}")]
    NotEnough { message: String },
    #[error(
        "wanted to free {bytes} bytes, but freed {freed} bytes space with errors in image deletion: {failures}"
    )]
    Delete {
        bytes: u64,
        freed: u64,
        failures: String,
    },
}

/// See the module.
pub(super) struct GarbageCollector {
    pub config: Arc<Config>,
    pub runtime: Arc<dyn Runtime>,
    pub volumes: Arc<Volumes>,
    pub pods: BoundPods,
    pub events: Events,
    pub clock: Arc<dyn Clock>,
    /// Is never set.
    pub steady: TokioClock,
    /// Since when images are unused.
    pub images: Mutex<ImageRecords>,
}

impl GarbageCollector {
    /// Never returns.
    pub async fn run(&self, meter: Option<Arc<dyn Meter>>) {
        let policy = self.config.configuration.image_gc;
        let enabled = policy.high_percent < 100 || policy.max_age > SignedDuration::ZERO;
        let mut next_images = Instant::now();
        let mut failed_before = false;
        loop {
            if next_images <= Instant::now() {
                next_images = Instant::now() + IMAGE_GC_PERIOD;
                if let Some(meter) = meter.as_deref().filter(|_| enabled) {
                    let result = self.collect_images(meter, &policy).await;
                    match &result {
                        // Once may be bad luck.
                        Err(why) if failed_before => {
                            let warning = EventType::Warning;
                            self.events.of_node(warning, "ImageGCFailed", why.to_string());
                        }
                        Err(why) => warn!(%why, "cannot delete unused images"),
                        Ok(()) => {}
                    }
                    failed_before = result.is_err();
                }
            }
            sleep(CONTAINER_GC_PERIOD.min(next_images.saturating_duration_since(Instant::now()))).await;
            if let Err(error) = self.collect_leftovers().await {
                debug!(%error, "what is left of pods cannot be thrown away yet");
            }
        }
    }

    /// Everything that may go, at once, because the disk is short.
    pub async fn free_all(&self) {
        let freed = async {
            let containers = self.runtime.containers().await?;
            for id in containers::containers_of_terminal_pods(&containers, &self.known_pods()) {
                info!(container = %id, "removing to free disk space");
                remove_container(&*self.runtime, &self.config.log_dir, &id).await?;
            }
            Ok::<(), RuntimeError>(())
        };
        if let Err(error) = freed.await {
            warn!(%error, "cannot remove dead containers");
        }
        if let Err(why) = self
            .free_images(&self.config.configuration.image_gc, u64::MAX)
            .await
        {
            warn!(%why, "cannot delete unused images");
        }
    }

    async fn collect_images(
        &self,
        meter: &dyn Meter,
        policy: &ImageGc,
    ) -> std::result::Result<(), ImageGcError> {
        let now = self.update_image_records().await?;
        let too_old = self.images.lock().too_old(policy, now);
        for (id, _) in too_old {
            self.remove_image(&id).await?;
        }
        let measured = meter.measure(Duration::from_secs(10)).await;
        let fs = measured
            .summary
            .node
            .runtime
            .as_ref()
            .and_then(|r| r.image_fs.as_ref());
        let Some((capacity, available)) = fs.and_then(|fs| Some((fs.capacity_bytes?, fs.available_bytes?)))
        else {
            return Ok(());
        };
        let Some(excess) = excess(policy, capacity, available) else {
            return Ok(());
        };
        info!(
            used_percent = excess.used_percent,
            "the image file system is over its threshold"
        );
        let freed = self.free_images(policy, excess.to_free_bytes).await?;
        if freed >= excess.to_free_bytes {
            return Ok(());
        }
        let message = excess.message(freed);
        let warning = EventType::Warning;
        self.events
            .of_node(warning, "FreeDiskSpaceFailed", message.clone());
        Err(ImageGcError::NotEnough { message })
    }

    /// Bytes freed.
    async fn free_images(&self, policy: &ImageGc, bytes: u64) -> std::result::Result<u64, ImageGcError> {
        let now = self.update_image_records().await?;
        let unused = self.images.lock().unused(policy, now);
        let mut freed: u64 = 0;
        let mut failures = Vec::new();
        for (id, size) in unused {
            if freed >= bytes {
                break;
            }
            match self.remove_image(&id).await {
                Ok(()) => freed = freed.saturating_add(size),
                Err(error) => failures.push(error.to_string()),
            }
        }
        if failures.is_empty() {
            return Ok(freed);
        }
        Err(ImageGcError::Delete {
            bytes,
            freed,
            failures: failures.join(", "),
        })
    }

    async fn remove_image(&self, id: &str) -> Result<()> {
        info!(image = id, "removing an unused image");
        self.runtime.remove_image(id).await
    }

    /// Updates the records, and returns the time of the update.
    async fn update_image_records(&self) -> Result<k8s_openapi::jiff::Timestamp> {
        // Containers first: one that is made meanwhile is of an image that is young, or still unused.
        let containers = self.runtime.containers().await?;
        let in_use: BTreeSet<String> = containers
            .into_iter()
            .flat_map(|c| [c.image_id, c.image])
            .collect();
        let kept = &self.config.pinned_images;
        let images: Vec<Image> = self
            .runtime
            .images()
            .await?
            .into_iter()
            .map(|image| Image {
                pinned: image.pinned || image.tags.iter().any(|tag| kept.contains(tag)),
                id: image.id,
                size_bytes: image.size_bytes,
            })
            .collect();
        let now = self.steady.now();
        self.images.lock().detect_images(&images, &in_use, now);
        Ok(now)
    }

    fn known_pods(&self) -> Pods {
        let pods = self.pods.list();
        let terminal = pods
            .iter()
            .map(|pod| (pod.object().uid().into(), is_terminal(pod)));
        Pods {
            terminal: terminal.collect(),
        }
    }

    async fn collect_leftovers(&self) -> Result<()> {
        // Before the API's list of pods has arrived, every pod would seem to be deleted.
        if !self.pods.is_complete() {
            return Ok(());
        }
        let directories = self.pod_directories();
        let sandboxes = self.runtime.sandboxes().await?;
        let containers = self.runtime.containers().await?;
        for id in containers::dead_sandboxes(&sandboxes, &containers, self.clock.now()) {
            debug!(sandbox = %id, "removing a sandbox that was replaced");
            self.runtime.remove_sandbox(&id).await?;
        }
        // The known pods are read last: a pod created since has no directory in the list.
        let pods = self.known_pods();
        let uids = directories.iter().map(|(uid, _)| uid.as_str());
        let orphaned: BTreeSet<&str> = containers::orphaned(uids, &pods, &sandboxes, &containers)
            .into_iter()
            .collect();
        for (uid, log) in directories
            .iter()
            .filter(|(uid, _)| orphaned.contains(uid.as_str()))
        {
            info!(uid = uid.as_str(), "removing the leftovers of a deleted pod");
            match log {
                Some(path) => {
                    remove_logs(self.volumes.files(), &self.config.log_dir, uid, path.clone()).await
                }
                None => {
                    if let Err(error) = self.volumes.teardown(uid).await {
                        warn!(uid = uid.as_str(), %error, "cannot tear down the volumes of a deleted pod");
                    }
                }
            }
        }
        Ok(())
    }

    /// Uids that have a directory on this node; with its path, where it is a directory of logs.
    fn pod_directories(&self) -> Vec<(PodUid, Option<std::path::PathBuf>)> {
        let names = |path: &Path| -> Vec<String> {
            let entries = crate::host_fs::read_dir(path).into_iter().flatten().flatten();
            entries.filter_map(|e| e.file_name().into_string().ok()).collect()
        };
        let mut found: Vec<_> = names(&self.config.root_dir.join("pods"))
            .into_iter()
            .map(|uid| (uid.into(), None))
            .collect();
        for name in names(&self.config.log_dir) {
            // `<namespace>_<pod>_<uid>`; other names are not the kubelet's.
            let parts: Vec<&str> = name.split('_').collect();
            if let [_, _, uid] = parts[..] {
                found.push((uid.into(), Some(self.config.log_dir.join(&name))));
            }
        }
        found
    }
}
