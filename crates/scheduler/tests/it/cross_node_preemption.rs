//! Cross-node preemption (SPEC B5): what blocks a pod on other nodes is evicted, if that is enough, bounded, of lower
//! priority and within the budgets, and only if nothing less helps.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use knarr_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use knarr_scheduler::plugins::default_preemption::Outcome;
use knarr_scheduler::why::why;
use knarr_scheduler::{Action, Scheduler};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

use crate::cluster::{add_claim, add_node, add_pod, at, scheduler, shared};

/// A cluster as the API would show it.
#[derive(Clone, Debug)]
struct World {
    args: &'static str,
    /// Names and zones.
    nodes: Vec<(String, String)>,
    pods: Vec<Value>,
    /// Whether there is the claim `data` with access mode ReadWriteOncePod, bound to a volume of any node.
    claim: bool,
    budgets: Vec<Value>,
}

impl World {
    /// Two nodes in each of these zones: `a1`, `a2`, `b1` …
    fn of_zones(zones: &[&str]) -> Self {
        let nodes = zones
            .iter()
            .flat_map(|zone| [1, 2].map(|n| (format!("{zone}{n}"), (*zone).to_string())));
        World {
            args: "{crossNode: true}",
            nodes: nodes.collect(),
            pods: Vec::new(),
            claim: false,
            budgets: Vec::new(),
        }
    }

    fn scheduler(&self) -> Scheduler {
        let mut scheduler = scheduler(self.args);
        for (name, zone) in &self.nodes {
            add_node(&mut scheduler, name, zone);
        }
        if self.claim {
            add_claim(&mut scheduler);
        }
        for budget in &self.budgets {
            let name = budget["metadata"]["name"].as_str().unwrap();
            let budget: PodDisruptionBudget = serde_json::from_value(budget.clone()).unwrap();
            scheduler.budget_changed("default", name, Some(&budget), at(0));
        }
        for pod in &self.pods {
            add_pod(&mut scheduler, pod);
        }
        scheduler
    }

    /// The same without these pods.
    fn without(&self, gone: &BTreeSet<String>) -> World {
        let mut world = self.clone();
        world
            .pods
            .retain(|p| !gone.contains(p["metadata"]["name"].as_str().unwrap()));
        world
    }

    /// What becomes of the pod: `preempts victims for node`, or the message.
    fn outcome(&self, pod: &Value) -> String {
        let mut scheduler = self.scheduler();
        add_pod(&mut scheduler, pod);
        step(&mut scheduler, 0)
    }
}

fn step(scheduler: &mut Scheduler, second: i64) -> String {
    match scheduler.schedule_one(at(second)) {
        None => "nothing".into(),
        Some(Action::Bind { pod, node, .. }) => {
            scheduler.bound(&pod);
            format!("{} -> {node}", pod.object().name())
        }
        Some(Action::Report { message, .. }) => message,
        Some(Action::Preempt {
            node,
            victims,
            is_cross_node,
            ..
        }) => {
            let mut victims: Vec<&str> = victims.iter().map(|v| v.object().name()).collect();
            victims.sort_unstable();
            let how = if is_cross_node { "across nodes" } else { "there" };
            format!("preempts {} for {node} {how}", victims.join(", "))
        }
    }
}

fn pod(name: &str, node: &str, priority: i32, app: &str, spec: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": app}},
        "spec": spec,
    });
    pod["spec"]["priority"] = priority.into();
    pod["spec"]["containers"] = json!([{"name": "c", "resources": {"requests": {"cpu": "1"}}}]);
    if !node.is_empty() {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

/// A pending pod that requests cross-node preemption.
fn high(spec: Value) -> Value {
    let mut pod = pod("high", "", 10, "high", spec);
    pod["metadata"]["annotations"] = json!({"knarr.io/cross-node-preemption": "true"});
    pod
}

fn anti_affinity(key: &str, app: &str) -> Value {
    let term = json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}});
    json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
}

fn spread(key: &str, app: &str) -> Value {
    json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}}}]})
}

/// All nodes but those of zone `a` are full of important pods.
fn only_zone_a(world: &mut World) {
    let full: Vec<String> = world
        .nodes
        .iter()
        .filter(|(_, zone)| zone != "a")
        .map(|(n, _)| n.clone())
        .collect();
    for node in full {
        for i in 0..4 {
            world
                .pods
                .push(pod(&format!("full-{node}-{i}"), &node, 100, "full", json!({})));
        }
    }
}

