//! Nodes: how their pods are reached, and why they are not.

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_network::routes::Subnet;
use serde_json::{Value, json};

use super::*;
use crate::command::net::nodes::{matrix, report, to_text};

/// Reported at the 100th second.
fn lease(node: &str, revision: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"namespace": "knarr-network", "name": node,
                     "annotations": {"knarr.io/endpoint-slices-revision": revision}},
        "spec": {"renewTime": "1970-01-01T00:01:40.000000Z"},
    })
}

fn summary(revision: u64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "knarr-network", "name": "endpoint-propagation"},
        "data": {"revision": revision.to_string(), "nodes": "2", "slowest": "n2"},
    })
}

fn subnets() -> [Subnet; 1] {
    [Subnet {
        link: 2,
        net: "192.0.2.1/28".parse().unwrap(),
    }]
}

fn now() -> Timestamp {
    Timestamp::from_second(400).unwrap()
}

#[test]
fn n7_nodes_are_shown_with_the_path_to_their_pods_and_why_they_are_unreachable() {
    let overlapping = with(node(3), "/spec/podCIDRs", json!(["10.244.2.128/25"]));
    let unset = with(node(4), "/spec/podCIDRs", json!([]));
    let ready = || json!({"type": "Ready", "status": "True"});
    let unavailable = json!({"type": "NetworkUnavailable", "status": "True", "reason": "NoPodCIDR",
                             "message": "the node has no pod CIDR yet"});
    let unset = with(unset, "/status/conditions", json!([ready(), unavailable]));
    let not_reporting =
        json!([{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}]);
    let lost = with(node(5), "/status/conditions", not_reporting);
    let objects = cluster([
        node(1),
        node(2),
        overlapping,
        unset,
        lost,
        node(20),
        lease("n1", "120"),
        lease("n2", "117"),
        summary(117),
    ]);
    let report = report(&objects, "n1", Some(&subnets()), now());
    assert!(!report.is_healthy());
    let expected = "\
As seen from node n1

NODE  ADDRESSES   POD CIDRS        PODS REACHED BY  STATE        ENDPOINTS     REPORTED
n1    192.0.2.1   10.244.1.0/24    this node        ready        120 (newest)  5m ago
n2    192.0.2.2   10.244.2.0/24    route            ready        117           5m ago
n20   192.0.2.20  10.244.20.0/24   VXLAN            ready        -             -
n3    192.0.2.3   10.244.2.128/25  not routed       unreachable  -             -
n4    192.0.2.4   -                not routed       unreachable  -             -
n5    192.0.2.5   10.244.5.0/24    route            unreachable  -             -

The kernels of all reporting nodes have the EndpointSlices up to revision 117.

Unreachable:
- n3: 10.244.2.128/25 is not routed: it overlaps 10.244.2.0/24 of node n2
- n4: NetworkUnavailable is True: the node has no pod CIDR yet
- n4: it has no podCIDR
- n5: its kubelet reports no status: Kubelet stopped posting node status.
";
    assert_eq!(to_text(&report), expected);
}

#[test]
fn n7_without_the_subnets_of_the_host_the_path_is_route_or_vxlan() {
    let objects = cluster([node(1), node(2)]);
    let report = report(&objects, "n1", None, now());
    assert!(report.is_healthy());
    assert_eq!(report.nodes[1].path, "route or VXLAN");
    let matrix = matrix(&objects, "n1", Some(&subnets()));
    assert_eq!(
        (matrix["n1"]["n2"], matrix["n2"]["n1"]),
        ("route", "route or VXLAN")
    );
}

#[test]
fn n7_this_node_is_unreachable_when_others_do_not_route_it() {
    let objects = cluster([node(1), with(node(2), "/spec/podCIDRs", json!(["10.244.1.0/24"]))]);
    let report = report(&objects, "n2", None, now());
    let faults: Vec<&str> = report
        .nodes
        .iter()
        .flat_map(|n| n.faults.iter().map(String::as_str))
        .collect();
    assert_eq!(
        faults,
        [
            "10.244.1.0/24 is not routed: it overlaps 10.244.1.0/24 of node n2",
            "10.244.1.0/24 is not routed: it overlaps 10.244.1.0/24 of node n1"
        ]
    );
}
