//! Static pods: how they terminate and restart, and their mirrors in the API, created, recreated and deleted.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_apimachinery::time::seconds;
use knarr_client::{Api, Clock, Error, TypedApi};
use knarr_kubelet::static_pods::{mirror, mirrored_hash, with_previous_status};
use parking_lot::Mutex;
use tokio::time::sleep;
use tracing::{info, warn};

use super::own_node::OwnNode;
use super::pod_object::delete_at_once;
use super::sandbox;

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

/// The mirrors of this node's static pods.
pub(super) struct MirrorPods {
    api: Arc<dyn Api>,
    own_node: Arc<OwnNode>,
}

impl MirrorPods {
    pub fn new(api: Arc<dyn Api>, own_node: Arc<OwnNode>) -> Self {
        MirrorPods { api, own_node }
    }

    /// The pod's mirror as the API has it; created where it does not exist or belongs to another pod. Retries until it
    /// exists.
    pub async fn ensure(&self, pod: &core::Pod) -> Arc<core::Pod> {
        let mut wait = RETRY.0;
        loop {
            match self.ensure_once(pod).await {
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
    async fn ensure_once(&self, pod: &core::Pod) -> Result<Option<Arc<core::Pod>>, Error> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let name = pod.metadata.name.as_deref().unwrap_or("");
        let there = match self.api.get_as::<core::Pod>(namespace, name).await {
            Ok(there) => Some(there),
            // A node may not read pods of others; the creation shows whether one exists.
            Err(error) if error.is_not_found() || error.is_forbidden() => None,
            Err(error) => return Err(error),
        };
        if let Some(there) = there {
            let ours =
                mirrored_hash(&there).is_some() && mirrored_hash(&there) == pod.metadata.uid.as_deref();
            if ours && there.metadata.deletion_timestamp.is_none() {
                return Ok(Some(Arc::new((*there).clone())));
            }
            if mirrored_hash(&there).is_none() {
                return Err(Error::conflict(
                    core::Pod::kind_of().resource_ref(name),
                    "a pod that is no mirror has the name of a static pod",
                ));
            }
            delete_at_once(&*self.api, &there).await?;
            return Ok(None);
        }
        let node = self.own_node.known();
        // A mirror is its node's, which has to be there first.
        let Some(node_uid) = node.and_then(|n| n.metadata.uid.clone()) else {
            return Ok(None);
        };
        info!(pod = name, "creating the mirror of a static pod");
        let made = mirror(pod, Some(&node_uid));
        let made = self.api.create_as(made).await?;
        Ok(Some(Arc::new((*made).clone())))
    }
}

/// How long a static pod's container statuses are remembered for a successor with the same content: as long as
/// Kubernetes' kubelet keeps dead containers of a deleted pod.
const REMEMBERED: SignedDuration = SignedDuration::from_secs(60);

/// The last statuses of terminated static pods, by uid, and when they were reported.
pub(super) struct TerminatedStaticPods {
    /// Is never set.
    clock: Arc<dyn Clock>,
    /// Where all pods' logs are.
    log_dir: PathBuf,
    statuses: Mutex<BTreeMap<String, (Timestamp, Box<core::PodStatus>)>>,
}

impl TerminatedStaticPods {
    pub fn new(clock: Arc<dyn Clock>, log_dir: PathBuf) -> Self {
        TerminatedStaticPods {
            clock,
            log_dir,
            statuses: Mutex::default(),
        }
    }

    pub fn note(&self, uid: &str, status: Box<core::PodStatus>) {
        let now = self.clock.now();
        let mut statuses = self.statuses.lock();
        statuses.retain(|_, (at, _)| now.duration_since(*at) < REMEMBERED);
        statuses.insert(uid.into(), (now, status));
    }

    fn take(&self, uid: &str) -> Option<Box<core::PodStatus>> {
        let (at, status) = self.statuses.lock().remove(uid)?;
        (self.clock.now().duration_since(at) < REMEMBERED).then_some(status)
    }

    /// A static pod that starts and of which the runtime has nothing, with its remembered container statuses.
    pub fn with_memory(&self, pod: &core::Pod) -> core::Pod {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let last = self.take(uid);
        let logs = sandbox::log_directory(pod, &self.log_dir);
        let logged = match &last {
        Some(_) => BTreeMap::new(),
        None => logged_runs(&logs).unwrap_or_else(|error| {
            warn!(path = %logs.display(), %error, "cannot count the earlier runs of a static pod's containers");
            BTreeMap::new()
        }),
    };
        with_previous_status(pod, last.as_deref(), &logged)
    }
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
    use knarr_client::TokioClock;

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

    #[tokio::test(start_paused = true)]
    async fn l4_a_status_of_a_terminated_static_pod_is_kept_for_a_minute_and_once() {
        let begin = Timestamp::from_second(1_800_000_000).unwrap();
        let memory = TerminatedStaticPods::new(Arc::new(TokioClock::new(begin)), PathBuf::new());
        for uid in ["a", "b", "c"] {
            memory.note(uid, Box::default());
        }
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(memory.take("a").is_some());
        assert!(memory.take("a").is_none());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(memory.take("b").is_none());
        tokio::time::advance(Duration::from_secs(1)).await;
        memory.note("d", Box::default());
        assert_eq!(memory.statuses.lock().len(), 1, "the old go");
    }
}
