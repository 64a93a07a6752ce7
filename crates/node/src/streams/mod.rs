//! Streams between users and containers: exec, attach, port-forward.
//!
//! Clients speak one of many protocols (WebSocket channels, SPDY, SPDY inside a WebSocket); the API server passes
//! their bytes on as they are, so all of them end here. The runtime's stream server is spoken to in one, SPDY,
//! which alone can close stdin and leave the rest open. [`remote_command`] joins the two; [`port_forward`] needs no
//! runtime: it dials from inside the pod's network namespace.

pub mod pod_network;
pub mod port_forward;
pub mod remote_command;
pub mod runtime_client;
pub mod spdy;
pub mod upgrade;
pub mod websocket;

use tokio::io::{AsyncRead, AsyncWrite};

/// One readable half, of whatever protocol.
pub type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// One writable half; shutting it down ends it, where the protocol has a way to say so.
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;
