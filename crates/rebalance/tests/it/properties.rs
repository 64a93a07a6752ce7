//! Random clusters and policies: what must hold for every plan. The violations are counted again by code of its own, from
//! the objects and in the simplest way; where a pod would be placed is asked of a scheduler made for that one question.
//!
//! The clusters are the same in every run; `KNARR_PLANS=N` tries N others.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use knarr_api::k8s_openapi::api::core::v1::{Node, Pod};
use knarr_apimachinery::ids::{NodeName, PodUid};
use knarr_rebalance::plan;
use knarr_rebalance::plan::Plan;
use knarr_rebalance::policy::Policy;
use knarr_scheduler::Scheduler;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

use crate::oracle::violations;
use crate::world::{self, World, policy, shared, spread};

#[derive(Clone, Debug)]
struct App {
    /// What its pods require, by number.
    rule: u8,
    other: u8,
    selector: u8,
    tolerates: bool,
    /// In units of half a CPU.
    cpu: u8,
    annotation: u8,
    /// Disruptions allowed; more than 2: it has no budget.
    allowed: u8,
    /// The nodes of its pods.
    on: Vec<u8>,
    restarts: u8,
}

fn app() -> impl Strategy<Value = App> {
    let numbers = (0..9_u8, 0..4_u8, 0..6_u8, any::<bool>(), 0..3_u8);
    let rest = (
        0..20_u8,
        0..12_u8,
        prop::collection::vec(0..4_u8, 0..12),
        0..12_u8,
    );
    (numbers, rest).prop_map(
        |((rule, other, selector, tolerates, cpu), (annotation, allowed, on, restarts))| App {
            rule,
            other,
            selector,
            tolerates,
            cpu,
            annotation,
            allowed,
            on,
            restarts,
        },
    )
}

/// Zone, taint, cordoned, CPUs.
type Machine = (u8, u8, u8, u8);

fn machine() -> impl Strategy<Value = Machine> {
    (0..8_u8, 0..8_u8, 0..14_u8, 2..8_u8)
}

fn build(machines: &[Machine], apps: &[App]) -> World {
    let mut world = World::default();
    for (n, (zone, taint, cordoned, cpus)) in machines.iter().enumerate() {
        let name = format!("n{n}");
        let effect = match taint {
            0 => "NoSchedule",
            1 => "PreferNoSchedule",
            _ => "",
        };
        let mut node = json!({
            "metadata": {"labels": {"disk": if n % 2 == 0 { "ssd" } else { "hdd" }}},
            "spec": {"unschedulable": *cordoned == 0},
            "status": {"allocatable": {"cpu": cpus.to_string(), "pods": "30"}},
        });
        if *zone > 0 {
            node["metadata"]["labels"]["zone"] = format!("z{}", zone % 3).into();
        }
        if !effect.is_empty() {
            node["spec"]["taints"] = json!([{"key": "k", "effect": effect}]);
        }
        world.node(&name, node);
    }
    for (number, app) in apps.iter().enumerate() {
        add_app(&mut world, machines.len(), number, app);
    }
    world
}

