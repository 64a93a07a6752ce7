//! Approves a kubelet's request for the certificate of its port. Kubernetes leaves this to whoever runs the cluster; without
//! the certificate nobody could tell a node's port from another's.
//!
//! A certificate names only what the node has proved (SPEC A4): its own name, by its credentials, and the address from
//! which it made the request, which the API server recorded with it. What a node merely writes into its status proves
//! nothing. The node in the API server's own process has no such address: its addresses are those of its status, loopback
//! among them. No address is approved that another node, a Service or the range of Services has, and to nodes elsewhere
//! nothing that is in the API server's own certificate.
//!
//! What is not approved stays pending for a person to decide; it is examined again when its node's addresses change.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, Service};
use knarr_api::certificates::{CertificateRequest, IN_PROCESS, REMOTE_ADDRESS};
use knarr_api::k8s_openapi;
use knarr_api::kinds::service_ips::Cidr;
use knarr_api::registry;
use knarr_api::{Kind, Object, ObjectKey};

use super::{KUBELET_SERVING, approved, is_open, kubelet_serving, request};
use crate::action::Action;
use crate::controller::{Changed, Context, Controller, View};

/// User of a node's own kubelet.
const NODE_USER: &str = "system:node:";
const NODES: &str = "system:nodes";

/// What no kubelet's certificate may name.
#[derive(Clone, Debug, Default)]
pub struct Reserved {
    /// The names and addresses in the API server's own certificate.
    pub api_server: BTreeSet<String>,
    /// The addresses of Services.
    pub service_range: Option<Cidr>,
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

    fn keys(&self, view: &dyn View, changed: Changed<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::CERTIFICATE_SIGNING_REQUEST) {
            return vec![key];
        }
        let of = |o: Option<&Object>| o.and_then(Object::get::<Node>).map(addresses);
        // Of Services both are none.
        if of(changed.old) == of(changed.new) {
            return Vec::new();
        }
        let user = changed.object().map(|o| format!("{NODE_USER}{}", o.name()));
        let requests = view.list_as::<CertificateSigningRequest>("");
        requests
            .iter()
            .filter(|csr| is_open(csr, KUBELET_SERVING) && csr.spec.username == user)
            .filter_map(|csr| Some(ObjectKey::new("", csr.metadata.name.as_deref()?)))
            .collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let Some(csr) = request(context).filter(|csr| is_open(csr, KUBELET_SERVING)) else {
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
        vec![Action::update_part(
            approved(&csr, message, context.now),
            "approval",
        )]
    }
}

