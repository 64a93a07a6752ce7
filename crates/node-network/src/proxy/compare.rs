//! Compares the kernel's tables with the proxy's, for users. Reads only.

use std::collections::BTreeMap;

use knarr_network::catalog::Catalog;
use knarr_network::nft::{Data, Elements, Key};
use knarr_network::proxy::frontend::Frontend;
use knarr_network::proxy::{self, NodeFacts, Proxy, layout, packet};
use knarr_nftables::Nftables;

use super::transaction::{FAMILIES, nft_family};
use crate::table::{Table, TableError};

/// How far the kernel's tables are from what they should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableDifference {
    /// Elements that should be there, of both families.
    pub elements: usize,
    /// Those that are not there, or have other data.
    pub missing: usize,
    /// Elements that should not be there, or have other data.
    pub unexpected: usize,
    /// Of the two, those of the requested frontends.
    pub of_frontends: usize,
}

impl TableDifference {
    pub fn is_in_step(&self) -> bool {
        self.missing == 0 && self.unexpected == 0
    }
}

/// Compares the tables of the calling thread's network namespace with what a proxy of this node makes of the catalog;
/// `None` where there are no such tables. Blocks for some milliseconds; needs root. Differences of
/// `frontends` are counted apart, too.
///
/// The proxy of the node may be committing meanwhile, or know a newer state: a difference counts when it is still there
/// after the objects have been read again.
pub fn compare(
    config: &proxy::Config,
    node: &NodeFacts,
    catalog: &Catalog,
    frontends: &[Frontend],
) -> Result<Option<TableDifference>, TableError> {
    let mut nftables = Nftables::open()?;
    let mut proxy = Proxy::new(config.clone(), node.clone());
    let mut kernel = Vec::new();
    for family in FAMILIES {
        let table = Table::read(&mut nftables, nft_family(family), &config.table)?;
        if table.set(layout::SERVICES).is_err() {
            return Ok(None);
        }
        let mut sets = BTreeMap::new();
        for set in layout::ALL {
            sets.insert(set, table.elements(&mut nftables, set)?);
        }
        // Endpoints keep the slots that they have.
        if let (Some(endpoints), Some(node_ports)) =
            (sets.get(layout::ENDPOINTS), sets.get(layout::NODE_PORT_ENDPOINTS))
        {
            proxy.adopt(family, endpoints, node_ports);
        }
        kernel.push((family, sets));
    }
    for (key, _) in catalog.services() {
        proxy.apply(catalog, key);
    }
    let mut compared = TableDifference::default();
    let none = Elements::new();
    for (family, sets) in &kernel {
        let desired = packet::table(&proxy, *family);
        let of_family = frontends.iter().filter(|frontend| frontend.family == *family);
        let prefixes: Vec<(bool, Box<[u8]>)> = of_family
            .map(|frontend| (frontend.address.is_none(), frontend.fields().bytes()))
            .collect();
        for (name, have) in sets {
            let want = desired.get(name).unwrap_or(&none);
            compared.elements += want.len();
            let (have, want) = (by_ends(have), by_ends(want));
            let is_of_node_ports = name.contains("node-port");
            let is_frontend = |key: &[u8]| {
                let mut prefixes = prefixes.iter();
                prefixes.any(|(is_node_port, prefix)| {
                    *is_node_port == is_of_node_ports && key.starts_with(prefix)
                })
            };
            for (key, data) in &want {
                if have.get(key) != Some(data) {
                    compared.missing += 1;
                    compared.of_frontends += usize::from(is_frontend(key.0));
                }
            }
            for (key, data) in &have {
                if want.get(key) != Some(data) {
                    compared.unexpected += 1;
                    compared.of_frontends += usize::from(is_frontend(key.0));
                }
            }
        }
    }
    Ok(Some(compared))
}

/// An element without an end is a range of one.
fn by_ends(elements: &Elements) -> BTreeMap<(&[u8], &[u8]), Option<&Data>> {
    fn ends(key: &Key) -> (&[u8], &[u8]) {
        (&key.start, key.end.as_deref().unwrap_or(&key.start))
    }
    elements
        .iter()
        .map(|(key, data)| (ends(key), data.as_ref()))
        .collect()
}
