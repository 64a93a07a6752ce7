//! The verbs of an authorized request: read, create, update, delete.
//!
//! Every write passes the stages of `stages.rs`, in their order: metadata, defaults, mutating admission, preparation, validation, validating
//! admission, commit. The one encoded object is shared by the response, the cache and the watchers. In-process components and HTTP clients
//! take the same path; only decoding and encoding are HTTP's.

pub mod apply;
pub(crate) mod commit;
pub mod continue_token;
pub mod create;
pub mod decode;
pub mod delete;
mod disruption;
pub(crate) mod managed_fields;
pub(crate) mod metadata;
pub mod patch;
mod patch_document;
pub(crate) mod preconditions;
mod quota;
pub mod read;
mod stages;
mod stamps;
pub mod update;
mod validation;
pub(crate) mod write;
pub mod yaml;

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use tokio::sync::oneshot;

use crate::admission::Admission;
use crate::allocation::Allocations;
use crate::authz::Authorizer;
use crate::cache::Cache;
use crate::conversion::Converter;
use crate::metrics::Metrics;
use crate::seams::{Clock, Entropy};

/// What reads and writes of objects need. An authorized request uses nothing else of the server, whether it came over HTTP or in process.
pub(crate) struct Pipeline {
    pub(crate) cache: Arc<Cache>,
    /// Converts custom resources between versions.
    pub(crate) converter: Arc<Converter>,
    pub(crate) admission: Admission,
    pub(crate) allocations: Allocations,
    pub(crate) authorizer: Arc<dyn Authorizer>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) metrics: Arc<Metrics>,
    /// Stops the cache's feed when the pipeline is dropped.
    pub(crate) _feed: oneshot::Sender<()>,
}

/// A time with the precision of objects.
pub(crate) fn seconds(now: Timestamp) -> Timestamp {
    knarr_apimachinery::time::seconds(now).0
}
