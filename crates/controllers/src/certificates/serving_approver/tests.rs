//! Which nodes get a serving certificate, and for which names.

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
    serde_json::from_value(json!({"metadata": {"name": name}, "status": {"addresses": addresses}})).unwrap()
}

fn request(user: &str, group: &str, usages: &[&str], change: (&str, Value)) -> CertificateSigningRequest {
    let mut requested =
        json!({"cn": "system:node:n", "o": ["system:nodes"], "dns": ["n"], "ip": ["10.0.0.1"]});
    requested[change.0] = change.1;
    let mut csr = csr("x", KUBELET_SERVING_SIGNER, usages, requested);
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
            service_ranges: Cidr::parse("10.96.0.0/16").into_iter().collect(),
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
        // Loopback is not approved for a node in another process, nor for one on the same host.
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
        // From another address than that of its status.
        (
            from("10.0.0.7", request("system:node:n", NODES, &USAGES, none.clone())),
            false,
        ),
        (
            from("", request("system:node:n", NODES, &USAGES, none.clone())),
            false,
        ),
        (request("system:node:n", NODES, &USAGES, ("ip", json!([]))), true),
        // The requester is another node, or no node.
        (request("system:node:m", NODES, &USAGES, none.clone()), false),
        (request("system:node:n", "dev", &USAGES, none.clone()), false),
        (request("kubernetes-admin", NODES, &USAGES, none.clone()), false),
        (request("system:node:", NODES, &USAGES, none.clone()), false),
        // The names are another node's, or no node's.
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
        assert!(lines(&run(&world)).is_empty(), "it is approved once");
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
        // Whatever the remote address is.
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
        let mut requested = names.clone();
        requested["cn"] = json!("system:node:n");
        requested["o"] = json!([NODES]);
        let mut csr = csr("x", KUBELET_SERVING_SIGNER, &USAGES, requested);
        csr.spec.username = Some("system:node:n".into());
        csr.spec.groups = Some(vec![NODES.into()]);
        world.put(from(origin, csr));
        let actions = world.run(&approver(), ("", "x"), at(0));
        assert_eq!(!actions.is_empty(), approves, "{names} from {origin}");
    }
}

#[test]
fn a4_a_node_with_a_name_of_the_api_server_gets_no_certificate() {
    let mut world = World::default();
    world.put(node("kubernetes", &[("InternalIP", "10.0.0.1")]));
    let requested = json!({"cn": "system:node:kubernetes", "o": [NODES], "dns": ["kubernetes"]});
    let mut csr = csr("x", KUBELET_SERVING_SIGNER, &USAGES, requested);
    csr.spec.username = Some("system:node:kubernetes".into());
    csr.spec.groups = Some(vec![NODES.into()]);
    world.put(from("10.0.0.1", csr));
    assert!(world.run(&approver(), ("", "x"), at(0)).is_empty());
}

#[test]
fn an_address_of_two_nodes_is_not_approved() {
    let mut world = World::default();
    world.put(node("n", &[("Hostname", "n"), ("InternalIP", "10.0.0.1")]));
    world.put(node("m", &[("Hostname", "m"), ("InternalIP", "10.0.0.1")]));
    world.put(request("system:node:n", NODES, &USAGES, ("x", json!(null))));
    assert!(world.run(&approver(), ("", "x"), at(0)).is_empty());
}

#[test]
fn a_request_is_checked_again_when_its_nodes_addresses_are_set() {
    let mut world = World::default();
    world.put(request("system:node:n", NODES, &USAGES, ("x", json!(null))));
    let bare = world.put(node("n", &[]));
    let full = world.put(node("n", &[("Hostname", "n")]));
    let other = world.put(node("m", &[("Hostname", "m")]));
    let keys = |old: &Object, new: &Object| {
        let changed = ObjectChange {
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
