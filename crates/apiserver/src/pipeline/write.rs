//! A write on its way through the stages: its target, what it does, and its object.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PodCondition;
use knarr_api::{AnyObject, Kind, Object, k8s_openapi};
use knarr_apimachinery::Error;
use knarr_client::DeleteOptions;
use knarr_strategy::Part;

use crate::admission::{Attributes, Operation};
use crate::request::Target;

/// The subresource that assigns a pod to a node.
pub(super) const BINDING: &str = "binding";

/// DeleteOptions with the fields that only HTTP requests have.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteRequest {
    pub options: DeleteOptions,
    /// The deprecated `orphanDependents`.
    pub orphan_dependents: Option<bool>,
    /// A condition that a component of this process sets in the pod's status before the deletion.
    pub pod_condition: Option<PodCondition>,
}

/// What a write does to its object.
#[derive(Clone, Copy)]
pub(super) enum Change<'a> {
    Create,
    /// Updates this part of the stored object.
    Update(&'a Arc<Object>, Part),
    /// Deletes the stored object.
    Delete(&'a Arc<Object>, &'a DeleteRequest),
}

/// A write on its way through the stages.
pub(super) struct Write<'a> {
    pub target: &'a Target<'a>,
    pub change: Change<'a>,
    /// The kind in the version in which the object is handled.
    pub kind: Kind,
    /// The object as the client sent it, and what the stages make of it. Of a deletion: a copy of the stored object, which gets the marks.
    pub object: Box<dyn AnyObject>,
}

impl<'a> Write<'a> {
    pub(super) fn create(target: &'a Target<'a>, object: Box<dyn AnyObject>) -> Self {
        Write {
            target,
            change: Change::Create,
            kind: target.kind.handled_as(),
            object,
        }
    }

    pub(super) fn update(
        target: &'a Target<'a>,
        old: &'a Arc<Object>,
        object: Box<dyn AnyObject>,
    ) -> Result<Self, Error> {
        Ok(Write {
            target,
            change: Change::Update(old, target.part()?),
            kind: old.kind().clone(),
            object,
        })
    }

    pub(super) fn delete(target: &'a Target<'a>, old: &'a Arc<Object>, request: &'a DeleteRequest) -> Self {
        Write {
            target,
            change: Change::Delete(old, request),
            kind: old.kind().clone(),
            object: old.typed().clone_box(),
        }
    }

    /// The write as admission sees it.
    pub(super) fn attributes(&self) -> Attributes<'a> {
        let (operation, old) = match self.change {
            Change::Create => (Operation::Create, None),
            Change::Update(old, _) => (Operation::Update, Some(old)),
            Change::Delete(old, _) => (Operation::Delete, Some(old)),
        };
        Attributes {
            target: self.target,
            operation,
            old,
        }
    }

    /// The object that would be stored; `None` for deletions.
    pub(super) fn new_object(&self) -> Option<&dyn AnyObject> {
        match self.change {
            Change::Delete(..) => None,
            Change::Create | Change::Update(..) => Some(&*self.object),
        }
    }

    /// The object's name for errors: a new object's own.
    pub(super) fn name(&self) -> &str {
        match self.change {
            Change::Create => self.object.metadata().name.as_deref().unwrap_or(""),
            Change::Update(old, _) | Change::Delete(old, _) => old.name(),
        }
    }
}
