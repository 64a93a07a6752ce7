//! Service account tokens of pods: requested for the pod, kept while it runs, and renewed before they expire.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_client::Api;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use super::atomic_writer::{Content, File};

/// The lifetime of tokens unless the volume sets one.
const TOKEN_SECONDS: i64 = 3600;

/// A token is renewed after four fifths of its lifetime, or after a day.
const TOKEN_RENEW_MAX: Duration = Duration::from_secs(24 * 3600);

/// Which token: the pod's uid, the file's path, the audience.
type TokenKey = (String, String, String);

/// The tokens handed to pods, until they are to be renewed.
#[derive(Default)]
pub(super) struct Tokens(Mutex<BTreeMap<TokenKey, (String, Instant)>>);

impl Tokens {
    fn get(&self, key: &TokenKey) -> Option<String> {
        let held = self.0.lock();
        let (token, until) = held.get(key)?;
        (Instant::now() < *until).then(|| token.clone())
    }

    fn put(&self, key: TokenKey, token: &str, lives: Duration) {
        let renew = (lives * 4 / 5).min(TOKEN_RENEW_MAX);
        let until = Instant::now() + renew;
        self.0.lock().insert(key, (token.to_string(), until));
    }

    /// Removes a deleted pod's tokens.
    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().retain(|(of, ..), _| of != uid);
    }
}

/// Why a pod has no token; shown to the user.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("failed to fetch token: {0}")]
    Fetch(#[source] knarr_client::Error),
    #[error("failed to fetch token: the answer holds none")]
    NoToken,
}

/// A token for the pod's service account, bound to the pod.
pub(super) async fn token(
    api: &dyn Api,
    tokens: &Tokens,
    pod: &core::Pod,
    desired: &core::ServiceAccountTokenProjection,
    default: u32,
) -> Result<Content, TokenError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
    let account = account
        .filter(|a| !a.is_empty())
        .unwrap_or_else(|| "default".into());
    let audience = desired.audience.clone().unwrap_or_default();
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let key = (uid, desired.path.clone(), audience.clone());
    let token = match tokens.get(&key) {
        Some(token) => token,
        None => {
            let seconds = desired.expiration_seconds.unwrap_or(TOKEN_SECONDS);
            let audiences: Vec<String> = [audience].into_iter().filter(|a| !a.is_empty()).collect();
            let token = request_token(api, pod, namespace, &account, &audiences, seconds).await?;
            tokens.put(
                key,
                &token,
                Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
            );
            token
        }
    };
    let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let grouped = context.is_some_and(|c| c.fs_group.is_some());
    let user = only_user(pod);
    // No other user may read it. The group, where there is one, gets the right when the file is written.
    let mode = if grouped || user.is_some() { 0o600 } else { default };
    let file = File {
        bytes: token.as_bytes().to_vec(),
        mode,
        user,
    };
    Ok(Content::from([(desired.path.clone(), file)]))
}

/// The user that all containers run as, if each sets one and all are the same.
fn only_user(pod: &core::Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec.security_context.as_ref().and_then(|c| c.run_as_user);
    let mut users = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .map(|c| c.security_context.as_ref().and_then(|c| c.run_as_user).or(of_pod));
    let first = users.next()??;
    users
        .all(|user| user == Some(first))
        .then(|| u32::try_from(first).ok())?
}

async fn request_token(
    api: &dyn Api,
    pod: &core::Pod,
    namespace: &str,
    account: &str,
    audiences: &[String],
    seconds: i64,
) -> Result<String, TokenError> {
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": audiences,
            "expirationSeconds": seconds,
            "boundObjectRef": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod.metadata.name,
                "uid": pod.metadata.uid,
            },
        },
    });
    let kind = core::ServiceAccount::kind_of();
    let answer = api
        .create_subresource(kind, namespace, account, "token", request)
        .await;
    let answer = answer.map_err(TokenError::Fetch)?;
    let token = answer["status"]["token"].as_str().map(String::from);
    token.ok_or(TokenError::NoToken)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::super::atomic_writer::write;
    use super::*;

    #[test]
    fn a5_a_token_is_its_users_where_all_containers_have_one() {
        let pod = |of_pod: Option<i64>, own: &[Option<i64>]| -> core::Pod {
            let containers: Vec<_> = own
                .iter()
                .map(|user| json!({"name": "c", "securityContext": {"runAsUser": user}}))
                .collect();
            let spec = json!({"securityContext": {"runAsUser": of_pod}, "containers": containers});
            serde_json::from_value(json!({"spec": spec})).unwrap()
        };
        for (of_pod, own, user) in [
            (None, &[None][..], None),
            (Some(7), &[None, None], Some(7)),
            (Some(7), &[None, Some(8)], None),
            (None, &[Some(8), Some(8)], Some(8)),
            (None, &[Some(8), None], None),
        ] {
            assert_eq!(only_user(&pod(of_pod, own)), user, "{of_pod:?} {own:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().metadata().unwrap().gid();
        let token = File {
            bytes: b"t".to_vec(),
            mode: 0o600,
            user: None,
        };
        for (name, group, mode) in [("own", None, 0o600), ("group", Some(group), 0o640)] {
            let volume = dir.path().join(name);
            write(&volume, &Content::from([("token".into(), token.clone())]), group).unwrap();
            let meta = fs::metadata(volume.join("token")).unwrap();
            assert_eq!(meta.permissions().mode() & 0o777, mode, "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_kept_for_four_fifths_of_its_life() {
        let tokens = Tokens::default();
        let key = ("u".to_string(), "token".to_string(), String::new());
        tokens.put(key.clone(), "t", Duration::from_secs(1000));
        tokio::time::sleep(Duration::from_secs(799)).await;
        assert_eq!(tokens.get(&key).as_deref(), Some("t"));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(tokens.get(&key), None);
        tokens.put(key.clone(), "t", Duration::from_secs(1000));
        tokens.forget("u");
        assert_eq!(tokens.get(&key), None);
    }
}
