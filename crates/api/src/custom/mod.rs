//! Custom resources: a CustomResourceDefinition, made into a [`Kind`](crate::kind::Kind) like any other.
//!
//! [`Definition::of`] makes the kinds of a definition, one a version. They are reference-counted (see [`crate::kind`]):
//! the kinds of an earlier state of the definition are freed with the last request, object or watch that uses them. The rules
//! of a kind ([`CustomOps`]) have its schema; [`crate::kind::KindOps::custom`] returns them to callers that treat custom
//! kinds differently, such as server-side apply.
//!
//! With the conversion strategy None all versions have the same fields under another apiVersion; with Webhook the
//! definition's webhook converts between them, see [`conversion`].

pub mod conditions;
pub mod conversion;
mod definition;
mod object;
mod ops;
pub mod path;
mod published;
mod rules;
mod scale;
pub mod shape;
mod webhook;

pub use definition::{Definition, Names, declared_version, definition_name, parse_definition, version_order};
pub use object::CustomObject;
pub use ops::CustomOps;
pub use rules::{PrinterColumn, Rules};
pub use webhook::Webhook;
