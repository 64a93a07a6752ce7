//! LimitRanger: containers without requests or limits get their namespace's defaults, and pods and claims below a minimum,
//! above a maximum or above a limit-to-request ratio are denied.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, LimitRange, LimitRangeItem, PersistentVolumeClaim, Pod, PodSpec, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::kinds::pod::resources::{Amounts, RequirementKind, aggregate_containers, amounts};
use knarr_api::{AnyObject, k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::quantity::Quantity;

use super::{Admission, Attributes, Operation, aggregated};
use crate::cache::change::Filter;

/// Lists on the pod the defaults that were set.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";
/// Up to this value quantities are compared in thousandths, above it as whole numbers.
const MILLI_MAX: i64 = i64::MAX / 1000;

/// Pods and claims when they are created, claims when they are updated, and pods when they are resized.
fn supports_attributes(attributes: &Attributes<'_>) -> bool {
    let kind = attributes.target.kind;
    match (attributes.operation, attributes.target.subresource) {
        (Operation::Create, "") => *kind == registry::POD || *kind == registry::PERSISTENT_VOLUME_CLAIM,
        (Operation::Update, "") => *kind == registry::PERSISTENT_VOLUME_CLAIM && !attributes.is_terminating(),
        (Operation::Update, "resize") => *kind == registry::POD && !attributes.is_terminating(),
        _ => false,
    }
}

/// Calls `with` for every LimitRange of the namespace, in the order of their names.
fn for_each_limit_range(
    admission: &Admission,
    attributes: &Attributes<'_>,
    mut with: impl FnMut(&LimitRange) -> Result<(), Error>,
) -> Result<(), Error> {
    if !supports_attributes(attributes) {
        return Ok(());
    }
    let kind = &registry::LIMIT_RANGE;
    let ranges = admission.cache.of(kind)?;
    if ranges.count() == 0 {
        return Ok(());
    }
    for object in ranges.list(&Filter::everything(kind, attributes.target.namespace)) {
        if let Some(range) = object.get::<LimitRange>() {
            with(range)?;
        }
    }
    Ok(())
}

pub(super) fn mutate(
    admission: &Admission,
    attributes: &Attributes<'_>,
    object: &mut dyn AnyObject,
) -> Result<(), Error> {
    let Some(pod) = object.as_any_mut().downcast_mut::<Pod>() else {
        return Ok(());
    };
    for_each_limit_range(admission, attributes, |range| {
        set_pod_defaults(range, pod);
        Ok(())
    })
}

pub(super) fn validate(
    admission: &Admission,
    attributes: &Attributes<'_>,
    object: &dyn AnyObject,
) -> Result<(), Error> {
    let any = object.as_any();
    for_each_limit_range(admission, attributes, |range| {
        let violations = if let Some(Some(spec)) = any.downcast_ref::<Pod>().map(|p| &p.spec) {
            pod_violations(range, spec)
        } else if let Some(claim) = any.downcast_ref::<PersistentVolumeClaim>() {
            claim_violations(range, claim)
        } else {
            Vec::new()
        };
        match aggregated(&violations) {
            Some(why) => Err(attributes.forbidden(object.metadata(), &why)),
            None => Ok(()),
        }
    })
}

fn items<'a>(range: &'a LimitRange, of: &'a str) -> impl Iterator<Item = &'a LimitRangeItem> {
    let items = range.spec.iter().flat_map(|s| &s.limits);
    items.filter(move |item| item.type_ == of)
}

/// Sets the default requests and limits of the containers that have none (mergePodResourceRequirements).
fn set_pod_defaults(range: &LimitRange, pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    for item in items(range, "Container") {
        requests.extend(item.default_request.clone().unwrap_or_default());
        limits.extend(item.default.clone().unwrap_or_default());
    }
    let mut notes = Vec::new();
    for container in &mut spec.containers {
        set_container_defaults(container, "container", &requests, &limits, &mut notes);
    }
    for container in spec.init_containers.iter_mut().flatten() {
        set_container_defaults(container, "init container", &requests, &limits, &mut notes);
    }
    if !notes.is_empty() {
        let text = format!("LimitRanger plugin set: {}", notes.join("; "));
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(ANNOTATION.into(), text);
    }
}

fn set_container_defaults(
    container: &mut Container,
    what: &str,
    requests: &BTreeMap<String, Wire>,
    limits: &BTreeMap<String, Wire>,
    notes: &mut Vec<String>,
) {
    fn set_missing(
        own: &mut Option<BTreeMap<String, Wire>>,
        defaults: &BTreeMap<String, Wire>,
    ) -> Vec<String> {
        let mut set = Vec::new();
        for (name, amount) in defaults {
            let own = own.get_or_insert_default();
            if !own.contains_key(name) {
                own.insert(name.clone(), amount.clone());
                set.push(name.clone());
            }
        }
        set
    }
    if requests.is_empty() && limits.is_empty() {
        return;
    }
    let resources = container.resources.get_or_insert_default();
    let set_limits = set_missing(&mut resources.limits, limits);
    let set_requests = set_missing(&mut resources.requests, requests);
    for (kind, set) in [("request", set_requests), ("limit", set_limits)] {
        if !set.is_empty() {
            notes.push(format!("{} {kind} for {what} {}", set.join(", "), container.name));
        }
    }
}

/// Requests and limits as parsed quantities, with their original texts for messages.
struct ResourceAmounts {
    requests: BTreeMap<String, (Quantity, String)>,
    limits: BTreeMap<String, (Quantity, String)>,
}

impl ResourceAmounts {
    fn of_container(resources: Option<&ResourceRequirements>) -> Self {
        let given = |kind: RequirementKind| {
            let list = kind.of(resources).into_iter().flatten();
            let known = list
                .filter_map(|(name, wire)| Some((name.clone(), (Quantity::of(wire).ok()?, wire.0.clone()))));
            known.collect()
        };
        ResourceAmounts {
            requests: given(RequirementKind::Requests),
            limits: given(RequirementKind::Limits),
        }
    }

    /// The pod's sum; of its pod-level resources only cpu and memory replace its containers'.
    fn of_pod(spec: &PodSpec) -> Self {
        let sum = |kind: RequirementKind| {
            let mut sum: Amounts = aggregate_containers(spec, kind);
            let own = amounts(kind.of(spec.resources.as_ref()));
            sum.extend(
                own.into_iter()
                    .filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory")),
            );
            let shown = sum
                .into_iter()
                .map(|(name, amount)| (name, (amount, amount.to_wire().0)));
            shown.collect()
        };
        ResourceAmounts {
            requests: sum(RequirementKind::Requests),
            limits: sum(RequirementKind::Limits),
        }
    }
}

fn pod_violations(range: &LimitRange, spec: &PodSpec) -> Vec<String> {
    let mut violations = Vec::new();
    for item in range.spec.iter().flat_map(|s| &s.limits) {
        match item.type_.as_str() {
            "Container" => {
                let init = spec.init_containers.iter().flatten();
                for container in spec.containers.iter().chain(init) {
                    let resources = ResourceAmounts::of_container(container.resources.as_ref());
                    check(item, &resources, &mut violations);
                }
            }
            "Pod" => check(item, &ResourceAmounts::of_pod(spec), &mut violations),
            _ => {}
        }
    }
    violations
}

fn check(item: &LimitRangeItem, resources: &ResourceAmounts, violations: &mut Vec<String>) {
    for (name, least) in item.min.iter().flatten() {
        violations.extend(min_constraint(&item.type_, name, least, resources));
    }
    for (name, most) in item.max.iter().flatten() {
        violations.extend(max_constraint(&item.type_, name, most, resources));
    }
    for (name, ratio) in item.max_limit_request_ratio.iter().flatten() {
        violations.extend(limit_request_ratio_constraint(
            &item.type_,
            name,
            ratio,
            resources,
        ));
    }
}

/// Only a claim's requests are limited, not its limits.
fn claim_violations(range: &LimitRange, claim: &PersistentVolumeClaim) -> Vec<String> {
    let resources = claim.spec.as_ref().and_then(|s| s.resources.as_ref());
    let resources = ResourceRequirements {
        requests: resources.and_then(|r| r.requests.clone()),
        ..ResourceRequirements::default()
    };
    let resources = ResourceAmounts::of_container(Some(&resources));
    let mut violations = Vec::new();
    for item in items(range, "PersistentVolumeClaim") {
        for (name, least) in item.min.iter().flatten() {
            violations.extend(min_constraint(&item.type_, name, least, &resources));
        }
        for (name, Wire(most)) in item.max.iter().flatten() {
            let begin = format!("maximum {name} usage per {} is {most}", item.type_);
            match resources.requests.get(name) {
                None => violations.push(format!("{begin}.  No request is specified")),
                Some((request, text)) if exceeds(request, &parsed(most)) => {
                    violations.push(format!("{begin}, but request is {text}"));
                }
                Some(_) => {}
            }
        }
    }
    violations
}

/// LimitRange validation accepts only quantities that parse.
fn parsed(text: &str) -> Quantity {
    Quantity::parse(text).unwrap_or_default()
}

/// Compared in thousandths as far as they fit, as in Kubernetes.
fn exceeds(one: &Quantity, other: &Quantity) -> bool {
    let whole = (one.value(), other.value());
    if whole.0 <= MILLI_MAX && whole.1 <= MILLI_MAX {
        one.milli_value() > other.milli_value()
    } else {
        whole.0 > whole.1
    }
}

fn min_constraint(of: &str, name: &str, Wire(least): &Wire, resources: &ResourceAmounts) -> Option<String> {
    let begin = format!("minimum {name} usage per {of} is {least}");
    let bound = parsed(least);
    let Some((request, text)) = resources.requests.get(name) else {
        return Some(format!("{begin}.  No request is specified"));
    };
    if exceeds(&bound, request) {
        return Some(format!("{begin}, but request is {text}"));
    }
    match resources.limits.get(name) {
        Some((limit, text)) if exceeds(&bound, limit) => Some(format!("{begin}, but limit is {text}")),
        _ => None,
    }
}

fn max_constraint(of: &str, name: &str, Wire(most): &Wire, resources: &ResourceAmounts) -> Option<String> {
    let begin = format!("maximum {name} usage per {of} is {most}");
    let bound = parsed(most);
    let Some((limit, text)) = resources.limits.get(name) else {
        return Some(format!("{begin}.  No limit is specified"));
    };
    if exceeds(limit, &bound) {
        return Some(format!("{begin}, but limit is {text}"));
    }
    match resources.requests.get(name) {
        Some((request, text)) if exceeds(request, &bound) => Some(format!("{begin}, but request is {text}")),
        _ => None,
    }
}

/// The limit divided by the request, compared with maxLimitRequestRatio.
fn limit_request_ratio_constraint(
    of: &str,
    name: &str,
    Wire(most): &Wire,
    resources: &ResourceAmounts,
) -> Option<String> {
    let begin = format!("{name} max limit to request ratio per {of} is {most}");
    let bound = parsed(most);
    let amount =
        |of: &BTreeMap<String, (Quantity, String)>| of.get(name).map(|(q, _)| *q).filter(|q| !q.is_zero());
    let Some(request) = amount(&resources.requests) else {
        return Some(format!("{begin}, but no request is specified or request is 0"));
    };
    let Some(limit) = amount(&resources.limits) else {
        return Some(format!("{begin}, but no limit is specified or limit is 0"));
    };
    let in_milli = [&request, &limit, &bound].iter().all(|q| q.value() <= MILLI_MAX);
    let of = |q: &Quantity| if in_milli { q.milli_value() } else { q.value() } as f64;
    let ratio = of(&limit) / of(&request);
    let exceeded = if bound.value() <= MILLI_MAX {
        ratio * 1000.0 > bound.milli_value() as f64
    } else {
        ratio > bound.value() as f64
    };
    exceeded.then(|| format!("{begin}, but provided ratio is {ratio:.6}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn range(item: Value) -> LimitRange {
        serde_json::from_value(json!({"metadata": {}, "spec": {"limits": [item]}})).unwrap()
    }

    #[test]
    fn containers_get_the_default_requests_and_limits_they_do_not_set() {
        let range = range(json!({
            "type": "Container", "default": {"cpu": "2", "memory": "1Gi"}, "defaultRequest": {"cpu": "1"},
        }));
        let mut pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": {
            "containers": [{"name": "a"}, {"name": "b", "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "4"}}}],
            "initContainers": [{"name": "i", "resources": {"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "1"}}}],
        }}))
        .unwrap();
        set_pod_defaults(&range, &mut pod);
        let value = serde_json::to_value(&pod).unwrap();
        assert_eq!(
            value["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container a; cpu, memory limit for container a; memory limit for container b"
        );
        let containers = &value["spec"]["containers"];
        assert_eq!(
            containers[0]["resources"],
            json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}})
        );
        assert_eq!(
            containers[1]["resources"],
            json!({"limits": {"cpu": "4", "memory": "1Gi"}, "requests": {"cpu": "3"}})
        );
    }

    #[test]
    fn each_violated_constraint_is_reported() {
        for (item, resources, expected) in [
            (
                json!({"type": "Container", "min": {"cpu": "1"}}),
                json!({"requests": {"cpu": "500m"}}),
                Some("minimum cpu usage per Container is 1, but request is 500m"),
            ),
            (
                json!({"type": "Container", "min": {"cpu": "1"}}),
                json!({}),
                Some("minimum cpu usage per Container is 1.  No request is specified"),
            ),
            (
                json!({"type": "Container", "max": {"cpu": "1", "memory": "1Gi"}}),
                json!({"requests": {"cpu": "1500m"}, "limits": {"cpu": "1500m"}}),
                Some(
                    "[maximum cpu usage per Container is 1, but limit is 1500m, \
maximum memory usage per Container is 1Gi.  No limit is specified]",
                ),
            ),
            (
                json!({"type": "Pod", "max": {"memory": "1Gi"}}),
                json!({"requests": {"memory": "600Mi"}, "limits": {"memory": "1Gi"}}),
                Some("maximum memory usage per Pod is 1Gi, but limit is 2Gi"),
            ),
            (
                json!({"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}),
                json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "250m"}}),
                Some("cpu max limit to request ratio per Container is 2, but provided ratio is 2.500000"),
            ),
            (
                json!({"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}),
                json!({"limits": {"cpu": "250m"}}),
                Some(
                    "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
                ),
            ),
            (
                json!({"type": "Container", "min": {"cpu": "1"}, "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "2"}}),
                json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}),
                None,
            ),
        ] {
            let spec: PodSpec = serde_json::from_value(json!({
                "containers": [{"name": "a", "resources": resources}],
                "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": resources}],
            }))
            .unwrap();
            let violations = pod_violations(&range(item.clone()), &spec);
            assert_eq!(aggregated(&violations).as_deref(), expected, "{item} {resources}");
        }
    }

    #[test]
    fn claims_are_limited_by_what_they_request() {
        let range = range(json!({
            "type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"},
        }));
        for (storage, expected) in [
            (
                "3Gi",
                Some("maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"),
            ),
            (
                "1Mi",
                Some("minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi"),
            ),
            ("2Gi", None),
        ] {
            let claim: PersistentVolumeClaim = serde_json::from_value(
                json!({"metadata": {}, "spec": {"resources": {"requests": {"storage": storage}}}}),
            )
            .unwrap();
            let violations = claim_violations(&range, &claim);
            assert_eq!(aggregated(&violations).as_deref(), expected, "{storage}");
        }
    }
}
