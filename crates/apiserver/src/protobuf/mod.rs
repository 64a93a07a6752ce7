//! Bodies in Kubernetes' protobuf encoding, turned into JSON. Typed Go clients (`kubectl create …` among them)
//! write this way; answers are JSON, which all of them read too.
//!
//! `schema.txt` says which field of a message has which number, JSON name and type in v1.36: wire facts, one line a
//! field. `?`: absent is not zero (a pointer); `!`: zero is told; else zero is as good as absent. `.` is a message whose
//! fields stand in the one around it.

use std::collections::HashMap;
use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use serde_json::{Map, Value};

/// How every body begins.
const MAGIC: &[u8] = b"k8s\0";
/// Deepest nesting of messages; CRD schemas, the deepest there are, are not written this way.
const DEPTH_MAX: usize = 64;
const SCHEMA: &str = include_str!("schema.txt");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zero {
    /// Kept: only what is there is written.
    Pointer,
    Told,
    Dropped,
}

#[derive(Debug)]
struct Field {
    name: &'static str,
    zero: Zero,
    of: Type,
}

#[derive(Clone, Debug)]
enum Type {
    String,
    Int,
    Bool,
    Bytes,
    Time,
    MicroTime,
    Duration,
    Quantity,
    IntOrString,
    /// JSON inside, raw.
    Json,
    Message(&'static str),
    List(Box<Type>),
    Map(Box<Type>),
    /// A list that is a message with the elements in field 1.
    Items(Box<Type>),
}

type Message = HashMap<u32, Field>;

fn schema() -> &'static HashMap<&'static str, Message> {
    static PARSED: OnceLock<HashMap<&'static str, Message>> = OnceLock::new();
    PARSED.get_or_init(|| {
        let mut messages: HashMap<&'static str, Message> = HashMap::new();
        let mut current = "";
        for line in SCHEMA.lines() {
            let Some(field) = line.strip_prefix(' ') else {
                current = line;
                messages.entry(current).or_default();
                continue;
            };
            let mut words = field.splitn(3, ' ');
            let (Some(number), Some(name), Some(of)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let (name, zero) = match name.as_bytes().last() {
                Some(b'?') => (&name[..name.len() - 1], Zero::Pointer),
                Some(b'!') => (&name[..name.len() - 1], Zero::Told),
                _ => (name, Zero::Dropped),
            };
            if let Ok(number) = number.parse() {
                let of = parse_type(of);
                messages
                    .entry(current)
                    .or_default()
                    .insert(number, Field { name, zero, of });
            }
        }
        messages
    })
}

fn parse_type(text: &'static str) -> Type {
    let inner = |rest| Box::new(parse_type(rest));
    if let Some(rest) = text.strip_prefix("[]") {
        return Type::List(inner(rest));
    }
    if let Some(rest) = text.strip_prefix("map ") {
        return Type::Map(inner(rest));
    }
    if let Some(rest) = text.strip_prefix("items ") {
        return Type::Items(inner(rest));
    }
    match text {
        "string" => Type::String,
        "int" => Type::Int,
        "bool" => Type::Bool,
        "bytes" => Type::Bytes,
        "time" => Type::Time,
        "microtime" => Type::MicroTime,
        "duration" => Type::Duration,
        "quantity" => Type::Quantity,
        "intorstring" => Type::IntOrString,
        "json" => Type::Json,
        message => Type::Message(message),
    }
}

/// A body as JSON, with the apiVersion and kind it carries.
pub fn to_json(body: &[u8]) -> Result<Value, String> {
    let mut envelope =
        Reader(body.strip_prefix(MAGIC).ok_or(
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
        )?);
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    while let Some((number, wire)) = envelope.next()? {
        match (number, wire) {
            (1, Wire::Bytes(type_meta)) => {
                let mut type_meta = Reader(type_meta);
                while let Some((number, wire)) = type_meta.next()? {
                    match (number, wire) {
                        (1, Wire::Bytes(b)) => api_version = text(b)?,
                        (2, Wire::Bytes(b)) => kind = text(b)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(b)) => raw = b,
            _ => {}
        }
    }
    let name = message_name(&api_version, &kind);
    let Some((name, message)) = schema().get_key_value(name.as_str()) else {
        return Err(format!(
            "no kind {kind:?} is registered for version {api_version:?} in protobuf"
        ));
    };
    tracing::trace!(name, "a protobuf body");
    let mut object = Map::new();
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    read_message(message, raw, &mut object, 0)?;
    Ok(Value::Object(object))
}

/// `rbac.v1.Role` for `rbac.authorization.k8s.io/v1` Role.
fn message_name(api_version: &str, kind: &str) -> String {
    let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
    let group = group.split('.').next().unwrap_or(group);
    if kind == "DeleteOptions" {
        return "meta.v1.DeleteOptions".into();
    }
    format!("{group}.{version}.{kind}")
}

fn read_message(
    message: &'static Message,
    bytes: &[u8],
    object: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err("messages are nested too deeply".into());
    }
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.next()? {
        // What this version does not know is dropped, as Go's decoder does.
        let Some(field) = message.get(&number) else {
            continue;
        };
        match (&field.of, field.name) {
            (Type::Message(name), ".") => read_message(find(name)?, wire.bytes()?, object, depth + 1)?,
            (Type::List(of), name) => {
                let value = read_value(of, wire, depth)?;
                match object.entry(name).or_insert_with(|| Value::Array(Vec::new())) {
                    Value::Array(list) => list.push(value),
                    _ => return Err(format!("{name} is no list")),
                }
            }
            (Type::Map(of), name) => {
                let (mut key, mut value) = (String::new(), None);
                let mut entry = Reader(wire.bytes()?);
                while let Some((number, wire)) = entry.next()? {
                    match number {
                        1 => key = text(wire.bytes()?)?,
                        2 => value = Some(read_value(of, wire, depth)?),
                        _ => {}
                    }
                }
                match object.entry(name).or_insert_with(|| Value::Object(Map::new())) {
                    Value::Object(map) => map.insert(key, value.unwrap_or_else(|| "".into())),
                    _ => return Err(format!("{name} is no map")),
                };
            }
            (of, name) => {
                let value = read_value(of, wire, depth)?;
                if value.is_null() || (field.zero == Zero::Dropped && is_zero(&value)) {
                    continue;
                }
                object.insert(name.to_string(), value);
            }
        }
    }
    Ok(())
}

fn find(name: &str) -> Result<&'static Message, String> {
    schema()
        .get(name)
        .ok_or_else(|| format!("no message {name} is known"))
}

/// What Go leaves out of JSON. Empty messages stay: they are written as `{}`.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(s) => s.is_empty(),
        Value::Number(n) => n.as_i64() == Some(0),
        Value::Bool(b) => !b,
        _ => false,
    }
}

