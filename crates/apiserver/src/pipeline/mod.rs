//! What happens to a request once it is known who asks for what: read, create, update, delete.
//!
//! The write path: decode, default, admit, prepare, validate, encode once, commit, and the one object made of
//! it is shared by the answer, the cache and the watchers. In-process components and HTTP clients take the
//! same path; only decoding and encoding are HTTP's.

pub mod apply;
pub mod create;
pub mod decode;
pub mod delete;
pub(crate) mod managed_fields;
pub mod patch;
pub mod read;
mod stamps;
mod target;
pub mod update;
pub mod warnings;
pub mod yaml;

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;
use knarr_api::{Error, k8s_openapi};
use knarr_client::Term;

pub use self::target::Target;
use self::warnings::Warnings;
use crate::admission::extension::Shown;
use crate::user::User;

/// What accompanies a request through the pipeline.
#[derive(Clone, Debug)]
pub struct Ctx {
    pub user: User,
    /// What its sender was allowed to do: the request's verb.
    pub verb: &'static str,
    /// Whether the server itself writes, what every cluster has: nobody is asked for whom it grants what.
    pub(crate) by_server: bool,
    /// Where it came from.
    pub origin: Origin,
    /// When it came in; all times it writes are this one.
    pub now: Timestamp,
    /// Who changes fields, as their managers are called; `None` where the object already says who holds what.
    pub manager: Option<String>,
    /// The leader's term that its writes are part of.
    pub term: Option<Term>,
    /// `dryRun=All`: everything but the write.
    pub dry_run: bool,
    /// Whether the cache is known to have all that was there when the request came, see [`Server::catch_up`].
    ///
    /// [`Server::catch_up`]: crate::server::Server::catch_up
    pub(crate) caught_up: bool,
    pub shown: Shown,
    /// For the answer's `Warning` headers.
    pub warnings: Warnings,
    /// What plugins note for the audit log, by the annotation's key.
    pub audit_annotations: BTreeMap<String, String>,
}

/// Where a request came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    #[default]
    Unknown,
    /// A component of this process.
    InProcess,
    /// The other end of the connection.
    Remote(IpAddr),
}

impl Ctx {
    pub fn new(user: User, now: Timestamp) -> Self {
        // Of `system:serviceaccount:kube-system:job-controller` the last part.
        let manager = user.name.rsplit(':').next().map(str::to_string);
        Ctx {
            user,
            verb: "",
            by_server: false,
            origin: Origin::default(),
            now,
            manager,
            term: None,
            dry_run: false,
            caught_up: false,
            shown: Shown::default(),
            warnings: Warnings::default(),
            audit_annotations: BTreeMap::new(),
        }
    }

    /// Notes something for the audit log.
    pub fn note(&mut self, key: impl Into<String>, value: &str) {
        self.audit_annotations.insert(key.into(), value.to_string());
    }

    /// Warns once of each thing.
    pub fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.add(warning.into());
    }
}

/// 404 for what is no resource of this server.
pub fn not_served() -> Error {
    with_empty_details(Error::new(
        404,
        "NotFound",
        "the server could not find the requested resource",
    ))
}

/// 405 for a verb that a resource does not answer.
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

/// A moment as objects have it.
pub(crate) fn seconds(now: Timestamp) -> Timestamp {
    knarr_api::time::seconds(now).0
}

/// How often a write without a resourceVersion is tried again when others write the same object.
pub(crate) const WRITE_ATTEMPTS: usize = 100;

pub(crate) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";
