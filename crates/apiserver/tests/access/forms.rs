//! A client that can send every media type of a body, with one connection each.

use serde_json::Value;

use crate::cluster::{ADMIN, Client, Cluster, Credentials};

/// A connection for each media type.
pub struct Forms {
    pub json: Client,
    pub merge: Client,
    pub strategic: Client,
    pub operations: Client,
    pub apply: Client,
}

impl Forms {
    pub async fn to(cluster: &Cluster) -> Self {
        let of = |media: &'static str| {
            let credentials = Credentials::token(ADMIN).header("content-type", media);
            async move { cluster.connect(&credentials).await.unwrap() }
        };
        Forms {
            json: of("application/json").await,
            merge: of("application/merge-patch+json").await,
            strategic: of("application/strategic-merge-patch+json").await,
            operations: of("application/json-patch+json").await,
            apply: of("application/apply-patch+yaml").await,
        }
    }
}

/// Sends a request, checks the code of the response and returns its body.
pub async fn expect_code(
    client: &mut Client,
    code: u16,
    method: &str,
    path: &str,
    body: Option<Value>,
) -> Value {
    let answer = client.send(method, path, body).await;
    assert_eq!(answer.code, code, "{method} {path}: {}", answer.text);
    answer.body
}
