//! The node's resolv.conf(5), as the kubelet reads it.

use std::net::IpAddr;

use super::name::Name;

/// As many as resolv.conf readers use.
const SERVERS_MAX: usize = 3;
const DOMAINS_MAX: usize = 32;

/// Name servers and search domains; what cannot be read is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    pub servers: Vec<IpAddr>,
    pub domains: Vec<Name>,
}

impl ResolvConf {
    /// The last `search` (or `domain`) line counts.
    pub fn parse(text: &str) -> Self {
        let mut conf = ResolvConf::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") if conf.servers.len() < SERVERS_MAX => {
                    // A zone (`fe80::1%eth0`) would need an interface of the node; such servers are left out.
                    conf.servers
                        .extend(words.next().and_then(|w| w.parse::<IpAddr>().ok()));
                }
                Some("search" | "domain") => {
                    let names = words.filter_map(|word| Name::parse(word).ok());
                    conf.domains = names.filter(|n| !n.is_root()).take(DOMAINS_MAX).collect();
                }
                _ => {}
            }
        }
        conf
    }
}
