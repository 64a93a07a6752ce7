//! The endpoints of the Service `kubernetes`: the API servers that run now, as Endpoints and as an EndpointSlice.
//!
//! Servers of one cluster find each other in the store, like kube-apiserver's lease endpoint reconciler: each renews a key
//! of its own every [`RENEW`], and a key that was not renewed for [`TTL`] is removed by any server that sees it. A store
//! has no clock, so what counts is how long a server itself has seen a key unchanged; clocks are not compared. A server
//! that stops removes its key, unless it is the last. A store that belongs to one process has no such keys.
//!
//! In-cluster clients reach a server at its advertised address: [`Options::advertise`], else the address on which it
//! listens, else, if it listens on all addresses, the host's address on its default route. A loopback address is never
//! advertised: in a pod it is the pod itself.
//!
//! [`Options::advertise`]: crate::server::Options::advertise

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use knarr_api::{Kind, Object, registry};
use knarr_apimachinery::Error;
use knarr_store::{Compare, KeyRange, Op, Range, Revision, Txn};
use parking_lot::Mutex as SyncMutex;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::cache::store_error;
use crate::default_route;
use crate::keys::MASTER_LEASES;
use crate::loopback::LoopbackClient;
use crate::request::Target;

/// From one renewal to the next (kube-apiserver's endpoint reconcile interval).
pub(crate) const RENEW: Duration = Duration::from_secs(10);
/// How long a key counts that is not renewed (kube-apiserver's master lease).
const TTL: Duration = Duration::from_secs(15);
/// How long a server that stops waits for the store.
const WITHDRAW: Duration = Duration::from_secs(2);
const NAME: &str = "kubernetes";
const NAMESPACE: &str = "default";

/// Renews this server's key, and keeps the endpoints of the Service. See the module.
pub(crate) struct EndpointReconciler {
    client: LoopbackClient,
    /// The address on which this server listens.
    listen: SocketAddr,
    advertise: Option<SocketAddr>,
    leases: Leases,
}

/// What this server knows of the other API servers.
#[derive(Default)]
struct Leases {
    /// Held while writing: a renewal must not follow the withdrawal.
    state: Mutex<State>,
    reported: SyncMutex<bool>,
    /// Objects that had the desired contents when they were last read, and these contents.
    unchanged: SyncMutex<Vec<(Arc<Object>, Value)>>,
}

#[derive(Default)]
struct State {
    withdrawn: bool,
    /// By key: its revision, and since when it has that revision.
    last_seen: BTreeMap<Bytes, (Revision, Instant)>,
}

impl Leases {
    /// Whether exactly this object had the desired contents when it was last read; otherwise forgets the kind's entry.
    fn is_unchanged(&self, object: &Arc<Object>, document: &Value) -> bool {
        let mut unchanged = self.unchanged.lock();
        let is_known = unchanged
            .iter()
            .any(|(known, desired)| Arc::ptr_eq(known, object) && desired == document);
        if !is_known {
            unchanged.retain(|(known, _)| known.kind() != object.kind());
        }
        is_known
    }
}

fn key_of(address: IpAddr) -> Bytes {
    format!("{MASTER_LEASES}{address}").into()
}

fn address_of(key: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(key)
        .ok()?
        .strip_prefix(MASTER_LEASES)?
        .parse()
        .ok()
}

/// The address by which other hosts reach a server that listens on `listen`; `None` if they cannot.
pub fn advertised(listen: SocketAddr, advertise: Option<SocketAddr>) -> Option<SocketAddr> {
    let mut address = advertise.unwrap_or(listen);
    address.set_ip(address.ip().to_canonical());
    if address.port() == 0 {
        address.set_port(listen.port());
    }
    if address.ip().is_unspecified() {
        // A server that listens on all IPv6 addresses can be reached by IPv4, too.
        let families = [false].into_iter().chain(address.is_ipv6().then_some(true));
        let mut own = families.filter_map(default_route::source);
        address.set_ip(own.find(|ip| !ip.is_loopback())?);
    }
    (!address.ip().is_loopback()).then_some(address)
}

