//! A connection: one task that reads frames and hands them to streams, one that writes what streams queued.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::frame::{Control, HEAD_BYTES, Head, Malformed, Reset, write_data_head};
use super::headers::{HeaderDecoder, HeaderEncoder, HeaderError, Headers, MAX_BLOCK_BYTES};
use super::outbox::OutgoingFrame;
use super::shared::{End, Piece, Role, Shared};
use super::stream::Stream;
use crate::streams::PING_PERIOD;

/// Streams open at once; further ones are reset. A forwarded connection takes two.
const MAX_STREAMS: usize = 1000;
const MAX_PIECE_BYTES: usize = 32 * 1024;
/// The largest control frame accepted: a header block and its prefix.
const MAX_CONTROL_BYTES: usize = MAX_BLOCK_BYTES + 10;
/// Streams that the peer has opened and that are not accepted yet.
const MAX_ARRIVALS: usize = 32;
/// How long a peer may take to answer the opening of a stream, as in client-go.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a closing connection may take to send what it still has.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the peer may take to close its side after ours: closing a socket with unread bytes in it would discard what
/// the peer has not read yet.
const LINGER: Duration = Duration::from_secs(2);

/// Why a connection ended, or a stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SpdyError {
    #[error("reading or writing the SPDY connection")]
    Io(#[from] std::io::Error),
    #[error("the peer sent a malformed SPDY frame")]
    Malformed(#[from] Malformed),
    #[error("the peer sent SPDY headers that cannot be read")]
    Headers(#[from] HeaderError),
    #[error("the peer violated the SPDY protocol: {0}")]
    Protocol(&'static str),
    #[error("the peer rejected the stream ({0:?})")]
    Reset(Reset),
    #[error("the SPDY connection is closed")]
    Closed,
    #[error("the peer did not answer the opening of a stream in {} s", REPLY_TIMEOUT.as_secs())]
    NoReply,
}

/// One end of a SPDY/3.1 connection. Dropping it closes the connection; [`Connection::close`] waits until what was
/// written is out.
pub struct Connection {
    shared: Arc<Shared>,
    closed: CancellationToken,
    reader: JoinHandle<()>,
    writer: Option<JoinHandle<()>>,
}

/// The streams the peer opens, in order.
pub struct Incoming {
    arrivals: mpsc::Receiver<Arrival>,
}

/// A stream that the peer opens. Dropping it resets it.
pub struct Arrival {
    stream: Option<Stream>,
}

impl Incoming {
    /// `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<Arrival> {
        self.arrivals.recv().await
    }
}

impl Arrival {
    pub fn headers(&self) -> Option<&Headers> {
        self.stream.as_ref().map(Stream::headers)
    }

    /// Accepts, so that the peer starts to use it.
    pub fn accept(mut self) -> Result<Stream, SpdyError> {
        let stream = self.stream.take().ok_or(SpdyError::Closed)?;
        let reply = OutgoingFrame::Reply { stream: stream.id() };
        stream
            .shared()
            .outbox
            .push(reply)
            .map_err(|_| SpdyError::Closed)?;
        Ok(stream)
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.reset(Reset::RefusedStream);
        }
    }
}

impl Connection {
    /// Begins to speak over `io`.
    pub fn start<T>(io: T, role: Role) -> Result<(Connection, Incoming), SpdyError>
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        let packer = HeaderEncoder::new()?;
        let shared = Arc::new(Shared::new(role));
        let closed = CancellationToken::new();
        let (read, write) = tokio::io::split(io);
        let (arrived, arrivals) = mpsc::channel(MAX_ARRIVALS);
        let reader = crate::task::spawn({
            let (shared, closed) = (shared.clone(), closed.clone());
            async move {
                match read_frames(BufReader::with_capacity(MAX_PIECE_BYTES, read), &shared, &arrived).await {
                    Ok(()) => tracing::trace!("SPDY connection ended"),
                    Err(error) => {
                        tracing::debug!(error = &error as &dyn std::error::Error, "SPDY connection broke")
                    }
                }
                shared.fail();
                closed.cancel();
            }
        });
        let writer = crate::task::spawn({
            let (shared, closed) = (shared.clone(), closed.clone());
            async move {
                if let Err(error) = write_frames(write, &shared, packer).await {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "SPDY connection cannot be written"
                    );
                    shared.fail();
                    closed.cancel();
                }
            }
        });
        Ok((
            Connection {
                shared,
                closed,
                reader,
                writer: Some(writer),
            },
            Incoming { arrivals },
        ))
    }

    /// Opens a stream and waits for the peer's answer.
    pub async fn open(&self, headers: Headers) -> Result<Stream, SpdyError> {
        let (answered, answer) = oneshot::channel();
        let stream = {
            let mut table = self.shared.table.lock();
            if table.broken || table.streams.len() >= MAX_STREAMS {
                return Err(SpdyError::Closed);
            }
            let id = match (self.shared.role, table.last_own) {
                (Role::Client, 0) => 1,
                (_, last) => last + 2,
            };
            let inbound = self.shared.add(&mut table, id, End::Open, Some(answered));
            // Queued under the lock, so that numbers only rise on the wire.
            let open = OutgoingFrame::Open {
                stream: id,
                headers: headers.clone(),
            };
            if self.shared.outbox.push(open).is_err() {
                table.streams.remove(&id);
                return Err(SpdyError::Closed);
            }
            Stream::new(id, headers, inbound, self.shared.clone())
        };
        match tokio::time::timeout(REPLY_TIMEOUT, answer).await {
            Ok(Ok(())) => Ok(stream),
            Ok(Err(_)) => {
                let first_error = self.shared.reset(stream.id());
                Err(first_error.map_or(SpdyError::Closed, SpdyError::Reset))
            }
            Err(_) => Err(SpdyError::NoReply),
        }
    }

    /// Resolves when the peer has disconnected or the connection broke.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Sends GOAWAY and what is queued, and closes. The wait for a slow peer is bounded.
    pub async fn close(mut self) {
        self.say_goodbye();
        if let Some(writer) = self.writer.take() {
            let abort = writer.abort_handle();
            match tokio::time::timeout(CLOSE_TIMEOUT, writer).await {
                Ok(_) => drop(tokio::time::timeout(LINGER, self.closed()).await),
                Err(_) => abort.abort(),
            }
        }
    }

    fn say_goodbye(&self) {
        let last_stream = self.shared.table.lock().last_peer;
        // It may be closed already.
        let _ = self.shared.outbox.push(OutgoingFrame::GoAway { last_stream });
        self.shared.outbox.close(false);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.say_goodbye();
        self.reader.abort();
        let mut table = self.shared.table.lock();
        table.broken = true;
        table.streams.values_mut().for_each(|entry| entry.inbound = None);
    }
}

