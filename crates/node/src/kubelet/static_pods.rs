//! Static pods: how they terminate and restart, and their mirrors in the API, created, recreated and deleted.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::time::seconds;
use knarr_client::{Clock, Error};
use knarr_kubelet::static_pods::{continued, mirror, mirrored};
use tokio::time::sleep;
use tracing::{info, warn};

use super::status::delete_at_once;
use super::{Shared, pod_kind, sandbox};

/// Between attempts to make a mirror: 100 ms, doubled up to 5 s.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The pod after its file was removed: being deleted, with its own grace period.
pub(super) fn marked_for_deletion(pod: &core::Pod, now: Timestamp) -> core::Pod {
    let grace = pod
        .spec
        .as_ref()
        .and_then(|s| s.termination_grace_period_seconds)
        .unwrap_or(30);
    let mut pod = pod.clone();
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    let deadline = now + k8s_openapi::jiff::SignedDuration::from_secs(grace);
    pod.metadata.deletion_timestamp = Some(seconds(deadline));
    pod
}

/// The pod's mirror as the API has it; created where it does not exist or belongs to another pod. Retries until it
/// exists.
pub(super) async fn ensure_mirror(shared: &Shared, pod: &core::Pod) -> Arc<core::Pod> {
    let mut wait = RETRY.0;
    loop {
        match mirror_once(shared, pod).await {
            Ok(Some(mirror)) => return mirror,
            Ok(None) => {}
            Err(error) => {
                let name = pod.metadata.name.as_deref().unwrap_or("");
                warn!(pod = name, %error, "cannot create the mirror of a static pod yet");
            }
        }
        sleep(wait).await;
        wait = (wait * 2).min(RETRY.1);
    }
}

/// None: another mirror was deleted, try again.
async fn mirror_once(shared: &Shared, pod: &core::Pod) -> Result<Option<Arc<core::Pod>>, Error> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let name = pod.metadata.name.as_deref().unwrap_or("");
    let there = match shared.api.get(pod_kind(), namespace, name).await {
        Ok(object) => object.to_typed::<core::Pod>(),
        // A node may not read pods of others; the creation shows whether one exists.
        Err(error) if error.is_not_found() || error.is_forbidden() => None,
        Err(error) => return Err(error),
    };
    if let Some(there) = there {
        let ours = mirrored(&there).is_some() && mirrored(&there) == pod.metadata.uid.as_deref();
        if ours && there.metadata.deletion_timestamp.is_none() {
            return Ok(Some(Arc::new(there)));
        }
        if mirrored(&there).is_none() {
            return Err(Error::conflict(
                pod_kind().about(name),
                "a pod that is no mirror has the name of a static pod",
            ));
        }
        delete_at_once(shared, &there).await?;
        return Ok(None);
    }
    let node = shared.own_node.known();
    // A mirror is its node's, which has to be there first.
    let Some(node_uid) = node.and_then(|n| n.metadata.uid.clone()) else {
        return Ok(None);
    };
    info!(pod = name, "creating the mirror of a static pod");
    let made = mirror(pod, Some(&node_uid));
    let made = shared.api.create(pod_kind(), Box::new(made)).await?;
    Ok(made.to_typed::<core::Pod>().map(Arc::new))
}

/// How long a static pod's container statuses are remembered for a successor with the same content: as long as
/// Kubernetes' kubelet keeps dead containers of a deleted pod.
const REMEMBERED: SignedDuration = SignedDuration::from_secs(60);

/// The last statuses of terminated static pods, by uid.
#[derive(Default)]
pub(crate) struct EndedStatics(BTreeMap<String, (Timestamp, Box<core::PodStatus>)>);

impl EndedStatics {
    pub fn note(&mut self, uid: &str, status: Box<core::PodStatus>, now: Timestamp) {
        self.0.retain(|_, (at, _)| now.duration_since(*at) < REMEMBERED);
        self.0.insert(uid.into(), (now, status));
    }

    fn take(&mut self, uid: &str, now: Timestamp) -> Option<Box<core::PodStatus>> {
        let (at, status) = self.0.remove(uid)?;
        (now.duration_since(at) < REMEMBERED).then_some(status)
    }
}

/// A static pod that starts and of which the runtime has nothing, with its remembered container statuses.
pub(super) fn with_memory(shared: &Shared, pod: &core::Pod) -> core::Pod {
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    let last = shared.ended_statics.lock().take(uid, shared.steady.now());
    let logs = sandbox::log_directory(pod, &shared.config.log_dir);
    let logged = match &last {
        Some(_) => BTreeMap::new(),
        None => logged_runs(&logs).unwrap_or_else(|error| {
            warn!(path = %logs.display(), %error, "cannot count the earlier runs of a static pod's containers");
            BTreeMap::new()
        }),
    };
    continued(pod, last.as_deref(), &logged)
}

/// Restart counts by the logs (`<container>/<run>.log`): a runtime that has forgotten its containers, as some do after
/// a reboot, has no other record.
fn logged_runs(logs: &Path) -> io::Result<BTreeMap<String, i32>> {
    let entries = match crate::host_fs::read_dir(logs) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries?,
    };
    let mut found = BTreeMap::new();
    for container in entries {
        let container = container?;
        if !container.file_type()?.is_dir() {
            continue;
        }
        let mut runs = 0;
        for log in crate::host_fs::read_dir(container.path())? {
            let name = log?.file_name();
            // What was rotated has more behind it.
            let run = name.to_str().and_then(|name| name.split_once(".log"));
            let run = run.filter(|(_, rest)| rest.is_empty() || rest.starts_with('.'));
            let run = run.and_then(|(run, _)| run.parse::<i32>().ok());
            runs = runs.max(run.map_or(0, |run| run.saturating_add(1)));
        }
        found.insert(container.file_name().to_string_lossy().into_owned(), runs);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l4_logs_are_numbered_by_the_containers_runs() {
        let dir = tempfile::tempdir().unwrap();
        assert!(logged_runs(&dir.path().join("none")).unwrap().is_empty());
        for file in [
            "a/0.log",
            "a/2.log.20260101-000000",
            "a/x.log",
            "a/9.text",
            "a/7.logs",
            "b/0.log",
        ] {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        std::fs::create_dir(dir.path().join("c")).unwrap();
        let want = [("a", 3), ("b", 1), ("c", 0)].map(|(name, runs)| (name.to_string(), runs));
        assert_eq!(logged_runs(dir.path()).unwrap(), want.into());
    }

    #[test]
    fn l4_a_status_of_a_terminated_static_pod_is_kept_for_a_minute_and_once() {
        let at = |seconds: i64| Timestamp::from_second(1_800_000_000 + seconds).unwrap();
        let mut memory = EndedStatics::default();
        for uid in ["a", "b", "c"] {
            memory.note(uid, Box::default(), at(0));
        }
        assert!(memory.take("a", at(59)).is_some());
        assert!(memory.take("a", at(59)).is_none());
        assert!(memory.take("b", at(60)).is_none());
        memory.note("d", Box::default(), at(61));
        assert_eq!(memory.0.len(), 1, "the old go");
    }
}
