//! Brings the kernel's tables to what was decided. Everything here blocks; the driver calls it off the async workers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use knarr_network::catalog::ServiceKey;
use knarr_network::proxy::{self, Element, Family, HealthCheck, NodeFacts, Proxy, StaleUdp, layout};
use knarr_nftables::{Batch, Errno, Nftables, Operation, Rejection, script};
use tracing::{error, info, warn};

use super::sysctl;
use super::transaction::{FAMILIES, Tables, Transaction, nft_family};
use crate::catalog::Shared;
use crate::table::{Comparison, Table, TableError};

/// What is to be done.
#[derive(Debug)]
pub(super) enum KernelTask {
    /// These Services have changed, or the facts of the node have.
    Changes {
        services: BTreeSet<ServiceKey>,
        node: NodeFacts,
    },
    /// Check whether another program has changed the tables' declarations.
    Glance,
    /// Check whether another program has changed anything.
    Check,
}

/// The result of a task.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Flows to removed endpoints.
    pub stale_udp: Vec<StaleUdp>,
    pub health_checks: Vec<(ServiceKey, HealthCheck)>,
    /// Whether everything was compared.
    pub is_full: bool,
}

/// The tables, as they were last read.
struct Open {
    nftables: Nftables,
    tables: Tables,
    /// The ruleset's number after our last commit, unless another program has committed since we last compared.
    generation: Option<u32>,
    /// The ruleset's number when the tables were last seen.
    glanced: u32,
}

/// The timeouts of session affinity that the tables have chains for. Chains stay when no Service needs them any more: there
/// are not many.
#[derive(Default)]
struct AffinityChains {
    there: BTreeSet<u32>,
    missing: BTreeSet<u32>,
}

impl AffinityChains {
    fn need(&mut self, timeout: Option<u32>) {
        self.missing
            .extend(timeout.filter(|seconds| !self.there.contains(seconds)));
    }
}

/// The proxy's state and what the kernel has of it.
pub(super) struct Kernel {
    config: proxy::Config,
    catalog: Arc<Shared>,
    proxy: Proxy,
    /// Nothing was ever applied: the kernel's slots are adopted first.
    is_new: bool,
    /// Services that have changed and are not written yet.
    unapplied: BTreeSet<ServiceKey>,
    /// `None` before the first comparison, and after an error.
    open: Option<Open>,
    affinity: AffinityChains,
    /// Elements that the kernel rejects: set and key. Left out until the next check, so that one element does not block
    /// the rest.
    left_out: BTreeSet<(String, Box<[u8]>)>,
    /// To be deleted when the kernel has what was applied, also if that takes several attempts. By frontend, of which the
    /// newest counts.
    stale_udp: BTreeMap<(Family, Option<IpAddr>, u16), StaleUdp>,
}

/// When the kernel rejects more than this, it is not the elements' fault.
const MAX_LEFT_OUT: usize = 64;

impl Kernel {
    pub fn new(config: proxy::Config, catalog: Arc<Shared>) -> Self {
        Kernel {
            proxy: Proxy::new(config.clone(), NodeFacts::default()),
            config,
            catalog,
            is_new: true,
            unapplied: BTreeSet::new(),
            open: None,
            affinity: AffinityChains::default(),
            left_out: BTreeSet::new(),
            stale_udp: BTreeMap::new(),
        }
    }

    /// After an error the kernel has all of a transaction or nothing; the next call compares everything.
    pub fn carry_out(&mut self, work: KernelTask) -> Result<Done, TableError> {
        let mut done = Done::default();
        let result = self.try_to(work, &mut done);
        match result {
            Ok(()) => {
                let checks = self.proxy.health_checks();
                done.health_checks = checks.map(|(key, check)| (key.clone(), check)).collect();
                done.stale_udp = std::mem::take(&mut self.stale_udp).into_values().collect();
                Ok(done)
            }
            Err(error) => {
                self.open = None;
                Err(error)
            }
        }
    }

