//! The scheduler's state and one scheduling attempt: take the next pod, find a node for it and reserve it there, or
//! find the victims of a preemption.

mod attempt;
mod changes;
mod claims;
mod preemption;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::{ObjectKey, Shared};
use knarr_apimachinery::ids::{NodeName, PodUid};

use crate::budgets::BudgetName;
use crate::cluster::Cluster;
use crate::diagnosis::{Diagnosis, PostFilter};
use crate::evaluation::{ClassState, CycleState};
use crate::event;
use crate::plugins::UnschedulableStatus;
use crate::plugins::default_preemption::Outcome;
use crate::plugins::dynamic_resources::{self, ClaimsToBind, PodClaims};
use crate::plugins::volume_binding::VolumesToBind;
use crate::pod_info::{ClassId, Classes, PodInfo};
use crate::pre_bind::PreBindError;
use crate::profile::Profile;
use crate::queue::{Backoffs, QueueLengths, SchedulingQueue};
use crate::queueing_hints as hints;
use crate::storage::Storage;

/// The node for a pod, or why there is none.
#[derive(Clone, Debug)]
pub enum Decision {
    Node {
        name: NodeName,
        /// How many nodes were feasible, of those that were filtered.
        feasible: usize,
    },
    Unschedulable(Diagnosis),
}

/// The change of a pod's status.nominatedNodeName.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nomination {
    Keep,
    Clear,
    Set(NodeName),
}

/// The result of an attempt, which the caller carries out.
#[derive(Debug)]
pub enum Action {
    /// Bind its volumes, if there are any to bind, and wait until they are bound ([`Scheduler::volumes_bound`]); bind
    /// the pod; then call [`Scheduler::bound`] or [`Scheduler::binding_failed`].
    Bind {
        pod: Shared<Pod>,
        node: NodeName,
        volumes: Option<Arc<VolumesToBind>>,
        /// Claims of the pod: to be allocated and reserved for it, and ready, before it is bound.
        claims: Option<Arc<ClaimsToBind>>,
        queueing: QueueingStats,
    },
    /// Report that the pod is unschedulable.
    Report {
        pod: Shared<Pod>,
        message: String,
        nomination: Nomination,
        /// The attempt failed with an error, not with a verdict on the nodes.
        is_error: bool,
        /// The claim to deallocate, because the pod does not fit where it is allocated. One that was created for the
        /// pod's extended resources is deleted.
        deallocate: Option<Shared<ResourceClaim>>,
    },
    /// Report that the pod is unschedulable and nominated to the node, clear the nominations of `cleared`, evict the
    /// victims; then call [`Scheduler::preempted`].
    Preempt {
        pod: Shared<Pod>,
        message: String,
        node: NodeName,
        victims: Vec<Shared<Pod>>,
        /// Pods of lower priority that were nominated to the node.
        cleared: Vec<Shared<Pod>>,
        /// Victims may be on other nodes. The nomination is the record of the decision: it is to be written before the
        /// first eviction.
        is_cross_node: bool,
    },
}

/// How long a pod was in the queue, and how often it was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueingStats {
    pub attempts: u32,
    pub since: Timestamp,
}

/// All results of the plugins for one pod, for `knarr why`.
#[derive(Clone, Debug, Default)]
pub struct Explanation {
    /// PreFilter rejected the pod, before any node was filtered.
    pub rejection: Option<UnschedulableStatus>,
    /// The nodes that the pod's node affinity names; `None`: it names none.
    pub named: Option<BTreeSet<NodeName>>,
    /// For each node why it was rejected; `None`: it is feasible.
    pub nodes: BTreeMap<NodeName, Option<UnschedulableStatus>>,
    /// For each plugin that scores, the scores of the feasible nodes.
    pub scores: BTreeMap<&'static str, BTreeMap<NodeName, i64>>,
    pub totals: BTreeMap<NodeName, i64>,
    pub diagnosis: Diagnosis,
    pub preemption: Option<Outcome>,
    /// The hard PodDisruptionBudgets because of which nodes are no candidates of preemption.
    pub budgets_in_the_way: BTreeSet<BudgetName>,
}

