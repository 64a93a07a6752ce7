//! Which pods stay, before any simulation.
//!
//! No policy moves: pods without a controller, of DaemonSets, mirror and static pods, terminating pods, pods on nodes that
//! are not Ready, of other schedulers, with resource claims, and pods that opted out. Pods that must never run twice
//! (SPEC S1) need consent; the same consent lifts the policy's own protections, as the descheduler's annotation does.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use knarr_api::kinds::pod::at_most_one;
use knarr_api::well_known::{CONFIG_SOURCE, MIRROR_ANNOTATION};
use knarr_api::{Shared, k8s_openapi};
use knarr_scheduler::plugins::dynamic_resources;
use knarr_scheduler::volumes::class_of_claim;

use crate::annotations::{PREFER_NO_EVICTION, has, opt_in};
use crate::policy::{PriorityThreshold, ProtectedClaims, Protections};
use crate::reason::Reason;
use crate::snapshot::{Snapshot, Workload, claims, owner_kinds};

/// From this priority on a pod is critical for the system (`SystemCriticalPriority`).
const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// See the module.
pub(crate) struct Protector<'a> {
    snapshot: &'a Snapshot,
    /// Pods of each workload, finished ones excepted.
    replicas: BTreeMap<Workload, usize>,
    needs_replicas: bool,
}

impl<'a> Protector<'a> {
    pub fn new(snapshot: &'a Snapshot, profiles: &[crate::policy::Profile]) -> Self {
        let needs_replicas = profiles.iter().any(|p| p.protections.min_replicas > 1);
        let mut replicas: BTreeMap<Workload, usize> = BTreeMap::new();
        if needs_replicas {
            for (_, node) in snapshot.cluster.iter() {
                for pod in node.pods() {
                    if let Some(workload) = snapshot.workload(&pod.pod) {
                        *replicas.entry(workload).or_default() += 1;
                    }
                }
            }
        }
        Protector {
            snapshot,
            replicas,
            needs_replicas,
        }
    }

    /// Why no policy moves the pod; `None`: its policy's protections decide.
    pub fn never(&self, pod: &Shared<Pod>) -> Option<Reason> {
        let annotations = pod.metadata.annotations.as_ref();
        if has(annotations, MIRROR_ANNOTATION) {
            return Some(Reason::MirrorPod);
        }
        let source = annotations.and_then(|a| a.get(CONFIG_SOURCE));
        if source.is_some_and(|source| source != "api") {
            return Some(Reason::StaticPod);
        }
        if owner_kinds(pod).any(|kind| kind == "DaemonSet") {
            return Some(Reason::DaemonSetPod);
        }
        if owner_kinds(pod).any(|kind| kind == "Node") {
            return Some(Reason::StaticPod);
        }
        if self.snapshot.workload(pod).is_none() {
            return Some(Reason::NoController);
        }
        if pod.metadata.deletion_timestamp.is_some() {
            return Some(Reason::Terminating);
        }
        if self.opted(pod) == Some(false) {
            return Some(Reason::OptedOut);
        }
        if self.opted(pod) != Some(true) && self.runs_at_most_once(pod) {
            return Some(Reason::AtMostOne);
        }
        None
    }

    /// Why the scheduler cannot be simulated for the pod.
    pub fn not_simulated(&self, pod: &Pod) -> Option<Reason> {
        if !dynamic_resources::entries(pod).is_empty() {
            return Some(Reason::ResourceClaims);
        }
        if self.snapshot.profile_of(pod).is_none() {
            let name = pod.spec.as_ref().and_then(|s| s.scheduler_name.clone());
            return Some(Reason::OtherScheduler {
                scheduler_name: name.unwrap_or_default(),
            });
        }
        None
    }

    fn opted(&self, pod: &Shared<Pod>) -> Option<bool> {
        let own = opt_in(pod.metadata.annotations.as_ref());
        own.or_else(|| self.snapshot.namespace_opt_in(pod.object().namespace()))
    }

