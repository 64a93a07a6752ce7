//! What a pod asks for and may use, summed over its containers as Kubernetes sums them: the most it needs at any time.
//!
//! CPU counts in thousandths of a core, everything else in whole units.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::resources::{Side, asked};
use knarr_api::quantity::Quantity;

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, i64>;

/// An amount in the unit of its resource. What does not parse has been refused by the API, and counts nothing.
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

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// The most that all containers together need at a time: those that run side by side, or one init container with
/// the sidecars started before it.
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

/// What a pod is promised, its runtime's overhead included.
pub fn requests(pod: &Pod) -> Amounts {
    let mut sum = most(pod, |c| {
        amounts(c.resources.as_ref().and_then(|r| r.requests.as_ref()))
    });
    let Some(spec) = &pod.spec else { return sum };
    sum.extend(amounts(spec.resources.as_ref().and_then(|r| r.requests.as_ref())));
    add(&mut sum, &amounts(spec.overhead.as_ref()));
    sum
}

/// What a pod may use at most, where its containers say so.
pub fn limits(pod: &Pod) -> Amounts {
    let mut sum = most(pod, |c| {
        amounts(c.resources.as_ref().and_then(|r| r.limits.as_ref()))
    });
    let own = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    sum.extend(amounts(own.and_then(|r| r.limits.as_ref())));
    sum
}

/// An amount that is set and not zero. What does not parse has been refused by the API.
pub fn set(resources: Option<&ResourceRequirements>, side: Side, name: &str) -> Option<Quantity> {
    let quantity = Quantity::of(side.of(resources)?.get(name)?).ok()?;
    (quantity > Quantity::default()).then_some(quantity)
}

/// What holds for a container: where it has no limit of its own, the pod's as a whole.
pub fn with_limits_of_pod(
    own: &ResourceRequirements,
    of_pod: Option<&ResourceRequirements>,
) -> ResourceRequirements {
    let mut held = own.clone();
    for name in ["cpu", "memory"] {
        if set(Some(own), Side::Limits, name).is_some() || set(of_pod, Side::Limits, name).is_none() {
            continue;
        }
        let limit = of_pod.and_then(|r| r.limits.as_ref()?.get(name)).cloned();
        let limits = held.limits.get_or_insert_default();
        limits.extend(limit.map(|limit| (name.to_string(), limit)));
    }
    held
}

/// The limit that holds for a pod as a whole: its own, else what its containers' come to where each has one.
pub fn limit_of_all(pod: &Pod, name: &str) -> Option<Quantity> {
    let spec = pod.spec.as_ref()?;
    let own = set(spec.resources.as_ref(), Side::Limits, name).is_some();
    let mut containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    if !own && !containers.all(|c| set(c.resources.as_ref(), Side::Limits, name).is_some()) {
        return None;
    }
    asked(spec, Side::Limits).get(name).copied()
}

/// Whether memory limits may shrink: not below what is in use. Given are the new limit and the use, where it is
/// known, of the pod and of each container whose limit shrinks.
pub fn refuse_decrease<'a>(
    pod: Option<(i64, Option<i64>)>,
    containers: impl Iterator<Item = (&'a str, i64, Option<i64>)>,
) -> Result<(), String> {
    let judge = |whose: &str, limit: i64, used: Option<i64>| match used {
        None => Some(format!("missing {whose} memory usage")),
        Some(used) if used >= limit => Some(format!(
            "attempting to set {whose} memory limit ({limit}) below current usage ({used})"
        )),
        Some(_) => None,
    };
    let of_pod = pod.and_then(|(limit, used)| judge("pod", limit, used));
    let of_containers =
        containers.filter_map(|(name, limit, used)| judge(&format!("container {name:?}"), limit, used));
    let wrong: Vec<String> = of_pod.into_iter().chain(of_containers).collect();
    match wrong.as_slice() {
        [] => Ok(()),
        [one] => Err(format!("cannot decrease memory limits: {one}")),
        many => Err(format!("cannot decrease memory limits: [{}]", many.join(", "))),
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
        // The second init container beside the sidecar needs more than what runs later.
        assert_eq!(requests(&pod)["cpu"], 460);
    }

    #[test]
    fn l4_no_memory_is_taken_from_those_who_use_it() {
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
            let got = refuse_decrease(pod, container.into_iter())
                .err()
                .unwrap_or_default();
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
