//! Preemption on a node for a critical pod: which pods are evicted, by their requests and not their usage, and as few as
//! possible. BestEffort pods are first, Guaranteed pods last.

use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::resources::qos_class;

use crate::admission::{self, InsufficientResource, PODS, Rejection};
use crate::pod::Eviction;
use crate::resources;

/// `status.reason` of a preempted pod, and the reason of the event.
pub const REASON: &str = "Preempting";
pub const MESSAGE: &str = "Preempted in order to admit critical pod";

/// The eviction of a victim, with its own grace period.
pub fn eviction() -> Eviction {
    Eviction {
        reason: REASON.into(),
        message: MESSAGE.into(),
        grace_seconds: None,
        disruption: Some("Pod was preempted by Kubelet to accommodate a critical pod.".into()),
    }
}

/// The missing amounts, by resource.
type Needs = Vec<(String, i64)>;

/// As [`admission::admit`], but a critical pod is not rejected for insufficient resources: the result are the pods to preempt
/// before it is admitted.
pub fn admit_with_preemption<'a>(
    pod: &Pod,
    node: &Node,
    others: &[&'a Pod],
) -> Result<Vec<&'a Pod>, Rejection> {
    admission::check_node_properties(pod, node)?;
    let short = admission::shortages(pod, node, others);
    match short.first() {
        Some(first) if !admission::is_critical(pod) => Err(first.clone().into()),
        None => admission::matches_node(pod, node, others).map(|()| Vec::new()),
        Some(_) => {
            admission::matches_node(pod, node, others)?;
            victims(pod, others, &short)
        }
    }
}

/// The pods to evict so that the critical pod has the missing resources.
fn victims<'a>(
    pod: &Pod,
    others: &[&'a Pod],
    short: &[InsufficientResource],
) -> Result<Vec<&'a Pod>, Rejection> {
    let needs: Needs = short.iter().map(|s| (s.resource.clone(), s.missing())).collect();
    let of = |class: &str| -> Vec<&'a Pod> {
        let others = others.iter().copied().filter(|other| may_preempt(pod, other));
        others
            .filter(|other| other.spec.as_ref().map(qos_class) == Some(class))
            .collect()
    };
    let (best_effort, burstable, guaranteed) = (of("BestEffort"), of("Burstable"), of("Guaranteed"));
    let found = || {
        let left = subtract(
            &subtract(&subtract(&needs, &best_effort), &burstable),
            &guaranteed,
        );
        if !left.is_empty() {
            return Err(left);
        }
        // Of Guaranteed pods only what all the others together do not release.
        let last = nearest(guaranteed, subtract(&subtract(&needs, &best_effort), &burstable))?;
        let then = nearest(burstable, subtract(&subtract(&needs, &best_effort), &last))?;
        let first = nearest(best_effort, subtract(&subtract(&needs, &then), &last))?;
        Ok([first, then, last].concat())
    };
    found().map_err(|left: Needs| {
        let left: String = left.iter().map(|(name, amount)| format!("(res: {name}, q: {amount}), ")).collect();
        Rejection::new(
            "UnexpectedAdmissionError",
            format!(
                "Unexpected error while attempting to recover from admission failure: preemption: error finding a set \
                 of pods to preempt: no set of running pods found to reclaim resources: [{left}]"
            ),
        )
    })
}

fn may_preempt(pod: &Pod, other: &Pod) -> bool {
    let priority = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.priority);
    if admission::is_critical(pod) && !admission::is_critical(other) {
        return true;
    }
    matches!((priority(pod), priority(other)), (Some(own), Some(others)) if own > others)
}

fn request(pod: &Pod, resource: &str) -> i64 {
    match resource {
        PODS => 1,
        _ => resources::requests(pod).get(resource).copied().unwrap_or(0),
    }
}

/// The amounts that are missing after these pods are evicted.
fn subtract(needs: &Needs, evicted: &[&Pod]) -> Needs {
    let left = needs.iter().map(|(name, amount)| {
        let freed = evicted.iter().map(|pod| request(pod, name));
        (name.clone(), freed.fold(*amount, i64::saturating_sub))
    });
    left.filter(|(_, amount)| *amount > 0).collect()
}

