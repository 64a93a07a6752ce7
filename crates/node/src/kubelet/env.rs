//! A container's environment: from services, from ConfigMaps and Secrets, from the pod itself, from files that its
//! other containers wrote, with `$(NAME)` put in.
//!
//! Plain functions on objects and files that were fetched before; errors for missing ones have the kubelet's messages.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_kubelet::env_file;
use tracing::warn;

use super::downward::{self, DownwardError, DownwardValues};

/// The objects a pod's containers refer to; `None` where there is no such object.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub config_maps: BTreeMap<String, Option<Arc<core::ConfigMap>>>,
    pub secrets: BTreeMap<String, Option<Arc<core::Secret>>>,
    /// Of the pod's namespace, and `default/kubernetes`.
    pub services: Vec<Arc<core::Service>>,
    /// By volume and path in it; errors have the kubelet's messages.
    pub files: BTreeMap<(String, String), Result<EnvFile, EnvFileError>>,
}

/// Why there is no file of variables; shown to the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvFileError {
    #[error("cannot find the volume {volume:?} referenced by FileKeyRef")]
    NoVolume { volume: String },
    /// It cannot be read or parsed. Its content is never shown.
    #[error("couldn't parse env file")]
    Unreadable,
}

/// Why a container has no environment; shown to the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    #[error("configmap {name:?} not found")]
    NoConfigMap { name: String },
    #[error("secret {name:?} not found")]
    NoSecret { name: String },
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    NoKey {
        key: String,
        kind: &'static str,
        namespace: String,
        name: String,
    },
    #[error("environment variable key {key:?} not found in file {file:?}")]
    NoKeyInFile { key: String, file: PathBuf },
    #[error(transparent)]
    File(#[from] EnvFileError),
    #[error(transparent)]
    Downward(#[from] DownwardError),
}

/// A file of variables.
#[derive(Clone, Debug)]
pub struct EnvFile {
    /// On the node.
    pub at: PathBuf,
    /// At most [`env_file::FILE_BYTES`].
    pub text: Vec<u8>,
    /// Whether there is more.
    pub cut: bool,
}

/// The names of the ConfigMaps and of the Secrets that a container's environment comes from.
pub fn references(container: &core::Container) -> (Vec<String>, Vec<String>) {
    let (mut maps, mut secrets) = (Vec::new(), Vec::new());
    for from in container.env_from.iter().flatten() {
        maps.extend(from.config_map_ref.iter().map(|r| r.name.clone()));
        secrets.extend(from.secret_ref.iter().map(|r| r.name.clone()));
    }
    for source in container
        .env
        .iter()
        .flatten()
        .filter_map(|e| e.value_from.as_ref())
    {
        maps.extend(source.config_map_key_ref.iter().map(|r| r.name.clone()));
        secrets.extend(source.secret_key_ref.iter().map(|r| r.name.clone()));
    }
    (maps, secrets)
}

/// The files, by volume and path in it, that a container's environment comes from.
pub fn files(container: &core::Container) -> impl Iterator<Item = (&str, &str)> {
    let sources = container
        .env
        .iter()
        .flatten()
        .filter_map(|e| e.value_from.as_ref());
    let files = sources.filter_map(|s| s.file_key_ref.as_ref());
    files.map(|file| (file.volume_name.as_str(), file.path.as_str()))
}

/// The environment, in the order of the spec, services last.
pub fn environment(
    pod: &core::Pod,
    container: &core::Container,
    sources: &Sources,
    values: &DownwardValues,
) -> Result<Vec<(String, String)>, EnvError> {
    let links = pod
        .spec
        .as_ref()
        .is_none_or(|s| s.enable_service_links != Some(false));
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let services = service_variables(&sources.services, namespace, links);
    let mut env: Vec<(String, String)> = Vec::new();
    let set = |env: &mut Vec<(String, String)>, name: String, value: String| {
        env.retain(|(n, _)| *n != name);
        env.push((name, value));
    };
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or("");
        for (key, value) in bulk(from, sources)? {
            set(&mut env, format!("{prefix}{key}"), value);
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value_from, variable.value.as_deref().unwrap_or("")) {
            (_, text) if !text.is_empty() => Some(expand(text, |name| {
                let known = env.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
                known.or_else(|| services.get(name).cloned())
            })),
            (Some(source), _) => single(pod, container, source, sources, values)?,
            (None, _) => Some(String::new()),
        };
        if let Some(value) = value {
            set(&mut env, variable.name.clone(), value);
        }
    }
    for (name, value) in services {
        if !env.iter().any(|(n, _)| *n == name) {
            env.push((name, value));
        }
    }
    Ok(env)
}

