//! Whether a pod tolerates a node's taints.
//!
//! The operators Lt and Gt match nothing: in v1.36 their feature gate is off by default.

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// Whether a toleration matches this taint. An empty effect matches every effect, an empty key every key.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or("");
    let key = toleration.key.as_deref().unwrap_or("");
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or("") {
        "Exists" => true,
        "" | "Equal" => toleration.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or(""),
        _ => false,
    }
}

/// The first taint with the effect NoSchedule or NoExecute that no toleration matches.
pub fn untolerated<'a>(tolerations: &[Toleration], taints: &'a [Taint]) -> Option<&'a Taint> {
    let hard = |t: &&Taint| matches!(t.effect.as_str(), "NoSchedule" | "NoExecute");
    let mut taints = taints.iter().filter(hard);
    taints.find(|taint| !tolerations.iter().any(|t| tolerates(t, taint)))
}
