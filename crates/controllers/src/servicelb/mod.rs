//! A load balancer without a cloud: a Service of type LoadBalancer gets the addresses of the nodes (as k3s' servicelb).
//!
//! It concerns Services without `loadBalancerClass`, and those with [`CLASS`]. Their `status.loadBalancer.ingress` names
//! addresses of nodes that are ready, are not excluded by `node.kubernetes.io/exclude-from-external-load-balancers`, and
//! are selected by [`nodes::ENABLED`] and [`nodes::POOL`]; with `externalTrafficPolicy: Local` only nodes with a ready endpoint, as long
//! as there is one: clients may wait for an address before the first pod is ready. ExternalIPs are used if there are any, InternalIPs
//! otherwise, in the order of the Service's families.
//! Every node's service proxy serves these addresses.
//!
//! Two Services cannot have the same port of an address. The one that has it keeps it, among new ones the oldest gets it, and
//! the other one waits with the condition [`CONDITION`] and an event that name the first. The same holds for node ports of
//! other Services, and for [`Config::reserved_ports`], on which the nodes themselves listen.
//!
//! While no node is ready the addresses are kept: more likely the control plane is cut off.

mod nodes;
mod ports;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{LoadBalancerIngress, Node, Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::well_known::SERVICE_NAME;
use knarr_api::{Kind, Object, ObjectKey, Shared};
use knarr_apimachinery::time::seconds;

use self::nodes::{Candidate, candidate};
use self::ports::Holders;
pub use self::ports::Port;
use crate::action::{Action, reference};
use crate::controller::{Context, Controller, ObjectChange, View};

/// The `loadBalancerClass` of Services that get nodes' addresses although another load balancer is the default.
pub const CLASS: &str = "knarr.io/node-addresses";
/// The condition that reports whether a Service has its addresses, and if not, why.
pub const CONDITION: &str = "knarr.io/LoadBalancerReady";
/// The most addresses of one Service: more than a client tries, and a status that stays small in a large cluster.
pub const MAX_ADDRESSES: usize = 128;
/// The finalizer that keeps a Service until its addresses are released, as with Kubernetes' service controller.
pub const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// The configuration of the load balancer.
#[derive(Clone, Debug)]
pub struct Config {
    /// Ports of the nodes that no Service gets: those of the API server, of kubelets, of etcd, …
    pub reserved_ports: BTreeSet<Port>,
}

impl Default for Config {
    /// The kubelet's port.
    fn default() -> Self {
        Config {
            reserved_ports: [Port::tcp(10250)].into(),
        }
    }
}

/// See the module. It has one key, for every Service's addresses depend on every other's.
pub struct ServiceLoadBalancer {
    pub config: Config,
}

impl Controller for ServiceLoadBalancer {
    fn name(&self) -> &'static str {
        "knarr-service-lb"
    }

    fn account(&self) -> &'static str {
        "knarr-service-lb"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::SERVICE, &registry::NODE, &registry::ENDPOINT_SLICE]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        let concerns = match changed.kind {
            kind if kind == &registry::SERVICE => changed
                .states()
                .filter_map(|o| o.get::<Service>())
                .any(|s| is_balanced(s) || has_node_ports(s) || condition(s).is_some()),
            kind if kind == &registry::NODE => {
                let node = |o: Option<&Object>| o.and_then(|o| o.get::<Node>()).cloned();
                let (old, new) = (node(changed.old), node(changed.new));
                old.as_ref().and_then(candidate) != new.as_ref().and_then(candidate)
            }
            _ => slice_concerns(view, changed),
        };
        concerns
            .then(|| ObjectKey::new("", "nodes"))
            .into_iter()
            .collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        if context.failure.is_some() {
            return Vec::new();
        }
        let view = context.view;
        let services: Vec<Shared<Service>> = view.list_as("");
        let mut ours: Vec<&Shared<Service>> = services.iter().filter(|s| is_balanced(s)).collect();
        // Services that have addresses first, then the oldest.
        ours.sort_by_cached_key(|s| {
            let created = s.metadata.creation_timestamp.as_ref().map(|t| t.0);
            (ingress(s).is_empty(), created, ObjectKey::of(s.object()))
        });
        let nodes: Vec<Shared<Node>> = view.list_as("");
        let candidates: Vec<Candidate<'_>> = nodes.iter().filter_map(|n| candidate(n)).collect();
        let candidates = nodes::enabled(candidates);
        let mut holders = Holders::new(&self.config.reserved_ports, &services);

        let mut statuses = Vec::new();
        let mut events = Vec::new();
        for service in ours {
            let decision = if candidates.is_empty() && !ingress(service).is_empty() {
                Ok(addresses_of(service))
            } else {
                decide(view, service, &candidates)
            };
            let decision = decision.and_then(|addresses| {
                let key = ObjectKey::of(service.object());
                holders.take(&key, spec(service), addresses)
            });
            let (status, event) = report(service, decision, context.now);
            statuses.extend(status);
            events.extend(event);
        }
        for service in services.iter().filter(|s| !is_balanced(s)) {
            let (status, event) = release(service);
            statuses.extend(status);
            events.extend(event);
        }
        let mut actions = Vec::new();
        if !statuses.is_empty() {
            actions.push(Action::update_many(statuses.into_iter(), "status"));
        }
        actions.extend(events);
        actions
    }
}

