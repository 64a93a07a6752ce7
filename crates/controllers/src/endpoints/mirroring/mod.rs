//! EndpointSlice mirroring: Endpoints that a user keeps for a Service without selector, as EndpointSlices.
//!
//! Each set of ports and address family has one slice, with at most [`MAX_ADDRESSES`] addresses. Slices carry the
//! Endpoints' labels and annotations and are owned by them. Endpoints with the label
//! `endpointslice.kubernetes.io/skip-mirror: "true"` or with the annotation of an old leader election are not mirrored;
//! slices of other owners are never touched.

mod desired;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Endpoints as EndpointsObject, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::well_known::{ENDPOINT_SLICE_MANAGED_BY, LAST_CHANGE_TRIGGER_TIME, SERVICE_NAME};
use knarr_api::{Kind, Object, ObjectKey, Shared};

use self::desired::{Group, desired, group_of};
use crate::action::{Action, Create, Delete, reference};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::owner::controller_reference;

/// Addresses of one subset that are mirrored (kube-controller-manager's mirroring-max-endpoints-per-subset).
pub const MAX_ADDRESSES: usize = 1000;
const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
/// The annotation of Kubernetes' former leader election on Endpoints.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// Annotations that are about the Endpoints object only.
const NOT_MIRRORED: [&str; 2] = [
    LAST_CHANGE_TRIGGER_TIME,
    "kubectl.kubernetes.io/last-applied-configuration",
];

/// See the module. Its keys are Endpoints, which have their Service's name.
pub struct EndpointSliceMirroring;

impl Controller for EndpointSliceMirroring {
    fn name(&self) -> &'static str {
        "endpoint-slice-mirroring-controller"
    }

    fn account(&self) -> &'static str {
        "endpointslicemirroring-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![
            &registry::SERVICE,
            &registry::ENDPOINTS,
            &registry::ENDPOINT_SLICE,
        ]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::SERVICE) {
            // A Service that always had a selector was never mirrored. Without Endpoints there is nothing to mirror, and slices of deleted
            // Endpoints are enqueued by that deletion and by themselves: most Services without selector have slices of their own, and each
            // reconciliation reads all slices of the namespace.
            let has_endpoints = view
                .get(&registry::ENDPOINTS, &key.namespace, &key.name)
                .is_some();
            let concerns = has_endpoints
                && changed
                    .states()
                    .any(|o| o.get::<Service>().is_some_and(|s| !has_selector(s)));
            return Some(key).filter(|_| concerns).into_iter().collect();
        }
        if let Some(key) = changed.key_of(&registry::ENDPOINTS) {
            let may_be_mirrored = changed.states().any(|o| is_mirrored(o.metadata()));
            let service = view.get_as::<Service>(&key.namespace, &key.name);
            // Endpoints of a Service with a selector belong to another controller, and most changes are of these.
            let concerns = may_be_mirrored && !service.is_some_and(|s| has_selector(&s));
            return Some(key).filter(|_| concerns).into_iter().collect();
        }
        // Both Services, if the slice was relabelled.
        let mut keys: Vec<ObjectKey> = changed.states().filter_map(service_of).collect();
        keys.dedup();
        keys
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        if context.failure.is_some() {
            return Vec::new();
        }
        let (view, key) = (context.view, context.key);
        let existing: Vec<Shared<EndpointSlice>> = view.list_as(&key.namespace);
        let existing: Vec<_> = existing
            .into_iter()
            .filter(|s| service_of(s.object()).as_ref() == Some(key))
            .filter(|s| s.metadata.deletion_timestamp.is_none())
            .collect();
        let endpoints = view.get_as::<EndpointsObject>(&key.namespace, &key.name);
        let service = view.get_as::<Service>(&key.namespace, &key.name);
        let endpoints = endpoints
            .filter(|e| is_mirrored(&e.metadata))
            .filter(|_| service.is_some_and(|s| !has_selector(&s)));
        match endpoints {
            None => existing.iter().map(remove).collect(),
            Some(endpoints) => mirror(&endpoints, &existing),
        }
    }
}

fn has_selector(service: &Service) -> bool {
    let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
    selector.is_some_and(|s| !s.is_empty())
}

fn is_mirrored(meta: &ObjectMeta) -> bool {
    let skips = meta
        .labels
        .as_ref()
        .is_some_and(|l| l.get(SKIP_MIRROR).is_some_and(|v| v == "true"));
    let elects = meta.annotations.as_ref().is_some_and(|a| a.contains_key(LEADER));
    !skips && !elects
}

/// The Service whose Endpoints this slice mirrors.
fn service_of(slice: &Object) -> Option<ObjectKey> {
    if slice.kind() != &registry::ENDPOINT_SLICE {
        return None;
    }
    let labels = slice.metadata().labels.as_ref()?;
    let name = labels.get(SERVICE_NAME).filter(|name| !name.is_empty())?;
    (labels.get(ENDPOINT_SLICE_MANAGED_BY)? == MANAGER).then(|| ObjectKey::new(slice.namespace(), name))
}

