//! Settings of the kernel's network, of the network namespace of the calling thread.

use std::fs;
use std::io;
use std::path::PathBuf;

const ROOT: &str = "/proc/sys/net";

#[derive(Debug, thiserror::Error)]
#[error("cannot set net.{} to {value}", .name.replace('/', "."))]
pub struct Error {
    name: String,
    value: &'static str,
    #[source]
    source: io::Error,
}

/// Sets it, unless it has the value. `name` is relative to `net`, with slashes.
pub fn set(name: &str, value: &'static str) -> Result<(), Error> {
    let path = PathBuf::from(ROOT).join(name);
    let set = || match fs::read_to_string(&path)?.trim() == value {
        true => Ok(()),
        false => fs::write(&path, value),
    };
    set().map_err(|source| Error {
        name: name.into(),
        value,
        source,
    })
}

/// Whether the kernel has IPv6 in this namespace.
pub fn has_ipv6() -> bool {
    PathBuf::from(ROOT).join("ipv6/conf/all").exists()
}

/// Has the kernel forward packets of both families.
///
/// With forwarding on, an interface with `accept_ra=1` stops accepting router advertisements, and a host that has its
/// IPv6 routes from them loses these. Such interfaces are set to `accept_ra=2` (also when forwarding) first.
pub fn enable_forwarding() -> Result<(), Error> {
    // Written only when it changes: a write resets other settings to those of a router.
    set("ipv4/ip_forward", "1")?;
    if !has_ipv6() {
        return Ok(());
    }
    let all = "ipv6/conf/all/forwarding";
    let is_on = fs::read_to_string(PathBuf::from(ROOT).join(all)).is_ok_and(|on| on.trim() == "1");
    if is_on {
        return Ok(());
    }
    let interfaces = fs::read_dir(PathBuf::from(ROOT).join("ipv6/conf")).map_err(|source| Error {
        name: all.into(),
        value: "1",
        source,
    })?;
    for interface in interfaces.flatten() {
        let name = format!("ipv6/conf/{}/accept_ra", interface.file_name().to_string_lossy());
        let accepts = fs::read_to_string(PathBuf::from(ROOT).join(&name));
        // One that vanishes meanwhile has no routes to lose.
        if accepts.is_ok_and(|accepts| accepts.trim() == "1")
            && let Err(error) = set(&name, "2")
        {
            tracing::warn!(error = %error, "an interface may lose its routes by router advertisements");
        }
    }
    set(all, "1")
}

/// Settings of the host's side of a pod's link.
///
/// - `rp_filter=1`: packets from addresses that are not the pod's are dropped; a second lock, as the value of `all` may
///   make it looser, and there is none for IPv6. The rule of the table counts.
/// - `accept_ra=0`, `accept_redirects=0`: a pod is no router.
/// - `addr_gen_mode=1`: the side of the host needs no link-local address, since the pod's gateway is a neighbour entry.
/// - `proxy_arp` and `proxy_ndp` stay off for the same reason.
/// - `disable_ipv6=0`: a host's default may be otherwise.
pub fn configure_host_side(interface: &str, has_ipv6_address: bool) -> Result<(), Error> {
    set(&format!("ipv4/conf/{interface}/rp_filter"), "1")?;
    set(&format!("ipv4/conf/{interface}/accept_redirects"), "0")?;
    if !has_ipv6() {
        return Ok(());
    }
    set(&format!("ipv6/conf/{interface}/addr_gen_mode"), "1")?;
    set(&format!("ipv6/conf/{interface}/accept_ra"), "0")?;
    set(&format!("ipv6/conf/{interface}/accept_redirects"), "0")?;
    let disabled = if has_ipv6_address { "0" } else { "1" };
    set(&format!("ipv6/conf/{interface}/disable_ipv6"), disabled)
}

/// Lets connections from 127.0.0.1 of the node reach a pod's host port. Packets of pods to or from 127.0.0.0/8 are dropped
/// by the table.
pub fn route_localnet(interface: &str) -> Result<(), Error> {
    set(&format!("ipv4/conf/{interface}/route_localnet"), "1")
}

/// Settings of the pod's interface, from within the pod's network namespace.
///
/// - `accept_dad=0`: addresses are ours alone, so IPv6 works from the first moment.
/// - `accept_ra=0`: the host is no router that advertises itself.
/// - `disable_ipv6`: 0 with an IPv6 address. Without one it is left as it is: applications may bind to `::`.
pub fn configure_pod_side(interface: &str, has_ipv6_address: bool) -> Result<(), Error> {
    if !has_ipv6() {
        return Ok(());
    }
    set(&format!("ipv6/conf/{interface}/accept_dad"), "0")?;
    set(&format!("ipv6/conf/{interface}/accept_ra"), "0")?;
    match has_ipv6_address {
        true => set(&format!("ipv6/conf/{interface}/disable_ipv6"), "0"),
        false => Ok(()),
    }
}
