//! The OpenAPI v2 documents of extension API servers, merged into this server's own.
//!
//! From a server's document only the paths of its own group version are used, with the definitions that they reference. A
//! definition that conflicts with one of this server's gets another name.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// The most renaming rounds: a renamed definition can require new names for the definitions that reference it.
const ROUNDS_MAX: usize = 32;
const GVK: &str = "x-kubernetes-group-version-kind";
const SHARED: [&str; 2] = ["definitions", "parameters"];

/// The part of a v2 document for one group version.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct OpenApiV2 {
    paths: Map<String, Value>,
    /// The `definitions` and `parameters` that the paths reference.
    shared: BTreeMap<&'static str, Map<String, Value>>,
    pub(super) etag: Option<String>,
}

impl OpenApiV2 {
    pub(super) fn of(document: &Value, prefix: &str, etag: Option<String>) -> Self {
        let paths = document["paths"].as_object().into_iter().flatten();
        let paths: Map<String, Value> = paths
            .filter(|(path, item)| path.starts_with(prefix) && item.is_object())
            .map(|(path, item)| (path.clone(), item.clone()))
            .collect();
        let mut shared: BTreeMap<&'static str, Map<String, Value>> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut next = BTreeSet::new();
        paths.values().for_each(|item| references(item, &mut next));
        while let Some((section, name)) = next.pop_first() {
            let Some(found) = document[section].get(&name) else {
                continue;
            };
            references(found, &mut next);
            shared
                .entry(section)
                .or_default()
                .insert(name.clone(), found.clone());
            seen.insert((section, name));
            next.retain(|reference| !seen.contains(reference));
        }
        OpenApiV2 { paths, shared, etag }
    }

    /// The part as a complete document.
    pub(super) fn document(&self) -> Value {
        let mut document = json!({"swagger": "2.0", "info": {"title": "", "version": ""}});
        merge(&mut document, self);
        document
    }
}

/// A reference's section and name.
fn target(reference: &str) -> Option<(&'static str, &str)> {
    let rest = reference.strip_prefix("#/")?;
    let (section, name) = rest.split_once('/')?;
    let section = SHARED.into_iter().find(|s| *s == section)?;
    Some((section, name))
}

fn references(value: &Value, found: &mut BTreeSet<(&'static str, String)>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                match (field.as_str(), value) {
                    ("$ref", Value::String(reference)) => {
                        found.extend(target(reference).map(|(s, n)| (s, n.to_string())));
                    }
                    _ => references(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

fn rename(value: &mut Value, names: &Names) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                match (field.as_str(), &mut *value) {
                    ("$ref", Value::String(reference)) => {
                        let found = target(reference).map(|(s, n)| (s, n.to_string()));
                        if let Some((section, _)) = found.as_ref()
                            && let Some(new) = found.as_ref().and_then(|f| names.get(f))
                        {
                            *reference = format!("#/{section}/{new}");
                        }
                    }
                    _ => rename(value, names),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, names)),
        _ => {}
    }
}

/// A definition without its group version kinds; for `shape` also without references, to compare only its own structure.
fn plain(definition: &Value, shape: bool) -> Value {
    fn without_references(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("$ref");
                fields.values_mut().for_each(without_references);
            }
            Value::Array(items) => items.iter_mut().for_each(without_references),
            _ => {}
        }
    }
    let mut value = definition.clone();
    if let Some(fields) = value.as_object_mut() {
        fields.remove(GVK);
    }
    if shape {
        without_references(&mut value);
    }
    value
}

