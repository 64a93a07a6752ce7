//! VolumeBinding: a pod fits where its volumes are or can be. A claim that waits for its first consumer is bound to a
//! volume that can be used on the node, or gets one provisioned; this is decided with the node, reserved with it, and
//! written before the pod is bound.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::Shared;
use knarr_api::k8s_openapi;
use knarr_api::well_known::SELECTED_NODE;
use knarr_apimachinery::ids::NodeName;
use knarr_apimachinery::labels::{Selector, SelectorError};
use knarr_apimachinery::quantity::Quantity;

use super::{PluginError, PreFilterError, UnschedulableStatus, node_affinity};
use crate::node_info::NodeInfo;
use crate::pod_info::PodClass;
use crate::pod_volumes::{ClaimUse, PodVolumes};
use crate::pre_bind::PreBindError;
use crate::volumes::{
    self, ClaimRef, Volumes, class_of_claim, is_fully_bound, volume_limit, volume_of, waits_for_consumer,
};

pub const NAME: &str = "VolumeBinding";

/// The volumes of a class with this provisioner are created by an administrator.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// What is written before the pod is bound.
#[derive(Clone, Debug, Default)]
pub struct VolumesToBind {
    /// An existing volume, and the claim to bind it to.
    pub bindings: Vec<(Shared<PersistentVolume>, Shared<PersistentVolumeClaim>)>,
    /// Claims whose volumes are to be provisioned for the node.
    pub provisions: Vec<Shared<PersistentVolumeClaim>>,
    /// How long binding waits.
    pub timeout: SignedDuration,
}

/// The volumes that a claim can be bound to, the smallest first.
#[derive(Debug, Default)]
struct Candidates {
    all: Vec<Shared<PersistentVolume>>,
    /// Those that can be used on any node, or whose node affinity is not a single requirement.
    elsewhere: Vec<usize>,
    /// Those whose node affinity requires one of these values of that label, as local volumes do.
    by_label: BTreeMap<String, BTreeMap<String, Vec<usize>>>,
}

/// How a volume is provisioned for a claim.
#[derive(Debug)]
struct Provision {
    class: Shared<StorageClass>,
    /// Bytes; `None`: the driver does not publish its storage capacity.
    needs_room: Option<i64>,
}

/// A claim that waits for its first consumer.
#[derive(Debug)]
struct Unbound {
    claim: Shared<PersistentVolumeClaim>,
    /// Its volume is being provisioned for this node.
    selected_node: Option<String>,
    /// The volume that its user (or an earlier decision) has reserved for it.
    given: Option<Shared<PersistentVolume>>,
    candidates: Candidates,
    provision: Option<Provision>,
}

/// The claims of pods of one class, in their present state.
#[derive(Debug, Default)]
pub struct Claims {
    /// The volumes of bound claims; `None`: the volume does not exist.
    bound: Vec<Option<Shared<PersistentVolume>>>,
    /// The smallest first.
    unbound: Vec<Unbound>,
}

/// Why PreFilter rejects the pod for a claim, with kube-scheduler's messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ClaimError {
    #[error("waiting for ephemeral volume controller to create the persistentvolumeclaim {0:?}")]
    NotCreated(String),
    #[error("persistentvolumeclaim {0:?} not found")]
    NotFound(String),
    #[error("persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}")]
    Lost { name: String, volume: String },
    #[error("persistentvolumeclaim {0:?} is being deleted")]
    Deleting(String),
    #[error("PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)")]
    NotOwner {
        namespace: String,
        name: String,
        pod: String,
    },
    #[error("pod has unbound immediate PersistentVolumeClaims")]
    UnboundImmediate,
}

/// Why PreFilter fails for a claim, with kube-scheduler's messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeBindingError {
    #[error("VolumeBindingMode not set for StorageClass {0:?}")]
    NoBindingMode(String),
    #[error("error creating internal label selector for claim: {namespace}/{name}: {source}")]
    Selector {
        namespace: String,
        name: String,
        source: SelectorError,
    },
}

