//! A host's table of NetworkPolicies, simulated: its verdict on the first packet of a connection, and how it follows
//! the agent. Each step takes some time and may fail; what was done is kept when the agent dies, and is lost when the
//! host reboots.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use knarr_network::catalog::Protocol;
use knarr_network::policy::{Change, Direction, FIXED_SETS, Policies, PortVerdicts, Ruleset};
use knarr_nftables::Family;
use knarr_node_network::policy::{PolicyTable, StaleAddresses};
use knarr_node_network::table::TableError;
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::observer::{Observer, SettledPod};
use crate::policy_verdict::{InvalidTable, PORTS, PeerAddress, PodPackets};
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

/// The agent's verdicts on connections of one of its pods.
struct ExpectedVerdicts {
    own: IpAddr,
    of_peers: Vec<(IpAddr, PortVerdicts<{ PORTS.len() }>)>,
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
    fn ask(&self, policies: &Policies) -> Vec<ExpectedVerdicts> {
        let settled = {
            let chance = &mut self.state.lock().chance;
            self.observer.some_settled_pods(&self.node, COMPARED, chance)
        };
        if settled.is_empty() {
            return Vec::new();
        }
        let peers = self.observer.pod_addresses();
        let of_pod = |pod: &SettledPod| {
            if !policies.knows_pod(&pod.key, Some(&pod.uid)) {
                return None;
            }
            // In the API the address may still belong to another pod, or not yet to any.
            let verdicts = policies.verdicts_of(&pod.key, pod.address)?;
            let of_peer = |peer: &IpAddr| Some((*peer, verdicts.with(*peer, Protocol::Tcp, PORTS)?));
            Some(ExpectedVerdicts {
                own: pod.address,
                of_peers: peers.iter().filter_map(of_peer).collect(),
            })
        };
        settled.iter().filter_map(of_pod).collect()
    }

    /// Compares the verdicts from before a change with the kernel after it.
    fn compare(&self, expected: &[ExpectedVerdicts]) {
        let differs = {
            let table = self.kernel.table.lock();
            expected.iter().find_map(|of_pod| differing(&table, of_pod))
        };
        if let Some(Differing {
            direction,
            own,
            peer,
            port,
            is_allowed,
            passes,
        }) = differs
        {
            let passes = passes.map_err(|invalid| invalid.to_string());
            let node = &self.node;
            let what = format!(
                "{direction} of {own} with {peer} port {port}: the agent of {node} says {is_allowed}, \
                 the kernel {passes:?}"
            );
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

/// A connection on which the agent and the kernel do not agree.
#[derive(Debug, PartialEq, Eq)]
struct Differing {
    direction: Direction,
    own: IpAddr,
    peer: IpAddr,
    port: u16,
    is_allowed: bool,
    passes: Result<bool, InvalidTable>,
}

/// The first connection of a pod on which the kernel's verdict is another.
fn differing(table: &Ruleset, expected: &ExpectedVerdicts) -> Option<Differing> {
    let own = expected.own;
    let [ingress, egress] = [Direction::Ingress, Direction::Egress]
        .map(|direction| (direction, PodPackets::new(table, direction, own)));
    for (peer, verdicts) in &expected.of_peers {
        let address = PeerAddress::new(*peer);
        let by_port = PORTS
            .into_iter()
            .zip(verdicts.ingress.into_iter().zip(verdicts.egress));
        for (port, (may_enter, may_leave)) in by_port {
            for ((direction, packets), is_allowed) in [(&ingress, may_enter), (&egress, may_leave)] {
                let passes = match packets {
                    Ok(packets) => packets.pass(&address, port),
                    Err(invalid) => Err(invalid.clone()),
                };
                if passes != Ok(is_allowed) {
                    return Some(Differing {
                        direction: *direction,
                        own,
                        peer: *peer,
                        port,
                        is_allowed,
                        passes,
                    });
                }
            }
        }
    }
    None
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

#[cfg(test)]
mod tests {
    use knarr_network::nft::{Data, Key, Verdict};
    use knarr_network::policy::{EGRESS, INGRESS, Set, SetType};

    use super::*;

    #[test]
    fn n6_the_first_connection_on_which_agent_and_kernel_differ_is_found() {
        let (own, peer): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        for (dropped, ingress, egress, expect) in [
            (None, [true, true], [true, true], None),
            (
                None,
                [true, false],
                [false, true],
                Some((Direction::Egress, PORTS[0])),
            ),
            (Some(INGRESS), [false, false], [true, true], None),
            (
                Some(INGRESS),
                [false, true],
                [true, true],
                Some((Direction::Ingress, PORTS[1])),
            ),
            (Some(EGRESS), [true, true], [false, false], None),
            (
                Some(EGRESS),
                [true, true],
                [true, true],
                Some((Direction::Egress, PORTS[0])),
            ),
        ] {
            let mut table = Ruleset::default();
            if let Some([name, _]) = dropped {
                let drop = Some(Data::Verdict(Verdict::Drop));
                let set = Set {
                    kind: SetType::Addresses,
                    is_ipv4: true,
                    elements: [(Key::exact([10_u8, 0, 0, 1]), drop)].into(),
                };
                table.sets.insert(name.into(), set);
            }
            let expected = ExpectedVerdicts {
                own,
                of_peers: vec![(peer, PortVerdicts { ingress, egress })],
            };
            let found = differing(&table, &expected).map(|found| (found.direction, found.port));
            assert_eq!(found, expect, "{dropped:?} {ingress:?} {egress:?}");
        }
    }
}
