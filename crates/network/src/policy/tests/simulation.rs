//! A simulated kernel that evaluates a ruleset as the skeleton's rules do, and rejects what the kernel would reject.

use std::net::IpAddr;
use std::sync::Arc;

use super::reference;
use super::world::{Connection, World};
use crate::nft::{Data, Key, Verdict};
use crate::policy::{
    Chain, ChainRule, Change, Direction, EGRESS, FIXED_SETS, INGRESS, Policies, Ruleset, SELF, SetType,
};

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().into(),
        IpAddr::V6(v6) => v6.octets().into(),
    }
}

#[derive(Clone, Debug, Default)]
pub struct Kernel(pub Ruleset);

impl Kernel {
    /// Starts with the whole ruleset of an agent.
    pub fn of(policies: &mut Policies) -> Self {
        Kernel(policies.ruleset())
    }

    fn uses(&self, set: &str) -> bool {
        let rules = self.0.chains.values().flat_map(|chain| &chain.rules);
        rules
            .into_iter()
            .filter_map(|rule| rule.peers.as_ref())
            .any(|(sets, _)| sets.iter().any(|name| **name == *set))
    }

    fn leads_to(&self, chain: &str) -> bool {
        let elements = FIXED_SETS.iter().flat_map(|name| &self.0.sets[*name].elements);
        let jump = Some(Data::Verdict(Verdict::Jump(chain.into())));
        elements.into_iter().any(|(_, data)| *data == jump)
    }

    pub fn apply(&mut self, change: Change) {
        for (name, set) in change.sets {
            assert!(self.0.sets.insert(name.clone(), set).is_none(), "{name} is new");
        }
        for (name, chain) in change.chains {
            for (sets, _) in chain.rules.iter().filter_map(|rule| rule.peers.as_ref()) {
                assert!(sets.iter().all(|set| self.0.sets.contains_key(set)));
            }
            assert!(
                self.0.chains.insert(name.clone(), chain).is_none(),
                "{name} is new"
            );
        }
        for operation in change.operations {
            if let Some(Some(Data::Verdict(Verdict::Jump(chain)))) = &operation.after {
                assert!(self.0.chains.contains_key(&**chain), "{chain}");
            }
            let set = self.0.sets.get_mut(&operation.set).expect("a set of elements");
            assert_eq!(set.elements.get(&operation.key), operation.before.as_ref());
            match operation.after {
                Some(data) => set.elements.insert(operation.key, data),
                None => set.elements.remove(&operation.key),
            };
        }
        for name in change.unused_chains {
            assert!(!self.leads_to(&name));
            self.0.chains.remove(&name).expect("a chain");
        }
        for name in change.unused_sets {
            assert!(!self.uses(&name));
            self.0.sets.remove(&name).expect("a set");
        }
    }

    fn rule_matches(&self, rule: &ChainRule, peer: IpAddr, connection: &Connection) -> bool {
        let protocol = connection.protocol.number();
        let ports_match = rule.ports.contains(protocol, Some(connection.port));
        let Some((names, kind)) = &rule.peers else {
            return ports_match;
        };
        let name = &names[usize::from(!peer.is_ipv4())];
        let set = &self.0.sets[name];
        assert_eq!((set.kind, set.is_ipv4), (*kind, peer.is_ipv4()));
        let address = bytes(peer);
        match kind {
            SetType::Addresses => ports_match && set.elements.contains_key(&Key::exact(address)),
            SetType::Ranges => {
                let is_in = |key: &Key| {
                    let end = key.end.as_deref().unwrap_or(&key.start);
                    (&*key.start..=end).contains(&&*address)
                };
                ports_match && set.elements.keys().any(is_in)
            }
            SetType::AddressesAndPorts => {
                let [high, low] = connection.port.to_be_bytes();
                let key = [address, vec![protocol, 0, 0, 0, high, low, 0, 0]].concat();
                set.elements.contains_key(&Key::exact(key))
            }
        }
    }

    fn chain_passes(&self, chain: &Chain, connection: &Connection) -> bool {
        let peer = match chain.direction {
            Direction::Ingress => connection.from,
            Direction::Egress => connection.to,
        };
        chain
            .rules
            .iter()
            .any(|rule| self.rule_matches(rule, peer, connection))
    }

    fn map_passes(&self, maps: [&str; 2], own: IpAddr, connection: &Connection) -> bool {
        let map = &self.0.sets[maps[usize::from(!own.is_ipv4())]];
        match map.elements.get(&Key::exact(bytes(own))) {
            None => true,
            Some(Some(Data::Verdict(Verdict::Drop))) => false,
            Some(Some(Data::Verdict(Verdict::Jump(chain)))) => {
                self.chain_passes(&self.0.chains[&**chain], connection)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The chain `forward`, for a packet that opens a connection.
    pub fn forwards(&self, connection: &Connection) -> bool {
        let twice = [bytes(connection.from), bytes(connection.to)].concat();
        let of_family = usize::from(!connection.from.is_ipv4());
        self.0.sets[SELF[of_family]]
            .elements
            .contains_key(&Key::exact(twice))
            || self.map_passes(EGRESS, connection.from, connection)
                && self.map_passes(INGRESS, connection.to, connection)
    }

    /// The chain `input`, for a query to the cluster DNS address.
    pub fn answers_dns(&self, connection: &Connection) -> bool {
        self.map_passes(EGRESS, connection.from, connection)
    }
}

/// Two nodes with their agents.
pub struct Nodes {
    pub agents: [Policies; 2],
    pub kernels: [Kernel; 2],
}

impl Nodes {
    pub fn of(world: &World) -> Self {
        let mut agents = [world.load(0), world.load(1)];
        let kernels = agents.each_mut().map(Kernel::of);
        Nodes { agents, kernels }
    }

    pub fn sync(&mut self) {
        for (agent, kernel) in self.agents.iter_mut().zip(&mut self.kernels) {
            kernel.apply(agent.take_change());
        }
    }

    /// Through the nodes of both ends.
    pub fn pass(&self, world: &World, connection: &Connection) -> bool {
        let node = |address| world.pod_at(address).map(|pod| pod.node);
        let mut nodes = [node(connection.from), node(connection.to)];
        if nodes[0] == nodes[1] {
            nodes[1] = None;
        }
        let mut kernels = nodes.into_iter().flatten().map(|node| &self.kernels[node]);
        kernels.all(|kernel| kernel.forwards(connection))
    }

    pub fn check(&self, world: &World) {
        for connection in world.connections() {
            assert_eq!(
                self.pass(world, &connection),
                reference::allows(world, &connection),
                "{connection:?} with {:#?}",
                world.policies
            );
        }
    }

    /// What is in the kernels is what an agent that starts now would put there, by numbers.
    pub fn check_contents(&mut self, world: &World) {
        for (index, kernel) in self.kernels.iter().enumerate() {
            assert_eq!(kernel.0, self.agents[index].ruleset());
            let fresh = world.load(index).ruleset();
            let sizes = |ruleset: &Ruleset| {
                let mut sizes: Vec<usize> = ruleset.sets.values().map(|set| set.elements.len()).collect();
                sizes.sort_unstable();
                let fixed = FIXED_SETS.map(|name| {
                    let elements = &ruleset.sets[&Arc::from(name)].elements;
                    elements.keys().cloned().collect::<Vec<_>>()
                });
                (sizes, ruleset.chains.len(), fixed)
            };
            assert_eq!(sizes(&kernel.0), sizes(&fresh));
        }
    }
}
