//! How the API server reaches a node's kubelet: a byte stream over which HTTP/1.1 is spoken.
//!
//! In one process the stream is a pipe into the kubelet's server; across the network it is TLS to its port.
//! Logs, exec, attach and port-forward go this one way in both cases.

use std::net::SocketAddr;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A bidirectional byte stream.
pub trait Conn: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Conn for T {}

/// Opens streams to nodes.
#[async_trait]
pub trait NodeDialer: Send + Sync + 'static {
    /// A new stream to the kubelet of this node. `NotFound` if there is no such node.
    async fn dial(&self, node: &str) -> std::io::Result<Box<dyn Conn>>;

    /// A new stream to a pod, or to another port of a node, by address, for the proxy subresources.
    async fn dial_address(&self, address: SocketAddr) -> std::io::Result<Box<dyn Conn>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}
