//! A container's exit: the runtime's record of it, and the termination message.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::ContainerId;
use knarr_kubelet::pod::find_spec;
use knarr_kubelet::runtime::{ContainerState, Exit};
use tokio::time::sleep;

use crate::runtime::{ContainerDetail, Runtime, RuntimeError};
use crate::untrusted_fs::{Dir, Links};
use crate::volumes::Volumes;

/// As much of a container's message as is kept, and of all of a pod's together: each has its part.
const MESSAGE_MAX_BYTES: usize = 4096;
const POD_MESSAGES_MAX_BYTES: usize = 12 * 1024;
/// How much of the log's end is used as the fallback message.
const LOG_TAIL_BYTES: u64 = 2048;
const LOG_TAIL_LINES: usize = 80;
/// Exit code after SIGKILL.
const KILLED: i32 = 137;
const OUT_OF_MEMORY: &str = "OOMKilled";
/// How often, and after what time each, the runtime is polled for whether a KILL came from the OOM killer.
const OOM_POLLS: (u32, Duration) = (4, Duration::from_millis(50));
/// An exit event arrives shortly before the runtime's own record has it: first wait 2 ms, doubled this often.
const EXIT_POLLS: u32 = 11;

/// Reads how containers have exited, from the runtime and from the pod's directory.
pub(super) struct ExitReader {
    runtime: Arc<dyn Runtime>,
    volumes: Arc<Volumes>,
}

impl ExitReader {
    pub fn new(runtime: Arc<dyn Runtime>, volumes: Arc<Volumes>) -> Self {
        ExitReader { runtime, volumes }
    }

    /// Waits until the runtime's record has the exit; `None` if it does not get it, or the container was removed.
    pub async fn read(&self, pod: &core::Pod, id: &ContainerId) -> Option<Exit> {
        let mut wait = Duration::from_millis(2);
        for _ in 0..EXIT_POLLS {
            match self.runtime.container(id).await {
                Ok(detail) => {
                    if let Some(exit) = self.of_detail(pod, &detail).await {
                        return Some(self.with_oom_reason(pod, id, exit).await);
                    }
                }
                Err(error) if error.is_not_found() => return None,
                Err(RuntimeError { .. }) => {}
            }
            sleep(wait).await;
            wait *= 2;
        }
        None
    }

    /// A KILL may come from the kernel's OOM killer: the runtime learns of that separately, a little later.
    async fn with_oom_reason(&self, pod: &core::Pod, id: &ContainerId, exit: Exit) -> Exit {
        let limited = pod.spec.iter().any(|spec| {
            let containers = spec
                .containers
                .iter()
                .chain(spec.init_containers.iter().flatten());
            let mut limits = containers.filter_map(|c| c.resources.as_ref()?.limits.as_ref());
            limits.any(|limits| limits.contains_key("memory"))
        });
        // A container that is being terminated is killed by the kubelet.
        let ending = pod.metadata.deletion_timestamp.is_some();
        if exit.code != KILLED || exit.reason == OUT_OF_MEMORY || !limited || ending {
            return exit;
        }
        for _ in 0..OOM_POLLS.0 {
            sleep(OOM_POLLS.1).await;
            let Ok(detail) = self.runtime.container(id).await else {
                continue;
            };
            if let Some(later) = self.of_detail(pod, &detail).await
                && later.reason == OUT_OF_MEMORY
            {
                return later;
            }
        }
        exit
    }

    /// A container's exit with its termination message. The message is read from the file that was created for this run, by
    /// its path in the pod's directory, whatever the container has mounted over it.
    pub async fn of_detail(&self, pod: &core::Pod, detail: &ContainerDetail) -> Option<Exit> {
        let ContainerState::Exited(exit) = &detail.container.state else {
            return None;
        };
        let mut exit = exit.clone();
        let spec = pod
            .spec
            .as_ref()
            .and_then(|s| find_spec(s, &detail.container.name));
        let path = spec.as_ref().and_then(|c| c.termination_message_path.as_deref());
        let path = path.unwrap_or("/dev/termination-log");
        let on_error = spec
            .as_ref()
            .is_some_and(|c| c.termination_message_policy.as_deref() == Some("FallbackToLogsOnError"));
        let most = message_max_bytes(pod);
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let file = message_file(
            &self.volumes.pod_dir(uid),
            &detail.container.name,
            detail.container.attempt,
        );
        let log = Some(PathBuf::from(&detail.log_path)).filter(|_| on_error && exit.code != 0);
        let left = self
            .volumes
            .files()
            .run(uid, move || read_message(&file, log.as_deref(), most));
        let message = match left.await {
            Ok(text) => text,
            Err(error) => format!("Error on reading termination log {path}: {error}"),
        };
        if !message.is_empty() {
            exit.message = message;
        }
        Some(exit)
    }
}

