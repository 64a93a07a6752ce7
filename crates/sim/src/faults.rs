//! Faults and how long they last. They are injected at the seams only: the API as a component reaches it, a server's
//! connection to the store, the container runtime, and the life of a component's process.
//!
//! The six fault classes of Kubernetes' design document `pod-safety` (section Testing), and where they are:
//! master–node partitions (a node's link is cut), node–node partitions (no component talks from node to node: a cut
//! of several nodes at once has the same effect), master–etcd partitions (a server's connection to the store is cut),
//! concurrent controller execution (several replicas, one of which may ignore the lease; links that are cut while a
//! leader works), kubelet failures and controller failures (crashes, restarts, reboots, failing runtimes).
//!
//! In addition: partitions in one direction, hosts replaced by empty ones of the same name, servers whose caches fall
//! behind, controllers' clocks that are set, writes that arrive twice (only those that HTTP lets a proxy repeat). Not
//! here: a store restored from a backup (nothing that was promised since can hold), clocks of kubelets and servers
//! that are set.

mod preemption;
mod staging;
mod store;
mod upgrade;
mod zones;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use crate::attacher::Attacher;
use crate::components::{Control, Node};
use crate::condition::Health;
use crate::coverage::Scope;
use crate::later::later;
use crate::network::{FaultRates, Network};
use crate::observer::Observer;
use crate::random::Stream;
use crate::rules::b4_self_fencing::host_access;
use crate::rules::quota::SERVERS;
use crate::servers::ApiServer;
use crate::switches::{Plan, Switch, Switches};

/// Faults of all histories, with their weights.
const COMMON: [(Switch, u64); 13] = [
    (Switch::Partition, 20),
    (Switch::Split, 4),
    (Switch::KubeletCrash, 20),
    (Switch::RuntimeDown, 14),
    (Switch::ControllerCrash, 10),
    (Switch::StaleCaches, 8),
    (Switch::BrokenWatches, 6),
    (Switch::BrokenSandbox, 2),
    (Switch::ContainerExit, 8),
    (Switch::Reboot, 6),
    (Switch::StoreCut, 7),
    (Switch::ServerCrash, 5),
    (Switch::HeldWrites, 8),
];
/// Rare faults.
const RARE: [(Switch, u64); 4] = [
    (Switch::OneWay, 5),
    (Switch::ReplacedMachine, 2),
    (Switch::ClockSet, 2),
    (Switch::ServerBehind, 3),
];

/// How long faults last.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FaultLengths {
    /// Seconds, and now and then long enough for the node to be lost and its pods to be evicted.
    Seconds,
    /// Minutes, and now and then longer than any timeout.
    Minutes,
}

impl FaultLengths {
    pub fn draw(self, chance: &mut Stream) -> Duration {
        let long = chance.per_mille(150);
        let (low, high) = match (self, long) {
            (FaultLengths::Seconds, false) => (100, 12_000),
            (FaultLengths::Seconds, true) => (30_000, 110_000),
            (FaultLengths::Minutes, false) => (100, 120_000),
            (FaultLengths::Minutes, true) => (120_000, 1_500_000),
        };
        chance.millis(low, high)
    }
}

pub(crate) struct Faults {
    pub nodes: Vec<Arc<Node>>,
    pub controls: Vec<Arc<Control>>,
    pub servers: Arc<Vec<Arc<ApiServer>>>,
    pub observer: Arc<Observer>,
    pub chance: Stream,
    pub lengths: FaultLengths,
    pub plan: Plan,
    /// The switches of the history.
    pub on: Switches,
    /// The attacher of the CSI driver, if there is one.
    pub attacher: Option<Arc<Attacher>>,
    pub interruptions: Arc<Interruptions>,
}

/// What the interruptions of preemptions across nodes share.
#[derive(Debug, Default)]
pub(crate) struct Interruptions {
    /// One waits for a preemption.
    waits: AtomicBool,
    /// The faults of this history have ended: none happens any more.
    healed: AtomicBool,
}