fn add_app(world: &mut World, machines: usize, number: usize, app: &App) {
    let name = format!("a{number}");
    let other = format!("a{}", app.other);
    let term = |key: &str| json!([{"topologyKey": key, "labelSelector": {"matchLabels": {"app": other}}}]);
    let required = |terms: Value| json!({"requiredDuringSchedulingIgnoredDuringExecution": terms});
    let mut spec = match app.rule {
        0 => json!({"topologySpreadConstraints": [spread("zone", 1, &name)]}),
        1 => {
            json!({"topologySpreadConstraints": [spread("kubernetes.io/hostname", 1, &name), spread("zone", 2, &name)]})
        }
        2 => {
            let mut soft = spread("zone", 1, &name);
            soft["whenUnsatisfiable"] = "ScheduleAnyway".into();
            json!({"topologySpreadConstraints": [soft]})
        }
        3 => json!({"affinity": {"podAntiAffinity": required(term("kubernetes.io/hostname"))}}),
        4 => json!({"affinity": {"podAntiAffinity": required(term("zone"))}}),
        5 => json!({"affinity": {"podAffinity": required(term("zone"))}}),
        6 => {
            let mut honors = spread("zone", 1, &name);
            honors["nodeTaintsPolicy"] = "Honor".into();
            json!({"topologySpreadConstraints": [honors]})
        }
        _ => json!({}),
    };
    match app.selector {
        0 => spec["nodeSelector"] = json!({"disk": "ssd"}),
        1 => {
            let preferred = json!([{"weight": 5, "preference": {
                "matchExpressions": [{"key": "disk", "operator": "In", "values": ["hdd"]}],
            }}]);
            spec["affinity"]["nodeAffinity"] =
                json!({"preferredDuringSchedulingIgnoredDuringExecution": preferred});
        }
        _ => {}
    }
    if app.tolerates {
        spec["tolerations"] = json!([{"key": "k", "operator": "Exists"}]);
    }
    spec["priority"] = (app.cpu % 2).into();
    let cpu = format!("{}m", u32::from(app.cpu) * 500);
    spec["containers"] = json!([{"name": "c", "image": "i:1", "resources": {"requests": {"cpu": cpu}}}]);
    let annotations = match app.annotation {
        0 => json!({"knarr.io/rebalance": "false"}),
        1 => json!({"descheduler.alpha.kubernetes.io/prefer-no-eviction": ""}),
        2 => json!({"knarr.io/at-most-one": "true"}),
        _ => json!({}),
    };
    let mut with = json!({"metadata": {"annotations": annotations}, "spec": spec});
    for (n, node) in app.on.iter().enumerate() {
        let restarts = if n == 0 { app.restarts } else { 0 };
        with["status"]["containerStatuses"] = json!([{
            "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": restarts,
        }]);
        let node = format!("n{}", usize::from(*node) % machines);
        world.pod(&format!("{name}-{n}"), &name, &node, &with);
    }
    if app.allowed <= 2 {
        world.disruption_budget(&format!("budget-{name}"), &name, app.allowed.into());
    }
}

/// The names of the strategies, one bit each.
const STRATEGIES: [(&str, &str); 9] = [
    (
        "topologySpread",
        r#"{"constraints": ["DoNotSchedule", "ScheduleAnyway"]}"#,
    ),
    ("nodeTaints", r#"{"includePreferNoSchedule": true}"#),
    ("podAntiAffinity", "{}"),
    ("podAffinity", "{}"),
    (
        "nodeAffinity",
        r#"{"nodeAffinityType": ["requiredDuringSchedulingIgnoredDuringExecution",
            "preferredDuringSchedulingIgnoredDuringExecution"]}"#,
    ),
    ("duplicates", "{}"),
    (
        "lowNodeUtilization",
        r#"{"thresholds": {"cpu": 40}, "targetThresholds": {"cpu": 60}}"#,
    ),
    ("highNodeUtilization", r#"{"thresholds": {"cpu": 20}}"#),
    ("tooManyRestarts", r#"{"podRestartThreshold": 9}"#),
];

fn some_policy() -> impl Strategy<Value = (Policy, Vec<&'static str>)> {
    let budgets = (
        0..12_u32,
        0..5_u32,
        0..12_u32,
        0..4_u32,
        1..3_u32,
        0..4_u8,
        any::<bool>(),
    );
    // One strategy, two, or any number: the more there are, the more of them a move may harm.
    let bits = prop_oneof![
        2 => (0..9_u32).prop_map(|n| 1 << n),
        2 => (0..9_u32, 0..9_u32).prop_map(|(n, m)| 1 << n | 1 << m),
        1 => 1..512_u32,
    ];
    (bits, budgets).prop_map(|(bits, (total, node, namespace, workload, at_once, limited, deviation))| {
        let mut strategies = json!({});
        let mut names = Vec::new();
        for (n, (name, args)) in STRATEGIES.iter().enumerate() {
            if bits & (1 << n) != 0 {
                strategies[*name] = serde_json::from_str(args).unwrap();
                names.push(*name);
            }
        }
        if deviation && names.contains(&"lowNodeUtilization") {
            strategies["lowNodeUtilization"] = json!({
                "thresholds": {"cpu": 10}, "targetThresholds": {"cpu": 15}, "useDeviationThresholds": true,
            });
            names.push("deviation");
        }
        let budgets = if limited == 0 {
            json!({
                "perHour": total, "perNode": node, "perNamespace": namespace, "perWorkload": workload,
                "atOncePerWorkload": at_once,
            })
        } else {
            json!({"atOncePerWorkload": at_once})
        };
        (
            policy(json!({"strategies": strategies, "budgets": budgets})),
            names,
        )
    })
}

fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("KNARR_PLANS").ok().and_then(|n| n.parse().ok());
    ProptestConfig {
        cases: asked.unwrap_or(cases),
        rng_seed: match asked {
            Some(_) => RngSeed::Random,
            None => RngSeed::Fixed(0),
        },
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..ProptestConfig::default()
    }
}