/// Why a Service has no addresses: a reason for the condition, and a sentence.
#[derive(Debug, PartialEq)]
pub(crate) struct Pending {
    reason: &'static str,
    message: String,
}

fn spec(service: &Service) -> &ServiceSpec {
    static NONE: std::sync::OnceLock<ServiceSpec> = std::sync::OnceLock::new();
    service
        .spec
        .as_ref()
        .unwrap_or_else(|| NONE.get_or_init(ServiceSpec::default))
}

fn is_balanced(service: &Service) -> bool {
    let spec = spec(service);
    spec.type_.as_deref() == Some("LoadBalancer")
        && spec
            .load_balancer_class
            .as_deref()
            .is_none_or(|class| class == CLASS)
        && service.metadata.deletion_timestamp.is_none()
}

fn has_node_ports(service: &Service) -> bool {
    let mut ports = spec(service).ports.iter().flatten();
    ports.any(|p| p.node_port.is_some_and(|port| port != 0))
}

fn is_local(service: &Service) -> bool {
    spec(service).external_traffic_policy.as_deref() == Some("Local")
}

fn ingress(service: &Service) -> &[LoadBalancerIngress] {
    let status = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    status.and_then(|b| b.ingress.as_deref()).unwrap_or_default()
}

fn addresses_of(service: &Service) -> Vec<IpAddr> {
    let all = ingress(service).iter();
    all.filter_map(|i| i.ip.as_ref()?.parse().ok()).collect()
}

fn condition(service: &Service) -> Option<&Condition> {
    let conditions = service.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == CONDITION)
}

/// Whether the nodes with ready endpoints have changed in a slice of a Service with `externalTrafficPolicy: Local`.
fn slice_concerns(view: &dyn View, changed: ObjectChange<'_>) -> bool {
    let slice = |o: Option<&Object>| {
        o.and_then(|o| o.get::<EndpointSlice>())
            .map(ready_nodes)
            .unwrap_or_default()
    };
    if slice(changed.old) == slice(changed.new) {
        return false;
    }
    let mut services = changed.states().filter_map(|o| {
        let name = o.metadata().labels.as_ref()?.get(SERVICE_NAME)?;
        view.get_as::<Service>(o.namespace(), name)
    });
    services.any(|s| is_balanced(&s) && is_local(&s))
}

fn ready_nodes(slice: &EndpointSlice) -> BTreeSet<String> {
    let endpoints = slice.endpoints.iter().flatten();
    let ready = endpoints.filter(|e| e.conditions.as_ref().and_then(|c| c.ready) != Some(false));
    ready.filter_map(|e| e.node_name.clone()).collect()
}

