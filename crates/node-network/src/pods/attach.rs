//! One attachment: ADD and CHECK.

use std::error::Error;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use knarr_cni::kernel::links;
use knarr_cni::kernel::namespace::Namespace;
use knarr_cni::kernel::netlink::{self, Netlink};
use knarr_cni::protocol::{Added, AttachmentRequest, Code, Failure, Request};
use knarr_cni::sandbox::SandboxId;
use tokio::time::Instant;

use super::bandwidth;
use super::host_ports;
use super::kernel::pod_links::{self, HOST_MAC, Veth, gateway, mac_text, pod_mac};
use super::kernel::sysctl;
use super::records::Record;
use super::registry::Attachment;
use super::server::{Inner, NodeNetwork};

/// How long `ADD` waits for what must be ready before the pod's first packet.
const HOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long `ADD` waits for an address of a pod that is being removed when no other is free. The deletion of a link takes some ten
/// milliseconds.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

fn kernel(error: &dyn Error) -> Failure {
    Failure::new(Code::Kernel, "cannot set up the pod's network").because(error)
}

pub(super) fn io(error: &dyn Error) -> Failure {
    Failure::new(Code::Io, "cannot keep the pod's record").because(error)
}

impl Inner {
    /// The alias of a sandbox's links.
    pub fn alias(&self, sandbox: &SandboxId) -> String {
        format!("{} {sandbox}", self.table)
    }

