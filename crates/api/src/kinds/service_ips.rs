//! The cluster IPs and node ports of Services, and the ranges of ServiceCIDRs.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use knarr_apimachinery::cidr::Cidr;

/// The label of an IPAddress that names the controller that manages it.
pub const LABEL_MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
/// The value of the label on the IPAddresses of cluster IPs.
pub const IP_ADDRESS_MANAGER: &str = "ipallocator.k8s.io";

/// The ranges of a ServiceCIDR, of one family each.
pub fn ranges(cidr: &ServiceCIDR) -> Vec<Cidr> {
    let texts = cidr.spec.iter().flat_map(|s| s.cidrs.iter().flatten());
    texts
        .filter_map(|text| Cidr::parse(text))
        .map(|c| c.masked())
        .collect()
}

/// The cluster IPs and node ports that are allocated to a service; its deletion releases them.
pub fn allocated_to(service: &Service) -> (Vec<IpAddr>, Vec<i32>) {
    let Some(spec) = &service.spec else {
        return Default::default();
    };
    let ips = spec.cluster_ips.iter().flatten().filter_map(|ip| ip.parse().ok());
    let ports = spec.ports.iter().flatten().filter_map(|p| p.node_port);
    let check = spec.health_check_node_port;
    (
        ips.collect(),
        ports.chain(check).filter(|port| *port != 0).collect(),
    )
}
