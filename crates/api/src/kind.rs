//! A kind: its names, scope, verbs and subresources, and its rules (erased [`Ops`]).
//!
//! [`Kind`] is a handle. A built-in kind is a `static` of the [registry](crate::registry); a kind that a
//! CustomResourceDefinition defines is reference-counted, together with the other versions of that definition, and its
//! memory is freed when the definition has been replaced or deleted and the last request, object or watch that uses it
//! is done. Functions take `&Kind`; code that keeps a kind clones the handle, which costs nothing for a built-in one.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::api_type::Ops;
use crate::custom::{CustomOps, Webhook};

/// Whether objects of a kind live in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Namespaced,
    Cluster,
}

/// The verbs that a resource supports, in discovery's (alphabetical) order.
pub type Verbs = &'static [&'static str];

/// The verbs of almost every stored kind.
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
/// The verbs of kinds that are not stored (reviews, bindings).
pub const CREATE_ONLY: Verbs = &["create"];

/// A subresource as discovery shows it.
#[derive(Debug)]
pub struct Subresource {
    /// The path segment: `status`, `scale`, `exec` …
    pub name: &'static str,
    /// Group, version and kind of its objects; each empty where it is the parent's.
    pub group: &'static str,
    pub version: &'static str,
    kind: &'static str,
    pub verbs: Verbs,
}

impl Subresource {
    pub(crate) const fn new(
        name: &'static str,
        (group, version, kind): (&'static str, &'static str, &'static str),
        verbs: Verbs,
    ) -> Self {
        Subresource {
            name,
            group,
            version,
            kind,
            verbs,
        }
    }

    /// The kind of its objects, as a subresource of `parent`.
    pub fn kind<'a>(&self, parent: &'a Kind) -> &'a str {
        match self.kind {
            "" => parent.kind(),
            kind => kind,
        }
    }
}

/// Short names or categories.
#[derive(Debug)]
pub enum NameList {
    BuiltIn(&'static [&'static str]),
    Custom(Vec<String>),
}

impl NameList {
    pub fn to_vec(&self) -> Vec<&str> {
        match self {
            NameList::BuiltIn(names) => names.to_vec(),
            NameList::Custom(names) => names.iter().map(String::as_str).collect(),
        }
    }
}

/// The [`Ops`] of a kind.
pub enum KindOps {
    BuiltIn(&'static dyn Ops),
    Custom(Box<CustomOps>),
}

impl KindOps {
    /// The rules of a custom kind; `None` for built-in ones.
    pub fn custom(&self) -> Option<&CustomOps> {
        match self {
            KindOps::BuiltIn(_) => None,
            KindOps::Custom(ops) => Some(ops),
        }
    }
}

impl Deref for KindOps {
    type Target = dyn Ops;
    fn deref(&self) -> &(dyn Ops + 'static) {
        match self {
            KindOps::BuiltIn(ops) => *ops,
            KindOps::Custom(ops) => &**ops,
        }
    }
}

/// The names of a kind; each is given by a method of [`KindInfo`].
pub(crate) struct KindNames {
    pub(crate) group: Cow<'static, str>,
    pub(crate) version: Cow<'static, str>,
    pub(crate) kind: Cow<'static, str>,
    pub(crate) plural: Cow<'static, str>,
    pub(crate) singular: Cow<'static, str>,
}

/// See [`KindInfo::decoded_again`].
pub(crate) struct DecodedAgain(AtomicU64);

impl DecodedAgain {
    pub(crate) const fn new() -> Self {
        DecodedAgain(AtomicU64::new(0))
    }
}

/// The data of a [`Kind`]: one kind at one group and version, as it is served.
pub struct KindInfo {
    pub(crate) names: KindNames,
    pub scope: Scope,
    pub short_names: NameList,
    pub categories: NameList,
    pub verbs: Verbs,
    pub subresources: &'static [Subresource],
    /// Of a built-in kind: see [`Kind::stored_as`].
    pub(crate) stored_as: Option<&'static Kind>,
    /// The kind's rules, without its Rust type.
    pub ops: KindOps,
    pub(crate) decoded_again: DecodedAgain,
}

/// All versions of one definition. They are made and freed together, so that a request that began with one version
/// finds the others as they were.
pub(crate) struct Versions {
    /// The version that is stored is the first.
    pub(crate) kinds: Vec<KindInfo>,
    /// The indices in `kinds` of the served versions, in the definition's order.
    pub(crate) served: Vec<usize>,
}

/// The index of the stored version in [`Versions::kinds`].
const STORED: usize = 0;

/// See the module. Two handles are equal if they refer to the same kind of the same definition; a definition that
/// has been changed has other kinds than before.
#[derive(Clone)]
pub struct Kind(Handle);

#[derive(Clone)]
enum Handle {
    BuiltIn(&'static KindInfo),
    /// A version by its index.
    Custom(Arc<Versions>, usize),
}

/// A kind that is not kept by this handle; see [`Kind::downgrade`].
#[derive(Clone)]
pub struct WeakKind(WeakHandle);

#[derive(Clone)]
enum WeakHandle {
    BuiltIn(&'static KindInfo),
    Custom(Weak<Versions>, usize),
}

impl WeakKind {
    /// `None` once the kind has been freed.
    pub fn upgrade(&self) -> Option<Kind> {
        Some(Kind(match &self.0 {
            WeakHandle::BuiltIn(info) => Handle::BuiltIn(info),
            WeakHandle::Custom(versions, at) => Handle::Custom(versions.upgrade()?, *at),
        }))
    }
}

impl Deref for Kind {
    type Target = KindInfo;
    fn deref(&self) -> &KindInfo {
        match &self.0 {
            Handle::BuiltIn(info) => info,
            Handle::Custom(versions, at) => &versions.kinds[*at],
        }
    }
}

impl Kind {
    pub(crate) const fn built_in(info: &'static KindInfo) -> Self {
        Kind(Handle::BuiltIn(info))
    }

