//! Small HTTP/1.1 servers that answer every request from memory, and hold little per connection.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::debug;

/// Connections of one server at once; more wait in the listener's queue.
const CONNECTIONS: usize = 64;
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a request's head.
const HEAD_BYTES: usize = 8 << 10;
/// A client has to reconnect after this time.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// After an error of the listener itself, such as no descriptors left.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What is answered to a request.
pub(super) type Answer = dyn Fn(&Request<Incoming>) -> Response<Full<Bytes>> + Send + Sync;

/// Answers every client until it is dropped; connections end with it.
pub(super) async fn serve(listener: TcpListener, answer: Arc<Answer>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let (stream, _): (_, SocketAddr) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!(%error, "cannot accept a connection");
                sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let answer = answer.clone();
        connections.spawn(async move {
            let service = service_fn(|request| {
                let response = answer(&request);
                async { Ok::<_, Infallible>(response) }
            });
            let mut server = hyper::server::conn::http1::Builder::new();
            server
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(HEAD_BYTES);
            let connection = server.serve_connection(TokioIo::new(stream), service);
            if let Ok(Err(error)) = timeout(CONNECTION_TIMEOUT, connection).await {
                debug!(%error, "a connection ended early");
            }
            drop(place);
        });
    }
}
