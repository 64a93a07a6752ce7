//! TaintToleration: a node accepts only pods that tolerate its taints; PreferNoSchedule lowers its score.

use k8s_openapi::api::core::v1::{Taint, Toleration};
use knarr_api::k8s_openapi;
use knarr_api::kinds::toleration;

use super::UnschedulableStatus;
use crate::node_info::NodeInfo;
use crate::pod_info::PodClass;
use crate::profile::Profile;

pub use knarr_api::kinds::toleration::tolerates;

pub const NAME: &str = "TaintToleration";

const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";

/// The first taint of the node that the pod does not tolerate.
pub fn untolerated<'a>(pod: &PodClass, node: &'a NodeInfo) -> Option<&'a Taint> {
    toleration::untolerated(pod.tolerations(), node.taints())
}

pub fn filter(_: &Profile, pod: &PodClass, node: &NodeInfo) -> Result<(), UnschedulableStatus> {
    match untolerated(pod, node) {
        None => Ok(()),
        Some(_) => Err(UnschedulableStatus::unresolvable(
            NAME,
            "node(s) had untolerated taint(s)",
        )),
    }
}

/// How many PreferNoSchedule taints the pod does not tolerate; fewer are better.
pub fn score(pod: &PodClass, node: &NodeInfo) -> i64 {
    let for_soft = |t: &&Toleration| {
        let effect = t.effect.as_deref().unwrap_or("");
        effect.is_empty() || effect == PREFER_NO_SCHEDULE
    };
    let tolerated = |taint: &Taint| {
        let mut tolerations = pod.tolerations().iter().filter(for_soft);
        tolerations.any(|t| tolerates(t, taint))
    };
    let soft = node.taints().iter().filter(|t| t.effect == PREFER_NO_SCHEDULE);
    let count = soft.filter(|taint| !tolerated(taint)).count();
    i64::try_from(count).unwrap_or(i64::MAX)
}
