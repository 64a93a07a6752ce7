//! Cluster IPs and their IPAddresses.

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
    // An IPAddress of a Service does not keep the address from the next Service.
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

#[tokio::test(start_paused = true)]
async fn n2_the_load_balancers_finalizer_follows_the_status() {
    const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
    let c = cluster().await;
    let mut web = service("web", "");
    web.spec.get_or_insert_default().type_ = Some("LoadBalancer".into());
    c.api.create_as(web).await.unwrap();
    let mut web = (*c.api.get_as::<Service>("default", "web").await.unwrap()).clone();
    web.metadata.finalizers = Some(vec![FINALIZER.into()]);
    c.api.update_status_as(web).await.unwrap();
    c.api
        .delete(&SERVICE, "default", "web", DeleteOptions::default())
        .await
        .unwrap();
    let mut web = (*c.api.get_as::<Service>("default", "web").await.unwrap()).clone();
    assert!(web.metadata.deletion_timestamp.is_some());
    web.metadata.finalizers = None;
    c.api.update_status_as(web).await.unwrap();
    let gone = c.api.get_as::<Service>("default", "web").await.unwrap_err();
    assert!(gone.is_not_found(), "{gone}");
}
