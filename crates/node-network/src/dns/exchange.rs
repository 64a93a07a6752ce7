//! One question to one other server, over UDP and, where the answer is too long for that, over TCP.
//!
//! Every question has its own socket, and so its own source port, and a random id: datagrams from other addresses are
//! dropped by the kernel, answers that do not repeat the question are ignored.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use knarr_network::dns::cached::{Question, Reply, ReplyError};
use knarr_network::dns::query::UDP_BYTES_MAX;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

/// What one server is given to answer; CoreDNS' forward reads for two seconds.
pub const ATTEMPT: Duration = Duration::from_secs(2);
/// Servers may send more than was offered to them; it is read and found malformed, not cut.
const DATAGRAM_BYTES: usize = 4 * UDP_BYTES_MAX;

#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error("cannot reach the name server")]
    Io(#[from] io::Error),
    #[error("the name server did not answer in time")]
    Timeout,
    #[error("the name server's answer is not usable")]
    Reply(#[from] ReplyError),
}

/// Sends the question to one server.
pub async fn exchange(server: SocketAddr, question: &Question) -> Result<Reply, ExchangeError> {
    let over_udp = timeout(ATTEMPT, udp(server, question)).await;
    let reply = over_udp.map_err(|_| ExchangeError::Timeout)??;
    if !reply.is_truncated {
        return Ok(reply);
    }
    let over_tcp = timeout(ATTEMPT, tcp(server, question)).await;
    over_tcp.map_err(|_| ExchangeError::Timeout)?
}

async fn udp(server: SocketAddr, question: &Question) -> Result<Reply, ExchangeError> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    let id = rand::random();
    socket.send(&question.message(id)).await?;
    let mut buffer = vec![0; DATAGRAM_BYTES];
    loop {
        let length = socket.recv(&mut buffer).await?;
        match Reply::read(&buffer[..length], question, id) {
            Err(ReplyError::Foreign) => {}
            other => return Ok(other?),
        }
    }
}

async fn tcp(server: SocketAddr, question: &Question) -> Result<Reply, ExchangeError> {
    let mut stream = TcpStream::connect(server).await?;
    let id = rand::random();
    let message = question.message(id);
    let mut framed = Vec::with_capacity(2 + message.len());
    framed.extend_from_slice(&u16::try_from(message.len()).unwrap_or(u16::MAX).to_be_bytes());
    framed.extend_from_slice(&message);
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut bytes = vec![0; usize::from(length)];
    stream.read_exact(&mut bytes).await?;
    Ok(Reply::read(&bytes, question, id)?)
}
