//! What a component may ask of the cluster ([`Api`]), and the caches it reads from.
//!
//! Components know nothing but this: whether the API server is in the same process or across the network
//! makes no difference to them.
//!
//! # Where things are
//!
//! What may be asked: [`Api`]; across machines: `remote.rs`. Caches: `informer.rs`, `cache.rs`. Who knarr's own components are: `identity.rs`. What a
//! leader may still write: `term.rs`, checked in the API server's cache. Custom resources that components follow: `custom_kinds.rs`.

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
pub mod node;
pub mod remote;
pub mod term;
pub mod workqueue;

pub use api::{
    Api, DeleteOptions, List, ListOptions, Patch, Preconditions, Propagation, TypedApi, WatchEvent,
    WatchOptions, WatchStream,
};
pub use cache::{Cache, Change, Store};
pub use clock::{Clock, SteadyClock, SystemClock, TokioClock};
pub use events::{EventRecorder, EventType};
pub use identity::{Component, Identities, NETWORK_NAMESPACE};
pub use informer::Caches;
pub use knarr_api::{Error, Kind, Object, ObjectKey, Result, Shared};
pub use node::{Conn, NodeDialer};
pub use term::Term;
