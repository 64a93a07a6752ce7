//! OpenAPI documents, made from the registry and the types' schemas.
//!
//! They say what is served: paths, verbs, parameters and types, with the extensions clients look for
//! (`x-kubernetes-group-version-kind`, `-action`, `-patch-*`, `-list-*`). Nothing is made before it is asked for, and
//! nothing is kept: a document is a few hundred kilobytes to some megabytes, so callers keep it encoded.

mod operations;
mod parameters;
mod root_documents;
mod schemas;
mod v2;
pub mod v2_protobuf;
mod v3;

use std::io;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use operations::Operation;
use schemas::Schemas;

use crate::registry;

/// The version whose API this is.
const KUBERNETES_VERSION: &str = "v1.36.2";

/// The forms of patches that are taken.
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
    /// Where a document keeps its types.
    fn definitions(self) -> &'static str {
        match self {
            Version::V2 => "/definitions",
            Version::V3 => "/components/schemas",
        }
    }
}

/// `GET /openapi/v2` (swagger 2.0).
pub fn v2() -> Value {
    v2::document()
}

/// A document of [`v2`] as gnostic's protobuf message, which clients in Go ask for. Fails only where the document
/// holds what swagger 2.0 does not have.
pub fn v2_protobuf(document: &Value) -> Result<Vec<u8>, v2_protobuf::Error> {
    v2_protobuf::encode(document)
}

/// `GET /openapi/v3`: the paths with their documents' URLs (with a hash for caching). Makes every document once, to
/// hash it: keep the answer.
pub fn v3_index() -> Value {
    let paths: Map<String, Value> = v3_paths()
        .into_iter()
        .filter_map(|path| {
            let hash = hash(&v3(&path)?);
            let entry = json!({ "serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}") });
            Some((path, entry))
        })
        .collect();
    json!({ "paths": paths })
}

/// The names of all documents, such as `apis/apps/v1`.
pub fn v3_paths() -> Vec<String> {
    let mut paths = root_documents::paths();
    for (group, versions) in registry::groups() {
        let of = |version| root_documents::group_version_path(group, version);
        paths.extend(versions.into_iter().map(of));
    }
    paths.sort_unstable();
    paths
}

/// `GET /openapi/v3/{path}`, such as `apis/apps/v1`; `None` for an unknown one.
pub fn v3(path: &str) -> Option<Value> {
    if let Some(document) = root_documents::parse_group_version(path)
        .and_then(|(group, version)| v3::group_version(group, version))
    {
        return Some(document);
    }
    let mut schemas = Schemas::new(Version::V3);
    let (endpoint, tag) = root_documents::endpoint(path, &mut schemas)?;
    Some(v3::single(&endpoint, &tag, schemas))
}

/// A document's hash, as it stands in the index's URLs and (in quotes) in ETags.
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

impl Operation {
    /// The media type of an answer that is no object.
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
