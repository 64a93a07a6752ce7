//! The cases of the descheduler's own tests (SPEC B3) as data, one file for each plugin in `descheduler/`: the facts of its
//! unit tests (nodes, pods, arguments, how many pods it evicts), in our words. Each is read as a DeschedulerPolicy and planned.
//!
//! `descheduler` is how many pods it evicts, `knarr` how many we move; where they differ, `because` names the rule. A case
//! without the number is rejected there; `rejected` has the paths of our errors, below the strategy's arguments, and
//! `ignored` those of arguments without effect. `room` is the number of moves if there is one more node, empty and without
//! labels: its test cases often have one node only, where no other could take a pod. Every result is planned again.
//!
//! One run reports all differences of a strategy.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use knarr_apimachinery::field::ErrorList;
use knarr_rebalance::plan::Plan;
use knarr_rebalance::policy::descheduler::parse;
use knarr_rebalance::policy::{Policy, Read};
use knarr_rebalance::snapshot::{Snapshot, Usage};
use knarr_scheduler::Profile;
use knarr_scheduler::profile::Strategy;
use knarr_scheduler::resources::Resources;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::world::{World, ago, now, overlay};

/// The documents that say how many cases agree.
const DOCUMENT: &str = include_str!("../../../../docs/rebalancing.md");
/// Where the strategy's arguments are in the policy of a case.
const ARGS: &str = "profiles[0].pluginConfig[1].args";

/// The file of a strategy.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Vectors {
    plugin: String,
    /// The extension point of the plugin.
    point: String,
    /// What the cases are about, if that is not the plugin.
    #[serde(default)]
    subject: Option<String>,
    /// The scheduler prefers nodes with many requests.
    #[serde(default)]
    packs: bool,
    /// Of all nodes, unless they say otherwise.
    allocatable: Value,
    /// Of the first container of all pods, unless they say otherwise.
    requests: Value,
    /// What all pods have.
    #[serde(default)]
    pod: Option<Value>,
    /// Parts of objects that nodes and pods name in `as`. `{"ago": seconds}` is a time.
    kinds: BTreeMap<String, Value>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    args: Map<String, Value>,
    /// The arguments of DefaultEvictor.
    #[serde(default)]
    evictor: Map<String, Value>,
    /// Fields of the policy.
    #[serde(default)]
    limits: Map<String, Value>,
    #[serde(default)]
    usage: Measured,
    /// The owners whose pods a PodDisruptionBudget selects; it allows one disruption.
    #[serde(default)]
    budgets: Vec<String>,
    /// Storage classes of PersistentVolumeClaims, by name.
    #[serde(default)]
    claims: BTreeMap<String, String>,
    /// Labels of namespaces, by name.
    #[serde(default)]
    namespaces: BTreeMap<String, Value>,
    nodes: Vec<NodeOf>,
    pods: Vec<PodsOf>,
    descheduler: Option<usize>,
    knarr: Option<usize>,
    because: Option<String>,
    room: Option<usize>,
    /// Pods that are among those moved.
    #[serde(default)]
    moved: Vec<String>,
    #[serde(default)]
    moved_with_room: Vec<String>,
    #[serde(default)]
    rejected: Vec<String>,
    #[serde(default)]
    ignored: Vec<String>,
}

/// Measured CPU, in thousandths.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    nodes: BTreeMap<String, i64>,
    pods: BTreeMap<String, i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeOf {
    name: String,
    #[serde(rename = "as", default)]
    kinds: Vec<String>,
    with: Option<Value>,
    allocatable: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PodsOf {
    name: String,
    node: String,
    #[serde(rename = "as", default)]
    kinds: Vec<String>,
    /// So many, with numbered names; absent: one, of this name.
    count: Option<usize>,
    /// Seconds since the creation.
    age: Option<i64>,
    /// The ReplicaSet.
    owner: Option<String>,
    requests: Option<Value>,
    /// One for each container.
    images: Option<Vec<String>>,
}

/// Replaces `{"ago": seconds}` by the time, and completes the statuses of containers.
fn resolve(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(seconds) = map.get("ago").and_then(Value::as_i64) {
                *value = ago(seconds).into();
                return;
            }
            for (key, value) in map.iter_mut() {
                if key.ends_with("ontainerStatuses") {
                    complete(value);
                }
                resolve(value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(resolve),
        _ => {}
    }
}

fn complete(statuses: &mut Value) {
    for (n, status) in statuses.as_array_mut().unwrap().iter_mut().enumerate() {
        let mut whole = json!({
            "name": format!("c{n}"), "image": "", "imageID": "", "ready": false, "restartCount": 0,
        });
        overlay(&mut whole, status);
        let terminated = whole.pointer_mut("/state/terminated");
        if let Some(terminated) = terminated.and_then(Value::as_object_mut) {
            terminated.entry("exitCode").or_insert(json!(0));
        }
        *status = whole;
    }
}

fn milli(milli_cpu: i64) -> Resources {
    Resources {
        milli_cpu,
        ..Resources::default()
    }
}

fn paths_below_args(paths: &[String]) -> BTreeSet<String> {
    let full = |path: &String| match path.as_str() {
        "" => ARGS.to_string(),
        path => format!("{ARGS}.{path}"),
    };
    paths.iter().map(full).collect()
}

/// All differences of a strategy.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn check<T: PartialEq + Debug>(&mut self, case: &str, what: &str, expected: T, found: T) {
        if expected != found {
            self.0
                .push(format!("{case}: {what}: expected {expected:?}, found {found:?}"));
        }
    }
}

