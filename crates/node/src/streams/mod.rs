//! Streams between users and containers: exec, attach, port-forward.
//!
//! Clients speak one of many protocols (WebSocket channels, SPDY, SPDY inside a WebSocket); the API server passes their
//! bytes on unchanged, so all of them terminate here. The runtime's stream server is used with one, SPDY, which alone
//! can close stdin and leave the rest open. [`remote_command`] joins the two; [`port_forward`] needs no runtime: it
//! dials from inside the pod's network namespace.

pub mod options;
pub mod pod_network;
pub mod port_forward;
pub mod remote_command;
pub mod runtime_client;
pub mod spdy;
pub mod upgrade;
pub mod websocket;

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

/// How long a server stays silent before it pings its client. The disconnect of a client whose input is blocked (its
/// command does not read) cannot be noticed by reading; writing to it fails.
const PING_PERIOD: Duration = Duration::from_secs(30);

/// One readable half, of any protocol.
pub type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// One writable half; shutting it down ends it, where the protocol supports that.
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;
