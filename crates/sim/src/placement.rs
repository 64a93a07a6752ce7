//! The namespace in which users use what knarr adds to placement (SPEC B3, B5, B6), and what the store says about it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::kinds::pod::surge_first::EVICTION_REQUESTED;
use knarr_api::kinds::pod::{condition, is_ready};
use knarr_api::{k8s_openapi, registry};
use knarr_client::{Api, ListOptions};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Notify;

pub(crate) const NAMESPACE: &str = "placed";
/// The node label of the zones.
pub(crate) const ZONE: &str = "topology.kubernetes.io/zone";
/// The zones, and which nodes they have: two nodes of three are in one zone, so that pods of one zone are not those of one node.
const ZONES: [&str; 6] = ["z1", "z1", "z2", "z3", "z2", "z3"];
/// The Deployment that is spread over the zones.
pub(crate) const SPREAD: &str = "spread";
/// The Deployment whose pods exclude [`LANDLORD`] from a zone.
pub(crate) const TENANT: &str = "tenant";
/// The Deployment of one pod that preempts pods of other nodes.
pub(crate) const LANDLORD: &str = "landlord";
/// The Deployment of one pod whose budget allows no disruption.
pub(crate) const GUARDED: &str = "guarded";
/// The Deployment of one pod that would fit only in its place.
pub(crate) const WAITING: &str = "waiting";
/// The PriorityClass whose preemptions respect budgets.
pub(crate) const HARD: &str = "placed-hard";

const SETS: &str = "apps/replicasets/placed/";
const POLICIES: &str = "placement.knarr.io/rebalancepolicies/placed/";
/// A request of the rebalancer that is not answered is committed within this time, or not counted: its record may have been dropped.
pub(crate) const MOVED_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// What follows a pod's eviction is written within this time: its replacement starts, and it terminates for its grace period.
const REPLACED_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// By then all caches have what was written, if nothing is faulty.
pub(crate) const KNOWN_AFTER: SignedDuration = SignedDuration::from_secs(20);

/// The zone of the node of this number, from 1.
pub(crate) fn zone_of(number: usize) -> &'static str {
    let at = number.saturating_sub(1) % ZONES.len();
    ZONES.get(at).copied().unwrap_or_default()
}

/// The zones of so many nodes.
pub(crate) fn zones_of(nodes: usize) -> BTreeSet<&'static str> {
    (1..=nodes).map(zone_of).collect()
}

/// A ReplicaSet, as far as rules need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub count: usize,
    /// Since when it has been that.
    pub since: Timestamp,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placement {
    /// Scaling down [`SPREAD`] deletes from the fullest zone.
    pub scales_down_by_spread: bool,
    /// The zones that are declared and never lost, and since when.
    pub declared: Option<(BTreeSet<String>, Timestamp)>,
    /// How many moves of a workload the policy allows within an hour, if the clocks of the controllers are never set.
    pub moves_per_hour: Option<usize>,
    /// By UID.
    pub sets: BTreeMap<String, Replicas>,
    /// When the API recorded first that a pod's eviction was requested, by the pod's UID.
    pub recorded: BTreeMap<String, Timestamp>,
    /// When a pod was last Ready, by its UID.
    pub ready: BTreeMap<String, Timestamp>,
    /// When the rebalancer requested an eviction that was not rejected, by the pod's UID.
    pub requested: BTreeMap<String, Timestamp>,
    /// When it last requested one.
    pub last_requested: Option<Timestamp>,
    /// When its evictions were committed.
    pub moves: Vec<Timestamp>,
    /// A workload was held back, or a budget was exhausted, since the policy had last nothing to do: moves may follow when its hour is over.
    pub is_held: bool,
    /// The policy's last status says that it has nothing to do.
    pub has_nothing_to_move: bool,
    /// When a pod of the namespace was last written, except for deletions that controllers requested.
    pub changed: Timestamp,
    /// When a zone last lost a pod.
    pub lessened: Timestamp,
    /// Since when a [`LANDLORD`] has been nominated to its present node, by its UID; also after it was bound or removed.
    pub nominated: BTreeMap<String, Timestamp>,
    /// A [`LANDLORD`] was nominated.
    pub nomination: Arc<Notify>,
    /// The UIDs of those whose preemption a fault has interrupted.
    pub interrupted: BTreeSet<String>,
}

/// Whether it belongs to this Deployment.
pub(crate) fn is_of(pod: &Pod, app: &str) -> bool {
    let meta = &pod.metadata;
    meta.namespace.as_deref() == Some(NAMESPACE)
        && meta
            .labels
            .as_ref()
            .and_then(|labels| labels.get("app"))
            .is_some_and(|of| of == app)
}

/// The node that the pod is nominated to, or an empty name.
pub(crate) fn nominated_node(pod: &Pod) -> &str {
    let node = pod.status.as_ref().and_then(|s| s.nominated_node_name.as_deref());
    node.unwrap_or_default()
}

/// Whether the API has recorded that its eviction was requested.
pub(crate) fn is_recorded(pod: &Pod) -> bool {
    condition(pod, EVICTION_REQUESTED).is_some_and(|c| c.status == "True")
}

