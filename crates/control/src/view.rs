//! The caches as controllers read them.

use std::sync::Arc;

use knarr_client::cache::{CONTROLLER, NODE_NAME, orphans_of};
use knarr_client::{Caches, Kind, Object, Store};
use knarr_controllers::View;

/// See the module.
pub struct CacheView(pub Arc<Caches>);

impl CacheView {
    /// The store of a kind. That of a custom kind exists only with its definition: reading it must not recreate it.
    fn store(&self, kind: &Kind) -> Option<Arc<Store>> {
        match kind.ops.custom() {
            None => Some(self.0.store(kind)),
            Some(_) => self.0.existing(kind),
        }
    }
}

impl View for CacheView {
    fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.store(kind)?.get(namespace, name)
    }

    fn list(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Object>> {
        self.store(kind).map(|s| s.list(namespace)).unwrap_or_default()
    }

    fn custom_kinds(&self) -> Vec<Kind> {
        self.0.custom_kinds()
    }

    fn controlled_by(&self, kind: &Kind, uid: &str) -> Vec<Arc<Object>> {
        let store = self.store(kind);
        store
            .map(|s| s.by_index(CONTROLLER.name, uid))
            .unwrap_or_default()
    }

    fn orphans(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Object>> {
        let store = self.store(kind);
        store
            .map(|s| s.by_index(CONTROLLER.name, &orphans_of(namespace)))
            .unwrap_or_default()
    }

    fn pods_on(&self, node: &str) -> Vec<Arc<Object>> {
        self.0
            .store(&knarr_api::registry::POD)
            .by_index(NODE_NAME.name, node)
    }
}
