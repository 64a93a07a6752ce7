//! A pod's requests and limits, summed over its containers as Kubernetes does: the most that it needs at any time.
//!
//! CPU is in millicores, everything else in whole units.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::resources::{RequirementKind, is_sidecar, pod_resources};
use knarr_apimachinery::quantity::Quantity;

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, i64>;

/// An amount in the unit of its resource; 0 if it does not parse, which the API rejects.
pub fn amount(name: &str, quantity: &Wire) -> i64 {
    match (Quantity::of(quantity), name) {
        (Ok(q), "cpu") => q.milli_value(),
        (Ok(q), _) => q.value(),
        (Err(_), _) => 0,
    }
}

pub fn amounts(list: Option<&BTreeMap<String, Wire>>) -> Amounts {
    let list = list.into_iter().flatten();
    list.map(|(name, q)| (name.clone(), amount(name, q))).collect()
}

pub fn add(to: &mut Amounts, more: &Amounts) {
    for (name, value) in more {
        let sum = to.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*value);
    }
}

fn raise(to: &mut Amounts, least: &Amounts) {
    for (name, value) in least {
        let most = to.entry(name.clone()).or_default();
        *most = (*most).max(*value);
    }
}

/// The most that all containers need at a time: those that run at the same time, or one init container with the sidecars
/// before it.
fn most(pod: &Pod, of: impl Fn(&Container) -> Amounts) -> Amounts {
    let Some(spec) = &pod.spec else {
        return Amounts::new();
    };
    let mut running = Amounts::new();
    for container in &spec.containers {
        add(&mut running, &of(container));
    }
    let (mut sidecars, mut starting) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let mut needs = of(container);
        if is_sidecar(container) {
            add(&mut running, &needs);
            add(&mut sidecars, &needs);
            needs.clone_from(&sidecars);
        } else {
            add(&mut needs, &sidecars);
        }
        raise(&mut starting, &needs);
    }
    raise(&mut running, &starting);
    running
}

/// A pod's requests, with its overhead.
pub fn requests(pod: &Pod) -> Amounts {
    let mut sum = most(pod, |c| {
        amounts(c.resources.as_ref().and_then(|r| r.requests.as_ref()))
    });
    let Some(spec) = &pod.spec else { return sum };
    sum.extend(amounts(spec.resources.as_ref().and_then(|r| r.requests.as_ref())));
    add(&mut sum, &amounts(spec.overhead.as_ref()));
    sum
}

/// A pod's limits, as far as its containers have them.
pub fn limits(pod: &Pod) -> Amounts {
    let mut sum = most(pod, |c| {
        amounts(c.resources.as_ref().and_then(|r| r.limits.as_ref()))
    });
    let own = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    sum.extend(amounts(own.and_then(|r| r.limits.as_ref())));
    sum
}

/// An amount that is set and not zero. What does not parse counts as not set.
pub fn set(resources: Option<&ResourceRequirements>, kind: RequirementKind, name: &str) -> Option<Quantity> {
    let quantity = Quantity::of(kind.of(resources)?.get(name)?).ok()?;
    (quantity > Quantity::default()).then_some(quantity)
}

/// A container's resources with the pod-level limits where it has none of its own.
pub fn with_limits_of_pod(
    own: &ResourceRequirements,
    of_pod: Option<&ResourceRequirements>,
) -> ResourceRequirements {
    let mut held = own.clone();
    for name in ["cpu", "memory"] {
        if set(Some(own), RequirementKind::Limits, name).is_some()
            || set(of_pod, RequirementKind::Limits, name).is_none()
        {
            continue;
        }
        let limit = of_pod.and_then(|r| r.limits.as_ref()?.get(name)).cloned();
        let limits = held.limits.get_or_insert_default();
        limits.extend(limit.map(|limit| (name.to_string(), limit)));
    }
    held
}

/// The limit of a pod's cgroup: the pod-level one, else the sum of its containers' if each has one.
pub fn limit_of_all(pod: &Pod, name: &str) -> Option<Quantity> {
    let spec = pod.spec.as_ref()?;
    let own = set(spec.resources.as_ref(), RequirementKind::Limits, name).is_some();
    let mut containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    if !own && !containers.all(|c| set(c.resources.as_ref(), RequirementKind::Limits, name).is_some()) {
        return None;
    }
    pod_resources(spec, RequirementKind::Limits).get(name).copied()
}

/// Memory limits that may not be decreased, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot decrease memory limits: {}", list(.0))]
pub struct MemoryDecreaseError(Vec<String>);

