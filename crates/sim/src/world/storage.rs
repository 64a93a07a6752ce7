//! Disks and volumes of the true state: who has a disk open, and where a staged volume is.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Who has a disk open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    pub node: String,
    /// The pod's UID.
    pub uid: String,
    pub by: DiskUser,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DiskUser {
    Mount(PathBuf),
    /// A container's process, by the container's id.
    Process(String),
}

/// A step of a volume (first) on a node (second).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// ControllerPublish and ControllerUnpublish.
    Attached(String, String),
    Detached(String, String),
    /// NodeStage and NodeUnstage; an iSCSI disk's mount and unmount.
    Staged(String, String),
    Unstaged(String, String),
    /// An iSCSI session begins and ends.
    LoggedIn(String, String),
    LoggedOut(String, String),
}

impl Step {
    pub fn of(&self) -> (&str, &str) {
        let (Step::Attached(volume, node)
        | Step::Detached(volume, node)
        | Step::Staged(volume, node)
        | Step::Unstaged(volume, node)
        | Step::LoggedIn(volume, node)
        | Step::LoggedOut(volume, node)) = self;
        (volume, node)
    }
}

/// By volume and node: whether the node has been declared dead since.
pub(crate) type Ties = BTreeMap<(String, String), bool>;

/// The volumes of nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Storage {
    pub attached: Ties,
    pub staged: Ties,
    pub sessions: Ties,
}

impl Storage {
    pub fn take(&mut self, step: &Step) {
        let (volume, node) = step.of();
        let (ties, begins) = match step {
            Step::Attached(..) => (&mut self.attached, true),
            Step::Detached(..) => (&mut self.attached, false),
            Step::Staged(..) => (&mut self.staged, true),
            Step::Unstaged(..) => (&mut self.staged, false),
            Step::LoggedIn(..) => (&mut self.sessions, true),
            Step::LoggedOut(..) => (&mut self.sessions, false),
        };
        let key = (volume.to_string(), node.to_string());
        match begins {
            true => ties.insert(key, false),
            false => ties.remove(&key),
        };
    }

    /// A user or a fence agent declares the node dead.
    pub fn give_up(&mut self, node: &str) {
        for ties in [&mut self.attached, &mut self.staged, &mut self.sessions] {
            let of_node = ties.iter_mut().filter(|((_, of), _)| of == node);
            of_node.for_each(|(_, given_up)| *given_up = true);
        }
    }
}
