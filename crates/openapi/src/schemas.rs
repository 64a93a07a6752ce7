//! The schemas of a document: `k8s-openapi`'s, in the form and with the extensions Kubernetes publishes.

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::Binding;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ListMeta, Status};
use knarr_api::kind::{Kind, Subresource};
use knarr_api::registry;
use knarr_apimachinery::descriptors;
use knarr_apimachinery::schema::rules::{self, List};
use knarr_apimachinery::schema::{self, rules::Rule, values};
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::Version;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
/// Any JSON value.
const ANYTHING: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";

/// Group, version and kind.
pub(super) type Gvk<'a> = (&'a str, &'a str, &'a str);

/// Collects the schemas a document refers to. All methods give the name of the type they add.
pub(super) struct Schemas {
    version: Version,
    generator: SchemaGenerator,
    /// Types that are not generated: lists.
    made: Map<String, Value>,
    /// The group and version of the document; both empty for those of no group version.
    group_version: (String, String),
}

impl Schemas {
    pub(super) fn new(version: Version) -> Self {
        Schemas {
            version,
            generator: schema::generator(version.definitions()),
            made: Map::new(),
            group_version: (String::new(), String::new()),
        }
    }

    /// A `$ref` to a type of the document.
    pub(super) fn reference(&self, name: &str) -> Value {
        json!({ "$ref": format!("#{}/{name}", self.version.definitions()) })
    }

    fn define<T: JsonSchema>(&mut self) -> String {
        named(&schema::define::<T>(&mut self.generator))
    }

    pub(super) fn kind(&mut self, kind: &Kind) -> String {
        self.group_version = (kind.group().to_string(), kind.version().to_string());
        named(&kind.ops.schema(&mut self.generator))
    }

    pub(super) fn list(&mut self, kind: &Kind) -> String {
        let item = self.kind(kind);
        let meta = self.define::<ListMeta>();
        let name = format!("{item}List");
        let mut metadata = self.reference(&meta);
        metadata["description"] = "What the list is as a whole: its version, and how to read on.".into();
        let mut list = json!({
            "description": format!("{0}List is a list of {0} objects.", kind.kind()),
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string", "description": "The group and version this list is written in."},
                "kind": {"type": "string", "description": "What this is a list of, with List behind it."},
                "metadata": metadata,
                "items": {"type": "array", "description": "The objects.", "items": self.reference(&item)},
            },
            "x-kubernetes-group-version-kind": [
                {"group": kind.group(), "version": kind.version(), "kind": format!("{}List", kind.kind())}
            ],
        });
        let selectable = kind.ops.selectable_fields();
        if kind.ops.custom().is_some() && !selectable.is_empty() {
            let fields = selectable.iter().map(|field| json!({"fieldPath": field}));
            list["x-kubernetes-selectable-fields"] = fields.collect();
        }
        self.made.insert(name.clone(), list);
        name
    }

    /// The type of a subresource; `None` where that is not a JSON object (streams).
    pub(super) fn subresource(&mut self, kind: &Kind, sub: &Subresource) -> Option<String> {
        match (sub.group, sub.kind(kind)) {
            ("", name) if name == kind.kind() => Some(self.kind(kind)),
            ("", "Binding") => Some(self.define::<Binding>()),
            ("autoscaling", "Scale") => Some(self.define::<Scale>()),
            ("policy", "Eviction") => Some(self.define::<Eviction>()),
            ("authentication.k8s.io", "TokenRequest") => Some(self.define::<TokenRequest>()),
            _ => None,
        }
    }

    pub(super) fn status(&mut self) -> String {
        self.define::<Status>()
    }

    pub(super) fn delete_options(&mut self) -> String {
        self.define::<DeleteOptions>()
    }

    pub(super) fn meta<T: JsonSchema>(&mut self) -> String {
        self.define::<T>()
    }

    /// The body of a PATCH, which may be anything.
    pub(super) fn patch(&mut self) -> String {
        let name = format!("{META}.Patch");
        let schema = json!({"description": "A patch, of the form its Content-Type says.", "type": "object"});
        self.made.insert(name.clone(), schema);
        name
    }

    /// All schemas by name, in the document's form.
    pub(super) fn finish(mut self) -> Map<String, Value> {
        let mut all = self.generator.take_definitions(false);
        for (name, schema) in &mut all {
            publish(name, schema, self.version);
            let mut kinds: Vec<Gvk<'_>> = gvk_of(name).into_iter().collect();
            // Each group version has its own name for the options of a delete.
            if name == DELETE_OPTIONS && !self.group_version.0.is_empty() && self.version == Version::V3 {
                kinds.push((&self.group_version.0, &self.group_version.1, "DeleteOptions"));
            }
            if !kinds.is_empty() {
                schema["x-kubernetes-group-version-kind"] = kinds
                    .into_iter()
                    .map(|(group, version, kind)| json!({"group": group, "version": version, "kind": kind}))
                    .collect();
            }
        }
        for (name, mut schema) in std::mem::take(&mut self.made) {
            publish(&name, &mut schema, self.version);
            all.insert(name, schema);
        }
        all
    }
}

fn named(reference: &schemars::Schema) -> String {
    schema::referred(reference.as_value())
        .unwrap_or_default()
        .to_string()
}

