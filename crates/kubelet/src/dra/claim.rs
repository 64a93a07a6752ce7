//! The ResourceClaims that a pod uses, and whether it is allowed to, as v1.36's `resourceclaim` package decides.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::resources::is_dra_extended;
use knarr_apimachinery::ids::PodUid;
use knarr_apimachinery::quantity::Quantity;

use super::ClaimRef;

/// Why a claim is not prepared, with v1.36's messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    #[error("pod \"{namespace}/{pod}\": ResourceClaim not created yet")]
    NotCreated { namespace: String, pod: String },
    #[error("pod \"{namespace}/{pod}\", spec.resourceClaim {claim:?}: none of the supported fields are set")]
    Unsupported {
        namespace: String,
        pod: String,
        claim: String,
    },
    #[error("ResourceClaim {namespace}/{name} was not created for Pod {namespace}/{pod} (Pod is not owner)")]
    NotOwner {
        namespace: String,
        name: String,
        pod: String,
    },
    #[error("pod {pod} ({pod_uid}) is not allowed to use ResourceClaim {name} ({uid})")]
    NotReserved {
        pod: String,
        pod_uid: PodUid,
        name: String,
        uid: String,
    },
    #[error("ResourceClaim {0}: not allocated")]
    NotAllocated(String),
    #[error(
        "old ResourceClaim with same name {name} and different UID {uid} still exists (previous pod force-deleted?!)"
    )]
    OldClaim { name: String, uid: String },
    #[error("internal error: unable to get claim info for ResourceClaim {name} in namespace {namespace}")]
    Unknown { name: String, namespace: String },
}

/// A claim that a pod uses, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodClaim {
    pub name: String,
    /// It was created for this pod from a template.
    pub is_owned: bool,
}

fn names(pod: &Pod) -> (String, String, String) {
    let text = |of: &Option<String>| of.clone().unwrap_or_default();
    let meta = &pod.metadata;
    (text(&meta.namespace), text(&meta.name), text(&meta.uid))
}

/// The ResourceClaim of an entry of `spec.resourceClaims`; `None` if it does not need one.
fn name(pod: &Pod, claim: &PodResourceClaim) -> Result<Option<PodClaim>, ClaimError> {
    if let Some(name) = &claim.resource_claim_name {
        return Ok(Some(PodClaim {
            name: name.clone(),
            is_owned: false,
        }));
    }
    let (namespace, pod_name, _) = names(pod);
    if claim.resource_claim_template_name.is_none() {
        return Err(ClaimError::Unsupported {
            namespace,
            pod: pod_name,
            claim: claim.name.clone(),
        });
    }
    let statuses = pod
        .status
        .iter()
        .flat_map(|s| s.resource_claim_statuses.iter().flatten());
    let Some(status) = statuses.into_iter().find(|s| s.name == claim.name) else {
        return Err(ClaimError::NotCreated {
            namespace,
            pod: pod_name,
        });
    };
    Ok(status
        .resource_claim_name
        .clone()
        .map(|name| PodClaim { name, is_owned: true }))
}

fn pod_claims(pod: &Pod) -> impl Iterator<Item = &PodResourceClaim> {
    pod.spec.iter().flat_map(|s| s.resource_claims.iter().flatten())
}

/// The name of the ResourceClaim of the entry of `spec.resourceClaims` with this name.
pub(super) fn name_of(pod: &Pod, of: &str) -> Result<Option<String>, ClaimError> {
    match pod_claims(pod).find(|claim| claim.name == of) {
        Some(claim) => Ok(name(pod, claim)?.map(|used| used.name)),
        None => Ok(None),
    }
}

/// Whether a pod uses any claim.
pub fn uses_any(pod: &Pod) -> bool {
    pod_claims(pod).next().is_some() || extended(pod).is_some()
}

/// The claim that the scheduler created for the pod's extended resources (KEP 5004).
fn extended(pod: &Pod) -> Option<&k8s_openapi::api::core::v1::PodExtendedResourceClaimStatus> {
    pod.status.as_ref()?.extended_resource_claim_status.as_ref()
}

