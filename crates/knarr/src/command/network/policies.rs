//! The enforcement of NetworkPolicies: started with the pods that run, and kept up to date with pods and routes.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use knarr_client::events::EventRecorder;
use knarr_client::{Api, Clock};
use knarr_node_network::pods::{self, Pods, SandboxId};
use knarr_node_network::policy::{self, NetworkPolicies};
use knarr_node_network::routes::{self, Unreachable};
use knarr_node_network::signal::Signal;

use super::Names;
use crate::command::Failure;
use crate::config::Config;

/// With the pods that run, whose rules stay in force until all objects are synced.
pub fn start(
    config: &Config,
    names: &Names,
    pods: &Pods,
    api: Arc<dyn Api>,
    clock: Arc<dyn Clock>,
) -> Result<Arc<NetworkPolicies>, Failure> {
    let settings = policy::Config {
        table: names.policy_table(),
        node_name: config.node_name.as_str().into(),
        dns: config.network.dns_addresses(),
        events: Some(EventRecorder::new(
            api.clone(),
            "network-policy",
            &config.node_name,
            clock,
        )),
    };
    let running: Vec<policy::Attachment> = pods.list().iter().map(|pod| attachment(pod)).collect();
    NetworkPolicies::start(api, settings, running)
        .map(Arc::new)
        .map_err(|e| {
            Failure::new(
                "cannot enforce NetworkPolicies; with --disable policy another component can enforce them",
            )
            .because(e)
        })
}

fn attachment(attached: &pods::Attachment) -> policy::Attachment {
    let pod = attached.pod.as_ref();
    policy::Attachment {
        sandbox: attached.sandbox.to_string().into(),
        pod: pod.map(|pod| policy::PodKey::new(&pod.namespace, &pod.name)),
        uid: pod.and_then(|pod| pod.uid.as_deref()).map(Into::into),
        addresses: attached.addresses.clone(),
    }
}

/// Removes the rules of sandboxes that are deleted.
pub async fn follow_sandboxes(pods: Pods, policies: Arc<NetworkPolicies>) {
    let mut changes = pods.subscribe();
    while changes.changed().await.is_ok() {
        policies.retain(|sandbox| {
            let id = SandboxId::try_from(sandbox.to_string());
            id.is_ok_and(|id| pods.get(&id).is_some())
        });
    }
}

/// Has the addresses of removed pods cleaned while no route leads to them.
pub async fn follow_unreachable(status: Arc<Signal<routes::Status>>, policies: Arc<NetworkPolicies>) {
    let mut seen = Unreachable::default();
    loop {
        let status = status.wait_for(|status| status.unreachable != seen).await;
        seen = status.unreachable;
        policies.set_unreachable(&seen);
    }
}

/// Brings a pod's interface up only when the kernel has its policies.
#[derive(Default)]
pub struct Isolation(OnceLock<Arc<NetworkPolicies>>);

impl Isolation {
    pub fn set(&self, policies: Arc<NetworkPolicies>) {
        // Set once, when the node's network starts.
        let _ = self.0.set(policies);
    }
}

#[async_trait]
impl pods::BeforeUp for Isolation {
    async fn before_up(
        &self,
        pod: &pods::Attachment,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match self.0.get() {
            Some(policies) => policies.attach(attachment(pod)).await.map_err(Into::into),
            None => Err("NetworkPolicies are not enforced yet".into()),
        }
    }
}
