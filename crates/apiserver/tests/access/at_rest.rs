//! Encryption of Secrets in the store.

use std::sync::Arc;

use knarr_apiserver::encryption::Encryption;
use knarr_store::{KeyRange, Range};
use serde_json::json;

use crate::cluster::Cluster;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";

/// The stored value of the Secret.
async fn raw(cluster: &Cluster, name: &str) -> Vec<u8> {
    let key = format!("/registry/core/secrets/default/{name}");
    let range = Range {
        keys: KeyRange::one(key),
        ..Range::default()
    };
    let found = cluster.store.range(range).await.unwrap();
    found.kvs[0].value.to_vec()
}

fn keys(names: &[(&str, &str, &str)]) -> Arc<Encryption> {
    let mut text = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration
resources:\n- resources: [secrets]\n  providers:\n"
        .to_string();
    for (provider, name, secret) in names {
        text += &format!("  - {provider}: {{keys: [{{name: {name}, secret: {secret}}}]}}\n");
    }
    Arc::new(Encryption::parse(&(text + "  - identity: {}\n")).unwrap())
}

const K1: (&str, &str, &str) = ("aesgcm", "k1", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
const K2: (&str, &str, &str) = ("secretbox", "k2", "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=");

#[tokio::test]
async fn secrets_are_encrypted_in_the_store_and_nowhere_else() {
    let cluster = Cluster::with(|options, _| options.encryption = Some(keys(&[K1]))).await;
    let body = json!({"metadata": {"name": "s"}, "stringData": {"password": "correct horse"}});
    let made = cluster.create(SECRETS, body).await;
    // Its base64, as it would be in the stored JSON.
    assert_eq!(made["data"]["password"], "Y29ycmVjdCBob3JzZQ==");
    let stored = raw(&cluster, "s").await;
    assert!(stored.starts_with(b"k8s:enc:aesgcm:v1:k1:"));
    let credentials = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("Y29ycmVjdCBob3JzZQ");
    assert!(!credentials(&stored));
    let read = cluster
        .admin("GET", &format!("{SECRETS}/s"), None)
        .await
        .expect(200);
    assert_eq!(read["data"], made["data"]);
    let list = cluster
        .admin("GET", &format!("{SECRETS}?limit=1"), None)
        .await
        .expect(200);
    assert_eq!(list["items"][0]["data"], made["data"]);
    // Another resource is not encrypted.
    let maps = "/api/v1/namespaces/default/configmaps";
    cluster.create(maps, json!({"metadata": {"name": "m"}})).await;
    let range = Range {
        keys: KeyRange::one("/registry/core/configmaps/default/m"),
        ..Range::default()
    };
    assert!(
        cluster.store.range(range).await.unwrap().kvs[0]
            .value
            .starts_with(b"{")
    );
}

#[tokio::test]
async fn keys_are_rotated_by_writing_what_is_there_again() {
    let cluster = Cluster::start().await;
    cluster
        .create(
            SECRETS,
            json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}}),
        )
        .await;
    assert!(raw(&cluster, "s").await.starts_with(b"{"));
    for (names, expected) in [
        (vec![K1], "k8s:enc:aesgcm:v1:k1:"),
        (vec![K2, K1], "k8s:enc:secretbox:v1:k2:"),
        (vec![K2], "k8s:enc:secretbox:v1:k2:"),
    ] {
        let next = cluster
            .next(|options| options.encryption = Some(keys(&names)))
            .await;
        let path = format!("{SECRETS}/s");
        let secret = next.admin("GET", &path, None).await.expect(200);
        assert_eq!(secret["data"]["a"], "Yg==");
        next.admin("PUT", &path, Some(secret)).await.expect(200);
        let stored = raw(&cluster, "s").await;
        assert!(
            stored.starts_with(expected.as_bytes()),
            "{expected}: {}",
            String::from_utf8_lossy(&stored)
        );
        // Doing it once more changes nothing.
        let secret = next.admin("GET", &path, None).await.expect(200);
        next.admin("PUT", &path, Some(secret)).await.expect(200);
        assert_eq!(raw(&cluster, "s").await, stored);
    }
}
