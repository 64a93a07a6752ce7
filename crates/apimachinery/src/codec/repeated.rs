//! Duplicate keys: the later value counts, but two objects are merged, as in Go.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The document with every key once. Invalid JSON stays as it is.
pub(super) fn merged(json: &[u8]) -> Cow<'_, [u8]> {
    match serde_json::from_slice::<Merged>(json).and_then(|Merged(value)| serde_json::to_vec(&value)) {
        Ok(merged) => Cow::Owned(merged),
        Err(_) => Cow::Borrowed(json),
    }
}

struct Merged(Value);

impl<'de> Deserialize<'de> for Merged {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Merged;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }
    fn visit_bool<E>(self, v: bool) -> Result<Merged, E> {
        Ok(Merged(v.into()))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Merged, E> {
        Ok(Merged(v.into()))
    }
    fn visit_u64<E>(self, v: u64) -> Result<Merged, E> {
        Ok(Merged(v.into()))
    }
    fn visit_f64<E>(self, v: f64) -> Result<Merged, E> {
        Ok(Merged(v.into()))
    }
    fn visit_str<E>(self, v: &str) -> Result<Merged, E> {
        Ok(Merged(v.into()))
    }
    fn visit_unit<E>(self) -> Result<Merged, E> {
        Ok(Merged(Value::Null))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merged, A::Error> {
        let mut items = Vec::new();
        while let Some(Merged(item)) = seq.next_element()? {
            items.push(item);
        }
        Ok(Merged(items.into()))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Merged, A::Error> {
        let mut members = Map::new();
        while let Some((key, Merged(value))) = map.next_entry::<String, Merged>()? {
            put(&mut members, key, value);
        }
        Ok(Merged(members.into()))
    }
}

fn put(into: &mut Map<String, Value>, key: String, value: Value) {
    match (into.get_mut(&key), value) {
        (Some(Value::Object(old)), Value::Object(new)) => {
            new.into_iter().for_each(|(key, value)| put(old, key, value));
        }
        (_, value) => {
            into.insert(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_given_twice_add_up_and_all_else_is_replaced() {
        for (json, expected) in [
            (
                r#"{"a":{"x":1},"b":1,"a":{"y":2,"x":3}}"#,
                r#"{"a":{"x":3,"y":2},"b":1}"#,
            ),
            (r#"{"a":[1,2],"a":[3]}"#, r#"{"a":[3]}"#),
            (r#"{"a":{"x":1},"a":null}"#, r#"{"a":null}"#),
            (r#"[{"a":{"b":1},"a":{"c":2}}]"#, r#"[{"a":{"b":1,"c":2}}]"#),
            ("{", "{"),
        ] {
            assert_eq!(
                String::from_utf8_lossy(&merged(json.as_bytes())),
                expected,
                "{json}"
            );
        }
    }
}
