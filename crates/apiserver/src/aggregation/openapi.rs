//! OpenAPI of extension API servers: v2 documents are downloaded and merged into this server's own, v3 documents pass
//! through by group version.
//!
//! Of a server's v2 document only the paths of its own group version count, with the definitions they lead to. A
//! definition that this server has in another form gets another name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode, header};
use knarr_api::openapi;
use serde_json::{Map, Value, json};

use super::backend::Backend;
use super::proxy::{Fetch, Fetched};
use crate::server::Server;
use crate::user::User;

/// kube-aggregator waits for a minute.
const LIMIT: Duration = Duration::from_secs(20);
/// kube-apiserver's own takes some 4 MB.
const MAX_BYTES: usize = 32 << 20;
/// A new name leads to others as far as definitions refer to each other in a row.
const ROUNDS_MAX: usize = 32;
const GVK: &str = "x-kubernetes-group-version-kind";
const SHARED: [&str; 2] = ["definitions", "parameters"];

/// What a v2 document says of one group version.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Spec {
    paths: Map<String, Value>,
    /// `definitions` and `parameters`, as far as the paths lead to them.
    shared: BTreeMap<&'static str, Map<String, Value>>,
    etag: Option<String>,
}

impl Spec {
    fn of(document: &Value, prefix: &str, etag: Option<String>) -> Self {
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
        Spec { paths, shared, etag }
    }

