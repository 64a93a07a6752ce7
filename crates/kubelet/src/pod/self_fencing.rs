//! Containers that their node stops because it is cut off from the API (SPEC B4): neither they nor the pod has failed, so
//! they are restarted without back-off, and back-off begins again with the next exit.

use knarr_apimachinery::ids::ContainerId;

use super::Pod;

impl Pod {
    /// The node stops this container. Its exit may have been reported before.
    pub(super) fn stopped_by_self_fencing(&mut self, id: &ContainerId) {
        let Some(i) = self.by_id(id) else { return };
        let container = &mut self.containers[i];
        if container.self_fenced.as_ref() == Some(id) {
            // Its stop has failed and is tried again.
            return;
        }
        let has_exited = container.exited().is_some() && container.run_id() == Some(id);
        container.self_fenced = Some(id.clone());
        let message = format!(
            "Stopping container {}: the node cannot renew its Lease",
            container.name
        );
        self.record(Some(i), false, "Killing", message);
        if has_exited {
            self.restart_if_self_fenced(i, id);
        }
    }

    /// Has the exited run restarted without back-off if its node stopped it. Returns whether it did.
    pub(super) fn restart_if_self_fenced(&mut self, i: usize, id: &ContainerId) -> bool {
        let container = &mut self.containers[i];
        if container.self_fenced.take_if(|fenced| fenced == id).is_none() {
            return false;
        }
        container.restart.stopped_by_node(true);
        container.back_off.reset_crash();
        true
    }
}