/// See the module.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use knarr_api::k8s_openapi::api::core::v1::{Node, Pod};
/// use knarr_api::k8s_openapi::jiff::Timestamp;
/// use knarr_api::registry::Registered;
/// use knarr_api::{Object, Shared};
/// use knarr_scheduler::{Scheduler, Action};
/// use serde_json::{Value, json};
///
/// fn shared<T: Registered + serde::de::DeserializeOwned>(json: Value) -> Shared<T> {
///     let typed: T = serde_json::from_value(json).expect("JSON of the kind");
///     Shared::new(Arc::new(Object::from_typed(T::kind_of(), Box::new(typed)))).expect("of this kind")
/// }
///
/// let now = Timestamp::UNIX_EPOCH;
/// let mut scheduler = Scheduler::default();
/// let node: Shared<Node> = shared(json!({
///     "metadata": {"name": "n1"},
///     "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
/// }));
/// scheduler.node_changed("n1", Some(node), now);
/// let pod: Shared<Pod> = shared(json!({
///     "metadata": {"namespace": "default", "name": "web", "uid": "1"},
///     "spec": {"containers": [{"name": "c"}]},
/// }));
/// scheduler.pod_changed(None, Some(&pod), now);
///
/// let Some(Action::Bind { pod, node, .. }) = scheduler.schedule_one(now) else {
///     panic!("the pod fits");
/// };
/// assert_eq!(node, "n1");
/// // The caller reports that the binding succeeded.
/// scheduler.bound(&pod);
/// assert!(scheduler.schedule_one(now).is_none());
/// ```
#[derive(Debug)]
pub struct Scheduler {
    profiles: Vec<Arc<Profile>>,
    cluster: Cluster,
    classes: Classes,
    live_classes: usize,
    states: BTreeMap<(usize, ClassId), Box<ClassState>>,
    related_objects_version: u64,
    cycle: CycleState,
    uses: u64,
    queue: SchedulingQueue,
    /// Pods with scheduling gates.
    gated: BTreeSet<ObjectKey>,
    /// The node of each assigned pod, by UID, assumed ones included.
    assigned: BTreeMap<PodUid, NodeName>,
    /// Of those, the ones whose binding is in progress.
    assumed: BTreeSet<PodUid>,
    /// Volumes that are reserved for assumed pods, by UID.
    reserved: BTreeMap<PodUid, Arc<VolumesToBind>>,
    /// Allocations that are reserved for assumed pods, by UID.
    reserved_claims: BTreeMap<PodUid, Arc<ClaimsToBind>>,
    /// The nominated node of pods, by UID.
    nominated: BTreeMap<PodUid, NodeName>,
    /// Pods whose victims are being evicted, by UID, and whether an event that may help them has happened since.
    preempting: BTreeMap<PodUid, bool>,
    /// Unschedulable pods for which preemption would have violated hard budgets.
    held_by_budgets: BTreeSet<ObjectKey>,
    /// When the next cross-node preemption may happen.
    cross_node_until: Option<Timestamp>,
    /// Where the choice among equally good nodes begins.
    rotation: usize,
    /// The time of the last attempt.
    now: Timestamp,
}

impl Default for Scheduler {
    fn default() -> Self {
        Self::new(vec![Profile::default()], Backoffs::default())
    }
}

