//! DynamicResources: a pod with ResourceClaims fits where its claims are allocated, or where the devices that they
//! request can be allocated; the same for extended resources that a DeviceClass provides (KEP-5004).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequest, ResourceClaim};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::kinds::pod::resources::is_dra_extended;
use knarr_api::{Shared, k8s_openapi};
use knarr_apimachinery::ids::PodUid;

use super::{PluginError, UnschedulableStatus, node_affinity};
use crate::dynamic_resources::claims::{Change, Devices, allocation};
use crate::dynamic_resources::extended::{ExtendedClaim, is_for_extended_resources};
use crate::dynamic_resources::{AllocationError, allocate};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::pre_bind::PreBindError;

pub const NAME: &str = "DynamicResources";
/// How long binding waits for the binding conditions of a device (bindingTimeout).
pub const BINDING_TIMEOUT: SignedDuration = SignedDuration::from_secs(600);
const UNAVAILABLE: &str = "resourceclaim not available on the node";
const CANNOT_ALLOCATE: &str = "cannot allocate all claims";
/// The most alternatives of a request (FirstAvailableDeviceRequestMaxSize), which is also the best score of one.
const ALTERNATIVES_MAX: usize = 8;

/// What is written before the pod is bound.
#[derive(Clone, Debug, Default)]
pub struct ClaimsToBind {
    /// All claims of the pod, with the allocation of those that were not allocated before.
    pub claims: Vec<(Shared<ResourceClaim>, Option<AllocationResult>)>,
    /// The claim for the pod's extended resources, which is to be created, and its allocation.
    pub extended: Option<(ExtendedClaim, AllocationResult)>,
}

/// The claims of a pod, in their present state.
#[derive(Debug)]
pub struct PodClaims {
    pod_uid: PodUid,
    claims: Vec<Shared<ResourceClaim>>,
    extended: Option<Extended>,
}

/// The extended resources of a pod, if a DeviceClass provides at least one of them.
#[derive(Debug)]
struct Extended {
    pod: Shared<Pod>,
    resources: Vec<String>,
    /// The claim of an attempt whose binding failed. It is deleted before the pod is tried again.
    stale: Option<Shared<ResourceClaim>>,
}

impl Extended {
    fn of(devices: &Devices, pod: &PodInfo) -> Option<Self> {
        let scalars = pod.requests().resources.scalars.keys();
        let resources: Vec<String> = scalars.filter(|name| is_dra_extended(name)).cloned().collect();
        let has_class = |name: &String| devices.inventory.class_of_resource(name).is_some();
        if !resources.iter().any(has_class) {
            return None;
        }
        let stale = devices
            .extended_claim(pod.pod.object().namespace(), pod.uid())
            .cloned();
        let pod = pod.pod.clone();
        Some(Extended {
            pod,
            resources,
            stale,
        })
    }

    /// The claim for the extended resources on the node; `None`: its device plugins provide all of them.
    fn on(&self, devices: &Devices, node: &NodeInfo) -> Result<Option<ExtendedClaim>, UnschedulableStatus> {
        if self.stale.is_some() {
            return Err(UnschedulableStatus::unresolvable(
                NAME,
                "cannot schedule extended resource claim",
            ));
        }
        let mut here = Vec::new();
        for name in &self.resources {
            if node.allocates_devices_for(name) {
                here.push(name.as_str());
            } else if !node.allocatable.scalars.contains_key(name) {
                return Err(UnschedulableStatus::unresolvable(NAME, "cannot fit resource"));
            }
        }
        Ok((!here.is_empty()).then(|| ExtendedClaim::new(&devices.inventory, &self.pod, &here)))
    }
}

/// Why Filter did not accept a node.
#[derive(Debug)]
pub enum FilterError {
    /// Rejected. The claims with these indices are allocated elsewhere (none: their devices are not available here).
    Node(UnschedulableStatus, BTreeSet<usize>),
    /// The plugin failed, which ends the attempt.
    Pod(PluginError),
}

/// Why the pod has to wait for its claims, with kube-scheduler's messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    #[error("pod \"{pod}\", spec.resourceClaim {entry:?}: none of the supported fields are set")]
    Unsupported { pod: String, entry: String },
    #[error("pod \"{0}\": ResourceClaim not created yet")]
    NotCreated(String),
    #[error("could not find resource claim \"{0}\"")]
    NotFound(String),
    #[error("resourceclaim {0:?} is being deleted")]
    Deleting(String),
    #[error("ResourceClaim {claim} was not created for Pod {pod} (Pod is not owner)")]
    NotOwner { claim: String, pod: String },
    #[error("resource claim {0} is in the process of being allocated")]
    Pending(String),
    #[error("request {0}: unsupported request type")]
    RequestType(String),
    #[error("request {request}: device class {class} does not exist")]
    NoClass { request: String, class: String },
}

