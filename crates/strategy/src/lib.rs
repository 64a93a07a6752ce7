//! The rules of Kubernetes v1.36's kinds: defaults, validation, what an update may change, deletion and columns.
//!
//! Each kind has one file under [`kinds`] with its [`Strategy`]. [`KindStrategy`] finds it for a [`Kind`](knarr_api::Kind). The crate is
//! pure, and only what handles requests depends on it: a change of a rule compiles little else.
//!
//! | | |
//! |---|---|
//! | a kind's rules | `kinds/<kind>.rs`; of pods, and of the templates of all workloads, `kinds/pod/` |
//! | plain facts of fields, by the descriptors | `facts.rs` |
//! | rules of metadata that hold for every kind | `metadata.rs` |
//! | custom resources: validation, rules in CEL; definitions | `custom/` |
//! | how objects are deleted, with which grace period | `strategy/deletion.rs`, [`Strategy::deletion_grace_seconds`] |
//! | columns of `kubectl get` | `columns` and `row` of a kind's [`Strategy`]; of pods `kinds/pod/columns.rs` |
//! | the texts of their cells; the Table | `table.rs`; `table_response.rs` |

pub mod custom;
mod facts;
pub mod kinds;
pub mod metadata;
mod strategy;
pub mod table;
pub mod table_response;

pub use strategy::{
    DeletionPlan, DeletionRequest, DynStrategy, KindStrategy, MetadataChecks, Part, Strategy,
};
