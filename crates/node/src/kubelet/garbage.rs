//! Garbage collection: images, replaced sandboxes, directories of deleted pods. What may be removed,
//! `knarr_kubelet::garbage` decides. Images are collected only where disk usage is measured.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_client::Clock;
use knarr_client::events::EventType;
use knarr_kubelet::configuration::ImageGc;
use knarr_kubelet::garbage::images::{Image, excess};
use knarr_kubelet::garbage::remains::{self, Pods};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::Shared;
use super::eviction::node_reference;
use super::remove::{remove_container, remove_logs};
use crate::runtime::{Result, RuntimeError};
use crate::stats::Meter;

/// Between two collections of dead containers, sandboxes and directories.
const CONTAINER_GC_PERIOD: Duration = Duration::from_secs(60);
/// Between two image collections.
const IMAGE_GC_PERIOD: Duration = Duration::from_secs(300);

/// Never returns.
pub(super) async fn run(shared: Arc<Shared>, meter: Option<Arc<dyn Meter>>) {
    let policy = shared.config.configuration.image_gc;
    let enabled = policy.high_percent < 100 || policy.max_age > SignedDuration::ZERO;
    let mut next_images = Instant::now();
    let mut failed_before = false;
    loop {
        if next_images <= Instant::now() {
            next_images = Instant::now() + IMAGE_GC_PERIOD;
            if let Some(meter) = meter.as_deref().filter(|_| enabled) {
                let result = collect_images(&shared, meter, &policy).await;
                match &result {
                    // Once may be bad luck.
                    Err(why) if failed_before => {
                        let about = node_reference(&shared.config.node_name);
                        let warning = EventType::Warning;
                        shared
                            .recorder
                            .event(&about, warning, "ImageGCFailed", why.clone());
                    }
                    Err(why) => warn!(why, "cannot delete unused images"),
                    Ok(()) => {}
                }
                failed_before = result.is_err();
            }
        }
        sleep(CONTAINER_GC_PERIOD.min(next_images.saturating_duration_since(Instant::now()))).await;
        if let Err(error) = collect_leftovers(&shared).await {
            debug!(%error, "what is left of pods cannot be thrown away yet");
        }
    }
}

/// Everything that may go, at once, because the disk is short.
pub(super) async fn free_all(shared: &Shared) {
    let freed = async {
        let containers = shared.runtime.containers().await?;
        for id in remains::containers_of_ended_pods(&containers, &known_pods(shared)) {
            info!(container = id, "removing to free disk space");
            remove_container(shared, &id).await?;
        }
        Ok::<(), RuntimeError>(())
    };
    if let Err(error) = freed.await {
        warn!(%error, "cannot remove dead containers");
    }
    if let Err(why) = free_images(shared, &shared.config.configuration.image_gc, u64::MAX).await {
        warn!(why, "cannot delete unused images");
    }
}

