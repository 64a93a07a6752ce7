//! Service-account and bootstrap tokens: their user, validity and audiences.

use base64::Engine;
use knarr_apiserver::authn::secret_token::SecretTokenSigner;
use knarr_apiserver::pki::Pki;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Credentials};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

async fn account(cluster: &Cluster) {
    cluster
        .create(ACCOUNTS, json!({"metadata": {"name": "robot"}}))
        .await;
}

async fn token(cluster: &Cluster, spec: Value) -> String {
    let path = format!("{ACCOUNTS}/robot/token");
    let made = cluster.create(&path, json!({"spec": spec})).await;
    made["status"]["token"].as_str().unwrap().to_string()
}

async fn holds(cluster: &Cluster, token: &str) -> bool {
    let code = cluster
        .ask(&Credentials::token(token), "GET", "/api", None)
        .await
        .code;
    assert!(code == 200 || code == 401, "{code}");
    code == 200
}

#[tokio::test]
async fn a_token_is_rejected_once_its_bound_object_is_deleted() {
    let cluster = Cluster::start().await;
    account(&cluster).await;
    let ns = "/api/v1/namespaces/default";
    cluster
        .create("/api/v1/nodes", json!({"metadata": {"name": "n"}}))
        .await;
    cluster
        .create(&format!("{ns}/secrets"), json!({"metadata": {"name": "s"}}))
        .await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "serviceAccountName": "robot",
        "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "i"}]}});
    cluster.create(&format!("{ns}/pods"), pod).await;
    for (kind, name, path) in [
        ("Node", "n", "/api/v1/nodes/n".to_string()),
        ("Secret", "s", format!("{ns}/secrets/s")),
        ("Pod", "p", format!("{ns}/pods/p?gracePeriodSeconds=0")),
    ] {
        let to = json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}});
        let token = token(&cluster, to).await;
        assert!(holds(&cluster, &token).await, "{kind}");
        cluster.admin("DELETE", &path, None).await.expect(200);
        assert!(!holds(&cluster, &token).await, "{kind}");
    }
    let free = token(&cluster, json!({})).await;
    assert!(holds(&cluster, &free).await);
    cluster
        .admin("DELETE", &format!("{ACCOUNTS}/robot"), None)
        .await
        .expect(200);
    assert!(!holds(&cluster, &free).await);
    // Another account of the same name has another UID.
    account(&cluster).await;
    assert!(!holds(&cluster, &free).await);
}

#[tokio::test]
async fn a1_a_secrets_token_is_good_as_long_as_the_secret_holds_it() {
    let mut signer = None;
    let cluster = Cluster::with(|_, keys| signer = Some(SecretTokenSigner::new(keys).unwrap())).await;
    let signer = signer.unwrap();
    let made = cluster
        .create(ACCOUNTS, json!({"metadata": {"name": "robot"}}))
        .await;
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let secrets = "/api/v1/namespaces/default/secrets";
    let sign = |account: &str, uid: &str, secret: &str| signer.sign("default", account, uid, secret).unwrap();
    let hold = |name: &str, token: &str| {
        let token = base64::engine::general_purpose::STANDARD.encode(token);
        json!({"metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": "robot"}},
            "type": "kubernetes.io/service-account-token", "data": {"token": token}})
    };
    let token = sign("robot", uid, "t");
    assert!(!holds(&cluster, &token).await, "no Secret holds it");
    cluster.create(secrets, hold("t", &token)).await;
    assert!(holds(&cluster, &token).await);
    let reviewed = cluster
        .create(REVIEWS, json!({"spec": {"token": token.as_str()}}))
        .await;
    assert_eq!(
        reviewed["status"]["user"]["username"],
        "system:serviceaccount:default:robot"
    );
    let elsewhere = json!({"spec": {"token": token.as_str(), "audiences": ["vault"]}});
    let reviewed = cluster.create(REVIEWS, elsewhere).await;
    assert_eq!(
        reviewed["status"]["authenticated"],
        Value::Null,
        "it is for this server only"
    );
    // Another token for the same Secret, and one of a deleted account.
    let other = sign("robot", uid, "t");
    assert!(
        other == token || !holds(&cluster, &other).await,
        "the Secret holds another"
    );
    let before = sign("robot", "uid-before", "b");
    cluster.create(secrets, hold("b", &before)).await;
    assert!(!holds(&cluster, &before).await);
    // Marked as invalid; then valid again; then deleted.
    let path = format!("{secrets}/t");
    for (since, is_good) in [(json!("2026-01-01"), false), (Value::Null, true)] {
        let mut secret = cluster.admin("GET", &path, None).await.expect(200);
        secret["metadata"]["labels"] = json!({"kubernetes.io/legacy-token-invalid-since": since});
        if since.is_null() {
            secret["metadata"]["labels"] = Value::Null;
        }
        cluster.admin("PUT", &path, Some(secret)).await.expect(200);
        assert_eq!(holds(&cluster, &token).await, is_good);
    }
    cluster.admin("DELETE", &path, None).await.expect(200);
    assert!(!holds(&cluster, &token).await);
}

