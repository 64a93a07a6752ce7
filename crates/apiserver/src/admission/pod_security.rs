//! PodSecurity, as far as it concerns namespaces: the labels that choose a level and a version must name one.
//! Pods are not judged by them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Namespace;
use knarr_api::field::{Errors, Path};
use knarr_api::{AnyObject, Error, k8s_openapi, registry};

use crate::server::Server;

const LABELS: &str = "pod-security.kubernetes.io/";
const MODES: [&str; 3] = ["enforce", "audit", "warn"];

/// A new namespace's labels must be right; those of one that is there must not get worse.
pub(super) fn admit(server: &Server, object: &dyn AnyObject, update: bool) -> Result<(), Error> {
    let Some(namespace) = object.as_any().downcast_ref::<Namespace>() else {
        return Ok(());
    };
    let name = namespace.metadata.name.as_deref().unwrap_or("");
    let mistakes = mistakes(namespace.metadata.labels.as_ref());
    if mistakes.is_empty() {
        return Ok(());
    }
    let old = server
        .cache
        .get(&registry::NAMESPACE, "", name)
        .filter(|_| update);
    let same = old.is_some_and(|old| {
        self::mistakes(old.metadata().labels.as_ref()).to_string() == mistakes.to_string()
    });
    match same {
        true => Ok(()),
        false => Err(Error::invalid(registry::NAMESPACE.about_kind(name), &mistakes)),
    }
}

fn mistakes(labels: Option<&BTreeMap<String, String>>) -> Errors {
    let mut errors = Errors::new();
    let Some(labels) = labels else {
        return errors;
    };
    let path = Path::new("metadata").child("labels");
    for mode in MODES {
        let level = format!("{LABELS}{mode}");
        if let Some(value) = labels.get(&level)
            && !matches!(value.as_str(), "privileged" | "baseline" | "restricted")
        {
            let words = "must be one of privileged, baseline, restricted";
            errors.invalid(&path.key(&level), value, words);
        }
        let version = format!("{LABELS}{mode}-version");
        if let Some(value) = labels.get(&version)
            && value != "latest"
            && !value.strip_prefix("v1.").is_some_and(is_number)
        {
            errors.invalid(&path.key(&version), value, "must be \"latest\" or \"v1.x\"");
        }
    }
    errors
}

/// Digits without leading zeros.
fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_versions_must_be_known() {
        for (label, value, fine) in [
            ("enforce", "baseline", true),
            ("warn", "foo", false),
            ("audit", "", false),
            ("enforce-version", "latest", true),
            ("enforce-version", "v1.30", true),
            ("warn-version", "v1.03", false),
            ("audit-version", "1.30", false),
            ("other", "x", true),
        ] {
            let labels = BTreeMap::from([(format!("{LABELS}{label}"), value.to_string())]);
            assert_eq!(mistakes(Some(&labels)).is_empty(), fine, "{label}={value}");
        }
    }
}
