//! Approves a kubelet's request for its serving certificate. Kubernetes leaves this to the cluster administrator; without
//! the certificate the API server could not authenticate a kubelet.
//!
//! A certificate names only what the node has proved (SPEC A4): its own name, by its credentials, and the address from
//! which it made the request, which the API server recorded with it. The addresses in a node's status prove nothing: the node
//! writes them itself. The node in the API server's own process has no remote address: it gets the addresses of its status,
//! loopback among them. An address is not approved if another node, a Service or the Service CIDR has it, and other nodes
//! get no name or address of the API server's own certificate.
//!
//! A request that is not approved stays pending for an administrator; it is checked again when its node's addresses change.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, Service};
use knarr_api::certificates::{CertificateRequest, IN_PROCESS, KUBELET_SERVING_SIGNER, REMOTE_ADDRESS};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, Object, ObjectKey};
use knarr_apimachinery::cidr::Cidr;

use super::{NODES, approved, is_pending, kubelet_serving, request};
use crate::action::Action;
use crate::controller::{Context, Controller, ObjectChange, View};

/// The prefix of kubelets' user names.
const NODE_USER: &str = "system:node:";

/// The names and addresses that no kubelet's certificate may have.
#[derive(Clone, Debug, Default)]
pub struct Reserved {
    /// Those of the API server's own certificate.
    pub api_server: BTreeSet<String>,
    /// The Service CIDRs.
    pub service_ranges: Vec<Cidr>,
}

/// See the module. Its keys are requests.
pub struct ServingApprover {
    pub reserved: Reserved,
}

impl Controller for ServingApprover {
    fn name(&self) -> &'static str {
        "kubelet-serving-approving-controller"
    }

    fn account(&self) -> &'static str {
        "knarr-kubelet-serving-approver"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![
            &registry::CERTIFICATE_SIGNING_REQUEST,
            &registry::NODE,
            &registry::SERVICE,
        ]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::CERTIFICATE_SIGNING_REQUEST) {
            return vec![key];
        }
        let of = |o: Option<&Object>| o.and_then(Object::get::<Node>).map(addresses);
        // For a change of a Service both are `None`.
        if of(changed.old) == of(changed.new) {
            return Vec::new();
        }
        let user = changed.object().map(|o| format!("{NODE_USER}{}", o.name()));
        let requests = view.list_as::<CertificateSigningRequest>("");
        requests
            .iter()
            .filter(|csr| is_pending(csr, KUBELET_SERVING_SIGNER) && csr.spec.username == user)
            .filter_map(|csr| Some(ObjectKey::new("", csr.metadata.name.as_deref()?)))
            .collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let Some(csr) = request(context).filter(|csr| is_pending(csr, KUBELET_SERVING_SIGNER)) else {
            return Vec::new();
        };
        let Ok(request) = CertificateRequest::decode(&csr.spec.request.0) else {
            return Vec::new();
        };
        let fits = kubelet_serving(&request, csr.spec.usages.as_deref().unwrap_or_default()).is_ok();
        if !fits || !self.is_proved(&csr, &request, context.view) {
            return Vec::new();
        }
        let message = "Auto approving kubelet serving certificate: it names the node that requests it, at the address \
                       from which it does.";
        vec![Action::update_subresource(
            approved(&csr, message, context.now),
            "approval",
        )]
    }
}

/// The origin of a request, as the API server recorded it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    InProcess,
    Remote(IpAddr),
}

impl Origin {
    fn of(csr: &CertificateSigningRequest) -> Option<Self> {
        let values = csr.spec.extra.as_ref()?.get(REMOTE_ADDRESS)?;
        match values.as_slice() {
            [one] if one == IN_PROCESS => Some(Origin::InProcess),
            [one] => one.parse().ok().map(Origin::Remote),
            _ => None,
        }
    }
}

impl ServingApprover {
    /// Whether the node itself is the requester, and all names in the request are proved to be that node's and no other's.
    fn is_proved(
        &self,
        csr: &CertificateSigningRequest,
        request: &CertificateRequest,
        view: &dyn View,
    ) -> bool {
        let user = csr.spec.username.as_deref().unwrap_or("");
        let among_nodes = csr.spec.groups.iter().flatten().any(|g| g == NODES);
        let Some(name) = user.strip_prefix(NODE_USER).filter(|n| !n.is_empty()) else {
            return false;
        };
        let node = view.get_as::<Node>("", name).filter(|_| among_nodes);
        let (Some(node), Some(origin)) = (node, Origin::of(csr)) else {
            return false;
        };
        if request.common_name() != user || !request.dns_names().all(|dns| dns == name) {
            return false;
        }
        let own = addresses(&node);
        let proves = |ip: IpAddr| match origin {
            Origin::InProcess => true,
            Origin::Remote(from) => ip == from && !ip.is_loopback() && !ip.is_unspecified(),
        };
        let has = |ip: IpAddr| own.contains(&ip.to_string()) && proves(ip);
        if !request.ip_addresses().all(has) {
            return false;
        }
        let claimed: BTreeSet<String> = request.alt_names().iter().map(ToString::to_string).collect();
        let reserved = origin != Origin::InProcess && !claimed.is_disjoint(&self.reserved.api_server);
        !reserved && !self.is_of_services(request, view) && !is_of_other_nodes(&claimed, name, view)
    }

    /// Whether an address in the request is one of a Service, or could be allocated to one.
    fn is_of_services(&self, request: &CertificateRequest, view: &dyn View) -> bool {
        let in_range = |ip| {
            self.reserved
                .service_ranges
                .iter()
                .any(|range| range.contains(ip))
        };
        if request.ip_addresses().any(in_range) {
            return true;
        }
        let requested: BTreeSet<IpAddr> = request.ip_addresses().collect();
        let services = view.list_as::<Service>("");
        let is_requested = |ip: &str| ip.parse().is_ok_and(|ip: IpAddr| requested.contains(&ip));
        services
            .iter()
            .any(|service| service_addresses(service).any(is_requested))
    }
}

fn service_addresses(service: &Service) -> impl Iterator<Item = &str> {
    let spec = service.spec.iter();
    let spec = spec.flat_map(|s| {
        let several = s.cluster_ips.iter().chain(&s.external_ips).flatten();
        s.cluster_ip.iter().chain(several)
    });
    let balancer = service.status.iter().flat_map(|s| &s.load_balancer);
    let ingress = balancer.flat_map(|b| b.ingress.iter().flatten());
    spec.chain(ingress.filter_map(|i| i.ip.as_ref()))
        .map(String::as_str)
}

/// Whether the status of another node has one of these names. Every node has the loopback addresses.
fn is_of_other_nodes(claimed: &BTreeSet<String>, name: &str, view: &dyn View) -> bool {
    let is_loopback = |n: &str| n.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let others = view.list_as::<Node>("");
    let mut others = others.iter().filter(|o| o.metadata.name.as_deref() != Some(name));
    others.any(|other| {
        let mut theirs = addresses(other).into_iter().filter(|a| !is_loopback(a));
        theirs.any(|a| claimed.contains(&a))
    })
}

/// The addresses and names in a node's status.
fn addresses(node: &Node) -> BTreeSet<String> {
    let addresses = node.status.iter().flat_map(|s| s.addresses.iter().flatten());
    addresses
        .map(|a| match a.address.parse::<IpAddr>() {
            // In their canonical form.
            Ok(ip) => ip.to_string(),
            Err(_) => a.address.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests;
