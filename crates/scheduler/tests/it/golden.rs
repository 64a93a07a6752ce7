//! Placements recorded from the real kube-scheduler v1.36.2 (see `tests/golden/README.md`): every verdict, score, message
//! and victim must be the same. `GOLDEN_DIR` names another directory of such recordings.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use knarr_api::k8s_openapi::api::core::v1::{Pod, TopologySpreadConstraint};
use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::ids::NodeName;
use knarr_scheduler::plugins::default_preemption::Outcome;
use knarr_scheduler::pod_info::SpreadConstraint;
use knarr_scheduler::profile::SpreadArgs;
use knarr_scheduler::queue::Backoffs;
use knarr_scheduler::scheduler::Explanation;
use knarr_scheduler::{Profile, Scheduler, UnschedulableStatus};
use serde_json::{Map, Value, json};

use crate::cluster::{shared, typed};

fn directory() -> PathBuf {
    match std::env::var_os("GOLDEN_DIR") {
        Some(directory) => directory.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden"),
    }
}

fn items<'a>(scenario: &'a Value, kind: &str) -> impl Iterator<Item = &'a Value> {
    scenario["cluster"][kind].as_array().into_iter().flatten()
}

fn names(object: &Value) -> (&str, &str) {
    let metadata = &object["metadata"];
    (
        metadata["namespace"].as_str().unwrap_or(""),
        metadata["name"].as_str().unwrap_or(""),
    )
}

fn profile(scenario: &Value) -> Profile {
    let mut profile = Profile::default();
    let args = &scenario["config"]["podTopologySpread"];
    if let Some(constraints) = args["defaultConstraints"].as_array() {
        let read = |c: &Value| {
            let constraint: TopologySpreadConstraint = serde_json::from_value(c.clone()).unwrap();
            SpreadConstraint::read(&constraint, None).unwrap()
        };
        profile.spread = SpreadArgs {
            default_constraints: constraints.iter().map(read).collect(),
            system: args["defaultingType"] == "System",
        };
    }
    profile
}

fn explain(scenario: &Value) -> (Scheduler, Explanation) {
    let mut scheduler = Scheduler::new(vec![profile(scenario)], Backoffs::default());
    let now = Timestamp::UNIX_EPOCH;
    for node in items(scenario, "nodes") {
        scheduler.node_changed(names(node).1, Some(shared(node)), now);
    }
    let cluster = scheduler.cluster_mut();
    for object in items(scenario, "namespaces") {
        cluster.set_namespace(names(object).1, Some(&typed(object)));
    }
    for object in items(scenario, "services") {
        let (namespace, name) = names(object);
        cluster.set_service(namespace, name, Some(&typed(object)));
    }
    for object in items(scenario, "replicaSets") {
        let (namespace, name) = names(object);
        cluster.set_replica_set(namespace, name, Some(&typed(object)));
    }
    for object in items(scenario, "statefulSets") {
        let (namespace, name) = names(object);
        cluster.set_stateful_set(namespace, name, Some(&typed(object)));
    }
    for object in items(scenario, "podDisruptionBudgets") {
        let (namespace, name) = names(object);
        cluster.set_budget(namespace, name, Some(&typed(object)));
    }
    for pod in items(scenario, "pods") {
        scheduler.pod_changed(None, Some(&shared::<Pod>(pod)), now);
    }
    let pod = scheduler.info(&shared(&scenario["pod"]));
    let explanation = scheduler.explain(&pod);
    (scheduler, explanation)
}

fn rejection(rejection: Option<&UnschedulableStatus>) -> Value {
    rejection.map_or(
        Value::Null,
        |r| json!({"plugin": r.plugin, "code": r.code(), "reasons": r.reasons}),
    )
}

/// The explanation in the format of the recordings.
fn verdict(scheduler: &Scheduler, found: &Explanation) -> Value {
    let nodes = found.nodes.iter();
    let filter: Map<String, Value> = nodes
        .map(|(name, r)| (name.to_string(), rejection(r.as_ref())))
        .collect();
    let best = found.totals.values().max();
    let best = found.totals.iter().filter(|(_, total)| Some(*total) == best);
    let best: Vec<&NodeName> = best.map(|(name, _)| name).collect();
    let message = found.totals.is_empty().then(|| found.diagnosis.unschedulable());
    let name = |place| scheduler.cluster().at(place).name.clone();
    let preemption = found.preemption.as_ref().map(|outcome| match outcome {
        Outcome::Candidates(all) => {
            let mut candidates: Vec<Value> = all
                .iter()
                .map(|c| {
                    let victims = c.victims.iter().map(|v| {
                        let object = v.pod.object();
                        format!("{}/{}", object.namespace(), object.name())
                    });
                    let victims: Vec<String> = victims.collect();
                    json!({"node": name(c.index), "victims": victims, "pdbViolations": c.violations})
                })
                .collect();
            candidates.sort_by_key(|c| c["node"].to_string());
            let mut best: Vec<NodeName> = outcome.best().iter().map(|c| name(c.index)).collect();
            best.sort();
            json!({"candidates": candidates, "best": best})
        }
        Outcome::NoState | Outcome::NotEligible(_) | Outcome::NoCandidates(_) => {
            json!({"candidates": [], "best": [], "message": found.diagnosis.post_filter.to_string()})
        }
    });
    json!({
        "preFilter": rejection(found.rejection.as_ref()),
        "preFilterNodes": found.named,
        "filter": filter,
        "scores": found.scores,
        "total": found.totals,
        "best": best,
        "unschedulableMessage": message,
        "preemption": preemption,
    })
}

/// Null, missing and empty are equal; fields that the recordings do not have are not compared.
fn difference(path: &str, expected: &Value, found: &Value, out: &mut Vec<String>) {
    let is_nothing = |v: &Value| match v {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(all) => all.is_empty(),
        _ => false,
    };
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            let keys: std::collections::BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
            for key in keys {
                let of = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
                difference(&format!("{path}.{key}"), &of(expected), &of(found), out);
            }
        }
        (expected, found) if expected == found || (is_nothing(expected) && is_nothing(found)) => {}
        (expected, found) => out.push(format!("{path}: expected {expected}, found {found}")),
    }
}

#[test]
fn d2_d3_d4_p4_p5_every_recorded_verdict_of_kube_scheduler_is_knarrs() {
    let directory = directory();
    let mut files: Vec<PathBuf> = std::fs::read_dir(&directory)
        .unwrap_or_else(|e| panic!("{}: {e}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".jsonl.gz"))
        .collect();
    files.sort();
    let mut wrong: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut cases = 0;
    for file in &files {
        let lines = BufReader::new(flate2::read::GzDecoder::new(std::fs::File::open(file).unwrap()));
        for line in lines.lines() {
            let scenario: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let (scheduler, found) = explain(&scenario);
            let found = verdict(&scheduler, &found);
            let mut expected = scenario["expect"].clone();
            expected.as_object_mut().unwrap().remove("weights");
            let mut out = Vec::new();
            difference("", &expected, &found, &mut out);
            cases += 1;
            if !out.is_empty() {
                wrong.insert(scenario["id"].as_str().unwrap().to_string(), out);
            }
        }
    }
    assert!(cases > 0, "no recordings in {}", directory.display());
    let shown: Vec<String> = wrong
        .iter()
        .take(30)
        .map(|(id, out)| format!("{id}\n    {}", out[..out.len().min(4)].join("\n    ")))
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {cases} wrong:\n{}",
        wrong.len(),
        shown.join("\n")
    );
}