fn check(
    volumes: &Volumes,
    pod: &PodClass,
    used: &ClaimUse,
) -> Result<Shared<PersistentVolumeClaim>, ClaimError> {
    let name = used.claim.clone();
    let Some(claim) = volumes.claim(pod.namespace(), &name) else {
        return Err(match used.ephemeral {
            true => ClaimError::NotCreated(name),
            false => ClaimError::NotFound(name),
        });
    };
    if claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost") {
        let volume = volume_of(claim).to_string();
        return Err(ClaimError::Lost { name, volume });
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(ClaimError::Deleting(name));
    }
    let pod = pod.example.object();
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let owned = owners.any(|o| o.controller == Some(true) && o.uid == pod.uid());
    if used.ephemeral && !owned {
        return Err(ClaimError::NotOwner {
            namespace: pod.namespace().to_string(),
            name,
            pod: pod.name().to_string(),
        });
    }
    Ok(claim.clone())
}

/// The label, and the values of it that a volume requires of a node; `None`: it requires something else.
fn label_of(volume: &PersistentVolume) -> Option<(&str, &[String])> {
    let required = volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
    let [term] = required.node_selector_terms.as_slice() else {
        return None;
    };
    let expressions = term.match_expressions.as_ref()?;
    let one = expressions.iter().find(|e| e.operator == "In")?;
    Some((&one.key, one.values.as_deref()?))
}

/// Whether a volume can be used on a node.
fn usable_on(volume: &PersistentVolume, node: &NodeInfo) -> bool {
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
    affinity
        .and_then(|a| a.required.as_ref())
        .is_none_or(|required| node_affinity::matches(required, node))
}

impl Candidates {
    fn new(mut all: Vec<(Quantity, Shared<PersistentVolume>)>) -> Self {
        all.sort_by_key(|(size, _)| *size);
        let mut candidates = Candidates::default();
        for (i, (_, volume)) in all.into_iter().enumerate() {
            match label_of(&volume) {
                Some((key, values)) => {
                    let by_value = candidates.by_label.entry(key.to_string()).or_default();
                    for value in values {
                        by_value.entry(value.clone()).or_default().push(i);
                    }
                }
                None => candidates.elsewhere.push(i),
            }
            candidates.all.push(volume);
        }
        candidates
    }

    /// The smallest that can be used on the node and is not chosen for another claim.
    fn find(&self, node: &NodeInfo, chosen: &BTreeSet<&str>) -> Option<&Shared<PersistentVolume>> {
        let labelled = self
            .by_label
            .iter()
            .filter_map(|(key, by_value)| by_value.get(node.label(key)?))
            .flatten();
        let possible: BTreeSet<usize> = labelled.chain(&self.elsewhere).copied().collect();
        possible
            .into_iter()
            .filter_map(|i| self.all.get(i))
            .find(|v| !chosen.contains(v.object().name()) && usable_on(v, node))
    }
}

fn mode(of: Option<&String>) -> &str {
    of.map_or("Filesystem", String::as_str)
}

