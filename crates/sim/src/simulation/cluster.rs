//! The cluster of a history: what its components share, and their first start.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use knarr_client::Clock;
use knarr_control::nodeipam;
use knarr_kubelet::self_fencing::SelfFencing;

use super::features::is_about_services;
use super::setting::Setting;
use super::{Simulation, epoch};
use crate::components::{Control, Environment, Node};
use crate::faults::Faults;
use crate::fence_agents::{self, Agents};
use crate::observer::Observer;
use crate::progress::Progress;
use crate::random::stream;
use crate::servers::ApiServer;
use crate::store::ObservedStore;
use crate::switches::{Switch, Switches};

/// The prefix length of a node's podCIDR: 61 addresses for pods, more than one node ever needs; where an address that
/// is reused too early is to be found, 5.
const NODE_PREFIX: u8 = 26;
const SHORT_NODE_PREFIX: u8 = 29;
/// For 64 nodes or 512.
const CLUSTER_CIDR: &str = "10.244.0.0/20";

/// What all components share, before an API server runs.
pub(super) fn environment(
    simulation: &Simulation,
    on: Switches,
    observer: &Arc<Observer>,
    clock: &Arc<Progress>,
    agents: &Arc<Agents>,
    directory: PathBuf,
) -> io::Result<Environment> {
    let self_fencing = match on.has(Switch::SelfFencing) {
        true => SelfFencing::AtMostOne,
        false => SelfFencing::Annotated,
    };
    observer.note(&format!("nodes end by themselves: {self_fencing:?}"));
    observer.set_self_fencing(self_fencing);
    let prefix = match simulation.is_sought("N1") {
        true => SHORT_NODE_PREFIX,
        false => NODE_PREFIX,
    };
    Ok(Environment {
        seed: simulation.seed,
        servers: Arc::default(),
        observer: observer.clone(),
        clock: clock.clone(),
        epoch: epoch()?,
        directory,
        mutation: simulation.mutation,
        fence_agents: Arc::new(fence_agents::Handle(agents.clone())),
        fence_agents_allowed: fence_agents::allowed(),
        self_fencing,
        proxied: on.has(Switch::Services),
        networked: on.has(Switch::PodNetwork),
        staged: on.has(Switch::Staging),
        named: on.has(Switch::Names),
        node_ipam: node_ipam(prefix)?,
        on,
    })
}

/// Starts the API servers, then nodes and controllers, which faults can strike from then on.
pub(super) async fn start(
    environment: &mut Environment,
    setting: &mut Setting,
    agents: &Agents,
) -> io::Result<Faults> {
    let (on, observer) = (environment.on, environment.observer.clone());
    let store = on.has_store_faults();
    // The users' own server never loses a commit's answer: another one is needed.
    let servers = match store {
        true => setting.shape.servers.max(2),
        false => setting.shape.servers,
    };
    if store {
        observer.keep_commits();
    }
    if is_about_services(on) {
        observer.keep_network_versions();
    }
    environment.servers = Arc::new(start_servers(environment, servers).await?);
    let controls = setting.shape.controls.iter();
    let controls = controls.map(|(name, elected)| Control::new(environment, name, *elected));
    let controls: Vec<_> = controls.collect();
    let nodes: Vec<_> = (1..=setting.nodes).map(|n| Node::new(environment, n)).collect();
    agents.connect(&nodes);
    let faults = Faults {
        nodes,
        controls,
        servers: environment.servers.clone(),
        observer,
        chance: stream(environment.seed, "faults"),
        lengths: setting.shape.lengths,
        plan: setting.plan,
        on,
        attacher: None,
        interruptions: Arc::default(),
    };
    if on.has(Switch::Upgrade) {
        faults.begin_with_former(&mut setting.streams.upgrading);
    }
    faults.nodes.iter().for_each(|node| node.start());
    faults.controls.iter().for_each(|control| control.start());
    Ok(faults)
}

async fn start_servers(environment: &Environment, servers: usize) -> io::Result<Vec<Arc<ApiServer>>> {
    let memory = knarr_store::open(knarr_store::Config::Memory).await;
    let store = Arc::new(ObservedStore {
        inner: memory.map_err(io::Error::other)?,
        observer: environment.observer.clone(),
        mutation: environment.mutation,
        decoded: Arc::default(),
    });
    let mut started = Vec::new();
    for number in 1..=servers {
        let clock: Arc<dyn Clock> = environment.clock_of(&format!("api-{number}"));
        started.push(
            ApiServer::start_new(environment.seed, number, &store, clock, &environment.directory).await?,
        );
    }
    Ok(started)
}

fn node_ipam(prefix: u8) -> io::Result<nodeipam::Config> {
    let flags = nodeipam::Flags {
        cluster_cidrs: vec![CLUSTER_CIDR.into()],
        node_cidr_mask_size_ipv4: prefix,
        ..nodeipam::Flags::default()
    };
    nodeipam::Config::try_from(&flags).map_err(|errors| io::Error::other(errors.join(", ")))
}
