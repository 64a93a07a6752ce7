//! What questions are answered from: the shared catalog, and in addition the reverse names, the namespaces and the
//! ConfigMap. All of it stays as it was seen last while the API server is unreachable.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use k8s_openapi::api::core::v1::ConfigMap;
use knarr_api::{Object, ObjectKey, k8s_openapi};
use knarr_client::informer::ReflectorStore;
use knarr_network::dns::forward::Forwarding;
use knarr_network::dns::resolv_conf::ResolvConf;
use knarr_network::dns::reverse::Reverse;
use knarr_network::dns::zone::{View, Zone};
use parking_lot::{Mutex, RwLock};
use tracing::{error, info};

use crate::catalog::{Changes, Shared};

/// Namespace and name of the ConfigMap.
pub const CONFIG_NAMESPACE: &str = "kube-system";
pub const CONFIG_NAME: &str = "knarr-dns";

/// The current upstream servers of other names. Never changed, only replaced.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    pub forwarding: Forwarding,
    /// Those of resolv.conf that are not this server itself.
    pub of_node: Vec<SocketAddr>,
    pub resolv_conf: ResolvConf,
    /// Grows with each change.
    pub generation: u64,
}

/// See the module.
pub struct Knowledge {
    zone: Zone,
    catalog: Arc<Shared>,
    reverse: RwLock<Reverse>,
    namespaces: RwLock<BTreeSet<Box<str>>>,
    /// Services, slices and namespaces have all been listed.
    synced: Mutex<Synced>,
    /// Changes with every change of the zone.
    serial: AtomicU32,
    routes: RwLock<Arc<Routes>>,
    /// Where this server itself listens.
    own: Vec<SocketAddr>,
}

#[derive(Clone, Copy, Default)]
struct Synced {
    catalog: bool,
    namespaces: bool,
}

impl Knowledge {
    pub fn new(zone: Zone, catalog: Arc<Shared>, own: Vec<SocketAddr>, serial: u32) -> Self {
        Knowledge {
            zone,
            catalog,
            reverse: RwLock::default(),
            namespaces: RwLock::default(),
            synced: Mutex::default(),
            serial: AtomicU32::new(serial),
            routes: RwLock::default(),
            own,
        }
    }

    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    pub fn is_synced(&self) -> bool {
        let synced = *self.synced.lock();
        synced.catalog && synced.namespaces
    }

    pub fn serial(&self) -> u32 {
        self.serial.load(Ordering::Relaxed)
    }

    pub fn routes(&self) -> Arc<Routes> {
        self.routes.read().clone()
    }

    /// Nothing changes while `act` runs.
    pub fn with_view<T>(&self, act: impl FnOnce(&View<'_>) -> T) -> T {
        let catalog = self.catalog.read();
        let reverse = self.reverse.read();
        let namespaces = self.namespaces.read();
        act(&View {
            zone: &self.zone,
            catalog: &catalog,
            reverse: &reverse,
            has_namespace: &|name| namespaces.contains(name),
            is_synced: self.is_synced(),
            serial: self.serial(),
        })
    }

    /// Applies the catalog's changes.
    pub fn take_changes(&self, changes: &Changes) {
        let catalog = self.catalog.read();
        let mut reverse = self.reverse.write();
        for key in &changes.services {
            reverse.update(&catalog, key);
        }
        if !changes.services.is_empty() {
            self.serial.fetch_add(1, Ordering::Relaxed);
        }
        if changes.reached.is_synced() {
            self.synced.lock().catalog = true;
        }
    }

    /// Addresses of this server are no upstream servers of it.
    fn without_own(&self, servers: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
        let servers = servers.into_iter();
        servers.filter(|server| !self.own.contains(server)).collect()
    }

    fn replace_routes(&self, change: impl FnOnce(&mut Routes)) {
        let mut routes = self.routes.write();
        let mut new = Routes::clone(&routes);
        change(&mut new);
        new.generation += 1;
        *routes = Arc::new(new);
    }

    /// Applies the node's resolv.conf, if it has changed.
    pub fn set_resolv_conf(&self, conf: ResolvConf) {
        if self.routes().resolv_conf == conf && self.routes().generation > 0 {
            return;
        }
        let servers = self.without_own(conf.servers.iter().map(|ip| SocketAddr::new(*ip, 53)));
        info!(?servers, "read name servers of the node");
        self.replace_routes(|routes| {
            routes.of_node = servers;
            routes.resolv_conf = conf;
        });
    }

    /// Applies the ConfigMap's data. With errors in it the previous configuration is kept.
    pub fn set_config(&self, data: &BTreeMap<String, String>) {
        match Forwarding::parse(data) {
            Ok(mut forwarding) => {
                forwarding.upstreams = forwarding.upstreams.map(|servers| self.without_own(servers));
                for servers in forwarding.stub_domains.values_mut() {
                    *servers = self.without_own(std::mem::take(servers));
                }
                if self.routes().forwarding != forwarding {
                    self.replace_routes(|routes| routes.forwarding = forwarding);
                }
            }
            Err(errors) => {
                for error in errors {
                    error!(%error, "cannot use ConfigMap {CONFIG_NAMESPACE}/{CONFIG_NAME}, keeping what was read before");
                }
            }
        }
    }
}

/// Stores the namespaces' names.
pub struct Namespaces(pub Arc<Knowledge>);

impl ReflectorStore for Namespaces {
    fn apply(&self, object: &Arc<Object>) {
        let name = ObjectKey::of(object).name;
        self.0.namespaces.write().insert(name.as_str().into());
    }

    fn remove(&self, key: &ObjectKey, _: Option<&Arc<Object>>) {
        self.0.namespaces.write().remove(key.name.as_str());
    }

    fn retain(&self, keys: &BTreeSet<ObjectKey>) {
        let names: BTreeSet<&str> = keys.iter().map(|key| key.name.as_str()).collect();
        self.0.namespaces.write().retain(|name| names.contains(&**name));
    }

    fn advance(&self, _: u64) {
        self.0.synced.lock().namespaces = true;
    }
}

/// Follows the ConfigMap.
pub struct Configuration(pub Arc<Knowledge>);

impl ReflectorStore for Configuration {
    fn apply(&self, object: &Arc<Object>) {
        if let Some(config) = object.to_typed::<ConfigMap>() {
            self.0.set_config(&config.data.clone().unwrap_or_default());
        }
    }

    fn remove(&self, _: &ObjectKey, _: Option<&Arc<Object>>) {
        self.0.set_config(&BTreeMap::new());
    }

    fn retain(&self, keys: &BTreeSet<ObjectKey>) {
        if keys.is_empty() {
            self.0.set_config(&BTreeMap::new());
        }
    }

    fn advance(&self, _: u64) {}
}
