//! Where services get their addresses and node ports from: ranges, what of them is free, and how the fields
//! around `clusterIP` are filled in. Pure: what is in use is handed in, and so is the chance that spreads choices.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use k8s_openapi::api::core::v1::{Service, ServiceSpec};

use super::checks::{Json, json_list, text};
use super::service::{NONE, is_headless, needs_cluster_ip, needs_node_port};
use crate::field::{Errors, Path};

/// The label of an IPAddress that says who looks after it.
pub const LABEL_MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
/// Its value on the IPAddresses of Services' cluster IPs.
pub const IP_ADDRESS_MANAGER: &str = "ipallocator.k8s.io";

/// An address range: `10.96.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    prefix_len: u8,
}

impl Cidr {
    /// `None` where the text is not an address and a prefix length in their plain form.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, length) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        if length.starts_with('+') || (length.len() > 1 && length.starts_with('0')) {
            return None;
        }
        let prefix_len: u8 = length.parse().ok()?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        (prefix_len <= max).then_some(Cidr { address, prefix_len })
    }

    pub fn is_ipv6(&self) -> bool {
        self.address.is_ipv6()
    }

    pub fn family(&self) -> &'static str {
        if self.is_ipv6() { "IPv6" } else { "IPv4" }
    }

    fn width(&self) -> u32 {
        if self.is_ipv6() { 128 } else { 32 }
    }

    fn host_bits(&self) -> u32 {
        self.width() - u32::from(self.prefix_len)
    }

    fn host_mask(&self) -> u128 {
        u128::MAX.checked_shr(128 - self.host_bits()).unwrap_or(0)
    }

    fn bits(address: IpAddr) -> u128 {
        match address {
            IpAddr::V4(a) => u128::from(u32::from(a)),
            IpAddr::V6(a) => u128::from(a),
        }
    }

    fn address_at(&self, bits: u128) -> IpAddr {
        if self.is_ipv6() {
            IpAddr::V6(Ipv6Addr::from(bits))
        } else {
            // The upper bits are zero: `bits` came from an IPv4 address.
            IpAddr::V4(Ipv4Addr::from(bits as u32))
        }
    }

    /// Whether the address has bits beyond the prefix.
    pub fn is_ipv4_mapped(&self) -> bool {
        matches!(self.address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
    }

    pub fn has_host_bits(&self) -> bool {
        Self::bits(self.address) & self.host_mask() != 0
    }

    /// The range without host bits.
    pub fn masked(&self) -> Cidr {
        Cidr {
            address: self.address_at(Self::bits(self.address) & !self.host_mask()),
            prefix_len: self.prefix_len,
        }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv6() == self.is_ipv6()
            && Self::bits(address) & !self.host_mask() == Self::bits(self.address) & !self.host_mask()
    }

    pub fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    /// Whether some address is in both ranges.
    pub fn overlaps(&self, other: &Cidr) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }

    /// The range of this prefix length that begins `index` such ranges into this one; `None` beyond the end.
    pub fn subrange(&self, prefix_len: u8, index: u128) -> Option<Cidr> {
        if prefix_len < self.prefix_len || u32::from(prefix_len) > self.width() {
            return None;
        }
        let inner = Cidr {
            prefix_len,
            ..self.masked()
        };
        let offset = index.checked_mul(inner.host_mask().checked_add(1)?)?;
        (offset <= self.host_mask()).then(|| Cidr {
            address: self.address_at(Self::bits(inner.address) | offset),
            ..inner
        })
    }

    /// The indexes of the [`subrange`](Cidr::subrange)s of this prefix length that overlap `other`; `None` if none does.
    pub fn subranges_overlapping(
        &self,
        prefix_len: u8,
        other: &Cidr,
    ) -> Option<std::ops::RangeInclusive<u128>> {
        if !self.overlaps(other) || prefix_len < self.prefix_len || u32::from(prefix_len) > self.width() {
            return None;
        }
        let shift = self.width() - u32::from(prefix_len);
        let base = Self::bits(self.masked().address);
        let index = |bits: u128| (bits - base).checked_shr(shift).unwrap_or(0);
        let first = Self::bits(other.masked().address).max(base);
        let last = (Self::bits(other.masked().address) | other.host_mask()).min(base | self.host_mask());
        Some(index(first)..=index(last))
    }

    /// Whether `other` is a proper part of this range.
    pub fn strictly_contains(&self, other: &Cidr) -> bool {
        self.contains(other.address) && self.prefix_len < other.prefix_len
    }

    /// Addresses services may have, as offsets from the base: not the base itself, nor IPv4's broadcast address.
    /// At most 2^64 of an IPv6 range.
    fn usable(&self) -> u64 {
        let all = u64::try_from(self.host_mask()).unwrap_or(u64::MAX);
        if self.is_ipv6() {
            all
        } else {
            all.saturating_sub(1)
        }
    }

    /// Whether a service may have this address.
    pub fn is_usable(&self, address: IpAddr) -> bool {
        let offset = Self::bits(address) & self.host_mask();
        self.contains(address) && offset >= 1 && offset <= u128::from(self.usable())
    }

    /// The first address that is not `used`, beginning somewhere in the range's upper part (`chance` decides where) and
    /// coming to the lower part, which is kept for addresses chosen by people, last. `None` when all are used.
    pub fn next_free(&self, used: impl Fn(IpAddr) -> bool, chance: u64) -> Option<IpAddr> {
        let usable = self.usable();
        if usable == 0 {
            return None;
        }
        let base = Self::bits(self.masked().address);
        let reserved = reserved_for_people(usable);
        let upper = usable - reserved;
        let at = |offset: u64| self.address_at(base + 1 + u128::from(offset));
        let start = if upper == 0 { 0 } else { chance % upper };
        let upper_offsets = (0..upper).map(move |i| reserved + wrapping(start, i, upper));
        upper_offsets.chain(0..reserved).map(at).find(|a| !used(*a))
    }
}