/// Kinds of requests and responses that are not in the registry: of metadata, and of subresources.
const UNREGISTERED: &[Gvk<'static>] = &[
    ("", "v1", "APIGroup"),
    ("", "v1", "APIGroupList"),
    ("", "v1", "APIResourceList"),
    ("", "v1", "APIVersions"),
    ("", "v1", "DeleteOptions"),
    ("", "v1", "Status"),
    ("authentication.k8s.io", "v1", "TokenRequest"),
    ("autoscaling", "v1", "Scale"),
    ("policy", "v1", "Eviction"),
];

/// The kind a type is, if it is one: `io.k8s.api.apps.v1.Deployment`.
fn gvk_of(name: &str) -> Option<Gvk<'static>> {
    let mut parts = name.rsplit('.');
    let (kind, version, package) = (parts.next()?, parts.next()?, parts.next()?);
    let is_it = |gvk: &Gvk<'_>| {
        let first_label = gvk.0.split('.').next().unwrap_or_default();
        let of_package = match package {
            "core" | "meta" => first_label.is_empty(),
            package => first_label == package,
        };
        gvk.2 == kind && gvk.1 == version && of_package
    };
    registry::ALL
        .iter()
        .map(|k| (k.group(), k.version(), k.kind()))
        .find(is_it)
        .or_else(|| UNREGISTERED.iter().copied().find(is_it))
}

/// Packages of Kubernetes' own types. The schemas of custom resources are published as their authors wrote them.
const PACKAGES: [&str; 4] = [
    "io.k8s.api.",
    "io.k8s.apimachinery.",
    "io.k8s.apiextensions-apiserver.",
    "io.k8s.kube-aggregator.",
];

/// Sets the required fields: the generated schemas have every field there that is not optional in Rust.
fn set_required(name: &str, schema: &mut Map<String, Value>) {
    let Some(of) = descriptors::published(name) else {
        return;
    };
    let mut required: Vec<&str> = of
        .fields()
        .iter()
        .filter(|f| f.is_required)
        .map(|f| f.name)
        .collect();
    required.sort_unstable();
    match required.is_empty() {
        true => schema.remove("required"),
        false => schema.insert("required".into(), required.into()),
    };
}

/// Gives a type the form Kubernetes publishes it in.
fn publish(name: &str, schema: &mut Value, version: Version) {
    let Some(schema) = schema.as_object_mut() else {
        return;
    };
    if !PACKAGES.iter().any(|package| name.starts_with(package)) {
        let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
        if version == Version::V3 {
            fields
                .into_iter()
                .flat_map(Map::values_mut)
                .for_each(wrap_reference);
        }
        return;
    }
    if schema.remove("x-kubernetes-int-or-string").is_some() {
        let (either, v2) = match name {
            QUANTITY => (json!([{"type": "string"}, {"type": "number"}]), None),
            _ => (
                json!([{"type": "integer"}, {"type": "string"}]),
                Some("int-or-string"),
            ),
        };
        match version {
            Version::V2 => schema.insert("type".into(), "string".into()),
            Version::V3 => schema.insert("oneOf".into(), either),
        };
        if let Some(format) = v2.filter(|_| name == INT_OR_STRING) {
            schema.insert("format".into(), format.into());
        }
    }
    set_required(name, schema);
    if name == ANYTHING {
        schema.remove("type");
    }
    // Types of several forms are published without any.
    if version == Version::V2 || !matches!(name, QUANTITY | INT_OR_STRING) {
        schema.remove("oneOf");
    }
    if rules::is_atomic(name) {
        schema.insert("x-kubernetes-map-type".into(), "atomic".into());
    }
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (field, schema) in fields.into_iter().flatten() {
        if let Some(rule) = rules::of_field(name, field) {
            extend(schema, rule);
        }
        if let Some(values) = values::of_field(name, field) {
            enumerate(schema, values);
        }
        if version == Version::V3 {
            wrap_reference(schema);
        }
    }
}

/// Adds the enum of the field, or of its items.
fn enumerate(schema: &mut Value, values: &[String]) {
    let of = ["items", "additionalProperties"]
        .into_iter()
        .find(|of| schema.get(*of).is_some());
    let of = match of {
        Some(of) => &mut schema[of],
        None => schema,
    };
    of["enum"] = values.into();
}

/// A reference has no siblings in OpenAPI 3.0, so a schema with more members wraps it.
fn wrap_reference(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else {
        return;
    };
    if fields.len() > 1
        && let Some(reference) = fields.remove("$ref")
    {
        fields.insert("allOf".into(), json!([{ "$ref": reference }]));
    }
}

/// Puts a rule's extensions into the field's schema.
fn extend(schema: &mut Value, rule: &Rule) {
    let mut set = |name: &str, value: Value| schema[format!("x-kubernetes-{name}")] = value;
    match &rule.list {
        Some(List::Atomic) => set("list-type", "atomic".into()),
        Some(List::Set) => set("list-type", "set".into()),
        Some(List::Map(keys)) => {
            set("list-type", "map".into());
            set("list-map-keys", keys.as_slice().into());
        }
        None => {}
    }
    match rule.map {
        Some(rules::Map::Atomic) => set("map-type", "atomic".into()),
        Some(rules::Map::Granular) => set("map-type", "granular".into()),
        None => {}
    }
    if !rule.patch_strategy().is_empty() {
        set("patch-strategy", rule.patch_strategy().into());
    }
    if !rule.merge_key.is_empty() {
        set("patch-merge-key", rule.merge_key.into());
    }
}
