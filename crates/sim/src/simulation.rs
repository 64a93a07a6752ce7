//! One history from its seed to its report.

mod convergence;
mod features;
mod report;
mod shape;

use std::sync::Arc;
use std::time::Duration;

use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_client::{Clock, TokioClock};
use knarr_control::nodeipam;
use knarr_kubelet::self_fencing::SelfFencing;
use tokio::time::{Instant, sleep};

use crate::Mutation;
use crate::attacher::Attacher;
use crate::components::{Control, Environment, Node};
use crate::faults::Faults;
use crate::fence_agents::{self, Agents};
use crate::observer::Observer;
use crate::progress::{Progress, READINGS};
use crate::random::{Stream, stream};
use crate::readers::Reader;
use crate::script::{Reduction, Script};
use crate::servers::ApiServer;
use crate::store::ObservedStore;
use crate::switches::{Plan, Swarm, Switch, Switches};
use crate::trouble::{Streams, Trouble, denied};
use crate::users::Users;
use convergence::Convergence;
use features::{Features, is_about_services};
pub use report::Report;
use shape::ClusterShape;

/// The prefix length of a node's podCIDR: 61 addresses for pods, more than one node ever needs; where an address that
/// is reused too early is to be found, 5.
const NODE_PREFIX: u8 = 26;
const SHORT_NODE_PREFIX: u8 = 29;
/// For 64 nodes or 512.
const CLUSTER_CIDR: &str = "10.244.0.0/20";
/// The time at the beginning of every history.
pub(crate) const EPOCH: &str = "2026-01-01T00:00:00Z";
/// A history that can be run. See the crate.
#[derive(Clone, Debug)]
pub struct Simulation {
    seed: u64,
    nodes: Option<usize>,
    pace: Option<Pace>,
    rare: bool,
    mutation: Option<Mutation>,
    whole: bool,
    story: bool,
    swarm: Swarm,
    replayed: Option<(Arc<Script>, Reduction)>,
}

/// How close together events are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// A few minutes with an event every few seconds, as no real cluster has them: faults overlap.
    Dense,
    /// Hours with an event every few minutes, and most faults last for minutes: what only long faults cause (pods
    /// that are evicted after five minutes, the longest backoffs) happens, and at the end the cluster is observed at
    /// rest.
    Slow,
}

impl Simulation {
    pub fn new(seed: u64) -> Self {
        Simulation {
            seed,
            nodes: None,
            pace: None,
            rare: false,
            mutation: None,
            whole: false,
            story: false,
            swarm: Swarm::BySeed,
            replayed: None,
        }
    }

