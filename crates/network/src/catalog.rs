//! Services and their endpoints, reduced to the fields that proxy and DNS need: some hundred bytes for a Service and some
//! tens for an endpoint, however large the objects are.

mod endpoints;
mod service;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::k8s_openapi;

pub use endpoints::{Endpoint, Slice, SlicePort};
pub use service::{Service, ServicePort, ServiceType, TrafficPolicy};

/// The transport of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// Parses `protocol` of a port; absent is TCP, unknown protocols are `None`.
    pub fn parse(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("TCP") => Some(Protocol::Tcp),
            Some("UDP") => Some(Protocol::Udp),
            Some("SCTP") => Some(Protocol::Sctp),
            Some(_) => None,
        }
    }

    /// IANA's number, as in IP headers.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }

    /// The name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        }
    }
}

/// Namespace and name of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl ServiceKey {
    pub fn new(namespace: &str, name: &str) -> Self {
        ServiceKey {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl std::fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Strings that many endpoints share: names of nodes, zones, namespaces.
#[derive(Debug, Default)]
pub(crate) struct Interner(BTreeSet<Arc<str>>);

impl Interner {
    pub fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return known.clone();
        }
        let new: Arc<str> = text.into();
        self.0.insert(new.clone());
        new
    }

    pub fn shrink(&mut self) {
        self.0.retain(|text| Arc::strong_count(text) > 1);
    }
}

/// The slices of one Service, sorted by their names. Most Services have one: a map would allocate a node for eleven.
#[derive(Default)]
struct Slices(Vec<(Box<str>, Slice)>);

impl Slices {
    fn find(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| (**known).cmp(name))
    }

    fn get(&self, name: &str) -> Option<&Slice> {
        self.find(name).ok().map(|at| &self.0[at].1)
    }

    fn insert(&mut self, name: &str, slice: Slice) {
        match self.find(name) {
            Ok(at) => self.0[at].1 = slice,
            Err(at) => {
                if self.0.is_empty() {
                    self.0.reserve_exact(1);
                }
                self.0.insert(at, (name.into(), slice));
            }
        }
    }

    fn remove(&mut self, name: &str) -> Option<Slice> {
        let at = self.find(name).ok()?;
        Some(self.0.remove(at).1)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn values(&self) -> impl Iterator<Item = &Slice> {
        self.0.iter().map(|(_, slice)| slice)
    }
}

/// A Service and its slices, which may be there before the Service and after it.
#[derive(Default)]
struct Entry {
    service: Option<Service>,
    slices: Slices,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.service.is_none() && self.slices.is_empty()
    }

    /// The endpoints of all its slices.
    fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.slices.values().flat_map(|slice| &slice.endpoints)
    }
}

/// All Services and EndpointSlices of the cluster.
#[derive(Default)]
pub struct Catalog {
    /// Boxed: almost half of each of the map's nodes is empty. None has neither a Service nor slices.
    entries: BTreeMap<ServiceKey, Box<Entry>>,
    /// The name of the Service that a slice belongs to, by the slice's namespace and name.
    owners: BTreeMap<(Arc<str>, Box<str>), Arc<str>>,
    /// Services by their cluster IPs, for reverse DNS queries.
    by_cluster_ip: BTreeMap<IpAddr, ServiceKey>,
    interner: Interner,
    withdrawn: Vec<IpAddr>,
    removals: usize,
}

/// After this many removals unused strings are dropped.
const SHRINK_AFTER_REMOVALS: usize = 1024;

impl Catalog {
    /// Adds or updates a Service. Returns its key, unless none of the kept fields changed.
    pub fn apply_service(&mut self, service: &core::Service) -> Option<ServiceKey> {
        let key = self.key(
            service.metadata.namespace.as_deref()?,
            service.metadata.name.as_deref()?,
        );
        let new = Service::of(service, &mut self.interner);
        if self.service(&key) == Some(&new) {
            return None;
        }
        self.forget_addresses(&key);
        for ip in &new.cluster_ips {
            self.by_cluster_ip.insert(*ip, key.clone());
        }
        self.entries.entry(key.clone()).or_default().service = Some(new);
        Some(key)
    }

