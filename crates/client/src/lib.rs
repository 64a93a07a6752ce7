//! The client of the API ([`Api`]), and the caches that components read from.
//!
//! Components use nothing else: whether the API server runs in the same process or is reached over the network
//! makes no difference to them.
//!
//! # Where things are
//!
//! Requests: [`Api`]; over the network: `remote.rs`. Metrics: `metrics/`; traces across requests: `trace_context.rs`. Caches: `informer.rs`, `cache.rs`. The users of knarr's own components: `identity.rs`. Leader
//! election: `leader.rs`; the fencing of a former leader's writes: `term.rs`, checked in the API server's cache. The kinds of custom
//! resources: `custom_kinds.rs`.

pub mod api;
pub mod cache;
pub mod clock;
pub mod custom_kinds;
pub mod events;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod identity;
pub mod informer;
pub mod leader;
pub mod metrics;
pub mod node;
mod notified;
pub mod remote;
pub mod term;
pub mod trace_context;
pub mod workqueue;

pub use api::{
    Api, DeleteOptions, List, ListOptions, Patch, Preconditions, TypedApi, WatchEvent, WatchOptions,
    WatchStream,
};
pub use cache::{Cache, Change, Store};
pub use clock::{Clock, SteadyClock, SystemClock, TokioClock};
pub use events::{EventRecorder, EventType};
pub use identity::{Component, Identities, NETWORK_NAMESPACE};
pub use informer::Caches;
pub use knarr_api::deletion::Propagation;
pub use knarr_api::{Kind, Object, ObjectKey, Shared};
pub use knarr_apimachinery::{Error, Result};
pub use node::{Conn, NodeDialer};
pub use notified::notified_until;
pub use term::Term;
