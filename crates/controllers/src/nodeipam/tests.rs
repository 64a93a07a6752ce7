//! Which node gets which range, when it keeps it, and when the range is allocated again.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::SignedDuration;
use serde_json::{Value, json};

use super::ranges::Flags;
use super::*;
use crate::action::Failure;
use crate::world::{World, at, lines};

const KEY: (&str, &str) = (NAMESPACE, NAME);

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn controller(cluster: &[&str], v4: u8) -> NodeIpam {
    let flags = Flags {
        cluster_cidrs: cluster.iter().map(|c| c.to_string()).collect(),
        node_cidr_mask_size_ipv4: v4,
        service_cidrs: vec!["10.96.0.0/16".into()],
        ..Flags::default()
    };
    NodeIpam {
        config: Config::try_from(&flags).unwrap(),
    }
}

fn node(name: &str, cidrs: &[&str]) -> Node {
    from(json!({"metadata": {"name": name}, "spec": {"podCIDR": cidrs.first(), "podCIDRs": cidrs}}))
}

fn run(world: &mut World, controller: &NodeIpam, second: i64) -> Vec<String> {
    let actions = world.run(controller, KEY, at(second));
    world.take(&actions);
    lines(&actions)
}

/// Each node with its ranges.
fn all(world: &World) -> Vec<String> {
    let view: &dyn View = world;
    let nodes = view.list_as::<Node>("");
    let shown = nodes.iter().map(|n| {
        let cidrs: Vec<String> = cidrs(n).iter().map(Cidr::to_string).collect();
        format!("{} {}", n.object().name(), cidrs.join(","))
    });
    shown.collect()
}

fn recorded(world: &World) -> BTreeMap<String, String> {
    let view: &dyn View = world;
    let object = view.get_as::<ConfigMap>(NAMESPACE, NAME).unwrap();
    object.data.clone().unwrap_or_default()
}

#[test]
fn n1_every_node_gets_a_range_of_its_own_of_each_family() {
    let controller = controller(&["10.244.0.0/16", "fd00:10:244::/48"], 24);
    let mut world = World::default();
    for name in ["a", "b", "c"] {
        world.put(node(name, &[]));
    }
    assert_eq!(
        run(&mut world, &controller, 0),
        [
            "create configmaps kube-system/knarr-node-cidrs",
            "update nodes/ a b c",
        ]
    );
    assert_eq!(
        all(&world),
        [
            "a 10.244.0.0/24,fd00:10:244::/64",
            "b 10.244.1.0/24,fd00:10:244:1::/64",
            "c 10.244.2.0/24,fd00:10:244:2::/64",
        ]
    );
    assert_eq!(recorded(&world)["b"], "10.244.1.0/24,fd00:10:244:1::/64");
    assert_eq!(run(&mut world, &controller, 1), [""; 0]);
}

#[test]
fn n1_ranges_that_nodes_have_are_recorded_and_not_allocated_to_others() {
    let controller = controller(&["10.244.0.0/16"], 24);
    let mut world = World::default();
    world.put(node("a", &["10.244.0.0/24"]));
    // A larger range than this cluster allocates, and one of another cluster CIDR.
    world.put(node("b", &["10.244.2.0/23"]));
    world.put(node("c", &["172.16.0.0/24"]));
    world.put(node("d", &["10.244.3.0/24"]));
    for name in ["x", "y"] {
        world.put(node(name, &[]));
    }
    assert_eq!(
        run(&mut world, &controller, 0),
        [
            "create configmaps kube-system/knarr-node-cidrs",
            "update nodes/ x y",
            "event CIDRNotAvailable: Node c status is now: CIDRNotAvailable: 172.16.0.0/24 is in none of the cluster CIDRs 10.244.0.0/16",
            "event CIDRNotAvailable: Node d status is now: CIDRNotAvailable: 10.244.3.0/24 overlaps a range of node b",
        ]
    );
    assert_eq!(all(&world)[4..], ["x 10.244.1.0/24", "y 10.244.4.0/24"]);
    // Reported once.
    assert_eq!(run(&mut world, &controller, 1), [""; 0]);
}

