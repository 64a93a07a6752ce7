//! Updates that take no field from another manager: a heartbeat, a status written again, the first status or the first condition that a
//! component writes. They are most of what a busy cluster writes, so they are recognized by reading the encoded sets, without a
//! tree of any but the writer's own.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, Time};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::manager_id::{MAX_UPDATE_MANAGERS, ManagerId, Operation};
use super::set::{FieldSet, Node, SELF, owns};
use super::text;

/// The entries after `by` has written all of `changed`, if no other manager has one of these fields; `None`
/// where one has, or where that is not found out easily. `entries` are as [`Managed::encode`] made them and all
/// of one version, and no field of `changed` was removed.
///
/// [`Managed::encode`]: super::Managed::encode
pub(super) fn entries_if_others_unchanged(
    entries: &[ManagedFieldsEntry],
    changed: &FieldSet,
    by: &ManagerId,
    now: Timestamp,
) -> Option<Vec<ManagedFieldsEntry>> {
    if entries.len() > MAX_UPDATE_MANAGERS {
        return None;
    }
    let paths = count(changed.root());
    let writes = paths > 0;
    let mut mine = None;
    for (at, entry) in entries.iter().enumerate() {
        let Value::String(text) = &entry.fields_v1.as_ref()?.0 else {
            return None;
        };
        let held = held(changed, text)?;
        if text == "{}" {
            return None;
        }
        let is_mine = writes && belongs_to(entry, by);
        if !is_mine && held != 0 || is_mine && mine.replace((at, held)).is_some() {
            return None;
        }
    }
    let mut entries = entries.to_vec();
    match mine {
        _ if !writes => {}
        Some((at, held)) => {
            let entry = entries.get_mut(at)?;
            if held != paths {
                let had = FieldSet::read(&entry.fields_v1.as_ref()?.0)?;
                entry.fields_v1 = Some(text::fields_v1(had.union(changed.clone()).to_text()));
            }
            entry.time = Some(Time(now));
        }
        None if by.operation == Operation::Update && entries.len() < MAX_UPDATE_MANAGERS => {
            let fields = text::fields_v1(changed.to_text());
            entries.push(by.clone().entry(fields, by.api_version.clone(), Some(now)));
        }
        // The oldest would be merged.
        None => return None,
    }
    // As `Managed::encode` has them.
    entries.sort_by(|a, b| {
        let key = |e: &ManagedFieldsEntry| {
            let second = e.time.as_ref().map_or(0, |t| t.0.as_second());
            (e.operation.as_deref() != Some("Apply"), second)
        };
        let names = |e: &'_ ManagedFieldsEntry| {
            [&e.manager, &e.api_version, &e.subresource].map(|n| n.clone().unwrap_or_default())
        };
        key(a).cmp(&key(b)).then_with(|| names(a).cmp(&names(b)))
    });
    Some(entries)
}

fn belongs_to(entry: &ManagedFieldsEntry, by: &ManagerId) -> bool {
    by.operation == Operation::Update
        && entry.operation.as_deref() == Some("Update")
        && entry.fields_type.as_deref() == Some("FieldsV1")
        && entry.manager.as_deref().unwrap_or_default() == by.name
        && entry.api_version.as_deref() == Some(&by.api_version)
        && entry.subresource.as_deref().unwrap_or_default() == by.subresource
}

/// How many paths are in the set below this node.
fn count(node: &Node) -> usize {
    let children = node.iter().filter(|(key, _)| *key != SELF);
    children
        .filter_map(|(_, child)| child.as_object())
        .map(|child| usize::from(owns(child)) + count(child))
        .sum()
}

/// How many of `these` paths are in the set encoded as `text`; `None` if it is invalid.
fn held(these: &FieldSet, text: &str) -> Option<usize> {
    let mut text = serde_json::Deserializer::from_str(text);
    let found = SubsetReader(these.root()).deserialize(&mut text).ok()?;
    text.end().ok()?;
    Some(found.held)
}

/// An element of a set, as it is written.
#[derive(Deserialize)]
struct Element<'a>(#[serde(borrow)] Cow<'a, str>);

/// Reads the set below one element: which of this node's paths are in it.
struct SubsetReader<'n>(&'n Node);

struct Overlap {
    /// The path up to here is in the set that was read.
    own: bool,
    held: usize,
}