/// The addresses of a Service, by the ports that other Services have.
fn decide(
    view: &dyn View,
    service: &Shared<Service>,
    candidates: &[Candidate<'_>],
) -> Result<Vec<IpAddr>, Pending> {
    let mut serving: Vec<&Candidate<'_>> = candidates.iter().filter(|c| c.is_in_pool_of(service)).collect();
    let none = |message: &str| Pending {
        reason: "NoNodes",
        message: message.to_string(),
    };
    if serving.is_empty() {
        return Err(none("there are no available nodes for the load balancer"));
    }
    if is_local(service) {
        let (namespace, name) = (service.object().namespace(), service.object().name());
        let slices = view.list_as::<EndpointSlice>(namespace).into_iter();
        let own = slices.filter(|s| {
            let labels = s.metadata.labels.as_ref();
            labels.and_then(|l| l.get(SERVICE_NAME)).map(String::as_str) == Some(name)
        });
        let local: BTreeSet<String> = own.flat_map(|s| ready_nodes(&s)).collect();
        if serving.iter().any(|c| local.contains(c.name)) {
            serving.retain(|c| local.contains(c.name));
        }
    }
    let mut addresses = nodes::addresses(&serving, spec(service).ip_families.as_deref());
    if let Some(requested) = spec(service)
        .load_balancer_ip
        .as_deref()
        .filter(|ip| !ip.is_empty())
    {
        addresses.retain(|a| requested.parse() == Ok(*a));
        if addresses.is_empty() {
            return Err(Pending {
                reason: "AddressNotAvailable",
                message: format!("loadBalancerIP {requested} is no address of an available node"),
            });
        }
    }
    if addresses.is_empty() {
        return Err(none(
            "no available node has an address of the Service's IP families",
        ));
    }
    addresses.truncate(MAX_ADDRESSES);
    Ok(addresses)
}

/// The Service with its desired status, if it differs, and the event about it.
fn report(
    service: &Shared<Service>,
    decision: Result<Vec<IpAddr>, Pending>,
    now: Timestamp,
) -> (Option<Service>, Vec<Action>) {
    let about = reference(service.object());
    let (had, was) = (ingress(service), condition(service));
    let (addresses, status, reason, message) = match decision {
        Ok(addresses) => (addresses, "True", "Ensured", String::new()),
        Err(pending) => (Vec::new(), "False", pending.reason, pending.message),
    };
    let desired: Vec<LoadBalancerIngress> = addresses
        .iter()
        .map(|address| LoadBalancerIngress {
            ip: Some(address.to_string()),
            ip_mode: Some("VIP".into()),
            ..LoadBalancerIngress::default()
        })
        .collect();
    let same_condition =
        was.is_some_and(|c| c.status == status && c.reason == reason && c.message == message);
    let same_ingress = had == desired;
    if same_condition && same_ingress && has_finalizer(service) {
        return (None, Vec::new());
    }
    let events = match (had.is_empty(), desired.is_empty()) {
        (true, false) => vec![
            Action::event(&about, "EnsuringLoadBalancer", "Ensuring load balancer"),
            Action::event(&about, "EnsuredLoadBalancer", "Ensured load balancer"),
        ],
        (false, false) if !same_ingress => vec![Action::event(
            &about,
            "UpdatedLoadBalancer",
            "Updated load balancer with new hosts",
        )],
        (_, false) => Vec::new(),
        (_, true) if reason == "NoNodes" => vec![Action::warning(
            &about,
            "UnAvailableLoadBalancer",
            message.clone(),
        )],
        (_, true) => vec![Action::warning(
            &about,
            "SyncLoadBalancerFailed",
            format!("Error syncing load balancer: {message}"),
        )],
    };
    let mut changed = (**service).clone();
    if !has_finalizer(service) {
        changed
            .metadata
            .finalizers
            .get_or_insert_default()
            .push(FINALIZER.into());
    }
    let generation = changed.metadata.generation;
    let current = changed.status.get_or_insert_default();
    current.load_balancer.get_or_insert_default().ingress = Some(desired).filter(|w| !w.is_empty());
    let since = was
        .filter(|c| c.status == status)
        .map(|c| c.last_transition_time.clone());
    let conditions = current.conditions.get_or_insert_default();
    conditions.retain(|c| c.type_ != CONDITION);
    conditions.push(Condition {
        type_: CONDITION.into(),
        status: status.into(),
        reason: reason.into(),
        message,
        observed_generation: generation,
        last_transition_time: since.unwrap_or_else(|| seconds(now)),
    });
    (Some(changed), events)
}

/// A Service that this controller no longer serves: without its condition and the finalizer, which is this controller's only if the
/// condition is set. The API server clears the addresses when the type changes.
fn release(service: &Shared<Service>) -> (Option<Service>, Vec<Action>) {
    if condition(service).is_none() {
        return (None, Vec::new());
    }
    let mut changed = (**service).clone();
    if let Some(conditions) = changed.status.as_mut().and_then(|s| s.conditions.as_mut()) {
        conditions.retain(|c| c.type_ != CONDITION);
    }
    if let Some(finalizers) = &mut changed.metadata.finalizers {
        finalizers.retain(|f| f != FINALIZER);
    }
    let about = reference(service.object());
    let events = vec![
        Action::event(&about, "DeletingLoadBalancer", "Deleting load balancer"),
        Action::event(&about, "DeletedLoadBalancer", "Deleted load balancer"),
    ];
    (Some(changed), events)
}

fn has_finalizer(service: &Service) -> bool {
    service
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|f| f == FINALIZER)
}
