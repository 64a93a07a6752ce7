//! PodTopologySpread with declared domains (SPEC B3), on small clusters: nodes `a1`, `b1`, … in the zones `a`, `b`, …

mod history;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::custom::Names;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::why::{Verdict, why};
use crate::{Action, Scheduler};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const SPREAD: &str = "node(s) didn't match pod topology spread constraints";

fn shared<T: Registered>(value: Value) -> Shared<T> {
    let typed: T = serde_json::from_value(value).unwrap();
    Shared::new(Arc::new(Object::from_typed(T::kind_of(), Box::new(typed)))).unwrap()
}

fn node(name: &str, zone: &str) -> Shared<Node> {
    shared(json!({
        "metadata": {"name": name, "uid": name, "labels": {HOSTNAME: name, "zone": zone, "disk": "ssd"}},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "100"}},
    }))
}

fn pod(name: &str, node: &str) -> Shared<Pod> {
    shared(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": "web"}},
        "spec": {"nodeName": node, "containers": [{"name": "c"}]},
        "status": {"phase": "Running"},
    }))
}

/// A constraint over the zones with maxSkew 1, and `more`.
fn zones(more: &Value) -> Value {
    let mut constraint = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}});
    for (key, value) in more.as_object().into_iter().flatten() {
        constraint[key] = value.clone();
    }
    constraint
}

/// A pod to be scheduled, with these constraints and `more` of a spec.
fn pending(constraints: &Value, more: &Value) -> Shared<Pod> {
    let resources = json!({"requests": {"cpu": "2"}});
    let mut spec = json!({"containers": [{"name": "c", "resources": resources}],
        "topologySpreadConstraints": constraints});
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    shared(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "p", "labels": {"app": "web"}},
        "spec": spec,
    }))
}

fn declared(name: &str, created: &str, domains: &Value) -> Arc<Object> {
    let definition = json!({"metadata": {"name": "topologydomains.placement.knarr.io"},
        "spec": {"group": GROUP, "scope": "Cluster", "names": {"plural": "topologydomains", "kind": KIND},
            "versions": [{"name": "v1alpha1", "served": true, "storage": true}]},
        "status": {"conditions": [{"type": "Established", "status": "True"}]}});
    let kind = Names::of(&serde_json::from_value(definition).unwrap())
        .unwrap()
        .kind();
    let json = json!({"apiVersion": "placement.knarr.io/v1alpha1", "kind": KIND,
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {"topologyKey": "zone"}, "status": {"domains": domains}});
    let object = kind.ops.decode(json.to_string().as_bytes()).unwrap().object;
    Arc::new(Object::from_typed(&kind, object))
}

const OLD: &str = "2026-01-01T00:00:00Z";
const YOUNG: &str = "2026-02-01T00:00:00Z";

/// A domain that counts, with one template.
fn domain(name: &str, template: &Value) -> Value {
    json!({"name": name, "counted": true, "nodeTemplates": [template]})
}

fn lost(name: &str, templates: &Value) -> Value {
    json!({"name": name, "counted": false, "withoutReadyNodesSince": "2026-03-01T12:00:00Z", "nodeTemplates": templates})
}

/// A cluster with one node and one pod in each of `a` and `b`, and more nodes by name.
fn cluster(more: &[&str], objects: &[Arc<Object>]) -> Scheduler {
    let mut scheduler = Scheduler::default();
    for name in ["a1", "b1"].iter().chain(more) {
        scheduler.node_changed(name, Some(node(name, &name[..1])), NOW);
    }
    for name in ["a1", "b1"] {
        scheduler.pod_changed(None, Some(&pod(&format!("on-{name}"), name)), NOW);
    }
    for object in objects {
        scheduler.topology_domains_changed(object.name(), Some(object), NOW);
    }
    scheduler
}

/// The feasible nodes; if there are none, the message.
fn verdict(scheduler: &mut Scheduler, pod: &Shared<Pod>) -> String {
    let info = scheduler.info(pod);
    let found = scheduler.explain(&info);
    let feasible = found.nodes.iter().filter(|(_, rejection)| rejection.is_none());
    let feasible: Vec<&str> = feasible.map(|(name, _)| name.as_str()).collect();
    if feasible.is_empty() {
        found.diagnosis.unschedulable()
    } else {
        feasible.join(" ")
    }
}

