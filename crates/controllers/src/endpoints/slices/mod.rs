//! EndpointSlices: a Service's endpoints in slices of at most 100, which change as little as possible.
//!
//! [`mod@plan`] decides which endpoint is in which slice, [`hints`] which zones and nodes an endpoint is for.
//! A slice has the time of the change that led to its last update (`endpoints.kubernetes.io/last-change-trigger-time`).
//!
//! A terminating pod never becomes ready again. Where a slice has a pod as terminating and the caches do not, the slice was written
//! by a controller with a newer cache (a former leader, or another control plane): before the pod is an endpoint again, it is read live.

use knarr_apimachinery::ids::PodUid;

mod hints;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::well_known::{ENDPOINT_SLICE_MANAGED_BY, LAST_CHANGE_TRIGGER_TIME, SERVICE_NAME, ZONE};
use knarr_api::{Kind, ObjectKey, Shared};

use self::hints::{Hints, Preference};
use self::plan::{Desired, Draft, plan};
use super::{
    HEADLESS, Port, hostname, is_addressable, is_headless, ports, publishes_not_ready, selector, selects,
    target,
};
use crate::action::{Action, Create, Delete, LiveCheck, reference};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::owner::controller_reference;
use crate::pod;

/// Endpoints in one slice (kube-controller-manager's usual number).
pub const MAX_ENDPOINTS: usize = 100;
const MANAGER: &str = "endpointslice-controller.k8s.io";

/// See the module. Its keys are Services.
pub struct EndpointSlices;

impl Controller for EndpointSlices {
    fn name(&self) -> &'static str {
        "endpoint-slice-controller"
    }

    fn account(&self) -> &'static str {
        "endpointslice-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![
            &registry::SERVICE,
            &registry::POD,
            &registry::NODE,
            &registry::ENDPOINT_SLICE,
        ]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::SERVICE) {
            return vec![key];
        }
        if changed.kind == &registry::POD {
            return super::services_of(view, changed);
        }
        if changed.kind == &registry::NODE {
            return node_keys(view, changed);
        }
        // Another client has changed a slice of this controller: it is corrected.
        let object = changed.object().filter(|o| is_ours(o.metadata()));
        let labels = object.and_then(|o| o.metadata().labels.as_ref());
        let service = labels.and_then(|l| l.get(SERVICE_NAME));
        let key = object
            .zip(service)
            .map(|(o, name)| ObjectKey::new(o.namespace(), name));
        key.into_iter().collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let key = context.key;
        // The slices of a deleted Service are garbage-collected: it owns them.
        let Some(service) = context.view.get_as::<Service>(&key.namespace, &key.name) else {
            return Vec::new();
        };
        let Some(selector) = selector(&service) else {
            return Vec::new();
        };
        if service.metadata.deletion_timestamp.is_some() || context.failure.is_some() {
            return Vec::new();
        }
        let pods: Vec<Shared<Pod>> = context.view.list_as(&key.namespace);
        let pods: Vec<_> = pods
            .into_iter()
            .filter(|p| selects(selector, p) && is_addressable(p))
            .collect();
        let existing: Vec<Shared<EndpointSlice>> = context.view.controlled_by_as(service.object().uid());
        let existing: Vec<_> = existing
            .into_iter()
            .filter(|s| is_ours(&s.metadata) && s.metadata.deletion_timestamp.is_none())
            .collect();

        let families = families(&service);
        let hints = Hints::of(&service, context.view);
        let trigger = TriggerTimeTracker::new(&service, &existing);
        let mut actions = Vec::new();
        for slice in existing
            .iter()
            .filter(|s| !families.contains(&s.address_type.as_str()))
        {
            actions.push(Action::Delete(Delete::of(slice.object())));
        }
        let mut written = SliceWriter {
            service: &service,
            trigger,
            hints: &hints,
            events: Vec::new(),
            writes: Vec::new(),
            deletes: Vec::new(),
        };
        for family in families {
            let of_family: Vec<_> = existing.iter().filter(|s| s.address_type == family).collect();
            let desired = desired(context.view, &service, &pods, family, &hints);
            written.family(family, of_family, desired, &pods);
        }
        let changes = !(actions.is_empty() && written.writes.is_empty() && written.deletes.is_empty());
        let mut actions: Vec<Action> = returning_pods(&existing, &pods)
            .filter(|_| changes)
            .map(require_alive)
            .chain(actions)
            .collect();
        // First creates and updates, then deletes: every endpoint is in a slice at all times.
        actions.extend(written.writes);
        actions.extend(written.deletes);
        actions.extend(written.events);
        actions
    }
}

