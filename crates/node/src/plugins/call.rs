//! One unary call of a plugin: gRPC over its unix socket, with a deadline.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use hyper_util::rt::TokioIo;
pub use tonic::Code;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};

use super::error::CallError;
pub use crate::grpc::Call;
pub(crate) use crate::grpc::methods;
use crate::grpc::{BytesCodec, decode};
use crate::host::Host;

/// Calls the plugin at the socket, a process or a fake one of the host.
pub async fn call_on<C: Call>(
    host: &dyn Host,
    socket: &Path,
    request: C,
    within: Duration,
) -> Result<C::Answer, CallError> {
    let fake = host.call_plugin(socket, C::PATH, prost::Message::encode_to_vec(&request));
    let answer = match tokio::time::timeout(within, fake).await {
        Ok(None) => return call(socket, request, within).await,
        Ok(Some(answer)) => answer?,
        Err(_) => return Err(CallError::deadline_exceeded()),
    };
    decode(&answer).map_err(CallError::from)
}

/// Calls the plugin that listens at the socket.
pub async fn call<C: Call>(socket: &Path, request: C, within: Duration) -> Result<C::Answer, CallError> {
    call_method(socket, C::PATH, request, within).await
}

/// Likewise, of a service that has the same messages under another name.
pub async fn call_method<C: Call>(
    socket: &Path,
    method: &'static str,
    request: C,
    within: Duration,
) -> Result<C::Answer, CallError> {
    let request = Bytes::from(prost::Message::encode_to_vec(&request));
    let answer = call_bytes(socket, method, request, within).await?;
    decode(&answer).map_err(CallError::from)
}

async fn call_bytes(
    socket: &Path,
    method: &'static str,
    request: Bytes,
    within: Duration,
) -> Result<Bytes, CallError> {
    let calling = async {
        let mut grpc = tonic::client::Grpc::new(connect(socket));
        grpc.ready().await.map_err(|e| CallError::unavailable(&e))?;
        let path = PathAndQuery::from_static(method);
        let answer = grpc.unary(tonic::Request::new(request), path, BytesCodec).await?;
        Ok(answer.into_inner())
    };
    let timed = tokio::time::timeout(within, calling).await;
    timed.unwrap_or_else(|_| Err(CallError::deadline_exceeded()))
}

/// Starts a call with a stream as answer. Only its start has a deadline: the stream lasts as long as the plugin.
pub async fn stream<C: Call>(
    socket: &Path,
    request: C,
    within: Duration,
) -> Result<tonic::Streaming<C::Answer>, CallError> {
    let calling = async {
        let mut grpc = tonic::client::Grpc::new(connect(socket));
        grpc.ready().await.map_err(|e| CallError::unavailable(&e))?;
        let codec = tonic_prost::ProstCodec::<C, C::Answer>::default();
        let path = PathAndQuery::from_static(C::PATH);
        let answer = grpc
            .server_streaming(tonic::Request::new(request), path, codec)
            .await?;
        Ok(answer.into_inner())
    };
    let timed = tokio::time::timeout(within, calling).await;
    timed.unwrap_or_else(|_| Err(CallError::deadline_exceeded()))
}

fn connect(socket: &Path) -> Channel {
    let path = PathBuf::from(socket);
    // The authority is not an address: the connector uses the socket.
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(tower::service_fn(move |_| {
        let path = path.clone();
        async move {
            let stream = tokio::net::UnixStream::connect(path).await?;
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    }))
}
