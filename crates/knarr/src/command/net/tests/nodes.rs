//! Nodes: how their pods are reached, and what keeps them apart.

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_network::routes::Subnet;
use serde_json::{Value, json};

use super::*;
use crate::command::net::nodes::{answer, matrix, shown};

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
fn n7_nodes_are_shown_with_the_way_to_their_pods_and_what_cuts_them_off() {
    let overlapping = with(node(3), "/spec/podCIDRs", json!(["10.244.2.128/25"]));
    let unset = with(node(4), "/spec/podCIDRs", json!([]));
    let ready = || json!({"type": "Ready", "status": "True"});
    let unavailable = json!({"type": "NetworkUnavailable", "status": "True", "reason": "NoPodCIDR",
                             "message": "the node has no range of pod addresses yet"});
    let unset = with(unset, "/status/conditions", json!([ready(), unavailable]));
    let unheard =
        json!([{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}]);
    let lost = with(node(5), "/status/conditions", unheard);
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
    let answer = answer(&objects, "n1", Some(&subnets()), now());
    assert!(!answer.is_well());
    let expected = "\
As seen from node n1

NODE  ADDRESSES   POD CIDRS        PODS REACHED BY  STATE    ENDPOINTS     REPORTED
n1    192.0.2.1   10.244.1.0/24    this node        ready    120 (newest)  5m ago
n2    192.0.2.2   10.244.2.0/24    route            ready    117           5m ago
n20   192.0.2.20  10.244.20.0/24   VXLAN            ready    -             -
n3    192.0.2.3   10.244.2.128/25  not routed       cut off  -             -
n4    192.0.2.4   -                not routed       cut off  -             -
n5    192.0.2.5   10.244.5.0/24    route            cut off  -             -

The kernels of all nodes that are heard have the EndpointSlices up to revision 117.

Cut off:
- n3: 10.244.2.128/25 is not routed: it overlaps 10.244.2.0/24 of node n2
- n4: NetworkUnavailable is True: the node has no range of pod addresses yet
- n4: it has no podCIDR
- n5: its kubelet is not heard of: Kubelet stopped posting node status.
";
    assert_eq!(shown(&answer), expected);
}

#[test]
fn n7_without_the_networks_of_the_machine_the_way_is_left_open() {
    let objects = cluster([node(1), node(2)]);
    let answer = answer(&objects, "n1", None, now());
    assert!(answer.is_well());
    assert_eq!(answer.nodes[1].path, "route or VXLAN");
    let matrix = matrix(&objects, "n1", Some(&subnets()));
    assert_eq!(
        (matrix["n1"]["n2"], matrix["n2"]["n1"]),
        ("route", "route or VXLAN")
    );
}

#[test]
fn n7_this_node_is_cut_off_when_others_do_not_route_it() {
    let objects = cluster([node(1), with(node(2), "/spec/podCIDRs", json!(["10.244.1.0/24"]))]);
    let answer = answer(&objects, "n2", None, now());
    let faults: Vec<&str> = answer
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