/// The name of a claim from the pod's status or spec; `None`: the pod needs none for this entry. The flag: it was
/// created from a template, and must be owned by the pod.
fn claim_name<'a>(pod: &'a Pod, entry: &'a PodResourceClaim) -> Result<Option<(&'a str, bool)>, ClaimError> {
    let of = |text: &'a Option<String>| text.as_deref().unwrap_or_default();
    let shown = || format!("{}/{}", of(&pod.metadata.namespace), of(&pod.metadata.name));
    if let Some(claim) = &entry.resource_claim_name {
        return Ok(Some((claim, false)));
    }
    if entry.resource_claim_template_name.is_none() {
        return Err(ClaimError::Unsupported {
            pod: shown(),
            entry: entry.name.clone(),
        });
    }
    let status = pod.status.as_ref();
    let mut made = status
        .and_then(|s| s.resource_claim_statuses.as_ref())
        .into_iter()
        .flatten();
    match made.find(|made| made.name == entry.name) {
        Some(made) => Ok(made.resource_claim_name.as_deref().map(|name| (name, true))),
        None => Err(ClaimError::NotCreated(shown())),
    }
}

/// Whether the claim is owned by this pod.
fn is_for(claim: &ResourceClaim, pod_uid: &str) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.any(|o| o.controller == Some(true) && o.uid == pod_uid)
}

/// The entries of a pod that name or create claims.
pub fn entries(pod: &Pod) -> &[PodResourceClaim] {
    let spec = pod.spec.as_ref();
    spec.and_then(|s| s.resource_claims.as_deref())
        .unwrap_or_default()
}

/// The pod's claims; the error is what it has to wait for (PreEnqueue).
pub fn claims_of(devices: &Devices, pod: &Shared<Pod>) -> Result<Vec<Shared<ResourceClaim>>, ClaimError> {
    let namespace = pod.object().namespace();
    let mut all = Vec::new();
    for entry in entries(pod) {
        let Some((name, must_be_its)) = claim_name(pod, entry)? else {
            continue;
        };
        let Some(claim) = devices.claim(namespace, name) else {
            return Err(ClaimError::NotFound(format!("{namespace}/{name}")));
        };
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(ClaimError::Deleting(name.to_string()));
        }
        if must_be_its && !is_for(claim, pod.object().uid()) {
            return Err(ClaimError::NotOwner {
                claim: format!("{namespace}/{name}"),
                pod: format!("{namespace}/{}", pod.object().name()),
            });
        }
        all.push(claim.clone());
    }
    Ok(all)
}

/// Whether the claim is reserved for the pod.
pub fn is_reserved_for(claim: &ResourceClaim, pod_uid: &str) -> bool {
    let status = claim.status.as_ref();
    let mut users = status.and_then(|s| s.reserved_for.as_ref()).into_iter().flatten();
    users.any(|user| user.uid == pod_uid)
}

impl PodClaims {
    /// `None`: the pod has no claims. The error is why PreFilter rejects the pod.
    pub fn new(devices: &Devices, pod: &PodInfo) -> Result<Option<Self>, ClaimError> {
        let extended = Extended::of(devices, pod);
        if entries(&pod.pod).is_empty() && extended.is_none() {
            return Ok(None);
        }
        let claims = claims_of(devices, &pod.pod)?;
        for claim in claims.iter().filter(|c| allocation(c).is_none()) {
            if devices.is_pending(claim.object().uid()) {
                let (namespace, name) = (claim.object().namespace(), claim.object().name());
                return Err(ClaimError::Pending(format!("{namespace}/{name}")));
            }
            for (request, class) in classes(claim) {
                if class.is_empty() {
                    return Err(ClaimError::RequestType(request));
                }
                if devices.inventory.class(class).is_none() {
                    let class = class.to_string();
                    return Err(ClaimError::NoClass { request, class });
                }
            }
        }
        let pod_uid = pod.uid().clone();
        let needs_none = claims.is_empty() && extended.is_none();
        Ok((!needs_none).then_some(PodClaims {
            pod_uid,
            claims,
            extended,
        }))
    }

    /// The claim that is to be created for the pod's extended resources on the node.
    pub fn extended(
        &self,
        devices: &Devices,
        node: &NodeInfo,
    ) -> Result<Option<ExtendedClaim>, UnschedulableStatus> {
        match &self.extended {
            Some(extended) => extended.on(devices, node),
            None => Ok(None),
        }
    }

