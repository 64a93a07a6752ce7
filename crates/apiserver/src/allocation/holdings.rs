//! What the cached Services hold: addresses and node ports, kept up to date by the Services' changes, so that a new Service
//! costs the changes since the last one and not a look at all of them.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use knarr_api::kinds::service_ips::held;
use knarr_api::{Object, k8s_openapi};

use crate::cache::KindCache;

type Held = (Vec<IpAddr>, Vec<i32>);

/// See the module.
#[derive(Default)]
pub(super) struct Holdings {
    /// By UID: what a Service of before may hold, one of the same name holds apart.
    by_uid: HashMap<String, Held>,
    addresses: Counts<IpAddr>,
    ports: Counts<i32>,
    /// The cache's last change of a Service that is in here; `None` before the first look.
    revision: Option<u64>,
}

/// How many Services hold a value: more than one, if they come from elsewhere.
struct Counts<T>(HashMap<T, u32>);

impl<T> Default for Counts<T> {
    fn default() -> Self {
        Counts(HashMap::new())
    }
}

impl<T: Hash + Eq + Copy> Counts<T> {
    fn add(&mut self, value: T) {
        *self.0.entry(value).or_insert(0) += 1;
    }

    fn remove(&mut self, value: T) {
        if let Some(count) = self.0.get_mut(&value) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&value);
            }
        }
    }

    /// Whether anybody holds it who has it not among `own`.
    fn has(&self, value: T, own: &[T]) -> bool {
        let count = self.0.get(&value).copied().unwrap_or(0);
        count > u32::from(own.contains(&value))
    }
}

impl Holdings {
    /// Takes in what has changed in the cache since.
    pub fn follow(&mut self, services: &KindCache) {
        let changes = self
            .revision
            .and_then(|revision| services.changes_after(revision));
        let Some((changes, revision)) = changes else {
            *self = Holdings::default();
            let mut all = Vec::new();
            let revision = services.scan("", "", |object| {
                all.push(object.clone());
                true
            });
            all.iter().for_each(|object| self.put(object));
            self.revision = Some(revision);
            return;
        };
        for change in changes {
            if change.deleted {
                self.remove(change.object.uid());
            } else {
                // A Service of the same name may have been there that was deleted and made again behind our back.
                if let Some(prev) = &change.prev {
                    self.remove(prev.uid());
                }
                self.put(&change.object);
            }
        }
        self.revision = Some(revision);
    }

    fn put(&mut self, object: &Object) {
        let Some(service) = object.get::<Service>() else {
            return;
        };
        let held = held(service);
        held.0.iter().for_each(|address| self.addresses.add(*address));
        held.1.iter().for_each(|port| self.ports.add(*port));
        self.by_uid.insert(object.uid().to_string(), held);
    }

    fn remove(&mut self, uid: &str) {
        let Some((addresses, ports)) = self.by_uid.remove(uid) else {
            return;
        };
        addresses
            .into_iter()
            .for_each(|address| self.addresses.remove(address));
        ports.into_iter().for_each(|port| self.ports.remove(port));
    }

    /// What others hold than the Service of this UID, if there is one.
    pub fn of_others(&self, own: Option<&str>) -> OfOthers<'_> {
        let own = own.and_then(|uid| self.by_uid.get(uid));
        OfOthers {
            holdings: self,
            addresses: own.map(|held| &*held.0).unwrap_or_default(),
            ports: own.map(|held| &*held.1).unwrap_or_default(),
        }
    }
}

/// See [`Holdings::of_others`].
pub(super) struct OfOthers<'a> {
    holdings: &'a Holdings,
    addresses: &'a [IpAddr],
    ports: &'a [i32],
}

impl OfOthers<'_> {
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.holdings.addresses.has(address, self.addresses)
    }

    pub fn has_port(&self, port: i32) -> bool {
        self.holdings.ports.has(port, self.ports)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use knarr_api::registry;
    use serde_json::json;

    use super::*;

    fn service(name: &str, uid: &str, revision: u64, address: &str, port: u16) -> Arc<Object> {
        let value = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "d", "uid": uid, "resourceVersion": revision.to_string()},
            "spec": {"clusterIPs": [address], "ports": [{"port": 80, "nodePort": port}]},
        });
        let stored = value.to_string();
        let decoded = registry::SERVICE.ops.decode(stored.as_bytes()).unwrap();
        Arc::new(Object::from_stored(
            &registry::SERVICE,
            decoded.object,
            stored.as_bytes(),
            revision,
        ))
    }

    fn taken(holdings: &Holdings, own: Option<&str>) -> Vec<i32> {
        let of_others = holdings.of_others(own);
        let addresses = (1..=9)
            .filter(|n| of_others.has_address(IpAddr::from([10, 96, 0, *n])))
            .map(i32::from);
        let ports = (30001..=30009).filter(|port| of_others.has_port(*port));
        addresses.chain(ports).collect()
    }

    #[test]
    fn n2_holdings_follow_the_services() {
        let cache = KindCache::new(&registry::SERVICE);
        let first = [("d/a".to_string(), service("a", "u1", 3, "10.96.0.1", 30001))];
        cache.load(BTreeMap::from(first), 3);
        let mut holdings = Holdings::default();
        holdings.follow(&cache);
        assert_eq!(taken(&holdings, None), [1, 30001]);
        assert_eq!(taken(&holdings, Some("u1")), [0; 0]);
        cache.put("d/b", service("b", "u2", 4, "10.96.0.2", 30002));
        cache.put("d/a", service("a", "u1", 5, "10.96.0.1", 30003));
        holdings.follow(&cache);
        assert_eq!(taken(&holdings, None), [1, 2, 30002, 30003]);
        assert_eq!(taken(&holdings, Some("u2")), [1, 30003]);
        // Two that hold the same: it is taken until both are gone, and by the other one of the two.
        cache.put("d/c", service("c", "u3", 6, "10.96.0.2", 30004));
        holdings.follow(&cache);
        assert_eq!(taken(&holdings, Some("u2")), [1, 2, 30003, 30004]);
        cache.remove("d/b", 7);
        holdings.follow(&cache);
        assert_eq!(taken(&holdings, None), [1, 2, 30003, 30004]);
        // Deleted and made again, under the same name.
        cache.remove("d/a", 8);
        cache.put("d/a", service("a", "u4", 9, "10.96.0.7", 30007));
        holdings.follow(&cache);
        assert_eq!(taken(&holdings, None), [2, 7, 30004, 30007]);
        // The cache began anew, or has forgotten what happened since.
        cache.load(BTreeMap::new(), 20);
        holdings.follow(&cache);
        assert_eq!(taken(&holdings, None), [0; 0]);
        cache.put("d/e", service("e", "u5", 21, "10.96.0.5", 30005));
        cache.forget_history(21);
        holdings.follow(&cache);
        assert_eq!(taken(&holdings, None), [5, 30005]);
    }
}
