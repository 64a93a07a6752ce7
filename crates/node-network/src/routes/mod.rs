//! Routes and the tunnel to the pods of other nodes (SPEC N7).
//!
//! Nodes are watched, and so are this machine's addresses and our own routes. After each change what is there is compared
//! with what [`knarr_network::routes`] wants, and only the difference is changed: a restart changes nothing. Routes are ours
//! by their protocol number, the tunnel's device by its name; nothing else is touched.

mod kernel;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Object, ObjectKey};
use knarr_client::Api;
use knarr_client::informer::{self, Scope, Sink};
use knarr_network::routes::{Conflict, Node, Routes, Subnet, gateway, mac, routes, tunnel_mtu};
use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::RouteNetlinkMessage;
use parking_lot::Mutex;
use rtnetlink::MulticastGroup;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::signal::Signal;
use kernel::{Device, Kernel};

/// Changes that come together are carried out together.
const GATHER: Duration = Duration::from_millis(20);
/// Before a reconciliation that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// What the kernel has is looked at again after so long even if nothing was heard of.
const RESYNC: Duration = Duration::from_secs(300);
/// Ethernet's, where a link says none.
const DEFAULT_MTU: u32 = 1500;

/// What the routes of a node are told.
#[derive(Clone, Debug)]
pub struct Config {
    pub node_name: String,
    /// The name of the tunnel's device, 15 bytes at the most.
    pub device: String,
    /// Routes to other ranges, of our protocol or not, are another cluster's.
    pub cluster_cidrs: Vec<IpNet>,
    /// The table with the rule that keeps TCP segments within the tunnel.
    pub table: String,
}

/// How far the kernel is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// This node has pod addresses that are nobody else's, and the kernel had the routes to all nodes that were known then.
    pub is_ready: bool,
    /// The MTU of the link that other nodes are reached by, which pods get.
    pub mtu: u32,
    pub conflicts: Vec<Conflict>,
}

/// Keeps the routes. Dropping it leaves them as they are.
pub struct Router {
    status: Arc<Signal<Status>>,
    _tasks: JoinSet<()>,
}

impl Router {
    /// Begins to watch Nodes.
    pub fn start(config: Config, api: Arc<dyn Api>) -> std::io::Result<Self> {
        let nodes = Arc::new(Nodes::default());
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
        let heard = nodes.clone();
        tasks.spawn(async move {
            while let Some((message, _)) = messages.next().await {
                if let NetlinkPayload::InnerMessage(message) = message.payload
                    && concerns(&message)
                {
                    heard.changed.notify_one();
                }
            }
        });
        let scope = Scope::default();
        tasks.spawn(informer::run(api, registry::NODE.clone(), scope, nodes.clone()));
        let kernel = Kernel(handle);
        let reported = status.clone();
        tasks.spawn(async move {
            let mut router = State {
                config,
                kernel,
                clamped: false,
            };
            loop {
                let pause = match router.reconcile(&nodes).await {
                    Ok(Some(new)) => {
                        let old = reported.get();
                        if old != new {
                            let added = new.conflicts.iter().filter(|c| !old.conflicts.contains(c));
                            for conflict in added {
                                warn!(
                                    node = conflict.node,
                                    cidr = %conflict.cidr,
                                    "pods of this node are not routed: {}",
                                    conflict.message
                                );
                            }
                            reported.set(new);
                        }
                        RESYNC
                    }
                    Ok(None) => RESYNC,
                    Err(error) => {
                        warn!(%error, "cannot set the routes to other nodes yet");
                        RETRY
                    }
                };
                // Too late is as good as a change.
                let _ = timeout(pause, nodes.changed.notified()).await;
                sleep(GATHER).await;
            }
        });
        Ok(Router {
            status,
            _tasks: tasks,
        })
    }

    pub fn status(&self) -> Arc<Signal<Status>> {
        self.status.clone()
    }
}

/// The networks that this machine is on, without that of the tunnel's device.
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

/// Removes our routes, the tunnel and its table; for a node that goes.
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
        kernel.remove_device(&config.device).await
    };
    let removed = removed.await;
    connection.abort();
    removed.map_err(other)?;
    let table = config.table.clone();
    let delete = tokio::task::spawn_blocking(move || {
        let script = format!("add table inet {table}\ndelete table inet {table}\n");
        knarr_nftables::script::run(&script)
    });
    delete.await.map_err(other)?.map_err(other)
}

/// Whether it may have taken something of ours away, or given this machine another network.
fn concerns(message: &RouteNetlinkMessage) -> bool {
    matches!(
        message,
        RouteNetlinkMessage::DelRoute(_)
            | RouteNetlinkMessage::NewAddress(_)
            | RouteNetlinkMessage::DelAddress(_)
            | RouteNetlinkMessage::DelLink(_)
    )
}

/// All Nodes, as far as routes need them.
#[derive(Default)]
struct Nodes {
    all: Mutex<BTreeMap<String, Node>>,
    synced: Signal<bool>,
    changed: Notify,
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
            .filter_map(|cidr| cidr.parse::<ipnet::IpNet>().ok())
            .map(|cidr| cidr.trunc())
            .collect(),
    }
}

