//! The container runtime as pods' workers use it: a few pods start at a time, a few images are pulled at a time, and each
//! sandbox and container has one worker that is informed of its exit. A sandbox's network namespace is kept as the runtime
//! reported it, so that its pod's termination need not request it.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::inbox::{Inbox, Msg};
use crate::runtime::{Runtime, SandboxDetail};

/// Images pulled at a time, unless configured otherwise (`maxParallelImagePulls`): a slow registry should delay few
/// pods.
const PULLS: u32 = 5;
/// Sandboxes and containers made at a time: more would only make each of them slower.
const STARTS: usize = 8;

/// See the module. It dereferences to the runtime.
pub(super) struct PodRuntime {
    runtime: Arc<dyn Runtime>,
    pulls: Semaphore,
    starts: Semaphore,
    /// The owner of each sandbox and container.
    owners: Mutex<BTreeMap<String, Owner>>,
}

/// The worker that owns a sandbox or container.
struct Owner {
    inbox: Inbox,
    /// Of a sandbox that has a network namespace of its own.
    network_namespace: Option<PathBuf>,
}

impl Deref for PodRuntime {
    type Target = dyn Runtime;

    fn deref(&self) -> &Self::Target {
        &*self.runtime
    }
}

impl PodRuntime {
    /// `image_pulls` is the configured number of images pulled at a time.
    pub fn new(runtime: Arc<dyn Runtime>, image_pulls: Option<u32>) -> Self {
        let pulls = usize::try_from(image_pulls.unwrap_or(PULLS)).unwrap_or(Semaphore::MAX_PERMITS);
        PodRuntime {
            runtime,
            pulls: Semaphore::new(pulls.min(Semaphore::MAX_PERMITS)),
            starts: Semaphore::new(STARTS),
            owners: Mutex::default(),
        }
    }

    /// A turn to pull an image.
    pub async fn pull_permit(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.pulls.acquire().await.ok()
    }

    /// A turn to start a sandbox or container.
    pub async fn start_permit(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.starts.acquire().await.ok()
    }

    pub fn set_owner(&self, id: &str, inbox: &Inbox) {
        let owner = Owner {
            inbox: inbox.clone(),
            network_namespace: None,
        };
        self.owners.lock().insert(id.to_string(), owner);
    }

    /// Keeps the network namespace of a sandbox that has an owner.
    pub fn note_network_namespace(&self, id: &str, detail: &SandboxDetail) {
        if let Some(owner) = self.owners.lock().get_mut(id) {
            owner.network_namespace = detail.netns.as_ref().map(PathBuf::from);
        }
    }

    /// The path of a sandbox's own network namespace, if it is known.
    pub fn network_namespace(&self, id: &str) -> Option<PathBuf> {
        self.owners.lock().get(id)?.network_namespace.clone()
    }

    /// This sandbox or container was removed.
    pub fn remove_owner(&self, id: &str) {
        self.owners.lock().remove(id);
    }

    /// This worker has finished.
    pub fn remove_all_of(&self, inbox: &Inbox) {
        self.owners.lock().retain(|_, owner| !owner.inbox.is_same(inbox));
    }

    /// Informs the owner of a sandbox or container that it may have exited.
    pub fn note_exit(&self, id: &str) {
        if let Some(owner) = self.owners.lock().get(id) {
            owner.inbox.send(Msg::CheckExit { id: id.into() });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use k8s_openapi::jiff::Timestamp;
    use knarr_api::k8s_openapi;
    use knarr_client::TokioClock;

    use super::*;
    use crate::runtime::fake::FakeRuntime;

    #[test]
    fn b7_the_network_namespace_of_a_sandbox_is_known_until_its_owner_is_removed() {
        let clock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
        let runtime = PodRuntime::new(Arc::new(FakeRuntime::new(clock, &[])), None);
        let (inbox, _messages) = Inbox::new();
        let detail = |netns: Option<&str>| SandboxDetail {
            netns: netns.map(str::to_string),
            ..SandboxDetail::default()
        };
        runtime.note_network_namespace("unowned", &detail(Some("/run/netns/a")));
        for id in ["pod", "host", "other"] {
            runtime.set_owner(id, &inbox);
        }
        runtime.note_network_namespace("pod", &detail(Some("/run/netns/a")));
        runtime.note_network_namespace("host", &detail(None));
        runtime.note_network_namespace("other", &detail(Some("/run/netns/b")));
        for (id, want) in [
            ("pod", Some("/run/netns/a")),
            ("other", Some("/run/netns/b")),
            ("host", None),
            ("unowned", None),
        ] {
            assert_eq!(
                runtime.network_namespace(id).as_deref(),
                want.map(Path::new),
                "{id}"
            );
        }
        runtime.remove_owner("pod");
        assert_eq!(runtime.network_namespace("pod"), None);
        runtime.remove_all_of(&inbox);
        assert_eq!(runtime.network_namespace("other"), None);
    }
}
