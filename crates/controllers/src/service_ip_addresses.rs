//! IPAddress objects of Services: each cluster IP has one whose `parentRef` is the Service, and one of a Service that does not
//! have the address (any more) is deleted.
//!
//! It follows KEP-1880 and kube-apiserver's ipallocator-repair-controller. There the API server creates the
//! object before the Service and this loop repairs inconsistencies after a crash; here the Services are the record of
//! allocations, and IPAddress objects always follow them. An IPAddress that was not created by this controller (another value of
//! the label `ipaddress.kubernetes.io/managed-by`) keeps the API server from allocating the address, and is not changed
//! as long as no Service has the address.
//!
//! After thousands of Services were created it is far behind, and the objects that it reads are slim: what is decoded of them is not kept
//! ([`Object::with_typed`]).

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{IPAddress, IPAddressSpec, ParentReference, ServiceCIDR};
use knarr_api::k8s_openapi;
use knarr_api::kinds::service_ips::{IP_ADDRESS_MANAGER, LABEL_MANAGED_BY, allocated_to, ranges};
use knarr_api::registry;
use knarr_api::{Kind, Object, ObjectKey};
use knarr_apimachinery::cidr::Cidr;

use crate::action::{Action, Create, Delete, reference};
use crate::controller::{Context, Controller, ObjectChange, View};

const LABEL_FAMILY: &str = "ipaddress.kubernetes.io/ip-family";

/// See the module. Its keys are Services and, without a namespace, IPAddresses.
pub struct ServiceIpAddresses;

impl Controller for ServiceIpAddresses {
    fn name(&self) -> &'static str {
        "ipallocator-repair-controller"
    }

    fn account(&self) -> &'static str {
        "knarr-service-ip-addresses"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::SERVICE, &registry::IP_ADDRESS, &registry::SERVICE_CIDR]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::SERVICE) {
            // Other controllers read the changed object, too: it is decoded once for all.
            let addresses = |object: Option<&Object>| {
                let service = object.and_then(|object| object.get::<Service>());
                service.map(|service| allocated_to(service).0).unwrap_or_default()
            };
            let (before, after) = (addresses(changed.old), addresses(changed.new));
            if before == after {
                return Vec::new();
            }
            let released = before.iter().filter(|ip| !after.contains(ip));
            let released = released.map(|ip| ObjectKey::new("", ip.to_string()));
            return std::iter::once(key).chain(released).collect();
        }
        if let Some(key) = changed.key_of(&registry::IP_ADDRESS) {
            // Most were just created by this controller: neither they nor their Services have to be reconciled.
            if changed.old.is_none() && changed.new.is_some_and(|address| is_in_order(view, address)) {
                return Vec::new();
            }
            let parents = changed.states().filter_map(|o| Allocated::of(o)?.parent);
            return parents.chain([key]).collect();
        }
        // Services whose addresses were in no range may be in the new one.
        let Some(cidr) = changed.new.and_then(|o| o.get::<ServiceCIDR>()) else {
            return Vec::new();
        };
        if changed.old.is_some() {
            return Vec::new();
        }
        let ranges = ranges(cidr);
        let is_inside = |ip: &IpAddr| ranges.iter().any(|range| range.contains(*ip));
        let services = view.list(&registry::SERVICE, "").into_iter();
        let services = services.filter(|service| addresses(service).iter().any(is_inside));
        services.map(|service| ObjectKey::of(&service)).collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        if context.failure.is_some() {
            return Vec::new();
        }
        if context.key.namespace.is_empty() {
            return release(context.view, &context.key.name);
        }
        let (namespace, name) = (&context.key.namespace, &context.key.name);
        let Some(service) = context.view.get(&registry::SERVICE, namespace, name) else {
            return Vec::new();
        };
        let ranges: Vec<Cidr> = {
            let cidrs = context.view.list_as::<ServiceCIDR>("");
            cidrs.iter().flat_map(|cidr| self::ranges(cidr)).collect()
        };
        if ranges.is_empty() {
            return Vec::new(); // The API server has not created the default one yet.
        }
        addresses(&service)
            .into_iter()
            .flat_map(|ip| allocate(context.view, &service, ip, &ranges))
            .collect()
    }
}

