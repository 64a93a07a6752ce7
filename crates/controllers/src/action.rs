//! The actions that a controller returns, as data: the executor carries them out in order, makes no decisions, and
//! stops at the first that fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use k8s_openapi::api::core::v1::{ObjectReference, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_api::{AnyObject, Kind, Object, ObjectKey};
use knarr_apimachinery::Error;
use knarr_apimachinery::ids::NodeName;

pub use crate::podgc::release::Release;

/// A write, a check or an event that a controller has decided on.
#[derive(Debug)]
pub enum Action {
    Create(Create),
    /// Creates in growing batches (1, 2, 4, …), as kube-controller-manager's slowStartBatch: what rejects one pod rejects a
    /// thousand, and one request is enough to find out.
    CreateMany(Vec<Create>),
    /// Updates the whole object, with its resourceVersion as precondition. `subresource` is empty, `status`, `finalize`.
    Update {
        kind: Kind,
        object: Box<dyn AnyObject>,
        subresource: &'static str,
    },
    /// Updates concurrently, each as [`Action::Update`]; a failed one does not stop the others.
    UpdateMany {
        kind: Kind,
        objects: Vec<Box<dyn AnyObject>>,
        subresource: &'static str,
    },
    Delete(Delete),
    /// Completes a pod's deletion without its kubelet: only PodGC can make one (SPEC S2).
    Release(Release),
    /// Deletes concurrently; a failed one does not stop the others.
    DeleteMany(Vec<Delete>),
    /// Deletes everything that extension API servers have in this namespace; fails while something is left.
    DeleteExtensionContents {
        namespace: String,
    },
    /// Continues only if this holds at the API, read live and not from a cache.
    Require(LiveCheck),
    /// Requeues the key after this time.
    RequeueAfter(Duration),
    Event {
        about: ObjectReference,
        warning: bool,
        reason: &'static str,
        message: String,
    },
}

/// A condition that is checked by a live read from the API before the actions that follow.
#[derive(Clone, Debug)]
pub enum LiveCheck {
    /// This object exists, with this uid, and is not being deleted.
    Exists { kind: Kind, key: ObjectKey, uid: String },
    /// This object exists, with this uid, and is being deleted.
    Deleting { kind: Kind, key: ObjectKey, uid: String },
    /// This object exists, with this uid, and its spec is still that of this generation.
    Generation {
        kind: Kind,
        key: ObjectKey,
        uid: String,
        generation: Option<i64>,
    },
    /// Each of these pods exists, with its uid, and has this finalizer.
    Held {
        namespace: String,
        /// The uids by the names.
        pods: BTreeMap<String, String>,
        finalizer: &'static str,
    },
    /// No pod of the namespace with this controller and one of these uids has this finalizer.
    NoneHeld {
        namespace: String,
        /// The uid of the controller.
        owner: String,
        uids: BTreeSet<String>,
        finalizer: &'static str,
    },
    /// There is no object of this name.
    Absent { kind: Kind, key: ObjectKey },
    /// There is no object of this name with this uid.
    AbsentUid { kind: Kind, key: ObjectKey, uid: String },
    /// The node is not ready and has the out-of-service taint: nothing of it runs any more.
    OutOfService { node: NodeName },
    /// The node has not renewed its Lease since: it has this renewTime, or does not exist.
    NotRenewed {
        lease: ObjectKey,
        renewed: Option<MicroTime>,
    },
    /// The node's Ready condition is Unknown.
    Unreachable { node: NodeName },
    /// The node has all of these taints, with the times at which they were added.
    Tainted { node: NodeName, taints: Vec<Taint> },
    /// No VolumeAttachment that `csi_attach` created attaches this volume to another node.
    NotAttachedElsewhere { volume: String, node: NodeName },
    /// The namespace has no object of the kind.
    NoneInNamespace { kind: Kind, namespace: String },
    /// The namespace has no custom resources.
    NoCustomResources { namespace: String },
    /// A SubjectAccessReview allows one of these.
    Allowed {
        /// The CertificateSigningRequest that waits for it.
        about: ObjectKey,
        any_of: Vec<SubjectAccessReviewSpec>,
    },
    /// No scheduled pod uses this claim: [`uses`](crate::protection::uses).
    ClaimUnused { claim: ObjectKey },
}

/// A create of an object.
#[derive(Debug)]
pub struct Create {
    pub kind: Kind,
    pub object: Box<dyn AnyObject>,
    /// AlreadyExists is no failure.
    pub ignore_already_exists: bool,
    pub report: Option<Report>,
}

/// A delete of an object, with the uid that the decision was made on as precondition.
///
/// It sets no grace period: controllers delete with the object's own, and the kubelet completes the deletion (SPEC S2).
#[derive(Debug)]
pub struct Delete {
    pub kind: Kind,
    pub key: ObjectKey,
    pub uid: String,
    /// A further precondition.
    pub resource_version: Option<String>,
    pub dependents: Dependents,
    pub report: Option<Report>,
}

/// The propagationPolicy of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependents {
    /// The default of the kind.
    Default,
    Background,
    Foreground,
    Orphan,
}