impl Sink for Nodes {
    fn apply(&self, object: &Arc<Object>) {
        let Some(node) = object.to_typed::<core::Node>() else {
            return;
        };
        let new = reduced(&node);
        let old = self.all.lock().insert(object.name().to_string(), new.clone());
        // Heartbeats change nothing here.
        if old.as_ref() != Some(&new) {
            self.changed.notify_one();
        }
    }

    fn remove(&self, key: &ObjectKey, _: Option<&Arc<Object>>) {
        if self.all.lock().remove(&key.name).is_some() {
            self.changed.notify_one();
        }
    }

    fn retain(&self, keys: &BTreeSet<ObjectKey>) {
        let gone: Vec<String> = {
            let all = self.all.lock();
            let is_gone = |name: &&String| !keys.contains(&ObjectKey::new("", name.as_str()));
            all.keys().filter(is_gone).cloned().collect()
        };
        for name in gone {
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

struct State {
    config: Config,
    kernel: Kernel,
    /// The rule for TCP segments is there.
    clamped: bool,
}

impl State {
    /// Brings the kernel to what is wanted; `None` before this node is known.
    async fn reconcile(&mut self, nodes: &Nodes) -> kernel::Result<Option<Status>> {
        if !nodes.synced.get() {
            return Ok(None);
        }
        let all = nodes.all.lock().clone();
        let Some(own) = all.get(&self.config.node_name) else {
            return Ok(None);
        };
        let Some(underlay) = own.addresses.first().copied() else {
            return Ok(None);
        };
        let device = self
            .kernel
            .link(&self.config.device)
            .await?
            .map(|(index, ..)| index);
        let subnets = self.kernel.subnets(device).await?;
        let wanted = routes(&self.config.node_name, &all, &subnets);
        let link = subnets.iter().find(|s| s.net.addr() == underlay).map(|s| s.link);
        let mtu = match link {
            Some(link) => self.kernel.mtu(link).await?.unwrap_or(DEFAULT_MTU),
            None => DEFAULT_MTU,
        };
        let device = self.tunnel(own, underlay, mtu, &wanted, device).await?;
        self.routes(own, &wanted, device).await?;
        Ok(Some(Status {
            is_ready: !own.pod_cidrs.is_empty() && wanted.own == own.pod_cidrs,
            mtu,
            conflicts: wanted.conflicts,
        }))
    }

    /// The tunnel and those behind it, while there is any; its device.
    async fn tunnel(
        &mut self,
        own: &Node,
        underlay: IpAddr,
        mtu: u32,
        wanted: &Routes,
        device: Option<u32>,
    ) -> kernel::Result<Option<u32>> {
        if wanted.tunnels.is_empty() {
            // Routes that go away with it are those of nodes that have gone, or are reached without it now.
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
        if !self.clamped {
            self.clamp().await;
        }
        let (neighbours, machines) = self.kernel.tunnels(index).await?;
        for (address, tunnel) in &wanted.tunnels {
            let is_there = neighbours.get(address).is_some_and(|mac| *mac == tunnel.mac)
                && machines.get(&tunnel.mac[..]) == Some(&tunnel.remote);
            if !is_there {
                self.kernel.set_tunnel(index, *address, *tunnel).await?;
            }
        }
        for address in neighbours.keys().filter(|a| !wanted.tunnels.contains_key(a)) {
            self.kernel.remove_neighbour(index, *address).await?;
        }
        let is_wanted = |mac: &[u8]| wanted.tunnels.values().any(|tunnel| tunnel.mac == mac);
        for mac in machines.keys().filter(|mac| !is_wanted(mac)) {
            self.kernel.remove_machine(index, mac).await?;
        }
        Ok(Some(index))
    }

    async fn routes(&self, own: &Node, wanted: &Routes, device: Option<u32>) -> kernel::Result<()> {
        let mut there = self.kernel.routes(&self.config.cluster_cidrs).await?;
        for cidr in &wanted.own {
            if !there.remove(cidr).is_some_and(|have| have.is_unreachable) {
                self.kernel.set_unreachable(*cidr).await?;
            }
        }
        for (destination, hop) in &wanted.routes {
            if there
                .remove(destination)
                .is_some_and(|have| have.is(*hop, device))
            {
                continue;
            }
            let is_v6 = destination.network().is_ipv6();
            let gateways = own.pod_cidrs.iter().map(gateway);
            let source = match hop {
                knarr_network::routes::Hop::Tunnel { .. } => {
                    gateways.into_iter().find(|gateway| gateway.is_ipv6() == is_v6)
                }
                knarr_network::routes::Hop::Direct { .. } => None,
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

    /// TCP connections through the tunnel agree on segments that it takes, so that none depends on path MTU discovery.
    async fn clamp(&mut self) {
        let (table, device) = (&self.config.table, &self.config.device);
        let script = format!(
            "add table inet {table}
add chain inet {table} forward {{ type filter hook forward priority mangle; }}
flush chain inet {table} forward
add rule inet {table} forward oifname \"{device}\" tcp flags syn tcp option maxseg size set rt mtu
"
        );
        let set = tokio::task::spawn_blocking(move || knarr_nftables::script::run(&script)).await;
        match set {
            Ok(Ok(())) => self.clamped = true,
            Ok(Err(error)) => warn!(%error, "TCP segments are not kept within the tunnel's MTU"),
            Err(error) => warn!(%error, "TCP segments are not kept within the tunnel's MTU"),
        }
    }
}
