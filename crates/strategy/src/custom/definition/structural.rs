//! Validation of a version's schema: whether it is structural, its extensions and defaults, and that its CEL rules compile.

use knarr_api::custom::shape;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_cel::structural::Schema;
use serde_json::Value;

use super::{expressions, fields, flag, list, push_invalid, rules, text};
use crate::custom::{cel, validation};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
/// Schemas deeper than this are rejected, not traversed.
const DEPTH_MAX: usize = 64;

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Field,
    Item,
}

/// Validates the schema of one version.
/// `known_costs`: the schema was accepted before, and the cost of its expressions is not checked again.
pub fn check(json: &Value, path: &Path, known_costs: bool, errors: &mut ErrorList) {
    if flag(json, "nullable") {
        errors.forbidden(
            &Path::new(&format!("{path}.nullable")),
            "nullable cannot be true at the root",
        );
    }
    check_props(json, path, DEPTH_MAX, errors);
    let mut structural = ErrorList::new();
    check_structural(json, Level::Root, path, DEPTH_MAX, &mut structural);
    check_completeness(json, json, path, path, &mut structural);
    let is_structural = structural.is_empty();
    errors.extend(structural);
    if errors.is_empty() {
        check_defaults(json, path, errors);
    }
    // A schema that is not structural has no types to check expressions with.
    if is_structural {
        expressions::check(json, path, known_costs, errors);
    }
}

