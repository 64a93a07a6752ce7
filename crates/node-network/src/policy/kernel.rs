//! Brings the table to what was decided. What [`Kernel`] does blocks; [`KernelTable`] has threads for it.

use std::sync::Arc;

use async_trait::async_trait;
use knarr_network::policy::{Change, FIXED_SETS, Policies, Ruleset, skeleton};
use knarr_nftables::{Batch, Conntrack, Family, Nftables, script};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tracing::error;

use super::clean_addresses::StaleAddresses;
use crate::table::{Comparison, Table, TableError, element};

/// IANA's number: the protocol whose flows pass on to another pod that has the address.
const UDP: u8 = 17;

type Result<T> = std::result::Result<T, TableError>;

/// The table of policies, as the driver has it. Only one task calls it, except for [`PolicyTable::delete_flows`], which only
/// another one calls. A kernel that is played in a simulation is another one.
#[async_trait]
pub trait PolicyTable: Send + Sync + 'static {
    /// Carries out what has changed, or makes the whole table equal to [`Policies::ruleset`] when it is not known what it
    /// contains: the first time and after an error. `true` if it was the whole table.
    async fn sync(&self, policies: &Arc<Mutex<Policies>>) -> Result<bool>;

    /// Whether all sets and chains are still there.
    async fn is_intact(&self, policies: &Arc<Mutex<Policies>>) -> Result<bool>;

    /// Has the next sync compare everything.
    fn forget(&self);

    /// Deletes the flows of earlier pods with these addresses that would pass as established: a dump of the conntrack table.
    async fn delete_flows(&self, stale: StaleAddresses) -> Result<()>;
}

/// The kernel's own.
pub(super) struct KernelTable(Arc<Mutex<Kernel>>);

impl KernelTable {
    pub fn new(table: String) -> Self {
        KernelTable(Arc::new(Mutex::new(Kernel::new(table))))
    }

    /// Works with the kernel on a thread that may block. If that panics, everything is compared.
    async fn blocking<T: Send + 'static>(
        &self,
        policies: &Arc<Mutex<Policies>>,
        work: impl FnOnce(&mut Kernel, &Mutex<Policies>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (kernel, policies) = (self.0.clone(), policies.clone());
        let done = spawn_blocking(move || work(&mut kernel.lock(), &policies)).await;
        done.unwrap_or_else(|panic| {
            error!(error = %panic, "programming NetworkPolicies failed");
            self.forget();
            Err(panic.into())
        })
    }
}

#[async_trait]
impl PolicyTable for KernelTable {
    async fn sync(&self, policies: &Arc<Mutex<Policies>>) -> Result<bool> {
        self.blocking(policies, |kernel, policies| kernel.sync(policies))
            .await
    }

    async fn is_intact(&self, policies: &Arc<Mutex<Policies>>) -> Result<bool> {
        self.blocking(policies, |kernel, policies| kernel.is_intact(policies))
            .await
    }

    fn forget(&self) {
        self.0.lock().forget();
    }

    async fn delete_flows(&self, stale: StaleAddresses) -> Result<()> {
        let deleted = spawn_blocking(move || delete_flows(&stale)).await?;
        deleted.map_err(TableError::from)
    }
}

/// What there is in a table.
pub(super) struct Names {
    pub sets: Vec<Arc<str>>,
    pub chains: Vec<Arc<str>>,
}

impl Names {
    pub fn all(&self) -> impl Iterator<Item = &Arc<str>> {
        self.sets.iter().chain(&self.chains)
    }
}

pub(super) fn names(nftables: &mut Nftables, table: &str) -> Result<Names> {
    let sets = nftables.sets(Family::Inet, table)?;
    Ok(Names {
        sets: sets.iter().map(|set| set.name.clone()).collect(),
        chains: nftables.chains(Family::Inet, table)?,
    })
}

struct Open {
    nftables: Nftables,
    table: Table,
    /// As it was when the table was last seen.
    generation: u32,
}

/// What the kernel has.
struct Kernel {
    table: String,
    /// `None` before the first sync and after an error: everything has to be compared.
    open: Option<Open>,
}

impl Kernel {
    pub fn new(table: String) -> Self {
        Kernel { table, open: None }
    }

    /// Has the next sync compare everything.
    pub fn forget(&mut self) {
        self.open = None;
    }

    /// Carries out what has changed, or everything; `true` if it was everything.
    pub fn sync(&mut self, policies: &Mutex<Policies>) -> Result<bool> {
        let Some(mut open) = self.open.take() else {
            self.open = Some(self.compare(policies)?);
            return Ok(true);
        };
        let change = policies.lock().take_change();
        // After an error it stays closed.
        self.carry_out(&mut open, &change)?;
        self.open = Some(open);
        Ok(false)
    }