#[test]
fn b3_an_absent_zone_counts_if_a_node_there_would_be_eligible() {
    let waits = format!("0/2 nodes are available: 2 {SPREAD} (waiting for a node in zone=c).");
    let waits = waits.as_str();
    let many =
        format!("0/2 nodes are available: 2 {SPREAD} (waiting for a node in zone=c or d or e or 2 more).");
    let plain = json!({});
    let ssd = json!({"labels": {"disk": "ssd"}});
    let tainted = json!({"taints": [{"key": "gpu", "effect": "NoSchedule"}]});
    let honor_taints = json!({"nodeTaintsPolicy": "Honor"});
    let tolerates = json!({"tolerations": [{"key": "gpu", "operator": "Exists"}]});
    let not_c = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["c"]}]}]}}}});
    let named = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a1", "b1"]}]}]}}}});
    let selects_ssd = json!({"nodeSelector": {"disk": "ssd"}});
    let of_linux = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/os", "operator": "NotIn", "values": ["windows"]}]}]}}}});
    let other_key = |key: &str| {
        json!([zones(&Value::Null), {"maxSkew": 5, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}}}])
    };
    let one = |more: &Value| json!([zones(more)]);
    let none = Value::Null;
    // (what, domains, constraints, spec, verdict)
    let table = [
        ("nothing is declared", json!([]), one(&none), &none, "a1 b1"),
        (
            "zones with nodes",
            json!([domain("a", &plain), domain("b", &plain)]),
            one(&none),
            &none,
            "a1 b1",
        ),
        (
            "an absent zone",
            json!([domain("c", &plain)]),
            one(&none),
            &none,
            waits,
        ),
        (
            "maxSkew allows it",
            json!([domain("c", &plain)]),
            one(&json!({"maxSkew": 2})),
            &none,
            "a1 b1",
        ),
        (
            "ScheduleAnyway",
            json!([domain("c", &plain)]),
            one(&json!({"whenUnsatisfiable": "ScheduleAnyway"})),
            &none,
            "a1 b1",
        ),
        (
            "affinity excludes it",
            json!([domain("c", &plain)]),
            one(&none),
            &not_c,
            "a1 b1",
        ),
        (
            "named nodes exclude it",
            json!([domain("c", &plain)]),
            one(&none),
            &named,
            "a1 b1",
        ),
        (
            "affinity is ignored",
            json!([domain("c", &plain)]),
            one(&json!({"nodeAffinityPolicy": "Ignore"})),
            &not_c,
            waits,
        ),
        (
            "a selector that the declared labels do not match",
            json!([domain("c", &plain)]),
            one(&none),
            &selects_ssd,
            "a1 b1",
        ),
        (
            "a selector that they match",
            json!([domain("c", &ssd)]),
            one(&none),
            &selects_ssd,
            waits,
        ),
        (
            "nodes run Linux",
            json!([domain("c", &plain)]),
            one(&none),
            &of_linux,
            waits,
        ),
        (
            "taints are ignored",
            json!([domain("c", &tainted)]),
            one(&none),
            &none,
            waits,
        ),
        (
            "a taint that is not tolerated",
            json!([domain("c", &tainted)]),
            one(&honor_taints),
            &none,
            "a1 b1",
        ),
        (
            "a taint that is tolerated",
            json!([domain("c", &tainted)]),
            one(&honor_taints),
            &tolerates,
            waits,
        ),
        (
            "one of two groups of nodes is eligible",
            json!([{"name": "c", "counted": true, "nodeTemplates": [tainted, plain]}]),
            one(&honor_taints),
            &none,
            waits,
        ),
        (
            "every node has a hostname",
            json!([domain("c", &plain)]),
            other_key(HOSTNAME),
            &none,
            waits,
        ),
        (
            "a key that its nodes would not have",
            json!([domain("c", &plain)]),
            other_key("disk"),
            &none,
            "a1 b1",
        ),
        (
            "a key that they would have",
            json!([domain("c", &ssd)]),
            other_key("disk"),
            &none,
            waits,
        ),
        (
            "more domains than a message names",
            json!(["c", "d", "e", "f", "g"].map(|name| domain(name, &plain))),
            one(&none),
            &none,
            many.as_str(),
        ),
    ];
    for (what, domains, constraints, spec, expected) in table {
        let mut scheduler = cluster(&[], &[declared("zones", OLD, &domains)]);
        let found = verdict(&mut scheduler, &pending(&constraints, spec));
        assert_eq!(found, expected, "{what}");
    }
}

