//! The swagger document as protobuf: gnostic's `openapi.v2.Document`.
//!
//! Clients in Go read the document only in this form (client-go's `OpenAPISchema`). The messages are tables
//! of field numbers, and one encoder traverses a JSON document by them. Members that a table does not have are an
//! error, so nothing of a document is lost silently; extensions (`x-…`) are allowed everywhere. Tables have what Kubernetes
//! publishes: no OAuth, no forms, no file uploads.

use serde_json::{Map, Value};

/// Why a document cannot be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{at}: {message} has no member of that name in swagger 2.0")]
    UnknownMember { at: String, message: &'static str },
    #[error("{at}: expected {expected}, found {found}")]
    Unexpected {
        at: String,
        expected: &'static str,
        found: String,
    },
}

/// A message of named members.
struct Message {
    name: &'static str,
    /// Members: name, number, form.
    fields: &'static [(&'static str, u32, Form)],
    /// The number of the list of extensions; 0 where there can be none.
    extensions: u32,
}

/// How a JSON value is encoded.
#[derive(Clone, Copy)]
enum Form {
    Text,
    Bool,
    Integer,
    Double,
    /// Any JSON, as YAML text, of which JSON is a part.
    Any,
    Message(&'static Message),
    /// An object of any keys: a message with a list of names and values at number 1, or with extensions in addition.
    Named(&'static Form, Numbers),
    /// A JSON list.
    Repeated(&'static Form),
    /// A message with nothing but a list at number 1, for which JSON may have a single value.
    OneOrMany(&'static Form),
    /// One of several messages, chosen by the value; each is at its number in an enclosing message.
    OneOf(fn(&Value) -> Option<Choice>),
}

type Choice = (u32, Form);

/// The numbers of names and values in a message of [`Form::Named`].
#[derive(Clone, Copy)]
struct Numbers {
    named: u32,
    /// 0 where keys like extensions' are names as others.
    extensions: u32,
}

const PLAIN: Numbers = Numbers {
    named: 1,
    extensions: 0,
};

use Form::{Any, Bool, Double, Integer, Named, OneOf, OneOrMany, Repeated, Text};

const TEXTS: Form = Repeated(&Text);
const ANYTHINGS: Form = Repeated(&Any);
/// A static, for it leads back to itself.
static SCHEMA_FORM: Form = Form::Message(&SCHEMA);
const PARAMETERS: Form = Repeated(&OneOf(parameter_or_reference));

static DOCUMENT: Message = Message {
    name: "Document",
    fields: &[
        ("swagger", 1, Text),
        ("info", 2, Form::Message(&INFO)),
        ("host", 3, Text),
        ("basePath", 4, Text),
        ("schemes", 5, TEXTS),
        ("consumes", 6, TEXTS),
        ("produces", 7, TEXTS),
        (
            "paths",
            8,
            Named(
                &Form::Message(&PATH_ITEM),
                Numbers {
                    named: 2,
                    extensions: 1,
                },
            ),
        ),
        ("definitions", 9, Named(&SCHEMA_FORM, PLAIN)),
        ("parameters", 10, Named(&OneOf(parameter), PLAIN)),
        ("responses", 11, Named(&Form::Message(&RESPONSE), PLAIN)),
        ("security", 12, REQUIREMENTS),
        ("securityDefinitions", 13, Named(&OneOf(security), PLAIN)),
        ("tags", 14, Repeated(&Form::Message(&TAG))),
        ("externalDocs", 15, Form::Message(&EXTERNAL_DOCS)),
    ],
    extensions: 16,
};

const REQUIREMENTS: Form = Repeated(&Named(&OneOrMany(&Text), PLAIN));

static INFO: Message = Message {
    name: "Info",
    fields: &[
        ("title", 1, Text),
        ("version", 2, Text),
        ("description", 3, Text),
        ("termsOfService", 4, Text),
    ],
    extensions: 7,
};

static TAG: Message = Message {
    name: "Tag",
    fields: &[
        ("name", 1, Text),
        ("description", 2, Text),
        ("externalDocs", 3, Form::Message(&EXTERNAL_DOCS)),
    ],
    extensions: 4,
};

static EXTERNAL_DOCS: Message = Message {
    name: "ExternalDocs",
    fields: &[("description", 1, Text), ("url", 2, Text)],
    extensions: 3,
};

static PATH_ITEM: Message = Message {
    name: "PathItem",
    fields: &[
        ("$ref", 1, Text),
        ("get", 2, Form::Message(&OPERATION)),
        ("put", 3, Form::Message(&OPERATION)),
        ("post", 4, Form::Message(&OPERATION)),
        ("delete", 5, Form::Message(&OPERATION)),
        ("options", 6, Form::Message(&OPERATION)),
        ("head", 7, Form::Message(&OPERATION)),
        ("patch", 8, Form::Message(&OPERATION)),
        ("parameters", 9, PARAMETERS),
    ],
    extensions: 10,
};

static OPERATION: Message = Message {
    name: "Operation",
    fields: &[
        ("tags", 1, TEXTS),
        ("summary", 2, Text),
        ("description", 3, Text),
        ("externalDocs", 4, Form::Message(&EXTERNAL_DOCS)),
        ("operationId", 5, Text),
        ("produces", 6, TEXTS),
        ("consumes", 7, TEXTS),
        ("parameters", 8, PARAMETERS),
        (
            "responses",
            9,
            Named(
                &OneOf(response_or_reference),
                Numbers {
                    named: 1,
                    extensions: 2,
                },
            ),
        ),
        ("schemes", 10, TEXTS),
        ("deprecated", 11, Bool),
        ("security", 12, REQUIREMENTS),
    ],
    extensions: 13,
};

static REFERENCE: Message = Message {
    name: "JsonReference",
    fields: &[("$ref", 1, Text), ("description", 2, Text)],
    extensions: 0,
};

static RESPONSE: Message = Message {
    name: "Response",
    fields: &[
        ("description", 1, Text),
        ("schema", 2, OneOf(response_schema)),
        ("examples", 4, Named(&Any, PLAIN)),
    ],
    extensions: 5,
};

static BODY_PARAMETER: Message = Message {
    name: "BodyParameter",
    fields: &[
        ("description", 1, Text),
        ("name", 2, Text),
        ("in", 3, Text),
        ("required", 4, Bool),
        ("schema", 5, Form::Message(&SCHEMA)),
    ],
    extensions: 6,
};

static QUERY_PARAMETER: Message = Message {
    name: "QueryParameterSubSchema",
    fields: &[
        ("required", 1, Bool),
        ("in", 2, Text),
        ("description", 3, Text),
        ("name", 4, Text),
        ("allowEmptyValue", 5, Bool),
        ("type", 6, Text),
        ("format", 7, Text),
        ("items", 8, Form::Message(&PRIMITIVES_ITEMS)),
        ("collectionFormat", 9, Text),
        ("default", 10, Any),
        ("maximum", 11, Double),
        ("minimum", 13, Double),
        ("pattern", 17, Text),
        ("uniqueItems", 20, Bool),
        ("enum", 21, ANYTHINGS),
    ],
    extensions: 23,
};

/// Also for headers, whose message has the same numbers.
static PATH_PARAMETER: Message = Message {
    name: "PathParameterSubSchema",
    fields: &[
        ("required", 1, Bool),
        ("in", 2, Text),
        ("description", 3, Text),
        ("name", 4, Text),
        ("type", 5, Text),
        ("format", 6, Text),
        ("items", 7, Form::Message(&PRIMITIVES_ITEMS)),
        ("collectionFormat", 8, Text),
        ("default", 9, Any),
        ("maximum", 10, Double),
        ("minimum", 12, Double),
        ("pattern", 16, Text),
        ("uniqueItems", 19, Bool),
        ("enum", 20, ANYTHINGS),
    ],
    extensions: 22,
};

static PRIMITIVES_ITEMS: Message = Message {
    name: "PrimitivesItems",
    fields: &[
        ("type", 1, Text),
        ("format", 2, Text),
        ("items", 3, Form::Message(&PRIMITIVES_ITEMS)),
        ("collectionFormat", 4, Text),
        ("default", 5, Any),
        ("pattern", 12, Text),
        ("uniqueItems", 15, Bool),
        ("enum", 16, ANYTHINGS),
    ],
    extensions: 18,
};

static API_KEY: Message = Message {
    name: "ApiKeySecurity",
    fields: &[
        ("type", 1, Text),
        ("name", 2, Text),
        ("in", 3, Text),
        ("description", 4, Text),
    ],
    extensions: 5,
};

static SCHEMA: Message = Message {
    name: "Schema",
    fields: &[
        ("$ref", 1, Text),
        ("format", 2, Text),
        ("title", 3, Text),
        ("description", 4, Text),
        ("default", 5, Any),
        ("multipleOf", 6, Double),
        ("maximum", 7, Double),
        ("exclusiveMaximum", 8, Bool),
        ("minimum", 9, Double),
        ("exclusiveMinimum", 10, Bool),
        ("maxLength", 11, Integer),
        ("minLength", 12, Integer),
        ("pattern", 13, Text),
        ("maxItems", 14, Integer),
        ("minItems", 15, Integer),
        ("uniqueItems", 16, Bool),
        ("maxProperties", 17, Integer),
        ("minProperties", 18, Integer),
        ("required", 19, TEXTS),
        ("enum", 20, ANYTHINGS),
        ("additionalProperties", 21, OneOf(additional_properties)),
        ("type", 22, OneOrMany(&Text)),
        ("items", 23, OneOrMany(&SCHEMA_FORM)),
        ("allOf", 24, Repeated(&SCHEMA_FORM)),
        ("properties", 25, Named(&SCHEMA_FORM, PLAIN)),
        ("discriminator", 26, Text),
        ("readOnly", 27, Bool),
        ("externalDocs", 29, Form::Message(&EXTERNAL_DOCS)),
        ("example", 30, Any),
    ],
    extensions: 31,
};

fn is_reference(value: &Value) -> bool {
    value.get("$ref").is_some()
}

fn parameter_or_reference(value: &Value) -> Option<Choice> {
    Some(match is_reference(value) {
        true => (2, Form::Message(&REFERENCE)),
        false => (1, OneOf(parameter)),
    })
}

fn parameter(value: &Value) -> Option<Choice> {
    Some(match value.get("in")?.as_str()? {
        "body" => (1, Form::Message(&BODY_PARAMETER)),
        _ => (2, OneOf(parameter_outside_the_body)),
    })
}

fn parameter_outside_the_body(value: &Value) -> Option<Choice> {
    match value.get("in")?.as_str()? {
        "header" => Some((1, Form::Message(&PATH_PARAMETER))),
        "query" => Some((3, Form::Message(&QUERY_PARAMETER))),
        "path" => Some((4, Form::Message(&PATH_PARAMETER))),
        _ => None,
    }
}

fn response_or_reference(value: &Value) -> Option<Choice> {
    Some(match is_reference(value) {
        true => (2, Form::Message(&REFERENCE)),
        false => (1, Form::Message(&RESPONSE)),
    })
}

fn response_schema(_: &Value) -> Option<Choice> {
    Some((1, Form::Message(&SCHEMA)))
}

fn security(value: &Value) -> Option<Choice> {
    (value.get("type")? == "apiKey").then_some((2, Form::Message(&API_KEY)))
}

fn additional_properties(value: &Value) -> Option<Choice> {
    Some(match value {
        Value::Bool(_) => (2, Bool),
        _ => (1, Form::Message(&SCHEMA)),
    })
}

/// Encodes a swagger 2.0 document.
pub(super) fn encode(document: &Value) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    let mut at = Vec::new();
    message(&DOCUMENT, document, &mut at, &mut out)?;
    Ok(out)
}

/// Where in the document the encoder is, for errors.
type At<'a> = Vec<&'a str>;

fn unexpected(expected: &'static str, found: &Value, at: &At<'_>) -> Error {
    let mut found = found.to_string();
    if let Some((end, _)) = found.char_indices().nth(60) {
        found.truncate(end);
    }
    Error::Unexpected {
        at: at.join("."),
        expected,
        found,
    }
}

fn members<'a>(value: &'a Value, at: &At<'_>) -> Result<&'a Map<String, Value>, Error> {
    value
        .as_object()
        .ok_or_else(|| unexpected("an object", value, at))
}

fn is_extension(name: &str) -> bool {
    name.starts_with("x-")
}

fn message<'a>(of: &Message, value: &'a Value, at: &mut At<'a>, out: &mut Vec<u8>) -> Result<(), Error> {
    let members = members(value, at)?;
    // In the order of numbers, as every encoder does it; extensions have the last.
    for (name, number, form) in of.fields {
        if let Some(value) = members.get(*name) {
            at.push(name);
            field(*number, form, value, at, out)?;
            at.pop();
        }
    }
    for (name, value) in members {
        at.push(name);
        if is_extension(name) && of.extensions != 0 {
            named(of.extensions, name, &Any, value, at, out)?;
        } else if !of.fields.iter().any(|(known, ..)| known == name) {
            return Err(Error::UnknownMember {
                at: at.join("."),
                message: of.name,
            });
        }
        at.pop();
    }
    Ok(())
}

/// A member: the zero value of its type is not written, as in all of proto3.
fn field<'a>(
    number: u32,
    form: &Form,
    value: &'a Value,
    at: &mut At<'a>,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    if let Repeated(of) = form {
        let list = value.as_array().ok_or_else(|| unexpected("a list", value, at))?;
        return list
            .iter()
            .try_for_each(|item| present(number, of, item, at, out));
    }
    let zero = match form {
        Text => value == "",
        Bool => value == &Value::Bool(false),
        Integer | Double => value.as_f64() == Some(0.0),
        _ => false,
    };
    match zero {
        true => Ok(()),
        false => present(number, form, value, at, out),
    }
}

