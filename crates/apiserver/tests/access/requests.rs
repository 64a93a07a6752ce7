//! The lifecycle of CertificateSigningRequests, as in Kubernetes' conformance test.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::cluster::{ADMIN, Cluster, Credentials};

const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

fn request() -> Value {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["e2e.example.com".to_string()]).unwrap();
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    json!({"metadata": {"generateName": "e2e-example-csr-"}, "spec": {
        "request": STANDARD.encode(pem), "signerName": "example.com/e2e", "expirationSeconds": 3600,
        "usages": ["digital signature", "key encipherment", "server auth"]}})
}

fn certificate() -> String {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["e2e.example.com".to_string()]).unwrap();
    STANDARD.encode(params.self_signed(&key).unwrap().pem())
}

fn with_condition(mut csr: Value, type_: &str) -> Value {
    let condition = json!({"type": type_, "status": "True", "reason": "E2E", "message": "Set from a test"});
    match csr["status"]["conditions"].as_array_mut() {
        Some(conditions) => conditions.push(condition),
        None => csr["status"]["conditions"] = json!([condition]),
    }
    csr
}

#[tokio::test]
async fn a_certificate_signing_request_is_created_approved_and_issued() {
    let cluster = Cluster::start().await;
    let merge = Credentials::token(ADMIN).header("content-type", "application/merge-patch+json");
    let group = cluster
        .admin("GET", "/apis/certificates.k8s.io/v1", None)
        .await
        .expect(200);
    for name in ["", "/approval", "/status"] {
        let name = format!("certificatesigningrequests{name}");
        assert!(
            group["resources"]
                .as_array()
                .unwrap()
                .iter()
                .any(|r| r["name"] == name),
            "{name}"
        );
    }
    for _ in 0..2 {
        cluster.create(CSRS, request()).await;
    }
    let made = cluster.create(CSRS, request()).await;
    assert_eq!(made["spec"]["username"], "admin");
    let path = format!("{CSRS}/{}", made["metadata"]["name"].as_str().unwrap());
    let found = cluster.admin("GET", &path, None).await.expect(200);
    assert_eq!(
        (&found["metadata"]["uid"], &found["spec"]["expirationSeconds"]),
        (&made["metadata"]["uid"], &json!(3600))
    );
    let selected = format!("{CSRS}?fieldSelector=spec.signerName%3Dexample.com/e2e");
    let listed = cluster.admin("GET", &selected, None).await.expect(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 3);
    let patch = json!({"metadata": {"annotations": {"patched": "true"}}});
    let mut csr = cluster.ask(&merge, "PATCH", &path, Some(patch)).await.expect(200);
    csr["metadata"]["annotations"]["updated"] = "true".into();
    let csr = cluster.admin("PUT", &path, Some(csr)).await.expect(200);
    assert_eq!(
        csr["metadata"]["annotations"],
        json!({"patched": "true", "updated": "true"})
    );

    let approval = format!("{path}/approval");
    let found = cluster.admin("GET", &approval, None).await.expect(200);
    assert_eq!(found["kind"], "CertificateSigningRequest");
    let patch = json!({"metadata": {"annotations": {"patchedapproval": "true"}},
        "status": {"conditions": [{"type": "ApprovalPatch", "status": "True", "reason": "e2e"}]}});
    let csr = cluster
        .ask(&merge, "PATCH", &approval, Some(patch))
        .await
        .expect(200);
    assert_eq!(csr["metadata"]["annotations"]["patchedapproval"], "true");
    let approved = with_condition(csr, "Approved");
    let csr = cluster.admin("PUT", &approval, Some(approved)).await.expect(200);
    assert_eq!(csr["status"]["conditions"][1]["type"], "Approved");

    let status = format!("{path}/status");
    cluster.admin("GET", &status, None).await.expect(200);
    let certificate = certificate();
    let patch = json!({"metadata": {"annotations": {"patchedstatus": "true"}},
        "status": {"certificate": certificate}});
    let csr = cluster
        .ask(&merge, "PATCH", &status, Some(patch))
        .await
        .expect(200);
    assert_eq!(csr["status"]["certificate"], certificate);
    assert_eq!(csr["metadata"]["annotations"]["patchedstatus"], "true");
    let received = with_condition(csr, "StatusUpdate");
    let csr = cluster.admin("PUT", &status, Some(received)).await.expect(200);
    assert_eq!(csr["status"]["conditions"][2]["type"], "StatusUpdate");

    cluster.admin("DELETE", &path, None).await.expect(200);
    cluster.admin("GET", &path, None).await.expect(404);
    cluster.admin("DELETE", &selected, None).await.expect(200);
    let listed = cluster.admin("GET", &selected, None).await.expect(200);
    assert_eq!(listed["items"], json!([]));
}

