//! Rules of `metadata` that hold for every kind (apimachinery `api/validation/objectmeta.go`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use knarr_api::kind::Kind;
use knarr_apimachinery::field::{Cause, ErrorList, FieldError, Path, Shown};
use knarr_apimachinery::meta::{annotations, label_name, labels};
use knarr_apimachinery::names;

use crate::KindStrategy;
use crate::Part;
use crate::kinds::checks;

/// Longest field manager, in bytes.
const MANAGER_MAX_BYTES: usize = 128;
/// Longest subresource of a managed fields entry, in bytes.
const SUBRESOURCE_MAX_BYTES: usize = 256;

const IMMUTABLE: &str = "field is immutable";
const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

/// Validates a new object's metadata by the kind's own rules (name, namespace, labels, annotations, finalizers,
/// ownerReferences).
pub fn validate(kind: &Kind, meta: &ObjectMeta) -> ErrorList {
    own(kind, meta, common(meta))
}

/// As [`validate`]; `common` are the errors of [`common`].
fn own(kind: &Kind, meta: &ObjectMeta, common: ErrorList) -> ErrorList {
    let rule = |name: &str| kind.strategy().validate_name(name);
    let mut errors = of_names(kind, meta, rule, |prefix| names::generated(prefix, rule));
    errors.extend(common);
    if kind.strategy().standard_finalizers() {
        errors.extend(standard_finalizers(meta));
    }
    errors
}

/// Validates a new object's metadata by the rules for every kind. They apply when the kind's own found no error.
pub fn validate_common(kind: &Kind, meta: &ObjectMeta) -> ErrorList {
    let mut errors = validate_common_names(kind, meta);
    errors.extend(common(meta));
    errors
}

/// As [`validate_common`], where [`validate`] found no error: its rules differ from these in those of the names only.
pub fn validate_common_names(kind: &Kind, meta: &ObjectMeta) -> ErrorList {
    of_names(kind, meta, names::path_segment, names::path_segment_prefix)
}

/// Validates the metadata of an update: immutable fields, and the rules of [`validate`] for labels, annotations and the like.
///
/// An error is in `details.causes` once for each check that finds it: Kubernetes makes both checks for every kind, and
/// again those of the kind's own rules (`rest.BeforeUpdate`).
pub fn validate_update(kind: &Kind, part: Part, meta: &ObjectMeta, old: &ObjectMeta) -> ErrorList {
    // Each check finds the same errors of labels and the like: they are searched once.
    let common = common(meta);
    let mut errors = validate_common_names(kind, meta);
    errors.extend(common.clone());
    let changes = match common.is_empty() {
        true => immutable_fields(meta, old),
        false => changes(meta, old),
    };
    errors.extend(changes.clone());
    let checks_of_kind = kind.strategy().metadata_checks(part);
    for _ in 0..checks_of_kind.full {
        errors.extend(own(kind, meta, common.clone()));
    }
    for _ in 0..checks_of_kind.update {
        errors.extend(changes.clone());
        if kind.strategy().standard_finalizers() {
            errors.extend(standard_finalizers(meta));
        }
    }
    errors
}

/// Finalizers without a domain are Kubernetes' own.
fn standard_finalizers(meta: &ObjectMeta) -> ErrorList {
    let path = Path::new("metadata").child("finalizers");
    let mut errors = ErrorList::new();
    for (i, finalizer) in meta.finalizers.iter().flatten().enumerate() {
        checks::standard_finalizer(&mut errors, &path.index(i), finalizer);
    }
    errors
}

/// The errors of name, generateName and namespace.
fn of_names(
    kind: &Kind,
    meta: &ObjectMeta,
    name_rule: impl Fn(&str) -> Vec<String>,
    prefix_rule: impl Fn(&str) -> Vec<String>,
) -> ErrorList {
    let path = Path::new("metadata");
    let mut errors = ErrorList::new();
    let generate_name = meta.generate_name.as_deref().unwrap_or("");
    if !generate_name.is_empty() {
        for detail in prefix_rule(generate_name) {
            errors.invalid(&path.child("generateName"), generate_name, detail);
        }
    }
    match meta.name.as_deref().unwrap_or("") {
        "" => errors.required(&path.child("name"), "name or generateName is required"),
        name => {
            for detail in name_rule(name) {
                errors.invalid(&path.child("name"), name, detail);
            }
        }
    }
    let namespace = meta.namespace.as_deref().unwrap_or("");
    let at = path.child("namespace");
    match (kind.namespaced(), namespace) {
        (true, "") => errors.required(&at, ""),
        (true, namespace) => {
            for detail in names::dns1123_label(namespace) {
                errors.invalid(&at, namespace, detail);
            }
        }
        (false, "") => {}
        (false, _) => errors.forbidden(&at, "not allowed on this type"),
    }
    errors
}

/// The rules for an update. Those of labels, annotations, owner references and managed fields are in [`common`], too.
fn changes(meta: &ObjectMeta, old: &ObjectMeta) -> ErrorList {
    let path = Path::new("metadata");
    let mut errors = immutable_fields(meta, old);
    errors.extend(labels(meta.labels.as_ref(), &path.child("labels")));
    errors.extend(annotations(meta.annotations.as_ref(), &path.child("annotations")));
    errors.extend(owner_references(meta, &path.child("ownerReferences")));
    errors.extend(managed_fields(meta, &path.child("managedFields")));
    errors
}

