//! The network agent of a node: its real catalog and reports, on a kernel that is played. The kernel takes a while over
//! each change, forgets nothing when the agent dies, and everything when its machine does.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use knarr_client::{Api, Clock};
use knarr_node::kubelet::{Availability, NodeNetwork};
use knarr_node_network::catalog::{Reached, Shared};
use knarr_node_network::propagation::EndpointPropagation;
use knarr_node_network::signal::Signal;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Mutation;
use crate::observer::Observer;
use crate::random::Stream;

/// One change in so many thousands takes the kernel long …
const SLOW_PER_MILLE: u32 = 50;
/// … up to this.
const SLOW_MILLIS: u64 = 1_500;
/// The others.
const USUAL_MILLIS: u64 = 30;

/// See the module.
#[derive(Debug)]
pub(crate) struct NetworkAgent(Reports);

struct Reports(EndpointPropagation);

impl std::fmt::Debug for Reports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EndpointPropagation")
    }
}

/// What an agent is started with.
pub(crate) struct Parts {
    pub node: String,
    pub api: Arc<dyn Api>,
    pub clock: Arc<dyn Clock>,
    pub observer: Arc<Observer>,
    pub chance: Stream,
    pub mutation: Option<Mutation>,
    pub dead: CancellationToken,
}

impl NetworkAgent {
    pub fn start(parts: Parts) -> Arc<Self> {
        let catalog = Arc::new(Shared::start(parts.api.clone()));
        let kernel = Arc::new(Signal::new(Reached::default()));
        let propagation = EndpointPropagation::start(
            parts.api.clone(),
            &parts.node,
            catalog.clone(),
            kernel.clone(),
            parts.clock.clone(),
        );
        let dead = parts.dead.clone();
        let programming = program(parts, catalog, kernel);
        tokio::spawn(async move { dead.run_until_cancelled(programming).await });
        Arc::new(NetworkAgent(Reports(propagation)))
    }
}

/// Brings the catalog's changes to the kernel, and says when they are there.
async fn program(mut parts: Parts, catalog: Arc<Shared>, kernel: Arc<Signal<Reached>>) {
    let mut subscription = catalog.subscribe();
    while subscription.changes().await.is_some() {
        let reached = catalog.reached();
        // Before the first lists are complete the kernel keeps what it has.
        if !reached.is_synced() {
            continue;
        }
        let offered = catalog.read().offered();
        let takes = match parts.chance.per_mille(SLOW_PER_MILLE) {
            true => parts.chance.millis(USUAL_MILLIS, SLOW_MILLIS),
            false => parts.chance.millis(0, USUAL_MILLIS),
        };
        if parts.mutation == Some(Mutation::ReportBeforeCommit) {
            kernel.set(reached);
        }
        sleep(takes).await;
        parts.observer.programmed(&parts.node, offered);
        kernel.set(reached);
    }
}

#[async_trait]
impl NodeNetwork for NetworkAgent {
    async fn withdrawn(&self, namespace: &str, addresses: &[IpAddr]) {
        self.0.0.withdrawn(namespace, addresses).await;
    }

    fn reports_endpoints(&self) -> bool {
        true
    }

    fn metrics(&self) -> String {
        String::new()
    }

    fn availability(&self) -> Option<Availability> {
        None
    }

    async fn availability_changed(&self) {
        std::future::pending().await
    }
}
