//! Plugins of this node: how they are found, registered and called, all over gRPC on unix sockets.
//!
//! A plugin of any type creates a socket in the kubelet's `plugins_registry`; [`watcher`] requests its type and passes
//! it to the handler of that type (CSI drivers, device plugins, DRA drivers). Each registration runs in its own task,
//! and each call has a deadline, so that a plugin that hangs delays no other. A message is at most 4 MiB, which is
//! tonic's limit for decoding.

mod authority;
pub mod call;
pub(crate) mod error;
pub mod serve;
pub mod watcher;

pub use call::{Call, Code, call, call_on};
pub use error::CallError;
pub use watcher::{Handler, HandlerError, Plugin, Watcher};
