//! The pod network of a host: the agent's real address leases and its real enforcement of NetworkPolicies, with
//! simulated files and a simulated kernel. Files and kernel state outlive the agent; the kernel state is lost when
//! the host reboots.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipnet::IpNet;
use knarr_client::Api;
use knarr_kubelet::runtime::Sandbox;
use knarr_network::policy::{Attachment, PodKey};
use knarr_node::runtime::fake::{FakeRuntime, PodNetwork};
use knarr_node::runtime::{Result, Runtime, RuntimeError};
use knarr_node_network::own_node::OwnNodeWatch;
use knarr_node_network::pods::{Addresses, SandboxId};
use knarr_node_network::policy::{Config, NetworkPolicies};
use knarr_node_network::routes::Unreachable;
use parking_lot::Mutex;
use tokio::time::{Instant, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::Mutation;
use crate::observer::Observer;
use crate::policy_table::{Kernel, SimulatedTable, TableAccess};
use crate::random::{Stream, stream};

/// As in `pods::Server::reconcile`: until then a sandbox that the runtime does not list may still be under
/// construction.
const UNLISTED_AGE: Duration = Duration::from_secs(5 * 60);
const RECONCILE_EVERY: Duration = Duration::from_secs(60);
/// The time that the kernel takes for ADD and DEL.
const LINK_MILLIS: u64 = 40;

struct Record {
    addresses: Vec<IpAddr>,
    pod: PodKey,
    uid: String,
    /// ADD has been answered.
    is_ready: bool,
    since: Instant,
}

#[derive(Default)]
struct State {
    records: BTreeMap<SandboxId, Record>,
    last: BTreeMap<IpNet, IpAddr>,
    agent: Option<Arc<Agent>>,
    /// How many agents there were.
    agents: u64,
}

/// One incarnation of the agent.
struct Agent {
    addresses: Mutex<Addresses>,
    policies: NetworkPolicies,
    own: OwnNodeWatch,
    chance: Mutex<Stream>,
    dead: CancellationToken,
}

/// See the module.
pub(crate) struct NodePodNetwork {
    node: String,
    seed: u64,
    observer: Arc<Observer>,
    mutation: Option<Mutation>,
    kernel: Arc<Kernel>,
    state: Mutex<State>,
}

fn unavailable(why: &str) -> RuntimeError {
    RuntimeError::new(
        "Unknown",
        format!("failed to set up the sandbox's network: {why}"),
    )
}

fn id_of(sandbox: &str) -> Result<SandboxId> {
    SandboxId::try_from(sandbox.to_string()).map_err(|e| unavailable(&e.to_string()))
}

impl NodePodNetwork {
    pub fn new(node: &str, seed: u64, observer: Arc<Observer>, mutation: Option<Mutation>) -> Self {
        NodePodNetwork {
            node: node.into(),
            seed,
            observer,
            mutation,
            kernel: Arc::default(),
            state: Mutex::default(),
        }
    }

    /// Adopts what an earlier agent has left.
    pub fn start(self: &Arc<Self>, api: Arc<dyn Api>, runtime: Arc<FakeRuntime>, dead: &CancellationToken) {
        let mut state = self.state.lock();
        state.agents += 1;
        let name = format!("pod network/{}/{}", self.node, state.agents);
        let mut addresses = Addresses::new(state.last.clone());
        let mut running = Vec::new();
        let forgets = |mutation| self.mutation == Some(mutation);
        if forgets(Mutation::ForgetAddresses) {
            addresses = Addresses::new(Default::default());
        }
        for (sandbox, record) in &state.records {
            let addresses_known = record
                .addresses
                .iter()
                .filter(|_| !forgets(Mutation::ForgetAddresses));
            for address in addresses_known {
                if let Err(other) = addresses.reserve(*address, sandbox) {
                    let what = format!("{address} is recorded for {other} and {sandbox} of {}", self.node);
                    self.observer.violate("N1", what);
                }
            }
            if record.is_ready && !forgets(Mutation::ForgetAttached) {
                running.push(attachment(sandbox, record));
            }
        }
        let table = SimulatedTable {
            node: self.node.clone(),
            kernel: self.kernel.clone(),
            observer: self.observer.clone(),
            dead: dead.clone(),
            state: Mutex::new(TableAccess {
                chance: stream(self.seed, &format!("{name}/table")),
                is_known: false,
            }),
        };
        let config = Config {
            table: "knarr-policy".into(),
            node_name: self.node.as_str().into(),
            dns: Vec::new(),
            events: None,
        };
        let first_number = self.kernel.first_number();
        let policies =
            NetworkPolicies::start_with(api.clone(), config, running, Arc::new(table), first_number);
        state.agent = Some(Arc::new(Agent {
            addresses: Mutex::new(addresses),
            policies,
            own: OwnNodeWatch::start(api, &self.node),
            chance: Mutex::new(stream(self.seed, &name)),
            dead: dead.clone(),
        }));
        drop(state);
        let (network, dead) = (self.clone(), dead.clone());
        tokio::spawn(async move { dead.run_until_cancelled(network.reconcile(runtime)).await });
    }

    /// The agent was killed.
    pub fn crash(&self) {
        self.state.lock().agent = None;
    }

    /// After [`NodePodNetwork::crash`]: no files, rules or links are left.
    pub fn rebooted(&self) {
        self.state.lock().records.clear();
        self.kernel.rebooted();
        self.observer.unleased_all(&self.node);
        self.observer.policed(&self.node, Default::default());
    }

    /// After [`NodePodNetwork::rebooted`]: an empty disk.
    pub fn wiped(&self) {
        self.state.lock().last.clear();
    }

    fn agent(&self) -> Result<Arc<Agent>> {
        let agent = self.state.lock().agent.clone();
        agent.ok_or_else(|| unavailable("the agent does not answer"))
    }

    async fn reconcile(self: Arc<Self>, runtime: Arc<FakeRuntime>) {
        let mut ticks = interval(RECONCILE_EVERY);
        loop {
            ticks.tick().await;
            let old: Vec<SandboxId> = {
                let state = self.state.lock();
                let records = state.records.iter();
                let old = records.filter(|(_, record)| record.since.elapsed() >= UNLISTED_AGE);
                old.map(|(id, _)| id.clone()).collect()
            };
            let Ok(listed) = runtime.sandboxes().await else {
                continue;
            };
            for gone in old
                .iter()
                .filter(|id| !listed.iter().any(|s| s.id == id.as_str()))
            {
                // It tries again in a minute.
                let _ = self.delete(gone.as_str()).await;
            }
        }
    }

    /// Chooses addresses and records them.
    fn take(&self, agent: &Agent, sandbox: &Sandbox, cidrs: &[IpNet]) -> Result<Attachment> {
        let id = id_of(&sandbox.id)?;
        let mut state = self.state.lock();
        let mut addresses = agent.addresses.lock();
        if self.mutation == Some(Mutation::ReleaseAtDeletion) {
            let deleted = self.observer.world(|world| {
                let lives = world.pods.iter().filter(|(_, life)| life.deleted_at.is_some());
                lives.map(|(uid, _)| uid.clone()).collect::<Vec<_>>()
            });
            let records = state.records.iter();
            for (early, _) in records.filter(|(_, record)| deleted.contains(&record.uid)) {
                addresses.release(early);
            }
        }
        let taken = addresses.allocate(cidrs, &id);
        let taken = taken.map_err(|e| unavailable(&e.to_string()))?;
        let record = Record {
            addresses: taken.clone(),
            pod: PodKey::new(&sandbox.pod.namespace, &sandbox.pod.name),
            uid: sandbox.pod.uid.to_string(),
            is_ready: false,
            since: Instant::now(),
        };
        let of = attachment(&id, &record);
        state.records.insert(id, record);
        state.last = addresses.last().clone();
        drop((addresses, state));
        self.observer
            .leased(&self.node, &sandbox.id, &sandbox.pod.uid, &taken);
        Ok(of)
    }

    async fn add_by(self: &NodePodNetwork, agent: &Arc<Agent>, sandbox: &Sandbox) -> Result<Vec<String>> {
        let cidrs = agent.own.node().get().pod_cidrs;
        if cidrs.is_empty() {
            return Err(unavailable("the node has no pod CIDR yet"));
        }
        // The routes of a host are not simulated: they are there before the first ADD.
        agent.policies.set_unreachable(&Unreachable {
            ranges: cidrs.clone(),
            set: 0,
        });
        let id = id_of(&sandbox.id)?;
        let of = self.take(agent, sandbox, &cidrs)?;
        let addresses = of.addresses.clone();
        let ips = addresses.iter().map(ToString::to_string).collect();
        agent.pause().await;
        if self.mutation == Some(Mutation::StartBeforePolicy) {
            let (agent, observer) = (agent.clone(), self.observer.clone());
            let (node, sandbox) = (self.node.clone(), sandbox.id.clone());
            tokio::spawn(async move {
                if agent.policies.attach(of).await.is_ok() {
                    observer.attached(&node, &sandbox);
                }
            });
        } else if let Err(error) = agent.policies.attach(of).await {
            return Err(unavailable(&error.to_string()));
        } else {
            if let Some((address, other)) = self.kernel.connected(&sandbox.id, &addresses) {
                let what = format!(
                    "connections of sandbox {other} to {address} of {} pass as those of {}",
                    self.node, sandbox.id
                );
                self.observer.violate("N6", what);
            }
            self.observer.attached(&self.node, &sandbox.id);
        }
        agent.pause().await;
        if let Some(record) = self.state.lock().records.get_mut(&id) {
            record.is_ready = true;
        }
        Ok(ips)
    }

    async fn delete_by(&self, agent: &Agent, sandbox: &str) -> Result<()> {
        let id = id_of(sandbox)?;
        if let Some(record) = self.state.lock().records.get_mut(&id) {
            record.is_ready = false;
        }
        agent.pause().await;
        self.state.lock().records.remove(&id);
        agent.policies.detach(sandbox);
        agent.addresses.lock().release(&id);
        Ok(())
    }
}

impl Agent {
    async fn pause(&self) {
        let takes = self.chance.lock().millis(0, LINK_MILLIS);
        sleep(takes).await;
    }

    /// Nothing more of it is done when the agent has died.
    async fn unless_dead<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.dead.cancelled() => Err(unavailable("the agent is gone")),
            answer = call => answer,
        }
    }
}

fn attachment(sandbox: &SandboxId, record: &Record) -> Attachment {
    Attachment {
        sandbox: sandbox.as_str().into(),
        pod: Some(record.pod.clone()),
        uid: Some(record.uid.as_str().into()),
        addresses: record.addresses.clone(),
    }
}

#[async_trait]
impl PodNetwork for NodePodNetwork {
    async fn add(&self, sandbox: &Sandbox) -> Result<Vec<String>> {
        let agent = self.agent()?;
        agent.unless_dead(self.add_by(&agent, sandbox)).await
    }

    async fn delete(&self, sandbox: &str) -> Result<()> {
        // From now on nothing in the sandbox uses them, whether the agent knows it or not.
        self.observer.unleased(&self.node, sandbox);
        let agent = self.agent()?;
        agent.unless_dead(self.delete_by(&agent, sandbox)).await
    }
}