fn bulk(from: &core::EnvFromSource, sources: &Sources) -> Result<Vec<(String, String)>, EnvError> {
    if let Some(desired) = &from.config_map_ref {
        return match sources.config_maps.get(&desired.name).cloned().flatten() {
            Some(map) => Ok(map.data.clone().unwrap_or_default().into_iter().collect()),
            None if desired.optional == Some(true) => Ok(Vec::new()),
            None => Err(EnvError::NoConfigMap {
                name: desired.name.clone(),
            }),
        };
    }
    let Some(desired) = &from.secret_ref else {
        return Ok(Vec::new());
    };
    match sources.secrets.get(&desired.name).cloned().flatten() {
        Some(secret) => {
            let data = secret.data.clone().unwrap_or_default();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Ok(data.into_iter().map(|(k, v)| (k, text(&v.0))).collect())
        }
        None if desired.optional == Some(true) => Ok(Vec::new()),
        None => Err(EnvError::NoSecret {
            name: desired.name.clone(),
        }),
    }
}

fn single(
    pod: &core::Pod,
    container: &core::Container,
    source: &core::EnvVarSource,
    sources: &Sources,
    values: &DownwardValues,
) -> Result<Option<String>, EnvError> {
    let no_key = |kind, name: &str, key: &str| EnvError::NoKey {
        key: key.into(),
        kind,
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: name.into(),
    };
    if let Some(desired) = &source.field_ref {
        return Ok(Some(downward::field(pod, &desired.field_path, values)?));
    }
    if let Some(desired) = &source.file_key_ref {
        return from_file(desired, sources);
    }
    if let Some(desired) = &source.resource_field_ref {
        let value = downward::resource(pod, Some(container), desired, values)?;
        return Ok(Some(value));
    }
    if let Some(desired) = &source.config_map_key_ref {
        let optional = desired.optional == Some(true);
        let Some(map) = sources.config_maps.get(&desired.name).cloned().flatten() else {
            let name = desired.name.clone();
            return if optional {
                Ok(None)
            } else {
                Err(EnvError::NoConfigMap { name })
            };
        };
        return match map.data.as_ref().and_then(|d| d.get(&desired.key)) {
            Some(value) => Ok(Some(value.clone())),
            None if optional => Ok(None),
            None => Err(no_key("ConfigMap", &desired.name, &desired.key)),
        };
    }
    if let Some(desired) = &source.secret_key_ref {
        let optional = desired.optional == Some(true);
        let Some(secret) = sources.secrets.get(&desired.name).cloned().flatten() else {
            let name = desired.name.clone();
            return if optional {
                Ok(None)
            } else {
                Err(EnvError::NoSecret { name })
            };
        };
        return match secret.data.as_ref().and_then(|d| d.get(&desired.key)) {
            Some(value) => Ok(Some(String::from_utf8_lossy(&value.0).into_owned())),
            None if optional => Ok(None),
            None => Err(no_key("Secret", &desired.name, &desired.key)),
        };
    }
    Ok(None)
}

