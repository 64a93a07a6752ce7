//! EndpointSlices: a Service's endpoints in pieces of at most 100, which change as little as can be.
//!
//! An endpoint stays in the slice it is in; new ones fill slices that have room, those that change anyway first.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey, Shared};

use super::{
    HEADLESS, Port, hostname, is_addressable, is_headless, ports, publishes_not_ready, selector, selects,
    target,
};
use crate::action::{Action, Create, Delete};
use crate::controller::{Changed, Context, Controller, View};
use crate::owner::controller_reference;
use crate::pod;

/// Endpoints in one slice (kube-controller-manager's usual number).
pub const MAX_ENDPOINTS: usize = 100;
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const ZONE: &str = "topology.kubernetes.io/zone";

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

    fn keys(&self, view: &dyn View, changed: Changed<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::SERVICE) {
            return vec![key];
        }
        if changed.kind == &registry::POD {
            return super::services_of(view, changed);
        }
        if changed.kind == &registry::NODE {
            let zone =
                |n: &knarr_api::Object| n.metadata().labels.as_ref().and_then(|l| l.get(ZONE).cloned());
            if let (Some(old), Some(new)) = (changed.old, changed.new)
                && zone(old) == zone(new)
            {
                return Vec::new();
            }
            let name = changed.object().map(|n| n.name()).unwrap_or("");
            return super::services_on(view, name);
        }
        // Somebody else has touched a slice of ours: put it right.
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
        // A Service that has gone takes its slices along: it owns them.
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
        let existing: Vec<_> = existing.into_iter().filter(|s| is_ours(&s.metadata)).collect();

        let families = families(&service);
        let mut actions = Vec::new();
        for slice in existing
            .iter()
            .filter(|s| !families.contains(&s.address_type.as_str()))
        {
            actions.push(Action::Delete(Delete::of(slice.object())));
        }
        for family in families {
            let of_family = existing.iter().filter(|s| s.address_type == family).collect();
            let desired = desired(context.view, &service, &pods, family);
            actions.extend(divide(&service, family, of_family, desired));
        }
        actions
    }
}

fn is_ours(meta: &ObjectMeta) -> bool {
    let manager = meta.labels.as_ref().and_then(|l| l.get(MANAGED_BY));
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

/// What the slices are to show: for each set of ports, endpoints by pod.
type Desired = BTreeMap<Vec<Port>, BTreeMap<String, Endpoint>>;

fn desired(view: &dyn View, service: &Service, pods: &[Shared<Pod>], family: &str) -> Desired {
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
        // A pod whose node has gone is as good as gone.
        if node.is_none() && !publish {
            continue;
        }
        let (serving, terminating) = (pod::is_ready(pod), pod::is_deleting(pod));
        let endpoint = Endpoint {
            addresses,
            conditions: Some(EndpointConditions {
                ready: Some(publish || (serving && !terminating)),
                serving: Some(serving),
                terminating: Some(terminating),
            }),
            target_ref: Some(target(pod)),
            node_name: (!node_name.is_empty()).then(|| node_name.to_string()),
            zone: node.and_then(|n| n.metadata.labels.as_ref()?.get(ZONE).cloned()),
            hostname: hostname(service, pod),
            ..Endpoint::default()
        };
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
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    labels
}

fn pod_uid(endpoint: &Endpoint) -> &str {
    let target = endpoint.target_ref.as_ref();
    target.and_then(|t| t.uid.as_deref()).unwrap_or("")
}

/// A slice in the making.
struct Draft<'a> {
    before: Option<&'a Shared<EndpointSlice>>,
    ports: Vec<Port>,
    endpoints: Vec<Endpoint>,
}

impl Draft<'_> {
    fn changes(&self) -> bool {
        self.before
            .is_some_and(|b| b.endpoints.as_deref().unwrap_or_default() != self.endpoints)
    }
}

