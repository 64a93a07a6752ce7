//! Binding of claims: a volume is found or requested from a provisioner, and bound; if it is deleted the claim is lost.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::registry;
use knarr_api::well_known::{BETA_STORAGE_CLASS, BIND_COMPLETED, BOUND_BY_CONTROLLER, SELECTED_NODE};
use knarr_api::{Kind, Object, ObjectKey, Shared};

use super::{
    NAME, PROVISIONER, STORAGE, annotate, annotation, claim_ref, class_of_claim, is_for, matching,
    volume_name,
};
use crate::action::{Action, LiveCheck, reference};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::protection;

const DEFAULT_CLASS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
/// The prefix of in-tree provisioners, none of which exists any more.
const BUILT_IN: &str = "kubernetes.io/";
const WAIT: &str = "WaitForFirstConsumer";

/// See the module. Its keys are claims.
pub struct ClaimBinder;

impl Controller for ClaimBinder {
    fn name(&self) -> &'static str {
        NAME
    }

    fn queue(&self) -> &'static str {
        "claims"
    }

    fn account(&self) -> &'static str {
        "persistent-volume-binder"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![
            &registry::PERSISTENT_VOLUME_CLAIM,
            &registry::PERSISTENT_VOLUME,
            &registry::STORAGE_CLASS,
            &registry::POD,
        ]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::PERSISTENT_VOLUME_CLAIM) {
            return vec![key];
        }
        if changed.kind == &registry::POD {
            // The node of a scheduled pod is where its claims are needed.
            let on = |o: Option<&Object>| o.and_then(|o| o.get::<Pod>()).is_some_and(is_placed);
            let placed = changed.new.filter(|_| on(changed.new) && !on(changed.old));
            let pod = placed.and_then(|o| o.get::<Pod>());
            let namespace = changed.object().map_or("", Object::namespace);
            let claims = pod.into_iter().flat_map(protection::claims);
            return claims.map(|name| ObjectKey::new(namespace, &name)).collect();
        }
        let volume: Option<&PersistentVolume> = changed.object().and_then(|o| o.get());
        if let Some(to) = volume.and_then(claim_ref) {
            let (namespace, name) = (to.namespace.as_deref(), to.name.as_deref());
            return vec![ObjectKey::new(
                namespace.unwrap_or_default(),
                name.unwrap_or_default(),
            )];
        }
        // Claims may wait for a new volume or class.
        let Some(new) = changed.new else {
            return Vec::new();
        };
        let claims = view.list_as::<PersistentVolumeClaim>("");
        claims
            .iter()
            .filter(|claim| {
                let requested = volume_name(claim);
                requested == new.name() || (requested.is_empty() && !is_complete(claim))
            })
            .map(|claim| ObjectKey::of(claim.object()))
            .collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let (namespace, name) = (&context.key.namespace, &context.key.name);
        let Some(claim) = context.view.get_as::<PersistentVolumeClaim>(namespace, name) else {
            return Vec::new();
        };
        if claim.metadata.deletion_timestamp.is_some() || context.failure.is_some() {
            return Vec::new();
        }
        let view = context.view;
        match (is_complete(&claim), volume_name(&claim)) {
            (true, volume) => bound(view, &claim, volume),
            (false, "") => unbound(view, &claim),
            (false, volume) => request_provisioning(view, &claim, volume),
        }
    }
}

fn is_placed(pod: &Pod) -> bool {
    !crate::pod::node_name(pod).is_empty()
}

fn is_complete(claim: &PersistentVolumeClaim) -> bool {
    annotation(&claim.metadata, BIND_COMPLETED).is_some()
}

/// A claim without `volumeName`: any matching volume is bound.
fn unbound(view: &dyn View, claim: &Shared<PersistentVolumeClaim>) -> Vec<Action> {
    let about = reference(claim.object());
    let class_name = class_of_claim(claim);
    let class = view.get_as::<StorageClass>("", class_name);
    let delayed = class
        .as_ref()
        .is_some_and(|c| c.volume_binding_mode.as_deref() == Some(WAIT));
    let volumes = view.list_as::<PersistentVolume>("");
    let pending = status(claim, "Pending", None);
    let mut actions = Vec::new();
    match matching::best(claim, &volumes, delayed) {
        Ok(Some(volume)) => return bind(volume, claim),
        Ok(None) => {}
        Err(why) => {
            actions.push(Action::warning(&about, "FailedBinding", why.to_string()));
            actions.extend(pending);
            return actions;
        }
    }
    if let Some(default) = default_class(view).filter(|_| !has_class(claim)) {
        let mut changed = (**claim).clone();
        changed.spec.get_or_insert_default().storage_class_name = default.metadata.name.clone();
        return vec![Action::update(changed)];
    }
    let undecided = delayed && annotation(&claim.metadata, SELECTED_NODE).is_none();
    if let Some(node) = undecided.then(|| node_of_user(view, claim)).flatten() {
        // Its pod was bound without the scheduler, or by one that does not set the annotation.
        let mut changed = (**claim).clone();
        annotate(&mut changed.metadata, SELECTED_NODE, &node);
        return vec![Action::update(changed)];
    }
    if undecided {
        let (reason, message) = waiting_for(view, claim);
        actions.push(Action::event(&about, reason, message));
    } else if class_name.is_empty() {
        let message = "no persistent volumes available for this claim and no storage class is set";
        actions.push(Action::event(&about, "FailedBinding", message));
    } else {
        return provision(claim, class.as_deref(), class_name);
    }
    actions.extend(pending);
    actions
}

