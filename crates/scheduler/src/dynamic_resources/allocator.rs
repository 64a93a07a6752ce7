//! Which devices the claims of a pod get on one node: the first solution of a search in a fixed order (pools by name,
//! slices by name, devices as published; alternatives of a request in the order of the claim), so that the same state
//! gives the same result. Nothing is changed; the result becomes `status.allocation`.
//!
//! The search is exponential in the worst case. It stops after [`STEPS_MAX`] steps, where kube-scheduler stops after
//! ten seconds.

mod constraint;
mod request;
mod result;
mod search;

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    AllocationResult, Device, DeviceToleration, ResourceClaim, ResourceSlice,
};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::NodeName;
use knarr_cel::ExpressionError;
use knarr_cel::device::MatchError;

use super::pools::PoolState;
use super::{AllocatedState, DeviceId, Inventory};
use crate::node_info::NodeInfo;
use constraint::Constraint;
use request::{Request, Variant};
use search::Search;

/// The most devices in one allocation (AllocationResultsMaxSize).
pub const RESULTS_MAX: usize = 32;
/// The most devices that are tried for one node, counting each try: some tenths of a second.
pub const STEPS_MAX: usize = 200_000;
/// The most devices and requests of claims that are allocated together; each is a level of the search.
pub const DEPTH_MAX: usize = 512;

/// Why the search for an allocation on a node failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    #[error("claim {claim}, request {request}: {problem}")]
    Request {
        claim: String,
        request: String,
        problem: String,
    },
    #[error("claim {claim}, constraint #{index}: empty constraint (unsupported constraint type?)")]
    EmptyConstraint { claim: String, index: usize },
    #[error("claim {claim}: number of requested devices {devices} exceeds the claim limit of {RESULTS_MAX}")]
    TooManyDevices { claim: String, devices: usize },
    /// Of a class (`class NAME`) or a claim (`claim NAMESPACE/NAME`).
    #[error("{of}: selector #{index}: CEL compile error: {source}")]
    Selector {
        of: String,
        index: usize,
        source: ExpressionError,
    },
    #[error("{of}: selector #{index}: CEL runtime error: {source}")]
    Match {
        of: String,
        index: usize,
        source: MatchError,
    },
    #[error(
        "create NodeSelector for claim {claim}: unsupported ResourceSlice.NodeSelector with {terms} terms"
    )]
    NodeSelector { claim: String, terms: usize },
    /// The only one that rejects the node; all others are errors of the pod's scheduling.
    #[error("invalid resource pools were encountered")]
    InvalidPools,
    #[error("node {0}: timed out trying to allocate devices")]
    TimedOut(NodeName),
}

/// A device that the search considers.
#[derive(Clone, Copy, Debug)]
struct Candidate<'a> {
    /// An index into the pools of the node.
    pool: usize,
    slice: &'a ResourceSlice,
    device: &'a Device,
}

impl Candidate<'_> {
    fn id(&self) -> DeviceId {
        let spec = &self.slice.spec;
        DeviceId::new(&spec.driver, &spec.pool.name, &self.device.name)
    }

    fn allows_multiple_allocations(&self) -> bool {
        self.device.allow_multiple_allocations == Some(true)
    }
}

/// Allocates devices for all of the claims on the node; `None`: there are not enough. The results are in the order of
/// the claims.
pub fn allocate(
    inventory: &Inventory,
    allocated: &AllocatedState,
    node: &NodeInfo,
    claims: &[&ResourceClaim],
) -> Result<Option<Vec<AllocationResult>>, AllocationError> {
    let pools = inventory.pools(node);
    let mut matcher = request::Matcher::new(inventory, node, allocated);
    let mut requests: Vec<Vec<Request<'_>>> = Vec::new();
    let mut constraints: Vec<Vec<Constraint<'_>>> = Vec::new();
    let mut depth = 0;
    for (index, claim) in claims.iter().enumerate() {
        let of_claim = Request::of_claim(index, claim, &pools, &mut matcher)?;
        let least: usize = of_claim.iter().map(Request::least_devices).sum();
        if least > RESULTS_MAX {
            return Err(AllocationError::TooManyDevices {
                claim: claim_name(claim),
                devices: least,
            });
        }
        depth += 1 + of_claim.len() + RESULTS_MAX.min(of_claim.iter().map(Request::most_devices).sum());
        requests.push(of_claim);
        constraints.push(Constraint::of_claim(claim)?);
    }
    if depth > DEPTH_MAX {
        return Err(AllocationError::TimedOut(node.name.clone()));
    }
    let mut search = Search::new(claims, &pools, requests, constraints, matcher);
    if !search.run()? {
        let invalid = pools.iter().any(|p| matches!(p.state, PoolState::Invalid(_)));
        return if invalid {
            Err(AllocationError::InvalidPools)
        } else {
            Ok(None)
        };
    }
    search.results(node).map(Some)
}

fn claim_name(claim: &ResourceClaim) -> String {
    let of = |text: &Option<String>| text.clone().unwrap_or_default();
    match of(&claim.metadata.namespace).as_str() {
        "" => of(&claim.metadata.name),
        namespace => format!("{namespace}/{}", of(&claim.metadata.name)),
    }
}

/// Whether a toleration matches this taint of a device. An empty key matches every key, an empty effect every effect.
pub fn tolerates(toleration: &DeviceToleration, taint: &k8s_openapi::api::resource::v1::DeviceTaint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => {
            toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        "Exists" => true,
        _ => false,
    }
}

/// Whether taints keep requests with these tolerations from the device.
fn taints_prevent(device: &Device, tolerations: &[DeviceToleration]) -> bool {
    let mut taints = device.taints.iter().flatten();
    taints.any(|taint| {
        matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
            && !tolerations.iter().any(|t| tolerates(t, taint))
    })
}

/// The amount of each counter, by counter set and counter.
type Counters<'a> = BTreeMap<(&'a str, &'a str), knarr_apimachinery::quantity::Quantity>;

#[cfg(test)]
mod tests;
