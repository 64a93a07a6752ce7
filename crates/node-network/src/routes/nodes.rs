//! The Nodes of the cluster, as far as routes need them, and for a while those that were deleted.
//!
//! A Node is deleted before its pods are: while they run they serve, and connections to them continue. So a range that
//! is removed from a node, or with it, stays routed for a while, unless another node has it by then. So does that of a
//! node without addresses, as one is that registers again: its range may be known before its addresses are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;
use knarr_api::{Object, ObjectKey, k8s_openapi};
use knarr_client::informer::ReflectorStore;
use knarr_network::routes::{Node, overlap};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::signal::Signal;

/// How long a range is routed after its node was deleted: the time in which the pods of a deleted node are deleted (40 s of
/// quarantine in pod garbage collection) and the proxies of all nodes know of it.
pub const HOLD: Duration = Duration::from_secs(60);

/// See the module.
pub(super) struct Nodes {
    own: String,
    hold: Duration,
    known: Mutex<Known>,
    pub(super) synced: Signal<bool>,
    pub(super) changed: Arc<Notify>,
}

#[derive(Default)]
struct Known {
    nodes: BTreeMap<String, Node>,
    released: BTreeMap<IpNet, Released>,
}

/// A range that was a node's.
struct Released {
    node: String,
    addresses: Vec<IpAddr>,
    until: Instant,
}

impl Nodes {
    /// As the node of this name sees them.
    pub(super) fn new(own: &str, hold: Duration) -> Self {
        Nodes {
            own: own.to_string(),
            hold,
            known: Mutex::default(),
            synced: Signal::default(),
            changed: Arc::default(),
        }
    }

    /// All nodes that pods are reached on, by name.
    pub(super) fn current(&self, now: Instant) -> BTreeMap<String, Node> {
        let mut known = self.known.lock();
        known.released.retain(|_, released| released.until > now);
        let mut all = known.nodes.clone();
        for (cidr, released) in &known.released {
            let is_taken = |(name, node): (&String, &Node)| {
                (*name != released.node || !node.addresses.is_empty())
                    && node.pod_cidrs.iter().any(|other| overlap(cidr, other))
            };
            if known.nodes.iter().any(is_taken) {
                continue;
            }
            let node = all.entry(released.node.clone()).or_default();
            if node.addresses.is_empty() {
                node.addresses.clone_from(&released.addresses);
            }
            if !node.pod_cidrs.contains(cidr) {
                node.pod_cidrs.push(*cidr);
            }
        }
        all
    }

    /// Those of `current` that are deleted.
    pub(super) fn deleted(&self, current: &BTreeMap<String, Node>) -> BTreeSet<String> {
        let known = self.known.lock();
        let names = current.keys().filter(|name| !known.nodes.contains_key(*name));
        names.cloned().collect()
    }

    /// When the first range ceases to be routed.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let known = self.known.lock();
        known.released.values().map(|released| released.until).min()
    }

    /// A node as it is now, `None` if it was deleted; whether that changes anything.
    fn set(&self, name: &str, new: Option<Node>, now: Instant) -> bool {
        let mut known = self.known.lock();
        let old = match &new {
            Some(new) => known.nodes.insert(name.to_string(), new.clone()),
            None => known.nodes.remove(name),
        };
        if old == new {
            return false;
        }
        // Those that can be routed.
        let ranges = |node: &Option<Node>| match node {
            Some(node) if !node.addresses.is_empty() => node.pod_cidrs.clone(),
            _ => vec![],
        };
        let kept = ranges(&new);
        for cidr in &kept {
            known.released.remove(cidr);
        }
        if name == self.own {
            return true;
        }
        for cidr in ranges(&old).into_iter().filter(|cidr| !kept.contains(cidr)) {
            let released = Released {
                node: name.to_string(),
                addresses: old.as_ref().map(|o| o.addresses.clone()).unwrap_or_default(),
                until: now + self.hold,
            };
            known.released.insert(cidr, released);
        }
        true
    }
}

/// A Node, as far as routes need it.
pub fn reduced(node: &core::Node) -> Node {
    let addresses = node.status.iter().flat_map(|s| s.addresses.iter().flatten());
    let cidrs = node.spec.iter().flat_map(|s| s.pod_cidrs.iter().flatten());
    Node {
        addresses: addresses
            .filter(|a| a.type_ == "InternalIP")
            .filter_map(|a| a.address.parse().ok())
            .collect(),
        pod_cidrs: cidrs
            .filter_map(|cidr| cidr.parse::<IpNet>().ok())
            .map(|cidr| cidr.trunc())
            .collect(),
    }
}