#[test]
fn n1_the_range_of_a_deleted_node_is_not_allocated_while_it_may_run() {
    let controller = controller(&["10.244.0.0/23"], 24);
    let quarantine = QUARANTINE.as_secs();
    let mut world = World::default();
    world.put(node("a", &[]));
    world.put(node("b", &[]));
    run(&mut world, &controller, 0);
    world.remove(&registry::NODE, "", "a");
    world.put(node("c", &[]));
    let exhausted = "event CIDRNotAvailable: Node c status is now: CIDRNotAvailable: no /24 of the cluster CIDR 10.244.0.0/23 is left";
    assert_eq!(
        run(&mut world, &controller, 100),
        [
            "update configmaps kube-system/knarr-node-cidrs",
            exhausted,
            "requeue after 600s"
        ]
    );
    assert_eq!(
        recorded(&world)["a"],
        format!("10.244.0.0/24 released {}", at(100))
    );
    // The next leader uses the recorded time.
    let next = self::controller(&["10.244.0.0/23"], 24);
    assert_eq!(
        run(&mut world, &next, 100 + quarantine - 1),
        [exhausted, "requeue after 1s"]
    );
    // Nor while a pod is bound to it.
    world.put::<Pod>(from(
        json!({"metadata": {"namespace": "d", "name": "p"}, "spec": {"nodeName": "a", "containers": []}}),
    ));
    assert_eq!(
        run(&mut world, &next, 100 + quarantine),
        [exhausted, "requeue after 60s"]
    );
    world.remove(&registry::POD, "d", "p");
    assert_eq!(
        run(&mut world, &next, 100 + quarantine),
        [
            "update configmaps kube-system/knarr-node-cidrs",
            "update nodes/ c"
        ]
    );
    assert_eq!(all(&world), ["b 10.244.1.0/24", "c 10.244.0.0/24"]);
}

#[test]
fn n1_a_node_that_registers_again_gets_what_it_had() {
    let controller = controller(&["10.244.0.0/16"], 24);
    let mut world = World::default();
    world.put(node("a", &[]));
    world.put(node("b", &[]));
    run(&mut world, &controller, 0);
    world.remove(&registry::NODE, "", "b");
    run(&mut world, &controller, 10);
    world.put(node("a2", &[]));
    world.put(node("b", &[]));
    run(&mut world, &controller, 20);
    assert_eq!(
        all(&world),
        ["a 10.244.0.0/24", "a2 10.244.2.0/24", "b 10.244.1.0/24"]
    );
    assert_eq!(recorded(&world)["b"], "10.244.1.0/24");
    // With other cluster CIDRs its former range does not fit any more.
    world.put(node("b", &[]));
    let other = self::controller(&["10.250.0.0/16"], 24);
    run(&mut world, &other, 30);
    assert_eq!(all(&world)[2], "b 10.250.0.0/24");
}

#[test]
fn n1_a_range_is_recorded_before_a_node_has_it() {
    let controller = controller(&["10.244.0.0/16"], 24);
    let mut world = World::default();
    world.put(node("b", &[]));
    let actions = world.run(&controller, KEY, at(0));
    // The allocation was recorded, but not written to the Node; then a node with a lower name is added.
    world.take(&actions[..1]);
    world.put(node("a", &[]));
    run(&mut world, &controller, 1);
    assert_eq!(all(&world), ["a 10.244.1.0/24", "b 10.244.0.0/24"]);
}