/// One value with its tag, zero or not.
fn present<'a>(
    number: u32,
    form: &Form,
    value: &'a Value,
    at: &mut At<'a>,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    match form {
        Text => {
            let text = value.as_str().ok_or_else(|| unexpected("a text", value, at))?;
            delimited(number, text.as_bytes(), out);
        }
        Bool => {
            let value = value
                .as_bool()
                .ok_or_else(|| unexpected("true or false", value, at))?;
            tag(number, VARINT, out);
            varint(value.into(), out);
        }
        Integer => {
            let value = value
                .as_i64()
                .ok_or_else(|| unexpected("an integer", value, at))?;
            tag(number, VARINT, out);
            varint(value.cast_unsigned(), out);
        }
        Double => {
            let value = value.as_f64().ok_or_else(|| unexpected("a number", value, at))?;
            tag(number, FIXED64, out);
            out.extend(value.to_le_bytes());
        }
        _ => {
            let mut inner = Vec::new();
            content(form, value, at, &mut inner)?;
            delimited(number, &inner, out);
        }
    }
    Ok(())
}

/// The inside of a value that is a message.
fn content<'a>(form: &Form, value: &'a Value, at: &mut At<'a>, out: &mut Vec<u8>) -> Result<(), Error> {
    match form {
        Form::Message(of) => message(of, value, at, out),
        Any => {
            let mut yaml = value.to_string();
            yaml.push('\n');
            delimited(2, yaml.as_bytes(), out);
            Ok(())
        }
        Named(form, numbers) => {
            for (name, value) in members(value, at)? {
                at.push(name);
                match numbers.extensions {
                    extensions if extensions != 0 && is_extension(name) => {
                        named(extensions, name, &Any, value, at, out)?;
                    }
                    _ => named(numbers.named, name, form, value, at, out)?,
                }
                at.pop();
            }
            Ok(())
        }
        OneOrMany(of) => match value {
            Value::Array(list) => list.iter().try_for_each(|item| present(1, of, item, at, out)),
            value => present(1, of, value, at, out),
        },
        OneOf(choose) => {
            let (number, form) = choose(value)
                .ok_or_else(|| unexpected("a kind of parameter or security that is known", value, at))?;
            present(number, &form, value, at, out)
        }
        // Scalars and lists are not messages; their fields are handled elsewhere.
        Text | Bool | Integer | Double | Repeated(_) => Err(unexpected("a message", value, at)),
    }
}

/// A name and its value, as one message.
fn named<'a>(
    number: u32,
    name: &str,
    form: &Form,
    value: &'a Value,
    at: &mut At<'a>,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let mut inner = Vec::new();
    delimited(1, name.as_bytes(), &mut inner);
    present(2, form, value, at, &mut inner)?;
    delimited(number, &inner, out);
    Ok(())
}

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;

fn tag(number: u32, wire: u32, out: &mut Vec<u8>) {
    varint((number << 3 | wire).into(), out);
}

fn delimited(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    tag(number, LENGTH, out);
    varint(bytes.len() as u64, out);
    out.extend(bytes);
}

/// Seven bits a byte, the lowest first; the high bit says that more follow.
fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests;
