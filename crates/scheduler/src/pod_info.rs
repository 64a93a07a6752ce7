//! PodInfo: a pod as the scheduler uses it. What pods of one template share is computed once ([`PodClass`]); keeping
//! results per class instead of per pod makes decisions fast and the memory small.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use k8s_openapi::api::core::v1::{
    Affinity, Container, NodeAffinity, NodeSelector, Pod, PodAffinityTerm, PodSpec, Toleration,
    WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::kinds::node_selector::required_node_affinity;
use knarr_api::kinds::pod::has_hard_budgets;
use knarr_api::{ObjectKey, Shared};
use knarr_apimachinery::ids::PodUid;
use knarr_apimachinery::labels::{Selector, SelectorError};

pub use knarr_api::kinds::pod::node_name;
pub use knarr_api::kinds::pod::topology_spread::SpreadConstraint;

use crate::pod_volumes::PodVolumes;
use crate::resources::Requests;

/// An object's labels.
pub type Labels = BTreeMap<String, String>;

/// A host port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    pub protocol: String,
    pub port: i32,
    /// `0.0.0.0` is every address.
    pub ip: String,
}

impl HostPort {
    /// Whether both cannot be used on one node.
    pub fn conflicts(&self, other: &HostPort) -> bool {
        const ANY: &str = "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || self.ip == ANY || other.ip == ANY)
    }
}

/// An optional label selector of the API: `None` matches nothing, an empty one everything.
pub type OptionalSelector = Option<Selector>;

/// Whether the selector matches the labels.
pub fn selects(selector: &OptionalSelector, labels: Option<&Labels>) -> bool {
    selector.as_ref().is_some_and(|s| s.matches(labels))
}

fn selector(of: Option<&LabelSelector>) -> Result<OptionalSelector, SelectorError> {
    of.map(Selector::from_label_selector).transpose()
}

/// One term of pod (anti-)affinity, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffinityTerm {
    pub namespaces: BTreeSet<String>,
    pub namespace_selector: OptionalSelector,
    pub selector: OptionalSelector,
    pub topology_key: String,
    /// Of a preferred term; 0 of a required one.
    pub weight: i64,
}

impl AffinityTerm {
    fn read(term: &PodAffinityTerm, weight: i32, namespace: &str) -> Result<Self, SelectorError> {
        let named = term.namespaces.iter().flatten().cloned();
        let mut namespaces: BTreeSet<String> = named.collect();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.insert(namespace.to_string());
        }
        Ok(AffinityTerm {
            namespaces,
            namespace_selector: selector(term.namespace_selector.as_ref())?,
            selector: selector(term.label_selector.as_ref())?,
            topology_key: term.topology_key.clone(),
            weight: weight.into(),
        })
    }

    /// Whether it matches a pod in this namespace (which has these labels) with these labels.
    pub fn matches(
        &self,
        namespace: &str,
        namespace_labels: Option<&Labels>,
        labels: Option<&Labels>,
    ) -> bool {
        (self.namespaces.contains(namespace) || selects(&self.namespace_selector, namespace_labels))
            && selects(&self.selector, labels)
    }
}

/// All affinity and anti-affinity terms of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AffinityTerms {
    pub required: Vec<AffinityTerm>,
    pub required_anti: Vec<AffinityTerm>,
    pub preferred: Vec<AffinityTerm>,
    pub preferred_anti: Vec<AffinityTerm>,
}

impl AffinityTerms {
    pub fn is_empty(&self) -> bool {
        self.required.is_empty()
            && self.required_anti.is_empty()
            && self.preferred.is_empty()
            && self.preferred_anti.is_empty()
    }

    fn read(affinity: Option<&Affinity>, namespace: &str) -> Result<Self, SelectorError> {
        let one = |terms: &Option<Vec<PodAffinityTerm>>| -> Result<Vec<AffinityTerm>, SelectorError> {
            let terms = terms.iter().flatten();
            terms.map(|t| AffinityTerm::read(t, 0, namespace)).collect()
        };
        let weighted = |terms: &Option<Vec<WeightedPodAffinityTerm>>| -> Result<Vec<_>, SelectorError> {
            let terms = terms.iter().flatten();
            terms
                .map(|t| AffinityTerm::read(&t.pod_affinity_term, t.weight, namespace))
                .collect()
        };
        let mut terms = AffinityTerms::default();
        if let Some(affinity) = affinity.and_then(|a| a.pod_affinity.as_ref()) {
            terms.required = one(&affinity.required_during_scheduling_ignored_during_execution)?;
            terms.preferred = weighted(&affinity.preferred_during_scheduling_ignored_during_execution)?;
        }
        if let Some(affinity) = affinity.and_then(|a| a.pod_anti_affinity.as_ref()) {
            terms.required_anti = one(&affinity.required_during_scheduling_ignored_during_execution)?;
            terms.preferred_anti = weighted(&affinity.preferred_during_scheduling_ignored_during_execution)?;
        }
        Ok(terms)
    }
}