/// Chooses the pods that come nearest to the missing amounts, one after the other, until none is missing. The error is what
/// is missing if all of them are not enough.
fn nearest(mut pods: Vec<&Pod>, mut needs: Needs) -> Result<Vec<&Pod>, Needs> {
    let mut chosen = Vec::new();
    while !needs.is_empty() {
        let mut best: Option<(f64, usize)> = None;
        for (i, pod) in pods.iter().enumerate() {
            let far = distance(&needs, pod);
            let is_better = best.is_none_or(|(least, at)| {
                far < least || (far <= least && pods.get(at).is_some_and(|other| is_smaller(pod, other)))
            });
            if is_better {
                best = Some((far, i));
            }
        }
        let Some((_, at)) = best else {
            return Err(needs);
        };
        let pod = pods.swap_remove(at);
        needs = subtract(&needs, &[pod]);
        chosen.push(pod);
    }
    Ok(chosen)
}

/// How far a pod is from releasing all missing amounts: each resource has the same weight, whatever its unit.
#[allow(clippy::cast_precision_loss, reason = "only compared")]
fn distance(needs: &Needs, pod: &Pod) -> f64 {
    let parts = needs.iter().map(|(name, amount)| {
        let left = amount.saturating_sub(request(pod, name)).max(0);
        (left as f64 / *amount as f64).powi(2)
    });
    parts.sum()
}

