//! Calls of CRI on a socket, answered by a server with the same messages.

use std::sync::Arc;

use async_trait::async_trait;
use http::Request;
use hyper::body::Incoming;
use k8s_cri::v1;

use super::Cri;
use crate::grpc::Call;
use crate::kubelet::labels;
use crate::plugins::serve::{self, Answer, Service};
use crate::runtime::Runtime;

/// Has three methods.
struct Server;

#[async_trait]
impl Service for Server {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        match request.uri().path() {
            "/runtime.v1.RuntimeService/Version" => {
                serve::unary(request, |_: v1::VersionRequest| async {
                    Ok(v1::VersionResponse {
                        runtime_name: "containerd".into(),
                        ..v1::VersionResponse::default()
                    })
                })
                .await
            }
            "/runtime.v1.RuntimeService/ListContainers" => {
                serve::unary(request, |_: v1::ListContainersRequest| async {
                    Ok(v1::ListContainersResponse {
                        containers: vec![large_container()],
                    })
                })
                .await
            }
            "/runtime.v1.RuntimeService/StopContainer" => {
                serve::unary(request, |request: v1::StopContainerRequest| async move {
                    let v1::StopContainerRequest {
                        container_id,
                        timeout,
                    } = request;
                    Err(tonic::Status::not_found(format!("{container_id} {timeout}")))
                })
                .await
            }
            _ => serve::unimplemented(&request),
        }
    }
}

/// Larger than what tonic decodes by default.
fn large_container() -> v1::Container {
    v1::Container {
        id: "c1".into(),
        labels: [(labels::POD_UID.to_string(), "u1".to_string())].into(),
        annotations: [("large".to_string(), "x".repeat(5 << 20))].into(),
        ..v1::Container::default()
    }
}

#[tokio::test]
async fn messages_limits_and_errors_of_calls_are_those_of_the_messages_types() {
    let directory = tempfile::tempdir().unwrap();
    let listener = serve::listen(directory.path(), "cri.sock", 0o700).unwrap();
    let server = tokio::spawn(serve::serve(listener, Arc::new(Server)));
    let socket = directory.path().join("cri.sock");
    let cri = Cri::new(socket.to_str().unwrap());

    let version = cri
        .call(super::READ_TIMEOUT, v1::VersionRequest::default())
        .await
        .unwrap();
    assert_eq!(version.runtime_name, "containerd");
    let containers = cri.containers().await.unwrap();
    assert_eq!(containers.len(), 1);
    assert_eq!(&*containers[0].id, "c1");
    // A container that is missing is stopped; the code and the message of other errors are passed on.
    let request = || v1::StopContainerRequest {
        container_id: "c2".into(),
        timeout: 3,
    };
    let error = cri.call(super::READ_TIMEOUT, request()).await.unwrap_err();
    assert_eq!((error.code, error.message.as_str()), ("NotFound", "c2 3"));
    let error = cri.images().await.unwrap_err();
    assert_eq!(error.code, "Unimplemented");
    assert!(error.message.contains(v1::ListImagesRequest::PATH), "{error}");

    server.abort();
    let gone = directory.path().join("no.sock");
    let error = Cri::new(gone.to_str().unwrap()).images().await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
}
