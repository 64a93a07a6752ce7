//! The termination history (SPEC B8): the last terminations of each container, and the timeline of the pod's own
//! termination. It is written to an annotation together with the status, and so outlives the kubelet.

use std::collections::{BTreeMap, VecDeque};

use k8s_openapi::api::core::v1::ContainerStateTerminated;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use serde::{Deserialize, Serialize};

use super::Pod;

/// The annotation's name; its value is JSON.
pub const ANNOTATION: &str = "knarr.io/ends";
/// The number of terminations that are kept of each container.
const TERMINATIONS_KEPT: usize = 5;
/// The most entries of the timeline: enough for twenty containers with hooks; further entries are dropped.
const TIMELINE_MAX: usize = 80;

/// The value of the annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TerminationHistory {
    /// The terminations of each container, the oldest first.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub containers: BTreeMap<String, VecDeque<Termination>>,
    /// The entries of the pod's own termination, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<TimelineEntry>,
}

/// How one run of a container terminated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Termination {
    pub restart_count: u32,
    pub exit_code: i32,
    pub reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
}

/// One entry of the timeline of a pod's termination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineEntry {
    /// With milliseconds, so that the order of the entries is visible.
    pub at: Timestamp,
    /// `Deleted`, `PreStop`, `PreStopDone`, `EndpointsDropped`, `Term`, `Exited`, `SandboxStopped`, `VolumesFreed`, …
    pub what: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The grace period, an exit code or a reason, as text for users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl TerminationHistory {
    /// Reads the annotation that an earlier kubelet wrote; empty if there is none or it does not parse.
    pub(super) fn parse(annotations: Option<&BTreeMap<String, String>>) -> Self {
        let text = annotations.and_then(|a| a.get(ANNOTATION));
        text.and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }
}

fn millis(at: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(at.as_millisecond()).unwrap_or(at)
}

/// A pod's history, and what of it was written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RecordedHistory {
    current: TerminationHistory,
    /// As last written to the annotation.
    written: TerminationHistory,
}

impl RecordedHistory {
    pub(super) fn new(written: TerminationHistory) -> Self {
        RecordedHistory {
            current: written.clone(),
            written,
        }
    }

    /// Adds the termination of a run.
    pub(super) fn add_termination(
        &mut self,
        name: &str,
        attempt: u32,
        terminated: &ContainerStateTerminated,
    ) {
        let end = Termination {
            restart_count: attempt,
            exit_code: terminated.exit_code,
            reason: terminated.reason.clone().unwrap_or_default(),
            started_at: terminated.started_at.as_ref().map(|t| t.0),
            finished_at: terminated.finished_at.as_ref().map(|t| t.0),
        };
        let known = self.current.containers.entry(name.to_string()).or_default();
        // After a restart of the kubelet the run may be in the history already.
        known.retain(|k| k.restart_count != attempt);
        known.push_back(end);
        while known.len() > TERMINATIONS_KEPT {
            known.pop_front();
        }
    }

    fn add_entry(&mut self, entry: TimelineEntry) {
        if self.current.timeline.len() < TIMELINE_MAX {
            self.current.timeline.push(entry);
        }
    }

    /// The annotation's value if it has changed; from now on it counts as written.
    pub(super) fn take_changed(&mut self) -> Option<String> {
        if self.current == self.written {
            return None;
        }
        let text = serde_json::to_string(&self.current).ok()?;
        self.written = self.current.clone();
        Some(text)
    }
}

impl Pod {
    /// Adds an entry to the timeline, if the pod is terminating.
    pub(super) fn add_to_timeline(
        &mut self,
        now: Timestamp,
        what: &str,
        container: Option<&str>,
        detail: Option<String>,
    ) {
        if self.termination.is_some() {
            self.history.add_entry(TimelineEntry {
                at: millis(now),
                what: what.into(),
                container: container.map(str::to_string),
                detail,
            });
        }
    }
}
