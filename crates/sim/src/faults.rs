//! What goes wrong, and when it is over: at the seams, and nowhere else (the API as a component reaches it, a server's
//! way to the store, the runtime, a component's being there).
//!
//! The document's six classes (`pod-safety`, Testing) and where they are: master–node partitions (a node's link is cut),
//! node–node partitions (nothing of the cluster's own goes from node to node: a cut of several nodes at once is what they
//! can see of one), master–etcd partitions (a server's way to the store is cut), concurrent controller execution (several
//! replicas, one of which may know of no lease; links that are cut while a leader works), kubelet failures and controller
//! failures (crashes, restarts, reboots, runtimes that fail).
//!
//! Besides: partitions in one direction, machines replaced by empty ones of the same name, servers whose caches fall
//! behind, controllers' clocks that are set, writes that arrive twice (only those that HTTP lets a proxy repeat). Not here:
//! a store put back to what it was before (nothing that was promised since can hold), kubelets' and servers' clocks that are
//! set, claims and their volumes, fence agents (tests of their own).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::components::{Control, Node};
use crate::network::{Network, Weather};
use crate::observer::Observer;
use crate::random::Stream;
use crate::runtime::Health;
use crate::servers::ApiServer;

/// How long faults last.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lengths {
    /// Seconds, and now and then long enough for the node to be given up, and its pods to be asked to end.
    Seconds,
    /// Minutes, and now and then as long as nobody waits.
    Minutes,
}

