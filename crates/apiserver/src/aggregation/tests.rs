//! The state of backends, without extension API servers.

use std::io;

use async_trait::async_trait;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use knarr_api::k8s_openapi;
use knarr_client::{Conn, NodeDialer};
use serde_json::json;

use super::spec::Spec;
use super::*;

/// A dialer whose nodes are all unreachable.
struct UnreachableNodes;

#[async_trait]
impl NodeDialer for UnreachableNodes {
    async fn dial(&self, _: &str) -> io::Result<Box<dyn Conn>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

fn api_service(
    group: &str,
    version: &str,
    (of_group, of_version): (i32, i32),
    available: &str,
) -> APIService {
    let value = json!({
        "metadata": {"name": format!("{version}.{group}")},
        "spec": {"group": group, "version": version, "groupPriorityMinimum": of_group, "versionPriority": of_version,
            "service": {"namespace": "ns", "name": "s"}, "insecureSkipTLSVerify": true},
        "status": {"conditions": [{"type": "Available", "status": available}]},
    });
    serde_json::from_value(value).unwrap()
}

/// A backend without downloaded documents.
pub(super) fn backend(group: &str, version: &str, priorities: (i32, i32)) -> Arc<Backend> {
    let object = api_service(group, version, priorities, "True");
    let spec = Spec::of(&object).unwrap();
    let nodes: Arc<dyn NodeDialer> = Arc::new(UnreachableNodes);
    let backend = Backend::new(&format!("{version}.{group}"), spec, None, &nodes);
    backend.update(&object);
    Arc::new(backend)
}

#[tokio::test]
async fn n1_an_unavailable_server_is_listed_as_stale_without_resources() {
    let backend = backend("g", "v1", (1, 1));
    assert!(backend.is_available());
    {
        let mut documents = backend.documents.lock();
        documents.fresh = true;
        documents.discovery = Some(json!({"version": "v1", "resources": [{"resource": "a"}]}));
        documents.openapi_v3 = Some("?hash=1".into());
    }
    assert!(!backend.update(&api_service("g", "v1", (1, 1), "True")));
    assert!(backend.update(&api_service("g", "v1", (1, 1), "False")));
    assert!(!backend.is_available());
    let documents = backend.documents.lock().clone();
    assert_eq!((documents.discovery, documents.fresh), (None, false));
    assert_eq!(documents.openapi_v3.as_deref(), Some("?hash=1"));
}

#[tokio::test]
async fn n1_metrics_name_unavailable_api_services() {
    let aggregation = Aggregation::new(None);
    *aggregation.backends.write() = [backend("g", "v1", (1, 1))].into();
    aggregation.became_unavailable("v1.g", "MissingEndpoints");
    let mut samples = Samples::default();
    aggregation.write_metrics(&mut samples);
    let text = samples.text();
    assert!(
        text.contains("aggregator_unavailable_apiservice{name=\"v1.g\"} 0\n"),
        "{text}"
    );
    let total = "aggregator_unavailable_apiservice_total{name=\"v1.g\",reason=\"MissingEndpoints\"} 1\n";
    assert!(text.contains(total), "{text}");
}
