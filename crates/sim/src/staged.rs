//! The staged volumes of a host, and its CSI driver's registration.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use knarr_node::plugins::watcher::REGISTRY;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The staged volumes of a host. None of this survives a reboot.
#[derive(Default)]
pub(crate) struct Staging {
    pub state: Mutex<State>,
    /// Its driver has registered its socket.
    is_registered: AtomicBool,
    /// Notified of each step.
    pub steps: Arc<Notify>,
}

#[derive(Default)]
pub(crate) struct State {
    /// Which disk is staged at which path.
    pub staged: BTreeMap<PathBuf, String>,
    /// Disks whose targets the host is logged in at.
    pub sessions: BTreeSet<String>,
}

impl Staging {
    pub fn is_registered(&self) -> bool {
        self.is_registered.load(Ordering::Relaxed)
    }

    /// The node's driver registers its socket with the kubelet.
    pub fn register(&self, kubelet: &Path) -> io::Result<()> {
        self.is_registered.store(true, Ordering::Relaxed);
        show_socket(kubelet)
    }
}

fn show_socket(kubelet: &Path) -> io::Result<()> {
    let directory = kubelet.join(REGISTRY);
    std::fs::create_dir_all(&directory)?;
    let socket = directory.join("csi.sock");
    match std::fs::exists(&socket)? {
        true => Ok(()),
        // No process listens: the calls do not go through the socket.
        false => UnixListener::bind(socket).map(drop),
    }
}
