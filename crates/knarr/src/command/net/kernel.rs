//! What this machine itself can add to an answer: whether the kernel is in step, and which networks it is on. Reads only.

use k8s_openapi::api::core::v1::Node;
use knarr_api::k8s_openapi;
use knarr_network::routes::Subnet;
use knarr_node_network::proxy::{TableDifference, compare, facts};

use super::objects::NetworkObjects;
use super::service::{KernelAnswer, ServiceAnswer};
use crate::command::Failure;
use crate::command::network::Names;
use crate::config::Config;

/// How the proxy's tables of this machine compare with the objects; `None` where there are none, or for others than root.
pub fn compared(
    objects: &NetworkObjects,
    node: &Node,
    answer: &ServiceAnswer,
) -> Result<Option<TableDifference>, Failure> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(None);
    }
    let all = answer.ports.iter().flat_map(|port| &port.frontends);
    // Those of other Services are compared with the whole.
    let own: Vec<_> = all.filter(|f| f.taken_by.is_none()).map(|f| f.frontend).collect();
    compare(&objects.settings.proxy, &facts(node), &objects.catalog, &own)
        .map_err(|e| Failure::new("cannot read the proxy's tables").because(e))
}

pub fn in_words(compared: &TableDifference, table: &str) -> KernelAnswer {
    let message = match compared.is_in_step() {
        true => format!("the tables {table} are in step ({} elements)", compared.elements),
        false => format!(
            "the tables {table} are NOT in step: of {} elements {} are missing and {} should not be there, {} of \
             them of this Service",
            compared.elements, compared.missing, compared.unexpected, compared.of_frontends
        ),
    };
    KernelAnswer {
        in_step: compared.is_in_step(),
        message,
    }
}

/// The networks of this machine, if the node of this name is this machine.
pub async fn subnets(config: &Config, node: &Node) -> Option<Vec<Subnet>> {
    let found = knarr_node_network::routes::subnets(&Names::of(config).tunnel()).await;
    match found {
        Ok(subnets) => {
            let own = knarr_node_network::routes::reduced(node).addresses;
            let is_own = |subnet: &Subnet| own.contains(&subnet.net.addr());
            subnets.iter().any(is_own).then_some(subnets)
        }
        Err(error) => {
            eprintln!("knarr: this machine's networks cannot be read: {error}");
            None
        }
    }
}
