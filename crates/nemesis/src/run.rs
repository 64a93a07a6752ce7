//! A run: rounds of faults under load. After each round all faults end, the cluster has to converge to the desired state, and
//! the recorded history is checked (`checks.rs`); at the end nothing may be left on the host.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use libtest_mimic::Failed;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;

use crate::check::Violation;
use crate::check::grace::Deletions;
use crate::check::watches::Committed;
use crate::client::{Client, RequestError};
use crate::cluster::Cluster;
use crate::history::{History, Micros, now};
use crate::pods::{self, Users};
use crate::processes::{Sampler, marker};
use crate::registers::{self, Recorder, Worker};
use crate::schedule::{Fault, FaultKind, PlannedFault, Size, schedule};
use crate::wait::Outcome;
use crate::watchers::Watcher;

mod checks;

use checks::panics;

/// How long the cluster may take to converge after the faults: 40 s until a node is lost and its evictions, the longest
/// grace period, the back-off of crash loops after a full disk, and leader elections, on a host with other load.
const CONVERGENCE_LIMIT: Duration = Duration::from_secs(180);
/// How long a watcher may take to receive a write after the faults.
const WATCH_LIMIT: Duration = Duration::from_secs(60);
/// Between two ticks of the schedule and the supervision.
const TICK: Duration = Duration::from_millis(50);
/// Between two polls of the cluster's state.
const POLL: Duration = Duration::from_millis(500);
/// Registers of a round. New ones each round, so that a register's history stays short.
const KEYS: usize = 6;
/// Clients of all servers together, so that several call a register at once through one server, too.
const WORKERS: usize = 6;

/// The store of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    /// Three servers on an etcd of three members.
    Etcd,
    /// One server.
    Embedded,
}

impl Store {
    /// The faults of the first round.
    pub fn plan(self, seed: u64, kinds: &[FaultKind], round: Duration) -> Vec<PlannedFault> {
        let millis = u64::try_from(round.as_millis()).unwrap_or(u64::MAX);
        schedule(seed, 0, self.size(), kinds, millis)
    }

    fn size(self) -> Size {
        match self {
            Store::Etcd => Size {
                servers: 3,
                agents: 3,
                members: 3,
            },
            Store::Embedded => Size {
                servers: 1,
                agents: 3,
                members: 0,
            },
        }
    }
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    pub knarr: PathBuf,
    pub store: Store,
    pub seed: u64,
    pub kinds: Vec<FaultKind>,
    /// After this time no further round begins; 0 means one round.
    pub length: Duration,
    /// The duration of the faults in a round.
    pub round: Duration,
    /// The history and, after a violation, the logs. It is removed at the end of a run without violation.
    pub directory: PathBuf,
    /// Whether progress is logged to standard error.
    pub is_verbose: bool,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub store: Store,
    pub seed: u64,
    pub rounds: u64,
    pub seconds: u64,
    pub calls: usize,
    /// Calls of which it is not known whether they happened.
    pub unknown_calls: usize,
    pub watch_events: usize,
    /// Watches opened, the first ones included.
    pub watches: usize,
    /// Watches that expired (410), so that the watcher listed again.
    pub watches_expired: usize,
    pub processes: usize,
    pub faults: BTreeMap<String, usize>,
    /// Registers whose history had too many writes without a response to be decided.
    pub undecided: usize,
    pub is_interrupted: bool,
    pub violations: Vec<Violation>,
    pub directory: Option<PathBuf>,
}

/// Performs a run. An error is an error of the test itself: a program is missing, or the setup failed.
pub fn run(options: &Options, stop: &Arc<AtomicBool>) -> Result<Report, Failed> {
    std::fs::create_dir_all(&options.directory)?;
    let history = History::create(&options.directory.join("history.jsonl"))?;
    let begin = Instant::now();
    let header = json!({
        "seed": options.seed, "store": options.store, "kinds": options.kinds,
        "round_millis": u64::try_from(options.round.as_millis())?,
    });
    history.record("run", &header);
    let steps_clocks = options.kinds.contains(&FaultKind::Clock);
    let cluster = Cluster::start(&options.knarr, options.store.size(), steps_clocks)?;
    let recorder = Arc::new(Recorder::new(history));
    let mut run = Run::new(options, cluster, recorder, stop.clone())?;
    let outcome = run.rounds(begin);
    // Everything is stopped, also after an error.
    let mut report = run.end(outcome);
    report.seconds = begin.elapsed().as_secs();
    if report.violations.is_empty() {
        std::fs::remove_dir_all(&options.directory)?;
    } else {
        report.directory = Some(options.directory.clone());
    }
    Ok(report)
}

