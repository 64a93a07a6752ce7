//! What a component may ask of the cluster ([`Api`]), and the caches it reads from.
//!
//! Components know nothing but this: whether the API server is in the same process or across the network
//! makes no difference to them.

pub mod api;
pub mod node;

pub use api::{
    Api, DeleteOptions, List, ListOptions, Patch, Preconditions, Propagation, TypedApi, WatchEvent,
    WatchOptions, WatchStream,
};
pub use knarr_api::{Error, Kind, Object, Result, Shared};
pub use node::{Conn, NodeDialer};
