//! What a pod asks for and may use, summed over its containers as Kubernetes sums them: the most it needs at any time.
//!
//! CPU counts in thousandths of a core, everything else in whole units.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::k8s_openapi;
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
}
