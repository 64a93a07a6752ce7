//! Pod: its selectable fields, its state, what it requests, and its topology spread constraints.

mod app_armor;
mod at_most_one;
mod preemption;
pub mod resources;
mod state;
pub mod surge_first;
pub mod topology_spread;

use k8s_openapi::api::core::v1::{EphemeralVolumeSource, Pod, Volume};
use knarr_apimachinery::codec::{self, DecodeError, StrictError};

use super::text;
use crate::api_type::ApiType;

pub use app_armor::{APP_ARMOR_ANNOTATION, app_armor_profile};
pub use at_most_one::{AT_MOST_ONE, at_most_one};
pub use preemption::{
    CROSS_NODE_PREEMPTION, HARD, PREEMPTION_BUDGETS, UnknownValue, has_hard_budgets,
    requests_cross_node_preemption, unknown_preemption_values,
};
pub use state::{DISRUPTION_TARGET, condition, is_mirror, is_ready, node_name, phase, ready_since};

/// Decodes a pod that is not from the API, as [`codec::read`] does, with its strict errors.
///
/// # Errors
///
/// If `json` is no pod.
// Not generic and never inlined: the decoders of a pod's types are compiled in this crate only.
#[inline(never)]
pub fn read(json: &[u8]) -> Result<(Pod, Vec<StrictError>), DecodeError> {
    codec::read(json)
}

/// Appends a volume's JSON as serde writes it.
///
/// # Errors
///
/// Never for a typed volume.
// As [`read`]: a volume has some thirty types of sources.
#[inline(never)]
pub fn write_volume(volume: &Volume, out: &mut Vec<u8>) -> serde_json::Result<()> {
    codec::write_plain(volume, out)
}

/// The same of the source of an ephemeral volume, `null` if there is none.
///
/// # Errors
///
/// As [`write_volume`].
#[inline(never)]
pub fn write_ephemeral(source: Option<&EphemeralVolumeSource>, out: &mut Vec<u8>) -> serde_json::Result<()> {
    codec::write_plain(&source, out)
}

/// Whether the phase is one that a pod does not leave.
pub fn is_terminal_phase(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// Whether the pod's phase is Succeeded or Failed: it uses no resources, and its addresses may be another pod's.
pub fn is_terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    phase.is_some_and(is_terminal_phase)
}

/// Whether it counts as a replica: neither terminal nor terminating (SPEC T7).
pub fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && pod.metadata.deletion_timestamp.is_none()
}

impl ApiType for Pod {
    const SELECTABLE_FIELDS: &'static [&'static str] = &[
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ];

    fn field(&self, path: &str) -> String {
        let (spec, status) = (self.spec.as_ref(), self.status.as_ref());
        let value = match path {
            "spec.nodeName" => spec.map(|s| text(&s.node_name)),
            "spec.restartPolicy" => spec.map(|s| text(&s.restart_policy)),
            "spec.schedulerName" => spec.map(|s| text(&s.scheduler_name)),
            "spec.serviceAccountName" => spec.map(|s| text(&s.service_account_name)),
            "spec.hostNetwork" => {
                let shared = spec.and_then(|s| s.host_network).unwrap_or(false);
                Some(if shared { "true" } else { "false" })
            }
            "status.phase" => status.map(|s| text(&s.phase)),
            "status.podIP" => status.map(|s| text(&s.pod_ip)),
            "status.nominatedNodeName" => status.map(|s| text(&s.nominated_node_name)),
            _ => None,
        };
        value.unwrap_or("").to_string()
    }
}
