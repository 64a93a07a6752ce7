//! The verbs of an authorized request: read, create, update, delete.
//!
//! Every write passes the stages of `stages.rs`, in their order: metadata, defaults, mutating admission, preparation, validation, validating
//! admission, commit. The one encoded object is shared by the response, the cache and the watchers. In-process components and HTTP clients
//! take the same path; only decoding and encoding are HTTP's.

pub mod apply;
pub(crate) mod commit;
pub mod create;
mod ctx;
pub mod decode;
pub mod delete;
mod disruption;
pub(crate) mod managed_fields;
pub(crate) mod metadata;
pub mod patch;
pub(crate) mod preconditions;
pub mod read;
mod stages;
mod stamps;
mod target;
pub mod update;
mod validation;
pub mod warnings;
pub(crate) mod write;
pub mod yaml;

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::Error;
use tokio::sync::oneshot;

pub use self::ctx::{AdmissionObject, Ctx, Origin};
pub use self::target::Target;
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

/// 404 for a resource that this server does not serve.
pub fn not_served() -> Error {
    with_empty_details(Error::new(
        404,
        "NotFound",
        "the server could not find the requested resource",
    ))
}

/// 405 for a verb that a resource does not support.
pub fn not_allowed() -> Error {
    with_empty_details(Error::new(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    ))
}

pub(crate) fn with_empty_details(mut error: Error) -> Error {
    error.status_mut().details = Some(Default::default());
    error
}

/// A time with the precision of objects.
pub(crate) fn seconds(now: Timestamp) -> Timestamp {
    knarr_apimachinery::time::seconds(now).0
}

/// How often a write without a resourceVersion is tried again when the object is written in between.
pub(crate) const WRITE_ATTEMPTS: usize = 100;

pub(crate) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";