    /// The number of nodes, whatever the seed says.
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// The pace, whatever the seed says.
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = Some(pace);
        self
    }

    /// With rare faults, whatever the seed says: one-way links, replaced machines, clocks that are set, drained
    /// nodes.
    pub fn rare(mut self) -> Self {
        self.rare = true;
        self
    }

    pub fn mutation(mut self, mutation: Mutation) -> Self {
        self.mutation = Some(mutation);
        self
    }

    /// The report has the story of a broken history, and every line.
    pub fn story(mut self) -> Self {
        (self.whole, self.story) = (true, true);
        self
    }

    /// With some of its features and faults only, or all of them, whatever the seed says.
    pub fn swarm(mut self, swarm: Swarm) -> Self {
        self.swarm = swarm;
        self
    }

    /// Replays the script, which is of this history, with some of it left out.
    pub fn replay(mut self, script: Arc<Script>, reduction: Reduction) -> Self {
        self.replayed = Some((script, reduction));
        self
    }

    /// The same history with some of it left out: it is run first to record its script.
    pub fn reduced(self, reduction: Reduction) -> std::io::Result<Self> {
        let script = Arc::new(self.clone().run()?.script);
        Ok(self.replay(script, reduction))
    }

    /// The report has every line, not the last ones only.
    pub fn whole_trace(mut self) -> Self {
        self.whole = true;
        self
    }

    /// Runs it on this thread, to its end or to the first broken rule.
    pub fn run(self) -> std::io::Result<Report> {
        let directory = directory()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()?;
        runtime.block_on(self.history(directory.path().to_path_buf()))
    }

    /// Whether its mutation breaks this rule.
    fn is_sought(&self, rule: &str) -> bool {
        self.mutation.is_some_and(|mutation| mutation.rule() == rule)
    }

    async fn history(self, directory: std::path::PathBuf) -> std::io::Result<Report> {
        let epoch: Timestamp = EPOCH.parse().map_err(std::io::Error::other)?;
        let progress = Progress::new(TokioClock::new(epoch));
        let began = Instant::now();
        let observer = Arc::new(Observer::new(
            progress.clone(),
            self.whole,
            self.story,
            &directory,
        ));
        let mut chance = stream(self.seed, "simulation");
        let shape = ClusterShape::draw_at(self.pace, self.seed, &mut chance);
        let reduction = self.replayed.as_ref().map(|(_, reduction)| reduction.clone());
        let reduction = reduction.unwrap_or_default();
        let plan = Plan::new(self.seed, self.swarm, reduction.without);
        let nodes = self.nodes.unwrap_or(shape.nodes);
        let nodes = reduction.nodes.map_or(nodes, |most| nodes.min(most.max(1)));
        let mut streams = Streams::of(self.seed);
        let mut caring = stream(self.seed, "at most one");
        let drawn = Features::draw(&self, &plan, shape.rare, &mut streams, &mut caring);
        let on = drawn.on;
        let all = Switch::ALL.iter().copied();
        let off: Switches = all.filter(|switch| !on.has(*switch)).collect();
        let how = match plan.swarmed() {
            Some(_) => "swarmed",
            None => "not swarmed",
        };
        observer.remark(&format!("switches ({how}), on: {on}"));
        observer.remark(&format!("switches, off: {off}"));
        observer.note(&format!(
            "{nodes} nodes, {} servers, {} replicas of the controllers",
            shape.servers,
            shape.controls.len()
        ));
        let agents = Arc::new(Agents::new(
            observer.clone(),
            stream(self.seed, "fence agents"),
            self.mutation,
        ));
        let self_fencing = match on.has(Switch::SelfFencing) {
            true => SelfFencing::AtMostOne,
            false => SelfFencing::Annotated,
        };
        observer.note(&format!("nodes end by themselves: {self_fencing:?}"));
        observer.set_self_fencing(self_fencing);
        let mut environment = Environment {
            seed: self.seed,
            servers: Arc::default(),
            observer: observer.clone(),
            clock: progress.clone(),
            epoch,
            directory,
            mutation: self.mutation,
            fence_agents: Arc::new(fence_agents::Handle(agents.clone())),
            fence_agents_allowed: fence_agents::allowed(),
            self_fencing,
            proxied: on.has(Switch::Services),
            networked: on.has(Switch::PodNetwork),
            staged: on.has(Switch::Staging),
            named: on.has(Switch::Names),
            node_ipam: node_ipam(if self.is_sought("N1") {
                SHORT_NODE_PREFIX
            } else {
                NODE_PREFIX
            })?,
            on,
        };
        let store = on.has_store_faults();
        // The users' own server never loses a commit's answer: another one is needed.
        let servers = if store {
            shape.servers.max(2)
        } else {
            shape.servers
        };
        if store {
            observer.keep_commits();
        }
        if is_about_services(on) {
            observer.keep_network_versions();
        }
        environment.servers = Arc::new(start_servers(&environment, servers).await?);
        let controls: Vec<_> = shape
            .controls
            .iter()
            .map(|(name, elected)| Control::new(&environment, name, *elected))
            .collect();
        let nodes: Vec<_> = (1..=nodes).map(|n| Node::new(&environment, n)).collect();
        agents.connect(&nodes);
        let mut faults = Faults {
            nodes,
            controls,
            servers: environment.servers.clone(),
            observer: observer.clone(),
            chance: stream(self.seed, "faults"),
            lengths: shape.lengths,
            plan,
            on,
            attacher: None,
        };
        if on.has(Switch::Upgrade) {
            faults.begin_with_former(&mut streams.upgrading);
        }
        faults.nodes.iter().for_each(|node| node.start());
        faults.controls.iter().for_each(|control| control.start());
        let first = environment.servers.first().and_then(|s| s.admin());
        let admin = first.ok_or_else(|| std::io::Error::other("no API server runs"))?;
        let mut users = Users::new(admin, observer.clone(), stream(self.seed, "users"), plan);
        let prepared = self.prepare(&environment, &mut users, &mut faults, &mut streams, caring);
        let prepared = unless_stuck(&progress, &observer, prepared).await?;
        let readers = prepared.unwrap_or_default();
        let mut trouble = Trouble {
            users,
            faults,
            streams,
            possible_turns: drawn.possible_turns(shape.pause_millis),
            plan,
            began,
            script: Script::default(),
            has_policy: !on.has(Switch::Fencing),
        };
        let troubled = async {
            match &self.replayed {
                Some((script, reduction)) => trouble.play(script, reduction).await,
                None => trouble.draw(&mut chance, shape.troubled).await,
            }
        };
        unless_stuck(&progress, &observer, troubled).await?;
        let Trouble {
            mut users,
            faults,
            script,
            ..
        } = trouble;
        let mut convergence = Convergence::new();
        if observer.violation().is_none() {
            let converges = convergence.run(&faults, &mut users, &agents, &readers, shape.rest);
            unless_stuck(&progress, &observer, converges).await?;
        }
        let Convergence { healed, settled } = convergence;
        let (digest, events) = observer.digest();
        Ok(Report {
            seed: self.seed,
            digest,
            events,
            converged_after: settled - healed,
            troubled: healed - began,
            lasted: began.elapsed(),
            violation: observer.violation(),
            trace: observer.last_lines(),
            coverage: observer.coverage().of_one(on),
            switches: on,
            nodes: faults.nodes.len(),
            script,
        })
    }

    /// What users create before anything else happens; the readers of all servers.
    async fn prepare(
        &self,
        environment: &Environment,
        users: &mut Users,
        faults: &mut Faults,
        streams: &mut Streams,
        caring: Stream,
    ) -> std::io::Result<Vec<Arc<Reader>>> {
        sleep(Duration::from_secs(2)).await;
        let observer = &environment.observer;
        let on = environment.on;
        let readers = match on.has_store_faults() {
            true => Reader::start_all(&environment.servers, observer, |server| {
                stream(self.seed, &format!("reader/{server}"))
            }),
            false => Vec::new(),
        };
        faults.set_fault_rates();

        if on.has(Switch::AtMostOne) {
            users.use_at_most_one(caring);
        }
        if environment.proxied {
            users.create_services().await.map_err(denied)?;
        }
        if environment.networked {
            let created = users.create_policy(&mut streams.policing).await;
            created.map_err(denied)?;
        }
        if on.has(Switch::Disks) {
            users.create_disks().await.map_err(denied)?;
        }
        if let (true, Some(first)) = (environment.staged, environment.servers.first()) {
            let chance = stream(self.seed, "external-attacher");
            faults.attacher = Some(Attacher::start(first.clone(), observer.clone(), chance));
            users.create_volumes().await.map_err(denied)?;
        }
        if on.has(Switch::Crowding) {
            users.create_priorities().await.map_err(denied)?;
        }
        if on.has(Switch::Quotas) {
            users.create_quotas().await.map_err(denied)?;
        }
        if on.has(Switch::CustomResources) {
            users.add_custom_kind_handler(environment.follower());
        }
        Ok(readers)
    }
}