async fn collect_images(
    shared: &Shared,
    meter: &dyn Meter,
    policy: &ImageGc,
) -> std::result::Result<(), String> {
    let now = update_image_records(shared).await.map_err(|e| e.to_string())?;
    let too_old = shared.images.lock().too_old(policy, now);
    for (id, _) in too_old {
        remove_image(shared, &id).await.map_err(|e| e.to_string())?;
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
    let freed = free_images(shared, policy, excess.to_free_bytes).await?;
    if freed >= excess.to_free_bytes {
        return Ok(());
    }
    let about = node_reference(&shared.config.node_name);
    let message = excess.message(freed);
    let warning = EventType::Warning;
    shared
        .recorder
        .event(&about, warning, "FreeDiskSpaceFailed", message.clone());
    Err(message)
}

/// Bytes freed.
async fn free_images(shared: &Shared, policy: &ImageGc, bytes: u64) -> std::result::Result<u64, String> {
    let now = update_image_records(shared).await.map_err(|e| e.to_string())?;
    let unused = shared.images.lock().unused(policy, now);
    let mut freed: u64 = 0;
    let mut failures = Vec::new();
    for (id, size) in unused {
        if freed >= bytes {
            break;
        }
        match remove_image(shared, &id).await {
            Ok(()) => freed = freed.saturating_add(size),
            Err(error) => failures.push(error.to_string()),
        }
    }
    if failures.is_empty() {
        return Ok(freed);
    }
    Err(format!(
        "wanted to free {bytes} bytes, but freed {freed} bytes space with errors in image deletion: {}",
        failures.join(", ")
    ))
}

async fn remove_image(shared: &Shared, id: &str) -> Result<()> {
    info!(image = id, "removing an unused image");
    shared.runtime.remove_image(id).await
}

/// Updates the records, and returns the time of the update.
async fn update_image_records(shared: &Shared) -> Result<k8s_openapi::jiff::Timestamp> {
    // Containers first: one that is made meanwhile is of an image that is young, or still unused.
    let containers = shared.runtime.containers().await?;
    let in_use: BTreeSet<String> = containers
        .into_iter()
        .flat_map(|c| [c.image_id, c.image])
        .collect();
    let kept = &shared.config.pinned_images;
    let images: Vec<Image> = shared
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
    let now = shared.steady.now();
    shared.images.lock().see(&images, &in_use, now);
    Ok(now)
}

fn known_pods(shared: &Shared) -> Pods {
    let pods = shared.pods.list("");
    let over = pods.iter().map(|pod| {
        let typed = pod.to_typed::<core::Pod>();
        let phase = typed.and_then(|p| p.status?.phase);
        (
            pod.uid().to_string(),
            matches!(phase.as_deref(), Some("Succeeded" | "Failed")),
        )
    });
    Pods { over: over.collect() }
}

async fn collect_leftovers(shared: &Shared) -> Result<()> {
    // Before the API's list of pods has arrived, every pod would seem to be deleted.
    if shared.pods.reached().is_none() {
        return Ok(());
    }
    let directories = pod_directories(shared);
    let sandboxes = shared.runtime.sandboxes().await?;
    let containers = shared.runtime.containers().await?;
    for id in remains::dead_sandboxes(&sandboxes, &containers, shared.clock.now()) {
        debug!(sandbox = id, "removing a sandbox that was replaced");
        shared.runtime.remove_sandbox(&id).await?;
    }
    // The known pods are read last: a pod created since has no directory in the list.
    let pods = known_pods(shared);
    let uids = directories.iter().map(|(uid, _)| uid.as_str());
    let orphaned: BTreeSet<&str> = remains::orphaned(uids, &pods, &sandboxes, &containers)
        .into_iter()
        .collect();
    for (uid, log) in directories
        .iter()
        .filter(|(uid, _)| orphaned.contains(uid.as_str()))
    {
        info!(uid, "removing the leftovers of a deleted pod");
        match log {
            Some(path) => remove_logs(shared, uid, path.clone()).await,
            None => {
                if let Err(error) = shared.volumes.teardown(uid).await {
                    warn!(uid, %error, "cannot tear down the volumes of a deleted pod");
                }
            }
        }
    }
    Ok(())
}

/// Uids that have a directory on this node; with its path, where it is a directory of logs.
fn pod_directories(shared: &Shared) -> Vec<(String, Option<std::path::PathBuf>)> {
    let names = |path: &Path| -> Vec<String> {
        let entries = crate::host_fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter_map(|e| e.file_name().into_string().ok()).collect()
    };
    let mut found: Vec<_> = names(&shared.config.root_dir.join("pods"))
        .into_iter()
        .map(|uid| (uid, None))
        .collect();
    for name in names(&shared.config.log_dir) {
        // `<namespace>_<pod>_<uid>`; other names are not the kubelet's.
        let parts: Vec<&str> = name.split('_').collect();
        if let [_, _, uid] = parts[..] {
            found.push((uid.to_string(), Some(shared.config.log_dir.join(&name))));
        }
    }
    found
}
