//! Controller references, and adopting or releasing objects by a selector (upstream: ControllerRefManager).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_api::{Kind, Object, ObjectKey, Shared};
use knarr_apimachinery::labels::Selector;

use crate::action::{Action, LiveCheck};
use crate::controller::{ObjectChange, View};

/// The controller reference of an object (upstream: GetControllerOf).
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// A controller reference to `owner`, with blockOwnerDeletion.
pub fn controller_reference(owner: &Object) -> OwnerReference {
    OwnerReference {
        api_version: owner.kind().api_version(),
        kind: owner.kind().kind().to_string(),
        name: owner.name().to_string(),
        uid: owner.uid().to_string(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The check that an owner's spec is still the one in the cache, which may be older than that of its pods: those of an owner that was
/// scaled up or changed since count as surplus or outdated, and deletions cannot be undone.
pub(crate) fn require_generation(owner: &Object) -> Action {
    Action::Require(LiveCheck::Generation {
        kind: owner.kind().clone(),
        key: ObjectKey::of(owner),
        uid: owner.uid().into(),
        generation: owner.metadata().generation,
    })
}

/// A selector that is not empty and parses; others select nothing.
pub fn non_empty_selector(selector: &LabelSelector) -> Option<Selector> {
    let labels = selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty);
    let expressions = selector.match_expressions.as_ref().is_none_or(Vec::is_empty);
    if labels && expressions {
        return None;
    }
    Selector::from_label_selector(selector).ok()
}

/// The objects that an owner controls, and the writes that adopt or release objects.
pub struct Claimed<T> {
    pub objects: Vec<Shared<T>>,
    pub actions: Vec<Action>,
}

/// Adopts the orphans that match `selector` and releases objects that no longer match. `candidates` are the owner's objects and the
/// orphans of its namespace. Only objects that are not terminating are adopted, by an owner that is read live before, as the cache
/// may not show yet that it is being deleted.
pub fn claim<T: Registered>(owner: &Object, selector: &Selector, candidates: Vec<Shared<T>>) -> Claimed<T> {
    claim_if(owner, candidates, |object| {
        selector.matches(object.object().metadata().labels.as_ref())
    })
}

/// The same with any predicate, for owners that select by more than labels.
pub fn claim_if<T: Registered>(
    owner: &Object,
    candidates: Vec<Shared<T>>,
    belongs: impl Fn(&Shared<T>) -> bool,
) -> Claimed<T> {
    let mut claimed = Claimed {
        objects: Vec::new(),
        actions: Vec::new(),
    };
    let owner_lives = owner.metadata().deletion_timestamp.is_none();
    for object in candidates {
        let matches = belongs(&object);
        let meta = object.object().metadata();
        let lives = meta.deletion_timestamp.is_none();
        match controller_of(meta) {
            Some(controller) if controller.uid != owner.uid() => {}
            Some(_) if matches => claimed.objects.push(object),
            Some(_) if owner_lives => {
                let mut released = (*object).clone();
                let owners = &mut released.metadata_mut().owner_references;
                let mut others = owners.take().unwrap_or_default();
                others.retain(|o| o.uid != owner.uid());
                *owners = (!others.is_empty()).then_some(others);
                claimed.actions.push(Action::update(released));
            }
            Some(_) => {}
            None if matches && lives && owner_lives => {
                if claimed.actions.is_empty() {
                    claimed.actions.push(Action::Require(LiveCheck::Exists {
                        kind: owner.kind().clone(),
                        key: ObjectKey::of(owner),
                        uid: owner.uid().to_string(),
                    }));
                }
                let mut adopted = (*object).clone();
                let owners = adopted.metadata_mut().owner_references.get_or_insert_default();
                owners.push(controller_reference(owner));
                claimed.actions.push(Action::update(adopted));
                claimed.objects.push(object);
            }
            None => {}
        }
    }
    claimed
}

/// The keys of the owners of a kind to enqueue for a change of an object: those that control or controlled it,
/// and for an orphan all that could adopt it.
pub fn owners_of<T: Registered>(
    view: &dyn View,
    changed: ObjectChange<'_>,
    selector_of: fn(&T) -> Option<&LabelSelector>,
) -> Vec<ObjectKey> {
    let owner: &'static Kind = T::kind_of();
    let mut keys: Vec<ObjectKey> = Vec::new();
    for object in changed.states() {
        if let Some(controller) = controller_of(object.metadata())
            && controller.kind == owner.kind()
            && controller.api_version == owner.api_version()
        {
            keys.push(ObjectKey::new(object.namespace(), &controller.name));
        }
    }
    if let Some(new) = changed.new
        && controller_of(new.metadata()).is_none()
    {
        let labels = new.metadata().labels.as_ref();
        for candidate in view.list_as::<T>(new.namespace()) {
            let selector = selector_of(&candidate).and_then(non_empty_selector);
            if selector.is_some_and(|s| s.matches(labels)) {
                keys.push(ObjectKey::of(candidate.object()));
            }
        }
    }
    keys.sort();
    keys.dedup();
    keys
}
