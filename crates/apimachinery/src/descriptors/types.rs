//! The descriptors of a type and of a field.

use std::sync::OnceLock;

use serde_json::Value;

use super::TABLE;
use crate::schema::rules::Rule;

/// How deep structs are embedded in each other; deeper ones are left out.
const EMBEDDED_MAX: usize = 4;

/// Fields whose zero value does not mean the same as nothing, although Go omits it: an empty list resets an object's managers.
const ZERO_IS_KEPT: &[(&str, &str, &str)] = &[("meta/v1", "ObjectMeta", "managedFields")];

/// Required times that k8s-openapi has as options all the same, because Kubernetes itself writes null.
const OPTIONAL_IN_RUST: &[(&str, &str, &str)] = &[("events/v1", "Event", "eventTime")];

/// Fields that Go always writes, but whose zero value is the same as nothing: defaults replace it, or it is not stored.
const ZERO_IS_UNSET: &[(&str, &str, &str)] = &[
    ("apps/v1", "StatefulSetSpec", "serviceName"),
    ("batch/v1", "PodFailurePolicyOnPodConditionsPattern", "status"),
    ("flowcontrol/v1", "FlowSchemaSpec", "matchingPrecedence"),
    ("flowcontrol/v1", "QueuingConfiguration", "handSize"),
    ("flowcontrol/v1", "QueuingConfiguration", "queueLengthLimit"),
    ("flowcontrol/v1", "QueuingConfiguration", "queues"),
    ("rbac/v1", "RoleRef", "apiGroup"),
];

/// A Go type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Go {
    String,
    Bool,
    /// `int32` and the like.
    Integer(&'static str),
    Float,
    /// `[]byte`, which is text in JSON.
    Bytes,
    Pointer(Box<Go>),
    List(Box<Go>),
    /// Its keys are strings.
    Map(Box<Go>),
    /// The index of a type.
    Named(usize),
    /// No type of the API.
    Other(&'static str),
}

impl Go {
    /// The type behind pointers.
    pub fn pointed(&self) -> &Go {
        match self {
            Go::Pointer(of) => of.pointed(),
            other => other,
        }
    }

    /// The type behind pointers and names, as far as it is no struct or form.
    pub fn underlying(&self) -> &Go {
        match self.pointed() {
            Go::Named(at) => match &TABLE.types[*at].definition {
                Definition::Alias(of) => of.underlying(),
                Definition::Struct | Definition::Form(_) => self.pointed(),
            },
            other => other,
        }
    }

    /// The type of items and values, or the type itself.
    pub fn element(&self) -> &Go {
        match self.underlying() {
            Go::List(of) | Go::Map(of) => of.element(),
            other => other,
        }
    }

    /// The enum that it is, or that its items or values are of.
    pub fn enumeration(&self) -> Option<&'static TypeDescriptor> {
        match self.pointed() {
            Go::List(of) | Go::Map(of) => of.enumeration(),
            Go::Named(at) => match &TABLE.types[*at] {
                of if !of.values.is_empty() => Some(of),
                TypeDescriptor {
                    definition: Definition::Alias(of),
                    ..
                } => of.enumeration(),
                _ => None,
            },
            _ => None,
        }
    }

    /// The descriptor of a struct, form or named type.
    pub fn named(&self) -> Option<&'static TypeDescriptor> {
        match self.pointed() {
            Go::Named(at) => Some(&TABLE.types[*at]),
            _ => None,
        }
    }

    pub fn form(&self) -> Option<Form> {
        match self.underlying().named()?.definition {
            Definition::Form(form) => Some(form),
            _ => None,
        }
    }

    pub fn is_pointer(&self) -> bool {
        matches!(self, Go::Pointer(_))
    }

    /// Whether it is a struct, with fields in JSON.
    pub fn is_struct(&self) -> bool {
        self.underlying()
            .named()
            .is_some_and(|of| of.definition == Definition::Struct)
    }

    /// Whether it is a type under another name, or a list of such: `v1.ResourceList`, `[]v1.Capability`.
    pub fn is_renamed(&self) -> bool {
        match self {
            Go::List(of) => of.is_renamed(),
            Go::Named(at) => matches!(TABLE.types[*at].definition, Definition::Alias(_)),
            _ => false,
        }
    }

    /// As Go's errors write it: `[]v1.Capability`.
    pub fn text(&self) -> String {
        match self {
            Go::String => "string".into(),
            Go::Bool => "bool".into(),
            Go::Integer(name) | Go::Other(name) => (*name).into(),
            Go::Float => "float64".into(),
            Go::Bytes => "[]uint8".into(),
            Go::Pointer(of) => format!("*{}", of.text()),
            Go::List(of) => format!("[]{}", of.text()),
            Go::Map(of) => format!("map[string]{}", of.text()),
            Go::Named(at) => TABLE.types[*at].go_name(),
        }
    }
}

