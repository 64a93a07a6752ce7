//! Validation of the versions of a CustomResourceDefinition: structural schemas, their extensions and defaults,
//! CEL rules that compile, printer columns, selectable fields, and the paths of a scale.
//!
//! Kubernetes moves what all versions have in common to the definition itself before it validates, so an error in a
//! definition of one version is reported at `spec.validation.openAPIV3Schema`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinitionVersion, CustomResourceSubresources,
};
use knarr_api::custom::path::JsonPath;
use knarr_apimachinery::codec;
use knarr_apimachinery::field::{Cause, ErrorList, FieldError, Path};
use serde_json::Value;

use super::validation;

mod expressions;
mod rules;
mod structural;

pub use self::structural::check as check_schema;

const SELECTABLE_FIELDS_MAX: usize = 8;

/// Validates all versions. `old`: the versions before the update.
pub fn check(
    versions: &[CustomResourceDefinitionVersion],
    old: &[CustomResourceDefinitionVersion],
    errors: &mut ErrorList,
) {
    let known_costs = |version: &CustomResourceDefinitionVersion| {
        let before = old.iter().find(|v| v.name == version.name);
        before.is_some_and(|before| before.schema == version.schema)
    };
    let spec = Path::new("spec");
    let at = |i: usize| spec.child("versions").index(i);
    let Some(first) = versions.first() else { return };
    let same_schema = versions.iter().all(|v| v.schema == first.schema);
    for (i, version) in versions.iter().enumerate() {
        let Some(schema) = version
            .schema
            .as_ref()
            .and_then(|s| s.open_api_v3_schema.as_ref())
        else {
            errors.required(&at(i).child("schema").child("openAPIV3Schema"), "");
            continue;
        };
        if same_schema && i > 0 {
            continue;
        }
        let path = match same_schema {
            true => spec.child("validation").child("openAPIV3Schema"),
            false => at(i).child("schema").child("openAPIV3Schema"),
        };
        match codec::to_plain_value(schema) {
            Ok(json) => check_schema(&json, &path, known_costs(version), errors),
            Err(e) => errors.internal(&path, e.to_string()),
        }
    }
    let same = |field: fn(&CustomResourceDefinitionVersion) -> Value| {
        versions.iter().all(|v| field(v) == field(first))
    };
    let hoisted = |name: &str, same: bool, i: usize| match (same, i) {
        (true, 0) => Some(spec.child(name)),
        (true, _) => None,
        (false, i) => Some(at(i).child(name)),
    };
    let same_columns = same(|v| codec::to_plain_value(&v.additional_printer_columns).unwrap_or_default());
    let same_subresources = same(|v| codec::to_plain_value(&v.subresources).unwrap_or_default());
    let same_selectable = same(|v| codec::to_plain_value(&v.selectable_fields).unwrap_or_default());
    for (i, version) in versions.iter().enumerate() {
        if let Some(path) = hoisted("additionalPrinterColumns", same_columns, i) {
            for (j, column) in version.additional_printer_columns.iter().flatten().enumerate() {
                check_column(column, &path.index(j), errors);
            }
        }
        if let (Some(path), Some(subresources)) = (
            hoisted("subresources", same_subresources, i),
            &version.subresources,
        ) {
            check_scale(subresources, &path, errors);
        }
        if let Some(path) = hoisted("selectableFields", same_selectable, i) {
            check_selectable(version, &path, errors);
        }
    }
}

fn push_invalid(errors: &mut ErrorList, path: &Path, value: &Value, detail: impl Into<String>) {
    errors.push(FieldError {
        cause: Cause::Invalid,
        field: path.as_str().to_string(),
        value: Some(validation::shown(value)),
        detail: detail.into(),
    });
}

fn text<'a>(json: &'a Value, name: &str) -> &'a str {
    json.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn flag(json: &Value, name: &str) -> bool {
    json.get(name).and_then(Value::as_bool).unwrap_or_default()
}

fn fields<'a>(json: &'a Value, name: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    json.get(name).and_then(Value::as_object).into_iter().flatten()
}

fn list<'a>(json: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    json.get(name).and_then(Value::as_array).into_iter().flatten()
}

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 9] = [
    "byte",
    "date",
    "date-time",
    "double",
    "float",
    "int32",
    "int64",
    "password",
    "string",
];

