//! What a patch is applied to: the members of the object, and of its metadata, that the patch names. The others stay as they are encoded. Most
//! patches change a status, and a tree of the rest (the specification, the managed fields) would cost more than all else of the patch.

use std::collections::BTreeMap;

use knarr_api::Kind;
use knarr_apimachinery::Error;
use knarr_client::Patch;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

const METADATA: &str = "metadata";

/// Members by key, as they are encoded.
type Encoded<'a> = BTreeMap<String, &'a RawValue>;

/// See the module.
pub(super) struct PatchDocument<'a> {
    /// The members that were read, for the patch to be applied.
    pub read: Value,
    /// The other members; empty if all were read.
    kept: Encoded<'a>,
    /// The other members of metadata.
    kept_metadata: Encoded<'a>,
}

/// A member of the result.
#[derive(Serialize)]
#[serde(untagged)]
enum Member<'m> {
    Kept(&'m RawValue),
    Read(&'m Value),
    Metadata(BTreeMap<&'m str, Member<'m>>),
}

impl<'a> PatchDocument<'a> {
    /// For `patch` on an object of `kind` with this encoding.
    ///
    /// # Errors
    ///
    /// If the object does not parse.
    pub fn new(patch: &Patch, kind: &Kind, json: &'a [u8]) -> Result<Self, Error> {
        let read = match named(patch, kind) {
            Some(named) => Self::of_members(named, json),
            None => serde_json::from_slice(json).map(|read| PatchDocument {
                read,
                kept: Encoded::new(),
                kept_metadata: Encoded::new(),
            }),
        };
        read.map_err(Error::internal)
    }

    fn of_members(named: &Map<String, Value>, json: &'a [u8]) -> serde_json::Result<Self> {
        let mut kept: Encoded<'a> = serde_json::from_slice(json)?;
        let mut kept_metadata = Encoded::new();
        let mut metadata = None;
        if let Some(named) = named.get(METADATA).and_then(members_only)
            && let Some(encoded) = kept.remove(METADATA)
        {
            kept_metadata = serde_json::from_str(encoded.get())?;
            // Whether the patch changes it decides whether the update is conditional.
            let keys = named.keys().map(String::as_str).chain(["resourceVersion"]);
            metadata = Some(read_members(&mut kept_metadata, keys)?);
        }
        let mut read = read_members(&mut kept, named.keys().map(String::as_str))?;
        read.extend(metadata.map(|metadata| (METADATA.to_string(), Value::Object(metadata))));
        Ok(PatchDocument {
            read: Value::Object(read),
            kept,
            kept_metadata,
        })
    }

    /// Whether all members were read.
    pub fn is_whole(&self) -> bool {
        self.kept.is_empty()
    }

    /// The whole document in JSON, sorted.
    ///
    /// # Errors
    ///
    /// If a value does not serialize.
    pub fn to_json(&self) -> Result<Vec<u8>, Error> {
        let json = match &self.read {
            Value::Object(read) if !self.is_whole() => {
                let mut all = all_members(&self.kept, read);
                if let Some(Value::Object(read)) = read.get(METADATA) {
                    let metadata = all_members(&self.kept_metadata, read);
                    all.insert(METADATA, Member::Metadata(metadata));
                }
                serde_json::to_vec(&all)
            }
            read => serde_json::to_vec(read),
        };
        json.map_err(Error::internal)
    }
}

fn all_members<'m>(kept: &'m Encoded<'_>, read: &'m Map<String, Value>) -> BTreeMap<&'m str, Member<'m>> {
    let kept = kept
        .iter()
        .map(|(key, value)| (key.as_str(), Member::Kept(value)));
    let read = read
        .iter()
        .map(|(key, value)| (key.as_str(), Member::Read(value)));
    kept.chain(read).collect()
}

/// Reads these members, which are removed from those that are kept.
fn read_members<'k>(
    kept: &mut Encoded<'_>,
    keys: impl Iterator<Item = &'k str>,
) -> serde_json::Result<Map<String, Value>> {
    let mut read = Map::new();
    for key in keys {
        if let Some(encoded) = kept.remove(key) {
            read.insert(key.to_string(), serde_json::from_str(encoded.get())?);
        }
    }
    Ok(read)
}