impl<'de> DeserializeSeed<'de> for SubsetReader<'_> {
    type Value = Overlap;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Overlap, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for SubsetReader<'_> {
    type Value = Overlap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a set of fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Overlap, A::Error> {
        let mut found = Overlap { own: false, held: 0 };
        let mut is_bare = true;
        while let Some(Element(element)) = map.next_key()? {
            is_bare = false;
            found.own |= element == SELF;
            let node = self.0.get(&*element).and_then(Value::as_object);
            match node.filter(|_| element != SELF) {
                Some(node) => {
                    let below = map.next_value_seed(SubsetReader(node))?;
                    found.held += below.held + usize::from(below.own && owns(node));
                }
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        found.own |= is_bare;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_manager_gets_fields_that_no_other_has_and_the_others_stay_as_they_are() {
        let id = |name: &str| ManagerId {
            name: name.into(),
            operation: Operation::Update,
            api_version: "v1".into(),
            subresource: "status".into(),
        };
        let at = |second| Timestamp::from_second(second).unwrap();
        let entry = |name: &str, fields: Value, second| {
            let fields = text::fields_v1(fields.to_string());
            id(name).entry(fields, "v1".into(), Some(at(second)))
        };
        let out_of_order = r#"{"f:z":{},"f:a":{}}"#;
        let creator = ManagedFieldsEntry {
            fields_v1: Some(text::fields_v1(out_of_order.into())),
            ..entry("creator", json!({}), 1)
        };
        let before = [creator, entry("kubelet", json!({"f:s": {"f:phase": {}}}), 2)];
        // (writer, its fields, the set that it has then)
        for (name, changed, then) in [
            (
                "kubelet",
                json!({"f:s": {"f:phase": {}}}),
                Some(json!({"f:s": {"f:phase": {}}})),
            ),
            (
                "kubelet",
                json!({"f:s": {"f:phase": {}, "f:ip": {}}}),
                Some(json!({"f:s": {"f:ip": {}, "f:phase": {}}})),
            ),
            (
                "kubelet",
                json!({"f:ip": {}}),
                Some(json!({"f:ip": {}, "f:s": {"f:phase": {}}})),
            ),
            (
                "scheduler",
                json!({"f:s": {"f:node": {}}}),
                Some(json!({"f:s": {"f:node": {}}})),
            ),
            ("scheduler", json!({"f:s": {"f:node": {}, "f:phase": {}}}), None),
            ("kubelet", json!({"f:a": {}}), None),
        ] {
            let set = FieldSet::read(&changed).unwrap();
            let after = entries_if_others_unchanged(&before, &set, &id(name), at(9));
            let expected = then.map(|then| {
                let others = before.iter().filter(|e| e.manager.as_deref() != Some(name));
                let mut all: Vec<_> = others.cloned().collect();
                all.push(entry(name, then, 9));
                all
            });
            assert_eq!(after, expected, "{name}: {changed}");
        }
        let many: Vec<_> = (0_i32..10)
            .map(|n| entry(&format!("m{n}"), json!({format!("f:{n}"): {}}), 1))
            .collect();
        let set = FieldSet::read(&json!({"f:new": {}})).unwrap();
        let written = |entries: &[ManagedFieldsEntry], name: &str| {
            entries_if_others_unchanged(entries, &set, &id(name), at(9)).is_some()
        };
        assert_eq!((written(&many, "m3"), written(&many, "new")), (true, false));
        assert!(written(&many[1..], "new"));
    }

    #[test]
    fn owned_paths_are_counted_in_the_text() {
        let set = |value: Value| FieldSet::read(&value).unwrap();
        let text =
            json!({"f:a": {}, "f:b": {".": {}, "f:c": {}, "f:d": {"k:{\"type\":\"x\"}": {"f:y": {}}}}})
                .to_string();
        for (these, expect, all) in [
            (json!({}), 0, 0),
            (json!({"f:a": {}}), 1, 1),
            (json!({"f:b": {}}), 1, 1),
            (json!({"f:b": {".": {}, "f:c": {}, "f:e": {}}}), 2, 3),
            (json!({"f:b": {"f:d": {}}}), 0, 1),
            (
                json!({"f:b": {"f:d": {"k:{\"type\":\"x\"}": {".": {}, "f:y": {}}}}}),
                1,
                2,
            ),
            (json!({"f:z": {"f:a": {}}}), 0, 1),
        ] {
            let these = set(these);
            assert_eq!(held(&these, &text), Some(expect), "{}", these.to_text());
            assert_eq!(count(these.root()), all, "{}", these.to_text());
        }
        for wrong in ["", "[]", "{\"f:a\":1}", "{} {}"] {
            assert_eq!(held(&set(json!({"f:a": {}})), wrong), None, "{wrong}");
        }
    }
}
