//! The scalar types of the published API.

use serde_json::Value;

/// A scalar type, as structured-merge-diff distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// With a fraction or without: the difference is found when the object is read.
    Numeric,
    String,
    Boolean,
    /// Any scalar: quantities, times, numbers or names of ports.
    Untyped,
}

impl Scalar {
    /// The scalar type of an OpenAPI schema's type and format; `None` where it is not a scalar, or any value.
    pub fn of(type_: &str, format: &str) -> Option<Self> {
        match (type_, format) {
            ("integer" | "number", _) => Some(Scalar::Numeric),
            ("boolean", _) => Some(Scalar::Boolean),
            // Bytes are text.
            ("string", "" | "byte") => Some(Scalar::String),
            ("string", _) => Some(Scalar::Untyped),
            _ => None,
        }
    }

    pub fn of_schema(schema: &Value) -> Option<Self> {
        let flag = schema.get("x-kubernetes-int-or-string");
        if flag.and_then(Value::as_bool) == Some(true) {
            return Some(Scalar::Untyped);
        }
        let text = |key| schema.get(key).and_then(Value::as_str).unwrap_or("");
        Scalar::of(text("type"), text("format"))
    }

    /// Whether this value is of the type.
    pub fn takes(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null)
            | (Scalar::Numeric, Value::Number(_))
            | (Scalar::String, Value::String(_))
            | (Scalar::Boolean, Value::Bool(_)) => true,
            (Scalar::Untyped, value) => !value.is_object() && !value.is_array(),
            _ => false,
        }
    }
}