fn check_column(column: &CustomResourceColumnDefinition, path: &Path, errors: &mut ErrorList) {
    if column.name.is_empty() {
        errors.required(&path.child("name"), "");
    }
    let detail = format!("must be one of {}", COLUMN_TYPES.join(","));
    match column.type_.as_str() {
        "" => errors.required(&path.child("type"), detail),
        of if !COLUMN_TYPES.contains(&of) => errors.invalid(&path.child("type"), of, detail),
        _ => {}
    }
    let format = column.format.as_deref().unwrap_or_default();
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        let detail = format!("must be one of {}", COLUMN_FORMATS.join(","));
        errors.invalid(&path.child("format"), format, detail);
    }
    if column.json_path.is_empty() {
        errors.required(&path.child("JSONPath"), "");
    } else {
        check_simple_path(&column.json_path, &path.child("JSONPath"), errors);
    }
}

fn check_simple_path(text: &str, path: &Path, errors: &mut ErrorList) -> bool {
    if text.is_empty() {
        errors.invalid(path, text, "must not be empty");
    } else if !text.starts_with('.') {
        errors.invalid(path, text, "must be a simple json path starting with .");
    } else {
        return true;
    }
    false
}

fn check_scale(subresources: &CustomResourceSubresources, path: &Path, errors: &mut ErrorList) {
    let Some(scale) = &subresources.scale else { return };
    let mut check = |name: &str, text: &str, under: &[&str], detail: &str, required: bool| {
        let at = path.child(&format!("scale.{name}"));
        if text.is_empty() && required {
            return errors.required(&at, "");
        }
        if !check_simple_path(text, &at, errors) {
            return;
        }
        let dotted = text.chars().all(|c| !matches!(c, '[' | ']' | '*' | '(' | ')'));
        if !dotted {
            errors.invalid(&at, text, "must be a json path in the dot notation");
        } else if !under.iter().any(|u| text.starts_with(u)) {
            errors.invalid(&at, text, detail);
        }
    };
    let (spec, status) = (
        scale.spec_replicas_path.as_str(),
        scale.status_replicas_path.as_str(),
    );
    check(
        "specReplicasPath",
        spec,
        &[".spec."],
        "should be a json path under .spec",
        true,
    );
    check(
        "statusReplicasPath",
        status,
        &[".status."],
        "should be a json path under .status",
        true,
    );
    if let Some(selector) = scale.label_selector_path.as_deref().filter(|s| !s.is_empty()) {
        let detail = "should be a json path under either .spec or .status";
        check(
            "labelSelectorPath",
            selector,
            &[".spec.", ".status."],
            detail,
            false,
        );
    }
}

fn check_selectable(version: &CustomResourceDefinitionVersion, path: &Path, errors: &mut ErrorList) {
    let schema = version
        .schema
        .as_ref()
        .and_then(|s| s.open_api_v3_schema.as_ref());
    let schema = schema
        .and_then(|s| codec::to_plain_value(s).ok())
        .unwrap_or_default();
    let mut seen: Vec<&str> = Vec::new();
    for (i, field) in version.selectable_fields.iter().flatten().enumerate() {
        let (text, at) = (field.json_path.as_str(), path.index(i).child("jsonPath"));
        if text.is_empty() {
            errors.required(&at, "");
            continue;
        }
        let parsed = JsonPath::parse(text);
        let Some(names) = parsed.as_ref().and_then(JsonPath::fields) else {
            errors.invalid(&at, text, "is an invalid path: does not refer to a valid field");
            continue;
        };
        if names.first() == Some(&"metadata") {
            errors.invalid(&at, text, "must not point to fields in metadata");
            continue;
        }
        let mut node = Some(&schema);
        for name in &names {
            node = node.and_then(|n| n.get("properties")?.get(*name));
        }
        match node.map(|n| self::text(n, "type")) {
            None => errors.invalid(&at, text, "is an invalid path: does not refer to a valid field"),
            Some("string" | "boolean" | "integer") => {}
            Some(_) => errors.invalid(
                &at,
                text,
                "must point to a field of type string, boolean or integer. Enum string fields and strings with \
                 formats are allowed.",
            ),
        }
        match seen.contains(&text) {
            true => errors.duplicate(&at, text),
            false => seen.push(text),
        }
    }
    if seen.len() > SELECTABLE_FIELDS_MAX {
        errors.too_many(path, seen.len(), SELECTABLE_FIELDS_MAX);
    }
}
