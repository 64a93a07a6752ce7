//! ResourceClaims (KEP-4381): created from templates for pods ([`pods`]), released by finished pods and deleted with the pods that
//! they were created for ([`claims`]). Pods are evicted from tainted devices ([`device_taints`]).

pub mod claims;
pub mod device_taints;
pub mod pods;

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;

use crate::owner::controller_of;
use crate::pod;

/// Annotation of a claim that was created for a pod: the name of the pod's entry.
pub const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";

/// The name of both controllers in events.
const NAME: &str = "resource_claim";
const ACCOUNT: &str = "resource-claim-controller";

/// `spec.resourceClaims` of a pod.
fn entries(pod: &Pod) -> &[PodResourceClaim] {
    let spec = pod.spec.as_ref();
    spec.and_then(|s| s.resource_claims.as_deref())
        .unwrap_or_default()
}

/// The claim of an entry in the pod's status; the inner `None`: the pod needs no claim for it.
fn made_for<'a>(pod: &'a Pod, entry: &str) -> Option<Option<&'a str>> {
    let status = pod.status.as_ref()?;
    let mut made = status.resource_claim_statuses.as_ref()?.iter();
    let made = made.find(|made| made.name == entry)?;
    Some(made.resource_claim_name.as_deref())
}

/// The name of an entry's claim, if it exists.
fn claim_of<'a>(pod: &'a Pod, entry: &'a PodResourceClaim) -> Option<&'a str> {
    match &entry.resource_claim_name {
        Some(name) => Some(name),
        None => made_for(pod, &entry.name).flatten(),
    }
}

/// The names of all claims of a pod, including the one for its extended resources (KEP-5004).
fn claims_of(pod: &Pod) -> impl Iterator<Item = &str> {
    let named = entries(pod).iter().filter_map(move |entry| claim_of(pod, entry));
    let status = pod.status.as_ref();
    let extended = status.and_then(|s| s.extended_resource_claim_status.as_ref());
    named.chain(extended.map(|e| e.resource_claim_name.as_str()))
}

/// Whether the claim was created for this pod.
fn is_for(claim: &ResourceClaim, pod_uid: &str) -> bool {
    controller_of(&claim.metadata).is_some_and(|owner| owner.uid == pod_uid)
}

/// Whether no container of the pod runs or will run.
fn is_done(pod: &Pod) -> bool {
    is_terminal(pod) || (pod::is_deleting(pod) && pod::node_name(pod).is_empty())
}

fn reserved_for(claim: &ResourceClaim) -> &[ResourceClaimConsumerReference] {
    let status = claim.status.as_ref();
    status.and_then(|s| s.reserved_for.as_deref()).unwrap_or_default()
}

fn is_allocated(claim: &ResourceClaim) -> bool {
    claim.status.as_ref().is_some_and(|s| s.allocation.is_some())
}

#[cfg(test)]
mod tests;
