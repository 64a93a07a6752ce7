//! One setting after another out of flags and file, where flags outweigh the file and the file the defaults; all mistakes
//! are collected, so that they are told at once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use knarr_api::feature_gates::FeatureGates;
use knarr_api::k8s_openapi::api::core::v1::Taint;
use knarr_api::k8s_openapi::jiff::SignedDuration;
use knarr_node::kubelet::{SelfFencing, TerminationResume};
use serde_json::Value;

use super::{Cidrs, Flags, LogFormat, Part, StoreEngine};

/// A value and where it was given, for errors.
struct Given {
    text: String,
    place: String,
}

/// Takes settings out of the file and collects what is wrong.
pub(super) struct Reader {
    name: String,
    file: serde_json::Map<String, Value>,
    known: Vec<&'static str>,
    pub(super) mistakes: Vec<String>,
}

impl Reader {
    pub(super) fn new(flags: &Flags, text: &str) -> Self {
        let name = flags
            .config
            .as_ref()
            .map_or_else(String::new, |p| p.display().to_string());
        let mut mistakes = Vec::new();
        let file = if text.trim().is_empty() {
            serde_json::Map::new()
        } else {
            match serde_saphyr::from_str::<Value>(text) {
                Ok(Value::Object(map)) => map,
                Ok(Value::Null) => serde_json::Map::new(),
                Ok(other) => {
                    mistakes.push(format!("{name}: expected settings (`listen: …`), found {other}"));
                    serde_json::Map::new()
                }
                Err(e) => {
                    mistakes.push(format!("{name}: {e}"));
                    serde_json::Map::new()
                }
            }
        };
        Reader {
            name,
            file,
            known: Vec::new(),
            mistakes,
        }
    }

    fn given(&mut self, key: &'static str, flag: &str, set: &Option<String>) -> Option<Given> {
        self.known.push(key);
        if let Some(text) = set {
            return Some(Given {
                text: text.clone(),
                place: flag.to_string(),
            });
        }
        let value = self.file.get(key)?;
        let place = format!("{}: {key}", self.name);
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
                self.mistakes
                    .push(format!("{place}: expected text, found {other}"));
                return None;
            }
        };
        Some(Given { text, place })
    }

    /// The setting, from the flag, else the file, else its default (whose parse is known to work; a default
    /// that does not, such as an odd host name, is reported like any other).
    pub(super) fn get<T>(
        &mut self,
        key: &'static str,
        flag: &str,
        set: &Option<String>,
        default: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> T
    where
        T: Fallback,
    {
        let given = self.given(key, flag, set).unwrap_or_else(|| Given {
            text: default.to_string(),
            place: format!("{key} (its default)"),
        });
        match parse(&given.text) {
            Ok(value) => value,
            Err(why) => {
                self.mistakes
                    .push(format!("{}: {:?}: {why}", given.place, given.text));
                T::fallback()
            }
        }
    }

    pub(super) fn finish(mut self) -> Vec<String> {
        for key in self.file.keys() {
            if !self.known.contains(&key.as_str()) {
                let known = self.known.join(", ");
                self.mistakes.push(format!(
                    "{}: {key}: there is no such setting (there are {known})",
                    self.name
                ));
            }
        }
        self.mistakes
    }
}
/// A stand-in for a setting that was refused, so that the rest can be checked too; never used to run.
pub(super) trait Fallback {
    fn fallback() -> Self;
}
macro_rules! fallback {
    ($($t:ty => $e:expr),* $(,)?) => {$(impl Fallback for $t { fn fallback() -> Self { $e } })*};
}
fallback! {
    PathBuf => PathBuf::new(),
    knarr_control::fencing::Allowed => Default::default(),
    TerminationResume => TerminationResume::Full,
    knarr_api::emulation::Emulation => Default::default(),
    knarr_api::emulation::MinorVersion => Default::default(),
    std::time::Duration => std::time::Duration::ZERO,
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
    i64 => 0,
    f64 => 0.0,
    usize => 0,
    LogFormat => LogFormat::Human,
}
pub(super) fn socket(s: &str) -> Result<SocketAddr, String> {
    s.parse()
        .map_err(|_| "expected an address with a port, such as 127.0.0.1:6443".into())
}

/// A path, made absolute from the working directory (components run in others).
pub(super) fn absolute(s: &str) -> Result<PathBuf, String> {
    if s.is_empty() {
        return Err("expected a path".into());
    }
    std::path::absolute(s).map_err(|e| e.to_string())
}

pub(super) fn list(s: &str) -> Result<Vec<String>, String> {
    Ok(s.split(',')
        .map(str::trim)
        .filter(|s| !s.is_empty())
        .map(str::to_string)
        .collect())
}
