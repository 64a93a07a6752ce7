//! The container runtime as pods' workers use it: a few pods start at a time, a few images are pulled at a time, and each
//! sandbox and container has one worker that is informed of its exit.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::inbox::{Inbox, Msg};
use crate::runtime::Runtime;

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
    /// The worker that owns a sandbox or container.
    owners: Mutex<BTreeMap<String, Inbox>>,
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

    pub fn set_owner(&self, id: &str, owner: &Inbox) {
        self.owners.lock().insert(id.to_string(), owner.clone());
    }

    /// This sandbox or container was removed.
    pub fn remove_owner(&self, id: &str) {
        self.owners.lock().remove(id);
    }

    /// This worker has finished.
    pub fn remove_all_of(&self, owner: &Inbox) {
        self.owners.lock().retain(|_, other| !other.is_same(owner));
    }

    /// Informs the owner of a sandbox or container that it may have exited.
    pub fn note_exit(&self, id: &str) {
        if let Some(owner) = self.owners.lock().get(id) {
            owner.send(Msg::CheckExit { id: id.into() });
        }
    }
}