/// The Services to enqueue for a node's change: those with pods on it, if its zone has changed; and those with topology hints by
/// the zones' CPUs, if its CPUs count and have changed.
fn node_keys(view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
    let [old, new] = [changed.old, changed.new].map(|of| of.and_then(|object| object.get::<Node>()));
    let mut keys = Vec::new();
    if old.is_none() || new.is_none() || old.map(zone_of) != new.map(zone_of) {
        let name = changed.object().map(|n| n.name()).unwrap_or("");
        keys = super::services_on(view, name);
    }
    if hints::capacity(old) != hints::capacity(new) {
        let services = view.list_as::<Service>("").into_iter();
        let by_zone = services.filter(|s| hints::preference(s) == Preference::Proportional);
        keys.extend(by_zone.map(|s| ObjectKey::of(s.object())));
        keys.sort();
        keys.dedup();
    }
    keys
}

fn zone_of(node: &Node) -> Option<&str> {
    let zone = node.metadata.labels.as_ref()?.get(ZONE)?;
    Some(zone.as_str()).filter(|z| !z.is_empty())
}

fn is_ours(meta: &ObjectMeta) -> bool {
    let manager = meta
        .labels
        .as_ref()
        .and_then(|l| l.get(ENDPOINT_SLICE_MANAGED_BY));
    manager.map(String::as_str) == Some(MANAGER)
}

/// The address types of a Service.
fn families(service: &Service) -> Vec<&'static str> {
    let spec = service.spec.clone().unwrap_or_default();
    let mut families: Vec<&str> = Vec::new();
    for family in spec.ip_families.iter().flatten() {
        match family.as_str() {
            "IPv4" => families.push("IPv4"),
            "IPv6" => families.push("IPv6"),
            _ => {}
        }
    }
    if families.is_empty() {
        let v6 = spec.cluster_ip.is_some_and(|ip| ip.contains(':'));
        families.push(if v6 { "IPv6" } else { "IPv4" });
    }
    families
}

fn desired(view: &dyn View, service: &Service, pods: &[Shared<Pod>], family: &str, hints: &Hints) -> Desired {
    let mut desired = Desired::new();
    let publish = publishes_not_ready(service);
    for pod in pods {
        let of_family = |ip: &&str| {
            let v6 = matches!(ip.parse(), Ok(IpAddr::V6(_)));
            v6 == (family == "IPv6")
        };
        let addresses: Vec<String> = super::addresses(pod)
            .into_iter()
            .filter(of_family)
            .map(String::from)
            .collect();
        if addresses.is_empty() {
            continue;
        }
        let node_name = pod::node_name(pod);
        let node = view.get_as::<Node>("", node_name);
        // A pod whose node does not exist is no endpoint; when the node is added, its pods' Services are enqueued.
        if node.is_none() && !publish {
            continue;
        }
        let (serving, terminating) = (pod::is_ready(pod), pod::is_deleting(pod));
        let mut endpoint = Endpoint {
            addresses,
            conditions: Some(EndpointConditions {
                ready: Some(publish || (serving && !terminating)),
                serving: Some(serving),
                terminating: Some(terminating),
            }),
            target_ref: Some(target(pod)),
            node_name: (!node_name.is_empty()).then(|| node_name.to_string()),
            zone: node.as_ref().and_then(|n| zone_of(n)).map(String::from),
            hostname: hostname(service, pod),
            ..Endpoint::default()
        };
        endpoint.hints = hints.of_endpoint(&endpoint);
        let of_ports = desired.entry(ports(service, pod)).or_default();
        of_ports.insert(pod.object().uid().to_string(), endpoint);
    }
    desired
}

