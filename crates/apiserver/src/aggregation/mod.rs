//! API aggregation: group versions that an extension API server serves behind a Service, by an APIService that names it
//! (kube-aggregator).
//!
//! Requests are authenticated and authorized here, then proxied to one of the Service's ready endpoints with the front
//! proxy's certificate and the user in `X-Remote-*` headers. Only addresses in EndpointSlices of the Service are dialed,
//! never a host that a client, an ExternalName or a redirect names. An APIService that is not available costs its clients
//! a 503 and nobody else anything: each one is checked by a task of its own, and what discovery and OpenAPI show of it
//! was downloaded before.

mod availability;
mod backend;
mod body;
mod channel;
mod content;
mod controller;
mod discovery;
mod endpoint;
mod identity;
mod openapi;
mod proxy;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

pub(crate) use self::backend::Backend;
pub(crate) use self::controller::look_after_extension_servers;
pub(crate) use self::discovery::{Form, merge};
pub(crate) use self::openapi::{add_to_index, with_all};
pub(crate) use self::proxy::Delegated;
use crate::metrics;
use crate::pki::Identity;

/// The APIServices that name a Service, and what is known of each.
pub(crate) struct Aggregation {
    /// What this server shows to extension API servers.
    identity: Option<Identity>,
    backends: RwLock<Arc<[Arc<Backend>]>>,
    /// Counts changes of what discovery and OpenAPI show.
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

    /// All of them, in the order of their names.
    pub fn backends(&self) -> Arc<[Arc<Backend>]> {
        self.backends.read().clone()
    }

    /// Who serves this group version, if not this server itself.
    pub fn backend(&self, group: &str, version: &str) -> Option<Arc<Backend>> {
        let backends = self.backends.read();
        let found = backends.iter().find(|b| b.serves(group, version));
        found.cloned()
    }

    pub fn has_group(&self, group: &str) -> bool {
        self.backends.read().iter().any(|b| b.spec.group == group)
    }

    /// Grows whenever discovery or OpenAPI documents change.
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

    /// kube-aggregator's metrics, in the text format.
    pub fn metrics_text(&self) -> String {
        let mut out = String::new();
        let name = "aggregator_unavailable_apiservice";
        metrics::head(&mut out, name, "gauge", "APIServices that are not available.");
        for backend in self.backends().iter() {
            let gauge = u8::from(!backend.is_available());
            out += &format!("{name}{{name=\"{}\"}} {gauge}\n", backend.name);
        }
        let name = "aggregator_unavailable_apiservice_total";
        metrics::head(
            &mut out,
            name,
            "counter",
            "How often APIServices became unavailable.",
        );
        for ((service, reason), count) in &*self.unavailable.lock() {
            out += &format!("{name}{{name=\"{service}\",reason=\"{reason}\"}} {count}\n");
        }
        out
    }
}

#[cfg(test)]
mod tests;
