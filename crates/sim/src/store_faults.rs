//! Faults of a store beyond being slow or cut off, as etcd has them: it compacts its history while a server's watch
//! is behind, so that the watch cannot be resumed and the server has to list again; and it commits a transaction
//! whose answer never reaches the server.

use std::collections::VecDeque;
use std::time::Duration;

tokio::task_local! {
    /// Set for the requests of components: the answers for users always say what the store did.
    pub(crate) static FROM_COMPONENT: ();
}

/// A future commit whose answer is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostResponse {
    pub after: Duration,
    /// For so long no message passes between the server and the store, from the commit on.
    pub cut: Option<Duration>,
}

/// The state of these faults at one server's connection to the store.
#[derive(Default)]
pub(crate) struct StoreFaultState {
    /// Its watches report nothing until they break.
    pub is_behind: bool,
    pub lost: VecDeque<LostResponse>,
    /// The next watch that begins below the compacted revision gets the error as its first item.
    pub fails_by_first_item: bool,
}

impl StoreFaultState {
    /// Whether a watch that begins below the compacted revision fails with its first item. The next one fails at
    /// once.
    pub fn take_first_item(&mut self) -> bool {
        std::mem::take(&mut self.fails_by_first_item)
    }
}
