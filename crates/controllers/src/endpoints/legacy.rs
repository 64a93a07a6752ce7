//! Endpoints: the older API, one object for each Service. Terminating pods are not in it (SPEC T7).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints as EndpointsObject, Pod, Service,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey, Shared};

use super::{
    HEADLESS, Port, addresses, hostname, is_addressable, is_headless, ports, publishes_not_ready, selector,
    selects, target,
};
use crate::action::{Action, Create, Delete, LiveCheck};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::pod;

/// Addresses in one object (Kubernetes' limit); further ones are left out, and an annotation reports it.
pub const MAX_ADDRESSES: usize = 1000;
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";

/// See the module. Its keys are Services, which its objects are named after.
pub struct Endpoints;

impl Controller for Endpoints {
    fn name(&self) -> &'static str {
        MANAGER
    }

    fn account(&self) -> &'static str {
        "endpoint-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::SERVICE, &registry::POD, &registry::ENDPOINTS]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if changed.kind == &registry::POD {
            return super::services_of(view, changed);
        }
        changed.object().map(ObjectKey::of).into_iter().collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let key = context.key;
        let old = context.view.get_as::<EndpointsObject>(&key.namespace, &key.name);
        if context.failure.is_some() {
            return Vec::new();
        }
        let Some(service) = context.view.get_as::<Service>(&key.namespace, &key.name) else {
            // Only Endpoints of this controller are deleted with the Service: users may keep Endpoints of their own.
            let ours = old.filter(|o| {
                o.metadata
                    .labels
                    .as_ref()
                    .is_some_and(|l| l.contains_key(MANAGED_BY))
            });
            // The cache of Services may be older than that of Endpoints.
            let absent = LiveCheck::Absent {
                kind: registry::SERVICE.clone(),
                key: key.clone(),
            };
            let delete = |o: Shared<EndpointsObject>| {
                vec![Action::Require(absent), Action::Delete(Delete::of(o.object()))]
            };
            return ours.map(delete).unwrap_or_default();
        };
        let Some(selector) = selector(&service) else {
            return Vec::new();
        };
        if service.metadata.deletion_timestamp.is_some() {
            return Vec::new();
        }
        let pods: Vec<Shared<Pod>> = context.view.list_as(&key.namespace);
        let (subsets, truncated) = subsets(&service, pods.iter().filter(|p| selects(selector, p)));
        let mut labels = service.metadata.labels.clone().unwrap_or_default();
        labels.remove(HEADLESS);
        if is_headless(&service) {
            labels.insert(HEADLESS.into(), String::new());
        }
        labels.insert(MANAGED_BY.into(), MANAGER.into());

        let mut new = match &old {
            Some(old) => (**old).clone(),
            None => EndpointsObject {
                metadata: ObjectMeta {
                    namespace: Some(key.namespace.clone()),
                    name: Some(key.name.clone()),
                    ..ObjectMeta::default()
                },
                subsets: None,
            },
        };
        new.subsets = (!subsets.is_empty()).then_some(subsets);
        new.metadata.labels = Some(labels);
        if truncated {
            let annotations = new.metadata.annotations.get_or_insert_default();
            annotations.insert(OVER_CAPACITY.into(), "truncated".into());
        } else if let Some(annotations) = &mut new.metadata.annotations {
            annotations.remove(OVER_CAPACITY);
        }
        match old {
            None => vec![Action::Create(Create::new(new))],
            Some(old) if *old != new => vec![Action::update(new)],
            Some(_) => Vec::new(),
        }
    }
}

/// Addresses with the same ports together, sorted; and whether some were left out.
fn subsets<'a>(
    service: &Service,
    pods: impl Iterator<Item = &'a Shared<Pod>>,
) -> (Vec<EndpointSubset>, bool) {
    type Addresses = Vec<EndpointAddress>;
    let publish = publishes_not_ready(service);
    let has_no_ports = service
        .spec
        .as_ref()
        .is_none_or(|s| s.ports.as_ref().is_none_or(Vec::is_empty));
    let mut by_ports: BTreeMap<Vec<Port>, (Addresses, Addresses)> = BTreeMap::new();
    let mut count = 0;
    let mut truncated = false;
    let v6 = service
        .spec
        .as_ref()
        .and_then(|s| s.ip_families.as_ref()?.first())
        .is_some_and(|f| f == "IPv6");
    for pod in pods {
        if !is_addressable(pod) || (pod::is_deleting(pod) && !publish) {
            continue;
        }
        let Some(ip) = addresses(pod).into_iter().find(|ip| ip.contains(':') == v6) else {
            continue;
        };
        let ports = ports(service, pod);
        if ports.is_empty() && !has_no_ports {
            continue;
        }
        if count == MAX_ADDRESSES {
            truncated = true;
            break;
        }
        count += 1;
        let node = pod::node_name(pod);
        let address = EndpointAddress {
            ip: ip.to_string(),
            node_name: (!node.is_empty()).then(|| node.to_string()),
            target_ref: Some(target(pod)),
            hostname: hostname(service, pod),
        };
        let (ready, not_ready) = by_ports.entry(ports).or_default();
        if publish || pod::is_ready(pod) {
            ready.push(address);
        } else {
            not_ready.push(address);
        }
    }
    let subsets = by_ports
        .into_iter()
        .map(|(ports, (ready, not_ready))| EndpointSubset {
            addresses: sorted(ready),
            not_ready_addresses: sorted(not_ready),
            ports: endpoint_ports(ports),
        });
    (subsets.collect(), truncated)
}

fn sorted(mut addresses: Vec<EndpointAddress>) -> Option<Vec<EndpointAddress>> {
    addresses.sort_by(|a, b| a.ip.cmp(&b.ip));
    (!addresses.is_empty()).then_some(addresses)
}

fn endpoint_ports(ports: Vec<Port>) -> Option<Vec<EndpointPort>> {
    let ports: Vec<EndpointPort> = ports
        .into_iter()
        .map(|p| EndpointPort {
            name: Some(p.name).filter(|n| !n.is_empty()),
            port: p.number,
            protocol: Some(p.protocol),
            app_protocol: p.app_protocol,
        })
        .collect();
    (!ports.is_empty()).then_some(ports)
}
