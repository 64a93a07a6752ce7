//! The folder of static pods' manifests: what stands in it, and the moment to look again.
//!
//! It is looked at when the kernel tells that something in it has changed, and every `fileCheckFrequency` anyway: a
//! folder of another machine's, or one behind a link that now leads elsewhere, tells nothing. A file that goes and
//! comes back with the same content between two looks has gone all the same: its pod ends and begins again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_kubelet::static_pods::read;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use crate::host_fs;
use crate::watch::{AddWatchFlags, InotifyEvent, Watch};

/// A manifest is a page of text; what is larger is none.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// From the first happening to the look: who makes a file writes it next.
const SETTLE: Duration = Duration::from_millis(50);
/// Between attempts to watch a folder that is not there.
const WATCH_AGAIN: Duration = Duration::from_secs(1);

/// The folder, as it was when it was last looked at.
pub(super) struct Folder {
    path: PathBuf,
    node_name: String,
    files: BTreeMap<PathBuf, core::Pod>,
    /// Files that have gone since, whether or not they are back.
    gone: BTreeSet<PathBuf>,
    check_every: Duration,
    watch: Option<Watch>,
    next_watch: Instant,
    next_look: Instant,
}

impl Folder {
    pub fn new(path: impl Into<PathBuf>, node_name: &str, check_every: Duration) -> Self {
        let now = Instant::now();
        Folder {
            path: path.into(),
            node_name: node_name.into(),
            files: BTreeMap::new(),
            gone: BTreeSet::new(),
            check_every,
            watch: None,
            next_watch: now,
            next_look: now,
        }
    }

    /// The pods of files that have not gone since the last look.
    pub fn left(&mut self) -> BTreeMap<String, core::Pod> {
        for path in std::mem::take(&mut self.gone) {
            self.files.remove(&path);
        }
        self.pods()
    }

    /// The pods that are to run now, by uid. A file that cannot be read says nothing new: what it said before it was
    /// spoilt goes on running until it says something else or is gone. (Kubernetes' kubelet does so when it is told of
    /// the change, and ends the pod at its next look.)
    pub fn look(&mut self, now: Timestamp) -> BTreeMap<String, core::Pod> {
        let mut known = std::mem::take(&mut self.files);
        for path in self.manifests() {
            let before = known.remove(&path);
            let pod = match self.manifest(&path, now) {
                // The same as before, seen when it was seen first.
                Ok(pod) => Some(
                    before
                        .filter(|b| b.metadata.uid == pod.metadata.uid)
                        .unwrap_or(pod),
                ),
                Err(why) => {
                    warn!(path = %path.display(), why, "a static pod cannot be read");
                    before
                }
            };
            self.files.extend(pod.map(|pod| (path, pod)));
        }
        self.next_look = Instant::now() + self.check_every;
        self.pods()
    }

    fn pods(&self) -> BTreeMap<String, core::Pod> {
        let pods = self.files.values().cloned();
        pods.filter_map(|pod| Some((pod.metadata.uid.clone()?, pod)))
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

    fn manifest(&self, path: &Path, now: Timestamp) -> Result<core::Pod, String> {
        let bytes = host_fs::metadata(path).map_err(|e| e.to_string())?.len();
        if bytes > MANIFEST_BYTES_MAX {
            return Err(format!("{bytes} bytes are no manifest"));
        }
        let text = host_fs::read_to_string(path).map_err(|e| e.to_string())?;
        let document: Value = serde_saphyr::from_str(&text).map_err(|e| e.to_string())?;
        read(&document, &path.display().to_string(), &self.node_name, now)
    }

    /// At the latest then, whatever happens.
    pub fn look_by(&mut self, at: Instant) {
        self.next_look = self.next_look.min(at);
    }

    /// Resolves when it is time to look. Dropped before, it loses nothing.
    pub async fn happened(&mut self) {
        loop {
            let now = Instant::now();
            if self.next_look <= now {
                // What is watched may not be what the path leads to any more.
                self.watch = None;
                self.watch_anew();
                return;
            }
            if self.watch.is_none() && self.next_watch <= now {
                self.watch_anew();
                if self.watch.is_some() {
                    self.look_by(now);
                    continue;
                }
            }
            let until = match self.watch {
                Some(_) => self.next_look,
                None => self.next_look.min(self.next_watch),
            };
            let told = async {
                match &self.watch {
                    Some(watch) => watch.changed().await,
                    None => std::future::pending().await,
                }
            };
            let told = tokio::select! {
                biased;
                told = told => told,
                () = sleep_until(until) => continue,
            };
            match told {
                Ok(events) => self.take_in(&events),
                Err(error) => {
                    warn!(path = %self.path.display(), %error, "cannot hear of changes of static pods");
                    self.watch = None;
                }
            }
        }
    }

    fn watch_anew(&mut self) {
        self.next_watch = Instant::now() + WATCH_AGAIN;
        // No look is worth a file that is being written: only its end is.
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        match Watch::folder(&self.watched(), flags) {
            Ok(watch) => self.watch = Some(watch),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                debug!(path = %self.path.display(), "there is no folder of static pods");
            }
            Err(error) => {
                warn!(path = %self.path.display(), %error, "cannot hear of changes of static pods");
            }
        }
    }

    /// The folder; that of the file, where the path names one.
    fn watched(&self) -> PathBuf {
        match self.path.parent() {
            Some(parent) if host_fs::is_file(&self.path) => parent.to_path_buf(),
            _ => self.path.clone(),
        }
    }

