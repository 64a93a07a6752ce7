//! API aggregation: group versions that an extension API server serves behind a Service, by an APIService that names it
//! (kube-aggregator).
//!
//! Requests are authenticated and authorized here, then proxied to one of the Service's ready endpoints with the front
//! proxy's certificate and the user in `X-Remote-*` headers. Only addresses in EndpointSlices of the Service are dialed,
//! never a host that a client, an ExternalName or a redirect names. Requests for an APIService that is not available get 503
//! and delay no others: each APIService is checked by a task of its own, and its discovery and OpenAPI documents were
//! downloaded before.

mod availability;
mod backend;
mod body;
mod content;
mod controller;
mod discovery;
mod endpoint;
mod extension_servers;
mod identity;
mod openapi;
mod openapi_download;
mod proxy;
mod spec;
mod transport;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use knarr_client::metrics::Samples;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

pub(crate) use self::backend::Backend;
pub(crate) use self::controller::{ApiServiceController, run_api_service_controller};
pub(crate) use self::discovery::{DiscoveryFormat, merge};
pub(crate) use self::extension_servers::ExtensionServers;
pub(crate) use self::openapi_download::{add_backends_to_index, with_backends};
pub(crate) use self::proxy::ProxiedResponse;
use crate::identity::Identity;

/// The APIServices that name a Service, each with its state.
pub(crate) struct Aggregation {
    /// The front proxy's certificate, with which this server authenticates to extension API servers.
    identity: Option<Identity>,
    backends: RwLock<Arc<[Arc<Backend>]>>,
    /// Counts the changes of discovery and OpenAPI documents.
    changes: AtomicU64,
    /// How often each APIService became unavailable, by its name and the reason.
    unavailable: Mutex<BTreeMap<(String, &'static str), u64>>,
    started: Instant,
}

impl Aggregation {
    pub fn new(identity: Option<Identity>) -> Self {
        Aggregation {
            identity,
            backends: RwLock::new(Arc::new([])),
            changes: AtomicU64::new(0),
            unavailable: Mutex::default(),
            started: Instant::now(),
        }
    }

    /// All backends, sorted by name.
    pub fn backends(&self) -> Arc<[Arc<Backend>]> {
        self.backends.read().clone()
    }

    /// The backend of this group version; `None` if this server serves it.
    pub fn backend(&self, group: &str, version: &str) -> Option<Arc<Backend>> {
        let backends = self.backends.read();
        let found = backends.iter().find(|b| b.serves(group, version));
        found.cloned()
    }

    pub fn has_group(&self, group: &str) -> bool {
        self.backends.read().iter().any(|b| b.spec.group == group)
    }

    /// A counter that grows whenever discovery or OpenAPI documents change.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    fn became_unavailable(&self, name: &str, reason: &'static str) {
        let mut unavailable = self.unavailable.lock();
        *unavailable.entry((name.to_string(), reason)).or_default() += 1;
    }

    /// Adds kube-aggregator's metrics.
    pub fn write_metrics(&self, samples: &mut Samples) {
        samples.gauge(
            "aggregator_unavailable_apiservice",
            "Gauge of APIServices which are marked as unavailable broken down by APIService name.",
        );
        for backend in self.backends().iter() {
            let gauge = u8::from(!backend.is_available());
            samples.add(&[("name", &backend.name)], gauge.into());
        }
        samples.counter(
            "aggregator_unavailable_apiservice_total",
            "Counter of APIServices which are marked as unavailable broken down by APIService name and reason.",
        );
        for ((service, reason), count) in &*self.unavailable.lock() {
            samples.add(&[("name", service), ("reason", reason)], *count as f64);
        }
    }
}

#[cfg(test)]
mod tests;
