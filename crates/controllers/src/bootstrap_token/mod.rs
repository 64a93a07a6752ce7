//! Bootstrap tokens: Secrets in `kube-system` by which nodes join. One controller deletes expired tokens, one signs
//! `kube-public/cluster-info` with the others, so that a node that has a token can verify the cluster's CA.

pub mod cleaner;
pub mod signer;

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";

fn is_token(secret: &Secret) -> bool {
    secret.type_.as_deref() == Some(TYPE) && secret.metadata.namespace.as_deref() == Some(NAMESPACE)
}

fn text<'a>(secret: &'a Secret, key: &str) -> &'a str {
    let value = secret.data.as_ref().and_then(|d| d.get(key));
    value.map_or("", |v| std::str::from_utf8(&v.0).unwrap_or(""))
}

/// Whether a token has expired, or how long it is still valid; `None`: it never expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiration {
    Expired,
    In(Duration),
    Never,
}

fn expiration(secret: &Secret, now: Timestamp) -> Expiration {
    match text(secret, "expiration") {
        "" => Expiration::Never,
        // A token whose expiration does not parse has expired.
        until => match until.parse::<Timestamp>().map(|t| t.duration_since(now)) {
            Ok(left) if left.is_positive() => Expiration::In(left.unsigned_abs()),
            _ => Expiration::Expired,
        },
    }
}
