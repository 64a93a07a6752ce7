//! One history from its seed to its report.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_client::{Clock, TokioClock};
use knarr_control::nodeipam;
use knarr_kubelet::self_fencing::SelfFencing;
use tokio::time::{Instant, sleep};

use crate::attacher::Attacher;
use crate::components::{Control, Ground, Node};
use crate::coverage::Coverage;
use crate::faults::{Faults, Lengths};
use crate::fence_agents::{self, Agents};
use crate::observer::{Observer, Violation};
use crate::random::{Stream, stream};
use crate::readers::Reader;
use crate::rules::{custom, n3_at_rest, n5_names, n6_policy, quota};
use crate::script::{Reduction, Script};
use crate::servers::ApiServer;
use crate::store::ObservedStore;
use crate::switches::{FIRST_SWARMED, Plan, Swarm, Switch, Switches};
use crate::trouble::{Menu, Streams, TICK, Trouble, denied, pass_until};
use crate::users::Users;
use crate::users::staging::stray_volume;
use crate::{Mutation, world};

/// Histories of [`Pace::Slow`] among those whose pace is the seed's.
const SLOW_PER_MILLE: u32 = 300;
const HOUR_MILLIS: u64 = 3_600_000;
/// Histories in which something rare happens, among those of which nobody said so.
const WITH_RARE_PER_MILLE: u32 = 300;
/// Histories with disks among all, in thousandths.
const DISKS_PER_MILLE: u32 = 450;
/// The same of histories with fence agents.
const FENCING_PER_MILLE: u32 = 300;
/// Histories in which nodes end all that must not run twice, asked for or not.
const AT_MOST_ONE_PER_MILLE: u32 = 250;
/// Histories in which users ask for at most one of some pods.
const CAREFUL_PER_MILLE: u32 = 350;
/// Histories in which there is not room for everything.
const CROWDED_PER_MILLE: u32 = 250;
/// Histories with Services and proxies.
const PROXIED_PER_MILLE: u32 = 300;
/// Histories with a pod network and policies.
const NETWORKED_PER_MILLE: u32 = 300;
/// How long the prefix of a node's range is: 61 addresses for pods, more than ever are on one node; and where an address
/// that is used too early is looked for, 5.
const NODE_PREFIX: u8 = 26;
const SHORT_NODE_PREFIX: u8 = 29;
/// For 64 nodes or 512.
const CLUSTER_CIDR: &str = "10.244.0.0/20";
/// When every history begins.
pub(crate) const EPOCH: &str = "2026-01-01T00:00:00Z";
/// How long after the last fault everything has to be as it was wanted: twice the longest back-off (300 s), and the
/// quarter of an hour after which a controller looks again whatever happened.
const CONVERGE_WITHIN: Duration = Duration::from_secs(25 * 60);
/// A cluster that has what was wanted may still have something to put away: until the longest back-off is over.
const COMES_TO_REST_WITHIN: Duration = Duration::from_secs(6 * 60);
/// What happens in histories with rare things only.
const RARE: [Switch; 6] = [
    Switch::OneWay,
    Switch::ReplacedMachine,
    Switch::ClockSet,
    Switch::ServerBehind,
    Switch::Drain,
    Switch::OutOfService,
];

/// A history to be. See the crate.
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

/// How close together things happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// A few minutes in which something happens every few seconds, as no real cluster sees them: faults meet.
    Dense,
    /// Hours in which something happens every few minutes, and most faults last for minutes: what only long faults bring
    /// about (pods that are evicted after five minutes, back-offs at their longest) comes about, and in the end the
    /// cluster is watched at rest.
    Slow,
}

/// What the seed makes of a cluster.
struct Shape {
    nodes: usize,
    servers: usize,
    controls: Vec<(&'static str, bool)>,
    troubled: Duration,
    /// Between two things that users do or that happen to them, at most.
    pause_millis: u64,
    lengths: Lengths,
    /// Also what happens rarely.
    rare: bool,
    /// How long it is watched after all is as it was wanted.
    rest: Duration,
}

impl Shape {
    fn draw_at(pace: Option<Pace>, seed: u64, chance: &mut Stream) -> Self {
        let mut shape = Shape::draw(chance);
        shape.rare = stream(seed, "rare").per_mille(WITH_RARE_PER_MILLE);
        // Of its own, so that what is dense stays as it was.
        let mut chance = stream(seed, "pace");
        let drawn = match chance.per_mille(SLOW_PER_MILLE) {
            true => Pace::Slow,
            false => Pace::Dense,
        };
        match pace.unwrap_or(drawn) {
            Pace::Dense => shape,
            Pace::Slow => Shape {
                troubled: chance.millis(HOUR_MILLIS / 2, 8 * HOUR_MILLIS),
                pause_millis: match chance.between(0, 2) {
                    0 => 60_000,
                    1 => 240_000,
                    _ => 900_000,
                },
                lengths: Lengths::Minutes,
                rest: chance.millis(HOUR_MILLIS / 6, HOUR_MILLIS),
                // A cluster of fifty for hours is another's turn.
                nodes: shape.nodes.min(8),
                ..shape
            },
        }
    }