    /// As a document of its own.
    fn document(&self) -> Value {
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

/// Without what kinds it is of; without what it refers to, too, if only its own shape counts.
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

/// New names for those definitions that the document has in another form.
///
/// First those whose own shape is another, then those that refer to one that has got a new name by that.
fn new_names(document: &Value, spec: &Spec) -> Names {
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

/// Adds what the document does not have.
pub(crate) fn merge(document: &mut Value, spec: &Spec) {
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

/// This server's own document with all that is known of extension API servers.
pub(crate) fn with_all(mut document: Value, backends: &[Arc<Backend>]) -> Value {
    for backend in backends {
        let spec = backend.documents.lock().openapi.clone();
        if let Some(spec) = spec {
            merge(&mut document, &spec);
        }
    }
    document
}

/// Adds the v3 documents of extension API servers to the index.
pub(crate) fn add_to_index(index: &mut Value, backends: &[Arc<Backend>]) {
    for backend in backends {
        let query = backend.documents.lock().openapi_v3.clone();
        let path = format!("apis/{}", backend.spec.group_version());
        match query {
            Some(query) => {
                index["paths"][&path] = json!({"serverRelativeURL": format!("/openapi/v3/{path}{query}")});
            }
            // What this server itself would say of it is not what is served.
            None => {
                if let Some(paths) = index["paths"].as_object_mut() {
                    paths.remove(&path);
                }
            }
        }
    }
}

/// The hash in a document's URL, with the `?` before it; nothing else of the URL counts.
fn query_of(index: &Value, path: &str) -> Option<String> {
    let url = index["paths"].get(path)?["serverRelativeURL"].as_str()?;
    let hash = url.split_once("?hash=").map_or("", |(_, hash)| hash);
    let plain = !hash.is_empty() && hash.len() <= 256 && hash.bytes().all(|b| b.is_ascii_alphanumeric());
    Some(if plain {
        format!("?hash={hash}")
    } else {
        String::new()
    })
}

impl Server {
    pub(super) async fn download_openapi(&self, backend: &Backend) -> Result<(), String> {
        let v2 = self.fetch_v2(backend).await;
        let v3 = self.fetch_v3_index(backend).await;
        let mut documents = backend.documents.lock();
        let before = documents.clone();
        if let Ok(Some(spec)) = &v2 {
            documents.openapi = spec.clone();
        }
        if let Ok(query) = &v3 {
            documents.openapi_v3.clone_from(query);
        }
        if *documents != before {
            self.aggregation.changed();
        }
        v2.map(drop).and(v3.map(drop))
    }

    async fn fetch_document(
        &self,
        backend: &Backend,
        path: &str,
        etag: Option<&str>,
    ) -> Result<Fetched, String> {
        let fetch = Fetch {
            method: Method::GET,
            path,
            accept: "application/json",
            etag,
            user: &User::new("system:aggregator", [""; 0]),
            max_bytes: MAX_BYTES,
            limit: LIMIT,
        };
        self.fetch(backend, fetch)
            .await
            .map_err(|e| format!("{path}: {e}"))
    }

    /// `None` if it is what it was; of a server without such a document an empty one.
    async fn fetch_v2(&self, backend: &Backend) -> Result<Option<Option<Arc<Spec>>>, String> {
        let known = backend.documents.lock().openapi.clone();
        let etag = known.as_ref().and_then(|spec| spec.etag.as_deref());
        let answer = self.fetch_document(backend, "/openapi/v2", etag).await?;
        match answer.status {
            StatusCode::NOT_MODIFIED => return Ok(None),
            StatusCode::NOT_FOUND => return Ok(Some(None)),
            StatusCode::OK => {}
            other => return Err(format!("/openapi/v2: {other}")),
        }
        let prefix = format!("/apis/{}/", backend.spec.group_version());
        let etag = answer.headers.get(header::ETAG).and_then(|v| v.to_str().ok());
        let etag = etag.map(str::to_string);
        // Some megabytes: not between other requests.
        let read = tokio::task::spawn_blocking(move || {
            let document: Value = serde_json::from_slice(&answer.body).map_err(|e| e.to_string())?;
            let spec = Spec::of(&document, &prefix, etag);
            // One that cannot be sent in every form would take the whole document with it.
            openapi::v2_protobuf(&spec.document()).map_err(|e| e.to_string())?;
            Ok::<_, String>(spec)
        });
        let spec = read.await.map_err(|e| e.to_string())?;
        let spec = spec.map_err(|e| format!("/openapi/v2: {e}"))?;
        Ok(Some(Some(Arc::new(spec))))
    }

    /// The query of the v3 document of the group version, if there is one.
    async fn fetch_v3_index(&self, backend: &Backend) -> Result<Option<String>, String> {
        let answer = self.fetch_document(backend, "/openapi/v3", None).await?;
        match answer.status {
            StatusCode::NOT_FOUND => return Ok(None),
            StatusCode::OK => {}
            other => return Err(format!("/openapi/v3: {other}")),
        }
        let index: Value = serde_json::from_slice(&answer.body).map_err(|e| format!("/openapi/v3: {e}"))?;
        Ok(query_of(
            &index,
            &format!("apis/{}", backend.spec.group_version()),
        ))
    }
}

#[cfg(test)]
mod tests {
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
    fn n1_of_a_servers_document_only_its_group_version_counts() {
        let spec = Spec::of(&document(), "/apis/g/v1/", None);
        let paths: Vec<&String> = spec.paths.keys().collect();
        assert_eq!(paths, ["/apis/g/v1/", "/apis/g/v1/things"]);
        let names: Vec<&String> = spec.shared["definitions"].keys().collect();
        assert_eq!(names, ["List", "Meta", "Thing"]);
        let names: Vec<&String> = spec.shared["parameters"].keys().collect();
        assert_eq!(names, ["pretty"]);
        assert!(openapi::v2_protobuf(&spec.document()).is_ok());
    }

    #[test]
    fn n1_a_definition_in_another_form_gets_another_name() {
        let spec = Spec::of(&document(), "/apis/g/v1/", None);
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

    #[test]
    fn n1_an_index_leads_to_no_other_place() {
        let index = |url: &str| json!({"paths": {"apis/g/v1": {"serverRelativeURL": url}}});
        for (url, want) in [
            ("/openapi/v3/apis/g/v1?hash=AB12", "?hash=AB12"),
            ("https://elsewhere.example.com/", ""),
            ("/openapi/v3/apis/g/v1?hash=A&x=/", ""),
        ] {
            assert_eq!(query_of(&index(url), "apis/g/v1"), Some(want.into()), "{url}");
        }
        assert_eq!(query_of(&index(""), "apis/g/v2"), None);
    }
}
