//! Bootstrap tokens: Secrets in `kube-system` by which nodes join. One controller removes those that have ended, one
//! signs `kube-public/cluster-info` with the others, so that who knows a token knows whom to trust.

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

/// Whether a token has ended, or how long it has left; `None`: it never ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Ended,
    For(Duration),
    Forever,
}

fn left(secret: &Secret, now: Timestamp) -> Left {
    match text(secret, "expiration") {
        "" => Left::Forever,
        // One that cannot be read has ended.
        until => match until.parse::<Timestamp>().map(|t| t.duration_since(now)) {
            Ok(left) if left.is_positive() => Left::For(left.unsigned_abs()),
            _ => Left::Ended,
        },
    }
}
