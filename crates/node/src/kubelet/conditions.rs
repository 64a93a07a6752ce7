//! What makes the node reject pods and what its conditions report: the resources that it is short of, and a shutdown in
//! progress. Eviction and shutdown set them, admission and the node's status read them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use knarr_kubelet::eviction::Pressure;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// See the module.
#[derive(Default)]
pub(super) struct NodeConditions {
    pressures: Mutex<BTreeSet<Pressure>>,
    shutting_down: AtomicBool,
    changed: Notify,
}

impl NodeConditions {
    /// What the node is short of.
    pub fn pressures(&self) -> BTreeSet<Pressure> {
        self.pressures.lock().clone()
    }

    pub fn set_pressures(&self, new: BTreeSet<Pressure>) {
        let changed = {
            let mut pressures = self.pressures.lock();
            let changed = *pressures != new;
            *pressures = new;
            changed
        };
        if changed {
            self.notify();
        }
    }

    /// Whether a node shutdown is in progress: no pods are admitted.
    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Relaxed)
    }

    pub fn set_shutting_down(&self, yes: bool) {
        self.shutting_down.store(yes, Ordering::Relaxed);
        self.notify();
    }

    /// Something else that the node's conditions report has changed.
    pub fn notify(&self) {
        self.changed.notify_one();
    }

    /// Returns when they have changed since the last call. For one waiter.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn the_node_reports_only_changes_of_what_it_is_short_of() {
        let conditions = NodeConditions::default();
        conditions.set_pressures([].into());
        assert!(conditions.changed().now_or_never().is_none());
        conditions.set_pressures([Pressure::Memory].into());
        assert!(conditions.changed().now_or_never().is_some());
        conditions.set_pressures([Pressure::Memory].into());
        assert!(conditions.changed().now_or_never().is_none());
        conditions.set_shutting_down(true);
        assert!(conditions.changed().now_or_never().is_some());
        assert!(conditions.is_shutting_down());
    }
}