/// The addresses of a Service.
fn addresses(object: &Object) -> Vec<IpAddr> {
    object
        .with_typed(|service: &Service| allocated_to(service).0)
        .unwrap_or_default()
}

/// An IPAddress, reduced to what is compared.
struct Allocated {
    /// The Service that it refers to.
    parent: Option<ObjectKey>,
    is_managed: bool,
    /// The value of [`LABEL_FAMILY`].
    family: Option<String>,
    is_deleted: bool,
}

impl Allocated {
    /// `None` if the object is not an IPAddress.
    fn of(object: &Object) -> Option<Self> {
        object.with_typed(|address: &IPAddress| {
            let parent = &address.spec.parent_ref;
            let is_service =
                parent.group.as_deref().unwrap_or("").is_empty() && parent.resource == "services";
            let key = || ObjectKey::new(parent.namespace.clone().unwrap_or_default(), &parent.name);
            let labels = address.metadata.labels.as_ref();
            let label = |name: &str| labels.and_then(|labels| labels.get(name));
            Allocated {
                parent: is_service.then(key),
                is_managed: label(LABEL_MANAGED_BY).is_some_and(|manager| manager == IP_ADDRESS_MANAGER),
                family: label(LABEL_FAMILY).cloned(),
                is_deleted: address.metadata.deletion_timestamp.is_some(),
            }
        })
    }

    /// Whether it is as this controller creates it for an address of a Service.
    fn is_for(&self, service: &ObjectKey, ip: IpAddr) -> bool {
        self.parent.as_ref() == Some(service) && self.is_managed && self.family.as_deref() == Some(family(ip))
    }
}

/// Whether a Service of the view has this address. Of most Services it is known without decoding them.
fn has_address(view: &dyn View, service: &ObjectKey, ip: IpAddr) -> bool {
    let service = view.get(&registry::SERVICE, &service.namespace, &service.name);
    service.is_some_and(|service| {
        let cluster_ip = service.field("spec.clusterIP").ok();
        let cluster_ip = cluster_ip.and_then(|text| text.parse::<IpAddr>().ok());
        // It is the first of `clusterIPs`.
        cluster_ip == Some(ip) || addresses(&service).contains(&ip)
    })
}

/// Whether the Service that an IPAddress refers to has the address. A later change of either enqueues it.
fn is_in_order(view: &dyn View, address: &Object) -> bool {
    let Some((allocated, ip)) = Allocated::of(address).zip(address.name().parse::<IpAddr>().ok()) else {
        return false;
    };
    let parent = allocated.parent.as_ref().filter(|_| !allocated.is_deleted);
    parent.is_some_and(|service| allocated.is_for(service, ip) && has_address(view, service, ip))
}

/// The IPAddress of a cluster IP of a Service: created, or created again if it does not refer to the Service.
fn allocate(view: &dyn View, service: &Object, ip: IpAddr, ranges: &[Cidr]) -> Vec<Action> {
    let family = family(ip);
    if !ranges.iter().any(|range| range.contains(ip)) {
        let message = format!(
            "Cluster IP [{family}]: {ip} is not within any configured Service CIDR; please recreate service"
        );
        return vec![Action::warning(
            &reference(service),
            "ClusterIPOutOfRange",
            message,
        )];
    }
    let key = ObjectKey::of(service);
    let Some(existing) = view.get(&registry::IP_ADDRESS, "", &ip.to_string()) else {
        return vec![Action::create(address(&key, ip))];
    };
    let allocated = Allocated::of(&existing);
    if allocated.as_ref().is_some_and(|found| found.is_for(&key, ip)) {
        return Vec::new();
    }
    let parent = allocated.and_then(|found| found.parent);
    if parent.is_some_and(|other| other != key && has_address(view, &other, ip)) {
        let message =
            format!("Cluster IP [{family}]:{ip} was assigned to multiple services; please recreate service");
        return vec![Action::warning(
            &reference(service),
            "ClusterIPAlreadyAllocated",
            message,
        )];
    }
    // parentRef is immutable.
    vec![
        Action::Delete(Delete::of(&existing)),
        Action::Create(Create::new(address(&key, ip))),
    ]
}

