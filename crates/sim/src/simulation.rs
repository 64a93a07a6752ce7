//! One history from its seed to its report.

mod report;
mod shape;

use std::sync::Arc;
use std::time::Duration;

use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_api::kinds::pod::is_terminal;
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
use crate::rules::{custom, n3_at_rest, n5_names, n6_policy, quota};
use crate::script::{Reduction, Script};
use crate::servers::ApiServer;
use crate::store::ObservedStore;
use crate::switches::{FIRST_SWARMED, Plan, Swarm, Switch, Switches};
use crate::trouble::{PossibleTurns, Streams, TICK, Trouble, denied, pass_until};
use crate::users::Users;
use crate::users::staging::stray_volume;
pub use report::Report;
use shape::ClusterShape;

/// Histories with disks, per mille.
const DISKS_PER_MILLE: u32 = 450;
/// Histories with fence agents, per mille.
const FENCING_PER_MILLE: u32 = 300;
/// Histories in which nodes self-fence all at-most-one pods, with the annotation or without, per mille.
const AT_MOST_ONE_PER_MILLE: u32 = 250;
/// Histories in which users set the at-most-one annotation on some pods, per mille.
const CAREFUL_PER_MILLE: u32 = 350;
/// Histories with too few resources for all pods, per mille.
const CROWDED_PER_MILLE: u32 = 250;
/// Histories with Services and proxies, per mille.
const PROXIED_PER_MILLE: u32 = 300;
/// Histories with a pod network and NetworkPolicies, per mille.
const NETWORKED_PER_MILLE: u32 = 300;
/// The prefix length of a node's podCIDR: 61 addresses for pods, more than one node ever needs; where an address that
/// is reused too early is to be found, 5.
const NODE_PREFIX: u8 = 26;
const SHORT_NODE_PREFIX: u8 = 29;
/// For 64 nodes or 512.
const CLUSTER_CIDR: &str = "10.244.0.0/20";
/// The time at the beginning of every history.
pub(crate) const EPOCH: &str = "2026-01-01T00:00:00Z";
/// The time from the last fault until the desired state is reached: twice the longest backoff (300 s), and the
/// quarter of an hour after which a controller resyncs without an event.
const CONVERGE_WITHIN: Duration = Duration::from_secs(25 * 60);
/// A cluster that has reached the desired state may still have leftovers to remove: until the longest backoff is
/// over.
const COMES_TO_REST_WITHIN: Duration = Duration::from_secs(6 * 60);
/// Switches of histories with rare faults only.
const RARE: [Switch; 6] = [
    Switch::OneWay,
    Switch::ReplacedMachine,
    Switch::ClockSet,
    Switch::ServerBehind,
    Switch::Drain,
    Switch::OutOfService,
];

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
        let mut streams = Streams {
            rarely: stream(self.seed, "rarely"),
            guarding: stream(self.seed, "fencing"),
            storing: stream(self.seed, "disks"),
            policing: stream(self.seed, "policies"),
            crowding: stream(self.seed, "crowding"),
            compacting: stream(self.seed, "store faults"),
            staging: stream(self.seed, "staged volumes"),
            ending: stream(self.seed, "endpoint ends"),
            quotas: stream(self.seed, "quotas"),
            custom: stream(self.seed, "custom resources"),
            upgrading: stream(self.seed, "upgrade"),
        };
        let mut caring = stream(self.seed, "at most one");
        // A mutant of disks, fencing or Services shows only in histories with them.
        let sought = |rule| self.mutation.is_some_and(|m| m.rule() == rule);
        let has = |switch, by_seed: bool, sought: bool| {
            plan.has(switch, by_seed) || sought && !plan.suppresses(switch)
        };
        // Each has a stream of its own, so that its draws shift no other's.
        let by_seed = |entity: &str, per_mille| stream(self.seed, entity).per_mille(per_mille);
        let mut features = vec![
            (
                Switch::SelfFencing,
                plan.has(
                    Switch::SelfFencing,
                    by_seed("self-fencing", AT_MOST_ONE_PER_MILLE),
                ),
            ),
            (
                Switch::Services,
                has(
                    Switch::Services,
                    by_seed("services", PROXIED_PER_MILLE),
                    sought("B7") || sought("N3"),
                ),
            ),
            (
                Switch::PodNetwork,
                has(
                    Switch::PodNetwork,
                    by_seed("pod network", NETWORKED_PER_MILLE),
                    sought("N1") || sought("N6"),
                ),
            ),
            (
                Switch::Disks,
                has(
                    Switch::Disks,
                    streams.storing.per_mille(DISKS_PER_MILLE),
                    sought("S7"),
                ),
            ),
            (
                Switch::AtMostOne,
                has(
                    Switch::AtMostOne,
                    caring.per_mille(CAREFUL_PER_MILLE),
                    sought("B4"),
                ),
            ),
            (
                Switch::Crowding,
                has(
                    Switch::Crowding,
                    self.seed >= FIRST_SWARMED && streams.crowding.per_mille(CROWDED_PER_MILLE),
                    sought("P4") || sought("P5"),
                ),
            ),
            (
                Switch::Fencing,
                has(
                    Switch::Fencing,
                    streams.guarding.per_mille(FENCING_PER_MILLE),
                    sought("S6"),
                ),
            ),
        ];
        for switch in Switch::ALL.iter().filter(|switch| switch.is_later()) {
            let sought = self.mutation.is_some_and(|m| m.needs() == Some(*switch));
            let by_seed = switch.is_drawn_later(self.seed, 0);
            features.push((*switch, has(*switch, by_seed, sought)));
        }
        let rare = match plan.swarmed() {
            _ if self.rare => true,
            Some(on) => RARE.iter().any(|switch| on.has(*switch)),
            None => shape.rare,
        };
        let fencing = features.contains(&(Switch::Fencing, true));
        let clocks = [Switch::DriftingClocks, Switch::WrongClocks];
        let clocks = clocks.iter().any(|switch| features.contains(&(*switch, true)));
        let drawn = plan.swarmed().is_some() && plan.draws(Switch::LostNode);
        let losses = sought("B4") || (clocks || drawn) && !fencing;
        let is_on = |switch: Switch| match features.iter().find(|(feature, _)| *feature == switch) {
            Some((_, on)) => *on,
            None if RARE.contains(&switch) && !rare => false,
            None if switch == Switch::LostNode && !(fencing || losses) => false,
            None if switch == Switch::AskForFencing && !fencing => false,
            None => plan.does(switch),
        };
        let all = || Switch::ALL.iter().copied();
        let mut on: Switches = all().filter(|switch| is_on(*switch)).collect();
        let about_services = on.has(Switch::EndpointEnds) || on.has(Switch::Names);
        if about_services && !plan.suppresses(Switch::Services) {
            on = on.with(Switch::Services);
        }
        let off: Switches = all().filter(|switch| !on.has(*switch)).collect();
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
            fence_agents: fence_agents::Handle(agents.clone()),
            self_fencing,
            proxied: on.has(Switch::Services),
            networked: on.has(Switch::PodNetwork),
            staged: on.has(Switch::Staging),
            named: on.has(Switch::Names),
            node_ipam: node_ipam(if sought("N1") {
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
        if about_services {
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
            possible_turns: PossibleTurns {
                rare,
                fencing,
                losses,
                disks: on.has(Switch::Disks),
                policies: environment.networked,
                crowding: on.has(Switch::Crowding),
                store,
                staging: environment.staged,
                endpoint_ends: environment.proxied && on.has(Switch::EndpointEnds),
                staging_crashes: environment.staged && on.has(Switch::StagingCrash),
                quotas: on.has(Switch::Quotas),
                custom: on.has(Switch::CustomResources),
                upgrade: on.has(Switch::Upgrade),
                pause_millis: shape.pause_millis,
            },
            plan,
            began,
            script: Script::default(),
            has_policy: !fencing,
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
        let (mut healed, mut settled) = (Instant::now(), Instant::now());
        if observer.violation().is_none() {
            let converges = async {
                faults.heal().await;
                agents.heal();
                healed = Instant::now();
                let committed = observer.world(|world| world.commits.newest_of_pods());
                while observer.violation().is_none() {
                    pass_until(Instant::now() + TICK, &faults).await;
                    users.drop_finalizers().await.map_err(denied)?;
                    users.make_room().await.map_err(denied)?;
                    users.raise_quotas().await.map_err(denied)?;
                    users.give_nodes_back().await.map_err(denied)?;
                    users.switch_on(&agents).await.map_err(denied)?;
                    let missing = match users.satisfied(&faults.servers).await.map_err(denied)? {
                        Ok(()) => strays(&observer, &faults.nodes),
                        missing => missing,
                    };
                    let missing = missing
                        .and_then(|()| observer.world(stray_volume))
                        .and_then(|()| readers.iter().try_for_each(|reader| reader.is_behind(committed)))
                        .map_err(|missing| ("S9", missing));
                    let missing = missing.and_then(|()| network_differs(&observer));
                    let Err((rule, missing)) = missing else { break };
                    if healed.elapsed() > CONVERGE_WITHIN {
                        observer.violate(
                            rule,
                            format!("{} s after the last fault: {missing}", CONVERGE_WITHIN.as_secs()),
                        );
                    }
                }
                settled = Instant::now();
                if !shape.rest.is_zero() && observer.violation().is_none() {
                    pass_until(settled + COMES_TO_REST_WITHIN, &faults).await;
                    observer.rest();
                    pass_until(settled + COMES_TO_REST_WITHIN + shape.rest, &faults).await;
                }
                Ok::<_, std::io::Error>(())
            };
            unless_stuck(&progress, &observer, converges).await?;
        }
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

/// Processes without a pod, and pods without their processes.
fn strays(observer: &Observer, nodes: &[Arc<Node>]) -> Result<(), String> {
    for node in nodes {
        for (id, whose) in node.runtime.running() {
            let uid = whose.split('/').next().unwrap_or_default();
            let accounted = observer.world(|w| {
                w.pods.get(uid).is_some_and(|life| {
                    !life.removed() && life.node() == node.name && !is_terminal(&life.pod)
                })
            });
            if !accounted {
                return Err(format!("{id} ({whose}) runs on {} for no pod", node.name));
            }
        }
    }
    Ok(())
}

/// What the kernels of the nodes have and the objects in the API do not say.
fn network_differs(observer: &Observer) -> Result<(), (&'static str, String)> {
    observer.world(|world| {
        n6_policy::at_rest(world).map_err(|what| ("N6", what))?;
        n3_at_rest::at_rest(world).map_err(|what| ("N3", what))?;
        n5_names::at_rest(world).map_err(|what| ("N5", what))?;
        quota::at_rest(world).map_err(|what| ("quota", what))?;
        custom::at_rest(world).map_err(|what| ("custom", what))
    })
}

fn node_ipam(prefix: u8) -> std::io::Result<nodeipam::Config> {
    let flags = nodeipam::Flags {
        cluster_cidrs: vec![CLUSTER_CIDR.into()],
        node_cidr_mask_size_ipv4: prefix,
        ..nodeipam::Flags::default()
    };
    nodeipam::Config::try_from(&flags).map_err(|errors| std::io::Error::other(errors.join(", ")))
}
