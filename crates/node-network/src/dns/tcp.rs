//! Questions over TCP: one after the other on each connection. A connection that is silent, or stops within a message,
//! is closed; the number of connections is limited, in all and per client.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use knarr_network::dns::message;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::metrics::Transport;
use super::responder::{Next, Responder};

const CONNECTIONS_MAX: usize = 512;
const CONNECTIONS_PER_CLIENT_MAX: usize = 64;
/// Until the next question is there, whole (RFC 7766 lets servers choose; CoreDNS waits ten seconds).
const QUESTION: Duration = Duration::from_secs(10);
/// Until the client has taken an answer.
const ANSWER: Duration = Duration::from_secs(5);
/// One question with EDNS is a few hundred bytes.
const QUESTION_BYTES_MAX: usize = 4096;
/// Before accepting is tried again, where the process has no descriptors left.
const RETRY: Duration = Duration::from_millis(100);

/// Connections of all addresses, by client.
#[derive(Default)]
pub struct Connections(Mutex<HashMap<IpAddr, usize>>);

/// Counts a connection while it lives.
struct Counted {
    all: Arc<Connections>,
    client: IpAddr,
}

impl Connections {
    fn count(self: &Arc<Self>, client: IpAddr) -> Option<Counted> {
        let mut all = self.0.lock();
        let of_client = all.get(&client).copied().unwrap_or(0);
        if of_client >= CONNECTIONS_PER_CLIENT_MAX || all.values().sum::<usize>() >= CONNECTIONS_MAX {
            return None;
        }
        all.insert(client, of_client + 1);
        Some(Counted {
            all: self.clone(),
            client,
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        if let Some(count) = all.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.client);
            }
        }
    }
}

/// Accepts connections until it is dropped.
pub async fn serve(listener: TcpListener, responder: Arc<Responder>, connections: Arc<Connections>) {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, client)) => match connections.count(client.ip()) {
                    Some(counted) => {
                        let responder = responder.clone();
                        tasks.spawn(async move {
                            if let Err(error) = answer_all(stream, client, &responder).await {
                                debug!(%client, %error, "connection ended");
                            }
                            drop(counted);
                        });
                    }
                    None => responder.metrics.closed.inc(),
                },
                Err(error) => {
                    debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(RETRY).await;
                }
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// The next question; `None` where the client has none.
async fn read(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let length = match stream.read_u16().await {
        Ok(length) => usize::from(length),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    if length > QUESTION_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the question is too long",
        ));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(Some(bytes))
}

async fn answer_all(mut stream: TcpStream, client: SocketAddr, responder: &Arc<Responder>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let bytes = match timeout(QUESTION, read(&mut stream)).await {
            Ok(Ok(Some(bytes))) => bytes,
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                responder.metrics.closed.inc();
                return Ok(());
            }
        };
        let begun = Instant::now();
        let mut out = vec![0, 0];
        match responder.respond(&bytes, client.ip().to_canonical(), Transport::Tcp, &mut out) {
            // Who sends what is no question is not listened to any longer.
            Next::Dropped => return Ok(()),
            Next::Answered => {}
            Next::Elsewhere(answer) => out.extend(responder.complete(&bytes, Transport::Tcp, answer).await),
        }
        let length = u16::try_from(out.len() - 2).map_err(io::Error::other)?;
        out[..2].copy_from_slice(&length.to_be_bytes());
        responder
            .metrics
            .count_answer(message::code_of(&out[2..]), begun.elapsed());
        timeout(ANSWER, stream.write_all(&out)).await??;
    }
}
