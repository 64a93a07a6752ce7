//! WireGuard between nodes: the kernel's where it has it, else one in this process (SPEC N7).

mod kernel;
mod private_key;
mod tun;
mod user_space;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use knarr_network::routes::encryption::{Peer, PublicKey};
use rtnetlink::LinkWireguard;
use rtnetlink::packet_route::link::InfoKind;
use tracing::info;

use crate::routes::kernel::{Kernel, errno};
pub use private_key::{MAX_AGE, PrivateKey};
use user_space::Tunnel;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the WireGuard device cannot be made")]
    Link(#[source] rtnetlink::Error),
    #[error("the kernel's WireGuard does not take its settings: {0}")]
    Kernel(#[source] io::Error),
    #[error("WireGuard in user space does not start: {0}")]
    UserSpace(#[source] io::Error),
}

/// Who encrypts.
enum Carrier {
    Kernel,
    UserSpace(Tunnel),
}

/// What the device is to be.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    pub device: &'a str,
    pub key: &'a PrivateKey,
    pub port: u16,
    /// This node's address that others send to.
    pub underlay: IpAddr,
    pub peers: &'a BTreeMap<PublicKey, Peer>,
}

/// The device of this node. In user space packets are carried while this is not dropped.
#[derive(Default)]
pub struct Wireguard {
    carrier: Option<Carrier>,
}

impl Wireguard {
    /// Brings the device to these settings, and makes it where it is missing. It is not up yet.
    pub async fn set(&mut self, links: &Kernel, settings: Settings<'_>) -> Result<(), Error> {
        let kind = links.kind(settings.device).await.map_err(Error::Link)?;
        let carrier = match (self.carrier.take(), kind) {
            (Some(Carrier::Kernel), Some(InfoKind::Wireguard)) => Carrier::Kernel,
            (Some(Carrier::UserSpace(tunnel)), Some(InfoKind::Tun))
                if tunnel.serves(settings.underlay, settings.port)
                    && tunnel.public() == settings.key.public() =>
            {
                Carrier::UserSpace(tunnel)
            }
            (old, kind) => {
                // Its port and device are free once it has stopped.
                drop(old);
                begin(links, settings, kind).await?
            }
        };
        match &carrier {
            Carrier::UserSpace(tunnel) => tunnel.set_peers(settings.peers),
            Carrier::Kernel => {
                let (device, key) = (settings.device.to_string(), settings.key.clone());
                let (port, peers) = (settings.port, settings.peers.clone());
                let set = tokio::task::spawn_blocking(move || kernel::set(&device, &key, port, &peers));
                set.await
                    .map_err(|error| Error::Kernel(io::Error::other(error)))?
                    .map_err(Error::Kernel)?;
            }
        }
        self.carrier = Some(carrier);
        Ok(())
    }

    /// No packet is carried any more.
    pub fn end(&mut self) {
        self.carrier = None;
    }
}

async fn begin(links: &Kernel, settings: Settings<'_>, there: Option<InfoKind>) -> Result<Carrier, Error> {
    let device = settings.device;
    match there {
        Some(InfoKind::Wireguard) => return Ok(Carrier::Kernel),
        // Of an earlier process of ours.
        Some(InfoKind::Tun) => {}
        other => {
            if other.is_some() {
                links.remove_device(device).await.map_err(Error::Link)?;
            }
            let made = links.0.link().add(LinkWireguard::new(device).build());
            match made.execute().await {
                Ok(()) => {
                    info!(device, "pods' traffic to other nodes is encrypted by the kernel");
                    return Ok(Carrier::Kernel);
                }
                // The kernel has no such kind of link.
                Err(error) if errno(&error) == Some(libc::EOPNOTSUPP) => {}
                Err(error) => return Err(Error::Link(error)),
            }
        }
    }
    let tunnel = Tunnel::start(device, settings.key.clone(), settings.underlay, settings.port)
        .map_err(Error::UserSpace)?;
    info!(device, "pods' traffic to other nodes is encrypted in user space");
    Ok(Carrier::UserSpace(tunnel))
}
