//! The status of TopologyDomains objects as nodes come, cease to be Ready, and are deleted.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::world::{World, at, lines};

mod machine_deployments;

/// Seconds since the start of a test as the API writes them.
fn time(second: i64) -> String {
    at(second).to_string()
}

fn declare(world: &mut World, name: &str, created: i64, spec: &Value) {
    let mut whole = json!({"topologyKey": "zone"});
    for (key, value) in spec.as_object().into_iter().flatten() {
        whole[key] = value.clone();
    }
    let json = json!({"apiVersion": "placement.knarr.io/v1alpha1", "kind": "TopologyDomains",
        "metadata": {"name": name, "uid": name, "resourceVersion": "1", "generation": 1,
            "creationTimestamp": time(created)},
        "spec": whole});
    world.put_json(TopologyDomains::kind(), &json.to_string());
}

struct TestNode<'a> {
    name: &'a str,
    zone: &'a str,
    group: &'a str,
    /// Since this second it is not Ready.
    lost: Option<i64>,
}

impl TestNode<'_> {
    fn put(&self, world: &mut World) {
        let (status, since) = match self.lost {
            None => ("True", 0),
            Some(since) => ("Unknown", since),
        };
        let taints = json!([
            {"key": "of-group", "value": self.group, "effect": "NoSchedule", "timeAdded": time(0)},
            {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"},
        ]);
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": self.name, "labels": {
                "zone": self.zone, "group": self.group, "disk": "ssd", "own": self.name,
                "kubernetes.io/hostname": self.name}},
            "spec": {"taints": taints},
            "status": {"conditions": [
                {"type": "Ready", "status": status, "lastTransitionTime": time(since)}]},
        }))
        .unwrap();
        world.put(node);
    }
}

fn node(world: &mut World, name: &str, zone: &str, lost: Option<i64>) {
    let group = "workers";
    TestNode {
        name,
        zone,
        group,
        lost,
    }
    .put(world);
}

/// Syncs without Cluster API, applies the writes, and returns the events.
fn sync_at(world: &mut World, second: i64) -> Vec<String> {
    sync_with(world, &MachineDeployments::NotServed, second)
}

fn sync_with(world: &mut World, machine_deployments: &MachineDeployments, second: i64) -> Vec<String> {
    let mut events = Vec::new();
    for list in sync(world, machine_deployments, at(second)) {
        world.take(&list);
        events.extend(lines(&list[1..]));
    }
    assert!(
        sync(world, machine_deployments, at(second)).is_empty(),
        "a second sync changes nothing"
    );
    events
}

fn read(world: &World, name: &str) -> TopologyDomains {
    let object = world.get(TopologyDomains::kind(), "", name).unwrap();
    TopologyDomains::of(&object).unwrap()
}

/// One line for each domain: name, source, state, nodes (Ready ones), and since when none is Ready.
fn status(world: &World) -> Vec<String> {
    let since = |d: &Domain| {
        let since = d.without_ready_nodes_since.as_ref();
        since.map_or(String::new(), |t| {
            format!(" since {}", t.0.duration_since(at(0)).as_secs())
        })
    };
    let line = |d: &Domain| {
        assert_eq!(d.counted, d.state != State::Lost);
        let (name, source, state) = (&d.name, d.source, d.state);
        format!(
            "{name} {source:?} {state:?} {}({}){}",
            d.nodes,
            d.ready_nodes,
            since(d)
        )
    };
    read(world, "zones").status.domains.iter().map(line).collect()
}

fn condition_of(world: &World, name: &str, type_: &str) -> String {
    let found = read(world, name).status.conditions;
    let found = found.into_iter().find(|c| c.type_ == type_).unwrap();
    format!("{} {}: {}", found.status, found.reason, found.message)
}

