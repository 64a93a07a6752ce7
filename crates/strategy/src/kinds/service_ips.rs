//! Allocation of cluster IPs and node ports to services: ranges, free addresses, and the defaults of the fields
//! around `clusterIP`. Pure: the allocated addresses and the random number that spreads the choices are passed in.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use knarr_apimachinery::cidr::{Cidr, bits};
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{json_list, text};
use super::service::{NONE, is_headless, needs_cluster_ip, needs_node_port};

/// The number of addresses of a range that can be allocated to services: without the base address and IPv4's broadcast address.
/// At most 2^64 of an IPv6 range.
fn usable(range: &Cidr) -> u64 {
    let all = u64::try_from(range.host_mask()).unwrap_or(u64::MAX);
    if range.is_ipv6() {
        all
    } else {
        all.saturating_sub(1)
    }
}

/// Whether this address of the range can be allocated to a service.
pub fn is_usable(range: &Cidr, address: IpAddr) -> bool {
    let offset = bits(address) & range.host_mask();
    range.contains(address) && offset >= 1 && offset <= u128::from(usable(range))
}

/// The first address of the range that is not `used`. The search starts at an offset in the upper band that `random` determines; the
/// lower band, which is preferred for statically chosen addresses (KEP-3070), comes last. `None` if all are used.
pub fn next_free(range: &Cidr, used: impl Fn(IpAddr) -> bool, random: u64) -> Option<IpAddr> {
    let usable = usable(range);
    if usable == 0 {
        return None;
    }
    let base = range.base();
    let reserved = static_band_size(usable);
    let upper = usable - reserved;
    let at = |offset: u64| range.address_at(base + 1 + u128::from(offset));
    let start = if upper == 0 { 0 } else { random % upper };
    let upper_offsets = (0..upper).map(move |i| reserved + wrapping(start, i, upper));
    upper_offsets.chain(0..reserved).map(at).find(|a| !used(*a))
}

/// `start + i` within `size`, without overflow.
fn wrapping(start: u64, i: u64, size: u64) -> u64 {
    if i >= size - start {
        i - (size - start)
    } else {
        start + i
    }
}

/// The size of the lower band for statically chosen addresses: a sixteenth of the range, between 16 and 256 addresses;
/// 0 for a small range (KEP-3070).
fn static_band_size(size: u64) -> u64 {
    const MIN: u64 = 16;
    const MAX: u64 = 256;
    if size <= MIN {
        0
    } else {
        (size / 16).clamp(MIN, MAX)
    }
}

/// The range of node ports, both ends included.
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

    /// The first port that is not `used`, as in [`next_free`].
    pub fn next_free(&self, used: impl Fn(i32) -> bool, random: u64) -> Option<i32> {
        let size = u64::from(self.last.checked_sub(self.first)?) + 1;
        // The static band: a thirty-second of the range, between 16 and 128 ports (KEP-3668).
        let reserved = if size <= 16 { 0 } else { (size / 32).clamp(16, 128) };
        let upper = size - reserved;
        let start = if upper == 0 { 0 } else { random % upper };
        let offsets = (0..upper).map(|i| reserved + wrapping(start, i, upper));
        offsets
            .chain(0..reserved)
            .map(|offset| i32::from(self.first) + offset as i32)
            .find(|port| !used(*port))
    }
}

/// The ranges of a cluster and their allocated addresses and ports.
pub struct Allocators<'a> {
    /// One range for each IP family, the default family first.
    pub ranges: &'a [Cidr],
    /// Ranges of the ServiceCIDRs that users created: used if the first range is full or if the requested address is in one
    /// of them.
    pub additional_ranges: &'a [Cidr],
    pub node_ports: NodePorts,
    pub ip_is_used: &'a dyn Fn(IpAddr) -> bool,
    /// Whether a port is allocated, with any protocol: one node port belongs to one service.
    pub port_is_used: &'a dyn Fn(i32) -> bool,
    /// A random number; the same number leads to the same choices.
    pub random: u64,
}

/// Allocates the IP families, cluster IPs and node ports that a service lacks, on create and update, and checks those that were
/// requested. Called after `prepare_for_update` and before validation.
/// What `old` has and `service` no longer has is free once the update is committed.
pub fn allocate(service: &mut Service, old: Option<&Service>, allocators: &Allocators<'_>) -> ErrorList {
    normalize_cluster_ips(service, old);
    if let Some(old) = old {
        patch_allocated_values(service, old);
    }
    let mut errors = families(service, old, allocators);
    if errors.is_empty() {
        errors = cluster_ips(service, old, allocators);
    }
    if errors.is_empty() {
        errors = node_ports(service, old, allocators);
    }
    errors
}

fn spec_of(service: &Service) -> ServiceSpec {
    service.spec.clone().unwrap_or_default()
}