/// The members that the patch names, if its result depends on no others. A custom resource is read as a whole, as it may have any values;
/// so is an object whose apiVersion would be changed.
fn named<'p>(patch: &'p Patch, kind: &Kind) -> Option<&'p Map<String, Value>> {
    let members = match patch {
        Patch::Merge(patch) | Patch::Strategic(patch) if kind.ops.custom().is_none() => members_only(patch)?,
        Patch::Json(_) | Patch::Merge(_) | Patch::Strategic(_) => return None,
    };
    (!members.contains_key("apiVersion")).then_some(members)
}

/// The members of an object without directives (`$patch`), which can be about other members.
fn members_only(patch: &Value) -> Option<&Map<String, Value>> {
    let members = patch.as_object()?;
    (!members.keys().any(|key| key.starts_with('$'))).then_some(members)
}

#[cfg(test)]
mod tests {
    use knarr_api::{patch, registry};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_of_some_members_has_the_result_of_a_patch_of_the_whole_object() {
        let kind = &registry::POD;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "uid": "u", "resourceVersion": "7", "labels": {"a": "1", "b": "2"},
                "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]},
            "spec": {"containers": [{"name": "c", "image": "i"}], "priority": 1},
            "status": {"phase": "Pending", "conditions": [{"type": "A", "status": "False"}]},
        });
        let json = pod.to_string();
        for (patch, kept) in [
            (json!({}), "apiVersion kind metadata spec status"),
            (
                json!({"status": {"phase": "Running"}}),
                "apiVersion kind metadata spec",
            ),
            (
                json!({"metadata": {"uid": "u"}, "status": {"conditions": [{"type": "A", "status": "True"}]}}),
                "apiVersion kind spec metadata.labels metadata.managedFields metadata.name",
            ),
            (
                json!({"metadata": {"labels": {"a": null, "c": "3"}, "resourceVersion": "8"}}),
                "apiVersion kind spec status metadata.managedFields metadata.name metadata.uid",
            ),
            (
                json!({"metadata": null, "spec": null, "x": 1}),
                "apiVersion kind status",
            ),
            (json!({"metadata": "odd"}), "apiVersion kind spec status"),
            (
                json!({"metadata": {"$patch": "delete"}}),
                "apiVersion kind spec status",
            ),
            (
                json!({"metadata": {"$retainKeys": []}}),
                "apiVersion kind spec status",
            ),
            (json!({"$patch": "delete"}), ""),
            (
                json!({"$retainKeys": ["status"], "status": {"phase": "Failed"}}),
                "",
            ),
            (json!({"apiVersion": ""}), ""),
            (json!([1]), ""),
            (json!(null), ""),
        ] {
            for patch in [Patch::Merge(patch.clone()), Patch::Strategic(patch)] {
                let apply = |doc: &mut Value| match &patch {
                    Patch::Strategic(patch) => patch::strategic::apply(kind, doc, patch),
                    Patch::Merge(patch) | Patch::Json(patch) => {
                        patch::merge::apply(doc, patch);
                        Ok(())
                    }
                };
                let mut document = PatchDocument::new(&patch, kind, json.as_bytes()).unwrap();
                let of_metadata = document.kept_metadata.keys().map(|key| format!("metadata.{key}"));
                let found: Vec<String> = document.kept.keys().cloned().chain(of_metadata).collect();
                assert_eq!(found.join(" "), kept, "{patch:?}");
                assert_eq!(document.is_whole(), kept.is_empty());
                let mut whole = pod.clone();
                let results = (apply(&mut document.read), apply(&mut whole));
                let messages = (
                    results.0.map_err(|e| e.message().to_string()),
                    results.1.map_err(|e| e.message().to_string()),
                );
                assert_eq!(messages.0, messages.1, "{patch:?}");
                if messages.0.is_ok() {
                    let json = String::from_utf8(document.to_json().unwrap()).unwrap();
                    assert_eq!(json, whole.to_string(), "{patch:?}");
                }
            }
        }
    }

    #[test]
    fn json_patches_and_custom_resources_are_read_as_a_whole() {
        let json = br#"{"apiVersion":"v1","kind":"Pod","metadata":{},"spec":{}}"#;
        let patch = Patch::Json(json!([{"op": "test", "path": "/spec", "value": {}}]));
        let document = PatchDocument::new(&patch, &registry::POD, json).unwrap();
        assert!(document.is_whole() && document.read["spec"].is_object());
    }
}