/// Number of a class; a number is used again after the class is dropped.
pub type ClassId = u32;

/// All fields of a pod's metadata and spec that scheduling depends on, shared by the pods in which they are equal.
#[derive(Debug)]
pub struct PodClass {
    pub id: ClassId,
    /// One of its pods.
    pub example: Shared<Pod>,
    pub requests: Requests,
    pub host_ports: Vec<HostPort>,
    pub priority: i32,
    /// Preemption for its pods violates no PodDisruptionBudget (the annotation `knarr.io/preemption-budgets`).
    pub hard_budgets: bool,
    /// Its own constraints.
    pub spread: Result<Vec<SpreadConstraint>, SelectorError>,
    pub affinity: Result<AffinityTerms, SelectorError>,
    /// Images of all containers, with their tag.
    pub images: Vec<String>,
    pub image_volumes: Vec<String>,
    /// `None`: it has no volumes that a plugin reads.
    pub volumes: Option<Box<PodVolumes>>,
}

impl PodClass {
    fn new(id: ClassId, pod: Shared<Pod>) -> Self {
        let spec = pod.spec.as_ref();
        let labels = pod.metadata.labels.as_ref();
        let constraints = spec.and_then(|s| s.topology_spread_constraints.as_ref());
        let constraints = constraints.into_iter().flatten();
        let images = |containers: &[Container]| -> Vec<String> {
            let images = containers.iter().filter_map(|c| c.image.as_deref());
            images.map(with_tag).collect()
        };
        let mut all = spec
            .and_then(|s| s.init_containers.as_deref())
            .map(images)
            .unwrap_or_default();
        all.extend(spec.map(|s| images(&s.containers)).unwrap_or_default());
        let volumes = spec.and_then(|s| s.volumes.as_ref()).into_iter().flatten();
        let references = volumes.filter_map(|v| v.image.as_ref()?.reference.as_deref());
        PodClass {
            id,
            requests: Requests::of(&pod, false),
            host_ports: host_ports(&pod),
            priority: spec.and_then(|s| s.priority).unwrap_or(0),
            hard_budgets: has_hard_budgets(pod.metadata.annotations.as_ref()),
            spread: constraints.map(|c| SpreadConstraint::read(c, labels)).collect(),
            affinity: AffinityTerms::read(spec.and_then(|s| s.affinity.as_ref()), pod.object().namespace()),
            images: all,
            image_volumes: references.map(with_tag).collect(),
            volumes: Some(PodVolumes::of(&pod)).filter(|v| !v.is_empty()).map(Box::new),
            example: pod,
        }
    }

    pub fn spec(&self) -> Option<&PodSpec> {
        self.example.spec.as_ref()
    }

    pub fn namespace(&self) -> &str {
        self.example.object().namespace()
    }

    pub fn labels(&self) -> Option<&Labels> {
        self.example.metadata.labels.as_ref()
    }

    pub fn tolerations(&self) -> &[Toleration] {
        self.spec()
            .and_then(|s| s.tolerations.as_deref())
            .unwrap_or_default()
    }

    pub fn node_affinity(&self) -> Option<&NodeAffinity> {
        self.spec()?.affinity.as_ref()?.node_affinity.as_ref()
    }

    /// The required node affinity.
    pub fn required_node_affinity(&self) -> Option<&NodeSelector> {
        required_node_affinity(self.spec()?)
    }

    /// The number of containers, init containers included.
    pub fn containers(&self) -> usize {
        let spec = self.spec();
        spec.map_or(0, |s| {
            s.containers.len() + s.init_containers.as_ref().map_or(0, Vec::len)
        })
    }

    pub fn may_preempt(&self) -> bool {
        self.spec().and_then(|s| s.preemption_policy.as_deref()) != Some("Never")
    }

    pub fn has_affinity(&self) -> bool {
        self.affinity.as_ref().is_ok_and(|terms| !terms.is_empty())
    }
}

/// `nginx` is `nginx:latest`.
fn with_tag(image: &str) -> String {
    let after = |c| image.rfind(c).map_or(-1, |at| at as i64);
    if after(':') <= after('/') {
        format!("{image}:latest")
    } else {
        image.to_string()
    }
}

/// One pod of a class.
#[derive(Clone, Debug)]
pub struct PodInfo {
    pub pod: Shared<Pod>,
    uid: PodUid,
    pub class: Arc<PodClass>,
    /// Set where the kubelet's status makes its requests differ from its class'.
    requests: Option<Arc<Requests>>,
}

