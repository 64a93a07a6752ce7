//! Routes and the tunnel to the pods of other nodes (SPEC N7).
//!
//! Nodes are watched, and so are this host's addresses and our own routes. After each change the kernel's state is
//! compared with the result of [`knarr_network::routes`], and only the difference is changed: a restart changes nothing.
//! Routes are ours by their protocol number, the tunnels' devices by their names; nothing else is touched.
//!
//! With encryption this node publishes its key in its Lease, and other nodes' Leases are watched for theirs. The rules that
//! drop pods' packets in the clear come before the routes that need them, and go before the routes that are in the clear.

pub(crate) mod kernel;
mod keys;
mod nodes;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use ipnet::IpNet;
use knarr_api::registry;
use knarr_apimachinery::ids::NodeName;
use knarr_client::informer::{self, Scope};
use knarr_client::{Api, Clock, NETWORK_NAMESPACE};
use knarr_network::routes::encryption::{self, Published};
use knarr_network::routes::{Conflict, Hop, Node, Routes, Subnet, gateway, mac, routes, tunnel_mtu};
use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::MulticastGroup;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::signal::Signal;
use crate::wireguard::{self, PrivateKey, Wireguard};
use kernel::{Device, Kernel};
use keys::Keys;
use nodes::Nodes;
pub use nodes::{HOLD, reduced};
use table::Guard;

/// Changes that come together are carried out together.
const GATHER: Duration = Duration::from_millis(20);
/// Before a reconciliation that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// The kernel's state is checked again after so long even without an event.
const RESYNC: Duration = Duration::from_secs(300);
/// Ethernet's, where a link has none.
const DEFAULT_MTU: u32 = 1500;

/// The configuration of a node's routes.
#[derive(Clone, Debug)]
pub struct Config {
    pub node_name: NodeName,
    /// The name of the tunnel's device, 15 bytes at the most.
    pub device: String,
    /// Routes to other ranges, of our protocol or not, are another cluster's.
    pub cluster_cidrs: Vec<IpNet>,
    /// The table with the rules that keep TCP segments within the tunnel, and pods' packets out of the clear.
    pub table: String,
    /// The name of WireGuard's device, 15 bytes at the most, also where it is not used (any more).
    pub wireguard_device: String,
    /// Pods' traffic to other nodes is encrypted.
    pub encryption: Option<Encryption>,
    /// How long a range is routed after its node was deleted; see [`HOLD`].
    pub hold: Duration,
}

/// This node's end of WireGuard.
#[derive(Clone, Debug)]
pub struct Encryption {
    /// Of UDP; see [`encryption::port`].
    pub port: u16,
    /// The private key, made if there is none.
    pub key_file: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the kernel does not take a link or route: {0}")]
    Kernel(#[from] rtnetlink::Error),
    #[error("the table of routes: {0}")]
    Table(#[source] std::io::Error),
    #[error("the private key in {path}: {source}")]
    Key { path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Wireguard(#[from] wireguard::Error),
}

type Result<T> = std::result::Result<T, Error>;

/// This node's own ranges: the kernel answers packets to an address that has no route of its own, which is one without a pod,
/// as unreachable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unreachable {
    pub ranges: Vec<IpNet>,
    /// How often such a route was set because it was missing: also because another program deleted it, in which case such
    /// packets may have been forwarded meanwhile.
    pub set: u64,
}

/// How far the kernel is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// This node has pod addresses that no other node has, and the kernel had the routes to all nodes that were known
    /// then. With encryption: and other nodes can know the key.
    pub is_ready: bool,
    /// The MTU of the link that other nodes are reached by, which pods get; with encryption that of WireGuard.
    pub mtu: u32,
    pub conflicts: Vec<Conflict>,
    pub unreachable: Unreachable,
}

/// Keeps the routes. Dropping it leaves them as they are.
pub struct Router {
    status: Arc<Signal<Status>>,
    _tasks: JoinSet<()>,
}

impl Router {
    /// Begins to watch Nodes, and their keys where traffic is encrypted.
    pub fn start(config: Config, api: Arc<dyn Api>, clock: Arc<dyn Clock>) -> std::io::Result<Self> {
        let nodes = Arc::new(Nodes::new(&config.node_name, config.hold));
        let status = Arc::new(Signal::new(Status::default()));
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
        ];
        let (connection, _, mut messages) = rtnetlink::new_multicast_connection(&groups)?;
        let (own, handle, _) = rtnetlink::new_connection()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        tasks.spawn(own);
        let changed = nodes.changed.clone();
        tasks.spawn(async move {
            while let Some((message, _)) = messages.next().await {
                if let NetlinkPayload::InnerMessage(message) = message.payload
                    && concerns(&message)
                {
                    changed.notify_one();
                }
            }
        });
        let scope = Scope::default();
        tasks.spawn(informer::run(
            api.clone(),
            registry::NODE.clone(),
            scope,
            nodes.clone(),
        ));
        let keys = Arc::new(Keys::new(nodes.changed.clone()));
        if config.encryption.is_some() {
            let scope = Scope {
                namespace: NETWORK_NAMESPACE.into(),
                ..Scope::default()
            };
            tasks.spawn(informer::run(
                api.clone(),
                registry::LEASE.clone(),
                scope,
                keys.clone(),
            ));
        }
        let state = State {
            publisher: keys::Publisher::new(api, &config.node_name),
            config,
            clock,
            kernel: Kernel(handle),
            wireguard: Wireguard::default(),
            published: BTreeMap::new(),
            written: None,
            unreachable_set: 0,
        };
        tasks.spawn(state.run(nodes, keys, status.clone()));
        Ok(Router {
            status,
            _tasks: tasks,
        })
    }

    pub fn status(&self) -> Arc<Signal<Status>> {
        self.status.clone()
    }
}

/// The networks that this host is on, without that of the tunnel's device.
pub async fn subnets(device: &str) -> std::io::Result<Vec<Subnet>> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    let connection = tokio::spawn(connection);
    let kernel = Kernel(handle);
    let read = async {
        let tunnel = kernel.link(device).await?.map(|(index, ..)| index);
        kernel.subnets(tunnel).await
    };
    let subnets = read.await;
    connection.abort();
    subnets.map_err(std::io::Error::other)
}

