//! Reconciles the records, the kernel and the runtime.

use std::collections::BTreeSet;
use std::error::Error;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use knarr_cni::kernel::links::{self, Link};
use knarr_cni::kernel::netlink::{self, Netlink};
use knarr_cni::protocol::Failure;
use knarr_cni::sandbox::{Bandwidth, PodName, SandboxId};
use tokio::time::Instant;

use super::kernel::pod_links::{self, pod_mac};
use super::kernel::sysctl;
use super::records::Record;
use super::registry::Attachment;
use super::server::{Inner, Server, StartError};

/// A runtime lists a sandbox only when it is made whole: one that it does not list, and that is younger, may be under way.
/// Kubelets give up after 4 minutes at the most.
const UNLISTED_AGE: Duration = Duration::from_secs(5 * 60);
/// What CNI calls the interface of a pod, where the record is lost.
const POD_INTERFACE: &str = "eth0";

/// A sandbox that the runtime has, ready or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    pub id: String,
    pub pod: Option<PodName>,
}

impl Server {
    /// Releases what belongs to sandboxes that the runtime does not have any more (it forgot them, or its DEL failed),
    /// and learns the pods of sandboxes without a record. `list` is called after the known sandboxes were noted.
    /// Returns how many were released. An agent does this after its start and periodically.
    pub async fn reconcile<E>(
        &self,
        list: impl Future<Output = Result<Vec<Sandbox>, E>>,
    ) -> Result<usize, E> {
        let inner = &self.inner;
        let old: Vec<SandboxId> = {
            let state = inner.state.lock();
            let is_old = |since: &Instant| since.elapsed() >= UNLISTED_AGE;
            let old = state.since.iter().filter(|(_, since)| is_old(since));
            // Those whose DEL was answered are released as soon as their links are deleted.
            old.filter(|(sandbox, _)| !state.is_removing(sandbox))
                .map(|(sandbox, _)| sandbox.clone())
                .collect()
        };
        let earlier = inner.earlier_leases();
        let listed = list.await?;
        inner.learn(&listed);
        let listed: BTreeSet<&str> = listed.iter().map(|sandbox| sandbox.id.as_str()).collect();
        let mut released = 0;
        for sandbox in old.iter().filter(|sandbox| !listed.contains(sandbox.as_str())) {
            match inner.release(sandbox).await {
                Ok(()) => released += 1,
                Err(failure) => {
                    tracing::error!(%sandbox, details = failure.details, "{}", failure.message);
                }
            }
        }
        for (_, sandbox) in earlier.iter().filter(|(_, id)| !listed.contains(id.as_str())) {
            inner.release_earlier(sandbox);
            inner.state.lock().addresses.release(sandbox);
        }
        Ok(released)
    }
}

impl Inner {
    /// At the start: adopts everything that was recorded in this boot, and every link with our alias.
    pub fn adopt(&self) -> Result<(), StartError> {
        let mut netlink = Netlink::open().map_err(StartError::Adopt)?;
        let records = self.records.load()?;
        let links = links::list(&mut netlink).map_err(StartError::Adopt)?;
        let routes = pod_links::pod_routes(&mut netlink).map_err(StartError::Adopt)?;
        for record in records {
            if !record.is_ready {
                self.cut_off(&mut netlink, &record, &links)
                    .map_err(StartError::Adopt)?;
            }
            if record.is_removing {
                self.finish_later(record.sandbox.clone());
            }
            self.reserve(record);
        }
        for link in &links {
            let Some(sandbox) = self.sandbox_of(link) else {
                continue;
            };
            let is_known = self.state.lock().records.contains_key(&sandbox);
            if link.name == sandbox.host_interface() && !is_known {
                self.adopt_link(link, sandbox, &routes)?;
            }
        }
        for link in &links {
            // A shaping device whose pod and record were removed.
            if let Some(sandbox) = self.sandbox_of(link)
                && link.name == sandbox.ifb()
                && !self.state.lock().records.contains_key(&sandbox)
            {
                links::delete(&mut netlink, link.index).map_err(StartError::Adopt)?;
            }
        }
        for (address, sandbox) in self.earlier_leases() {
            if let Err(other) = self.state.lock().addresses.reserve(address, &sandbox) {
                tracing::error!(%address, %sandbox, %other, "two sandboxes have the same address");
            }
        }
        if let Some(earlier) = &self.earlier
            && links.iter().any(|link| link.name == earlier.bridge)
            && let Err(error) = sysctl::set(&format!("ipv4/conf/{}/proxy_arp", earlier.bridge), "1")
        {
            // Pods on the bridge take all pods' addresses for neighbours; the bridge must answer for those that are not.
            tracing::warn!(
                error = &error as &dyn Error,
                "pods of the earlier network do not reach new ones"
            );
        }
        self.restore_routes();
        Ok(())
    }

    /// The sandbox that a link's alias names, if it is an alias of ours.
    pub fn sandbox_of(&self, link: &Link) -> Option<SandboxId> {
        let id = link.alias.strip_prefix(&self.table)?.strip_prefix(' ')?;
        SandboxId::try_from(id.to_string()).ok()
    }

    /// An `ADD` that was broken off, perhaps between the routes and the record that says so. Its sandbox is not among the
    /// attached ones, so no packet may come from it or be sent to it until DEL, or another `ADD`, removes the rest. Or a DEL that
    /// answered, whose link the earlier agent had not deleted yet.
    fn cut_off(&self, netlink: &mut Netlink, record: &Record, links: &[Link]) -> Result<(), netlink::Error> {
        let alias = self.alias(&record.sandbox);
        let is_its = |link: &&Link| {
            link.name == record.host_interface && (link.alias == alias || link.alias.is_empty())
        };
        match links.iter().find(is_its) {
            Some(link) => links::delete(netlink, link.index),
            None => Ok(()),
        }
    }

