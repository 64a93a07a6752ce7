//! How a container ended: the runtime's word, and the message it left behind.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_kubelet::pod::find_spec;
use knarr_kubelet::runtime::{ContainerState, Exit};
use tokio::time::sleep;

use super::Shared;
use crate::runtime::{ContainerDetail, RuntimeError};

/// As much of a message as is kept.
const MESSAGE_MAX_BYTES: u64 = 4096;
/// As much of a log as stands in for a message.
const LOG_TAIL_BYTES: u64 = 2048;
const LOG_TAIL_LINES: usize = 80;
/// Ended by SIGKILL.
const KILLED: i32 = 137;
const OUT_OF_MEMORY: &str = "OOMKilled";
/// How often, and after what time each, it is looked whether a KILL was the kernel's.
const MEMORY_LOOKS: (u32, Duration) = (4, Duration::from_millis(50));
/// An exit is heard of a little before the runtime's own record shows it: 2 ms, doubled, this often.
const LOOKS: u32 = 11;

/// Waits until the runtime's record shows the end; `None` if it does not, or the container is gone.
pub(super) async fn look(shared: &Shared, pod: &core::Pod, id: &str) -> Option<Exit> {
    let mut wait = Duration::from_millis(2);
    for _ in 0..LOOKS {
        match shared.runtime.container(id).await {
            Ok(detail) => {
                if let Some(exit) = of_detail(pod, &detail) {
                    return Some(tell_memory_apart(shared, pod, id, exit).await);
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

/// A KILL may have come from the kernel, for want of memory: the runtime hears of that on its own, a little later.
async fn tell_memory_apart(shared: &Shared, pod: &core::Pod, id: &str, exit: Exit) -> Exit {
    let limited = pod.spec.iter().any(|spec| {
        let containers = spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten());
        let mut limits = containers.filter_map(|c| c.resources.as_ref()?.limits.as_ref());
        limits.any(|limits| limits.contains_key("memory"))
    });
    // What is told to go is killed by us.
    let ending = pod.metadata.deletion_timestamp.is_some();
    if exit.code != KILLED || exit.reason == OUT_OF_MEMORY || !limited || ending {
        return exit;
    }
    for _ in 0..MEMORY_LOOKS.0 {
        sleep(MEMORY_LOOKS.1).await;
        let again = shared.runtime.container(id).await.ok();
        if let Some(later) = again.and_then(|detail| of_detail(pod, &detail))
            && later.reason == OUT_OF_MEMORY
        {
            return later;
        }
    }
    exit
}

/// The end a container has come to, with its message.
pub(super) fn of_detail(pod: &core::Pod, detail: &ContainerDetail) -> Option<Exit> {
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
    let file = detail.mounts.iter().find(|(inside, _)| inside == path);
    let left = file.map(|(_, host)| read_head(Path::new(host), MESSAGE_MAX_BYTES));
    let message = match left {
        Some(Ok(text)) if text.is_empty() && on_error && exit.code != 0 => {
            log_tail(Path::new(&detail.log_path)).unwrap_or_default()
        }
        Some(Ok(text)) => text,
        Some(Err(error)) => format!("Error on reading termination log {}: {error}", path),
        None => String::new(),
    };
    if !message.is_empty() {
        exit.message = message;
    }
    Some(exit)
}

fn read_head(path: &Path, max: u64) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(max).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last lines of a log in CRI's format, without its prefixes.
fn log_tail(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    // Prefixes are dropped later: read more than is kept.
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES * 8)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
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
    fn l4_a_logs_tail_stands_in_without_its_prefixes() {
        let log = "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr P tw\n2026-01-01T00:00:00Z stderr F o\n";
        assert_eq!(tail_of(log), "one\ntwo\n");
        let long: String = (0..200).map(|i| format!("t stdout F line {i}\n")).collect();
        let tail = tail_of(&long);
        assert_eq!(tail.lines().count(), LOG_TAIL_LINES);
        assert!(tail.starts_with("line 120\n") && tail.ends_with("line 199\n"));
    }
}