/// A JSON form that is no struct's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Time,
    MicroTime,
    Duration,
    Quantity,
    IntOrString,
    Json,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Definition {
    Struct,
    Form(Form),
    /// Another type under a name of its own.
    Alias(Go),
}

/// A type of Kubernetes.
#[derive(Debug)]
pub struct TypeDescriptor {
    /// As in the file: `core/v1`.
    pub package: &'static str,
    /// The beginning of its published name.
    pub published_package: &'static str,
    pub name: &'static str,
    pub definition: Definition,
    /// Whether values are set as a whole (`x-kubernetes-map-type: atomic`).
    pub is_atomic: bool,
    /// Whether its JSON is that of one of its fields.
    pub is_either: bool,
    /// Whether it is a protobuf message.
    pub is_message: bool,
    /// The published values, in order; empty where it is not an enum.
    pub values: Vec<String>,
    /// As declared: with embedded structs.
    pub declared: Vec<FieldDescriptor>,
    pub(super) resolved: OnceLock<Resolved>,
    /// See [`TypeDescriptor::field_at`].
    pub(super) in_order: OnceLock<InOrder>,
}

/// What follows from a type and those that it refers to; made when it is first needed.
#[derive(Debug)]
pub(super) struct Resolved {
    fields: Vec<FieldDescriptor>,
    nulls: Vec<&'static str>,
    with_facts: Vec<&'static str>,
    required_time: Option<&'static str>,
    children: Vec<(&'static str, usize)>,
}

/// The fields in the order of these names.
#[derive(Debug)]
pub(super) struct InOrder {
    names: &'static [&'static str],
    fields: Vec<Option<&'static FieldDescriptor>>,
}

