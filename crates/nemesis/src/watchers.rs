//! Clients that watch the registers: each lists once, then resumes from its resourceVersion after every interruption, at the
//! same server or at the next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::{AsyncBufReadExt, StreamExt};
use parking_lot::Mutex;
use serde_json::Value;

use crate::client::{Client, RequestError};
use crate::history::{Change, Received, Snapshot, Version};
use crate::registers::{Recorder, list_path, snapshot_of, version_of};

/// A watch without events is closed after this time: its connection may be cut off without a notice.
const SILENCE: Duration = Duration::from_secs(6);
/// The reason of a watch that ended because its resourceVersion is too old.
pub const EXPIRED: &str = "410 Expired";
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(300);

pub struct Watcher {
    pub name: String,
    /// Used in turn, the next one after each interruption.
    clients: Vec<Client>,
    recorder: Arc<Recorder>,
    received: Mutex<Vec<Received>>,
    position: AtomicU64,
}

impl Watcher {
    pub fn new(name: &str, clients: Vec<Client>, recorder: Arc<Recorder>) -> Arc<Watcher> {
        Arc::new(Watcher {
            name: name.to_string(),
            clients,
            recorder,
            received: Mutex::default(),
            position: AtomicU64::new(0),
        })
    }

    /// The revision up to which it has received everything.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// What it received since the last call.
    pub fn take(&self) -> Vec<Received> {
        std::mem::take(&mut *self.received.lock())
    }

    /// The snapshot with which the next [`Watcher::take`] begins, so that it can be checked on its own.
    pub fn restart_from(&self, snapshot: Snapshot) {
        self.received.lock().insert(0, Received::Listed(snapshot));
    }

    fn record(&self, received: Received) {
        let position = match &received {
            Received::Listed(snapshot) => Some(snapshot.revision),
            Received::Event { version, .. } => Some(version.revision),
            Received::Bookmark(revision) => Some(*revision),
            Received::Opened { .. } | Received::Ended(_) => None,
        };
        let name = &self.name;
        self.recorder
            .history
            .record("watch", &BTreeMap::from([(name, &received)]));
        // The position is set under the lock, so that it matches `received`.
        let mut all = self.received.lock();
        all.push(received);
        if let Some(position) = position {
            self.position.store(position, Ordering::Relaxed);
        }
    }

    /// Watches until it is stopped.
    pub async fn run(self: Arc<Watcher>, stop: Arc<AtomicBool>) {
        let mut has_listed = false;
        for client in self.clients.iter().cycle() {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            if !has_listed {
                has_listed = self.list(client).await;
            }
            if has_listed {
                let end = tokio::select! {
                    end = self.watch(client) => end,
                    () = stopped(&stop) => return,
                };
                let is_expired = end.as_ref().is_err_and(|e| *e == WatchEnd::Expired);
                self.record(Received::Ended(match end {
                    Ok(()) => "the server ended it".into(),
                    Err(WatchEnd::Expired) => EXPIRED.into(),
                    Err(WatchEnd::Failed(text)) => text,
                }));
                has_listed = !is_expired;
            }
            tokio::time::sleep(PAUSE_AFTER_ERROR).await;
        }
    }

    async fn list(&self, client: &Client) -> bool {
        let Ok(value) = client.get(&list_path()).await else {
            return false;
        };
        match snapshot_of(&value) {
            Ok(snapshot) => {
                self.record(Received::Listed(snapshot));
                true
            }
            Err(e) => {
                self.recorder.history.record("error", &e.to_string());
                false
            }
        }
    }

    async fn watch(&self, client: &Client) -> Result<(), WatchEnd> {
        let from = self.position();
        let path = format!(
            "{}&watch=1&allowWatchBookmarks=true&resourceVersion={from}&timeoutSeconds=120",
            list_path()
        );
        let stream = client.lines(&path).await.map_err(|error| match error {
            RequestError::Status { code: 410, .. } => WatchEnd::Expired,
            other => WatchEnd::Failed(other.to_string()),
        })?;
        self.record(Received::Opened {
            server: client.server.clone(),
            from,
        });
        let mut lines = Box::pin(stream).lines();
        loop {
            let line = match tokio::time::timeout(SILENCE, lines.next()).await {
                Err(_) => return Err(WatchEnd::Failed("silence".into())),
                Ok(None) => return Ok(()),
                Ok(Some(line)) => line.map_err(|e| WatchEnd::Failed(e.to_string()))?,
            };
            self.record(received_of(&line)?);
        }
    }
}

/// Why a watch ended.
#[derive(Debug, PartialEq, Eq)]
enum WatchEnd {
    /// Its resourceVersion is too old: it has to list again.
    Expired,
    Failed(String),
}

/// The event of a line of a watch.
fn received_of(line: &str) -> Result<Received, WatchEnd> {
    // The last line of an interrupted stream is incomplete.
    let event: Value = serde_json::from_str(line).map_err(|e| WatchEnd::Failed(format!("{e}: {line}")))?;
    let object = &event["object"];
    let change = match event["type"].as_str() {
        Some("ADDED") => Change::Added,
        Some("MODIFIED") => Change::Modified,
        Some("DELETED") => Change::Deleted,
        Some("BOOKMARK") => {
            let revision = object["metadata"]["resourceVersion"].as_str();
            let revision = revision.and_then(|r| r.parse().ok());
            return revision
                .map(Received::Bookmark)
                .ok_or_else(|| WatchEnd::Failed(format!("a bookmark without a resourceVersion: {line}")));
        }
        Some("ERROR") if object["code"] == 410 => return Err(WatchEnd::Expired),
        _ => return Err(WatchEnd::Failed(line.to_string())),
    };
    let (key, version): (String, Version) =
        version_of(object).ok_or_else(|| WatchEnd::Failed(format!("not a register: {line}")))?;
    Ok(Received::Event { change, key, version })
}

async fn stopped(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_watch_are_events_bookmarks_or_its_end() {
        let register = r#"{"metadata":{"name":"k","resourceVersion":"12"},"data":{"write":"7"}}"#;
        let added = received_of(&format!(r#"{{"type":"ADDED","object":{register}}}"#));
        let version = Version {
            revision: 12,
            write: 7,
        };
        assert_eq!(
            added,
            Ok(Received::Event {
                change: Change::Added,
                key: "k".into(),
                version
            })
        );
        let bookmark = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"15"}}}"#;
        assert_eq!(received_of(bookmark), Ok(Received::Bookmark(15)));
        let expired = r#"{"type":"ERROR","object":{"code":410}}"#;
        assert_eq!(received_of(expired), Err(WatchEnd::Expired));
        for broken in [
            r#"{"type":"ADD"#,
            r#"{"type":"ERROR","object":{"code":500}}"#,
            r#"{"type":"ADDED","object":{}}"#,
        ] {
            assert!(
                matches!(received_of(broken), Err(WatchEnd::Failed(_))),
                "{broken}"
            );
        }
    }
}