impl ReflectorStore for Nodes {
    fn apply(&self, object: &Arc<Object>) {
        let Some(node) = object.to_typed::<core::Node>() else {
            return;
        };
        // Heartbeats change nothing here.
        if self.set(object.name(), Some(reduced(&node)), Instant::now()) {
            self.changed.notify_one();
        }
    }

    fn remove(&self, key: &ObjectKey, _: Option<&Arc<Object>>) {
        if self.set(&key.name, None, Instant::now()) {
            self.changed.notify_one();
        }
    }

    fn retain(&self, keys: &BTreeSet<ObjectKey>) {
        let removed: Vec<String> = {
            let known = self.known.lock();
            let is_deleted = |name: &&String| !keys.contains(&ObjectKey::new("", name.as_str()));
            known.nodes.keys().filter(is_deleted).cloned().collect()
        };
        for name in removed {
            self.remove(&ObjectKey::new("", name), None);
        }
    }

    fn advance(&self, _: u64) {
        if !self.synced.get() {
            self.synced.set(true);
            self.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(address: &str, cidrs: &[&str]) -> Node {
        Node {
            addresses: vec![address.parse().unwrap()],
            pod_cidrs: cidrs.iter().map(|c| c.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn n7_the_range_of_a_deleted_node_is_routed_while_its_pods_may_serve() {
        let nodes = Nodes::new("own", HOLD);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let old = node("192.0.2.2", &["10.244.1.0/24"]);
        assert!(nodes.set("own", Some(node("192.0.2.1", &["10.244.0.0/24"])), start));
        assert!(nodes.set("b", Some(old.clone()), start));
        assert!(!nodes.set("b", Some(old.clone()), start));
        assert!(nodes.set("b", None, start));
        let current = nodes.current(after(59));
        assert_eq!(current.get("b"), Some(&old));
        assert_eq!(nodes.deleted(&current), BTreeSet::from(["b".to_string()]));
        assert_eq!(nodes.next_expiry(), Some(after(60)));
        // It registers again, without a range at first, then with another one.
        let mut back = Node {
            pod_cidrs: vec![],
            ..old.clone()
        };
        nodes.set("b", Some(back.clone()), after(1));
        assert_eq!(nodes.current(after(1)).get("b"), Some(&old));
        back.pod_cidrs = vec!["10.244.9.0/24".parse().unwrap()];
        nodes.set("b", Some(back.clone()), after(2));
        assert_eq!(nodes.current(after(2))["b"].pod_cidrs.len(), 2);
        assert_eq!(nodes.current(after(60)).get("b"), Some(&back));
        assert_eq!(nodes.next_expiry(), None);
    }

    #[test]
    fn n7_a_node_whose_range_is_known_before_its_addresses_stays_routed() {
        let nodes = Nodes::new("own", HOLD);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let old = node("192.0.2.2", &["10.244.1.0/24"]);
        let registered = Node {
            addresses: vec![],
            ..old.clone()
        };
        nodes.set("b", Some(old.clone()), start);
        nodes.set("b", None, start);
        nodes.set("b", Some(registered.clone()), after(1));
        assert_eq!(nodes.current(after(59)).get("b"), Some(&old));
        assert_eq!(nodes.current(after(60)).get("b"), Some(&registered));
        let new = node("192.0.2.9", &["10.244.1.0/24"]);
        nodes.set("b", Some(new.clone()), after(2));
        assert_eq!(nodes.current(after(2)).get("b"), Some(&new));
        assert_eq!(nodes.next_expiry(), None);
        // Its addresses are missing for a moment.
        nodes.set("b", Some(registered), after(3));
        assert_eq!(nodes.current(after(3)).get("b"), Some(&new));
    }

    #[test]
    fn n7_a_range_that_another_node_has_is_routed_to_that_one() {
        let nodes = Nodes::new("own", HOLD);
        let start = Instant::now();
        nodes.set("b", Some(node("192.0.2.2", &["10.244.1.0/24"])), start);
        nodes.set("b", None, start);
        nodes.set("c", Some(node("192.0.2.3", &["10.244.0.0/16"])), start);
        assert!(!nodes.current(start).contains_key("b"));
        // What was this node's own is not routed anywhere.
        nodes.set("own", Some(node("192.0.2.1", &["10.245.0.0/24"])), start);
        nodes.set("own", None, start);
        assert!(!nodes.current(start).contains_key("own"));
    }
}