impl Scheduler {
    pub fn new(profiles: Vec<Profile>, backoffs: Backoffs) -> Self {
        Scheduler {
            profiles: profiles.into_iter().map(Arc::new).collect(),
            cluster: Cluster::default(),
            classes: Classes::default(),
            live_classes: 0,
            states: BTreeMap::new(),
            related_objects_version: 0,
            cycle: CycleState::default(),
            uses: 0,
            queue: SchedulingQueue::with_backoffs(backoffs),
            gated: BTreeSet::new(),
            assigned: BTreeMap::new(),
            assumed: BTreeSet::new(),
            reserved: BTreeMap::new(),
            reserved_claims: BTreeMap::new(),
            now: Timestamp::UNIX_EPOCH,
            nominated: BTreeMap::new(),
            preempting: BTreeMap::new(),
            held_by_budgets: BTreeSet::new(),
            cross_node_until: None,
            rotation: 0,
        }
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// For the related objects: namespaces, budgets, workloads.
    pub fn cluster_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Pods in the scheduling queue.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    pub fn queue_lengths(&self) -> QueueLengths {
        self.queue.lengths()
    }

    /// How many pods each event has added to each queue: by event and queue.
    pub fn incoming_pods(&self) -> &BTreeMap<(&'static str, &'static str), u64> {
        self.queue.incoming()
    }

    /// Pods with scheduling gates.
    pub fn gated(&self) -> usize {
        self.gated.len()
    }

    /// How often a pod in the queue was tried.
    pub fn attempts(&self, pod: &Shared<Pod>) -> u32 {
        self.queue.attempts(&ObjectKey::of(pod.object()))
    }

    /// How many pods are assigned to nodes, assumed ones included.
    pub fn assigned(&self) -> usize {
        self.assigned.len()
    }

    /// How many pods are assumed: their binding is in progress.
    pub fn assumed(&self) -> usize {
        self.assumed.len()
    }

    /// How many unschedulable pods each plugin has rejected, for each profile.
    pub fn unschedulable_by(&self) -> BTreeMap<(&'static str, String), usize> {
        let mut all = BTreeMap::new();
        for (plugin, pod) in self
            .queue
            .unschedulable_pods()
            .filter(|(plugin, _)| !plugin.is_empty())
        {
            let profile = &profile_for(&self.profiles, &pod.pod).scheduler_name;
            *all.entry((plugin, profile.clone())).or_default() += 1;
        }
        all
    }

    fn profile_of(&self, pod: &Pod) -> Option<usize> {
        let name = pod.spec.as_ref()?.scheduler_name.as_deref();
        let name = name.filter(|n| !n.is_empty());
        let name = name.unwrap_or(crate::profile::DEFAULT_SCHEDULER_NAME);
        self.profiles.iter().position(|p| p.scheduler_name == name)
    }

    /// The profile of the pod, else the first.
    pub(crate) fn profile(&self, pod: &Pod) -> &Profile {
        profile_for(&self.profiles, pod)
    }

    /// Whether one of the profiles has the pod's scheduler name.
    pub fn knows_profile(&self, pod: &Pod) -> bool {
        self.profile_of(pod).is_some()
    }

    /// Whether the volumes of an assumed pod are all bound; the error: they will not be, and
    /// [`Scheduler::binding_failed`] is to be called. `volumes` has the objects that the API returned when they were
    /// written.
    pub fn volumes_bound(
        &self,
        pod: &Shared<Pod>,
        node: &NodeName,
        volumes: &VolumesToBind,
    ) -> Result<bool, PreBindError> {
        if !self.assumed.contains(pod.object().uid()) {
            return Err(PreBindError::PodGone);
        }
        let info = self.cluster.get(node).filter(|info| info.node.is_some());
        let info = info.ok_or_else(|| PreBindError::NodeGone(node.clone()))?;
        volumes.are_bound(self.cluster.volumes(), info)
    }

    /// Takes the next pod and decides about it. `None`: no pod is due.
    pub fn schedule_one(&mut self, now: Timestamp) -> Option<Action> {
        self.now = now;
        self.drop_expired_evictions(now);
        self.queue.flush_unschedulable_leftover(now);
        loop {
            let pod = self.queue.pop(now)?;
            // Its victims are not evicted yet: it must not choose others. An event of a node, a volume or a device has
            // requeued it.
            if let Some(missed_event) = self.preempting.get_mut(pod.uid()) {
                *missed_event = true;
                let plugins = hints::POD_EVENT_PLUGINS.iter().copied().collect();
                self.queue.return_untried(&pod.key(), plugins, now);
                continue;
            }
            // Its claims are not created yet (PreEnqueue); their creation requeues it.
            if self.waits_for_claims(&pod) {
                let plugins = [dynamic_resources::NAME].into_iter().collect();
                self.queue.return_untried(&pod.key(), plugins, now);
                continue;
            }
            return Some(self.schedule_pod(pod, now));
        }
    }

    fn schedule_pod(&mut self, pod: Arc<PodInfo>, now: Timestamp) -> Action {
        let profile = self.profile_of(&pod.pod).unwrap_or(0);
        let (diagnosis, candidate) = match self.attempt(profile, &pod) {
            (Decision::Node { name, .. }, _) => {
                self.move_nomination(pod.uid(), Some(&name), now);
                self.assign(&name, &pod);
                self.assumed.insert(pod.uid().clone());
                self.assigned_pod_added(&pod, now);
                let volumes = self.reserve_volumes(profile, &pod, &name);
                let claims = self.reserve_claims(&pod, &name);
                let key = pod.key();
                let queueing = QueueingStats {
                    attempts: self.queue.attempts(&key),
                    since: self.queue.since(&key).unwrap_or(now),
                };
                return Action::Bind {
                    queueing,
                    pod: pod.pod.clone(),
                    node: name,
                    volumes,
                    claims,
                };
            }
            (Decision::Unschedulable(diagnosis), candidate) => (diagnosis, candidate),
        };
        let message = diagnosis.message();
        let node = candidate.as_ref().map(|c| self.cluster.at(c.index).name.clone());
        let eligible = !matches!(diagnosis.post_filter, PostFilter::NotEligible { .. });
        let had = self.nominated.contains_key(pod.uid());
        let clears = node.is_none() && eligible && !diagnosis.is_error && had;
        // Before the pod becomes unschedulable: an event that helps others does not help the pod itself.
        match &node {
            Some(node) => self.nominate(&pod, node, now),
            None if clears => self.move_nomination(pod.uid(), None, now),
            None => {}
        }
        let claim = diagnosis.deallocate.as_ref();
        let deallocate =
            claim.and_then(|(namespace, name)| self.cluster.devices().claim(namespace, name).cloned());
        if diagnosis.budgets_in_the_way {
            self.held_by_budgets.insert(pod.key());
        }
        if diagnosis.is_error || diagnosis.is_rate_limited {
            self.queue.retry(&pod.key(), now);
        } else {
            self.queue.add_unschedulable(&pod.key(), diagnosis.plugins, now);
        }
        let (Some(candidate), Some(node)) = (candidate, node) else {
            return Action::Report {
                pod: pod.pod.clone(),
                message,
                nomination: if clears {
                    Nomination::Clear
                } else {
                    Nomination::Keep
                },
                is_error: diagnosis.is_error,
                deallocate,
            };
        };
        let settings = self.profiles[profile].clone();
        self.preemption_chosen(&settings, &pod, &candidate, now);
        self.preempting.insert(pod.uid().clone(), false);
        let lower = self.cluster.at(candidate.index).nominated.iter();
        let lower: Vec<Arc<PodInfo>> = lower.filter(|n| n.priority() < pod.priority()).cloned().collect();
        for pod in &lower {
            self.move_nomination(pod.uid(), None, now);
            // It may fit another node now.
            self.queue.requeue_pod(&pod.key(), event::POD_UPDATE, now);
        }
        Action::Preempt {
            message,
            node,
            victims: candidate.victims.iter().map(|v| v.pod.clone()).collect(),
            cleared: lower.iter().map(|p| p.pod.clone()).collect(),
            is_cross_node: candidate.is_cross_node,
            pod: pod.pod.clone(),
        }
    }

    /// Reserves volumes for the pod's claims that wait for their first consumer; `None`: there are none.
    fn reserve_volumes(
        &mut self,
        profile: usize,
        pod: &PodInfo,
        node: &NodeName,
    ) -> Option<Arc<VolumesToBind>> {
        pod.class.volumes.as_ref()?;
        let settings = self.profiles.get(profile)?.clone();
        let info = self.cluster.get(node)?;
        // The node has just passed the filters, so its bindings can be found again.
        let storage = Storage::new(&settings, self.cluster.volumes(), &pod.class).ok()??;
        let mut to_bind = storage.claims()?.find(self.cluster.volumes(), info).ok()?;
        if to_bind.is_empty() {
            return None;
        }
        to_bind.timeout = settings.bind_timeout;
        to_bind.reserve(self.cluster.volumes_mut(), node);
        let to_bind = Arc::new(to_bind);
        self.reserved.insert(pod.uid().clone(), to_bind.clone());
        Some(to_bind)
    }

    fn waits_for_claims(&self, pod: &PodInfo) -> bool {
        let filters = self
            .profile_of(&pod.pod)
            .and_then(|p| self.profiles.get(p))
            .is_some_and(|p| p.filters(dynamic_resources::NAME));
        filters && dynamic_resources::claims_of(self.cluster.devices(), &pod.pod).is_err()
    }

    /// Reserves devices for the pod's claims; `None`: it has none.
    fn reserve_claims(&mut self, pod: &PodInfo, node: &NodeName) -> Option<Arc<ClaimsToBind>> {
        // The node has just passed the filters, so the allocations are found again.
        let claims = PodClaims::new(self.cluster.devices(), pod).ok()??;
        let info = self.cluster.get(node)?;
        let found = claims.filter(self.cluster.devices(), info, self.now).ok()?;
        let extended = claims.extended(self.cluster.devices(), info).ok()?;
        let to_bind = Arc::new(claims.reserve(self.cluster.devices_mut(), found, extended));
        self.reserved_claims.insert(pod.uid().clone(), to_bind.clone());
        Some(to_bind)
    }

    fn unreserve_claims(&mut self, uid: &PodUid) {
        if let Some(reserved) = self.reserved_claims.remove(uid) {
            reserved.unreserve(self.cluster.devices_mut());
        }
    }

    /// A claim was written while a pod is bound: this is the object that the API returned.
    pub fn claim_written(&mut self, claim: &Shared<ResourceClaim>) {
        self.cluster.devices_mut().set_claim(claim);
    }

    /// The claim for the extended resources of a pod was created: the assumed allocation belongs to it now. `false`:
    /// the pod is not assumed any more.
    pub fn extended_claim_created(&mut self, pod_uid: &PodUid, claim: &Shared<ResourceClaim>) -> bool {
        let reserved = self.reserved_claims.get_mut(pod_uid);
        let Some((reserved, before)) = reserved.and_then(|reserved| {
            let (extended, _) = reserved.extended.as_ref()?;
            let before = extended.claim.metadata.uid.clone()?;
            Some((reserved, before))
        }) else {
            self.cluster.devices_mut().set_claim(claim);
            return false;
        };
        if let Some((extended, _)) = &mut Arc::make_mut(reserved).extended {
            extended.claim.metadata.uid = Some(claim.object().uid().to_string());
        }
        self.cluster.devices_mut().created(claim, &before);
        true
    }

    /// Whether the devices of the pod's claims are ready for binding; the error: they will not be, and
    /// [`Scheduler::binding_failed`] is to be called.
    pub fn claims_ready(
        &self,
        pod: &Shared<Pod>,
        claims: &ClaimsToBind,
        now: Timestamp,
    ) -> Result<bool, PreBindError> {
        if !self.assumed.contains(pod.object().uid()) {
            return Err(PreBindError::PodGone);
        }
        for (claim, _) in &claims.claims {
            let (namespace, name) = (claim.object().namespace(), claim.object().name());
            let Some(claim) = self.cluster.devices().claim(namespace, name) else {
                return Err(PreBindError::ResourceClaimGone(format!("{namespace}/{name}")));
            };
            if !dynamic_resources::is_ready(claim)? {
                if dynamic_resources::has_timed_out(claim, now) {
                    return Err(PreBindError::DeviceTimeout(name.to_string()));
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn unreserve_volumes(&mut self, uid: &PodUid) {
        if let Some(reserved) = self.reserved.remove(uid) {
            reserved.unreserve(self.cluster.volumes_mut());
        }
    }

    /// The victims were evicted, or an eviction failed (`failed`). In the second case, or if an event that may help
    /// has happened since, the pod is tried again.
    pub fn preempted(&mut self, pod: &Shared<Pod>, failed: bool, now: Timestamp) {
        let Some(missed_event) = self.preempting.remove(pod.object().uid()) else {
            return;
        };
        if failed {
            self.move_nomination(&PodUid::from(pod.object().uid()), None, now);
        }
        if failed || missed_event {
            let event = if failed {
                event::FORCE_ACTIVATE
            } else {
                event::ASSIGNED_POD_DELETE
            };
            self.queue.requeue_pod(&ObjectKey::of(pod.object()), event, now);
        }
    }

    /// The API server has accepted the binding.
    pub fn bound(&mut self, pod: &Shared<Pod>) {
        self.reserved.remove(pod.object().uid());
        self.reserved_claims.remove(pod.object().uid());
        let key = ObjectKey::of(pod.object());
        // Another pod may have the same name by now.
        if self
            .queue
            .get(&key)
            .is_some_and(|p| p.uid() == pod.object().uid())
        {
            self.held_by_budgets.remove(&key);
            self.queue.remove(&key);
        }
    }

    /// The binding failed: its resources are free again and the pod is retried after its backoff.
    pub fn binding_failed(&mut self, pod: &Shared<Pod>, now: Timestamp) {
        let uid = &PodUid::from(pod.object().uid());
        self.unreserve_volumes(uid);
        self.unreserve_claims(uid);
        // If a watch has shown the pod bound (or deleted) in between, that is kept.
        if self.assumed.remove(uid) {
            self.unassign(uid);
            self.queue.retry(&ObjectKey::of(pod.object()), now);
            let info = self.classes.info(pod);
            self.assigned_pod_deleted(&info, now);
        }
    }

    /// When [`Scheduler::schedule_one`] may have a pod to try without any event.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.queue.next_due()
    }
}

fn profile_for<'a>(profiles: &'a [Arc<Profile>], pod: &Pod) -> &'a Profile {
    let name = pod.spec.as_ref().and_then(|s| s.scheduler_name.as_deref());
    let found = profiles.iter().find(|p| Some(p.scheduler_name.as_str()) == name);
    // There is at least one profile; pods without a scheduler name use the first.
    found.unwrap_or(&profiles[0])
}

#[cfg(test)]
mod tests;
