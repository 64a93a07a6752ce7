//! Discovery of what extension API servers serve: downloaded from each, and merged into this server's own documents.
//!
//! Servers that know no aggregated discovery are asked for the legacy document of their group version, which is
//! converted. Groups stand in the order of their priorities, versions within a group likewise.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode, header};
use serde_json::{Map, Value, json};

use super::backend::{Backend, Priorities};
use super::proxy::{Fetch, Fetched};
use crate::api_services;
use crate::server::Server;
use crate::user::{MASTERS, User};

const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
const LIMIT: Duration = Duration::from_secs(5);
/// A group version with a thousand resources takes half a megabyte.
const MAX_BYTES: usize = 8 << 20;

/// The group version in a document of aggregated discovery; without resources if it is not there.
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

/// Clients take it for granted.
fn with_response_kind(resource: &mut Value) {
    if !resource["responseKind"].is_object() {
        resource["responseKind"] = json!({"group": "", "version": "", "kind": ""});
    }
}

/// A legacy APIResourceList as the group version of aggregated discovery.
fn converted(list: &Value, version: &str) -> Value {
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
            // There is nothing to be done with it but by its subresources.
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

/// Where this server's own group versions stand.
fn local(group: &str, version: &str) -> Priorities {
    let (of_group, of_version) = api_services::place(group, version);
    let narrow = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
    Priorities {
        group: narrow(of_group),
        version: narrow(of_version),
    }
}

/// How versions of one priority are sorted: GA before beta before alpha, newest first, others by their names.
fn rank(version: &str) -> (Reverse<u8>, Reverse<u32>, Reverse<u32>, &str) {
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

/// One of the two forms of discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Legacy,
    Aggregated,
}

impl Form {
    fn group(self, item: &Value) -> &str {
        let name = match self {
            Form::Legacy => &item["name"],
            Form::Aggregated => &item["metadata"]["name"],
        };
        name.as_str().unwrap_or_default()
    }

    fn new_group(self, name: &str) -> Value {
        match self {
            Form::Legacy => json!({"name": name, "versions": []}),
            Form::Aggregated => json!({"metadata": {"name": name}, "versions": []}),
        }
    }

    fn version(self, backend: &Backend) -> Value {
        let version = &backend.spec.version;
        if self == Form::Legacy {
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

/// Puts the group versions of extension API servers among `groups`, and all into their order.
pub(crate) fn merge(groups: &mut Vec<Value>, backends: &[Arc<Backend>], form: Form) {
    if backends.is_empty() {
        return;
    }
    let priorities = |group: &str, version: &str| {
        let backend = backends.iter().find(|b| b.serves(group, version));
        backend.map_or_else(|| local(group, version), |b| b.priorities())
    };
    for backend in backends {
        let group = &backend.spec.group;
        let at = groups.iter().position(|item| form.group(item) == group);
        let at = at.unwrap_or_else(|| {
            groups.push(form.new_group(group));
            groups.len() - 1
        });
        let Some(item) = groups.get_mut(at) else { continue };
        let Some(versions) = item["versions"].as_array_mut() else {
            continue;
        };
        versions.retain(|v| v["version"] != backend.spec.version.as_str());
        versions.push(form.version(backend));
        versions.sort_by_cached_key(|v| {
            let version = v["version"].as_str().unwrap_or_default();
            let (stage, major, minor, name) = rank(version);
            let priority = Reverse(priorities(group, version).version);
            (priority, stage, major, minor, name.to_string())
        });
        if form == Form::Legacy {
            item["preferredVersion"] = item["versions"][0].clone();
        }
    }
    // Stable: groups of one priority that are this server's own keep their order.
    let place = |item: &Value| {
        let group = form.group(item);
        let versions = item["versions"].as_array().into_iter().flatten();
        let versions = versions.filter_map(|v| v["version"].as_str());
        let highest = versions.map(|v| priorities(group, v).group).max();
        (group != api_services::OWN_GROUP, Reverse(highest))
    };
    groups.sort_by_cached_key(place);
}

impl Server {
    /// Downloads what discovery and OpenAPI show of a server; whether all of it came.
    pub(super) async fn download(&self, backend: &Backend) -> bool {
        let discovery = self.download_discovery(backend).await;
        let (discovery, openapi) = (discovery, self.download_openapi(backend).await);
        for why in [discovery.as_ref().err(), openapi.as_ref().err()]
            .into_iter()
            .flatten()
        {
            tracing::debug!(apiservice = backend.name, "cannot be downloaded: {why}");
        }
        discovery.is_ok() && openapi.is_ok()
    }

    async fn download_discovery(&self, backend: &Backend) -> Result<(), String> {
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

    /// The group version's entry with its ETag; `None` if it is what it was.
    async fn fetch_discovery(&self, backend: &Backend) -> Result<Option<(Value, Option<String>)>, String> {
        let etag = backend.documents.lock().etag.clone();
        let user = User::new("system:kube-aggregator", [MASTERS]);
        let fetch = |path, accept, etag| Fetch {
            method: Method::GET,
            path,
            accept,
            etag,
            user: &user,
            max_bytes: MAX_BYTES,
            limit: LIMIT,
        };
        let spec = &backend.spec;
        let answer = self
            .fetch(backend, fetch("/apis", ACCEPT, etag.as_deref()))
            .await?;
        if answer.status == StatusCode::NOT_MODIFIED {
            return Ok(None);
        }
        if answer.status == StatusCode::SERVICE_UNAVAILABLE {
            return Err("/apis returned non-success response code: 503".into());
        }
        if answer.status == StatusCode::OK && is_aggregated(&answer) {
            let list: Value = serde_json::from_slice(&answer.body).map_err(|e| format!("/apis: {e}"))?;
            let etag = answer.headers.get(header::ETAG).and_then(|v| v.to_str().ok());
            let entry = version_of(&list, &spec.group, &spec.version);
            return Ok(Some((entry, etag.map(str::to_string))));
        }
        let path = format!("/apis/{}", spec.group_version());
        let answer = self
            .fetch(backend, fetch(&path, "application/json", None))
            .await?;
        if answer.status != StatusCode::OK {
            return Err(format!("{path}: {}", answer.status));
        }
        let list: Value = serde_json::from_slice(&answer.body).map_err(|e| format!("{path}: {e}"))?;
        Ok(Some((converted(&list, &spec.version), None)))
    }
}

fn is_aggregated(answer: &Fetched) -> bool {
    let form = answer.headers.get(header::CONTENT_TYPE);
    let form = form.and_then(|v| v.to_str().ok()).unwrap_or_default();
    form.contains("g=apidiscovery.k8s.io") && form.contains("as=APIGroupDiscoveryList")
}

#[cfg(test)]
mod tests {
    use super::super::tests::backend;
    use super::*;

    #[test]
    fn n1_groups_and_versions_stand_in_the_order_of_their_priorities() {
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
        merge(&mut groups, &backends, Form::Legacy);
        let shown: Vec<String> = groups
            .iter()
            .map(|g| {
                let versions = g["versions"].as_array().unwrap().iter();
                let versions: Vec<&str> = versions.map(|v| v["version"].as_str().unwrap()).collect();
                assert_eq!(g["preferredVersion"], g["versions"][0]);
                format!("{} {}", g["name"].as_str().unwrap(), versions.join(","))
            })
            .collect();
        assert_eq!(
            shown,
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
        merge(&mut items, &backends, Form::Aggregated);
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
            converted(&list, "v1"),
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
    fn n1_a_server_says_nothing_of_other_group_versions() {
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
        versions.sort_by_key(|v| rank(v));
        assert_eq!(
            versions,
            [
                "v10", "v2", "v1", "v2beta1", "v1beta2", "v1beta1", "v2alpha1", "v1alpha1", "bar", "foo"
            ]
        );
    }
}