#[derive(Deserialize)]
struct StoredSet {
    metadata: StoredMeta,
    spec: StoredSpec,
}

#[derive(Deserialize)]
struct StoredMeta {
    uid: String,
}

#[derive(Deserialize)]
struct StoredSpec {
    #[serde(default)]
    replicas: usize,
}

/// Whether a policy's status says that it does less than it would.
fn is_held(policy: &Value) -> bool {
    let status = &policy["status"];
    let held = status["heldWorkloads"]
        .as_array()
        .is_some_and(|held| !held.is_empty());
    let reason = |condition: &Value| {
        matches!(
            condition["reason"].as_str(),
            Some("BudgetExhausted" | "RepeatedMoves" | "Degraded" | "ReplacementNotReady")
        )
    };
    held || status["conditions"]
        .as_array()
        .is_some_and(|all| all.iter().any(reason))
}

/// Whether a policy's status says that there is nothing to be moved, budgets or not.
fn has_nothing_to_do(policy: &Value) -> bool {
    let conditions = policy["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Progressing" && condition["reason"] == "NothingToDo")
}

impl Placement {
    /// Whether a pod is being moved. Whether it may be, at rest, is for B3.
    pub fn is_moving(&self, now: Timestamp) -> bool {
        let requested = self.last_requested;
        requested.is_some_and(|at| now.duration_since(at) <= REPLACED_WITHIN)
    }

    /// Applies the write of one key that is not a pod.
    pub fn take_in(&mut self, path: &str, value: Option<&[u8]>, now: Timestamp) {
        let Some(value) = value else { return };
        if path.starts_with(SETS) {
            let Ok(set) = serde_json::from_slice::<StoredSet>(value) else {
                return;
            };
            let count = set.spec.replicas;
            let before = self.sets.get(&set.metadata.uid);
            if before.is_none_or(|before| before.count != count) {
                self.sets.insert(set.metadata.uid, Replicas { count, since: now });
            }
        } else if path.starts_with(POLICIES) {
            // Anything else there is no policy, and breaks no promise.
            let Ok(policy) = serde_json::from_slice::<Value>(value) else {
                return;
            };
            self.has_nothing_to_move = has_nothing_to_do(&policy);
            if is_held(&policy) {
                self.is_held = true;
            } else if self.has_nothing_to_move {
                // What is planned from the same state later has no moves, either: it was not for a budget that it has none.
                self.is_held = false;
            }
        }
    }

    /// Applies the write of a pod.
    pub fn pod_written(&mut self, before: Option<&Pod>, after: &Pod, is_requested: bool, now: Timestamp) {
        if after.metadata.namespace.as_deref() != Some(NAMESPACE) {
            return;
        }
        let uid = after.metadata.uid.clone().unwrap_or_default();
        let is_deleted = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        if !is_requested {
            self.changed = now;
        }
        if is_ready(after) || before.is_some_and(is_ready) {
            self.ready.insert(uid.clone(), now);
        }
        if is_recorded(after) {
            self.recorded.entry(uid.clone()).or_insert(now);
        }
        if is_of(after, LANDLORD)
            && !nominated_node(after).is_empty()
            && before.map(nominated_node) != Some(nominated_node(after))
        {
            self.nominated.insert(uid.clone(), now);
            self.nomination.notify_waiters();
        }
        if is_deleted(after) && !before.is_some_and(is_deleted) {
            self.lessened = now;
            let asked = self.requested.get(&uid);
            if asked.is_some_and(|asked| now.duration_since(*asked) <= MOVED_WITHIN) {
                self.moves.push(now);
            }
        }
    }

    /// The pod was removed, whether it was deleted before or not.
    pub fn pod_removed(&mut self, last: &Pod, now: Timestamp) {
        if last.metadata.namespace.as_deref() == Some(NAMESPACE) {
            (self.changed, self.lessened) = (now, now);
        }
    }
}

/// How often the mutant moves a pod.
const MOVES_EVERY: std::time::Duration = std::time::Duration::from_secs(100);

/// For [`Mutation::MoveWithoutEnd`](crate::Mutation): a rebalancer that finds a pod to move every time. It may not list pods itself.
pub(crate) async fn move_without_end(lists: Arc<dyn Api>, rebalancer: Arc<dyn Api>) {
    loop {
        tokio::time::sleep(MOVES_EVERY).await;
        let options = ListOptions {
            namespace: NAMESPACE.into(),
            label_selector: format!("app={SPREAD}"),
            ..ListOptions::default()
        };
        let pods = lists.list(&registry::POD, options).await;
        let Some(pod) = pods.ok().and_then(|pods| pods.items.first().cloned()) else {
            continue;
        };
        let eviction = serde_json::json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"namespace": NAMESPACE, "name": pod.name()},
            "deleteOptions": {"preconditions": {"uid": pod.uid()}},
        });
        // It tries again later.
        let _ = rebalancer
            .create_subresource(&registry::POD, NAMESPACE, pod.name(), "eviction", eviction)
            .await;
    }
}