impl TypeDescriptor {
    fn resolved(&'static self) -> &'static Resolved {
        self.resolved.get_or_init(|| {
            let mut fields = Vec::new();
            self.flatten("", 0, &mut fields);
            for field in &mut fields {
                let name = (self.package, self.name, field.name);
                field.zero = field
                    .omitted_zero(ZERO_IS_UNSET.contains(&name))
                    .filter(|_| !ZERO_IS_KEPT.contains(&name));
            }
            let nulls = fields.iter().filter(|f| f.is_null_unset()).map(|f| f.name);
            let with_facts = fields.iter().filter(|f| f.facts.is_some()).map(|f| f.name);
            let mut children = Vec::new();
            self.add_children(&mut children);
            let is_time = |f: &&FieldDescriptor| matches!(f.of.form(), Some(Form::Time | Form::MicroTime));
            let mut times = fields.iter().filter(is_time).filter(|f| f.is_required);
            let time = times.find(|f| !OPTIONAL_IN_RUST.contains(&(self.package, self.name, f.name)));
            Resolved {
                required_time: time.map(|f| f.name),
                nulls: nulls.collect(),
                with_facts: with_facts.collect(),
                fields,
                children,
            }
        })
    }

    fn flatten(&self, embedded: &str, depth: usize, into: &mut Vec<FieldDescriptor>) {
        for field in &self.declared {
            if !field.is_inline() {
                into.push(FieldDescriptor {
                    embedded: (!embedded.is_empty()).then(|| embedded.to_string()),
                    ..field.clone()
                });
            } else if let Some(of) = field.of.named().filter(|_| depth < EMBEDDED_MAX) {
                let below = match embedded {
                    "" => of.name.to_string(),
                    outer => format!("{outer}.{}", of.name),
                };
                of.flatten(&below, depth + 1, into);
            }
        }
    }

    fn add_children(&self, children: &mut Vec<(&'static str, usize)>) {
        for field in &self.declared {
            let Go::Named(at) = field.of.element() else {
                continue;
            };
            let of = &TABLE.types[*at];
            // Rust has an enum for a type of several forms, so the structs in them are below this one.
            if field.is_inline() || of.is_either {
                of.add_children(children);
            } else if of.definition == Definition::Struct && children.iter().all(|(_, known)| known != at) {
                children.push((of.name, *at));
            }
        }
    }

    /// The JSON's fields, in Go's order.
    pub fn fields(&'static self) -> &'static [FieldDescriptor] {
        &self.resolved().fields
    }

    /// The JSON's field of this name.
    pub fn field(&'static self, name: &str) -> Option<&'static FieldDescriptor> {
        self.fields().iter().find(|field| field.name == name)
    }

    /// The names of the fields that are written as null where they are not set.
    pub fn nulls(&'static self) -> &'static [&'static str] {
        &self.resolved().nulls
    }

    /// The names of the fields that have facts, in Go's order.
    pub fn with_facts(&'static self) -> &'static [&'static str] {
        &self.resolved().with_facts
    }

    /// The time that the published schema requires though it may be unset, being no pointer. No type has two.
    pub fn required_time(&'static self) -> Option<&'static str> {
        self.resolved().required_time
    }

    /// The struct of this name that one of the fields has: itself, its items or its values.
    pub fn child(&'static self, name: &str) -> Option<&'static TypeDescriptor> {
        let (_, at) = self.resolved().children.iter().find(|(of, _)| *of == name)?;
        Some(&TABLE.types[*at])
    }

    /// The field at an index of a Rust struct's fields. A type has one Rust struct, so its fields are found by name once.
    pub fn field_at(
        &'static self,
        names: &'static [&'static str],
        index: usize,
    ) -> Option<&'static FieldDescriptor> {
        let in_order = self.in_order.get_or_init(|| InOrder {
            names,
            fields: names.iter().map(|name| self.field(name)).collect(),
        });
        match std::ptr::eq(names, in_order.names) {
            true => *in_order.fields.get(index)?,
            false => self.field(names.get(index)?),
        }
    }

    /// As Go's errors write it: `v1.Container`.
    pub fn go_name(&self) -> String {
        let package = self.package.rsplit('/').next().unwrap_or(self.package);
        format!("{package}.{}", self.name)
    }

    /// `io.k8s.api.core.v1.Container`.
    pub fn published_name(&self) -> String {
        format!("{}.{}", self.published_package, self.name)
    }
}

/// The zero value that a field of Go loses when the object is written, by its form in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zero {
    Text,
    False,
    Number,
    List,
    Map,
}

/// What validation requires of a value by itself, whatever the other fields are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Not absent; nor empty, unless it is a pointer.
    pub is_required: bool,
    pub minimum: Option<i64>,
    /// The values of the field or of its items; none for those of its type.
    pub values: Option<Vec<String>>,
}

/// A field of a type.
#[derive(Clone, Debug)]
pub struct FieldDescriptor {
    /// In JSON; empty for an embedded struct.
    pub name: &'static str,
    pub go_name: String,
    pub of: Go,
    /// Its number in protobuf, if it has one.
    pub number: Option<u32>,
    pub omit_empty: bool,
    pub omit_zero: bool,
    /// In the published schema.
    pub is_required: bool,
    /// How it merges, where that is published.
    pub rule: Option<Rule>,
    /// The published default as JSON, if it is not the zero value.
    pub default: Option<&'static str>,
    /// The embedded structs that it comes from, as Go's errors name them.
    pub embedded: Option<String>,
    /// The zero value that is the same as nothing.
    pub zero: Option<Zero>,
    /// `None` if validation requires nothing of it or below it that is a plain fact.
    pub facts: Option<Facts>,
}

impl FieldDescriptor {
    /// The values that validation supports, in the order of its message; empty if it does not check them.
    pub fn supported(&self) -> &[String] {
        match self.facts.as_ref().and_then(|facts| facts.values.as_deref()) {
            Some([]) => {
                let values = self.of.enumeration().map(|of| of.values.as_slice());
                values.unwrap_or_default()
            }
            own => own.unwrap_or_default(),
        }
    }

    pub fn is_inline(&self) -> bool {
        self.name.is_empty()
    }

    /// Whether Go writes null where it is not set: a list, map or pointer without omitempty, or a time that is no pointer.
    fn is_null_unset(&self) -> bool {
        match (self.of.underlying(), self.of.form()) {
            _ if self.omit_zero => false,
            (_, Some(Form::Time | Form::MicroTime)) if !self.of.is_pointer() => true,
            _ if self.omit_empty => false,
            (Go::List(_) | Go::Map(_), _) => true,
            _ => self.of.is_pointer(),
        }
    }

    /// Whether the list is written as null where it is not set.
    pub fn is_null_list(&self) -> bool {
        !self.omit_empty && matches!(self.of.underlying(), Go::List(_))
    }

    /// Whether it is written as an object even where nothing in it is set: a struct that is no pointer.
    pub fn is_always_object(&self) -> bool {
        !self.of.is_pointer() && !self.omit_zero && self.of.is_struct()
    }

    /// The default of a scalar in the published schema: its own, or the zero value of a field that Go always writes.
    pub fn published_default(&self) -> Option<Value> {
        if let Some(default) = self.default {
            return serde_json::from_str(default).ok();
        }
        if self.omit_empty || self.of.is_pointer() {
            return None;
        }
        Some(match self.of.underlying() {
            Go::String => "".into(),
            Go::Bool => false.into(),
            Go::Integer(_) | Go::Float => 0.into(),
            _ => return None,
        })
    }

    fn omitted_zero(&self, is_unset: bool) -> Option<Zero> {
        let is_null = self.is_null_unset();
        if self.of.is_pointer() || !(self.omit_empty || is_null || is_unset) {
            return None;
        }
        match self.of.underlying() {
            Go::String => Some(Zero::Text),
            Go::Bool => Some(Zero::False),
            Go::Integer(_) | Go::Float => Some(Zero::Number),
            Go::List(_) => Some(Zero::List),
            Go::Map(_) if !is_null => Some(Zero::Map),
            _ => None,
        }
    }
}
