//! The choice of pods, as tables and compared with all possible choices.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::Object;
use crate::registry::Registered;

const ZONE: &str = "topology.kubernetes.io/zone";
const HOSTNAME: &str = "kubernetes.io/hostname";
/// The second in which all pods are created and ready.
const START: i64 = 1_000_000;

fn shared<T: Registered + serde::de::DeserializeOwned>(value: Value) -> Shared<T> {
    let typed: T = serde_json::from_value(value).unwrap();
    Shared::new(Arc::new(Object::from_typed(T::kind_of(), Box::new(typed)))).unwrap()
}

fn time(second: i64) -> String {
    Timestamp::from_second(START + second).unwrap().to_string()
}

/// A node with its host name; `zone` may be empty.
fn node(name: &str, zone: &str) -> Value {
    let mut labels = json!({HOSTNAME: name});
    if !zone.is_empty() {
        labels[ZONE] = zone.into();
    }
    json!({"metadata": {"name": name, "labels": labels}})
}

fn constraint(key: &str, when: &str) -> Value {
    json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": {"app": "web"}}})
}

/// A ready pod with these constraints.
fn pod(name: &str, node: &str, constraints: &Value) -> Value {
    json!({
        "metadata": {"namespace": "default", "name": name, "uid": name, "labels": {"app": "web"},
            "creationTimestamp": time(0)},
        "spec": {"nodeName": node, "containers": [], "topologySpreadConstraints": constraints},
        "status": {"phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time(0)}]},
    })
}

fn now() -> Timestamp {
    Timestamp::from_second(START + 1000).unwrap()
}

/// A cluster, and a set with some of its pods.
struct Case {
    topology: Topology,
    set: Vec<Shared<Pod>>,
}

impl Case {
    fn new(nodes: &[Value], set: &[Value], others: &[Value]) -> Self {
        let set: Vec<Shared<Pod>> = set.iter().cloned().map(shared).collect();
        let others = others.iter().cloned().map(shared);
        Case {
            topology: Topology {
                nodes: nodes.iter().cloned().map(shared).collect(),
                pods: set.iter().cloned().chain(others).collect(),
            },
            set,
        }
    }

    fn scale_down(&self, number: usize) -> ScaleDown<'_> {
        let mut related_by_node = BTreeMap::new();
        for pod in &self.set {
            *related_by_node
                .entry(crate::kinds::pod::node_name(pod).to_string())
                .or_default() += 1;
        }
        ScaleDown {
            pods: &self.set,
            number,
            related_by_node,
            now: now(),
        }
    }

    fn deleted(&self, number: usize) -> Vec<String> {
        let chosen = self.scale_down(number).choose(Some(&self.topology));
        chosen.iter().map(|p| p.object().name().to_string()).collect()
    }
}

/// Three zones with two nodes each: `a1`, `a2`, `b1`, …
fn zones() -> Vec<Value> {
    let names = ["a1", "a2", "b1", "b2", "c1", "c2"];
    names.map(|name| node(name, &name[..1])).to_vec()
}

/// A pod on each of these nodes, named for node and number: `a1-0`.
fn pods(nodes: &[&str], constraints: &Value) -> Vec<Value> {
    let named = nodes.iter().enumerate();
    named
        .map(|(i, node)| pod(&format!("{node}-{i}"), node, constraints))
        .collect()
}

fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let mut at = &mut object;
    for key in pointer.split('.') {
        at = &mut at[key];
    }
    *at = value;
    object
}

#[test]
fn b3_each_deletion_is_of_the_fullest_zone_by_then() {
    let zone = json!([constraint(ZONE, "DoNotSchedule")]);
    let case = Case::new(
        &zones(),
        &pods(&["a1", "a1", "a2", "a2", "b1", "b2", "c1"], &zone),
        &[],
    );
    let zones_of = |number| -> String { case.deleted(number).iter().map(|n| n[..1].to_string()).collect() };
    assert_eq!(zones_of(1), "a");
    assert_eq!(zones_of(2), "aa");
    // 2/2/1: one each of the two fullest.
    let mut two = zones_of(4);
    let rest = two.split_off(2);
    assert_eq!(two, "aa");
    assert!(rest == "ab" || rest == "ba", "{rest}");
    assert_eq!(case.deleted(7).len(), 7, "all are deleted");
}

