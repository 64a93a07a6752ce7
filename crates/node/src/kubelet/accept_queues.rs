//! Whether connections wait to be accepted in a pod's network namespace (SPEC B7).

use std::path::{Path, PathBuf};

use knarr_cni::kernel::accept_queues;
use knarr_cni::kernel::namespace::{self, Namespace};
use tokio::task::{JoinError, spawn_blocking};
use tracing::debug;

/// Why it is not known.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Namespace(#[from] namespace::Error),
    #[error(transparent)]
    Queues(#[from] accept_queues::Error),
    #[error("the read panicked")]
    Panicked(#[source] JoinError),
}

/// Whether a connection waits in the accept queue of a listening TCP socket of this network namespace. `false` if it cannot be
/// read: the namespace is not known or was removed, the kernel has no `inet_diag`, or more sockets listen than are read.
pub(super) async fn have_connections(namespace: Option<PathBuf>) -> bool {
    let Some(path) = namespace else {
        debug!("the network namespace of a sandbox is not known: its accept queues are not read");
        return false;
    };
    let read = spawn_blocking(move || read(&path)).await;
    match read.unwrap_or_else(|error| Err(Error::Panicked(error))) {
        Ok(has_connections) => has_connections,
        Err(error) => {
            debug!(?error, "cannot read the accept queues of a sandbox");
            false
        }
    }
}

fn read(path: &Path) -> Result<bool, Error> {
    let namespace = Namespace::open(path)?;
    Ok(namespace.run(accept_queues::have_connections)??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn b7_accept_queues_that_cannot_be_read_count_as_empty() {
        assert!(!have_connections(None).await);
        for path in [
            "/run/netns/knarr-that-does-not-exist",
            // Not a namespace.
            "/proc/self/status",
            // The node's own: the sockets of other programs.
            "/proc/self/ns/net",
        ] {
            assert!(!have_connections(Some(path.into())).await, "{path}");
            assert!(read(Path::new(path)).is_err(), "{path}");
        }
    }
}
