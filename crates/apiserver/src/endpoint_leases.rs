//! Where the Service `kubernetes` leads to: the API servers that run now, as Endpoints and as an EndpointSlice.
//!
//! Servers of one cluster find each other in the store (kube-apiserver's lease endpoint reconciler): each writes a key of
//! its own every [`RENEW`], and a key that has not moved for [`TTL`] is removed by whoever sees that. Stores know no time of
//! their own, so what counts is how long a server itself has seen a key stand still; clocks are not compared. A server
//! that stops removes its key, unless it is the last. A store that belongs to one process holds no such keys.
//!
//! In-cluster clients reach a server by the address that it advertises: [`Options::advertise`], else where it listens,
//! else, if it listens everywhere, the address of the machine's default route. A loopback address is never advertised:
//! in a pod it is the pod itself.
//!
//! [`Options::advertise`]: crate::server::Options::advertise

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use knarr_api::{Error, Kind, Object, registry};
use knarr_store::{Compare, KeyRange, Op, Range, Revision, Txn};
use parking_lot::Mutex as SyncMutex;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::cache::store_error;
use crate::default_route;
use crate::keys::MASTER_LEASES;
use crate::pipeline::Target;
use crate::pipeline::delete::DeleteRequest;
use crate::server::Server;

/// From one renewal to the next (kube-apiserver's endpoint reconcile interval).
pub(crate) const RENEW: Duration = Duration::from_secs(10);
/// How long a key that stands still counts (kube-apiserver's master lease).
const TTL: Duration = Duration::from_secs(15);
/// How long a server that stops waits for the store.
const WITHDRAW: Duration = Duration::from_secs(2);
const NAME: &str = "kubernetes";
const NAMESPACE: &str = "default";

/// What this server has seen of the others.
#[derive(Default)]
pub(crate) struct Leases {
    /// One at a time: a renewal must not follow the withdrawal.
    state: Mutex<State>,
    reported: SyncMutex<bool>,
    /// Objects that said what they are to say when they were looked at last, and that.
    in_order: SyncMutex<Vec<(Arc<Object>, Value)>>,
}

#[derive(Default)]
struct State {
    withdrawn: bool,
    /// By key: the revision, and since when it is that.
    seen: BTreeMap<Bytes, (Revision, Instant)>,
}

