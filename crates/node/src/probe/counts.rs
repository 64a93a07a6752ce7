//! The counts of each container's probe results: `/metrics/probes`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_kubelet::probe::{Kind, ProbeResult};
use parking_lot::Mutex;

/// The labels of one series, in the metric's order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbeSeries {
    pub container: String,
    pub namespace: String,
    pub pod: String,
    pub pod_uid: String,
    pub probe_type: &'static str,
    pub result: &'static str,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Counts(Mutex<BTreeMap<ProbeSeries, u64>>);

impl Counts {
    pub fn count(&self, pod: &core::Pod, container: &str, kind: Kind, result: &ProbeResult) {
        let meta = &pod.metadata;
        let text = |t: &Option<String>| t.clone().unwrap_or_default();
        let series = ProbeSeries {
            container: container.into(),
            namespace: text(&meta.namespace),
            pod: text(&meta.name),
            pod_uid: text(&meta.uid),
            probe_type: kind.title(),
            result: match result {
                ProbeResult::Success | ProbeResult::Warning(_) => "successful",
                ProbeResult::Failure(_) => "failed",
                ProbeResult::Unknown(_) => "unknown",
            },
        };
        *self.0.lock().entry(series).or_default() += 1;
    }

    /// Removes a deleted pod's series.
    pub fn forget(&self, uid: &str) {
        self.0.lock().retain(|series, _| series.pod_uid != uid);
    }

    pub fn all(&self) -> BTreeMap<ProbeSeries, u64> {
        self.0.lock().clone()
    }
}