/// Runs a part of a history; `None` if it stays at one moment, which is a violation.
async fn unless_stuck<T>(
    progress: &Progress,
    observer: &Observer,
    part: impl Future<Output = std::io::Result<T>>,
) -> std::io::Result<Option<T>> {
    let done = progress.of(part).await;
    if done.is_none() {
        observer.violate(
            "S9",
            format!("components read the time {READINGS} times at one moment: it does not end"),
        );
    }
    done.transpose()
}

/// The directory for the files of kubelets and servers: in memory if the system has such a place, because a file
/// system would otherwise take a tenth of a history's time.
fn directory() -> std::io::Result<tempfile::TempDir> {
    const IN_MEMORY: &str = "/dev/shm";
    let made = tempfile::Builder::new()
        .prefix("knarr-sim-")
        .tempdir_in(IN_MEMORY);
    made.or_else(|_| tempfile::tempdir())
}

async fn start_servers(environment: &Environment, servers: usize) -> std::io::Result<Vec<Arc<ApiServer>>> {
    let memory = knarr_store::open(knarr_store::Config::Memory).await;
    let store = Arc::new(ObservedStore {
        inner: memory.map_err(std::io::Error::other)?,
        observer: environment.observer.clone(),
        mutation: environment.mutation,
        decoded: Arc::default(),
    });
    let mut started = Vec::new();
    for number in 1..=servers {
        let clock: Arc<dyn Clock> = environment.clock_of(&format!("api-{number}"));
        started.push(
            ApiServer::start_new(environment.seed, number, &store, clock, &environment.directory).await?,
        );
    }
    Ok(started)
}

fn node_ipam(prefix: u8) -> std::io::Result<nodeipam::Config> {
    let flags = nodeipam::Flags {
        cluster_cidrs: vec![CLUSTER_CIDR.into()],
        node_cidr_mask_size_ipv4: prefix,
        ..nodeipam::Flags::default()
    };
    nodeipam::Config::try_from(&flags).map_err(|errors| std::io::Error::other(errors.join(", ")))
}
