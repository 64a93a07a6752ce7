//! The metrics of all control loops of a process, under the names of kube-controller-manager, kube-scheduler, client-go and
//! controller-runtime. The API server of the process shows them at `/metrics`. A control loop with metrics of its own is a field here.

use knarr_client::metrics::Registry;
use knarr_client::metrics::leader_election::LeaderElectionMetrics;
use knarr_client::metrics::reflector::ReflectorMetrics;

use crate::metrics::ControllerMetrics;
use crate::{podautoscaling, rebalancing, scheduler};

/// The metrics of all control loops of a process. Clones share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    pub(crate) leader_election: LeaderElectionMetrics,
    pub(crate) reflectors: ReflectorMetrics,
    pub(crate) controllers: ControllerMetrics,
    pub(crate) autoscaling: podautoscaling::Metrics,
    pub(crate) rebalancing: rebalancing::Metrics,
    pub(crate) scheduler: scheduler::Metrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::default();
        Metrics {
            leader_election: LeaderElectionMetrics::new(&registry),
            reflectors: ReflectorMetrics::new(&registry),
            controllers: ControllerMetrics::new(&registry),
            autoscaling: podautoscaling::Metrics::new(&registry),
            rebalancing: rebalancing::Metrics::new(&registry),
            scheduler: scheduler::Metrics::new(&registry),
            registry,
        }
    }
}

impl Metrics {
    /// The metrics in Prometheus' text format.
    pub fn text(&self) -> String {
        self.registry.text()
    }
}
