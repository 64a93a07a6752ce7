//! Events about policies that are not fully in effect.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;
use knarr_api::k8s_openapi;
use knarr_client::events::{EventRecorder, EventType};
use knarr_network::policy::{MAX_PEERS_PER_GROUP, MAX_PEERS_PER_NAMESPACE, PolicyKey, Problem};

/// Problems of which the last report knows; more than these are not reported.
const MAX_REPORTED: usize = 1000;

/// Records an event for each new problem.
pub(super) struct Reporter {
    recorder: Option<EventRecorder>,
    reported: BTreeSet<(PolicyKey, Problem)>,
}

impl Reporter {
    pub fn new(recorder: Option<EventRecorder>) -> Self {
        Reporter {
            recorder,
            reported: BTreeSet::new(),
        }
    }

    pub fn report(&mut self, problems: &BTreeSet<(PolicyKey, Problem)>) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        let problems: BTreeSet<_> = problems.iter().take(MAX_REPORTED).cloned().collect();
        for (policy, problem) in problems.difference(&self.reported) {
            let (reason, message) = describe(problem);
            recorder.event(&reference(policy, problem), EventType::Warning, reason, message);
        }
        self.reported = problems;
    }
}

/// Of the policy, or of the pod if the problem is of all its policies together.
fn reference(policy: &PolicyKey, problem: &Problem) -> ObjectReference {
    let (api_version, kind, name) = match problem {
        Problem::PodLimit { pod } if policy.name.is_empty() => ("v1", "Pod", &pod.name),
        _ => ("networking.k8s.io/v1", "NetworkPolicy", &policy.name),
    };
    ObjectReference {
        api_version: Some(api_version.into()),
        kind: Some(kind.into()),
        namespace: Some(policy.namespace.to_string()),
        name: Some(name.to_string()),
        ..ObjectReference::default()
    }
}

fn describe(problem: &Problem) -> (&'static str, String) {
    match problem {
        Problem::NamespaceLimit => (
            "PolicyLimitExceeded",
            format!(
                "The policies of this namespace have more than {MAX_PEERS_PER_NAMESPACE} peers and ports; \
                 this one isolates the pods it selects and allows nothing"
            ),
        ),
        Problem::PodLimit { pod } => (
            "PolicyLimitExceeded",
            format!(
                "More than {MAX_PEERS_PER_GROUP} pairs of peers and ports are allowed for pod {pod}; the rest is denied"
            ),
        ),
        Problem::NoSuchPort { pod, protocol, name } => (
            "NamedPortNotFound",
            format!("Pod {pod} has no {} port named {name:?}", protocol.name()),
        ),
    }
}
