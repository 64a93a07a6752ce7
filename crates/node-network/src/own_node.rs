//! This node's object in the API: its addresses, and its pod CIDRs.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Object, ObjectKey};
use knarr_client::Api;
use knarr_client::informer::{self, ReflectorStore, Scope};
use knarr_network::routes::Node;
use tokio::task::JoinSet;

use crate::routes::reduced;
use crate::signal::Signal;

/// Follows the Node of this name. Dropping it ends the watch.
pub struct OwnNodeWatch {
    node: Arc<Signal<Node>>,
    _watch: JoinSet<()>,
}

impl OwnNodeWatch {
    pub fn start(api: Arc<dyn Api>, node_name: &str) -> Self {
        let node = Arc::new(Signal::new(Node::default()));
        let scope = Scope {
            field_selector: format!("metadata.name={node_name}"),
            ..Scope::default()
        };
        let mut watch = JoinSet::new();
        watch.spawn(informer::run(
            api,
            registry::NODE.clone(),
            scope,
            Arc::new(Feed(node.clone())),
        ));
        OwnNodeWatch { node, _watch: watch }
    }

    /// The newest known object; empty before the node is registered.
    pub fn node(&self) -> Arc<Signal<Node>> {
        self.node.clone()
    }
}

struct Feed(Arc<Signal<Node>>);

impl ReflectorStore for Feed {
    fn apply(&self, object: &Arc<Object>) {
        if let Some(node) = object.to_typed::<core::Node>() {
            let new = reduced(&node);
            // Heartbeats change nothing here.
            if self.0.get() != new {
                self.0.set(new);
            }
        }
    }

    // A node whose object is deleted keeps its addresses while pods may run on it.
    fn remove(&self, _: &ObjectKey, _: Option<&Arc<Object>>) {}

    fn retain(&self, _: &BTreeSet<ObjectKey>) {}

    fn advance(&self, _: u64) {}
}
