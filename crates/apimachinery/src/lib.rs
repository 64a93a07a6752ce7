//! What Kubernetes' API conventions say of every kind: values, texts and schemas, without any kind's own rules.
//!
//! This crate is pure: no IO, no clock, no randomness. It knows the types of `k8s-openapi` by what Kubernetes' definitions say about
//! their fields, never by their meaning.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | what Kubernetes' definitions say about each type and field, generated | `descriptors/`; JSON, protobuf, merging, OpenAPI and messages read it |
//! | JSON and its Go behaviour, protobuf | `codec/`, `protobuf/`. Typed objects have `fieldsV1` as text: encode through `codec`, not with plain serde |
//! | the types' JSON schemas, how fields merge, the values of enums | `schema/` |
//! | errors: a `Status`; errors of fields, with their paths | `error.rs`, `field.rs` |
//! | quantities, durations, times, names, addresses, formats of strings | `quantity.rs`, `duration.rs`, `time.rs`, `names.rs`, `cidr.rs`, `formats.rs` |
//! | label selectors; rules of labels and annotations | `labels.rs`, `meta.rs` |
//! | finalizers | `finalizer.rs` |
//! | identifiers that are types: node names, pod UIDs, ids of containers and sandboxes | `ids.rs` |
//! | a configuration file, read strictly | `document.rs` |
//! | capacity of containers that is returned | `capacity.rs` |

pub mod capacity;
pub mod cidr;
pub mod codec;
pub mod descriptors;
pub mod document;
pub mod duration;
pub mod error;
pub mod field;
pub mod finalizer;
pub mod formats;
pub mod ids;
pub mod labels;
pub mod meta;
pub mod names;
pub mod protobuf;
pub mod quantity;
pub mod schema;
pub mod time;

pub use error::{Error, Result};
