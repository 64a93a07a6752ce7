//! The types that can be reached from a kind, for strategic merge patch and server-side apply.

use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::ConfigMap;
use knarr_apimachinery::schema::Scalar;
use knarr_apimachinery::schema::rules::{self, Rule};
use schemars::SchemaGenerator;
use serde_json::Value as Json;

/// The type of a field's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// An object of this type.
    Struct(String),
    /// A list; of objects of this type, if any.
    List(Option<String>),
    /// An object with keys of the user's choice; its values objects of this type, if any.
    Map(Option<String>),
    Scalar,
}

#[derive(Clone, Debug)]
pub struct Field {
    pub value: Value,
    pub rule: Option<&'static Rule>,
    /// The scalar type of the field's value, its items or its values, if they are scalars.
    pub scalar: Option<Scalar>,
    /// The index of the type that `value` names.
    of: Option<usize>,
}

/// A type's fields by name.
#[derive(Clone, Debug, Default)]
pub struct Type {
    name: String,
    fields: HashMap<String, Field>,
    /// Whether its values are atomic.
    pub is_atomic: bool,
    /// The scalar type of its values, if they are scalars.
    pub scalar: Option<Scalar>,
}

impl Type {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.get(name)
    }

    pub fn fields(&self) -> impl Iterator<Item = (&String, &Field)> {
        self.fields.iter()
    }

    /// Whether it has no fields of its own: formatted text (times, quantities), or any value.
    pub fn is_opaque(&self) -> bool {
        self.fields.is_empty()
    }
}

/// A kind's type and all types below it.
#[derive(Debug)]
pub struct Shape {
    root: String,
    types: Vec<Type>,
    names: HashMap<String, usize>,
    /// An empty object, made when it is first needed: see [`crate::managed_fields::blank`].
    pub(crate) blank: OnceLock<Json>,
}

impl Shape {
    /// The shape of the scale subresource.
    pub fn of_scale() -> &'static Shape {
        static SCALE: LazyLock<Shape> =
            LazyLock::new(|| Shape::build(knarr_apimachinery::schema::define::<Scale>));
        &SCALE
    }

    /// The shape of ConfigMaps: metadata is of the same type in every kind.
    pub(crate) fn of_config_map() -> &'static Shape {
        static CONFIG_MAP: LazyLock<Shape> =
            LazyLock::new(|| Shape::build(knarr_apimachinery::schema::define::<ConfigMap>));
        &CONFIG_MAP
    }

    /// The shape of the type that `define` adds to a generator's definitions.
    pub(crate) fn build(define: impl FnOnce(&mut SchemaGenerator) -> schemars::Schema) -> Shape {
        let mut generator = knarr_apimachinery::schema::generator("/$defs");
        let root = define(&mut generator).to_value();
        let definitions = generator.take_definitions(false);
        let all = definitions.iter();
        let mut types: Vec<Type> = all.map(|(name, schema)| type_of(name, schema)).collect();
        let names: HashMap<String, usize> = (0..).zip(&types).map(|(at, t)| (t.name.clone(), at)).collect();
        for field in types.iter_mut().flat_map(|t| t.fields.values_mut()) {
            field.of = match &field.value {
                Value::Struct(of) | Value::List(Some(of)) | Value::Map(Some(of)) => names.get(of).copied(),
                Value::List(None) | Value::Map(None) | Value::Scalar => None,
            };
        }
        Shape {
            blank: OnceLock::new(),
            root: knarr_apimachinery::schema::referred(&root)
                .unwrap_or_default()
                .to_string(),
            types,
            names,
        }
    }

    /// The name of the kind's own type.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// All types, in no order.
    pub fn types(&self) -> impl Iterator<Item = &Type> {
        self.types.iter()
    }

    pub fn type_named(&self, name: &str) -> Option<&Type> {
        self.types.get(*self.names.get(name)?)
    }

    /// The type that the field's value, its items or its values are of.
    pub fn type_of(&self, field: &Field) -> Option<&Type> {
        self.types.get(field.of?)
    }
}

fn type_of(name: &str, schema: &Json) -> Type {
    let properties = schema.get("properties").and_then(Json::as_object);
    let fields = properties.into_iter().flatten().map(|(field, schema)| {
        let known = Field {
            value: value_of(schema),
            rule: rules::of_field(name, field),
            scalar: scalar_of(schema),
            of: None,
        };
        (field.clone(), known)
    });
    Type {
        fields: fields.collect(),
        is_atomic: rules::is_atomic(name),
        scalar: Scalar::of_schema(schema),
        name: name.to_string(),
    }
}

fn value_of(schema: &Json) -> Value {
    if let Some(name) = knarr_apimachinery::schema::referred(schema) {
        return Value::Struct(name.to_string());
    }
    match schema.get("type").and_then(Json::as_str) {
        Some("array") => Value::List(
            schema
                .get("items")
                .and_then(knarr_apimachinery::schema::referred)
                .map(str::to_string),
        ),
        Some("object") => {
            let values = schema
                .get("additionalProperties")
                .and_then(knarr_apimachinery::schema::referred);
            Value::Map(values.map(str::to_string))
        }
        _ => Value::Scalar,
    }
}

/// Of a field's value, its items or its values.
fn scalar_of(schema: &Json) -> Option<Scalar> {
    Scalar::of_schema(match schema.get("type").and_then(Json::as_str) {
        Some("array") => schema.get("items")?,
        Some("object") => schema.get("additionalProperties")?,
        _ => schema,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use knarr_apimachinery::descriptors;

    use super::*;
    use crate::registry;
    use crate::shapes::shape_of;

    #[test]
    fn a_pods_containers_are_a_list_merged_by_name() {
        let shape = shape_of(&registry::POD).expect("pods");
        let spec = shape.type_named("io.k8s.api.core.v1.PodSpec").expect("a spec");
        let containers = spec.field("containers").expect("containers");
        assert_eq!(
            containers.value,
            Value::List(Some("io.k8s.api.core.v1.Container".into()))
        );
        assert_eq!(containers.rule.map(|r| r.merge_key), Some("name"));
        assert_eq!(
            spec.field("nodeSelector").map(|f| &f.value),
            Some(&Value::Map(None))
        );
    }

    /// What a kind's own JSON schema has, its descriptors have.
    #[test]
    fn every_registered_kind_is_described_with_all_its_fields() {
        let mut seen = HashSet::new();
        for kind in registry::ALL {
            let of = descriptors::of_kind(&kind.api_version(), kind.kind());
            let shape = shape_of(kind).expect("a registered kind");
            assert_eq!(
                of.map(descriptors::TypeDescriptor::published_name).as_deref(),
                Some(shape.root())
            );
            for type_ in shape.types().filter(|t| !t.is_opaque()) {
                let of = descriptors::published(type_.name())
                    .unwrap_or_else(|| panic!("{} is not described", type_.name()));
                for (name, _) in type_.fields() {
                    assert!(of.field(name).is_some(), "{}.{name}", type_.name());
                    seen.insert((of.published_name(), name.clone()));
                }
            }
        }
        assert!(seen.len() > 1_500, "only {} fields seen", seen.len());
    }

    #[test]
    fn every_registered_kind_has_its_message() {
        for kind in registry::ALL {
            let of = descriptors::of_kind(&kind.api_version(), kind.kind());
            assert!(of.is_some_and(|of| of.is_message), "{kind:?}");
        }
    }
}
