//! The executing half of the controllers, the scheduler and the rebalancer: caches, queues and the execution of actions.
//!
//! Decisions are made in `knarr-controllers` and `knarr-scheduler`; here are loops, queues and requests only.
//!
//! **Identities.** The shared caches and the leader's lease are `system:kube-controller-manager`'s; the scheduler
//! writes as `system:kube-scheduler`, each controller as its own service account ([`Controller::account`]) with the
//! role of that account. The scheduler decides from the shared caches, too, where it reads only kinds that its own role
//! may read.
//!
//! # Where things are
//!
//! Any controller: `runner.rs` (keys), `executor.rs` (actions), `view.rs` (what it reads). The scheduler: `scheduler.rs`. Fence agents: `fencing.rs`.
//! Declared domains of topology keys: `topology_domains.rs`. RebalancePolicies: `rebalancing.rs`. Scales and metrics of
//! HorizontalPodAutoscalers: `podautoscaling.rs`. The garbage collector: `garbage_collector.rs`. Definitions of custom kinds: `definitions.rs`.
//! Metrics of controllers: `metrics/`; of all control loops: `control_loop_metrics.rs`.
//!
//! [`Controller::account`]: knarr_controllers::Controller::account

mod control_loop_metrics;
mod definitions;
pub mod executor;
pub mod fencing;
pub mod garbage_collector;
mod metrics;
pub mod podautoscaling;
pub mod rebalancing;
pub mod runner;
pub mod scheduler;
pub mod sweeper;
pub mod topology_domains;
pub mod view;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use knarr_client::leader::{LeaderElectionConfig, LeaderElector};
use knarr_client::{Api, Caches, Clock, Component, EventRecorder, Identities, SteadyClock, TypedApi};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub use knarr_controllers::Config as ControllersConfig;
pub use knarr_controllers::certificates;
pub use knarr_controllers::fencing::kinds as fencing_kinds;
pub use knarr_controllers::topology_domains::kinds as topology_domains_kinds;
pub use knarr_controllers::{nodeipam, service_account_tokens, servicelb};
/// How HorizontalPodAutoscalers are reconciled.
pub mod pod_autoscaling {
    pub use knarr_controllers::podautoscaling::Settings;
}
/// When a node is lost, and how fast pods are evicted then.
pub mod node_lifecycle {
    pub use knarr_controllers::node::health::{LEASE_SECONDS, Lifecycle};
    pub use knarr_controllers::node::zones::EvictionRates;
}
pub use control_loop_metrics::Metrics;
pub use knarr_rebalance::controller::kinds as rebalancing_kinds;
use knarr_scheduler::Profile;
pub use knarr_scheduler::config as scheduler_config;
pub use metrics::ControllerMetrics;
pub use runner::Base;

/// The lease for which several servers of one cluster compete: namespace and name.
pub const LEASE: (&str, &str) = ("kube-system", "knarr-control");
/// The directory of fence agents.
pub const FENCE_AGENTS: &str = "/usr/sbin";
/// The service account that creates the default StorageClass.
const DEFAULT_STORAGE_ACCOUNT: &str = "knarr-default-storage-class";
/// The time between two attempts to create the objects that every cluster has.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The timeout of releasing the lease at shutdown; otherwise the lease expires.
const RELEASE: Duration = Duration::from_secs(2);

/// The configuration of the control loops.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub controllers: knarr_controllers::Config,
    pub scheduler: scheduler_config::KubeSchedulerConfiguration,
    /// Runs fence agents; `None`: the programs in [`FENCE_AGENTS`].
    pub fence_agents: Option<Arc<dyn fencing::FenceAgents>>,
    /// The agents and parameters that FencingPolicies may name in addition to the lists.
    pub fence_agents_allowed: fencing::Allowed,
    /// Whether TopologyDomains can be declared (SPEC B3): their CustomResourceDefinition is created.
    pub topology_domains: bool,
    /// Whether RebalancePolicies are carried out; without it their kinds do not exist.
    pub rebalancing: bool,
    /// Shared by all clones of this configuration.
    pub metrics: Metrics,
    /// The identity of this process in leader election, unique for each start, if several servers share one store.
    /// `None` for a single server.
    pub identity: Option<String>,
}

/// Runs every controller and the scheduler until `cancel`; nothing of it is left running when this returns.
///
/// Boxed here: otherwise rustc compiles all loops again in each crate that runs this.
pub fn run(
    identities: Arc<dyn Identities>,
    config: Config,
    clock: Arc<dyn Clock>,
    cancel: CancellationToken,
) -> BoxFuture<'static, ()> {
    Box::pin(run_until(identities, config, clock, cancel))
}

