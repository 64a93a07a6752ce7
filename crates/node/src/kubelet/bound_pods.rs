//! The pods bound to this node, as the API has them.

use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::{Shared, k8s_openapi};
use knarr_client::Store;

/// A pod of this node that is read and not copied.
#[derive(Clone)]
pub(super) enum SharedPod {
    /// As the API has it.
    Bound(Shared<Pod>),
    /// A static pod, or a pod with the spec that it is allocated.
    Own(Arc<Pod>),
}

impl Deref for SharedPod {
    type Target = Pod;

    fn deref(&self) -> &Pod {
        match self {
            SharedPod::Bound(pod) => pod,
            SharedPod::Own(pod) => pod,
        }
    }
}

/// See the module. Its pods are shared with the store, not copied.
#[derive(Clone)]
pub(super) struct BoundPods(Arc<Store>);

impl BoundPods {
    pub fn new(store: Arc<Store>) -> Self {
        BoundPods(store)
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.0
    }

    pub fn list(&self) -> Vec<Shared<Pod>> {
        let objects = self.0.list("").into_iter();
        objects.filter_map(|object| Shared::new(object).ok()).collect()
    }

    pub fn with_uid(&self, uid: &str) -> Option<Shared<Pod>> {
        let mut objects = self.0.list("").into_iter();
        Shared::new(objects.find(|object| object.uid() == uid)?).ok()
    }

    /// Whether the API's list of them has arrived: until then each may be missing.
    pub fn is_complete(&self) -> bool {
        self.0.last_sync_revision().is_some()
    }
}
