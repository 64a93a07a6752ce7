//! Kubernetes' protobuf bodies, read as JSON.
//!
//! Clients such as kubectl's generators send `application/vnd.kubernetes.protobuf`: an envelope (`runtime.Unknown`)
//! around a message of the kind. It is transcoded to JSON by the types' [descriptors](crate::descriptors) and handled like every
//! other body from there. Responses are JSON, which those clients accept too; nothing is encoded here.
//!
//! No body can cause a panic or unbounded memory use: lengths are checked against the bytes left, nesting has a limit.

mod messages;
mod values;
mod wire;

use serde_json::{Map, Value};

use messages::{Field, Message, Shape, Type};
use wire::{Reader, Wire};

/// What every body begins with.
const MAGIC: &[u8] = b"k8s\0";
/// As deep as Kubernetes' own schemas go, with room for JSON schemas in JSON schemas.
const DEPTH_MAX: usize = 100;

/// A body out of its envelope.
#[derive(Debug, PartialEq)]
pub struct Body {
    pub api_version: String,
    pub kind: String,
    /// The object with `apiVersion` and `kind`.
    pub object: Value,
}

/// Why a body cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the body does not begin with the protobuf envelope of Kubernetes")]
    NoEnvelope,
    #[error("the body ends in the middle of a message")]
    Truncated,
    #[error("field {field} of {message} has wire type {found}, which does not fit it")]
    WireType { message: String, field: u32, found: u8 },
    #[error("there is no protobuf message for {kind} in version {api_version:?}")]
    UnknownKind { api_version: String, kind: String },
    #[error("messages are nested more than {DEPTH_MAX} deep")]
    TooDeep,
    #[error("{field} is not valid UTF-8")]
    Text { field: &'static str },
    #[error("{field} is not a valid {what}")]
    Value { field: &'static str, what: &'static str },
}

