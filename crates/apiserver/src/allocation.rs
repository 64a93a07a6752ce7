//! Allocates cluster IPs and node ports to Services, by the rules of `knarr_strategy::kinds::service_ips`.
//!
//! Taken are the values of the cached Services, those that requests in flight have reserved, and IPAddresses that
//! something other than a Service owns.

mod allocated;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use knarr_api::kinds::service_ips::{IP_ADDRESS_MANAGER, LABEL_MANAGED_BY, allocated_to};
use knarr_api::{AnyObject, Kind, Object, k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::cidr::Cidr;
use knarr_strategy::Part;
use knarr_strategy::kinds::service_ips::{Allocators, NodePorts, allocate, next_free};
use parking_lot::Mutex;

use self::allocated::AllocatedValues;
use crate::cache::Cache;
use crate::cache::change::Filter;
use crate::seams::Entropy;

/// The ranges that Services get addresses from: one, or one of each family (dual stack), the primary first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceRange {
    primary: Cidr,
    secondary: Option<Cidr>,
}

/// Why a text does not name the ranges of Services.
#[derive(Debug, thiserror::Error)]
pub enum ServiceRangeError {
    #[error("{0:?} is not a CIDR with room for cluster IPs, such as \"10.96.0.0/12\"")]
    Cidr(String),
    #[error("{0:?}: expected one CIDR, or one of each IP family")]
    Families(String),
}

impl ServiceRange {
    /// From `10.96.0.0/12`, or `10.96.0.0/12,fd00:96::/108`.
    pub fn parse(text: &str) -> Result<Self, ServiceRangeError> {
        let mut ranges = Vec::new();
        for part in text.split(',') {
            let range = Cidr::parse(part).filter(|r| next_free(r, |_| false, 0).is_some());
            let range = range.ok_or_else(|| ServiceRangeError::Cidr(part.into()))?;
            ranges.push(range.masked());
        }
        match ranges.as_slice() {
            [primary] => Ok(ServiceRange {
                primary: *primary,
                secondary: None,
            }),
            [primary, secondary] if primary.is_ipv6() != secondary.is_ipv6() => Ok(ServiceRange {
                primary: *primary,
                secondary: Some(*secondary),
            }),
            _ => Err(ServiceRangeError::Families(text.into())),
        }
    }

    /// The primary range, then that of the other family.
    pub fn ranges(&self) -> Vec<Cidr> {
        [self.primary].into_iter().chain(self.secondary).collect()
    }

    /// The address of the `kubernetes` Service.
    pub fn first(&self) -> IpAddr {
        let text = self.primary.to_string();
        let base = text.split('/').next().and_then(|a| a.parse().ok());
        match base {
            Some(IpAddr::V4(a)) => IpAddr::V4((u32::from(a) + 1).into()),
            Some(IpAddr::V6(a)) => IpAddr::V6((u128::from(a) + 1).into()),
            None => unreachable!("a range begins with its address"),
        }
    }
}

impl std::fmt::Display for ServiceRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.primary.fmt(f)?;
        match self.secondary {
            None => Ok(()),
            Some(secondary) => write!(f, ",{secondary}"),
        }
    }
}

/// Allocates cluster IPs and node ports. See the module.
pub struct Allocations {
    range: ServiceRange,
    entropy: Arc<dyn Entropy>,
    allocated: Mutex<AllocatedValues>,
    reserved: Arc<Mutex<ReservedValues>>,
}

#[derive(Default)]
struct ReservedValues {
    addresses: HashSet<IpAddr>,
    ports: HashSet<i32>,
}

impl ReservedValues {
    fn add(&mut self, service: &Service) {
        let (addresses, ports) = allocated_to(service);
        self.addresses.extend(addresses);
        self.ports.extend(ports);
    }
}

/// What a request has reserved until its write is in the cache.
#[derive(Default)]
pub struct Reserved(Option<(Service, Arc<Mutex<ReservedValues>>)>);

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some((service, reserved)) = &self.0 {
            let mut taken = reserved.lock();
            let (addresses, ports) = allocated_to(service);
            for address in &addresses {
                taken.addresses.remove(address);
            }
            for port in &ports {
                taken.ports.remove(port);
            }
        }
    }
}

impl Allocations {
    pub fn new(range: ServiceRange, entropy: Arc<dyn Entropy>) -> Self {
        Allocations {
            range,
            entropy,
            allocated: Mutex::default(),
            reserved: Arc::default(),
        }
    }

