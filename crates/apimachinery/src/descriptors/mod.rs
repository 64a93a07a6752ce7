//! What Kubernetes' own definitions say about each type and field: one table, which decoding, encoding, protobuf, OpenAPI, merging and
//! messages read.
//!
//! `kubernetes.txt` is written by `cargo run -p xtask -- kinds DIR` from the sources of Kubernetes v1.36.2 and never by hand. A line without
//! indentation is a package (its name here, and the beginning of its types' published names) or a type; the lines below are the type's
//! fields in Go's order:
//!
//! ```text
//! package core/v1 io.k8s.api.core.v1
//! PullPolicy =string enum=Always,IfNotPresent,Never
//! Probe message
//!  ^ ProbeHandler 1
//!  initialDelaySeconds int32 2 omitempty
//! ServiceSpec message
//!  clusterIP=ClusterIP string 3 omitempty
//!  ports []ServicePort 1 omitempty list=map:port,protocol patch=merge key=port
//! ```
//!
//! - A type: `=` and another Go type, or one of the forms `time`, `microtime`, `duration`, `quantity`, `int-or-string`, `json`. `message`: it is
//!   a protobuf message. `map=atomic`: set as a whole. `either`: its JSON is that of one of its fields. `enum`: its published values, with `_` for a
//!   space.
//! - A field: its name in JSON, and after `=` its name in Go where that is not the same with a capital; its Go type; its protobuf number or `-`.
//!   `^` is an embedded struct, whose fields are in the JSON of the type that has it. `omitempty`, `omitzero`: of the Go tag. The rest is published in OpenAPI:
//!   `required`, `list` (list type and keys), `map` (map type), `patch` and `key` (strategy and merge key of strategic merge patches), `default` (if it is not
//!   the zero value).
//! - `facts` of a field is what validation requires of it by itself, from `xtask/src/kinds/facts.txt`, separated by semicolons: `required`, `minimum:0`,
//!   `enum` (the values of its type) or `enum:A,B` (these, in the order of the message), `nested` (only what is below it has facts).
//! - Packages `internal/…` have the types that kube-apiserver validates and that its messages show.
//!
//! The text is parsed once, when the first object is read or written. Types refer to each other by index, so no map is searched by name below
//! an object's own type: [`TypeDescriptor::child`] compares a few names.

mod parse;
mod types;

use std::collections::HashMap;
use std::sync::LazyLock;

use schemars::JsonSchema;

pub use types::{Definition, Facts, FieldDescriptor, Form, Go, TypeDescriptor, Zero};

static TABLE: LazyLock<Table> = LazyLock::new(|| Table::parse(include_str!("kubernetes.txt")));

/// All types.
#[derive(Debug, Default)]
struct Table {
    types: Vec<TypeDescriptor>,
    /// By package and name; the package as here and as published.
    names: HashMap<(&'static str, &'static str), usize>,
    /// By the name without package, which several types may have. Without internal types.
    short_names: HashMap<&'static str, Vec<usize>>,
}

impl Table {
    fn named(&self, package: &str, name: &str) -> Option<&TypeDescriptor> {
        let at = self.names.get(&(package, name))?;
        self.types.get(*at)
    }
}

/// All types, in the order of the file.
pub fn all() -> &'static [TypeDescriptor] {
    &TABLE.types
}

/// The type of a package (`core/v1`) with this name.
pub fn named(package: &str, name: &str) -> Option<&'static TypeDescriptor> {
    TABLE.named(package, name)
}

/// The type that is published under a name: `io.k8s.api.core.v1.Pod`.
pub fn published(name: &str) -> Option<&'static TypeDescriptor> {
    let (package, name) = name.rsplit_once('.')?;
    named(package, name)
}

/// The type of a kind's objects. The options of deletions come in every group's version.
pub fn of_kind(api_version: &str, kind: &str) -> Option<&'static TypeDescriptor> {
    if kind == "DeleteOptions" {
        return named("meta/v1", kind);
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
    // `rbac.authorization.k8s.io` is the package `rbac`, and `apps` is `apps`.
    let group = group.split('.').next()?;
    named(&format!("{group}/{version}"), kind)
}

/// The type of a Rust struct that is not known to be within another one: by its name and all its fields, because several types may have
/// the name. `None` where that does not decide.
pub fn of_struct(name: &str, fields: &[&str]) -> Option<&'static TypeDescriptor> {
    let of_name = TABLE.short_names.get(name)?.iter().map(|at| &TABLE.types[*at]);
    let mut types = of_name.filter(|of| fields.iter().all(|field| of.field(field).is_some()));
    types.next().filter(|_| types.next().is_none())
}

/// The beginning of the packages of internal types.
pub const INTERNAL: &str = "internal/";

/// The internal type of a name, which is in one package only.
pub fn internal(name: &str) -> Option<&'static TypeDescriptor> {
    named(INTERNAL, name)
}

/// Which type a value has while objects are walked by serde, which names structs but not their packages.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// It is of this type.
    Of(&'static TypeDescriptor),
    /// It is below a field of this type.
    Below(&'static TypeDescriptor),
    Unknown,
}

impl Place {
    /// That of a value whose schema names its type.
    pub fn of<T: JsonSchema + ?Sized>() -> Place {
        published(&T::schema_name()).map_or(Place::Unknown, Place::Of)
    }

    /// The type of the struct of this name here. Where nothing is known, it is that of the only type of the name.
    pub fn of_struct(self, name: &str) -> Option<&'static TypeDescriptor> {
        match self {
            Place::Of(of) => Some(of),
            Place::Below(of) => of.child(name),
            Place::Unknown => match TABLE.short_names.get(name)?.as_slice() {
                [one] => Some(&TABLE.types[*one]),
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests;
