//! The scheduler's state and its step: take the next pod, find it a node, reserve it there; or find out who would have
//! to go for it.

mod attempt;
mod changes;
mod claims;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::{ObjectKey, Shared};

use crate::cluster::Cluster;
use crate::diagnosis::Diagnosis;
use crate::evaluation::{ClassState, Scratch};
use crate::plugins::Refusal;
use crate::plugins::default_preemption::Outcome;
use crate::plugins::dynamic_resources::{self, ClaimsToBind, PodClaims};
use crate::plugins::volume_binding::VolumesToBind;
use crate::pod_info::{ClassId, Classes, PodInfo};
use crate::profile::Profile;
use crate::queue::{Backoffs, Lengths, Queue};
use crate::queueing_hints as hints;
use crate::storage::Storage;

/// Where a pod goes, or why nowhere.
#[derive(Clone, Debug)]
pub enum Decision {
    Node {
        name: String,
        /// How many nodes would have had it, of those that were looked at.
        feasible: usize,
    },
    Nowhere(Diagnosis),
}

/// What becomes of a pod's status.nominatedNodeName.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nomination {
    Keep,
    Clear,
    Set(String),
}

/// What is to be done about a pod.
#[derive(Debug)]
pub enum Step {
    /// Bind its volumes, if any are to be bound, and wait until they are ([`Scheduler::volumes_bound`]); bind it; then
    /// tell [`Scheduler::bound`] or [`Scheduler::not_bound`].
    Bind {
        pod: Shared<Pod>,
        node: String,
        volumes: Option<Arc<VolumesToBind>>,
        /// Claims of the pod: to be allocated to it and reserved for it, and to be ready, before it is bound.
        claims: Option<Arc<ClaimsToBind>>,
        waited: Waited,
    },
    /// Say that it could not be placed.
    Report {
        pod: Shared<Pod>,
        message: String,
        nomination: Nomination,
        /// The pod could not be judged: the fault is not the cluster's.
        is_error: bool,
        /// The claim is to be deallocated: where it is allocated the pod cannot run. One that was made for the pod's
        /// extended resources is to be deleted.
        deallocate: Option<Shared<ResourceClaim>>,
    },
    /// Say that it could not be placed and is nominated to the node, clear the nominations of `cleared`, make the
    /// victims go; then tell [`Scheduler::preempted`].
    Preempt {
        pod: Shared<Pod>,
        message: String,
        node: String,
        victims: Vec<Shared<Pod>>,
        /// Pods of lower priority that were to go to that node.
        cleared: Vec<Shared<Pod>>,
    },
}

/// What it took until a pod was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    pub attempts: u32,
    pub since: Timestamp,
}

/// All that the rules say about one pod, for people.
#[derive(Clone, Debug, Default)]
pub struct Explanation {
    /// The pod was refused before any node was looked at.
    pub rejection: Option<Refusal>,
    /// The nodes the pod names; `None`: it names none.
    pub named: Option<BTreeSet<String>>,
    /// For each node what stands against it.
    pub nodes: BTreeMap<String, Option<Refusal>>,
    /// For each plugin that has a say, the scores of the feasible nodes.
    pub scores: BTreeMap<&'static str, BTreeMap<String, i64>>,
    pub totals: BTreeMap<String, i64>,
    pub diagnosis: Diagnosis,
    pub preemption: Option<Outcome>,
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
/// use knarr_scheduler::{Scheduler, Step};
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
/// let Some(Step::Bind { pod, node, .. }) = scheduler.step(now) else {
///     panic!("the pod fits");
/// };
/// assert_eq!(node, "n1");
/// // The driver reports what became of the binding.
/// scheduler.bound(&pod);
/// assert!(scheduler.step(now).is_none());
/// ```
#[derive(Debug)]
pub struct Scheduler {
    profiles: Vec<Arc<Profile>>,
    cluster: Cluster,
    classes: Classes,
    live_classes: usize,
    states: BTreeMap<(usize, ClassId), Box<ClassState>>,
    surroundings_version: u64,
    scratch: Scratch,
    uses: u64,
    queue: Queue,
    /// Pods that wait for somebody to open their gates.
    gated: BTreeSet<ObjectKey>,
    /// On which node each pod counts, by uid, whether the API knows it yet or not.
    standing: BTreeMap<String, String>,
    /// Of those, the ones whose binding is under way.
    assumed: BTreeSet<String>,
    /// Volumes that are kept for pods whose binding is under way, by uid.
    reserved: BTreeMap<String, Arc<VolumesToBind>>,
    /// Allocations that are kept for pods whose binding is under way, by uid.
    reserved_claims: BTreeMap<String, Arc<ClaimsToBind>>,
    /// Where pods are nominated to, by uid.
    nominated: BTreeMap<String, String>,
    /// Pods whose victims are being told, by uid, and whether something has happened meanwhile that could help them.
    preempting: BTreeMap<String, bool>,
    /// Where the choice among equals begins.
    rotation: usize,
    /// When it was decided last.
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
            surroundings_version: 0,
            scratch: Scratch::default(),
            uses: 0,
            queue: Queue::with_backoffs(backoffs),
            gated: BTreeSet::new(),
            standing: BTreeMap::new(),
            assumed: BTreeSet::new(),
            reserved: BTreeMap::new(),
            reserved_claims: BTreeMap::new(),
            now: Timestamp::UNIX_EPOCH,
            nominated: BTreeMap::new(),
            preempting: BTreeMap::new(),
            rotation: 0,
        }
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// For what rules look at besides nodes and pods: namespaces, budgets, workloads.
    pub fn cluster_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Pods that wait for a node.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    pub fn queue_lengths(&self) -> Lengths {
        self.queue.lengths()
    }