    /// Runs in a thread that may block.
    pub async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Inner) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        // The semaphore is never closed.
        let _permit = self.workers.acquire().await;
        let inner = self.clone();
        tokio::task::spawn_blocking(move || work(&inner))
            .await
            .unwrap_or_else(|error| Err(kernel(&error)))
    }

    pub async fn add(self: Arc<Self>, of: &AttachmentRequest, request: Request) -> Result<Added, Failure> {
        let network = self.network.borrow().clone();
        let network = network.filter(|network| !network.pod_cidrs.is_empty());
        let network = network
            .ok_or_else(|| Failure::new(Code::TryAgain, "the node has no pod CIDR yet, try again later"))?;
        let netns = of
            .netns
            .clone()
            .ok_or_else(|| Failure::new(Code::InvalidEnvironment, "CNI_NETNS is not set"))?;
        self.clear(of).await?;
        let record = self.take_when_free(of, &request, &network).await?;
        match self.set_up(&record, &netns, &network).await {
            Ok(()) => Ok(added(&record, netns)),
            Err(failure) => {
                let sandbox = record.sandbox.clone();
                if let Err(left) = self.clone().delete(sandbox).await {
                    // The address stays allocated; DEL, which the runtime sends now, retries.
                    tracing::error!(sandbox = %record.sandbox, details = left.details, "{}", left.message);
                }
                Err(failure)
            }
        }
    }

    /// An `ADD` that was broken off leaves a record that is not ready, which is removed, as is one whose link is not deleted yet
    /// after `DEL`; one that answered cannot be repeated without `DEL`.
    async fn clear(self: &Arc<Self>, of: &AttachmentRequest) -> Result<(), Failure> {
        let is_ready = {
            let mut state = self.state.lock();
            state.records.get_mut(&of.sandbox).map(|record| {
                // This ADD finishes the removal: a DEL that comes meanwhile waits for it, and removes what it has made.
                record.is_removing = false;
                record.is_ready
            })
        };
        match is_ready {
            None => Ok(()),
            Some(false) => self.clone().delete(of.sandbox.clone()).await,
            Some(true) => Err(Failure::new(
                Code::InvalidEnvironment,
                format!("sandbox {} is attached already", of.sandbox),
            )),
        }
    }

    /// As [`Inner::take`]; when all addresses are in use, it waits for those of pods that are being removed.
    async fn take_when_free(
        &self,
        of: &AttachmentRequest,
        request: &Request,
        network: &NodeNetwork,
    ) -> Result<Record, Failure> {
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        let mut removed = self.removed.subscribe();
        loop {
            // Before the attempt: a removal that ends during it is then seen as a change.
            removed.mark_unchanged();
            let is_any_pending = self.state.lock().has_removals();
            let failure = match self.take(of, request, network) {
                Err(failure) if failure.code == Code::Exhausted && is_any_pending => failure,
                result => return result,
            };
            if !matches!(
                tokio::time::timeout_at(deadline, removed.changed()).await,
                Ok(Ok(()))
            ) {
                return Err(failure);
            }
        }
    }

    /// Chooses addresses and records them, before the kernel knows of anything.
    fn take(
        &self,
        of: &AttachmentRequest,
        request: &Request,
        network: &NodeNetwork,
    ) -> Result<Record, Failure> {
        let mut state = self.state.lock();
        let mut record = Record {
            boot: self.records.boot().into(),
            sandbox: of.sandbox.clone(),
            pod: of.pod.clone(),
            interface: of.interface.clone(),
            host_interface: of.sandbox.host_interface(),
            addresses: Vec::new(),
            host_ports: request.host_ports.clone(),
            bandwidth: request.bandwidth,
            is_ready: false,
            is_removing: false,
        };
        record.addresses = state
            .addresses
            .allocate(&network.pod_cidrs, &of.sandbox)
            .map_err(|error| Failure::new(Code::Exhausted, error.to_string()))?;
        let result = host_ports::check(&record, state.records.values())
            .map_err(|error| Failure::new(Code::PortInUse, error.to_string()))
            .and_then(|()| self.records.write(&record).map_err(|error| io(&error)));
        if let Err(failure) = result {
            state.addresses.release(&of.sandbox);
            return Err(failure);
        }
        if let Err(error) = self.records.write_last(state.addresses.last()) {
            // Only how long addresses rest depends on it.
            tracing::warn!(
                error = &error as &dyn Error,
                "cannot keep which address was given out last"
            );
        }
        state.since.insert(of.sandbox.clone(), Instant::now());
        state.records.insert(of.sandbox.clone(), record.clone());
        Ok(record)
    }

    /// Everything in the kernel, in an order in which the pod can send or receive nothing before the hook has answered:
    /// the host has no route to it until then, and what it sends is dropped for the same reason.
    async fn set_up(
        self: &Arc<Self>,
        record: &Record,
        netns: &Path,
        network: &NodeNetwork,
    ) -> Result<(), Failure> {
        let (link, path, mtu) = (record.clone(), netns.to_path_buf(), network.mtu);
        let attachment = self.pods.insert(Attachment::from(record));
        // The hook waits for the kernel, too, and needs no link.
        let (index, hook) = tokio::join!(
            self.blocking(move |inner| inner.create_link(&link, &path, mtu)),
            tokio::time::timeout(HOOK_TIMEOUT, self.before_up.before_up(&attachment)),
        );
        let index = index?;
        match hook {
            Ok(Ok(())) => (),
            Ok(Err(error)) => {
                let message = "the pod's network policies cannot be put in place";
                return Err(Failure::new(Code::Hook, message).because(&*error));
            }
            Err(_) => {
                return Err(Failure::new(
                    Code::Hook,
                    format!("the pod's network policies are not in place after {HOOK_TIMEOUT:?}"),
                ));
            }
        }
        let (record, sources) = (record.clone(), network.node_addresses.clone());
        self.blocking(move |inner| inner.open(record, index, &sources))
            .await
    }

    fn create_link(&self, record: &Record, netns: &Path, mtu: u32) -> Result<u32, Failure> {
        let failed = kernel;
        let namespace = Namespace::open(netns).map_err(|error| match error.is_deleted() {
            true => {
                Failure::new(Code::UnknownContainer, "the sandbox does not exist any more").because(&error)
            }
            false => failed(&error),
        })?;
        let mut netlink = Netlink::open().map_err(|error| failed(&error))?;
        let alias = self.alias(&record.sandbox);
        let mac = pod_mac(&record.addresses);
        let veth = Veth {
            host_interface: &record.host_interface,
            pod_interface: &record.interface,
            alias: alias.clone(),
            mtu,
            pod_mac: mac,
        };
        pod_links::create(&mut netlink, &veth, &namespace).map_err(|error| failed(&error))?;
        let has_ipv6 = record.addresses.iter().any(IpAddr::is_ipv6);
        sysctl::configure_host_side(&record.host_interface, has_ipv6).map_err(|error| failed(&error))?;
        let is_localhost_mapped = record.addresses.iter().any(IpAddr::is_ipv4);
        if !record.host_ports.is_empty() && is_localhost_mapped {
            sysctl::route_localnet(&record.host_interface).map_err(|error| failed(&error))?;
        }
        let link = links::find(&mut netlink, &record.host_interface)
            .map_err(|error| failed(&error))?
            .ok_or_else(|| Failure::new(Code::Kernel, "the pod's link vanished"))?;
        links::set_up(&mut netlink, link.index).map_err(|error| failed(&error))?;
        bandwidth::apply(
            &mut netlink,
            &record.sandbox,
            link.index,
            &alias,
            mtu,
            record.bandwidth,
        )
        .map_err(|error| failed(&error))?;
        namespace
            .run(|| {
                sysctl::configure_pod_side(&record.interface, has_ipv6).map_err(|error| failed(&error))?;
                let mut netlink = Netlink::open().map_err(|error| failed(&error))?;
                let link = links::find(&mut netlink, &record.interface)
                    .map_err(|error| failed(&error))?
                    .ok_or_else(|| Failure::new(Code::Kernel, "the pod's interface vanished"))?;
                pod_links::configure_pod_side(&mut netlink, link.index, &record.addresses)
                    .map_err(|error| failed(&error))
            })
            .map_err(|error| failed(&error))??;
        Ok(link.index)
    }

    /// Lets the pod's packets pass and records that it is ready.
    fn open(&self, mut record: Record, index: u32, sources: &[IpAddr]) -> Result<(), Failure> {
        let mut netlink = Netlink::open().map_err(|error| kernel(&error))?;
        let mac = pod_mac(&record.addresses);
        pod_links::add_host_routes(&mut netlink, index, &record.addresses, mac, sources)
            .map_err(|error| kernel(&error))?;
        record.is_ready = true;
        self.records.write(&record).map_err(|error| io(&error))?;
        self.state
            .lock()
            .records
            .insert(record.sandbox.clone(), record.clone());
        if !record.host_ports.is_empty() {
            let failed =
                |error: &dyn Error| Failure::new(Code::Kernel, "cannot open host ports").because(error);
            self.program_ports().map_err(|error| failed(&error))?;
            host_ports::delete_stale_flows(&record, false).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    /// Whether everything is as `ADD` left it.
    pub async fn check(
        self: Arc<Self>,
        of: &AttachmentRequest,
        prev_result: Option<serde_json::Value>,
    ) -> Result<(), Failure> {
        let record = self.state.lock().records.get(&of.sandbox).cloned();
        let record = record.filter(|record| record.is_ready).ok_or_else(|| {
            Failure::new(
                Code::UnknownContainer,
                format!("sandbox {} is not attached", of.sandbox),
            )
        })?;
        let netns = of.netns.clone();
        self.blocking(move |inner| inner.compare(&record, netns.as_deref(), prev_result.as_ref()))
            .await
    }

    fn compare(
        &self,
        record: &Record,
        netns: Option<&Path>,
        prev_result: Option<&serde_json::Value>,
    ) -> Result<(), Failure> {
        let differs = |what: String| Err(Failure::new(Code::Differs, what));
        let failed =
            |error: &dyn Error| Failure::new(Code::Kernel, "cannot read the pod's network").because(error);
        if let Some(ips) = prev_result.and_then(|result| result.get("ips")?.as_array()) {
            let of = |ip: &serde_json::Value| {
                let address = ip.get("address")?.as_str()?.split('/').next()?;
                address.parse::<IpAddr>().ok()
            };
            let before: Vec<IpAddr> = ips.iter().filter_map(of).collect();
            if record.addresses.iter().any(|address| !before.contains(address)) {
                return differs(format!(
                    "the pod has {:?}, the result has {before:?}",
                    record.addresses
                ));
            }
        }
        let mut netlink = Netlink::open().map_err(|error| failed(&error))?;
        let link = links::find(&mut netlink, &record.host_interface).map_err(|error| failed(&error))?;
        let Some(link) = link.filter(|link| link.alias == self.alias(&record.sandbox)) else {
            return differs(format!("there is no link {}", record.host_interface));
        };
        if !link.is_up {
            return differs(format!("the link {} is down", record.host_interface));
        }
        let routes = pod_links::pod_routes(&mut netlink).map_err(|error| failed(&error))?;
        for address in &record.addresses {
            if !routes.contains(&(*address, link.index)) {
                return differs(format!("there is no route to {address} through {}", link.name));
            }
        }
        let Some(netns) = netns else {
            return Ok(());
        };
        let namespace = Namespace::open(netns).map_err(|error| failed(&error))?;
        let inside = namespace
            .run(|| {
                let mut netlink = Netlink::open()?;
                match links::find(&mut netlink, &record.interface)? {
                    Some(link) => Ok(Some((link.index, links::addresses(&mut netlink)?))),
                    None => Ok(None),
                }
            })
            .map_err(|error| failed(&error))?
            .map_err(|error: netlink::Error| failed(&error))?;
        let Some((index, addresses)) = inside else {
            return differs(format!("the pod has no interface {}", record.interface));
        };
        match record
            .addresses
            .iter()
            .find(|address| !addresses.contains(&(index, **address)))
        {
            Some(address) => differs(format!("{} does not have {address}", record.interface)),
            None => Ok(()),
        }
    }
}

fn added(record: &Record, netns: PathBuf) -> Added {
    Added {
        host_interface: record.host_interface.clone(),
        host_mac: mac_text(&HOST_MAC),
        pod_interface: record.interface.clone(),
        pod_mac: mac_text(&pod_mac(&record.addresses)),
        netns,
        addresses: record.addresses.clone(),
        gateways: record.addresses.iter().map(|address| gateway(*address)).collect(),
    }
}
