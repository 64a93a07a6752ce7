//! Writes one pod's statuses in order, so that every watcher sees every step, and deletes the object at the end (SPEC
//! T5).
//!
//! Every write carries the uid and the resourceVersion it was made from; what others wrote meanwhile is read and kept;
//! the kubelet's own fields that others changed meanwhile (a node considered lost has its pods marked) are written
//! again. The final deletion is sent only after the last status was accepted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_client::{DeleteOptions, Error, Preconditions};
use knarr_kubelet::pod::{ENDS_ANNOTATION, Event, merge};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::static_pods::ensure_mirror;
use super::worker::{Msg, Origin};
use super::{Shared, pod_kind};

pub(super) enum Write {
    /// The object as last seen.
    Object(Arc<core::Pod>),
    Status(Box<core::PodStatus>),
    /// The annotation of remembered exits, from the next status on.
    Ends(String),
    /// A static pod's mirror has to be created again, with the whole status.
    MirrorGone,
    FinalDelete,
}

/// Statuses that may wait: with a slow or unreachable API the oldest ones are skipped.
const WAITING_MAX: usize = 8;
/// The shortest time between two repetitions of a status that others have overwritten: no fight at network speed.
const RESTORE: Duration = Duration::from_secs(1);
/// Between attempts while the API does not answer: 50 ms, doubled up to 5 s.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

pub(super) async fn run(
    shared: Arc<Shared>,
    first: Arc<core::Pod>,
    origin: Origin,
    mut writes: mpsc::UnboundedReceiver<Write>,
    worker: mpsc::UnboundedSender<Msg>,
) {
    let is_static = origin == Origin::File;
    let mut base = match origin {
        Origin::Api => first.clone(),
        Origin::File => ensure_mirror(&shared, &first).await,
    };
    // The status reported last, by this kubelet or an earlier one: one that is unchanged is not written again, but is
    // restored if others overwrite it. And when it was last restored.
    let mut reported: Option<Box<core::PodStatus>> = match origin {
        Origin::Api => first.status.clone().map(Box::new),
        Origin::File => None,
    };
    let mut restored: Option<Instant> = None;
    let mut statuses: VecDeque<Box<core::PodStatus>> = VecDeque::new();
    let mut ends: Option<String> = None;
    let mut delete = false;
    let mut wait = RETRY.0;
    loop {
        let write = if statuses.is_empty() && !delete {
            let Some(write) = writes.recv().await else { return };
            Some(write)
        } else {
            writes.try_recv().ok()
        };
        if let Some(write) = write {
            match write {
                Write::Object(object) if revision(&object) > revision(&base) => {
                    base = object;
                    if statuses.is_empty()
                        && let Some(own) = reported.clone().filter(|own| is_overwritten(&base, own))
                    {
                        let rest = restored.map(|at| RESTORE.saturating_sub(at.elapsed()));
                        sleep(rest.unwrap_or_default()).await;
                        restored = Some(Instant::now());
                        statuses.push_back(own);
                    }
                }
                Write::Object(_) => {}
                Write::Status(new) => {
                    if statuses.len() >= WAITING_MAX {
                        statuses.pop_front();
                    }
                    statuses.push_back(new);
                }
                Write::Ends(new) => ends = Some(new),
                Write::MirrorGone => {
                    base = ensure_mirror(&shared, &first).await;
                    if statuses.is_empty() {
                        statuses.extend(reported.clone());
                    }
                }
                Write::FinalDelete => delete = true,
            }
            continue;
        }
        if let Some(wanted) = statuses.front() {
            match write_status(&shared, &base, wanted, ends.as_deref()).await {
                Ok(Some(written)) => {
                    base = written;
                    reported = statuses.pop_front();
                    wait = RETRY.0;
                }
                Ok(None) if is_static => base = ensure_mirror(&shared, &first).await,
                // There is nothing left to write to.
                Ok(None) => statuses.clear(),
                Err(error) if error.is_conflict() => match refresh(&shared, &base).await {
                    Ok(Some(newer)) => base = newer,
                    Ok(None) if is_static => base = ensure_mirror(&shared, &first).await,
                    Ok(None) => statuses.clear(),
                    Err(error) => wait = again(&error, wait).await,
                },
                // It will never be accepted, and the next one is newer.
                Err(error) if error.is_invalid() && statuses.len() > 1 => {
                    warn!(%error, "the API server rejected a pod's status");
                    statuses.pop_front();
                }
                Err(error) => wait = again(&error, wait).await,
            }
            continue;
        }
        delete = false;
        if let Err(error) = delete_at_once(&shared, &base).await {
            debug!(%error, "the API server rejected the final deletion");
            if worker.send(Msg::Event(Event::FinalDeleteFailed)).is_err() {
                return;
            }
        } else if is_static {
            // No watch event reports the deletion of what the API never had.
            if worker.send(Msg::Event(Event::Removed)).is_err() {
                return;
            }
        }
    }
}

async fn again(error: &Error, wait: Duration) -> Duration {
    warn!(%error, "cannot write a pod's status yet");
    sleep(wait).await;
    (wait * 2).min(RETRY.1)
}

/// Whether the pod's status in the API differs from the reported one.
fn is_overwritten(pod: &core::Pod, own: &core::PodStatus) -> bool {
    let there = pod.status.clone().unwrap_or_default();
    merge(&there, own) != there
}

fn revision(pod: &core::Pod) -> u64 {
    let version = pod.metadata.resource_version.as_deref();
    version.and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// The object as written; `None` if it was deleted.
async fn write_status(
    shared: &Shared,
    base: &Arc<core::Pod>,
    status: &core::PodStatus,
    ends: Option<&str>,
) -> Result<Option<Arc<core::Pod>>, Error> {
    let there = base.status.clone().unwrap_or_default();
    let merged = merge(&there, status);
    if merged == there {
        return Ok(Some(base.clone()));
    }
    let mut pod = (**base).clone();
    pod.status = Some(merged);
    if let Some(ends) = ends {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(ENDS_ANNOTATION.into(), ends.into());
    }
    match shared.api.update(pod_kind(), Box::new(pod), "status").await {
        Ok(written) => Ok(written.to_typed::<core::Pod>().map(Arc::new)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The object as it is; `None` if this pod was deleted, even if another has its name now.
async fn refresh(shared: &Shared, base: &core::Pod) -> Result<Option<Arc<core::Pod>>, Error> {
    let (namespace, name) = namespace_and_name(base);
    match shared.api.get(pod_kind(), namespace, name).await {
        Ok(object) if object.uid() == base.metadata.uid.as_deref().unwrap_or("") => {
            Ok(object.to_typed::<core::Pod>().map(Arc::new))
        }
        Ok(_) => Ok(None),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes this very pod from the API, with grace period 0.
pub(super) async fn delete_at_once(shared: &Shared, base: &core::Pod) -> Result<(), Error> {
    let (namespace, name) = namespace_and_name(base);
    let options = DeleteOptions {
        grace_period_seconds: Some(0),
        preconditions: Preconditions {
            uid: base.metadata.uid.clone(),
            resource_version: None,
        },
        propagation: None,
    };
    match shared.api.delete(pod_kind(), namespace, name, options).await {
        Ok(_) => Ok(()),
        // Deleted, or another pod of that name: this one does not exist any more.
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

fn namespace_and_name(pod: &core::Pod) -> (&str, &str) {
    (
        pod.metadata.namespace.as_deref().unwrap_or(""),
        pod.metadata.name.as_deref().unwrap_or(""),
    )
}