/// Whether the holder of the controllers' lease is an incarnation of this replica.
fn leads(holder: &str, replica: &str) -> bool {
    let rest = holder.strip_prefix(replica);
    rest.is_some_and(|rest| rest.starts_with('-'))
}

/// What a fault of this component's link affects.
fn scope_of(network: &str) -> Scope<'_> {
    network.strip_prefix("node/").map_or(Scope::Cluster, Scope::Node)
}

impl Faults {
    fn networks(&self) -> Vec<Arc<Network>> {
        let nodes = self.nodes.iter().map(|n| n.network.clone());
        nodes
            .chain(self.controls.iter().map(|c| c.network.clone()))
            .collect()
    }

    /// One of three, with equal probability.
    fn one_of<T: Copy>(&mut self, levels: [T; 3]) -> T {
        let [calm, bad, worse] = levels;
        match self.chance.between(0, 2) {
            0 => calm,
            1 => bad,
            _ => worse,
        }
    }

    /// Sets the error rates of the links, runtimes and stores for the rest of this history.
    pub fn set_fault_rates(&mut self) {
        let plan = self.plan;
        let if_on = |switch, drawn: u32| if plan.does(switch) { drawn } else { 0 };
        let slow_if_on = |switch, drawn: u64| if plan.does(switch) { drawn } else { 0 };
        for network in self.networks() {
            let rates = FaultRates {
                rejected: if_on(Switch::Rejected, self.one_of([0, 20, 80])),
                unanswered: if_on(Switch::Unanswered, self.one_of([0, 20, 80])),
                late: if_on(Switch::Late, self.one_of([0, 10, 40])),
                repeated: if_on(Switch::Repeated, self.one_of([0, 5, 20])),
                slowest_millis: slow_if_on(Switch::SlowLinks, self.one_of([0, 50, 3_000])),
            };
            network.set_fault_rates(rates);
        }
        for node in self.nodes.clone() {
            let health = Health {
                failing: if_on(Switch::FailingRuntimes, self.one_of([0, 10, 50])),
                slowest_millis: slow_if_on(Switch::SlowRuntimes, self.one_of([0, 300, 3_000])),
            };
            self.observer.set_slowest(&node.name, health.slowest_millis);
            node.condition.set(health);
        }
        // The first server is the users' own: it has no such faults, because what the users did must be known.
        for server in self.servers.clone().iter().skip(1) {
            let slowest = slow_if_on(Switch::SlowStore, self.one_of([0, 5, 300]));
            server.link.set_slowest(slowest);
        }
    }

    /// Records which components are not affected by any fault.
    pub fn report_health(&self) {
        let served = self.servers.iter().all(|s| s.is_up() && s.link.is_well());
        self.observer.set_well(SERVERS, served);
        for node in &self.nodes {
            self.observer
                .set_well(&node.network.name, served && node.is_well());
            self.observer.set_well(&host_access(&node.name), node.is_able());
        }
        for control in &self.controls {
            self.observer
                .set_well(&control.network.name, served && control.is_well());
        }
    }

