//! What network agents program, allocate and answer.

use std::collections::BTreeSet;
use std::net::IpAddr;

use knarr_network::nft::Table;
use knarr_network::policy::{PodKey, Ruleset};

use super::Observer;
use crate::rules::n6_policy;
use crate::world::{DnsResponse, Lease, Observation};

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

    /// Pods of a node with running processes whose policies are in force, with UID and address.
    pub fn settled_pods(&self, node: &str) -> Vec<(PodKey, String, IpAddr)> {
        self.world(|world| {
            let running = world.processes.values().filter(|p| p.node == node);
            let settled = running.filter_map(|p| {
                let lease = world.leases.get(&(p.node.clone(), p.sandbox.clone()))?;
                let address = *lease.addresses.first().filter(|_| lease.is_attached)?;
                Some((PodKey::new(&p.namespace, &p.name), p.uid.clone(), address))
            });
            settled.collect()
        })
    }

    /// All addresses of pods that are in use, and an address of no pod.
    pub fn pod_addresses(&self) -> Vec<IpAddr> {
        let stranger = std::iter::once(n6_policy::STRANGER);
        let leased: Vec<IpAddr> = self.world(|world| {
            let leases = world.leases.values();
            leases.flat_map(|lease| lease.addresses.clone()).collect()
        });
        leased.into_iter().chain(stranger).collect()
    }
}