    fn try_to(&mut self, work: KernelTask, done: &mut Done) -> Result<(), TableError> {
        let is_due = match work {
            KernelTask::Changes { services, node } => {
                self.unapplied.extend(services);
                if self.proxy.set_node(node) || self.is_new {
                    let catalog = self.catalog.read();
                    self.unapplied
                        .extend(catalog.services().map(|(key, _)| key.clone()));
                }
                false
            }
            KernelTask::Glance => !self.is_intact()?,
            KernelTask::Check => {
                let has_left_out = !self.left_out.is_empty();
                self.left_out.clear();
                has_left_out || !self.is_untouched()?
            }
        };
        match self.open.take().filter(|_| !is_due) {
            Some(mut open) => {
                self.apply(&mut open)?;
                self.open = Some(open);
            }
            None => {
                self.open = loop {
                    match self.compare(done) {
                        Ok(open) => break Some(open),
                        Err(error) if self.leave_out(&error) => (),
                        Err(error) => return Err(error),
                    }
                };
            }
        }
        Ok(())
    }

    /// Commits the changes of Services. Each Service's are in one transaction.
    fn apply(&mut self, open: &mut Open) -> Result<(), TableError> {
        let mut transaction = Transaction::default();
        while let Some(key) = self.unapplied.pop_first() {
            let mut change = self.proxy.apply(&self.catalog.read(), &key);
            self.affinity.need(self.proxy.affinity_timeout(&key));
            self.keep_stale(std::mem::take(&mut change.stale_udp));
            transaction.put(&open.tables, &change)?;
            if transaction.is_full() {
                self.declare_affinity(open)?;
                open.commit(&transaction.take())?;
            }
        }
        self.declare_affinity(open)?;
        open.commit(&transaction.take())?;
        Ok(())
    }

    fn keep_stale(&mut self, stale: Vec<StaleUdp>) {
        let by_frontend = stale.into_iter().map(|s| ((s.family, s.address, s.port), s));
        self.stale_udp.extend(by_frontend);
    }

    /// Reads everything, and commits what is different at one moment. Into empty tables Services go one after the other.
    fn compare(&mut self, done: &mut Done) -> Result<Open, TableError> {
        done.is_full = true;
        let mut nftables = Nftables::open()?;
        self.declare(&mut nftables)?;
        sysctl::set(&proxy::sysctls(&self.config));
        let generation = nftables.generation()?;
        let tables = self.read_tables(&mut nftables)?;
        let mut compared = Vec::new();
        for family in FAMILIES {
            compared.push((
                family,
                Comparison::read(&mut nftables, tables.of(family), &layout::ALL)?,
            ));
        }
        let mut open = Open {
            nftables,
            tables,
            generation: Some(generation),
            glanced: generation,
        };
        let is_empty = compared.iter().all(|(_, comparison)| comparison.elements() == 0);
        if is_empty && self.is_new {
            self.is_new = false;
            self.apply(&mut open)?;
            return Ok(open);
        }
        if self.is_new {
            for (family, comparison) in &compared {
                let endpoints = comparison.of_set(layout::ENDPOINTS);
                let node_port_endpoints = comparison.of_set(layout::NODE_PORT_ENDPOINTS);
                self.proxy.adopt(*family, &endpoints, &node_port_endpoints);
            }
            self.is_new = false;
        }
        while let Some(key) = self.unapplied.pop_first() {
            let change = self.proxy.apply(&self.catalog.read(), &key);
            self.affinity.need(self.proxy.affinity_timeout(&key));
            self.keep_stale(change.stale_udp);
        }
        self.declare_affinity(&mut open)?;
        self.proxy.finish_adoption();
        let mut batch = Batch::new();
        for (family, mut comparison) in compared {
            let mut result = Ok(());
            let table = format!("{} {}", family.name(), self.config.table);
            let is_left_out = |element: &Element| {
                let place = || (format!("{table} {}", element.set), element.key.start.clone());
                !self.left_out.is_empty() && self.left_out.contains(&place())
            };
            self.proxy.visit(family, &mut |element| {
                if result.is_ok() && !is_left_out(&element) {
                    result = comparison.want(element.set, &element.key, element.data.as_ref());
                }
            });
            result?;
            batch.append(&comparison.batch()?);
        }
        open.commit(&batch)?;
        Ok(open)
    }

