//! Discovery documents, made from the kinds that are served: legacy and aggregated (apidiscovery.k8s.io/v2).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use knarr_api::kind::{Kind, Subresource};
use knarr_api::registry::ServedKinds;

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
pub fn group_list(served: &ServedKinds) -> Value {
    let groups: Vec<Value> = named_groups(served)
        .map(|(name, versions)| group_of(name, &versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `GET /apis/{group}` (APIGroup); `None` for an unknown group.
pub fn group(served: &ServedKinds, group: &str) -> Option<Value> {
    let (name, versions) = named_groups(served).find(|(name, _)| *name == group)?;
    let Value::Object(mut body) = group_of(name, &versions) else {
        return None;
    };
    body.insert("kind".into(), "APIGroup".into());
    body.insert("apiVersion".into(), "v1".into());
    Some(Value::Object(body))
}

/// `GET /api/v1`, `GET /apis/{group}/{version}` (APIResourceList); `None` for an unknown one.
pub fn resource_list(served: &ServedKinds, group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for kind in served.of(group, version) {
        resources.push(resource(kind));
        resources.extend(kind.subresources.iter().map(|s| subresource(kind, s)));
    }
    if resources.is_empty() {
        return None;
    }
    let mut list = json!({
        "kind": "APIResourceList",
        "groupVersion": group_version(group, version),
        "resources": resources,
    });
    // The core group's document has no apiVersion: clients of release 1.1 expect that.
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

/// The aggregated document (APIGroupDiscoveryList) for `/api` (`core`) or `/apis`.
pub fn aggregated(served: &ServedKinds, core: bool) -> Value {
    let items: Vec<Value> = served
        .groups()
        .into_iter()
        .filter(|(name, _)| name.is_empty() == core)
        .map(|(name, versions)| {
            let metadata = if core { json!({}) } else { json!({ "name": name }) };
            let versions: Vec<Value> = versions
                .into_iter()
                .map(|version| {
                    let resources: Vec<Value> = served
                        .of(name, version)
                        .into_iter()
                        .map(aggregated_resource)
                        .collect();
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
fn named_groups(served: &ServedKinds) -> impl Iterator<Item = (&str, Vec<&str>)> {
    served.groups().into_iter().filter(|(name, _)| !name.is_empty())
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

/// The hash that shows clients whether two resources are stored as one kind: the first 8 bytes of the SHA-256 of
/// `group/version/Kind` as v1.36 stores it.
fn storage_version_hash(kind: &Kind) -> String {
    let stored = kind.stored();
    let version = match (stored.group(), stored.kind()) {
        // Kubernetes still stores these in their beta versions.
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicy" | "MutatingAdmissionPolicyBinding")
        | ("apiextensions.k8s.io", "CustomResourceDefinition") => "v1beta1",
        _ => stored.version(),
    };
    let digest = Sha256::digest(format!("{}/{version}/{}", stored.group(), stored.kind()));
    STANDARD.encode(&digest[..8])
}

/// Whether the kind has objects in the store. ComponentStatuses can be read but are not stored.
fn is_stored(kind: &Kind) -> bool {
    kind.is_stored() && kind.verbs.contains(&"create")
}

fn resource(kind: &Kind) -> Value {
    let mut body = Map::new();
    body.insert("name".into(), kind.plural().into());
    body.insert("singularName".into(), kind.singular().into());
    body.insert("namespaced".into(), kind.namespaced().into());
    body.insert("kind".into(), kind.kind().into());
    body.insert("verbs".into(), kind.verbs.into());
    let (short_names, categories) = (kind.short_names.to_vec(), kind.categories.to_vec());
    if !short_names.is_empty() {
        body.insert("shortNames".into(), short_names.into());
    }
    if !categories.is_empty() {
        body.insert("categories".into(), categories.into());
    }
    if is_stored(kind) {
        body.insert("storageVersionHash".into(), storage_version_hash(kind).into());
    }
    Value::Object(body)
}

fn subresource(kind: &Kind, sub: &Subresource) -> Value {
    let mut body = Map::new();
    body.insert("name".into(), format!("{}/{}", kind.plural(), sub.name).into());
    body.insert("singularName".into(), "".into());
    body.insert("namespaced".into(), kind.namespaced().into());
    for (name, value) in [("group", sub.group), ("version", sub.version)] {
        if !value.is_empty() {
            body.insert(name.into(), value.into());
        }
    }
    body.insert("kind".into(), sub.kind(kind).into());
    body.insert("verbs".into(), sub.verbs.into());
    Value::Object(body)
}

/// The `responseKind` of a resource. Custom kinds name their group and version, built-in ones only where it is another's.
fn response_kind(kind: &Kind, (group, version, name): (&str, &str, &str)) -> Value {
    match kind.ops.custom() {
        Some(_) if group.is_empty() => {
            json!({"group": kind.group(), "version": kind.version(), "kind": name})
        }
        _ => json!({"group": group, "version": version, "kind": name}),
    }
}

fn aggregated_resource(kind: &Kind) -> Value {
    let mut body = Map::new();
    body.insert("resource".into(), kind.plural().into());
    // Group and version are left empty where they are the document's.
    body.insert("responseKind".into(), response_kind(kind, ("", "", kind.kind())));
    let scope = if kind.namespaced() {
        "Namespaced"
    } else {
        "Cluster"
    };
    body.insert("scope".into(), scope.into());
    body.insert("singularResource".into(), kind.singular().into());
    body.insert("verbs".into(), kind.verbs.into());
    let (short_names, categories) = (kind.short_names.to_vec(), kind.categories.to_vec());
    if !short_names.is_empty() {
        body.insert("shortNames".into(), short_names.into());
    }
    if !categories.is_empty() {
        body.insert("categories".into(), categories.into());
    }
    let subresources: Vec<Value> = kind
        .subresources
        .iter()
        .map(|sub| {
            json!({
                "subresource": sub.name,
                "responseKind": response_kind(kind, (sub.group, sub.version, sub.kind(kind))),
                "verbs": sub.verbs,
            })
        })
        .collect();
    if !subresources.is_empty() {
        body.insert("subresources".into(), subresources.into());
    }
    Value::Object(body)
}
