//! The table `inet knarr-pods`: fixed chains, and sets and maps that hold what changes.
//!
//! | chain | hook, priority | what |
//! |---|---|---|
//! | `from-pods` | prerouting, raw | packets of pods pass only if the route to their source leads back to their interface; none pass to 127.0.0.0/8; from other links none pass from an address of the node's pod CIDRs to which no route leads, which is one without a pod |
//! | `host-ports-in`, `host-ports-out` | prerouting and output, after Services' (`dstnat + 10`) | connections to an address of the node: to the pod whose host port it is |
//! | `source` | postrouting, srcnat | pods' connections to the outside of the cluster leave with the node's address; so do a pod's connections to itself through a host port, and those from 127.0.0.1 |
//!
//! Pods' links are known by their interface group, not by name or a set, so a pod without host ports needs no element.

use std::fmt::Write;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::kernel::pod_links::GROUP;

/// Names of the sets that hold host ports, one for each family.
pub const ANY: [&str; 2] = ["any4", "any6"];
pub const ONE: [&str; 2] = ["one4", "one6"];
pub const HAIRPIN: [&str; 2] = ["hairpin4", "hairpin6"];

/// Destinations that are never masqueraded in addition to the cluster's: multicast, broadcast, the link.
const NOT_OUTSIDE: [&str; 4] = ["224.0.0.0/4", "255.255.255.255/32", "ff00::/8", "fe80::/10"];

/// What the table depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The node's own.
    pub pod_cidrs: Vec<IpNet>,
    /// What pods reach without NAT.
    pub cluster_cidrs: Vec<IpNet>,
    pub node_addresses: Vec<IpAddr>,
    /// Addresses of the node that host ports are never on.
    pub reserved: Vec<IpAddr>,
}

/// `knarr-pods`, with the instance's suffix.
pub fn name(instance: Option<&str>) -> String {
    match instance {
        Some(instance) => format!("knarr-pods-{instance}"),
        None => "knarr-pods".into(),
    }
}

/// The text for nft that makes the table, or brings one to these settings; in one transaction, so that there is no moment
/// without rules. Elements of host ports are left alone.
pub fn script(name: &str, settings: &Settings) -> String {
    let own = families(&settings.pod_cidrs);
    let not_outside = NOT_OUTSIDE.iter().filter_map(|cidr| cidr.parse().ok());
    let inside: Vec<IpNet> = settings
        .cluster_cidrs
        .iter()
        .chain(&settings.pod_cidrs)
        .copied()
        .chain(not_outside)
        .collect();
    let inside = families(&inside);
    let reserved: Vec<IpNet> = settings.reserved.iter().map(|ip| IpNet::from(*ip)).collect();
    let reserved = families(&reserved);
    let mut script = format!("add table inet {name}\n");
    for (family, (address, of)) in [("ipv4_addr", "4"), ("ipv6_addr", "6")].into_iter().enumerate() {
        let mut add = |text: String| {
            script.push_str(&text);
            script.push('\n');
        };
        let target = format!("{address} . inet_service");
        add(format!(
            "add map inet {name} any{of} {{ type inet_proto . inet_service : {target}; }}"
        ));
        add(format!(
            "add map inet {name} one{of} {{ type {address} . inet_proto . inet_service : {target}; }}"
        ));
        add(format!(
            "add set inet {name} hairpin{of} {{ type {address} . {address}; }}"
        ));
        for (set, values) in [
            (format!("pods{of}"), &own[family]),
            (format!("inside{of}"), &inside[family]),
            (format!("reserved{of}"), &reserved[family]),
        ] {
            add(format!(
                "add set inet {name} {set} {{ type {address}; flags interval; }}"
            ));
            add(format!("flush set inet {name} {set}"));
            if !values.is_empty() {
                add(format!(
                    "add element inet {name} {set} {{ {} }}",
                    values.join(", ")
                ));
            }
        }
    }
    for (chain, hook) in [
        (
            "from-pods",
            "{ type filter hook prerouting priority raw; policy accept; }",
        ),
        (
            "host-ports-in",
            "{ type nat hook prerouting priority dstnat + 10; policy accept; }",
        ),
        (
            "host-ports-out",
            "{ type nat hook output priority -90; policy accept; }",
        ),
        (
            "source",
            "{ type nat hook postrouting priority srcnat; policy accept; }",
        ),
        ("host-ports", ""),
    ] {
        // A String takes all that is written to it.
        let _ = writeln!(script, "add chain inet {name} {chain} {hook}");
        let _ = writeln!(script, "flush chain inet {name} {chain}");
    }
    for rule in rules(settings) {
        let _ = writeln!(script, "add rule inet {name} {rule}");
    }
    script
}

