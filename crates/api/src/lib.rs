//! The object model of Kubernetes v1.36 as knarr holds it: kinds, objects, defaults, validation,
//! selectors, quantities, patches and printing.
//!
//! This crate is pure: no IO, no clock, no randomness. Time and names that need chance are handed in.
//! What belongs to one kind stands in one file under [`kinds`]; [`registry`] lists them all.

pub mod admission;
pub mod cel;
pub mod certificates;
pub mod codec;
pub mod convert;
pub mod custom;
pub mod discovery;
pub mod document;
pub mod duration;
pub mod error;
pub mod feature_gates;
pub mod field;
pub mod finalizer;
pub mod key;
pub mod kind;
pub mod kinds;
pub mod managed_fields;
pub mod meta;
pub mod names;
pub mod object;
pub mod openapi;
pub mod patch;
pub mod pod_security;
pub mod propagation;
pub mod protobuf;
pub mod quantity;
pub mod quota;
pub mod registry;
pub mod scale;
pub mod schema;
pub mod selector;
pub mod strategy;
pub mod table;
pub mod time;

pub use error::{Error, Result};
pub use k8s_openapi;
pub use key::ObjectKey;
pub use kind::{Kind, Scope, Subresource, Verbs};
pub use object::{AnyObject, Object, Shared};
pub use strategy::Strategy;
