//! Exec and attach: a client's streams, of any protocol, joined with the runtime's.
//!
//! Promises: stdin's end reaches the process where the client's protocol can express it (SPDY, WebSocket v5); all
//! output arrives before the status; the status (exit code and all) arrives in the client's protocol's form; when a
//! client disconnects, the runtime's connection is closed.

use std::convert::Infallible;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use super::options::Options;
use super::runtime_client::{RuntimeConnection, RuntimeStreams};
use super::spdy;
use super::upgrade::Upgrade;
use super::websocket::channels::{Channels, Form};
use super::{Reader, Writer};

/// The protocols offered to SPDY clients, newest first.
pub const SPDY_PROTOCOLS: &[&str] = &[
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
];
/// The protocols offered to WebSocket clients.
pub const WEBSOCKET_PROTOCOLS: &[&str] = &[
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
];

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;

/// How long a SPDY client may take to open its streams, as in the kubelet.
const STREAMS_TIMEOUT: Duration = Duration::from_secs(30);
/// A status is a few hundred bytes.
const MAX_STATUS_BYTES: u64 = 64 * 1024;
const COPY_BUFFER_BYTES: usize = 32 * 1024;

/// How the client receives the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StatusForm {
    /// v4 and later: a Status, also for success.
    Json,
    /// Before: the text of a failure, nothing for success.
    Text,
}

impl StatusForm {
    fn of(protocol: Option<&str>) -> Self {
        match protocol {
            Some("v5.channel.k8s.io" | "v4.channel.k8s.io" | "v4.base64.channel.k8s.io") => StatusForm::Json,
            _ => StatusForm::Text,
        }
    }

    fn render(self, status: &Value) -> Vec<u8> {
        match self {
            StatusForm::Json => status.to_string().into_bytes(),
            StatusForm::Text if status["status"] == "Success" => Vec::new(),
            StatusForm::Text => status["message"].as_str().unwrap_or("unknown error").into(),
        }
    }
}

/// Why a client's streams could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("speaking SPDY to the client")]
    Spdy(#[from] spdy::SpdyError),
    #[error("timed out waiting for client to create streams")]
    TimedOut,
    #[error("the client disconnected before it had created its streams")]
    Left,
}

enum ClientConnection {
    Spdy(spdy::Connection),
    WebSocket(Channels),
}

impl ClientConnection {
    async fn closed(&self) {
        match self {
            ClientConnection::Spdy(connection) => connection.closed().await,
            ClientConnection::WebSocket(channels) => channels.closed().await,
        }
    }

    async fn close(self) {
        match self {
            ClientConnection::Spdy(connection) => connection.close().await,
            ClientConnection::WebSocket(channels) => channels.close().await,
        }
    }
}

/// The client's ends.
struct StreamEnds {
    error: Writer,
    stdin: Option<Reader>,
    stdout: Option<Writer>,
    stderr: Option<Writer>,
    resize: Option<Reader>,
}

/// A client with all of its streams.
pub struct ClientStreams {
    ends: StreamEnds,
    status: StatusForm,
    connection: ClientConnection,
}

impl ClientStreams {
    /// Speaks what was agreed on over the upgraded connection.
    pub async fn accept<T>(io: T, upgrade: &Upgrade, options: Options) -> Result<Self, ClientError>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        match upgrade {
            Upgrade::Spdy { protocol } => Self::accept_spdy(io, *protocol, options).await,
            Upgrade::WebSocket { protocol, .. } => Ok(Self::accept_websocket(io, *protocol, options).await),
        }
    }

    async fn accept_websocket<T>(io: T, protocol: Option<&str>, options: Options) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let form = Form {
            base64: protocol.is_some_and(|p| p.contains("base64")),
            close_signal: protocol == Some("v5.channel.k8s.io"),
        };
        let desired = [(STDIN, options.stdin), (RESIZE, options.tty)];
        let readable = desired
            .into_iter()
            .filter_map(|(channel, desired)| desired.then_some(channel));
        let mut channels = Channels::start(io, form, readable).await;
        let first = match options {
            Options { stdout: true, .. } => STDOUT,
            Options { stderr: true, .. } => STDERR,
            _ => ERROR,
        };
        // v5 clients learn it from the handshake. client-go up to v1.32 may read the message before it has created its
        // streams, and then reports an unknown stream.
        if !form.close_signal {
            channels.greet(first).await;
        }
        let ends = StreamEnds {
            error: channels.writer(ERROR),
            stdin: channels.reader(STDIN),
            stdout: options.stdout.then(|| channels.writer(STDOUT)),
            stderr: options.stderr.then(|| channels.writer(STDERR)),
            resize: channels.reader(RESIZE),
        };
        ClientStreams {
            ends,
            status: StatusForm::of(protocol),
            connection: ClientConnection::WebSocket(channels),
        }
    }

    async fn accept_spdy<T>(io: T, protocol: Option<&str>, options: Options) -> Result<Self, ClientError>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (connection, mut incoming) = spdy::Connection::start(io, spdy::Role::Server)?;
        // Before v3 there was no resizing.
        let resizes = options.tty && matches!(protocol, Some("v4.channel.k8s.io" | "v3.channel.k8s.io"));
        let mut missing = [true, options.stdin, options.stdout, options.stderr, resizes]
            .iter()
            .filter(|desired| **desired)
            .count();
        let (mut error, mut stdin, mut stdout, mut stderr, mut resize) = (None, None, None, None, None);
        let deadline = Instant::now() + STREAMS_TIMEOUT;
        while missing > 0 {
            let arrival = tokio::time::timeout_at(deadline, incoming.next())
                .await
                .map_err(|_| ClientError::TimedOut)?
                .ok_or(ClientError::Left)?;
            let slot = match arrival.headers().and_then(|headers| headers.get("streamType")) {
                Some("error") => &mut error,
                Some("stdin") if options.stdin => &mut stdin,
                Some("stdout") if options.stdout => &mut stdout,
                Some("stderr") if options.stderr => &mut stderr,
                Some("resize") if resizes => &mut resize,
                other => {
                    tracing::debug!(stream = other, "client opened a stream that it did not request");
                    continue;
                }
            };
            if slot.is_none() {
                missing -= 1;
                *slot = Some(arrival.accept()?);
            }
        }
        let ends = StreamEnds {
            error: error.map(|s| Box::new(s) as Writer).ok_or(ClientError::Left)?,
            stdin: stdin.map(|s| Box::new(s) as Reader),
            stdout: stdout.map(|s| Box::new(s) as Writer),
            stderr: stderr.map(|s| Box::new(s) as Writer),
            resize: resize.map(|s| Box::new(s) as Reader),
        };
        Ok(ClientStreams {
            ends,
            status: StatusForm::of(protocol),
            connection: ClientConnection::Spdy(connection),
        })
    }

    /// Sends the status to the client, and closes.
    async fn finish(self, status: &Value) {
        let ClientStreams {
            mut ends,
            connection,
            status: form,
        } = self;
        let sent = async {
            ends.error.write_all(&form.render(status)).await?;
            ends.error.shutdown().await
        };
        if let Err(error) = sent.await {
            tracing::debug!(%error, "the client disconnected before the status was sent");
        }
        // Streams are dropped before their connection: what they have queued is sent, and their ends too.
        drop(ends);
        connection.close().await;
    }
}