    /// Whether everything but one more element may be tried.
    fn leave_out(&mut self, error: &TableError) -> bool {
        let TableError::Nftables(knarr_nftables::Error::Rejected(rejections)) = error else {
            return false;
        };
        let Some(Rejection {
            operation: Operation::AddElements,
            target,
            key: Some(key),
            errno,
        }) = rejections.first()
        else {
            return false;
        };
        // Without memory nothing is added; and this set does not deny access to any client.
        let is_general = matches!(errno, Errno::ENOMEM | Errno::EINTR | Errno::EAGAIN);
        if is_general || target.ends_with(layout::FIREWALLED) || self.left_out.len() >= MAX_LEFT_OUT {
            return false;
        }
        error!(%error, "an element is left out");
        self.left_out.insert((target.to_string(), key.clone()))
    }

    /// Chains, rules and empty sets. Tables of another version of knarr, whose sets are different, are replaced.
    fn declare(&self, nftables: &mut Nftables) -> Result<(), TableError> {
        let text: String = FAMILIES
            .map(|family| proxy::skeleton(&self.config, family, &self.affinity.there))
            .concat();
        let Err(error) = script::run(&text) else {
            return Ok(());
        };
        let mut removal = String::new();
        for family in FAMILIES.map(nft_family) {
            if !nftables.sets(family, &self.config.table)?.is_empty() {
                removal.push_str(&format!("delete table {family} {}\n", self.config.table));
            }
        }
        if removal.is_empty() {
            return Err(error.into());
        }
        warn!(%error, table = %self.config.table, "the tables are of another version and are replaced");
        // In one transaction: from nothing that works to nothing at all would be a longer gap.
        script::run(&(removal + &text))?;
        Ok(())
    }

    /// The chains that elements are about to lead to.
    fn declare_affinity(&mut self, open: &mut Open) -> Result<(), TableError> {
        if self.affinity.missing.is_empty() {
            return Ok(());
        }
        let text: String = FAMILIES
            .map(|family| proxy::affinity_chains(&self.config, family, &self.affinity.missing))
            .concat();
        let before = open.nftables.generation()?;
        script::run(&text)?;
        open.has_committed(before)?;
        self.affinity.there.append(&mut self.affinity.missing);
        Ok(())
    }

    fn read_tables(&self, nftables: &mut Nftables) -> Result<Tables, TableError> {
        let mut read = |family| Table::read(nftables, nft_family(family), &self.config.table);
        Ok(Tables {
            v4: read(Family::V4)?,
            v6: read(Family::V6)?,
        })
    }

    /// Whether the tables exist and are declared as before. Costs one request to the kernel while no commit happens.
    fn is_intact(&mut self) -> Result<bool, TableError> {
        let Some(open) = &mut self.open else {
            return Ok(false);
        };
        let generation = open.nftables.generation()?;
        if generation == open.glanced {
            return Ok(true);
        }
        open.glanced = generation;
        for family in FAMILIES {
            let now = Table::read(&mut open.nftables, nft_family(family), &self.config.table)?;
            if now != *open.tables.of(family) {
                info!(
                    family = family.name(),
                    "another program has changed the table, it is created again"
                );
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether no other program can have changed anything since our last commit.
    fn is_untouched(&mut self) -> Result<bool, TableError> {
        match &mut self.open {
            Some(open) => Ok(open.generation == Some(open.nftables.generation()?)),
            None => Ok(false),
        }
    }
}

impl Open {
    fn commit(&mut self, batch: &Batch) -> Result<(), TableError> {
        if batch.is_empty() {
            return Ok(());
        }
        let before = self.nftables.generation()?;
        self.nftables.commit(batch)?;
        self.has_committed(before)
    }

    /// Takes note of a commit of ours: the ruleset had the number `before`.
    fn has_committed(&mut self, before: u32) -> Result<(), TableError> {
        let after = self.nftables.generation()?;
        let is_ours = self.generation == Some(before) && after == before.wrapping_add(1);
        if self.glanced == before && after == before.wrapping_add(1) {
            self.glanced = after;
        }
        self.generation = is_ours.then_some(after);
        Ok(())
    }
}
