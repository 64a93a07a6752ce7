//! Tolerations that run: a pod may stay on a node with a NoExecute taint for tolerationSeconds, and is evicted then. A cluster in which
//! one runs is not at rest, whatever its state.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_active;
use knarr_api::kinds::toleration::tolerates;

use crate::world::World;

/// From an eviction until its pod has terminated (30 s of grace at most) and another one runs in its place; the clock that the taint's time
/// is of may be six seconds off.
const REPLACED_WITHIN: Duration = Duration::from_secs(2 * 60);

/// How long it takes until the last pod whose toleration runs is evicted and replaced; `None`: no toleration runs.
pub(super) fn ends_within(world: &World) -> Option<Duration> {
    let left = last_eviction(world)?.duration_since(world.now);
    Some(Duration::try_from(left).unwrap_or_default() + REPLACED_WITHIN)
}

/// When the last of the pods that are on tainted nodes is evicted, unless the taints are removed before.
fn last_eviction(world: &World) -> Option<Timestamp> {
    let tainted: BTreeMap<&str, Vec<&Taint>> = world
        .nodes
        .iter()
        .map(|(name, node)| (name.as_str(), no_execute(node).collect::<Vec<_>>()))
        .filter(|(_, taints)| !taints.is_empty())
        .collect();
    if tainted.is_empty() {
        return None;
    }
    let pods = world.pods.values();
    pods.filter(|life| !life.removed() && is_active(&life.pod))
        .filter_map(|life| evicted_at(&life.pod, tainted.get(life.node())?))
        .max()
}

fn no_execute(node: &Node) -> impl Iterator<Item = &Taint> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.filter(|taint| taint.effect == "NoExecute")
}

/// When the pod is evicted; `None`: it tolerates the taints for ever.
fn evicted_at(pod: &Pod, taints: &[&Taint]) -> Option<Timestamp> {
    taints
        .iter()
        .filter_map(|taint| tolerated_until(pod, taint))
        .min()
}

fn tolerated_until(pod: &Pod, taint: &Taint) -> Option<Timestamp> {
    let tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    let matching: Vec<Option<i64>> = tolerations
        .filter(|toleration| tolerates(toleration, taint))
        .map(|toleration| toleration.toleration_seconds)
        .collect();
    let seconds = match matching.is_empty() {
        true => 0,
        false => matching.into_iter().flatten().min()?,
    };
    let since = taint.time_added.as_ref()?.0;
    since.checked_add(SignedDuration::from_secs(seconds.max(0))).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::world::Life;

    const NOT_READY: &str = "node.kubernetes.io/not-ready";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A taint of n1 since this second.
    fn taint(effect: &str, added: i64) -> Value {
        json!([{"key": NOT_READY, "effect": effect, "timeAdded": at(added)}])
    }

    /// A pod on this node that tolerates the taint for so long.
    fn pod(node: &str, seconds: Option<i64>) -> Value {
        let mut toleration = json!({"key": NOT_READY, "operator": "Exists", "effect": "NoExecute"});
        if let Some(seconds) = seconds {
            toleration["tolerationSeconds"] = seconds.into();
        }
        json!({
            "metadata": {"namespace": "default", "name": "p"},
            "spec": {"nodeName": node, "containers": [], "tolerations": [toleration]},
            "status": {"phase": "Running"},
        })
    }

    fn world(taints: &Value, pods: &[Value]) -> World {
        let mut world = World {
            now: at(1000),
            ..World::default()
        };
        for (name, taints) in [("n1", taints), ("n2", &json!([]))] {
            let node = json!({"metadata": {"name": name}, "spec": {"taints": taints}});
            world
                .nodes
                .insert(name.into(), serde_json::from_value(node).unwrap());
        }
        for (number, pod) in pods.iter().enumerate() {
            let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
            let life = Life::new(Arc::new(pod), at(0));
            world.pods.insert(format!("u{number}"), life);
        }
        world
    }

    /// Seed 1112000095: a toleration of five minutes began later than a minute after the desired state had been reached.
    #[test]
    fn s9_a_cluster_in_which_a_toleration_runs_is_not_at_rest() {
        let changed = |change: fn(&mut Value)| {
            let mut pod = pod("n1", Some(300));
            change(&mut pod);
            pod
        };
        let terminating = changed(|pod| {
            pod["metadata"]["deletionTimestamp"] = json!(at(990));
        });
        let done = changed(|pod| pod["status"]["phase"] = json!("Succeeded"));
        let intolerant = changed(|pod| pod["spec"]["tolerations"] = json!([]));
        let lost = taint("NoExecute", 900);
        // n1's taints, the pods -> seconds until the last one is evicted
        for (taints, pods, left) in [
            (&json!([]), vec![pod("n1", Some(300))], None),
            (&lost, vec![], None),
            (&lost, vec![pod("n1", Some(300))], Some(200)),
            (&lost, vec![pod("n1", Some(150)), pod("n1", Some(300))], Some(200)),
            (&lost, vec![pod("n1", Some(300)), pod("n2", Some(900))], Some(200)),
            (&lost, vec![pod("n1", None)], None),
            (&lost, vec![pod("n1", Some(20))], Some(0)),
            (&lost, vec![terminating], None),
            (&lost, vec![done], None),
            (&lost, vec![intolerant], Some(0)),
            (&taint("NoExecute", 1000), vec![pod("n1", Some(300))], Some(300)),
            (&taint("NoSchedule", 900), vec![pod("n1", Some(300))], None),
        ] {
            let expected = left.map(|seconds| Duration::from_secs(seconds) + REPLACED_WITHIN);
            assert_eq!(ends_within(&world(taints, &pods)), expected, "{taints} {pods:?}");
        }
        let mut removed = world(&lost, &[pod("n1", Some(300))]);
        for life in removed.pods.values_mut() {
            life.removed_at = Some(at(950));
        }
        assert_eq!(ends_within(&removed), None);
    }
}