fn endpoint_ports(ports: &[Port]) -> Option<Vec<EndpointPort>> {
    let ports: Vec<EndpointPort> = ports
        .iter()
        .map(|p| EndpointPort {
            name: Some(p.name.clone()),
            port: Some(p.number),
            protocol: Some(p.protocol.clone()),
            app_protocol: p.app_protocol.clone(),
        })
        .collect();
    (!ports.is_empty()).then_some(ports)
}

fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if is_headless(service) {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels.insert(
        SERVICE_NAME.into(),
        service.metadata.name.clone().unwrap_or_default(),
    );
    labels.insert(ENDPOINT_SLICE_MANAGED_BY.into(), MANAGER.into());
    labels
}

/// The uid of an endpoint's pod.
fn pod_uid(endpoint: &Endpoint) -> &str {
    let target = endpoint.target_ref.as_ref();
    target.and_then(|t| t.uid.as_deref()).unwrap_or("")
}

/// Computes the trigger time of a change: the earliest change of readiness among the pods whose endpoints change, or the
/// Service's creation if it has no slices yet (for the metric of network programming latency).
enum TriggerTimeTracker<'a> {
    Created(Option<Time>),
    /// The existing endpoints, by address family and pod uid.
    ObjectChange(BTreeMap<(&'a str, &'a str), &'a Endpoint>),
}

impl<'a> TriggerTimeTracker<'a> {
    fn new(service: &Service, existing: &'a [Shared<EndpointSlice>]) -> Self {
        if existing.is_empty() {
            return TriggerTimeTracker::Created(service.metadata.creation_timestamp.clone());
        }
        let shown = existing.iter().flat_map(|slice| {
            let endpoints = slice.endpoints.iter().flatten();
            endpoints.map(|e| ((slice.address_type.as_str(), pod_uid(e)), e))
        });
        TriggerTimeTracker::ObjectChange(shown.collect())
    }

    fn time(&self, family: &str, desired: &Desired, pods: &[Shared<Pod>]) -> Option<Timestamp> {
        let shown = match self {
            TriggerTimeTracker::Created(at) => return at.as_ref().map(|at| at.0),
            TriggerTimeTracker::ObjectChange(shown) => shown,
        };
        let changes = pods.iter().filter(|pod| {
            let uid = pod.object().uid();
            let before = shown.get(&(family, uid));
            let mut now = desired.values().filter_map(|group| group.get(uid));
            now.any(|e| !before.is_some_and(|before| is_shown_by(e, before)))
        });
        let times = changes.filter_map(|pod| pod::condition(pod, "Ready")?.last_transition_time.clone());
        times.map(|at| at.0).min()
    }
}

/// The pods that are terminating in a slice, but not in the caches.
fn returning_pods<'a>(
    existing: &[Shared<EndpointSlice>],
    pods: &'a [Shared<Pod>],
) -> impl Iterator<Item = &'a Shared<Pod>> {
    let endpoints = existing.iter().flat_map(|slice| slice.endpoints.iter().flatten());
    let terminating = endpoints.filter(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.is_some_and(|c| c.terminating == Some(true))
    });
    let terminating: BTreeSet<PodUid> = terminating.map(|e| pod_uid(e).into()).collect();
    let is_returning =
        move |pod: &&Shared<Pod>| !pod::is_deleting(pod) && terminating.contains(pod.object().uid());
    pods.iter().filter(is_returning)
}

fn require_alive(pod: &Shared<Pod>) -> Action {
    Action::Require(LiveCheck::Exists {
        kind: registry::POD.clone(),
        key: ObjectKey::of(pod.object()),
        uid: pod.object().uid().into(),
    })
}