/// `start + i` within `size`, without overflow.
fn wrapping(start: u64, i: u64, size: u64) -> u64 {
    if i >= size - start {
        i - (size - start)
    } else {
        start + i
    }
}

/// A sixteenth of the range, between 16 and 256 addresses; none of a small range (KEP-3070).
fn reserved_for_people(size: u64) -> u64 {
    const FEWEST: u64 = 16;
    const MOST: u64 = 256;
    if size <= FEWEST {
        0
    } else {
        (size / 16).clamp(FEWEST, MOST)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

/// The ports nodes open for services, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePorts {
    pub first: u16,
    pub last: u16,
}

impl Default for NodePorts {
    fn default() -> Self {
        NodePorts {
            first: 30000,
            last: 32767,
        }
    }
}

impl NodePorts {
    pub fn contains(&self, port: i32) -> bool {
        (i32::from(self.first)..=i32::from(self.last)).contains(&port)
    }

    /// As [`Cidr::next_free`].
    pub fn next_free(&self, used: impl Fn(i32) -> bool, chance: u64) -> Option<i32> {
        let size = u64::from(self.last.checked_sub(self.first)?) + 1;
        // A thirty-second, between 16 and 128 ports (KEP-3668).
        let reserved = if size <= 16 { 0 } else { (size / 32).clamp(16, 128) };
        let upper = size - reserved;
        let start = if upper == 0 { 0 } else { chance % upper };
        let offsets = (0..upper).map(|i| reserved + wrapping(start, i, upper));
        offsets
            .chain(0..reserved)
            .map(|offset| i32::from(self.first) + offset as i32)
            .find(|port| !used(*port))
    }
}

/// The ranges of a cluster and what of them is taken.
pub struct Pool<'a> {
    /// One range a family, the default family first.
    pub ranges: &'a [Cidr],
    /// Further ranges (ServiceCIDRs that users made), from which addresses come when the first is full or they are asked for.
    pub further: &'a [Cidr],
    pub node_ports: NodePorts,
    pub ip_is_used: &'a dyn Fn(IpAddr) -> bool,
    /// Port and protocol: the two protocols of one port may belong to one service only.
    pub port_is_used: &'a dyn Fn(i32) -> bool,
    /// Any number; the same one gives the same choices.
    pub chance: u64,
}

/// Fills in a service's IP families, cluster IPs and node ports on create and update, as far as they are missing, and
/// checks those that were asked for. Comes after `prepare_for_update` and before validation.
/// What `service` no longer has of `old`'s is free once the update is committed.
pub fn allocate(service: &mut Service, old: Option<&Service>, pool: &Pool<'_>) -> Errors {
    normalize_cluster_ips(service, old);
    if let Some(old) = old {
        keep_allocated(service, old);
    }
    let mut errors = families(service, old, pool);
    if errors.is_empty() {
        errors = cluster_ips(service, old, pool);
    }
    if errors.is_empty() {
        errors = node_ports(service, old, pool);
    }
    errors
}

