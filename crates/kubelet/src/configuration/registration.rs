//! Labels and taints with which a node is registered, as on the command line.
//!
//! The API server's NodeRestriction decides which of Kubernetes' labels a node may set itself.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use knarr_api::k8s_openapi;
use knarr_apimachinery::field::{ErrorList, FieldError, Path};
use knarr_apimachinery::names;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Which item of `--node-labels` or `--register-with-taints` is rejected.
#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    #[error("{0:?}: expected key=value")]
    LabelFormat(String),
    #[error("{item:?}: {message}")]
    Label { item: String, message: String },
    #[error("{0:?}: expected key=value:effect")]
    TaintFormat(String),
    #[error("{item:?}: {error}")]
    Taint { item: String, error: FieldError },
    #[error("{0:?}: there is another taint with this key and effect")]
    DuplicateTaint(String),
}

/// Whether a node may be registered with the taint.
pub(super) fn check_taint(taint: &Taint, at: &Path, errors: &mut ErrorList) {
    for message in names::qualified_name(&taint.key) {
        errors.invalid(&at.child("key"), taint.key.as_str(), message);
    }
    let value = taint.value.as_deref().unwrap_or("");
    for message in names::label_value(value) {
        errors.invalid(&at.child("value"), value, message);
    }
    if !EFFECTS.contains(&taint.effect.as_str()) {
        errors.not_supported(&at.child("effect"), taint.effect.as_str(), &EFFECTS);
    }
    if taint.time_added.is_some() {
        errors.forbidden(&at.child("timeAdded"), "is set when the node is tainted");
    }
}

fn listed(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Parses `--node-labels`: `key=value,…`.
pub fn labels(text: &str) -> Result<BTreeMap<String, String>, FlagError> {
    let mut labels = BTreeMap::new();
    for item in listed(text) {
        let (key, value) = item
            .split_once('=')
            .ok_or_else(|| FlagError::LabelFormat(item.into()))?;
        let wrong = names::qualified_name(key)
            .into_iter()
            .chain(names::label_value(value));
        if let Some(message) = wrong.into_iter().next() {
            let item = item.into();
            return Err(FlagError::Label { item, message });
        }
        labels.insert(key.to_string(), value.to_string());
    }
    Ok(labels)
}

/// Parses `--register-with-taints`: `key=value:effect,…`; the value is optional.
pub fn taints(text: &str) -> Result<Vec<Taint>, FlagError> {
    let mut taints: Vec<Taint> = Vec::new();
    for item in listed(text) {
        let (named, effect) = item
            .rsplit_once(':')
            .ok_or_else(|| FlagError::TaintFormat(item.into()))?;
        let (key, value) = match named.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (named, None),
        };
        let taint = Taint {
            key: key.into(),
            value: value.filter(|v| !v.is_empty()).map(str::to_string),
            effect: effect.into(),
            time_added: None,
        };
        let mut errors = ErrorList::default();
        check_taint(&taint, &Path::default(), &mut errors);
        if let Some(error) = errors.iter().next().cloned() {
            let item = item.into();
            return Err(FlagError::Taint { item, error });
        }
        if taints
            .iter()
            .any(|t| t.key == taint.key && t.effect == taint.effect)
        {
            return Err(FlagError::DuplicateTaint(item.into()));
        }
        taints.push(taint);
    }
    Ok(taints)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_taints_are_read_as_kubelets_flags_have_them() {
        let read = labels("disk=ssd, example.com/rack=,zone=a").unwrap();
        let shown: Vec<String> = read.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(shown, ["disk=ssd", "example.com/rack=", "zone=a"]);
        let shown = |text: &str| -> Vec<String> {
            let taints = taints(text).unwrap().into_iter();
            taints
                .map(|t| format!("{}={:?}:{}", t.key, t.value, t.effect))
                .collect()
        };
        assert_eq!(
            shown("dedicated=db:NoSchedule,gone:NoExecute,dedicated=db:NoExecute"),
            [
                "dedicated=Some(\"db\"):NoSchedule",
                "gone=None:NoExecute",
                "dedicated=Some(\"db\"):NoExecute"
            ]
        );
        assert_eq!(shown(""), [""; 0]);
    }

    #[test]
    fn an_invalid_label_or_taint_is_named() {
        for text in ["disk", "a b=c", "disk=s s", "=x"] {
            let error = labels(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
        for text in [
            "a=b",
            "a=b:Never",
            "a b:NoSchedule",
            "a=b:NoSchedule,a=c:NoSchedule",
        ] {
            assert!(taints(text).is_err(), "{text}");
        }
    }
}
