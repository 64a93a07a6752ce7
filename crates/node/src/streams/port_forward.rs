//! Port-forward: connections to a pod's ports, carried through one connection of the client's.
//!
//! Over SPDY, also tunnelled in a WebSocket, each forwarded connection is a pair of streams, `data` and `error`, opened
//! and closed independently. Over WebSocket channels there is one connection for each port in the query, with two
//! channels. Each side's end is forwarded separately, so protocols that close one half work.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::task::{AbortHandle, JoinSet};

use super::pod_network::connect_loopback;
use super::spdy::{Connection, Incoming, Reset, Role, Stream};
use super::upgrade::Upgrade;
use super::websocket::channels::{Channels, Form};
use super::websocket::tunnel::Tunnel;

pub const SPDY_PROTOCOLS: &[&str] = &[SPDY_PROTOCOL];
pub const WEBSOCKET_PROTOCOLS: &[&str] = &[TUNNEL_PROTOCOL, CHANNEL_PROTOCOL, BASE64_PROTOCOL];

const SPDY_PROTOCOL: &str = "portforward.k8s.io";
const TUNNEL_PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";
const CHANNEL_PROTOCOL: &str = "v4.channel.k8s.io";
const BASE64_PROTOCOL: &str = "v4.base64.channel.k8s.io";

/// How long the second stream of a pair may take to follow the first, as in the kubelet.
const PAIR_TIMEOUT: Duration = Duration::from_secs(30);
const COPY_BUFFER_BYTES: usize = 32 * 1024;
/// Two channels a port, numbered by a byte, the last of which has another meaning.
pub const MAX_PORTS: usize = 127;

/// Where the ports are.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name and namespace for errors: `web_default`.
    pub pod: String,
    pub uid: String,
    /// None for pods in the host's network.
    pub netns: Option<PathBuf>,
}

/// Does this form name its ports in the query?
pub fn wants_ports_in_query(upgrade: &Upgrade) -> bool {
    matches!(upgrade, Upgrade::WebSocket { protocol, .. } if *protocol != Some(TUNNEL_PROTOCOL))
}

/// Why a query names no ports; the client's error.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortsError {
    #[error("query parameter \"port\" is required")]
    None,
    #[error(
        "query parameter \"port\" names {count} ports, at most {} fit one connection",
        MAX_PORTS
    )]
    TooMany { count: usize },
    #[error("port {text:?} must be > 0")]
    Zero { text: String },
    #[error("unable to parse {text:?} as a port: {source}")]
    Parse {
        text: String,
        source: std::num::ParseIntError,
    },
}

/// Why a connection was not forwarded to its end; written to the client.
#[derive(Debug, thiserror::Error)]
#[error("error forwarding port {port} to pod {pod}, uid {uid}: {source}")]
struct ForwardError {
    port: u16,
    pod: String,
    uid: String,
    source: std::io::Error,
}

/// The ports of a query: `port=80&port=90,91`.
pub fn ports_of_query<'a>(values: impl IntoIterator<Item = &'a str>) -> Result<Vec<u16>, PortsError> {
    let mut ports = Vec::new();
    for value in values {
        for port in value.split(',') {
            ports.push(parse_port(port)?);
        }
    }
    if ports.is_empty() {
        return Err(PortsError::None);
    }
    if ports.len() > MAX_PORTS {
        return Err(PortsError::TooMany { count: ports.len() });
    }
    Ok(ports)
}

fn parse_port(text: &str) -> Result<u16, PortsError> {
    match text.parse() {
        Ok(0) => Err(PortsError::Zero { text: text.into() }),
        Ok(port) => Ok(port),
        Err(source) => Err(PortsError::Parse {
            text: text.into(),
            source,
        }),
    }
}

/// Serves the client until it leaves. `ports` are those of the query.
pub async fn run<T>(io: T, upgrade: &Upgrade, ports: Vec<u16>, target: Target)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let target = Arc::new(target);
    let started = match upgrade {
        Upgrade::Spdy { .. } => Connection::start(io, Role::Server),
        Upgrade::WebSocket {
            protocol: Some(TUNNEL_PROTOCOL),
            ..
        } => Connection::start(Tunnel::start(io).await, Role::Server),
        Upgrade::WebSocket { protocol, .. } => {
            let form = Form {
                base64: *protocol == Some(BASE64_PROTOCOL),
                close_signal: false,
            };
            return forward_channels(io, form, ports, target).await;
        }
    };
    match started {
        Ok((connection, incoming)) => forward_pairs(connection, incoming, target).await,
        Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "SPDY did not start"),
    }
}

/// Half a pair that waits for the other half.
enum Half {
    Data(Stream),
    Error(Stream),
}