/// Synchronizes `clusterIP` and `clusterIPs` if the client set only one of them (`NormalizeClusterIPs`).
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
        // Only `clusterIP` was changed or cleared.
        spec.cluster_ips = (!one.is_empty()).then(|| vec![one]);
    }
}

/// Copies the allocated values of the old service that the new one does not set (`patchAllocatedValues`).
fn patch_allocated_values(service: &mut Service, old: &Service) {
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
        let requested: Vec<i32> = ports
            .iter()
            .filter_map(|p| p.node_port)
            .filter(|p| *p != 0)
            .collect();
        for port in ports.iter_mut().filter(|p| p.node_port.unwrap_or(0) == 0) {
            let before = old_ports.iter().rev().find(|o| text(&o.name) == text(&port.name));
            port.node_port = before
                .and_then(|o| o.node_port)
                .filter(|p| !requested.contains(p));
        }
    }
    if spec.health_check_node_port.unwrap_or(0) == 0
        && text(&spec.external_traffic_policy) == "Local"
        && text(&spec.type_) == "LoadBalancer"
    {
        spec.health_check_node_port = old.health_check_node_port;
    }
}

fn families(service: &mut Service, old: Option<&Service>, allocators: &Allocators<'_>) -> ErrorList {
    let mut errors = ErrorList::new();
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
    let errs = super::service::cluster_ip_fields(service, old);
    if !errs.is_empty() {
        return errs;
    }
    let spec = service.spec.get_or_insert_default();
    let policy = text(&spec.ip_family_policy).to_string();
    let single = policy == "SingleStack";
    let mut ips = spec.cluster_ips.clone().unwrap_or_default();
    let mut requested = spec.ip_families.clone().unwrap_or_default();
    if let Some(old) = &old_spec {
        let old_ips = old.cluster_ips.clone().unwrap_or_default();
        let old_families = old.ip_families.clone().unwrap_or_default();
        if single {
            if ips == old_ips {
                ips.truncate(1);
            }
            if requested == old_families {
                requested.truncate(1);
            }
        } else {
            for (released, what) in [
                (ips.len() == 1 && old_ips.len() == 2, "cluster IP"),
                (requested.len() == 1 && old_families.len() == 2, "IP family"),
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
        (requested.len() == 2, "IP families"),
    ] {
        if single && two {
            errors.invalid(
                &path.child("ipFamilyPolicy"),
                &policy,
                format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"),
            );
        }
    }
    let configured = |family: &str| allocators.ranges.iter().any(|r| r.family() == family);
    for (i, ip) in ips.iter().enumerate().filter(|(_, ip)| *ip != NONE) {
        if i < requested.len() {
            continue;
        }
        let family = if ip.contains(':') { "IPv6" } else { "IPv4" };
        if configured(family) {
            requested.push(family.into());
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
    let default = allocators.ranges.first().map_or("IPv4", |r| r.family());
    let other = |family: &str| if family == "IPv4" { "IPv6" } else { "IPv4" }.to_string();
    if headless && selectorless {
        // No cluster IP is allocated, so families that the cluster does not have are accepted.
        if requested.is_empty() {
            requested.push(default.into());
        }
        if requested.len() < 2 && !single {
            requested.push(other(&requested[0]));
        }
    } else {
        if policy == "RequireDualStack" && allocators.ranges.len() < 2 {
            errors.invalid(
                &path.child("ipFamilyPolicy"),
                &policy,
                "this cluster is not configured for dual-stack services",
            );
        }
        for (i, family) in requested.iter().enumerate() {
            if !configured(family) {
                errors.invalid(
                    &path.child("ipFamilies").index(i),
                    family,
                    "not configured on this cluster",
                );
            }
        }
        if requested.is_empty() {
            requested.push(default.into());
        }
        if !single && requested.len() == 1 && allocators.ranges.len() == 2 {
            requested.push(other(&requested[0]));
        }
    }
    spec.ip_families = Some(requested);
    spec.cluster_ips = (!ips.is_empty()).then_some(ips);
    errors
}

fn cluster_ips(service: &mut Service, old: Option<&Service>, allocators: &Allocators<'_>) -> ErrorList {
    let mut errors = ErrorList::new();
    if !needs_cluster_ip(service) || is_headless(service) {
        return errors;
    }
    let path = Path::new("spec").child("clusterIPs");
    let old_ips = old.map(spec_of).and_then(|o| o.cluster_ips).unwrap_or_default();
    let spec = service.spec.get_or_insert_default();
    let requested = spec.cluster_ips.clone().unwrap_or_default();
    let mut allocated_ips = Vec::new();
    for (i, family) in spec.ip_families.iter().flatten().enumerate() {
        let Some(range) = allocators.ranges.iter().find(|r| r.family() == family) else {
            continue;
        };
        let all = || {
            let additional_ranges = allocators
                .additional_ranges
                .iter()
                .filter(|r| r.family() == family);
            [range].into_iter().chain(additional_ranges)
        };
        match requested.get(i) {
            Some(ip) if old_ips.contains(ip) => allocated_ips.push(ip.clone()),
            // An allocated address is not replaced; validation rejects the change.
            Some(ip) if i < old_ips.len() => allocated_ips.push(ip.clone()),
            Some(ip) => {
                let unavailable = match ip.parse::<IpAddr>() {
                    Err(_) => Some("provided IP is not valid".to_string()),
                    Ok(a) if !all().any(|r| is_usable(r, a)) => {
                        Some("the provided network does not match the current range".to_string())
                    }
                    Ok(a) if (allocators.ip_is_used)(a) => {
                        Some("provided IP is already allocated".to_string())
                    }
                    Ok(_) => None,
                };
                match unavailable {
                    None => allocated_ips.push(ip.clone()),
                    Some(detail) => {
                        errors.invalid(
                            &path,
                            json_list(&requested),
                            format!("failed to allocate IP {ip}: {detail}"),
                        );
                    }
                }
            }
            None => match all().find_map(|r| next_free(r, allocators.ip_is_used, allocators.random)) {
                Some(free) => allocated_ips.push(free.to_string()),
                None => errors.invalid(
                    &path,
                    json_list(&requested),
                    "failed to allocate a serviceIP: range is full",
                ),
            },
        }
    }
    if errors.is_empty() {
        spec.cluster_ip = allocated_ips.first().cloned();
        spec.cluster_ips = Some(allocated_ips);
    }
    errors
}

fn node_ports(service: &mut Service, old: Option<&Service>, allocators: &Allocators<'_>) -> ErrorList {
    let mut errors = ErrorList::new();
    if !needs_node_port(service) {
        return errors;
    }
    let path = Path::new("spec").child("ports");
    let old_ports: Vec<i32> = old
        .map(spec_of)
        .and_then(|o| o.ports)
        .iter()
        .flatten()
        .filter_map(|p| p.node_port)
        .collect();
    let spec = service.spec.get_or_insert_default();
    let allocates_all =
        text(&spec.type_) == "NodePort" || spec.allocate_load_balancer_node_ports.unwrap_or(true);
    // Node ports of this service so far, with their protocols.
    let mut taken: Vec<(i32, String)> = Vec::new();
    for (i, port) in spec.ports.iter().flatten().enumerate() {
        let Some(number) = port.node_port.filter(|p| *p != 0) else {
            continue;
        };
        let at = path.index(i).child("nodePort");
        let is_own = old_ports.contains(&number) || taken.iter().any(|(n, _)| *n == number);
        if !is_own && !allocators.node_ports.contains(number) {
            errors.invalid(
                &at,
                number,
                format!(
                    "provided port is not in the valid range. The range of valid ports is {}-{}",
                    allocators.node_ports.first, allocators.node_ports.last
                ),
            );
        } else if !is_own && (allocators.port_is_used)(number) {
            errors.invalid(&at, number, "provided port is already allocated");
        }
        taken.push((number, text(&port.protocol).into()));
    }
    if !errors.is_empty() {
        return errors;
    }
    let ports = spec.ports.get_or_insert_default();
    let allocated = if allocates_all { ports.len() } else { 0 };
    for i in 0..allocated {
        if ports[i].node_port.unwrap_or(0) != 0 {
            continue;
        }
        let protocol = text(&ports[i].protocol).to_string();
        // Two protocols of the same port can share one node port (DNS over TCP and UDP).
        let shared = ports[..i]
            .iter()
            .filter(|p| p.port == ports[i].port)
            .filter_map(|p| p.node_port)
            .find(|n| *n != 0 && !taken.contains(&(*n, protocol.clone())));
        let free = shared.or_else(|| {
            let used = |n| (allocators.port_is_used)(n) || taken.iter().any(|(t, _)| *t == n);
            allocators
                .node_ports
                .next_free(used, allocators.random.wrapping_add(i as u64))
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
            Some(port) if !holds_health_check_port(old, port) && (allocators.port_is_used)(port) => errors.internal(
                &Path::new("spec").child("healthCheckNodePort"),
                format!("failed to allocate requested HealthCheck NodePort {port}: provided port is already allocated"),
            ),
            Some(_) => {}
            None => {
                let used = |n| (allocators.port_is_used)(n) || taken.iter().any(|(t, _)| *t == n);
                spec.health_check_node_port =
                    allocators.node_ports.next_free(used, allocators.random.wrapping_add(taken.len() as u64));
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

fn holds_health_check_port(old: Option<&Service>, port: i32) -> bool {
    old.and_then(|o| o.spec.as_ref()?.health_check_node_port) == Some(port)
}

#[cfg(test)]
mod tests;
