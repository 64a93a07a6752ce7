//! RuntimeClass: a pod with a runtimeClassName gets the class's overhead and scheduling constraints; overhead that the class
//! does not define is rejected.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec, Toleration};
use k8s_openapi::api::node::v1::{RuntimeClass, Scheduling};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::kinds::text;
use knarr_api::{k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::quantity::Quantity;

use super::{Admission, Denial, deny, resource_name};

pub(super) fn mutate(admission: &Admission, pod: &mut Pod) -> Result<(), Error> {
    let name = resource_name(&pod.metadata).to_string();
    let Some(spec) = &mut pod.spec else { return Ok(()) };
    let class = match spec.runtime_class_name.as_deref() {
        None => None,
        Some(class_name) => {
            let found = admission.cache.get(&registry::RUNTIME_CLASS, "", class_name);
            let Some(class) = found.and_then(|o| o.get::<RuntimeClass>().cloned()) else {
                let why = format!("pod rejected: RuntimeClass {class_name:?} not found");
                return Err(Error::forbidden(registry::POD.resource_ref(&name), &why));
            };
            Some(class)
        }
    };
    apply_class(spec, class.as_ref())
        .map_err(|Denial(why)| Error::forbidden(registry::POD.resource_ref(&name), &why))
}

/// Sets the class's overhead and scheduling constraints, or returns why they conflict with the pod's.
fn apply_class(spec: &mut PodSpec, class: Option<&RuntimeClass>) -> Result<(), Denial> {
    match class.and_then(|c| c.overhead.as_ref()) {
        None if spec.overhead.is_some() => {
            return deny(
                "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
            );
        }
        None => {}
        Some(overhead) => {
            let given = spec.overhead.as_ref().filter(|o| !o.is_empty());
            if given.is_some_and(|given| !same_amounts(given, overhead.pod_fixed.as_ref())) {
                return deny("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead");
            }
            spec.overhead.clone_from(&overhead.pod_fixed);
        }
    }
    match class.and_then(|c| c.scheduling.as_ref()) {
        Some(scheduling) => apply_scheduling(spec, scheduling),
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

fn apply_scheduling(spec: &mut PodSpec, scheduling: &Scheduling) -> Result<(), Denial> {
    if let Some(selector) = &scheduling.node_selector {
        let own = spec.node_selector.get_or_insert_default();
        for (key, value) in selector {
            if let Some(other) = own.get(key).filter(|v| *v != value) {
                return deny(format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {other}"
                ));
            }
            own.insert(key.clone(), value.clone());
        }
    }
    let own = spec.tolerations.take().unwrap_or_default();
    let more = scheduling.tolerations.clone().unwrap_or_default();
    let merged = merge_tolerations(own.into_iter().chain(more).collect());
    spec.tolerations = Some(merged).filter(|t| !t.is_empty());
    Ok(())
}

/// Without tolerations that another one covers; of equals the first stays.
fn merge_tolerations(all: Vec<Toleration>) -> Vec<Toleration> {
    let mut merged: Vec<Toleration> = Vec::new();
    for (i, one) in all.iter().enumerate() {
        let covered = merged.iter().any(|other| is_superset(other, one))
            || all
                .iter()
                .skip(i + 1)
                .any(|later| later != one && is_superset(later, one));
        if !covered {
            merged.push(one.clone());
        }
    }
    merged
}

/// Whether `other` tolerates everything that `one` tolerates (isSuperset in pkg/util/tolerations).
fn is_superset(other: &Toleration, one: &Toleration) -> bool {
    if other == one {
        return true;
    }
    let exists = text(&other.operator) == "Exists";
    if text(&one.key) != text(&other.key) && !(text(&other.key).is_empty() && exists) {
        return false;
    }
    if text(&one.effect) != text(&other.effect) && !text(&other.effect).is_empty() {
        return false;
    }
    if text(&other.effect) == "NoExecute"
        && let Some(most) = other.toleration_seconds
        && one.toleration_seconds.is_none_or(|seconds| seconds > most)
    {
        return false;
    }
    match text(&other.operator) {
        "Equal" | "" => text(&one.operator) == "Equal" && text(&one.value) == text(&other.value),
        "Exists" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_pod_gets_its_classs_overhead_and_scheduling_or_is_denied() {
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
            let outcome: Result<Value, Denial> =
                apply_class(&mut pod, Some(&class)).map(|()| serde_json::to_value(&pod).unwrap());
            match (outcome, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{spec}"),
                (Err(Denial(found)), Err(expected)) => assert!(found.contains(expected), "{spec}: {found}"),
                (found, expected) => panic!("{spec}: {found:?}, expected {expected:?}"),
            }
        }
    }
}