fn read_value(of: &Type, wire: Wire<'_>, depth: usize) -> Result<Value, String> {
    Ok(match of {
        Type::String => text(wire.bytes()?)?.into(),
        Type::Int => wire.int()?.into(),
        Type::Bool => (wire.int()? != 0).into(),
        Type::Bytes => STANDARD.encode(wire.bytes()?).into(),
        Type::Time | Type::MicroTime => {
            let [seconds, nanos] = ints(wire.bytes()?)?;
            if seconds == 0 && nanos == 0 {
                return Ok(Value::Null);
            }
            let nanos = i32::try_from(nanos).map_err(|e| e.to_string())?;
            let time = Timestamp::new(seconds, nanos).map_err(|e| e.to_string())?;
            match of {
                Type::MicroTime => time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string().into(),
                _ => time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into(),
            }
        }
        Type::Duration => {
            let [nanos, _] = ints(wire.bytes()?)?;
            format!("{nanos}ns").into()
        }
        Type::Quantity => {
            let mut reader = Reader(wire.bytes()?);
            let mut quantity = String::new();
            while let Some((number, wire)) = reader.next()? {
                if number == 1 {
                    quantity = text(wire.bytes()?)?;
                }
            }
            if quantity.is_empty() {
                "0".into()
            } else {
                quantity.into()
            }
        }
        Type::IntOrString => {
            let mut reader = Reader(wire.bytes()?);
            let (mut is_text, mut number_value, mut text_value) = (false, 0, String::new());
            while let Some((number, wire)) = reader.next()? {
                match number {
                    1 => is_text = wire.int()? == 1,
                    2 => number_value = wire.int()?,
                    3 => text_value = text(wire.bytes()?)?,
                    _ => {}
                }
            }
            if is_text {
                text_value.into()
            } else {
                number_value.into()
            }
        }
        Type::Json => {
            let mut reader = Reader(wire.bytes()?);
            let mut value = Value::Null;
            while let Some((number, wire)) = reader.next()? {
                if number == 1 {
                    value = serde_json::from_slice(wire.bytes()?).map_err(|e| e.to_string())?;
                }
            }
            value
        }
        Type::Message(name) => {
            let mut object = Map::new();
            read_message(find(name)?, wire.bytes()?, &mut object, depth + 1)?;
            Value::Object(object)
        }
        Type::Items(of) => {
            let mut reader = Reader(wire.bytes()?);
            let mut items = Vec::new();
            while let Some((number, wire)) = reader.next()? {
                if number == 1 {
                    items.push(read_value(of, wire, depth + 1)?);
                }
            }
            Value::Array(items)
        }
        Type::List(_) | Type::Map(_) => return Err("a list in a list is not written this way".into()),
    })
}