    /// Pods with scheduling gates.
    pub fn gated(&self) -> usize {
        self.gated.len()
    }

    /// How often a waiting pod was tried.
    pub fn attempts(&self, pod: &Shared<Pod>) -> u32 {
        self.queue.attempts(&ObjectKey::of(pod.object()))
    }

    /// How many pods stand on nodes, those included whose binding is under way.
    pub fn standing(&self) -> usize {
        self.standing.len()
    }

    /// How many pods' binding is under way.
    pub fn assumed(&self) -> usize {
        self.assumed.len()
    }

    /// How many pods each plugin is against, for each profile.
    pub fn unschedulable_by(&self) -> BTreeMap<(&'static str, String), usize> {
        let mut all = BTreeMap::new();
        for (plugin, pod) in self.queue.parked().filter(|(plugin, _)| !plugin.is_empty()) {
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

    /// Whether the scheduler that the pod names is this one.
    pub fn knows_profile(&self, pod: &Pod) -> bool {
        self.profile_of(pod).is_some()
    }

    /// Whether the volumes of a pod whose binding is under way are all bound; the error: they will not be, and the pod
    /// is to be given back. `volumes` has the objects as the API gave them back when they were written.
    pub fn volumes_bound(
        &self,
        pod: &Shared<Pod>,
        node: &str,
        volumes: &VolumesToBind,
    ) -> Result<bool, String> {
        if !self.assumed.contains(pod.object().uid()) {
            return Err("pod does not exist any more".into());
        }
        let info = self.cluster.get(node).filter(|info| info.node.is_some());
        let info = info.ok_or_else(|| format!("failed to get node {node:?}: node {node:?} not found"))?;
        volumes.are_bound(self.cluster.volumes(), info)
    }

    /// Takes the next pod and says what to do with it. `None`: no pod is due.
    pub fn step(&mut self, now: Timestamp) -> Option<Step> {
        self.now = now;
        self.queue.wake_forgotten(now);
        loop {
            let pod = self.queue.pop(now)?;
            // Its victims are not told yet: it must not choose others.
            if let Some(missed) = self.preempting.get_mut(pod.uid()) {
                *missed = true;
                let by = hints::LOOK_AT_PODS.iter().copied().collect();
                self.queue.not_tried(&pod.key(), by, now);
                continue;
            }
            // Its claims are not made yet (PreEnqueue); what makes them wakes it.
            if self.waits_for_claims(&pod) {
                let by = [dynamic_resources::NAME].into_iter().collect();
                self.queue.not_tried(&pod.key(), by, now);
                continue;
            }
            return Some(self.place(pod, now));
        }
    }

    fn place(&mut self, pod: Arc<PodInfo>, now: Timestamp) -> Step {
        let profile = self.profile_of(&pod.pod).unwrap_or(0);
        let (diagnosis, candidate) = match self.attempt(profile, &pod) {
            (Decision::Node { name, .. }, _) => {
                self.move_nomination(pod.uid(), &name, now);
                self.stand(&name, &pod);
                self.assumed.insert(pod.uid().to_string());
                self.pod_came(&pod, now);
                let volumes = self.reserve_volumes(profile, &pod, &name);
                let claims = self.reserve_claims(&pod, &name);
                let key = pod.key();
                let waited = Waited {
                    attempts: self.queue.attempts(&key),
                    since: self.queue.since(&key).unwrap_or(now),
                };
                return Step::Bind {
                    waited,
                    pod: pod.pod.clone(),
                    node: name,
                    volumes,
                    claims,
                };
            }
            (Decision::Nowhere(diagnosis), candidate) => (diagnosis, candidate),
        };
        let message = diagnosis.message();
        let node = candidate.as_ref().map(|c| self.cluster.at(c.place).name.clone());
        let eligible = !diagnosis.preemption.contains("preemption: not eligible");
        let had = self.nominated.contains_key(pod.uid());
        let clears = node.is_none() && eligible && !diagnosis.is_error && had;
        // Before it is parked, for what helps others does not help the pod itself.
        match &node {
            Some(node) => self.nominate(&pod, node, now),
            None if clears => self.move_nomination(pod.uid(), "", now),
            None => {}
        }
        let claim = diagnosis.deallocate.as_ref();
        let deallocate =
            claim.and_then(|(namespace, name)| self.cluster.devices().claim(namespace, name).cloned());
        if diagnosis.is_error {
            self.queue.retry(&pod.key(), now);
        } else {
            self.queue.park(&pod.key(), diagnosis.by, now);
        }
        let (Some(candidate), Some(node)) = (candidate, node) else {
            return Step::Report {
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
        let lower = self.cluster.at(candidate.place).nominated.iter();
        let lower: Vec<Arc<PodInfo>> = lower.filter(|n| n.priority() < pod.priority()).cloned().collect();
        for pod in &lower {
            self.move_nomination(pod.uid(), "", now);
            // It may look for another place now.
            self.queue.wake_pod(&pod.key(), now);
        }
        self.preempting.insert(pod.uid().to_string(), false);
        Step::Preempt {
            message,
            node,
            victims: candidate.victims.iter().map(|v| v.pod.clone()).collect(),
            cleared: lower.iter().map(|p| p.pod.clone()).collect(),
            pod: pod.pod.clone(),
        }
    }

    /// Keeps volumes for the pod's claims that wait for it; `None`: none do.
    fn reserve_volumes(&mut self, profile: usize, pod: &PodInfo, node: &str) -> Option<Arc<VolumesToBind>> {
        pod.class.volumes.as_ref()?;
        let settings = self.profiles.get(profile)?.clone();
        let info = self.cluster.get(node)?;
        // The node took the pod just now, so it can be said what its claims are bound to there.
        let storage = Storage::new(&settings, self.cluster.volumes(), &pod.class).ok()??;
        let mut to_bind = storage.claims()?.find(self.cluster.volumes(), info).ok()?;
        if to_bind.is_empty() {
            return None;
        }
        to_bind.timeout = settings.bind_timeout;
        to_bind.reserve(self.cluster.volumes_mut(), node);
        let to_bind = Arc::new(to_bind);
        self.reserved.insert(pod.uid().to_string(), to_bind.clone());
        Some(to_bind)
    }

    fn waits_for_claims(&self, pod: &PodInfo) -> bool {
        let filters = self
            .profile_of(&pod.pod)
            .and_then(|p| self.profiles.get(p))
            .is_some_and(|p| p.filters(dynamic_resources::NAME));
        filters && dynamic_resources::claims_of(self.cluster.devices(), &pod.pod).is_err()
    }

    /// Keeps devices for the pod's claims; `None`: it has none.
    fn reserve_claims(&mut self, pod: &PodInfo, node: &str) -> Option<Arc<ClaimsToBind>> {
        // The node took the pod just now, so what its claims get there is found again.
        let claims = PodClaims::new(self.cluster.devices(), pod).ok()??;
        let info = self.cluster.get(node)?;
        let found = claims.filter(self.cluster.devices(), info, self.now).ok()?;
        let extended = claims.extended(self.cluster.devices(), info).ok()?;
        let to_bind = Arc::new(claims.reserve(self.cluster.devices_mut(), found, extended));
        self.reserved_claims
            .insert(pod.uid().to_string(), to_bind.clone());
        Some(to_bind)
    }

    fn take_back_claims(&mut self, uid: &str) {
        if let Some(kept) = self.reserved_claims.remove(uid) {
            kept.take_back(self.cluster.devices_mut());
        }
    }

    /// A claim was written on the way to a pod's binding: this is what the API gave back.
    pub fn claim_written(&mut self, claim: &Shared<ResourceClaim>) {
        self.cluster.devices_mut().set_claim(claim);
    }

    /// The claim for the extended resources of a pod was made: what was decided for it is this claim's from now on.
    /// `false`: the pod is not on its way any more.
    pub fn extended_claim_created(&mut self, pod_uid: &str, claim: &Shared<ResourceClaim>) -> bool {
        let kept = self.reserved_claims.get_mut(pod_uid);
        let Some((kept, before)) = kept.and_then(|kept| {
            let (extended, _) = kept.extended.as_ref()?;
            let before = extended.claim.metadata.uid.clone()?;
            Some((kept, before))
        }) else {
            self.cluster.devices_mut().set_claim(claim);
            return false;
        };
        if let Some((extended, _)) = &mut Arc::make_mut(kept).extended {
            extended.claim.metadata.uid = Some(claim.object().uid().to_string());
        }
        self.cluster.devices_mut().created(claim, &before);
        true
    }

    /// Whether binding need not wait for the devices of the pod's claims any more; the error: they will not be ready,
    /// and the pod is to be given back.
    pub fn claims_ready(
        &self,
        pod: &Shared<Pod>,
        claims: &ClaimsToBind,
        now: Timestamp,
    ) -> Result<bool, String> {
        if !self.assumed.contains(pod.object().uid()) {
            return Err("pod does not exist any more".into());
        }
        for (claim, _) in &claims.claims {
            let (namespace, name) = (claim.object().namespace(), claim.object().name());
            let Some(claim) = self.cluster.devices().claim(namespace, name) else {
                return Err(format!("could not find resource claim \"{namespace}/{name}\""));
            };
            if !dynamic_resources::is_ready(claim)? {
                if dynamic_resources::has_timed_out(claim, now) {
                    return Err(format!("device binding timeout: claim={name}"));
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn take_back_volumes(&mut self, uid: &str) {
        if let Some(kept) = self.reserved.remove(uid) {
            kept.take_back(self.cluster.volumes_mut());
        }
    }

    /// The victims were told to go, or one could not be (`failed`): the pod is tried again then, and if one has gone
    /// before this was told.
    pub fn preempted(&mut self, pod: &Shared<Pod>, failed: bool, now: Timestamp) {
        let Some(missed) = self.preempting.remove(pod.object().uid()) else {
            return;
        };
        if failed {
            self.move_nomination(pod.object().uid(), "", now);
        }
        if failed || missed {
            self.queue.wake_pod(&ObjectKey::of(pod.object()), now);
        }
    }

    /// The API has taken the binding.
    pub fn bound(&mut self, pod: &Shared<Pod>) {
        self.reserved.remove(pod.object().uid());
        self.reserved_claims.remove(pod.object().uid());
        let key = ObjectKey::of(pod.object());
        // Another pod may have taken its name meanwhile.
        if self
            .queue
            .get(&key)
            .is_some_and(|p| p.uid() == pod.object().uid())
        {
            self.queue.remove(&key);
        }
    }

    /// The API has refused the binding: the room is free again and the pod comes back after its back-off.
    pub fn not_bound(&mut self, pod: &Shared<Pod>, now: Timestamp) {
        let uid = pod.object().uid();
        self.take_back_volumes(uid);
        self.take_back_claims(uid);
        // If the cache has shown the pod bound (or gone) meanwhile, that stands.
        if self.assumed.remove(uid) {
            self.leave(uid);
            self.queue.retry(&ObjectKey::of(pod.object()), now);
            let info = self.classes.info(pod);
            self.pod_left(&info, now);
        }
    }

    /// When [`Scheduler::step`] may have something to do though nothing changes.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.queue.next_due()
    }
}

fn profile_for<'a>(profiles: &'a [Arc<Profile>], pod: &Pod) -> &'a Profile {
    let name = pod.spec.as_ref().and_then(|s| s.scheduler_name.as_deref());
    let found = profiles.iter().find(|p| Some(p.scheduler_name.as_str()) == name);
    // There is one at least, and pods without a name mean the first.
    found.unwrap_or(&profiles[0])
}

#[cfg(test)]
mod tests;