#[test]
fn no_node_gets_addresses_of_services_and_an_invalid_record_is_corrected() {
    // The Service CIDR is in the middle of the cluster CIDR.
    let controller = controller(&["10.94.0.0/14"], 16);
    let mut world = World::default();
    for name in ["a", "b", "c", "d"] {
        world.put(node(name, &[]));
    }
    run(&mut world, &controller, 0);
    assert_eq!(
        all(&world),
        [
            "a 10.92.0.0/16",
            "b 10.93.0.0/16",
            "c 10.94.0.0/16",
            "d 10.95.0.0/16"
        ]
    );

    let mut spoilt: ConfigMap = from(json!({"metadata": {"namespace": NAMESPACE, "name": NAME}}));
    spoilt.data = Some(
        [
            ("a".to_string(), "?".to_string()),
            ("gone".to_string(), "10.92".to_string()),
        ]
        .into(),
    );
    world.put(spoilt);
    run(&mut world, &controller, 1);
    let names: Vec<String> = recorded(&world).into_keys().collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
}

#[test]
fn a_node_that_is_being_deleted_gets_none_and_failures_are_reported() {
    let controller = controller(&["10.244.0.0/16"], 24);
    let mut world = World::default();
    let mut ending = node("a", &[]);
    ending.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
    world.put(ending);
    assert_eq!(run(&mut world, &controller, 0), [""; 0]);

    let failure = |error| Failure {
        verb: Verb::Update,
        kind: registry::NODE.clone(),
        name: "a".into(),
        error,
    };
    let run = |failure: &Failure| lines(&world.run_after(&controller, KEY, at(0), Some(failure)));
    let conflict = knarr_apimachinery::Error::conflict(registry::NODE.resource_ref("a"), "changed");
    assert_eq!(run(&failure(conflict)), [""; 0]);
    let found = run(&failure(knarr_apimachinery::Error::internal("no")));
    assert!(
        found[0].starts_with("event CIDRAssignmentFailed: Node a"),
        "{found:?}"
    );
}

#[test]
fn changes_of_a_nodes_status_enqueue_nothing() {
    let controller = controller(&["10.244.0.0/16"], 24);
    let mut world = World::default();
    let old = world.put(node("a", &[]));
    let has = world.put(node("a", &["10.244.0.0/24"]));
    let keys = |old: Option<&Object>, new: Option<&Object>| {
        let kind = &registry::NODE;
        controller.keys(&world, ObjectChange { kind, old, new }).len()
    };
    assert_eq!(keys(None, Some(&old)), 1);
    assert_eq!(keys(Some(&old), Some(&has)), 1);
    assert_eq!(keys(Some(&has), Some(&has)), 0);
    assert_eq!(keys(Some(&has), None), 1);
}

#[test]
fn flags_are_checked_as_a_whole() {
    let check = |cluster: &[&str], v4, v6, service: &[&str]| {
        let flags = Flags {
            cluster_cidrs: cluster.iter().map(|c| c.to_string()).collect(),
            node_cidr_mask_size_ipv4: v4,
            node_cidr_mask_size_ipv6: v6,
            service_cidrs: service.iter().map(|c| c.to_string()).collect(),
        };
        Config::try_from(&flags).err().unwrap_or_default()
    };
    assert_eq!(check(&["10.0.0.0/8"], 24, 64, &[]), [""; 0]);
    assert_eq!(check(&["fd00::/48"], 24, 64, &[]), [""; 0]);
    assert_eq!(check(&["10.0.0.0/30"], 32, 64, &[]), [""; 0]);
    assert_eq!(check(&["10.0.0.0/8"], 25, 64, &[]).len(), 1);
    assert_eq!(check(&["10.0.0.0/24"], 23, 64, &[]).len(), 1);
    assert_eq!(check(&["fd00::/40"], 24, 64, &[]).len(), 1);
    assert_eq!(check(&["10.0.0.0/8", "11.0.0.0/8"], 24, 64, &[]).len(), 1);
    assert_eq!(check(&[], 24, 64, &[]).len(), 1);
    assert_eq!(check(&["10.0.0.0"], 24, 64, &["x"]).len(), 3);
    let longest = SignedDuration::from_mins(10);
    assert_eq!(controller(&["10.0.0.0/16"], 24).config.quarantine, longest);
}
