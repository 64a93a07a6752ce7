//! What goes wrong, and when it is over: at the three seams, and nowhere else (the API, the runtime, a component's
//! being there).

use std::sync::Arc;

use tokio::time::sleep;

use crate::components::{Control, Node};
use crate::network::{Network, Weather};
use crate::observer::Observer;
use crate::random::Stream;
use crate::runtime::Health;

pub(crate) struct Faults {
    pub nodes: Vec<Arc<Node>>,
    pub controls: Vec<Arc<Control>>,
    pub observer: Arc<Observer>,
    pub chance: Stream,
}

impl Faults {
    fn networks(&self) -> Vec<Arc<Network>> {
        let nodes = self.nodes.iter().map(|n| n.network.clone());
        nodes
            .chain(self.controls.iter().map(|c| c.network.clone()))
            .collect()
    }

    /// How bad the rest of this history is going to be.
    pub fn set_weather(&mut self) {
        for network in self.networks() {
            let weather = Weather {
                refused: [0, 20, 80][self.chance.between(0, 2) as usize],
                unanswered: [0, 20, 80][self.chance.between(0, 2) as usize],
                late: [0, 10, 40][self.chance.between(0, 2) as usize],
                slowest_millis: [0, 50, 3_000][self.chance.between(0, 2) as usize],
            };
            network.set_weather(weather);
        }
        for node in &self.nodes {
            node.condition.set(Health {
                failing: [0, 10, 50][self.chance.between(0, 2) as usize],
                slowest_millis: [0, 300, 3_000][self.chance.between(0, 2) as usize],
            });
        }
    }

    pub fn strike(&mut self) {
        let length = if self.chance.per_mille(100) {
            // Long enough for the node to be given up.
            self.chance.millis(30_000, 90_000)
        } else {
            self.chance.millis(100, 12_000)
        };
        let networks = self.networks();
        let Some(network) = self.chance.pick(&networks).cloned() else {
            return;
        };
        let Some(node) = self.chance.pick(&self.nodes).cloned() else {
            return;
        };
        let Some(control) = self.chance.pick(&self.controls).cloned() else {
            return;
        };
        let note = |what: String| {
            self.observer
                .note(&format!("fault: {what} for {} ms", length.as_millis()))
        };
        match self.chance.between(0, 99) {
            0..20 => {
                note(format!("partition of {}", network.name));
                network.set_cut(true);
                tokio::spawn(async move {
                    sleep(length).await;
                    network.set_cut(false);
                });
            }
            20..42 => {
                note(format!("crash of {}'s kubelet", node.name));
                node.crash();
                tokio::spawn(async move {
                    sleep(length).await;
                    node.start();
                });
            }
            42..57 => {
                note(format!("runtime of {} down", node.name));
                node.runtime.set_down(true);
                tokio::spawn(async move {
                    sleep(length).await;
                    node.runtime.set_down(false);
                });
            }
            57..67 => {
                note(format!("crash of {}", control.network.name));
                control.crash();
                tokio::spawn(async move {
                    sleep(length).await;
                    control.start();
                });
            }
            67..77 => {
                note(format!("stale caches of {}", network.name));
                network.set_stalled(true);
                tokio::spawn(async move {
                    sleep(length).await;
                    network.set_stalled(false);
                });
            }
            77..84 => {
                note(format!("watches of {} break", network.name));
                network.break_watches();
            }
            84..86 => {
                let sandboxes = node.runtime.ready_sandboxes();
                if let Some(id) = self.chance.pick(&sandboxes) {
                    note(format!("{id} on {} breaks", node.name));
                    node.runtime.break_sandbox(id);
                }
            }
            86..94 => {
                let running = node.runtime.running();
                if let Some((id, _)) = self.chance.pick(&running) {
                    note(format!("{id} on {} ends by itself", node.name));
                    node.runtime.exit(id, 1);
                }
            }
            _ => {
                note(format!("{} reboots", node.name));
                node.crash();
                node.condition.rebooted();
                node.runtime.reboot();
                tokio::spawn(async move {
                    sleep(length).await;
                    node.start();
                });
            }
        }
    }

    /// Everything is well from now on.
    pub fn heal(&self) {
        self.observer.note("faults end");
        for network in self.networks() {
            network.set_weather(Weather::default());
            network.set_stalled(false);
            network.set_cut(false);
        }
        for node in &self.nodes {
            node.condition.set(Health::default());
            node.runtime.set_down(false);
            node.start();
        }
        self.controls.iter().for_each(|control| control.start());
    }
}
