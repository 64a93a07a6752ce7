//! The fixed part of a table, as text for `nft -f`: chains, rules, and sets and maps without elements.
//!
//! What a packet passes, in the order of priorities:
//!
//! | hook, priority | chain | does |
//! |---|---|---|
//! | prerouting, raw | `guard` (ip) | drops loopback addresses that come from outside, where node ports are on 127.0.0.0/8 |
//! | prerouting and output, dstnat - 10 | `firewall` | drops sources that `loadBalancerSourceRanges` do not name |
//! | prerouting and output, dstnat | `dispatch` | sends new connections to an endpoint |
//! | prerouting and output, dstnat + 10 | `check` | rejects what has no endpoint, drops unallocated addresses of the Service ranges |
//! | input and postrouting, srcnat | `learn` | remembers the endpoint of clients with session affinity |
//! | postrouting, srcnat | `masquerading` | hides sources where answers would not come back this way |
//!
//! `nft` of Debian 12 (1.0.6) must be able to read, list and print all of it: `ct original proto-dst` has a type only next
//! to a `meta l4proto`; maps of slots are declared by `typeof numgen`, and the first rule that uses one is wasted; a map that rules update may have a key of 16 bytes
//! at most, so the learned map of ip6 is keyed by a hash of its fields.

use std::collections::BTreeSet;
use std::fmt::Write;

use ipnet::IpNet;

use super::frontend::Frontend;
use super::slots::{self, LOCAL_OFFSET, TRIES};
use super::{Config, Family, layout};
use crate::catalog::Protocol;

pub(super) const REJECT: &str = "reject-connection";
pub(super) const MASQUERADE: &str = "masquerade-all";
pub(super) const MASQUERADE_LOCAL: &str = "masquerade-own";
const SPLIT: &str = "split";
const SPLIT_NODE_PORTS: &str = "split-node-ports";

/// Clients that are remembered, each at some 100 bytes of kernel memory. When they are more, new ones are not remembered.
const LEARNED_CLIENTS: usize = 1 << 18;
/// The seed of the hash that identifies an IPv6 client; any number will do.
const HASH_SEED: u32 = 0x6b6e_6172;

/// The chain that picks one of so many endpoints of a frontend.
pub(super) fn pick_chain(frontend: &Frontend, endpoints: usize, local: bool) -> String {
    pick_chain_name(frontend.address.is_none(), local, slots::size_class(endpoints))
}

fn pick_chain_name(node_port: bool, local: bool, class: usize) -> String {
    let prefix = if node_port { "node-port-" } else { "" };
    let list = if local { "local-" } else { "" };
    format!("{prefix}{list}endpoints-{class}")
}

/// The chain that separates pods and the node from clients outside, for `externalTrafficPolicy: Local`.
pub(super) fn split_chain(frontend: &Frontend) -> &'static str {
    match frontend.address {
        Some(_) => SPLIT,
        None => SPLIT_NODE_PORTS,
    }
}

/// The chain that remembers a client for so long.
pub(super) fn learn_chain(seconds: u32) -> String {
    format!("learn-{seconds}")
}

/// Kernel parameters that the configuration needs, as paths below `/proc/sys` and values.
pub fn sysctls(config: &Config) -> Vec<(&'static str, &'static str)> {
    match config.localhost_node_ports {
        true => vec![("net/ipv4/conf/all/route_localnet", "1")],
        false => Vec::new(),
    }
}

/// Chains, rules, sets and maps of one family's table, without elements, and with [`affinity_chains`] of these timeouts.
/// Running it again replaces the rules in one transaction and leaves elements as they are.
pub fn skeleton(config: &Config, family: Family, timeouts: &BTreeSet<u32>) -> String {
    let mut text = Text::new(config, family);
    text.line("add", "table", "");
    text.sets();
    text.chains();
    text.out + &affinity_chains(config, family, timeouts)
}

