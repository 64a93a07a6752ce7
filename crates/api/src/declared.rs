//! The declared types of built-in kinds for expressions.
//!
//! Quantities and values of any form have no declared type, so fields that contain them are not visible to expressions.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_cel::check::declared::{BRACKETS, Shape, entries_that_fit, items_that_fit};
use knarr_cel::check::{Declared, Type};
use knarr_cel::structural::Schema;
use knarr_cel::structural::declared::{declared as declared_by, escaped};
use schemars::SchemaGenerator;
use serde_json::{Map, Value};

use crate::kind::Kind;

const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";

/// The type of a built-in kind's objects.
pub fn declared(kind: &Kind) -> Option<Declared> {
    of(kind.kind(), |generator| kind.ops.schema(generator))
}

/// The type of the metadata of the objects of a kind.
pub fn metadata(kind: &str) -> Option<Declared> {
    of(
        &format!("{kind}.metadata"),
        knarr_apimachinery::schema::define::<ObjectMeta>,
    )
}

fn of(name: &str, define: impl FnOnce(&mut SchemaGenerator) -> schemars::Schema) -> Option<Declared> {
    let mut generator = knarr_apimachinery::schema::generator("/$defs");
    let root = define(&mut generator).to_value();
    let definitions = generator.take_definitions(false);
    let mut reader = Reader {
        definitions: &definitions,
        within: Vec::new(),
    };
    reader.read(&root, name)
}

struct Reader<'d> {
    definitions: &'d Map<String, Value>,
    /// The types that are being read: a recursive type is visible once.
    within: Vec<String>,
}

impl Reader<'_> {
    fn read(&mut self, schema: &Value, name: &str) -> Option<Declared> {
        if let Some(of) = knarr_apimachinery::schema::referred(schema) {
            if of == QUANTITY {
                return None;
            }
            if self.within.iter().any(|w| w == of) {
                return Some(Declared::object(name, []));
            }
            let definition = self.definitions.get(of)?;
            self.within.push(of.to_string());
            let found = self.read(definition, name);
            self.within.pop();
            return found;
        }
        let flag = schema.get("x-kubernetes-int-or-string");
        if flag.is_some_and(|f| *f == Value::Bool(true)) {
            return Some(Declared::simple(Type::Dyn, 1, 0));
        }
        match schema.get("type").and_then(Value::as_str)? {
            "array" => {
                let items = self.read(schema.get("items")?, &format!("{name}.@idx"))?;
                let max = items_that_fit(items.min_size);
                Some(Declared::list(items, max))
            }
            "object" => match schema.get("additionalProperties").filter(|a| a.is_object()) {
                Some(values) => {
                    let values = self.read(values, &format!("{name}.@elem"))?;
                    let max = entries_that_fit(values.min_size);
                    Some(Declared::map(values, max))
                }
                None => Some(self.object(schema, name)),
            },
            // What has no parts is the same in every schema.
            _ => declared_by(&Schema::read(schema), false, name),
        }
    }

    fn object(&mut self, schema: &Value, name: &str) -> Declared {
        let mut fields = BTreeMap::new();
        let properties = schema.get("properties").and_then(Value::as_object);
        for (field, of) in properties.into_iter().flatten() {
            let Some(shown) = escaped(field) else { continue };
            if let Some(of_field) = self.read(of, &format!("{name}.{shown}")) {
                fields.insert(shown, Arc::new(of_field));
            }
        }
        Declared {
            shape: Shape::Object {
                name: name.into(),
                fields,
            },
            max_elements: 0,
            min_size: BRACKETS,
        }
    }
}

#[cfg(test)]
mod tests {
    use knarr_cel::check::Environment;
    use knarr_cel::compile;

    use super::*;
    use crate::registry;

    #[test]
    fn expressions_see_the_fields_of_built_in_kinds() {
        for (kind, text, want) in [
            (&registry::DEPLOYMENT, "object.spec.replicas", "int"),
            (
                &registry::DEPLOYMENT,
                "object.metadata.labels",
                "map(string, string)",
            ),
            (
                &registry::DEPLOYMENT,
                "object.metadata.creationTimestamp",
                "timestamp",
            ),
            (
                &registry::DEPLOYMENT,
                "object.spec.strategy.rollingUpdate.maxSurge",
                "dyn",
            ),
            (
                &registry::POD,
                "object.spec.containers.map(c, c.image)",
                "list(string)",
            ),
            (
                &registry::POD,
                "object.spec.containers[0].resources.requests",
                "undefined field 'requests'",
            ),
            (
                &registry::POD,
                "object.spec.containers[0].imagee",
                "undefined field 'imagee'",
            ),
            (&registry::SECRET, "object.data", "map(string, bytes)"),
            (
                &registry::CUSTOM_RESOURCE_DEFINITION,
                "object.spec.versions[0].schema.openAPIV3Schema.items",
                "",
            ),
        ] {
            let declared = declared(kind).unwrap();
            let environment = Environment::default().with_declared("object", &declared);
            let found = compile(text, &environment);
            let found = found.map_or_else(|why| why.to_string(), |c| c.output().to_string());
            assert!(found.contains(want), "{text}: {found}");
        }
    }
}