/// Removes our routes, the tunnel and its table; for a node that is removed.
pub async fn remove_all(config: &Config) -> std::io::Result<()> {
    fn other(error: impl std::error::Error + Send + Sync + 'static) -> std::io::Error {
        std::io::Error::other(error)
    }
    let (connection, handle, _) = rtnetlink::new_connection()?;
    let connection = tokio::spawn(connection);
    let kernel = Kernel(handle);
    let removed = async {
        for (_, have) in kernel.routes(&config.cluster_cidrs).await? {
            kernel.remove_route(have).await?;
        }
        kernel.remove_device(&config.wireguard_device).await?;
        kernel.remove_device(&config.device).await
    };
    let removed = removed.await;
    connection.abort();
    removed.map_err(other)?;
    let script = table::script(&config.table, &table::Settings::default());
    let delete = tokio::task::spawn_blocking(move || knarr_nftables::script::run(&script));
    delete.await.map_err(other)?.map_err(other)
}

/// Whether it may have removed something of ours, or given this host another network.
fn concerns(message: &RouteNetlinkMessage) -> bool {
    matches!(
        message,
        RouteNetlinkMessage::DelRoute(_)
            | RouteNetlinkMessage::NewAddress(_)
            | RouteNetlinkMessage::DelAddress(_)
            | RouteNetlinkMessage::DelLink(_)
    )
}

struct State {
    config: Config,
    clock: Arc<dyn Clock>,
    kernel: Kernel,
    wireguard: Wireguard,
    publisher: keys::Publisher,
    /// What nodes have published; of those that are deleted as long as they are routed.
    published: BTreeMap<String, Published>,
    /// What nft was last given for our table.
    written: Option<String>,
    /// See [`Unreachable::set`].
    unreachable_set: u64,
}

impl State {
    async fn run(mut self, nodes: Arc<Nodes>, keys: Arc<Keys>, status: Arc<Signal<Status>>) {
        loop {
            let pause = match self.reconcile(&nodes, &keys).await {
                Ok(Some(new)) => {
                    let before = status.get();
                    for conflict in new.conflicts.iter().filter(|c| !before.conflicts.contains(c)) {
                        warn!(
                            node = conflict.node,
                            cidr = %conflict.cidr,
                            "pods of this node are not routed: {}",
                            conflict.message
                        );
                    }
                    if before != new {
                        status.set(new);
                    }
                    match self.publisher.is_done() {
                        true => RESYNC,
                        false => RETRY,
                    }
                }
                Ok(None) => RESYNC,
                Err(error) => {
                    warn!(%error, "cannot set the routes to other nodes yet");
                    RETRY
                }
            };
            let pause = nodes.next_expiry().map_or(pause, |at| {
                pause.min(at.saturating_duration_since(Instant::now()))
            });
            // A missed notification counts as a change.
            let _ = timeout(pause, nodes.changed.notified()).await;
            sleep(GATHER).await;
        }
    }