    /// By annotation, by its StatefulSet, or because a claim of it is for one node only.
    fn runs_at_most_once(&self, pod: &Shared<Pod>) -> bool {
        at_most_one(pod).unwrap_or_else(|| {
            let of_one_node = |claim: Option<&Shared<PersistentVolumeClaim>>| {
                let modes = claim.and_then(|c| c.spec.as_ref()?.access_modes.as_ref());
                let mut modes = modes.into_iter().flatten();
                modes.all(|mode| mode.starts_with("ReadWriteOnce"))
            };
            let volumes = self.snapshot.cluster.volumes();
            let namespace = pod.object().namespace();
            let mut names = claims(pod).into_iter();
            names.any(|name| of_one_node(volumes.claim(namespace, &name)))
        })
    }

    /// Why the profile does not move the pod.
    pub fn protected(&self, pod: &Shared<Pod>, by: &Protections, has_budget: bool) -> Option<Reason> {
        let namespace = pod.object().namespace();
        let labels = pod.metadata.labels.as_ref();
        if by.label_selector.as_ref().is_some_and(|s| !s.matches(labels)) {
            return Some(Reason::NotSelected);
        }
        if let Some(selector) = &by.namespace_selector
            && !selector.matches(self.snapshot.cluster.namespace_labels(namespace))
        {
            return Some(Reason::NotSelected);
        }
        // As in the descheduler, consent lifts all that follows.
        if self.opted(pod) == Some(true) {
            return None;
        }
        if by.preference_is_mandatory && prefers_no_eviction(pod) {
            return Some(Reason::PreferNoEviction);
        }
        if let Some(reason) = self.important(pod, by) {
            return Some(reason);
        }
        let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_ref());
        let is_local =
            |v: &k8s_openapi::api::core::v1::Volume| v.host_path.is_some() || v.empty_dir.is_some();
        if by.local_storage && volumes.into_iter().flatten().any(is_local) {
            return Some(Reason::LocalStorage);
        }
        if let Some(protected) = &by.persistent_volume_claims
            && claims(pod)
                .iter()
                .any(|name| self.is_protected(namespace, name, protected))
        {
            return Some(Reason::PersistentVolumeClaim);
        }
        if by.without_disruption_budget && !has_budget {
            return Some(Reason::NoDisruptionBudget);
        }
        if self.needs_replicas && by.min_replicas > 1 {
            let workload = self.snapshot.workload(pod);
            let replicas = workload.and_then(|w| self.replicas.get(&w)).copied().unwrap_or(0);
            if replicas < by.min_replicas {
                return Some(Reason::MinReplicas {
                    replicas,
                    min: by.min_replicas,
                });
            }
        }
        if let Some(min) = by.min_pod_age {
            let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref());
            let is_older = |at: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time| {
                self.snapshot.now.duration_since(at.0) >= min
            };
            if !started.is_some_and(is_older) {
                return Some(Reason::MinPodAge);
            }
        }
        None
    }

    fn important(&self, pod: &Pod, by: &Protections) -> Option<Reason> {
        let priority = pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
        if by.system_critical && priority >= SYSTEM_CRITICAL_PRIORITY {
            return Some(Reason::SystemCritical);
        }
        let threshold = match by.priority_threshold.as_ref()? {
            PriorityThreshold::Value(value) => *value,
            PriorityThreshold::Class(name) => match self.snapshot.priority_classes.get(name) {
                Some(value) => *value,
                None => return Some(Reason::UnknownPriorityClass { name: name.clone() }),
            },
        };
        (priority >= threshold).then_some(Reason::PriorityThreshold { priority, threshold })
    }

    fn is_protected(&self, namespace: &str, name: &str, protected: &ProtectedClaims) -> bool {
        match protected {
            ProtectedClaims::All => true,
            ProtectedClaims::StorageClasses(classes) => {
                // A claim that does not exist may be of any class.
                let claim = self.snapshot.cluster.volumes().claim(namespace, name);
                claim.is_none_or(|claim| classes.contains(class_of_claim(claim)))
            }
        }
    }
}

pub(crate) fn prefers_no_eviction(pod: &Pod) -> bool {
    has(pod.metadata.annotations.as_ref(), PREFER_NO_EVICTION)
}
