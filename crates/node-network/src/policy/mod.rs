//! Keeps the rules of NetworkPolicies in the kernel (SPEC N6).
//!
//! Decisions are in `knarr_network::policy`; here the API is watched, and one table of nf_tables follows.
//!
//! - **Start**: what an earlier process left stays in force until everything needed is known. Then new chains and sets
//!   are made next to the old ones, the pods' elements move to them in one transaction, and the old ones are deleted.
//! - **A pod is added** ([`NetworkPolicies::attach`], awaited before it may send): its addresses are isolated at once,
//!   flows of an earlier pod with them are deleted if there may be any, and its rules are put in force when its object is
//!   known and so are all policies that are as old. In doubt the call fails, and the pod does not start.
//! - **A pod is removed** ([`NetworkPolicies::detach`]): its flows are deleted soon, with those of other removed pods, so
//!   that the next pod with its address need not wait for that ([`clean_addresses`] says why none are added meanwhile).
//! - **A change** is one commit, for new sets and chains preceded by what makes them.
//! - **An error**, or a deletion by another program, is followed by a full comparison. Until that succeeds the kernel
//!   keeps what it has.
//!
//! Pods of other nodes are watched only while a policy that selects a local pod has peers by selectors.

mod attach;
mod clean_addresses;
mod driver;
mod events;
mod flows;
mod informers;
mod kernel;
mod metrics;

use std::net::IpAddr;
use std::sync::Arc;

use knarr_apimachinery::ids::NodeName;
use knarr_client::Api;
use knarr_client::events::EventRecorder;
use knarr_network::catalog::Protocol;
use knarr_network::policy::{self, Endpoint, Explanation, Policies};
use knarr_nftables::{Batch, Family, Nftables};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{JoinSet, spawn_blocking};

pub use self::attach::AttachError;
pub use self::clean_addresses::StaleAddresses;
pub use knarr_network::policy::{Attachment, PodKey};

use self::flows::Flows;
use self::informers::{Origins, SyncedRevisions};
use self::kernel::KernelTable;
pub use self::kernel::PolicyTable;
use self::metrics::Metrics;
use crate::routes::Unreachable;
use crate::signal::Signal;
use crate::table::TableError;

/// The table's name, if no other knarr shares the network namespace.
pub const TABLE: &str = "knarr-policy";

pub struct Config {
    /// Of the family `inet`: [`TABLE`], or with a suffix.
    pub table: String,
    pub node_name: NodeName,
    /// Addresses on which this node answers DNS.
    pub dns: Vec<IpAddr>,
    /// Records problems of policies that select local pods.
    pub events: Option<EventRecorder>,
}

/// What the parts share.
struct State {
    api: Arc<dyn Api>,
    node_name: NodeName,
    policies: Arc<Mutex<Policies>>,
    table: Arc<dyn PolicyTable>,
    /// Of which sandboxes it knows is changed while `policies` is locked.
    flows: Flows,
    origins: Mutex<Origins>,
    reached: Signal<SyncedRevisions>,
    /// Counts changes of `policies`; read and written while that is locked.
    version: Mutex<u64>,
    wake: Notify,
    /// The version that the kernel has; `None` before the first sync.
    committed: Signal<Option<u64>>,
    metrics: Metrics,
}

impl State {
    /// Changes what is known and has the kernel follow. The version to wait for.
    fn change<T>(&self, change: impl FnOnce(&mut Policies) -> T) -> (T, u64) {
        let mut policies = self.policies.lock();
        let value = change(&mut policies);
        let version = {
            let mut version = self.version.lock();
            *version += 1;
            *version
        };
        drop(policies);
        self.wake.notify_one();
        (value, version)
    }
}