fn has_class(claim: &PersistentVolumeClaim) -> bool {
    let spec = claim.spec.as_ref();
    spec.is_some_and(|s| s.storage_class_name.is_some())
        || annotation(&claim.metadata, BETA_STORAGE_CLASS).is_some()
}

/// The newest default class; of several of the same age the first by name.
fn default_class(view: &dyn View) -> Option<Shared<StorageClass>> {
    let marked = |class: &Shared<StorageClass>| {
        DEFAULT_CLASS
            .iter()
            .any(|key| annotation(&class.metadata, key) == Some("true"))
    };
    let classes = view.list_as::<StorageClass>("");
    let mut marked: Vec<_> = classes.into_iter().filter(marked).collect();
    marked.sort_by_key(|class| {
        let created = class.metadata.creation_timestamp.clone();
        (std::cmp::Reverse(created), class.metadata.name.clone())
    });
    marked.into_iter().next()
}

/// The node of a scheduled pod that uses the claim.
fn node_of_user(view: &dyn View, claim: &Shared<PersistentVolumeClaim>) -> Option<String> {
    let (namespace, name) = (claim.object().namespace(), claim.object().name());
    let pods = view.list_as::<Pod>(namespace);
    let user = pods
        .iter()
        .find(|pod| !is_terminal(pod) && protection::uses(pod, name));
    user.map(|pod| crate::pod::node_name(pod).to_string())
}

/// What a claim with WaitForFirstConsumer waits for.
fn waiting_for(view: &dyn View, claim: &Shared<PersistentVolumeClaim>) -> (&'static str, String) {
    let (namespace, name) = (claim.object().namespace(), claim.object().name());
    let pods = view.list_as::<Pod>(namespace);
    let waiting: Vec<&str> = pods
        .iter()
        .filter(|pod| crate::pod::node_name(pod).is_empty() && !is_terminal(pod))
        .filter(|pod| protection::claims(pod).any(|c| c == name))
        .map(|pod| pod.object().name())
        .collect();
    match waiting.as_slice() {
        [] => (
            WAIT,
            "waiting for first consumer to be created before binding".into(),
        ),
        [one] => (
            "WaitForPodScheduled",
            format!("waiting for pod {one} to be scheduled"),
        ),
        all => (
            "WaitForPodScheduled",
            format!("waiting for pods {} to be scheduled", all.join(",")),
        ),
    }
}

/// Sets the annotation that requests a volume from the provisioner of the claim's class.
fn provision(
    claim: &Shared<PersistentVolumeClaim>,
    class: Option<&StorageClass>,
    class_name: &str,
) -> Vec<Action> {
    let about = reference(claim.object());
    let failed = |why: String| vec![Action::warning(&about, "ProvisioningFailed", why)];
    let Some(class) = class else {
        return failed(format!("storageclass.storage.k8s.io {class_name:?} not found"));
    };
    let provisioner = class.provisioner.as_str();
    if provisioner.starts_with(BUILT_IN) {
        return failed(format!("no volume plugin matched name: {provisioner}"));
    }
    let mut changed = (**claim).clone();
    let mut dirty = false;
    for key in PROVISIONER {
        dirty |= annotate(&mut changed.metadata, key, provisioner);
    }
    if !dirty {
        return Vec::new();
    }
    let message = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' \
         or manually by the system administrator. If volume creation is delayed, please verify that \
         the provisioner is running and correctly registered."
    );
    let mut actions = vec![Action::update(changed)];
    // A volume of knarr's own provisioner exists before a user could read that event.
    if provisioner != super::local::PROVISIONER {
        actions.push(Action::event(&about, "ExternalProvisioning", message));
    }
    actions
}

