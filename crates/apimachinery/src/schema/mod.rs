//! The types of the published API: their fields and shapes, how these merge ([`rules`]),
//! and the values of enums ([`values`]).
//!
//! Shapes come from the types' own JSON schemas, so they always agree with decoding. Each is made when it is
//! first needed: starting the process costs nothing.

pub mod rules;
mod scalar;
pub mod values;

pub use scalar::Scalar;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};

/// A generator whose references begin with `root`, such as `/components/schemas`.
pub fn generator(root: &'static str) -> SchemaGenerator {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = root.into();
    settings.into_generator()
}

/// Adds the schema of `T`, and of all it refers to, to the generator's definitions.
pub fn define<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// The type a `$ref` (`#/…/io.k8s.api.core.v1.Pod`) names.
pub fn referred(schema: &serde_json::Value) -> Option<&str> {
    schema.get("$ref")?.as_str()?.rsplit('/').next()
}
