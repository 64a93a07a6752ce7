//! One history from its seed to its report.

mod cluster;
mod convergence;
mod features;
mod pace;
mod report;
mod running_tolerations;
mod setting;
mod shape;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_client::TokioClock;
use tokio::time::{Instant, sleep};

use crate::Mutation;
use crate::attacher::Attacher;
use crate::components::Environment;
use crate::faults::Faults;
use crate::fence_agents::Agents;
use crate::observer::Observer;
use crate::progress::{Progress, READINGS};
use crate::random::{Stream, stream};
use crate::readers::Reader;
use crate::script::{Reduction, Script};
use crate::switches::{Swarm, Switch};
use crate::trouble::{Streams, Trouble, denied};
use crate::users::Users;
use convergence::Convergence;
pub use pace::Pace;
pub use report::Report;
use setting::Setting;
use shape::ClusterShape;

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

    /// How long it is at least, in virtual seconds of all nodes together: histories with more of them take longer to run.
    pub fn node_seconds(&self) -> u64 {
        let shape = ClusterShape::draw_at(self.pace, self.seed, &mut stream(self.seed, "simulation"));
        let nodes = self.nodes.unwrap_or(shape.nodes);
        let seconds = (shape.troubled + shape.rest).as_secs();
        u64::try_from(nodes).unwrap_or(u64::MAX).saturating_mul(seconds)
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

    async fn history(self, directory: PathBuf) -> std::io::Result<Report> {
        let progress = Progress::new(TokioClock::new(epoch()?));
        let began = Instant::now();
        let observer = Arc::new(Observer::new(
            progress.clone(),
            self.whole,
            self.story,
            &directory,
        ));
        let mut setting = Setting::draw(&self);
        setting.record(&observer);
        let on = setting.features.on;
        let agents = Arc::new(Agents::new(
            observer.clone(),
            stream(self.seed, "fence agents"),
            self.mutation,
        ));
        let mut environment = cluster::environment(&self, on, &observer, &progress, &agents, directory)?;
        let mut faults = cluster::start(&mut environment, &mut setting, &agents).await?;
        let Setting {
            mut chance,
            shape,
            plan,
            mut streams,
            caring,
            features,
            ..
        } = setting;
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
            possible_turns: features.possible_turns(shape.pause_millis),
            plan,
            began,
            script: Script::default(),
            has_policy: !on.has(Switch::Fencing),
        };
        let troubled = self.take_turns(&mut trouble, &mut chance, shape.troubled);
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
        Ok(self.report(&observer, &convergence, began, &faults, script))
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
        if on.has_placement() {
            let mut chance = stream(self.seed, "placed");
            let created = users.create_placed(on, faults.nodes.len(), &mut chance).await;
            created.map_err(denied)?;
        }
        if on.has(Switch::CustomResources) {
            users.add_custom_kind_handler(environment.follower());
        }
        Ok(readers)
    }

    /// What users do and which faults strike: drawn, or replayed.
    async fn take_turns(
        &self,
        trouble: &mut Trouble,
        chance: &mut Stream,
        long: Duration,
    ) -> std::io::Result<()> {
        match &self.replayed {
            Some((script, reduction)) => trouble.play(script, reduction).await,
            None => trouble.draw(chance, long).await,
        }
    }

    fn report(
        &self,
        observer: &Observer,
        convergence: &Convergence,
        began: Instant,
        faults: &Faults,
        script: Script,
    ) -> Report {
        let (digest, events) = observer.digest();
        Report {
            seed: self.seed,
            digest,
            events,
            converged_after: convergence.settled - convergence.healed,
            troubled: convergence.healed - began,
            lasted: began.elapsed(),
            violation: observer.violation(),
            trace: observer.last_lines(),
            coverage: observer.coverage().of_one(faults.on),
            switches: faults.on,
            nodes: faults.nodes.len(),
            script,
        }
    }
}

fn epoch() -> std::io::Result<Timestamp> {
    EPOCH.parse().map_err(std::io::Error::other)
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