    /// The allocations on the node of the claims that have none yet, in their order; the one for extended resources
    /// is the last.
    pub fn filter(
        &self,
        devices: &Devices,
        node: &NodeInfo,
        now: Timestamp,
    ) -> Result<Vec<AllocationResult>, FilterError> {
        let extended = self.extended(devices, node);
        let extended = extended.map_err(|rejection| FilterError::Node(rejection, BTreeSet::new()))?;
        let claims = self.claims.iter().enumerate();
        let unavailable: BTreeSet<usize> = claims
            .filter(|(_, claim)| !is_available(claim, node, now))
            .map(|(index, _)| index)
            .collect();
        let rejected = |reason: &'static str, unavailable| {
            FilterError::Node(UnschedulableStatus::unresolvable(NAME, reason), unavailable)
        };
        let to_allocate = self.claims.iter().filter(|c| allocation(c).is_none());
        let to_allocate = to_allocate.map(|c| &**c);
        let to_allocate: Vec<&ResourceClaim> =
            to_allocate.chain(extended.as_ref().map(|e| &e.claim)).collect();
        let mut found = Vec::new();
        if !to_allocate.is_empty() {
            match allocate(&devices.inventory, devices.allocated(), node, &to_allocate) {
                Ok(Some(all)) => found = all,
                Ok(None) => return Err(rejected(CANNOT_ALLOCATE, BTreeSet::new())),
                Err(error @ AllocationError::InvalidPools) => {
                    let rejection = UnschedulableStatus::unresolvable(NAME, error.to_string());
                    return Err(FilterError::Node(rejection, BTreeSet::new()));
                }
                Err(error) => {
                    return Err(FilterError::Pod(PluginError::DynamicResources(error)));
                }
            }
        }
        if unavailable.is_empty() {
            Ok(found)
        } else {
            Err(rejected(UNAVAILABLE, unavailable))
        }
    }

    /// Preferred alternatives of requests score higher. `found` is what [`PodClaims::filter`] returned for the node.
    pub fn score(&self, found: &[AllocationResult]) -> i64 {
        let mut found = found.iter();
        let mut score = 0;
        for claim in &self.claims {
            let Some(result) = allocation(claim).or_else(|| found.next()) else {
                continue;
            };
            let devices = result.devices.as_ref().and_then(|d| d.results.as_ref());
            let names: BTreeSet<&str> = devices
                .into_iter()
                .flatten()
                .map(|r| r.request.as_str())
                .collect();
            for request in requests(claim) {
                let alternatives = request.first_available.iter().flatten().enumerate();
                let chosen = alternatives
                    .filter(|(_, sub)| names.contains(format!("{}/{}", request.name, sub.name).as_str()));
                let scores = chosen.map(|(index, _)| ALTERNATIVES_MAX.saturating_sub(index));
                score += i64::try_from(scores.sum::<usize>()).unwrap_or(i64::MAX);
            }
        }
        score
    }

    /// A claim whose allocation the pod cannot use and that no other pod uses: once deallocated, it can be allocated
    /// elsewhere (PostFilter). One for extended resources is deleted. `unavailable` are the indices that
    /// [`FilterError::Node`] had on all nodes.
    pub fn to_deallocate(&self, unavailable: &BTreeSet<usize>) -> Option<&Shared<ResourceClaim>> {
        let mut claims = unavailable.iter().filter_map(|index| self.claims.get(*index));
        let found = claims.find(|claim| {
            let status = claim.status.as_ref();
            let users = status.and_then(|s| s.reserved_for.as_deref()).unwrap_or_default();
            match users {
                [] => true,
                [one] => self.pod_uid == one.uid,
                _ => false,
            }
        });
        found.or(self.extended.as_ref().and_then(|e| e.stale.as_ref()))
    }

    /// Assumes the allocations on the node (Reserve); returns what is to be written.
    pub fn reserve(
        &self,
        devices: &mut Devices,
        found: Vec<AllocationResult>,
        extended: Option<ExtendedClaim>,
    ) -> ClaimsToBind {
        let mut found = found.into_iter();
        let claims = self.claims.iter().map(|claim| {
            let new = if allocation(claim).is_none() {
                found.next()
            } else {
                None
            };
            if let Some(new) = &new {
                devices.reserve(claim.object().uid(), new);
            }
            (claim.clone(), new)
        });
        let claims = claims.collect();
        let extended = extended.and_then(|extended| Some((extended, found.next()?)));
        if let Some((of, new)) = &extended {
            devices.reserve(of.claim.metadata.uid.as_deref().unwrap_or_default(), new);
        }
        ClaimsToBind { claims, extended }
    }
}