    /// Removes a deleted Service. Returns its key, if it was known.
    pub fn remove_service(&mut self, namespace: &str, name: &str) -> Option<ServiceKey> {
        let key = self.key(namespace, name);
        self.forget_addresses(&key);
        self.entries.get_mut(&key)?.service.take()?;
        self.drop_if_empty(&key);
        self.removed();
        Some(key)
    }

    /// Adds or updates an EndpointSlice. Returns the Services that it changes: usually one, two if its label names another
    /// one than before.
    pub fn apply_slice(&mut self, slice: &EndpointSlice) -> Vec<ServiceKey> {
        let (Some(namespace), Some(name)) = (
            slice.metadata.namespace.as_deref(),
            slice.metadata.name.as_deref(),
        ) else {
            return Vec::new();
        };
        let Some(service) = endpoints::service_name(slice) else {
            return self.remove_slice(namespace, name).into_iter().collect();
        };
        let key = self.key(namespace, service);
        let mut changed = Vec::new();
        let owner = (key.namespace.clone(), Box::from(name));
        if self.owners.get(&owner).is_some_and(|before| *before != key.name) {
            changed.extend(self.remove_slice(namespace, name));
        }
        let new = Slice::of(slice, &mut self.interner);
        let entry = self.entries.entry(key.clone()).or_default();
        let before = entry.slices.get(name);
        if before != Some(&new) {
            self.withdrawn
                .extend(before.iter().flat_map(|before| before.withdrawn(Some(&new))));
            entry.slices.insert(name, new);
            self.owners.insert(owner, key.name.clone());
            changed.push(key);
        }
        changed
    }

    /// Removes a deleted EndpointSlice. Returns the Service that it belonged to, if it was known.
    pub fn remove_slice(&mut self, namespace: &str, name: &str) -> Option<ServiceKey> {
        let owner = (self.interner.get(namespace), Box::from(name));
        let service = self.owners.remove(&owner)?;
        let key = ServiceKey {
            namespace: owner.0,
            name: service,
        };
        if let Some(entry) = self.entries.get_mut(&key) {
            let before = entry.slices.remove(name);
            self.withdrawn
                .extend(before.iter().flat_map(|before| before.withdrawn(None)));
            self.drop_if_empty(&key);
        }
        self.removed();
        Some(key)
    }

    pub fn service(&self, key: &ServiceKey) -> Option<&Service> {
        self.entries.get(key)?.service.as_ref()
    }

    /// A Service by namespace and name.
    pub fn service_named(&self, namespace: &str, name: &str) -> Option<(&ServiceKey, &Service)> {
        let (key, entry) = self.entries.get_key_value(&ServiceKey::new(namespace, name))?;
        Some((key, entry.service.as_ref()?))
    }

    /// All Services, in the order of namespace and name.
    pub fn services(&self) -> impl Iterator<Item = (&ServiceKey, &Service)> {
        let entries = self.entries.iter();
        entries.filter_map(|(key, entry)| Some((key, entry.service.as_ref()?)))
    }

    /// The slices of a Service, in the order of their names.
    pub fn slices(&self, key: &ServiceKey) -> impl Iterator<Item = &Slice> {
        let entry = self.entries.get(key).into_iter();
        entry.flat_map(|entry| entry.slices.values())
    }

    /// The slices of a Service that service proxies serve.
    pub fn proxied_slices(&self, key: &ServiceKey) -> impl Iterator<Item = &Slice> {
        self.slices(key).filter(|slice| !slice.foreign_proxy)
    }

