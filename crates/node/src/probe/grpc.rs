//! The `grpc` probe: gRPC's health check, declared by hand (two fields).

use std::time::Duration;

use k8s_openapi::api::core::v1::GRPCAction;
use knarr_api::k8s_openapi;
use knarr_kubelet::probe::Answer;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;

use super::authority;

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: i32 = 1;

pub(super) async fn check(host: &str, action: &GRPCAction, limit: Duration) -> Answer {
    let Ok(port) = u16::try_from(action.port) else {
        return Answer::Unknown(format!("invalid port number: {}", action.port));
    };
    let at = authority(host, port);
    let service = action.service.clone().unwrap_or_default();
    let asked = tokio::time::timeout(limit, async {
        let endpoint = Endpoint::from_shared(format!("http://{at}")).map_err(|e| e.to_string())?;
        let channel = endpoint.connect().await.map_err(|_| {
            format!(
                "timeout: failed to connect service {at:?} within {}s",
                limit.as_secs()
            )
        })?;
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.map_err(|e| e.to_string())?;
        let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        let request = tonic::Request::new(HealthCheckRequest { service });
        let answer = grpc.unary(request, path, codec).await;
        answer
            .map(|a| a.into_inner().status)
            .map_err(|status| format!("error: {}", status.message()))
    });
    match asked.await {
        Ok(Ok(SERVING)) => Answer::Success,
        Ok(Ok(status)) => {
            let name = if status == 2 { "NOT_SERVING" } else { "UNKNOWN" };
            Answer::Failure(format!("service unhealthy (responded with {name:?})"))
        }
        Ok(Err(why)) => Answer::Failure(why),
        Err(_) => Answer::Failure(format!(
            "timeout: failed to connect service {at:?} within {}s: context deadline exceeded",
            limit.as_secs()
        )),
    }
}