async fn run_until(
    identities: Arc<dyn Identities>,
    config: Config,
    clock: Arc<dyn Clock>,
    cancel: CancellationToken,
) {
    let Some(identity) = &config.identity else {
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = work(identities, &config, clock) => {}
        }
        return;
    };
    let api = identities.of(&Component::ControllerManager);
    let elector = LeaderElector::new(
        api,
        clock.clone(),
        LEASE,
        identity,
        LeaderElectionConfig::default(),
    )
    .with_metrics(config.metrics.leader_election.clone());
    tokio::select! {
        biased;
        () = cancel.cancelled() => {}
        () = elector.run(|term| work(identities.clone().with_term(term), &config, clock.clone())) => {}
    }
    match timeout(RELEASE, elector.release()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) if error.is_not_found() => {}
        Ok(Err(error)) => debug!(%error, "the lease was not released"),
        Err(_) => debug!("the lease was not released in time"),
    }
}

/// The service accounts of all controllers that run with this configuration.
pub fn accounts(config: &knarr_controllers::Config) -> BTreeSet<&'static str> {
    let controllers = knarr_controllers::all(config).into_iter().map(|c| c.account());
    let sweeps = knarr_controllers::sweeps(config).into_iter().map(|s| s.account());
    let others = [
        garbage_collector::ACCOUNT,
        fencing::ACCOUNT,
        topology_domains::ACCOUNT,
        podautoscaling::ACCOUNT,
        rebalancing::ACCOUNT,
        DEFAULT_STORAGE_ACCOUNT,
    ];
    controllers.chain(sweeps).chain(others).collect()
}

/// Creates the default StorageClass, of local volumes, if it does not exist. Users may change it.
async fn default_storage(api: Arc<dyn Api>) {
    let class = knarr_controllers::persistentvolume::local::default_class();
    loop {
        match api.create_as(class.clone()).await {
            Err(error) if !error.is_already_exists() => {
                warn!(%error, "cannot create the default StorageClass yet");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            _ => return,
        }
    }
}

/// Runs all loops, and restarts them when the clock is set: grace periods of nodes are measured by it, and no node may
/// count as lost because the clock was set forward.
async fn work(identities: Arc<dyn Identities>, config: &Config, clock: Arc<dyn Clock>) {
    loop {
        let steady = SteadyClock::new(clock.clone());
        tokio::select! {
            biased;
            () = steady.stepped() => info!("the clock was set: all controllers are restarted"),
            () = loops(identities.clone(), config, Arc::new(steady.clone())) => return,
        }
    }
}

/// All loops; dropping the future stops them.
async fn loops(identities: Arc<dyn Identities>, config: &Config, clock: Arc<dyn Clock>) {
    let api = identities.of(&Component::ControllerManager);
    let metrics = &config.metrics;
    let caches = Arc::new(Caches::new(api.clone()).with_metrics(metrics.reflectors.clone()));
    let events = EventRecorder::new(api, "controller-manager", "", clock.clone());
    let base = Base {
        identities,
        caches,
        events,
        clock,
        metrics: metrics.controllers.clone(),
    };
    let mut running = JoinSet::new();
    let controllers = knarr_controllers::Config {
        time_zone: |name| jiff::tz::TimeZone::get(name).ok(),
        ..config.controllers.clone()
    };
    for controller in knarr_controllers::all(&controllers) {
        running.spawn(runner::run(base.clone(), controller));
    }
    for sweep in knarr_controllers::sweeps(&controllers) {
        running.spawn(sweeper::run(base.clone(), sweep));
    }
    running.spawn(default_storage(
        base.identities
            .of(&Component::Controller(DEFAULT_STORAGE_ACCOUNT)),
    ));
    let agents = config.fence_agents.clone();
    let agents = agents.unwrap_or_else(|| Arc::new(fencing::AgentDirectory(FENCE_AGENTS.into())));
    running.spawn(fencing::run(
        base.clone(),
        agents,
        config.fence_agents_allowed.clone(),
    ));
    if config.topology_domains {
        running.spawn(topology_domains::run(base.clone()));
    }
    running.spawn(garbage_collector::run(base.clone()));
    running.spawn(podautoscaling::run(
        base.clone(),
        controllers.pod_autoscaling,
        metrics.autoscaling.clone(),
    ));
    if config.rebalancing {
        let profiles = config.scheduler.profiles.iter().map(Profile::from).collect();
        let metrics = metrics.rebalancing.clone();
        running.spawn(rebalancing::run(base.clone(), profiles, metrics));
    }
    let metrics = metrics.scheduler.clone();
    let features = scheduler::Features {
        topology_domains: config.topology_domains,
    };
    running.spawn(scheduler::run_with(
        base,
        config.scheduler.scheduler(),
        metrics,
        features,
    ));
    while let Some(result) = running.join_next().await {
        if let Err(error) = result {
            // A panic is a bug in one loop; the others continue.
            warn!(%error, "a control loop panicked");
        }
    }
}