impl Unbound {
    fn new(volumes: &Volumes, claim: Shared<PersistentVolumeClaim>) -> Result<Self, VolumeBindingError> {
        let class_name = class_of_claim(&claim).to_string();
        let size = volumes::requested(&claim).unwrap_or_default();
        let spec = claim.spec.as_ref();
        let selector = spec.and_then(|s| s.selector.as_ref());
        let selector = selector.map(Selector::from_label_selector).transpose();
        let selector = selector.map_err(|source| VolumeBindingError::Selector {
            namespace: claim.object().namespace().to_string(),
            name: claim.object().name().to_string(),
            source,
        })?;
        let mut given = None;
        let mut candidates = Vec::new();
        for volume in volumes.of_class(&class_name) {
            let of = volume.spec.as_ref();
            let holds = volumes::capacity(volume).unwrap_or_default();
            let suits = holds >= size
                && mode(of.and_then(|s| s.volume_mode.as_ref()))
                    == mode(spec.and_then(|s| s.volume_mode.as_ref()))
                && attributes_class(of.and_then(|s| s.volume_attributes_class_name.as_ref()))
                    == attributes_class(spec.and_then(|s| s.volume_attributes_class_name.as_ref()))
                && volume.metadata.deletion_timestamp.is_none();
            if !suits {
                continue;
            }
            if let Some(claim_ref) = volumes.claim_ref(volume) {
                if claim_ref.is_to(&claim) && given.is_none() {
                    given = Some(volume.clone());
                }
                continue;
            }
            let available = volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Available");
            let selected = selector
                .as_ref()
                .is_none_or(|s| s.matches(volume.metadata.labels.as_ref()));
            let modes = of.and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
            let mut wanted = spec.and_then(|s| s.access_modes.as_ref()).into_iter().flatten();
            if available && selected && wanted.all(|m| modes.contains(m)) {
                candidates.push((holds, volume.clone()));
            }
        }
        let class = volumes.class(&class_name);
        let class = class.filter(|c| !c.provisioner.is_empty() && c.provisioner != NO_PROVISIONER);
        let provision = class.map(|class| {
            let driver = volumes.driver(&class.provisioner);
            let says = driver.is_some_and(|d| d.spec.storage_capacity == Some(true));
            let size = volumes::requested(&claim).map(|q| q.value());
            Provision {
                class: class.clone(),
                needs_room: size.filter(|_| says),
            }
        });
        Ok(Unbound {
            selected_node: volumes.selected_node(&claim).map(str::to_string),
            given,
            candidates: Candidates::new(candidates),
            provision,
            claim,
        })
    }

    /// An existing volume for it.
    fn find(&self, node: &NodeInfo, chosen: &BTreeSet<&str>) -> Option<&Shared<PersistentVolume>> {
        match &self.given {
            Some(given) => Some(given).filter(|v| usable_on(v, node)),
            None => self.candidates.find(node, chosen),
        }
    }
}

/// An empty name is `None`.
fn attributes_class(of: Option<&String>) -> &str {
    of.map_or("", String::as_str)
}

/// Why claims cannot be bound on a node.
#[derive(Clone, Copy, Debug, Default)]
struct Conflicts {
    affinity: bool,
    no_match: bool,
    no_room: bool,
    no_volume: bool,
}

impl Conflicts {
    fn rejection(self) -> Option<UnschedulableStatus> {
        let all = [
            (
                self.affinity,
                "node(s) didn't match PersistentVolume's node affinity",
            ),
            (
                self.no_match,
                "node(s) didn't find available persistent volumes to bind",
            ),
            (self.no_room, "node(s) did not have enough free storage"),
            (
                self.no_volume,
                "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
            ),
        ];
        let reasons = all.into_iter().filter(|(is, _)| *is);
        let reasons: Vec<_> = reasons.map(|(_, reason)| reason.into()).collect();
        (!reasons.is_empty()).then_some(UnschedulableStatus {
            plugin: NAME,
            reasons,
            resolvable: false,
        })
    }
}

