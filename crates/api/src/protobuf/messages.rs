//! Which message a kind is, and its fields by number.
//!
//! The numbers are Kubernetes' own (its published `.proto` interfaces at v1.36), one message a line in
//! `messages.txt`: the name, `@list` or `@or` where its JSON is not an object, then `number[^]name=[?*%]type`.
//! `^`: its fields stand in the JSON of the message around it. `?`: present even if zero. `*`: repeated. `%`: a map.
//! Types: s text, b bytes, i and u integers, o bool, d double, T time, U microtime, D duration, Q quantity,
//! I int-or-string, J raw JSON, m and the name of a message.

use std::collections::HashMap;
use std::sync::LazyLock;

/// A message's form in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Object,
    /// Its field `items` alone.
    List,
    /// One of its fields.
    Either,
}

#[derive(Debug)]
pub struct Message {
    pub name: &'static str,
    pub shape: Shape,
    fields: Vec<Field>,
}

impl Message {
    pub fn field(&self, number: u32) -> Option<&Field> {
        self.fields.iter().find(|f| f.number == number)
    }
}

#[derive(Debug)]
pub struct Field {
    pub number: u32,
    pub name: &'static str,
    pub inline: bool,
    pub pointer: bool,
    pub repeated: bool,
    pub map: bool,
    pub of: Type,
}

#[derive(Debug)]
pub enum Type {
    Text,
    Bytes,
    Signed,
    Unsigned,
    Bool,
    Double,
    Time,
    MicroTime,
    Duration,
    Quantity,
    IntOrString,
    Json,
    Message(&'static str),
}

impl Type {
    pub fn is_number(&self) -> bool {
        matches!(self, Type::Signed | Type::Unsigned)
    }
}

/// Made at the first protobuf body; most processes see none.
static MESSAGES: LazyLock<HashMap<&'static str, Message>> = LazyLock::new(|| {
    include_str!("messages.txt")
        .lines()
        .filter_map(message)
        .map(|m| (m.name, m))
        .collect()
});

fn message(line: &'static str) -> Option<Message> {
    let mut words = line.split(' ').peekable();
    let name = words.next()?;
    let shape = match words.peek() {
        Some(&"@list") => Shape::List,
        Some(&"@or") => Shape::Either,
        _ => Shape::Object,
    };
    let fields = words.filter(|w| !w.starts_with('@')).filter_map(field).collect();
    Some(Message { name, shape, fields })
}

fn field(word: &'static str) -> Option<Field> {
    let digits = word.find(|c: char| !c.is_ascii_digit())?;
    let (number, rest) = word.split_at(digits);
    let inline = rest.starts_with('^');
    let (name, of) = rest.trim_start_matches('^').split_once('=')?;
    let plain = of.trim_start_matches(['?', '*', '%']);
    let of_type = match plain.split_at_checked(1)? {
        ("s", _) => Type::Text,
        ("b", _) => Type::Bytes,
        ("i", _) => Type::Signed,
        ("u", _) => Type::Unsigned,
        ("o", _) => Type::Bool,
        ("d", _) => Type::Double,
        ("T", _) => Type::Time,
        ("U", _) => Type::MicroTime,
        ("D", _) => Type::Duration,
        ("Q", _) => Type::Quantity,
        ("I", _) => Type::IntOrString,
        ("J", _) => Type::Json,
        ("m", message) => Type::Message(message),
        _ => return None,
    };
    Some(Field {
        number: number.parse().ok()?,
        name,
        inline,
        pointer: of.starts_with('?'),
        repeated: of.starts_with('*'),
        map: of.starts_with('%'),
        of: of_type,
    })
}

pub fn named(name: &str) -> Option<&'static Message> {
    MESSAGES.get(name)
}

/// The message of this apiVersion and kind. DeleteOptions come in every group's version.
pub fn of_kind(api_version: &str, kind: &str) -> Option<&'static Message> {
    if kind == "DeleteOptions" {
        return named("meta/v1.DeleteOptions");
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
    // `rbac.authorization.k8s.io` lives in the package `rbac`, `apps` in `apps`; the one exception is flow control's.
    let package = group.split('.').next()?;
    named(&format!("{package}/{version}.{kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read_whole_and_every_message_named_is_there() {
        for line in include_str!("messages.txt").lines() {
            let message = message(line).unwrap();
            let written = line.split(' ').skip(1).filter(|w| !w.starts_with('@')).count();
            assert_eq!(message.fields.len(), written, "{line}");
            for field in &message.fields {
                if let Type::Message(name) = field.of {
                    assert!(named(name).is_some(), "{line}: {name}");
                }
            }
        }
    }

    #[test]
    fn every_registered_kind_has_its_message() {
        for kind in crate::registry::ALL {
            assert!(of_kind(&kind.api_version(), kind.kind()).is_some(), "{kind:?}");
        }
    }
}