fn rules(settings: &Settings) -> Vec<String> {
    let source = |is_v4: bool| {
        let address = settings
            .node_addresses
            .iter()
            .find(|address| address.is_ipv4() == is_v4);
        match address {
            Some(IpAddr::V4(v4)) => format!("snat ip to {v4} fully-random"),
            Some(IpAddr::V6(v6)) => format!("snat ip6 to {v6} fully-random"),
            None => "masquerade fully-random".into(),
        }
    };
    vec![
        format!("from-pods iifgroup {GROUP} ip daddr 127.0.0.0/8 drop"),
        format!("from-pods iifgroup {GROUP} fib saddr . iif oif missing drop"),
        format!("from-pods iifgroup != {GROUP} ip saddr @pods4 fib saddr oif missing drop"),
        format!("from-pods iifgroup != {GROUP} ip6 saddr @pods6 fib saddr oif missing drop"),
        "host-ports-in fib daddr type local jump host-ports".into(),
        "host-ports-out fib daddr type local jump host-ports".into(),
        "host-ports ip daddr @reserved4 return".into(),
        "host-ports ip6 daddr @reserved6 return".into(),
        "host-ports meta nfproto ipv4 dnat ip to ip daddr . meta l4proto . th dport map @one4".into(),
        "host-ports meta nfproto ipv4 dnat ip to meta l4proto . th dport map @any4".into(),
        "host-ports meta nfproto ipv6 dnat ip6 to ip6 daddr . meta l4proto . th dport map @one6".into(),
        "host-ports meta nfproto ipv6 dnat ip6 to meta l4proto . th dport map @any6".into(),
        format!("source ip saddr . ip daddr @hairpin4 {}", source(true)),
        format!("source ip6 saddr . ip6 daddr @hairpin6 {}", source(false)),
        format!("source oifgroup {GROUP} ip saddr 127.0.0.0/8 {}", source(true)),
        "source ip saddr @pods4 ip daddr != @inside4 masquerade fully-random".into(),
        "source ip6 saddr @pods6 ip6 daddr != @inside6 masquerade fully-random".into(),
    ]
}

/// As texts, IPv4 and IPv6 apart, without overlaps (which interval sets do not take).
fn families(cidrs: &[IpNet]) -> [Vec<String>; 2] {
    let v4: Vec<Ipv4Net> = cidrs
        .iter()
        .filter_map(|cidr| match cidr {
            IpNet::V4(v4) => Some(*v4),
            IpNet::V6(_) => None,
        })
        .collect();
    let v6: Vec<Ipv6Net> = cidrs
        .iter()
        .filter_map(|cidr| match cidr {
            IpNet::V6(v6) => Some(*v6),
            IpNet::V4(_) => None,
        })
        .collect();
    [
        Ipv4Net::aggregate(&v4).iter().map(ToString::to_string).collect(),
        Ipv6Net::aggregate(&v6).iter().map(ToString::to_string).collect(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n8_settings_that_overlap_make_sets_without_overlaps() {
        let settings = Settings {
            pod_cidrs: vec!["10.1.2.3/24".parse().unwrap()],
            cluster_cidrs: vec!["10.1.0.0/16".parse().unwrap(), "fd00::/48".parse().unwrap()],
            node_addresses: vec!["192.0.2.1".parse().unwrap()],
            reserved: vec!["10.96.0.10".parse().unwrap()],
        };
        let script = script("knarr-pods", &settings);
        assert!(script.contains("pods4 { 10.1.2.0/24 }"), "{script}");
        assert!(script.contains("inside4 { 10.1.0.0/16, 224.0.0.0/4, 255.255.255.255/32 }"));
        assert!(script.contains("hairpin4 snat ip to 192.0.2.1"));
        assert!(script.contains("hairpin6 masquerade"));
        assert!(!script.contains("flush set inet knarr-pods any4"));
    }
}