fn spec_of(service: &Service) -> ServiceSpec {
    service.spec.clone().unwrap_or_default()
}

/// Brings `clusterIP` and `clusterIPs` together where a client gave only one of them.
fn normalize_cluster_ips(service: &mut Service, old: Option<&Service>) {
    let spec = service.spec.get_or_insert_default();
    let one = text(&spec.cluster_ip).to_string();
    let all = spec.cluster_ips.clone().unwrap_or_default();
    let Some(old) = old.map(spec_of) else {
        if !one.is_empty() && all.is_empty() {
            spec.cluster_ips = Some(vec![one]);
        }
        return;
    };
    let old_one = text(&old.cluster_ip);
    let old_all = old.cluster_ips.clone().unwrap_or_default();
    if one == old_one {
        if all.is_empty() && !old_all.is_empty() {
            spec.cluster_ips = Some(old_all);
        }
    } else if all == old_all {
        // Only the single form was changed, or cleared.
        spec.cluster_ips = (!one.is_empty()).then(|| vec![one]);
    }
}

/// Takes over what the old service was given and the new one does not mention.
fn keep_allocated(service: &mut Service, old: &Service) {
    let needs_ip = needs_cluster_ip(service) && needs_cluster_ip(old);
    let needs_ports = needs_node_port(service) && needs_node_port(old);
    let old = spec_of(old);
    let spec = service.spec.get_or_insert_default();
    if needs_ip {
        if text(&spec.cluster_ip).is_empty() {
            spec.cluster_ip.clone_from(&old.cluster_ip);
        }
        if spec.cluster_ips.as_deref().unwrap_or(&[]).is_empty() {
            spec.cluster_ips.clone_from(&old.cluster_ips);
        }
    }
    if needs_ports {
        let old_ports = old.ports.unwrap_or_default();
        let ports = spec.ports.get_or_insert_default();
        let kept: Vec<i32> = ports
            .iter()
            .filter_map(|p| p.node_port)
            .filter(|p| *p != 0)
            .collect();
        for port in ports.iter_mut().filter(|p| p.node_port.unwrap_or(0) == 0) {
            let before = old_ports.iter().rev().find(|o| text(&o.name) == text(&port.name));
            port.node_port = before.and_then(|o| o.node_port).filter(|p| !kept.contains(p));
        }
    }
    if spec.health_check_node_port.unwrap_or(0) == 0
        && text(&spec.external_traffic_policy) == "Local"
        && text(&spec.type_) == "LoadBalancer"
    {
        spec.health_check_node_port = old.health_check_node_port;
    }
}