impl Vectors {
    fn overlaid(&self, base: Option<&Value>, kinds: &[String], own: Option<&Value>) -> Value {
        let mut all = json!({});
        let kinds = kinds.iter().map(|kind| {
            let found = self.kinds.get(kind);
            found.unwrap_or_else(|| panic!("{}: there is no {kind}", self.plugin))
        });
        for part in base.into_iter().chain(kinds).chain(own) {
            overlay(&mut all, part);
        }
        resolve(&mut all);
        all
    }

    fn world(&self, case: &Case, has_room: bool) -> World {
        let mut world = World::default();
        for node in &case.nodes {
            let mut with = self.overlaid(None, &node.kinds, node.with.as_ref());
            let mut allocatable = self.allocatable.clone();
            if let Some(own) = &node.allocatable {
                overlay(&mut allocatable, own);
            }
            with["status"] = json!({ "allocatable": allocatable });
            world.node(&node.name, with);
        }
        if has_room {
            world.node("room", json!({"status": {"allocatable": self.allocatable}}));
        }
        for pods in &case.pods {
            let mut with = self.overlaid(self.pod.as_ref(), &pods.kinds, None);
            let images = pods.images.clone().unwrap_or_else(|| vec!["app".to_string()]);
            let mut containers = Vec::new();
            for (n, image) in images.iter().enumerate() {
                containers.push(json!({"name": format!("c{n}"), "image": image}));
            }
            let requests = pods.requests.as_ref().unwrap_or(&self.requests);
            containers[0]["resources"] = json!({ "requests": requests });
            with["spec"]["containers"] = containers.into();
            if let Some(age) = pods.age {
                with["metadata"]["creationTimestamp"] = ago(age).into();
            }
            let owner = pods.owner.as_deref().unwrap_or("r");
            match pods.count {
                None => world.pod(&pods.name, owner, &pods.node, &with),
                Some(count) => {
                    for n in 0..count {
                        world.pod(&format!("{}-{n}", pods.name), owner, &pods.node, &with);
                    }
                }
            }
        }
        for owner in &case.budgets {
            world.disruption_budget(owner, owner, 1);
        }
        for (name, class) in &case.claims {
            world.claim(name, class, "ReadWriteMany");
        }
        for (name, labels) in &case.namespaces {
            world.namespace(name, json!({ "labels": labels }));
        }
        let nodes = case.usage.nodes.iter();
        let pods = case.usage.pods.iter();
        world.usage = Usage {
            nodes: nodes
                .map(|(name, cpu)| (name.as_str().into(), milli(*cpu)))
                .collect(),
            pods: pods
                .map(|(name, cpu)| (("default".to_string(), name.clone()), milli(*cpu)))
                .collect(),
        };
        world
    }

    fn policy(&self, case: &Case) -> Result<Read, ErrorList> {
        let point = &self.point;
        let mut document = json!({
            "apiVersion": "descheduler/v1alpha2",
            "kind": "DeschedulerPolicy",
            "profiles": [{
                "name": "case",
                "pluginConfig": [
                    {"name": "DefaultEvictor", "args": case.evictor},
                    {"name": self.plugin, "args": case.args},
                ],
                "plugins": {point: {"enabled": [self.plugin]}},
            }],
        });
        overlay(&mut document, &Value::Object(case.limits.clone()));
        parse(&serde_json::to_string_pretty(&document).unwrap())
    }

    fn plan(&self, world: &World, policy: &Policy) -> Plan {
        let mut profile = Profile::default();
        if self.packs {
            profile.fit.strategy = Strategy::MostAllocated;
            profile.weights.remove("NodeResourcesBalancedAllocation");
        }
        let snapshot = Snapshot::new(vec![profile], &world.objects(), now());
        let snapshot = snapshot.with_usage(world.usage.clone());
        knarr_rebalance::plan(&snapshot.with_evictions(world.evictions.clone()), policy)
    }