impl EndpointReconciler {
    pub fn new(client: LoopbackClient, listen: SocketAddr, advertise: Option<SocketAddr>) -> Self {
        EndpointReconciler {
            client,
            listen,
            advertise,
            leases: Leases::default(),
        }
    }

    fn advertised_address(&self) -> Option<SocketAddr> {
        advertised(self.listen, self.advertise)
    }

    /// Renews this server's key and reconciles the endpoints of the Service with all servers that run.
    pub async fn reconcile(&self) -> Result<(), Error> {
        let Some(own) = self.advertised_address() else {
            let mut reported = self.leases.reported.lock();
            if !std::mem::replace(&mut *reported, true) {
                let address = self.listen.ip();
                tracing::info!(
                    "pods cannot reach this API server: it listens on the loopback address {address}, which is not advertised"
                );
            }
            return Ok(());
        };
        let mut state = self.leases.state.lock().await;
        if state.withdrawn {
            return Ok(());
        }
        let mut addresses = Vec::new();
        if self.client.cache().store().is_shared() {
            self.renew(own.ip()).await?;
            addresses = self.live_servers(&mut state).await?;
        }
        if !addresses.contains(&own.ip()) {
            addresses.push(own.ip());
        }
        self.reconcile_service(own, &mut addresses).await
    }