impl Leases {
    /// Whether this very object said so when it was looked at last; forgets what that was if not.
    fn was_in_order(&self, object: &Arc<Object>, document: &Value) -> bool {
        let mut in_order = self.in_order.lock();
        let is_known = in_order
            .iter()
            .any(|(known, said)| Arc::ptr_eq(known, object) && said == document);
        if !is_known {
            in_order.retain(|(known, _)| known.kind() != object.kind());
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

/// The address by which others reach a server that listens on `listen`; `None` if they cannot.
pub fn advertised(listen: SocketAddr, advertise: Option<SocketAddr>) -> Option<SocketAddr> {
    let mut address = advertise.unwrap_or(listen);
    address.set_ip(address.ip().to_canonical());
    if address.port() == 0 {
        address.set_port(listen.port());
    }
    if address.ip().is_unspecified() {
        // One that listens on all IPv6 addresses is reached by IPv4, too.
        let families = [false].into_iter().chain(address.is_ipv6().then_some(true));
        let mut own = families.filter_map(default_route::source);
        address.set_ip(own.find(|ip| !ip.is_loopback())?);
    }
    (!address.ip().is_loopback()).then_some(address)
}

impl Server {
    fn advertised_address(&self) -> Option<SocketAddr> {
        let listen = SocketAddr::new(self.config.address, self.config.port);
        advertised(listen, self.config.options.advertise)
    }

    /// Renews this server's key and makes the Service lead to all servers that run.
    pub(crate) async fn reconcile_endpoints(&self) -> Result<(), Error> {
        let Some(own) = self.advertised_address() else {
            let mut reported = self.leases.reported.lock();
            if !std::mem::replace(&mut *reported, true) {
                let address = self.config.address;
                tracing::info!("pods cannot reach this server: it is on the loopback address {address}");
            }
            return Ok(());
        };
        let mut state = self.leases.state.lock().await;
        if state.withdrawn {
            return Ok(());
        }
        let mut addresses = Vec::new();
        if self.cache.store().is_shared() {
            self.renew(own.ip()).await?;
            addresses = self.live(&mut state).await?;
        }
        if !addresses.contains(&own.ip()) {
            addresses.push(own.ip());
        }
        self.lead_to(own, &mut addresses).await
    }

    /// Before this server stops: new connections go to the others, if there are any.
    pub async fn withdraw_endpoints(&self) {
        let Some(own) = self
            .advertised_address()
            .filter(|_| self.cache.store().is_shared())
        else {
            return;
        };
        let withdraw = async {
            let mut state = self.leases.state.lock().await;
            state.withdrawn = true;
            let mut others = self.live(&mut state).await?;
            others.retain(|address| *address != own.ip());
            if others.is_empty() {
                return Ok(());
            }
            let key = key_of(own.ip());
            self.write(Vec::new(), Op::Delete { key }).await?;
            self.lead_to(own, &mut others).await
        };
        match tokio::time::timeout(WITHDRAW, withdraw).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::debug!("this server's endpoint was not removed: {e}"),
            Err(_) => tracing::debug!("this server's endpoint was not removed in time"),
        }
    }

    async fn renew(&self, own: IpAddr) -> Result<(), Error> {
        let now = self.clock.now().as_second();
        // In the form in which kube-apiserver keeps it.
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
        self.cache.store().txn(txn).await.map(drop).map_err(store_error)
    }

    /// The servers whose keys move. Keys that stand still are removed.
    async fn live(&self, state: &mut State) -> Result<Vec<IpAddr>, Error> {
        let range = Range {
            keys: KeyRange::prefix(MASTER_LEASES),
            ..Range::default()
        };
        let found = self.cache.store().range(range).await.map_err(store_error)?;
        let now = Instant::now();
        state
            .seen
            .retain(|key, _| found.kvs.iter().any(|kv| kv.key == *key));
        let mut live = Vec::new();
        for kv in found.kvs {
            let Some(address) = address_of(&kv.key) else {
                continue;
            };
            let seen = state.seen.entry(kv.key.clone()).or_insert((kv.mod_revision, now));
            if seen.0 != kv.mod_revision {
                *seen = (kv.mod_revision, now);
            }
            if now.duration_since(seen.1) <= TTL {
                live.push(address);
                continue;
            }
            let unmoved = Compare::ModRevision {
                key: kv.key.clone(),
                is: kv.mod_revision,
            };
            self.write(vec![unmoved], Op::Delete { key: kv.key }).await?;
        }
        Ok(live)
    }

    async fn lead_to(&self, own: SocketAddr, addresses: &mut [IpAddr]) -> Result<(), Error> {
        addresses.sort();
        for (kind, document) in documents(own, addresses) {
            match self.make_so(kind, document).await {
                // Another server of the same cluster was faster; the next renewal sees what it wrote.
                Err(e) if e.is_conflict() || e.is_not_found() => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Writes the object where it says something else.
    async fn make_so(&self, kind: &Kind, document: Value) -> Result<(), Error> {
        if let Some(object) = self.cache.get(kind, NAMESPACE, NAME) {
            if self.leases.was_in_order(&object, &document) {
                return Ok(());
            }
            let there: Value = serde_json::from_slice(object.json()).map_err(Error::internal)?;
            let same = |path| there.pointer(path) == document.pointer(path);
            let (labels, contents) = ("/metadata/labels", ["/subsets", "/endpoints", "/ports"]);
            if same(labels) && contents.into_iter().all(same) {
                self.leases.in_order.lock().push((object, document));
                return Ok(());
            }
            // Of another family: that cannot be changed.
            if there["addressType"] != document["addressType"] {
                let target = Target::main(kind, NAMESPACE, NAME);
                let request = DeleteRequest::default();
                self.delete(&mut self.myself(), &target, &request).await?;
            }
        }
        self.replace(kind, document).await
    }
}

/// Both forms; the slice has the addresses of this server's family.
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
        // Where there is a default route it is an address of this machine, else there is none.
        if let Some(found) = advertised("0.0.0.0:6443".parse().unwrap(), None) {
            assert!(UdpSocket::bind((found.ip(), 0)).is_ok());
        }
    }
}
