//! What a controller wants done, as data: the executor carries actions out in order, has no choices of its own, and
//! stops at the first that fails.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use k8s_openapi::api::core::v1::ObjectReference;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_api::{AnyObject, Error, Kind, Object, ObjectKey};

pub use crate::podgc::Release;

/// One thing to do.
#[derive(Debug)]
pub enum Action {
    Create(Create),
    /// In growing batches (1, 2, 4, …): what refuses one pod will refuse a thousand, so find out with one.
    CreateMany(Vec<Create>),
    /// Of the whole object, with its resourceVersion as precondition. `subresource` is empty, `status`, `finalize`.
    Update {
        kind: Kind,
        object: Box<dyn AnyObject>,
        subresource: &'static str,
    },
    /// All at once, each as [`Action::Update`] does; one that fails does not keep the others.
    UpdateMany {
        kind: Kind,
        objects: Vec<Box<dyn AnyObject>>,
        subresource: &'static str,
    },
    Delete(Delete),
    /// Removes a pod at once, without its node's word: only PodGC can make one (SPEC S2).
    Release(Release),
    /// All at once; one that fails does not keep the others.
    DeleteMany(Vec<Delete>),
    /// Everything that extension API servers have in this namespace is deleted; fails as long as something is left.
    DeleteExtensionContents {
        namespace: String,
    },
    /// Goes on only if this holds at the API now, whatever the caches say.
    Require(Fact),
    /// Look at the same key again after this time.
    RequeueAfter(Duration),
    Event {
        about: ObjectReference,
        warning: bool,
        reason: &'static str,
        message: String,
    },
}

/// What is checked at the API itself before going on.
#[derive(Clone, Debug)]
pub enum Fact {
    /// This object is there, with this uid, and is not being deleted.
    Alive { kind: Kind, key: ObjectKey, uid: String },
    /// There is no object of this name.
    Absent { kind: Kind, key: ObjectKey },
    /// There is no object of this name with this uid.
    Gone { kind: Kind, key: ObjectKey, uid: String },
    /// The node is not ready, and somebody vouches for it that nothing of it runs any more.
    OutOfService { node: String },
    /// No object of the kind is left in the namespace.
    NoneLeft { kind: Kind, namespace: String },
    /// The namespace holds no object of any kind that users brought.
    NoCustomLeft { namespace: String },
    /// One of these may be done, as the API server judges it.
    Allowed {
        /// The CertificateSigningRequest that hangs on it.
        about: ObjectKey,
        any_of: Vec<SubjectAccessReviewSpec>,
    },
    /// No pod that was scheduled uses this claim: [`uses`](crate::protection::uses).
    Unused { claim: ObjectKey },
}

/// An object to be created.
#[derive(Debug)]
pub struct Create {
    pub kind: Kind,
    pub object: Box<dyn AnyObject>,
    /// One that is there already is as good.
    pub or_exists: bool,
    pub report: Option<Report>,
}

/// An object to be asked to go, if it is still the one that was seen.
///
/// There is no grace to be set: a component asks, with the object's own grace, and somebody else completes the deletion
/// (SPEC S2).
#[derive(Debug)]
pub struct Delete {
    pub kind: Kind,
    pub key: ObjectKey,
    pub uid: String,
    /// Also only in this state.
    pub resource_version: Option<String>,
    pub dependents: Dependents,
    pub report: Option<Report>,
}

/// What becomes of the dependents of what is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependents {
    /// What the kind does by default.
    Default,
    Background,
    Foreground,
    Orphan,
}

/// The events that tell of a create or delete: with the name in the end, or with the error.
#[derive(Clone, Debug)]
pub struct Report {
    pub about: ObjectReference,
    /// Reason and the message's beginning.
    pub done: Option<(&'static str, String)>,
    pub failed: (&'static str, String),
}

/// An action that did not go well, told to the controller at once.
#[derive(Clone, Debug)]
pub struct Failure {
    pub verb: Verb,
    pub kind: Kind,
    pub name: String,
    pub error: Error,
}

/// What was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Create,
    Update,
    Delete,
    Require,
}

impl Action {
    pub fn create<T: Registered>(object: T) -> Self {
        Action::Create(Create::new(object))
    }

    pub fn update<T: Registered>(object: T) -> Self {
        Self::update_part(object, "")
    }

    pub fn update_status<T: Registered>(object: T) -> Self {
        Self::update_part(object, "status")
    }

    pub fn update_part<T: Registered>(object: T, subresource: &'static str) -> Self {
        Action::Update {
            kind: T::kind_of().clone(),
            object: Box::new(object),
            subresource,
        }
    }