/// The rules for fields that an update may not change, or may change only in some ways.
fn immutable_fields(meta: &ObjectMeta, old: &ObjectMeta) -> ErrorList {
    let path = Path::new("metadata");
    let mut errors = ErrorList::new();
    if old.deletion_timestamp.is_some() {
        let had = old.finalizers.as_deref().unwrap_or_default();
        let mut added: Vec<&String> = meta
            .finalizers
            .iter()
            .flatten()
            .filter(|f| !had.contains(f))
            .collect();
        added.sort_unstable();
        added.dedup();
        if !added.is_empty() {
            let list: Vec<String> = added.iter().map(|f| format!("{f:?}")).collect();
            errors.forbidden(
                &path.child("finalizers"),
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers \
                     []string{{{}}}",
                    list.join(", ")
                ),
            );
        }
    }
    let version = meta.resource_version.as_deref().unwrap_or("");
    if version.is_empty() {
        errors.invalid(
            &path.child("resourceVersion"),
            version,
            "must be specified for an update",
        );
    }
    let generation = meta.generation.unwrap_or(0);
    if generation < old.generation.unwrap_or(0) {
        errors.invalid(&path.child("generation"), generation, "must not be decremented");
    }
    // Nearly all updates keep these fields: they are rendered only where they differ.
    let mut immutable = |field: &str, new: Option<String>, old: Option<String>| {
        if new != old {
            errors.push(FieldError {
                cause: Cause::Invalid,
                field: path.child(field).to_string(),
                value: Some(new.unwrap_or_else(|| "null".into())),
                detail: IMMUTABLE.into(),
            });
        }
    };
    for (field, new, old) in [
        ("name", &meta.name, &old.name),
        ("namespace", &meta.namespace, &old.namespace),
        ("uid", &meta.uid, &old.uid),
    ] {
        let text = |s: &Option<String>| Some(s.as_deref().unwrap_or("").shown());
        if new != old {
            immutable(field, text(new), text(old));
        }
    }
    for (field, new, old) in [
        (
            "creationTimestamp",
            &meta.creation_timestamp,
            &old.creation_timestamp,
        ),
        (
            "deletionTimestamp",
            &meta.deletion_timestamp,
            &old.deletion_timestamp,
        ),
    ] {
        let time = |t: &Option<Time>| {
            t.as_ref()
                .map(|t| t.0.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().shown())
        };
        if new != old {
            immutable(field, time(new), time(old));
        }
    }
    let seconds = |s: Option<i64>| s.map(|s| s.to_string());
    let (new, old) = (
        meta.deletion_grace_period_seconds,
        old.deletion_grace_period_seconds,
    );
    if new != old {
        immutable("deletionGracePeriodSeconds", seconds(new), seconds(old));
    }
    errors
}

/// The rules that do not depend on the kind.
fn common(meta: &ObjectMeta) -> ErrorList {
    let path = Path::new("metadata");
    let mut errors = ErrorList::new();
    let generation = meta.generation.unwrap_or(0);
    if generation < 0 {
        errors.invalid(&path.child("generation"), generation, NOT_NEGATIVE);
    }
    errors.extend(labels(meta.labels.as_ref(), &path.child("labels")));
    errors.extend(annotations(meta.annotations.as_ref(), &path.child("annotations")));
    errors.extend(owner_references(meta, &path.child("ownerReferences")));
    errors.extend(finalizers(meta, &path.child("finalizers")));
    errors.extend(managed_fields(meta, &path.child("managedFields")));
    errors
}

/// An owner reference with Kubernetes' order of fields.
fn shown_owner(owner: &OwnerReference) -> String {
    let mut fields = vec![
        format!("\"apiVersion\":{}", owner.api_version.shown()),
        format!("\"kind\":{}", owner.kind.shown()),
        format!("\"name\":{}", owner.name.shown()),
        format!("\"uid\":{}", owner.uid.shown()),
    ];
    if let Some(controller) = owner.controller {
        fields.push(format!("\"controller\":{controller}"));
    }
    if let Some(block) = owner.block_owner_deletion {
        fields.push(format!("\"blockOwnerDeletion\":{block}"));
    }
    format!("{{{}}}", fields.join(","))
}