/// The chains for these timeouts of session affinity, in seconds: see [`Proxy::affinity_timeout`](super::Proxy::affinity_timeout).
/// Each has to be there before an element that leads to it.
pub fn affinity_chains(config: &Config, family: Family, timeouts: &BTreeSet<u32>) -> String {
    let mut text = Text::new(config, family);
    for seconds in timeouts {
        text.affinity_chain(*seconds);
    }
    text.out
}

struct Text<'a> {
    config: &'a Config,
    family: Family,
    ip: &'static str,
    out: String,
}

/// Fields of a packet before its destination is rewritten.
const PORT: &str = "meta l4proto . th dport";
/// The same of a connection's first packet afterwards.
const ORIGINAL_PORT: &str = "meta l4proto . ct original proto-dst";

impl<'a> Text<'a> {
    fn new(config: &'a Config, family: Family) -> Self {
        Text {
            config,
            family,
            ip: family.name(),
            out: String::new(),
        }
    }
}

impl Text<'_> {
    fn line(&mut self, verb: &str, what: &str, rest: &str) {
        let (ip, table) = (self.ip, &self.config.table);
        // Writing to a String does not fail.
        let _ = writeln!(self.out, "{verb} {what} {ip} {table} {rest}");
    }

    fn map(&mut self, name: &str, fields: &str) {
        self.line("add", "map", &format!("{name} {{ {fields}; }}"));
    }

    fn set(&mut self, name: &str, fields: &str) {
        self.line("add", "set", &format!("{name} {{ {fields}; }}"));
    }

    /// A chain and all its rules, in place of those it has.
    fn chain(&mut self, name: &str, rules: &[String]) {
        self.line("add", "chain", name);
        self.line("flush", "chain", name);
        for rule in rules {
            self.line("add", "rule", &format!("{name} {rule}"));
        }
    }

    fn base_chain(&mut self, name: &str, kind: &str, hook: &str, priority: &str, rules: &[String]) {
        let hook = format!("{name} {{ type {kind} hook {hook} priority {priority}; policy accept; }}");
        self.line("add", "chain", &hook);
        self.chain(name, rules);
    }

    fn sets(&mut self) {
        let ip = self.ip;
        let address = match self.family {
            Family::V4 => "ipv4_addr",
            Family::V6 => "ipv6_addr",
        };
        let frontend = format!("{address} . inet_proto . inet_service");
        let port = "inet_proto . inet_service";
        for name in [
            layout::SERVICES,
            layout::LOCAL_SERVICES,
            layout::SHORT_CIRCUIT,
            layout::NO_ENDPOINTS,
            layout::EXTERNAL,
            layout::AFFINITY_TIMEOUTS,
        ] {
            self.map(name, &format!("type {frontend} : verdict"));
        }
        for name in [
            layout::NODE_PORTS,
            layout::LOCAL_NODE_PORTS,
            layout::SHORT_CIRCUIT_NODE_PORTS,
            layout::NO_ENDPOINTS_NODE_PORTS,
            layout::EXTERNAL_NODE_PORTS,
            layout::AFFINITY_NODE_PORT_TIMEOUTS,
        ] {
            self.map(name, &format!("type {port} : verdict"));
        }
        // Slots have a type by `typeof` alone. `nft` 1.0.6 cannot read `th dport` back behind an address.
        let slot = "numgen random mod 2";
        let to = format!("{ip} daddr . tcp dport");
        let slots = format!("typeof {ip} daddr . {PORT} . {slot} : {to}");
        self.map(layout::ENDPOINTS, &slots);
        self.map(
            layout::NODE_PORT_ENDPOINTS,
            &format!("typeof {PORT} . {slot} : {to}"),
        );
        let to = format!("{address} . inet_service");
        for (name, key) in [
            (layout::AFFINITY_ENDPOINTS, &*frontend),
            (layout::AFFINITY_NODE_PORT_ENDPOINTS, port),
        ] {
            self.map(name, &format!("type {key} . classid : {to}"));
        }
        for (name, key) in [
            (layout::AFFINITY_IDS, &*frontend),
            (layout::AFFINITY_NODE_PORT_IDS, port),
        ] {
            self.map(name, &format!("type {key} . {to} : classid"));
        }
        let client = match self.family {
            Family::V4 => format!("type {address} . {frontend} : classid"),
            Family::V6 => format!("typeof {slot} : meta priority"),
        };
        let learned = format!("{client}; flags dynamic,timeout; size {LEARNED_CLIENTS}");
        self.map(layout::LEARNED, &learned);
        self.set(layout::CLUSTER_IPS, &format!("type {address}"));
        self.set(layout::HAIRPIN, &format!("type {address} . {address}"));
        self.set(layout::FIREWALLED, &format!("type {frontend}"));
        let sources = format!("type {frontend} . {address}; flags interval");
        self.set(layout::FIREWALL_SOURCES, &sources);
    }

    /// The key of a client and a frontend in the learned map.
    fn client(&self, destination: &str, port: &str) -> String {
        let ip = self.ip;
        let fields = format!("{ip} saddr . {destination} . {port}");
        match self.family {
            Family::V4 => fields,
            // 4294967295 leaves the hash as it is, but for its last value.
            Family::V6 => format!("jhash {fields} mod 4294967295 seed {HASH_SEED:#x}"),
        }
    }

    /// Matches destinations that node ports are served on.
    fn node_port_addresses(&self) -> String {
        let ip = self.ip;
        let loopback = match self.family {
            Family::V4 if self.config.localhost_node_ports => None,
            Family::V4 => Some("127.0.0.0/8"),
            Family::V6 => Some("::1"),
        };
        let loopback = loopback.map_or(String::new(), |range| format!("{ip} daddr != {range} "));
        let ranges = match ranges(&self.config.node_port_addresses, self.family) {
            Some(ranges) => format!("{ip} daddr {ranges} "),
            None => String::new(),
        };
        format!("fib daddr type local {loopback}{ranges}")
    }

    fn chains(&mut self) {
        self.picking();
        self.dispatching();
        self.checking();
        self.learning();
        self.masquerading();
        // Base chains last: they lead to the others.
        let new = |chain: &str| [format!("ct state new jump {chain}")];
        let dnat = |chain: &str| [format!("ct status dnat jump {chain}")];
        let jump = |chain: &str| [format!("jump {chain}")];
        for hook in ["prerouting", "output"] {
            self.base_chain(
                &format!("firewall-{hook}"),
                "filter",
                hook,
                "-110",
                &new("firewall"),
            );
            self.base_chain(&format!("nat-{hook}"), "nat", hook, "-100", &jump("dispatch"));
            self.base_chain(&format!("check-{hook}"), "filter", hook, "-90", &new("check"));
        }
        self.base_chain("nat-input", "nat", "input", "100", &dnat("learn"));
        let after = [dnat("learn"), dnat("masquerading")].concat();
        self.base_chain("nat-postrouting", "nat", "postrouting", "100", &after);
        if self.family == Family::V4 {
            let guard = |field: &str| format!("iifname != \"lo\" ip {field} 127.0.0.0/8 drop");
            let rules = match self.config.localhost_node_ports {
                true => vec![guard("daddr"), guard("saddr")],
                false => Vec::new(),
            };
            self.base_chain("guard", "filter", "prerouting", "-300", &rules);
        }
    }

    fn picking(&mut self) {
        let ip = self.ip;
        for (node_port, local) in [(false, false), (false, true), (true, false), (true, true)] {
            let (frontend, map) = match node_port {
                false => (format!("{ip} daddr . {PORT}"), layout::ENDPOINTS),
                true => (PORT.to_owned(), layout::NODE_PORT_ENDPOINTS),
            };
            let offset = match local {
                true => format!(" offset {LOCAL_OFFSET}"),
                false => String::new(),
            };
            let pick = |size: usize| {
                let slot = format!("numgen random mod {size}{offset}");
                format!("dnat {ip} addr . port to {frontend} . {slot} map @{map}")
            };
            if !local {
                // The first rule of a run that uses such a map is given a match of the protocol that its `typeof` names.
                self.chain(
                    &format!("never-{map}"),
                    &[format!("meta l4proto tcp {}", pick(1))],
                );
            }
            for class in slots::size_classes() {
                let mut rules = vec![pick(class)];
                if class > slots::EXACT {
                    rules = vec![pick(class); TRIES];
                    rules.push(pick(class / 2));
                }
                self.chain(&pick_chain_name(node_port, local, class), &rules);
            }
        }
    }

    fn dispatching(&mut self) {
        let ip = self.ip;
        let frontend = format!("{ip} daddr . {PORT}");
        let client = self.client(&format!("{ip} daddr"), PORT);
        let node_ports = self.node_port_addresses();
        for (chain, frontend, short_circuit, local) in [
            (SPLIT, &*frontend, layout::SHORT_CIRCUIT, layout::LOCAL_SERVICES),
            (
                SPLIT_NODE_PORTS,
                PORT,
                layout::SHORT_CIRCUIT_NODE_PORTS,
                layout::LOCAL_NODE_PORTS,
            ),
        ] {
            let pods = ranges(&self.config.cluster_cidrs, self.family);
            let pods = pods.map(|pods| format!("{ip} saddr {pods} {frontend} vmap @{short_circuit}"));
            let node = format!("fib saddr type local {frontend} vmap @{short_circuit}");
            let rest = format!("{frontend} vmap @{local}");
            let rules: Vec<String> = pods.into_iter().chain([node, rest]).collect();
            self.chain(chain, &rules);
        }
        // Reached with the id of a learned endpoint as the packet's priority; returns if that endpoint was removed.
        let endpoints = layout::AFFINITY_ENDPOINTS;
        let node_port_endpoints = layout::AFFINITY_NODE_PORT_ENDPOINTS;
        let learned = layout::LEARNED;
        self.chain(
            "affinity",
            &[
                format!("dnat {ip} addr . port to {frontend} . meta priority map @{endpoints}"),
                format!(
                    "{node_ports}dnat {ip} addr . port to {PORT} . meta priority map @{node_port_endpoints}"
                ),
                format!("delete @{learned} {{ {client} : meta priority }}"),
                "meta priority set none".to_owned(),
            ],
        );
        self.chain(
            "dispatch",
            &[
                format!("meta priority set {client} map @{learned} jump affinity"),
                format!("{frontend} vmap @{}", layout::SERVICES),
                format!("{node_ports}{PORT} vmap @{}", layout::NODE_PORTS),
            ],
        );
    }

    fn checking(&mut self) {
        let ip = self.ip;
        let frontend = format!("{ip} daddr . {PORT}");
        self.chain(
            "firewall",
            &[format!(
                "{frontend} @{} {frontend} . {ip} saddr != @{} drop",
                layout::FIREWALLED,
                layout::FIREWALL_SOURCES
            )],
        );
        self.chain(
            REJECT,
            &[
                "meta l4proto tcp reject with tcp reset".to_owned(),
                "reject".to_owned(),
            ],
        );
        let mut rules = vec![
            format!("{frontend} vmap @{}", layout::NO_ENDPOINTS),
            format!(
                "{}{PORT} vmap @{}",
                self.node_port_addresses(),
                layout::NO_ENDPOINTS_NODE_PORTS
            ),
            "fib daddr type local return".to_owned(),
        ];
        let dns: Vec<IpNet> = self
            .config
            .dns_addresses
            .iter()
            .map(|ip| IpNet::from(*ip))
            .collect();
        rules.extend(ranges(&dns, self.family).map(|dns| format!("{ip} daddr {dns} return")));
        rules.push(format!("{ip} daddr @{} goto {REJECT}", layout::CLUSTER_IPS));
        let unallocated = ranges(&self.config.service_cidrs, self.family);
        rules.extend(unallocated.map(|all| format!("{ip} daddr {all} drop")));
        self.chain("check", &rules);
    }

    fn affinity_chain(&mut self, seconds: u32) {
        let ip = self.ip;
        let client = self.client(&format!("ct original {ip} daddr"), ORIGINAL_PORT);
        let learned = layout::LEARNED;
        let mut rules = Vec::new();
        for protocol in protocols() {
            rules.push(format!(
                "meta l4proto {protocol} update @{learned} {{ {client} timeout {seconds}s : meta priority }}"
            ));
        }
        rules.push("meta priority set none".to_owned());
        self.chain(&learn_chain(seconds), &rules);
    }

    fn learning(&mut self) {
        let ip = self.ip;
        let chosen = format!("{ip} daddr . th dport");
        for protocol in protocols() {
            let frontend = format!("ct original {ip} daddr . {ORIGINAL_PORT}");
            let rule = |frontend: &str, ids: &str, timeouts: &str| {
                format!(
                    "meta l4proto {protocol} meta priority set {frontend} . {chosen} map @{ids} {frontend} vmap @{timeouts}"
                )
            };
            let rules = [
                rule(&frontend, layout::AFFINITY_IDS, layout::AFFINITY_TIMEOUTS),
                rule(
                    ORIGINAL_PORT,
                    layout::AFFINITY_NODE_PORT_IDS,
                    layout::AFFINITY_NODE_PORT_TIMEOUTS,
                ),
            ];
            self.chain(&format!("learn-{protocol}"), &rules);
        }
        self.by_protocol("learn", &[], &[]);
    }

    fn masquerading(&mut self) {
        let ip = self.ip;
        let hairpin = "hairpin-connection".to_owned();
        let masquerade = "masquerade fully-random".to_owned();
        let hairpins = format!("{ip} saddr . {ip} daddr @{} {masquerade}", layout::HAIRPIN);
        self.chain(&hairpin, &[hairpins]);
        self.chain(MASQUERADE, std::slice::from_ref(&masquerade));
        self.chain(MASQUERADE_LOCAL, &[format!("fib saddr type local {masquerade}")]);
        let mut rules = Vec::new();
        let pods = ranges(&self.config.cluster_cidrs, self.family);
        if self.config.masquerade_all {
            rules.push(masquerade);
        } else if let Some(pods) = pods {
            rules.push(format!("{ip} saddr != {pods} {masquerade}"));
        }
        rules.push(format!("goto {hairpin}"));
        self.chain("masquerade-cluster-ip", &rules);
        for protocol in protocols() {
            let rules = [
                format!(
                    "meta l4proto {protocol} ct original {ip} daddr . {ORIGINAL_PORT} vmap @{}",
                    layout::EXTERNAL
                ),
                format!(
                    "meta l4proto {protocol} {ORIGINAL_PORT} vmap @{}",
                    layout::EXTERNAL_NODE_PORTS
                ),
            ];
            self.chain(&format!("masquerading-{protocol}"), &rules);
        }
        let first = format!(
            "ct original {ip} daddr @{} goto masquerade-cluster-ip",
            layout::CLUSTER_IPS
        );
        self.by_protocol("masquerading", &[first], &[format!("goto {hairpin}")]);
    }

    /// A chain that leads to the one of the packet's protocol.
    fn by_protocol(&mut self, chain: &str, first: &[String], last: &[String]) {
        let chains = protocols().map(|protocol| format!("{protocol} : jump {chain}-{protocol}"));
        let jump = format!("meta l4proto vmap {{ {} }}", chains.join(", "));
        let rules = [first, &[jump], last].concat();
        self.chain(chain, &rules);
    }
}

fn protocols() -> [String; 3] {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(|p| p.name().to_ascii_lowercase())
}

/// The ranges of one family as an anonymous set; `None` if there are none.
fn ranges(all: &[IpNet], family: Family) -> Option<String> {
    let of_family: Vec<IpNet> = Config::of_family(all, family).collect();
    let merged = IpNet::aggregate(&of_family);
    let texts: Vec<String> = merged.iter().map(ToString::to_string).collect();
    (!texts.is_empty()).then(|| format!("{{ {} }}", texts.join(", ")))
}
