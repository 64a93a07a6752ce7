//! Nodes' public keys in their Leases: this node's is written, the others' are read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use knarr_api::k8s_openapi;
use knarr_api::{Object, ObjectKey};
use knarr_apimachinery::Error;
use knarr_apimachinery::ids::NodeName;
use knarr_client::informer::ReflectorStore;
use knarr_client::{Api, NETWORK_NAMESPACE};
use knarr_network::routes::encryption::Published;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::lease;
use crate::signal::Signal;

/// Routes are not kept waiting for longer by an API that does not answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What nodes have published, by their names, which are those of their Leases.
pub struct Keys {
    all: Mutex<BTreeMap<String, Published>>,
    synced: Signal<bool>,
    changed: Arc<Notify>,
}

impl Keys {
    pub fn new(changed: Arc<Notify>) -> Self {
        Keys {
            all: Mutex::default(),
            synced: Signal::default(),
            changed,
        }
    }

    pub fn is_synced(&self) -> bool {
        self.synced.get()
    }

    pub fn all(&self) -> BTreeMap<String, Published> {
        self.all.lock().clone()
    }

    pub fn of(&self, node: &str) -> Option<Published> {
        self.all.lock().get(node).copied()
    }
}

impl ReflectorStore for Keys {
    fn apply(&self, object: &Arc<Object>) {
        let lease = object.to_typed::<Lease>();
        let annotations = lease
            .as_ref()
            .and_then(|lease| lease.metadata.annotations.as_ref());
        let published = annotations.and_then(Published::of);
        let mut all = self.all.lock();
        let before = match published {
            Some(published) => all.insert(object.name().to_string(), published),
            None => all.remove(object.name()),
        };
        // Most writes report endpoints.
        if before != published {
            self.changed.notify_one();
        }
    }

    fn remove(&self, key: &ObjectKey, _: Option<&Arc<Object>>) {
        if self.all.lock().remove(&key.name).is_some() {
            self.changed.notify_one();
        }
    }

    fn retain(&self, keys: &BTreeSet<ObjectKey>) {
        let is_there = |name: &str| keys.contains(&ObjectKey::new(NETWORK_NAMESPACE, name));
        let removed = {
            let mut all = self.all.lock();
            let before = all.len();
            all.retain(|name, _| is_there(name));
            before != all.len()
        };
        if removed {
            self.changed.notify_one();
        }
    }

    fn advance(&self, _: u64) {
        if !self.synced.get() {
            self.synced.set(true);
            self.changed.notify_one();
        }
    }
}

/// Writes what this node publishes; that is nothing where traffic is in the clear, so that no node encrypts in vain.
pub struct Publisher {
    api: Arc<dyn Api>,
    node_name: NodeName,
    /// What was last written, or found to be there.
    done: Option<Option<Published>>,
    desired: Option<Published>,
}

impl Publisher {
    pub fn new(api: Arc<dyn Api>, node_name: &NodeName) -> Self {
        Publisher {
            api,
            node_name: node_name.clone(),
            done: None,
            desired: None,
        }
    }

    /// Whether the Lease has the desired content.
    pub fn is_done(&self) -> bool {
        self.done == Some(self.desired)
    }

    /// `seen` is the Lease's content as it was seen last. It does not wait for an unreachable API: the caller retries.
    pub async fn set(&mut self, published: Option<Published>, seen: Option<Published>) {
        self.desired = published;
        if self.is_done() && (published.is_none() || seen == published) {
            return;
        }
        self.done = None;
        let written = timeout(TIMEOUT, self.write()).await;
        match written.unwrap_or_else(|_| Err(Error::timeout("the API does not answer"))) {
            Ok(()) => self.done = Some(published),
            // The agent has another task that writes the Lease.
            Err(error) if error.is_conflict() || error.is_already_exists() || error.is_not_found() => {
                debug!(%error, "this node's WireGuard key is not published yet");
            }
            Err(error) => warn!(%error, "this node's WireGuard key cannot be published"),
        }
    }

    async fn write(&self) -> Result<(), Error> {
        let mut lease = lease::own(&*self.api, &self.node_name).await?;
        let annotations = lease.metadata.annotations.get_or_insert_default();
        let is_new = Published::write(self.desired.as_ref(), annotations);
        if is_new {
            lease::write(&*self.api, lease).await?;
        }
        Ok(())
    }
}
