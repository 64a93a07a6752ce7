//! Which object a request is about: the one place where what a request names is held against the kind's scope.
//!
//! A cluster-scoped kind has no objects in a namespace, and an object of a namespaced kind is in one; a request that says
//! otherwise is for nothing that is served. So the namespace that is authorized is always the one that is touched (SPEC A2).

use knarr_api::error::About;
use knarr_api::strategy::Part;
use knarr_api::{Error, Kind, registry};

use super::{not_allowed, not_served};
use crate::request::RequestInfo;

/// Verbs for which a namespaced kind is asked across all namespaces.
const ACROSS_NAMESPACES: [&str; 2] = ["list", "watch"];

/// Which object is meant.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// As served.
    pub kind: &'a Kind,
    /// Empty for cluster-scoped kinds.
    pub namespace: &'a str,
    pub name: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
}

impl<'a> Target<'a> {
    /// Of a name that is known to fit the kind's scope, such as an object's own.
    pub fn main(kind: &'a Kind, namespace: &'a str, name: &'a str) -> Self {
        Target {
            kind,
            namespace,
            name,
            subresource: "",
        }
    }

    /// Of a request over HTTP: 404 where the path names nothing that the kind has, 405 where it has no such method.
    pub(crate) fn of_request(kind: &'a Kind, info: &'a RequestInfo) -> Result<Self, Error> {
        if info.malformed {
            return Err(not_served());
        }
        // The namespace that a Namespace is asked for in is its own name.
        let itself = *kind == registry::NAMESPACE && !info.in_namespace;
        let namespace = if itself { "" } else { info.namespace.as_str() };
        Self::checked(kind, info.verb, namespace, &info.name, &info.subresource)
    }

    /// Of a request by a component in this process, by the same rules.
    pub(crate) fn checked(
        kind: &'a Kind,
        verb: &str,
        namespace: &'a str,
        name: &'a str,
        subresource: &'a str,
    ) -> Result<Self, Error> {
        if !subresource.is_empty() && kind.subresource(subresource).is_none() {
            return Err(not_served());
        }
        if !kind.namespaced() && !namespace.is_empty() {
            return Err(not_served());
        }
        if kind.namespaced() && namespace.is_empty() {
            if !name.is_empty() {
                return Err(not_served());
            }
            if !ACROSS_NAMESPACES.contains(&verb) {
                // Paths of custom resources are looked up with their verb, those of built-in kinds without.
                return Err(match kind.ops.custom() {
                    Some(_) => not_served(),
                    None => not_allowed(),
                });
            }
        }
        Ok(Target {
            kind,
            namespace,
            name,
            subresource,
        })
    }

    pub fn about(&self) -> About<'a> {
        self.kind.about(self.name)
    }

    pub fn part(&self) -> Result<Part, Error> {
        match self.subresource {
            "" => Ok(Part::Main),
            "status" => Ok(Part::Status),
            other => match self.kind.subresource(other) {
                Some(s) => Ok(Part::Other(s.name)),
                None => Err(not_served()),
            },
        }
    }
}
