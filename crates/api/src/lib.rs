//! The object model of Kubernetes v1.36: kinds, objects, defaults, validation,
//! selectors, quantities, patches and printing.
//!
//! This crate is pure: no IO, no clock, no randomness. Times and generated names are passed in.
//! Each kind has one file under [`kinds`]; [`registry`] lists them all.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | a kind's rules (defaults, validation, status, columns) | `kinds/<kind>.rs`; names, verbs and subresources: one line in [`registry`] |
//! | custom resources: schema, rules, conversion, conditions of definitions | `custom/`; all that is served: `registry::ServedKinds` |
//! | what Kubernetes' definitions say about each type and field, generated | `descriptors/`; JSON, protobuf, merging, OpenAPI and messages read it |
//! | JSON and its Go behaviour, protobuf | `codec/`, `protobuf/`. Typed objects have `fieldsV1` as text: encode through `codec`, not with plain serde |
//! | CEL: environment, Kubernetes' libraries; types and estimated costs; costs at run time | `cel/`, `cel/check/`, `cel/meter/` |
//! | admission policies and webhooks: matching of requests, evaluation of expressions | `admission/` |
//! | field ownership (server-side apply) | `managed_fields/` |
//! | usage of ResourceQuotas, Pod Security Standards | `quota/`, `pod_security/` |
//! | certificate requests, parsed once (SPEC A1) | `certificates/` |
//! | discovery, OpenAPI, tables | `discovery.rs`, `openapi/`, `table/` |
//!
//! A [`Kind`] is a handle: static for built-in kinds, reference-counted for custom ones. Functions take `&Kind`; code that keeps one clones it.

pub mod admission;
pub mod cel;
pub mod certificates;
pub mod cidr;
pub mod codec;
pub mod convert;
pub mod custom;
pub mod descriptors;
pub mod discovery;
pub mod document;
pub mod duration;
pub mod emulation;
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