    /// Reconciles the kernel's routes; `None` before this node is known.
    async fn reconcile(&mut self, nodes: &Nodes, keys: &Keys) -> Result<Option<Status>> {
        if !nodes.synced.get() || (self.config.encryption.is_some() && !keys.is_synced()) {
            return Ok(None);
        }
        let all = nodes.current(Instant::now());
        let Some(own) = all.get(self.config.node_name.as_str()) else {
            return Ok(None);
        };
        let Some(underlay) = own.addresses.first().copied() else {
            return Ok(None);
        };
        let key = self.key().await?;
        let published = match (&key, &self.config.encryption) {
            (Some(key), Some(end)) => Some(Published {
                key: key.public(),
                port: end.port,
            }),
            _ => None,
        };
        self.publisher
            .set(published, keys.of(&self.config.node_name))
            .await;
        let known = published.map(|_| self.keys_of(&nodes.deleted(&all), keys));
        let device = self
            .kernel
            .link(&self.config.device)
            .await?
            .map(|(index, ..)| index);
        let subnets = self.kernel.subnets(device).await?;
        let desired = routes(&self.config.node_name, &all, &subnets, known.as_ref());
        let link = subnets.iter().find(|s| s.net.addr() == underlay).map(|s| s.link);
        let mtu = match link {
            Some(link) => self.kernel.mtu(link).await?.unwrap_or(DEFAULT_MTU),
            None => DEFAULT_MTU,
        };
        self.table(&all, &subnets, &desired, key.is_some()).await?;
        let vxlan = self.tunnel(own, underlay, mtu, &desired, device).await?;
        let (mtu, device) = match &key {
            Some(key) => {
                let mtu = encryption::mtu(mtu, underlay);
                (mtu, Some(self.encrypt(underlay, mtu, &desired, key).await?))
            }
            None => (mtu, vxlan),
        };
        self.routes(&desired, device).await?;
        if key.is_none() {
            self.wireguard.end();
            self.kernel.remove_device(&self.config.wireguard_device).await?;
        }
        let is_known = published.is_none_or(|own| keys.of(&self.config.node_name) == Some(own));
        Ok(Some(Status {
            is_ready: !own.pod_cidrs.is_empty() && desired.own == own.pod_cidrs && is_known,
            mtu,
            conflicts: desired.conflicts,
            unreachable: Unreachable {
                ranges: desired.own,
                set: self.unreachable_set,
            },
        }))
    }

    /// What nodes have published, and what those had that are deleted.
    fn keys_of(&mut self, deleted: &BTreeSet<String>, keys: &Keys) -> BTreeMap<String, Published> {
        self.published.retain(|name, _| deleted.contains(name));
        self.published.extend(keys.all());
        self.published.clone()
    }

    /// This node's private key, where it has one.
    async fn key(&self) -> Result<Option<PrivateKey>> {
        let Some(end) = &self.config.encryption else {
            return Ok(None);
        };
        let (path, now) = (end.key_file.clone(), self.clock.now());
        let read = tokio::task::spawn_blocking(move || PrivateKey::read_or_make(&path, now)).await;
        let key = read.map_err(std::io::Error::other).flatten();
        key.map(Some).map_err(|source| Error::Key {
            path: end.key_file.clone(),
            source,
        })
    }

    /// WireGuard's device with all nodes that are behind it; its index.
    async fn encrypt(
        &mut self,
        underlay: IpAddr,
        mtu: u32,
        desired: &Routes,
        key: &PrivateKey,
    ) -> Result<u32> {
        let port = self.config.encryption.as_ref().map_or(0, |end| end.port);
        let settings = wireguard::Settings {
            device: &self.config.wireguard_device,
            key,
            port,
            underlay,
            peers: &desired.peers,
        };
        self.wireguard.set(&self.kernel, settings).await?;
        let gateways: Vec<IpAddr> = desired.own.iter().map(gateway).collect();
        let device = &self.config.wireguard_device;
        Ok(self.kernel.set_link(device, mtu, &gateways).await?)
    }