/// Reads one body.
pub fn read(body: &[u8]) -> Result<Body, Error> {
    let mut envelope = Reader::new(body.strip_prefix(MAGIC).ok_or(Error::NoEnvelope)?);
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    while let Some((field, wire)) = envelope.next()? {
        match (field, wire) {
            (1, Wire::Bytes(meta)) => {
                let mut meta = Reader::new(meta);
                while let Some((field, wire)) = meta.next()? {
                    match (field, wire) {
                        (1, Wire::Bytes(text)) => api_version = utf8(text, "apiVersion")?.to_string(),
                        (2, Wire::Bytes(text)) => kind = utf8(text, "kind")?.to_string(),
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let message = messages::of_kind(&api_version, &kind).ok_or_else(|| Error::UnknownKind {
        api_version: api_version.clone(),
        kind: kind.clone(),
    })?;
    let mut object = match read_message(message, raw, 0)? {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    object.insert("apiVersion".into(), api_version.clone().into());
    object.insert("kind".into(), kind.clone().into());
    Ok(Body {
        api_version,
        kind,
        object: Value::Object(object),
    })
}

fn utf8<'a>(bytes: &'a [u8], field: &'static str) -> Result<&'a str, Error> {
    std::str::from_utf8(bytes).map_err(|_| Error::Text { field })
}

fn read_message(message: Message, bytes: &[u8], depth: usize) -> Result<Value, Error> {
    if depth > DEPTH_MAX {
        return Err(Error::TooDeep);
    }
    let mut object = Map::new();
    let mut reader = Reader::new(bytes);
    while let Some((number, wire)) = reader.next()? {
        // Unknown numbers are fields of another version, and left out as Kubernetes leaves them out.
        let Some(field) = message.field(number) else {
            continue;
        };
        read_field(message, number, field, wire, depth, &mut object)?;
    }
    Ok(match message.shape() {
        Shape::Object => Value::Object(object),
        Shape::List => object.remove("items").unwrap_or_else(|| Value::Array(Vec::new())),
        Shape::Either => either(object),
    })
}

/// The JSON forms of apiextensions' `JSONSchemaPropsOr…`: the schema if there is one, else the alternative.
fn either(mut object: Map<String, Value>) -> Value {
    if let Some(schema) = object.remove("schema") {
        return schema;
    }
    let alternative = object.into_iter().next().map(|(_, value)| value);
    alternative.unwrap_or(Value::Bool(false))
}

fn read_field(
    message: Message,
    number: u32,
    field: Field,
    wire: Wire<'_>,
    depth: usize,
    object: &mut Map<String, Value>,
) -> Result<(), Error> {
    let misfit = || Error::WireType {
        message: message.name(),
        field: number,
        found: wire.number(),
    };
    let name = || field.name.to_string();
    if field.map {
        let Wire::Bytes(entry) = wire else {
            return Err(misfit());
        };
        let (key, value) = read_entry(field, entry, depth)?;
        if let Value::Object(map) = object.entry(name()).or_insert_with(|| Map::new().into()) {
            map.insert(key, value);
        }
        return Ok(());
    }
    let value = read_value(field, wire, depth)?.ok_or_else(misfit)?;
    if field.repeated {
        let list = object.entry(name()).or_insert_with(|| Value::Array(Vec::new()));
        match (list, value) {
            // Numbers may come packed.
            (Value::Array(list), Value::Array(packed)) if field.of.is_number() => list.extend(packed),
            (Value::Array(list), value) => list.push(value),
            _ => {}
        }
        return Ok(());
    }
    if field.inline {
        if let Value::Object(inner) = value {
            object.extend(inner);
        }
        return Ok(());
    }
    // Go writes zero values of fields that are no pointers; in JSON they would not be there.
    let zero = !field.pointer && matches!(message.shape(), Shape::Object) && values::is_zero(&value);
    if !zero {
        object.insert(name(), value);
    }
    Ok(())
}

fn read_entry(field: Field, entry: &[u8], depth: usize) -> Result<(String, Value), Error> {
    let (mut key, mut value) = (String::new(), None);
    let mut reader = Reader::new(entry);
    while let Some((number, wire)) = reader.next()? {
        match (number, wire) {
            (1, Wire::Bytes(text)) => key = utf8(text, field.name)?.to_string(),
            (2, wire) => value = read_value(field, wire, depth)?,
            _ => {}
        }
    }
    let absent = || match field.of {
        Type::Message(_) => Value::Object(Map::new()),
        _ => Value::String(String::new()),
    };
    Ok((key, value.unwrap_or_else(absent)))
}

/// One value; `None` if the wire type does not fit.
fn read_value(field: Field, wire: Wire<'_>, depth: usize) -> Result<Option<Value>, Error> {
    let bad = |what| Error::Value {
        field: field.name,
        what,
    };
    Ok(match (field.of, wire) {
        (Type::Message(message), Wire::Bytes(bytes)) => Some(read_message(message, bytes, depth + 1)?),
        (Type::Text, Wire::Bytes(bytes)) => Some(utf8(bytes, field.name)?.into()),
        (Type::Bytes, Wire::Bytes(bytes)) => Some(values::base64(bytes).into()),
        (Type::Signed, Wire::Varint(n)) => Some(n.cast_signed().into()),
        (Type::Unsigned, Wire::Varint(n)) => Some(n.into()),
        (Type::Bool, Wire::Varint(n)) => Some((n != 0).into()),
        (Type::Double, Wire::Fixed64(n)) => Some(values::double(n).ok_or(bad("number"))?),
        (Type::Signed | Type::Unsigned, Wire::Bytes(packed)) => {
            let mut list = Vec::new();
            let mut reader = Reader::new(packed);
            while let Some(n) = reader.varint_or_end()? {
                list.push(if matches!(field.of, Type::Signed) {
                    n.cast_signed().into()
                } else {
                    Value::from(n)
                });
            }
            Some(Value::Array(list))
        }
        (Type::Time, Wire::Bytes(bytes)) => Some(values::time(bytes, false)?.ok_or(bad("time"))?),
        (Type::MicroTime, Wire::Bytes(bytes)) => Some(values::time(bytes, true)?.ok_or(bad("time"))?),
        (Type::Duration, Wire::Bytes(bytes)) => Some(values::duration(bytes)?.into()),
        (Type::Quantity, Wire::Bytes(bytes)) => Some(values::text_of(bytes, field.name)?.into()),
        (Type::IntOrString, Wire::Bytes(bytes)) => Some(values::int_or_string(bytes, field.name)?),
        (Type::Json, Wire::Bytes(bytes)) => Some(values::json(bytes).ok_or(bad("JSON"))?),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
