//! A pod comes: isolated first, then its rules, then it may send.

use std::time::Duration;

use knarr_api::registry::NETWORK_POLICY;
use knarr_client::ListOptions;
use knarr_network::policy::{Attachment, PodKey};
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::{NetworkPolicies, State};

/// How long a pod waits for its rules. The CNI plugin's caller waits 10 seconds.
const WAIT: Duration = Duration::from_secs(8);
/// Between two attempts to list the policies of its namespace.
const RETRY: Duration = Duration::from_millis(250);
/// Policies of one page.
const PAGE: usize = 500;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    #[error("the NetworkPolicies of the node are not in the kernel yet")]
    NotSynced,
    #[error("the pod {0} is not known yet")]
    UnknownPod(PodKey),
    #[error("the NetworkPolicies of the namespace {0} are not known yet")]
    UnknownPolicies(String),
}

impl NetworkPolicies {
    /// Returns when every policy that was there when the pod was created is in force for it. Before that, and after an
    /// error, it is isolated in both directions until [`NetworkPolicies::detach`]. Not more than 8 seconds.
    ///
    /// A caller that stops waiting leaves it isolated.
    pub async fn attach(&self, attachment: Attachment) -> Result<(), AttachError> {
        let state = &self.state;
        let sandbox = attachment.sandbox.clone();
        let pod = attachment.pod.clone().map(|pod| (pod, attachment.uid.clone()));
        let addresses = attachment.addresses.clone();
        let (is_clean, version) = state.change(|policies| {
            let is_clean = state.flows.attach(&sandbox, &addresses);
            policies.attach(attachment);
            is_clean
        });
        let mut missing = AttachError::NotSynced;
        let attached = timeout(WAIT, async {
            committed(state, version).await;
            if !is_clean {
                state.flows.delete(&addresses).await;
            }
            if let Some((pod, uid)) = pod {
                missing = AttachError::UnknownPod(pod.clone());
                state
                    .reached
                    .wait_for(|_| state.policies.lock().knows_pod(&pod, uid.as_deref()))
                    .await;
                missing = AttachError::UnknownPolicies(pod.namespace.to_string());
                policies_are_known(state, &pod).await;
            }
            missing = AttachError::NotSynced;
            let (_, version) = state.change(|policies| policies.release(&sandbox));
            committed(state, version).await;
        });
        attached.await.map_err(|_| missing)
    }
}

async fn committed(state: &State, version: u64) {
    state
        .committed
        .wait_for(|committed| *committed >= Some(version))
        .await;
}

/// Returns when all policies that are as old as the pod have been seen. The watch shows this only when something happens to
/// a policy, so the namespace's are listed, and the youngest of them is waited for.
async fn policies_are_known(state: &State, pod: &PodKey) {
    loop {
        let first_seen = state.origins.lock().first_revision(&pod.namespace, &pod.name);
        let reached = state.reached.get().policies;
        if first_seen.is_some_and(|revision| reached >= Some(revision)) {
            return;
        }
        match youngest_policy(state, &pod.namespace).await {
            Ok(youngest) => {
                state
                    .reached
                    .wait_for(|reached| reached.policies >= Some(youngest))
                    .await;
                return;
            }
            Err(error) => {
                debug!(%error, namespace = &*pod.namespace, "cannot list policies, trying again");
                sleep(RETRY).await;
            }
        }
    }
}

/// The revision of the policy of a namespace that was changed last, or 0.
async fn youngest_policy(state: &State, namespace: &str) -> Result<u64, knarr_apimachinery::Error> {
    let mut youngest = 0;
    let mut options = ListOptions {
        namespace: namespace.to_string(),
        limit: PAGE,
        ..ListOptions::default()
    };
    loop {
        let list = state.api.list(&NETWORK_POLICY, options.clone()).await?;
        let revisions = list.items.iter().map(|policy| policy.revision());
        youngest = revisions.fold(youngest, u64::max);
        if list.continue_token.is_empty() {
            return Ok(youngest);
        }
        options.continue_token = list.continue_token;
    }
}