    pub fn update_many<T: Registered>(objects: impl Iterator<Item = T>, subresource: &'static str) -> Self {
        Action::UpdateMany {
            kind: T::kind_of().clone(),
            objects: objects.map(|o| Box::new(o) as Box<dyn AnyObject>).collect(),
            subresource,
        }
    }

    pub fn event(about: &ObjectReference, reason: &'static str, message: impl Into<String>) -> Self {
        Action::Event {
            about: about.clone(),
            warning: false,
            reason,
            message: message.into(),
        }
    }

    pub fn warning(about: &ObjectReference, reason: &'static str, message: impl Into<String>) -> Self {
        Action::Event {
            about: about.clone(),
            warning: true,
            reason,
            message: message.into(),
        }
    }
}

impl Create {
    pub fn new<T: Registered>(object: T) -> Self {
        Create {
            kind: T::kind_of().clone(),
            object: Box::new(object),
            or_exists: false,
            report: None,
        }
    }
}

impl Delete {
    /// With the uid as precondition and its kind's default for dependents.
    pub fn of(object: &Object) -> Self {
        Delete {
            kind: object.kind().clone(),
            key: ObjectKey::of(object),
            uid: object.uid().to_string(),
            resource_version: None,
            dependents: Dependents::Default,
            report: None,
        }
    }
}

/// What refers to `object` in an event.
pub fn reference(object: &Object) -> ObjectReference {
    let meta = object.metadata();
    ObjectReference {
        api_version: Some(object.kind().api_version()),
        kind: Some(object.kind().kind().to_string()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

/// One line, for logs and for tests: `create replicasets default/web-abc`.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = |object: &dyn AnyObject| {
            let meta = object.metadata();
            let generated = meta.generate_name.as_ref().map(|g| format!("{g}*"));
            let name = meta.name.clone().or(generated).unwrap_or_default();
            ObjectKey::new(meta.namespace.clone().unwrap_or_default(), name)
        };
        match self {
            Action::Create(c) => write!(f, "create {} {}", c.kind.plural(), key(&*c.object)),
            Action::CreateMany(all) => match all.first() {
                Some(c) => write!(f, "create {} {} {}", all.len(), c.kind.plural(), key(&*c.object)),
                None => f.write_str("create nothing"),
            },
            Action::Update {
                kind,
                object,
                subresource: "",
            } => write!(f, "update {} {}", kind.plural(), key(&**object)),
            Action::Update {
                kind,
                object,
                subresource,
            } => write!(f, "update {}/{subresource} {}", kind.plural(), key(&**object)),
            Action::UpdateMany {
                kind,
                objects,
                subresource,
            } => {
                write!(f, "update {}/{subresource}", kind.plural())?;
                objects.iter().try_for_each(|o| write!(f, " {}", key(&**o)))
            }
            Action::Delete(d) => write!(f, "delete {} {}", d.kind.plural(), d.key),
            Action::Release(r) => write!(f, "release pods {}", r.key()),
            Action::DeleteMany(all) => {
                f.write_str("delete")?;
                all.iter()
                    .try_for_each(|d| write!(f, " {} {}", d.kind.plural(), d.key))
            }
            Action::DeleteExtensionContents { namespace } => {
                write!(f, "delete contents of extension API servers in {namespace}")
            }
            Action::Require(Fact::Alive { kind, key, .. }) => write!(f, "require {} {key}", kind.plural()),
            Action::Require(Fact::Absent { kind, key }) => write!(f, "require no {} {key}", kind.plural()),
            Action::Require(Fact::Allowed { about, any_of }) => {
                let asked = any_of.first().and_then(|s| s.resource_attributes.as_ref());
                let text = |field: Option<&String>| field.cloned().unwrap_or_default();
                let verb = text(asked.and_then(|r| r.verb.as_ref()));
                let resource = text(asked.and_then(|r| r.resource.as_ref()));
                write!(f, "require {about} may {verb} {resource}")
            }
            Action::Require(Fact::Gone { kind, key, .. }) => {
                write!(f, "require {} {key} gone", kind.plural())
            }
            Action::Require(Fact::OutOfService { node }) => write!(f, "require node {node} out of service"),
            Action::Require(Fact::Unused { claim }) => write!(f, "require {claim} unused"),
            Action::Require(Fact::NoCustomLeft { namespace }) => {
                write!(f, "require no custom objects in {namespace}")
            }
            Action::Require(Fact::NoneLeft { kind, namespace }) => {
                write!(f, "require no {} in {namespace}", kind.plural())
            }
            Action::RequeueAfter(wait) => write!(f, "requeue after {wait:?}"),
            Action::Event { reason, message, .. } => write!(f, "event {reason}: {message}"),
        }
    }
}
