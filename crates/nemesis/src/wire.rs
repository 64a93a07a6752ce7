//! The network that a [`crate::fleet::Fleet`]'s machines are on: a namespace for each on a bridge, and a second network behind
//! a router where some are to be apart. Both are of the addresses for tests of networks (198.18.0.0/15).

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};

use libtest_mimic::Failed;

use crate::fleet::system;

/// Of both networks: halves of a /24.
const PREFIX: u8 = 25;
/// The router's addresses are the last of each half, and the far half begins here.
const FAR: u8 = 128;

/// See the module. Machines are numbered from 1.
pub struct Wire {
    /// What all names begin with; unique among test runs.
    prefix: String,
    subnet: [u8; 3],
    machines: u8,
    far: RangeInclusive<u8>,
}

impl Wire {
    /// The machines of the range `far` are behind the router; there is none if it is empty.
    pub fn lay(machines: u8, far: RangeInclusive<u8>) -> Result<Wire, Failed> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = std::process::id() * 8 + NEXT.fetch_add(1, Ordering::Relaxed) % 8;
        let [.., high, low] = unique.to_be_bytes();
        let wire = Wire {
            prefix: format!("kn{:x}", unique & 0xff_ffff),
            subnet: [198, 18 + (high & 1), low],
            machines,
            far,
        };
        let bridge = wire.bridge();
        system(&["ip", "link", "add", &bridge, "type", "bridge"])?;
        let own = format!("{}/{PREFIX}", wire.address(0));
        system(&["ip", "addr", "add", &own, "dev", &bridge])?;
        system(&["ip", "link", "set", &bridge, "up"])?;
        if !wire.far.is_empty() {
            wire.lay_router()?;
        }
        for machine in 1..=machines {
            wire.lay_machine(machine)?;
        }
        Ok(wire)
    }

    /// A router with one foot on the bridge and a bridge of its own, which its namespace takes along when it is deleted.
    fn lay_router(&self) -> Result<(), Failed> {
        let (router, link) = (self.router(), self.link(0));
        system(&["ip", "netns", "add", &router])?;
        system(&[
            "ip", "link", "add", &link, "type", "veth", "peer", "name", "near", "netns", &router,
        ])?;
        system(&["ip", "link", "set", &link, "master", &self.bridge(), "up"])?;
        let within = |words: &[&str]| system(&[&["ip", "-n", &router][..], words].concat());
        within(&["link", "add", "far", "type", "bridge"])?;
        for (device, far) in [("near", false), ("far", true)] {
            let address = format!("{}/{PREFIX}", self.gateway(far));
            within(&["addr", "add", &address, "dev", device])?;
            within(&["link", "set", device, "up"])?;
        }
        system(&[
            "ip",
            "netns",
            "exec",
            &router,
            "sysctl",
            "-qw",
            "net.ipv4.ip_forward=1",
        ])?;
        // The test itself has a way to the far machines; it is deleted with the bridge.
        let (far, via) = (self.network(true), self.gateway(false).to_string());
        system(&["ip", "route", "add", &far, "via", &via, "dev", &self.bridge()]).map(drop)
    }

    fn lay_machine(&self, machine: u8) -> Result<(), Failed> {
        let (netns, link) = (self.netns(machine), self.link(machine));
        let (is_far, has_router) = (self.far.contains(&machine), !self.far.is_empty());
        system(&["ip", "netns", "add", &netns])?;
        if is_far {
            // Made where both ends are to be: a link does not survive a move under its bridge.
            let router = self.router();
            system(&[
                "ip", "-n", &router, "link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns",
                &netns,
            ])?;
            system(&["ip", "-n", &router, "link", "set", &link, "master", "far", "up"])?;
        } else {
            system(&[
                "ip", "link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &netns,
            ])?;
            system(&["ip", "link", "set", &link, "master", &self.bridge(), "up"])?;
        }
        let within = |words: &[&str]| system(&[&["ip", "-n", &netns][..], words].concat());
        within(&[
            "addr",
            "add",
            &format!("{}/{PREFIX}", self.address(machine)),
            "dev",
            "eth0",
        ])?;
        within(&["link", "set", "eth0", "up"])?;
        within(&["link", "set", "lo", "up"])?;
        if has_router {
            let via = self.gateway(is_far).to_string();
            within(&["route", "add", &self.network(!is_far), "via", &via])?;
        }
        Ok(())
    }

    fn bridge(&self) -> String {
        format!("{}b", self.prefix)
    }

    /// The end of a machine's link that is on its bridge; 0 is the router's.
    fn link(&self, machine: u8) -> String {
        format!("{}v{machine}", self.prefix)
    }

    fn router(&self) -> String {
        format!("{}r", self.prefix)
    }

    pub fn netns(&self, machine: u8) -> String {
        format!("{}n{machine}", self.prefix)
    }

    /// 0 is the bridge's, where the test itself is.
    pub fn address(&self, machine: u8) -> Ipv4Addr {
        let [a, b, c] = self.subnet;
        let base = if self.far.contains(&machine) { FAR } else { 0 };
        Ipv4Addr::new(a, b, c, base + machine + 1)
    }

    fn gateway(&self, far: bool) -> Ipv4Addr {
        let [a, b, c] = self.subnet;
        Ipv4Addr::new(a, b, c, if far { u8::MAX - 1 } else { FAR - 2 })
    }

    fn network(&self, far: bool) -> String {
        let [a, b, c] = self.subnet;
        format!("{a}.{b}.{c}.{}/{PREFIX}", if far { FAR } else { 0 })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for machine in 0..=self.machines {
            // The link first: a namespace may outlive its name for as long as another process's mounts know it. What was
            // never made is no fault.
            drop(system(&["ip", "link", "del", &self.link(machine)]));
            drop(system(&[
                "ip",
                "-n",
                &self.router(),
                "link",
                "del",
                &self.link(machine),
            ]));
            drop(system(&["ip", "netns", "del", &self.netns(machine)]));
        }
        drop(system(&["ip", "netns", "del", &self.router()]));
        drop(system(&["ip", "link", "del", &self.bridge()]));
    }
}