fn families(service: &mut Service, old: Option<&Service>, pool: &Pool<'_>) -> Errors {
    let mut errors = Errors::new();
    if !needs_cluster_ip(service) {
        return errors;
    }
    let path = Path::new("spec");
    let headless = is_headless(service);
    let old_spec = old.map(spec_of);
    let spec = service.spec.get_or_insert_default();
    let selectorless = spec.selector.as_ref().is_none_or(|s| s.is_empty());
    if spec.ip_family_policy.is_none() {
        let inherited = old_spec.as_ref().and_then(|o| o.ip_family_policy.clone());
        let inferred = if headless && selectorless {
            "RequireDualStack"
        } else {
            "SingleStack"
        };
        spec.ip_family_policy = Some(inherited.unwrap_or_else(|| inferred.into()));
    }
    let mistakes = super::service::cluster_ip_fields(service, old);
    if !mistakes.is_empty() {
        return mistakes;
    }
    let spec = service.spec.get_or_insert_default();
    let policy = text(&spec.ip_family_policy).to_string();
    let single = policy == "SingleStack";
    let mut ips = spec.cluster_ips.clone().unwrap_or_default();
    let mut wanted = spec.ip_families.clone().unwrap_or_default();
    if let Some(old) = &old_spec {
        let old_ips = old.cluster_ips.clone().unwrap_or_default();
        let old_families = old.ip_families.clone().unwrap_or_default();
        if single {
            if ips == old_ips {
                ips.truncate(1);
            }
            if wanted == old_families {
                wanted.truncate(1);
            }
        } else {
            for (released, what) in [
                (ips.len() == 1 && old_ips.len() == 2, "cluster IP"),
                (wanted.len() == 1 && old_families.len() == 2, "IP family"),
            ] {
                if released {
                    errors.invalid(
                        &path.child("ipFamilyPolicy"),
                        &policy,
                        format!("must be 'SingleStack' to release the secondary {what}"),
                    );
                }
            }
        }
    }
    for (two, what) in [
        (ips.len() == 2, "cluster IPs"),
        (wanted.len() == 2, "IP families"),
    ] {
        if single && two {
            errors.invalid(
                &path.child("ipFamilyPolicy"),
                &policy,
                format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"),
            );
        }
    }
    let configured = |family: &str| pool.ranges.iter().any(|r| r.family() == family);
    for (i, ip) in ips.iter().enumerate().filter(|(_, ip)| *ip != NONE) {
        if i < wanted.len() {
            continue;
        }
        let family = if ip.contains(':') { "IPv6" } else { "IPv4" };
        if configured(family) {
            wanted.push(family.into());
        } else {
            errors.invalid(
                &path.child("clusterIPs").index(i),
                json_list(&ips),
                format!("{family} is not configured on this cluster"),
            );
        }
    }
    if !errors.is_empty() {
        return errors;
    }
    let default = pool.ranges.first().map_or("IPv4", |r| r.family());
    let other = |family: &str| if family == "IPv4" { "IPv6" } else { "IPv4" }.to_string();
    if headless && selectorless {
        // Nobody routes to it, so families the cluster lacks are fine.
        if wanted.is_empty() {
            wanted.push(default.into());
        }
        if wanted.len() < 2 && !single {
            wanted.push(other(&wanted[0]));
        }
    } else {
        if policy == "RequireDualStack" && pool.ranges.len() < 2 {
            errors.invalid(
                &path.child("ipFamilyPolicy"),
                &policy,
                "this cluster is not configured for dual-stack services",
            );
        }
        for (i, family) in wanted.iter().enumerate() {
            if !configured(family) {
                errors.invalid(
                    &path.child("ipFamilies").index(i),
                    family,
                    "not configured on this cluster",
                );
            }
        }
        if wanted.is_empty() {
            wanted.push(default.into());
        }
        if !single && wanted.len() == 1 && pool.ranges.len() == 2 {
            wanted.push(other(&wanted[0]));
        }
    }
    spec.ip_families = Some(wanted);
    spec.cluster_ips = (!ips.is_empty()).then_some(ips);
    errors
}

fn cluster_ips(service: &mut Service, old: Option<&Service>, pool: &Pool<'_>) -> Errors {
    let mut errors = Errors::new();
    if !needs_cluster_ip(service) || is_headless(service) {
        return errors;
    }
    let path = Path::new("spec").child("clusterIPs");
    let held = old.map(spec_of).and_then(|o| o.cluster_ips).unwrap_or_default();
    let spec = service.spec.get_or_insert_default();
    let asked = spec.cluster_ips.clone().unwrap_or_default();
    let mut given = Vec::new();
    for (i, family) in spec.ip_families.iter().flatten().enumerate() {
        let Some(range) = pool.ranges.iter().find(|r| r.family() == family) else {
            continue;
        };
        let all = || {
            let further = pool.further.iter().filter(|r| r.family() == family);
            [range].into_iter().chain(further)
        };
        match asked.get(i) {
            Some(ip) if held.contains(ip) => given.push(ip.clone()),
            // An address that is there is not replaced; validation rejects the change.
            Some(ip) if i < held.len() => given.push(ip.clone()),
            Some(ip) => {
                let why = match ip.parse::<IpAddr>() {
                    Err(_) => Some("provided IP is not valid".to_string()),
                    Ok(a) if !all().any(|r| r.is_usable(a)) => {
                        Some("the provided network does not match the current range".to_string())
                    }
                    Ok(a) if (pool.ip_is_used)(a) => Some("provided IP is already allocated".to_string()),
                    Ok(_) => None,
                };
                match why {
                    None => given.push(ip.clone()),
                    Some(why) => {
                        errors.invalid(
                            &path,
                            json_list(&asked),
                            format!("failed to allocate IP {ip}: {why}"),
                        );
                    }
                }
            }
            None => match all().find_map(|r| r.next_free(pool.ip_is_used, pool.chance)) {
                Some(free) => given.push(free.to_string()),
                None => errors.invalid(
                    &path,
                    json_list(&asked),
                    "failed to allocate a serviceIP: range is full",
                ),
            },
        }
    }
    if errors.is_empty() {
        spec.cluster_ip = given.first().cloned();
        spec.cluster_ips = Some(given);
    }
    errors
}