async fn read_frames<R: AsyncRead + Unpin>(
    mut io: R,
    shared: &Arc<Shared>,
    arrived: &mpsc::Sender<Arrival>,
) -> Result<(), SpdyError> {
    let mut opener = HeaderDecoder::new();
    loop {
        let mut head = [0; HEAD_BYTES];
        match io.read_exact(&mut head).await {
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        match Head::parse(head)? {
            Head::Data { stream, fin, length } => read_data(&mut io, shared, stream, fin, length).await?,
            Head::Control { kind, flags, length } => {
                if length > MAX_CONTROL_BYTES {
                    return Err(SpdyError::Protocol("control frame too long"));
                }
                let mut body = BytesMut::zeroed(length);
                io.read_exact(&mut body).await?;
                let control = Control::parse(kind, flags, body.freeze())?;
                take_control(control, &mut opener, shared, arrived).await?;
            }
        }
    }
}

/// Passes the payload to its stream piece by piece. Data without a reader is dropped.
async fn read_data<R: AsyncRead + Unpin>(
    io: &mut R,
    shared: &Shared,
    stream: u32,
    fin: bool,
    mut length: usize,
) -> Result<(), SpdyError> {
    let inbound = shared
        .table
        .lock()
        .streams
        .get(&stream)
        .and_then(|entry| entry.inbound.clone());
    while length > 0 {
        let mut piece = BytesMut::with_capacity(length.min(MAX_PIECE_BYTES));
        let read = (&mut *io)
            .take(length.min(MAX_PIECE_BYTES) as u64)
            .read_buf(&mut piece)
            .await?;
        if read == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        length -= read;
        if let Some(inbound) = &inbound {
            // A piece is smaller than what there is room for, and the semaphore is never closed.
            let size = u32::try_from(read).map_err(|_| SpdyError::Protocol("data frame too long"))?;
            let room = shared.unread.clone().acquire_many_owned(size);
            let piece = Piece {
                bytes: piece.freeze(),
                _permit: room.await.map_err(|_| SpdyError::Closed)?,
            };
            // An error means that the stream was dropped.
            let _ = inbound.send(piece).await;
        }
    }
    if fin {
        shared.fin(stream);
    }
    Ok(())
}

async fn take_control(
    control: Control,
    opener: &mut HeaderDecoder,
    shared: &Arc<Shared>,
    arrived: &mpsc::Sender<Arrival>,
) -> Result<(), SpdyError> {
    match control {
        Control::SynStream {
            stream, fin, block, ..
        } => {
            let headers = opener.open(&block)?;
            let added = {
                let mut table = shared.table.lock();
                if shared.role.owns(stream) || stream == 0 || stream <= table.last_peer {
                    return Err(SpdyError::Protocol("stream number that is not the peer's next"));
                }
                if table.streams.len() >= MAX_STREAMS {
                    table.last_peer = stream;
                    None
                } else {
                    let end = if fin { End::Fin } else { End::Open };
                    Some(shared.add(&mut table, stream, end, None))
                }
            };
            match added {
                Some(inbound) => {
                    let stream = Stream::new(stream, headers, inbound, shared.clone());
                    // Dropped, and so reset, when streams are not accepted any more.
                    let _ = arrived.send(Arrival { stream: Some(stream) }).await;
                }
                None => push(
                    shared,
                    OutgoingFrame::Reset {
                        stream,
                        reset: Reset::RefusedStream,
                    },
                )?,
            }
        }
        Control::SynReply { stream, fin, block } => {
            opener.open(&block)?;
            let reply = shared
                .table
                .lock()
                .streams
                .get_mut(&stream)
                .and_then(|entry| entry.reply.take());
            if let Some(reply) = reply {
                // An error means that the opener has stopped waiting.
                let _ = reply.send(());
            }
            if fin {
                shared.fin(stream);
            }
        }
        Control::Headers { stream, fin, block } => {
            opener.open(&block)?;
            if fin {
                shared.fin(stream);
            }
        }
        Control::RstStream { stream, reset } => shared.torn_down(stream, reset),
        // The peer's pings are answered; answers to ours are ignored.
        Control::Ping(id) if shared.role.owns(id) => {}
        Control::Ping(id) => push(shared, OutgoingFrame::Ping(id))?,
        // The peer opens nothing more and lets running streams end; so do we.
        Control::GoAway { .. } | Control::Ignored(_) => {}
    }
    Ok(())
}

/// Queues the reader's frames for the writer. While the connection is closing nothing more is queued.
fn push(shared: &Shared, out: OutgoingFrame) -> Result<(), SpdyError> {
    shared.outbox.push(out).map_err(|_| SpdyError::Closed)
}

async fn write_frames<W: AsyncWrite + Unpin>(
    mut io: W,
    shared: &Shared,
    mut packer: HeaderEncoder,
) -> Result<(), SpdyError> {
    let mut pings = (2..u32::MAX).step_by(2).cycle();
    loop {
        let out = match shared.role {
            Role::Client => shared.outbox.pop().await,
            Role::Server => match tokio::time::timeout(PING_PERIOD, shared.outbox.pop()).await {
                Ok(out) => out,
                Err(_) => pings.next().map(OutgoingFrame::OwnPing),
            },
        };
        let Some(out) = out else { break };
        let mut bytes = BytesMut::new();
        match out {
            OutgoingFrame::Open { stream, headers } => {
                let block = packer.pack(&headers)?;
                Control::SynStream {
                    stream,
                    fin: false,
                    unidirectional: false,
                    block,
                }
                .write(&mut bytes);
            }
            OutgoingFrame::Reply { stream } => {
                let block = packer.pack(&Headers::default())?;
                Control::SynReply {
                    stream,
                    fin: false,
                    block,
                }
                .write(&mut bytes);
            }
            OutgoingFrame::Data {
                stream,
                bytes: data,
                fin,
            } => {
                write_data_head(&mut bytes, stream, fin, data.len());
                io.write_all(&bytes).await?;
                bytes.clear();
                io.write_all(&data).await?;
            }
            OutgoingFrame::Reset { stream, reset } => Control::RstStream { stream, reset }.write(&mut bytes),
            OutgoingFrame::Ping(id) | OutgoingFrame::OwnPing(id) => Control::Ping(id).write(&mut bytes),
            OutgoingFrame::GoAway { last_stream } => Control::GoAway {
                last_stream,
                status: 0,
            }
            .write(&mut bytes),
        }
        io.write_all(&bytes).await?;
        if shared.outbox.is_empty() {
            io.flush().await?;
        }
    }
    io.shutdown().await?;
    Ok(())
}
