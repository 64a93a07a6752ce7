//! The folder of static pods, looked at every second; and their mirrors in the API, made, made again and taken away.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::time::seconds;
use knarr_client::Error;
use knarr_kubelet::static_pods::{mirror, mirrored, read};
use serde_json::Value;
use tokio::time::sleep;
use tracing::{info, warn};

use super::status::delete_at_once;
use super::{Shared, pod_kind};

/// A manifest is a page of text; what is larger is none.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Between attempts to make a mirror: 100 ms, doubled up to 5 s.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What tells whether a file is as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
}

/// The folder, as it was when it was last looked at.
pub(super) struct Folder {
    path: PathBuf,
    node_name: String,
    files: BTreeMap<PathBuf, (Stamp, Option<core::Pod>)>,
}

impl Folder {
    pub fn new(path: impl Into<PathBuf>, node_name: &str) -> Self {
        Folder {
            path: path.into(),
            node_name: node_name.into(),
            files: BTreeMap::new(),
        }
    }

    /// The pods that are to run now, by uid. A file that cannot be read says nothing new: what it said before it was
    /// spoilt goes on running until it says something else or is gone, as with Kubernetes.
    pub fn look(&mut self, now: Timestamp) -> BTreeMap<String, core::Pod> {
        let mut files = BTreeMap::new();
        for path in self.manifests() {
            let Ok(meta) = std::fs::metadata(&path) else {
                continue;
            };
            if !meta.is_file() {
                continue;
            }
            let stamp = Stamp {
                modified: meta.modified().ok(),
                bytes: meta.len(),
            };
            let known = self.files.remove(&path);
            let entry = match known {
                Some((before, pod)) if before == stamp => (stamp, pod),
                known => match self.manifest(&path, meta.len(), now) {
                    Ok(pod) => (stamp, Some(pod)),
                    Err(why) => {
                        warn!(path = %path.display(), why, "a static pod cannot be read");
                        (stamp, known.and_then(|(_, pod)| pod))
                    }
                },
            };
            files.insert(path, entry);
        }
        self.files = files;
        let pods = self.files.values().filter_map(|(_, pod)| pod.clone());
        pods.filter_map(|pod| Some((pod.metadata.uid.clone()?, pod)))
            .collect()
    }

    /// All files but hidden ones; or the one file, where the path names one.
    fn manifests(&self) -> Vec<PathBuf> {
        if self.path.is_file() {
            return vec![self.path.clone()];
        }
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries
            .filter(|e| !e.file_name().as_encoded_bytes().starts_with(b"."))
            .map(|e| e.path())
            .collect();
        paths.sort();
        paths
    }

    fn manifest(&self, path: &Path, bytes: u64, now: Timestamp) -> Result<core::Pod, String> {
        if bytes > MANIFEST_BYTES_MAX {
            return Err(format!("{bytes} bytes are no manifest"));
        }
        let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
        let document: Value = serde_saphyr::from_str(&text).map_err(|e| e.to_string())?;
        read(&document, &path.display().to_string(), &self.node_name, now)
    }
}

/// The pod as it looks when its file is gone: told to end, with its own grace.
pub(super) fn told_to_end(pod: &core::Pod, now: Timestamp) -> core::Pod {
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

/// The pod's mirror as the API has it; made where it is not there, or stands for another pod. Tries until it is so.
pub(super) async fn ensure_mirror(shared: &Shared, pod: &core::Pod) -> Arc<core::Pod> {
    let mut wait = RETRY.0;
    loop {
        match mirror_once(shared, pod).await {
            Ok(Some(mirror)) => return mirror,
            Ok(None) => {}
            Err(error) => {
                let name = pod.metadata.name.as_deref().unwrap_or("");
                warn!(pod = name, %error, "a static pod cannot be shown in the API yet");
            }
        }
        sleep(wait).await;
        wait = (wait * 2).min(RETRY.1);
    }
}

/// None: one in the way was removed, look again.
async fn mirror_once(shared: &Shared, pod: &core::Pod) -> Result<Option<Arc<core::Pod>>, Error> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let name = pod.metadata.name.as_deref().unwrap_or("");
    let there = match shared.api.get(pod_kind(), namespace, name).await {
        Ok(object) => object.to_typed::<core::Pod>(),
        // A node may not ask for what is no pod of its own; whether there is one the creation tells.
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
    info!(pod = name, "showing a static pod in the API");
    let made = mirror(pod, Some(&node_uid));
    let made = shared.api.create(pod_kind(), Box::new(made)).await?;
    Ok(made.to_typed::<core::Pod>().map(Arc::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l1_pods_follow_the_folders_files() {
        let dir = tempfile::tempdir().unwrap();
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let mut folder = Folder::new(dir.path(), "n1");
        assert!(folder.look(now).is_empty());
        let text = |image: &str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n"
            )
        };
        let path = dir.path().join("web.yaml");
        std::fs::write(&path, text("app")).unwrap();
        std::fs::write(dir.path().join(".hidden"), text("app")).unwrap();
        let first = folder.look(now);
        assert_eq!(first.len(), 1);
        assert_eq!(folder.look(now), first);
        std::fs::write(&path, "kind: [").unwrap();
        assert_eq!(folder.look(now), first, "a spoilt file ends nothing");
        std::fs::write(&path, text("other-app")).unwrap();
        let second = folder.look(now);
        assert_ne!(first.keys().next(), second.keys().next());
        std::fs::remove_file(&path).unwrap();
        assert!(folder.look(now).is_empty());
    }
}