/// `optional` concerns the key: a missing file is an error.
fn from_file(desired: &core::FileKeySelector, sources: &Sources) -> Result<Option<String>, EnvError> {
    let of = (desired.volume_name.clone(), desired.path.clone());
    let file = sources.files.get(&of).ok_or(EnvFileError::Unreadable)?;
    let file = file.as_ref().map_err(Clone::clone)?;
    let value = env_file::value(&file.text, file.cut, &desired.key).map_err(|error| {
        warn!(path = %file.at.display(), key = desired.key, %error, "cannot read a file of variables");
        EnvFileError::Unreadable
    })?;
    match desired.optional {
        _ if !value.is_empty() => Ok(Some(String::from_utf8_lossy(&value).into_owned())),
        Some(true) => Ok(None),
        _ => Err(EnvError::NoKeyInFile {
            key: desired.key.clone(),
            file: file.at.clone(),
        }),
    }
}

/// Expands `$(NAME)`; `$$` is a dollar; a name without a value is not expanded.
pub fn expand(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match value(name) {
                Some(value) => out.push_str(&value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

/// Expands a container's variables in its command or its arguments.
pub fn expand_all(arguments: Option<&Vec<String>>, env: &[(String, String)]) -> Vec<String> {
    let value = |name: &str| env.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    arguments
        .into_iter()
        .flatten()
        .map(|argument| expand(argument, value))
        .collect()
}

/// The variables Docker links once had: one set for each service with an address.
fn service_variables(
    services: &[Arc<core::Service>],
    namespace: &str,
    links: bool,
) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for service in services {
        let meta = &service.metadata;
        let (name, of) = (
            meta.name.as_deref().unwrap_or(""),
            meta.namespace.as_deref().unwrap_or(""),
        );
        let master = of == "default" && name == "kubernetes";
        if !(master || links && of == namespace) {
            continue;
        }
        let Some(spec) = &service.spec else { continue };
        let Some(ip) = spec
            .cluster_ip
            .as_deref()
            .filter(|ip| !matches!(*ip, "" | "None"))
        else {
            continue;
        };
        let ports = spec.ports.as_deref().unwrap_or_default();
        let Some(first) = ports.first() else { continue };
        let prefix = name.to_uppercase().replace('-', "_");
        let mut add = |suffix: &str, value: String| {
            variables.insert(format!("{prefix}_{suffix}"), value);
        };
        add("SERVICE_HOST", ip.to_string());
        add("SERVICE_PORT", first.port.to_string());
        let host = if ip.contains(':') {
            format!("[{ip}]")
        } else {
            ip.to_string()
        };
        for (i, port) in ports.iter().enumerate() {
            if let Some(name) = port.name.as_deref().filter(|n| !n.is_empty()) {
                let name = name.to_uppercase().replace('-', "_");
                add(&format!("SERVICE_PORT_{name}"), port.port.to_string());
            }
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let address = format!("{}://{host}:{}", protocol.to_lowercase(), port.port);
            if i == 0 {
                add("PORT", address.clone());
            }
            let one = format!("PORT_{}_{protocol}", port.port);
            add(&one, address);
            add(&format!("{one}_PROTO"), protocol.to_lowercase());
            add(&format!("{one}_PORT"), port.port.to_string());
            add(&format!("{one}_ADDR"), ip.to_string());
        }
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn container(value: serde_json::Value) -> core::Container {
        serde_json::from_value(value).unwrap()
    }

    fn pod() -> core::Pod {
        serde_json::from_value(
            json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": []}}),
        )
        .unwrap()
    }

    fn file(text: &str) -> Result<EnvFile, EnvFileError> {
        Ok(EnvFile {
            at: "/pod/v/file".into(),
            text: text.into(),
            cut: false,
        })
    }

    fn sources() -> Sources {
        let map = json!({"metadata": {"name": "m"}, "data": {"k": "v", "j": "w"}});
        let service = json!({
            "metadata": {"name": "my-db", "namespace": "n"},
            "spec": {"clusterIP": "10.96.0.9", "ports": [{"name": "sql", "port": 5432}]},
        });
        Sources {
            config_maps: BTreeMap::from([
                (
                    "m".to_string(),
                    Some(Arc::new(serde_json::from_value(map).unwrap())),
                ),
                ("absent".to_string(), None),
            ]),
            secrets: BTreeMap::new(),
            files: BTreeMap::from([
                (("v".into(), "absent".into()), Err(EnvFileError::Unreadable)),
                (("v".into(), "bad".into()), file("K=v")),
                (("v".into(), "good".into()), file("K='it'\nEMPTY=''\n")),
            ]),
            services: vec![Arc::new(serde_json::from_value(service).unwrap())],
        }
    }

    #[test]
    fn dollar_names_are_put_in_and_the_unknown_stays() {
        let value = |name: &str| (name == "A").then(|| "1".to_string());
        for (text, want) in [
            ("$(A)-$(A)", "1-1"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("a$", "a$"),
            ("$(A", "$(A"),
            ("$A", "$A"),
        ] {
            assert_eq!(expand(text, value), want, "{text}");
        }
    }

    #[test]
    fn later_sources_win_and_see_the_earlier_ones() {
        let c = container(json!({
            "name": "c",
            "envFrom": [{"configMapRef": {"name": "m"}, "prefix": "P_"}, {"configMapRef": {"name": "absent", "optional": true}}],
            "env": [
                {"name": "A", "value": "$(P_k)!"},
                {"name": "P_j", "value": "over"},
                {"name": "DB", "value": "$(MY_DB_SERVICE_HOST)"},
                {"name": "GONE", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "zz", "optional": true}}},
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "F", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "good", "key": "K"}}},
                {"name": "NO", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "good", "key": "J", "optional": true}}},
                {"name": "AFTER", "value": "$(F)!"},
            ],
        }));
        let env = environment(&pod(), &c, &sources(), &DownwardValues::default()).unwrap();
        let get = |n: &str| env.iter().find(|(name, _)| name == n).map(|(_, v)| v.as_str());
        assert_eq!(get("A"), Some("v!"));
        assert_eq!(get("P_j"), Some("over"));
        assert_eq!(get("DB"), Some("10.96.0.9"));
        assert_eq!(get("GONE"), None);
        assert_eq!(get("NAME"), Some("p"));
        assert_eq!(
            (get("F"), get("NO"), get("AFTER")),
            (Some("it"), None, Some("it!"))
        );
        assert_eq!(get("MY_DB_PORT_5432_TCP"), Some("tcp://10.96.0.9:5432"));
        assert_eq!(get("MY_DB_SERVICE_PORT_SQL"), Some("5432"));
    }

    #[test]
    fn l4_what_is_missing_is_named() {
        for (source, want) in [
            (
                json!({"configMapKeyRef": {"name": "absent", "key": "k"}}),
                "configmap \"absent\" not found",
            ),
            (
                json!({"configMapKeyRef": {"name": "m", "key": "zz"}}),
                "couldn't find key zz in ConfigMap n/m",
            ),
            (
                json!({"secretKeyRef": {"name": "s", "key": "k"}}),
                "secret \"s\" not found",
            ),
            // Optional is what a file has, not the file.
            (
                json!({"fileKeyRef": {"volumeName": "v", "path": "absent", "key": "K", "optional": true}}),
                "couldn't parse env file",
            ),
            (
                json!({"fileKeyRef": {"volumeName": "v", "path": "bad", "key": "K"}}),
                "couldn't parse env file",
            ),
            (
                json!({"fileKeyRef": {"volumeName": "v", "path": "good", "key": "J"}}),
                "environment variable key \"J\" not found in file \"/pod/v/file\"",
            ),
            (
                json!({"fileKeyRef": {"volumeName": "v", "path": "good", "key": "EMPTY"}}),
                "environment variable key \"EMPTY\" not found in file \"/pod/v/file\"",
            ),
        ] {
            let c = container(json!({"name": "c", "env": [{"name": "X", "valueFrom": source}]}));
            let got = environment(&pod(), &c, &sources(), &DownwardValues::default());
            assert_eq!(got.unwrap_err().to_string(), want);
        }
    }
}
