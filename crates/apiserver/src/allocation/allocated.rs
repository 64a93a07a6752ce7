//! The addresses and node ports of the cached Services, kept up to date from the changes of Services: creating a
//! Service costs the changes since the last creation and no list of all Services.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use knarr_api::kinds::service_ips::allocated_to;
use knarr_api::{Object, k8s_openapi};
use knarr_apimachinery::capacity::ShrinkSparse;

use crate::cache::KindCache;

type Values = (Box<[IpAddr]>, Box<[i32]>);

/// The addresses and node ports that Services have. See the module.
#[derive(Default)]
pub(super) struct AllocatedValues {
    /// By UID: a deleted Service and a new one of the same name are counted separately.
    by_uid: HashMap<Box<str>, Values>,
    addresses: Counts<IpAddr>,
    ports: Counts<i32>,
    /// The cache's last change of a Service that is counted here; `None` before the first.
    revision: Option<u64>,
}

/// How many Services have a value: more than one only if they were written by something other than this allocator.
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

    /// Whether a Service has the value, apart from the one whose values are `own`.
    fn has(&self, value: T, own: &[T]) -> bool {
        let count = self.0.get(&value).copied().unwrap_or(0);
        count > u32::from(own.contains(&value))
    }
}

impl AllocatedValues {
    /// Applies the changes in the cache since the last call, or reads all Services.
    pub fn follow(&mut self, services: &KindCache) {
        if self.catch_up(services) {
            return;
        }
        let mut all = Vec::new();
        let revision = services.scan("", "", |object| {
            all.push(object.clone());
            true
        });
        all.iter().for_each(|object| self.put(object));
        self.revision = Some(revision);
    }

    /// Applies the changes in the cache since the last call. `false` if the cache does not have them any more, or this is the first call: nothing
    /// is kept then, and all Services have to be read.
    pub fn catch_up(&mut self, services: &KindCache) -> bool {
        let changes = self
            .revision
            .and_then(|revision| services.changes_after(revision));
        let Some((changes, revision)) = changes else {
            *self = AllocatedValues::default();
            return false;
        };
        for change in changes {
            if change.deleted {
                self.remove(change.object.uid());
            } else {
                // A Service of the same name may have been deleted and created again since.
                if let Some(prev) = &change.prev {
                    self.remove(prev.uid());
                }
                self.put(&change.object);
            }
        }
        self.by_uid.shrink_sparse();
        self.addresses.0.shrink_sparse();
        self.ports.0.shrink_sparse();
        self.revision = Some(revision);
        true
    }

    fn put(&mut self, object: &Object) {
        let Some((addresses, ports)) = object.with_typed::<Service, _>(allocated_to) else {
            return;
        };
        addresses.iter().for_each(|address| self.addresses.add(*address));
        ports.iter().for_each(|port| self.ports.add(*port));
        // Without spare capacity: a collected Vec has room for four addresses, and most Services have one.
        let held = (addresses.into(), ports.into());
        self.by_uid.insert(object.uid().into(), held);
    }

    fn remove(&mut self, uid: &str) {
        let Some((addresses, ports)) = self.by_uid.remove(uid) else {
            return;
        };
        addresses
            .iter()
            .for_each(|address| self.addresses.remove(*address));
        ports.iter().for_each(|port| self.ports.remove(*port));
    }

    /// What Services other than the one of this UID have, if there is one.
    pub fn of_others(&self, own: Option<&str>) -> ValuesOfOthers<'_> {
        let own = own.and_then(|uid| self.by_uid.get(uid));
        ValuesOfOthers {
            allocated: self,
            addresses: own.map(|held| &*held.0).unwrap_or_default(),
            ports: own.map(|held| &*held.1).unwrap_or_default(),
        }
    }
}

/// See [`AllocatedValues::of_others`].
pub(super) struct ValuesOfOthers<'a> {
    allocated: &'a AllocatedValues,
    addresses: &'a [IpAddr],
    ports: &'a [i32],
}

