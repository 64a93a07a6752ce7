//! Where questions are forwarded that the cluster does not answer: hosts, stub domains and upstream servers, from the ConfigMap
//! `kube-system/knarr-dns` or the node's resolv.conf.
//!
//! Keys of the ConfigMap, all optional:
//! - `upstreams`: name servers, separated by white space or commas (`1.1.1.1 8.8.8.8:5353 [2001:db8::1]:53`). Without it those of
//!   the node's resolv.conf are used.
//! - `stubDomains`: a JSON object from domain to name servers (`{"corp.example": ["10.0.0.1"]}`), as kube-dns has it. The longest
//!   matching domain is used.
//! - `hosts`: lines as in /etc/hosts; such names are answered from here.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::message::{Data, Record};
use super::name::{Name, NameError};
use super::record_type;
use super::zone::{Answer, Outcome};

const PORT: u16 = 53;
/// The most servers of a list; more are never queried for one question.
const SERVERS_MAX: usize = 15;
const STUB_DOMAINS_MAX: usize = 1000;
const HOSTS_MAX: usize = 10_000;
/// Names of `hosts` change with the ConfigMap only.
const HOSTS_TTL_SECONDS: u32 = 30;

/// Why a key of the ConfigMap is rejected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    #[error("{key}: invalid name server {value:?}, expected an IP address with an optional port")]
    Server { key: &'static str, value: String },
    #[error("{key}: at most {max} entries are allowed")]
    TooMany { key: &'static str, max: usize },
    #[error("stubDomains: expected a JSON object from domain to a list of name servers: {0}")]
    StubDomains(String),
    #[error("{key}: invalid name {value:?}")]
    Name {
        key: &'static str,
        value: String,
        #[source]
        source: NameError,
    },
    #[error("hosts: invalid address {0:?}")]
    Address(String),
}

/// The forwarding rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarding {
    /// `None`: those of the node's resolv.conf.
    pub upstreams: Option<Vec<SocketAddr>>,
    pub stub_domains: BTreeMap<Name, Vec<SocketAddr>>,
    pub hosts: BTreeMap<Name, Vec<IpAddr>>,
}

impl Forwarding {
    /// Reads the ConfigMap's data. All errors are reported; if there is one, none of the data is used.
    pub fn parse(data: &BTreeMap<String, String>) -> Result<Self, Vec<ForwardError>> {
        let mut errors = Vec::new();
        let mut keep = |error| errors.push(error);
        let mut forwarding = Forwarding::default();
        if let Some(text) = data.get("upstreams") {
            let words = text.split(|c: char| c.is_whitespace() || c == ',');
            let servers = servers("upstreams", words.filter(|w| !w.is_empty()), &mut keep);
            forwarding.upstreams = (!servers.is_empty()).then_some(servers);
        }
        if let Some(text) = data.get("stubDomains").filter(|t| !t.trim().is_empty()) {
            match serde_json::from_str::<BTreeMap<String, Vec<String>>>(text) {
                Err(error) => keep(ForwardError::StubDomains(error.to_string())),
                Ok(domains) if domains.len() > STUB_DOMAINS_MAX => keep(ForwardError::TooMany {
                    key: "stubDomains",
                    max: STUB_DOMAINS_MAX,
                }),
                Ok(domains) => {
                    for (domain, listed) in domains {
                        let servers = servers("stubDomains", listed.iter().map(String::as_str), &mut keep);
                        if let Some(name) = name("stubDomains", &domain, &mut keep) {
                            forwarding.stub_domains.insert(name, servers);
                        }
                    }
                }
            }
        }
        if let Some(text) = data.get("hosts") {
            hosts(text, &mut forwarding.hosts, &mut keep);
        }
        match errors.is_empty() {
            true => Ok(forwarding),
            false => Err(errors),
        }
    }

    /// The servers for a name: of the longest stub domain it is in, else the upstreams.
    pub fn servers<'a>(&'a self, name: &Name, of_node: &'a [SocketAddr]) -> &'a [SocketAddr] {
        let longest = self
            .stub_domains
            .iter()
            .filter(|(domain, _)| name.below(domain).is_some())
            .max_by_key(|(domain, _)| domain.wire_bytes());
        match longest {
            Some((_, servers)) => servers,
            None => self.upstreams.as_deref().unwrap_or(of_node),
        }
    }

    /// The addresses of a name in `hosts`; questions for other types are forwarded.
    pub fn host(&self, name: &Name, record_type: u16) -> Option<Answer> {
        let is_desired = |address: &&IpAddr| match record_type {
            record_type::A => address.is_ipv4(),
            _ => address.is_ipv6(),
        };
        if !matches!(record_type, record_type::A | record_type::AAAA) {
            return None;
        }
        let addresses = self.hosts.get(name)?;
        let records = addresses.iter().filter(is_desired).map(|address| Record {
            owner: None,
            ttl_seconds: HOSTS_TTL_SECONDS,
            data: Data::Address(*address),
        });
        let records: Vec<Record> = records.collect();
        let end = if records.is_empty() {
            Outcome::NoData
        } else {
            Outcome::Records
        };
        Some(Answer {
            records,
            ..Answer::with_outcome(end)
        })
    }
}

fn server(text: &str) -> Option<SocketAddr> {
    let plain = text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, PORT));
    let address = plain.or_else(|| text.parse().ok())?;
    let is_usable = address.port() != 0 && !address.ip().is_unspecified() && !address.ip().is_multicast();
    is_usable.then_some(address)
}

fn servers<'a>(
    key: &'static str,
    texts: impl Iterator<Item = &'a str>,
    error: &mut dyn FnMut(ForwardError),
) -> Vec<SocketAddr> {
    let mut servers = Vec::new();
    for text in texts {
        match server(text) {
            _ if servers.len() == SERVERS_MAX => {
                error(ForwardError::TooMany {
                    key,
                    max: SERVERS_MAX,
                });
                break;
            }
            Some(server) => servers.push(server),
            None => error(ForwardError::Server {
                key,
                value: text.chars().take(100).collect(),
            }),
        }
    }
    servers
}

fn name(key: &'static str, text: &str, error: &mut dyn FnMut(ForwardError)) -> Option<Name> {
    match Name::parse(text) {
        Ok(name) => Some(name),
        Err(source) => {
            error(ForwardError::Name {
                key,
                value: text.chars().take(100).collect(),
                source,
            });
            None
        }
    }
}

fn hosts(text: &str, hosts: &mut BTreeMap<Name, Vec<IpAddr>>, error: &mut dyn FnMut(ForwardError)) {
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        let Ok(address) = first.parse::<IpAddr>() else {
            error(ForwardError::Address(first.chars().take(100).collect()));
            continue;
        };
        for word in words {
            let Some(name) = name("hosts", word, error) else {
                continue;
            };
            if hosts.len() >= HOSTS_MAX && !hosts.contains_key(&name) {
                return error(ForwardError::TooMany {
                    key: "hosts",
                    max: HOSTS_MAX,
                });
            }
            let addresses = hosts.entry(name).or_default();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
}
