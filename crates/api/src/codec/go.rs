//! What clients are told about Go's types: which zero values vanish, and how types are called in errors.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Field to the form of the zero value it drops and the name of its type (may be empty).
type Fields = BTreeMap<&'static str, (u8, &'static str)>;

static TYPES: LazyLock<BTreeMap<&'static str, Fields>> =
    LazyLock::new(|| parse(include_str!("go_types.txt")));

fn parse(text: &'static str) -> BTreeMap<&'static str, Fields> {
    let mut types = BTreeMap::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or("");
        let fields: &mut Fields = types.entry(name).or_default();
        for (form, list) in words.filter_map(|w| w.split_once(':')) {
            for field in list.split(',') {
                let (field, of) = field.split_once('=').unwrap_or((field, ""));
                fields.insert(field, (form.as_bytes().first().copied().unwrap_or(b'*'), of));
            }
        }
    }
    types
}

/// Whether `field` of a struct named `of` loses the zero value of this form.
pub(super) fn drops_zero(of: &str, field: &str, form: u8) -> bool {
    TYPES
        .get(of)
        .and_then(|fields| fields.get(field))
        .is_some_and(|(dropped, _)| *dropped == form)
}

/// Whether `field` of a struct named `of` is written as an object even where nothing in it is set.
pub(crate) fn is_always_object(of: &str, field: &str) -> bool {
    drops_zero(of, field, b'o')
}

/// Whether the list `field` of a struct named `of` is written as null where it is not set.
pub(crate) fn is_null_unset(of: &str, field: &str) -> bool {
    drops_zero(of, field, b'n')
}

/// The name of a field's string type or list of such, where it has one.
pub(super) fn named_type(of: &str, field: &str) -> Option<&'static str> {
    TYPES
        .get(of)
        .and_then(|fields| fields.get(field))
        .map(|(_, name)| *name)
        .filter(|name| !name.is_empty())
}

/// The structs embedded in one named `of` that `field` comes from: they are part of a field's path in errors (Go 1.24 and
/// later).
pub(super) fn embedded(of: &str, field: &str) -> Option<&'static str> {
    match (of, field) {
        ("Volume", "name") | ("EphemeralContainer", "targetContainerName") => None,
        ("RuleWithOperations", "operations") | ("NamedRuleWithOperations", "resourceNames") => None,
        (
            "PersistentVolumeSpec",
            "accessModes"
            | "capacity"
            | "claimRef"
            | "mountOptions"
            | "nodeAffinity"
            | "persistentVolumeReclaimPolicy"
            | "storageClassName"
            | "volumeAttributesClassName"
            | "volumeMode",
        ) => None,
        ("Volume", _) => Some("VolumeSource"),
        ("PersistentVolumeSpec", _) => Some("PersistentVolumeSource"),
        ("EphemeralContainer", _) => Some("EphemeralContainerCommon"),
        ("RuleWithOperations", _) => Some("Rule"),
        ("NamedRuleWithOperations", "operations") => Some("RuleWithOperations"),
        ("NamedRuleWithOperations", _) => Some("RuleWithOperations.Rule"),
        ("Probe", "exec" | "grpc" | "httpGet" | "tcpSocket") => Some("ProbeHandler"),
        ("IngressRule", "http") => Some("IngressRuleValue"),
        (
            "DeviceClaimConfiguration" | "DeviceAllocationConfiguration" | "DeviceClassConfiguration",
            "opaque",
        ) => Some("DeviceConfiguration"),
        (
            "ConfigMapEnvSource"
            | "ConfigMapKeySelector"
            | "ConfigMapProjection"
            | "ConfigMapVolumeSource"
            | "SecretEnvSource"
            | "SecretKeySelector"
            | "SecretProjection",
            "name",
        ) => Some("LocalObjectReference"),
        _ => None,
    }
}

/// Where standard base64 breaks, as Go counts: the byte, or the beginning of a group that is cut short.
pub(super) fn base64_mistake(text: &str) -> String {
    let symbol = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'/');
    let data = text.trim_end_matches('=');
    let at = match data.bytes().position(|c| !symbol(c)) {
        Some(at) => at,
        None if text.len().is_multiple_of(4) && text.len() - data.len() > 2 => data.len(),
        None => (text.len() / 4 * 4).min(data.len() / 4 * 4),
    };
    format!("illegal base64 data at input byte {at}")
}
