//! Discovery documents, made from the kinds that are served: legacy and aggregated (apidiscovery.k8s.io/v2).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::kind::{Kind, Subresource};
use crate::registry;

/// `GET /api` (meta/v1 APIVersions). `server_address` is `host:port` as clients reach this server.
pub fn api_versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [
            {"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}
        ],
    })
}

/// `GET /apis` (APIGroupList).
pub fn group_list() -> Value {
    let groups: Vec<Value> = named_groups()
        .map(|(name, versions)| group_of(name, &versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `GET /apis/{group}` (APIGroup); `None` for an unknown group.
pub fn group(group: &str) -> Option<Value> {
    let (name, versions) = named_groups().find(|(name, _)| *name == group)?;
    let Value::Object(mut body) = group_of(name, &versions) else {
        return None;
    };
    body.insert("kind".into(), "APIGroup".into());
    body.insert("apiVersion".into(), "v1".into());
    Some(Value::Object(body))
}

/// `GET /api/v1`, `GET /apis/{group}/{version}` (APIResourceList); `None` for an unknown one.
pub fn resource_list(group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for kind in kinds(group, version) {
        resources.push(resource(kind));
        resources.extend(kind.subresources.iter().map(|s| subresource(kind, s)));
    }
    if resources.is_empty() {
        return None;
    }
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version(group, version),
        "resources": resources,
    }))
}

/// The aggregated document (APIGroupDiscoveryList) for `/api` (`core`) or `/apis`.
pub fn aggregated(core: bool) -> Value {
    let items: Vec<Value> = registry::groups()
        .into_iter()
        .filter(|(name, _)| name.is_empty() == core)
        .map(|(name, versions)| {
            let metadata = if core { json!({}) } else { json!({ "name": name }) };
            let versions: Vec<Value> = versions
                .into_iter()
                .map(|version| {
                    let resources: Vec<Value> = kinds(name, version).map(aggregated_resource).collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

/// All groups but the core one, which `/apis` does not list.
fn named_groups() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    registry::groups()
        .into_iter()
        .filter(|(name, _)| !name.is_empty())
}

/// The kinds of a group version, ordered by resource.
fn kinds(group: &str, version: &str) -> impl Iterator<Item = &'static Kind> {
    let mut kinds: Vec<&Kind> = registry::ALL
        .iter()
        .copied()
        .filter(|kind| kind.group == group && kind.version == version)
        .collect();
    kinds.sort_by_key(|kind| kind.plural);
    kinds.into_iter()
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_string()
    } else {
        format!("{group}/{version}")
    }
}

fn group_of(name: &str, versions: &[&str]) -> Value {
    let entries: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": group_version(name, version), "version": version}))
        .collect();
    json!({"name": name, "preferredVersion": entries.first(), "versions": entries})
}

/// Tells clients whether two resources are one in the store: the first 8 bytes of the SHA-256 of
/// `group/version/Kind` as v1.36 stores it.
fn storage_version_hash(kind: &Kind) -> String {
    let stored = kind.stored_as.unwrap_or(kind);
    let version = match (stored.group, stored.kind) {
        // Kubernetes still keeps these as their betas.
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicy" | "MutatingAdmissionPolicyBinding")
        | ("apiextensions.k8s.io", "CustomResourceDefinition") => "v1beta1",
        _ => stored.version,
    };
    let digest = Sha256::digest(format!("{}/{version}/{}", stored.group, stored.kind));
    STANDARD.encode(&digest[..8])
}

/// Whether the kind has objects in the store. ComponentStatuses can be read and are made up.
fn is_stored(kind: &Kind) -> bool {
    kind.is_stored() && kind.verbs.contains(&"create")
}

fn resource(kind: &Kind) -> Value {
    let mut body = Map::new();
    body.insert("name".into(), kind.plural.into());
    body.insert("singularName".into(), kind.singular.into());
    body.insert("namespaced".into(), kind.namespaced().into());
    body.insert("kind".into(), kind.kind.into());
    body.insert("verbs".into(), kind.verbs.into());
    if !kind.short_names.is_empty() {
        body.insert("shortNames".into(), kind.short_names.into());
    }
    if !kind.categories.is_empty() {
        body.insert("categories".into(), kind.categories.into());
    }
    if is_stored(kind) {
        body.insert("storageVersionHash".into(), storage_version_hash(kind).into());
    }
    Value::Object(body)
}

fn subresource(kind: &Kind, sub: &Subresource) -> Value {
    let mut body = Map::new();
    body.insert("name".into(), format!("{}/{}", kind.plural, sub.name).into());
    body.insert("singularName".into(), "".into());
    body.insert("namespaced".into(), kind.namespaced().into());
    for (name, value) in [("group", sub.group), ("version", sub.version)] {
        if !value.is_empty() {
            body.insert(name.into(), value.into());
        }
    }
    body.insert("kind".into(), sub.kind.into());
    body.insert("verbs".into(), sub.verbs.into());
    Value::Object(body)
}

fn aggregated_resource(kind: &'static Kind) -> Value {
    let mut body = Map::new();
    body.insert("resource".into(), kind.plural.into());
    // Group and version are left empty where they are the document's.
    body.insert(
        "responseKind".into(),
        json!({"group": "", "version": "", "kind": kind.kind}),
    );
    let scope = if kind.namespaced() {
        "Namespaced"
    } else {
        "Cluster"
    };
    body.insert("scope".into(), scope.into());
    body.insert("singularResource".into(), kind.singular.into());
    body.insert("verbs".into(), kind.verbs.into());
    if !kind.short_names.is_empty() {
        body.insert("shortNames".into(), kind.short_names.into());
    }
    if !kind.categories.is_empty() {
        body.insert("categories".into(), kind.categories.into());
    }
    let subresources: Vec<Value> = kind
        .subresources
        .iter()
        .map(|sub| {
            json!({
                "subresource": sub.name,
                "responseKind": {"group": sub.group, "version": sub.version, "kind": sub.kind},
                "verbs": sub.verbs,
            })
        })
        .collect();
    if !subresources.is_empty() {
        body.insert("subresources".into(), subresources.into());
    }
    Value::Object(body)
}