/// Where a request came from, as the API server recorded it.
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
    /// Whether the node itself requests it, and all names in it are that node's and nobody else's.
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

    /// Whether an address in it is one of a Service, or could become one.
    fn is_of_services(&self, request: &CertificateRequest, view: &dyn View) -> bool {
        let in_range = |ip| {
            self.reserved
                .service_range
                .is_some_and(|range| range.contains(ip))
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

/// Whether another node says that one of these names is its own. A loopback address is that of every machine.
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
            // In one form.
            Ok(ip) => ip.to_string(),
            Err(_) => a.address.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::fake::csr;
    use super::*;
    use crate::world::{World, at, lines};
    use serde_json::{Value, json};

    const USAGES: [&str; 2] = ["digital signature", "server auth"];

    fn node(name: &str, addresses: &[(&str, &str)]) -> Node {
        let addresses: Vec<Value> = addresses
            .iter()
            .map(|(type_, address)| json!({"type": type_, "address": address}))
            .collect();
        serde_json::from_value(json!({"metadata": {"name": name}, "status": {"addresses": addresses}}))
            .unwrap()
    }

    fn request(user: &str, group: &str, usages: &[&str], change: (&str, Value)) -> CertificateSigningRequest {
        let mut asked =
            json!({"cn": "system:node:n", "o": ["system:nodes"], "dns": ["n"], "ip": ["10.0.0.1"]});
        asked[change.0] = change.1;
        let mut csr = csr("x", KUBELET_SERVING, usages, asked);
        csr.spec.username = Some(user.into());
        csr.spec.groups = Some(vec![group.into()]);
        from("10.0.0.1", csr)
    }

    fn from(origin: &str, mut csr: CertificateSigningRequest) -> CertificateSigningRequest {
        let extra = csr.spec.extra.get_or_insert_default();
        extra.insert(REMOTE_ADDRESS.into(), vec![origin.into()]);
        csr
    }

    fn approver() -> ServingApprover {
        let names = [
            "kubernetes.default.svc",
            "kubernetes",
            "localhost",
            "10.96.0.1",
            "10.0.0.100",
            "127.0.0.1",
        ];
        ServingApprover {
            reserved: Reserved {
                api_server: names.map(str::to_string).into(),
                service_range: Cidr::parse("10.96.0.0/16"),
            },
        }
    }

    #[test]
    fn only_the_node_itself_gets_a_certificate_for_its_own_addresses() {
        let n = [
            ("Hostname", "n"),
            ("InternalIP", "10.0.0.1"),
            ("InternalIP", "127.0.0.1"),
        ];
        let none = ("x", json!(null));
        for (csr, approves) in [
            (request("system:node:n", NODES, &USAGES, none.clone()), true),
            (
                from(
                    IN_PROCESS,
                    request("system:node:n", NODES, &USAGES, ("ip", json!(["127.0.0.1"]))),
                ),
                true,
            ),
            // Loopback is no address of a node elsewhere, also not of one on the same machine.
            (
                request("system:node:n", NODES, &USAGES, ("ip", json!(["127.0.0.1"]))),
                false,
            ),
            (
                from(
                    "127.0.0.1",
                    request("system:node:n", NODES, &USAGES, ("ip", json!(["127.0.0.1"]))),
                ),
                false,
            ),
            // From another address than the one it says it has.
            (
                from("10.0.0.7", request("system:node:n", NODES, &USAGES, none.clone())),
                false,
            ),
            (
                from("", request("system:node:n", NODES, &USAGES, none.clone())),
                false,
            ),
            (request("system:node:n", NODES, &USAGES, ("ip", json!([]))), true),
            // Who asks is another, or no node.
            (request("system:node:m", NODES, &USAGES, none.clone()), false),
            (request("system:node:n", "dev", &USAGES, none.clone()), false),
            (request("kubernetes-admin", NODES, &USAGES, none.clone()), false),
            (request("system:node:", NODES, &USAGES, none.clone()), false),
            // What is asked for is another's, or nobody's.
            (
                request("system:node:n", NODES, &USAGES, ("cn", json!("system:node:m"))),
                false,
            ),
            (
                request("system:node:n", NODES, &USAGES, ("ip", json!(["10.0.0.9"]))),
                false,
            ),
            (
                request("system:node:n", NODES, &USAGES, ("dns", json!(["m"]))),
                false,
            ),
            (
                request(
                    "system:node:n",
                    NODES,
                    &USAGES,
                    ("dns", json!(["n", "kubernetes"])),
                ),
                false,
            ),
            (
                request("system:node:n", NODES, &USAGES, ("uri", json!(["spiffe://n"]))),
                false,
            ),
            (
                request("system:node:n", NODES, &USAGES, ("o", json!(["system:masters"]))),
                false,
            ),
            (
                request(
                    "system:node:n",
                    NODES,
                    &["digital signature", "client auth"],
                    none.clone(),
                ),
                false,
            ),
        ] {
            let mut world = World::default();
            world.put(node("n", &n));
            world.put(node(
                "m",
                &[
                    ("Hostname", "m"),
                    ("InternalIP", "10.0.0.2"),
                    ("InternalIP", "127.0.0.1"),
                ],
            ));
            world.put(csr.clone());
            let run = |world: &World| world.run(&approver(), ("", "x"), at(0));
            let actions = run(&world);
            let expected: &[&str] = if approves {
                &["update certificatesigningrequests/approval x"]
            } else {
                &[]
            };
            assert_eq!(lines(&actions), expected, "{csr:?}");
            world.take(&actions);
            assert!(lines(&run(&world)).is_empty(), "once is enough");
        }
    }

    /// What a compromised node writes into its own status, and the request it makes for it.
    #[test]
    fn a4_what_a_node_writes_into_its_status_proves_nothing() {
        let claims = [
            ("InternalIP", "10.0.0.1"),
            ("Hostname", "n"),
            ("InternalDNS", "n.example.com"),
            ("ExternalDNS", "kubernetes.default.svc"),
            ("ExternalIP", "10.96.0.1"),
            ("ExternalIP", "10.96.7.7"),
            ("ExternalIP", "10.0.0.100"),
            ("ExternalIP", "192.0.2.9"),
            ("ExternalIP", "198.51.100.4"),
            ("ExternalIP", "203.0.113.5"),
        ];
        for (names, origin, approves) in [
            (json!({"dns": ["n"], "ip": ["10.0.0.1"]}), "10.0.0.1", true),
            (
                json!({"dns": ["kubernetes.default.svc"], "ip": []}),
                "10.0.0.1",
                false,
            ),
            (
                json!({"dns": ["n", "n.example.com"], "ip": []}),
                "10.0.0.1",
                false,
            ),
            (json!({"dns": ["n"], "ip": ["10.96.0.1"]}), "10.0.0.1", false),
            (
                json!({"dns": ["n"], "ip": ["10.0.0.1", "192.0.2.9"]}),
                "10.0.0.1",
                false,
            ),
            // Whatever the connection came from.
            (json!({"dns": ["n"], "ip": ["10.96.7.7"]}), "10.96.7.7", false),
            (json!({"dns": ["n"], "ip": ["10.0.0.100"]}), "10.0.0.100", false),
            (json!({"dns": ["n"], "ip": ["192.0.2.9"]}), "192.0.2.9", false),
            (
                json!({"dns": ["n"], "ip": ["198.51.100.4"]}),
                "198.51.100.4",
                false,
            ),
            (json!({"dns": ["n"], "ip": ["203.0.113.5"]}), "203.0.113.5", true),
            (json!({"dns": ["n"], "ip": ["10.96.7.7"]}), IN_PROCESS, false),
            (json!({"dns": ["n"], "ip": ["10.0.0.100"]}), IN_PROCESS, true),
        ] {
            let mut world = World::default();
            world.put(node("n", &claims));
            let services = json!({
                "metadata": {"name": "s", "namespace": "default"},
                "spec": {"clusterIP": "10.96.7.7", "clusterIPs": ["10.96.7.7"], "externalIPs": ["192.0.2.9"]},
                "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.4"}]}},
            });
            world.put(serde_json::from_value::<Service>(services).unwrap());
            let mut asked = names.clone();
            asked["cn"] = json!("system:node:n");
            asked["o"] = json!([NODES]);
            let mut csr = csr("x", KUBELET_SERVING, &USAGES, asked);
            csr.spec.username = Some("system:node:n".into());
            csr.spec.groups = Some(vec![NODES.into()]);
            world.put(from(origin, csr));
            let actions = world.run(&approver(), ("", "x"), at(0));
            assert_eq!(!actions.is_empty(), approves, "{names} from {origin}");
        }
    }

    #[test]
    fn a4_a_node_called_like_the_api_server_gets_no_certificate() {
        let mut world = World::default();
        world.put(node("kubernetes", &[("InternalIP", "10.0.0.1")]));
        let asked = json!({"cn": "system:node:kubernetes", "o": [NODES], "dns": ["kubernetes"]});
        let mut csr = csr("x", KUBELET_SERVING, &USAGES, asked);
        csr.spec.username = Some("system:node:kubernetes".into());
        csr.spec.groups = Some(vec![NODES.into()]);
        world.put(from("10.0.0.1", csr));
        assert!(world.run(&approver(), ("", "x"), at(0)).is_empty());
    }

    #[test]
    fn no_address_of_two_nodes_is_vouched_for() {
        let mut world = World::default();
        world.put(node("n", &[("Hostname", "n"), ("InternalIP", "10.0.0.1")]));
        world.put(node("m", &[("Hostname", "m"), ("InternalIP", "10.0.0.1")]));
        world.put(request("system:node:n", NODES, &USAGES, ("x", json!(null))));
        assert!(world.run(&approver(), ("", "x"), at(0)).is_empty());
    }

    #[test]
    fn a_request_is_looked_at_again_when_its_nodes_addresses_come() {
        let mut world = World::default();
        world.put(request("system:node:n", NODES, &USAGES, ("x", json!(null))));
        let bare = world.put(node("n", &[]));
        let full = world.put(node("n", &[("Hostname", "n")]));
        let other = world.put(node("m", &[("Hostname", "m")]));
        let keys = |old: &Object, new: &Object| {
            let changed = Changed {
                kind: &registry::NODE,
                old: Some(old),
                new: Some(new),
            };
            approver().keys(&world, changed).len()
        };
        assert_eq!(keys(&bare, &full), 1);
        assert_eq!(keys(&full, &full), 0);
        assert_eq!(keys(&bare, &other), 0);
    }
}
