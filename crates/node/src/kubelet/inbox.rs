//! How pods' workers are reached.

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::{ContainerId, PodUid};
use knarr_kubelet::pod::Event;
use knarr_kubelet::runtime::{Container, Sandbox};
use tokio::sync::mpsc;

pub(super) enum Msg {
    Event(Event),
    /// This container, or the sandbox, may have exited.
    CheckExit {
        id: ContainerId,
    },
    Observed {
        since: Timestamp,
        sandboxes: Vec<Sandbox>,
        containers: Vec<Container>,
    },
    /// The status of a static pod that has terminated need not be reported any more.
    Forget,
    /// A static pod's mirror was deleted or is being deleted.
    MirrorDeleted,
    /// The check of this id has finished.
    ExitChecked {
        id: ContainerId,
    },
}

/// Where one pod's worker receives its messages, in order.
#[derive(Clone)]
pub(super) struct Inbox(mpsc::UnboundedSender<Msg>);

impl Inbox {
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Msg>) {
        let (sender, messages) = mpsc::unbounded_channel();
        (Inbox(sender), messages)
    }

    pub fn send(&self, message: Msg) {
        // A worker that has stopped waits for nothing more.
        let _ = self.0.send(message);
    }

    pub fn event(&self, event: Event) {
        self.send(Msg::Event(event));
    }

    pub fn is_same(&self, other: &Inbox) -> bool {
        self.0.same_channel(&other.0)
    }
}

/// Sends events to pods by their uids, for those that do not know the pods' workers.
#[derive(Clone)]
pub(super) struct PodEvents(mpsc::UnboundedSender<(PodUid, Event)>);

impl PodEvents {
    pub fn new() -> (Self, mpsc::UnboundedReceiver<(PodUid, Event)>) {
        let (sender, events) = mpsc::unbounded_channel();
        (PodEvents(sender), events)
    }

    pub fn send(&self, uid: PodUid, event: Event) {
        // The receiver is dropped only with the whole kubelet.
        let _ = self.0.send((uid, event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_to_a_worker_that_has_stopped_is_dropped() {
        let (inbox, messages) = Inbox::new();
        let (other, _) = Inbox::new();
        assert!(inbox.is_same(&inbox.clone()) && !inbox.is_same(&other));
        drop(messages);
        inbox.event(Event::Removed);
    }
}
