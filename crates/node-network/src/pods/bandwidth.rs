//! The bandwidth of a pod (the annotations `kubernetes.io/ingress-bandwidth` and `egress-bandwidth`).

use knarr_cni::kernel::links;
use knarr_cni::kernel::netlink::{Error, Netlink};
use knarr_cni::sandbox::{Bandwidth, SandboxId};

use super::kernel::pod_links;
use super::kernel::shaping::{Limit, limit_egress, redirect_ingress};

/// Sets the limits on the host's side of the pod's link.
pub fn apply(
    netlink: &mut Netlink,
    sandbox: &SandboxId,
    host_index: u32,
    alias: &str,
    mtu: u32,
    bandwidth: Bandwidth,
) -> Result<(), Error> {
    if let Some(limit) = Limit::from_bits(bandwidth.ingress_rate, bandwidth.ingress_burst) {
        limit_egress(netlink, host_index, limit)?;
    }
    if let Some(limit) = Limit::from_bits(bandwidth.egress_rate, bandwidth.egress_burst) {
        remove(netlink, sandbox, alias)?;
        let ifb = pod_links::create_ifb(netlink, &sandbox.ifb(), alias, mtu)?;
        limit_egress(netlink, ifb.index, limit)?;
        redirect_ingress(netlink, host_index, ifb.index)?;
    }
    Ok(())
}

/// Removes the pod's device; the rest is removed with the link.
pub fn remove(netlink: &mut Netlink, sandbox: &SandboxId, alias: &str) -> Result<(), Error> {
    match links::find(netlink, &sandbox.ifb())? {
        Some(link) if link.alias == alias => links::delete(netlink, link.index),
        _ => Ok(()),
    }
}
