//! TLS connections for hyper's connection pools: the connector that opens them, and its errors as Go prints them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::Error as ClientError;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::Service;

/// Opens the connection that TLS runs over.
pub(crate) trait Dial: Clone + Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Connects to `address`, a `host:port`.
    fn dial(&self, address: String) -> BoxFuture<'static, io::Result<Self::Stream>>;
}

/// Opens TLS connections to the addresses of one server.
#[derive(Clone)]
pub(crate) struct Connector<D> {
    pub dialer: D,
    pub tls: Arc<ClientConfig>,
    /// The name that the server's certificate must be valid for, whichever address is dialed.
    pub server_name: ServerName<'static>,
    /// The timeout of a connection with its TLS handshake; `None` if the caller has one.
    pub timeout: Option<Duration>,
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("dial tcp {0}: connect: {why}", why = dial_error(.1))]
    Dial(String, io::Error),
    #[error("dial tcp {0}: i/o timeout")]
    Timeout(String),
    #[error("tls: failed to verify certificate: {0}")]
    Tls(io::Error),
}

impl<D: Dial> Connector<D> {
    pub fn connect(&self, address: String) -> BoxFuture<'static, Result<TlsStream<D::Stream>, ConnectError>> {
        let connector = self.clone();
        Box::pin(async move {
            let Some(timeout) = connector.timeout else {
                return connector.dial_tls(&address).await;
            };
            match tokio::time::timeout(timeout, connector.dial_tls(&address)).await {
                Ok(connected) => connected,
                Err(_) => Err(ConnectError::Timeout(address)),
            }
        })
    }

    async fn dial_tls(&self, address: &str) -> Result<TlsStream<D::Stream>, ConnectError> {
        let stream = match self.dialer.dial(address.to_string()).await {
            Ok(stream) => stream,
            Err(e) => return Err(ConnectError::Dial(address.to_string(), e)),
        };
        TlsConnector::from(self.tls.clone())
            .connect(self.server_name.clone(), stream)
            .await
            .map_err(ConnectError::Tls)
    }
}

impl<D: Dial> Service<Uri> for Connector<D> {
    type Response = PooledStream<D::Stream>;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let address = uri.authority().map(ToString::to_string).unwrap_or_default();
        let connecting = self.connect(address);
        Box::pin(async move { Ok(PooledStream::new(connecting.await?)) })
    }
}

/// The innermost source of a client's error.
pub(crate) fn innermost_error(error: &ClientError) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// The text of a connection error as Go prints it.
pub(crate) fn dial_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        _ => error.to_string(),
    }
}

/// A TLS connection in a pool.
pub(crate) struct PooledStream<S>(TokioIo<TlsStream<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> PooledStream<S> {
    pub fn new(stream: TlsStream<S>) -> Self {
        PooledStream(TokioIo::new(stream))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection for PooledStream<S> {
    fn connected(&self) -> Connected {
        let protocol = self.0.inner().get_ref().1.alpn_protocol();
        match protocol {
            Some(b"h2") => Connected::new().negotiated_h2(),
            _ => Connected::new(),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Read for PooledStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Write for PooledStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }
}
