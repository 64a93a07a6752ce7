//! Discovery of extension API servers: downloaded from each, and merged into this server's own documents.
//!
//! From servers without aggregated discovery the legacy document of the group version is downloaded and converted. Groups are
//! sorted by their priorities, and so are the versions within a group.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode, header};
use serde_json::{Map, Value, json};

use super::ExtensionServers;
use super::backend::{Backend, Priorities};
use super::proxy::{FetchError, FetchRequest, FetchResponse};
use crate::api_services;
use crate::user::{MASTERS, User};

const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
const LIMIT: Duration = Duration::from_secs(5);
/// A group version with a thousand resources takes half a megabyte.
const MAX_BYTES: usize = 8 << 20;

/// Why a discovery or OpenAPI document cannot be downloaded. Some have its path.
#[derive(Debug, thiserror::Error)]
pub(super) enum DownloadError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("{0}: {1}")]
    FetchOpenApi(&'static str, #[source] FetchError),
    #[error("/apis returned non-success response code: 503")]
    Unavailable,
    #[error("{0}: {1}")]
    Status(String, StatusCode),
    #[error("{0}: {1}")]
    Json(String, #[source] serde_json::Error),
    #[error("/openapi/v2: {0}")]
    Encode(#[from] knarr_openapi::v2_protobuf::Error),
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
}

/// The group version of an aggregated discovery document; without resources if the document does not have it.
fn version_of(list: &Value, group: &str, version: &str) -> Value {
    let items = list["items"].as_array().into_iter().flatten();
    let versions = items
        .filter(|item| item["metadata"]["name"] == group)
        .flat_map(|item| item["versions"].as_array().into_iter().flatten());
    let mut found = versions
        .filter(|v| v["version"] == version)
        .cloned()
        .collect::<Vec<_>>();
    let Some(Value::Object(mut found)) = found.pop() else {
        return json!({ "version": version });
    };
    found.remove("freshness");
    if let Some(Value::Array(resources)) = found.get_mut("resources") {
        resources.retain(Value::is_object);
        for resource in resources {
            with_response_kind(resource);
            if let Some(Value::Array(parts)) = resource.get_mut("subresources") {
                parts.retain(Value::is_object);
                parts.iter_mut().for_each(with_response_kind);
            }
        }
    }
    Value::Object(found)
}

/// Sets an empty responseKind where it is missing: clients require the field.
fn with_response_kind(resource: &mut Value) {
    if !resource["responseKind"].is_object() {
        resource["responseKind"] = json!({"group": "", "version": "", "kind": ""});
    }
}

/// Converts a legacy APIResourceList to the group version of aggregated discovery.
fn from_legacy(list: &Value, version: &str) -> Value {
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_string();
    let response = |r: &Value| json!({"group": text(r, "group"), "version": text(r, "version"), "kind": text(r, "kind")});
    let scope = |r: &Value| match r["namespaced"] == true {
        true => "Namespaced",
        false => "Cluster",
    };
    let mut resources: Vec<Value> = Vec::new();
    for resource in list["resources"].as_array().into_iter().flatten() {
        let name = text(resource, "name");
        let Some((parent, part)) = name.split_once('/') else {
            let mut body = Map::new();
            body.insert("resource".into(), name.into());
            body.insert("responseKind".into(), response(resource));
            body.insert("scope".into(), scope(resource).into());
            body.insert("singularResource".into(), text(resource, "singularName").into());
            for field in ["verbs", "shortNames", "categories"] {
                if resource[field].is_array() {
                    body.insert(field.into(), resource[field].clone());
                }
            }
            resources.push(Value::Object(body));
            continue;
        };
        let subresource = json!({
            "subresource": part, "responseKind": response(resource), "verbs": resource["verbs"],
        });
        let at = resources.iter().position(|r| r["resource"] == parent);
        let at = at.unwrap_or_else(|| {
            // A resource that is known only by its subresources has no verbs.
            resources.push(json!({
                "resource": parent, "scope": scope(resource), "singularResource": "", "verbs": [],
                "responseKind": {"group": "", "version": "", "kind": ""},
            }));
            resources.len() - 1
        });
        if let Some(Value::Object(body)) = resources.get_mut(at) {
            let parts = body.entry("subresources").or_insert_with(|| json!([]));
            if let Some(parts) = parts.as_array_mut() {
                parts.push(subresource);
            }
        }
    }
    json!({"version": version, "resources": resources})
}

/// The priorities of this server's own group versions.
fn local_priorities(group: &str, version: &str) -> Priorities {
    let (of_group, of_version) = api_services::priorities_of(group, version);
    let narrow = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
    Priorities {
        group: narrow(of_group),
        version: narrow(of_version),
    }
}

/// The sort key of versions with equal priority: GA before beta before alpha, newest first, others by name
/// (CompareKubeAwareVersionStrings).
fn version_rank(version: &str) -> (Reverse<u8>, Reverse<u32>, Reverse<u32>, &str) {
    let parse = || -> Option<(u8, u32, u32)> {
        let rest = version.strip_prefix('v')?;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (major, rest) = rest.split_at(end);
        let major = major.parse().ok()?;
        let stage = |word: &str, value: u8| {
            let minor = rest.strip_prefix(word)?;
            let minor = if minor.is_empty() { 0 } else { minor.parse().ok()? };
            Some((value, major, minor))
        };
        match rest {
            "" => Some((3, major, 0)),
            _ => stage("beta", 2).or_else(|| stage("alpha", 1)),
        }
    };
    let (stage, major, minor) = parse().unwrap_or((0, 0, 0));
    (Reverse(stage), Reverse(major), Reverse(minor), version)
}

/// The format of a discovery document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiscoveryFormat {
    Legacy,
    Aggregated,
}

impl DiscoveryFormat {
    fn group(self, item: &Value) -> &str {
        let name = match self {
            DiscoveryFormat::Legacy => &item["name"],
            DiscoveryFormat::Aggregated => &item["metadata"]["name"],
        };
        name.as_str().unwrap_or_default()
    }

    fn new_group(self, name: &str) -> Value {
        match self {
            DiscoveryFormat::Legacy => json!({"name": name, "versions": []}),
            DiscoveryFormat::Aggregated => json!({"metadata": {"name": name}, "versions": []}),
        }
    }

    fn version(self, backend: &Backend) -> Value {
        let version = &backend.spec.version;
        if self == DiscoveryFormat::Legacy {
            return json!({"groupVersion": backend.spec.group_version(), "version": version});
        }
        let documents = backend.documents.lock();
        let mut entry = documents
            .discovery
            .clone()
            .unwrap_or(json!({ "version": version }));
        entry["freshness"] = if documents.fresh { "Current" } else { "Stale" }.into();
        entry
    }
}

/// Adds the group versions of extension API servers to `groups`, and sorts all groups by priority.
pub(crate) fn merge(groups: &mut Vec<Value>, backends: &[Arc<Backend>], format: DiscoveryFormat) {
    if backends.is_empty() {
        return;
    }
    let priorities = |group: &str, version: &str| {
        let backend = backends.iter().find(|b| b.serves(group, version));
        backend.map_or_else(|| local_priorities(group, version), |b| b.priorities())
    };
    for backend in backends {
        let group = &backend.spec.group;
        let at = groups.iter().position(|item| format.group(item) == group);
        let at = at.unwrap_or_else(|| {
            groups.push(format.new_group(group));
            groups.len() - 1
        });
        let Some(item) = groups.get_mut(at) else { continue };
        let Some(versions) = item["versions"].as_array_mut() else {
            continue;
        };
        versions.retain(|v| v["version"] != backend.spec.version.as_str());
        versions.push(format.version(backend));
        versions.sort_by_cached_key(|v| {
            let version = v["version"].as_str().unwrap_or_default();
            let (stage, major, minor, name) = version_rank(version);
            let priority = Reverse(priorities(group, version).version);
            (priority, stage, major, minor, name.to_string())
        });
        if format == DiscoveryFormat::Legacy {
            item["preferredVersion"] = item["versions"][0].clone();
        }
    }
    // The sort is stable: this server's own groups of equal priority keep their order.
    let sort_key = |item: &Value| {
        let group = format.group(item);
        let versions = item["versions"].as_array().into_iter().flatten();
        let versions = versions.filter_map(|v| v["version"].as_str());
        let highest = versions.map(|v| priorities(group, v).group).max();
        (group != api_services::OWN_GROUP, Reverse(highest))
    };
    groups.sort_by_cached_key(sort_key);
}

impl ExtensionServers {
    /// Downloads the discovery and OpenAPI documents of a server. True if all downloads succeeded.
    pub(super) async fn download(&self, backend: &Backend) -> bool {
        let discovery = self.download_discovery(backend).await;
        let (discovery, openapi) = (discovery, self.download_openapi(backend).await);
        for why in [discovery.as_ref().err(), openapi.as_ref().err()]
            .into_iter()
            .flatten()
        {
            tracing::debug!(
                apiservice = backend.name,
                "cannot download discovery or OpenAPI: {why}"
            );
        }
        discovery.is_ok() && openapi.is_ok()
    }

    async fn download_discovery(&self, backend: &Backend) -> Result<(), DownloadError> {
        let fetched = self.fetch_discovery(backend).await;
        let mut documents = backend.documents.lock();
        let before = documents.clone();
        let outcome = match fetched {
            Ok(Some((entry, etag))) => {
                documents.discovery = Some(entry);
                documents.etag = etag;
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(why) => Err(why),
        };
        documents.fresh = outcome.is_ok();
        if *documents != before {
            self.aggregation.changed();
        }
        outcome
    }

    /// The group version's entry with its ETag; `None` if it has not changed.
    async fn fetch_discovery(
        &self,
        backend: &Backend,
    ) -> Result<Option<(Value, Option<String>)>, DownloadError> {
        let etag = backend.documents.lock().etag.clone();
        let user = User::new("system:kube-aggregator", [MASTERS]);
        let fetch = |path, accept, etag| FetchRequest {
            method: Method::GET,
            path,
            accept,
            etag,
            user: &user,
            max_bytes: MAX_BYTES,
            limit: LIMIT,
        };
        let spec = &backend.spec;
        let response = self
            .fetch(backend, fetch("/apis", ACCEPT, etag.as_deref()))
            .await?;
        if response.status == StatusCode::NOT_MODIFIED {
            return Ok(None);
        }
        if response.status == StatusCode::SERVICE_UNAVAILABLE {
            return Err(DownloadError::Unavailable);
        }
        if response.status == StatusCode::OK && is_aggregated(&response) {
            let list: Value =
                serde_json::from_slice(&response.body).map_err(|e| DownloadError::Json("/apis".into(), e))?;
            let etag = response.headers.get(header::ETAG).and_then(|v| v.to_str().ok());
            let entry = version_of(&list, &spec.group, &spec.version);
            return Ok(Some((entry, etag.map(str::to_string))));
        }
        let path = format!("/apis/{}", spec.group_version());
        let response = self
            .fetch(backend, fetch(&path, "application/json", None))
            .await?;
        if response.status != StatusCode::OK {
            return Err(DownloadError::Status(path, response.status));
        }
        let list: Value = serde_json::from_slice(&response.body).map_err(|e| DownloadError::Json(path, e))?;
        Ok(Some((from_legacy(&list, &spec.version), None)))
    }
}

fn is_aggregated(response: &FetchResponse) -> bool {
    let media_type = response.headers.get(header::CONTENT_TYPE);
    let media_type = media_type.and_then(|v| v.to_str().ok()).unwrap_or_default();
    media_type.contains("g=apidiscovery.k8s.io") && media_type.contains("as=APIGroupDiscoveryList")
}

#[cfg(test)]
mod tests {
    use super::super::tests::backend;
    use super::*;

    #[test]
    fn n1_groups_and_versions_are_sorted_by_priority() {
        let backends = [
            backend("wardle.example.com", "v1beta1", (2000, 10)),
            backend("wardle.example.com", "v1alpha1", (2000, 200)),
            backend("low.example.com", "v1", (10, 10)),
            backend("mixed.example.com", "v2", (1000, 100)),
        ];
        let own = |name: &str, versions: &[&str]| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|v| json!({"groupVersion": format!("{name}/{v}"), "version": v}))
                .collect();
            json!({"name": name, "versions": versions, "preferredVersion": versions[0]})
        };
        let mut groups = vec![
            own("apiregistration.k8s.io", &["v1"]),
            own("apps", &["v1"]),
            own("mixed.example.com", &["v1", "v1beta1"]),
            own("zoo.example.com", &["v1"]),
        ];
        merge(&mut groups, &backends, DiscoveryFormat::Legacy);
        let merged: Vec<String> = groups
            .iter()
            .map(|g| {
                let versions = g["versions"].as_array().unwrap().iter();
                let versions: Vec<&str> = versions.map(|v| v["version"].as_str().unwrap()).collect();
                assert_eq!(g["preferredVersion"], g["versions"][0]);
                format!("{} {}", g["name"].as_str().unwrap(), versions.join(","))
            })
            .collect();
        assert_eq!(
            merged,
            [
                "apiregistration.k8s.io v1",
                "apps v1",
                "wardle.example.com v1alpha1,v1beta1",
                "mixed.example.com v2,v1,v1beta1",
                "zoo.example.com v1",
                "low.example.com v1"
            ]
        );
        let mut items = vec![json!({"metadata": {"name": "apps"}, "versions": [{"version": "v1"}]})];
        backends[2].documents.lock().fresh = true;
        backends[2].documents.lock().discovery = Some(json!({"version": "v1", "resources": []}));
        merge(&mut items, &backends, DiscoveryFormat::Aggregated);
        assert_eq!(
            items[1],
            json!({"metadata": {"name": "wardle.example.com"}, "versions": [
                {"version": "v1alpha1", "freshness": "Stale"}, {"version": "v1beta1", "freshness": "Stale"}]})
        );
        assert_eq!(
            items[3]["versions"][0],
            json!({"version": "v1", "resources": [], "freshness": "Current"})
        );
    }

    #[test]
    fn n1_a_legacy_document_becomes_an_aggregated_one() {
        let list = json!({"resources": [
            {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": ["get"], "shortNames": ["fl"]},
            {"name": "flunders/status", "singularName": "", "namespaced": true, "kind": "Flunder", "verbs": ["update"]},
            {"name": "pods/eviction", "namespaced": true, "group": "policy", "version": "v1", "kind": "Eviction", "verbs": ["create"]},
        ]});
        let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
        assert_eq!(
            from_legacy(&list, "v1"),
            json!({"version": "v1", "resources": [
                {"resource": "flunders", "responseKind": kind("", "", "Flunder"), "scope": "Namespaced",
                 "singularResource": "flunder", "verbs": ["get"], "shortNames": ["fl"],
                 "subresources": [{"subresource": "status", "responseKind": kind("", "", "Flunder"), "verbs": ["update"]}]},
                {"resource": "pods", "responseKind": kind("", "", ""), "scope": "Namespaced", "singularResource": "", "verbs": [],
                 "subresources": [{"subresource": "eviction", "responseKind": kind("policy", "v1", "Eviction"), "verbs": ["create"]}]},
            ]})
        );
    }

    #[test]
    fn n1_a_server_cannot_add_other_group_versions() {
        let list = json!({"items": [
            {"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": [{"resource": "stolen"}]}]},
            {"metadata": {"name": "g"}, "versions": [{"version": "v1", "freshness": "Current", "resources": [
                {"resource": "a", "subresources": [{"subresource": "s"}, 7]}, "junk"]}]},
        ]});
        let none = json!({"group": "", "version": "", "kind": ""});
        assert_eq!(
            version_of(&list, "g", "v1"),
            json!({"version": "v1", "resources": [
                {"resource": "a", "responseKind": none, "subresources": [{"subresource": "s", "responseKind": none}]}]})
        );
        assert_eq!(version_of(&list, "g", "v2"), json!({"version": "v2"}));
        assert_eq!(version_of(&json!("junk"), "g", "v2"), json!({"version": "v2"}));
    }

    #[test]
    fn versions_are_ranked_as_kubernetes_ranks_them() {
        let mut versions = [
            "v1alpha1", "foo", "v1", "v2beta1", "v10", "v2", "v1beta2", "v1beta1", "v2alpha1", "bar",
        ];
        versions.sort_by_key(|v| version_rank(v));
        assert_eq!(
            versions,
            [
                "v10", "v2", "v1", "v2beta1", "v1beta2", "v1beta1", "v2alpha1", "v1alpha1", "bar", "foo"
            ]
        );
    }
}
