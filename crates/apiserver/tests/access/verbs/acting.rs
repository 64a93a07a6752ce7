//! Authorization in addition to the request's own verb where a user impersonates another, or approves for a signer (SPEC A2).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;

use super::authorizer::{Allowed, Recorder, user};
use crate::cluster::{Cluster, Credentials};

const SIGNER: &str = "example.com/e2e";
const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// Requires exactly these permissions: denied without any one, allowed with them alone.
async fn asks(cluster: &Cluster, recorder: &Recorder, ask: impl AsyncFn(&Cluster) -> u16, expected: &[&str]) {
    recorder.allow(Allowed::Everything);
    assert_eq!(ask(cluster).await, 200);
    assert_eq!(recorder.asked(), expected);
    for missing in expected {
        recorder.allow(Allowed::AllBut((*missing).to_string()));
        assert_eq!(ask(cluster).await, 403, "without {missing}");
    }
    recorder.allow(Allowed::Only(expected.iter().map(|e| (*e).to_string()).collect()));
    assert_eq!(ask(cluster).await, 200);
}

#[tokio::test]
async fn a2_impersonation_asks_for_each_user_group_uid_and_extra() {
    let (cluster, recorder) = Recorder::cluster().await;
    let credentials = |who: &'static str| {
        user()
            .header("impersonate-user", who)
            .header("impersonate-group", "developers")
            .header("impersonate-group", "system:masters")
            .header("impersonate-uid", "7")
            .header("impersonate-extra-scopes%2fa", "view")
    };
    for (who, first) in [
        ("jane", "impersonate /users/ /jane"),
        ("system:serviceaccount:a:b", "impersonate /serviceaccounts/ a/b"),
    ] {
        let ask = async |cluster: &Cluster| cluster.ask(&credentials(who), "GET", "/api", None).await.code;
        let expected = [
            first,
            "impersonate /groups/ /developers",
            "impersonate /groups/ /system:masters",
            "impersonate authentication.k8s.io/userextras/scopes/a /view",
            "impersonate authentication.k8s.io/uids/ /7",
        ];
        asks(&cluster, &recorder, ask, &expected).await;
    }
}

#[tokio::test]
async fn a2_approving_and_signing_ask_for_the_signer() {
    let (cluster, recorder) = Recorder::cluster().await;
    let pem = CertificateParams::new(Vec::new())
        .unwrap()
        .serialize_request(&KeyPair::generate().unwrap())
        .unwrap()
        .pem()
        .unwrap();
    let csr = json!({"metadata": {"name": "c"}, "spec": {
        "request": STANDARD.encode(&pem), "signerName": SIGNER, "usages": ["client auth"]}});
    cluster.create(CSRS, csr).await;
    let merge = || user().header("content-type", "application/merge-patch+json");
    let condition = |kind: &str| json!({"status": {"conditions": [{"type": kind, "status": "True"}]}});
    for (verb, part, kind) in [("approve", "approval", "Approved"), ("sign", "status", "Failed")] {
        let ask = async |credentials: &Credentials, reason: &str| {
            let mut body = condition(kind);
            // A different one each time, so that there is something to approve.
            body["status"]["conditions"][0]["message"] = reason.into();
            if verb == "sign" {
                // An approval is immutable: a signer may not remove it.
                let conditions = body["status"]["conditions"].as_array_mut().unwrap();
                conditions.insert(0, json!({"type": "Approved", "status": "True"}));
            }
            cluster
                .ask(credentials, "PATCH", &format!("{CSRS}/c/{part}"), Some(body))
                .await
                .code
        };
        let patch = format!("patch certificates.k8s.io/certificatesigningrequests/{part} /c");
        let own = format!("{verb} certificates.k8s.io/signers/ /{SIGNER}");
        let all = format!("{verb} certificates.k8s.io/signers/ /example.com/*");
        for (allowed, expected) in [
            (vec![&patch], 403),
            (vec![&own, &all], 403),
            (vec![&patch, &own], 200),
            (vec![&patch, &all], 200),
        ] {
            recorder.allow(Allowed::Only(allowed.iter().map(|a| (*a).clone()).collect()));
            let found = ask(&merge(), &format!("{allowed:?}")).await;
            assert_eq!(
                found,
                expected,
                "{verb} with {allowed:?}: asked {:?}",
                recorder.asked()
            );
        }
    }
}