    /// Rare faults, in addition to the others.
    pub fn strike_rarely(&mut self, chance: &mut Stream) -> std::io::Result<()> {
        let length = self.lengths.draw(chance);
        let networks = self.networks();
        let (Some(network), Some(node), Some(control)) = (
            chance.pick(&networks).cloned(),
            chance.pick(&self.nodes).cloned(),
            chance.pick(&self.controls).cloned(),
        ) else {
            return Ok(());
        };
        let others: Vec<_> = self.servers.iter().skip(1).cloned().collect();
        let server = chance.pick(&others).cloned();
        let observer = self.observer.clone();
        let note = |what: String| observer.note(&format!("fault: {what} for {} ms", length.as_millis()));
        let Some(fault) = chance.weighted(&RARE, |fault| self.plan.draws(fault)) else {
            return Ok(());
        };
        if !self.plan.does(fault) {
            return Ok(());
        }
        let strikes = |scope: Scope<'_>| self.observer.strikes(fault, scope);
        match (fault, server) {
            (Switch::OneWay, _) => {
                strikes(scope_of(&network.name));
                note(format!("{} is heard and hears nothing", network.name));
                network.set_loses_answers(true);
                later(length, move || network.set_loses_answers(false));
            }
            (Switch::ReplacedMachine, _) => {
                strikes(Scope::Node(&node.name));
                note(format!("{} is another machine", node.name));
                node.replace()?;
                later(length, move || node.start());
            }
            (Switch::ClockSet, _) => {
                strikes(Scope::Cluster);
                let by = i64::try_from(chance.between(3_000, 7_200_000)).unwrap_or_default();
                let by = if chance.per_mille(500) { by } else { -by };
                note(format!("the clock of {} is set by {by} ms", control.network.name));
                control.clock.set(by);
                later(length, move || control.clock.set(0));
            }
            (_, Some(server)) => {
                strikes(Scope::Cluster);
                note(format!("{} is behind", server.name));
                server.link.set_behind(true);
                later(length, move || server.link.set_behind(false));
            }
            (_, None) => {}
        }
        self.report_health();
        Ok(())
    }

    /// Cuts one node off for long enough to be lost.
    pub fn lose_a_node(&self, chance: &mut Stream) {
        if let Some(node) = chance.pick(&self.nodes)
            && self.plan.does(Switch::LostNode)
        {
            let length = chance.millis(45_000, 150_000);
            self.observer.strikes(Switch::LostNode, Scope::Node(&node.name));
            self.observer.note(&format!(
                "fault: {} is lost for {} ms",
                node.name,
                length.as_millis()
            ));
            cut_for(vec![node.network.clone()], length);
        }
        self.report_health();
    }

