//! What can be read on this host only: whether the kernel's tables are up to date, and the host's subnets. Nothing is written.

use k8s_openapi::api::core::v1::Node;
use knarr_api::k8s_openapi;
use knarr_network::routes::Subnet;
use knarr_node_network::proxy::{TableDifference, compare, facts};

use super::objects::NetworkObjects;
use super::service_report::{KernelReport, ServiceReport};
use crate::command::Failure;
use crate::command::network::Names;
use crate::config::Config;

/// How the proxy's tables of this host compare with the objects; `None` where there are none, and for users other than root.
pub fn compared(
    objects: &NetworkObjects,
    node: &Node,
    report: &ServiceReport,
) -> Result<Option<TableDifference>, Failure> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(None);
    }
    let all = report.ports.iter().flat_map(|port| &port.frontends);
    // Frontends that belong to other Services are only counted with the whole table.
    let own: Vec<_> = all.filter(|f| f.taken_by.is_none()).map(|f| f.frontend).collect();
    compare(&objects.settings.proxy, &facts(node), &objects.catalog, &own)
        .map_err(|e| Failure::new("cannot read the service proxy's nftables tables").because(e))
}

pub fn report(compared: &TableDifference, table: &str) -> KernelReport {
    let message = match compared.is_in_step() {
        true => format!(
            "the nftables tables {table} are up to date ({} elements)",
            compared.elements
        ),
        false => format!(
            "the nftables tables {table} are NOT up to date: of {} elements {} are missing and {} are stale, {} of \
             them of this Service",
            compared.elements, compared.missing, compared.unexpected, compared.of_frontends
        ),
    };
    KernelReport {
        in_step: compared.is_in_step(),
        message,
    }
}

/// The subnets of this host, if the node runs on this host.
pub async fn subnets(config: &Config, node: &Node) -> Option<Vec<Subnet>> {
    let found = knarr_node_network::routes::subnets(&Names::of(config).tunnel()).await;
    match found {
        Ok(subnets) => {
            let own = knarr_node_network::routes::reduced(node).addresses;
            let is_own = |subnet: &Subnet| own.contains(&subnet.net.addr());
            subnets.iter().any(is_own).then_some(subnets)
        }
        Err(error) => {
            eprintln!("knarr: cannot read the subnets of this host: {error}");
            None
        }
    }
}
