//! The `grpc` probe: gRPC's health check, declared by hand (two fields).

use std::time::Duration;

use k8s_openapi::api::core::v1::GRPCAction;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_kubelet::backoff::go_seconds;
use knarr_kubelet::probe::ProbeResult;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

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
/// Pause between connection attempts: a server that is starting is awaited, within the probe's timeout.
const REDIAL: Duration = Duration::from_millis(100);

pub(super) async fn check(host: &str, action: &GRPCAction, limit: Duration) -> ProbeResult {
    let Ok(port) = u16::try_from(action.port) else {
        return ProbeResult::Unknown(format!("invalid port number: {}", action.port));
    };
    let at = authority(host, port);
    let service = action.service.clone().unwrap_or_default();
    let within = seconds(limit);
    let deadline = Instant::now() + limit;
    let connected = timeout_at(deadline, connect(&at)).await;
    let channel = match connected {
        Ok(Ok(channel)) => channel,
        Ok(Err(why)) => {
            return ProbeResult::Failure(format!("error: failed to connect service at {at:?}: {why}"));
        }
        Err(_) => {
            return ProbeResult::Failure(format!(
                "timeout: failed to connect service {at:?} within {within}: context deadline exceeded"
            ));
        }
    };
    match timeout_at(deadline, call(channel, service)).await {
        Ok(Ok(SERVING)) => ProbeResult::Success,
        Ok(Ok(status)) => {
            ProbeResult::Failure(format!("service unhealthy (responded with {:?})", name(status)))
        }
        Ok(Err(status)) => ProbeResult::Failure(match status.code() {
            Code::Unimplemented => format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
                status.message()
            ),
            Code::DeadlineExceeded => format!("timeout: health rpc did not complete within {within}"),
            code => format!(
                "error: health rpc probe failed: rpc error: code = {code:?} desc = {}",
                status.message()
            ),
        }),
        Err(_) => ProbeResult::Failure(format!("timeout: health rpc did not complete within {within}")),
    }
}

async fn connect(at: &str) -> Result<Channel, tonic::transport::Error> {
    let endpoint =
        Endpoint::from_shared(format!("http://{at}")).and_then(|e| e.user_agent("kube-probe/1.36"))?;
    loop {
        if let Ok(channel) = endpoint.connect().await {
            return Ok(channel);
        }
        sleep(REDIAL).await;
    }
}

async fn call(channel: Channel, service: String) -> Result<i32, Status> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready()
        .await
        .map_err(|e| Status::unavailable(e.to_string()))?;
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let request = tonic::Request::new(HealthCheckRequest { service });
    Ok(grpc.unary(request, path, codec).await?.into_inner().status)
}

/// As Go prints a duration.
fn seconds(limit: Duration) -> String {
    go_seconds(SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX))
}

fn name(status: i32) -> String {
    match status {
        0 => "UNKNOWN".into(),
        2 => "NOT_SERVING".into(),
        3 => "SERVICE_UNKNOWN".into(),
        other => other.to_string(),
    }
}