/// The approver of kubelets' serving certificates decides by it: no client may set it.
#[tokio::test]
async fn a4_the_server_records_where_a_request_came_from_whatever_the_requester_says() {
    const KEY: &str = "certificates.knarr.io/remote-address";
    let cluster = Cluster::start().await;
    let admin = Credentials::token(ADMIN);
    let spoofing = Credentials::token(ADMIN)
        .header("impersonate-user", "jane")
        .header("impersonate-group", "system:masters")
        .header(
            "impersonate-extra-certificates.knarr.io%2fremote-address",
            "in-process",
        );
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["n".to_string()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    for (who, credentials) in [("admin", &admin), ("jane", &spoofing)] {
        for (signer, expected) in [
            ("kubernetes.io/kubelet-serving", json!(["127.0.0.1"])),
            ("kubernetes.io/kube-apiserver-client", Value::Null),
            ("example.com/e2e", Value::Null),
        ] {
            let csr = json!({"metadata": {"generateName": "origin-"}, "spec": {
                "request": STANDARD.encode(&pem), "signerName": signer, "usages": ["server auth"],
                "extra": {KEY: ["in-process"]}}});
            let made = cluster
                .ask(credentials, "POST", CSRS, Some(csr))
                .await
                .expect(201);
            assert_eq!(made["spec"]["extra"][KEY], expected, "{who} at {signer}");
            assert_eq!(made["spec"]["username"], who);
        }
    }
}

/// For Kubernetes' own signers only requests that they can sign are admitted; other signers validate requests themselves.
#[tokio::test]
async fn a1_a_request_is_validated_as_it_will_be_signed() {
    let cluster = Cluster::start().await;
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let dc = rcgen::DnType::from_oid(&[0, 9, 2342, 19_200_300, 100, 1, 25]);
    params.distinguished_name.push(dc, "example");
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    let twice = [pem.as_str(), &pem].concat();
    for (signer, request, reason) in [
        ("example.com/e2e", &pem, None),
        (
            "kubernetes.io/kube-apiserver-client",
            &pem,
            Some("the subject has an attribute 0.9.2342.19200300.100.1.25, which cannot be signed"),
        ),
        ("example.com/e2e", &twice, Some("must be one PEM block")),
        (
            "kubernetes.io/kube-apiserver-client",
            &twice,
            Some("must be one PEM block"),
        ),
        (
            "example.com/e2e",
            &"-----BEGIN CERTIFICATE-----".to_string(),
            Some("PEM block type must be CERTIFICATE REQUEST"),
        ),
    ] {
        let csr = json!({"metadata": {"generateName": "read-"}, "spec": {
            "request": STANDARD.encode(request), "signerName": signer, "usages": ["client auth"]}});
        let answer = cluster.admin("POST", CSRS, Some(csr)).await;
        let Some(reason) = reason else {
            answer.expect(201);
            continue;
        };
        assert_eq!(answer.code, 422, "{signer}: {}", answer.text);
        let cause = &answer.body["details"]["causes"][0];
        assert_eq!(cause["field"], "spec.request");
        assert!(cause["message"].as_str().unwrap().contains(reason), "{cause}");
    }
}

#[tokio::test]
async fn a_self_subject_review_shows_the_impersonated_user() {
    let cluster = Cluster::start().await;
    let credentials = Credentials::token(ADMIN)
        .header("impersonate-user", "jane")
        .header("impersonate-uid", "uniq-id")
        .header("impersonate-group", "developers")
        .header("impersonate-group", "system:authenticated")
        .header("impersonate-extra-projects", "p1")
        .header("impersonate-extra-projects", "p2");
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let received = cluster
        .ask(&credentials, "POST", path, Some(json!({})))
        .await
        .expect(201);
    assert_eq!(
        received["status"]["userInfo"],
        json!({"username": "jane", "uid": "uniq-id", "groups": ["developers", "system:authenticated"],
            "extra": {"projects": ["p1", "p2"]}})
    );
}
