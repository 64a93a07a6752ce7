//! Cluster IPs and the IPAddresses that hold them.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::IPAddress;
use knarr_api::registry::IP_ADDRESS;

use super::*;

fn service(name: &str, ip: &str) -> Service {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"clusterIP": ip, "ports": [{"port": 80}]},
    }))
    .unwrap()
}

fn ip_address(ip: &str, managed_by: Option<&str>) -> IPAddress {
    let labels = managed_by.map(|m| json!({"ipaddress.kubernetes.io/managed-by": m}));
    serde_json::from_value(json!({
        "metadata": {"name": ip, "labels": labels},
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "default", "name": "elsewhere"}},
    }))
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn n2_an_address_that_something_else_holds_is_not_allocated() {
    let c = cluster().await;
    let range = c.api.get(&SERVICE, "default", "kubernetes").await.unwrap();
    let range: Service = range.to_typed().unwrap();
    let first = range.spec.unwrap().cluster_ip.unwrap();
    let ip = first
        .rsplit_once('.')
        .map(|(net, _)| format!("{net}.77"))
        .unwrap();
    c.api.create_as(ip_address(&ip, None)).await.unwrap();
    let error = c.api.create_as(service("web", &ip)).await.unwrap_err();
    assert_eq!(error.code(), 422, "{error}");
    assert!(
        error.message().contains("provided IP is already allocated"),
        "{error}"
    );
    c.api
        .delete(&IP_ADDRESS, "", &ip, DeleteOptions::default())
        .await
        .unwrap();
    // What follows Services does not keep one from the next that has its address.
    c.api
        .create_as(ip_address(&ip, Some("ipallocator.k8s.io")))
        .await
        .unwrap();
    c.api.create_as(service("web", &ip)).await.unwrap();
    let error = c.api.create_as(service("again", &ip)).await.unwrap_err();
    assert!(
        error.message().contains("provided IP is already allocated"),
        "{error}"
    );
}
