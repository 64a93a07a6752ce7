//! One history from its seed to its report.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use knarr_apiserver::{Config, Seams, Server, ServiceRange};
use knarr_client::{Clock, Conn, NodeDialer, TokioClock};
use tokio::time::{Instant, sleep};

use crate::components::{Control, Ground, Node};
use crate::faults::Faults;
use crate::observer::{Observer, Violation};
use crate::random::{SeededEntropy, stream};
use crate::store::ObservedStore;
use crate::workload::Users;
use crate::{Sabotage, world};

/// When every history begins.
const EPOCH: &str = "2026-01-01T00:00:00Z";
/// How long after the last fault everything has to be as it was wanted: twice the longest back-off (300 s), and the
/// quarter of an hour after which a controller looks again whatever happened.
const CONVERGE_WITHIN: Duration = Duration::from_secs(25 * 60);

/// A history to be. See the crate.
#[derive(Clone, Debug)]
pub struct Simulation {
    seed: u64,
    nodes: usize,
    troubled: Duration,
    sabotage: Option<Sabotage>,
    whole: bool,
}

impl Simulation {
    pub fn new(seed: u64) -> Self {
        Simulation {
            seed,
            nodes: 3,
            troubled: Duration::from_secs(90),
            sabotage: None,
            whole: false,
        }
    }

    pub fn sabotage(mut self, sabotage: Sabotage) -> Self {
        self.sabotage = Some(sabotage);
        self
    }

    /// The report holds every line, not the last ones only.
    pub fn whole_trace(mut self) -> Self {
        self.whole = true;
        self
    }

    /// Runs it on this thread, to its end or to the first broken rule.
    pub fn run(self) -> std::io::Result<Report> {
        let directory = tempfile::tempdir()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()?;
        runtime.block_on(self.history(directory.path().to_path_buf()))
    }

    async fn history(self, directory: std::path::PathBuf) -> std::io::Result<Report> {
        let other = std::io::Error::other::<Box<dyn std::error::Error + Send + Sync>>;
        let epoch = EPOCH.parse().map_err(std::io::Error::other)?;
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new(epoch));
        let began = Instant::now();
        let observer = Arc::new(Observer::new(clock.clone(), self.whole));
        let store = ObservedStore {
            inner: knarr_store::open(knarr_store::Config::Memory)
                .await
                .map_err(|e| other(e.into()))?,
            observer: observer.clone(),
        };
        let server = Server::new(
            server_config(&directory, &*clock)?,
            Seams {
                clock: clock.clone(),
                entropy: Arc::new(SeededEntropy::new(self.seed)),
                nodes: Arc::new(NoNodes),
            },
            Arc::new(store),
        )
        .await
        .map_err(|e| other(e.into()))?;
        let ground = Ground {
            seed: self.seed,
            server: server.clone(),
            observer: observer.clone(),
            clock: clock.clone(),
            directory,
            sabotage: self.sabotage,
        };
        let mut chance = stream(self.seed, "simulation");
        let mut controls = vec![Control::new(&ground, "control-a", true)];
        if chance.per_mille(600) {
            controls.push(Control::new(&ground, "control-b", true));
        }
        if chance.per_mille(250) {
            // Somebody started one more that knows of no lease.
            controls.push(Control::new(&ground, "control-c", false));
        }
        let nodes: Vec<_> = (1..=self.nodes).map(|n| Node::new(&ground, n)).collect();
        nodes.iter().for_each(|node| node.start());
        controls.iter().for_each(|control| control.start());
        let admin = server.api("admin", ["system:masters", "system:authenticated"]);
        let mut users = Users::new(admin, observer.clone(), stream(self.seed, "users"));
        let mut faults = Faults {
            nodes,
            controls,
            observer: observer.clone(),
            chance: stream(self.seed, "faults"),
        };
        sleep(Duration::from_secs(2)).await;
        faults.set_weather();

        let failed = |e: knarr_client::Error| std::io::Error::other(format!("a user was refused: {e}"));
        let trouble_ends = Instant::now() + self.troubled;
        while Instant::now() < trouble_ends && observer.violation().is_none() {
            sleep(chance.millis(10, 1_500)).await;
            if chance.per_mille(700) {
                users.act().await.map_err(failed)?;
            } else {
                faults.strike();
            }
        }
        faults.heal();
        let healed = Instant::now();
        loop {
            sleep(Duration::from_secs(1)).await;
            if observer.violation().is_some() {
                break;
            }
            users.let_go().await.map_err(failed)?;
            let missing = match users.satisfied().await.map_err(failed)? {
                Ok(()) => strays(&observer, &faults.nodes),
                missing => missing,
            };
            let Err(missing) = missing else { break };
            if healed.elapsed() > CONVERGE_WITHIN {
                observer.violate(
                    "S9",
                    format!("{} s after the last fault: {missing}", CONVERGE_WITHIN.as_secs()),
                );
                break;
            }
        }
        let (digest, events) = observer.digest();
        Ok(Report {
            seed: self.seed,
            digest,
            events,
            converged_after: healed.elapsed(),
            lasted: began.elapsed(),
            violation: observer.violation(),
            trace: observer.told(),
        })
    }
}

/// Processes that no pod accounts for, and pods whose processes are not there.
fn strays(observer: &Observer, nodes: &[Arc<Node>]) -> Result<(), String> {
    for node in nodes {
        for (id, whose) in node.runtime.running() {
            let uid = whose.split('/').next().unwrap_or_default();
            let accounted = observer.world(|w| {
                w.pods.get(uid).is_some_and(|life| {
                    !life.removed && life.node() == node.name && !world::is_finished(&life.pod)
                })
            });
            if !accounted {
                return Err(format!("{id} ({whose}) runs on {} for no pod", node.name));
            }
        }
    }
    Ok(())
}

fn server_config(directory: &std::path::Path, clock: &dyn Clock) -> std::io::Result<Config> {
    let pki = knarr_apiserver::pki::Pki::open(&directory.join("pki"), clock.now())
        .map_err(std::io::Error::other)?;
    Ok(Config {
        advertised: "192.0.2.1:6443".into(),
        address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        port: 6443,
        service_range: ServiceRange::parse("10.96.0.0/16").map_err(std::io::Error::other)?,
        static_tokens: Default::default(),
        issuer: knarr_apiserver::ISSUER.into(),
        service_account_key: pki.service_account_key().map_err(std::io::Error::other)?,
        options: knarr_apiserver::Options::default(),
    })
}

/// Nobody execs into what does not exist.
struct NoNodes;

#[async_trait]
impl NodeDialer for NoNodes {
    async fn dial(&self, _node: &str) -> std::io::Result<Box<dyn Conn>> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}

/// What came of a history.
#[derive(Clone, Debug)]
pub struct Report {
    pub seed: u64,
    /// Of everything that happened: the same seed gives the same.
    pub digest: String,
    pub events: u64,
    pub converged_after: Duration,
    /// Virtual time, all in all.
    pub lasted: Duration,
    pub violation: Option<Violation>,
    /// The last lines of the history, or all.
    pub trace: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        match &self.violation {
            None => write!(f, "seed {}: every rule held", self.seed)?,
            Some(Violation { rule, what, at }) => {
                write!(f, "seed {}: {rule} broken at {at}: {what}", self.seed)?
            }
        }
        write!(
            f,
            "\n{} events in {} virtual seconds, {}\nreplay: KNARR_SIM_SEED={} cargo test -p knarr-sim --test seeds -- --nocapture",
            self.events,
            self.lasted.as_secs(),
            self.digest,
            self.seed
        )
    }
}
