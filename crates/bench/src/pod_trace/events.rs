//! containerd's task events, as `ctr events` prints them: when shim and runtime had created, started and lost a process. They are the
//! only times from inside of containerd's calls.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::steps::{Nanos, TaskEvent};

/// Events that are kept of one pod, which has about ten.
const EVENTS_MAX: usize = 10_000;

/// Reads events until it is dropped.
pub struct TaskEvents {
    kept: Arc<Mutex<Vec<TaskEvent>>>,
    /// Killed when it is dropped; or why there is none.
    reader: Result<Child, std::io::Error>,
}

impl TaskEvents {
    /// Of the containerd with this socket. Without `ctr` there are none.
    pub fn start(socket: &Path) -> TaskEvents {
        let kept = Arc::<Mutex<Vec<TaskEvent>>>::default();
        let child = Command::new("ctr")
            .arg("--address")
            .arg(socket)
            .args(["--namespace", "k8s.io", "events"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn();
        let reader = child.map(|mut child| {
            if let Some(out) = child.stdout.take() {
                let kept = kept.clone();
                tokio::spawn(async move {
                    let mut lines = BufReader::new(out).lines();
                    while let Ok(Some(line)) = lines.next_line().await {
                        let mut kept = kept.lock();
                        if kept.len() < EVENTS_MAX {
                            kept.extend(parse(&line));
                        }
                    }
                });
            }
            child
        });
        TaskEvents { kept, reader }
    }

    /// Why there are no events.
    pub fn missing(&self) -> Option<String> {
        let error = self.reader.as_ref().err()?;
        Some(format!("`ctr events` cannot be run: {error}"))
    }

    pub fn all(&self) -> Vec<TaskEvent> {
        self.kept.lock().clone()
    }

    pub fn clear(&self) {
        self.kept.lock().clear();
    }
}

/// A line `2026-11-27 21:16:04.123456789 +0000 UTC k8s.io /tasks/create {…}`; `None` of another topic, and of lines that are not so.
fn parse(line: &str) -> Option<TaskEvent> {
    let mut words = line.splitn(7, ' ');
    let (date, time) = (words.next()?, words.next()?);
    let (offset, _zone, _namespace) = (words.next()?, words.next()?, words.next()?);
    let topic = words.next()?;
    if !topic.starts_with("/tasks/") || offset != "+0000" {
        return None;
    }
    let body: serde_json::Value = serde_json::from_str(words.next()?).ok()?;
    let at: Timestamp = format!("{date}T{time}Z").parse().ok()?;
    // The exit of a process that was executed in a container has the process's own id.
    let container = body.get("container_id")?.as_str()?;
    let is_own = body
        .get("id")
        .and_then(|id| id.as_str())
        .is_none_or(|id| id == container);
    is_own.then(|| TaskEvent {
        topic: topic.to_owned(),
        at: Nanos::try_from(at.as_nanosecond()).unwrap_or(Nanos::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_events_of_containers_are_read() {
        let at = |second_nanos: i64| 1_795_814_164 * 1_000_000_000 + second_nanos;
        for (line, expected) in [
            (
                r#"2026-11-27 21:16:04.123456789 +0000 UTC k8s.io /tasks/create {"container_id":"a","bundle":"/run/a","pid":1}"#,
                Some(("/tasks/create", at(123_456_789))),
            ),
            (
                r#"2026-11-27 21:16:04.5 +0000 UTC k8s.io /tasks/exit {"container_id":"a","id":"a","pid":1}"#,
                Some(("/tasks/exit", at(500_000_000))),
            ),
            (
                r#"2026-11-27 21:16:04.5 +0000 UTC k8s.io /tasks/exit {"container_id":"a","id":"exec","pid":1}"#,
                None,
            ),
            (
                r#"2026-11-27 21:16:04.5 +0000 UTC k8s.io /containers/create {"id":"a"}"#,
                None,
            ),
            (
                r#"2026-11-27 21:16:04.5 +0100 CET k8s.io /tasks/create {"container_id":"a"}"#,
                None,
            ),
            ("2026-11-27 21:16:04.5 +0000 UTC k8s.io /tasks/create {", None),
            ("time=\"2026\" level=error", None),
            ("", None),
        ] {
            let found = parse(line);
            let found = found.as_ref().map(|e| (e.topic.as_str(), e.at));
            assert_eq!(found, expected, "{line}");
        }
    }
}