fn node_ports(service: &mut Service, old: Option<&Service>, pool: &Pool<'_>) -> Errors {
    let mut errors = Errors::new();
    if !needs_node_port(service) {
        return errors;
    }
    let path = Path::new("spec").child("ports");
    let held: Vec<i32> = old
        .map(spec_of)
        .and_then(|o| o.ports)
        .iter()
        .flatten()
        .filter_map(|p| p.node_port)
        .collect();
    let spec = service.spec.get_or_insert_default();
    let wants_all = text(&spec.type_) == "NodePort" || spec.allocate_load_balancer_node_ports.unwrap_or(true);
    // What this service has taken so far: port and protocol.
    let mut taken: Vec<(i32, String)> = Vec::new();
    for (i, port) in spec.ports.iter().flatten().enumerate() {
        let Some(number) = port.node_port.filter(|p| *p != 0) else {
            continue;
        };
        let at = path.index(i).child("nodePort");
        let ours = held.contains(&number) || taken.iter().any(|(n, _)| *n == number);
        if !ours && !pool.node_ports.contains(number) {
            errors.invalid(
                &at,
                number,
                format!(
                    "provided port is not in the valid range. The range of valid ports is {}-{}",
                    pool.node_ports.first, pool.node_ports.last
                ),
            );
        } else if !ours && (pool.port_is_used)(number) {
            errors.invalid(&at, number, "provided port is already allocated");
        }
        taken.push((number, text(&port.protocol).into()));
    }
    if !errors.is_empty() {
        return errors;
    }
    let ports = spec.ports.get_or_insert_default();
    let allocated = if wants_all { ports.len() } else { 0 };
    for i in 0..allocated {
        if ports[i].node_port.unwrap_or(0) != 0 {
            continue;
        }
        let protocol = text(&ports[i].protocol).to_string();
        // One number can serve the same port under another protocol (DNS over TCP and UDP).
        let shared = ports[..i]
            .iter()
            .filter(|p| p.port == ports[i].port)
            .filter_map(|p| p.node_port)
            .find(|n| *n != 0 && !taken.contains(&(*n, protocol.clone())));
        let free = shared.or_else(|| {
            let used = |n| (pool.port_is_used)(n) || taken.iter().any(|(t, _)| *t == n);
            pool.node_ports
                .next_free(used, pool.chance.wrapping_add(i as u64))
        });
        match free {
            Some(number) => {
                ports[i].node_port = Some(number);
                taken.push((number, protocol));
            }
            None => errors.internal(
                &path.index(i).child("nodePort"),
                "failed to allocate a nodePort: range is full",
            ),
        }
    }
    if errors.is_empty()
        && text(&spec.external_traffic_policy) == "Local"
        && text(&spec.type_) == "LoadBalancer"
    {
        match spec.health_check_node_port.filter(|p| *p != 0) {
            Some(port) if !held_check(old, port) && (pool.port_is_used)(port) => errors.internal(
                &Path::new("spec").child("healthCheckNodePort"),
                format!("failed to allocate requested HealthCheck NodePort {port}: provided port is already allocated"),
            ),
            Some(_) => {}
            None => {
                let used = |n| (pool.port_is_used)(n) || taken.iter().any(|(t, _)| *t == n);
                spec.health_check_node_port =
                    pool.node_ports.next_free(used, pool.chance.wrapping_add(taken.len() as u64));
                if spec.health_check_node_port.is_none() {
                    errors.internal(
                        &Path::new("spec").child("healthCheckNodePort"),
                        "failed to allocate a HealthCheck NodePort: range is full",
                    );
                }
            }
        }
    }
    errors
}

fn held_check(old: Option<&Service>, port: i32) -> bool {
    old.and_then(|o| o.spec.as_ref()?.health_check_node_port) == Some(port)
}

/// The addresses and ports a service holds: what its deletion frees.
pub fn held(service: &Service) -> (Vec<IpAddr>, Vec<i32>) {
    let spec = spec_of(service);
    let ips = spec.cluster_ips.iter().flatten().filter_map(|ip| ip.parse().ok());
    let ports = spec.ports.iter().flatten().filter_map(|p| p.node_port);
    let check = spec.health_check_node_port;
    (
        ips.collect(),
        ports.chain(check).filter(|port| *port != 0).collect(),
    )
}

/// A list of strings as Kubernetes shows it.
pub(super) fn shown(values: &Option<Vec<String>>) -> Json {
    json_list(values.as_deref().unwrap_or(&[]))
}

#[cfg(test)]
mod tests;