/// The nodes that a scheduler finds best for the replacement of a pod, asked without the pod.
fn best_nodes(world: &World, uid: &PodUid) -> Vec<NodeName> {
    let start = world::now();
    let mut scheduler = Scheduler::default();
    for (name, node) in &world.nodes {
        scheduler.node_changed(name, Some(shared::<Node>(node)), start);
    }
    let mut replacement = None;
    for pod in world.pods.values() {
        if pod["metadata"]["uid"] == uid.as_str() || pod["metadata"]["replaces"] == uid.as_str() {
            let mut pod = pod.clone();
            pod["spec"].as_object_mut().unwrap().remove("nodeName");
            pod["status"] = json!({});
            replacement = Some(pod);
        } else {
            scheduler.pod_changed(None, Some(&shared::<Pod>(pod)), start);
        }
    }
    let info = scheduler.info(&shared(&replacement.unwrap()));
    let totals = scheduler.explain(&info).totals;
    let best = totals.values().max().copied();
    let nodes = totals.into_iter().filter(|(_, total)| Some(*total) == best);
    nodes.map(|(name, _)| name).collect()
}

fn check_moves(world: &World, plan: &Plan, names: &[&str]) -> Result<(), TestCaseError> {
    let mut world = world.clone();
    let mut before = violations(&world, names);
    for (number, step) in plan.moves.iter().enumerate() {
        let best = best_nodes(&world, &step.pod.uid);
        prop_assert_eq!(best.len(), step.equal_nodes, "{:?}\n{}", best, plan);
        prop_assert_eq!(best.first(), step.to.as_ref(), "{:?}\n{}", best, plan);
        // The scheduler may choose any of them.
        for node in &best {
            let mut chosen = step.clone();
            chosen.to = Some(node.clone());
            let mut other = world.clone();
            other.apply(&chosen, number);
            let after = violations(&other, names);
            let mut shrinks = false;
            for (rule, value) in &after {
                let was = before.get(rule).copied().unwrap_or_default();
                prop_assert!(value.amount <= was.amount, "{rule}: {was:?} {value:?}\n{plan}");
            }
            for (rule, was) in &before {
                let is = after.get(rule).map_or(0, |value| value.amount);
                shrinks |= was.is_goal && is < was.amount;
            }
            prop_assert!(shrinks, "move {number} gains nothing on {node}\n{plan}");
        }
        world.apply(step, number);
        before = violations(&world, names);
    }
    Ok(())
}