/// Zone `a` alone, where a node is full of important pods and the pod that is in the way is on that node: no eviction on
/// the other node alone helps.
fn one_free_node(in_the_way: Value) -> World {
    let mut world = World::of_zones(&["a"]);
    for i in 0..3 {
        world
            .pods
            .push(pod(&format!("full-{i}"), "a2", 100, "full", json!({})));
    }
    world.pods.push(in_the_way);
    world
}

#[test]
fn b5_what_anti_affinity_names_on_another_node_is_evicted() {
    let world = one_free_node(pod("low", "a2", 0, "web", json!({})));
    assert_eq!(
        world.outcome(&high(anti_affinity("zone", "web"))),
        "preempts low for a2 there",
        "preemption on one node comes first"
    );
    // A pod of 2 CPUs does not fit on a2 in any case.
    let asks = asks_two(anti_affinity("zone", "web"));
    assert_eq!(world.outcome(&asks), "preempts low for a1 across nodes");
}

/// It asks for 2 CPUs, so that a2, with 3 CPUs of important pods, is never possible.
fn asks_two(spec: Value) -> Value {
    let mut high = high(spec);
    high["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2".into();
    high
}

#[test]
fn b5_the_rules_and_their_limits() {
    let web = |name: &str, node: &str, priority: i32| pod(name, node, priority, "web", json!({}));
    // The existing pod's term excludes the pod (symmetry).
    let world = one_free_node(pod("low", "a2", 0, "web", anti_affinity("zone", "high")));
    assert_eq!(
        world.outcome(&asks_two(json!({}))),
        "preempts low for a1 across nodes"
    );
    // Equal priority is never evicted.
    let world = one_free_node(web("equal", "a2", 10));
    let message = world.outcome(&asks_two(anti_affinity("zone", "web")));
    assert!(
        message.ends_with("Across nodes: pods of equal or higher priority are in the way."),
        "{message}"
    );
    // Neither the profile nor the pod alone is enough.
    let mut world = one_free_node(web("low", "a2", 0));
    let mut silent = asks_two(anti_affinity("zone", "web"));
    silent["metadata"]["annotations"] = json!({"knarr.io/cross-node-preemption": "yes"});
    assert!(
        world
            .outcome(&silent)
            .ends_with("2 Preemption is not helpful for scheduling.")
            || !world.outcome(&silent).contains("preempts")
    );
    world.args = "{crossNode: false}";
    assert!(
        !world
            .outcome(&asks_two(anti_affinity("zone", "web")))
            .contains("preempts")
    );
    // Never-pods preempt nothing.
    world.args = "{crossNode: true}";
    let mut never = asks_two(anti_affinity("zone", "web"));
    never["spec"]["preemptionPolicy"] = "Never".into();
    let message = world.outcome(&never);
    assert!(
        message.ends_with("not eligible due to preemptionPolicy=Never."),
        "{message}"
    );
}

#[test]
fn b5_spread_evicts_the_least_important_pods_of_the_fullest_domain() {
    // Zone a has three pods, each on its node, and zone b none, because its nodes are full.
    let mut world = World::of_zones(&["a", "b"]);
    world.nodes.push(("a3".into(), "a".into()));
    only_zone_a(&mut world);
    for (node, priority) in [("a1", 3), ("a2", 1), ("a3", 2)] {
        world
            .pods
            .push(pod(&format!("web-{node}"), node, priority, "web", json!({})));
    }
    let mut counted = high(spread("zone", "web"));
    counted["metadata"]["labels"]["app"] = "web".into();
    // 0 + 1 - 0 is 1: all of the three.
    let found = world.outcome(&counted);
    assert_eq!(found, "preempts web-a1, web-a2, web-a3 for a1 across nodes");
    // The pod itself is not counted: one may stay, the most important.
    let found = world.outcome(&high(spread("zone", "web")));
    assert_eq!(found, "preempts web-a2, web-a3 for a1 across nodes");
}

#[test]
fn b5_mixed_rules_are_satisfied_together() {
    let mut world = World::of_zones(&["a", "b"]);
    only_zone_a(&mut world);
    world.nodes.push(("a3".into(), "a".into()));
    world.pods.push(pod("web-a1", "a1", 1, "web", json!({})));
    world.pods.push(pod("web-a3", "a3", 2, "web", json!({})));
    // It is in the way by its own term, and it is counted.
    let excludes = anti_affinity("zone", "high");
    world.pods.push(pod("web-a2", "a2", 5, "web", excludes));
    let found = world.outcome(&high(spread("zone", "web")));
    assert_eq!(found, "preempts web-a1, web-a2 for a1 across nodes");
}

#[test]
fn b5_a_claim_that_one_pod_may_use_is_freed() {
    let mut world = World::of_zones(&["a"]);
    world.claim = true;
    let uses = json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]});
    world.pods.push(pod("user", "a2", 0, "web", uses.clone()));
    for i in 0..3 {
        world
            .pods
            .push(pod(&format!("full-{i}"), "a2", 100, "full", json!({})));
    }
    assert_eq!(
        world.outcome(&asks_two(uses)),
        "preempts user for a1 across nodes"
    );
}