/// The enforcement of policies on this node. Dropping it ends it and leaves the rules as they are.
pub struct NetworkPolicies {
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

impl NetworkPolicies {
    /// `attachments` are those of the pods that run already; their rules stay as they are until everything is known. Blocks
    /// for a moment to read names from the kernel; needs a tokio runtime.
    pub fn start(
        api: Arc<dyn Api>,
        config: Config,
        attachments: impl IntoIterator<Item = Attachment>,
    ) -> Result<Self, TableError> {
        let names = kernel::names(&mut Nftables::open()?, &config.table)?;
        let first_number = policy::Ruleset::number_above(names.all().map(|name| &**name));
        let table = Arc::new(KernelTable::new(config.table.clone()));
        Ok(Self::start_with(api, config, attachments, table, first_number))
    }

    /// As [`NetworkPolicies::start`], with another table, whose sets and chains have numbers below `first_number`.
    pub fn start_with(
        api: Arc<dyn Api>,
        config: Config,
        attachments: impl IntoIterator<Item = Attachment>,
        table: Arc<dyn PolicyTable>,
        first_number: u64,
    ) -> Self {
        let of = policy::Config {
            table: config.table.as_str().into(),
            dns: config.dns,
        };
        let mut policies = Policies::new(of, first_number);
        let flows = Flows::default();
        for attachment in attachments {
            let sandbox = attachment.sandbox.clone();
            flows.attach(&sandbox, &attachment.addresses);
            policies.attach(attachment);
            policies.release(&sandbox);
        }
        let state = Arc::new(State {
            api,
            node_name: config.node_name,
            policies: Arc::new(Mutex::new(policies)),
            table,
            flows,
            origins: Mutex::default(),
            reached: Signal::default(),
            version: Mutex::new(0),
            wake: Notify::new(),
            committed: Signal::default(),
            metrics: Metrics::new(),
        });
        let mut tasks = JoinSet::new();
        for informer in informers::always(&state) {
            tasks.spawn(informer);
        }
        tasks.spawn(driver::run(state.clone(), config.events));
        let deleting = state.clone();
        tasks.spawn(async move { deleting.flows.run(&*deleting.table).await });
        NetworkPolicies { state, _tasks: tasks }
    }

    /// The sandbox, its link and the routes to its addresses were removed.
    pub fn detach(&self, sandbox: &str) {
        let state = &self.state;
        state.change(|policies| {
            policies.detach(sandbox);
            state.flows.detach(sandbox);
        });
    }

    /// All attached sandboxes but these were removed, as with [`NetworkPolicies::detach`]. `is_there` is asked while no other
    /// can be attached: one that is attached at the same time is there before that.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        let state = &self.state;
        state.change(|policies| {
            let known: Vec<Arc<str>> = policies.sandboxes().cloned().collect();
            for removed in known.iter().filter(|sandbox| !is_there(sandbox)) {
                policies.detach(removed);
                state.flows.detach(removed);
            }
        });
    }

    /// The ranges of which this node drops all packets from and to addresses that no attached sandbox has: its own pod
    /// CIDRs. Only pods with such addresses are attached without a dump of the conntrack table. None are known at first.
    pub fn set_unreachable(&self, unreachable: &Unreachable) {
        self.state.flows.set_unreachable(unreachable);
    }

    /// Returns when all that is known now is in the kernel.
    pub async fn synced(&self) {
        let (_, version) = self.state.change(|_| ());
        self.state
            .committed
            .wait_for(|committed| *committed >= Some(version))
            .await;
    }

    /// See [`Policies::explain`].
    pub fn explain(&self, from: &Endpoint, to: &Endpoint, protocol: Protocol, port: u16) -> Explanation {
        self.state.policies.lock().explain(from, to, protocol, port)
    }

    /// In the text format of Prometheus.
    pub fn metrics(&self) -> String {
        let counts = self.state.policies.lock().counts();
        self.state.metrics.text(&counts)
    }
}

/// Deletes the table, with all rules.
pub async fn remove_all(table: &str) -> Result<(), TableError> {
    let table = table.to_string();
    let removed = spawn_blocking(move || {
        let mut nftables = Nftables::open()?;
        let mut batch = Batch::new();
        batch.delete_table(Family::Inet, &table);
        match nftables.commit(&batch) {
            Err(error) if error.is_not_found() => Ok(()),
            result => result.map_err(TableError::from),
        }
    });
    removed
        .await
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}
