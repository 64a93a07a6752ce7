//! Secret: `stringData` is merged into `data`, and some types require certain keys.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use knarr_api::well_known::SERVICE_ACCOUNT_NAME;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::checks::{drop_empty, immutable, text};
use super::config_map::{IMMUTABLE_WHEN_SET, MAX_BYTES};
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

const REDACTED: &str = "<secret contents redacted>";
const PEM_BEGIN: &[u8] = b"-----BEGIN ";

impl Strategy for Secret {
    fn set_defaults(&mut self) {
        for (key, value) in self.string_data.take().into_iter().flatten() {
            let data = self.data.get_or_insert_default();
            data.insert(key, ByteString(value.into_bytes()));
        }
        drop_empty(&mut self.data);
        if text(&self.type_).is_empty() {
            self.type_ = Some("Opaque".into());
        }
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let data = Path::new("data");
        let mut bytes = 0;
        for (key, value) in self.data.iter().flatten() {
            errors.all_invalid(&data.key(key), key.as_str(), names::config_map_key(key));
            bytes += value.0.len();
        }
        if bytes > MAX_BYTES {
            errors.too_long(&data, MAX_BYTES);
        }
        let has = |key: &str| self.data.as_ref().is_some_and(|d| d.contains_key(key));
        match text(&self.type_) {
            "kubernetes.io/service-account-token" => {
                let annotations = self.metadata.annotations.as_ref();
                if annotations
                    .and_then(|a| a.get(SERVICE_ACCOUNT_NAME))
                    .is_none_or(String::is_empty)
                {
                    errors.required(
                        &Path::new("metadata")
                            .child("annotations")
                            .key(SERVICE_ACCOUNT_NAME),
                        "",
                    );
                }
            }
            "kubernetes.io/dockercfg" => self.json_object(".dockercfg", &mut errors),
            "kubernetes.io/dockerconfigjson" => self.json_object(".dockerconfigjson", &mut errors),
            "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
                errors.required(&data.key("username"), "");
                errors.required(&data.key("password"), "");
            }
            "kubernetes.io/ssh-auth" => {
                let key = self.data.as_ref().and_then(|d| d.get("ssh-privatekey"));
                if key.is_none_or(|k| k.0.is_empty()) {
                    errors.required(&data.key("ssh-privatekey"), "");
                }
            }
            "kubernetes.io/tls" => {
                for key in ["tls.crt", "tls.key"] {
                    if !has(key) {
                        errors.required(&data.key(key), "");
                    }
                }
            }
            _ => {}
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let mut errors = ErrorList::new();
        immutable(&mut errors, &Path::new("type"), &self.type_, &old.type_);
        if old.immutable == Some(true) {
            if self.immutable != Some(true) {
                errors.forbidden(&Path::new("immutable"), IMMUTABLE_WHEN_SET);
            }
            if self.data != old.data {
                errors.forbidden(&Path::new("data"), IMMUTABLE_WHEN_SET);
            }
        }
        errors.extend(self.validate());
        errors
    }

    /// Warns if a TLS secret has no PEM data.
    fn warnings(&self) -> Vec<String> {
        if text(&self.type_) != "kubernetes.io/tls" {
            return Vec::new();
        }
        let data = self.data.as_ref();
        for (key, what) in [("tls.crt", "certificate"), ("tls.key", "key")] {
            let value = data.and_then(|d| d.get(key)).map_or(&[][..], |v| &v.0);
            if !value.windows(PEM_BEGIN.len()).any(|w| w == PEM_BEGIN) {
                return vec![format!("tls: failed to find any PEM data in {what} input")];
            }
        }
        Vec::new()
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Type"),
            Column::string("Data"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            table::name(&self.metadata),
            text(&self.type_).into(),
            self.data.as_ref().map_or(0, |d| d.len()).into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}

trait DockerConfig {
    fn json_object(&self, key: &str, errors: &mut ErrorList);
}

impl DockerConfig for Secret {
    /// Checks that the key is present and its value is a JSON object or null, which Go decodes as a map. The error never shows
    /// the value.
    fn json_object(&self, key: &str, errors: &mut ErrorList) {
        let path = Path::new("data").key(key);
        match self.data.as_ref().and_then(|d| d.get(key)) {
            None => errors.required(&path, ""),
            Some(value) => {
                if let Err(e) = serde_json::from_slice::<Option<serde_json::Map<_, _>>>(&value.0) {
                    let detail = if e.is_eof() {
                        "unexpected end of JSON input".to_string()
                    } else {
                        // serde's error message may quote the content.
                        format!("not a JSON object (line {}, column {})", e.line(), e.column())
                    };
                    errors.invalid(&path, REDACTED, detail);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn errors(config: &str) -> Vec<String> {
        let mut secret = Secret {
            type_: Some("kubernetes.io/dockerconfigjson".into()),
            ..Default::default()
        };
        secret.metadata.name = Some("registry".into());
        let data = [(".dockerconfigjson".to_string(), ByteString(config.into()))];
        secret.data = Some(data.into());
        secret.validate().iter().map(ToString::to_string).collect()
    }

    /// Go's decoder accepts null and objects as a map, and nothing else.
    #[test]
    fn a_docker_config_is_an_object_or_null() {
        for accepted in ["{}", " null ", r#"{"auths": 7}"#] {
            assert_eq!(errors(accepted), Vec::<String>::new(), "{accepted}");
        }
        for rejected in ["", "[]", "7", "\"x\"", "{", "nul"] {
            let found = errors(rejected);
            let [error] = &found[..] else {
                panic!("{rejected}: {found:?}")
            };
            assert!(error.contains("data[.dockerconfigjson]"), "{rejected}: {error}");
        }
    }
}
