//! RuntimeClass: a pod that names one takes over its overhead and where it can run; overhead comes from nowhere else.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec, Toleration};
use k8s_openapi::api::node::v1::{RuntimeClass, Scheduling};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::quantity::Quantity;
use knarr_api::{Error, k8s_openapi, registry};

use super::shown_name;
use crate::server::Server;

pub(super) fn admit(server: &Server, pod: &mut Pod) -> Result<(), Error> {
    let name = shown_name(&pod.metadata).to_string();
    let Some(spec) = &mut pod.spec else { return Ok(()) };
    let class = match spec.runtime_class_name.as_deref() {
        None => None,
        Some(wanted) => {
            let found = server.cache.get(&registry::RUNTIME_CLASS, "", wanted);
            let Some(class) = found.and_then(|o| o.get::<RuntimeClass>().cloned()) else {
                let why = format!("pod rejected: RuntimeClass {wanted:?} not found");
                return Err(Error::forbidden(registry::POD.about(&name), &why));
            };
            Some(class)
        }
    };
    complete(spec, class.as_ref()).map_err(|why| Error::forbidden(registry::POD.about(&name), &why))
}

/// Takes over what the class says, or tells why that cannot be.
fn complete(spec: &mut PodSpec, class: Option<&RuntimeClass>) -> Result<(), String> {
    match class.and_then(|c| c.overhead.as_ref()) {
        None if spec.overhead.is_some() => {
            return Err(
                "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead".into(),
            );
        }
        None => {}
        Some(overhead) => {
            let given = spec.overhead.as_ref().filter(|o| !o.is_empty());
            if given.is_some_and(|given| !same_amounts(given, overhead.pod_fixed.as_ref())) {
                return Err(
                    "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".into(),
                );
            }
            spec.overhead.clone_from(&overhead.pod_fixed);
        }
    }
    match class.and_then(|c| c.scheduling.as_ref()) {
        Some(scheduling) => schedule(spec, scheduling),
        None => Ok(()),
    }
}

fn same_amounts(given: &BTreeMap<String, Wire>, class: Option<&BTreeMap<String, Wire>>) -> bool {
    let empty = BTreeMap::new();
    let class = class.unwrap_or(&empty);
    let same = |a: &Wire, b: &Wire| match (Quantity::parse(&a.0), Quantity::parse(&b.0)) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    };
    given.len() == class.len()
        && given
            .iter()
            .all(|(k, v)| class.get(k).is_some_and(|c| same(v, c)))
}

fn schedule(spec: &mut PodSpec, scheduling: &Scheduling) -> Result<(), String> {
    if let Some(wanted) = &scheduling.node_selector {
        let own = spec.node_selector.get_or_insert_default();
        for (key, value) in wanted {
            if let Some(other) = own.get(key).filter(|v| *v != value) {
                return Err(format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {other}"
                ));
            }
            own.insert(key.clone(), value.clone());
        }
    }
    let own = spec.tolerations.take().unwrap_or_default();
    let more = scheduling.tolerations.clone().unwrap_or_default();
    let merged = merge(own.into_iter().chain(more).collect());
    spec.tolerations = Some(merged).filter(|t| !t.is_empty());
    Ok(())
}

/// Without what another toleration covers; of equals the first stays.
fn merge(all: Vec<Toleration>) -> Vec<Toleration> {
    let mut merged: Vec<Toleration> = Vec::new();
    for (i, one) in all.iter().enumerate() {
        let covered = merged.iter().any(|other| covers(other, one))
            || all
                .iter()
                .skip(i + 1)
                .any(|later| later != one && covers(later, one));
        if !covered {
            merged.push(one.clone());
        }
    }
    merged
}

/// Whether whatever `one` tolerates, `other` does.
fn covers(other: &Toleration, one: &Toleration) -> bool {
    fn of(text: &Option<String>) -> &str {
        text.as_deref().unwrap_or("")
    }
    if other == one {
        return true;
    }
    let exists = of(&other.operator) == "Exists";
    if of(&one.key) != of(&other.key) && !(of(&other.key).is_empty() && exists) {
        return false;
    }
    if of(&one.effect) != of(&other.effect) && !of(&other.effect).is_empty() {
        return false;
    }
    if of(&other.effect) == "NoExecute"
        && let Some(most) = other.toleration_seconds
        && one.toleration_seconds.is_none_or(|seconds| seconds > most)
    {
        return false;
    }
    match of(&other.operator) {
        "Equal" | "" => of(&one.operator) == "Equal" && of(&one.value) == of(&other.value),
        "Exists" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_pod_takes_over_what_its_class_says_or_is_refused() {
        let class = json!({
            "handler": "kata", "overhead": {"podFixed": {"cpu": "250m"}},
            "scheduling": {"nodeSelector": {"kata": "yes"}, "tolerations": [{"key": "kata", "operator": "Exists"}]},
        });
        let whole = json!({
            "containers": [], "overhead": {"cpu": "250m"}, "nodeSelector": {"kata": "yes"},
            "tolerations": [{"key": "kata", "operator": "Exists"}],
        });
        let plain = json!({"handler": "runc"});
        for (class, spec, expected) in [
            (&class, json!({"containers": []}), Ok(whole.clone())),
            (
                &class,
                json!({"containers": [], "overhead": {"cpu": "0.25"}}),
                Ok(whole.clone()),
            ),
            (
                &class,
                json!({"containers": [], "tolerations": [{"key": "kata", "operator": "Equal", "value": "x"}]}),
                Ok(whole),
            ),
            (
                &class,
                json!({"containers": [], "overhead": {"cpu": "1"}}),
                Err("doesn't match"),
            ),
            (
                &class,
                json!({"containers": [], "nodeSelector": {"kata": "no"}}),
                Err(
                    "conflict: runtimeClass.scheduling.nodeSelector[kata] = yes; pod.spec.nodeSelector[kata] = no",
                ),
            ),
            (
                &plain,
                json!({"containers": [], "overhead": {"cpu": "1"}}),
                Err("without corresponding"),
            ),
            (&plain, json!({"containers": []}), Ok(json!({"containers": []}))),
        ] {
            let class: RuntimeClass = serde_json::from_value(class.clone()).unwrap();
            let mut pod: PodSpec = serde_json::from_value(spec.clone()).unwrap();
            let outcome: Result<Value, String> =
                complete(&mut pod, Some(&class)).map(|()| serde_json::to_value(&pod).unwrap());
            match (outcome, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{spec}"),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{spec}: {found}"),
                (found, expected) => panic!("{spec}: {found:?}, expected {expected:?}"),
            }
        }
    }
}