#[test]
fn b3_without_objects_nothing_is_done_and_nodes_are_not_read() {
    struct NoNodes(World);
    impl View for NoNodes {
        fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
            self.0.get(kind, namespace, name)
        }
        fn list(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Object>> {
            assert_eq!(kind, TopologyDomains::kind());
            self.0.list(kind, namespace)
        }
        fn controlled_by(&self, kind: &Kind, uid: &str) -> Vec<Arc<Object>> {
            self.0.controlled_by(kind, uid)
        }
        fn orphans(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Object>> {
            self.0.orphans(kind, namespace)
        }
        fn pods_on(&self, node: &str) -> Vec<Arc<Object>> {
            self.0.pods_on(node)
        }
    }
    let mut world = World::default();
    node(&mut world, "a1", "a", None);
    let view = NoNodes(world);
    assert!(sync(&view, &MachineDeployments::NotServed, at(0)).is_empty());
    assert!(!has_objects(&view));
}

#[test]
fn b3_declared_zones_count_with_and_without_nodes() {
    let mut world = World::default();
    node(&mut world, "a1", "a", None);
    node(&mut world, "b1", "b", Some(0));
    let c = json!({"name": "c", "labels": {"disk": "ssd"}, "capacity": {"cpu": "4"},
        "taints": [{"key": "gpu", "effect": "NoSchedule"}]});
    declare(&mut world, "zones", 0, &json!({"domains": [c, {"name": "a"}]}));
    sync_at(&mut world, 10);
    assert_eq!(
        status(&world),
        [
            "c Spec Absent 0(0) since 10",
            "a Spec Ready 1(1)",
            "b Nodes NotReady 1(0) since 0",
        ]
    );
    let found = read(&world, "zones").status;
    let template = serde_json::to_value(&found.domains[0].node_templates).unwrap();
    let expected = json!([{"labels": {"disk": "ssd"}, "capacity": {"cpu": "4"},
        "taints": [{"key": "gpu", "effect": "NoSchedule"}]}]);
    assert_eq!(template, expected);
    assert!(found.domains[2].node_templates.is_empty());
    assert_eq!(found.observed_generation, Some(1));
    assert_eq!(
        condition_of(&world, "zones", "Ready"),
        "True Declared: 3 domains count"
    );
    assert_eq!(condition_of(&world, "zones", "Conflict"), "False NoConflict: ");
    // A node is added to c, and deleted again.
    node(&mut world, "c1", "c", None);
    sync_at(&mut world, 20);
    assert_eq!(status(&world)[0], "c Spec Ready 1(1)");
    world.remove(&registry::NODE, "", "c1");
    sync_at(&mut world, 30);
    assert_eq!(status(&world)[0], "c Spec Absent 0(0) since 30");
}

#[test]
fn b3_a_lost_zone_stops_counting_after_the_time_and_counts_again_with_a_ready_node() {
    let mut world = World::default();
    for (name, zone) in [("a1", "a"), ("b1", "b"), ("b2", "b")] {
        node(&mut world, name, zone, None);
    }
    declare(
        &mut world,
        "zones",
        0,
        &json!({"lostAfterSeconds": 300, "domains": [{"name": "b"}]}),
    );
    sync_at(&mut world, 0);
    node(&mut world, "b1", "b", Some(100));
    sync_at(&mut world, 100);
    assert_eq!(status(&world)[0], "b Spec Ready 2(1)", "one node is Ready");
    node(&mut world, "b2", "b", Some(150));
    sync_at(&mut world, 449);
    assert_eq!(status(&world)[0], "b Spec NotReady 2(0) since 150");
    let events = sync_at(&mut world, 450);
    assert_eq!(status(&world)[0], "b Spec Lost 2(0) since 150");
    assert!(
        events.len() == 1 && events[0].contains("DomainLost"),
        "{events:?}"
    );
    assert_eq!(
        condition_of(&world, "zones", "Ready"),
        "True Declared: 1 domains count, lost: b"
    );
    // Its nodes are deleted, and one joins that is not Ready yet: that does not make it count.
    world.remove(&registry::NODE, "", "b1");
    world.remove(&registry::NODE, "", "b2");
    sync_at(&mut world, 500);
    assert_eq!(status(&world)[0], "b Spec Lost 0(0) since 150");
    node(&mut world, "b3", "b", Some(590));
    sync_at(&mut world, 600);
    assert_eq!(status(&world)[0], "b Spec Lost 1(0) since 150");
    node(&mut world, "b3", "b", None);
    let events = sync_at(&mut world, 610);
    assert_eq!(status(&world)[0], "b Spec Ready 1(1)");
    assert!(
        events.len() == 1 && events[0].contains("DomainCounted"),
        "{events:?}"
    );
}

#[test]
fn b3_without_the_time_or_with_all_zones_not_ready_none_is_lost() {
    let mut world = World::default();
    node(&mut world, "a1", "a", Some(0));
    node(&mut world, "b1", "b", Some(0));
    declare(&mut world, "zones", 0, &json!({"lostAfterSeconds": 60}));
    sync_at(&mut world, 1000);
    assert_eq!(
        status(&world),
        ["a Nodes NotReady 1(0) since 0", "b Nodes NotReady 1(0) since 0"],
        "more likely the control plane is partitioned"
    );
    node(&mut world, "a1", "a", None);
    sync_at(&mut world, 1001);
    assert_eq!(
        status(&world),
        ["a Nodes Ready 1(1)", "b Nodes Lost 1(0) since 0"]
    );
    declare(&mut world, "zones", 0, &json!({}));
    sync_at(&mut world, 1002);
    assert_eq!(status(&world)[1], "b Nodes NotReady 1(0) since 0");
}

#[test]
fn b3_a_zone_that_is_scaled_to_zero_is_not_lost() {
    let mut world = World::default();
    node(&mut world, "a1", "a", None);
    node(&mut world, "b1", "b", None);
    let spec = json!({"lostAfterSeconds": 60, "nodeGroupLabel": "group"});
    declare(&mut world, "zones", 0, &spec);
    sync_at(&mut world, 0);
    // The autoscaler stops the machine, then deletes the node.
    node(&mut world, "b1", "b", Some(10));
    sync_at(&mut world, 20);
    world.remove(&registry::NODE, "", "b1");
    sync_at(&mut world, 30);
    sync_at(&mut world, 5000);
    assert_eq!(status(&world)[1], "b NodeGroup Absent 0(0) since 10");
}

#[test]
fn b3_the_last_ready_node_of_a_zone_is_deleted_while_others_are_not_ready_for_long() {
    let mut world = World::default();
    node(&mut world, "a1", "a", None);
    node(&mut world, "b1", "b", Some(0));
    node(&mut world, "b2", "b", None);
    declare(&mut world, "zones", 0, &json!({"lostAfterSeconds": 60}));
    sync_at(&mut world, 1000);
    world.remove(&registry::NODE, "", "b2");
    sync_at(&mut world, 1010);
    assert_eq!(status(&world)[1], "b Nodes NotReady 1(0) since 1010");
    sync_at(&mut world, 1070);
    assert_eq!(status(&world)[1], "b Nodes Lost 1(0) since 1010");
}

#[test]
fn b3_node_groups_are_remembered_with_what_their_nodes_had_in_common_until_they_are_forgotten() {
    let mut world = World::default();
    node(&mut world, "a1", "a", None);
    node(&mut world, "c1", "c", None);
    node(&mut world, "c2", "c", None);
    let (name, zone, group) = ("c3", "c", "gpu");
    TestNode {
        name,
        zone,
        group,
        lost: None,
    }
    .put(&mut world);
    let spec = json!({"nodeGroupLabel": "group", "forgetAfterSeconds": 1000});
    declare(&mut world, "zones", 0, &spec);
    sync_at(&mut world, 0);
    for name in ["c1", "c2", "c3"] {
        world.remove(&registry::NODE, "", name);
    }
    sync_at(&mut world, 100);
    assert_eq!(
        status(&world),
        ["a NodeGroup Ready 1(1)", "c NodeGroup Absent 0(0) since 100"]
    );
    let template = |group: &str, labels: Value| {
        json!({"nodeGroup": group, "withoutNodesSince": time(100), "labels": labels,
            "taints": [{"key": "of-group", "value": group, "effect": "NoSchedule"}]})
    };
    let found = read(&world, "zones").status.domains;
    assert_eq!(
        serde_json::to_value(&found[1].node_templates).unwrap(),
        json!([
            template("gpu", json!({"disk": "ssd", "group": "gpu", "own": "c3"})),
            template("workers", json!({"disk": "ssd", "group": "workers"})),
        ])
    );
    // One group is back in time, the other is forgotten.
    node(&mut world, "c1", "c", None);
    sync_at(&mut world, 1099);
    sync_at(&mut world, 1100);
    let found = read(&world, "zones").status.domains;
    assert_eq!(found[1].node_templates.len(), 1);
    assert_eq!(found[1].node_templates[0].node_group, "workers");
    assert_eq!(found[1].node_templates[0].without_nodes_since, None);
    world.remove(&registry::NODE, "", "c1");
    sync_at(&mut world, 1200);
    sync_at(&mut world, 2200);
    assert_eq!(status(&world), ["a NodeGroup Ready 1(1)"]);
}

#[test]
fn b3_of_two_objects_for_a_key_the_older_is_used_and_named() {
    let mut world = World::default();
    node(&mut world, "a1", "a", None);
    declare(&mut world, "zones", 5, &json!({"domains": [{"name": "c"}]}));
    declare(
        &mut world,
        "a-younger-one",
        6,
        &json!({"domains": [{"name": "d"}]}),
    );
    declare(
        &mut world,
        "other",
        6,
        &json!({"topologyKey": "rack", "domains": [{"name": "r"}]}),
    );
    sync_at(&mut world, 10);
    let conflict = "TopologyDomains zones is older and declares zone, too: this object is not used";
    assert_eq!(
        condition_of(&world, "a-younger-one", "Conflict"),
        format!("True OlderObject: {conflict}")
    );
    assert_eq!(
        condition_of(&world, "a-younger-one", "Ready"),
        format!("False Conflict: {conflict}")
    );
    assert!(read(&world, "a-younger-one").status.domains.is_empty());
    assert_eq!(condition_of(&world, "zones", "Conflict"), "False NoConflict: ");
    assert_eq!(read(&world, "other").status.domains.len(), 1);
    world.remove(TopologyDomains::kind(), "", "zones");
    sync_at(&mut world, 20);
    let younger = read(&world, "a-younger-one").status;
    assert_eq!(younger.domains[0].name, "d");
    assert_eq!(
        condition_of(&world, "a-younger-one", "Conflict"),
        "False NoConflict: "
    );
    let since = |c: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| c.last_transition_time.0;
    assert_eq!(
        younger.conditions.iter().map(since).collect::<Vec<Timestamp>>(),
        [at(20), at(20)]
    );
}

#[test]
fn b3_domains_and_groups_are_bounded() {
    let mut world = World::default();
    for i in 0..100 {
        let (name, zone, group) = (format!("n{i}"), format!("z{i:03}"), format!("g{i}"));
        let (name, zone, group) = (name.as_str(), zone.as_str(), group.as_str());
        TestNode {
            name,
            zone,
            group,
            lost: None,
        }
        .put(&mut world);
        let zone = "one";
        let name = &format!("m{i}");
        TestNode {
            name,
            zone,
            group,
            lost: None,
        }
        .put(&mut world);
    }
    declare(
        &mut world,
        "zones",
        0,
        &json!({"nodeGroupLabel": "group", "domains": [{"name": "one"}, {"name": "two"}]}),
    );
    sync_at(&mut world, 0);
    let found = read(&world, "zones").status.domains;
    assert_eq!(found.len(), DOMAINS_MAX);
    let templates: usize = found.iter().map(|d| d.node_templates.len()).sum();
    assert_eq!(templates, GROUPS_MAX + 2);
    assert_eq!(
        found[1].node_templates.len(),
        1,
        "domains of the spec stay declared"
    );
    assert!(
        condition_of(&world, "zones", "Ready").ends_with("; 38 are left out: at most 64 can be declared")
    );
}

#[test]
fn b3_heartbeats_and_own_writes_wake_nothing() {
    let mut world = World::default();
    let object = |world: &World, name: &str| world.get(&registry::NODE, "", name).unwrap();
    node(&mut world, "n", "a", None);
    let before = object(&world, "n");
    let mut renewed = before.to_typed::<Node>().unwrap();
    let conditions = renewed.status.as_mut().unwrap().conditions.as_mut().unwrap();
    conditions[0].last_heartbeat_time = Some(seconds(at(9)));
    world.put(renewed);
    assert!(!is_relevant(Some(&before), Some(&object(&world, "n"))));
    node(&mut world, "n", "b", None);
    assert!(is_relevant(Some(&before), Some(&object(&world, "n"))));
    node(&mut world, "n", "a", Some(1));
    assert!(is_relevant(Some(&before), Some(&object(&world, "n"))));
    assert!(is_relevant(None, Some(&before)));
    declare(&mut world, "zones", 0, &json!({}));
    let kind = TopologyDomains::kind();
    let written = world.get(kind, "", "zones").unwrap();
    sync_at(&mut world, 0);
    assert!(!is_relevant(
        Some(&written),
        Some(&world.get(kind, "", "zones").unwrap())
    ));
}

#[test]
fn b3_an_object_that_does_not_parse_stops_no_other() {
    let mut world = World::default();
    declare(
        &mut world,
        "broken",
        0,
        &json!({"topologyKey": "rack", "domains": "all"}),
    );
    declare(&mut world, "zones", 0, &json!({"domains": [{"name": "c"}]}));
    sync_at(&mut world, 0);
    assert_eq!(status(&world), ["c Spec Absent 0(0) since 0"]);
}
