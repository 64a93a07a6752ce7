//! A host's table of NetworkPolicies, simulated: its verdict on the first packet of a connection, and how it follows
//! the agent. Each step takes some time and may fail; what was done is kept when the agent dies, and is lost when the
//! host reboots.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use knarr_network::catalog::Protocol;
use knarr_network::policy::{Change, Direction, Endpoint, FIXED_SETS, Policies, Ruleset};
use knarr_network::policy::{Outcome, PodKey};
use knarr_nftables::Family;
use knarr_node_network::policy::{PolicyTable, StaleAddresses};
use knarr_node_network::table::TableError;
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::observer::Observer;
use crate::policy_verdict::{PORTS, passes};
use crate::random::Stream;

/// One step in so many thousands takes the kernel long …
const SLOW_PER_MILLE: u32 = 30;
/// … at most this.
const SLOW_MILLIS: u64 = 1_500;
/// The others.
const USUAL_MILLIS: u64 = 10;
/// Steps that the kernel rejects, per mille.
const FAILING_PER_MILLE: u32 = 10;
/// How many pods' connections are compared with the agent's verdicts after each change.
const COMPARED: usize = 2;

/// A host's table, over all incarnations of its agent.
#[derive(Default)]
pub(crate) struct Kernel {
    table: Mutex<Ruleset>,
    /// The addresses with entries in connection tracking, and the sandbox that these are of.
    flows: Mutex<BTreeMap<IpAddr, String>>,
}

impl Kernel {
    pub fn rebooted(&self) {
        *self.table.lock() = Ruleset::default();
        self.flows.lock().clear();
    }

    /// From now on the sandbox has flows; the earlier sandbox whose flows pass as its own, if there is one.
    pub fn connected(&self, sandbox: &str, addresses: &[IpAddr]) -> Option<(IpAddr, String)> {
        let mut earlier = None;
        for address in addresses {
            let before = self.flows.lock().insert(*address, sandbox.into());
            if let Some(other) = before.filter(|other| other != sandbox) {
                earlier = Some((*address, other));
            }
        }
        earlier
    }

    /// Higher than the numbers of the existing sets and chains.
    pub fn first_number(&self) -> u64 {
        let table = self.table.lock();
        Ruleset::number_above(table.sets.keys().chain(table.chains.keys()).map(|name| &**name))
    }
}

/// The table as one incarnation of the agent reaches it.
pub(crate) struct SimulatedTable {
    pub node: String,
    pub kernel: Arc<Kernel>,
    pub observer: Arc<Observer>,
    pub dead: CancellationToken,
    pub state: Mutex<TableAccess>,
}

pub(crate) struct TableAccess {
    pub chance: Stream,
    /// Whether the state of the kernel is known.
    pub is_known: bool,
}

/// The agent's verdict on a connection to or from one of its pods.
struct ExpectedVerdict {
    direction: Direction,
    own: IpAddr,
    peer: IpAddr,
    port: u16,
    is_allowed: bool,
}

impl SimulatedTable {
    /// Takes some time; may fail.
    async fn step(&self) -> Result<(), TableError> {
        let (takes, fails) = {
            let chance = &mut self.state.lock().chance;
            let takes = match chance.per_mille(SLOW_PER_MILLE) {
                true => chance.millis(USUAL_MILLIS, SLOW_MILLIS),
                false => chance.millis(0, USUAL_MILLIS),
            };
            (takes, chance.per_mille(FAILING_PER_MILLE))
        };
        sleep(takes).await;
        if self.dead.is_cancelled() {
            // The process was killed during the step.
            std::future::pending::<()>().await;
        }
        match fails {
            true => Err(TableError::NoSet {
                family: Family::Inet,
                table: "knarr-policy".into(),
                set: "any".into(),
            }),
            false => Ok(()),
        }
    }

    fn has_changed(&self) {
        let table = self.kernel.table.lock().clone();
        self.observer.policed(&self.node, table);
    }

    /// The agent's verdicts for some of its pods, as of now.
    fn ask(&self, policies: &Policies) -> Vec<ExpectedVerdict> {
        let locals = self.observer.settled_pods(&self.node);
        let mut expected = Vec::new();
        for _ in 0..COMPARED {
            let Some((key, uid, own)) = self.state.lock().chance.pick(&locals).cloned() else {
                return expected;
            };
            if !policies.knows_pod(&key, Some(&uid)) {
                continue;
            }
            let peers = self.observer.pod_addresses();
            for peer in peers.into_iter().filter(|peer| *peer != own) {
                for port in PORTS {
                    expected.extend(answers(policies, &key, own, peer, port));
                }
            }
        }
        expected
    }

    /// Compares the verdicts from before a change with the kernel after it.
    fn compare(&self, expected: &[ExpectedVerdict]) {
        let table = self.kernel.table.lock();
        let differs = expected.iter().find_map(|expected| {
            let passes = passes(
                &table,
                expected.direction,
                expected.own,
                expected.peer,
                expected.port,
            );
            (passes != Ok(expected.is_allowed)).then(|| {
                let passes = passes.map_err(|invalid| invalid.to_string());
                format!(
                    "{} of {} with {} port {}: the agent of {} says {}, the kernel {passes:?}",
                    expected.direction,
                    expected.own,
                    expected.peer,
                    expected.port,
                    self.node,
                    expected.is_allowed
                )
            })
        });
        drop(table);
        if let Some(what) = differs {
            self.observer.violate("N6", what);
        }
    }

