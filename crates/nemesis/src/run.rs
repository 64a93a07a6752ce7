//! A run: rounds of faults under load, each followed by healing, by a wait until everything wanted is there again, and by the
//! checks of what was recorded; at the end nothing may be left on the machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use libtest_mimic::Failed;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;

use crate::check::grace::{self, Deletions, Trouble};
use crate::check::linearizability::{self, Verdict};
use crate::check::self_fencing::{self, Isolation};
use crate::check::watches::{self, Committed};
use crate::check::{Violation, at_most_one};
use crate::client::Client;
use crate::cluster::Cluster;
use crate::fleet::Outcome;
use crate::history::{Answer, Call, History, Micros, Operation, Received, now};
use crate::pods::{self, Users};
use crate::processes::{Sampler, marker};
use crate::registers::{self, Recorder, Worker};
use crate::schedule::{Fault, Kind, Planned, Size, Target, schedule};
use crate::watchers::{EXPIRED, Watcher};

/// How long the cluster may take after healing until everything wanted is there: a lost node 40 s and its evictions, the
/// longest grace, a crash loop's back-off after a full disk, and leaders' terms, on a machine that has other work.
const WELL_WITHIN: Duration = Duration::from_secs(180);
/// How long a watcher may take to receive what was written after healing.
const WATCHED_WITHIN: Duration = Duration::from_secs(60);
/// Between two ticks of the schedule and the supervision.
const TICK: Duration = Duration::from_millis(50);
/// Between two polls of the cluster's state.
const POLL: Duration = Duration::from_millis(500);
/// Registers of a round. New ones each round, so that a register's history stays short.
const KEYS: usize = 6;
/// Clients of all servers together, so that a register has several at once with one server, too.
const WORKERS: usize = 6;

/// Where objects are kept.
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
    pub fn plan(self, seed: u64, kinds: &[Kind], round: Duration) -> Vec<Planned> {
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

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    pub knarr: PathBuf,
    pub store: Store,
    pub seed: u64,
    pub kinds: Vec<Kind>,
    /// No round begins later; 0 is one round.
    pub length: Duration,
    /// The time of faults in a round.
    pub round: Duration,
    /// The history and, after a violation, the logs. It is removed at the end of a run without violation.
    pub directory: PathBuf,
    /// Lines of progress on standard error.
    pub is_verbose: bool,
}

/// What a run resulted in.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub store: Store,
    pub seed: u64,
    pub rounds: u64,
    pub seconds: u64,
    pub calls: usize,
    /// Calls without an answer that says whether they happened.
    pub unknown_calls: usize,
    pub watch_events: usize,
    /// Watches opened, the first ones included.
    pub watches: usize,
    /// Watches whose position no server knew any more, so that the watcher listed again.
    pub watches_expired: usize,
    pub processes: usize,
    pub faults: BTreeMap<String, usize>,
    /// Registers whose history had too many unanswered writes to be decided.
    pub undecided: usize,
    pub is_interrupted: bool,
    pub violations: Vec<Violation>,
    pub directory: Option<PathBuf>,
}