/// Fields 1 and 2 as numbers.
fn ints(bytes: &[u8]) -> Result<[i64; 2], String> {
    let mut found = [0; 2];
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.next()? {
        if let 1 | 2 = number {
            found[number as usize - 1] = wire.int()?;
        }
    }
    Ok(found)
}

fn text(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|e| e.to_string())
}

enum Wire<'a> {
    Int(u64),
    Bytes(&'a [u8]),
}

impl<'a> Wire<'a> {
    fn bytes(self) -> Result<&'a [u8], String> {
        match self {
            Wire::Bytes(bytes) => Ok(bytes),
            Wire::Int(_) => Err("wrong wireType = 0".into()),
        }
    }

    /// Negative numbers are written as their two's complement.
    fn int(self) -> Result<i64, String> {
        match self {
            Wire::Int(n) => Ok(n.cast_signed()),
            Wire::Bytes(_) => Err("wrong wireType = 2".into()),
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or("unexpected EOF")?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("proto: integer overflow".into())
    }

    fn take(&mut self, n: u64) -> Result<&'a [u8], String> {
        let n = usize::try_from(n).map_err(|_| "unexpected EOF")?;
        let (head, rest) = self.0.split_at_checked(n).ok_or("unexpected EOF")?;
        self.0 = rest;
        Ok(head)
    }

    fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| "proto: illegal tag")?;
        let little_endian = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
        let wire = match tag & 7 {
            0 => Wire::Int(self.varint()?),
            1 => Wire::Int(little_endian(self.take(8)?)),
            2 => {
                let length = self.varint()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Int(little_endian(self.take(4)?)),
            other => return Err(format!("proto: illegal wireType {other}")),
        };
        Ok(Some((number, wire)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let type_meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), field(1, &type_meta), field(2, raw)].concat()
    }

    #[test]
    fn a_config_map_is_read_and_empty_fields_are_absent() {
        let meta = [field(1, b"a"), field(2, b""), field(3, b"ns"), field(8, b"")].concat();
        let entry = [field(1, b"k"), field(2, b"v")].concat();
        let raw = [field(1, &meta), field(2, &entry), vec![4 << 3, 0]].concat();
        assert_eq!(
            to_json(&envelope("v1", "ConfigMap", &raw)).unwrap(),
            serde_json::json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "a", "namespace": "ns"},
                "data": {"k": "v"},
                // A pointer: false was said.
                "immutable": false,
            })
        );
    }

    #[test]
    fn a_volume_has_its_source_beside_its_name() {
        let source = field(6, &field(1, b"s"));
        let volume = [field(1, b"v"), field(2, &source)].concat();
        let raw = field(2, &field(1, &volume));
        let pod = to_json(&envelope("v1", "Pod", &raw)).unwrap();
        assert_eq!(
            pod["spec"]["volumes"][0],
            serde_json::json!({"name": "v", "secret": {"secretName": "s"}})
        );
    }

    #[test]
    fn every_message_that_is_named_is_there() {
        fn check(of: &Type) {
            match of {
                Type::Message(name) => assert!(find(name).is_ok(), "{name}"),
                Type::List(of) | Type::Map(of) | Type::Items(of) => check(of),
                _ => {}
            }
        }
        schema()
            .values()
            .flat_map(HashMap::values)
            .for_each(|f| check(&f.of));
        assert!(schema().len() > 400);
    }

    #[test]
    fn cut_and_foreign_bytes_are_refused() {
        let whole = envelope("v1", "ConfigMap", &field(1, &field(1, b"abc")));
        for cut in MAGIC.len() + 1..whole.len() {
            // Cut between two fields it is a shorter message; anywhere else it is an error, and never a panic.
            let _ = to_json(&whole[..cut]);
        }
        assert!(to_json(&whole[..whole.len() - 1]).is_err());
        assert!(to_json(b"{}").is_err());
        assert!(to_json(&envelope("v1", "Nope", b"")).is_err());
    }
}