impl Lengths {
    fn draw(self, chance: &mut Stream) -> Duration {
        let long = chance.per_mille(150);
        let (low, high) = match (self, long) {
            (Lengths::Seconds, false) => (100, 12_000),
            (Lengths::Seconds, true) => (30_000, 110_000),
            (Lengths::Minutes, false) => (100, 120_000),
            (Lengths::Minutes, true) => (120_000, 1_500_000),
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
    pub lengths: Lengths,
}

impl Faults {
    fn networks(&self) -> Vec<Arc<Network>> {
        let nodes = self.nodes.iter().map(|n| n.network.clone());
        nodes
            .chain(self.controls.iter().map(|c| c.network.clone()))
            .collect()
    }

    /// One of three, each as likely.
    fn one_of<T: Copy>(&mut self, levels: [T; 3]) -> T {
        let [calm, bad, worse] = levels;
        match self.chance.between(0, 2) {
            0 => calm,
            1 => bad,
            _ => worse,
        }
    }

    /// How bad the rest of this history is going to be.
    pub fn set_weather(&mut self) {
        for network in self.networks() {
            let weather = Weather {
                refused: self.one_of([0, 20, 80]),
                unanswered: self.one_of([0, 20, 80]),
                late: self.one_of([0, 10, 40]),
                again: self.one_of([0, 5, 20]),
                slowest_millis: self.one_of([0, 50, 3_000]),
            };
            network.set_weather(weather);
        }
        for node in self.nodes.clone() {
            node.condition.set(Health {
                failing: self.one_of([0, 10, 50]),
                slowest_millis: self.one_of([0, 300, 3_000]),
            });
        }
        // The first server is the users' own: what they did is to be known.
        for server in self.servers.clone().iter().skip(1) {
            server.link.set_slowest(self.one_of([0, 5, 300]));
        }
    }

    /// The observer is told of whom nothing keeps from doing their work.
    pub fn tell_who_is_well(&self) {
        let served = self.servers.iter().all(|s| s.is_up() && s.link.is_well());
        for node in &self.nodes {
            self.observer
                .set_well(&node.network.name, served && node.is_well());
        }
        for control in &self.controls {
            self.observer
                .set_well(&control.network.name, served && control.is_well());
        }
    }

    /// What happens less often, each beside whatever else goes on.
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
        match (chance.between(0, 11), server) {
            (0..5, _) => {
                note(format!("{} is heard and hears nothing", network.name));
                network.set_deaf(true);
                later(length, move || network.set_deaf(false));
            }
            (5..7, _) => {
                note(format!("{} is another machine", node.name));
                node.replace()?;
                later(length, move || node.start());
            }
            (7..9, _) => {
                let by = i64::try_from(chance.between(3_000, 7_200_000)).unwrap_or_default();
                let by = if chance.per_mille(500) { by } else { -by };
                note(format!("the clock of {} is set by {by} ms", control.network.name));
                control.clock.set(by);
                later(length, move || control.clock.set(0));
            }
            (_, Some(server)) => {
                note(format!("{} is behind", server.name));
                server.link.set_behind(true);
                later(length, move || server.link.set_behind(false));
            }
            (_, None) => {}
        }
        self.tell_who_is_well();
        Ok(())
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
        match self.chance.between(0, 117) {
            0..20 => {
                note(format!("partition of {}", network.name));
                cut_for(vec![network], length);
            }
            20..24 => {
                // One side of a cluster, as a switch that fails takes it.
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
            24..44 => {
                note(format!("crash of {}'s kubelet", node.name));
                node.crash();
                later(length, move || node.start());
            }
            44..58 => {
                note(format!("runtime of {} down", node.name));
                node.runtime.set_down(true);
                later(length, move || node.runtime.set_down(false));
            }
            58..68 => {
                note(format!("crash of {}", control.network.name));
                control.crash();
                later(length, move || control.start());
            }
            68..76 => {
                note(format!("stale caches of {}", network.name));
                network.set_stalled(true);
                later(length, move || network.set_stalled(false));
            }
            76..82 => {
                note(format!("watches of {} break", network.name));
                network.break_watches();
            }
            82..84 => {
                let sandboxes = node.runtime.ready_sandboxes();
                if let Some(id) = self.chance.pick(&sandboxes) {
                    note(format!("{id} on {} breaks", node.name));
                    if node.runtime.break_sandbox(id) {
                        self.observer.sandbox_broke(&node.name, id);
                    }
                }
            }
            84..92 => {
                let running = node.runtime.running();
                if let Some((id, _)) = self.chance.pick(&running) {
                    note(format!("{id} on {} ends by itself", node.name));
                    node.runtime.exit(id, 1);
                }
            }
            92..98 => {
                note(format!("{} reboots", node.name));
                node.crash();
                node.condition.rebooted();
                node.runtime.reboot();
                later(length, move || node.start());
            }
            98..105 => {
                let Some(server) = server else { return };
                note(format!("{} cut off from the store", server.name));
                server.link.set_cut(true);
                later(length, move || server.link.set_cut(false));
            }
            105..110 => {
                let Some(server) = server else { return };
                note(format!("crash of {}", server.name));
                server.crash();
                tokio::spawn(async move {
                    sleep(length).await;
                    server.revive().await;
                });
            }
            _ => {
                // Long enough for another to lead meanwhile.
                let length = length + Duration::from_secs(15);
                // Of the one that leads, if one does: what others send matters to nobody.
                let leader = self.observer.leader();
                let leads = |c: &&Arc<Control>| {
                    let name = c.network.name.as_str();
                    leader
                        .as_deref()
                        .and_then(|l| l.strip_prefix(name))
                        .is_some_and(|rest| rest.starts_with('-'))
                };
                let network = self
                    .controls
                    .iter()
                    .find(leads)
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
        self.tell_who_is_well();
    }

    /// Everything is well from now on.
    pub async fn heal(&self) {
        self.observer.note("faults end");
        for server in self.servers.iter() {
            server.link.set_slowest(0);
            server.link.set_cut(false);
            server.link.set_behind(false);
            server.revive().await;
        }
        for network in self.networks() {
            network.set_weather(Weather::default());
            network.set_stalled(false);
            network.set_held(false);
            network.set_deaf(false);
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
        self.tell_who_is_well();
    }
}

fn later(length: Duration, what: impl FnOnce() + Send + 'static) {
    tokio::spawn(async move {
        sleep(length).await;
        what();
    });
}

fn cut_for(networks: Vec<Arc<Network>>, length: Duration) {
    networks.iter().for_each(|network| network.set_cut(true));
    later(length, move || {
        networks.iter().for_each(|network| network.set_cut(false))
    });
}
