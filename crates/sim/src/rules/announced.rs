//! S1, S5, S6 (docs/safety.md, "Who may remove a pod from the API", rule 2): a kubelet of this version writes to an
//! at-most-one pod before it starts a process of it, so that PodGC, if it has read the pod before, cannot release it
//! any more.

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_kubelet::self_fencing::SelfFencing;

use crate::finding::Finding;
use crate::world::{Holder, Observation, World};

/// The orders of a kubelet that has died are carried out within this time, even if another one has started.
const CARRIED_OUT_WITHIN: SignedDuration = SignedDuration::from_secs(10);

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::Started(process) = seen else {
        return Ok(());
    };
    let Some(life) = world.pods.get(&process.uid) else {
        return Ok(());
    };
    let Some(kubelet) = world
        .kubelets
        .get(&process.node)
        .filter(|kubelet| !kubelet.is_former)
    else {
        return Ok(());
    };
    let of_pod = |holder: &Holder| holder.uid == process.uid;
    let is_exclusive = world.disks.values().any(|disk| disk.open.keys().any(of_pod));
    if !SelfFencing::AtMostOne.applies_to(&life.pod, is_exclusive)
        || world.now.duration_since(kubelet.began) < CARRIED_OUT_WITHIN
    {
        return Ok(());
    }
    let announced = life.announced.as_ref().filter(|(node, _)| *node == process.node);
    match announced {
        Some((_, at)) if *at >= kubelet.began => Ok(()),
        _ => Err(Finding(format!(
            "container {} of {} is started on {}, whose kubelet has not written that it starts the pod",
            process.container, process.name, process.node
        ))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::world::{Kubelet, Life, Process};

    #[test]
    fn s1_s5_a_start_that_its_kubelet_has_not_announced_is_seen() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let ago = |seconds: i64| now - SignedDuration::from_secs(seconds);
        let process = Process::example("c");
        for (at_most_one, announced, began, is_former, expect) in [
            (true, Some(("n1", 60)), 100, false, false),
            (true, None, 100, false, true),
            (true, Some(("n2", 60)), 100, false, true),
            // By the previous kubelet, whose order may be carried out only now.
            (true, Some(("n1", 200)), 100, false, true),
            (true, Some(("n1", 200)), 5, false, false),
            (true, None, 100, true, false),
            (false, None, 100, false, false),
        ] {
            let annotations = json!({"knarr.io/at-most-one": at_most_one.to_string()});
            let pod = json!({"metadata": {"name": "a", "uid": "u", "annotations": annotations}});
            let life = Life {
                announced: announced.map(|(node, seconds)| (node.to_string(), ago(seconds))),
                ..Life::new(Arc::new(serde_json::from_value(pod).unwrap()), now)
            };
            let mut world = World {
                now,
                ..World::default()
            };
            world.pods.insert("u".into(), life);
            let began = ago(began);
            world.kubelets.insert("n1".into(), Kubelet { began, is_former });
            let found = check(&Observation::Started(&process), &world).is_err();
            assert_eq!(found, expect, "{at_most_one} {announced:?} {began} {is_former}");
        }
    }
}