fn remove(slice: &Shared<EndpointSlice>) -> Action {
    Action::Delete(Delete::of(slice.object()))
}

/// One slice for each group with endpoints: the existing one, one that would otherwise be deleted, or a new one.
fn mirror(endpoints: &Shared<EndpointsObject>, existing: &[Shared<EndpointSlice>]) -> Vec<Action> {
    let desired = desired(endpoints.subsets.as_deref().unwrap_or_default());
    let mut unused: Vec<&Shared<EndpointSlice>> = Vec::new();
    let mut by_group: BTreeMap<Group, &Shared<EndpointSlice>> = BTreeMap::new();
    for slice in existing {
        let group = group_of(slice);
        if desired.groups.contains_key(&group) && !by_group.contains_key(&group) {
            by_group.insert(group, slice);
        } else {
            unused.push(slice);
        }
    }
    let mut actions = Vec::new();
    for (group, desired_endpoints) in desired.groups {
        let before = by_group.get(&group).copied().or_else(|| {
            let at = unused.iter().position(|s| s.address_type == group.address_type)?;
            Some(unused.remove(at))
        });
        match before {
            Some(before) => {
                actions.extend(updated(endpoints, &group, desired_endpoints, before).map(Action::update))
            }
            // Endpoints that are being deleted get no new slice, which would be deleted at once.
            None if endpoints.metadata.deletion_timestamp.is_some() => {}
            None => actions.push(Action::Create(Create::new(created(
                endpoints,
                &group,
                desired_endpoints,
            )))),
        }
    }
    actions.extend(unused.into_iter().map(remove));
    let about = reference(endpoints.object());
    if desired.invalid > 0 {
        let message = format!(
            "Skipped {} invalid IP addresses when mirroring to EndpointSlices",
            desired.invalid
        );
        actions.push(Action::warning(&about, "InvalidIPAddress", message));
    }
    if desired.skipped > 0 {
        let message = format!(
            "A max of {MAX_ADDRESSES} addresses can be mirrored to EndpointSlices per Endpoints subset. {} addresses were skipped",
            desired.skipped + desired.invalid
        );
        actions.push(Action::warning(&about, "TooManyAddressesToMirror", message));
    }
    actions
}

fn labels(endpoints: &Shared<EndpointsObject>) -> BTreeMap<String, String> {
    let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.into(), endpoints.object().name().into());
    labels.insert(ENDPOINT_SLICE_MANAGED_BY.into(), MANAGER.into());
    labels
}

fn annotations(endpoints: &EndpointsObject) -> Option<BTreeMap<String, String>> {
    let mut annotations = endpoints.metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| !NOT_MIRRORED.contains(&key.as_str()));
    (!annotations.is_empty()).then_some(annotations)
}

fn created(
    endpoints: &Shared<EndpointsObject>,
    group: &Group,
    desired_endpoints: Vec<Endpoint>,
) -> EndpointSlice {
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", endpoints.object().name())),
            namespace: Some(endpoints.object().namespace().into()),
            labels: Some(labels(endpoints)),
            annotations: annotations(endpoints),
            owner_references: Some(vec![controller_reference(endpoints.object())]),
            ..ObjectMeta::default()
        },
        address_type: group.address_type.into(),
        endpoints: Some(desired_endpoints),
        ports: Some(group.ports()),
    }
}

/// The desired slice, if it differs from the existing one.
fn updated(
    endpoints: &Shared<EndpointsObject>,
    group: &Group,
    desired_endpoints: Vec<Endpoint>,
    before: &Shared<EndpointSlice>,
) -> Option<EndpointSlice> {
    let mut after = (**before).clone();
    after.metadata.labels = Some(labels(endpoints));
    let kept = before.metadata.annotations.clone().filter(|a| !a.is_empty());
    if kept != annotations(endpoints) {
        after.metadata.annotations = annotations(endpoints);
    }
    // Endpoints that were deleted and created again are another owner; the slices must not be collected with the first.
    let owner = controller_reference(endpoints.object());
    let owners = before.metadata.owner_references.iter().flatten();
    if !owners.clone().any(|o| o.uid == owner.uid) {
        after.metadata.owner_references = Some(vec![owner]);
    }
    if group_of(before) != *group {
        after.ports = Some(group.ports());
    }
    let sorted = |mut all: Vec<Endpoint>| {
        all.sort_by(|a, b| a.addresses.cmp(&b.addresses));
        all
    };
    let desired_endpoints = sorted(desired_endpoints);
    if sorted(before.endpoints.clone().unwrap_or_default()) != desired_endpoints {
        after.endpoints = Some(desired_endpoints);
    }
    (after != **before).then_some(after)
}
