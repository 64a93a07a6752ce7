//! What is known of a kind: its names, scope, verbs and subresources, and its rules (erased [`Ops`]).

use std::fmt;

use crate::strategy::Ops;

/// Whether objects of a kind live in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Namespaced,
    Cluster,
}

/// The verbs a resource answers, in discovery's (alphabetical) order.
pub type Verbs = &'static [&'static str];

/// What almost every stored kind answers.
pub const ALL_VERBS: Verbs = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
/// Kinds that are asked, not stored (reviews, bindings).
pub const CREATE_ONLY: Verbs = &["create"];

/// A subresource as discovery shows it.
#[derive(Debug)]
pub struct Subresource {
    /// The path segment: `status`, `scale`, `exec` …
    pub name: &'static str,
    /// Group, version and kind of what it speaks; group and version empty where they are the parent's.
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub verbs: Verbs,
}

/// One kind at one group and version, as it is served. Kinds are compared by address: there is one of each.
pub struct Kind {
    /// Empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub scope: Scope,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub verbs: Verbs,
    pub subresources: &'static [Subresource],
    /// The kind under which objects are stored, where it is not this one
    /// (`events.k8s.io/v1` Events are stored as core Events).
    pub stored_as: Option<&'static Kind>,
    /// The kind's rules, without its Rust type.
    pub ops: &'static dyn Ops,
}

impl Kind {
    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    pub fn namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Whether objects of this kind are kept in the store.
    pub fn is_stored(&self) -> bool {
        self.verbs.contains(&"get")
    }

    /// For the `Warning` header of every request to a kind that is on its way out.
    pub fn deprecation(&self) -> Option<&'static str> {
        match (self.group, self.version, self.kind) {
            ("", "v1", "ComponentStatus") => Some("v1 ComponentStatus is deprecated in v1.19+"),
            ("", "v1", "Endpoints") => {
                Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
            }
            _ => None,
        }
    }

    /// `pods` or `deployments.apps`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_string()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// For errors that speak of this resource.
    pub fn about<'a>(&self, name: &'a str) -> crate::error::About<'a> {
        crate::error::About {
            group: self.group,
            resource: self.plural,
            name,
        }
    }

    /// For `Invalid` errors, which speak of the kind, as it is stored.
    pub fn about_kind<'a>(&self, name: &'a str) -> crate::error::About<'a> {
        let kind = self.stored_as.unwrap_or(self);
        crate::error::About {
            group: kind.group,
            resource: kind.kind,
            name,
        }
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.api_version(), self.kind)
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}
impl Eq for Kind {}