    /// Removes this server's endpoint before it stops: new connections go to the other servers, if there are any.
    pub async fn withdraw(&self) {
        let Some(own) = self
            .advertised_address()
            .filter(|_| self.client.cache().store().is_shared())
        else {
            return;
        };
        let withdraw = async {
            let mut state = self.leases.state.lock().await;
            state.withdrawn = true;
            let mut others = self.live_servers(&mut state).await?;
            others.retain(|address| *address != own.ip());
            if others.is_empty() {
                return Ok(());
            }
            let key = key_of(own.ip());
            self.write(Vec::new(), Op::Delete { key }).await?;
            self.reconcile_service(own, &mut others).await
        };
        match tokio::time::timeout(WITHDRAW, withdraw).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::debug!("this API server's endpoint was not removed: {e}"),
            Err(_) => tracing::debug!("this API server's endpoint was not removed in time"),
        }
    }

    async fn renew(&self, own: IpAddr) -> Result<(), Error> {
        let now = self.client.now().as_second();
        // In kube-apiserver's format.
        let value = json!({
            "kind": "Endpoints", "apiVersion": "v1", "metadata": {"generation": now},
            "subsets": [{"addresses": [{"ip": own.to_string()}]}],
        });
        let put = Op::Put {
            key: key_of(own),
            value: value.to_string().into(),
        };
        self.write(Vec::new(), put).await
    }

    async fn write(&self, compares: Vec<Compare>, op: Op) -> Result<(), Error> {
        let txn = Txn {
            compares,
            ops: vec![op],
        };
        self.client
            .cache()
            .store()
            .txn(txn)
            .await
            .map(drop)
            .map_err(store_error)
    }

    /// The addresses whose keys are renewed. Keys that are no longer renewed are removed.
    async fn live_servers(&self, state: &mut State) -> Result<Vec<IpAddr>, Error> {
        let range = Range {
            keys: KeyRange::prefix(MASTER_LEASES),
            ..Range::default()
        };
        let found = self
            .client
            .cache()
            .store()
            .range(range)
            .await
            .map_err(store_error)?;
        let now = Instant::now();
        state
            .last_seen
            .retain(|key, _| found.kvs.iter().any(|kv| kv.key == *key));
        let mut live_servers = Vec::new();
        for kv in found.kvs {
            let Some(address) = address_of(&kv.key) else {
                continue;
            };
            let last_seen = state
                .last_seen
                .entry(kv.key.clone())
                .or_insert((kv.mod_revision, now));
            if last_seen.0 != kv.mod_revision {
                *last_seen = (kv.mod_revision, now);
            }
            if now.duration_since(last_seen.1) <= TTL {
                live_servers.push(address);
                continue;
            }
            let not_renewed = Compare::ModRevision {
                key: kv.key.clone(),
                is: kv.mod_revision,
            };
            self.write(vec![not_renewed], Op::Delete { key: kv.key }).await?;
        }
        Ok(live_servers)
    }

    async fn reconcile_service(&self, own: SocketAddr, addresses: &mut [IpAddr]) -> Result<(), Error> {
        addresses.sort();
        for (kind, document) in documents(own, addresses) {
            match self.reconcile_object(kind, document).await {
                // Another server of the cluster wrote first; the next renewal sees its write.
                Err(e) if e.is_conflict() || e.is_not_found() => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Writes the object unless it has these contents already.
    async fn reconcile_object(&self, kind: &Kind, document: Value) -> Result<(), Error> {
        if let Some(object) = self.client.get(kind, NAMESPACE, NAME) {
            if self.leases.is_unchanged(&object, &document) {
                return Ok(());
            }
            let current: Value = serde_json::from_slice(object.json()).map_err(Error::internal)?;
            let same = |path| current.pointer(path) == document.pointer(path);
            let (labels, contents) = ("/metadata/labels", ["/subsets", "/endpoints", "/ports"]);
            if same(labels) && contents.into_iter().all(same) {
                self.leases.unchanged.lock().push((object, document));
                return Ok(());
            }
            // The address family is immutable: the object is deleted and created again.
            if current["addressType"] != document["addressType"] {
                let target = Target::main(kind, NAMESPACE, NAME);
                self.client.delete(&target).await?;
            }
        }
        self.client.replace(kind, document).await
    }
}

/// Endpoints and EndpointSlice; the slice has the addresses of this server's family.
fn documents(own: SocketAddr, addresses: &[IpAddr]) -> Vec<(&'static Kind, Value)> {
    let ports = json!([{"name": "https", "port": own.port(), "protocol": "TCP"}]);
    let all: Vec<Value> = addresses.iter().map(|a| json!({"ip": a.to_string()})).collect();
    let of_family = addresses.iter().filter(|a| a.is_ipv4() == own.is_ipv4());
    let endpoints: Vec<Value> = of_family
        .map(|a| json!({"addresses": [a.to_string()], "conditions": {"ready": true}}))
        .collect();
    let metadata = |labels: Value| json!({"name": NAME, "namespace": NAMESPACE, "labels": labels});
    let object = json!({
        "metadata": metadata(json!({"endpointslice.kubernetes.io/skip-mirror": "true"})),
        "subsets": [{"addresses": all, "ports": ports}],
    });
    let slice = json!({
        "metadata": metadata(json!({"kubernetes.io/service-name": NAME})),
        "addressType": if own.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": endpoints,
        "ports": ports,
    });
    vec![(&registry::ENDPOINTS, object), (&registry::ENDPOINT_SLICE, slice)]
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn n2_a_loopback_address_is_not_advertised() {
        let table = [
            ("192.0.2.1:6443", None, Some("192.0.2.1:6443")),
            ("127.0.0.1:6443", None, None),
            ("[::1]:6443", None, None),
            ("127.0.0.1:6443", Some("192.0.2.7:443"), Some("192.0.2.7:443")),
            ("127.0.0.1:6443", Some("192.0.2.7:0"), Some("192.0.2.7:6443")),
            ("[::ffff:192.0.2.1]:6443", None, Some("192.0.2.1:6443")),
        ];
        for (listen, advertise, expected) in table {
            let parse = |text: &str| text.parse::<SocketAddr>().unwrap();
            let found = advertised(parse(listen), advertise.map(parse));
            assert_eq!(found, expected.map(parse), "{listen} {advertise:?}");
        }
        // On a host with a default route it is an address of this host, else there is none.
        if let Some(found) = advertised("0.0.0.0:6443".parse().unwrap(), None) {
            assert!(UdpSocket::bind((found.ip(), 0)).is_ok());
        }
    }
}