fn check_limits(world: &World, plan: &Plan, policy: &Policy, apps: &[App]) -> Result<(), TestCaseError> {
    let mut per_wave: BTreeMap<(u32, String), u32> = BTreeMap::new();
    let mut nodes: BTreeMap<&str, u32> = BTreeMap::new();
    let mut workloads: BTreeMap<String, u32> = BTreeMap::new();
    let mut last_wave = 0;
    for step in &plan.moves {
        prop_assert!(step.wave >= last_wave);
        last_wave = step.wave;
        *per_wave
            .entry((step.wave, step.workload.name.clone()))
            .or_default() += 1;
        *nodes.entry(&step.from).or_default() += 1;
        *workloads.entry(step.workload.name.clone()).or_default() += 1;
        let pod = world
            .pods
            .values()
            .find(|p| p["metadata"]["uid"] == step.pod.uid.as_str())
            .unwrap();
        let annotations = &pod["metadata"]["annotations"];
        prop_assert!(annotations.get("knarr.io/rebalance").is_none(), "{plan}");
        prop_assert!(annotations.get("knarr.io/at-most-one").is_none(), "{plan}");
    }
    let within = |limit: Option<u32>, used: u32| limit.is_none_or(|limit| used <= limit);
    let budgets = &policy.budgets;
    let total = u32::try_from(plan.moves.len()).unwrap();
    prop_assert!(within(budgets.per_hour, total) && within(budgets.per_namespace, total));
    prop_assert!(nodes.values().all(|used| within(budgets.per_node, *used)));
    prop_assert!(workloads.values().all(|used| within(budgets.per_workload, *used)));
    for ((wave, name), used) in per_wave {
        prop_assert!(
            used <= budgets.at_once_per_workload,
            "wave {wave} of {name}\n{plan}"
        );
        let number: usize = name.trim_start_matches('a').parse().unwrap();
        let allowed = u32::from(apps[number].allowed);
        prop_assert!(
            allowed > 2 || used <= allowed,
            "budget of {name} in wave {wave}\n{plan}"
        );
    }
    Ok(())
}

