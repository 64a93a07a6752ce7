//! The object that a request is about, and whether it fits the scope of its kind.
//!
//! A cluster-scoped kind has no objects in a namespace, and an object of a namespaced kind has one; any other request gets 404. So the namespace
//! that is authorized is always the one that is used (SPEC A2).

use knarr_api::{Kind, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::error::ResourceRef;
use knarr_strategy::Part;

use super::errors::{not_allowed, not_served};
use super::info::RequestInfo;

/// Verbs with which a namespaced kind may be requested across all namespaces.
const ACROSS_NAMESPACES: [&str; 2] = ["list", "watch"];

/// The object or collection that a request is about.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The kind as served.
    pub kind: &'a Kind,
    /// Empty for cluster-scoped kinds.
    pub namespace: &'a str,
    pub name: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
}

impl<'a> Target<'a> {
    /// A target whose name is known to fit the kind's scope, such as an existing object's.
    pub fn main(kind: &'a Kind, namespace: &'a str, name: &'a str) -> Self {
        Target {
            kind,
            namespace,
            name,
            subresource: "",
        }
    }

    /// The target of an HTTP request: 404 if the path does not fit the kind, 405 if the kind has no such method.
    pub(crate) fn of_request(kind: &'a Kind, info: &'a RequestInfo) -> Result<Self, Error> {
        if info.malformed {
            return Err(not_served());
        }
        // The namespace of a request for a Namespace is that Namespace's own name.
        let itself = *kind == registry::NAMESPACE && !info.in_namespace;
        let namespace = if itself { "" } else { info.namespace.as_str() };
        Self::checked(kind, info.verb, namespace, &info.name, &info.subresource)
    }

    /// The target of a request by a component of this process, by the same rules.
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
                // Requests for custom resources are matched with their verb, those for built-in kinds without.
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

    pub fn resource_ref(&self) -> ResourceRef<'a> {
        self.kind.resource_ref(self.name)
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
