//! Services: their number, and the node ports and load balancers they use.

use k8s_openapi::api::core::v1::Service;

use super::{one, whole};
use crate::kinds::pod::resources::Amounts;

const COUNT: &str = "count/services";
const SERVICES: &str = "services";
const NODE_PORTS: &str = "services.nodeports";
const LOAD_BALANCERS: &str = "services.loadbalancers";

pub(super) const NAMES: [&str; 4] = [COUNT, SERVICES, NODE_PORTS, LOAD_BALANCERS];

/// Node ports as requested: they are allocated later.
pub(super) fn usage(service: &Service) -> Amounts {
    let spec = service.spec.clone().unwrap_or_default();
    let ports = spec.ports.unwrap_or_default();
    let (node_ports, balancers) = match spec.type_.as_deref().unwrap_or("") {
        "NodePort" => (ports.len(), 0),
        "LoadBalancer" if spec.allocate_load_balancer_node_ports == Some(false) => {
            let given = ports.iter().filter(|p| p.node_port.is_some_and(|n| n != 0));
            (given.count(), 1)
        }
        "LoadBalancer" => (ports.len(), 1),
        _ => (0, 0),
    };
    Amounts::from([
        (COUNT.into(), one()),
        (SERVICES.into(), one()),
        (NODE_PORTS.into(), whole(node_ports)),
        (LOAD_BALANCERS.into(), whole(balancers)),
    ])
}