    fn reserve(&self, record: Record) {
        let mut state = self.state.lock();
        for address in &record.addresses {
            if let Err(other) = state.addresses.reserve(*address, &record.sandbox) {
                tracing::error!(%address, sandbox = %record.sandbox, %other, "two sandboxes have the same address");
            }
        }
        state.since.insert(record.sandbox.clone(), Instant::now());
        if record.is_ready {
            self.pods.insert(Attachment::from(&record));
        }
        state.records.insert(record.sandbox.clone(), record);
    }

    /// A link without a record: its addresses are read from its routes. One without routes was never opened.
    fn adopt_link(
        &self,
        link: &Link,
        sandbox: SandboxId,
        routes: &[(IpAddr, u32)],
    ) -> Result<(), StartError> {
        let mut addresses: Vec<IpAddr> = routes
            .iter()
            .filter(|(_, index)| *index == link.index)
            .map(|(address, _)| *address)
            .collect();
        addresses.sort();
        tracing::warn!(%sandbox, link = link.name, "a pod's link has no record");
        let record = Record {
            boot: self.records.boot().into(),
            host_interface: link.name.clone(),
            pod: None,
            interface: POD_INTERFACE.into(),
            is_ready: !addresses.is_empty(),
            is_removing: false,
            addresses,
            host_ports: Vec::new(),
            bandwidth: Bandwidth::default(),
            sandbox,
        };
        self.records.write(&record)?;
        self.reserve(record);
        Ok(())
    }

    /// Restores the routes and neighbours of all pods that are ready, with the node's current address.
    pub fn restore_routes(&self) {
        let ready: Vec<Record> = {
            let state = self.state.lock();
            let ready = state.records.values().filter(|record| record.is_ready);
            ready.cloned().collect()
        };
        let sources = self.network.borrow().clone().unwrap_or_default().node_addresses;
        for record in ready {
            if let Err(error) = self.restore(&record, &sources) {
                tracing::error!(sandbox = %record.sandbox, error = &error as &dyn Error, "cannot restore a pod's routes");
            }
        }
    }

    fn restore(&self, record: &Record, sources: &[IpAddr]) -> Result<(), netlink::Error> {
        let mut netlink = Netlink::open()?;
        let link = links::find(&mut netlink, &record.host_interface)?;
        let Some(link) = link.filter(|link| link.alias == self.alias(&record.sandbox)) else {
            // Its sandbox was removed; DEL, or the runtime's list, releases the addresses.
            return Ok(());
        };
        let mac = pod_mac(&record.addresses);
        pod_links::add_host_routes(&mut netlink, link.index, &record.addresses, mac, sources)
    }

    /// The pods of the sandboxes without one.
    fn learn(&self, listed: &[Sandbox]) {
        for sandbox in listed {
            let (Ok(id), Some(pod)) = (SandboxId::try_from(sandbox.id.clone()), &sandbox.pod) else {
                continue;
            };
            let learned = {
                let mut state = self.state.lock();
                let record = state.records.get_mut(&id);
                record
                    .filter(|record| record.pod.is_none() && !record.is_removing)
                    .map(|record| {
                        record.pod = Some(pod.clone());
                        record.clone()
                    })
            };
            let Some(record) = learned else { continue };
            if let Err(error) = self.records.write(&record) {
                tracing::warn!(sandbox = %id, error = &error as &dyn Error, "cannot keep whose sandbox it is");
            }
            if record.is_ready {
                self.pods.insert(Attachment::from(&record));
            }
        }
    }

    /// The addresses that the earlier network's pods still have.
    fn earlier_leases(&self) -> Vec<(IpAddr, SandboxId)> {
        let Some(earlier) = &self.earlier else {
            return Vec::new();
        };
        let Ok(leases) = std::fs::read_dir(&earlier.leases) else {
            return Vec::new();
        };
        leases
            .flatten()
            .filter_map(|lease| {
                let address = lease.file_name().to_str()?.parse().ok()?;
                let text = std::fs::read_to_string(lease.path()).ok()?;
                let id = text.lines().next()?.trim().to_string();
                Some((address, SandboxId::try_from(id).ok()?))
            })
            .collect()
    }

    /// Removes the earlier network's leases of a removed sandbox.
    pub fn release_earlier(&self, sandbox: &SandboxId) {
        for (address, of) in self.earlier_leases() {
            if let Some(earlier) = self.earlier.as_ref().filter(|_| of == *sandbox) {
                let path = earlier.leases.join(address.to_string());
                if let Err(error) = std::fs::remove_file(&path) {
                    tracing::warn!(path = %path.display(), %error, "cannot remove a lease of the earlier network");
                }
            }
        }
    }

    /// `GC`: the runtime passes its attachments; those that are being made are not affected.
    pub async fn collect_garbage(self: Arc<Self>, valid: Vec<String>) -> Result<(), Failure> {
        let valid: BTreeSet<String> = valid.into_iter().collect();
        let removed: Vec<SandboxId> = {
            let state = self.state.lock();
            let ready = state.records.values().filter(|record| record.is_ready);
            ready
                .map(|record| record.sandbox.clone())
                .filter(|sandbox| !valid.contains(sandbox.as_str()))
                .collect()
        };
        for sandbox in removed {
            self.release(&sandbox).await?;
        }
        Ok(())
    }
}