/// All claims of a pod.
pub fn of_pod(pod: &Pod) -> Result<Vec<PodClaim>, ClaimError> {
    let mut used: Vec<PodClaim> = Vec::new();
    for claim in pod_claims(pod) {
        used.extend(name(pod, claim)?);
    }
    used.extend(extended(pod).map(|claim| PodClaim {
        name: claim.resource_claim_name.clone(),
        is_owned: false,
    }));
    Ok(used)
}

/// The claims that a container names, each with the request that it uses (empty: all).
pub(super) fn requests_of(pod: &Pod, container: &Container) -> Result<Vec<(String, String)>, ClaimError> {
    let resources = container.resources.as_ref();
    let named: Vec<_> = resources.iter().flat_map(|r| r.claims.iter().flatten()).collect();
    let mut requests = Vec::new();
    for claim in pod_claims(pod) {
        let own: Vec<_> = named.iter().filter(|w| w.name == claim.name).collect();
        if own.is_empty() {
            continue;
        }
        if let Some(used) = name(pod, claim)? {
            let own = own.into_iter().map(|w| w.request.clone().unwrap_or_default());
            requests.extend(own.map(|request| (used.name.clone(), request)));
        }
    }
    if let Some(claim) = extended(pod) {
        let requested: BTreeSet<&str> = resources
            .iter()
            .flat_map(|r| r.requests.iter().flatten())
            .filter(|(name, amount)| {
                is_dra_extended(name) && Quantity::of(amount).is_ok_and(|q| q.value() != 0)
            })
            .map(|(name, _)| name.as_str())
            .collect();
        let own = claim.request_mappings.iter();
        let own = own
            .filter(|m| m.container_name == container.name && requested.contains(m.resource_name.as_str()));
        requests.extend(own.map(|m| (claim.resource_claim_name.clone(), m.request_name.clone())));
    }
    Ok(requests)
}

/// The names of the claims that a container uses.
pub fn of_container(pod: &Pod, container: &Container) -> Result<BTreeSet<String>, ClaimError> {
    Ok(requests_of(pod, container)?
        .into_iter()
        .map(|(name, _)| name)
        .collect())
}

/// Whether the pod is allowed to use the claim.
pub fn is_usable(pod: &Pod, used: &PodClaim, claim: &ResourceClaim) -> Result<(), ClaimError> {
    let (namespace, pod_name, pod_uid) = names(pod);
    let name = used.name.clone();
    let owners = claim.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|o| o.controller == Some(true));
    if used.is_owned && !controllers.any(|owner| owner.uid == pod_uid) {
        return Err(ClaimError::NotOwner {
            namespace,
            name,
            pod: pod_name,
        });
    }
    let mut reserved = claim.status.iter().flat_map(|s| s.reserved_for.iter().flatten());
    match reserved.any(|consumer| consumer.uid == pod_uid) {
        true => Ok(()),
        false => Err(ClaimError::NotReserved {
            pod: pod_name,
            pod_uid: pod_uid.into(),
            name,
            uid: claim.metadata.uid.clone().unwrap_or_default(),
        }),
    }
}

/// The drivers of a claim's allocation.
pub fn allocated(claim: &ResourceClaim) -> Result<(ClaimRef, BTreeSet<String>), ClaimError> {
    let text = |of: &Option<String>| of.clone().unwrap_or_default();
    let reference = ClaimRef {
        namespace: text(&claim.metadata.namespace),
        name: text(&claim.metadata.name),
        uid: text(&claim.metadata.uid),
    };
    let Some(allocation) = claim.status.as_ref().and_then(|s| s.allocation.as_ref()) else {
        return Err(ClaimError::NotAllocated(reference.name));
    };
    let results = allocation.devices.iter().flat_map(|d| d.results.iter().flatten());
    let drivers = results.map(|result| result.driver.clone()).collect();
    Ok((reference, drivers))
}
