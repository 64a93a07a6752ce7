//! Service addresses: cluster IPs out of the service range and node ports out of theirs.
//!
//! What is taken is what the cached Services hold, plus what requests on their way have reserved.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use knarr_api::field::{Errors, Path};
use knarr_api::strategy::Part;
use knarr_api::{AnyObject, Error, Kind, Object, k8s_openapi, registry};
use parking_lot::Mutex;

use crate::cache::Cache;
use crate::cache::change::Filter;
use crate::seams::Entropy;

/// Kubernetes' default `--service-node-port-range`.
const NODE_PORTS: std::ops::RangeInclusive<i32> = 30000..=32767;
/// Random tries before the range is searched from its beginning.
const RANDOM_TRIES: usize = 16;

/// An IPv4 range that services get addresses from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceRange {
    base: u32,
    bits: u32,
}

impl ServiceRange {
    /// From `10.96.0.0/12`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no IPv4 range such as \"10.96.0.0/12\" (prefix 12 to 28)");
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let address: Ipv4Addr = address.parse().map_err(|_| wrong())?;
        let prefix: u32 = prefix.parse().map_err(|_| wrong())?;
        if !(12..=28).contains(&prefix) {
            return Err(wrong());
        }
        let bits = 32 - prefix;
        Ok(ServiceRange {
            base: u32::from(address) >> bits << bits,
            bits,
        })
    }

    fn size(&self) -> u32 {
        1 << self.bits
    }

    /// The address of the `kubernetes` Service.
    pub fn first(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.base + 1)
    }

    fn contains(&self, address: Ipv4Addr) -> bool {
        u32::from(address) >> self.bits == self.base >> self.bits
    }
}

impl std::fmt::Display for ServiceRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.base), 32 - self.bits)
    }
}

/// See the module.
pub struct Allocations {
    range: ServiceRange,
    entropy: Arc<dyn Entropy>,
    on_their_way: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    addresses: HashSet<Ipv4Addr>,
    ports: HashSet<(i32, String)>,
}

/// What a request holds until its write is in the cache.
#[derive(Default)]
pub struct Reserved {
    addresses: Vec<Ipv4Addr>,
    ports: Vec<(i32, String)>,
    of: Option<Arc<Mutex<Taken>>>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(of) = &self.of {
            let mut taken = of.lock();
            self.addresses.iter().for_each(|a| {
                taken.addresses.remove(a);
            });
            self.ports.iter().for_each(|p| {
                taken.ports.remove(p);
            });
        }
    }
}

impl Allocations {
    pub fn new(range: ServiceRange, entropy: Arc<dyn Entropy>) -> Self {
        Allocations {
            range,
            entropy,
            on_their_way: Arc::default(),
        }
    }

    pub(crate) fn range(&self) -> ServiceRange {
        self.range
    }

    pub(crate) fn for_create(&self, kind: &Kind, object: &mut dyn AnyObject, cache: &Cache) -> Result<Reserved, Error> {
        match object.as_any_mut().downcast_mut::<Service>() {
            Some(service) if *kind == registry::SERVICE => self.allocate(service, "", cache),
            _ => Ok(Reserved::default()),
        }
    }

    pub(crate) fn for_update(
        &self,
        kind: &Kind,
        old: &Object,
        new: &mut dyn AnyObject,
        part: Part,
        cache: &Cache,
    ) -> Result<Reserved, Error> {
        if *kind != registry::SERVICE || part != Part::Main {
            return Ok(Reserved::default());
        }
        match (old.get::<Service>(), new.as_any_mut().downcast_mut::<Service>()) {
            (Some(old_service), Some(service)) => {
                keep(old_service, service);
                self.allocate(service, old.uid(), cache)
            }
            _ => Err(Error::internal("a Service that is none")),
        }
    }

