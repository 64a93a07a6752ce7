//! The node's own object as this kubelet knows it: told by a watch of that one object, or just read or written, whichever
//! is newest.
//!
//! Others write there what decides about pods (labels, taints), and the scheduler acts on it at once: a kubelet that knew
//! it only from its last heartbeat would refuse what it is given for seconds, and controllers would make it again and
//! again meanwhile.

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
    told: Arc<Store>,
    /// With its revision. It stays known when the object has gone.
    newest: Mutex<Option<(u64, Arc<core::Node>)>>,
}

impl OwnNode {
    pub fn new(name: &str) -> Self {
        OwnNode {
            name: name.to_string(),
            told: Arc::new(Store::new(core::Node::kind_of(), &[])),
            newest: Mutex::default(),
        }
    }

    /// Hears of it until dropped.
    pub async fn follow(&self, api: Arc<dyn Api>) {
        let scope = Scope {
            field_selector: format!("metadata.name={}", self.name),
            ..Scope::default()
        };
        informer::run(api, core::Node::kind_of().clone(), scope, self.told.clone()).await;
    }

    /// As it was last heard of; none until then.
    pub fn known(&self) -> Option<Arc<core::Node>> {
        self.take_in_told();
        self.newest.lock().as_ref().map(|(_, node)| node.clone())
    }

    /// As the watch has it, if that is in step with what is known otherwise: good enough to write from.
    pub fn told(&self) -> Option<Arc<core::Node>> {
        let told = self.take_in_told()?;
        let newest = self.newest.lock();
        let (_, node) = newest.as_ref().filter(|(revision, _)| *revision == told)?;
        Some(node.clone())
    }

    /// The revision that the watch has come to.
    fn take_in_told(&self) -> Option<u64> {
        let told = self.told.get("", &self.name)?;
        let mut newest = self.newest.lock();
        if newest
            .as_ref()
            .is_none_or(|(revision, _)| *revision < told.revision())
        {
            *newest = Some((told.revision(), Arc::new(told.to_typed()?)));
        }
        Some(told.revision())
    }

    /// This is how it is, or is about to be.
    pub fn know(&self, node: core::Node) {
        let revision = node.metadata.resource_version.as_deref();
        let revision = revision.and_then(|r| r.parse().ok()).unwrap_or_default();
        let mut newest = self.newest.lock();
        if newest.as_ref().is_none_or(|(known, _)| *known <= revision) {
            *newest = Some((revision, Arc::new(node)));
        }
    }

    /// Asks for it.
    pub async fn read(&self, api: &dyn Api) -> Result<core::Node, Error> {
        let node = (*api.get_as::<core::Node>("", &self.name).await?).clone();
        self.know(node.clone());
        Ok(node)
    }
}
