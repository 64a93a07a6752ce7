//! Conntrack entries of UDP clients whose endpoint was removed: they are deleted, so that the clients' next packet is
//! sent to another endpoint (SPEC N3).
//!
//! One reading of the conntrack table serves all that has gathered, apart from commits: it may take long where there are
//! millions of entries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use knarr_network::proxy::{Family, StaleUdp};
use knarr_nftables::{Conntrack, Flow};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::metrics::Metrics;
use super::transaction::{FAMILIES, nft_family};

const UDP: u8 = 17;
/// Between two dumps, so that endpoints that change continuously do not keep a core busy.
const PACE: Duration = Duration::from_millis(200);
const RETRY: Duration = Duration::from_secs(5);

/// Where clients send to: `None` is a node port, on any of the node's addresses.
type Frontend = (Option<IpAddr>, u16);
type Wanted = BTreeMap<Frontend, BTreeSet<SocketAddr>>;

/// What is to be deleted.
#[derive(Default)]
pub(super) struct StaleFlows {
    /// By family; endpoints that keep their flows.
    gathered: Mutex<BTreeMap<Family, Wanted>>,
    bell: Notify,
}

impl StaleFlows {
    /// The newest entry of a frontend counts.
    pub fn add(&self, stale: Vec<StaleUdp>) {
        if stale.is_empty() {
            return;
        }
        let mut gathered = self.gathered.lock();
        for StaleUdp {
            family,
            address,
            port,
            keep,
        } in stale
        {
            let keep = keep.into_iter().map(SocketAddr::from).collect();
            gathered.entry(family).or_default().insert((address, port), keep);
        }
        drop(gathered);
        self.bell.notify_one();
    }

    pub async fn run(self: Arc<Self>, metrics: Arc<Metrics>) {
        loop {
            self.bell.notified().await;
            let mut is_complete = true;
            for family in FAMILIES {
                let desired = self.gathered.lock().remove(&family);
                let Some(desired) = desired else { continue };
                let begun = Instant::now();
                let deletion = tokio::task::spawn_blocking(move || {
                    let deleted = delete(family, &desired);
                    (desired, deleted)
                });
                match deletion.await {
                    Ok((_, Ok(deleted))) => metrics.reconciled(family, begun.elapsed(), deleted),
                    Ok((desired, Err(error))) => {
                        warn!(%error, family = family.name(), "cannot delete stale UDP flows, trying again");
                        let mut gathered = self.gathered.lock();
                        let newer = gathered.entry(family).or_default();
                        for (frontend, keep) in desired {
                            newer.entry(frontend).or_insert(keep);
                        }
                        is_complete = false;
                    }
                    Err(error) => warn!(%error, "deleting stale UDP flows failed"),
                }
            }
            match is_complete {
                true => sleep(PACE).await,
                false => {
                    sleep(RETRY).await;
                    self.bell.notify_one();
                }
            }
        }
    }
}

fn delete(family: Family, desired: &Wanted) -> Result<usize, knarr_nftables::Error> {
    Conntrack::open()?.delete(nft_family(family), UDP, |flow| is_stale(flow, desired))
}

/// Whether the flow leads to none of its frontend's endpoints.
fn is_stale(flow: &Flow, desired: &Wanted) -> bool {
    let (to, endpoint) = (flow.original.destination, flow.reply.source);
    if flow.zone != 0 {
        return false;
    }
    if let Some(keep) = desired.get(&(Some(to.ip()), to.port())) {
        return !keep.contains(&endpoint);
    }
    // A flow to the same port of another host, which nothing translates, is not the proxy's.
    let keep = desired.get(&(None, to.port())).filter(|_| endpoint != to);
    keep.is_some_and(|keep| !keep.contains(&endpoint))
}