    /// Gives the service what it needs and does not have. `own` is its uid, whose addresses are its to keep.
    fn allocate(&self, service: &mut Service, own: &str, cache: &Cache) -> Result<Reserved, Error> {
        let name = service.metadata.name.clone().unwrap_or_default();
        let Some(spec) = &mut service.spec else {
            return Ok(Reserved::default());
        };
        let mut mistakes = Errors::new();
        let mut on_their_way = self.on_their_way.lock();
        let taken = self.taken(own, cache, &on_their_way)?;
        let mut reserved = Reserved {
            of: Some(self.on_their_way.clone()),
            ..Reserved::default()
        };
        let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
        if kind != "ExternalName" {
            self.address(spec, &taken, &mut reserved, &mut mistakes);
        }
        let wants_ports = kind == "NodePort"
            || (kind == "LoadBalancer" && spec.allocate_load_balancer_node_ports != Some(false));
        if wants_ports {
            self.node_ports(spec, &taken, &mut reserved, &mut mistakes);
        }
        if !mistakes.is_empty() {
            // Nothing was entered yet; the drop that follows finds nothing to give back.
            reserved.of = None;
            return Err(Error::invalid(registry::SERVICE.about_kind(&name), &mistakes));
        }
        on_their_way.addresses.extend(&reserved.addresses);
        on_their_way.ports.extend(reserved.ports.iter().cloned());
        Ok(reserved)
    }

    fn taken(&self, own: &str, cache: &Cache, on_their_way: &Taken) -> Result<Taken, Error> {
        let mut taken = Taken {
            addresses: on_their_way.addresses.clone(),
            ports: on_their_way.ports.clone(),
        };
        taken.addresses.insert(Ipv4Addr::from(self.range.base));
        taken.addresses.insert(Ipv4Addr::from(self.range.base + self.range.size() - 1));
        for object in cache.of(&registry::SERVICE)?.list(&Filter::everything(&registry::SERVICE, "")) {
            let Some(spec) = object.get::<Service>().and_then(|s| s.spec.as_ref()).filter(|_| object.uid() != own) else {
                continue;
            };
            taken.addresses.extend(spec.cluster_ip.as_deref().and_then(|ip| ip.parse::<Ipv4Addr>().ok()));
            let ports = spec.ports.iter().flatten();
            taken
                .ports
                .extend(ports.filter_map(|p| p.node_port.filter(|n| *n != 0).map(|n| (n, protocol(p)))));
            taken
                .ports
                .extend(spec.health_check_node_port.filter(|p| *p != 0).map(|p| (p, "TCP".to_string())));
        }
        Ok(taken)
    }

    fn address(&self, spec: &mut ServiceSpec, taken: &Taken, reserved: &mut Reserved, mistakes: &mut Errors) {
        let path = Path::new("spec").child("clusterIPs");
        match spec.cluster_ip.as_deref().unwrap_or("") {
            "None" => {
                spec.cluster_ips = Some(vec!["None".into()]);
                return;
            }
            "" => {
                // No address: the first of clusterIPs counts, if given.
                if let Some(first) = spec.cluster_ips.as_ref().and_then(|ips| ips.first()).filter(|ip| !ip.is_empty()) {
                    spec.cluster_ip = Some(first.clone());
                    return self.address(spec, taken, reserved, mistakes);
                }
                let size = u64::from(self.range.size());
                let free = |n: u64| {
                    let address = Ipv4Addr::from(self.range.base + u32::try_from(n % size).unwrap_or(0));
                    (!taken.addresses.contains(&address)).then_some(address)
                };
                let found = (0..RANDOM_TRIES)
                    .find_map(|_| free(self.random()))
                    .or_else(|| (1..size).find_map(free));
                match found {
                    Some(address) => {
                        reserved.addresses.push(address);
                        spec.cluster_ip = Some(address.to_string());
                        spec.cluster_ips = Some(vec![address.to_string()]);
                    }
                    None => mistakes.internal(&path, "failed to allocate a serviceIP: range is full"),
                }
            }
            given => {
                let Ok(address) = given.parse::<Ipv4Addr>() else {
                    return; // validation says what is wrong with it
                };
                if !self.range.contains(address) {
                    mistakes.invalid(
                        &path,
                        serde_json::json!([given]),
                        format!(
                            "failed to allocate IP {given}: the provided network does not match the current range; \
the provided IP ({given}) is not in the valid range. The range of valid IPs is {}",
                            self.range
                        ),
                    );
                } else if taken.addresses.contains(&address) {
                    mistakes.invalid(
                        &path,
                        serde_json::json!([given]),
                        format!("failed to allocate IP {given}: provided IP is already allocated"),
                    );
                } else {
                    reserved.addresses.push(address);
                    if spec.cluster_ips.as_ref().is_none_or(Vec::is_empty) {
                        spec.cluster_ips = Some(vec![given.to_string()]);
                    }
                }
            }
        }
        if spec.ip_families.as_ref().is_none_or(Vec::is_empty) {
            spec.ip_families = Some(vec!["IPv4".into()]);
        }
        if spec.ip_family_policy.is_none() {
            spec.ip_family_policy = Some("SingleStack".into());
        }
    }