#[test]
fn b5_the_search_is_bounded() {
    // Nine pods in the way, on one node: more than the eight that may be evicted.
    let many = |count: usize, nodes: usize| {
        let mut world = World::of_zones(&["a"]);
        world.nodes = (0..=nodes).map(|n| (format!("a{n}"), "a".to_string())).collect();
        for i in 0..count {
            let mut low = pod(
                &format!("low-{i}"),
                &format!("a{}", 1 + i % nodes),
                0,
                "web",
                json!({}),
            );
            low["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "100m".into();
            world.pods.push(low);
        }
        for n in 1..=nodes {
            let mut full = pod(&format!("full-{n}"), &format!("a{n}"), 100, "full", json!({}));
            full["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "3".into();
            world.pods.push(full);
        }
        world.outcome(&asks_two(anti_affinity("zone", "web")))
    };
    assert_eq!(
        many(4, 4),
        "preempts low-0, low-1, low-2, low-3 for a0 across nodes"
    );
    assert!(many(8, 2).starts_with("preempts low-0, low-1, low-2"));
    for too_many in [many(9, 2), many(5, 5)] {
        let expected =
            "Across nodes: more than 8 victims, or victims on more than 4 other nodes, would be needed.";
        assert!(too_many.ends_with(expected), "{too_many}");
    }
}

#[test]
fn b5_b6_budgets_are_preferred_to_hold_and_hard_where_they_are_hard() {
    let budget = json!({"metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}}, "status": {"disruptionsAllowed": 0}});
    let mut world = one_free_node(pod("low", "a2", 0, "web", json!({})));
    world.budgets.push(budget);
    let asks = asks_two(anti_affinity("zone", "web"));
    assert_eq!(world.outcome(&asks), "preempts low for a1 across nodes");
    world.args = "{crossNode: true, podDisruptionBudgets: Hard}";
    let message = world.outcome(&asks);
    assert!(
        message.ends_with("Across nodes: a PodDisruptionBudget would be violated."),
        "{message}"
    );
}

#[test]
fn b5_one_preemption_across_nodes_in_ten_seconds() {
    let mut world = World::of_zones(&["a", "b"]);
    for zone in ["a", "b"] {
        for i in 0..3 {
            world.pods.push(pod(
                &format!("full-{zone}{i}"),
                &format!("{zone}2"),
                100,
                "full",
                json!({}),
            ));
        }
        world.pods.push(pod(
            &format!("low-{zone}"),
            &format!("{zone}2"),
            0,
            "web",
            json!({}),
        ));
    }
    let mut scheduler = world.scheduler();
    for name in ["first", "second"] {
        let mut asks = asks_two(anti_affinity("zone", "web"));
        asks["metadata"]["name"] = name.into();
        asks["metadata"]["uid"] = name.into();
        add_pod(&mut scheduler, &asks);
    }
    assert!(step(&mut scheduler, 0).ends_with("across nodes"));
    let waits = step(&mut scheduler, 0);
    assert!(
        waits.contains("cross-node preemption waits: there is at most one in 10 s"),
        "{waits}"
    );
    // It comes back by its backoff, without an event.
    assert!(scheduler.next_due().is_some());
    assert!(step(&mut scheduler, 5).contains("cross-node preemption waits"));
    assert!(step(&mut scheduler, 30).ends_with("across nodes"));
}

#[test]
fn b5_an_interrupted_preemption_is_finished_and_waits_for_its_victims() {
    // The scheduler has restarted: the pod is nominated, one of two victims is terminating.
    let mut world = one_free_node(pod("low-0", "a2", 0, "web", json!({})));
    world.pods.push(pod("low-1", "a2", 0, "web", json!({})));
    world.pods.retain(|p| p["metadata"]["name"] != "full-2");
    let last = world.pods.len() - 1;
    world.pods[last]["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:30Z".into();
    world.pods[last]["status"] = json!({"conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]});
    let mut asks = asks_two(anti_affinity("zone", "web"));
    asks["status"] = json!({"nominatedNodeName": "a1"});
    asks["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "3".into();
    let waits = world.outcome(&asks);
    assert!(
        waits.ends_with("not eligible due to terminating victims on other nodes."),
        "{waits}"
    );
    world.pods.pop();
    assert_eq!(world.outcome(&asks), "preempts low-0 for a1 across nodes");
}

#[test]
fn b1_b5_why_names_the_victims_with_their_nodes() {
    let world = one_free_node(pod("low", "a2", 0, "web", json!({})));
    let mut scheduler = world.scheduler();
    let asks = shared(&asks_two(anti_affinity("zone", "web")));
    let why = why(&mut scheduler, &asks);
    assert_eq!(
        why.preemption.unwrap(),
        "a1 would fit after the eviction of default/low on a2"
    );
}

#[derive(Clone, Debug)]
struct Existing {
    node: usize,
    priority: i32,
    web: bool,
    /// Whether it excludes the preemptor from its zone.
    excludes: bool,
}

fn existing() -> impl Strategy<Value = Existing> {
    (0..6_usize, 0..12_i32, any::<bool>(), 0..8_u8).prop_map(|(node, priority, web, excludes)| Existing {
        node,
        priority,
        web,
        excludes: excludes == 0,
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(5),
        ..ProptestConfig::default()
    })]

    #[test]
    fn b5_victims_are_necessary_sufficient_and_of_lower_priority(
        existing in prop::collection::vec(existing(), 1..14),
        kind in 0..4_u8,
        allowed in 0..2_i32,
        is_hard in any::<bool>(),
    ) {
        let mut world = World::of_zones(&["a", "b", "c"]);
        if is_hard {
            world.args = "{crossNode: true, podDisruptionBudgets: Hard}";
        }
        let mut used = [0; 6];
        for (i, of) in existing.iter().enumerate() {
            if used[of.node] == 4 {
                continue;
            }
            used[of.node] += 1;
            let spec = if of.excludes { anti_affinity("zone", "high") } else { json!({}) };
            let app = if of.web { "web" } else { "other" };
            let node = world.nodes[of.node].0.clone();
            world.pods.push(pod(&format!("p{i}"), &node, of.priority, app, spec));
        }
        world.budgets.push(json!({"metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}}, "status": {"disruptionsAllowed": allowed}}));
        let spec = match kind {
            0 => anti_affinity("zone", "web"),
            1 => spread("zone", "web"),
            2 => {
                let mut both = spread("zone", "other");
                both["affinity"] = anti_affinity("zone", "web")["affinity"].clone();
                both
            }
            _ => spread("kubernetes.io/hostname", "web"),
        };
        let asks = shared(&high(spec));
        let mut scheduler = world.scheduler();
        let info = scheduler.info(&asks);
        let found = scheduler.explain(&info);
        let Some(Outcome::Candidates(all)) = &found.preemption else { return Ok(()) };
        let Some(candidate) = all.iter().find(|c| c.is_cross_node) else { return Ok(()) };
        world.args = "{crossNode: false}";
        if is_hard {
            world.args = "{podDisruptionBudgets: Hard}";
        }
        let mut on_one_node = world.scheduler();
        let info = on_one_node.info(&asks);
        let without = on_one_node.explain(&info).preemption;
        prop_assert!(matches!(without, Some(Outcome::NoCandidates(_))), "preemption on one node comes first");
        let target = scheduler.cluster().at(candidate.index).name.clone();
        let victims: Vec<String> = candidate.victims.iter().map(|v| v.uid().to_string()).collect();
        prop_assert!(candidate.victims.iter().all(|v| v.priority() < 10));
        prop_assert!(victims.len() <= 8);
        if is_hard {
            let web = candidate.victims.iter().filter(|v| v.pod.metadata.labels.as_ref().unwrap()["app"] == "web");
            prop_assert!(web.count() <= usize::try_from(allowed).unwrap());
        }
        let fits = |gone: &BTreeSet<String>| {
            let mut scheduler = world.without(gone).scheduler();
            let info = scheduler.info(&asks);
            scheduler.explain(&info).nodes[&target].is_none()
        };
        prop_assert!(fits(&victims.iter().cloned().collect()), "{victims:?} are not enough for {target}");
        for subset in 0..(1_usize << victims.len()) - 1 {
            let some = victims.iter().enumerate().filter(|(i, _)| subset & (1 << i) != 0);
            let some: BTreeSet<String> = some.map(|(_, name)| name.clone()).collect();
            prop_assert!(!fits(&some), "{some:?} of {victims:?} are enough for {target}");
        }
    }
}