/// Runs it. An error is of the test itself: what it needs is missing, or it could not be set up.
pub fn run(options: &Options, stop: &Arc<AtomicBool>) -> Result<Report, Failed> {
    std::fs::create_dir_all(&options.directory)?;
    let history = History::create(&options.directory.join("history.jsonl"))?;
    let begin = Instant::now();
    let header = json!({
        "seed": options.seed, "store": options.store, "kinds": options.kinds,
        "round_millis": u64::try_from(options.round.as_millis())?,
    });
    history.record("run", &header);
    let steps_clocks = options.kinds.contains(&Kind::Clock);
    let cluster = Cluster::start(&options.knarr, options.store.size(), steps_clocks)?;
    let recorder = Arc::new(Recorder::new(history));
    let mut run = Run::new(options, cluster, recorder, stop.clone())?;
    let outcome = run.rounds(begin);
    // Whatever happened, everything is stopped.
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
    /// What pods write.
    record: PathBuf,
    deletions: Arc<Mutex<Deletions>>,
    committed: Committed,
    /// Faults with the times at which they were done and undone.
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

    fn say(&self, text: &str) {
        self.recorder.history.record("progress", &text);
        if self.options.is_verbose {
            let seconds = self.recorder.history.elapsed() as f64 / 1e6;
            eprintln!("{seconds:8.2} {text}");
        }
    }

    fn violate(&mut self, violation: Violation) {
        self.say(&format!("VIOLATION {violation}"));
        self.recorder.history.record("violation", &violation);
        self.report.violations.push(violation);
    }

    /// Sets up what is wanted, then round after round until the time is over, a promise is broken or the run is stopped.
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
        self.say("the servers are ready");
        for namespace in [registers::NAMESPACE, pods::NAMESPACE] {
            let object =
                json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
            self.create("/api/v1/namespaces", &object)?;
        }
        let marker = marker(&run_name(&self.cluster));
        for (path, object) in pods::workloads(&marker, &self.record) {
            self.create(&path, &object)?;
        }
        self.wait_until_well()?;
        self.say("the nodes and the pods are ready");
        let mut orders: Vec<Vec<Client>> = Vec::new();
        for n in 0..self.clients.len() {
            // One at each server, which it comes back to, and one that moves on to the next.
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
        let client = self.clients.first().ok_or("there is no server")?;
        let content = Some(("application/json", object));
        let mut last = String::new();
        self.cluster
            .fleet
            .waits(&format!("POST {path}"), || {
                let reply = self.runtime.block_on(client.send(Method::POST, path, content));
                match reply.ok() {
                    Ok(_) => true,
                    Err(e) => {
                        let is_there = e.starts_with("409 AlreadyExists");
                        last = e;
                        is_there
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
        self.say(&format!("round {}: {} faults", round + 1, planned.len()));
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
        let struck = self.strike(&planned);
        stop.store(true, Ordering::Relaxed);
        struck?;
        self.say("all faults are over");
        self.runtime
            .block_on(async { futures::future::join_all(tasks).await });
        if let Err(e) = self.wait_until_well() {
            self.violate(Violation::new(
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

    /// Carries the schedule out.
    fn strike(&mut self, planned: &[Planned]) -> Outcome {
        let begin = Instant::now();
        let first = self.begun;
        self.begun += planned.len();
        let mut lasting: BTreeMap<usize, Micros> = BTreeMap::new();
        let mut next = 0;
        while (next < planned.len() || !lasting.is_empty()) && !self.stop.load(Ordering::Relaxed) {
            let millis = u64::try_from(begin.elapsed().as_millis())?;
            let ends: Vec<usize> = lasting
                .keys()
                .copied()
                .filter(|n| planned[*n].ends_millis() <= millis)
                .collect();
            for n in ends {
                let done = self.cluster.end(first + n);
                self.ended(&planned[n].fault, lasting.remove(&n), done);
            }
            while let Some(fault) = planned.get(next).filter(|p| p.at_millis <= millis) {
                self.say(&format!(
                    "{} for {:.1} s",
                    fault.fault,
                    fault.lasts_millis as f64 / 1e3
                ));
                let at = now();
                if let Err(e) = self.cluster.begin(first + next, &fault.fault) {
                    self.say(&format!("  not done: {}", e.message().unwrap_or_default()));
                }
                *self
                    .report
                    .faults
                    .entry(fault.fault.kind().to_string())
                    .or_default() += 1;
                lasting.insert(next, at);
                next += 1;
            }
            self.supervise()?;
            std::thread::sleep(TICK);
        }
        for (n, at) in lasting {
            let done = self.cluster.end(first + n);
            self.ended(&planned[n].fault, Some(at), done);
        }
        Ok(())
    }

    fn ended(&mut self, fault: &Fault, from: Option<Micros>, done: Outcome) {
        match done {
            Ok(()) => self.say(&format!("over: {fault}")),
            Err(e) => self.say(&format!("over: {fault}: {}", e.message().unwrap_or_default())),
        }
        self.applied
            .push((fault.clone(), from.unwrap_or_default(), now()));
    }

    fn supervise(&mut self) -> Outcome {
        for exit in self.cluster.supervise()? {
            self.say(&exit);
        }
        Ok(())
    }

    /// Waits until every server says that everything wanted is there.
    fn wait_until_well(&mut self) -> Outcome {
        let begin = Instant::now();
        let agents = self.cluster.size.agents;
        loop {
            let mut state = Ok(());
            for client in self.clients.clone() {
                let well = self.runtime.block_on(pods::is_well(&client, agents));
                state = state.and(well.map_err(|e| format!("{}: {e}", client.server)));
            }
            let Err(missing) = state else {
                let seconds = begin.elapsed().as_secs();
                self.say(&format!("everything wanted is there after {seconds} s"));
                return Ok(());
            };
            if begin.elapsed() > WELL_WITHIN {
                return Err(format!(
                    "not everything wanted is there {} s after the faults: {missing}",
                    WELL_WITHIN.as_secs()
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

    /// Reads every register of the round at every server, and waits until every watcher has come as far as the last write.
    fn read_all(&mut self, round: u64, keys: &[String]) {
        let workers: Vec<Worker> = (0..self.clients.len()).map(|n| self.worker(n)).collect();
        let last = self.runtime.block_on(async {
            for worker in &workers {
                for key in keys {
                    worker.call(key, Operation::Get).await;
                }
                worker.list().await;
            }
            let write = u64::MAX - round;
            let end = format!("r{round}-end");
            match workers[0].call(&end, Operation::Create { write }).await {
                Answer::Ok(Some(version)) => Some(version.revision),
                _ => None,
            }
        });
        let Some(last) = last else {
            self.violate(Violation::new(
                "liveness",
                "registers",
                "a write after the faults was not answered",
            ));
            return;
        };
        let begin = Instant::now();
        let late = |watchers: &[Arc<Watcher>]| {
            let late = watchers.iter().find(|w| w.position() < last);
            late.map(|w| (w.name.clone(), w.position()))
        };
        while let Some((name, position)) = late(&self.watchers) {
            if begin.elapsed() > WATCHED_WITHIN {
                let text = format!(
                    "it is at revision {position} {} s after revision {last} was written",
                    WATCHED_WITHIN.as_secs()
                );
                self.violate(Violation::new("liveness", name, text));
                return;
            }
            std::thread::sleep(TICK);
        }
    }

    /// Checks what the round recorded, and forgets it.
    fn check(&mut self, keys: &[String]) -> Outcome {
        let calls = std::mem::take(&mut *self.recorder.calls.lock());
        let lists = std::mem::take(&mut *self.recorder.lists.lock());
        let received: Vec<_> = self.watchers.iter().map(|w| w.take()).collect();
        self.report.calls += calls.len() + lists.len();
        let is_unknown = |call: &&Call| matches!(call.answer, Answer::Unknown(_));
        self.report.unknown_calls += calls.iter().filter(is_unknown).count();
        let mut committed = std::mem::take(&mut self.committed);
        let mut violations: Vec<Violation> = Vec::new();
        let mut collect = |outcome: Result<(), Violation>| violations.extend(outcome.err());
        for call in &calls {
            if let Answer::Ok(Some(version)) = &call.answer {
                collect(committed.version(&call.key, *version));
            }
        }
        lists
            .iter()
            .for_each(|list| collect(committed.snapshot(&list.snapshot)));
        received.iter().for_each(|all| collect(committed.received(all)));
        let seen = committed.seen();
        let snapshots: Vec<_> = lists.iter().map(|list| &list.snapshot).collect();
        for (watcher, received) in self.watchers.iter().zip(&received) {
            let count = |is: fn(&Received) -> bool| received.iter().filter(|r| is(r)).count();
            self.report.watch_events += count(|r| matches!(r, Received::Event { .. }));
            self.report.watches += count(|r| matches!(r, Received::Opened { .. }));
            self.report.watches_expired += count(|r| matches!(r, Received::Ended(why) if why == EXPIRED));
            match watches::check(&watcher.name, received, &committed, &snapshots) {
                Ok(Some(state)) => watcher.restart_from(state),
                Ok(None) => {}
                Err(violation) => violations.push(violation),
            }
        }
        for key in keys {
            let own = calls.iter().filter(|call| call.key == *key).cloned();
            let listed = lists.iter().map(|list| Call {
                client: list.client.clone(),
                server: list.server.clone(),
                key: key.clone(),
                operation: Operation::Get,
                start: list.start,
                end: list.end,
                answer: match list.snapshot.registers.get(key) {
                    Some(version) => Answer::Ok(Some(*version)),
                    None => Answer::NotFound,
                },
            });
            let all: Vec<Call> = own.chain(listed).collect();
            match linearizability::check(key, &all, &seen) {
                Verdict::Linearizable => {}
                Verdict::Undecided => self.report.undecided += 1,
                Verdict::Violated(violation) => violations.push(violation),
            }
        }
        self.committed = committed;
        violations.extend(self.check_pods()?);
        let count = calls.len() + lists.len();
        for violation in violations {
            self.violate(violation);
        }
        self.recorder.history.flush();
        self.say(&format!("checked {count} calls"));
        Ok(())
    }

    fn check_pods(&mut self) -> Result<Vec<Violation>, Failed> {
        let lives = self.sampler.lives();
        self.report.processes = lives.len();
        for life in &lives {
            self.recorder.history.record("process", life);
        }
        let terms = pods::terms(&std::fs::read_to_string(self.record.join("terms"))?);
        let deletions = self.deletions.lock().clone();
        let fenced: Vec<_> = lives
            .iter()
            .filter(|life| life.container == pods::FENCED)
            .cloned()
            .collect();
        let outcomes = [
            at_most_one::check(&lives),
            grace::check(&lives, &deletions, &terms, &self.troubles()),
            self_fencing::check(&fenced, &self.isolations()),
        ];
        Ok(outcomes.into_iter().filter_map(Result::err).collect())
    }

    fn node_of(target: Target) -> Option<usize> {
        match target {
            Target::Agent(n) | Target::Containerd(n) => Some(n),
            Target::Server(_) | Target::Member(_) | Target::Clients => None,
        }
    }

    fn troubles(&self) -> Vec<Trouble> {
        let of_nodes = self.applied.iter().filter_map(|(fault, from, until)| {
            let node = Run::node_of(fault.target()?)?;
            Some(Trouble {
                node: format!("node{}", node + 1),
                from: *from,
                until: *until,
            })
        });
        of_nodes.collect()
    }

    /// When a node reached no server, and nothing else happened to it from a while before until then.
    fn isolations(&self) -> Vec<Isolation> {
        /// A kubelet that was killed, or whose clock was stepped, is as before after this time.
        const AFTER: Micros = 20_000_000;
        let mut isolations = Vec::new();
        for agent in 0..self.cluster.size.agents {
            let server = Target::Server(self.cluster.server_of(agent));
            for (fault, from, until) in &self.applied {
                let is_whole = matches!(fault, Fault::Cut { one_way: false, .. });
                if !(is_whole && fault.separates(Target::Agent(agent), server)) {
                    continue;
                }
                let is_disturbed = self.applied.iter().any(|(other, begin, end)| {
                    other.target().and_then(Run::node_of) == Some(agent)
                        && *begin < *until
                        && *end + AFTER > *from
                });
                if !is_disturbed {
                    isolations.push(Isolation {
                        node: format!("node{}", agent + 1),
                        from: *from,
                        until: *until,
                    });
                }
            }
        }
        isolations
    }

    /// Takes back what was wanted, and waits until no process and no mount of a pod is left.
    fn remove_pods(&mut self) -> Result<(), Violation> {
        let client = &self.clients[0];
        let begin = Instant::now();
        let dir = self.cluster.fleet.dir().display().to_string();
        loop {
            for collection in ["apps/v1 statefulsets", "apps/v1 deployments", "v1 pods"] {
                let (group, plural) = collection.rsplit_once(' ').unwrap_or(("v1", "pods"));
                let root = if group == "v1" { "api" } else { "apis" };
                let path = format!("/{root}/{group}/namespaces/{}/{plural}", pods::NAMESPACE);
                // Asked again until nothing is left, so that an error only costs time.
                let _ = self.runtime.block_on(client.send(Method::DELETE, &path, None));
            }
            let path = format!("/api/v1/namespaces/{}/pods", pods::NAMESPACE);
            let listed = self.runtime.block_on(client.get(&path)).ok();
            let in_api = listed.map(|l| l["items"].as_array().map_or(0, Vec::len));
            let running = self.sampler.running();
            let left = left_of_pods(&dir);
            if in_api == Ok(0) && running == 0 && left.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > WELL_WITHIN {
                return Err(Violation::new(
                    "leftovers",
                    "pods",
                    format!(
                        "{} s after all pods were deleted the API has {in_api:?}, {running} processes run, and this is left: \
                         {left:?}",
                        WELL_WITHIN.as_secs()
                    ),
                ));
            }
            if let Err(e) = self.cluster.supervise() {
                self.say(e.message().unwrap_or_default());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Stops everything, checks that nothing is left, and keeps the logs if a promise was broken.
    fn end(mut self, outcome: Outcome) -> Report {
        if let Err(e) = self.cluster.heal() {
            self.say(e.message().unwrap_or_default());
        }
        if let Err(e) = outcome {
            let text = e.message().unwrap_or_default().to_string();
            self.violate(Violation::new("run", "the test", text));
        } else if self.report.violations.is_empty() {
            if let Err(violation) = self.remove_pods() {
                self.violate(violation);
            }
            match self.check_pods() {
                Ok(violations) => violations.into_iter().for_each(|v| self.violate(v)),
                Err(e) => self.violate(Violation::new("run", "the test", e.message().unwrap_or_default())),
            }
        }
        self.stop_watchers.store(true, Ordering::Relaxed);
        for violation in panics(&self.cluster) {
            self.violate(violation);
        }
        if !self.report.violations.is_empty() {
            self.keep_state();
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
        if let Err(e) = cluster.end_all() {
            let violation = Violation::new("leftovers", "the machine", e.message().unwrap_or_default());
            recorder.history.record("violation", &violation);
            report.violations.push(violation);
        }
        recorder.history.flush();
        if options.is_verbose {
            eprintln!("everything is stopped");
        }
        report
    }

    /// The logs, and what the API has of nodes and pods.
    fn keep_state(&self) {
        let directory = &self.options.directory;
        if let Err(e) = self.cluster.keep_logs(directory) {
            eprintln!("nemesis: the logs cannot be kept: {e}");
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
                reply.ok().ok()
            });
            let written =
                objects.map(|o| std::fs::write(directory.join(format!("{name}.json")), o.to_string()));
            if written.is_none_or(|w| w.is_err()) || copied.is_err() {
                eprintln!("nemesis: {name} cannot be kept");
            }
        }
    }
}

/// By which the processes of this run differ from those of others.
fn run_name(cluster: &Cluster) -> String {
    let name = cluster.fleet.dir().file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Mounts and shims of pods below the directory.
fn left_of_pods(dir: &str) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let of_pods =
        |line: &&str| line.contains(dir) && (line.contains("/kubelet/pods/") || line.contains("/rootfs"));
    let mut left: Vec<String> = mounts.lines().filter(of_pods).map(str::to_string).collect();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let cmdline = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let cmdline = String::from_utf8_lossy(&cmdline).replace('\0', " ");
        if cmdline.contains("containerd-shim") && cmdline.contains(dir) {
            left.push(format!("process {cmdline}"));
        }
    }
    left
}

/// Panics in the logs of knarr.
fn panics(cluster: &Cluster) -> Vec<Violation> {
    let mut found = Vec::new();
    for machine in cluster.fleet.machines() {
        if let Some(line) = panic_in(&machine.log()) {
            found.push(Violation::new("panic", machine.name.clone(), line));
        }
    }
    found
}

/// The first panic in a log of a Rust program. etcd is a Go program and panics when its disk is full, which it says otherwise.
fn panic_in(log: &Path) -> Option<String> {
    let log = std::fs::read_to_string(log).ok()?;
    let mut lines = log.lines();
    let line = lines.find(|line| line.contains("thread '") && line.contains("panicked at"))?;
    Some(format!("{line} {}", lines.next().unwrap_or_default()))
}
