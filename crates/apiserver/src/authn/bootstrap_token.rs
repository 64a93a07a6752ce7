//! Bootstrap tokens: `<id>.<secret>`, each a Secret `bootstrap-token-<id>` in `kube-system`, with which a node requests its
//! first certificate.

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use knarr_api::{k8s_openapi, registry};
use sha2::{Digest, Sha256};

use crate::cache::Cache;
use crate::user::User;

/// The namespace of their Secrets.
pub const NAMESPACE: &str = "kube-system";
/// The type of their Secrets.
pub const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
const BOOTSTRAPPERS: &str = "system:bootstrappers";
pub const ID_LENGTH: usize = 6;
pub const SECRET_LENGTH: usize = 16;

/// The parts of a token; `None` unless it has their form.
pub fn parts(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let plain = |s: &str| s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let well_formed = id.len() == ID_LENGTH && secret.len() == SECRET_LENGTH && plain(id) && plain(secret);
    well_formed.then_some((id, secret))
}

/// The user of a token: `system:bootstrap:<id>`.
pub(super) fn user(token: &str, now: Timestamp, cache: &Cache) -> Option<User> {
    let (id, secret) = parts(token)?;
    let object = cache.get(&registry::SECRET, NAMESPACE, &format!("bootstrap-token-{id}"))?;
    user_of(object.get::<Secret>()?, id, secret, now)
}

fn user_of(object: &Secret, id: &str, secret: &str, now: Timestamp) -> Option<User> {
    let text = |key: &str| {
        let value = object.data.as_ref().and_then(|d| d.get(key));
        value.map_or("", |v| std::str::from_utf8(&v.0).unwrap_or(""))
    };
    // Hashes are compared, so that the duration does not reveal anything about the secret.
    let same = Sha256::digest(text("token-secret")) == Sha256::digest(secret);
    let unexpired = object.metadata.deletion_timestamp.is_none()
        && match text("expiration") {
            "" => true,
            // An expiration that does not parse counts as expired.
            expiration => expiration.parse::<Timestamp>().is_ok_and(|t| t > now),
        };
    let well_formed = object.type_.as_deref() == Some(SECRET_TYPE)
        && text("token-id") == id
        && text("usage-bootstrap-authentication") == "true";
    if !(same && unexpired && well_formed) {
        return None;
    }
    let mut groups = vec![BOOTSTRAPPERS.to_string()];
    for group in text("auth-extra-groups").split(',').filter(|g| !g.is_empty()) {
        if !is_group(group) {
            return None;
        }
        groups.push(group.to_string());
    }
    groups.sort();
    groups.dedup();
    Some(User::new(format!("system:bootstrap:{id}"), groups))
}

/// `system:bootstrappers:` and up to 256 of a-z, 0-9, `:` and `-`, the last no `:` or `-`.
fn is_group(group: &str) -> bool {
    let Some(rest) = group
        .strip_prefix(BOOTSTRAPPERS)
        .and_then(|rest| rest.strip_prefix(':'))
    else {
        return false;
    };
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=256).contains(&rest.len())
        && rest.bytes().all(|b| plain(b) || b == b':' || b == b'-')
        && rest.bytes().last().is_some_and(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    const ID: &str = "abcdef";
    const SECRET: &str = "0123456789abcdef";

    fn found(changes: &[(&str, &str)]) -> Option<Vec<String>> {
        let mut data: std::collections::BTreeMap<String, ByteString> = [
            ("token-id", ID),
            ("token-secret", SECRET),
            ("usage-bootstrap-authentication", "true"),
            ("expiration", "2030-01-02T00:00:00Z"),
        ]
        .map(|(k, v)| (k.to_string(), ByteString(v.into())))
        .into();
        data.extend(
            changes
                .iter()
                .map(|(k, v)| (k.to_string(), ByteString((*v).into()))),
        );
        let object = Secret {
            type_: Some(SECRET_TYPE.into()),
            data: Some(data),
            ..Secret::default()
        };
        let now = "2030-01-01T00:00:00Z".parse().unwrap();
        user_of(&object, ID, SECRET, now).map(|u| u.groups)
    }

    #[test]
    fn a_token_is_accepted_only_with_a_valid_secret() {
        let default = Some(vec![BOOTSTRAPPERS.to_string()]);
        let more = Some(vec![BOOTSTRAPPERS.to_string(), "system:bootstrappers:a:b".into()]);
        for (change, expected) in [
            (("x", ""), default.clone()),
            (("auth-extra-groups", "system:bootstrappers:a:b"), more),
            (("auth-extra-groups", "system:masters"), None),
            (("auth-extra-groups", "system:bootstrappers:a:"), None),
            (("token-secret", "0123456789abcdeX"), None),
            (("token-id", "abcdeg"), None),
            (("usage-bootstrap-authentication", "yes"), None),
            (("expiration", "2030-01-01T00:00:00Z"), None),
            (("expiration", "tomorrow"), None),
            (("expiration", ""), default),
        ] {
            assert_eq!(found(&[change]), expected, "{change:?}");
        }
    }

    #[test]
    fn only_well_formed_tokens_are_read_from_secrets() {
        assert_eq!(parts("abcdef.0123456789abcdef"), Some((ID, SECRET)));
        for token in [
            "abcdef0123456789abcdef",
            "ABCDEF.0123456789abcdef",
            "abcdef.0123",
            "../...",
            "",
        ] {
            assert_eq!(parts(token), None, "{token}");
        }
    }
}
