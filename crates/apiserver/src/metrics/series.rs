//! The labels of requests, and the limit of how many series there are.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::Hash;

use parking_lot::RwLock;

use crate::request::RequestInfo;

/// The most names that one metric has series of. They are named after resources that are or were served, and CustomResourceDefinitions
/// are created and deleted: once there are so many names, further ones are counted without their resource. Each series takes about a
/// thousand bytes.
pub(super) const SERIES_MAX: usize = 10_000;

/// The names that a metric has series of, at most so many.
pub(crate) struct Bounded<K> {
    max: usize,
    known: RwLock<HashSet<K>>,
}

impl<K> Default for Bounded<K> {
    fn default() -> Self {
        Bounded::at_most(SERIES_MAX)
    }
}

impl<K> Bounded<K> {
    pub fn at_most(max: usize) -> Self {
        Bounded {
            max,
            known: RwLock::default(),
        }
    }
}

impl<K: Hash + Eq> Bounded<K> {
    /// Whether this name has series of its own. The result for a name never changes.
    pub fn admits<Q>(&self, name: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: ?Sized + Hash + Eq + ToOwned<Owned = K>,
    {
        {
            let known = self.known.read();
            if known.contains(name) {
                return true;
            }
            if known.len() >= self.max {
                return false;
            }
        }
        let mut known = self.known.write();
        if known.len() >= self.max {
            return known.contains(name);
        }
        known.insert(name.to_owned());
        true
    }
}

/// The labels of a request; only resources that this server knows, so that clients cannot create series.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Series {
    pub verb: &'static str,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub scope: &'static str,
    pub dry_run: bool,
}

/// The labels of every metric of requests, as [`Series::labels`].
pub(super) const LABELS: &[&str] = &[
    "component",
    "group",
    "resource",
    "scope",
    "subresource",
    "verb",
    "version",
];
pub(super) const DRY_RUN: &str = "dry_run";
/// The label `component` of this server.
const COMPONENT: &str = "apiserver";

impl Series {
    /// `known`: whether the resource, and the subresource if there is one, is served.
    pub fn of(info: &RequestInfo, known: bool, dry_run: bool) -> Self {
        let verb = match info.verb {
            "get" => "GET",
            "list" => "LIST",
            "watch" => "WATCH",
            "create" | "post" => "POST",
            "update" | "put" => "PUT",
            "patch" => "PATCH",
            "delete" => "DELETE",
            "deletecollection" => "DELETECOLLECTION",
            "head" => "GET",
            _ => "other",
        };
        if !info.is_resource || !known {
            return Series {
                verb,
                ..Series::default()
            };
        }
        let scope = match (
            info.name.is_empty() && info.verb != "create",
            info.namespace.is_empty(),
        ) {
            (false, _) => "resource",
            (true, false) => "namespace",
            (true, true) => "cluster",
        };
        Series {
            verb,
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            scope,
            dry_run,
        }
    }

    /// Whether the request reads objects: only of those are the sizes of responses counted, as in Kubernetes.
    pub fn is_read(&self) -> bool {
        matches!(self.verb, "GET" | "LIST") && !self.resource.is_empty()
    }

    /// The series of all resources that have none of their own.
    pub(super) fn of_others(&self) -> Self {
        Series {
            verb: self.verb,
            ..Series::default()
        }
    }

    /// The values of [`LABELS`].
    pub(super) fn labels(&self) -> [&str; 7] {
        [
            COMPONENT,
            &self.group,
            &self.resource,
            self.scope,
            &self.subresource,
            self.verb,
            &self.version,
        ]
    }

    /// The values of [`LABELS`] and [`DRY_RUN`].
    pub(super) fn labels_with_dry_run(&self) -> [&str; 8] {
        let [component, group, resource, scope, subresource, verb, version] = self.labels();
        let dry_run = if self.dry_run { "All" } else { "" };
        [
            component,
            group,
            resource,
            scope,
            subresource,
            verb,
            version,
            dry_run,
        ]
    }
}