/// Whether one requests no more than the other: memory first, then CPU.
fn is_smaller(one: &Pod, other: &Pod) -> bool {
    let asks = |pod: &Pod| ["memory", "cpu"].map(|name| request(pod, name));
    asks(one) <= asks(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, priority: i32, requests: Value, limits: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"nodeName": "n1", "priority": priority, "containers": [
                {"name": "c", "resources": {"requests": requests, "limits": limits}}]},
        }))
        .unwrap()
    }

    fn node() -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n1"},
            "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "5"}},
        }))
        .unwrap()
    }

    #[test]
    fn t8_a_critical_pod_preempts_as_few_and_as_unimportant_pods_as_possible() {
        let cpu = |amount: &str| json!({"cpu": amount});
        let burstable = |name: &str, amount: &str| pod(name, 0, cpu(amount), json!({}));
        let full = |name: &str, amount: &str| {
            let all = json!({"cpu": amount, "memory": "64Mi"});
            pod(name, 0, all.clone(), all)
        };
        let nothing = |name: &str| pod(name, 0, json!({}), json!({}));
        let critical = |amount: &str| pod("critical", admission::CRITICAL_PRIORITY, cpu(amount), json!({}));
        for (request, others, want) in [
            ("200m", vec![burstable("a", "300m")], Ok(vec![])),
            // The pod that comes nearest, of equals the smaller.
            (
                "200m",
                vec![
                    burstable("a", "500m"),
                    burstable("b", "300m"),
                    burstable("c", "100m"),
                ],
                Ok(vec!["c"]),
            ),
            (
                "500m",
                vec![
                    burstable("a", "500m"),
                    burstable("b", "300m"),
                    burstable("c", "100m"),
                ],
                Ok(vec!["a"]),
            ),
            // A Guaranteed pod is evicted only if the others are not enough.
            (
                "300m",
                vec![full("f", "500m"), burstable("b", "500m")],
                Ok(vec!["b"]),
            ),
            (
                "800m",
                vec![full("f", "500m"), burstable("b", "500m")],
                Ok(vec!["b", "f"]),
            ),
            // A BestEffort pod releases the resource `pods`.
            (
                "100m",
                vec![
                    full("f", "100m"),
                    nothing("n"),
                    burstable("b", "100m"),
                    nothing("m"),
                    nothing("o"),
                ],
                Ok(vec!["o"]),
            ),
            (
                "2",
                vec![burstable("b", "500m")],
                Err("no set of running pods found to reclaim resources: [(res: cpu, q: 1000), ]"),
            ),
            // Critical pods stay.
            (
                "500m",
                vec![pod("s", admission::CRITICAL_PRIORITY, cpu("800m"), json!({}))],
                Err("no set of running pods found to reclaim resources: [(res: cpu, q: 300), ]"),
            ),
        ] {
            let others: Vec<&Pod> = others.iter().collect();
            let got = admit_with_preemption(&critical(request), &node(), &others);
            let names = |pods: Vec<&Pod>| -> Vec<String> {
                pods.iter().filter_map(|p| p.metadata.name.clone()).collect()
            };
            match (got.map(names), want) {
                (Ok(got), Ok(want)) => assert_eq!(got, want, "{request}"),
                (Err(got), Err(want)) => {
                    assert_eq!(got.reason, "UnexpectedAdmissionError");
                    assert!(got.message.ends_with(want), "{}", got.message);
                }
                (got, want) => panic!("{request}: {got:?}, wanted {want:?}"),
            }
        }
    }

    #[test]
    fn t8_no_pod_is_evicted_for_one_that_is_not_critical_or_does_not_match_the_node() {
        let other = pod("a", 0, json!({"cpu": "1"}), json!({}));
        let ordinary = pod("p", 1000, json!({"cpu": "500m"}), json!({}));
        let rejection = admit_with_preemption(&ordinary, &node(), &[&other]);
        assert_eq!(rejection.unwrap_err().reason, "OutOfcpu");
        let mut elsewhere = pod(
            "p",
            admission::CRITICAL_PRIORITY,
            json!({"cpu": "500m"}),
            json!({}),
        );
        elsewhere.spec.as_mut().unwrap().node_selector = Some([("disk".into(), "ssd".into())].into());
        let rejection = admit_with_preemption(&elsewhere, &node(), &[&other]);
        assert_eq!(rejection.unwrap_err().reason, "NodeAffinity");
    }

    #[test]
    fn t8_the_nearest_is_chosen_whatever_the_order_and_each_resource_counts_alike() {
        let requests = |name: &str, cpu: &str, memory: &str| {
            pod(name, 0, json!({"cpu": cpu, "memory": memory}), json!({}))
        };
        let first = |pods: &[&Pod], needs: &[(&str, i64)]| {
            let needs = needs
                .iter()
                .map(|(name, amount)| (name.to_string(), *amount))
                .collect();
            let chosen = nearest(pods.to_vec(), needs).unwrap();
            chosen[0].metadata.name.clone().unwrap()
        };
        let (small, middle, large) = (
            requests("small", "100m", "0"),
            requests("middle", "300m", "0"),
            requests("large", "500m", "0"),
        );
        for (pods, need, chosen) in [
            ([&small, &middle, &large], 100, "small"),
            ([&large, &middle, &small], 100, "small"),
            ([&middle, &large, &small], 100, "small"),
            ([&small, &middle, &large], 400, "large"),
            ([&large, &middle, &small], 400, "large"),
        ] {
            assert_eq!(first(&pods, &[("cpu", need)]), chosen, "{need}");
        }
        // All of one resource is nearer than three quarters of the other, half of both is nearer still.
        let (cpu, memory) = (requests("cpu", "400m", "0"), requests("memory", "0", "384"));
        let (bit, half) = (requests("bit", "0", "128"), requests("half", "200m", "256"));
        let needs = [("cpu", 400), ("memory", 512)];
        assert_eq!(first(&[&memory, &cpu, &bit], &needs), "cpu");
        assert_eq!(first(&[&cpu, &memory, &half], &needs), "half");
    }

    #[test]
    fn t8_a_preempted_pod_has_its_own_grace_period_and_a_disruption_target() {
        let eviction = eviction();
        assert_eq!(
            (eviction.reason.as_str(), eviction.grace_seconds),
            ("Preempting", None)
        );
        assert!(eviction.disruption.is_some() && !eviction.message.is_empty());
    }
}