impl Claims {
    pub fn new(volumes: &Volumes, pod: &PodClass, of: &PodVolumes) -> Result<Self, PreFilterError> {
        let rejected = |why: ClaimError| {
            PreFilterError::Unschedulable(UnschedulableStatus::unresolvable(NAME, why.to_string()))
        };
        let error = |error| PreFilterError::Error(PluginError::VolumeBinding(error));
        let mut claims: Vec<Shared<PersistentVolumeClaim>> = Vec::new();
        for used in &of.claims {
            let claim = check(volumes, pod, used).map_err(rejected)?;
            // Two volumes of the pod with the same claim need one PersistentVolume.
            if !claims.iter().any(|c| Arc::ptr_eq(c.object(), claim.object())) {
                claims.push(claim);
            }
        }
        let mut all = Claims::default();
        let mut immediate = false;
        for claim in claims {
            if is_fully_bound(&claim) {
                all.bound.push(volumes.volume(volume_of(&claim)).cloned());
                continue;
            }
            let name = class_of_claim(&claim).to_string();
            let class = volumes.class(&name);
            if class.is_some_and(|c| c.volume_binding_mode.is_none()) {
                return Err(error(VolumeBindingError::NoBindingMode(name)));
            }
            // A claim that names its volume is bound by the PersistentVolume controller.
            if class.is_some_and(|c| waits_for_consumer(c)) && volume_of(&claim).is_empty() {
                all.unbound.push(Unbound::new(volumes, claim).map_err(error)?);
            } else {
                immediate = true;
            }
        }
        if immediate {
            return Err(rejected(ClaimError::UnboundImmediate));
        }
        all.unbound
            .sort_by_key(|u| volumes::requested(&u.claim).unwrap_or_default());
        Ok(all)
    }

    pub fn is_nothing(&self) -> bool {
        self.bound.is_empty() && self.unbound.is_empty()
    }

    pub fn filter(&self, volumes: &Volumes, node: &NodeInfo) -> Result<(), UnschedulableStatus> {
        self.find(volumes, node).map(|_| ())
    }

    /// What the claims would be bound to on a node.
    pub fn find(&self, volumes: &Volumes, node: &NodeInfo) -> Result<VolumesToBind, UnschedulableStatus> {
        let mut conflicts = Conflicts::default();
        for volume in &self.bound {
            match volume {
                None => conflicts.no_volume = true,
                Some(volume) => conflicts.affinity = !usable_on(volume, node),
            }
            if conflicts.no_volume || conflicts.affinity {
                break;
            }
        }
        let mut to_bind = VolumesToBind::default();
        self.find_unbound(volumes, node, &mut to_bind, &mut conflicts);
        match conflicts.rejection() {
            Some(rejection) => Err(rejection),
            None => Ok(to_bind),
        }
    }

    fn find_unbound(
        &self,
        volumes: &Volumes,
        node: &NodeInfo,
        to_bind: &mut VolumesToBind,
        conflicts: &mut Conflicts,
    ) {
        let elsewhere = |u: &Unbound| u.selected_node.as_ref().is_some_and(|n| *n != node.name);
        if self.unbound.iter().any(elsewhere) {
            conflicts.no_match = true;
            return;
        }
        let mut chosen: BTreeSet<&str> = BTreeSet::new();
        let mut to_make: Vec<&Unbound> = Vec::new();
        for unbound in &self.unbound {
            let found = match unbound.selected_node {
                Some(_) => None,
                None => unbound.find(node, &chosen),
            };
            match found {
                Some(volume) => {
                    chosen.insert(volume.object().name());
                    to_bind.bindings.push((volume.clone(), unbound.claim.clone()));
                }
                None => to_make.push(unbound),
            }
        }
        for unbound in to_make {
            let Some(provision) = &unbound.provision else {
                conflicts.no_match = true;
                return;
            };
            if !allows(&provision.class, node) {
                conflicts.no_match = true;
                return;
            }
            if !has_room(volumes, provision, node) {
                conflicts.no_room = true;
                return;
            }
            to_bind.provisions.push(unbound.claim.clone());
        }
    }
}

/// Whether allowedTopologies of a class match a node.
fn allows(class: &StorageClass, node: &NodeInfo) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    terms.is_empty()
        || terms.iter().any(|term| {
            let expressions = term.match_label_expressions.as_deref().unwrap_or_default();
            !expressions.is_empty()
                && expressions.iter().all(|e| {
                    node.label(&e.key)
                        .is_some_and(|value| e.values.iter().any(|v| v == value))
                })
        })
}

