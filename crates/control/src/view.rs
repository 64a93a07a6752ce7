//! The caches as controllers read them.

use std::sync::Arc;

use knarr_client::cache::{CONTROLLER, NODE_NAME, orphans_of};
use knarr_client::{Caches, Kind, Object};
use knarr_controllers::View;

/// See the module.
pub struct CacheView(pub Arc<Caches>);

impl View for CacheView {
    fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.0.store(kind).get(namespace, name)
    }

    fn list(&self, kind: &'static Kind, namespace: &str) -> Vec<Arc<Object>> {
        // A kind that users brought may be gone by now; asking for it must not bring it back.
        match kind.ops.custom() {
            None => self.0.store(kind).list(namespace),
            Some(_) => self
                .0
                .existing(kind)
                .map(|s| s.list(namespace))
                .unwrap_or_default(),
        }
    }

    fn custom_kinds(&self) -> Vec<&'static Kind> {
        self.0.custom_kinds()
    }

    fn controlled_by(&self, kind: &'static Kind, uid: &str) -> Vec<Arc<Object>> {
        self.0.store(kind).by_index(CONTROLLER.name, uid)
    }

    fn orphans(&self, kind: &'static Kind, namespace: &str) -> Vec<Arc<Object>> {
        self.0
            .store(kind)
            .by_index(CONTROLLER.name, &orphans_of(namespace))
    }

    fn pods_on(&self, node: &str) -> Vec<Arc<Object>> {
        self.0
            .store(&knarr_api::registry::POD)
            .by_index(NODE_NAME.name, node)
    }
}
