//! Approves a kubelet's request for the certificate of its port: only to the node that the certificate names, only for
//! that node's own names and addresses, and for none that another node has too. Kubernetes leaves this to
//! whoever runs the cluster; without it nobody could tell a node's port from another's.
//!
//! What is not approved stays open, for a person to judge; it is looked at again when its node's addresses change.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, Object, ObjectKey};

use super::{Authority, KUBELET_SERVING, Requested, approved, is_open, kubelet_serving, request};
use crate::action::Action;
use crate::controller::{Changed, Context, Controller, View};

/// User of a node's own kubelet.
const NODE_USER: &str = "system:node:";
const NODES: &str = "system:nodes";

/// See the module. Its keys are requests.
pub struct ServingApprover(pub Arc<dyn Authority>);

impl Controller for ServingApprover {
    fn name(&self) -> &'static str {
        "kubelet-serving-approving-controller"
    }

    fn account(&self) -> &'static str {
        "knarr-kubelet-serving-approver"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::CERTIFICATE_SIGNING_REQUEST, &registry::NODE]
    }

    fn keys(&self, view: &dyn View, changed: Changed<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::CERTIFICATE_SIGNING_REQUEST) {
            return vec![key];
        }
        let of = |o: Option<&Object>| o.and_then(Object::get::<Node>).map(addresses);
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
        let Ok(asked) = self.0.read(&csr.spec.request.0) else {
            return Vec::new();
        };
        let fits = kubelet_serving(&asked, csr.spec.usages.as_deref().unwrap_or_default()).is_ok();
        if !fits || !is_of_its_node(&csr, &asked, context.view) {
            return Vec::new();
        }
        let message =
            "Auto approving kubelet serving certificate: its names are those of the node that asks.";
        vec![Action::update_part(
            approved(&csr, message, context.now),
            "approval",
        )]
    }
}

/// Whether who asks is a node, for itself, and all names are that node's and no other's.
fn is_of_its_node(csr: &CertificateSigningRequest, asked: &Requested, view: &dyn View) -> bool {
    let user = csr.spec.username.as_deref().unwrap_or("");
    let among_nodes = csr.spec.groups.iter().flatten().any(|g| g == NODES);
    let Some(name) = user.strip_prefix(NODE_USER).filter(|n| !n.is_empty()) else {
        return false;
    };
    let Some(node) = view.get_as::<Node>("", name).filter(|_| among_nodes) else {
        return false;
    };
    let own = addresses(&node);
    let has = |name: &String| own.contains(name);
    if asked.common_name != user || !asked.dns_names.iter().chain(&asked.ip_addresses).all(has) {
        return false;
    }
    // A loopback address is the same machine's, whatever node says so.
    let claimed: Vec<&String> = asked.dns_names.iter().chain(&asked.ip_addresses).collect();
    let claimed = claimed
        .into_iter()
        .filter(|n| !n.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()));
    let claimed: BTreeSet<&String> = claimed.collect();
    let others = view.list_as::<Node>("");
    let mut others = others.iter().filter(|o| o.metadata.name.as_deref() != Some(name));
    !others.any(|other| addresses(other).iter().any(|a| claimed.contains(a)))
}

/// Under what names and addresses a node says it is found.
fn addresses(node: &Node) -> BTreeSet<String> {
    let said = node.status.iter().flat_map(|s| s.addresses.iter().flatten());
    said.map(|a| match a.address.parse::<IpAddr>() {
        // One way of writing it.
        Ok(ip) => ip.to_string(),
        Err(_) => a.address.clone(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Fake, csr};
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
        csr
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
                request("system:node:n", NODES, &USAGES, ("ip", json!(["127.0.0.1"]))),
                true,
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
            let run = |world: &World| world.run(&ServingApprover(Arc::new(Fake)), ("", "x"), at(0));
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

    #[test]
    fn no_address_of_two_nodes_is_vouched_for() {
        let mut world = World::default();
        world.put(node("n", &[("Hostname", "n"), ("InternalIP", "10.0.0.1")]));
        world.put(node("m", &[("Hostname", "m"), ("InternalIP", "10.0.0.1")]));
        world.put(request("system:node:n", NODES, &USAGES, ("x", json!(null))));
        let approver = ServingApprover(Arc::new(Fake));
        assert!(world.run(&approver, ("", "x"), at(0)).is_empty());
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
            ServingApprover(Arc::new(Fake)).keys(&world, changed).len()
        };
        assert_eq!(keys(&bare, &full), 1);
        assert_eq!(keys(&full, &full), 0);
        assert_eq!(keys(&bare, &other), 0);
    }
}
