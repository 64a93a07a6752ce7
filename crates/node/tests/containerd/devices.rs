//! A device plugin's device in a real container.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::Node;
use knarr_api::k8s_openapi;
use knarr_client::TypedApi;
use knarr_node::devicemanager::wire::*;
use knarr_node::plugins::call;
use knarr_node::plugins::serve::{self, Answer, Service};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::machine::{Machine, first, phase, shell};

const RESOURCE: &str = "example.com/zero";

/// Has one device, which is the kernel's `/dev/zero`.
struct Plugin;

async fn report(reported: bool) -> Option<(Result<ListAndWatchResponse, Status>, bool)> {
    if reported {
        // Nothing changes any more.
        std::future::pending::<()>().await;
    }
    let device = Device {
        id: "z0".into(),
        health: "Healthy".into(),
        topology: None,
    };
    let devices = vec![device];
    Some((Ok(ListAndWatchResponse { devices }), true))
}

async fn allocate(asked: AllocateRequest) -> Result<AllocateResponse, Status> {
    let ids = asked.container_requests.into_iter().flat_map(|r| r.devices_ids);
    let device = DeviceSpec {
        container_path: "/dev/allocated".into(),
        host_path: "/dev/zero".into(),
        permissions: "rw".into(),
    };
    let answer = ContainerAllocateResponse {
        envs: [("ALLOCATED".to_string(), ids.collect::<Vec<_>>().join(","))].into(),
        devices: vec![device],
        ..ContainerAllocateResponse::default()
    };
    Ok(AllocateResponse {
        container_responses: vec![answer],
    })
}

#[async_trait::async_trait]
impl Service for Plugin {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        match request.uri().path().rsplit('/').next() {
            Some("GetDevicePluginOptions") => {
                let none = |_: GetDevicePluginOptions| async { Ok(DevicePluginOptions::default()) };
                serve::unary(request, none).await
            }
            Some("ListAndWatch") => {
                let codec = tonic_prost::ProstCodec::<ListAndWatchResponse, ListAndWatch>::default();
                let service = tower::service_fn(|_: tonic::Request<ListAndWatch>| async {
                    let reports = futures::stream::unfold(false, report);
                    Ok::<_, Status>(tonic::Response::new(Box::pin(reports)))
                });
                let request = request.map(tonic::body::Body::new);
                tonic::server::Grpc::new(codec)
                    .server_streaming(service, request)
                    .await
            }
            Some("Allocate") => serve::unary(request, allocate).await,
            _ => serve::unimplemented(&request),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_a_container_reads_the_device_that_its_plugin_gave_it() {
    let Some(machine) = Machine::start(31).await else {
        return;
    };
    machine.ready().await;
    let directory = machine.dir.path().join("kubelet/device-plugins");
    let listener = serve::listen(&directory, "zero.sock", 0o750).unwrap();
    let serving = tokio::spawn(serve::serve(listener, Arc::new(Plugin)));
    let request = RegisterRequest {
        version: "v1beta1".into(),
        endpoint: "zero.sock".into(),
        resource_name: RESOURCE.into(),
        options: None,
    };
    let kubelet = directory.join("kubelet.sock");
    let begin = Instant::now();
    while !kubelet.exists() {
        assert!(begin.elapsed() < Duration::from_secs(20), "no {kubelet:?}");
        sleep(Duration::from_millis(10)).await;
    }
    call(&kubelet, request, Duration::from_secs(10)).await.unwrap();
    let has = async || {
        let node = machine.api.get_as::<Node>("", "n1").await.unwrap();
        let allocatable = node.status.clone().unwrap().allocatable.unwrap();
        allocatable.get(RESOURCE).map(|q| q.0.clone())
    };
    let begin = Instant::now();
    while has().await.as_deref() != Some("1") {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "the node has no {RESOURCE}"
        );
        sleep(Duration::from_millis(20)).await;
    }
    let script = "head -c 4 /dev/allocated | od -An -tx1 >/dev/termination-log; \
                  echo $ALLOCATED >>/dev/termination-log";
    let mut containers = shell(script);
    let amounts = json!({RESOURCE: "1"});
    containers[0]["resources"] = json!({"limits": amounts, "requests": amounts});
    let spec = json!({"containers": containers, "restartPolicy": "Never"});
    machine.create("a", spec).await;
    machine.wait("a", "done", |p| phase(p) == "Succeeded").await;
    let status = first(&machine.get("a").await.unwrap());
    let message = status["state"]["terminated"]["message"].as_str().unwrap();
    assert_eq!(
        message.split_whitespace().collect::<Vec<_>>(),
        ["00", "00", "00", "00", "z0"]
    );
    assert_eq!(
        status["allocatedResourcesStatus"][0]["resources"][0]["resourceID"],
        "z0"
    );
    machine.delete("a").await;
    machine.wait("a", "deleted", |p| p.is_none()).await;
    serving.abort();
    machine.end().await;
}