impl PodInfo {
    pub fn key(&self) -> ObjectKey {
        ObjectKey::of(self.pod.object())
    }

    pub fn uid(&self) -> &PodUid {
        &self.uid
    }

    pub fn priority(&self) -> i32 {
        self.class.priority
    }

    /// A pod of the same class that no kubelet has reported on yet.
    pub fn unassigned(&self) -> PodInfo {
        PodInfo {
            requests: None,
            ..self.clone()
        }
    }

    pub fn requests(&self) -> &Requests {
        self.requests.as_deref().unwrap_or(&self.class.requests)
    }

    /// Empty while it is not bound.
    pub fn node_name(&self) -> &str {
        node_name(&self.pod)
    }

    pub fn nominated_node_name(&self) -> &str {
        nominated_node_name(&self.pod)
    }

    pub fn is_terminating(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }

    /// `None`: not started yet, which counts as now.
    pub fn start_time(&self) -> Option<Timestamp> {
        let status = self.pod.status.as_ref();
        status.and_then(|s| s.start_time.as_ref()).map(|t| t.0)
    }

    /// Whether all plugins treat it the same as the earlier version of the pod: a kubelet's status updates mostly
    /// change nothing.
    pub fn is_equivalent(&self, other: &PodInfo) -> bool {
        Arc::ptr_eq(&self.class, &other.class)
            && self.requests == other.requests
            && self.is_terminating() == other.is_terminating()
            && self.start_time() == other.start_time()
    }

    /// The sort key of victims: the more important one first.
    pub fn importance(&self) -> (std::cmp::Reverse<i32>, Timestamp) {
        (
            std::cmp::Reverse(self.priority()),
            self.start_time().unwrap_or(Timestamp::MAX),
        )
    }
}

pub fn nominated_node_name(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status
        .and_then(|s| s.nominated_node_name.as_deref())
        .unwrap_or("")
}

fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|c| c.ports.iter().flatten());
    let host_port = |port: &k8s_openapi::api::core::v1::ContainerPort| {
        Some(HostPort {
            port: port.host_port.filter(|p| *p > 0)?,
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
            ip: port
                .host_ip
                .clone()
                .filter(|ip| !ip.is_empty())
                .unwrap_or_else(|| "0.0.0.0".into()),
        })
    };
    ports.filter_map(host_port).collect()
}

/// All classes that have pods.
#[derive(Debug, Default)]
pub struct Classes {
    by_key: BTreeMap<Vec<u8>, (ClassId, Weak<PodClass>)>,
    free: Vec<ClassId>,
    next: ClassId,
}

/// Dropped classes are collected when there are this many, and then at each doubling.
const FEW_CLASSES: usize = 4096;

impl Classes {
    /// The pod with its class. `known` is the earlier version of the pod: comparing with it costs less than
    /// finding a class.
    pub fn info_after(&mut self, known: Option<&PodInfo>, pod: &Shared<Pod>) -> PodInfo {
        match known.filter(|known| known.uid() == pod.object().uid() && is_same_spec(&known.pod, pod)) {
            Some(known) => with_requests(pod, known.uid.clone(), known.class.clone()),
            None => self.info(pod),
        }
    }

    /// The pod with its class.
    pub fn info(&mut self, pod: &Shared<Pod>) -> PodInfo {
        let key = class_key(pod);
        let known = self.by_key.get(&key).and_then(|(_, class)| class.upgrade());
        let class = known.unwrap_or_else(|| {
            // A dropped class that comes back has the number of its key again.
            let id = match self.by_key.get(&key) {
                Some((id, _)) => *id,
                None => self.free.pop().unwrap_or_else(|| {
                    self.next += 1;
                    self.next - 1
                }),
            };
            let class = Arc::new(PodClass::new(id, pod.clone()));
            self.by_key.insert(key, (id, Arc::downgrade(&class)));
            class
        });
        with_requests(pod, pod.object().uid().into(), class)
    }

    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Whether there have been so many classes that [`Classes::forget_dead`] is worth its cost.
    pub fn are_many(&self, live_at_least: usize) -> bool {
        self.by_key.len() > FEW_CLASSES.max(2 * live_at_least)
    }

    /// Frees the numbers of classes without pods: the caller must drop what it keeps by these numbers. Returns how
    /// many classes are left.
    pub fn forget_dead(&mut self) -> usize {
        let free = &mut self.free;
        self.by_key.retain(|_, (id, class)| {
            let lives = class.strong_count() > 0;
            if !lives {
                free.push(*id);
            }
            lives
        });
        self.by_key.len()
    }
}