/// The file that a run of a container leaves its message in, below its pod's directory.
pub(super) fn message_file(pod_dir: &Path, container: &str, attempt: u32) -> PathBuf {
    pod_dir
        .join("containers")
        .join(container)
        .join(attempt.to_string())
}

fn message_max_bytes(pod: &core::Pod) -> usize {
    let count = pod.spec.as_ref().map_or(1, |spec| {
        let others = spec.init_containers.iter().flatten().count();
        spec.containers.len() + others + spec.ephemeral_containers.iter().flatten().count()
    });
    MESSAGE_MAX_BYTES.min(POD_MESSAGES_MAX_BYTES / count.max(1))
}

/// A container's message; the log's tail where that is empty and `log` is given.
fn read_message(file: &Path, log: Option<&Path>, most: usize) -> std::io::Result<String> {
    let text = match within(file).and_then(|(dir, name)| dir.read(name, Links::Never, most)) {
        Ok((bytes, _)) => String::from_utf8_lossy(&bytes).into_owned(),
        // The container has no message file.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let text = match log {
        Some(log) if text.is_empty() => log_tail(log).unwrap_or_default(),
        _ => text,
    };
    Ok(text[..text.floor_char_boundary(most)].to_string())
}

fn within(file: &Path) -> std::io::Result<(Dir, &std::ffi::OsStr)> {
    match (file.parent(), file.file_name()) {
        (Some(parent), Some(name)) => Ok((Dir::open(parent)?, name)),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    }
}

/// The last lines of a log in CRI's format, without its prefixes.
fn log_tail(path: &Path) -> std::io::Result<String> {
    /// Prefixes are dropped later: more is read than is kept.
    const READ_BYTES: u64 = LOG_TAIL_BYTES * 8;
    let (dir, name) = within(path)?;
    let mut file = dir.open_file(name, Links::Never)?;
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(READ_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(READ_BYTES).read_to_end(&mut bytes)?;
    Ok(tail_of(&String::from_utf8_lossy(&bytes)))
}

fn tail_of(log: &str) -> String {
    let mut text = String::new();
    let mut lines = 0;
    for line in log.lines().rev() {
        let mut parts = line.splitn(4, ' ');
        let (Some(_), Some(_), Some(tag), Some(content)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        lines += 1;
        if lines > LOG_TAIL_LINES {
            break;
        }
        let end = if tag == "P" { "" } else { "\n" };
        text.insert_str(0, &format!("{content}{end}"));
    }
    let keep = usize::try_from(LOG_TAIL_BYTES).unwrap_or(usize::MAX);
    let mut from = text.len().saturating_sub(keep);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a3_a_message_is_a_regular_file_of_its_own_directory_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let file = message_file(dir.path(), "c", 3);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let read = |most| read_message(&file, None, most);
        assert_eq!(read(9).unwrap(), "");
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "secret").unwrap();
        std::os::unix::fs::symlink(&secret, &file).unwrap();
        assert!(read(9).is_err());
        std::fs::remove_file(&file).unwrap();
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
        assert!(read(9).is_err(), "and does not block");
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "abcé").unwrap();
        assert_eq!(read(4).unwrap().chars().take(3).collect::<String>(), "abc");
        assert!(read(4).unwrap().len() <= 4);
    }

    #[test]
    fn l4_a_pods_termination_messages_share_its_limit() {
        let pod = |containers: usize| {
            let containers: Vec<_> = (0..containers)
                .map(|n| serde_json::json!({"name": format!("c{n}")}))
                .collect();
            serde_json::from_value(serde_json::json!({"spec": {"containers": containers}})).unwrap()
        };
        assert_eq!(message_max_bytes(&pod(1)), 4096);
        assert_eq!(message_max_bytes(&pod(3)), 4096);
        assert_eq!(message_max_bytes(&pod(4)), 3072);
    }

    #[test]
    fn l4_the_logs_tail_without_its_prefixes_is_the_fallback_message() {
        let log = "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr P tw\n2026-01-01T00:00:00Z stderr F o\n";
        assert_eq!(tail_of(log), "one\ntwo\n");
        let long: String = (0..200).map(|i| format!("t stdout F line {i}\n")).collect();
        let tail = tail_of(&long);
        assert_eq!(tail.lines().count(), LOG_TAIL_LINES);
        assert!(tail.starts_with("line 120\n") && tail.ends_with("line 199\n"));
    }
}
