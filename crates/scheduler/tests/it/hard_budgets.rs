//! Hard budgets (SPEC B6): preemption never violates a PodDisruptionBudget where the profile or the preemptor's class
//! says so, and is unchanged where neither does.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use knarr_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use knarr_scheduler::plugins::default_preemption::Outcome;
use knarr_scheduler::why::why;
use knarr_scheduler::{Action, Scheduler, config};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

use crate::cluster::{add_node, add_pod, at, scheduler, shared};

const NAME: &str = "knarr.io/preemption-budgets";

/// A scheduler whose default profile has this value of podDisruptionBudgets.
fn with_budgets(budgets: &str) -> Scheduler {
    scheduler(&format!("{{podDisruptionBudgets: {budgets}}}"))
}

fn pod(name: &str, node: &str, cpu: u32, priority: i32, app: &str) -> Value {
    let requests = json!({"requests": {"cpu": cpu.to_string()}});
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": app}},
        "spec": {"priority": priority, "containers": [{"name": "c", "resources": requests}]},
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

fn budget(app: &str, allowed: i32) -> PodDisruptionBudget {
    serde_json::from_value(json!({
        "metadata": {"name": app, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": allowed, "currentHealthy": 9, "desiredHealthy": 1, "expectedPods": 9},
    }))
    .unwrap()
}

/// `pod preempts victims on node`, or the message of the pod that stays.
fn step(scheduler: &mut Scheduler, second: i64) -> String {
    match scheduler.schedule_one(at(second)) {
        None => "nothing".into(),
        Some(Action::Bind { pod, node, .. }) => {
            scheduler.bound(&pod);
            format!("{} -> {node}", pod.object().name())
        }
        Some(Action::Report { pod, message, .. }) => format!("{}: {message}", pod.object().name()),
        Some(Action::Preempt {
            pod, node, victims, ..
        }) => {
            let victims: Vec<&str> = victims.iter().map(|v| v.object().name()).collect();
            let name = pod.object().name();
            format!("{name} preempts {} on {node}", victims.join(", "))
        }
    }
}

const HELD: &str = "high: 0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: \
                    0/1 nodes are available: 1 node(s) where preemption would violate a PodDisruptionBudget.";

#[test]
fn b6_the_profile_or_the_class_of_the_preemptor_makes_budgets_hard() {
    let table = [
        ("BestEffort", None, "high preempts low on n1"),
        ("BestEffort", Some("BestEffort"), "high preempts low on n1"),
        ("BestEffort", Some("hard"), "high preempts low on n1"),
        ("BestEffort", Some("Hard"), HELD),
        ("Hard", None, HELD),
        // A pod cannot soften what the profile says.
        ("Hard", Some("BestEffort"), HELD),
    ];
    for (profile, annotation, expected) in table {
        let mut scheduler = with_budgets(profile);
        add_node(&mut scheduler, "n1", "a");
        add_pod(&mut scheduler, &pod("low", "n1", 4, 0, "web"));
        scheduler.budget_changed("default", "web", Some(&budget("web", 0)), at(0));
        let mut high = pod("high", "", 4, 10, "high");
        if let Some(value) = annotation {
            high["metadata"]["annotations"] = json!({NAME: value});
        }
        add_pod(&mut scheduler, &high);
        assert_eq!(step(&mut scheduler, 0), expected, "{profile}, {annotation:?}");
    }
}

#[test]
fn b6_several_victims_of_one_budget_are_counted_together() {
    for (allowed, expected) in [(1, "high preempts other on n2"), (2, "high preempts a, b on n1")] {
        let mut scheduler = with_budgets("Hard");
        for name in ["n1", "n2"] {
            add_node(&mut scheduler, name, "a");
        }
        // The victims on n1 are less important than the one on n2.
        add_pod(&mut scheduler, &pod("a", "n1", 2, 0, "web"));
        add_pod(&mut scheduler, &pod("b", "n1", 2, 0, "web"));
        add_pod(&mut scheduler, &pod("other", "n2", 4, 5, "other"));
        scheduler.budget_changed("default", "web", Some(&budget("web", allowed)), at(0));
        add_pod(&mut scheduler, &pod("high", "", 4, 10, "high"));
        assert_eq!(step(&mut scheduler, 0), expected, "{allowed} allowed");
    }
}

#[test]
fn b6_a_budget_with_an_empty_selector_and_one_of_another_namespace() {
    for (namespace, expected) in [("default", HELD), ("other", "high preempts low on n1")] {
        let mut scheduler = with_budgets("Hard");
        add_node(&mut scheduler, "n1", "a");
        add_pod(&mut scheduler, &pod("low", "n1", 4, 0, "web"));
        // For the eviction API it matches all pods of its namespace, those without labels, too.
        let everything = serde_json::from_value(json!({
            "metadata": {"name": "all", "namespace": namespace},
            "spec": {"selector": {}}, "status": {"disruptionsAllowed": 0},
        }));
        let everything: PodDisruptionBudget = everything.unwrap();
        scheduler.budget_changed(namespace, "all", Some(&everything), at(0));
        add_pod(&mut scheduler, &pod("high", "", 4, 10, "high"));
        assert_eq!(step(&mut scheduler, 0), expected, "{namespace}");
    }
}

#[test]
fn b6_victims_count_before_the_status_of_their_budget_includes_them() {
    let mut scheduler = with_budgets("Hard");
    for name in ["n1", "n2"] {
        add_node(&mut scheduler, name, "a");
    }
    let a = add_pod(&mut scheduler, &pod("a", "n1", 4, 0, "web"));
    let b = add_pod(&mut scheduler, &pod("b", "n2", 4, 0, "web"));
    scheduler.budget_changed("default", "web", Some(&budget("web", 1)), at(0));
    let first = add_pod(&mut scheduler, &pod("high-1", "", 4, 10, "high"));
    add_pod(&mut scheduler, &pod("high-2", "", 4, 10, "high"));
    let preempts = step(&mut scheduler, 0);
    let victim = if preempts == "high-1 preempts a on n1" {
        &a
    } else {
        &b
    };
    assert!(preempts.starts_with("high-1 preempts "), "{preempts}");
    let second = step(&mut scheduler, 0);
    assert!(second.contains("would violate a PodDisruptionBudget"), "{second}");
    // The victim is gone; the status of the budget still says 1.
    scheduler.preempted(&first, false, at(1));
    scheduler.pod_changed(Some(victim), None, at(1));
    assert!(step(&mut scheduler, 20).starts_with("high-1 -> "));
    let second = step(&mut scheduler, 20);
    assert!(!second.contains("preempts"), "{second}");
    // The disruption controller counts it, then a replacement is ready.
    scheduler.budget_changed("default", "web", Some(&budget("web", 0)), at(30));
    let second = step(&mut scheduler, 60);
    assert!(!second.contains("preempts"), "{second}");
    scheduler.budget_changed("default", "web", Some(&budget("web", 1)), at(70));
    assert!(step(&mut scheduler, 100).starts_with("high-2 preempts "));
}

#[test]
fn b6_an_eviction_that_no_status_includes_counts_for_two_minutes() {
    let mut scheduler = with_budgets("Hard");
    for name in ["n1", "n2"] {
        add_node(&mut scheduler, name, "a");
        add_pod(&mut scheduler, &pod(&format!("low-{name}"), name, 4, 0, "web"));
    }
    scheduler.budget_changed("default", "web", Some(&budget("web", 1)), at(0));
    add_pod(&mut scheduler, &pod("high-1", "", 4, 10, "high"));
    assert!(step(&mut scheduler, 0).starts_with("high-1 preempts "));
    add_pod(&mut scheduler, &pod("high-2", "", 4, 10, "high"));
    assert!(step(&mut scheduler, 1).contains("would violate a PodDisruptionBudget"));
    assert_eq!(step(&mut scheduler, 119), "nothing");
    assert!(step(&mut scheduler, 121).starts_with("high-2 preempts "));
}

#[test]
fn b6_why_names_the_budgets_and_the_message_of_the_pod_does_not() {
    let mut scheduler = with_budgets("Hard");
    add_node(&mut scheduler, "n1", "a");
    add_pod(&mut scheduler, &pod("low", "n1", 4, 0, "web"));
    scheduler.budget_changed("default", "web", Some(&budget("web", 0)), at(0));
    let high = add_pod(&mut scheduler, &pod("high", "", 4, 10, "high"));
    assert_eq!(step(&mut scheduler, 0), HELD);
    let preemption = why(&mut scheduler, &high).preemption.unwrap();
    assert_eq!(
        preemption,
        "0/1 nodes are available: 1 node(s) where preemption would violate a PodDisruptionBudget. \
         Hard PodDisruptionBudgets allow no further disruption: default/web"
    );
}

#[test]
fn b6_an_invalid_value_in_the_configuration_is_an_error_with_its_path() {
    let text = "
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- pluginConfig:
  - name: knarr.io/Preemption
    args: {podDisruptionBudgets: hard, crossNode: 1, other: x}
";
    let errors = config::parse(text).unwrap_err().to_string();
    for expected in [
        "profiles[0].pluginConfig[0].args.podDisruptionBudgets: Unsupported value: \"hard\": supported values: \"BestEffort\", \"Hard\"",
        "profiles[0].pluginConfig[0].args.crossNode",
        "profiles[0].pluginConfig[0].args.other",
    ] {
        assert!(errors.contains(expected), "{expected} is not in {errors}");
    }
}

#[derive(Clone, Debug)]
struct Low {
    node: u8,
    cpu: u32,
    priority: i32,
    app: u8,
}

fn low() -> impl Strategy<Value = Low> {
    (0..4_u8, 1..3_u32, 0..3_i32, 0..3_u8).prop_map(|(node, cpu, priority, app)| Low {
        node,
        cpu,
        priority,
        app,
    })
}

/// For each candidate node the names of the victims.
fn candidates(budgets: &str, lows: &[Low], allowed: [i32; 3], cpu: u32) -> BTreeMap<String, Vec<String>> {
    let mut scheduler = with_budgets(budgets);
    let mut used = [0; 4];
    for n in 0..4 {
        add_node(&mut scheduler, &format!("n{n}"), "a");
    }
    for (i, low) in lows.iter().enumerate() {
        let used = &mut used[usize::from(low.node)];
        if *used + low.cpu <= 4 {
            *used += low.cpu;
            let node = format!("n{}", low.node);
            let name = format!("p{i}-app{}", low.app);
            add_pod(
                &mut scheduler,
                &pod(&name, &node, low.cpu, low.priority, &format!("app{}", low.app)),
            );
        }
    }
    for (app, allowed) in allowed.into_iter().enumerate() {
        let name = format!("app{app}");
        scheduler.budget_changed("default", &name, Some(&budget(&name, allowed)), at(0));
    }
    let high = shared(&pod("high", "", cpu, 2, "high"));
    let high = scheduler.info(&high);
    let found = scheduler.explain(&high);
    let Some(Outcome::Candidates(all)) = &found.preemption else {
        return BTreeMap::new();
    };
    let names = all.iter().map(|c| {
        let victims = c.victims.iter().map(|v| v.pod.object().name().to_string());
        (
            scheduler.cluster().at(c.index).name.to_string(),
            victims.collect(),
        )
    });
    names.collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(6),
        ..ProptestConfig::default()
    })]

    #[test]
    fn b6_hard_candidates_are_the_best_effort_ones_that_violate_no_budget(
        lows in prop::collection::vec(low(), 1..16),
        allowed in [0..3_i32, 0..3_i32, 0..3_i32],
        cpu in 2..5_u32,
    ) {
        let all = candidates("BestEffort", &lows, allowed, cpu);
        let hard = candidates("Hard", &lows, allowed, cpu);
        let violates = |victims: &[String]| (0..3).any(|app| {
            let of = victims.iter().filter(|v| v.ends_with(&format!("app{app}"))).count();
            of > usize::try_from(allowed[app]).unwrap()
        });
        let expected: BTreeMap<String, Vec<String>> =
            all.into_iter().filter(|(_, victims)| !violates(victims)).collect();
        prop_assert_eq!(hard, expected);
    }
}
