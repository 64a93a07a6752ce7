//! The memory of ends (SPEC B8): how each container's last runs ended, and what happened when while the pod itself
//! ended. It is told in an annotation, beside the status writes that happen anyway, and outlives the kubelet there.

use std::collections::{BTreeMap, VecDeque};

use k8s_openapi::api::core::v1::ContainerStateTerminated;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use serde::{Deserialize, Serialize};

use super::Pod;

/// The annotation, in JSON.
pub const ANNOTATION: &str = "knarr.io/ends";
/// Terminations kept of each container.
const KEPT: usize = 5;
/// Moments kept of the pod's end: enough for twenty containers with hooks; what comes on top is left out.
const MOMENTS_MAX: usize = 80;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ends {
    /// The oldest first.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub containers: BTreeMap<String, VecDeque<End>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Moment>,
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct End {
    pub restart_count: u32,
    pub exit_code: i32,
    pub reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
}

/// Something that happened while the pod ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// To the millisecond: what comes after what is the point of it.
    pub at: Timestamp,
    /// `Deleted`, `PreStop`, `PreStopDone`, `EndpointsDropped`, `Term`, `Exited`, `SandboxStopped`, `VolumesFreed`, …
    pub what: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Seconds of grace, an exit code, a reason: what there is to say of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl Ends {
    /// What an earlier kubelet left; nothing, where somebody else has written there.
    pub(super) fn of(annotations: Option<&BTreeMap<String, String>>) -> Self {
        let text = annotations.and_then(|a| a.get(ANNOTATION));
        text.and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }

    fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.timeline.is_empty()
    }

    /// The annotation's value; none if there is nothing to remember.
    pub(super) fn text(&self) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        serde_json::to_string(self).ok()
    }
}

fn millis(at: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(at.as_millisecond()).unwrap_or(at)
}

impl Pod {
    /// A run has ended, or was found to have ended.
    pub(super) fn remember_end(&mut self, name: &str, attempt: u32, ended: &ContainerStateTerminated) {
        let end = End {
            restart_count: attempt,
            exit_code: ended.exit_code,
            reason: ended.reason.clone().unwrap_or_default(),
            started_at: ended.started_at.as_ref().map(|t| t.0),
            finished_at: ended.finished_at.as_ref().map(|t| t.0),
        };
        let known = self.ends.containers.entry(name.to_string()).or_default();
        // A kubelet that comes back finds what the one before has told.
        known.retain(|k| k.restart_count != attempt);
        known.push_back(end);
        while known.len() > KEPT {
            known.pop_front();
        }
    }

    /// Something happens while the pod ends; before that it is none of the timeline's business.
    pub(super) fn moment(
        &mut self,
        now: Timestamp,
        what: &str,
        container: Option<&str>,
        detail: Option<String>,
    ) {
        if self.ending.is_none() || self.ends.timeline.len() >= MOMENTS_MAX {
            return;
        }
        self.ends.timeline.push(Moment {
            at: millis(now),
            what: what.into(),
            container: container.map(str::to_string),
            detail,
        });
    }
}
