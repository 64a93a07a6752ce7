//! The network of a [`crate::fleet::Fleet`]'s hosts: a network namespace for each on a bridge, and optionally a second network
//! behind a router. Both use addresses of the range for network tests (198.18.0.0/15, RFC 2544).

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};

use libtest_mimic::Failed;

use crate::commands::system;

/// Prefix length of both networks: halves of a /24.
const PREFIX: u8 = 25;
/// The last byte at which the far network begins; the router's addresses are the last of each half.
const FAR: u8 = 128;

/// The bridge, the router and the namespaces of the hosts, which are numbered from 1.
pub struct TestNetwork {
    /// The prefix of all names; unique among test runs.
    prefix: String,
    subnet: [u8; 3],
    hosts: u8,
    far: RangeInclusive<u8>,
}

impl TestNetwork {
    /// The hosts of the range `far` are behind the router; there is none if it is empty.
    pub fn create(hosts: u8, far: RangeInclusive<u8>) -> Result<TestNetwork, Failed> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = std::process::id() * 8 + NEXT.fetch_add(1, Ordering::Relaxed) % 8;
        let [.., high, low] = unique.to_be_bytes();
        let network = TestNetwork {
            prefix: format!("kn{:x}", unique & 0xff_ffff),
            subnet: [198, 18 + (high & 1), low],
            hosts,
            far,
        };
        let bridge = network.bridge();
        system(&["ip", "link", "add", &bridge, "type", "bridge"])?;
        let own = format!("{}/{PREFIX}", network.address(0));
        system(&["ip", "addr", "add", &own, "dev", &bridge])?;
        system(&["ip", "link", "set", &bridge, "up"])?;
        if !network.far.is_empty() {
            network.add_router()?;
        }
        for host in 1..=hosts {
            network.add_host(host)?;
        }
        Ok(network)
    }

    /// A router with an interface on the bridge and a bridge of its own, which is deleted with the router's namespace.
    fn add_router(&self) -> Result<(), Failed> {
        let (router, link) = (self.router(), self.link(0));
        system(&["ip", "netns", "add", &router])?;
        system(&[
            "ip", "link", "add", &link, "type", "veth", "peer", "name", "near", "netns", &router,
        ])?;
        system(&["ip", "link", "set", &link, "master", &self.bridge(), "up"])?;
        let within = |args: &[&str]| system(&[&["ip", "-n", &router][..], args].concat());
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
        // The test host has a route to the far hosts; it is deleted with the bridge.
        let (far, via) = (self.network(true), self.gateway(false).to_string());
        system(&["ip", "route", "add", &far, "via", &via, "dev", &self.bridge()]).map(drop)
    }

    fn add_host(&self, host: u8) -> Result<(), Failed> {
        let (netns, link) = (self.netns(host), self.link(host));
        let (is_far, has_router) = (self.far.contains(&host), !self.far.is_empty());
        system(&["ip", "netns", "add", &netns])?;
        if is_far {
            // Both ends are created in their namespaces: a link cannot be moved while it is attached to a bridge.
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
        let within = |args: &[&str]| system(&[&["ip", "-n", &netns][..], args].concat());
        within(&[
            "addr",
            "add",
            &format!("{}/{PREFIX}", self.address(host)),
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

    /// The device on the bridge of a host's link; 0 is the router's.
    fn link(&self, host: u8) -> String {
        format!("{}v{host}", self.prefix)
    }

    fn router(&self) -> String {
        format!("{}r", self.prefix)
    }

    pub fn netns(&self, host: u8) -> String {
        format!("{}n{host}", self.prefix)
    }

    /// The address of a host; 0 is the bridge's, which the test itself uses.
    pub fn address(&self, host: u8) -> Ipv4Addr {
        let [a, b, c] = self.subnet;
        let base = if self.far.contains(&host) { FAR } else { 0 };
        Ipv4Addr::new(a, b, c, base + host + 1)
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

impl Drop for TestNetwork {
    fn drop(&mut self) {
        for host in 0..=self.hosts {
            // The link first: a namespace may outlive its name as long as another process's mounts reference it. Errors are ignored,
            // because after a failed setup not all exist.
            drop(system(&["ip", "link", "del", &self.link(host)]));
            drop(system(&[
                "ip",
                "-n",
                &self.router(),
                "link",
                "del",
                &self.link(host),
            ]));
            drop(system(&["ip", "netns", "del", &self.netns(host)]));
        }
        drop(system(&["ip", "netns", "del", &self.router()]));
        drop(system(&["ip", "link", "del", &self.bridge()]));
    }
}