#[test]
fn b3_min_domains_counts_absent_and_lost_domains_but_the_minimum_is_that_of_domains_that_count() {
    let three = pending(&json!([zones(&json!({"minDomains": 3}))]), &Value::Null);
    let skewed = format!("0/2 nodes are available: 2 {SPREAD}.");
    let named = format!("0/2 nodes are available: 2 {SPREAD} (waiting for a node in zone=c).");
    let templates = json!([{}]);
    let table = [
        (json!([]), skewed.as_str()),
        (json!([domain("c", &json!({}))]), named.as_str()),
        (json!([lost("c", &templates)]), "a1 b1"),
        (json!([lost("c", &json!([]))]), skewed.as_str()),
    ];
    for (domains, expected) in table {
        let mut scheduler = cluster(&[], &[declared("zones", OLD, &domains)]);
        assert_eq!(verdict(&mut scheduler, &three), expected, "{domains}");
    }
}

#[test]
fn b3_a_lost_zone_does_not_block_the_others_and_counts_again() {
    let one = pending(&json!([zones(&Value::Null)]), &Value::Null);
    let mut scheduler = cluster(&["c1"], &[]);
    assert_eq!(verdict(&mut scheduler, &one), "c1");
    let object = |domains: Value| declared("zones", OLD, &domains);
    scheduler.topology_domains_changed("zones", Some(&object(json!([lost("c", &json!([]))]))), NOW);
    assert_eq!(verdict(&mut scheduler, &one), "a1 b1 c1");
    let back = object(json!([{"name": "c", "counted": true, "nodeTemplates": []}]));
    scheduler.topology_domains_changed("zones", Some(&back), NOW);
    assert_eq!(verdict(&mut scheduler, &one), "c1");
    scheduler.topology_domains_changed("zones", Some(&object(json!([lost("c", &json!([]))]))), NOW);
    assert_eq!(verdict(&mut scheduler, &one), "a1 b1 c1");
    scheduler.topology_domains_changed("zones", None, NOW);
    assert_eq!(verdict(&mut scheduler, &one), "c1", "the object is deleted");
}

#[test]
fn b3_a_pod_that_only_lost_zones_could_take_is_spread_over_these() {
    let in_a = json!({"nodeSelector": {"zone": "a"}});
    let one = pending(&json!([zones(&Value::Null)]), &in_a);
    let mut scheduler = cluster(&[], &[]);
    assert_eq!(verdict(&mut scheduler, &one), "a1");
    let object = declared("zones", OLD, &json!([lost("a", &json!([]))]));
    scheduler.topology_domains_changed("zones", Some(&object), NOW);
    assert_eq!(verdict(&mut scheduler, &one), "a1");
}

#[test]
fn b3_of_two_objects_for_a_key_the_older_is_used() {
    let one = pending(&json!([zones(&Value::Null)]), &Value::Null);
    let with = |name: &str, created: &str, domain_name: &str| {
        declared(name, created, &json!([domain(domain_name, &json!({}))]))
    };
    let table = [
        (with("x", OLD, "c"), with("y", YOUNG, "d"), "zone=c"),
        (with("x", YOUNG, "c"), with("y", OLD, "d"), "zone=d"),
        (with("x", OLD, "c"), with("y", OLD, "d"), "zone=c"),
        // One whose status the controller has not written, or that is in conflict, declares nothing.
        (declared("x", OLD, &json!([])), with("y", YOUNG, "d"), "zone=d"),
    ];
    for (first, second, expected) in table {
        let mut scheduler = cluster(&[], &[first, second]);
        let found = verdict(&mut scheduler, &one);
        assert!(
            found.ends_with(&format!("(waiting for a node in {expected}).")),
            "{found}"
        );
    }
}