fn list(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// Whether memory limits may be decreased: not below the current usage. The arguments are the new limit and the usage, if
/// known, of the pod and of each container whose limit decreases.
pub fn check_memory_decrease<'a>(
    pod: Option<(i64, Option<i64>)>,
    containers: impl Iterator<Item = (&'a str, i64, Option<i64>)>,
) -> Result<(), MemoryDecreaseError> {
    let check = |whose: &str, limit: i64, used: Option<i64>| match used {
        None => Some(format!("missing {whose} memory usage")),
        Some(used) if used >= limit => Some(format!(
            "attempting to set {whose} memory limit ({limit}) below current usage ({used})"
        )),
        Some(_) => None,
    };
    let of_pod = pod.and_then(|(limit, used)| check("pod", limit, used));
    let of_containers =
        containers.filter_map(|(name, limit, used)| check(&format!("container {name:?}"), limit, used));
    let wrong: Vec<String> = of_pod.into_iter().chain(of_containers).collect();
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(MemoryDecreaseError(wrong)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn l10_init_containers_count_with_the_sidecars_before_them() {
        let with = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "initContainers": [
                {"name": "first", "resources": with("100m")},
                {"name": "side", "restartPolicy": "Always", "resources": with("50m")},
                {"name": "second", "resources": with("400m")},
            ],
            "containers": [{"name": "a", "resources": with("200m")}, {"name": "b"}],
            "overhead": {"cpu": "10m"},
        }}))
        .unwrap();
        // The second init container with the sidecar needs more than what runs later.
        assert_eq!(requests(&pod)["cpu"], 460);
    }

    #[test]
    fn l4_a_memory_limit_is_not_decreased_below_the_usage() {
        for (pod, container, want) in [
            (None, None, ""),
            (Some((10, Some(9))), None, ""),
            (
                Some((10, Some(10))),
                None,
                "attempting to set pod memory limit (10) below current usage (10)",
            ),
            (Some((10, None)), None, "missing pod memory usage"),
            (
                Some((10, Some(11))),
                Some(("c", 5, Some(6))),
                "[attempting to set pod memory limit (10) below current usage (11), \
                 attempting to set container \"c\" memory limit (5) below current usage (6)]",
            ),
        ] {
            let got = check_memory_decrease(pod, container.into_iter())
                .err()
                .map_or_else(String::new, |error| error.to_string());
            let want = if want.is_empty() {
                String::new()
            } else {
                format!("cannot decrease memory limits: {want}")
            };
            assert_eq!(got, want);
        }
    }

    #[test]
    fn l4_a_pods_own_limits_hold_for_containers_without() {
        let own = |limits: serde_json::Value| -> ResourceRequirements {
            serde_json::from_value(json!({"limits": limits})).unwrap()
        };
        let of_pod = own(json!({"cpu": "2", "memory": "0"}));
        for (limits, want) in [
            (json!({}), json!({"cpu": "2"})),
            (json!({"cpu": "1"}), json!({"cpu": "1"})),
            (
                json!({"cpu": "0", "memory": "1Mi"}),
                json!({"cpu": "2", "memory": "1Mi"}),
            ),
        ] {
            let held = with_limits_of_pod(&own(limits.clone()), Some(&of_pod));
            assert_eq!(held, own(want), "{limits}");
        }
        assert_eq!(with_limits_of_pod(&own(json!({})), None), own(json!({})));
    }

    #[test]
    fn l4_a_pod_is_limited_by_itself_or_by_all_of_its_containers() {
        for (of_pod, init, limits, want) in [
            (
                json!({}),
                json!({"cpu": "1"}),
                [json!({"cpu": "1"}), json!({"cpu": "1"})],
                Some("2"),
            ),
            (
                json!({}),
                json!({"cpu": "3"}),
                [json!({"cpu": "1"}), json!({"cpu": "1"})],
                Some("3"),
            ),
            (
                json!({}),
                json!({"cpu": "1"}),
                [json!({"cpu": "1"}), json!({})],
                None,
            ),
            (
                json!({}),
                json!({}),
                [json!({"cpu": "1"}), json!({"cpu": "1"})],
                None,
            ),
            (
                json!({"cpu": "5"}),
                json!({}),
                [json!({"cpu": "1"}), json!({})],
                Some("5"),
            ),
        ] {
            let limited = |name: &str, limits: &serde_json::Value| json!({"name": name, "resources": {"limits": limits}});
            let pod: Pod = serde_json::from_value(json!({"spec": {
                "resources": {"limits": of_pod},
                "initContainers": [limited("i", &init)],
                "containers": [limited("a", &limits[0]), limited("b", &limits[1])],
            }}))
            .unwrap();
            let got = limit_of_all(&pod, "cpu").map(|q| q.to_string());
            assert_eq!(got.as_deref(), want, "{of_pod} {init} {limits:?}");
        }
    }
}
