//! Cleans up ResourceClaims: reservations of finished pods are removed, and the allocation with the last of them; a claim that was
//! created for a pod is deleted when the pod is finished; the finalizer of a deleted claim is removed when it is not in use.
//!
//! The cache of pods may be older than that of claims. A pod of the same name with another uid may be the former one: as without any pod,
//! a live read decides. (kube-controller-manager counts the reservation of the newer pod as over.)
//!
//! The finalizer of a deallocated claim is kept until the claim is deleted: the scheduler adds it before the allocation,
//! and in between the claim has the same state.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use knarr_api::registry;
use knarr_api::well_known::CLAIM_DELETE_PROTECTION;
use knarr_api::{Kind, ObjectKey, k8s_openapi};

use super::{ACCOUNT, NAME, claims_of, is_allocated, is_done, reserved_for};
use crate::action::{Action, Delete, LiveCheck};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::owner::controller_of;

/// See the module. Its keys are claims.
pub struct ResourceClaims;

/// Whether a reservation is kept.
enum Reservation {
    Stays,
    Ends,
    /// It is removed if a live read confirms that the pod does not exist.
    EndsIf(LiveCheck),
}

fn reservation(view: &dyn View, namespace: &str, user: &ResourceClaimConsumerReference) -> Reservation {
    let of_core = user.api_group.as_deref().unwrap_or_default().is_empty();
    if !of_core || user.resource != "pods" {
        return Reservation::Stays;
    }
    match view.get_as::<Pod>(namespace, &user.name) {
        Some(pod) if pod.object().uid() == user.uid => match is_done(&pod) {
            true => Reservation::Ends,
            false => Reservation::Stays,
        },
        _ => Reservation::EndsIf(absent_pod(namespace, &user.name, &user.uid)),
    }
}

/// There is no pod of this name with this uid.
fn absent_pod(namespace: &str, name: &str, uid: &str) -> LiveCheck {
    LiveCheck::AbsentUid {
        kind: registry::POD.clone(),
        key: ObjectKey::new(namespace, name),
        uid: uid.into(),
    }
}

impl Controller for ResourceClaims {
    fn name(&self) -> &'static str {
        NAME
    }

    fn account(&self) -> &'static str {
        ACCOUNT
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::RESOURCE_CLAIM, &registry::POD]
    }

    fn keys(&self, _view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::RESOURCE_CLAIM) {
            return changed.new.map(|_| key).into_iter().collect();
        }
        let Some((object, pod)) = changed.object().and_then(|o| Some((o, o.get::<Pod>()?))) else {
            return Vec::new();
        };
        // Running pods keep their claims.
        if changed.new.is_some() && !is_done(pod) {
            return Vec::new();
        }
        let names = claims_of(pod);
        names
            .map(|name| ObjectKey::new(object.namespace(), name))
            .collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let (key, view) = (context.key, context.view);
        let Some(claim) = view.get_as::<ResourceClaim>(&key.namespace, &key.name) else {
            return Vec::new();
        };
        if context.failure.is_some() {
            return Vec::new();
        }
        let mut actions = Vec::new();
        let mut remaining = Vec::new();
        for user in reserved_for(&claim) {
            match reservation(view, &key.namespace, user) {
                Reservation::Stays => remaining.push(user.clone()),
                Reservation::Ends => {}
                Reservation::EndsIf(fact) => actions.push(Action::Require(fact)),
            }
        }
        let finalizers = claim.metadata.finalizers.as_deref().unwrap_or_default();
        let ours = finalizers.iter().any(|f| f == CLAIM_DELETE_PROTECTION);
        let deleting = claim.metadata.deletion_timestamp.is_some();
        let unused = remaining.is_empty();
        if remaining.len() < reserved_for(&claim).len()
            || (ours && deleting && unused && is_allocated(&claim))
        {
            let mut changed: ResourceClaim = (*claim).clone();
            let status = changed.status.get_or_insert_default();
            status.reserved_for = (!unused).then_some(remaining);
            if unused && ours {
                status.allocation = None;
                status.devices = None;
            }
            // The next step follows from this change.
            actions.push(Action::update_status(changed));
        } else if ours && deleting && unused {
            let mut changed: ResourceClaim = (*claim).clone();
            let finalizers = changed.metadata.finalizers.get_or_insert_default();
            finalizers.retain(|f| f != CLAIM_DELETE_PROTECTION);
            actions.push(Action::update(changed));
        }
        if unused && !deleting {
            let owner = controller_of(&claim.metadata).filter(|o| o.kind == "Pod" && o.api_version == "v1");
            let pod = owner.and_then(|o| Some((o, view.get_as::<Pod>(&key.namespace, &o.name)?)));
            // Without a pod of that name garbage collection deletes it.
            if let Some((owner, pod)) = pod {
                let is_owner = pod.object().uid() == owner.uid;
                if !is_owner {
                    let absent = absent_pod(&key.namespace, &owner.name, &owner.uid);
                    actions.push(Action::Require(absent));
                }
                if !is_owner || is_done(&pod) {
                    actions.push(Action::Delete(Delete::of(claim.object())));
                }
            }
        }
        actions
    }
}
