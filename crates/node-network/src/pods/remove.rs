//! Removes everything: links, routes, table, records (`knarr down`).

use std::error::Error;
use std::path::Path;

use knarr_cni::kernel::links::{self, Link};
use knarr_cni::kernel::netlink::{self, Netlink};
use knarr_nftables::{Batch, Family, Nftables};

use super::records::{self, Records};
use super::table;

#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("cannot remove the links of pods")]
    Links(#[source] netlink::Error),
    #[error("cannot remove the table of pods")]
    Table(#[source] knarr_nftables::Error),
    #[error("cannot remove the records of pods")]
    Records(#[source] records::Error),
    #[error("cannot remove the socket")]
    Socket(#[source] std::io::Error),
}

/// Removes everything that [`super::Server`] has made in this network namespace and its files, whatever exists of it;
/// nothing of other instances. The bridge of the earlier network is removed too, if it is named. It continues after an
/// error and reports the first one. Pods that still run lose their network.
///
/// Sysctls stay as they are: others may rely on forwarding by now. Blocks.
pub fn remove_all(
    directory: &Path,
    socket: &Path,
    instance: Option<&str>,
    earlier_bridge: Option<&str>,
) -> Result<(), RemoveError> {
    let table = table::name(instance);
    let results = [
        remove_links(&table, earlier_bridge).map_err(RemoveError::Links),
        remove_table(&table).map_err(RemoveError::Table),
        Records::remove_all(directory).map_err(RemoveError::Records),
        remove_socket(socket).map_err(RemoveError::Socket),
    ];
    let mut first = Ok(());
    for result in results {
        if let Err(error) = result {
            tracing::warn!(error = &error as &dyn Error, "a part of the network stays");
            first = first.and(Err(error));
        }
    }
    first
}

fn remove_links(table: &str, earlier_bridge: Option<&str>) -> Result<(), netlink::Error> {
    let mut netlink = Netlink::open()?;
    let is_ours = |link: &Link| {
        let alias = link.alias.strip_prefix(table);
        alias.is_some_and(|rest| rest.starts_with(' ')) || Some(link.name.as_str()) == earlier_bridge
    };
    for link in links::list(&mut netlink)?.iter().filter(|link| is_ours(link)) {
        links::delete(&mut netlink, link.index)?;
    }
    Ok(())
}

fn remove_table(table: &str) -> Result<(), knarr_nftables::Error> {
    let mut nftables = Nftables::open()?;
    let mut batch = Batch::new();
    batch.delete_table(Family::Inet, table);
    match nftables.commit(&batch) {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}

fn remove_socket(socket: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