#[test]
fn b3_objects_of_other_kinds_and_invalid_ones_declare_nothing() {
    assert!(TopologyDomains::of(node("a1", "a").object()).is_none());
    let invalid = declared("zones", OLD, &json!("three"));
    assert!(TopologyDomains::of(&invalid).is_none());
    let twice = json!([
        domain("c", &json!({})),
        lost("c", &json!([])),
        domain("c", &json!({}))
    ]);
    let read = TopologyDomains::of(&declared("zones", OLD, &twice)).unwrap();
    assert_eq!(read.domains.len(), 1, "a domain is declared once");
    let many: Vec<Value> = (0..200).map(|i| domain(&format!("z{i}"), &json!({}))).collect();
    let read = TopologyDomains::of(&declared("zones", OLD, &json!(many))).unwrap();
    assert_eq!(read.domains.len(), DOMAINS_MAX);
}

#[test]
fn b3_a_change_of_the_domains_requeues_the_pods_that_depend_on_them() {
    let at = |seconds| NOW + SignedDuration::from_secs(seconds);
    let object = |domains: Value| declared("zones", OLD, &domains);
    let absent = |nodes: u32| {
        let mut domain = domain("c", &json!({}));
        domain["nodes"] = nodes.into();
        object(json!([domain]))
    };
    let mut scheduler = cluster(&[], &[absent(0)]);
    let one = pending(&json!([zones(&Value::Null)]), &Value::Null);
    scheduler.pod_changed(None, Some(&one), NOW);
    let Some(Action::Report {
        message, is_error, ..
    }) = scheduler.schedule_one(NOW)
    else {
        panic!("the pod waits for a node in zone c");
    };
    assert!(!is_error, "the condition's reason is Unschedulable");
    assert!(message.contains("waiting for a node in zone=c"), "{message}");
    scheduler.topology_domains_changed("zones", Some(&absent(7)), at(20));
    assert!(
        scheduler.schedule_one(at(40)).is_none(),
        "nothing that matters has changed"
    );
    let lost = object(json!([lost("c", &json!([{}]))]));
    scheduler.topology_domains_changed("zones", Some(&lost), at(50));
    let Some(Action::Bind { node, .. }) = scheduler.schedule_one(at(70)) else {
        panic!("zone c does not block the pod any more");
    };
    assert!(["a1", "b1"].contains(&node.as_str()), "{node}");
}

#[test]
fn b3_a_change_of_another_keys_domains_requeues_no_pod() {
    let mut scheduler = cluster(&["c1"], &[]);
    let hosts = zones(&json!({"nodeAffinityPolicy": "Ignore", "topologyKey": HOSTNAME}));
    let one = pending(&json!([hosts]), &json!({"nodeSelector": {"zone": "a"}}));
    scheduler.pod_changed(None, Some(&one), NOW);
    assert!(matches!(scheduler.schedule_one(NOW), Some(Action::Report { .. })));
    let object = declared("zones", OLD, &json!([domain("d", &json!({}))]));
    scheduler.topology_domains_changed("zones", Some(&object), NOW);
    let later = NOW + SignedDuration::from_secs(30);
    assert!(scheduler.schedule_one(later).is_none());
}

#[test]
fn b3_why_names_absent_and_lost_zones() {
    let one = pending(&json!([zones(&Value::Null)]), &Value::Null);
    let waits = |domains: Value| {
        let mut scheduler = cluster(&["d1"], &[declared("zones", OLD, &domains)]);
        scheduler.pod_changed(None, Some(&pod("on-d1", "d1")), NOW);
        why(&mut scheduler, &one)
    };
    let found = waits(json!([
        domain("a", &json!({})),
        domain("c", &json!({})),
        lost("d", &json!([]))
    ]));
    let Verdict::Waits { message } = &found.verdict else {
        panic!("{found:?}");
    };
    assert!(message.contains("(waiting for a node in zone=c)"), "{message}");
    assert_eq!(
        found.domains,
        [
            "zone=c (TopologyDomains zones) has no node for the pod and counts with 0 pods; \
             a node that is added there would fit the pod",
            "zone=d (TopologyDomains zones) is lost: none of its nodes is Ready since 2026-03-01T12:00:00Z, \
             and its pods do not count for the global minimum",
        ]
    );
    let small = json!({"capacity": {"cpu": "1", "pods": "10"}});
    let found = waits(json!([domain("c", &small)]));
    assert_eq!(
        found.domains,
        [
            "zone=c (TopologyDomains zones) has no node for the pod and counts with 0 pods; \
          a node as it is declared would not fit the pod: Insufficient cpu"
        ]
    );
    let found = waits(json!([]));
    assert!(matches!(found.verdict, Verdict::Fits { nodes: 3 }), "{found:?}");
    assert_eq!(serde_json::to_value(&found).unwrap().get("domains"), None);
}