/// The rules for every node, structural or not.
fn check_props(json: &Value, path: &Path, left: usize, errors: &mut ErrorList) {
    if left == 0 {
        return errors.forbidden(path, format!("must not nest deeper than {DEPTH_MAX}"));
    }
    let of = text(json, "type");
    if of == "null" {
        errors.forbidden(
            &path.child("type"),
            "type cannot be set to null, use nullable as an alternative",
        );
    } else if !of.is_empty() && !TYPES.contains(&of) {
        errors.not_supported(&path.child("type"), of, &TYPES);
    }
    for (name, detail) in [
        ("id", "id is not supported"),
        ("additionalItems", "additionalItems is not supported"),
        ("patternProperties", "patternProperties is not supported"),
        ("definitions", "definitions is not supported"),
        ("dependencies", "dependencies is not supported"),
        ("$ref", "$ref is not supported"),
    ] {
        if json.get(name).is_some_and(|v| !v.is_null()) {
            errors.forbidden(&path.child(name), detail);
        }
    }
    if json.get("items").is_some_and(Value::is_array) {
        errors.forbidden(
            &path.child("items"),
            "items must be a schema object and not an array",
        );
    }
    if flag(json, "uniqueItems") {
        errors.forbidden(
            &path.child("uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        );
    }
    let both = json.get("additionalProperties").is_some() && fields(json, "properties").next().is_some();
    let closed = json.get("additionalProperties") == Some(&Value::Bool(false));
    if closed || both {
        let detail = match closed && !both {
            true => "additionalProperties cannot be set to false",
            false => "additionalProperties and properties are mutual exclusive",
        };
        errors.forbidden(&path.child("additionalProperties"), detail);
    }
    check_extensions(json, path, errors);
    rules::check(json, path, errors);
    for (name, schema) in fields(json, "properties") {
        check_props(schema, &path.child("properties").key(name), left - 1, errors);
    }
    for name in ["items", "additionalProperties", "not"] {
        if let Some(schema) = json.get(name).filter(|v| v.is_object()) {
            check_props(schema, &path.child(name), left - 1, errors);
        }
    }
    for name in ["allOf", "anyOf", "oneOf"] {
        for (i, schema) in list(json, name).enumerate() {
            check_props(schema, &path.child(name).index(i), left - 1, errors);
        }
    }
}

fn check_extensions(json: &Value, path: &Path, errors: &mut ErrorList) {
    const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
    const LIST: &str = "x-kubernetes-list-type";
    const KEYS: &str = "x-kubernetes-list-map-keys";
    if json.get(PRESERVE) == Some(&Value::Bool(false)) {
        push_invalid(
            errors,
            &path.child(PRESERVE),
            &Value::Bool(false),
            "must be true or undefined",
        );
    }
    let of = json.get("type").unwrap_or(&Value::Null);
    let needs_type = |expected: &str, extension: &str, errors: &mut ErrorList| {
        let detail = format!("must be {expected} if {extension} is specified");
        match text(json, "type") {
            found if found == expected => {}
            "" => errors.required(&path.child("type"), detail),
            _ => push_invalid(errors, &path.child("type"), of, detail),
        }
    };
    if let Some(map) = json.get("x-kubernetes-map-type").and_then(Value::as_str) {
        needs_type("object", "x-kubernetes-map-type", errors);
        if !["granular", "atomic"].contains(&map) {
            errors.not_supported(&path.child("x-kubernetes-map-type"), map, &["atomic", "granular"]);
        }
    }
    let list_type = json.get(LIST).and_then(Value::as_str);
    let keys: Vec<&str> = list(json, KEYS).filter_map(Value::as_str).collect();
    if let Some(of) = list_type {
        needs_type("array", LIST, errors);
        if !["atomic", "set", "map"].contains(&of) {
            errors.not_supported(&path.child(LIST), of, &["atomic", "set", "map"]);
        }
        let items = json.get("items");
        if of != "atomic" && items.is_some_and(|i| flag(i, "nullable")) {
            errors.forbidden(
                &path.child("items").child("nullable"),
                format!("cannot be nullable when x-kubernetes-list-type is {of}"),
            );
        }
    }
    if !keys.is_empty() && list_type != Some("map") {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        match list_type {
            None => errors.required(&path.child(LIST), detail),
            Some(other) => errors.invalid(&path.child(LIST), other, detail),
        }
    }
    if list_type != Some("map") {
        return;
    }
    if keys.is_empty() {
        errors.required(
            &path.child(KEYS),
            "must not be empty if x-kubernetes-list-type is map",
        );
    }
    let Some(items) = json.get("items") else {
        return errors.required(
            &path.child("items"),
            "must have a schema if x-kubernetes-list-type is map",
        );
    };
    if text(items, "type") != "object" {
        errors.invalid(
            &path.child("items").child("type"),
            text(items, "type"),
            "must be object if parent array's x-kubernetes-list-type is map",
        );
    }
    let shown = Value::from(keys.clone());
    for (i, key) in keys.iter().enumerate() {
        let at = path.child("items").child("properties").key(key);
        match items.get("properties").and_then(|p| p.get(*key)) {
            None => push_invalid(
                errors,
                &path.child(KEYS),
                &shown,
                "entries must all be names of item properties",
            ),
            Some(schema) => {
                if ["array", "object"].contains(&text(schema, "type")) {
                    errors.invalid(
                        &at.child("type"),
                        text(items, "type"),
                        "must be a scalar type if parent array's x-kubernetes-list-type is map",
                    );
                }
                let required = list(items, "required").any(|r| r == key);
                if !required && schema.get("default").is_none() {
                    errors.required(
                        &at.child("default"),
                        "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required \
                         property",
                    );
                }
                if flag(schema, "nullable") {
                    errors.forbidden(
                        &at.child("nullable"),
                        "this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
                    );
                }
            }
        }
        if keys[..i].contains(key) {
            push_invalid(
                errors,
                &path.child(KEYS),
                &shown,
                "must not contain duplicate entries",
            );
        }
    }
}

/// Checks that a schema is structural: every node that affects pruning has a type, outside of allOf, anyOf, oneOf and not.
fn check_structural(json: &Value, level: Level, path: &Path, left: usize, errors: &mut ErrorList) {
    if left == 0 {
        return;
    }
    let of = text(json, "type");
    let (embedded, int_or_string) = (
        flag(json, "x-kubernetes-embedded-resource"),
        flag(json, "x-kubernetes-int-or-string"),
    );
    let preserve = flag(json, "x-kubernetes-preserve-unknown-fields");
    let items = json.get("items").filter(|i| i.is_object());
    if of == "array" && items.is_none() {
        errors.required(&path.child("items"), "must be specified");
    }
    if let Some(items) = items {
        check_structural(items, Level::Item, &path.child("items"), left - 1, errors);
    }
    for (name, schema) in fields(json, "properties") {
        check_structural(
            schema,
            Level::Field,
            &path.child("properties").key(name),
            left - 1,
            errors,
        );
    }
    if let Some(additional) = json.get("additionalProperties") {
        let at = path.child("additionalProperties");
        if level == Level::Root {
            errors.forbidden(&at, "must not be used at the root");
        }
        if additional.is_object() {
            check_structural(additional, Level::Field, &at, left - 1, errors);
        }
        if embedded {
            errors.forbidden(&at, "must not be used if x-kubernetes-embedded-resource is set");
        }
    }
    if int_or_string {
        for (name, set) in [
            ("x-kubernetes-preserve-unknown-fields", preserve),
            ("x-kubernetes-embedded-resource", embedded),
        ] {
            if set {
                errors.invalid(
                    &path.child(name),
                    true,
                    "must be false if x-kubernetes-int-or-string is true",
                );
            }
        }
    }
    if let Some(pattern) = Schema::read(json).pattern
        && pattern.regex.is_none()
    {
        let why = regex::Regex::new(&pattern.text).err();
        let why = why.map(|e| e.to_string()).unwrap_or_default();
        errors.invalid(
            &path.child("pattern"),
            &pattern.text,
            format!("must be a valid regular expression, but isn't: {why}"),
        );
    }
    check_junctors(json, int_or_string, path, left - 1, errors);
    let at = path.child("type");
    if embedded && of != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        match of {
            "" => errors.required(&at, detail),
            of => errors.invalid(&at, of, detail),
        }
    } else if of.is_empty() && !int_or_string && !preserve {
        let what = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.required(&at, what);
    }
    if level == Level::Root && !of.is_empty() && of != "object" {
        errors.invalid(&at, of, "must be object at the root");
    }
    if level == Level::Root || embedded {
        check_type_meta(json, level, path, errors);
    }
    if embedded && !preserve && fields(json, "properties").next().is_none() {
        errors.required(
            &path.child("properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        );
    }
}

fn check_type_meta(json: &Value, level: Level, path: &Path, errors: &mut ErrorList) {
    let properties = path.child("properties");
    let property = |name: &str| json.get("properties").and_then(|p| p.get(name));
    for name in ["kind", "apiVersion"] {
        if let Some(schema) = property(name).filter(|s| text(s, "type") != "string") {
            let at = properties.key(name).child("type");
            errors.invalid(&at, text(schema, "type"), "must be string");
        }
    }
    let Some(metadata) = property("metadata") else {
        return;
    };
    let at = properties.key("metadata");
    if text(metadata, "type") != "object" {
        errors.invalid(&at.child("type"), text(metadata, "type"), "must be object");
    }
    let mut others =
        fields(metadata, "properties").filter(|(name, _)| !["name", "generateName"].contains(&name.as_str()));
    let more = metadata.as_object().into_iter().flatten().any(|(name, value)| {
        let expected = ["type", "properties", "description", "default"].contains(&name.as_str());
        !expected && !value.is_null()
    });
    if level == Level::Root && (others.next().is_some() || more) {
        errors.forbidden(
            &at,
            "must not specify anything other than name and generateName, but metadata is implicitly specified",
        );
    }
}

/// `anyOf: [{type: integer}, {type: string}]`, which int-or-string allows.
fn is_int_or_string(json: &Value) -> bool {
    let types: Vec<&str> = list(json, "anyOf").map(|s| text(s, "type")).collect();
    types == ["integer", "string"]
}

fn check_junctors(json: &Value, int_or_string: bool, path: &Path, left: usize, errors: &mut ErrorList) {
    let mut nested = |schema: &Value, at: &Path, skip: bool| {
        if !skip {
            check_nested(schema, at, left, errors);
        }
    };
    for name in ["allOf", "anyOf", "oneOf"] {
        for (i, schema) in list(json, name).enumerate() {
            let skip = int_or_string
                && match name {
                    "anyOf" => is_int_or_string(json),
                    "allOf" => i == 0 && is_int_or_string(schema),
                    _ => false,
                };
            nested(schema, &path.child(name).index(i), skip);
        }
    }
    if let Some(schema) = json.get("not").filter(|n| n.is_object()) {
        nested(schema, &path.child("not"), false);
    }
}

/// Inside of a junctor only value validations are allowed, nothing that affects pruning or defaulting.
fn check_nested(json: &Value, path: &Path, left: usize, errors: &mut ErrorList) {
    if left == 0 {
        return;
    }
    for (name, detail) in [
        ("type", "must be empty to be structural"),
        ("additionalProperties", "must be undefined to be structural"),
        ("default", "must be undefined to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        (
            "x-kubernetes-preserve-unknown-fields",
            "must be false to be structural",
        ),
        ("x-kubernetes-embedded-resource", "must be false to be structural"),
        ("x-kubernetes-int-or-string", "must be false to be structural"),
        ("x-kubernetes-list-map-keys", "must be empty to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
        ("x-kubernetes-validations", "must be empty to be structural"),
    ] {
        let set = match json.get(name) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(list)) => !list.is_empty(),
            Some(_) => true,
        };
        if set {
            errors.forbidden(&path.child(name), detail);
        }
    }
    if json
        .get("properties")
        .is_some_and(|p| p.get("metadata").is_some())
    {
        errors.forbidden(
            &path.child("properties").key("metadata"),
            "must not be specified in a nested context",
        );
    }
    for (name, schema) in fields(json, "properties") {
        check_nested(schema, &path.child("properties").key(name), left - 1, errors);
    }
    if let Some(items) = json.get("items").filter(|i| i.is_object()) {
        check_nested(items, &path.child("items"), left - 1, errors);
    }
    check_junctors(json, false, path, left - 1, errors);
}

/// Every field that a junctor specifies must be specified outside of it, too.
fn check_completeness(
    outer: &Value,
    inner: &Value,
    outer_path: &Path,
    inner_path: &Path,
    errors: &mut ErrorList,
) {
    let mut junctors: Vec<(&Value, Path)> = Vec::new();
    for name in ["allOf", "anyOf", "oneOf"] {
        for (i, schema) in list(inner, name).enumerate() {
            junctors.push((schema, inner_path.child(name).index(i)));
        }
    }
    if let Some(not) = inner.get("not").filter(|n| n.is_object()) {
        junctors.push((not, inner_path.child("not")));
    }
    for (schema, at) in junctors {
        if let Some(items) = schema.get("items").filter(|i| i.is_object()) {
            let (out, inn) = (outer_path.child("items"), at.child("items"));
            match outer.get("items") {
                Some(described) => check_completeness(described, items, &out, &inn, errors),
                None => errors.required(&out, format!("because it is defined in {inn}")),
            }
        }
        for (name, property) in fields(schema, "properties") {
            let key = |p: &Path| p.child("properties").key(name);
            let described = outer.get("properties").and_then(|p| p.get(name));
            let described = described.or(outer.get("additionalProperties").filter(|a| a.is_object()));
            match described {
                Some(described) => {
                    check_completeness(described, property, &key(outer_path), &key(&at), errors);
                }
                None if outer.get("additionalProperties") == Some(&Value::Bool(true)) => {}
                None => errors.required(&key(outer_path), format!("because it is defined in {}", key(&at))),
            }
        }
        check_completeness(outer, schema, outer_path, &at, errors);
    }
    if outer_path == inner_path {
        for (name, property) in fields(outer, "properties") {
            let at = outer_path.child("properties").key(name);
            check_completeness(property, property, &at, &at, errors);
        }
        for name in ["items", "additionalProperties"] {
            if let Some(schema) = outer.get(name).filter(|s| s.is_object()) {
                let at = outer_path.child(name);
                check_completeness(schema, schema, &at, &at, errors);
            }
        }
    }
}

/// A default must be valid by its own schema.
fn check_defaults(json: &Value, path: &Path, errors: &mut ErrorList) {
    if let Some(default) = json.get("default").filter(|d| !d.is_null()) {
        let schema = Schema::read(json);
        let at = path.child("default");
        let mut pruned = default.clone();
        let mut unknown = Vec::new();
        shape::prune(&mut pruned, &schema, false, "", &mut unknown);
        if !unknown.is_empty() {
            push_invalid(errors, &at, default, "must not have unknown fields");
        }
        shape::default(&mut pruned, &schema);
        let mut found = ErrorList::new();
        validation::validate(&pruned, &schema, at.as_str(), &mut found);
        if found.is_empty() {
            cel::validate(&pruned, None, &schema, at.as_str(), &mut found);
        }
        errors.extend(found);
    }
    for (name, schema) in fields(json, "properties") {
        check_defaults(schema, &path.child("properties").key(name), errors);
    }
    for name in ["items", "additionalProperties"] {
        if let Some(schema) = json.get(name).filter(|s| s.is_object()) {
            check_defaults(schema, &path.child(name), errors);
        }
    }
}

#[cfg(test)]
mod tests;