impl ClaimsToBind {
    /// Drops the assumed allocations that are not written (Unreserve).
    pub fn unreserve(&self, devices: &mut Devices) {
        for (claim, _) in self.claims.iter().filter(|(_, new)| new.is_some()) {
            devices.release(claim.object().uid());
        }
        if let Some((of, _)) = &self.extended {
            devices.release(of.claim.metadata.uid.as_deref().unwrap_or_default());
        }
    }
}

fn requests(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequest> {
    let devices = claim.spec.devices.as_ref();
    devices.and_then(|d| d.requests.as_ref()).into_iter().flatten()
}

/// The classes that a claim names, each with its request.
fn classes(claim: &ResourceClaim) -> Vec<(String, &str)> {
    let mut all = Vec::new();
    for request in requests(claim) {
        if let Some(exactly) = &request.exactly {
            all.push((request.name.clone(), exactly.device_class_name.as_str()));
            continue;
        }
        let alternatives = request.first_available.iter().flatten();
        all.extend(alternatives.map(|sub| {
            let name = format!("{}/{}", request.name, sub.name);
            (name, sub.device_class_name.as_str())
        }));
    }
    all
}

/// Whether an allocated claim can be used on the node; an unallocated one may still be allocated there.
fn is_available(claim: &ResourceClaim, node: &NodeInfo, now: Timestamp) -> bool {
    let Some(allocation) = allocation(claim) else {
        return true;
    };
    let selector = allocation.node_selector.as_ref();
    if selector.is_some_and(|s| !node_affinity::matches(s, node)) {
        return false;
    }
    match is_ready(claim) {
        Ok(ready) => ready || !has_timed_out(claim, now),
        Err(_) => false,
    }
}

/// Whether all binding conditions of the claim's devices are true. The error: one of them has failed.
pub fn is_ready(claim: &ResourceClaim) -> Result<bool, PreBindError> {
    let Some(allocation) = allocation(claim) else {
        return Ok(false);
    };
    let results = allocation.devices.as_ref().and_then(|d| d.results.as_ref());
    for result in results.into_iter().flatten() {
        let wanted = result.binding_conditions.as_deref().unwrap_or_default();
        if wanted.is_empty() {
            continue;
        }
        let statuses = claim.status.as_ref().and_then(|s| s.devices.as_ref());
        let of = statuses
            .into_iter()
            .flatten()
            .find(|s| s.driver == result.driver && s.pool == result.pool && s.device == result.device);
        let Some(of) = of else { return Ok(false) };
        let is_true = |type_: &String| {
            let mut conditions = of.conditions.iter().flatten();
            conditions.find(|c| c.type_ == *type_ && c.status == "True")
        };
        let failures = result.binding_failure_conditions.iter().flatten();
        if let Some(failed) = failures.filter_map(is_true).next() {
            return Err(PreBindError::DeviceFailed {
                claim: claim.metadata.name.clone().unwrap_or_default(),
                reason: failed.reason.clone(),
                message: failed.message.clone(),
            });
        }
        if wanted.iter().any(|condition| is_true(condition).is_none()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether binding has waited for the binding conditions of the claim's devices for too long.
pub fn has_timed_out(claim: &ResourceClaim, now: Timestamp) -> bool {
    let Some(allocation) = allocation(claim) else {
        return false;
    };
    let results = allocation.devices.as_ref().and_then(|d| d.results.as_ref());
    let waits = results
        .into_iter()
        .flatten()
        .any(|r| r.binding_conditions.is_some());
    let since = allocation.allocation_timestamp.as_ref();
    waits && since.is_some_and(|since| now.duration_since(since.0) > BINDING_TIMEOUT)
}

/// Whether a change may make a pod schedulable that this plugin rejected (its queueing hints).
pub fn change_helps(devices: &Devices, pod: &PodInfo, change: &Change) -> bool {
    match change {
        Change::Slice { after, .. } => after.is_some(),
        Change::Class { after, .. } => after.is_some(),
        // The claim of an attempt that failed, or devices that no claim uses any more.
        Change::Claim { before, after: None } => before
            .as_ref()
            .is_some_and(|gone| allocation(gone).is_some() || is_for_extended_resources(gone, pod.uid())),
        Change::Claim {
            before,
            after: Some(after),
        } => {
            let Ok(claims) = claims_of(devices, &pod.pod) else {
                return false;
            };
            if let Some(before) = before
                && allocation(before).is_some()
                && allocation(after).is_none()
            {
                return true;
            }
            let used = claims.iter().any(|c| c.object().uid() == after.object().uid());
            used && before.as_ref().is_none_or(|before| before.status != after.status)
        }
    }
}

#[cfg(test)]
mod tests;