/// New names, by section and name.
type Names = BTreeMap<(&'static str, String), String>;

/// New names for the definitions that the document has with other content.
///
/// First those with another structure, then those that reference a renamed definition.
fn new_names(document: &Value, spec: &OpenApiV2) -> Names {
    let mut names = Names::new();
    let mut shape = true;
    for _ in 0..ROUNDS_MAX {
        let mut changed = false;
        for (section, all) in &spec.shared {
            let section = *section;
            for (name, definition) in all {
                let mut renamed = definition.clone();
                rename(&mut renamed, &names);
                let renamed = plain(&renamed, shape);
                let fits = |name: &str| {
                    let own = document[section].get(name);
                    own.is_none_or(|own| plain(own, shape) == renamed)
                };
                let key = (section, name.clone());
                if fits(names.get(&key).unwrap_or(name)) {
                    continue;
                }
                if let Some(free) = (2u32..).map(|n| format!("{name}_v{n}")).find(|n| fits(n)) {
                    names.insert(key, free);
                    changed = true;
                }
            }
        }
        match (shape, changed) {
            (true, _) => shape = false,
            (false, true) => {}
            (false, false) => break,
        }
    }
    names
}

/// Adds the paths and definitions that the document does not have.
pub(super) fn merge(document: &mut Value, spec: &OpenApiV2) {
    let names = new_names(document, spec);
    for (section, all) in &spec.shared {
        for (name, definition) in all {
            let name = names.get(&(*section, name.clone())).unwrap_or(name);
            if document[*section].get(name).is_none() {
                let mut definition = definition.clone();
                rename(&mut definition, &names);
                document[*section][name] = definition;
            }
        }
    }
    for (path, item) in &spec.paths {
        if document["paths"].get(path).is_none() {
            let mut item = item.clone();
            rename(&mut item, &names);
            document["paths"][path] = item;
        }
    }
}

#[cfg(test)]
mod tests {
    use knarr_openapi as openapi;

    use super::*;

    fn document() -> Value {
        let reference = |name: &str| json!({"$ref": format!("#/definitions/{name}")});
        json!({
            "swagger": "2.0",
            "paths": {
                "/apis/g/v1/": {"get": {"responses": {"200": {"description": "OK", "schema": reference("List")}}}},
                "/apis/g/v1/things": {"parameters": [{"$ref": "#/parameters/pretty"}],
                    "get": {"responses": {"200": {"description": "OK", "schema": reference("Thing")}}}},
                "/apis/g/v2/things": {"get": {"responses": {}}},
                "/api/v1/pods": {"get": {"responses": {"200": {"description": "OK", "schema": reference("Pod")}}}},
            },
            "parameters": {"pretty": {"name": "pretty", "in": "query", "type": "string"}},
            "definitions": {
                "Pod": {"type": "object"},
                "List": {"type": "object"},
                "Thing": {"type": "object", "properties": {"metadata": reference("Meta"), "self": reference("Thing")}},
                "Meta": {"type": "object", "description": "another"},
            },
        })
    }

    #[test]
    fn n1_only_the_servers_own_group_version_is_merged() {
        let spec = OpenApiV2::of(&document(), "/apis/g/v1/", None);
        let paths: Vec<&String> = spec.paths.keys().collect();
        assert_eq!(paths, ["/apis/g/v1/", "/apis/g/v1/things"]);
        let names: Vec<&String> = spec.shared["definitions"].keys().collect();
        assert_eq!(names, ["List", "Meta", "Thing"]);
        let names: Vec<&String> = spec.shared["parameters"].keys().collect();
        assert_eq!(names, ["pretty"]);
        assert!(openapi::v2_protobuf(&spec.document()).is_ok());
    }

    #[test]
    fn n1_a_conflicting_definition_is_renamed() {
        let spec = OpenApiV2::of(&document(), "/apis/g/v1/", None);
        let own = json!({
            "paths": {"/apis/g/v1/": "own"},
            "definitions": {
                "List": {"type": "object", "x-kubernetes-group-version-kind": []},
                "Meta": {"type": "object", "description": "own"},
                "Meta_v2": {"type": "object", "description": "own, too"},
            },
        });
        let mut merged = own.clone();
        merge(&mut merged, &spec);
        merge(&mut merged, &spec);
        let names: Vec<&String> = merged["definitions"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["List", "Meta", "Meta_v2", "Meta_v3", "Thing"]);
        assert_eq!(merged["definitions"]["Meta"], own["definitions"]["Meta"]);
        assert_eq!(
            merged["definitions"]["Thing"]["properties"]["metadata"]["$ref"],
            "#/definitions/Meta_v3"
        );
        assert_eq!(merged["paths"]["/apis/g/v1/"], "own");
        assert!(merged["paths"]["/apis/g/v1/things"].is_object());
        assert!(merged["parameters"]["pretty"].is_object());
    }
}
