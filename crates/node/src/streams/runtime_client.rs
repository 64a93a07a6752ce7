//! The runtime's stream server, dialled: `POST` to the URL that CRI's Exec or Attach gave, upgraded to SPDY.
//!
//! Always SPDY and always `v4.channel.k8s.io`: containerd's WebSocket side cannot end stdin alone.

use http::header::{CONNECTION, HOST, UPGRADE};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::options::Options;
use super::spdy::{Connection, Headers, Role, SpdyError, Stream};
use super::upgrade::{SPDY, STREAM_PROTOCOL};

const PROTOCOL: &str = "v4.channel.k8s.io";
/// How much of an error's text is shown.
const MAX_ERROR_BYTES: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub enum RuntimeClientError {
    #[error("the runtime returned {url:?} as the address of its streams, expected http://host:port/path")]
    Url { url: String },
    #[error("connecting to the runtime's stream server at {address}")]
    Connect { address: String, source: std::io::Error },
    #[error("speaking HTTP to the runtime's stream server")]
    Http(#[from] hyper::Error),
    #[error("the runtime's stream server answered {status}: {message}")]
    Rejected { status: StatusCode, message: String },
    #[error("speaking SPDY to the runtime's stream server")]
    Spdy(#[from] SpdyError),
}

/// A connection that waits for its streams; the command starts when it has them all.
pub struct RuntimeConnection(Connection);

/// The runtime's ends.
pub struct RuntimeStreams {
    pub error: Stream,
    pub stdin: Option<Stream>,
    pub stdout: Option<Stream>,
    pub stderr: Option<Stream>,
    pub resize: Option<Stream>,
    /// Closes all when dropped.
    pub connection: Connection,
}

/// Dials and upgrades.
pub async fn connect(url: &str) -> Result<RuntimeConnection, RuntimeClientError> {
    let bad_url = || RuntimeClientError::Url { url: url.to_string() };
    let uri: Uri = url.parse().map_err(|_| bad_url())?;
    let authority = uri
        .authority()
        .filter(|_| uri.scheme_str() == Some("http"))
        .ok_or_else(bad_url)?;
    let address = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80));
    let connect = |source| RuntimeClientError::Connect {
        address: address.clone(),
        source,
    };
    let socket = TcpStream::connect(&address).await.map_err(connect)?;
    socket.set_nodelay(true).map_err(connect)?;

    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
    let serving = crate::task::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "connection to the runtime's stream server broke");
        }
    });
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::new(Empty::<bytes::Bytes>::new());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = path.parse().map_err(|_| bad_url())?;
    let headers = request.headers_mut();
    headers.insert(HOST, authority.as_str().parse().map_err(|_| bad_url())?);
    headers.insert(CONNECTION, http::HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, http::HeaderValue::from_static(SPDY));
    headers.insert(STREAM_PROTOCOL, http::HeaderValue::from_static(PROTOCOL));

    let response = sender.send_request(request).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let status = response.status();
        let message = match Limited::new(response.into_body(), MAX_ERROR_BYTES)
            .collect()
            .await
        {
            Ok(body) => String::from_utf8_lossy(&body.to_bytes()).trim().to_string(),
            Err(error) => format!("(its text could not be read: {error})"),
        };
        serving.abort();
        return Err(RuntimeClientError::Rejected { status, message });
    }
    let io = TokioIo::new(hyper::upgrade::on(response).await?);
    // The runtime opens no streams, so none are accepted.
    let (connection, _) = Connection::start(io, Role::Client)?;
    Ok(RuntimeConnection(connection))
}

impl RuntimeConnection {
    /// Opens the streams of `options`, in client-go's order.
    pub async fn streams(self, options: Options) -> Result<RuntimeStreams, RuntimeClientError> {
        let connection = self.0;
        let open = async |desired: bool, kind| -> Result<Option<Stream>, SpdyError> {
            match desired {
                true => connection
                    .open(Headers::from_iter([("streamType", kind)]))
                    .await
                    .map(Some),
                false => Ok(None),
            }
        };
        let error = open(true, "error").await?.ok_or(SpdyError::Closed)?;
        let stdin = open(options.stdin, "stdin").await?;
        let stdout = open(options.stdout, "stdout").await?;
        let stderr = open(options.stderr, "stderr").await?;
        let resize = open(options.tty, "resize").await?;
        Ok(RuntimeStreams {
            error,
            stdin,
            stdout,
            stderr,
            resize,
            connection,
        })
    }
}
