//! The kubelet's own gRPC servers on unix sockets, which plugins and monitoring agents of the node call.
//!
//! A connection and a request have deadlines, and the number of connections is limited: a client that hangs or floods
//! takes no more than its share.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tonic::Status;
use tracing::{debug, warn};

use super::Call;
use super::authority::ReadableAuthority;
use crate::untrusted_fs::{Dir, Kind};

pub type Answer = Response<tonic::body::Body>;

/// Connections of one server at a time: more than any node has plugins and agents.
const CONNECTIONS: usize = 64;
/// Requests of one connection at a time.
const STREAMS: u32 = 32;
/// Deadline of one request, its body included.
const REQUEST: Duration = Duration::from_secs(30);
/// After accepting failed (no file descriptors are left).
const RETRY: Duration = Duration::from_secs(1);
/// When an idle connection is pinged, and how long the answer may take.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// Answers requests by their path.
#[async_trait]
pub trait Service: Send + Sync + 'static {
    async fn answer(&self, request: Request<Incoming>) -> Answer;
}

/// Listens at a socket of this name in a directory, in place of a former kubelet's.
pub fn listen(directory: &Path, name: &str, mode: u32) -> io::Result<UnixListener> {
    let open = Dir::make(directory, mode)?;
    if open.kind(name)? == Some(Kind::Socket) {
        open.remove_file(name)?;
    }
    UnixListener::bind(directory.join(name))
}

/// Serves until dropped.
pub async fn serve<S: Service>(listener: UnixListener, service: Arc<S>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "cannot accept a connection of a plugin");
                sleep(RETRY).await;
                continue;
            }
        };
        let service = service.clone();
        connections.spawn(async move {
            let _permit = permit;
            let answer = service_fn(move |request| {
                let service = service.clone();
                async move {
                    let answer = timeout(REQUEST, service.answer(request)).await;
                    let late = |_| Status::deadline_exceeded("context deadline exceeded").into_http();
                    Ok::<_, Infallible>(answer.unwrap_or_else(late))
                }
            });
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .keep_alive_interval(KEEP_ALIVE.0)
                .keep_alive_timeout(KEEP_ALIVE.1)
                .serve_connection(TokioIo::new(ReadableAuthority::new(stream)), answer);
            if let Err(error) = connection.await {
                debug!(%error, "a plugin's connection ended");
            }
        });
    }
}

/// Decodes a request, has it answered, and encodes what comes of it.
pub async fn unary<C: Call, F>(request: Request<Incoming>, answer: impl FnOnce(C) -> F) -> Answer
where
    F: Future<Output = Result<C::Answer, Status>>,
{
    let codec = tonic_prost::ProstCodec::<C::Answer, C>::default();
    let mut answer = Some(answer);
    let service = tower::service_fn(move |request: tonic::Request<C>| {
        let answering = answer.take().map(|answer| answer(request.into_inner()));
        async move {
            match answering {
                Some(answering) => answering.await.map(tonic::Response::new),
                None => Err(Status::internal("a unary call has one request")),
            }
        }
    });
    let request = request.map(tonic::body::Body::new);
    tonic::server::Grpc::new(codec).unary(service, request).await
}

/// The answer to a method that the server does not have.
pub fn unimplemented(request: &Request<Incoming>) -> Answer {
    let path = request.uri().path();
    Status::unimplemented(format!("unknown method {path}")).into_http()
}