/// Joins the two until the command has exited or the client has disconnected. `action` names it in errors: `executing
/// command in container`.
pub async fn run(mut client: ClientStreams, runtime: RuntimeConnection, options: Options, action: &str) {
    let work = async {
        match runtime.streams(options).await {
            // Dropped, and so closed, before the status is sent: from here on client input is not read.
            Ok(mut runtime) => join(&mut client.ends, &mut runtime, action).await,
            Err(error) => internal_error(action, &error),
        }
    };
    let status = tokio::select! {
        status = work => status,
        () = client.connection.closed() => {
            tracing::debug!(action, "client left");
            return;
        }
    };
    client.finish(&status).await;
}

async fn join(client: &mut StreamEnds, runtime: &mut RuntimeStreams, action: &str) -> Value {
    let inputs = async {
        tokio::join!(
            copy(client.stdin.take(), runtime.stdin.as_mut()),
            copy(client.resize.take(), runtime.resize.as_mut()),
        );
        std::future::pending::<Infallible>().await
    };
    let outputs = async {
        let (_, _, status) = tokio::join!(
            copy(runtime.stdout.as_mut(), client.stdout.as_mut()),
            copy(runtime.stderr.as_mut(), client.stderr.as_mut()),
            read_status(&mut runtime.error, action),
        );
        status
    };
    tokio::select! {
        status = outputs => status,
        never = inputs => match never {},
    }
}

/// Until `from` has ended; then ends `to`. What `to` does not accept any more is read and dropped, so that it blocks
/// nothing else on its connection. Errors count as ends: the status explains them.
async fn copy<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(from: Option<R>, to: Option<W>) {
    let (Some(mut from), Some(mut to)) = (from, to) else {
        return;
    };
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    let mut taken = true;
    loop {
        match from.read(&mut buffer).await {
            Ok(0) => break,
            Ok(length) if taken => taken = to.write_all(&buffer[..length]).await.is_ok(),
            Ok(_) => {}
            Err(error) => {
                tracing::trace!(%error, "stream broke off");
                break;
            }
        }
    }
    if let Err(error) = to.shutdown().await {
        tracing::trace!(%error, "stream was ended by its reader");
    }
}

/// The runtime's final status.
async fn read_status(error: &mut spdy::Stream, action: &str) -> Value {
    let mut text = Vec::new();
    let read = error.take(MAX_STATUS_BYTES).read_to_end(&mut text).await;
    match serde_json::from_slice::<Value>(&text) {
        Ok(status) if status.is_object() => status,
        _ => match (text.is_empty(), read) {
            (true, Err(error)) => internal_error(action, &error),
            (true, Ok(_)) => internal_error(action, &"the runtime closed the stream without an exit status"),
            (false, _) => internal_error(action, &String::from_utf8_lossy(&text)),
        },
    }
}

fn internal_error(action: &str, error: &(impl std::fmt::Display + ?Sized)) -> Value {
    let message = format!("Internal error occurred: error {action}: {error}");
    serde_json::json!({
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "InternalError",
        "details": {"causes": [{"message": format!("error {action}: {error}")}]},
        "code": 500,
    })
}

#[cfg(test)]
mod tests;