#[test]
fn b3_zone_and_host_name_are_added_up() {
    let both = json!([
        constraint(ZONE, "DoNotSchedule"),
        constraint(HOSTNAME, "DoNotSchedule")
    ]);
    let nodes = [node("a1", "a"), node("a2", "a"), node("b1", "b"), node("b2", "b")];
    // a: 2 + 2, b: 3 + 1. The zones are equal, so the fullest host decides.
    let on = ["a1", "a1", "a2", "a2", "b1", "b1", "b1", "b2"];
    let case = Case::new(&nodes, &pods(&on, &both), &[]);
    let mut first = case.deleted(2);
    assert!(first[0].starts_with("b1"), "{first:?}");
    // Then zone a has one more than b, and its hosts as many as b1.
    assert!(first[1].starts_with('a'), "{first:?}");
    first = case.deleted(4);
    let from = |host: &str| first.iter().filter(|n| n.starts_with(host)).count();
    assert_eq!([from("a1"), from("a2"), from("b1"), from("b2")], [1, 1, 2, 0]);
}

#[test]
fn b3_do_not_schedule_comes_before_schedule_anyway() {
    let mixed = json!([
        constraint(HOSTNAME, "ScheduleAnyway"),
        constraint(ZONE, "DoNotSchedule")
    ]);
    // By zone a is the fullest (3 to 2), by host b1 (2 to 1).
    let nodes = [node("a1", "a"), node("a2", "a"), node("a3", "a"), node("b1", "b")];
    let case = Case::new(&nodes, &pods(&["a1", "a2", "a3", "b1", "b1"], &mixed), &[]);
    let deleted = case.deleted(2);
    assert!(deleted[0].starts_with('a'), "{deleted:?}");
    assert!(deleted[1].starts_with("b1"), "{deleted:?}");
}

#[test]
fn b3_a_skew_above_max_skew_comes_before_a_larger_one_within_it() {
    let loose = with(constraint(ZONE, "DoNotSchedule"), "maxSkew", 5.into());
    let both = json!([loose, constraint(HOSTNAME, "DoNotSchedule")]);
    // Zone a has 3 more than b, which its maxSkew allows; b1 has 2 more than the other hosts, which its maxSkew does not allow.
    let names = ["a1", "a2", "a3", "a4", "a5", "a6", "b1", "b2"];
    let nodes = names.map(|name| node(name, &name[..1]));
    let on = ["a1", "a2", "a3", "a4", "a5", "a6", "a6", "b1", "b1", "b1", "b2"];
    let case = Case::new(&nodes, &pods(&on, &both), &[]);
    assert!(case.deleted(1)[0].starts_with("b1"), "{:?}", case.deleted(1));
}

#[test]
fn b3_pods_that_give_no_service_and_deletion_cost_come_before_the_spread() {
    let zone = json!([constraint(ZONE, "DoNotSchedule")]);
    let plain = || pods(&["a1", "a1", "a2", "b1"], &zone);
    let odd = || pod("odd", "c1", &zone);
    let cost = |value: &str| json!({"controller.kubernetes.io/pod-deletion-cost": value});
    // (why, what c's only pod is, whether it is deleted first)
    let table = [
        ("ready", odd(), false),
        ("not ready", with(odd(), "status.conditions", json!([])), true),
        ("Pending", with(odd(), "status.phase", "Pending".into()), true),
        ("Unknown", with(odd(), "status.phase", "Unknown".into()), true),
        ("unassigned", with(odd(), "spec.nodeName", "".into()), true),
        ("cheaper", with(odd(), "metadata.annotations", cost("-1")), true),
        (
            "more expensive",
            with(odd(), "metadata.annotations", cost("1")),
            false,
        ),
    ];
    for (why, odd, is_first) in table {
        let mut set = plain();
        set.push(odd);
        let deleted = Case::new(&zones(), &set, &[]).deleted(2);
        assert_eq!(deleted[0] == "odd", is_first, "{why}: {deleted:?}");
        // The other one is of the fullest zone.
        assert!(deleted[1].starts_with('a'), "{why}: {deleted:?}");
    }
    // A user who wants two pods of one zone gone gets that.
    let mut set = plain();
    for pod in [0, 3] {
        set[pod] = with(set[pod].clone(), "metadata.annotations", cost("-1"));
    }
    let mut deleted = Case::new(&zones(), &set, &[]).deleted(2);
    deleted.sort();
    assert_eq!(deleted, ["a1-0", "b1-3"]);
}