/// A claim with `volumeName`.
fn request_provisioning(view: &dyn View, claim: &Shared<PersistentVolumeClaim>, name: &str) -> Vec<Action> {
    let about = reference(claim.object());
    let pending = status(claim, "Pending", None);
    let Some(volume) = view.get_as::<PersistentVolume>("", name) else {
        return pending.into_iter().collect();
    };
    let rejected = match claim_ref(&volume) {
        None => matching::mismatch(&volume, claim).map(|why| {
            (
                "VolumeMismatch",
                format!("Cannot bind to requested volume {name:?}: {why}"),
            )
        }),
        Some(_) if is_for(&volume, claim) => None,
        Some(_) => Some((
            "FailedBinding",
            format!("volume {name:?} already bound to a different claim."),
        )),
    };
    let Some((reason, message)) = rejected else {
        return bind(&volume, claim);
    };
    let mut actions = vec![Action::warning(&about, reason, message)];
    actions.extend(pending);
    actions
}

/// A claim that was bound: it stays bound, or is lost for ever.
fn bound(view: &dyn View, claim: &Shared<PersistentVolumeClaim>, name: &str) -> Vec<Action> {
    let lost = |reason: &'static str, message: &str| {
        let about = reference(claim.object());
        let lost = status(claim, "Lost", None).into_iter();
        lost.flat_map(|update| [update, Action::warning(&about, reason, message)])
            .collect()
    };
    if name.is_empty() {
        return lost(
            "ClaimLost",
            "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
        );
    }
    let Some(volume) = view.get_as::<PersistentVolume>("", name) else {
        // The cache of volumes may be older than that of claims.
        let absent = Action::Require(LiveCheck::Absent {
            kind: registry::PERSISTENT_VOLUME.clone(),
            key: ObjectKey::new("", name),
        });
        let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
        let mut actions: Vec<Action> = lost("ClaimLost", message);
        if !actions.is_empty() {
            actions.insert(0, absent);
        }
        return actions;
    };
    match claim_ref(&volume) {
        Some(to) if to.uid != claim.metadata.uid => lost(
            "ClaimMisbound",
            "Two claims are bound to the same volume, this one is bound incorrectly",
        ),
        _ => bind(&volume, claim),
    }
}

/// The next write until both are bound: the volume first, then the claim, then the claim's status.
fn bind(volume: &Shared<PersistentVolume>, claim: &Shared<PersistentVolumeClaim>) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut bound = (**volume).clone();
    let to = claim_ref(volume);
    if !is_for(volume, claim) {
        annotate(&mut bound.metadata, BOUND_BY_CONTROLLER, "yes");
    }
    if to.is_none_or(|to| to.uid != claim.metadata.uid) {
        bound.spec.get_or_insert_default().claim_ref = Some(reference(claim.object()));
    }
    if bound != **volume {
        actions.push(Action::update(bound));
    }
    let mut changed = (**claim).clone();
    let name = volume.object().name();
    if volume_name(claim) != name {
        changed.spec.get_or_insert_default().volume_name = Some(name.into());
        annotate(&mut changed.metadata, BOUND_BY_CONTROLLER, "yes");
    }
    if !is_complete(claim) {
        annotate(&mut changed.metadata, BIND_COMPLETED, "yes");
    }
    if changed == **claim {
        actions.extend(status(claim, "Bound", Some(volume)));
    } else {
        // Its status is written in the next sync.
        actions.push(Action::update(changed));
    }
    actions
}

/// The claim with this phase and the capacity and access modes of the volume, if its status differs.
fn status(claim: &PersistentVolumeClaim, phase: &str, volume: Option<&PersistentVolume>) -> Option<Action> {
    let mut changed = claim.clone();
    let status: &mut PersistentVolumeClaimStatus = changed.status.get_or_insert_default();
    let was_pending = status.phase.as_deref() == Some("Pending");
    status.phase = Some(phase.into());
    match volume.and_then(|v| v.spec.as_ref()) {
        None => {
            status.access_modes = None;
            status.capacity = None;
        }
        Some(spec) => {
            status.access_modes.clone_from(&spec.access_modes);
            let has = status.capacity.as_ref().and_then(|c| c.get(STORAGE));
            let is = spec.capacity.as_ref().and_then(|c| c.get(STORAGE));
            if has != is {
                status.capacity.clone_from(&spec.capacity);
            }
            if was_pending {
                status
                    .current_volume_attributes_class_name
                    .clone_from(&spec.volume_attributes_class_name);
            }
        }
    }
    (changed != *claim).then(|| Action::update_status(changed))
}