    fn play(&self, case: &Case, differences: &mut Differences) {
        let name = case.name.as_str();
        let differs = case.descheduler != case.knarr;
        differences.check(name, "has because", differs, case.because.is_some());
        differences.check(
            name,
            "has rejected",
            case.knarr.is_none(),
            !case.rejected.is_empty(),
        );
        let expected = paths_below_args(&case.rejected);
        let read = match self.policy(case) {
            Ok(read) => read,
            Err(errors) => {
                let found = errors.into_iter().map(|error| error.field).collect();
                differences.check(name, "errors", expected, found);
                return;
            }
        };
        differences.check(name, "errors", expected, BTreeSet::new());
        let notes = read.ignored.iter().filter_map(|note| note.split_once(": "));
        let notes = notes.filter(|(path, _)| path.starts_with(ARGS));
        let found = notes.map(|(path, _)| path.to_string()).collect();
        differences.check(name, "ignored", paths_below_args(&case.ignored), found);
        let runs = [
            ("moves", false, case.knarr, &case.moved),
            ("moves with room", true, case.room, &case.moved_with_room),
        ];
        for (what, has_room, expected, moved) in runs {
            let Some(expected) = expected else { continue };
            let world = self.world(case, has_room);
            let plan = self.plan(&world, &read.policy);
            let names: BTreeSet<&str> = plan.moves.iter().map(|step| step.pod.name.as_str()).collect();
            let are_moved = moved.iter().all(|name| names.contains(name.as_str()));
            if plan.moves.len() != expected || !are_moved {
                differences.0.push(format!(
                    "{name}: {what}: expected {expected} {moved:?}, found {} {names:?}\n{plan}",
                    plan.moves.len()
                ));
            }
            // What a pod uses after its move is not known.
            if world.usage == Usage::default() {
                let again = self.plan(&world.after(&plan), &read.policy);
                differences.check(name, "moves from the result", 0, again.moves.len());
            }
        }
    }
}

fn play(file: &str) {
    let vectors: Vectors = serde_json::from_str(file).unwrap();
    let mut differences = Differences::default();
    let mut names = BTreeSet::new();
    for case in &vectors.cases {
        assert!(names.insert(&case.name), "two cases are called {}", case.name);
        vectors.play(case, &mut differences);
    }
    let equal = vectors.cases.iter().filter(|case| case.because.is_none());
    let subject = vectors.subject.as_ref().unwrap_or(&vectors.plugin);
    let row = format!("| {subject} | {} | {} |", vectors.cases.len(), equal.count());
    if !DOCUMENT.contains(&row) {
        differences
            .0
            .push(format!("docs/rebalancing.md has no row {row}"));
    }
    let Differences(all) = differences;
    assert!(
        all.is_empty(),
        "{subject}: {} differences:\n{}",
        all.len(),
        all.join("\n")
    );
}

#[test]
fn b3_descheduler_cases_of_topology_spread_hold() {
    play(include_str!("../descheduler/topology_spread.json"));
}

#[test]
fn b3_descheduler_cases_of_node_taints_hold() {
    play(include_str!("../descheduler/node_taints.json"));
}

#[test]
fn b3_descheduler_cases_of_pod_anti_affinity_hold() {
    play(include_str!("../descheduler/pod_anti_affinity.json"));
}

#[test]
fn b3_descheduler_cases_of_node_affinity_hold() {
    play(include_str!("../descheduler/node_affinity.json"));
}

#[test]
fn b3_descheduler_cases_of_duplicates_hold() {
    play(include_str!("../descheduler/duplicates.json"));
}

#[test]
fn b3_descheduler_cases_of_low_node_utilization_hold() {
    play(include_str!("../descheduler/low_node_utilization.json"));
}

#[test]
fn b3_descheduler_cases_of_high_node_utilization_hold() {
    play(include_str!("../descheduler/high_node_utilization.json"));
}

#[test]
fn b3_descheduler_cases_of_pod_life_time_hold() {
    play(include_str!("../descheduler/pod_life_time.json"));
}

#[test]
fn b3_descheduler_cases_of_too_many_restarts_hold() {
    play(include_str!("../descheduler/too_many_restarts.json"));
}

#[test]
fn b3_descheduler_cases_of_failed_pods_hold() {
    play(include_str!("../descheduler/failed_pods.json"));
}

#[test]
fn b3_descheduler_cases_of_the_default_evictor_hold() {
    play(include_str!("../descheduler/default_evictor.json"));
}
