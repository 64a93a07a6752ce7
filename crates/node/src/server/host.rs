//! What the server needs of its node: its pods and their containers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_kubelet::runtime::{Container, ContainerState};

use crate::runtime::{
    ContainerDetail, ExecOptions, Result, Runtime, RuntimeError, RuntimeEvent, find_container, find_sandbox,
};

/// The pods bound to this node, with the statuses the kubelet last worked out.
pub trait Pods: Send + Sync + 'static {
    fn get(&self, namespace: &str, name: &str) -> Option<Arc<Pod>>;
    fn list(&self) -> Vec<Arc<Pod>>;
}

/// As the kubelet's informer has them.
impl Pods for knarr_client::Store {
    fn get(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.get(namespace, name)?.to_typed().map(Arc::new)
    }

    fn list(&self) -> Vec<Arc<Pod>> {
        self.list("")
            .iter()
            .filter_map(|object| object.to_typed().map(Arc::new))
            .collect()
    }
}

/// The part of [`Runtime`] that logs and streams need.
#[async_trait]
pub trait Containers: Send + Sync + 'static {
    async fn container(&self, id: &str) -> Result<ContainerDetail>;
    /// The newest of this name.
    async fn find(&self, namespace: &str, pod: &str, container: &str) -> Result<ContainerDetail>;
    async fn running(&self) -> Result<Vec<Container>>;
    async fn exec_url(&self, id: &str, options: &ExecOptions) -> Result<String>;
    async fn attach_url(&self, id: &str, options: &ExecOptions) -> Result<String>;
    /// The network namespace of a pod; none if it is the host's.
    async fn netns(&self, namespace: &str, pod: &str) -> Result<Option<PathBuf>>;
    async fn reopen_log(&self, id: &str) -> Result<()>;
    /// Resolves when the container does not run, and all it wrote is in its log.
    async fn exited(&self, id: &str);
}

/// [`Containers`] of a [`Runtime`].
pub struct RuntimeContainers(pub Arc<dyn Runtime>);

/// Poll interval of a container that should have exited, or whose runtime reports no events.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The longest wait for an event before the container is checked anyway.
const EVENT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the runtime may take from the exit of a process until a container's state shows it.
const STATE_FOLLOWS: Duration = Duration::from_secs(5);

impl RuntimeContainers {
    /// While the runtime is not reachable, its containers count as running.
    async fn is_running(&self, id: &str) -> bool {
        match self.0.container(&id.into()).await {
            Ok(detail) => matches!(detail.container.state, ContainerState::Running { .. }),
            Err(error) => !error.is_not_found(),
        }
    }
}

/// Whether no process of this id runs: there is none, or a zombie.
fn has_exited(pid: u32) -> bool {
    let Ok(stat) = crate::host_fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    // The state follows the name, which may contain any character.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('Z' | 'X'))
}

#[async_trait]
impl Containers for RuntimeContainers {
    async fn container(&self, id: &str) -> Result<ContainerDetail> {
        self.0.container(&id.into()).await
    }

    async fn find(&self, namespace: &str, pod: &str, container: &str) -> Result<ContainerDetail> {
        find_container(self.0.as_ref(), namespace, pod, container, false).await
    }

    async fn running(&self) -> Result<Vec<Container>> {
        let mut containers = self.0.containers().await?;
        containers.retain(|c| matches!(c.state, ContainerState::Running { .. }));
        Ok(containers)
    }

    async fn exec_url(&self, id: &str, options: &ExecOptions) -> Result<String> {
        self.0.exec_url(&id.into(), options).await
    }

    async fn attach_url(&self, id: &str, options: &ExecOptions) -> Result<String> {
        // The runtime learns of a process' exit a while after it. A client that attaches meanwhile would see nothing,
        // and a success; `kubectl run -i` reads the log when the server reports that the container has exited.
        let detail = self.0.container(&id.into()).await?;
        if detail.pid.is_some_and(has_exited) {
            let message = "container is in CONTAINER_EXITED state";
            return Err(RuntimeError::new("Unknown", message));
        }
        self.0.attach_url(&id.into(), options).await
    }

    async fn netns(&self, namespace: &str, pod: &str) -> Result<Option<PathBuf>> {
        Ok(find_sandbox(self.0.as_ref(), namespace, pod)
            .await?
            .netns
            .map(PathBuf::from))
    }

    async fn reopen_log(&self, id: &str) -> Result<()> {
        self.0.reopen_log(&id.into()).await
    }

    async fn exited(&self, id: &str) {
        loop {
            // Subscribes before it checks, so that no exit is missed in between.
            let events = self.0.events().await;
            if !self.is_running(id).await {
                return;
            }
            let Ok(mut events) = events else {
                tokio::time::sleep(EVENT_TIMEOUT.min(Duration::from_secs(1))).await;
                continue;
            };
            let exited = async {
                while let Some(event) = events.next().await {
                    match event {
                        RuntimeEvent::Exited { id: exited } if exited == id => return true,
                        RuntimeEvent::Exited { .. } => {}
                        RuntimeEvent::Resync => return false,
                    }
                }
                false
            };
            if tokio::time::timeout(EVENT_TIMEOUT, exited).await != Ok(true) {
                // Event streams that end at once must not make this a busy loop.
                tokio::time::sleep(POLL_INTERVAL).await;
                continue;
            }
            let wait_for_state = async {
                while self.is_running(id).await {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            };
            if tokio::time::timeout(STATE_FOLLOWS, wait_for_state).await.is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_zombie_process_has_exited() {
        assert!(!has_exited(std::process::id()));
        let mut child = Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdout.take().unwrap();
        let begun = tokio::time::Instant::now();
        // Its end of the pipe closes when it exits; a moment later it is a zombie.
        pipe.read_to_end(&mut Vec::new()).unwrap();
        while !has_exited(child.id()) {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(has_exited(child.id()));
    }
}