    fn draw(chance: &mut Stream) -> Self {
        let nodes = match chance.between(0, 99) {
            0..70 => 3,
            70..92 => chance.between(4, 8),
            92..99 => chance.between(9, 20),
            _ => chance.between(21, 50),
        };
        let servers = match chance.between(0, 9) {
            0..5 => 1,
            5..8 => 2,
            _ => 3,
        };
        let mut controls = vec![("control-a", true)];
        if chance.per_mille(600) {
            controls.push(("control-b", true));
        }
        if chance.per_mille(250) {
            // Somebody started one more that knows of no lease.
            controls.push(("control-c", false));
        }
        Shape {
            nodes: usize::try_from(nodes).unwrap_or(3),
            servers,
            controls,
            troubled: chance.millis(60_000, 240_000),
            pause_millis: match chance.between(0, 2) {
                0 => 1_500,
                1 => 4_000,
                _ => 12_000,
            },
            lengths: Lengths::Seconds,
            rare: false,
            rest: Duration::ZERO,
        }
    }
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

    /// So many nodes, whatever the seed says.
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// At this pace, whatever the seed says.
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = Some(pace);
        self
    }

    /// With what happens rarely whatever the seed says: one-way links, replaced machines, clocks that are set, drained nodes.
    pub fn rare(mut self) -> Self {
        self.rare = true;
        self
    }

    pub fn mutation(mut self, mutation: Mutation) -> Self {
        self.mutation = Some(mutation);
        self
    }

    /// The report can tell the history's story if it is broken, and holds every line.
    pub fn story(mut self) -> Self {
        (self.whole, self.story) = (true, true);
        self
    }

    /// With some of its features and faults only, or all of them, whatever the seed says.
    pub fn swarm(mut self, swarm: Swarm) -> Self {
        self.swarm = swarm;
        self
    }

    /// The history that the script is of, which is this one's, with some of it left out.
    pub fn replay(mut self, script: Arc<Script>, reduction: Reduction) -> Self {
        self.replayed = Some((script, reduction));
        self
    }

    /// The same history with some of it left out: it is run for its script first.
    pub fn reduced(self, reduction: Reduction) -> std::io::Result<Self> {
        let script = Arc::new(self.clone().run()?.script);
        Ok(self.replay(script, reduction))
    }

