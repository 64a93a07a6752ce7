//! The object model of Kubernetes v1.36: kinds, objects, custom resources, patches and field ownership.
//!
//! This crate is pure: no IO, no clock, no randomness. Times and generated names are passed in. [`registry`] lists all kinds;
//! [`kinds`] has what every component knows of them. What holds for every kind without knowing one is in `knarr-apimachinery`,
//! expressions are in `knarr-cel`. The rules of kinds are in `knarr-strategy`: only what handles requests depends on it.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | names, verbs and subresources of kinds: one line each; all that is served: `ServedKinds` | `registry.rs` |
//! | how a kind's type is decoded, the fields that select its objects | `kinds/<kind>.rs`; [`ApiType`] |
//! | questions about objects that several components ask (is a pod finished, what does it request) | `kinds/<kind>.rs` |
//! | custom resources: objects, pruning, defaults, conversion, conditions of definitions | `custom/`; their schema: `knarr_cel::structural` |
//! | the types below a kind, for merging; their types in expressions | `shape.rs`, `shapes.rs`, `declared.rs` |
//! | field ownership (server-side apply), patches | `managed_fields/`, `patch/` |
//! | field selectors | `fields.rs` |
//! | which pods of a set are deleted first (SPEC B3) | `scale_down/` |
//! | labels, annotations, taints and finalizers that several components use | `well_known.rs` |
//! | usage of ResourceQuotas | `quota/` |
//! | certificate requests, parsed once (SPEC A1) | `certificates/` |
//!
//! A [`Kind`] is a handle: static for built-in kinds, reference-counted for custom ones. Functions take `&Kind`; code that keeps one clones it.

pub mod any_object;
pub mod api_type;
pub mod certificates;
pub mod convert;
pub mod custom;
pub mod declared;
pub mod deletion;
pub mod emulation;
pub mod feature_gates;
pub mod fields;
pub mod key;
pub mod kind;
pub mod kinds;
pub mod managed_fields;
pub mod object;
pub mod patch;
pub mod propagation;
pub mod quota;
pub mod registry;
pub mod scale;
pub mod scale_down;
pub mod shape;
mod shapes;
pub mod well_known;

pub use any_object::AnyObject;
pub use api_type::ApiType;
pub use k8s_openapi;
pub use key::ObjectKey;
pub use kind::{Kind, Scope, Subresource, Verbs};
pub use object::{Object, Shared};