/// Whether both endpoints are the same, apart from hints, which depend on other pods too.
fn is_shown_by(endpoint: &Endpoint, before: &Endpoint) -> bool {
    let Endpoint {
        addresses,
        conditions,
        deprecated_topology: _,
        hints: _,
        hostname,
        node_name,
        target_ref,
        zone,
    } = endpoint;
    *addresses == before.addresses
        && *conditions == before.conditions
        && *hostname == before.hostname
        && *node_name == before.node_name
        && *target_ref == before.target_ref
        && *zone == before.zone
}

/// The writes of a Service's slices.
struct SliceWriter<'a> {
    service: &'a Shared<Service>,
    trigger: TriggerTimeTracker<'a>,
    hints: &'a Hints,
    writes: Vec<Action>,
    deletes: Vec<Action>,
    events: Vec<Action>,
}

impl SliceWriter<'_> {
    fn family(
        &mut self,
        family: &'static str,
        existing: Vec<&Shared<EndpointSlice>>,
        desired: Desired,
        pods: &[Shared<Pod>],
    ) {
        let trigger = self.trigger.time(family, &desired, pods);
        let had_hints = existing.iter().any(|s| {
            let mut endpoints = s.endpoints.iter().flatten();
            endpoints.any(|e| e.hints.is_some())
        });
        let labels = labels(self.service);
        let mut drafts = plan(existing, desired, &labels, self.hints.are_kept());
        let report = self.hints.add_hints(&mut drafts, had_hints);
        if let Some(report) = report {
            let about = reference(self.service.object());
            let message = format!("{}, addressType: {family}", report.message);
            self.events.push(match report.warning {
                true => Action::warning(&about, report.reason, message),
                false => Action::event(&about, report.reason, message),
            });
        }
        for draft in drafts {
            match (draft.before, draft.is_kept()) {
                (Some(before), false) => self.deletes.push(Action::Delete(Delete::of(before.object()))),
                (Some(before), true) => {
                    let updated = updated(before, draft, &labels, trigger);
                    self.writes.extend(updated.map(Action::update));
                }
                (None, _) => {
                    let created = created(self.service, family, draft, &labels, trigger);
                    self.writes.push(Action::Create(Create::new(created)));
                }
            }
        }
    }
}

fn created(
    service: &Shared<Service>,
    family: &str,
    draft: Draft<'_>,
    labels: &BTreeMap<String, String>,
    trigger: Option<Timestamp>,
) -> EndpointSlice {
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", service.object().name())),
            namespace: Some(service.object().namespace().to_string()),
            labels: Some(labels.clone()),
            annotations: trigger.map(|at| [(LAST_CHANGE_TRIGGER_TIME.to_string(), at.to_string())].into()),
            owner_references: Some(vec![controller_reference(service.object())]),
            ..ObjectMeta::default()
        },
        address_type: family.to_string(),
        ports: endpoint_ports(&draft.ports),
        endpoints: Some(draft.endpoints),
    }
}

/// The desired slice, if it differs from the existing one.
fn updated(
    before: &Shared<EndpointSlice>,
    draft: Draft<'_>,
    labels: &BTreeMap<String, String>,
    trigger: Option<Timestamp>,
) -> Option<EndpointSlice> {
    if !draft.differs(labels) {
        return None;
    }
    let mut after = (**before).clone();
    if !draft.has_ports_of(before) {
        after.ports = endpoint_ports(&draft.ports);
    }
    after.endpoints = Some(draft.endpoints);
    after.metadata.labels = Some(labels.clone());
    match trigger {
        Some(at) => {
            let annotations = after.metadata.annotations.get_or_insert_default();
            annotations.insert(LAST_CHANGE_TRIGGER_TIME.into(), at.to_string());
        }
        None => {
            if let Some(annotations) = &mut after.metadata.annotations {
                annotations.remove(LAST_CHANGE_TRIGGER_TIME);
            }
        }
    }
    Some(after)
}