async fn forward_pairs(connection: Connection, mut incoming: Incoming, target: Arc<Target>) {
    let mut waiting: HashMap<String, (Half, AbortHandle)> = HashMap::new();
    let mut overdue: JoinSet<String> = JoinSet::new();
    // Ends all that runs when the client has left.
    let mut running = JoinSet::new();
    loop {
        let arrival = tokio::select! {
            arrival = incoming.next() => match arrival {
                Some(arrival) => arrival,
                None => break,
            },
            Some(Ok(request)) = overdue.join_next() => {
                if let Some((Half::Error(mut error), _)) = waiting.remove(&request) {
                    let text = format!("(request={request}) timed out waiting for streams");
                    // A client that has disconnected does not receive it.
                    let _ = error.write_all(text.as_bytes()).await;
                }
                continue;
            }
            Some(_) = running.join_next() => continue,
        };
        let Some(headers) = arrival.headers() else {
            continue;
        };
        // Dropping an arrival resets it.
        let Some(port) = headers.get("port").and_then(|port| parse_port(port).ok()) else {
            continue;
        };
        let is_error = match headers.get("streamType") {
            Some("error") => true,
            Some("data") => false,
            _ => continue,
        };
        let request = headers.get("requestID").map(str::to_string);
        let Ok(stream) = arrival.accept() else { break };
        // Old clients number no requests; their data stream follows its error stream.
        let request = request.unwrap_or_else(|| match is_error {
            true => stream.id().to_string(),
            false => stream.id().saturating_sub(2).to_string(),
        });
        match (waiting.remove(&request), is_error) {
            (Some((Half::Error(error), timer)), false) => {
                timer.abort();
                running.spawn(forward_pair(stream, error, port, target.clone()));
            }
            (Some((Half::Data(data), timer)), true) => {
                timer.abort();
                running.spawn(forward_pair(data, stream, port, target.clone()));
            }
            (Some(half), _) => {
                tracing::debug!(request, "stream of this kind already assigned");
                waiting.insert(request, half);
            }
            (None, is_error) => {
                let half = if is_error {
                    Half::Error(stream)
                } else {
                    Half::Data(stream)
                };
                let timer = overdue.spawn({
                    let request = request.clone();
                    async move {
                        tokio::time::sleep(PAIR_TIMEOUT).await;
                        request
                    }
                });
                waiting.insert(request, (half, timer));
            }
        }
    }
    drop(running);
    drop(waiting);
    connection.close().await;
}

async fn forward_pair(mut data: Stream, mut error: Stream, port: u16, target: Arc<Target>) {
    if let Err(failed) = forward(&mut data, port, &target).await {
        tracing::debug!(error = %failed, "port-forward failed");
        // A client that has disconnected does not receive it.
        let _ = error.write_all(failed.to_string().as_bytes()).await;
        // A reset, instead of an end, reports a failure of this connection; others continue.
        data.reset(Reset::Cancel);
    }
    let _ = error.shutdown().await;
}

/// Forwards one connection until both of its halves have ended.
async fn forward<S: AsyncRead + AsyncWrite + Unpin>(
    data: &mut S,
    port: u16,
    target: &Target,
) -> Result<(), ForwardError> {
    let failed = |source: std::io::Error| ForwardError {
        port,
        pod: target.pod.clone(),
        uid: target.uid.clone(),
        source,
    };
    let mut socket = connect_loopback(target.netns.as_deref(), port)
        .await
        .map_err(|error| {
            let connect = format!("failed to connect to localhost:{port} inside the pod's network: {error}");
            failed(std::io::Error::new(error.kind(), connect))
        })?;
    socket.set_nodelay(true).map_err(failed)?;
    match copy_bidirectional_with_sizes(data, &mut socket, COPY_BUFFER_BYTES, COPY_BUFFER_BYTES).await {
        // A server that closes with input unread resets the connection: its way to end it, and not a failure here.
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => Ok(()),
        copied => copied.map(drop).map_err(failed),
    }
}

async fn forward_channels<T>(io: T, form: Form, ports: Vec<u16>, target: Arc<Target>)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let data_channel = |n: usize| (n * 2) as u8;
    let mut channels = Channels::start(io, form, (0..ports.len()).map(data_channel)).await;
    let mut connections = Vec::new();
    for (n, port) in ports.into_iter().enumerate() {
        let Some(read) = channels.reader(data_channel(n)) else {
            continue;
        };
        let mut data = tokio::io::join(read, channels.writer(data_channel(n)));
        let mut error = channels.writer(data_channel(n) + 1);
        let target = target.clone();
        connections.push(async move {
            // Each channel first names its port.
            let begin = async {
                data.write_all(&port.to_le_bytes()).await?;
                error.write_all(&port.to_le_bytes()).await
            };
            if begin.await.is_err() {
                return;
            }
            if let Err(failed) = forward(&mut data, port, &target).await {
                tracing::debug!(error = %failed, "port-forward failed");
                let _ = error.write_all(failed.to_string().as_bytes()).await;
            }
        });
    }
    tokio::select! {
        _ = join_all(connections) => channels.close().await,
        () = channels.closed() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_from_the_query() {
        assert_eq!(ports_of_query(["80", "90,91"]), Ok(vec![80, 90, 91]));
        for (value, error) in [
            ("0", "port \"0\" must be > 0"),
            (
                "70000",
                "unable to parse \"70000\" as a port: number too large to fit in target type",
            ),
            (
                "",
                "unable to parse \"\" as a port: cannot parse integer from empty string",
            ),
        ] {
            assert_eq!(ports_of_query([value]).unwrap_err().to_string(), error);
        }
        assert_eq!(ports_of_query([]), Err(PortsError::None));
        assert!(ports_of_query(["1"; MAX_PORTS + 1]).is_err());
    }
}