/// Shares the endpoints out among the slices there are, and new ones if they do not do.
fn divide(
    service: &Shared<Service>,
    family: &'static str,
    existing: Vec<&Shared<EndpointSlice>>,
    mut desired: Desired,
) -> Vec<Action> {
    let mut drafts: Vec<Draft<'_>> = Vec::new();
    for slice in existing {
        let ports = desired
            .keys()
            .find(|p| endpoint_ports(p) == slice.ports.clone().filter(|p| !p.is_empty()))
            .cloned();
        let mut kept = Vec::new();
        if let Some(wanted) = ports.as_ref().and_then(|p| desired.get_mut(p)) {
            let before = slice.endpoints.as_deref().unwrap_or_default();
            kept.extend(before.iter().filter_map(|e| wanted.remove(pod_uid(e))));
        }
        drafts.push(Draft {
            before: Some(slice),
            ports: ports.unwrap_or_default(),
            endpoints: kept,
        });
    }
    for (ports, new) in desired {
        let mut new = new.into_values();
        // Slices that are written anyway first, of these the fullest.
        let mut open: Vec<&mut Draft<'_>> = drafts
            .iter_mut()
            .filter(|d| {
                d.before
                    .is_some_and(|b| b.ports.clone().filter(|p| !p.is_empty()) == endpoint_ports(&ports))
            })
            .collect();
        open.sort_by_key(|d| (!d.changes(), usize::MAX - d.endpoints.len()));
        for draft in open {
            let room = MAX_ENDPOINTS.saturating_sub(draft.endpoints.len());
            if new.len() > 0 && room > 0 {
                draft.ports = ports.clone();
                draft.endpoints.extend(new.by_ref().take(room));
            }
        }
        while new.len() > 0 {
            drafts.push(Draft {
                before: None,
                ports: ports.clone(),
                endpoints: new.by_ref().take(MAX_ENDPOINTS).collect(),
            });
        }
    }
    // A Service without endpoints shows that with one empty slice.
    if drafts.iter().all(|d| d.endpoints.is_empty()) {
        let stays = drafts.iter().position(|d| {
            d.before
                .is_some_and(|b| b.ports.as_ref().is_none_or(Vec::is_empty))
        });
        match stays {
            Some(at) => drafts.swap(0, at),
            None => drafts.insert(
                0,
                Draft {
                    before: None,
                    ports: Vec::new(),
                    endpoints: Vec::new(),
                },
            ),
        }
        let mut drafts = drafts.into_iter();
        let first = drafts.next().and_then(|d| write(service, family, d));
        return first.into_iter().chain(drafts.filter_map(remove)).collect();
    }
    let (empty, full): (Vec<_>, Vec<_>) = drafts.into_iter().partition(|d| d.endpoints.is_empty());
    let writes = full.into_iter().filter_map(|d| write(service, family, d));
    // First what is new, then what goes: no endpoint is without a slice in between.
    writes.chain(empty.into_iter().filter_map(remove)).collect()
}

fn remove(draft: Draft<'_>) -> Option<Action> {
    Some(Action::Delete(Delete::of(draft.before?.object())))
}

fn write(service: &Shared<Service>, family: &str, draft: Draft<'_>) -> Option<Action> {
    let endpoints = Some(draft.endpoints);
    let ports = endpoint_ports(&draft.ports);
    match draft.before {
        None => Some(Action::Create(Create::new(EndpointSlice {
            metadata: ObjectMeta {
                generate_name: Some(format!("{}-", service.object().name())),
                namespace: Some(service.object().namespace().to_string()),
                labels: Some(labels(service)),
                owner_references: Some(vec![controller_reference(service.object())]),
                ..ObjectMeta::default()
            },
            address_type: family.to_string(),
            endpoints,
            ports,
        }))),
        Some(before) => {
            let wanted = labels(service);
            let none = |e: &Option<Vec<Endpoint>>| e.clone().unwrap_or_default();
            if none(&before.endpoints) == none(&endpoints) && before.metadata.labels.as_ref() == Some(&wanted)
            {
                return None;
            }
            let mut after = (**before).clone();
            after.endpoints = endpoints;
            after.metadata.labels = Some(wanted);
            Some(Action::update(after))
        }
    }
}