fn has_room(volumes: &Volumes, provision: &Provision, node: &NodeInfo) -> bool {
    let Some(size) = provision.needs_room else {
        return true;
    };
    volumes.capacities().any(|capacity| {
        let reaches = || {
            let topology = capacity.node_topology.as_ref();
            // A topology that does not parse matches no node.
            topology
                .and_then(|t| Selector::from_label_selector(t).ok())
                .is_some_and(|selector| selector.matches(node.labels()))
        };
        capacity.storage_class_name == provision.class.object().name()
            && volume_limit(capacity).is_some_and(|limit| limit >= size)
            && reaches()
    })
}

impl VolumesToBind {
    pub fn is_empty(&self) -> bool {
        self.bindings.is_empty() && self.provisions.is_empty()
    }

    /// Assumes the bindings and provisionings (Reserve).
    pub fn reserve(&self, volumes: &mut Volumes, node: &NodeName) {
        for (volume, claim) in &self.bindings {
            volumes.assume_claim_ref(volume.object().name(), ClaimRef::to(claim));
        }
        for claim in &self.provisions {
            let object = claim.object();
            let name = (object.namespace().to_string(), object.name().to_string());
            volumes.assume_selected_node(name, node);
        }
    }

    /// Drops what was assumed (Unreserve).
    pub fn unreserve(&self, volumes: &mut Volumes) {
        for (volume, _) in &self.bindings {
            volumes.unreserve(volume.object().name());
        }
        for claim in &self.provisions {
            let object = claim.object();
            volumes.restore_selected_node(&(object.namespace().to_string(), object.name().to_string()));
        }
    }

    /// Whether all claims are bound. The error: they will not be, and the pod must be scheduled again. The objects
    /// are those that the API returned when they were written.
    pub fn are_bound(&self, volumes: &Volumes, node: &NodeInfo) -> Result<bool, PreBindError> {
        let latest = |claim: &Shared<PersistentVolumeClaim>, gone: fn(String) -> PreBindError| {
            let (namespace, name) = (claim.object().namespace(), claim.object().name());
            let found = volumes.claim(namespace, name).cloned();
            found.ok_or_else(|| gone(format!("{namespace}/{name}")))
        };
        let on_node = |volume: &Shared<PersistentVolume>| match usable_on(volume, node) {
            true => Ok(()),
            false => Err(PreBindError::NodeAffinity {
                volume: volume.object().name().to_string(),
                node: node.name.clone(),
            }),
        };
        for (volume, claim) in &self.bindings {
            let name = volume.object().name();
            let now = volumes.volume(name);
            let now = now.ok_or_else(|| PreBindError::VolumeGone(name.to_string()))?;
            let claim = latest(claim, PreBindError::ClaimGone)?;
            if now.object().revision() < volume.object().revision() {
                return Ok(false);
            }
            on_node(now)?;
            let claim_ref = now.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
            if claim_ref.and_then(|c| c.uid.as_deref()).is_none_or(str::is_empty) {
                return Err(PreBindError::ClaimRefReset(name.to_string()));
            }
            if !is_fully_bound(&claim) {
                return Ok(false);
            }
        }
        for claim in &self.provisions {
            let now = latest(claim, PreBindError::ProvisionedClaimGone)?;
            let name = now.object().name();
            if now.object().revision() < claim.object().revision() {
                return Ok(false);
            }
            let annotations = now.metadata.annotations.as_ref();
            let Some(annotations) = annotations else {
                return Err(PreBindError::SelectedNodeReset(name.to_string()));
            };
            // A provisioner removes the annotation to report that it failed.
            if annotations
                .get(SELECTED_NODE)
                .is_none_or(|selected| node.name != *selected)
            {
                return Err(PreBindError::ProvisioningFailed(name.to_string()));
            }
            if !volume_of(&now).is_empty() {
                match volumes.volume(volume_of(&now)) {
                    Some(volume) => on_node(volume)?,
                    None => return Ok(false),
                }
            }
            if !is_fully_bound(&now) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
