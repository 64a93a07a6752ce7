//! Which custom kinds are served, and who is to know.

use std::collections::BTreeMap;
use std::sync::Arc;

use knarr_api::Kind;
use parking_lot::Mutex;

use crate::cache::Store;

/// A custom kind that is now served, with the store of its objects, or is no longer.
pub enum KindChange<'a> {
    Added(&'a Arc<Store>),
    /// Its store is stopped. If its definition was deleted, the store's handlers have been called for the deletion of all objects; if
    /// the definition now has other names, the objects still exist under these, and `Added` for them follows.
    Removed(&'a Kind),
}

pub(super) type Handler = Arc<dyn Fn(&KindChange<'_>) + Send + Sync>;

/// The custom kinds of the caches.
#[derive(Default)]
pub(crate) struct CustomKinds(pub(super) Mutex<State>);

#[derive(Default)]
pub(super) struct State {
    pub(super) followed: bool,
    /// By the names of their definitions.
    pub(super) kinds: BTreeMap<String, Kind>,
    pub(super) handlers: Vec<Handler>,
}

impl CustomKinds {
    pub(crate) fn all(&self) -> Vec<Kind> {
        self.0.lock().kinds.values().cloned().collect()
    }

    pub(crate) fn stop(&self) {
        self.0.lock().handlers.clear();
    }
}
