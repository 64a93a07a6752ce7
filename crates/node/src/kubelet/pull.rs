//! Pulling an image, with the pod's own credentials (`imagePullSecrets`).

use base64::Engine as _;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_client::{Api, TypedApi};
use knarr_kubelet::image;
use knarr_kubelet::pod::Pulled;
use serde_json::Value;
use tokio::time::Instant;
use tracing::debug;

use super::pod_runtime::PodRuntime;
use crate::runtime::{AuthConfig, PodSandboxConfig, RuntimeError};

/// Why an image is not pulled; shown to the user.
#[derive(Debug, thiserror::Error)]
pub(super) enum PullError {
    #[error(transparent)]
    Reference(#[from] image::InvalidReference),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// Pulls with each of the matching credentials in turn; the last error if none works.
pub(super) async fn pull(
    api: &dyn Api,
    runtime: &PodRuntime,
    pod: &core::Pod,
    name: &str,
    sandbox: &PodSandboxConfig,
) -> Result<Pulled, PullError> {
    let requested = Instant::now();
    let _permit = runtime.pull_permit().await;
    let began = Instant::now();
    let full = image::normalize(name)?;
    let mut attempts = credentials(api, pod, &full).await.into_iter();
    let mut auth = attempts.next();
    loop {
        let error = match runtime.pull_image(&full, auth.as_ref(), sandbox).await {
            Ok(image_id) => {
                let image = runtime.image(&image_id).await.ok().flatten();
                let since = |from: Instant| SignedDuration::try_from(from.elapsed()).unwrap_or_default();
                return Ok(Pulled {
                    image_id,
                    took: since(began),
                    with_waiting: since(requested),
                    size_bytes: image.map_or(0, |i| i.size_bytes),
                });
            }
            Err(error) => error,
        };
        auth = attempts.next();
        if auth.is_none() {
            return Err(error.into());
        }
    }
}

async fn credentials(api: &dyn Api, pod: &core::Pod, full: &str) -> Vec<AuthConfig> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let mut found = Vec::new();
    for desired in pod
        .spec
        .iter()
        .flat_map(|s| s.image_pull_secrets.iter().flatten())
    {
        let secret = match api.get_as::<core::Secret>(namespace, &desired.name).await {
            Ok(secret) => secret,
            Err(error) => {
                // As in kubelet's `getPullSecretsForPod`: the image may be public.
                debug!(secret = desired.name, %error, "cannot read a pull secret");
                continue;
            }
        };
        let auths = [".dockerconfigjson", ".dockercfg"].into_iter().find_map(|key| {
            let value: Value = serde_json::from_slice(&secret.data.as_ref()?.get(key)?.0).ok()?;
            Some(if key == ".dockercfg" {
                value
            } else {
                value["auths"].clone()
            })
        });
        found.extend(matching(auths.as_ref().unwrap_or(&Value::Null), full));
    }
    found
}

/// The entries of a Docker configuration that are for this image, the longest path first.
fn matching(auths: &Value, full: &str) -> Vec<AuthConfig> {
    let mut found: Vec<(usize, AuthConfig)> = Vec::new();
    for (registry, entry) in auths.as_object().into_iter().flatten() {
        let bare = registry
            .trim_start_matches("https://")
            .trim_start_matches("http://");
        let bare = bare
            .trim_end_matches('/')
            .trim_end_matches("/v1")
            .trim_end_matches("/v2");
        let bare = match bare {
            "index.docker.io" | "registry-1.docker.io" => "docker.io",
            other => other,
        };
        let rest = full.strip_prefix(bare);
        if !rest.is_some_and(|rest| rest.starts_with('/') || rest.starts_with(':')) {
            continue;
        }
        let text = |key: &str| entry[key].as_str().unwrap_or_default().to_string();
        let (mut username, mut password) = (text("username"), text("password"));
        let decoded = base64::engine::general_purpose::STANDARD
            .decode(text("auth"))
            .ok();
        let decoded = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
        if let Some((user, pass)) = decoded.as_deref().and_then(|d| d.split_once(':')) {
            (username, password) = (user.to_string(), pass.to_string());
        }
        found.push((
            bare.len(),
            AuthConfig {
                username,
                password,
                server_address: registry.clone(),
                identity_token: text("identitytoken"),
                registry_token: text("registrytoken"),
                ..AuthConfig::default()
            },
        ));
    }
    found.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    found.into_iter().map(|(_, auth)| auth).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn credentials_are_for_their_registry_and_the_closest_match_is_first() {
        let auths = json!({
            "https://index.docker.io/v1/": {"auth": "dTpw"},
            "reg:5000": {"username": "a", "password": "b"},
            "reg:5000/team": {"username": "c", "password": "d"},
        });
        let names =
            |full| -> Vec<String> { matching(&auths, full).into_iter().map(|a| a.username).collect() };
        assert_eq!(names("docker.io/library/x:latest"), ["u"]);
        assert_eq!(names("reg:5000/team/x:1"), ["c", "a"]);
        assert_eq!(names("reg:5000/teams/x:1"), ["a"]);
        assert!(names("reg:50001/x:1").is_empty());
    }
}