    pub(crate) fn stored_of(versions: &Arc<Versions>) -> Self {
        Kind(Handle::Custom(versions.clone(), STORED))
    }

    pub(crate) fn served_of(versions: &Arc<Versions>) -> Vec<Self> {
        let served = versions.served.iter();
        served
            .map(|at| Kind(Handle::Custom(versions.clone(), *at)))
            .collect()
    }

    /// A handle that does not keep the kind's memory.
    pub fn downgrade(&self) -> WeakKind {
        WeakKind(match &self.0 {
            Handle::BuiltIn(info) => WeakHandle::BuiltIn(info),
            Handle::Custom(versions, at) => WeakHandle::Custom(Arc::downgrade(versions), *at),
        })
    }

    /// A number that no other built-in kind has, for as long as this process runs; `None` for kinds of custom resources.
    pub fn built_in_id(&self) -> Option<usize> {
        match &self.0 {
            Handle::BuiltIn(info) => Some(std::ptr::from_ref(*info).addr()),
            Handle::Custom(..) => None,
        }
    }

    /// The kind under which objects are stored, where it is not this one (`events.k8s.io/v1` Events are stored as core
    /// Events, all versions of a custom kind as its storage version).
    pub fn stored_as(&self) -> Option<Kind> {
        match &self.0 {
            Handle::BuiltIn(info) => info.stored_as.cloned(),
            Handle::Custom(_, STORED) => None,
            Handle::Custom(versions, _) => Some(Self::stored_of(versions)),
        }
    }

    /// The kind under which objects are stored: often this one.
    pub fn stored(&self) -> Kind {
        self.stored_as().unwrap_or_else(|| self.clone())
    }

    /// The served versions of the definition of a custom kind, this one included; empty for built-in kinds.
    pub fn served_versions(&self) -> Vec<Kind> {
        match &self.0 {
            Handle::BuiltIn(_) => Vec::new(),
            Handle::Custom(versions, _) => Self::served_of(versions),
        }
    }

    /// The kind of this apiVersion among [`Kind::served_versions`].
    pub fn served_version(&self, api_version: &str) -> Option<Kind> {
        let mut versions = self.served_versions().into_iter();
        versions.find(|kind| kind.api_version() == api_version)
    }