    fn take_in(&mut self, events: &[InotifyEvent]) {
        let folder = self.watched();
        for event in events {
            // None: of the folder itself, or so much that the kernel kept no names.
            let path = event.name.as_ref().map(|name| folder.join(name));
            if let Some(path) = path {
                if is_hidden(&path) || (folder != self.path && path != self.path) {
                    continue;
                }
                if event
                    .mask
                    .intersects(AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM)
                {
                    self.gone.insert(path);
                }
            } else if !event.mask.contains(AddWatchFlags::IN_ATTRIB) {
                self.watch = None;
            }
            self.look_by(Instant::now() + SETTLE);
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
    use tokio::time::timeout;

    const NEVER: Duration = Duration::from_secs(3600);
    /// Longer than anything here takes on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn text(image: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n"
        )
    }

    fn images(pods: &BTreeMap<String, core::Pod>) -> Vec<String> {
        let containers = pods.values().flat_map(|p| &p.spec.as_ref().unwrap().containers);
        containers.filter_map(|c| c.image.clone()).collect()
    }

    #[tokio::test]
    async fn l1_pods_follow_the_folders_files() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = Folder::new(dir.path(), "n1", NEVER);
        assert!(folder.look(now()).is_empty());
        let path = dir.path().join("web.yaml");
        std::fs::write(&path, text("app")).unwrap();
        std::fs::write(dir.path().join(".hidden"), text("app")).unwrap();
        let first = folder.look(now());
        assert_eq!(first.len(), 1);
        let later = now() + k8s_openapi::jiff::SignedDuration::from_secs(9);
        assert_eq!(folder.look(later), first, "seen when it was seen first");
        std::fs::write(&path, "kind: [").unwrap();
        assert_eq!(folder.look(now()), first, "a spoilt file ends nothing");
        std::fs::write(&path, text("other-app")).unwrap();
        let second = folder.look(now());
        assert_ne!(first.keys().next(), second.keys().next());
        std::fs::remove_file(&path).unwrap();
        assert!(folder.look(now()).is_empty());
    }

    /// The next look for which the folder shows these images, and it may not take another for it.
    async fn shows(folder: &mut Folder, want: &[&str]) {
        let looks = async {
            loop {
                folder.happened().await;
                folder.left();
                let got = images(&folder.look(now()));
                if got == want {
                    return;
                }
            }
        };
        let shown = timeout(PATIENCE, looks).await;
        assert!(shown.is_ok(), "it does not come to {want:?}");
    }

    #[tokio::test]
    async fn l1_every_way_to_change_the_folder_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manifests");
        let mut folder = Folder::new(&path, "n1", NEVER);
        folder.look(now());
        // The folder itself comes later.
        std::fs::create_dir(&path).unwrap();
        let file = path.join("web.yaml");
        std::fs::write(&file, text("a")).unwrap();
        shows(&mut folder, &["a"]).await;
        std::fs::write(&file, text("b")).unwrap();
        shows(&mut folder, &["b"]).await;
        let other = dir.path().join("other");
        std::fs::write(&other, text("c")).unwrap();
        std::fs::rename(&other, &file).unwrap();
        shows(&mut folder, &["c"]).await;
        std::fs::write(&other, text("d")).unwrap();
        std::fs::remove_file(&file).unwrap();
        shows(&mut folder, &[]).await;
        std::os::unix::fs::symlink(&other, &file).unwrap();
        shows(&mut folder, &["d"]).await;
        std::fs::rename(&file, path.join(".web.yaml")).unwrap();
        shows(&mut folder, &[]).await;
        // Another folder in its place.
        let new = dir.path().join("new");
        std::fs::create_dir(&new).unwrap();
        std::fs::write(new.join("web.yaml"), text("e")).unwrap();
        std::fs::remove_dir_all(&path).unwrap();
        std::fs::rename(&new, &path).unwrap();
        shows(&mut folder, &["e"]).await;
        // What it is told of then is the new one's.
        std::fs::write(path.join("web.yaml"), text("f")).unwrap();
        shows(&mut folder, &["f"]).await;
    }

    #[tokio::test]
    async fn l1_a_file_that_went_and_came_back_has_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("web.yaml");
        std::fs::write(&path, text("a")).unwrap();
        let mut folder = Folder::new(dir.path(), "n1", NEVER);
        shows(&mut folder, &["a"]).await;
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, text("a")).unwrap();
        timeout(PATIENCE, folder.happened()).await.unwrap();
        assert!(folder.left().is_empty());
        assert_eq!(images(&folder.look(now())), ["a"]);
        // Written anew is not gone.
        std::fs::write(&path, text("a")).unwrap();
        timeout(PATIENCE, folder.happened()).await.unwrap();
        assert_eq!(images(&folder.left()), ["a"]);
    }

    #[tokio::test]
    async fn l1_of_one_file_its_neighbours_are_no_matter() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("web.yaml");
        std::fs::write(&path, text("a")).unwrap();
        let mut folder = Folder::new(&path, "n1", NEVER);
        shows(&mut folder, &["a"]).await;
        std::fs::write(dir.path().join("neighbour"), text("b")).unwrap();
        let told = timeout(SETTLE * 10, folder.happened()).await;
        assert!(told.is_err(), "it was woken for another file");
        std::fs::write(&path, text("c")).unwrap();
        shows(&mut folder, &["c"]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn l1_the_folder_is_looked_at_now_and_then_anyway() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = Folder::new(dir.path(), "n1", Duration::from_secs(20));
        folder.happened().await;
        folder.look(now());
        let began = Instant::now();
        folder.happened().await;
        assert_eq!(began.elapsed(), Duration::from_secs(20));
    }
}
