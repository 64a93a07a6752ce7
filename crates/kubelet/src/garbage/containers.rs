//! Container garbage collection: exited containers, replaced sandboxes, and directories of deleted pods. The newest sandbox
//! of a pod that is in the API stays, and so do its containers, for their logs; under disk pressure the containers of pods
//! with a terminal phase are removed, too.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::{ContainerId, PodUid, SandboxId};

use crate::runtime::{Container, ContainerState, Sandbox};

/// A younger sandbox may still be about to get its first container.
pub const SANDBOX_MIN_AGE: SignedDuration = SignedDuration::from_secs(60);

/// The pods in the API.
#[derive(Clone, Debug, Default)]
pub struct Pods {
    /// By UID: whether the phase is terminal (Succeeded or Failed).
    pub terminal: BTreeMap<PodUid, bool>,
}

/// Ids of sandboxes that have been replaced and have no containers.
pub fn dead_sandboxes(sandboxes: &[Sandbox], containers: &[Container], now: Timestamp) -> Vec<SandboxId> {
    let used: BTreeSet<&str> = containers.iter().map(|c| c.sandbox_id.as_str()).collect();
    let mut newest: BTreeMap<&str, (Timestamp, u32)> = BTreeMap::new();
    for sandbox in sandboxes {
        let age = (sandbox.created_at, sandbox.attempt);
        let known = newest.entry(&sandbox.pod.uid).or_insert(age);
        *known = (*known).max(age);
    }
    let is_removable = |s: &&Sandbox| {
        let replaced = newest
            .get(s.pod.uid.as_str())
            .is_some_and(|age| (s.created_at, s.attempt) < *age);
        let old_enough = now.duration_since(s.created_at) >= SANDBOX_MIN_AGE;
        !s.ready && replaced && old_enough && !used.contains(s.id.as_str())
    };
    sandboxes
        .iter()
        .filter(is_removable)
        .map(|s| s.id.clone())
        .collect()
}

/// Ids of exited containers of pods with a terminal phase: the pods' statuses have their terminations.
pub fn containers_of_terminal_pods(containers: &[Container], pods: &Pods) -> Vec<ContainerId> {
    let is_removable = |c: &&Container| {
        matches!(c.state, ContainerState::Exited(_)) && pods.terminal.get(&c.pod.uid) == Some(&true)
    };
    containers
        .iter()
        .filter(is_removable)
        .map(|c| c.id.clone())
        .collect()
}

/// Of directories named by pods' UIDs, those whose pod is neither in the API nor in the runtime.
pub fn orphaned<'a>(
    uids: impl IntoIterator<Item = &'a str>,
    pods: &Pods,
    sandboxes: &[Sandbox],
    containers: &[Container],
) -> Vec<&'a str> {
    let held: BTreeSet<&str> = sandboxes
        .iter()
        .map(|s| s.pod.uid.as_str())
        .chain(containers.iter().map(|c| c.pod.uid.as_str()))
        .collect();
    let is_orphan = |uid: &&str| !uid.is_empty() && !pods.terminal.contains_key(*uid) && !held.contains(uid);
    uids.into_iter().filter(is_orphan).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Exit, PodRef};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn pod(uid: &str) -> PodRef {
        PodRef {
            uid: uid.into(),
            ..PodRef::default()
        }
    }

    fn sandbox(id: &str, uid: &str, created: i64, ready: bool) -> Sandbox {
        Sandbox {
            id: id.into(),
            pod: pod(uid),
            ready,
            created_at: at(created),
            ..Sandbox::default()
        }
    }

    fn container(id: &str, uid: &str, sandbox: &str, exited: bool) -> Container {
        Container {
            id: id.into(),
            sandbox_id: sandbox.into(),
            pod: pod(uid),
            name: "c".into(),
            attempt: 0,
            hash: String::new(),
            self_fenced: None,
            state: match exited {
                true => ContainerState::Exited(Exit::default()),
                false => ContainerState::Running { started_at: at(0) },
            },
            created_at: at(0),
            image: String::new(),
            image_id: String::new(),
        }
    }

    #[test]
    fn t8_replaced_sandboxes_are_removed_when_they_are_empty_and_old_enough() {
        let sandboxes = [
            sandbox("a0", "a", 0, false),
            sandbox("a1", "a", 10, false),
            sandbox("a2", "a", 20, true),
            sandbox("b0", "b", 0, false),
            sandbox("c0", "c", 90, false),
            sandbox("c1", "c", 95, true),
        ];
        let containers = [container("x", "a", "a1", true)];
        assert_eq!(dead_sandboxes(&sandboxes, &containers, at(100)), ["a0"]);
        assert_eq!(dead_sandboxes(&sandboxes, &[], at(100)), ["a0", "a1"]);
    }

    #[test]
    fn t8_under_pressure_exited_containers_of_terminal_pods_are_removed() {
        let pods = Pods {
            terminal: BTreeMap::from([("done".into(), true), ("runs".into(), false)]),
        };
        let containers = [
            container("x", "done", "s", true),
            container("y", "done", "s", false),
            container("z", "runs", "t", true),
            container("w", "unknown", "u", true),
        ];
        assert_eq!(containers_of_terminal_pods(&containers, &pods), ["x"]);
    }

    #[test]
    fn l2_directories_are_removed_with_the_last_record_of_their_pod() {
        let pods = Pods {
            terminal: BTreeMap::from([("api".into(), false)]),
        };
        let sandboxes = [sandbox("s", "ending", 0, true)];
        let containers = [container("x", "left", "t", true)];
        let uids = ["api", "ending", "left", "gone", ""];
        assert_eq!(orphaned(uids, &pods, &sandboxes, &containers), ["gone"]);
    }
}
