//! Cases of the descheduler's own tests (SPEC B3) beyond the sizes in `spread.rs`: nodes and pods, and how many pods are to be
//! evicted. The facts are those of its test of RemovePodsViolatingTopologySpreadConstraint.

#![allow(clippy::unwrap_used)]

mod world;

use serde_json::{Value, json};
use world::{World, check_is_fixpoint, reasons, spread, strategy};

/// Three nodes without pods that run Linux, and for each size one with so many pods that run on Windows nodes only, with
/// maxSkew 1 over nodes.
fn windows(sizes: &[usize]) -> World {
    let mut world = World::default();
    let node = |name: &str, os: &str| json!({"metadata": {"labels": {"node": name, "os": os}}});
    for name in ["linux-0", "linux-1", "linux-2"] {
        world.node(name, node(name, "linux"));
    }
    let with = json!({"spec": {"topologySpreadConstraints": [spread("node", 1, "foo")], "nodeSelector": {"os": "windows"}}});
    for (n, size) in sizes.iter().enumerate() {
        let name = format!("windows-{n}");
        world.node(&name, node(&name, "windows"));
        world.pods(*size, "foo", &name, &with);
    }
    world
}

#[test]
fn b3_descheduler_nodes_that_the_pods_do_not_select_are_no_domains() {
    for (sizes, moves) in [(&[3, 3, 2][..], 0), (&[3, 3, 2, 0], 2), (&[4, 3, 1], 1)] {
        let (plan, result) = check_is_fixpoint(&windows(sizes), &strategy("topologySpread", json!({})));
        assert_eq!(plan.moves.len(), moves, "{sizes:?}\n{plan}");
        let on_linux = |pod: &&Value| pod["spec"]["nodeName"].as_str().unwrap().starts_with("linux");
        assert_eq!(result.pods.values().filter(on_linux).count(), 0, "{sizes:?}");
    }
}

#[test]
fn b3_descheduler_pods_without_owners_stay() {
    let mut world = World::of(&["n1 zoneA", "n2 zoneB"]);
    let with = json!({
        "metadata": {"ownerReferences": null},
        "spec": {"topologySpreadConstraints": [spread("zone", 1, "foo")]},
    });
    world.pods(3, "foo", "n1", &with);
    world.pods(1, "foo", "n2", &with);
    let (plan, _) = check_is_fixpoint(&world, &strategy("topologySpread", json!({})));
    assert!(plan.moves.is_empty(), "{plan}");
    let stay = reasons(&plan);
    assert!(
        !stay.is_empty() && stay.iter().all(|r| r.ends_with(": NoController")),
        "{stay:?}"
    );
}