/// Deletes the IPAddress of this name if its Service does not have the address.
fn release(view: &dyn View, name: &str) -> Vec<Action> {
    let Some(existing) = view.get(&registry::IP_ADDRESS, "", name) else {
        return Vec::new();
    };
    let Some(allocated) = Allocated::of(&existing).filter(|found| found.is_managed && !found.is_deleted)
    else {
        return Vec::new();
    };
    let ip: Option<IpAddr> = name.parse().ok();
    if allocated
        .parent
        .zip(ip)
        .is_some_and(|(service, ip)| has_address(view, &service, ip))
    {
        return Vec::new();
    }
    vec![Action::Delete(Delete::of(&existing))]
}

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv6() { "IPv6" } else { "IPv4" }
}

fn address(service: &ObjectKey, ip: IpAddr) -> IPAddress {
    let mut address = IPAddress {
        spec: IPAddressSpec {
            parent_ref: ParentReference {
                // The core group's name is empty, and empty strings are not stored.
                group: None,
                resource: "services".into(),
                namespace: Some(service.namespace.clone()),
                name: service.name.clone(),
            },
        },
        ..Default::default()
    };
    address.metadata.name = Some(ip.to_string());
    address.metadata.labels = Some(
        [(LABEL_FAMILY, family(ip)), (LABEL_MANAGED_BY, IP_ADDRESS_MANAGER)]
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .into(),
    );
    address
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::world::{World, at, lines};

    fn service(name: &str, ips: &[&str]) -> Service {
        serde_json::from_value(json!({
            "metadata": {"namespace": "d", "name": name},
            "spec": {"clusterIP": ips.first(), "clusterIPs": ips, "ports": [{"port": 80}]},
        }))
        .unwrap()
    }

    fn world() -> World {
        let mut world = World::default();
        let cidr = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16", "fd00:10:96::/112"]}});
        world.put(serde_json::from_value::<ServiceCIDR>(cidr).unwrap());
        world
    }

    fn of(name: &str, ip: &str) -> IPAddress {
        address(&ObjectKey::new("d", name), ip.parse().unwrap())
    }

    fn run(world: &World, namespace: &str, name: &str) -> Vec<String> {
        lines(&world.run(&ServiceIpAddresses, (namespace, name), at(0)))
    }

    #[test]
    fn n2_each_cluster_ip_has_an_ip_address_that_refers_to_the_service() {
        let mut world = world();
        world.put(service("web", &["10.96.0.7", "fd00:10:96::7"]));
        let created = ["create ipaddresses 10.96.0.7", "create ipaddresses fd00:10:96::7"];
        assert_eq!(run(&world, "d", "web"), created);
        world.put(of("web", "10.96.0.7"));
        world.put(of("web", "fd00:10:96::7"));
        assert_eq!(run(&world, "d", "web"), [""; 0]);
        for ip in ["10.96.0.7", "fd00:10:96::7"] {
            assert_eq!(run(&world, "", ip), [""; 0]);
        }
        // One without a cluster IP has none.
        world.put(service("headless", &["None"]));
        assert_eq!(run(&world, "d", "headless"), [""; 0]);
    }

    #[test]
    fn n2_an_ip_address_reads_back_as_it_was_written() {
        for ip in ["10.96.0.7", "fd00:10:96::7"] {
            let written = world().put(of("web", ip));
            let read = registry::IP_ADDRESS.ops.decode(written.json()).unwrap();
            let read: &IPAddress = (*read.object).as_any().downcast_ref().unwrap();
            assert_eq!(read.spec, written.get::<IPAddress>().unwrap().spec);
        }
    }

    #[test]
    fn n2_an_ip_address_with_a_wrong_reference_or_labels_is_created_again() {
        let mut world = world();
        world.put(service("web", &["10.96.0.7"]));
        let again = ["delete ipaddresses 10.96.0.7", "create ipaddresses 10.96.0.7"];
        world.put(of("gone", "10.96.0.7"));
        assert_eq!(run(&world, "d", "web"), again);
        let mut bare = of("web", "10.96.0.7");
        bare.metadata.labels = None;
        world.put(bare);
        assert_eq!(run(&world, "d", "web"), again);
        let mut gateway = of("web", "10.96.0.7");
        gateway.spec.parent_ref.group = Some("gateway.networking.k8s.io".into());
        world.put(gateway);
        assert_eq!(run(&world, "d", "web"), again);
    }

    #[test]
    fn n2_two_services_with_one_address_and_one_out_of_range_are_reported() {
        let mut world = world();
        world.put(service("first", &["10.96.0.7"]));
        world.put(of("first", "10.96.0.7"));
        world.put(service("second", &["10.96.0.7"]));
        world.put(service("third", &["10.1.0.7"]));
        let second = run(&world, "d", "second");
        assert_eq!(
            second,
            [
                "event ClusterIPAlreadyAllocated: Cluster IP [IPv4]:10.96.0.7 was assigned to multiple services; please recreate service"
            ]
        );
        let third = run(&world, "d", "third");
        assert_eq!(
            third,
            [
                "event ClusterIPOutOfRange: Cluster IP [IPv4]: 10.1.0.7 is not within any configured Service CIDR; please recreate service"
            ]
        );
    }

    #[test]
    fn n2_ip_addresses_of_services_that_are_gone_are_deleted_and_those_of_others_stay() {
        let mut world = world();
        world.put(of("gone", "10.96.0.7"));
        assert_eq!(run(&world, "", "10.96.0.7"), ["delete ipaddresses 10.96.0.7"]);
        world.put(service("gone", &["10.96.0.8"]));
        assert_eq!(run(&world, "", "10.96.0.7"), ["delete ipaddresses 10.96.0.7"]);
        let mut users = of("elsewhere", "10.96.0.9");
        users.metadata.labels = None;
        world.put(users);
        assert_eq!(run(&world, "", "10.96.0.9"), [""; 0]);
    }

    #[test]
    fn n2_a_services_change_enqueues_its_former_addresses() {
        let mut world = world();
        let old = world.put(service("web", &["10.96.0.7"]));
        let new = world.put(service("web", &["10.96.0.8"]));
        let changed = |old, new| ObjectChange {
            kind: &registry::SERVICE,
            old,
            new,
        };
        let keys = ServiceIpAddresses.keys(&world, changed(Some(&old), Some(&new)));
        assert_eq!(
            keys,
            [ObjectKey::new("d", "web"), ObjectKey::new("", "10.96.0.7")]
        );
        assert_eq!(
            ServiceIpAddresses.keys(&world, changed(Some(&new), Some(&new))),
            []
        );
    }

    #[test]
    fn n2_an_ip_address_in_order_enqueues_nothing_when_it_is_added() {
        let mut world = world();
        world.put(service("web", &["10.96.0.7", "fd00:10:96::7"]));
        let mut bare = of("web", "10.96.0.7");
        bare.metadata.labels = None;
        let mut deleted = of("web", "10.96.0.7");
        deleted.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
        for (address, parent) in [
            (of("web", "10.96.0.7"), None),
            (of("web", "fd00:10:96::7"), None),
            (of("web", "10.96.0.8"), Some("web")),
            (of("gone", "10.96.0.7"), Some("gone")),
            (bare, Some("web")),
            (deleted, Some("web")),
        ] {
            let object = world.put(address);
            let keys = |old, new| {
                let kind = &registry::IP_ADDRESS;
                ServiceIpAddresses.keys(&world, ObjectChange { kind, old, new })
            };
            let own = ObjectKey::new("", object.name());
            let expected = parent.map(|parent| [ObjectKey::new("d", parent), own.clone()]);
            let added = keys(None, Some(&*object));
            assert_eq!(added, expected.into_iter().flatten().collect::<Vec<_>>(), "{own}");
            assert!(keys(Some(&*object), None).contains(&own), "{own} was deleted");
            assert!(
                keys(Some(&*object), Some(&*object)).contains(&own),
                "{own} was changed"
            );
        }
    }
}