/// The events about the result of a create or delete: the message is completed with the object's name or the error.
#[derive(Clone, Debug)]
pub struct Report {
    pub about: ObjectReference,
    /// Reason, and the beginning of the message.
    pub done: Option<(&'static str, String)>,
    pub failed: (&'static str, String),
}

/// An action that failed. The controller is called with it, so that it can report it in the status.
#[derive(Clone, Debug)]
pub struct Failure {
    pub verb: Verb,
    pub kind: Kind,
    pub name: String,
    pub error: Error,
}

/// The verb of the request that failed.
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
        Self::update_subresource(object, "")
    }

    pub fn update_status<T: Registered>(object: T) -> Self {
        Self::update_subresource(object, "status")
    }

    pub fn update_subresource<T: Registered>(object: T, subresource: &'static str) -> Self {
        Action::Update {
            kind: T::kind_of().clone(),
            object: object.into_object(),
            subresource,
        }
    }

    pub fn update_many<T: Registered>(objects: impl Iterator<Item = T>, subresource: &'static str) -> Self {
        Action::UpdateMany {
            kind: T::kind_of().clone(),
            objects: objects.map(Registered::into_object).collect(),
            subresource,
        }
    }

    /// An event of type Normal.
    pub fn event(about: &ObjectReference, reason: &'static str, message: impl Into<String>) -> Self {
        Action::Event {
            about: about.clone(),
            warning: false,
            reason,
            message: message.into(),
        }
    }

    /// An event of type Warning.
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
            object: object.into_object(),
            ignore_already_exists: false,
            report: None,
        }
    }
}

impl Delete {
    /// Deletes the object with its uid as precondition and its kind's default propagation.
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

/// The ObjectReference for an event about `object`.
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

/// The name of the pod, if there is only one; the uids of pods by their names, as in [`LiveCheck::Held`].
pub fn only_name(pods: &BTreeMap<String, String>) -> Option<&str> {
    let mut names = pods.keys();
    names.next().filter(|_| pods.len() == 1).map(String::as_str)
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
            Action::Require(LiveCheck::Exists { kind, key, .. }) => {
                write!(f, "require {} {key}", kind.plural())
            }
            Action::Require(LiveCheck::Deleting { kind, key, .. }) => {
                write!(f, "require {} {key} terminating", kind.plural())
            }
            Action::Require(LiveCheck::Generation {
                kind,
                key,
                generation,
                ..
            }) => {
                let generation = generation.unwrap_or_default();
                write!(f, "require {} {key} of generation {generation}", kind.plural())
            }
            Action::Require(LiveCheck::Held {
                namespace,
                pods,
                finalizer,
            }) => match only_name(pods) {
                Some(name) => write!(f, "require pods {namespace}/{name} with {finalizer}"),
                None => write!(f, "require {} pods of {namespace} with {finalizer}", pods.len()),
            },
            Action::Require(LiveCheck::NoneHeld {
                namespace,
                uids,
                finalizer,
                ..
            }) => {
                write!(
                    f,
                    "require none of {} pods of {namespace} with {finalizer}",
                    uids.len()
                )
            }
            Action::Require(LiveCheck::Absent { kind, key }) => {
                write!(f, "require no {} {key}", kind.plural())
            }
            Action::Require(LiveCheck::Allowed { about, any_of }) => {
                let attributes = any_of.first().and_then(|s| s.resource_attributes.as_ref());
                let text = |field: Option<&String>| field.cloned().unwrap_or_default();
                let verb = text(attributes.and_then(|r| r.verb.as_ref()));
                let resource = text(attributes.and_then(|r| r.resource.as_ref()));
                write!(f, "require {about} may {verb} {resource}")
            }
            Action::Require(LiveCheck::AbsentUid { kind, key, .. }) => {
                write!(f, "require {} {key} gone", kind.plural())
            }
            Action::Require(LiveCheck::OutOfService { node }) => {
                write!(f, "require node {node} out of service")
            }
            Action::Require(LiveCheck::NotRenewed { lease, .. }) => {
                write!(f, "require leases {lease} not renewed")
            }
            Action::Require(LiveCheck::Unreachable { node }) => write!(f, "require node {node} unreachable"),
            Action::Require(LiveCheck::Tainted { node, .. }) => write!(f, "require node {node} tainted"),
            Action::Require(LiveCheck::NotAttachedElsewhere { volume, node }) => {
                write!(f, "require {volume} attached to no node but {node}")
            }
            Action::Require(LiveCheck::ClaimUnused { claim }) => write!(f, "require {claim} unused"),
            Action::Require(LiveCheck::NoCustomResources { namespace }) => {
                write!(f, "require no custom objects in {namespace}")
            }
            Action::Require(LiveCheck::NoneInNamespace { kind, namespace }) => {
                write!(f, "require no {} in {namespace}", kind.plural())
            }
            Action::RequeueAfter(wait) => write!(f, "requeue after {wait:?}"),
            Action::Event { reason, message, .. } => write!(f, "event {reason}: {message}"),
        }
    }
}