/// Which nodes are feasible.
fn feasible(scheduler: &mut Scheduler, pod: &Shared<Pod>) -> BTreeMap<String, bool> {
    let info = scheduler.info(pod);
    let found = scheduler.explain(&info).nodes;
    found
        .into_iter()
        .map(|(n, rejection)| (n.into(), rejection.is_none()))
        .collect()
}

proptest! {
    #[test]
    fn b3_a_declared_zone_is_as_one_with_an_empty_node(
        zones_of_nodes in proptest::collection::vec(0..3_usize, 1..6),
        pods in proptest::collection::vec(0..6_usize, 0..12),
        names in proptest::collection::btree_set(0..5_usize, 0..5),
        max_skew in 1..4_i64,
        min_domains in 1..5_i64,
    ) {
        const ZONES: [&str; 5] = ["a", "b", "c", "d", "e"];
        let cluster = || {
            let mut scheduler = Scheduler::default();
            for (i, zone) in zones_of_nodes.iter().enumerate() {
                let name = format!("n{i}");
                scheduler.node_changed(&name, Some(node(&name, ZONES[*zone])), NOW);
            }
            for (i, on) in pods.iter().enumerate() {
                let on = format!("n{}", on % zones_of_nodes.len());
                scheduler.pod_changed(None, Some(&pod(&format!("p{i}"), &on)), NOW);
            }
            scheduler
        };
        let one = pending(&json!([zones(&json!({"maxSkew": max_skew, "minDomains": min_domains}))]), &Value::Null);
        let object = |names: &mut dyn Iterator<Item = usize>| {
            let domains: Vec<Value> = names.map(|i| domain(ZONES[i], &json!({}))).collect();
            declared("zones", OLD, &json!(domains))
        };

        // Zones that have nodes: nothing changes.
        let before = feasible(&mut cluster(), &one);
        let mut scheduler = cluster();
        let there = object(&mut names.iter().copied().filter(|i| zones_of_nodes.contains(i)));
        scheduler.topology_domains_changed("zones", Some(&there), NOW);
        prop_assert_eq!(&feasible(&mut scheduler, &one), &before);

        // Zones without nodes: as with a cordoned node in each.
        let all = object(&mut names.iter().copied());
        scheduler.topology_domains_changed("zones", Some(&all), NOW);
        let found = feasible(&mut scheduler, &one);
        let mut model = cluster();
        for i in names.iter().filter(|i| !zones_of_nodes.contains(i)) {
            let mut empty = (*node("empty", ZONES[*i])).clone();
            let name = format!("empty-{i}");
            empty.metadata.name = Some(name.clone());
            empty.spec.get_or_insert_default().unschedulable = Some(true);
            let empty = Arc::new(Object::from_typed(Node::kind_of(), Box::new(empty)));
            model.node_changed(&name, Some(Shared::new(empty).unwrap()), NOW);
        }
        let mut expected = feasible(&mut model, &one);
        expected.retain(|name, _| !name.starts_with("empty"));
        prop_assert_eq!(&found, &expected);

        // Once a node is added there, the declaration changes nothing.
        for i in names.iter().filter(|i| !zones_of_nodes.contains(i)) {
            let name = format!("new-{i}");
            for scheduler in [&mut scheduler, &mut model] {
                scheduler.node_changed(&name, Some(node(&name, ZONES[*i])), NOW);
            }
        }
        let mut expected = feasible(&mut model, &one);
        expected.retain(|name, _| !name.starts_with("empty"));
        prop_assert_eq!(feasible(&mut scheduler, &one), expected);
    }
}