fn owner_references(meta: &ObjectMeta, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    let mut controller: Option<String> = None;
    for owner in owners {
        // `group/version` or `version`; anything else has no version.
        let version = match owner.api_version.split_once('/') {
            None => owner.api_version.as_str(),
            Some((_, version)) if version.contains('/') => "",
            Some((_, version)) => version,
        };
        if version.is_empty() {
            errors.invalid(
                &path.child("apiVersion"),
                &owner.api_version,
                "version must not be empty",
            );
        }
        for (field, value) in [("kind", &owner.kind), ("name", &owner.name), ("uid", &owner.uid)] {
            if value.is_empty() {
                errors.invalid(&path.child(field), value, "must not be empty");
            }
        }
        if owner.api_version == "v1" && owner.kind == "Event" {
            errors.push(FieldError {
                cause: Cause::Invalid,
                field: path.to_string(),
                value: Some(shown_owner(owner)),
                detail: "/v1, Kind=Event is disallowed from being an owner".into(),
            });
        }
        if owner.controller == Some(true) {
            let this = format!("{}/{}", owner.kind, owner.name);
            match &controller {
                None => controller = Some(this),
                Some(first) => {
                    let all: Vec<String> = owners.iter().map(shown_owner).collect();
                    errors.push(FieldError {
                        cause: Cause::Invalid,
                        field: path.to_string(),
                        value: Some(format!("[{}]", all.join(","))),
                        detail: format!(
                            "Only one reference can have Controller set to true. Found \"true\" in references \
                             for {first} and {this}"
                        ),
                    });
                }
            }
        }
    }
    errors
}

fn finalizers(meta: &ObjectMeta, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let finalizers = meta.finalizers.as_deref().unwrap_or_default();
    for finalizer in finalizers {
        errors.extend(label_name(finalizer, path));
    }
    let has = |name: &str| finalizers.iter().any(|f| f == name);
    if has("orphan") && has("foregroundDeletion") {
        errors.invalid(
            path,
            serde_json::Value::from(finalizers),
            "finalizer orphan and foregroundDeletion cannot be both set",
        );
    }
    errors
}

fn managed_fields(meta: &ObjectMeta, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (i, entry) in meta.managed_fields.iter().flatten().enumerate() {
        let at = path.index(i);
        let operation = entry.operation.as_deref().unwrap_or("");
        if !matches!(operation, "Apply" | "Update") {
            errors.invalid(&at.child("operation"), operation, "must be `Apply` or `Update`");
        }
        let fields_type = entry.fields_type.as_deref().unwrap_or("");
        if !matches!(fields_type, "" | "FieldsV1") {
            errors.invalid(&at.child("fieldsType"), fields_type, "must be `FieldsV1`");
        }
        if entry
            .manager
            .as_ref()
            .is_some_and(|m| m.len() > MANAGER_MAX_BYTES)
        {
            errors.too_long(&at.child("manager"), MANAGER_MAX_BYTES);
        }
        if entry
            .subresource
            .as_ref()
            .is_some_and(|s| s.len() > SUBRESOURCE_MAX_BYTES)
        {
            errors.too_long(&at.child("subresource"), SUBRESOURCE_MAX_BYTES);
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use knarr_api::registry;

    use super::*;

    fn meta(second: i64) -> ObjectMeta {
        ObjectMeta {
            name: Some("a".into()),
            namespace: Some("b".into()),
            uid: Some("u".into()),
            resource_version: Some("1".into()),
            creation_timestamp: Timestamp::from_second(second).ok().map(Time),
            ..ObjectMeta::default()
        }
    }

    fn errors(new: &ObjectMeta, old: &ObjectMeta) -> Vec<String> {
        changes(new, old).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn immutable_metadata_is_shown_where_it_differs_and_absent_text_is_empty_text() {
        let old = meta(0);
        assert_eq!(errors(&meta(0), &old), [""; 0]);
        let absent = ObjectMeta { uid: None, ..meta(0) };
        let empty = ObjectMeta {
            uid: Some(String::new()),
            ..meta(0)
        };
        assert_eq!(errors(&absent, &empty), [""; 0]);
        let new = ObjectMeta {
            name: Some("c".into()),
            uid: None,
            deletion_grace_period_seconds: Some(3),
            ..meta(60)
        };
        assert_eq!(
            errors(&new, &old),
            [
                r#"metadata.name: Invalid value: "c": field is immutable"#,
                r#"metadata.uid: Invalid value: "": field is immutable"#,
                r#"metadata.creationTimestamp: Invalid value: "1970-01-01T00:01:00Z": field is immutable"#,
                "metadata.deletionGracePeriodSeconds: Invalid value: 3: field is immutable",
            ]
        );
        let without = ObjectMeta {
            creation_timestamp: None,
            ..meta(0)
        };
        assert_eq!(
            errors(&without, &old),
            ["metadata.creationTimestamp: Invalid value: null: field is immutable"]
        );
        let twice = validate_update(&registry::CONFIG_MAP, Part::Main, &new, &old);
        assert_eq!(twice.len(), 2 * errors(&new, &old).len());
    }

    #[test]
    fn an_invalid_label_is_an_error_of_each_check() {
        let old = meta(0);
        let new = ObjectMeta {
            labels: Some([("a b".to_string(), String::new())].into()),
            ..meta(0)
        };
        let once = errors(&new, &old).len();
        assert!(once > 0);
        for (kind, checks) in [(&registry::LIMIT_RANGE, 3), (&registry::CONFIG_MAP, 4)] {
            let found = validate_update(kind, Part::Main, &new, &old).len();
            assert_eq!(found, checks * once, "{kind:?}");
        }
        assert_eq!(validate(&registry::POD, &new).len(), once);
        assert_eq!(validate_common(&registry::POD, &new).len(), once);
    }
}