#[test]
fn b3_d1_the_counts_are_those_of_the_scheduler() {
    let zone = || constraint(ZONE, "DoNotSchedule");
    let set = |constraint: Value| pods(&["a1", "b1"], &json!([constraint]));
    let other = |name: &str, node: &str| pod(name, node, &Value::Null);
    let old = |pod: Value| {
        with(
            pod,
            "metadata.labels",
            json!({"app": "web", "pod-template-hash": "old"}),
        )
    };
    let selects_nothing = json!({"matchLabels": {"app": "other"}});
    // (why, the set's pods on a1 and b1, other pods of the namespace, the zone of the deleted pod; none: v1.36's order, which is
    // that of the names here)
    let table: Vec<(&str, Vec<Value>, Vec<Value>, &str)> = vec![
        ("equal", set(zone()), vec![], "a"),
        ("another set's pod", set(zone()), vec![old(other("x", "b2"))], "b"),
        (
            "matchLabelKeys",
            set(with(zone(), "matchLabelKeys", json!(["pod-template-hash"])))
                .into_iter()
                .map(|p| {
                    with(
                        p,
                        "metadata.labels",
                        json!({"app": "web", "pod-template-hash": "new"}),
                    )
                })
                .collect(),
            vec![old(other("x", "b2"))],
            "a",
        ),
        (
            "not matched",
            set(zone()),
            vec![with(other("x", "b2"), "metadata.labels", json!({"app": "other"}))],
            "a",
        ),
        (
            "terminating",
            set(zone()),
            vec![with(
                other("x", "b2"),
                "metadata.deletionTimestamp",
                time(0).into(),
            )],
            "a",
        ),
        (
            "finished",
            set(zone()),
            vec![with(other("x", "b2"), "status.phase", "Succeeded".into())],
            "a",
        ),
        (
            "on a node without the key",
            set(zone()),
            vec![other("x", "nowhere")],
            "a",
        ),
        (
            "on a node that does not exist",
            set(zone()),
            vec![other("x", "gone")],
            "a",
        ),
        (
            "an empty selector counts nothing",
            set(with(zone(), "labelSelector", json!({}))),
            vec![other("x", "b2")],
            "a",
        ),
        (
            "a selector that does not select the set",
            set(with(zone(), "labelSelector", selects_nothing)),
            vec![other("x", "b2")],
            "a",
        ),
        (
            "on a tainted node, which counts",
            set(zone()),
            vec![other("x", "tainted")],
            "b",
        ),
        (
            "on a tainted node, with nodeTaintsPolicy Honor",
            set(with(zone(), "nodeTaintsPolicy", "Honor".into())),
            vec![other("x", "tainted")],
            "a",
        ),
        (
            "on a tainted node that the pods tolerate",
            set(with(zone(), "nodeTaintsPolicy", "Honor".into()))
                .into_iter()
                .map(|p| with(p, "spec.tolerations", json!([{"operator": "Exists"}])))
                .collect(),
            vec![other("x", "tainted")],
            "b",
        ),
        (
            "on a node that the pods do not select",
            set(zone())
                .into_iter()
                .map(|p| with(p, "spec.nodeSelector", json!({"disk": "ssd"})))
                .collect(),
            vec![other("x", "slow")],
            "a",
        ),
        (
            "on a node that the pods do not select, with nodeAffinityPolicy Ignore",
            set(with(zone(), "nodeAffinityPolicy", "Ignore".into()))
                .into_iter()
                .map(|p| with(p, "spec.nodeSelector", json!({"disk": "ssd"})))
                .collect(),
            vec![other("x", "slow")],
            "b",
        ),
    ];
    let mut nodes: Vec<Value> = zones()
        .into_iter()
        .map(|n| with(n, "metadata.labels.disk", "ssd".into()))
        .collect();
    let taint = json!([{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]);
    nodes.push(with(node("tainted", "b"), "spec", json!({"taints": taint})));
    nodes.push(node("slow", "b"));
    nodes.push(node("nowhere", ""));
    for (why, set, others, zone) in table {
        let deleted = Case::new(&nodes, &set, &others).deleted(1);
        assert_eq!(deleted.len(), 1, "{why}");
        assert_eq!(&deleted[0][..1], zone, "{why}");
    }
}

#[test]
fn b3_a_pod_that_no_domain_counts_is_deleted_when_no_other_deletion_reduces_the_skew() {
    let zone = json!([constraint(ZONE, "DoNotSchedule")]);
    let mut nodes = zones();
    nodes.push(node("nowhere", ""));
    let set = pods(&["a1", "a2", "b1", "c1", "nowhere"], &zone);
    let deleted = Case::new(&nodes, &set, &[]).deleted(3);
    assert!(deleted[0].starts_with('a'), "{deleted:?}");
    // 1/1/1 and the one without a zone: to delete it makes nothing worse.
    assert!(deleted[1].starts_with("nowhere"), "{deleted:?}");
    assert!(!deleted[2].starts_with("nowhere"), "{deleted:?}");
}

#[test]
fn b3_a_node_must_have_the_keys_of_all_constraints_of_one_kind() {
    let both = |second: &str| json!([constraint(ZONE, "DoNotSchedule"), constraint("rack", second)]);
    let rack = |name: &str, zone: &str| with(node(name, zone), "metadata.labels.rack", name.into());
    let nodes = [rack("a1", "a"), rack("b1", "b"), node("b2", "b")];
    // b2 has no rack: its pod does not count for the zone either, unless the rack is only a preference.
    let of = |second: &str| Case::new(&nodes, &pods(&["a1", "a1", "b1", "b2", "b2"], &both(second)), &[]);
    assert!(of("DoNotSchedule").deleted(1)[0].starts_with("a1"));
    assert!(of("ScheduleAnyway").deleted(1)[0].starts_with('b'));
}

#[test]
fn b3_the_constraints_of_one_set_are_limited() {
    let many: Vec<Value> = (0..1000)
        .map(|i| constraint(&format!("example.com/key-{i}"), "ScheduleAnyway"))
        .collect();
    let nodes = [node("a1", "a"), node("b1", "b")];
    let set: Vec<Value> = (0..50)
        .map(|i| {
            let own = with(
                pod(&format!("p{i}"), "a1", &json!(many)),
                "metadata.labels.own",
                i.to_string().into(),
            );
            with(own, "spec.nodeSelector", json!({"own": i.to_string()}))
        })
        .collect();
    let case = Case::new(&nodes, &set, &[]);
    let counts = ConstraintCounts::new(&case.set, &case.topology);
    assert_eq!(counts.domains(&case.set[0]).len(), MAX_CONSTRAINTS);
    assert_eq!(case.deleted(10).len(), 10);
}

#[test]
fn b3_without_constraints_or_a_choice_no_topology_is_needed() {
    let zone = json!([constraint(ZONE, "DoNotSchedule")]);
    for (constraints, number, expected) in [(&zone, 1, true), (&zone, 2, false), (&json!([]), 1, false)] {
        let case = Case::new(&zones(), &pods(&["a1", "b1"], constraints), &[]);
        assert_eq!(
            case.scale_down(number).depends_on_spread(),
            expected,
            "{constraints} {number}"
        );
    }
}

#[test]
fn b3_an_order_that_is_a_circle_stops_no_controller() {
    // y and z became ready in the same second, and z restarted more often; x in another one, between them by uid.
    let set: Vec<Value> = (0..60)
        .map(|i| {
            let (uid, ready, restarts) = match i % 3 {
                0 => ("b", 10, 0),
                1 => ("a", 11, 0),
                _ => ("c", 11, 5),
            };
            let name = format!("{uid}{i}");
            let pod = pod(&name, "a1", &Value::Null);
            let conditions = json!([{"type": "Ready", "status": "True", "lastTransitionTime": time(ready)}]);
            let statuses =
                json!([{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": restarts}]);
            with(
                with(pod, "status.conditions", conditions),
                "status.containerStatuses",
                statuses,
            )
        })
        .collect();
    let case = Case::new(&zones(), &set, &[]);
    let mut deleted = case.scale_down(60).choose(None);
    deleted.sort_by_key(|p| p.object().name().to_string());
    deleted.dedup_by_key(|p| p.object().name().to_string());
    assert_eq!(deleted.len(), 60);
}

/// The largest skew of a zone, as the scheduler computes it.
fn max_skew(counts: &[usize], min_domains: usize) -> usize {
    let least = if counts.len() < min_domains {
        0
    } else {
        *counts.iter().min().unwrap_or(&0)
    };
    counts.iter().map(|c| c - least).max().unwrap_or(0)
}

/// The smallest skew over all ways to take `number` pods from the set's pods in each zone.
fn best_skew(counts: &[usize], own: &[usize], number: usize, min_domains: usize) -> usize {
    fn search(
        counts: &mut [usize],
        own: &[usize],
        at: usize,
        number: usize,
        min_domains: usize,
    ) -> Option<usize> {
        let Some(most) = own.get(at) else {
            return (number == 0).then(|| max_skew(counts, min_domains));
        };
        let mut best = None;
        for taken in 0..=(*most).min(number) {
            counts[at] -= taken;
            let found = search(counts, own, at + 1, number - taken, min_domains);
            counts[at] += taken;
            best = match (best, found) {
                (Some(a), Some(b)) => Some(std::cmp::min::<usize>(a, b)),
                (a, b) => a.or(b),
            };
        }
        best
    }
    search(&mut counts.to_vec(), own, 0, number, min_domains).unwrap()
}

proptest! {
    #[test]
    fn b3_for_one_constraint_no_choice_has_a_smaller_skew(
        zones in prop::collection::vec((0..6_usize, 0..4_usize), 1..6),
        part in 0.0..1.0_f64,
        min_domains in 1..7_usize,
        soft in any::<bool>(),
    ) {
        let when = if soft { "ScheduleAnyway" } else { "DoNotSchedule" };
        let zone = json!([with(constraint(ZONE, when), "minDomains", min_domains.into())]);
        let name = |i: usize| format!("n{i}");
        let nodes: Vec<Value> = (0..zones.len()).map(|i| node(&name(i), &format!("z{i}"))).collect();
        let (mut set, mut others) = (Vec::new(), Vec::new());
        for (i, (own, foreign)) in zones.iter().enumerate() {
            set.extend((0..*own).map(|p| pod(&format!("own-{i}-{p}"), &name(i), &zone)));
            others.extend((0..*foreign).map(|p| pod(&format!("other-{i}-{p}"), &name(i), &Value::Null)));
        }
        let number = (set.len() as f64 * part) as usize;
        let deleted = Case::new(&nodes, &set, &others).deleted(number);
        prop_assert_eq!(deleted.len(), number);
        let own: Vec<usize> = zones.iter().map(|(own, _)| *own).collect();
        let before: Vec<usize> = zones.iter().map(|(own, foreign)| own + foreign).collect();
        let after = |(i, count): (usize, &usize)| {
            let prefix = format!("own-{i}-");
            count - deleted.iter().filter(|name| name.starts_with(&prefix)).count()
        };
        let left: Vec<usize> = before.iter().enumerate().map(after).collect();
        prop_assert_eq!(
            max_skew(&left, min_domains),
            best_skew(&before, &own, number, min_domains),
            "{:?} of {:?} leaves {:?}", deleted, before, left
        );
    }

    #[test]
    fn b3_the_precedence_of_v1_36_is_kept_and_no_pod_is_chosen_twice(
        pods in prop::collection::vec((0..6_usize, 0..4_usize, any::<bool>(), -1..2_i32, 0..40_i64, 0..3_i32), 0..40),
        part in 0.0..1.0_f64,
    ) {
        let both = json!([constraint(ZONE, "DoNotSchedule"), constraint(HOSTNAME, "ScheduleAnyway")]);
        let nodes = zones();
        let set: Vec<Value> = pods.iter().enumerate().map(|(i, (on, phase, ready, cost, since, restarts))| {
            let on = ["a1", "a2", "b1", "c1", "nowhere", ""][*on];
            let pod = with(pod(&format!("p{i}"), on, &both), "status.phase", ["Running", "Running", "Pending", "Unknown"][*phase].into());
            let ready = if *ready { "True" } else { "False" };
            let conditions = json!([{"type": "Ready", "status": ready, "lastTransitionTime": time(*since)}]);
            let statuses = json!([{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": restarts}]);
            let cost = json!({"controller.kubernetes.io/pod-deletion-cost": cost.to_string()});
            let pod = with(with(pod, "status.conditions", conditions), "status.containerStatuses", statuses);
            with(pod, "metadata.annotations", cost)
        }).collect();
        let case = Case::new(&nodes, &set, &[]);
        let number = (set.len() as f64 * part) as usize;
        for topology in [None, Some(&case.topology)] {
            let chosen = case.scale_down(number).choose(topology);
            let mut names: Vec<&str> = chosen.iter().map(|p| p.object().name()).collect();
            names.sort_unstable();
            names.dedup();
            prop_assert_eq!(names.len(), number);
            let precedence: Vec<Precedence> = chosen.iter().map(|p| Precedence::of(p, now())).collect();
            prop_assert!(precedence.is_sorted());
            let kept = case.set.iter().filter(|p| !names.contains(&p.object().name()));
            let first_kept = kept.map(|p| Precedence::of(p, now())).min();
            prop_assert!(first_kept.is_none_or(|kept| precedence.last().is_none_or(|last| *last <= kept)));
        }
    }
}
