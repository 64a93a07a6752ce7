//! One unary call of a plugin: gRPC over its unix socket, with a deadline.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use prost::Message;
pub use tonic::Code;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};

use super::error::CallError;
use crate::host::Host;

/// A request message, with its method and its answer type.
pub trait Call: prost::Message + Default + 'static {
    const PATH: &'static str;
    type Answer: prost::Message + Default + 'static;
}

/// Declares which method takes a request, and its answer.
macro_rules! methods {
    ($($request:ty, $path:literal => $answer:ty;)*) => {$(
        impl $crate::plugins::Call for $request {
            const PATH: &'static str = $path;
            type Answer = $answer;
        }
    )*};
}
pub(crate) use methods;

/// Calls the plugin at the socket, a process or a fake one of the host.
pub async fn call_on<C: Call>(
    host: &dyn Host,
    socket: &Path,
    request: C,
    within: Duration,
) -> Result<C::Answer, CallError> {
    let fake = host.call_plugin(socket, C::PATH, request.encode_to_vec());
    let answer = match tokio::time::timeout(within, fake).await {
        Ok(None) => return call(socket, request, within).await,
        Ok(Some(answer)) => answer?,
        Err(_) => return Err(CallError::deadline_exceeded()),
    };
    C::Answer::decode(answer.as_slice()).map_err(|error| CallError {
        code: Code::Internal,
        message: error.to_string(),
    })
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
    let calling = async {
        let mut grpc = tonic::client::Grpc::new(connect(socket));
        grpc.ready().await.map_err(|e| CallError::unavailable(&e))?;
        let codec = tonic_prost::ProstCodec::<C, C::Answer>::default();
        let path = PathAndQuery::from_static(method);
        let answer = grpc.unary(tonic::Request::new(request), path, codec).await?;
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