    /// The kind of this apiVersion among all versions of the definition of a custom kind, served or not. Versions that are
    /// not served are known only where a webhook converts.
    pub fn version_of_definition(&self, api_version: &str) -> Option<Kind> {
        let Handle::Custom(versions, _) = &self.0 else {
            return None;
        };
        let at = versions
            .kinds
            .iter()
            .position(|k| k.api_version() == api_version)?;
        Some(Kind(Handle::Custom(versions.clone(), at)))
    }

    /// The kind as which requests are handled: as which objects are defaulted, admitted and validated. That is the one
    /// they are stored as; where a webhook converts between versions, the version of the request.
    pub fn handled_as(&self) -> Kind {
        match self.is_converted_by_webhook() {
            true => self.clone(),
            false => self.stored(),
        }
    }

    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// The reference for `Invalid` errors, which name the kind as it is stored.
    pub fn kind_ref<'a>(&'a self, name: &'a str) -> knarr_apimachinery::error::ResourceRef<'a> {
        let stored = match &self.0 {
            Handle::BuiltIn(info) => info.stored_as.map_or(*info, |kind| &**kind),
            // All versions of a definition are of one group and one kind.
            Handle::Custom(..) => self,
        };
        knarr_apimachinery::error::ResourceRef {
            group: stored.group(),
            resource: stored.kind(),
            name,
        }
    }
}

impl KindInfo {
    /// How often [slim](crate::Object::slim) objects of this kind have been decoded again in this process. While a cache that has only slim ones
    /// finds the same number, they are as they were. `None` for custom kinds: the objects of one definition can be of several versions.
    pub fn decoded_again(&self) -> Option<u64> {
        match self.ops.custom() {
            None => Some(self.decoded_again.0.load(Ordering::Acquire)),
            Some(_) => None,
        }
    }

    /// To be called after the object has its decoded form: a cache that reads the number first and the objects then misses neither.
    pub(crate) fn count_decoded_again(&self) {
        self.decoded_again.0.fetch_add(1, Ordering::Release);
    }

    /// Empty for the core group.
    pub fn group(&self) -> &str {
        &self.names.group
    }

    pub fn version(&self) -> &str {
        &self.names.version
    }

    pub fn kind(&self) -> &str {
        &self.names.kind
    }

    pub fn plural(&self) -> &str {
        &self.names.plural
    }

    pub fn singular(&self) -> &str {
        &self.names.singular
    }

    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group().is_empty() {
            self.version().to_string()
        } else {
            format!("{}/{}", self.group(), self.version())
        }
    }

    pub fn namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    /// The conversion webhook of this kind's definition, with the conversion strategy Webhook.
    pub fn webhook(&self) -> Option<&Arc<Webhook>> {
        self.ops.custom()?.rules().webhook.as_ref()
    }

    pub fn is_converted_by_webhook(&self) -> bool {
        self.webhook().is_some()
    }

    /// Whether objects of this kind are kept in the store.
    pub fn is_stored(&self) -> bool {
        self.verbs.contains(&"get")
    }

    /// The `Warning` header of every request to a deprecated kind.
    pub fn deprecation(&self) -> Option<&'static str> {
        match (self.group(), self.version(), self.kind()) {
            ("", "v1", "ComponentStatus") => Some("v1 ComponentStatus is deprecated in v1.19+"),
            ("", "v1", "Endpoints") => {
                Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
            }
            _ => None,
        }
    }

    /// `pods` or `deployments.apps`.
    pub fn qualified(&self) -> String {
        if self.group().is_empty() {
            self.plural().to_string()
        } else {
            format!("{}.{}", self.plural(), self.group())
        }
    }

    /// The reference for errors about an object of this resource.
    pub fn resource_ref<'a>(&'a self, name: &'a str) -> knarr_apimachinery::error::ResourceRef<'a> {
        knarr_apimachinery::error::ResourceRef {
            group: self.group(),
            resource: self.plural(),
            name,
        }
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.api_version(), self.kind())
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Handle::BuiltIn(one), Handle::BuiltIn(other)) => std::ptr::eq(*one, *other),
            (Handle::Custom(one, at), Handle::Custom(other, other_at)) => {
                Arc::ptr_eq(one, other) && at == other_at
            }
            _ => false,
        }
    }
}
impl Eq for Kind {}
