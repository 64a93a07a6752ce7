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
use knarr_api::registry::Registered;
use knarr_client::{Api, Error};
use knarr_kubelet::pod::{Event, TERMINATION_HISTORY_ANNOTATION, merge};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::inbox::Inbox;
use super::pod_object::{delete_at_once, refresh};
use super::static_pods::MirrorPods;

/// Where a pod is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Api,
    /// A static pod: the API only has its mirror.
    File,
}

pub(super) enum Write {
    /// The object as last seen.
    Object(Arc<core::Pod>),
    Status(Box<core::PodStatus>),
    /// The annotation of remembered exits, from the next status on.
    TerminationHistory(String),
    /// A static pod's mirror has to be created again, with the whole status.
    MirrorDeleted,
    FinalDelete,
}

/// Statuses that may wait: with a slow or unreachable API the oldest ones are skipped.
const WAITING_MAX: usize = 8;
/// The shortest time between two repetitions of a status that others have overwritten: no fight at network speed.
const RESTORE: Duration = Duration::from_secs(1);
/// Between attempts while the API does not answer: 50 ms, doubled up to 5 s.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

pub(super) async fn run(
    api: Arc<dyn Api>,
    mirrors: Arc<MirrorPods>,
    first: Arc<core::Pod>,
    origin: Origin,
    mut writes: mpsc::UnboundedReceiver<Write>,
    worker: Inbox,
) {
    let is_static = origin == Origin::File;
    let mut base = match origin {
        Origin::Api => first.clone(),
        Origin::File => mirrors.ensure(&first).await,
    };
    // The status reported last, by this kubelet or an earlier one: one that is unchanged is not written again, but is
    // restored if others overwrite it. And when it was last restored.
    let mut reported: Option<Box<core::PodStatus>> = match origin {
        Origin::Api => first.status.clone().map(Box::new),
        Origin::File => None,
    };
    let mut restored: Option<Instant> = None;
    let mut statuses: VecDeque<Box<core::PodStatus>> = VecDeque::new();
    let mut history: Option<String> = None;
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
                Write::TerminationHistory(new) => history = Some(new),
                Write::MirrorDeleted => {
                    base = mirrors.ensure(&first).await;
                    if statuses.is_empty() {
                        statuses.extend(reported.clone());
                    }
                }
                Write::FinalDelete => delete = true,
            }
            continue;
        }
        if let Some(desired) = statuses.front() {
            match write_status(&*api, &base, desired, history.as_deref()).await {
                Ok(Some(written)) => {
                    base = written;
                    reported = statuses.pop_front();
                    wait = RETRY.0;
                }
                Ok(None) if is_static => base = mirrors.ensure(&first).await,
                // There is nothing left to write to.
                Ok(None) => statuses.clear(),
                Err(error) if error.is_conflict() => match refresh(&*api, &base).await {
                    Ok(Some(newer)) => base = newer,
                    Ok(None) if is_static => base = mirrors.ensure(&first).await,
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
        if let Err(error) = delete_at_once(&*api, &base).await {
            debug!(%error, "the API server rejected the final deletion");
            worker.event(Event::FinalDeleteFailed);
        } else if is_static {
            // No watch event reports the deletion of what the API never had.
            worker.event(Event::Removed);
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
    api: &dyn Api,
    base: &Arc<core::Pod>,
    status: &core::PodStatus,
    history: Option<&str>,
) -> Result<Option<Arc<core::Pod>>, Error> {
    let there = base.status.clone().unwrap_or_default();
    let merged = merge(&there, status);
    if merged == there {
        return Ok(Some(base.clone()));
    }
    let mut pod = (**base).clone();
    pod.status = Some(merged);
    if let Some(history) = history {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(TERMINATION_HISTORY_ANNOTATION.into(), history.into());
    }
    match api
        .update(core::Pod::kind_of(), pod.into_object(), "status")
        .await
    {
        Ok(written) => Ok(written.to_typed::<core::Pod>().map(Arc::new)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