fn with_requests(pod: &Shared<Pod>, uid: PodUid, class: Arc<PodClass>) -> PodInfo {
    let requests = (!node_name(pod).is_empty() && Requests::depends_on_status(pod))
        .then(|| Arc::new(Requests::of(pod, true)));
    PodInfo {
        pod: pod.clone(),
        uid,
        class,
        requests,
    }
}

/// Whether the fields that make a pod's class are unchanged, without comparing them: every change of a spec except
/// binding increments the generation. `false` if that is not known.
pub fn is_same_spec(old: &Shared<Pod>, new: &Shared<Pod>) -> bool {
    let (old, new) = (old.object().metadata(), new.object().metadata());
    new.generation.is_some_and(|generation| generation > 0)
        && old.generation == new.generation
        && old.uid == new.uid
        && old.labels == new.labels
        && old.owner_references == new.owner_references
        && has_hard_budgets(old.annotations.as_ref()) == has_hard_budgets(new.annotations.as_ref())
}

/// Equal for pods that all plugins treat the same. Every field that a plugin reads must be in here (names of pods and
/// nodes are not).
fn class_key(pod: &Pod) -> Vec<u8> {
    let mut key = Vec::with_capacity(512);
    let mut put = |part: &dyn erased::Part| part.write(&mut key);
    put(&pod.metadata.namespace);
    put(&pod.metadata.labels);
    let owners = pod.metadata.owner_references.iter().flatten();
    let controller = owners.into_iter().find(|o| o.controller == Some(true));
    put(&controller.map(|o| (&o.api_version, &o.kind, &o.name)));
    put(&has_hard_budgets(pod.metadata.annotations.as_ref()));
    let Some(spec) = &pod.spec else { return key };
    put(&spec.priority);
    put(&spec.preemption_policy);
    put(&spec.node_selector);
    put(&spec.affinity);
    put(&spec.tolerations);
    put(&spec.topology_spread_constraints);
    put(&spec.overhead);
    put(&spec.resources.as_ref().and_then(|r| r.requests.as_ref()));
    put(&spec.scheduler_name);
    for containers in [Some(&spec.containers), spec.init_containers.as_ref()] {
        for container in containers.into_iter().flatten() {
            put(&container.image);
            put(&container.restart_policy);
            put(&container.resources.as_ref().and_then(|r| r.requests.as_ref()));
            put(&container.ports);
        }
        put(&0);
    }
    for volume in spec.volumes.iter().flatten() {
        let claim = volume.persistent_volume_claim.as_ref();
        if volume.image.is_some() || claim.is_some() || volume.ephemeral.is_some() {
            put(&volume.image);
            put(&claim.map(|c| &c.claim_name));
            put(&erased::Ephemeral(volume));
            // The claim of an ephemeral volume is the pod's own, and must be owned by it.
            put(&volume
                .ephemeral
                .as_ref()
                .map(|_| (&pod.metadata.name, &pod.metadata.uid, &volume.name)));
        }
        let disk = volume.gce_persistent_disk.is_some()
            || volume.aws_elastic_block_store.is_some()
            || volume.iscsi.is_some()
            || volume.rbd.is_some()
            || volume.azure_disk.is_some()
            || volume.cinder.is_some()
            || volume.portworx_volume.is_some();
        if disk {
            put(&erased::Whole(volume));
        }
    }
    key
}

/// The parts of a key, encoded so that different lists of parts have different encodings.
mod erased {
    use k8s_openapi::api::core::v1::Volume;
    use knarr_api::k8s_openapi;
    use knarr_api::kinds::pod::{write_ephemeral, write_volume};
    use serde::Serialize;

    pub(super) trait Part {
        fn write(&self, to: &mut Vec<u8>);
    }

    /// A volume, and the source of one that is ephemeral: `knarr-api` has the encoders of their many types.
    pub(super) struct Whole<'a>(pub &'a Volume);
    pub(super) struct Ephemeral<'a>(pub &'a Volume);

    impl Part for Whole<'_> {
        fn write(&self, to: &mut Vec<u8>) {
            let written = write_volume(self.0, to);
            end(written, to);
        }
    }

    impl Part for Ephemeral<'_> {
        fn write(&self, to: &mut Vec<u8>) {
            let written = write_ephemeral(self.0.ephemeral.as_ref(), to);
            end(written, to);
        }
    }

    impl<T: Serialize> Part for T {
        fn write(&self, to: &mut Vec<u8>) {
            let written = serde_json::to_writer(&mut *to, self);
            end(written, to);
        }
    }

    /// Ends a part. These types are plain data and always serialize to JSON. If one did not, the pods would only share less.
    fn end(written: serde_json::Result<()>, to: &mut Vec<u8>) {
        if let Err(error) = written {
            to.extend_from_slice(error.to_string().as_bytes());
        }
        to.push(0);
    }
}
