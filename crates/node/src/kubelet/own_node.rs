//! The node's own object as this kubelet knows it: from a watch of that one object, or from its last read or write,
//! whichever is newest.
//!
//! Others write there what admission depends on (labels, taints), and the scheduler acts on it at once: a kubelet that
//! knew only the object of its last heartbeat would reject pods for seconds, and controllers would create them again
//! and again meanwhile.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use knarr_api::registry::Registered;
use knarr_api::{Error, k8s_openapi};
use knarr_client::informer::{self, Scope};
use knarr_client::{Api, Store, TypedApi};
use parking_lot::Mutex;

/// See the module.
pub(crate) struct OwnNode {
    name: String,
    watched: Arc<Store>,
    /// With its revision. It stays known after the object is deleted.
    newest: Mutex<Option<(u64, Arc<core::Node>)>>,
}

impl OwnNode {
    pub fn new(name: &str) -> Self {
        OwnNode {
            name: name.to_string(),
            watched: Arc::new(Store::new(core::Node::kind_of(), &[])),
            newest: Mutex::default(),
        }
    }

    /// Watches it until dropped.
    pub async fn follow(&self, api: Arc<dyn Api>) {
        let scope = Scope {
            field_selector: format!("metadata.name={}", self.name),
            ..Scope::default()
        };
        informer::run(api, core::Node::kind_of().clone(), scope, self.watched.clone()).await;
    }

    /// The newest known object; `None` before the first.
    pub fn known(&self) -> Option<Arc<core::Node>> {
        self.absorb_watched();
        self.newest.lock().as_ref().map(|(_, node)| node.clone())
    }

    /// As the watch has it, if that is in step with what is known otherwise: good enough to write from.
    pub fn watched(&self) -> Option<Arc<core::Node>> {
        let watched = self.absorb_watched()?;
        let newest = self.newest.lock();
        let (_, node) = newest.as_ref().filter(|(revision, _)| *revision == watched)?;
        Some(node.clone())
    }

    /// The revision that the watch has reached.
    fn absorb_watched(&self) -> Option<u64> {
        let watched = self.watched.get("", &self.name)?;
        let mut newest = self.newest.lock();
        if newest
            .as_ref()
            .is_none_or(|(revision, _)| *revision < watched.revision())
        {
            *newest = Some((watched.revision(), Arc::new(watched.to_typed()?)));
        }
        Some(watched.revision())
    }

    /// This is how it is, or is about to be.
    pub fn remember(&self, node: core::Node) {
        let revision = node.metadata.resource_version.as_deref();
        let revision = revision.and_then(|r| r.parse().ok()).unwrap_or_default();
        let mut newest = self.newest.lock();
        if newest.as_ref().is_none_or(|(known, _)| *known <= revision) {
            *newest = Some((revision, Arc::new(node)));
        }
    }

    /// Reads it from the API.
    pub async fn read(&self, api: &dyn Api) -> Result<core::Node, Error> {
        let node = (*api.get_as::<core::Node>("", &self.name).await?).clone();
        self.remember(node.clone());
        Ok(node)
    }
}