    /// The report holds every line, not the last ones only.
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
        let clock = TokioClock::new(epoch);
        let began = Instant::now();
        let observer = Arc::new(Observer::new(Arc::new(clock), self.whole, self.story, &directory));
        let mut chance = stream(self.seed, "simulation");
        let shape = Shape::draw_at(self.pace, self.seed, &mut chance);
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
        // A mistake about disks, fencing or Services shows only where there are some.
        let sought = |rule| self.mutation.is_some_and(|m| m.rule() == rule);
        let has = |switch, by_seed: bool, sought: bool| {
            plan.has(switch, by_seed) || sought && !plan.suppresses(switch)
        };
        // Each has a stream of its own: what it says shifts nothing else's draws.
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
        let mut ground = Ground {
            seed: self.seed,
            servers: Arc::default(),
            observer: observer.clone(),
            clock,
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
        let store = on.has(Switch::Compaction) || on.has(Switch::LostCommits);
        // The users' own server loses nothing that is theirs: another is needed.
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
        ground.servers = Arc::new(start_servers(&ground, servers).await?);
        let controls: Vec<_> = shape
            .controls
            .iter()
            .map(|(name, elected)| Control::new(&ground, name, *elected))
            .collect();
        let nodes: Vec<_> = (1..=nodes).map(|n| Node::new(&ground, n)).collect();
        agents.wire(&nodes);
        let mut faults = Faults {
            nodes,
            controls,
            servers: ground.servers.clone(),
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
        let first = ground.servers.first().and_then(|s| s.admin());
        let admin = first.ok_or_else(|| std::io::Error::other("no API server runs"))?;
        let mut users = Users::new(admin, observer.clone(), stream(self.seed, "users"), plan);
        sleep(Duration::from_secs(2)).await;
        let readers = match store {
            true => Reader::start_all(&ground.servers, &observer, |server| {
                stream(self.seed, &format!("reader/{server}"))
            }),
            false => Vec::new(),
        };
        faults.set_weather();

        if on.has(Switch::AtMostOne) {
            users.care(caring);
        }
        if ground.proxied {
            users.create_services().await.map_err(denied)?;
        }
        if ground.networked {
            let created = users.create_policy(&mut streams.policing).await;
            created.map_err(denied)?;
        }
        if on.has(Switch::Disks) {
            users.bring_disks().await.map_err(denied)?;
        }
        if let (true, Some(first)) = (ground.staged, ground.servers.first()) {
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
            users.follow_custom_kinds(ground.follower());
        }
        let mut trouble = Trouble {
            users,
            faults,
            streams,
            menu: Menu {
                rare,
                fencing,
                losses,
                disks: on.has(Switch::Disks),
                policies: ground.networked,
                crowding: on.has(Switch::Crowding),
                store,
                staging: ground.staged,
                endpoint_ends: ground.proxied && on.has(Switch::EndpointEnds),
                staging_crashes: ground.staged && on.has(Switch::StagingCrash),
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
        match &self.replayed {
            Some((script, reduction)) => trouble.play(script, reduction).await?,
            None => trouble.draw(&mut chance, shape.troubled).await?,
        }
        let Trouble {
            mut users,
            faults,
            script,
            ..
        } = trouble;
        faults.heal().await;
        agents.heal();
        let healed = Instant::now();
        let committed = observer.world(|world| world.commits.newest_of_pods());
        while observer.violation().is_none() {
            pass_until(Instant::now() + TICK, &faults).await;
            users.let_go().await.map_err(denied)?;
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
        let settled = Instant::now();
        if !shape.rest.is_zero() && observer.violation().is_none() {
            pass_until(settled + COMES_TO_REST_WITHIN, &faults).await;
            observer.rest();
            pass_until(settled + COMES_TO_REST_WITHIN + shape.rest, &faults).await;
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
            trace: observer.told(),
            coverage: observer.coverage().of_one(on),
            switches: on,
            nodes: faults.nodes.len(),
            script,
        })
    }
}

/// For what kubelets and servers keep in files: in memory where the system has such a place, for a tenth of a history's
/// time is a file system's otherwise.
fn directory() -> std::io::Result<tempfile::TempDir> {
    const IN_MEMORY: &str = "/dev/shm";
    let made = tempfile::Builder::new()
        .prefix("knarr-sim-")
        .tempdir_in(IN_MEMORY);
    made.or_else(|_| tempfile::tempdir())
}

async fn start_servers(ground: &Ground, servers: usize) -> std::io::Result<Vec<Arc<ApiServer>>> {
    let memory = knarr_store::open(knarr_store::Config::Memory).await;
    let store = Arc::new(ObservedStore {
        inner: memory.map_err(std::io::Error::other)?,
        observer: ground.observer.clone(),
        mutation: ground.mutation,
        decoded: Arc::default(),
    });
    let mut started = Vec::new();
    for number in 1..=servers {
        let clock: Arc<dyn Clock> = ground.clock_of(&format!("api-{number}"));
        started.push(ApiServer::start_new(ground.seed, number, &store, clock, &ground.directory).await?);
    }
    Ok(started)
}

/// Processes that no pod accounts for, and pods whose processes are not there.
fn strays(observer: &Observer, nodes: &[Arc<Node>]) -> Result<(), String> {
    for node in nodes {
        for (id, whose) in node.runtime.running() {
            let uid = whose.split('/').next().unwrap_or_default();
            let accounted = observer.world(|w| {
                w.pods.get(uid).is_some_and(|life| {
                    !life.removed() && life.node() == node.name && !world::is_finished(&life.pod)
                })
            });
            if !accounted {
                return Err(format!("{id} ({whose}) runs on {} for no pod", node.name));
            }
        }
    }
    Ok(())
}

/// What the kernels of the nodes have that the API's objects do not say.
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
    nodeipam::Config::try_from(&flags).map_err(|mistakes| std::io::Error::other(mistakes.join(", ")))
}

/// What came of a history.
#[derive(Clone, Debug)]
pub struct Report {
    pub seed: u64,
    /// Of everything that happened: the same seed gives the same.
    pub digest: String,
    pub events: u64,
    pub converged_after: Duration,
    /// Virtual time until the last fault was over.
    pub troubled: Duration,
    /// Virtual time, all in all.
    pub lasted: Duration,
    pub violation: Option<Violation>,
    /// The last lines of the history, or all.
    pub trace: Vec<String>,
    /// Which faults met pods in which states.
    pub coverage: Coverage,
    /// What was on.
    pub switches: Switches,
    pub nodes: usize,
    /// What users and faults did.
    pub script: Script,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.violation {
            None => write!(f, "seed {}: every rule held", self.seed)?,
            Some(Violation { rule, what, at, .. }) => {
                write!(f, "seed {}: {rule} broken at {at}: {what}", self.seed)?
            }
        }
        write!(
            f,
            "\n{} steps in {} virtual seconds, settled {} s after the last fault, {}",
            self.events,
            self.lasted.as_secs(),
            self.converged_after.as_secs(),
            self.digest
        )
    }
}