    /// The Service that has this cluster IP.
    pub fn by_cluster_ip(&self, ip: IpAddr) -> Option<&ServiceKey> {
        self.by_cluster_ip.get(&ip)
    }

    /// The addresses that stopped to get new connections by changes of slices since the last call.
    pub fn take_withdrawn(&mut self) -> Vec<IpAddr> {
        std::mem::take(&mut self.withdrawn)
    }

    /// Whether a Service of the namespace offers one of these addresses to new connections.
    pub fn offers(&self, namespace: &str, addresses: &[IpAddr]) -> bool {
        self.of_namespace(namespace)
            .flat_map(Entry::endpoints)
            .any(|endpoint| endpoint.is_offered() && addresses.contains(&endpoint.address))
    }

    /// Whether EndpointSlices may offer a pod with these labels: a Service of the namespace selects it, and it is ready or
    /// the Service has publishNotReadyAddresses.
    pub fn may_offer(&self, namespace: &str, labels: &BTreeMap<String, String>, is_ready: bool) -> bool {
        self.offering(namespace, labels, is_ready).next().is_some()
    }

    /// Whether a controller may not have seen yet that this pod is deleted, and offer it later: EndpointSlices
    /// [may](Catalog::may_offer) offer it, and those of a Service do not have it as terminating. That they have another pod, which had one
    /// of the addresses before, says nothing.
    pub fn may_offer_later(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        is_ready: bool,
        pod_uid: &str,
        addresses: &[IpAddr],
    ) -> bool {
        self.offering(namespace, labels, is_ready).any(|entry| {
            !entry
                .endpoints()
                .any(|endpoint| endpoint.is_terminating(pod_uid, addresses))
        })
    }

    /// The Services whose EndpointSlices may offer such a pod.
    fn offering<'a>(
        &'a self,
        namespace: &'a str,
        labels: &'a BTreeMap<String, String>,
        is_ready: bool,
    ) -> impl Iterator<Item = &'a Entry> {
        self.of_namespace(namespace).filter(move |entry| {
            let service = entry.service.as_ref();
            service.is_some_and(|s| (is_ready || s.publish_not_ready) && s.selects(labels))
        })
    }

    /// The entries of this namespace, in the order of the Services' names.
    fn of_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Entry> {
        let first = ServiceKey::new(namespace, "");
        self.entries
            .range(first..)
            .take_while(move |(key, _)| &*key.namespace == namespace)
            .map(|(_, entry)| &**entry)
    }

    /// All addresses that are offered to new connections, of all Services.
    pub fn offered(&self) -> BTreeSet<IpAddr> {
        let slices = self.entries.values().flat_map(|entry| entry.slices.values());
        let endpoints = slices.flat_map(|slice| &slice.endpoints);
        endpoints.filter(|e| e.is_offered()).map(|e| e.address).collect()
    }

    /// Namespaces and names of all slices.
    pub fn slice_names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.owners
            .keys()
            .map(|(namespace, name)| (&**namespace, &**name))
    }

    fn key(&mut self, namespace: &str, name: &str) -> ServiceKey {
        ServiceKey {
            namespace: self.interner.get(namespace),
            name: self.interner.get(name),
        }
    }

    fn forget_addresses(&mut self, key: &ServiceKey) {
        let service = self.entries.get(key).and_then(|entry| entry.service.as_ref());
        for ip in service.into_iter().flat_map(|service| &service.cluster_ips) {
            if self.by_cluster_ip.get(ip) == Some(key) {
                self.by_cluster_ip.remove(ip);
            }
        }
    }

    fn drop_if_empty(&mut self, key: &ServiceKey) {
        if self.entries.get(key).is_some_and(|entry| entry.is_empty()) {
            self.entries.remove(key);
        }
    }

    fn removed(&mut self) {
        self.removals += 1;
        if self.removals >= SHRINK_AFTER_REMOVALS {
            self.removals = 0;
            self.interner.shrink();
        }
    }
}
