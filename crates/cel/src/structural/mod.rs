//! The schema of one version of a custom kind: OpenAPI v3 with Kubernetes' extensions, read once into a form in which
//! objects can be pruned, defaulted and validated. The schema itself is validated with its definition.

pub mod declared;
mod rule;

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;

pub use rule::Rule;

/// The value of `additionalProperties`.
#[derive(Clone, Debug)]
pub enum Additional {
    Allowed(bool),
    Schema(Box<Schema>),
}

/// A regular expression as it was written, and compiled where it can be.
#[derive(Clone, Debug)]
pub struct Pattern {
    pub text: String,
    /// `None` where it does not compile; such a pattern is rejected with its definition.
    pub regex: Option<Regex>,
}

/// One node. Absent limits are `None`.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    /// Empty where no type is given.
    pub of: String,
    pub nullable: bool,
    pub format: String,
    pub default: Option<Value>,
    pub enumeration: Vec<Value>,
    pub minimum: Option<f64>,
    pub exclusive_minimum: bool,
    pub maximum: Option<f64>,
    pub exclusive_maximum: bool,
    pub multiple_of: Option<f64>,
    /// In characters.
    pub min_length: Option<usize>,
    pub max_length: Option<usize>,
    pub pattern: Option<Pattern>,
    pub min_items: Option<usize>,
    pub max_items: Option<usize>,
    pub unique_items: bool,
    pub min_properties: Option<usize>,
    pub max_properties: Option<usize>,
    pub required: Vec<String>,
    pub properties: BTreeMap<String, Schema>,
    pub additional: Option<Additional>,
    pub items: Option<Box<Schema>>,
    pub all_of: Vec<Schema>,
    pub any_of: Vec<Schema>,
    pub one_of: Vec<Schema>,
    pub not: Option<Box<Schema>>,
    /// `x-kubernetes-preserve-unknown-fields`
    pub preserve_unknown: bool,
    /// `x-kubernetes-embedded-resource`
    pub embedded: bool,
    /// `x-kubernetes-int-or-string`
    pub int_or_string: bool,
    /// `x-kubernetes-list-type`: `atomic`, `set`, `map` or empty.
    pub list_type: String,
    pub list_map_keys: Vec<String>,
    /// `x-kubernetes-map-type`: `granular`, `atomic` or empty.
    pub map_type: String,
    /// `x-kubernetes-validations`
    pub rules: Vec<Rule>,
}

impl Schema {
    /// Reads a JSONSchemaProps as it is encoded. Unknown fields are ignored: the definition was validated before.
    pub fn read(json: &Value) -> Schema {
        let text = |name: &str| {
            json.get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_string()
        };
        let flag = |name: &str| json.get(name).and_then(Value::as_bool).unwrap_or_default();
        let number = |name: &str| json.get(name).and_then(Value::as_f64);
        let count = |name: &str| {
            let value = json.get(name)?;
            usize::try_from(value.as_i64()?).ok()
        };
        let texts = |name: &str| -> Vec<String> {
            let list = json.get(name).and_then(Value::as_array);
            let list = list.into_iter().flatten();
            list.filter_map(|v| v.as_str().map(str::to_string)).collect()
        };
        let schemas = |name: &str| -> Vec<Schema> {
            let list = json.get(name).and_then(Value::as_array);
            list.into_iter().flatten().map(Schema::read).collect()
        };
        let schema = |name: &str| {
            let found = json.get(name).filter(|v| v.is_object());
            found.map(|v| Box::new(Schema::read(v)))
        };
        let properties = json.get("properties").and_then(Value::as_object);
        let rules = json.get("x-kubernetes-validations").and_then(Value::as_array);
        Schema {
            of: text("type"),
            nullable: flag("nullable"),
            format: text("format"),
            default: json.get("default").filter(|v| !v.is_null()).cloned(),
            enumeration: json
                .get("enum")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default(),
            minimum: number("minimum"),
            exclusive_minimum: flag("exclusiveMinimum"),
            maximum: number("maximum"),
            exclusive_maximum: flag("exclusiveMaximum"),
            multiple_of: number("multipleOf"),
            min_length: count("minLength"),
            max_length: count("maxLength"),
            pattern: Some(text("pattern"))
                .filter(|p| !p.is_empty())
                .map(|text| Pattern {
                    regex: Regex::new(&text).ok(),
                    text,
                }),
            min_items: count("minItems"),
            max_items: count("maxItems"),
            unique_items: flag("uniqueItems"),
            min_properties: count("minProperties"),
            max_properties: count("maxProperties"),
            required: texts("required"),
            properties: properties
                .into_iter()
                .flatten()
                .map(|(name, schema)| (name.clone(), Schema::read(schema)))
                .collect(),
            additional: match json.get("additionalProperties") {
                Some(Value::Bool(allowed)) => Some(Additional::Allowed(*allowed)),
                Some(schema @ Value::Object(_)) => Some(Additional::Schema(Box::new(Schema::read(schema)))),
                _ => None,
            },
            items: schema("items"),
            all_of: schemas("allOf"),
            any_of: schemas("anyOf"),
            one_of: schemas("oneOf"),
            not: schema("not"),
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            list_type: text("x-kubernetes-list-type"),
            list_map_keys: texts("x-kubernetes-list-map-keys"),
            map_type: text("x-kubernetes-map-type"),
            rules: rules.into_iter().flatten().map(Rule::read).collect(),
        }
    }

    /// The schema of an object's field; `None` where it is not specified.
    pub fn field(&self, name: &str) -> Option<&Schema> {
        self.properties.get(name).or(match &self.additional {
            Some(Additional::Schema(schema)) => Some(&**schema),
            _ => None,
        })
    }

    /// The types that a value may have; empty: any.
    pub fn types(&self) -> Vec<&str> {
        match self.of.as_str() {
            _ if self.int_or_string => vec!["integer", "string"],
            "" => Vec::new(),
            one => vec![one],
        }
    }
}