    pub(crate) fn for_create(
        &self,
        kind: &Kind,
        object: &mut dyn AnyObject,
        cache: &Cache,
    ) -> Result<Reserved, Error> {
        match object.as_any_mut().downcast_mut::<Service>() {
            Some(service) if *kind == registry::SERVICE => self.allocate(service, None, cache),
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
            (Some(old), Some(service)) => self.allocate(service, Some(old), cache),
            _ => Err(Error::internal("a Service could not be decoded")),
        }
    }

    /// Forgets the values of Services that were deleted before: otherwise they were kept until the next allocation.
    pub(crate) fn for_delete(&self, kind: &Kind, cache: &Cache) -> Result<Reserved, Error> {
        if *kind == registry::SERVICE {
            self.allocated.lock().catch_up(&*cache.of(kind)?);
        }
        Ok(Reserved::default())
    }

    fn allocate(
        &self,
        service: &mut Service,
        old: Option<&Service>,
        cache: &Cache,
    ) -> Result<Reserved, Error> {
        // Held until the chosen values are recorded, so that no two requests choose the same.
        let mut reserved = self.reserved.lock();
        let mut allocated = self.allocated.lock();
        allocated.follow(&*cache.of(&registry::SERVICE)?);
        let of_others = allocated.of_others(old.and_then(|o| o.metadata.uid.as_deref()));
        let mut chance = [0; 8];
        self.entropy.fill(&mut chance);
        let ranges = self.range.ranges();
        let ip_addresses = cache.of(&registry::IP_ADDRESS)?;
        let is_reserved = |ip: IpAddr| ip_addresses.get(&ip.to_string()).is_some_and(|o| is_reserved(&o));
        let pool = Allocators {
            ranges: &ranges,
            additional_ranges: &additional_ranges(cache, &ranges)?,
            node_ports: NodePorts::default(),
            ip_is_used: &|ip| {
                reserved.addresses.contains(&ip) || of_others.has_address(ip) || is_reserved(ip)
            },
            port_is_used: &|port| reserved.ports.contains(&port) || of_others.has_port(port),
            random: u64::from_le_bytes(chance),
        };
        let errors = allocate(service, old, &pool);
        if !errors.is_empty() {
            let name = service.metadata.name.as_deref().unwrap_or("");
            return Err(Error::invalid(registry::SERVICE.kind_ref(name), &errors));
        }
        reserved.add(service);
        drop(reserved);
        Ok(Reserved(Some((service.clone(), self.reserved.clone()))))
    }
}

/// Whether an IPAddress keeps its address from Services: one that a Service owns does not, because the Service itself counts.
fn is_reserved(address: &Object) -> bool {
    let labels = address.metadata().labels.as_ref();
    labels
        .and_then(|l| l.get(LABEL_MANAGED_BY))
        .is_none_or(|m| m != IP_ADDRESS_MANAGER)
}

/// The CIDRs of ServiceCIDRs that are Ready and not being deleted, in addition to the configured ones. Overlapping
/// CIDRs do no harm: an address is allocated once, whichever of them it comes from.
fn additional_ranges(cache: &Cache, configured: &[Cidr]) -> Result<Vec<Cidr>, Error> {
    let kind = &registry::SERVICE_CIDR;
    let mut further = Vec::new();
    for object in cache.of(kind)?.list(&Filter::everything(kind, "")) {
        let Some(cidr) = object.get::<ServiceCIDR>() else {
            continue;
        };
        let conditions = cidr.status.as_ref().and_then(|s| s.conditions.as_ref());
        let ready = conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
        if !ready || cidr.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let texts = cidr.spec.iter().flat_map(|s| s.cidrs.iter().flatten());
        let ranges = texts.filter_map(|text| Cidr::parse(text)).map(|c| c.masked());
        further.extend(ranges.filter(|c| !configured.contains(c)));
    }
    Ok(further)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_begin_with_their_first_address() {
        let range = ServiceRange::parse("10.97.3.0/16").unwrap();
        assert_eq!(
            (range.to_string().as_str(), range.first().to_string().as_str()),
            ("10.97.0.0/16", "10.97.0.1")
        );
        let dual = ServiceRange::parse("10.97.0.0/16,fd00:97::/108").unwrap();
        assert_eq!(dual.to_string(), "10.97.0.0/16,fd00:97::/108");
        assert_eq!(dual.first().to_string(), "10.97.0.1");
        for wrong in [
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0.0/32",
            "10.1.0.0/16,10.2.0.0/16",
        ] {
            assert!(ServiceRange::parse(wrong).is_err(), "{wrong}");
        }
    }
}
