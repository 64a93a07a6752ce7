//! The directory of static pods' manifests: its pods, and when to read it again.
//!
//! It is read when inotify reports a change, and every `fileCheckFrequency` anyway: a network file system, or a
//! symbolic link that now points elsewhere, causes no event. A file that is removed and written again with the same
//! content between two reads counts as removed: its pod is terminated and started again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::{NodeName, PodUid};
use knarr_kubelet::static_pods::{ManifestError, PodRules, read};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use crate::host_fs;
use crate::watch::{AddWatchFlags, InotifyEvent, Watch};

/// A manifest is a page of text; what is larger is none.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// From the first event to the read: a created file is written next.
const SETTLE: Duration = Duration::from_millis(50);
/// Between attempts to watch a directory that does not exist.
const WATCH_RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
enum UnreadableManifest {
    #[error(transparent)]
    File(#[from] std::io::Error),
    #[error("{bytes} bytes are no manifest")]
    TooLarge { bytes: u64 },
    #[error(transparent)]
    Yaml(#[from] Box<serde_saphyr::Error>),
    #[error(transparent)]
    Pod(#[from] ManifestError),
}

/// The directory, as it was read last.
pub(super) struct ManifestDirectory {
    path: PathBuf,
    node_name: NodeName,
    rules: PodRules,
    files: BTreeMap<PathBuf, Arc<core::Pod>>,
    /// Files removed since, whether or not they exist again.
    removed: BTreeSet<PathBuf>,
    check_every: Duration,
    watch: Option<Watch>,
    next_watch: Instant,
    next_poll: Instant,
}

impl ManifestDirectory {
    pub fn new(
        path: impl Into<PathBuf>,
        node_name: &NodeName,
        rules: PodRules,
        check_every: Duration,
    ) -> Self {
        let now = Instant::now();
        ManifestDirectory {
            path: path.into(),
            node_name: node_name.clone(),
            rules,
            files: BTreeMap::new(),
            removed: BTreeSet::new(),
            check_every,
            watch: None,
            next_watch: now,
            next_poll: now,
        }
    }

    /// The pods of files that were not removed since the last read.
    pub fn take_removed(&mut self) -> BTreeMap<PodUid, Arc<core::Pod>> {
        for path in std::mem::take(&mut self.removed) {
            self.files.remove(&path);
        }
        self.pods()
    }

    /// The pods that have to run now, by uid. A file that cannot be read changes nothing: the pod it had before keeps
    /// running until the file has another one or is removed. (Kubernetes' kubelet does so on an event and terminates
    /// the pod at its next full sync.)
    pub fn poll(&mut self, now: Timestamp) -> BTreeMap<PodUid, Arc<core::Pod>> {
        let mut known = std::mem::take(&mut self.files);
        for path in self.manifests() {
            let before = known.remove(&path);
            let pod = match self.manifest(&path, now) {
                // The same as before, seen when it was seen first.
                Ok(pod) => Some(
                    before
                        .filter(|b| b.metadata.uid == pod.metadata.uid)
                        .unwrap_or_else(|| Arc::new(pod)),
                ),
                Err(why) => {
                    warn!(path = %path.display(), %why, "a static pod cannot be read");
                    before
                }
            };
            self.files.extend(pod.map(|pod| (path, pod)));
        }
        self.next_poll = Instant::now() + self.check_every;
        self.pods()
    }

    fn pods(&self) -> BTreeMap<PodUid, Arc<core::Pod>> {
        let pods = self.files.values().cloned();
        pods.filter_map(|pod| Some((pod.metadata.uid.as_deref()?.into(), pod)))
            .collect()
    }

    /// All files but hidden ones; or the one file, where the path names one.
    fn manifests(&self) -> Vec<PathBuf> {
        let is_file = |path: &PathBuf| host_fs::is_file(path);
        if host_fs::is_file(&self.path) {
            return vec![self.path.clone()];
        }
        let entries = host_fs::read_dir(&self.path).into_iter().flatten().flatten();
        let paths = entries.filter(|e| !is_hidden(&e.path())).map(|e| e.path());
        let mut paths: Vec<PathBuf> = paths.filter(is_file).collect();
        paths.sort();
        paths
    }

    fn manifest(&self, path: &Path, now: Timestamp) -> Result<core::Pod, UnreadableManifest> {
        let bytes = host_fs::metadata(path)?.len();
        if bytes > MANIFEST_BYTES_MAX {
            return Err(UnreadableManifest::TooLarge { bytes });
        }
        let text = host_fs::read_to_string(path)?;
        let document: Value = serde_saphyr::from_str(&text).map_err(Box::new)?;
        let file = path.display().to_string();
        Ok(read(&document, &file, &self.node_name, now, self.rules)?)
    }

    /// Reads at this time at the latest.
    pub fn poll_by(&mut self, at: Instant) {
        self.next_poll = self.next_poll.min(at);
    }

    /// Resolves when it is time to read the directory. Cancel-safe.
    pub async fn changed(&mut self) {
        loop {
            let now = Instant::now();
            if self.next_poll <= now {
                // What is watched may not be what the path leads to any more.
                self.watch = None;
                self.restart_watch();
                return;
            }
            if self.watch.is_none() && self.next_watch <= now {
                self.restart_watch();
                if self.watch.is_some() {
                    self.poll_by(now);
                    continue;
                }
            }
            let until = match self.watch {
                Some(_) => self.next_poll,
                None => self.next_poll.min(self.next_watch),
            };
            let changed = async {
                match &self.watch {
                    Some(watch) => watch.changed().await,
                    None => std::future::pending().await,
                }
            };
            let changed = tokio::select! {
                biased;
                changed = changed => changed,
                () = sleep_until(until) => continue,
            };
            match changed {
                Ok(events) => self.take_in(&events),
                Err(error) => {
                    warn!(path = %self.path.display(), %error, "cannot watch the directory of static pods");
                    self.watch = None;
                }
            }
        }
    }

    fn restart_watch(&mut self) {
        self.next_watch = Instant::now() + WATCH_RETRY;
        // A file is read when it is closed after writing, not while it is written.
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        match Watch::directory(&self.watched(), flags) {
            Ok(watch) => self.watch = Some(watch),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                debug!(path = %self.path.display(), "the directory of static pods does not exist");
            }
            Err(error) => {
                warn!(path = %self.path.display(), %error, "cannot watch the directory of static pods");
            }
        }
    }

    /// The directory; that of the file, where the path names a file.
    fn watched(&self) -> PathBuf {
        match self.path.parent() {
            Some(parent) if host_fs::is_file(&self.path) => parent.to_path_buf(),
            _ => self.path.clone(),
        }
    }

    fn take_in(&mut self, events: &[InotifyEvent]) {
        let directory = self.watched();
        for event in events {
            // None: about the directory itself, or an overflow without names.
            let path = event.name.as_ref().map(|name| directory.join(name));
            if let Some(path) = path {
                if is_hidden(&path) || (directory != self.path && path != self.path) {
                    continue;
                }
                if event
                    .mask
                    .intersects(AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM)
                {
                    self.removed.insert(path);
                }
            } else if !event.mask.contains(AddWatchFlags::IN_ATTRIB) {
                self.watch = None;
            }
            self.poll_by(Instant::now() + SETTLE);
        }
    }
}

fn is_hidden(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.as_encoded_bytes());
    name.is_some_and(|name| name.starts_with(b"."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_strategy::Strategy;
    use tokio::time::timeout;

    const RULES: PodRules = PodRules {
        set_defaults: Strategy::set_defaults,
        validate: Strategy::validate,
    };
    const NEVER: Duration = Duration::from_secs(3600);
    /// Longer than anything here takes on a busy machine.
    const TIMEOUT: Duration = Duration::from_secs(20);

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn text(image: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n"
        )
    }

    fn images(pods: &BTreeMap<PodUid, Arc<core::Pod>>) -> Vec<String> {
        let containers = pods.values().flat_map(|p| &p.spec.as_ref().unwrap().containers);
        containers.filter_map(|c| c.image.clone()).collect()
    }

    #[tokio::test]
    async fn l1_pods_follow_the_directorys_files() {
        let dir = tempfile::tempdir().unwrap();
        let mut manifests = ManifestDirectory::new(dir.path(), &"n1".into(), RULES, NEVER);
        assert!(manifests.poll(now()).is_empty());
        let path = dir.path().join("web.yaml");
        std::fs::write(&path, text("app")).unwrap();
        std::fs::write(dir.path().join(".hidden"), text("app")).unwrap();
        let first = manifests.poll(now());
        assert_eq!(first.len(), 1);
        let later = now() + k8s_openapi::jiff::SignedDuration::from_secs(9);
        assert_eq!(manifests.poll(later), first, "seen when it was seen first");
        std::fs::write(&path, "kind: [").unwrap();
        assert_eq!(manifests.poll(now()), first, "a spoilt file ends nothing");
        std::fs::write(&path, text("other-app")).unwrap();
        let second = manifests.poll(now());
        assert_ne!(first.keys().next(), second.keys().next());
        std::fs::remove_file(&path).unwrap();
        assert!(manifests.poll(now()).is_empty());
    }

    /// Waits for the next read in which the directory has these images; no other change may be read before it.
    async fn shows(manifests: &mut ManifestDirectory, want: &[&str]) {
        let polls = async {
            loop {
                manifests.changed().await;
                manifests.take_removed();
                let got = images(&manifests.poll(now()));
                if got == want {
                    return;
                }
            }
        };
        let shown = timeout(TIMEOUT, polls).await;
        assert!(shown.is_ok(), "it does not come to {want:?}");
    }

    #[tokio::test]
    async fn l1_every_way_to_change_the_directory_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manifests");
        let mut manifests = ManifestDirectory::new(&path, &"n1".into(), RULES, NEVER);
        manifests.poll(now());
        // The directory itself is created later.
        std::fs::create_dir(&path).unwrap();
        let file = path.join("web.yaml");
        std::fs::write(&file, text("a")).unwrap();
        shows(&mut manifests, &["a"]).await;
        std::fs::write(&file, text("b")).unwrap();
        shows(&mut manifests, &["b"]).await;
        let other = dir.path().join("other");
        std::fs::write(&other, text("c")).unwrap();
        std::fs::rename(&other, &file).unwrap();
        shows(&mut manifests, &["c"]).await;
        std::fs::write(&other, text("d")).unwrap();
        std::fs::remove_file(&file).unwrap();
        shows(&mut manifests, &[]).await;
        std::os::unix::fs::symlink(&other, &file).unwrap();
        shows(&mut manifests, &["d"]).await;
        std::fs::rename(&file, path.join(".web.yaml")).unwrap();
        shows(&mut manifests, &[]).await;
        // Another directory in its place.
        let new = dir.path().join("new");
        std::fs::create_dir(&new).unwrap();
        std::fs::write(new.join("web.yaml"), text("e")).unwrap();
        std::fs::remove_dir_all(&path).unwrap();
        std::fs::rename(&new, &path).unwrap();
        shows(&mut manifests, &["e"]).await;
        // Later events are the new one's.
        std::fs::write(path.join("web.yaml"), text("f")).unwrap();
        shows(&mut manifests, &["f"]).await;
    }

    #[tokio::test]
    async fn l1_a_file_that_was_removed_and_written_again_counts_as_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("web.yaml");
        std::fs::write(&path, text("a")).unwrap();
        let mut manifests = ManifestDirectory::new(dir.path(), &"n1".into(), RULES, NEVER);
        shows(&mut manifests, &["a"]).await;
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, text("a")).unwrap();
        timeout(TIMEOUT, manifests.changed()).await.unwrap();
        assert!(manifests.take_removed().is_empty());
        assert_eq!(images(&manifests.poll(now())), ["a"]);
        // A rewritten file is not removed.
        std::fs::write(&path, text("a")).unwrap();
        timeout(TIMEOUT, manifests.changed()).await.unwrap();
        assert_eq!(images(&manifests.take_removed()), ["a"]);
    }

    #[tokio::test]
    async fn l1_files_next_to_a_single_manifest_do_not_matter() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("web.yaml");
        std::fs::write(&path, text("a")).unwrap();
        let mut manifests = ManifestDirectory::new(&path, &"n1".into(), RULES, NEVER);
        shows(&mut manifests, &["a"]).await;
        std::fs::write(dir.path().join("neighbour"), text("b")).unwrap();
        let changed = timeout(SETTLE * 10, manifests.changed()).await;
        assert!(changed.is_err(), "it was woken for another file");
        std::fs::write(&path, text("c")).unwrap();
        shows(&mut manifests, &["c"]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn l1_the_directory_is_polled_now_and_then_anyway() {
        let dir = tempfile::tempdir().unwrap();
        let mut manifests = ManifestDirectory::new(dir.path(), &"n1".into(), RULES, Duration::from_secs(20));
        manifests.changed().await;
        manifests.poll(now());
        let began = Instant::now();
        manifests.changed().await;
        assert_eq!(began.elapsed(), Duration::from_secs(20));
    }
}
