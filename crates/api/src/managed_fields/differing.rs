//! The fields of an object that differ before and after a write, found by reading both encodings.
//!
//! Equal values change no manager's fields, and in most updates most of an object is equal: no tree is made of it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Fields whose differences do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ignored {
    /// No manager owns it, and a client that patches an object sends none.
    pub resource_version: bool,
    /// It cannot be written through the status subresource.
    pub spec: bool,
}

/// Both objects without equal values and without their managers. Comparing these is comparing the
/// objects.
pub(super) fn differing(live: &[u8], new: &[u8], ignored: Ignored) -> serde_json::Result<(Value, Value)> {
    let mut live: Members<'_> = serde_json::from_slice(live)?;
    let mut new: Members<'_> = serde_json::from_slice(new)?;
    if ignored.spec {
        live.remove("spec");
        new.remove("spec");
    }
    let metadata = live.remove("metadata").zip(new.remove("metadata"));
    let (mut left, mut right) = narrow(&live, &new)?;
    if let Some((live, new)) = metadata {
        let (mut live, mut new): (Members<'_>, Members<'_>) = (members(live)?, members(new)?);
        for members in [&mut live, &mut new] {
            members.remove("managedFields");
            if ignored.resource_version {
                members.remove("resourceVersion");
            }
        }
        if let Some((live, new)) = narrow_both(&live, &new)? {
            left.insert("metadata".into(), live.into());
            right.insert("metadata".into(), new.into());
        }
    }
    Ok((left.into(), right.into()))
}

/// The differing members of either side.
type Both = (Map<String, Value>, Map<String, Value>);

/// An object's members in the order in which they are written, which on both sides is nearly the same: so each is found
/// where the last one was, and no map is made.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    fn remove(&mut self, key: &str) -> Option<&'a RawValue> {
        let at = self.0.iter().position(|(k, _)| k == key)?;
        Some(self.0.remove(at).1)
    }
}

/// Up to how many members the search is linear; a ConfigMap may have a hundred thousand.
const FEW: usize = 32;

/// Finds members by key, best in the order in which they are.
struct Finder<'m> {
    members: &'m [(Cow<'m, str>, &'m RawValue)],
    index: Option<BTreeMap<&'m str, usize>>,
    next: usize,
}

impl<'m> Finder<'m> {
    fn new(Members(members): &'m Members<'_>) -> Self {
        Finder {
            members,
            index: None,
            next: 0,
        }
    }

    fn find(&mut self, key: &str) -> Option<&'m RawValue> {
        let members = self.members;
        let at = match members.get(self.next) {
            Some((k, _)) if k == key => self.next,
            _ if members.len() <= FEW => members.iter().position(|(k, _)| k == key)?,
            _ => {
                let keys = || members.iter().enumerate().map(|(at, (k, _))| (k.as_ref(), at));
                *self.index.get_or_insert_with(|| keys().collect()).get(key)?
            }
        };
        self.next = at + 1;
        members.get(at).map(|(_, value)| *value)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::new();
                while let Some((Key(key), value)) = map.next_entry()? {
                    members.push((key, value));
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Read)
    }
}

/// Borrowed where it is written without escapes.
#[derive(serde::Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

fn members(value: &RawValue) -> serde_json::Result<Members<'_>> {
    serde_json::from_str(value.get())
}

fn whole(members: &Members<'_>) -> serde_json::Result<Map<String, Value>> {
    let parsed = |(key, value): &(Cow<'_, str>, &RawValue)| {
        serde_json::from_str(value.get()).map(|value| (key.to_string(), value))
    };
    members.0.iter().map(parsed).collect()
}

/// The members that differ, and of those that are objects on both sides what differs in them.
fn narrow(left: &Members<'_>, right: &Members<'_>) -> serde_json::Result<Both> {
    let (mut l, mut r) = (Map::new(), Map::new());
    let mut others = Finder::new(right);
    let mut found = 0;
    for (key, value) in &left.0 {
        if let Some(other) = others.find(key) {
            found += 1;
            if value.get() == other.get() {
                continue;
            }
            if [*value, other].iter().all(|v| v.get().starts_with('{')) {
                if let Some((value, other)) = narrow_both(&members(value)?, &members(other)?)? {
                    l.insert(key.to_string(), value.into());
                    r.insert(key.to_string(), other.into());
                }
                continue;
            }
            r.insert(key.to_string(), serde_json::from_str(other.get())?);
        }
        l.insert(key.to_string(), serde_json::from_str(value.get())?);
    }
    if found < right.0.len() {
        let mut others = Finder::new(left);
        for (key, value) in &right.0 {
            if others.find(key).is_none() {
                r.insert(key.to_string(), serde_json::from_str(value.get())?);
            }
        }
    }
    Ok((l, r))
}

