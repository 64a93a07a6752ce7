//! TaintToleration: taints keep pods away that do not tolerate them, softly with PreferNoSchedule.

use k8s_openapi::api::core::v1::{Taint, Toleration};
use knarr_api::k8s_openapi;

use super::{Plugin, Refusal, normalize};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;

const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";

/// See the module.
pub struct TaintToleration;

/// Whether a toleration is for this taint. No effect is every effect; no key with Exists is every key.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or("");
    let key = toleration.key.as_deref().unwrap_or("");
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or("") {
        "Exists" => true,
        "" | "Equal" => {
            // Only Exists may leave the key out.
            key == taint.key
                && toleration.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or("")
        }
        _ => false,
    }
}

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Refusal> {
        let tolerations = pod.tolerations();
        let hard = node
            .taints()
            .iter()
            .filter(|t| matches!(t.effect.as_str(), "NoSchedule" | "NoExecute"));
        for taint in hard {
            if !tolerations.iter().any(|t| tolerates(t, taint)) {
                return Err(Refusal::of_node("node(s) had untolerated taint(s)"));
            }
        }
        Ok(())
    }

    fn weight(&self) -> i64 {
        3
    }

    fn score(&self, pod: &PodInfo, node: &NodeInfo) -> i64 {
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

    fn normalize(&self, scores: &mut [i64]) {
        normalize(scores, true);
    }
}
