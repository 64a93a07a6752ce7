//! The protobuf message of each kind: its [descriptor](crate::descriptors), as protobuf has it.

use crate::descriptors::{self, Definition, FieldDescriptor, Form, Go, TypeDescriptor};

/// A message's form in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Object,
    /// Its field `items` alone.
    List,
    /// One of its fields.
    Either,
}

#[derive(Clone, Copy, Debug)]
pub struct Message(&'static TypeDescriptor);

impl Message {
    /// `core/v1.Pod`.
    pub fn name(self) -> String {
        format!("{}.{}", self.0.package, self.0.name)
    }

    pub fn shape(self) -> Shape {
        match self.0.definition {
            Definition::Alias(_) => Shape::List,
            _ if self.0.is_either => Shape::Either,
            _ => Shape::Object,
        }
    }

    pub fn field(self, number: u32) -> Option<Field> {
        if let Definition::Alias(of) = &self.0.definition {
            return Field::new("items", of, false).filter(|_| number == ITEMS);
        }
        let field = self.0.declared.iter().find(|f| f.number == Some(number))?;
        Field::new(field.name, &field.of, FieldDescriptor::is_inline(field))
    }
}

/// The number of the one field of a list that is a message of its own.
const ITEMS: u32 = 1;

#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: &'static str,
    /// Its fields are inlined into the JSON of the enclosing message.
    pub inline: bool,
    /// Present even if zero.
    pub pointer: bool,
    pub repeated: bool,
    pub map: bool,
    pub of: Type,
}

impl Field {
    fn new(name: &'static str, of: &Go, inline: bool) -> Option<Field> {
        let mut field = Field {
            name,
            inline,
            pointer: of.is_pointer(),
            repeated: false,
            map: false,
            of: Type::Json,
        };
        field.of = field.wire_type(of)?;
        Some(field)
    }

    fn wire_type(&mut self, of: &Go) -> Option<Type> {
        Some(match of {
            Go::String => Type::Text,
            Go::Bool => Type::Bool,
            Go::Integer(name) if name.starts_with('u') => Type::Unsigned,
            Go::Integer(_) => Type::Signed,
            Go::Float => Type::Double,
            Go::Bytes => Type::Bytes,
            Go::Pointer(of) => self.wire_type(of)?,
            Go::List(of) => {
                self.repeated = true;
                self.wire_type(of)?
            }
            Go::Map(of) => {
                self.map = true;
                self.wire_type(of)?
            }
            Go::Other(_) => return None,
            Go::Named(_) => {
                let of = of.named()?;
                match &of.definition {
                    Definition::Form(form) => Type::of_form(*form),
                    _ if of.is_message => Type::Message(Message(of)),
                    Definition::Alias(of) => self.wire_type(of)?,
                    Definition::Struct => return None,
                }
            }
        })
    }
}

#[derive(Clone, Copy, Debug)]
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
    Message(Message),
}

impl Type {
    fn of_form(form: Form) -> Type {
        match form {
            Form::Time => Type::Time,
            Form::MicroTime => Type::MicroTime,
            Form::Duration => Type::Duration,
            Form::Quantity => Type::Quantity,
            Form::IntOrString => Type::IntOrString,
            Form::Json => Type::Json,
        }
    }

    pub fn is_number(&self) -> bool {
        matches!(self, Type::Signed | Type::Unsigned)
    }
}

/// The message of this apiVersion and kind.
pub fn of_kind(api_version: &str, kind: &str) -> Option<Message> {
    descriptors::of_kind(api_version, kind)
        .filter(|of| of.is_message)
        .map(Message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_with_a_number_has_a_wire_type() {
        let mut count = 0;
        for of in descriptors::all() {
            for field in of.declared.iter().filter(|f| f.number.is_some()) {
                let found = Message(of).field(field.number.unwrap());
                assert!(found.is_some(), "{}.{}.{}", of.package, of.name, field.name);
                count += 1;
            }
        }
        assert!(count > 2_000, "only {count} fields");
    }
}