/// The properties would hold for a planner that does nothing: these clusters give it something to do.
#[test]
fn b3_the_random_clusters_have_moves_and_obstacles_of_every_kind() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        rng_seed: RngSeed::Fixed(0),
        ..ProptestConfig::default()
    });
    let given = (
        prop::collection::vec(machine(), 2..7),
        prop::collection::vec(app(), 1..5),
        some_policy(),
    );
    let (mut rules, mut reasons) = (BTreeMap::new(), BTreeMap::new());
    let (mut extras, mut waves, mut moves) = (0, 0, 0);
    for _ in 0..400 {
        let (machines, apps, (policy, _)) = given.new_tree(&mut runner).unwrap().current();
        let plan = build(&machines, &apps).plan(&policy);
        for step in &plan.moves {
            *rules.entry(step.rule).or_insert(0) += 1;
            extras += usize::from(step.changes.len() > 1);
            moves += 1;
        }
        waves = waves.max(plan.waves());
        for pod in &plan.not_moved {
            *reasons.entry(pod.reason.code()).or_insert(0) += 1;
        }
    }
    println!("{moves} moves, {extras} with several gains: {rules:?}\nup to {waves} waves\n{reasons:?}");
    assert_eq!(rules.len(), STRATEGIES.len(), "{rules:?}");
    assert!(
        moves > 150 && extras > 40 && waves > 3,
        "{moves} {extras} {waves}"
    );
    for reason in [
        "AtMostOne",
        "Budget",
        "DisruptionBudget",
        "NoBetterNode",
        "NoNodeFits",
        "NoUnderutilizedNodes",
        "OptedOut",
        "SameNode",
        "WouldGrow",
    ] {
        assert!(reasons.contains_key(reason), "{reason}: {reasons:?}");
    }
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn b3_no_rule_grows_one_shrinks_and_pods_are_where_the_scheduler_would_place_them(
        machines in prop::collection::vec(machine(), 2..7),
        apps in prop::collection::vec(app(), 1..5),
        (policy, names) in some_policy(),
    ) {
        let world = build(&machines, &apps);
        let plan = world.plan(&policy);
        check_moves(&world, &plan, &names)?;
        check_limits(&world, &plan, &policy, &apps)?;
    }

    #[test]
    fn b3_a_plan_made_from_the_result_of_a_plan_is_empty(
        machines in prop::collection::vec(machine(), 2..7),
        apps in prop::collection::vec(app(), 1..5),
        (policy, _) in some_policy(),
    ) {
        let world = build(&machines, &apps);
        let plan = world.plan(&policy);
        let after = world.after(&plan);
        let again = after.plan(&policy);
        prop_assert!(again.moves.is_empty(), "first:\n{plan}\nagain:\n{again}");
        // What one plan says is left, the next says is there.
        let left: Vec<_> = plan.violations.iter().filter(|t| t.after > 0).map(|t| (&t.constraint, t.after)).collect();
        let there: Vec<_> = again.violations.iter().map(|t| (&t.constraint, t.before)).collect();
        prop_assert_eq!(left, there);
    }

    #[test]
    fn b3_rebalancing_ends_if_only_the_first_move_of_each_plan_is_carried_out(
        machines in prop::collection::vec(machine(), 2..7),
        apps in prop::collection::vec(app(), 1..5),
        (mut policy, names) in some_policy(),
    ) {
        policy.budgets = knarr_rebalance::policy::Budgets::UNLIMITED;
        let mut world = build(&machines, &apps);
        let most: u64 = violations(&world, &names).values().map(|v| v.amount).sum();
        let mut number = 0;
        loop {
            let mut plan = world.plan(&policy);
            plan.moves.truncate(1);
            let Some(step) = plan.moves.first() else { break };
            prop_assert!(number < most, "{plan}");
            world.apply(step, usize::try_from(number).unwrap());
            number += 1;
        }
    }

    #[test]
    fn b3_a_plan_does_not_depend_on_the_order_of_objects_and_is_the_same_each_time(
        machines in prop::collection::vec(machine(), 2..7),
        apps in prop::collection::vec(app(), 1..5),
        (policy, _) in some_policy(),
        seed in any::<u64>(),
    ) {
        let world = build(&machines, &apps);
        let mut objects = world.objects();
        let first = plan(&world.snapshot_of(&objects), &policy);
        let snapshot = world.snapshot_of(&objects);
        prop_assert_eq!(&first, &plan(&snapshot, &policy));
        prop_assert_eq!(&first, &plan(&snapshot, &policy), "the snapshot has changed");
        let mut state = seed | 1;
        for n in (1..objects.len()).rev() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            objects.swap(n, usize::try_from(state >> 33).unwrap() % (n + 1));
        }
        prop_assert_eq!(&first, &plan(&world.snapshot_of(&objects), &policy));
    }

    #[test]
    fn b3_pods_that_stay_though_they_violate_a_rule_have_a_reason(
        machines in prop::collection::vec(machine(), 2..7),
        apps in prop::collection::vec(app(), 1..5),
        (policy, _) in some_policy(),
    ) {
        let world = build(&machines, &apps);
        let plan = world.plan(&policy);
        for pod in &plan.not_moved {
            prop_assert!(!pod.violates.is_empty());
            prop_assert!(pod.reason.code() != "NotTried", "{plan}");
        }
        for total in plan.violations.iter().filter(|total| total.after > 0) {
            let named = plan.not_moved.iter().any(|pod| pod.violates.contains(&total.constraint));
            prop_assert!(named || !plan.moves.is_empty(), "{}\n{plan}", total.constraint);
        }
        let json = serde_json::to_value(&plan).unwrap();
        prop_assert_eq!(json["moves"].as_array().unwrap().len(), plan.moves.len());
    }
}
