//! The content of this node's table, by Service, and the changes of it when a Service changes.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::frontend::{Frontend, FrontendKind, Reader};
use super::program::{HealthCheck, Program, SharedElement, Slots};
use super::slots::LOCAL_OFFSET;
use super::{Change, Config, Element, Family, NodeFacts, TableChange};
use crate::catalog::{Catalog, Protocol, ServiceKey};
use crate::nft::{Data, Elements};

/// Slots that endpoints had in the kernel, by the bytes of the frontend.
type Adopted = BTreeMap<(Family, Box<[u8]>), Vec<(u32, IpAddr, u16)>>;

/// A Service's claim on a frontend. The first in order has it.
type Claim = (Frontend, u8, ServiceKey);

/// The service proxy's state: the compiled Services of the catalog on this node.
pub struct Proxy {
    config: Config,
    node: NodeFacts,
    programs: BTreeMap<ServiceKey, Program>,
    claims: BTreeSet<Claim>,
    shared: BTreeMap<SharedElement, u32>,
    adopted: Adopted,
}

impl Proxy {
    pub fn new(config: Config, node: NodeFacts) -> Self {
        Proxy {
            config,
            node,
            programs: BTreeMap::new(),
            claims: BTreeSet::new(),
            shared: BTreeMap::new(),
            adopted: BTreeMap::new(),
        }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn node(&self) -> &NodeFacts {
        &self.node
    }

    /// Whether every Service has to be applied again.
    #[must_use]
    pub fn set_node(&mut self, node: NodeFacts) -> bool {
        let changed = self.node != node;
        self.node = node;
        changed
    }

    /// Whether anything has changed: the skeleton has to be run then, and every Service to be applied again.
    #[must_use]
    pub fn set_config(&mut self, config: Config) -> bool {
        let changed = self.config != config;
        self.config = config;
        changed
    }

    /// Adopts the slots that endpoints have in the kernel: the elements of [`ENDPOINTS`](super::layout::ENDPOINTS) and
    /// [`NODE_PORT_ENDPOINTS`](super::layout::NODE_PORT_ENDPOINTS). Call it before Services are applied for the first
    /// time; elements that cannot be read are skipped.
    pub fn adopt(&mut self, family: Family, endpoints: &Elements, node_port_endpoints: &Elements) {
        for (key, data) in endpoints.iter().chain(node_port_endpoints) {
            let Some((frontend, slot)) = key.start.split_last_chunk::<4>() else {
                continue;
            };
            let Some(Data::Value(value)) = data else { continue };
            let mut reader = Reader::new(value);
            if let (Some(address), Some(port)) = (reader.address(family), reader.port()) {
                let slots = self.adopted.entry((family, frontend.into())).or_default();
                slots.push((u32::from_ne_bytes(*slot), address, port));
            }
        }
        for slots in self.adopted.values_mut() {
            slots.sort_unstable();
        }
    }

    /// Drops the adopted slots that no Service has used. Call it after all were applied.
    pub fn finish_adoption(&mut self) {
        self.adopted = BTreeMap::new();
    }

    /// Applies the catalog's state of one Service, which may be deleted. Returns the change for the kernel; empty if there is
    /// none.
    pub fn apply(&mut self, catalog: &Catalog, key: &ServiceKey) -> Change {
        let old = self.programs.remove(key).unwrap_or_default();
        let adopted = &self.adopted;
        let adopted = |frontend: &Frontend| adopted_slots(adopted, frontend);
        let new = Program::of(catalog, key, &self.config, &self.node, &old, &adopted);
        let mut change = Change::default();
        if old != new {
            change.stale_udp = new.stale_udp(&old);
            self.replace(key, &old, &new, &mut change);
        }
        if !new.is_empty() {
            self.programs.insert(key.clone(), new);
        }
        change
    }

    /// All elements that a family's table shall have, in no order, each once.
    pub fn visit(&self, family: Family, visitor: &mut dyn FnMut(Element)) {
        let mut elements = Vec::new();
        let mut last = None;
        for (frontend, _, owner) in &self.claims {
            // The claims on one frontend follow each other.
            if frontend.family == family && last.replace(frontend) != Some(frontend) {
                if let Some(program) = self.programs.get(owner) {
                    program.render(frontend, &mut elements);
                }
                elements.drain(..).for_each(&mut *visitor);
            }
        }
        for shared in self.shared.keys().filter(|shared| shared.family() == family) {
            visitor(shared.element());
        }
    }

    /// Services with a `healthCheckNodePort`.
    pub fn health_checks(&self) -> impl Iterator<Item = (&ServiceKey, HealthCheck)> {
        let programs = self.programs.iter();
        programs.filter_map(|(key, program)| Some((key, *program.health.as_deref()?)))
    }

    /// The seconds for which a Service's clients stay with their endpoint, as its elements have them. The table needs their
    /// [chain](super::affinity_chains) first.
    pub fn affinity_timeout(&self, key: &ServiceKey) -> Option<u32> {
        self.programs.get(key)?.affinity_seconds()
    }

    /// The Service that connections to a frontend are sent to: of several that claim it, the one whose cluster IP it is,
    /// else the first by namespace and name.
    pub fn owner(&self, frontend: &Frontend) -> Option<&ServiceKey> {
        let first_key = ServiceKey::new("", "");
        let mut claims = self.claims.range((*frontend, 0, first_key)..);
        let (first, _, owner) = claims.next()?;
        (first == frontend).then_some(owner)
    }

    /// The frontends that a Service claims for one of its ports.
    pub(super) fn frontends(
        &self,
        key: &ServiceKey,
        family: Family,
        protocol: Protocol,
        port: u16,
    ) -> Vec<(FrontendKind, Frontend)> {
        let program = self.programs.get(key);
        program
            .map(|program| program.frontends_of(family, protocol, port))
            .unwrap_or_default()
    }

    fn replace(&mut self, key: &ServiceKey, old: &Program, new: &Program, change: &mut Change) {
        let (claimed, claiming) = (old.frontends(), new.frontends());
        let affected = claimed.iter().chain(&claiming).map(|(_, frontend)| *frontend);
        let affected: BTreeSet<Frontend> = affected.collect();
        let owners = |proxy: &Self| -> Vec<Option<ServiceKey>> {
            affected.iter().map(|f| proxy.owner(f).cloned()).collect()
        };
        let before = owners(self);
        for (kind, frontend) in claimed {
            self.claims.remove(&(frontend, kind.precedence(), key.clone()));
        }
        for (kind, frontend) in claiming {
            self.claims.insert((frontend, kind.precedence(), key.clone()));
        }
        let after = owners(self);
        let render = |owner: &Option<ServiceKey>, own: &Program, frontend: &Frontend| {
            let mut elements = Vec::new();
            let program = match owner {
                Some(owner) if owner == key => Some(own),
                Some(owner) => self.programs.get(owner),
                None => None,
            };
            if let Some(program) = program {
                program.render(frontend, &mut elements);
            }
            elements.sort_unstable();
            elements
        };
        for (frontend, (before, after)) in affected.iter().zip(before.iter().zip(&after)) {
            if before == after && before.as_ref() != Some(key) {
                continue;
            }
            let table = change.table_mut(frontend.family);
            difference(render(before, old, frontend), render(after, new, frontend), table);
        }
        let (had, has) = (old.shared(), new.shared());
        for removed in had.difference(&has) {
            if let Some(count) = self.shared.get_mut(removed) {
                *count -= 1;
                if *count == 0 {
                    self.shared.remove(removed);
                    change.table_mut(removed.family()).remove.push(removed.element());
                }
            }
        }
        for added in has.difference(&had) {
            let count = self.shared.entry(*added).or_insert(0);
            *count += 1;
            if *count == 1 {
                change.table_mut(added.family()).add.push(added.element());
            }
        }
    }
}

fn adopted_slots(adopted: &Adopted, frontend: &Frontend) -> Option<Slots> {
    let slots = adopted.get(&(frontend.family, frontend.fields().bytes()))?;
    let list = |local: bool| {
        let of_list = slots.iter().filter(|(slot, ..)| (*slot >= LOCAL_OFFSET) == local);
        of_list.map(|(_, address, port)| (*address, *port)).collect()
    };
    Some((list(false), list(true)))
}

/// What leads from one sorted list of elements to another.
fn difference(old: Vec<Element>, new: Vec<Element>, change: &mut TableChange) {
    let mut removed = |mut element: Element| {
        element.data = None;
        change.remove.push(element);
    };
    let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => (old.set, &old.key).cmp(&(new.set, &new.key)),
        };
        match order {
            Ordering::Less => old.next().into_iter().for_each(&mut removed),
            Ordering::Greater => change.add.extend(new.next()),
            Ordering::Equal => {
                let (before, after) = (old.next(), new.next());
                if before != after {
                    before.into_iter().for_each(&mut removed);
                    change.add.extend(after);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Program;
    use crate::proxy::tests::{Node, config};

    #[test]
    fn n3_nothing_is_kept_of_a_deleted_service() {
        let mut node = Node::new(config());
        let spec = json!({"clusterIP": "172.30.0.41", "ports": [{"name": "p80", "port": 80}]});
        node.service("svc1", spec, &[]);
        assert_eq!(node.proxy.programs.len(), 1);
        node.catalog.remove_service("ns", "svc1");
        node.sync("svc1");
        assert!(node.proxy.programs.is_empty());
    }

    #[test]
    fn n2_a_program_takes_as_much_memory_in_the_map_as_what_every_service_has() {
        assert!(size_of::<Program>() <= 3 * size_of::<usize>());
    }
}