    async fn replace(&self, ruleset: Ruleset) -> Result<(), TableError> {
        let is_fixed = |name: &Arc<str>| FIXED_SETS.contains(&&**name);
        self.step().await?;
        {
            let mut table = self.kernel.table.lock();
            for (name, set) in ruleset.sets.iter().filter(|(name, _)| !is_fixed(name)) {
                table.sets.insert(name.clone(), set.clone());
            }
            for (name, chain) in &ruleset.chains {
                table.chains.insert(name.clone(), chain.clone());
            }
        }
        self.step().await?;
        {
            let mut table = self.kernel.table.lock();
            for (name, set) in ruleset.sets.iter().filter(|(name, _)| is_fixed(name)) {
                table.sets.insert(name.clone(), set.clone());
            }
        }
        self.has_changed();
        self.step().await?;
        *self.kernel.table.lock() = ruleset;
        self.has_changed();
        Ok(())
    }

    async fn carry_out(&self, change: Change) -> Result<(), TableError> {
        if !change.sets.is_empty() || !change.chains.is_empty() {
            self.step().await?;
            let mut table = self.kernel.table.lock();
            table.sets.extend(change.sets);
            table.chains.extend(change.chains);
        }
        if !change.operations.is_empty() {
            self.step().await?;
            let mut wrong = None;
            {
                let mut table = self.kernel.table.lock();
                for operation in change.operations {
                    let Some(set) = table.sets.get_mut(&operation.set) else {
                        wrong = Some(format!("no set {}", operation.set));
                        continue;
                    };
                    if set.elements.get(&operation.key) != operation.before.as_ref() {
                        wrong = Some(format!("{} has not what was to be changed", operation.set));
                    }
                    match operation.after {
                        Some(data) => set.elements.insert(operation.key, data),
                        None => set.elements.remove(&operation.key),
                    };
                }
            }
            if let Some(wrong) = wrong {
                self.observer
                    .violate("N6", format!("kernel of {}: {wrong}", self.node));
            }
            self.has_changed();
        }
        if !change.unused_chains.is_empty() || !change.unused_sets.is_empty() {
            self.step().await?;
            let mut table = self.kernel.table.lock();
            change
                .unused_chains
                .iter()
                .for_each(|name| drop(table.chains.remove(name)));
            change
                .unused_sets
                .iter()
                .for_each(|name| drop(table.sets.remove(name)));
            drop(table);
            self.has_changed();
        }
        Ok(())
    }
}

/// The agent's verdicts, in both directions.
fn answers(policies: &Policies, key: &PodKey, own: IpAddr, peer: IpAddr, port: u16) -> Vec<ExpectedVerdict> {
    let (own_end, peer_end) = (Endpoint::Address(own), Endpoint::Address(peer));
    let mut expected = Vec::new();
    for direction in [Direction::Ingress, Direction::Egress] {
        let explained = match direction {
            Direction::Ingress => policies.explain(&peer_end, &own_end, Protocol::Tcp, port),
            Direction::Egress => policies.explain(&own_end, &peer_end, Protocol::Tcp, port),
        };
        let side = match direction {
            Direction::Ingress => explained.ingress,
            Direction::Egress => explained.egress,
        };
        // In the API the address may still belong to another pod, or not yet to any.
        if explained.outcome != Outcome::Unknown
            && let Some(side) = side.filter(|side| side.pod == *key)
        {
            expected.push(ExpectedVerdict {
                direction,
                own,
                peer,
                port,
                is_allowed: side.is_allowed(),
            });
        }
    }
    expected
}

#[async_trait]
impl PolicyTable for SimulatedTable {
    async fn sync(&self, policies: &Arc<Mutex<Policies>>) -> Result<bool, TableError> {
        // Until it has ended the state of the kernel is not known.
        let was_known = std::mem::take(&mut self.state.lock().is_known);
        let (ruleset, change, expected) = {
            let mut policies = policies.lock();
            let work = match was_known {
                false => (Some(policies.ruleset()), Change::default()),
                true => (None, policies.take_change()),
            };
            (work.0, work.1, self.ask(&policies))
        };
        let is_full = ruleset.is_some();
        match ruleset {
            Some(ruleset) => self.replace(ruleset).await?,
            None => self.carry_out(change).await?,
        }
        self.compare(&expected);
        self.state.lock().is_known = true;
        Ok(is_full)
    }

    async fn is_intact(&self, _: &Arc<Mutex<Policies>>) -> Result<bool, TableError> {
        Ok(true)
    }

    fn forget(&self) {
        self.state.lock().is_known = false;
    }

    async fn delete_flows(&self, stale: StaleAddresses) -> Result<(), TableError> {
        if self.dead.is_cancelled() {
            std::future::pending::<()>().await;
        }
        self.kernel
            .flows
            .lock()
            .retain(|address, _| !stale.contains(*address));
        Ok(())
    }
}