/// As [`narrow`]; `None` where nothing differs. A side that was not empty does not become empty: to have no members is
/// not the same as to have none that differ.
fn narrow_both(left: &Members<'_>, right: &Members<'_>) -> serde_json::Result<Option<Both>> {
    let (l, r) = narrow(left, right)?;
    Ok(match (l.is_empty(), r.is_empty()) {
        (true, true) => None,
        (false, false) => Some((l, r)),
        _ => Some((whole(left)?, whole(right)?)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::kind_type::type_of_kind;
    use super::super::values::{self, Comparison};
    use super::*;
    use crate::registry::POD;

    /// A pod of every shape that counts: structs, maps, lists with keys, sets, values set as a whole, and things that are
    /// empty, missing, null or of the wrong form.
    fn pods() -> impl Strategy<Value = Value> {
        let text = prop::sample::select(vec!["", "a", "b"]);
        let maps = prop::collection::btree_map("[ab]", text.clone(), 0..3).prop_map(|map| json!(map));
        let odd = prop::sample::select(vec![json!(null), json!({}), json!([]), json!(1)]);
        let condition =
            (text.clone(), text.clone()).prop_map(|(kind, at)| json!({"type": kind, "lastProbeTime": at}));
        let conditions = prop::collection::vec(condition, 0..3).prop_map(|all| json!(all));
        let container = (text.clone(), maps.clone()).prop_map(
            |(name, limits)| json!({"name": name, "resources": {"limits": limits, "requests": {}}}),
        );
        let containers = prop::collection::vec(container, 0..3).prop_map(|all| json!(all));
        let term = maps
            .clone()
            .prop_map(|l| json!({"labelSelector": {"matchLabels": l}, "maxSkew": 1}));
        let member = |of: BoxedStrategy<Value>, odd: &BoxedStrategy<Value>| {
            prop::option::weighted(0.8, prop_oneof![9 => of, 1 => odd.clone()]).boxed()
        };
        let odd = odd.boxed();
        (
            member(maps.clone().boxed(), &odd),
            member(maps.clone().boxed(), &odd),
            member(containers.boxed(), &odd),
            member(term.boxed(), &odd),
            member(maps.boxed(), &odd),
            member(conditions.boxed(), &odd),
            member(text.prop_map(|w| json!(w)).boxed(), &odd),
        )
            .prop_map(|(labels, annotations, containers, term, node_selector, conditions, phase)| {
                let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {}, "status": {}});
                for (part, name, value) in [
                    ("metadata", "labels", labels),
                    ("metadata", "annotations", annotations),
                    ("spec", "containers", containers),
                    ("spec", "securityContext", term),
                    ("spec", "nodeSelector", node_selector),
                    ("status", "conditions", conditions),
                    ("status", "phase", phase),
                ] {
                    if let Some(value) = value {
                        pod[part][name] = value;
                    }
                }
                pod
            })
    }

    fn sets(c: Comparison) -> [String; 3] {
        [c.added, c.modified, c.removed].map(|set| set.to_text())
    }

    proptest! {
        #[test]
        fn comparing_what_differs_is_comparing_the_objects(left in pods(), right in pods()) {
            let kind = type_of_kind(&POD).unwrap();
            let bytes = |v: &Value| serde_json::to_vec(v).unwrap();
            let mut carried = left.clone();
            carried["metadata"]["managedFields"] = json!([{"manager": "m"}]);
            let (l, r) = differing(&bytes(&carried), &bytes(&right), Ignored::default()).unwrap();
            let (whole, narrowed) = (values::compare(kind, &left, &right), values::compare(kind, &l, &r));
            prop_assert_eq!(sets(whole), sets(narrowed), "{} {}", l, r);
        }
    }

    /// However many members there are and in whatever order they are written.
    #[test]
    fn members_are_found_wherever_they_are() {
        for count in [3, 40] {
            let names: Vec<String> = (0..count).map(|n| format!("k{n:03}")).collect();
            let text = |names: &mut dyn Iterator<Item = &String>, odd: &str| {
                let members: Vec<_> = names
                    .map(|n| format!("{n:?}:{}", usize::from(n == odd)))
                    .collect();
                format!("{{\"data\":{{{}}}}}", members.join(","))
            };
            let forward = text(&mut names.iter(), "k001");
            let backward = text(&mut names.iter().rev().skip(1), "");
            let (l, r) = differing(forward.as_bytes(), backward.as_bytes(), Ignored::default()).unwrap();
            let last = format!("k{:03}", count - 1);
            assert_eq!(l, json!({"data": {"k001": 1, last.as_str(): 0}}), "{count}");
            assert_eq!(r, json!({"data": {"k001": 0}}), "{count}");
            let (r, l) = differing(backward.as_bytes(), forward.as_bytes(), Ignored::default()).unwrap();
            assert_eq!(l, json!({"data": {"k001": 1, last.as_str(): 0}}), "{count}");
            assert_eq!(r, json!({"data": {"k001": 0}}), "{count}");
        }
    }

    #[test]
    fn only_differences_are_left() {
        let live = json!({"kind": "Pod", "metadata": {"name": "a", "managedFields": []}, "status": {"phase": "Running", "x": {"y": 1, "z": [1]}}});
        let new = json!({"kind": "Pod", "metadata": {"name": "a"}, "status": {"phase": "Running", "x": {"y": 1, "z": [2]}}});
        let (live, new) = (live.to_string(), new.to_string());
        let (l, r) = differing(live.as_bytes(), new.as_bytes(), Ignored::default()).unwrap();
        assert_eq!(
            (l, r),
            (
                json!({"status": {"x": {"z": [1]}}}),
                json!({"status": {"x": {"z": [2]}}})
            )
        );
    }

    /// A client that sends no resourceVersion changes no field by that, and one that writes a status none of the specification.
    #[test]
    fn ignored_fields_are_no_differences() {
        let live =
            json!({"metadata": {"name": "a", "resourceVersion": "7"}, "spec": {"y": 1}, "status": {"x": 1}});
        let new = json!({"metadata": {"name": "a"}, "status": {"x": 2}});
        let (live, new) = (live.to_string(), new.to_string());
        for (resource_version, spec) in [(false, false), (false, true), (true, false), (true, true)] {
            let ignored = Ignored {
                resource_version,
                spec,
            };
            let (l, r) = differing(live.as_bytes(), new.as_bytes(), ignored).unwrap();
            assert_eq!(l.get("metadata").is_none(), resource_version, "{l}");
            assert_eq!(l.get("spec").is_none(), spec, "{l}");
            assert_eq!((&l["status"]["x"], &r["status"]["x"]), (&json!(1), &json!(2)));
        }
    }
}