    /// The VXLAN tunnel and those behind it, while there is any; its device.
    async fn tunnel(
        &mut self,
        own: &Node,
        underlay: IpAddr,
        mtu: u32,
        desired: &Routes,
        device: Option<u32>,
    ) -> Result<Option<u32>> {
        if desired.tunnels.is_empty() {
            // Routes removed with it are those of nodes that were deleted, or are reached without it now.
            if device.is_some() {
                self.kernel.remove_device(&self.config.device).await?;
            }
            return Ok(None);
        }
        let index = self
            .kernel
            .set_device(&Device {
                name: self.config.device.clone(),
                mac: mac(&self.config.node_name),
                mtu: tunnel_mtu(mtu, underlay),
                local: underlay,
                gateways: own.pod_cidrs.iter().map(gateway).collect(),
            })
            .await?;
        let (neighbours, machines) = self.kernel.tunnels(index).await?;
        for (address, tunnel) in &desired.tunnels {
            let is_there = neighbours.get(address).is_some_and(|mac| *mac == tunnel.mac)
                && machines.get(&tunnel.mac[..]) == Some(&tunnel.remote);
            if !is_there {
                self.kernel.set_tunnel(index, *address, *tunnel).await?;
            }
        }
        for address in neighbours.keys().filter(|a| !desired.tunnels.contains_key(a)) {
            self.kernel.remove_neighbour(index, *address).await?;
        }
        let is_desired = |mac: &[u8]| desired.tunnels.values().any(|tunnel| tunnel.mac == mac);
        for mac in machines.keys().filter(|mac| !is_desired(mac)) {
            self.kernel.remove_machine(index, mac).await?;
        }
        Ok(Some(index))
    }

    async fn routes(&mut self, desired: &Routes, device: Option<u32>) -> Result<()> {
        let mut there = self.kernel.routes(&self.config.cluster_cidrs).await?;
        for cidr in &desired.own {
            if !there.remove(cidr).is_some_and(|have| have.is_unreachable) {
                self.kernel.set_unreachable(*cidr).await?;
                self.unreachable_set += 1;
            }
        }
        for (destination, hop) in &desired.routes {
            match there.remove(destination) {
                Some(have) if have.is(*hop, device) => continue,
                // The gateway is an address of the range: while that leads to another device, the kernel rejects it.
                Some(have) if matches!(hop, Hop::Tunnel { .. }) => self.kernel.remove_route(have).await?,
                _ => {}
            }
            let is_v6 = destination.network().is_ipv6();
            let mut gateways = desired.own.iter().map(gateway);
            let source = match hop {
                Hop::Tunnel { .. } | Hop::Encrypted => gateways.find(|gateway| gateway.is_ipv6() == is_v6),
                Hop::Direct { .. } | Hop::Unreachable => None,
            };
            self.kernel.set_route(*destination, *hop, device, source).await?;
            info!(%destination, ?hop, "routed");
        }
        for (destination, have) in there {
            self.kernel.remove_route(have).await?;
            info!(%destination, "no longer routed");
        }
        Ok(())
    }

    /// The rules that go with these routes. TCP connections through a tunnel agree on segments that it takes, so that none
    /// depends on path MTU discovery.
    async fn table(
        &mut self,
        nodes: &BTreeMap<String, Node>,
        subnets: &[Subnet],
        desired: &Routes,
        is_encrypted: bool,
    ) -> Result<()> {
        let config = &self.config;
        let settings = match is_encrypted {
            true => table::Settings {
                tunnel: Some(config.wireguard_device.clone()),
                encryption: Some(Guard {
                    pods: config.cluster_cidrs.clone(),
                    except: subnets
                        .iter()
                        .map(|subnet| subnet.net.trunc())
                        .chain(
                            nodes
                                .values()
                                .flat_map(|node| &node.addresses)
                                .copied()
                                .map(IpNet::from),
                        )
                        .collect(),
                }),
            },
            false => table::Settings {
                tunnel: (!desired.tunnels.is_empty()).then(|| config.device.clone()),
                encryption: None,
            },
        };
        let script = table::script(&config.table, &settings);
        if self.written.as_ref() == Some(&script) {
            return Ok(());
        }
        let text = script.clone();
        let set = tokio::task::spawn_blocking(move || knarr_nftables::script::run(&text)).await;
        let set = set.map_err(std::io::Error::other);
        match set.and_then(|set| set.map_err(std::io::Error::other)) {
            Ok(()) => self.written = Some(script),
            // Nothing is encrypted without the rules that keep the rest out.
            Err(error) if is_encrypted => return Err(Error::Table(error)),
            Err(error) => warn!(%error, "TCP segments are not kept within the tunnel's MTU"),
        }
        Ok(())
    }
}