    fn node_ports(&self, spec: &mut ServiceSpec, taken: &Taken, reserved: &mut Reserved, mistakes: &mut Errors) {
        let path = Path::new("spec").child("ports");
        for (i, port) in spec.ports.iter_mut().flatten().enumerate() {
            let protocol = protocol(port);
            let is_free = |n: i32, reserved: &Reserved| {
                let at = (n, protocol.clone());
                !taken.ports.contains(&at) && !reserved.ports.contains(&at)
            };
            match port.node_port.unwrap_or(0) {
                0 => {
                    let size = u64::try_from(NODE_PORTS.count()).unwrap_or(1);
                    let found = (0..RANDOM_TRIES)
                        .map(|_| NODE_PORTS.start() + i32::try_from(self.random() % size).unwrap_or(0))
                        .chain(NODE_PORTS)
                        .find(|n| is_free(*n, reserved));
                    match found {
                        Some(n) => {
                            port.node_port = Some(n);
                            reserved.ports.push((n, protocol));
                        }
                        None => mistakes.internal(&path.index(i).child("nodePort"), "failed to allocate a nodePort: range is full"),
                    }
                }
                given if !NODE_PORTS.contains(&given) => mistakes.invalid(
                    &path.index(i).child("nodePort"),
                    given,
                    format!(
                        "provided port is not in the valid range. The range of valid ports is {}-{}",
                        NODE_PORTS.start(),
                        NODE_PORTS.end()
                    ),
                ),
                given if !is_free(given, reserved) => {
                    mistakes.invalid(&path.index(i).child("nodePort"), given, "provided port is already allocated");
                }
                given => reserved.ports.push((given, protocol)),
            }
        }
    }

    fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        self.entropy.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

fn protocol(port: &ServicePort) -> String {
    port.protocol.clone().unwrap_or_else(|| "TCP".into())
}

fn has_address(spec: &ServiceSpec) -> bool {
    spec.type_.as_deref() != Some("ExternalName")
}

fn has_ports(spec: &ServiceSpec) -> bool {
    matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer"))
}

/// What a PUT left out of what was allocated stays allocated.
fn keep(old: &Service, new: &mut Service) {
    let (Some(old), Some(new)) = (&old.spec, &mut new.spec) else {
        return;
    };
    if has_address(old) && has_address(new) {
        if new.cluster_ip.as_deref().unwrap_or("").is_empty() {
            new.cluster_ip.clone_from(&old.cluster_ip);
        }
        if new.cluster_ips.as_ref().is_none_or(Vec::is_empty) && new.cluster_ip == old.cluster_ip {
            new.cluster_ips.clone_from(&old.cluster_ips);
        }
        if new.ip_families.as_ref().is_none_or(Vec::is_empty) {
            new.ip_families.clone_from(&old.ip_families);
        }
        if new.ip_family_policy.is_none() {
            new.ip_family_policy.clone_from(&old.ip_family_policy);
        }
    }
    if has_ports(old) && has_ports(new) {
        for port in new.ports.iter_mut().flatten().filter(|p| p.node_port.unwrap_or(0) == 0) {
            let same = |o: &&ServicePort| o.port == port.port && protocol(o) == protocol(port);
            port.node_port = old.ports.iter().flatten().find(same).and_then(|o| o.node_port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_begin_with_their_first_address() {
        let range = ServiceRange::parse("10.97.3.0/16").unwrap();
        assert_eq!((range.to_string().as_str(), range.first().to_string().as_str()), ("10.97.0.0/16", "10.97.0.1"));
        assert!(range.contains(Ipv4Addr::new(10, 97, 255, 255)) && !range.contains(Ipv4Addr::new(10, 98, 0, 0)));
        for wrong in ["10.0.0.0", "10.0.0.0/33", "fd00::/108", "10.0.0.0/8"] {
            assert!(ServiceRange::parse(wrong).is_err(), "{wrong}");
        }
    }
}