    pub fn strike(&mut self) {
        let length = self.lengths.draw(&mut self.chance);
        let networks = self.networks();
        let (Some(network), Some(node), Some(control)) = (
            self.chance.pick(&networks).cloned(),
            self.chance.pick(&self.nodes).cloned(),
            self.chance.pick(&self.controls).cloned(),
        ) else {
            return;
        };
        let others: Vec<_> = self.servers.iter().skip(1).cloned().collect();
        let server = self.chance.pick(&others).cloned();
        let observer = self.observer.clone();
        let note = |what: String| observer.note(&format!("fault: {what} for {} ms", length.as_millis()));
        let plan = self.plan;
        let Some(fault) = self.chance.weighted(&COMMON, |fault| plan.draws(fault)) else {
            return;
        };
        if !plan.does(fault) {
            return;
        }
        let strikes = |scope: Scope<'_>| observer.strikes(fault, scope);
        match fault {
            Switch::Partition => {
                strikes(scope_of(&network.name));
                note(format!("partition of {}", network.name));
                cut_for(vec![network], length);
            }
            Switch::Split => {
                strikes(Scope::Cluster);
                // One side of a cluster, as a failing network switch cuts it off.
                let split = self.chance.between(1, u64::try_from(networks.len()).unwrap_or(1));
                let side: Vec<_> = networks
                    .iter()
                    .take(usize::try_from(split).unwrap_or_default())
                    .cloned()
                    .collect();
                let names: Vec<_> = side.iter().map(|n| n.name.as_str()).collect();
                note(format!("partition of {}", names.join(", ")));
                cut_for(side, length);
            }
            Switch::KubeletCrash => {
                strikes(Scope::Node(&node.name));
                note(format!("crash of {}'s kubelet", node.name));
                node.crash();
                later(length, move || node.start());
            }
            Switch::RuntimeDown => {
                strikes(Scope::Node(&node.name));
                note(format!("runtime of {} down", node.name));
                node.runtime.set_down(true);
                later(length, move || node.runtime.set_down(false));
            }
            Switch::ControllerCrash => {
                strikes(Scope::Cluster);
                note(format!("crash of {}", control.network.name));
                control.crash();
                later(length, move || control.start());
            }
            Switch::StaleCaches => {
                strikes(scope_of(&network.name));
                note(format!("stale caches of {}", network.name));
                network.set_stalled(true);
                later(length, move || network.set_stalled(false));
            }
            Switch::BrokenWatches => {
                strikes(scope_of(&network.name));
                note(format!("watches of {} break", network.name));
                network.break_watches();
            }
            Switch::BrokenSandbox => {
                let sandboxes = node.runtime.ready_sandboxes();
                if let Some(id) = self.chance.pick(&sandboxes) {
                    strikes(Scope::Node(&node.name));
                    note(format!("{id} on {} breaks", node.name));
                    if node.runtime.break_sandbox(id) {
                        self.observer.sandbox_broke(&node.name, id);
                    }
                }
            }
            Switch::ContainerExit => {
                let running = node.runtime.running();
                if let Some((id, _)) = self.chance.pick(&running) {
                    strikes(Scope::Node(&node.name));
                    note(format!("{id} on {} ends by itself", node.name));
                    node.runtime.exit(id, 1);
                }
            }
            Switch::Reboot => {
                strikes(Scope::Node(&node.name));
                note(format!("{} reboots", node.name));
                node.reboot();
                later(length, move || node.start());
            }
            Switch::StoreCut => {
                let Some(server) = server else { return };
                strikes(Scope::Cluster);
                note(format!("{} cut off from the store", server.name));
                server.link.set_cut(true);
                later(length, move || server.link.set_cut(false));
            }
            Switch::ServerCrash => {
                let Some(server) = server else { return };
                strikes(Scope::Cluster);
                note(format!("crash of {}", server.name));
                server.crash();
                tokio::spawn(async move {
                    sleep(length).await;
                    server.revive().await;
                });
            }
            _ => {
                strikes(Scope::Cluster);
                // Long enough for another replica to become leader.
                let length = length + Duration::from_secs(15);
                // Of the leader, if there is one: writes of other replicas do not matter.
                let leader = self.observer.leader().unwrap_or_default();
                let network = self
                    .controls
                    .iter()
                    .find(|control| leads(&leader, &control.network.name))
                    .unwrap_or(&control)
                    .network
                    .clone();
                let held = format!(
                    "writes of {} are held for {} ms",
                    network.name,
                    length.as_millis()
                );
                self.observer.note(&format!("fault: {held}"));
                network.set_held(true);
                later(length, move || network.set_held(false));
            }
        }
        self.report_health();
    }

    /// Ends all faults.
    pub async fn heal(&self) {
        self.observer.note("faults end");
        self.interruptions.healed.store(true, Ordering::Relaxed);
        self.upgrade_all();
        for server in self.servers.iter() {
            server.link.set_slowest(0);
            server.link.set_cut(false);
            server.link.set_behind(false);
            server.link.mend();
            server.revive().await;
        }
        self.attacher.iter().for_each(|attacher| attacher.heal());
        for network in self.networks() {
            network.set_fault_rates(FaultRates::default());
            network.set_stalled(false);
            network.set_held(false);
            network.set_loses_answers(false);
            network.set_cut(false);
        }
        for node in &self.nodes {
            node.condition.set(Health::default());
            node.runtime.set_down(false);
            node.start();
        }
        for control in &self.controls {
            control.clock.set(0);
            control.start();
        }
        self.report_health();
    }
}

fn cut_for(networks: Vec<Arc<Network>>, length: Duration) {
    networks.iter().for_each(|network| network.set_cut(true));
    later(length, move || {
        networks.iter().for_each(|network| network.set_cut(false))
    });
}