impl ValuesOfOthers<'_> {
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.allocated.addresses.has(address, self.addresses)
    }

    pub fn has_port(&self, port: i32) -> bool {
        self.allocated.ports.has(port, self.ports)
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

    fn taken(allocated: &AllocatedValues, own: Option<&str>) -> Vec<i32> {
        let of_others = allocated.of_others(own);
        let addresses = (1..=9)
            .filter(|n| of_others.has_address(IpAddr::from([10, 96, 0, *n])))
            .map(i32::from);
        let ports = (30001..=30009).filter(|port| of_others.has_port(*port));
        addresses.chain(ports).collect()
    }

    #[test]
    fn n2_allocated_values_follow_the_services() {
        let cache = KindCache::new(&registry::SERVICE);
        let first = [("d/a".to_string(), service("a", "u1", 3, "10.96.0.1", 30001))];
        cache.load(BTreeMap::from(first), 3);
        let mut allocated = AllocatedValues::default();
        allocated.follow(&cache);
        assert_eq!(taken(&allocated, None), [1, 30001]);
        assert_eq!(taken(&allocated, Some("u1")), [0; 0]);
        cache.put("d/b", service("b", "u2", 4, "10.96.0.2", 30002));
        cache.put("d/a", service("a", "u1", 5, "10.96.0.1", 30003));
        allocated.follow(&cache);
        assert_eq!(taken(&allocated, None), [1, 2, 30002, 30003]);
        assert_eq!(taken(&allocated, Some("u2")), [1, 30003]);
        // Two Services have the same value: it stays taken until both are deleted, and for each of the two by the other.
        cache.put("d/c", service("c", "u3", 6, "10.96.0.2", 30004));
        allocated.follow(&cache);
        assert_eq!(taken(&allocated, Some("u2")), [1, 2, 30003, 30004]);
        cache.remove("d/b", 7);
        allocated.follow(&cache);
        assert_eq!(taken(&allocated, None), [1, 2, 30003, 30004]);
        // Deleted and created again, under the same name.
        cache.remove("d/a", 8);
        cache.put("d/a", service("a", "u4", 9, "10.96.0.7", 30007));
        allocated.follow(&cache);
        assert_eq!(taken(&allocated, None), [2, 7, 30004, 30007]);
        // The cache started over, or no longer has the changes since.
        cache.load(BTreeMap::new(), 20);
        allocated.follow(&cache);
        assert_eq!(taken(&allocated, None), [0; 0]);
        cache.put("d/e", service("e", "u5", 21, "10.96.0.5", 30005));
        cache.forget_history(21);
        allocated.follow(&cache);
        assert_eq!(taken(&allocated, None), [5, 30005]);
    }

    #[test]
    fn n2_a_service_is_kept_without_spare_capacity_and_is_not_decoded_for_it() {
        assert!(size_of::<(Box<str>, Values)>() <= 6 * size_of::<usize>());
        let mut allocated = AllocatedValues::default();
        let full = service("a", &"u".repeat(512), 3, "10.96.0.1", 30001);
        let slim = full.slim();
        assert!(slim.is_slim() && !full.is_slim());
        allocated.put(&slim);
        assert!(slim.is_slim());
        assert_eq!(taken(&allocated, None), [1, 30001]);
    }

    #[test]
    fn n2_nothing_is_kept_of_deleted_services() {
        const SERVICES: u16 = 1000;
        let cache = KindCache::new(&registry::SERVICE);
        let mut allocated = AllocatedValues::default();
        assert!(!allocated.catch_up(&cache), "nothing was read yet");
        allocated.follow(&cache);
        for n in 0..SERVICES {
            let (uid, address) = (format!("u{n}"), format!("10.97.{}.{}", n / 250, n % 250));
            let service = service(&format!("s{n}"), &uid, 1 + u64::from(n), &address, 30000 + n);
            cache.put(&format!("d/s{n}"), service);
        }
        assert!(allocated.catch_up(&cache));
        assert_eq!(allocated.by_uid.len(), usize::from(SERVICES));
        for n in 0..SERVICES {
            cache.remove(&format!("d/s{n}"), 2000 + u64::from(n));
        }
        assert!(allocated.catch_up(&cache));
        let capacities = [
            allocated.by_uid.capacity(),
            allocated.addresses.0.capacity(),
            allocated.ports.0.capacity(),
        ];
        assert!(capacities.iter().all(|c| *c < 100), "{capacities:?}");
        // The changes since are not in the cache any more.
        cache.put("d/t", service("t", "t", 4000, "10.97.9.9", 29999));
        cache.forget_history(4000);
        assert!(!allocated.catch_up(&cache));
        allocated.follow(&cache);
        assert_eq!(allocated.by_uid.len(), 1);
    }
}
