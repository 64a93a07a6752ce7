//! How often each container's probes were asked, and what they answered: `/metrics/probes`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_kubelet::probe::{Answer, Kind};
use parking_lot::Mutex;

/// Whose, which probe, and what came of it: in the order of the metric's labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked {
    pub container: String,
    pub namespace: String,
    pub pod: String,
    pub pod_uid: String,
    pub probe_type: &'static str,
    pub result: &'static str,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Counts(Mutex<BTreeMap<Asked, u64>>);

impl Counts {
    pub fn count(&self, pod: &core::Pod, container: &str, kind: Kind, answer: &Answer) {
        let meta = &pod.metadata;
        let text = |t: &Option<String>| t.clone().unwrap_or_default();
        let asked = Asked {
            container: container.into(),
            namespace: text(&meta.namespace),
            pod: text(&meta.name),
            pod_uid: text(&meta.uid),
            probe_type: kind.title(),
            result: match answer {
                Answer::Success | Answer::Warning(_) => "successful",
                Answer::Failure(_) => "failed",
                Answer::Unknown(_) => "unknown",
            },
        };
        *self.0.lock().entry(asked).or_default() += 1;
    }

    /// Of a pod that is gone nobody asks any more.
    pub fn forget(&self, uid: &str) {
        self.0.lock().retain(|asked, _| asked.pod_uid != uid);
    }

    pub fn all(&self) -> BTreeMap<Asked, u64> {
        self.0.lock().clone()
    }
}
