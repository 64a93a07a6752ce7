//! The nftables table of routes: TCP segments that a tunnel takes, and nothing of pods in the clear where it is encrypted.

use std::fmt::Write;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::pods::GROUP;

/// What packets between nodes take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The device of a tunnel, if there is one.
    pub tunnel: Option<String>,
    pub encryption: Option<Guard>,
}

/// Which packets are never in the clear.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// Pods' addresses, of the whole cluster.
    pub pods: Vec<IpNet>,
    /// What is in these ranges but is not pods': networks of this host, and nodes.
    pub except: Vec<IpNet>,
}

/// The text for nft that makes the table what it should be, in one transaction; without settings there is none.
///
/// Encrypted packets arrive and leave through the tunnel's device, those of this node's pods through devices of our
/// group. On any other one a pod's address is spoofed by another host, or the packet should have been encrypted: it is
/// dropped, before a Service's address is translated on the way in, and after that on the way out.
pub fn script(name: &str, settings: &Settings) -> String {
    let mut script = format!("add table inet {name}\ndelete table inet {name}\n");
    let Some(device) = &settings.tunnel else {
        return script;
    };
    let mut add = |text: String| {
        // A String takes all that is written to it.
        let _ = writeln!(script, "add {text}");
    };
    add(format!("table inet {name}"));
    add(format!(
        "chain inet {name} forward {{ type filter hook forward priority mangle; }}"
    ));
    add(format!(
        "rule inet {name} forward oifname \"{device}\" tcp flags syn tcp option maxseg size set rt mtu"
    ));
    let Some(guard) = &settings.encryption else {
        return script;
    };
    for (set, nets) in [("pods", &guard.pods), ("except", &guard.except)] {
        for (family, kind, elements) in [(4, "ipv4_addr", v4(nets)), (6, "ipv6_addr", v6(nets))] {
            add(format!(
                "set inet {name} {set}{family} {{ type {kind}; flags interval; }}"
            ));
            if !elements.is_empty() {
                add(format!(
                    "element inet {name} {set}{family} {{ {} }}",
                    elements.join(", ")
                ));
            }
        }
    }
    for (chain, hook, direction, address) in [
        ("in-clear", "prerouting priority raw", "iif", "saddr"),
        ("out-clear", "postrouting priority filter", "oif", "daddr"),
    ] {
        add(format!(
            "chain inet {name} {chain} {{ type filter hook {hook}; }}"
        ));
        for (ip, family) in [("ip", 4), ("ip6", 6)] {
            add(format!(
                "rule inet {name} {chain} {direction}name != {{ \"lo\", \"{device}\" }} {direction}group != {GROUP} \
                 {ip} {address} @pods{family} {ip} {address} != @except{family} counter drop"
            ));
        }
    }
    script
}

/// As texts without overlaps, which interval sets do not take.
fn v4(nets: &[IpNet]) -> Vec<String> {
    let nets: Vec<Ipv4Net> = nets
        .iter()
        .filter_map(|net| match net {
            IpNet::V4(v4) => Some(*v4),
            IpNet::V6(_) => None,
        })
        .collect();
    Ipv4Net::aggregate(&nets)
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn v6(nets: &[IpNet]) -> Vec<String> {
    let nets: Vec<Ipv6Net> = nets
        .iter()
        .filter_map(|net| match net {
            IpNet::V6(v6) => Some(*v6),
            IpNet::V4(_) => None,
        })
        .collect();
    Ipv6Net::aggregate(&nets)
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n7_pods_addresses_are_dropped_on_other_devices_only_while_encryption_is_on() {
        let mut settings = Settings::default();
        assert_eq!(script("t", &settings), "add table inet t\ndelete table inet t\n");
        settings.tunnel = Some("knarr-wg".into());
        assert!(!script("t", &settings).contains("drop"));
        settings.encryption = Some(Guard {
            pods: vec!["10.0.0.0/8".parse().unwrap(), "fd01::/48".parse().unwrap()],
            except: vec!["10.9.0.7/24".parse().unwrap(), "10.9.0.9/32".parse().unwrap()],
        });
        let script = script("t", &settings);
        assert!(script.contains("pods4 { 10.0.0.0/8 }"), "{script}");
        assert!(script.contains("except4 { 10.9.0.0/24 }"), "{script}");
        assert!(!script.contains("element inet t except6"), "{script}");
        assert_eq!(script.matches("drop").count(), 4);
    }
}
