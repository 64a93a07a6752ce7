//! What the files of a volume contain: values of ConfigMaps and Secrets, fields of the pod, service account tokens.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_client::Api;

use super::atomic_writer::{Content, File};
use super::service_account_token::{TokenError, Tokens, token};
use crate::kubelet::downward::{self, DownwardError, DownwardValues};

/// Why a volume has no content; shown to the user.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    #[error("{what} {name:?} not found")]
    NotFound { what: &'static str, name: String },
    #[error("{what} references non-existent config key: {key}")]
    NoKey { what: &'static str, key: String },
    #[error("this projected source is not supported by knarr yet")]
    UnsupportedSource,
    #[error(transparent)]
    Downward(#[from] DownwardError),
    #[error(transparent)]
    Api(#[from] knarr_client::Error),
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// The content of a volume.
pub(super) async fn gather(
    api: &dyn Api,
    tokens: &Tokens,
    pod: &core::Pod,
    volume: &core::Volume,
    values: &DownwardValues,
) -> Result<Content, ContentError> {
    if let Some(source) = &volume.config_map {
        let keys = Keys {
            name: &source.name,
            items: source.items.as_deref(),
            optional: source.optional == Some(true),
            mode: mode(source.default_mode),
        };
        return config_map(api, pod, &keys).await;
    }
    if let Some(source) = &volume.secret {
        let keys = Keys {
            name: source.secret_name.as_deref().unwrap_or(""),
            items: source.items.as_deref(),
            optional: source.optional == Some(true),
            mode: mode(source.default_mode),
        };
        return secret(api, pod, &keys).await;
    }
    if let Some(source) = &volume.downward_api {
        let items = source.items.as_deref().unwrap_or_default();
        return downward_files(pod, items, mode(source.default_mode), values);
    }
    let mut content = Content::new();
    let Some(projected) = &volume.projected else {
        return Ok(content);
    };
    let default = mode(projected.default_mode);
    for source in projected.sources.iter().flatten() {
        let part = if let Some(map) = &source.config_map {
            let keys = Keys {
                name: &map.name,
                items: map.items.as_deref(),
                optional: map.optional == Some(true),
                mode: default,
            };
            config_map(api, pod, &keys).await?
        } else if let Some(from) = &source.secret {
            let keys = Keys {
                name: &from.name,
                items: from.items.as_deref(),
                optional: from.optional == Some(true),
                mode: default,
            };
            secret(api, pod, &keys).await?
        } else if let Some(own) = &source.downward_api {
            downward_files(pod, own.items.as_deref().unwrap_or_default(), default, values)?
        } else if let Some(desired) = &source.service_account_token {
            token(api, tokens, pod, desired, default).await?
        } else {
            return Err(ContentError::UnsupportedSource);
        };
        content.extend(part);
    }
    Ok(content)
}

fn mode(given: Option<i32>) -> u32 {
    given.and_then(|m| u32::try_from(m).ok()).unwrap_or(0o644)
}

struct Keys<'a> {
    name: &'a str,
    items: Option<&'a [core::KeyToPath]>,
    optional: bool,
    mode: u32,
}

impl Keys<'_> {
    fn not_found(&self, what: &'static str) -> ContentError {
        ContentError::NotFound {
            what,
            name: self.name.into(),
        }
    }

    /// The files for these values: all of them, or the listed items.
    fn pick(&self, values: BTreeMap<String, Vec<u8>>, what: &'static str) -> Result<Content, ContentError> {
        let Some(items) = self.items.filter(|items| !items.is_empty()) else {
            let file = |bytes| File {
                bytes,
                mode: self.mode,
                user: None,
            };
            return Ok(values.into_iter().map(|(k, v)| (k, file(v))).collect());
        };
        let mut content = Content::new();
        for item in items {
            match values.get(&item.key) {
                Some(bytes) => {
                    let file = File {
                        bytes: bytes.clone(),
                        mode: item.mode.map_or(self.mode, |m| mode(Some(m))),
                        user: None,
                    };
                    content.insert(item.path.clone(), file);
                }
                None if self.optional => {}
                None => {
                    let key = item.key.clone();
                    return Err(ContentError::NoKey { what, key });
                }
            }
        }
        Ok(content)
    }
}

async fn config_map(api: &dyn Api, pod: &core::Pod, keys: &Keys<'_>) -> Result<Content, ContentError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let object = match api.get(core::ConfigMap::kind_of(), namespace, keys.name).await {
        Ok(object) => object,
        Err(error) if error.is_not_found() && keys.optional => return Ok(Content::new()),
        Err(error) if error.is_not_found() => return Err(keys.not_found("configmap")),
        Err(error) => return Err(error.into()),
    };
    let map = object.to_typed::<core::ConfigMap>().unwrap_or_default();
    let text = map.data.into_iter().flatten().map(|(k, v)| (k, v.into_bytes()));
    let binary = map.binary_data.into_iter().flatten().map(|(k, v)| (k, v.0));
    keys.pick(text.chain(binary).collect(), "configmap")
}

async fn secret(api: &dyn Api, pod: &core::Pod, keys: &Keys<'_>) -> Result<Content, ContentError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let object = match api.get(core::Secret::kind_of(), namespace, keys.name).await {
        Ok(object) => object,
        Err(error) if error.is_not_found() && keys.optional => return Ok(Content::new()),
        Err(error) if error.is_not_found() => return Err(keys.not_found("secret")),
        Err(error) => return Err(error.into()),
    };
    let data = object.to_typed::<core::Secret>().unwrap_or_default().data;
    keys.pick(
        data.into_iter().flatten().map(|(k, v)| (k, v.0)).collect(),
        "secret",
    )
}

fn downward_files(
    pod: &core::Pod,
    items: &[core::DownwardAPIVolumeFile],
    default: u32,
    values: &DownwardValues,
) -> Result<Content, ContentError> {
    let mut content = Content::new();
    for item in items {
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => downward::field(pod, &field.field_path, values)?,
            (None, Some(resource)) => downward::resource(pod, None, resource, values)?,
            (None, None) => continue,
        };
        let file = File {
            bytes: text.into_bytes(),
            mode: item.mode.map_or(default, |m| mode(Some(m))),
            user: None,
        };
        content.insert(item.path.clone(), file);
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_pick_keys_and_a_missing_one_is_named() {
        let values = BTreeMap::from([("k".to_string(), b"v".to_vec())]);
        let item = |key: &str| core::KeyToPath {
            key: key.into(),
            path: "p".into(),
            mode: Some(0o600),
        };
        let pick = |items: &[core::KeyToPath], optional| {
            Keys {
                name: "m",
                items: Some(items),
                optional,
                mode: 0o644,
            }
            .pick(values.clone(), "configmap")
        };
        assert_eq!(pick(&[item("k")], false).unwrap()["p"].mode, 0o600);
        assert_eq!(
            pick(&[item("zz")], false).unwrap_err().to_string(),
            "configmap references non-existent config key: zz"
        );
        assert!(pick(&[item("zz")], true).unwrap().is_empty());
    }
}
