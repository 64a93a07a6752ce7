//! What network agents program, allocate and answer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use knarr_network::nft::Table;
use knarr_network::policy::{PodKey, Ruleset};

use super::Observer;
use crate::random::Stream;
use crate::rules::n6_policy;
use crate::world::{DnsResponse, Lease, Observation, Process, World};

impl Observer {
    /// A node's kernel sends new connections to these addresses, and to no others.
    pub fn programmed(&self, node: &str, offered: BTreeSet<IpAddr>) {
        let mut inner = self.lock();
        let now = inner.world.now;
        let line = format!("kernel of {node} offers {} addresses", offered.len());
        inner.history.add(now, &line, b"");
        inner.world.kernels.insert(node.into(), offered);
    }

    /// The Services in a node's kernel.
    pub fn proxied(&self, node: &str, table: Table) {
        self.lock().world.proxy_tables.insert(node.into(), table);
    }

    /// From now on kernels are compared with Services and EndpointSlices of the revisions that their agents have
    /// reached.
    pub fn keep_network_versions(&self) {
        self.lock().world.versions.keep();
    }

    /// An answer of DNS on a node.
    pub fn resolved(&self, node: &str, question: &str, answer: &DnsResponse) {
        let mut inner = self.lock();
        let key = (node.to_string(), question.to_string());
        inner.world.answers.insert(key, answer.clone());
        inner.check_rules(&Observation::Resolved {
            node,
            question,
            answer,
        });
        if *answer != DnsResponse::NotReady {
            inner.world.has_answered.insert(node.into());
        }
    }

    /// The agent of a node has died: DNS does not answer there.
    pub fn forget_answers(&self, node: &str) {
        let world = &mut self.lock().world;
        world.has_answered.remove(node);
        world.answers.retain(|(of, _), _| of != node);
    }

    /// After [`Observer::proxied`]: the kernel has these revisions of Services and EndpointSlices.
    pub fn reached(&self, node: &str, services: u64, slices: u64) {
        let mut inner = self.lock();
        inner.world.reached.insert(node.into(), (services, slices));
        inner.check_rules(&Observation::Programmed { node });
    }

    /// The NetworkPolicies in force in a node's kernel.
    pub fn policed(&self, node: &str, table: Ruleset) {
        let mut inner = self.lock();
        let now = inner.world.now;
        let line = format!("kernel of {node} has {} chains of policies", table.chains.len());
        inner.history.add(now, &line, b"");
        inner.world.policy_tables.insert(node.into(), table);
        inner.check_rules(&Observation::Policed { node });
    }

    /// An agent allocates addresses for a sandbox.
    pub fn leased(&self, node: &str, sandbox: &str, uid: &str, addresses: &[IpAddr]) {
        let mut inner = self.lock();
        let now = inner.world.now;
        let line = format!("{sandbox} on {node} gets {addresses:?}");
        inner.history.add(now, &line, uid.as_bytes());
        let lease = Lease {
            addresses: addresses.to_vec(),
            is_attached: false,
        };
        let key = (node.to_string(), sandbox.to_string());
        inner.world.leases.insert(key, lease);
        inner.check_rules(&Observation::Leased { node, sandbox });
    }

    /// An agent reports that the policies of a sandbox's pod are in force.
    pub fn attached(&self, node: &str, sandbox: &str) {
        let key = (node.to_string(), sandbox.to_string());
        if let Some(lease) = self.lock().world.leases.get_mut(&key) {
            lease.is_attached = true;
        }
    }

    /// Nothing of a sandbox is left that could use its addresses.
    pub fn unleased(&self, node: &str, sandbox: &str) {
        let key = (node.to_string(), sandbox.to_string());
        self.lock().world.leases.remove(&key);
    }

    /// The same for all sandboxes of this node.
    pub fn unleased_all(&self, node: &str) {
        self.lock().world.leases.retain(|(of, _), _| of != node);
    }

    /// So many times one of the node's settled pods, by chance; none if there is none.
    pub fn some_settled_pods(&self, node: &str, count: usize, chance: &mut Stream) -> Vec<SettledPod> {
        self.world(|world| {
            let settled = settled_pods(world, node);
            let picked = (0..count).map_while(|_| chance.pick(&settled));
            let owned = picked.map(|(process, address)| SettledPod {
                key: PodKey::new(&process.namespace, &process.name),
                uid: process.uid.clone(),
                address: *address,
            });
            owned.collect()
        })
    }

    /// All addresses of pods that are in use, and an address of no pod.
    pub fn pod_addresses(&self) -> Vec<IpAddr> {
        self.world(|world| {
            let leased = world.leases.values().flat_map(|lease| &lease.addresses);
            leased.copied().chain([n6_policy::STRANGER]).collect()
        })
    }
}

/// A pod with a running process whose policies are in force.
pub(crate) struct SettledPod {
    pub key: PodKey,
    pub uid: String,
    /// The first one of its sandbox.
    pub address: IpAddr,
}

/// The processes of a node whose pods' policies are in force, with the address of each.
fn settled_pods<'a>(world: &'a World, node: &str) -> Vec<(&'a Process, IpAddr)> {
    let first = (node.to_string(), String::new());
    let leases = world.leases.range(first.clone()..);
    let attached: BTreeMap<&str, IpAddr> = leases
        .take_while(|((of, _), _)| of == node)
        .filter(|(_, lease)| lease.is_attached)
        .filter_map(|((_, sandbox), lease)| Some((sandbox.as_str(), *lease.addresses.first()?)))
        .collect();
    if attached.is_empty() {
        return Vec::new();
    }
    let processes = world.processes.range(first..);
    processes
        .take_while(|((of, _), _)| of == node)
        .filter_map(|(_, process)| Some((process, *attached.get(process.sandbox.as_str())?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n6_a_pod_is_settled_when_its_process_runs_in_a_sandbox_with_policies_in_force() {
        let address: IpAddr = [10, 0, 0, 1].into();
        for (node, sandbox, is_attached, addresses, is_settled) in [
            ("n1", "s", true, vec![address], true),
            ("n1", "s", false, vec![address], false),
            ("n1", "s", true, vec![], false),
            ("n1", "other", true, vec![address], false),
            ("n2", "s", true, vec![address], false),
            ("n0", "s", true, vec![address], false),
        ] {
            let mut world = World::default();
            for (of, id) in [("n0", "9"), ("n1", "1"), ("n10", "0")] {
                let process = Process {
                    node: of.into(),
                    id: id.into(),
                    ..Process::example("c")
                };
                world.processes.insert((of.into(), id.into()), process);
            }
            let lease = Lease {
                addresses,
                is_attached,
            };
            world.leases.insert((node.into(), sandbox.into()), lease);
            let found = settled_pods(&world, "n1");
            let found: Vec<_> = found.iter().map(|(p, at)| (p.node.as_str(), *at)).collect();
            let expect = is_settled.then_some(("n1", address));
            assert_eq!(found, Vec::from_iter(expect), "{node} {sandbox} {is_attached}");
        }
    }
}