    fn carry_out(&self, open: &mut Open, change: &Change) -> Result<()> {
        let additions = change.additions(&self.table);
        if !additions.is_empty() {
            script::run(&additions)?;
            open.table = Table::read(&mut open.nftables, Family::Inet, &self.table)?;
        }
        let mut fill = Batch::new();
        for (name, set) in &change.sets {
            let of = open.table.set(name)?;
            for (key, data) in &set.elements {
                fill.add(of, element(key, data.as_ref()))?;
                if fill.is_full() {
                    open.nftables.commit(&std::mem::take(&mut fill))?;
                }
            }
        }
        open.nftables.commit(&fill)?;
        let mut removals = Batch::new();
        let mut additions = Batch::new();
        for operation in &change.operations {
            let set = open.table.set(&operation.set)?;
            if let Some(data) = &operation.before {
                removals.delete(set, element(&operation.key, data.as_ref()))?;
            }
            if let Some(data) = &operation.after {
                additions.add(set, element(&operation.key, data.as_ref()))?;
            }
        }
        removals.append(&additions);
        open.nftables.commit(&removals)?;
        let deletions = change.deletions(&self.table);
        if !deletions.is_empty() {
            script::run(&deletions)?;
        }
        Ok(())
    }

    fn compare(&self, policies: &Mutex<Policies>) -> Result<Open> {
        let mut nftables = Nftables::open()?;
        let generation = nftables.generation()?;
        let (skeleton, ruleset) = {
            let mut policies = policies.lock();
            (skeleton(policies.config()), policies.ruleset())
        };
        // Sets and maps, and chains of groups, come before the chains that lead to them.
        script::run(&(skeleton + &ruleset.additions(&self.table)))?;
        let table = Table::read(&mut nftables, Family::Inet, &self.table)?;
        let peers: Vec<&str> = ruleset.sets.keys().map(|name| &**name).collect();
        let peers: Vec<&str> = peers
            .into_iter()
            .filter(|name| !FIXED_SETS.contains(name))
            .collect();
        for names in [&peers, &FIXED_SETS[..]] {
            let batch = difference(&mut nftables, &table, &ruleset, names)?;
            nftables.commit(&batch)?;
        }
        let left = self::names(&mut nftables, &self.table)?;
        let deletions = ruleset.deletions(&self.table, &left.chains, &left.sets);
        if !deletions.is_empty() {
            script::run(&deletions)?;
        }
        Ok(Open {
            nftables,
            table,
            generation,
        })
    }

    /// Whether all sets and chains still exist. Cheap while no commit happens.
    pub fn is_intact(&mut self, policies: &Mutex<Policies>) -> Result<bool> {
        let Some(open) = &mut self.open else {
            return Ok(false);
        };
        let generation = open.nftables.generation()?;
        if generation == open.generation {
            return Ok(true);
        }
        let names = names(&mut open.nftables, &self.table)?;
        let (groups, sets) = {
            let counts = policies.lock().counts();
            (counts.groups, 2 * counts.sets)
        };
        open.generation = generation;
        let has = |name: &str| names.chains.iter().any(|chain| **chain == *name);
        Ok(names.sets.len() >= sets + FIXED_SETS.len()
            && names.chains.len() >= groups + 2
            && has("forward")
            && has("input"))
    }
}

fn difference(nftables: &mut Nftables, table: &Table, ruleset: &Ruleset, names: &[&str]) -> Result<Batch> {
    let mut comparison = Comparison::read(nftables, table, names)?;
    for name in names {
        let elements = ruleset.sets.get(*name).into_iter().flat_map(|set| &set.elements);
        for (key, data) in elements {
            comparison.want(name, key, data.as_ref())?;
        }
    }
    comparison.batch()
}

/// Deletes UDP flows from and to these addresses. They are an earlier pod's, and their packets would pass as those of
/// established connections.
fn delete_flows(stale: &StaleAddresses) -> std::result::Result<(), knarr_nftables::Error> {
    let mut conntrack = Conntrack::open()?;
    for (family, is_ipv4) in [(Family::Ip, true), (Family::Ip6, false)] {
        if stale.has_family(is_ipv4) {
            conntrack.delete(family, UDP, |flow| {
                let tuples = [flow.original, flow.reply];
                tuples
                    .iter()
                    .any(|tuple| stale.contains(tuple.source.ip()) || stale.contains(tuple.destination.ip()))
            })?;
        }
    }
    Ok(())
}
