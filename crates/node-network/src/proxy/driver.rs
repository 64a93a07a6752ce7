//! Follows the catalog and the Node, and has the kernel follow them.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_client::Clock;
use knarr_client::workqueue::Backoff;
use knarr_network::catalog::ServiceKey;
use knarr_network::proxy::NodeFacts;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep};
use tracing::{error, info, warn};

use super::Config;
use super::health::Health;
use super::health_checks::HealthChecks;
use super::kernel::{Done, Kernel, KernelTask};
use super::metrics::{Metrics, Synced};
use super::node::NodeWatch;
use super::stale_flows::StaleFlows;
use super::sysctl;
use crate::catalog::{Changes, Shared, SyncedRevisions};
use crate::signal::Signal;

/// Between two questions whether the tables are still there.
const GLANCE_EVERY: Duration = Duration::from_secs(5);
/// Between two comparisons of everything; nodes make theirs at different times.
const CHECK_EVERY: Duration = Duration::from_secs(300);
/// Before everything is compared again after an error.
const RETRY: Backoff = Backoff {
    base: Duration::from_millis(10),
    max: Duration::from_secs(30),
};

/// The parts of a proxy, see the module above.
pub(super) struct Driver {
    pub config: Config,
    pub catalog: Arc<Shared>,
    pub node: Arc<NodeWatch>,
    pub health_checks: HealthChecks,
    pub stale_flows: Arc<StaleFlows>,
    pub clock: Arc<dyn Clock>,
    pub reached: Arc<Signal<SyncedRevisions>>,
    pub health: Arc<Health>,
    pub metrics: Arc<Metrics>,
}

/// What the kernel does not have yet.
#[derive(Default)]
struct Pending {
    services: BTreeSet<ServiceKey>,
    reached: SyncedRevisions,
    triggered: Vec<Timestamp>,
}

impl Pending {
    fn add(&mut self, mut changes: Changes) {
        self.services.append(&mut changes.services);
        self.triggered.append(&mut changes.triggered);
        self.reached = changes.reached;
    }
}

impl Driver {
    /// Ends with the catalog.
    pub async fn run(mut self) {
        let config = self.config.clone();
        if let Err(error) = spawn_blocking(move || sysctl::set_conntrack(&config)).await {
            error!(%error, "setting kernel parameters failed");
        }
        let mut subscription = self.catalog.subscribe();
        let mut pending = Pending::default();
        // Before the first lists are complete the kernel keeps what an earlier process left.
        while !pending.reached.is_synced() {
            match subscription.changes().await {
                Some(changes) => pending.add(changes),
                None => return,
            }
        }
        // What happened before is no measure of how long this took.
        pending.triggered.clear();
        let mut node = self.node.first().await;
        let mut kernel = None;
        self.program(&mut kernel, Wake::Changes, &node, &mut pending)
            .await;
        let mut glance = every(GLANCE_EVERY, GLANCE_EVERY);
        let mut check = every(CHECK_EVERY, self.first_check());
        loop {
            let wake = tokio::select! {
                changes = subscription.changes() => {
                    let Some(changes) = changes else { return };
                    let is_due = !changes.services.is_empty();
                    self.metrics.queued(changes.service_changes, changes.slice_changes, self.clock.now());
                    pending.add(changes);
                    if !is_due {
                        // A revision was reached that changes nothing here.
                        self.reached.set(pending.reached);
                        continue;
                    }
                    Wake::Changes
                }
                now = self.node.changed(&node) => {
                    node = now;
                    Wake::Changes
                }
                _ = glance.tick() => Wake::Glance,
                _ = check.tick() => Wake::Check,
            };
            self.program(&mut kernel, wake, &node, &mut pending).await;
        }
    }

    /// Returns when the kernel has what was pending. After an error everything is compared, as often as it takes.
    async fn program(
        &mut self,
        kernel: &mut Option<Kernel>,
        wake: Wake,
        node: &NodeFacts,
        pending: &mut Pending,
    ) {
        let mut work = match wake {
            Wake::Glance => KernelTask::Glance,
            Wake::Check => KernelTask::Check,
            Wake::Changes => {
                self.health.queued();
                changes(&mut pending.services, node)
            }
        };
        let mut failures = 0;
        loop {
            let new = || Kernel::new(self.config.proxy.clone(), self.catalog.clone());
            let mut worker = kernel.take().unwrap_or_else(new);
            let begun = Instant::now();
            let result = spawn_blocking(move || {
                let result = worker.carry_out(work);
                (worker, result)
            });
            match result.await {
                Ok((worker, result)) => {
                    *kernel = Some(worker);
                    match result {
                        Ok(done) => return self.done(wake, done, begun.elapsed(), pending),
                        // Another program has removed a table or an element of it.
                        Err(error) if failures == 0 && error.is_not_found() => {
                            info!(%error, "the tables are not as they were, everything is compared");
                        }
                        Err(error) => {
                            warn!(%error, "cannot program the kernel, everything is compared again")
                        }
                    }
                }
                // The next one reads from the kernel what this one has left.
                Err(error) => error!(%error, "programming the kernel failed"),
            }
            self.metrics.failed();
            self.health.queued();
            sleep(RETRY.after(failures)).await;
            failures = (failures + 1).min(16);
            work = changes(&mut pending.services, node);
        }
    }

    fn done(&mut self, wake: Wake, done: Done, took: Duration, pending: &mut Pending) {
        self.health_checks.sync(done.health_checks);
        self.stale_flows.add(done.stale_udp);
        if wake != Wake::Changes && !done.is_full {
            return;
        }
        self.reached.set(pending.reached);
        self.health.updated();
        let now = self.clock.now();
        let triggered = std::mem::take(&mut pending.triggered);
        self.metrics.synced(Synced {
            took,
            is_full: done.is_full,
            now,
            since_triggered: triggered.into_iter().map(|t| now.duration_since(t)).collect(),
        });
    }

    /// Spread over the nodes by their names.
    fn first_check(&self) -> Duration {
        let mut hasher = DefaultHasher::new();
        self.config.node_name.hash(&mut hasher);
        let share = u32::try_from(hasher.finish() % 1000).unwrap_or(0);
        CHECK_EVERY / 2 + CHECK_EVERY * share / 1000
    }
}

/// Why the kernel is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    Changes,
    Glance,
    Check,
}

fn changes(services: &mut BTreeSet<ServiceKey>, node: &NodeFacts) -> KernelTask {
    KernelTask::Changes {
        services: std::mem::take(services),
        node: node.clone(),
    }
}

fn every(period: Duration, first: Duration) -> Interval {
    let mut interval = interval_at(Instant::now() + first, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}
