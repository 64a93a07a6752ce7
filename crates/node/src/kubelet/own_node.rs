//! The node's own object as this kubelet knows it: from a watch of that one object, or from its last read or write,
//! whichever is newest.
//!
//! Others write there what admission depends on (labels, taints), and the scheduler acts on it at once: a kubelet that
//! knew only the object of its last heartbeat would reject pods for seconds, and controllers would create them again
//! and again meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::kinds::node::{has_out_of_service_taint, is_ready};
use knarr_api::registry::Registered;
use knarr_apimachinery::Error;
use knarr_client::informer::{self, Scope};
use knarr_client::{Api, Store, TypedApi};
use parking_lot::Mutex;

/// See the module.
pub(crate) struct OwnNode {
    api: Arc<dyn Api>,
    name: String,
    /// Of this kubelet, and of no other.
    kubelet_id: String,
    watched: Arc<Store>,
    /// With its revision. It stays known after the object is deleted.
    newest: Mutex<Option<(u64, Arc<core::Node>)>>,
    /// The API server has accepted a status of it with Ready true, since this kubelet started.
    is_ready: AtomicBool,
}

impl OwnNode {
    /// Of a kubelet that started then.
    pub fn new(api: Arc<dyn Api>, name: &str, started: Timestamp) -> Self {
        OwnNode {
            api,
            name: name.to_string(),
            kubelet_id: format!("{name} {started}"),
            watched: Arc::new(Store::new(core::Node::kind_of(), &[])),
            newest: Mutex::default(),
            is_ready: AtomicBool::new(false),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn kubelet_id(&self) -> &str {
        &self.kubelet_id
    }

    /// The API server has accepted this status of it. Returns whether it is the first with Ready true.
    pub fn status_written(&self, node: &core::Node) -> bool {
        is_ready(node) && !self.is_ready.swap(true, Ordering::SeqCst)
    }

    /// Whether a client that reads it from now on sees that this kubelet runs, and releases nothing of it: it was
    /// reported Ready, and has no out-of-service taint.
    pub fn is_seen_alive(&self) -> bool {
        self.is_ready.load(Ordering::SeqCst)
            && self.known().is_some_and(|node| !has_out_of_service_taint(&node))
    }

    /// Watches it until dropped.
    pub async fn follow(&self) {
        let scope = Scope {
            field_selector: format!("metadata.name={}", self.name),
            ..Scope::default()
        };
        let (api, kind) = (self.api.clone(), core::Node::kind_of().clone());
        informer::run(api, kind, scope, self.watched.clone()).await;
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
    pub fn remember(&self, node: impl Into<Arc<core::Node>>) {
        let node = node.into();
        let revision = node.metadata.resource_version.as_deref();
        let revision = revision.and_then(|r| r.parse().ok()).unwrap_or_default();
        let mut newest = self.newest.lock();
        if newest.as_ref().is_none_or(|(known, _)| *known <= revision) {
            *newest = Some((revision, node));
        }
    }

    /// Reads it from the API.
    pub async fn read(&self) -> Result<Arc<core::Node>, Error> {
        let node = Arc::new((*self.api.get_as::<core::Node>("", &self.name).await?).clone());
        self.remember(node.clone());
        Ok(node)
    }
}