struct Run<'a> {
    options: &'a Options,
    cluster: Cluster,
    recorder: Arc<Recorder>,
    /// Ends the rounds early.
    stop: Arc<AtomicBool>,
    /// Ends the watchers.
    stop_watchers: Arc<AtomicBool>,
    runtime: tokio::runtime::Runtime,
    clients: Vec<Client>,
    watchers: Vec<Arc<Watcher>>,
    sampler: Sampler,
    /// The directory of the pods' records.
    record: PathBuf,
    deletions: Arc<Mutex<Deletions>>,
    committed: Committed,
    /// Faults with the times at which they began and ended.
    applied: Vec<(Fault, Micros, Micros)>,
    begun: usize,
    report: Report,
}

impl<'a> Run<'a> {
    fn new(
        options: &'a Options,
        cluster: Cluster,
        recorder: Arc<Recorder>,
        stop: Arc<AtomicBool>,
    ) -> Result<Run<'a>, Failed> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let servers = cluster.servers();
        let clients: Result<Vec<Client>, Failed> = runtime
            .block_on(async { futures::future::try_join_all(servers.into_iter().map(Client::of)).await });
        let record = cluster.fleet.dir().join("record");
        std::fs::create_dir_all(&record)?;
        std::fs::write(record.join("terms"), "")?;
        Ok(Run {
            sampler: Sampler::start(marker(&run_name(&cluster))),
            options,
            recorder,
            stop,
            stop_watchers: Arc::default(),
            runtime,
            clients: clients?,
            watchers: Vec::new(),
            record,
            cluster,
            deletions: Arc::default(),
            committed: Committed::default(),
            applied: Vec::new(),
            begun: 0,
            report: Report {
                store: options.store,
                seed: options.seed,
                rounds: 0,
                seconds: 0,
                calls: 0,
                unknown_calls: 0,
                watch_events: 0,
                watches: 0,
                watches_expired: 0,
                processes: 0,
                faults: BTreeMap::new(),
                undecided: 0,
                is_interrupted: false,
                violations: Vec::new(),
                directory: None,
            },
        })
    }

    fn log(&self, text: &str) {
        self.recorder.history.record("progress", &text);
        if self.options.is_verbose {
            let seconds = self.recorder.history.elapsed() as f64 / 1e6;
            eprintln!("{seconds:8.2} {text}");
        }
    }

    fn add_violation(&mut self, violation: Violation) {
        self.log(&format!("VIOLATION {violation}"));
        self.recorder.history.record("violation", &violation);
        self.report.violations.push(violation);
    }

    /// Creates the workloads, then runs rounds until the time is over, there is a violation or the run is stopped.
    fn rounds(&mut self, begin: Instant) -> Outcome {
        self.set_up()?;
        let mut round = 0;
        while (round == 0 || begin.elapsed() < self.options.length)
            && self.report.violations.is_empty()
            && !self.stop.load(Ordering::Relaxed)
        {
            self.round(round)?;
            round += 1;
            self.report.rounds = round;
        }
        self.report.is_interrupted = self.stop.load(Ordering::Relaxed);
        Ok(())
    }

    fn set_up(&mut self) -> Outcome {
        self.log("the servers are ready");
        for namespace in [registers::NAMESPACE, pods::NAMESPACE] {
            let object =
                json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
            self.create("/api/v1/namespaces", &object)?;
        }
        let marker = marker(&run_name(&self.cluster));
        for (path, object) in pods::workloads(&marker, &self.record) {
            self.create(&path, &object)?;
        }
        self.wait_until_converged()?;
        self.log("the nodes and the pods are ready");
        let mut orders: Vec<Vec<Client>> = Vec::new();
        for n in 0..self.clients.len() {
            // One watcher for each server, which resumes there, and one that resumes at the next server each time.
            let mut order = self.clients.clone();
            order.rotate_left(n);
            orders.push(vec![order[0].clone()]);
            if n == 0 {
                orders.push(order);
            }
        }
        for (n, order) in orders.into_iter().enumerate() {
            let watcher = Watcher::new(&format!("watcher {}", n + 1), order, self.recorder.clone());
            self.runtime
                .spawn(watcher.clone().run(self.stop_watchers.clone()));
            self.watchers.push(watcher);
        }
        Ok(())
    }

    fn create(&self, path: &str, object: &serde_json::Value) -> Outcome {
        let client = self.clients.first().ok_or("there are no servers")?;
        let content = Some(("application/json", object));
        let mut last = String::new();
        self.cluster
            .fleet
            .eventually(&format!("POST {path}"), || {
                let reply = self.runtime.block_on(client.send(Method::POST, path, content));
                match reply {
                    Ok(_) => true,
                    Err(e) => {
                        let exists =
                            matches!(&e, RequestError::Status { reason, .. } if reason == "AlreadyExists");
                        last = e.to_string();
                        exists
                    }
                }
            })
            .map_err(|e| format!("{}: {last}", e.message().unwrap_or_default()).into())
    }

    fn round(&mut self, round: u64) -> Outcome {
        let millis = u64::try_from(self.options.round.as_millis())?;
        let planned = schedule(
            self.options.seed,
            round,
            self.cluster.size,
            &self.options.kinds,
            millis,
        );
        self.recorder
            .history
            .record("schedule", &json!({ "round": round, "faults": planned }));
        self.log(&format!("round {}: {} faults", round + 1, planned.len()));
        let keys: Vec<String> = (0..KEYS).map(|n| format!("r{round}-k{n}")).collect();
        let stop: Arc<AtomicBool> = Arc::default();
        let mut tasks = Vec::new();
        let seed = self.options.seed.wrapping_mul(1_000_003).wrapping_add(round);
        for n in 0..WORKERS {
            let worker = self.worker(n);
            let own = seed.wrapping_mul(31).wrapping_add(n as u64);
            tasks.push(self.runtime.spawn(worker.run(keys.clone(), own, stop.clone())));
        }
        let users = Users {
            clients: self.clients.clone(),
            recorder: self.recorder.clone(),
            deletions: self.deletions.clone(),
            marker: marker(&run_name(&self.cluster)),
            record: self.record.clone(),
        };
        tasks.push(self.runtime.spawn(users.run(seed, stop.clone())));
        let outcome = self.run_faults(&planned);
        stop.store(true, Ordering::Relaxed);
        outcome?;
        self.log("all faults have ended");
        self.runtime
            .block_on(async { futures::future::join_all(tasks).await });
        if let Err(e) = self.wait_until_converged() {
            self.add_violation(Violation::new(
                "liveness",
                "the cluster",
                e.message().unwrap_or_default(),
            ));
        }
        self.read_all(round, &keys);
        self.check(&keys)
    }

    fn worker(&self, n: usize) -> Worker {
        Worker {
            name: format!("client {}", n + 1),
            client: self.clients[n % self.clients.len()].clone(),
            recorder: self.recorder.clone(),
        }
    }

    /// Begins and ends the faults as planned.
    fn run_faults(&mut self, planned: &[PlannedFault]) -> Outcome {
        let begin = Instant::now();
        let first = self.begun;
        self.begun += planned.len();
        let mut active: BTreeMap<usize, Micros> = BTreeMap::new();
        let mut next = 0;
        while (next < planned.len() || !active.is_empty()) && !self.stop.load(Ordering::Relaxed) {
            let millis = u64::try_from(begin.elapsed().as_millis())?;
            let ends: Vec<usize> = active
                .keys()
                .copied()
                .filter(|n| planned[*n].ends_millis() <= millis)
                .collect();
            for n in ends {
                let done = self.cluster.end(first + n);
                self.ended(&planned[n].fault, active.remove(&n), done);
            }
            while let Some(fault) = planned.get(next).filter(|p| p.at_millis <= millis) {
                self.log(&format!(
                    "{} for {:.1} s",
                    fault.fault,
                    fault.lasts_millis as f64 / 1e3
                ));
                let at = now();
                if let Err(e) = self.cluster.begin(first + next, &fault.fault) {
                    self.log(&format!("  failed: {}", e.message().unwrap_or_default()));
                }
                *self
                    .report
                    .faults
                    .entry(fault.fault.kind().to_string())
                    .or_default() += 1;
                active.insert(next, at);
                next += 1;
            }
            self.supervise()?;
            std::thread::sleep(TICK);
        }
        for (n, at) in active {
            let done = self.cluster.end(first + n);
            self.ended(&planned[n].fault, Some(at), done);
        }
        Ok(())
    }

    fn ended(&mut self, fault: &Fault, from: Option<Micros>, done: Outcome) {
        match done {
            Ok(()) => self.log(&format!("ended: {fault}")),
            Err(e) => self.log(&format!(
                "cannot end: {fault}: {}",
                e.message().unwrap_or_default()
            )),
        }
        self.applied
            .push((fault.clone(), from.unwrap_or_default(), now()));
    }

    fn supervise(&mut self) -> Outcome {
        for exit in self.cluster.supervise()? {
            self.log(&exit);
        }
        Ok(())
    }

    /// Waits until the cluster has converged, read from every server.
    fn wait_until_converged(&mut self) -> Outcome {
        let begin = Instant::now();
        let agents = self.cluster.size.agents;
        loop {
            let mut state = Ok(());
            for client in self.clients.clone() {
                let converged = self.runtime.block_on(pods::is_converged(&client, agents));
                state = state.and(converged.map_err(|e| format!("{}: {e}", client.server)));
            }
            let Err(missing) = state else {
                let seconds = begin.elapsed().as_secs();
                self.log(&format!("the cluster has converged after {seconds} s"));
                return Ok(());
            };
            if begin.elapsed() > CONVERGENCE_LIMIT {
                return Err(format!(
                    "the cluster has not converged {} s after the faults: {missing}",
                    CONVERGENCE_LIMIT.as_secs()
                )
                .into());
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.supervise()?;
            std::thread::sleep(POLL);
        }
    }

    /// Stops everything, checks that nothing is left, and copies the logs if there is a violation.
    fn end(mut self, outcome: Outcome) -> Report {
        if let Err(e) = self.cluster.heal() {
            self.log(e.message().unwrap_or_default());
        }
        if let Err(e) = outcome {
            let text = e.message().unwrap_or_default().to_string();
            self.add_violation(Violation::new("run", "the test", text));
        } else if self.report.violations.is_empty() {
            if let Err(violation) = self.remove_pods() {
                self.add_violation(violation);
            }
            match self.check_pods() {
                Ok(violations) => violations.into_iter().for_each(|v| self.add_violation(v)),
                Err(e) => {
                    self.add_violation(Violation::new("run", "the test", e.message().unwrap_or_default()))
                }
            }
        }
        self.stop_watchers.store(true, Ordering::Relaxed);
        for violation in panics(&self.cluster) {
            self.add_violation(violation);
        }
        if !self.report.violations.is_empty() {
            self.copy_state();
        }
        let Run {
            cluster,
            recorder,
            runtime,
            mut report,
            sampler,
            options,
            ..
        } = self;
        runtime.shutdown_timeout(Duration::from_secs(5));
        drop(sampler);
        if let Err(e) = cluster.tear_down() {
            let violation = Violation::new("leftovers", "the host", e.message().unwrap_or_default());
            recorder.history.record("violation", &violation);
            report.violations.push(violation);
        }
        recorder.history.flush();
        if options.is_verbose {
            eprintln!("everything is stopped");
        }
        report
    }

    /// Copies the logs, and the API's objects of nodes, pods and workloads.
    fn copy_state(&self) {
        let directory = &self.options.directory;
        if let Err(e) = self.cluster.copy_logs(directory) {
            eprintln!("nemesis: cannot copy the logs: {e}");
        }
        let terms = self.record.join("terms");
        let copied = std::fs::copy(&terms, directory.join("terms"));
        for (name, path) in [
            ("pods", "/api/v1/pods"),
            ("nodes", "/api/v1/nodes"),
            ("events", "/api/v1/events"),
            ("statefulsets", "/apis/apps/v1/statefulsets"),
            ("deployments", "/apis/apps/v1/deployments"),
        ] {
            let objects = self.clients.iter().find_map(|client| {
                let reply = self.runtime.block_on(client.get(path));
                reply.ok()
            });
            let written =
                objects.map(|o| std::fs::write(directory.join(format!("{name}.json")), o.to_string()));
            if written.is_none_or(|w| w.is_err()) || copied.is_err() {
                eprintln!("nemesis: cannot write {name}.json");
            }
        }
    }
}

/// A name by which the processes of this run are distinguished from those of other runs.
fn run_name(cluster: &Cluster) -> String {
    let name = cluster.fleet.dir().file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
