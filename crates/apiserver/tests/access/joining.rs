//! What a joining node may do with a bootstrap token, and what it may request once it has joined.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use knarr_apiserver::joining::JOINERS;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use crate::cluster::{Cluster, Credentials};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";

/// A bootstrap token of these groups.
async fn token(cluster: &Cluster, id: &str, groups: &str) -> Credentials {
    let secret = "0123456789abcdef";
    let data = json!({"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
        "auth-extra-groups": groups});
    let body = json!({"metadata": {"name": format!("bootstrap-token-{id}")},
        "type": "bootstrap.kubernetes.io/token", "stringData": data});
    cluster
        .create("/api/v1/namespaces/kube-system/secrets", body)
        .await;
    Credentials::token(format!("{id}.{secret}"))
}

fn request(name: &str, user: &str, signer: &str, usage: &str) -> Value {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, user);
    let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
    let request = STANDARD.encode(request.pem().unwrap());
    json!({"metadata": {"name": name}, "spec": {"request": request, "usages": ["digital signature", usage],
        "signerName": format!("kubernetes.io/{signer}")}})
}

#[tokio::test]
async fn a_holder_of_a_token_reads_cluster_info_and_requests_a_certificate() {
    let cluster = Cluster::start().await;
    let joiner = token(&cluster, "aaaaaa", JOINERS).await;
    let other = token(&cluster, "bbbbbb", "").await;
    let info = cluster.ask(&joiner, "GET", INFO, None).await.expect(200);
    let kubeconfig = info["data"]["kubeconfig"].as_str().unwrap();
    assert!(
        kubeconfig.contains("server: https://192.0.2.1:6443"),
        "{kubeconfig}"
    );
    cluster.ask(&other, "GET", INFO, None).await.expect(200);
    // No other user, and nothing else.
    cluster
        .ask(&Credentials::token("ann-token"), "GET", INFO, None)
        .await
        .expect(403);
    cluster
        .ask(&Credentials::default(), "GET", INFO, None)
        .await
        .expect(403);
    let all = "/api/v1/namespaces/kube-public/configmaps";
    cluster.ask(&joiner, "GET", all, None).await.expect(403);

    let first = || {
        Some(request(
            "first",
            "system:node:n7",
            "kube-apiserver-client-kubelet",
            "client auth",
        ))
    };
    cluster.ask(&other, "POST", REQUESTS, first()).await.expect(403);
    let made = cluster.ask(&joiner, "POST", REQUESTS, first()).await.expect(201);
    assert_eq!(made["spec"]["username"], "system:bootstrap:aaaaaa");
    assert!(
        made["spec"]["groups"]
            .as_array()
            .unwrap()
            .contains(&json!(JOINERS))
    );
    let own = format!("{REQUESTS}/first");
    cluster.ask(&joiner, "GET", &own, None).await.expect(200);
    // It may not approve requests.
    cluster
        .ask(&joiner, "PUT", &format!("{own}/approval"), Some(made))
        .await
        .expect(403);
}

#[tokio::test]
async fn a_node_requests_certificates_of_its_own_name_only() {
    let cluster = Cluster::start().await;
    let node = Credentials::token("n1-token");
    for (signer, usage) in [
        ("kube-apiserver-client-kubelet", "client auth"),
        ("kubelet-serving", "server auth"),
    ] {
        let ask = |name: String, user: &str| {
            let body = Some(request(&name, user, signer, usage));
            let (cluster, node) = (&cluster, &node);
            async move { cluster.ask(node, "POST", REQUESTS, body).await }
        };
        ask(format!("own-{signer}"), "system:node:n1").await.expect(201);
        let denied = ask(format!("other-{signer}"), "system:node:n2").await;
        assert_eq!(denied.code, 403, "{}", denied.text);
        let why = "can only create a node CSR with CN=system:node:n1";
        assert!(denied.message().ends_with(why), "{}", denied.text);
    }
}