#[tokio::test]
async fn a_token_is_good_for_its_audiences_and_its_time() {
    let cluster = Cluster::start().await;
    account(&cluster).await;
    let vault = token(
        &cluster,
        json!({"audiences": ["vault", "other"], "expirationSeconds": 600}),
    )
    .await;
    assert!(!holds(&cluster, &vault).await, "it is not for this server");
    let review = |audiences: Value| {
        let body = json!({"spec": {"token": vault.as_str(), "audiences": audiences}});
        let cluster = &cluster;
        async move { cluster.create(REVIEWS, body).await["status"].clone() }
    };
    let status = review(json!(["vault", "x"])).await;
    assert_eq!(
        (&status["authenticated"], &status["audiences"]),
        (&json!(true), &json!(["vault"]))
    );
    assert_eq!(status["user"]["username"], "system:serviceaccount:default:robot");
    assert_eq!(review(json!(["x"])).await["authenticated"], Value::Null);
    assert_eq!(review(json!([])).await["authenticated"], Value::Null);
    cluster.pass(599);
    assert_eq!(review(json!(["vault"])).await["authenticated"], true);
    cluster.pass(1);
    assert_eq!(review(json!(["vault"])).await["authenticated"], Value::Null);
}

#[tokio::test]
async fn a_pods_own_token_lives_on_while_it_is_renewed() {
    let cluster = Cluster::start().await;
    account(&cluster).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "serviceAccountName": "robot",
        "containers": [{"name": "c", "image": "i"}]}});
    cluster.create("/api/v1/namespaces/default/pods", pod).await;
    let bound = json!({"expirationSeconds": 3607,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p"}});
    let made = cluster
        .create(&format!("{ACCOUNTS}/robot/token"), json!({"spec": bound}))
        .await;
    let token = made["status"]["token"].as_str().unwrap();
    let expires: knarr_api::k8s_openapi::jiff::Timestamp = made["status"]["expirationTimestamp"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(expires.as_second() - cluster.now().as_second(), 3607);
    cluster.pass(24 * 3600);
    assert!(holds(&cluster, token).await);
    cluster.pass(365 * 24 * 3600);
    assert!(!holds(&cluster, token).await);
}

#[tokio::test]
async fn tokens_of_both_algorithms_are_signed_verified_and_published() {
    const RSA: &str = include_str!("../keys/rsa.pem");
    const EC: &str = include_str!("../keys/ec.pem");
    for (signing, verifying, algorithm) in [(RSA, EC, "RS256"), (EC, RSA, "ES256")] {
        let cluster = Cluster::with(|_, keys| {
            keys.signing = signing.into();
            keys.verifying = vec![verifying.into()];
        })
        .await;
        account(&cluster).await;
        let token = token(&cluster, json!({})).await;
        assert!(holds(&cluster, &token).await, "{algorithm}");
        let mut broken = token.clone();
        broken.replace_range(token.len() - 6..token.len() - 3, "AAA");
        assert!(!holds(&cluster, &broken).await, "{algorithm}");
        let keys = cluster.admin("GET", "/openid/v1/jwks", None).await;
        assert_eq!(keys.headers["content-type"], "application/jwk-set+json");
        assert_eq!(keys.headers["cache-control"], "public, max-age=3600");
        let keys = keys.expect(200);
        let keys = keys["keys"].as_array().unwrap();
        assert_eq!((keys.len(), &keys[0]["alg"]), (2, &json!(algorithm)));
        let path = "/.well-known/openid-configuration";
        let found = cluster.admin("GET", path, None).await.expect(200);
        assert_eq!(
            found["id_token_signing_alg_values_supported"],
            json!(["ES256", "RS256"])
        );
        // A service account may read both; other users may not.
        for (credentials, code) in [
            (Credentials::token(&token), 200),
            (Credentials::token("ann-token"), 403),
        ] {
            assert_eq!(cluster.ask(&credentials, "GET", path, None).await.code, code);
        }
    }
    // Tokens of a server with another key are not valid here.
    let (here, there) = (Cluster::start().await, Cluster::start().await);
    account(&here).await;
    account(&there).await;
    assert!(!holds(&here, &token(&there, json!({})).await).await);
}

#[tokio::test]
async fn a_bootstrap_token_asks_for_certificates_and_nothing_else() {
    let cluster = Cluster::start().await;
    let until = cluster.now() + knarr_api::k8s_openapi::jiff::SignedDuration::from_hours(1);
    let secret = json!({"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
        "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef",
            "usage-bootstrap-authentication": "true", "expiration": until.to_string(),
            "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token"}});
    cluster
        .create("/api/v1/namespaces/kube-system/secrets", secret)
        .await;
    let credentials = Credentials::token("abcdef.0123456789abcdef");
    let who = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let user = cluster
        .ask(&credentials, "POST", who, Some(json!({})))
        .await
        .expect(201);
    assert_eq!(user["status"]["userInfo"]["username"], "system:bootstrap:abcdef");
    assert_eq!(
        user["status"]["userInfo"]["groups"],
        json!([
            "system:bootstrappers",
            "system:bootstrappers:kubeadm:default-node-token",
            "system:authenticated"
        ])
    );
    assert_eq!(
        cluster.ask(&credentials, "GET", "/api/v1/nodes", None).await.code,
        403
    );
    let wrong = Credentials::token("abcdef.0123456789abcdeF");
    assert_eq!(cluster.ask(&wrong, "GET", "/api", None).await.code, 401);
    cluster.pass(3600);
    assert_eq!(cluster.ask(&credentials, "GET", "/api", None).await.code, 401);
}

#[tokio::test]
async fn the_user_of_a_certificate_has_its_credential_id() {
    let cluster = Cluster::start().await;
    let identity = cluster.pki.client("carol", "carol", &["dev"]).unwrap();
    let who = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let user = cluster
        .ask(&Credentials::certificate(identity), "POST", who, Some(json!({})))
        .await
        .expect(201);
    let info = &user["status"]["userInfo"];
    assert_eq!(
        (&info["username"], &info["groups"]),
        (&json!("carol"), &json!(["dev", "system:authenticated"]))
    );
    let id = info["extra"]["authentication.kubernetes.io/credential-id"][0]
        .as_str()
        .unwrap();
    assert!(id.starts_with("X509SHA256=") && id.len() == 75, "{id}");
    let directory = tempfile::tempdir().unwrap();
    // A client with an untrusted certificate and a valid token is authenticated by the token.
    let stranger = Pki::open(directory.path(), cluster.now())
        .unwrap()
        .admin()
        .unwrap();
    let credentials = Credentials {
        token: Some("ann-token".into()),
        ..Credentials::certificate(stranger)
    };
    let user = cluster
        .ask(&credentials, "POST", who, Some(json!({})))
        .await
        .expect(201);
    assert_eq!(user["status"]["userInfo"]["username"], "ann");
}
