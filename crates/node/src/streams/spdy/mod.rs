//! SPDY/3.1 as Kubernetes' streams use it: many two-way byte streams over one connection, each closed on one
//! side by a FIN and torn down by a RST_STREAM.
//!
//! Interoperates with `moby/spdystream` (kubectl and client-go before 1.31, containerd's stream server). As there,
//! headers matter only when a stream is opened, priorities are ignored, and flow control is the transport's. No peer
//! sends WINDOW_UPDATE, so waiting for one would be waiting for ever; a stream with a slow reader blocks the
//! connection's reader once its queue is full, and memory stays bounded.
//!
//! Promises: data arrives in order and before the end of its stream; nothing that the peer sends causes a panic or
//! unbounded memory; dropping a [`Stream`] resets it, dropping a [`Connection`] ends all of it.

mod connection;
mod dictionary;
mod frame;
mod headers;
mod outbox;
mod shared;
mod stream;
#[cfg(test)]
mod tests;

pub use connection::{Arrival, Connection, Incoming, SpdyError};
pub use frame::Reset;
pub use headers::Headers;
pub use shared::Role;
pub use stream::Stream;
