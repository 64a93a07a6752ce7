//! The plugin `loopback`: sets `lo` up in the sandbox, as the reference plugin of that name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use crate::kernel::links::{self, Link};
use crate::kernel::namespace::Namespace;
use crate::kernel::netlink::Netlink;
use crate::protocol::{Code, Failure, version_answer, version_of};
use crate::{COMMAND, Environment};

/// containerd 1.6 runs it with 0.3.1.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
const LO: &str = "lo";

pub fn run(environment: &Environment, config: &[u8]) -> Result<String, Failure> {
    let version = version_of(config);
    let command = environment.get(COMMAND).map(String::as_str).unwrap_or_default();
    if let Some(answer) = version_answer(command, &version, &VERSIONS)? {
        return Ok(answer);
    }
    let netns = environment
        .get("CNI_NETNS")
        .filter(|netns| !netns.is_empty())
        .map(Path::new);
    match (command, netns) {
        ("ADD", Some(netns)) => {
            let addresses = set_up(netns)?;
            Ok(result(&version, netns, &addresses))
        }
        ("CHECK", Some(netns)) => check(netns).map(|()| String::new()),
        // `lo` is removed with its namespace.
        ("DEL" | "GC" | "STATUS", _) => Ok(String::new()),
        ("ADD" | "CHECK", None) => Err(Failure::new(Code::InvalidEnvironment, "CNI_NETNS is not set")),
        (other, _) => Err(Failure::new(
            Code::InvalidEnvironment,
            format!("CNI_COMMAND is {other:?}"),
        )),
    }
}

/// Does the work in the namespace, in a thread of its own.
fn within<T: Send>(
    netns: &Path,
    work: impl FnOnce(&mut Netlink) -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let failed = |error: &dyn std::error::Error| {
        Failure::new(Code::Kernel, "cannot work in the network namespace").because(error)
    };
    let namespace = Namespace::open(netns).map_err(|error| failed(&error))?;
    namespace
        .run(|| {
            let mut netlink = Netlink::open().map_err(|error| failed(&error))?;
            work(&mut netlink)
        })
        .map_err(|error| failed(&error))?
}

fn failed(error: &dyn std::error::Error) -> Failure {
    Failure::new(Code::Kernel, "cannot set up lo").because(error)
}

fn find(netlink: &mut Netlink) -> Result<Link, Failure> {
    let found = links::find(netlink, LO).map_err(|error| failed(&error))?;
    found.ok_or_else(|| Failure::new(Code::Kernel, "the network namespace has no lo"))
}

fn set_up(netns: &Path) -> Result<Vec<IpAddr>, Failure> {
    within(netns, |netlink| {
        let lo = find(netlink)?;
        links::set_up(netlink, lo.index).map_err(|error| failed(&error))?;
        let addresses = links::addresses(netlink).map_err(|error| failed(&error))?;
        let of_lo = addresses.into_iter().filter(|(index, _)| *index == lo.index);
        Ok(of_lo.map(|(_, address)| address).collect())
    })
}

fn check(netns: &Path) -> Result<(), Failure> {
    within(netns, |netlink| match find(netlink)?.is_up {
        true => Ok(()),
        false => Err(Failure::new(Code::Differs, "lo is down")),
    })
}

fn result(version: &str, netns: &Path, addresses: &[IpAddr]) -> String {
    let is_old = version.starts_with("0.");
    let ips: Vec<serde_json::Value> = addresses
        .iter()
        .filter(|address| {
            [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].contains(address)
        })
        .map(|address| {
            let (family, prefix) = if address.is_ipv4() { ("4", 8) } else { ("6", 128) };
            let mut ip = serde_json::json!({ "interface": 0, "address": format!("{address}/{prefix}") });
            if is_old {
                ip["version"] = family.into();
            }
            ip
        })
        .collect();
    serde_json::json!({
        "cniVersion": version,
        "interfaces": [{ "name": LO, "mac": "00:00:00:00:00:00", "sandbox": netns }],
        "ips": ips,
        "dns": {},
    })
    .to_string()
}
