//! OpenAPI documents and [`discovery`], made from the registry and the types' schemas.
//!
//! They describe what is served: paths, verbs, parameters and types, with the extensions that clients read
//! (`x-kubernetes-group-version-kind`, `-action`, `-patch-*`, `-list-*`). A document is made when it is requested, and
//! is not kept: it has a few hundred kilobytes to some megabytes, so callers keep it encoded.

pub mod discovery;
mod operations;
mod parameters;
mod root_documents;
mod schemas;
mod v2;
pub mod v2_protobuf;
mod v3;

use std::io;
use std::sync::OnceLock;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use operations::Operation;
use schemas::Schemas;

use knarr_api::emulation::Emulation;
use knarr_api::registry::ServedKinds;

/// The Kubernetes version of the API.
const KUBERNETES_VERSION: &str = "v1.36.2";

/// The media types of patches that are accepted.
const PATCH_FORMS: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V2,
    V3,
}

impl Version {
    /// The path of a document's type definitions.
    fn definitions(self) -> &'static str {
        match self {
            Version::V2 => "/definitions",
            Version::V3 => "/components/schemas",
        }
    }
}

/// `GET /openapi/v2` (swagger 2.0).
pub fn v2(served: &ServedKinds) -> Value {
    v2::document(served)
}

/// A document of [`v2()`] as gnostic's protobuf message, which clients in Go request. Fails only where the document
/// has members that swagger 2.0 does not have.
pub fn v2_protobuf(document: &Value) -> Result<Vec<u8>, v2_protobuf::Error> {
    v2_protobuf::encode(document)
}

/// `GET /openapi/v3`: the paths with their documents' URLs (with a hash for caching). Makes every document once, to
/// hash it: keep the result.
pub fn v3_index(served: &ServedKinds) -> Value {
    // The built-in kinds' documents are the same as long as the process runs, and making them takes a while.
    static BUILT_IN: OnceLock<Map<String, Value>> = OnceLock::new();
    if served.emulation() != Emulation::default() {
        return json!({ "paths": index_of(served, v3_paths(served)) });
    }
    let built_in =
        BUILT_IN.get_or_init(|| index_of(&ServedKinds::default(), v3_paths(&ServedKinds::default())));
    let mut paths = built_in.clone();
    let more = v3_paths(served);
    let more = more.into_iter().filter(|path| !built_in.contains_key(path));
    paths.extend(index_of(served, more));
    json!({ "paths": paths })
}

fn index_of(served: &ServedKinds, paths: impl IntoIterator<Item = String>) -> Map<String, Value> {
    let entry = |path: String| {
        let hash = hash(&v3(served, &path)?);
        let entry = json!({ "serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}") });
        Some((path, entry))
    };
    paths.into_iter().filter_map(entry).collect()
}

/// The names of all documents, such as `apis/apps/v1`.
pub fn v3_paths(served: &ServedKinds) -> Vec<String> {
    let mut paths = root_documents::paths(served);
    for (group, versions) in served.groups() {
        let of = |version| root_documents::group_version_path(group, version);
        paths.extend(versions.into_iter().map(of));
    }
    paths.sort_unstable();
    paths
}

/// `GET /openapi/v3/{path}`, such as `apis/apps/v1`; `None` for an unknown one.
pub fn v3(served: &ServedKinds, path: &str) -> Option<Value> {
    if let Some(document) = root_documents::parse_group_version(path)
        .and_then(|(group, version)| v3::group_version(served, group, version))
    {
        return Some(document);
    }
    let mut schemas = Schemas::new(Version::V3);
    let (endpoint, tag) = root_documents::endpoint(served, path, &mut schemas)?;
    Some(v3::single(&endpoint, &tag, schemas))
}

/// A document's hash, as in the index's URLs and (in quotes) in ETags.
pub fn hash(document: &Value) -> String {
    struct Hashing(Sha256);
    impl io::Write for Hashing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.update(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut hashing = Hashing(Sha256::new());
    // A Value's keys are strings and the writer never fails, so neither does this.
    if let Err(e) = serde_json::to_writer(&mut hashing, document) {
        unreachable!("a JSON value always encodes: {e}");
    }
    hashing
        .0
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect()
}

fn meaning(code: u16) -> &'static str {
    match code {
        201 => "Created",
        202 => "Accepted",
        401 => "Unauthorized",
        _ => "OK",
    }
}

impl Operation<'_> {
    /// The media type of a response that is not an object.
    fn text_type(&self) -> &'static str {
        match self.action {
            "connect" => "*/*",
            "get" => "text/plain",
            _ => "application/json",
        }
    }

    /// Adds Kubernetes' extensions.
    fn mark(&self, body: &mut Map<String, Value>) {
        if !self.action.is_empty() {
            body.insert("x-kubernetes-action".into(), self.action.into());
        }
        if let Some((group, version, kind)) = self.gvk {
            body.insert(
                "x-kubernetes-group-version-kind".into(),
                json!({"group": group, "version": version, "kind": kind}),
            );
        }
    }
}

#[cfg(test)]
mod tests;
