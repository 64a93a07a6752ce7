//! Reads settings from flags and the file, where flags take precedence over the file and the file over defaults; all errors
//! are collected, so that they are reported at once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use knarr_api::feature_gates::FeatureGates;
use knarr_api::k8s_openapi::api::core::v1::Taint;
use knarr_api::k8s_openapi::jiff::SignedDuration;
use knarr_node::containerd::OciRuntimeChoice;
use knarr_node::kubelet::{SelfFencing, TerminationResume};
use serde_json::Value;

use super::value::ValueError;
use super::{Cidrs, LogFormat, Part, ShimChoice, StoreEngine};

/// A value, and the flag or the file and key that set it, for errors.
struct Setting {
    text: String,
    source: String,
}

/// Reads settings and collects errors.
pub(super) struct Reader {
    name: String,
    file: serde_json::Map<String, Value>,
    known: Vec<&'static str>,
    pub(super) errors: Vec<String>,
}

impl Reader {
    /// Of the text of a configuration file, which errors name.
    pub(super) fn new(file: Option<&Path>, text: &str) -> Self {
        let name = file.map_or_else(String::new, |p| p.display().to_string());
        let mut errors = Vec::new();
        let file = if text.trim().is_empty() {
            serde_json::Map::new()
        } else {
            match serde_saphyr::from_str::<Value>(text) {
                Ok(Value::Object(map)) => map,
                Ok(Value::Null) => serde_json::Map::new(),
                Ok(other) => {
                    errors.push(format!("{name}: expected settings (`listen: …`), found {other}"));
                    serde_json::Map::new()
                }
                Err(e) => {
                    errors.push(format!("{name}: {e}"));
                    serde_json::Map::new()
                }
            }
        };
        Reader {
            name,
            file,
            known: Vec::new(),
            errors,
        }
    }

    fn setting(&mut self, key: &'static str, flag: &str, set: &Option<String>) -> Option<Setting> {
        self.known.push(key);
        if let Some(text) = set {
            return Some(Setting {
                text: text.clone(),
                source: flag.to_string(),
            });
        }
        let value = self.file.get(key)?;
        let source = format!("{}: {key}", self.name);
        let text = match value {
            Value::String(s) => s.clone(),
            Value::Number(n) => n.to_string(),
            Value::Bool(is) => is.to_string(),
            Value::Array(items) if items.iter().all(Value::is_string) => items
                .iter()
                .filter_map(Value::as_str)
                .collect::<Vec<_>>()
                .join(","),
            other => {
                self.errors
                    .push(format!("{source}: expected text, found {other}"));
                return None;
            }
        };
        Some(Setting { text, source })
    }

    /// The parsed setting, from the flag, else the file, else its default. An invalid default, such as a host name that is not
    /// a DNS name, is reported like any other error.
    pub(super) fn get<T>(
        &mut self,
        key: &'static str,
        flag: &str,
        set: &Option<String>,
        default: &str,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> T
    where
        T: Fallback,
    {
        let setting = self.setting(key, flag, set).unwrap_or_else(|| Setting {
            text: default.to_string(),
            source: format!("{key} (default)"),
        });
        match parse(&setting.text) {
            Ok(value) => value,
            Err(why) => {
                self.errors
                    .push(format!("{}: {:?}: {why}", setting.source, setting.text));
                T::fallback()
            }
        }
    }

    pub(super) fn finish(mut self) -> Vec<String> {
        for key in self.file.keys() {
            if !self.known.contains(&key.as_str()) {
                let known = self.known.join(", ");
                self.errors.push(format!(
                    "{}: {key}: unknown setting; expected one of {known}",
                    self.name
                ));
            }
        }
        self.errors
    }
}
/// The value of an invalid setting, so that the others can be validated, too; knarr never runs with it.
pub(super) trait Fallback {
    fn fallback() -> Self;
}
macro_rules! fallback {
    ($($t:ty => $e:expr),* $(,)?) => {$(impl Fallback for $t { fn fallback() -> Self { $e } })*};
}
fallback! {
    PathBuf => PathBuf::new(),
    knarr_control::fencing::Allowed => Default::default(),
    knarr_api::scale_down::Policy => Default::default(),
    TerminationResume => TerminationResume::Full,
    knarr_api::emulation::Emulation => Default::default(),
    knarr_api::emulation::MinorVersion => Default::default(),
    std::time::Duration => std::time::Duration::ZERO,
    Option<std::time::Duration> => None,
    SignedDuration => SignedDuration::ZERO,
    SelfFencing => SelfFencing::Annotated,
    bool => false,
    FeatureGates => FeatureGates::default(),
    u32 => 0,
    Option<PathBuf> => None,
    String => String::new(),
    Vec<String> => Vec::new(),
    Vec<Taint> => Vec::new(),
    BTreeMap<String, String> => BTreeMap::new(),
    Option<String> => None,
    Option<SocketAddr> => None,
    SocketAddr => SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 0),
    Cidrs => Cidrs::default(),
    BTreeSet<Part> => BTreeSet::new(),
    Vec<IpAddr> => Vec::new(),
    u8 => 0,
    StoreEngine => StoreEngine::Memory,
    ShimChoice => ShimChoice::Auto,
    OciRuntimeChoice => OciRuntimeChoice::Auto,
    i64 => 0,
    f64 => 0.0,
    usize => 0,
    LogFormat => LogFormat::Human,
}
pub(super) fn socket(s: &str) -> Result<SocketAddr, ValueError> {
    s.parse()
        .map_err(|_| ValueError::expected("an address with a port, such as 127.0.0.1:6443"))
}

/// A path, made absolute from the working directory (components may run in other ones).
pub(super) fn absolute(s: &str) -> Result<PathBuf, ValueError> {
    if s.is_empty() {
        return Err(ValueError::expected("a path"));
    }
    std::path::absolute(s).map_err(ValueError::from)
}

pub(super) fn list(s: &str) -> Result<Vec<String>, ValueError> {
    Ok(s.split(',')
        .map(str::trim)
        .filter(|s| !s.is_empty())
        .map(str::to_string)
        .collect())
}
