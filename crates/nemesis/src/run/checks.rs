//! The checks of a run: at the end of a round all registers are read once more and the recorded history is checked; at the end
//! of the run nothing of any pod may be left.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use http::Method;
use libtest_mimic::Failed;

use super::{CONVERGENCE_LIMIT, POLL, Run, TICK, WATCH_LIMIT};
use crate::check::grace::{self, Disruption};
use crate::check::linearizability::{self, Verdict};
use crate::check::self_fencing::{self, Isolation};
use crate::check::{Violation, at_most_one, watches};
use crate::cluster::Cluster;
use crate::history::{Call, CallResult, Micros, Operation, Received};
use crate::pods;
use crate::registers::Worker;
use crate::schedule::{Fault, Target};
use crate::wait::Outcome;
use crate::watchers::{EXPIRED, Watcher};

impl Run<'_> {
    /// Reads every register of the round from every server, and waits until every watcher has received the last write.
    pub(super) fn read_all(&mut self, round: u64, keys: &[String]) {
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
                CallResult::Ok(Some(version)) => Some(version.revision),
                _ => None,
            }
        });
        let Some(last) = last else {
            self.add_violation(Violation::new(
                "liveness",
                "registers",
                "a write after the faults had no response",
            ));
            return;
        };
        let begin = Instant::now();
        let late = |watchers: &[Arc<Watcher>]| {
            let late = watchers.iter().find(|w| w.position() < last);
            late.map(|w| (w.name.clone(), w.position()))
        };
        while let Some((name, position)) = late(&self.watchers) {
            if begin.elapsed() > WATCH_LIMIT {
                let text = format!(
                    "it is at revision {position} {} s after revision {last} was written",
                    WATCH_LIMIT.as_secs()
                );
                self.add_violation(Violation::new("liveness", name, text));
                return;
            }
            std::thread::sleep(TICK);
        }
    }

    /// Checks the records of the round, and drops them.
    pub(super) fn check(&mut self, keys: &[String]) -> Outcome {
        let calls = std::mem::take(&mut *self.recorder.calls.lock());
        let lists = std::mem::take(&mut *self.recorder.lists.lock());
        let received: Vec<_> = self.watchers.iter().map(|w| w.take()).collect();
        self.report.calls += calls.len() + lists.len();
        let is_unknown = |call: &&Call| matches!(call.answer, CallResult::Unknown(_));
        self.report.unknown_calls += calls.iter().filter(is_unknown).count();
        let mut committed = std::mem::take(&mut self.committed);
        let mut violations: Vec<Violation> = Vec::new();
        let mut collect = |outcome: Result<(), Violation>| violations.extend(outcome.err());
        for call in &calls {
            if let CallResult::Ok(Some(version)) = &call.answer {
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
                    Some(version) => CallResult::Ok(Some(*version)),
                    None => CallResult::NotFound,
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
            self.add_violation(violation);
        }
        self.recorder.history.flush();
        self.log(&format!("checked {count} calls"));
        Ok(())
    }

    pub(super) fn check_pods(&mut self) -> Result<Vec<Violation>, Failed> {
        let processes = self.sampler.processes();
        self.report.processes = processes.len();
        for process in &processes {
            self.recorder.history.record("process", process);
        }
        let terms = pods::terms(&std::fs::read_to_string(self.record.join("terms"))?);
        let deletions = self.deletions.lock().clone();
        let fenced: Vec<_> = processes
            .iter()
            .filter(|process| process.container == pods::FENCED)
            .cloned()
            .collect();
        let outcomes = [
            at_most_one::check(&processes),
            grace::check(&processes, &deletions, &terms, &self.disruptions()),
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

    fn disruptions(&self) -> Vec<Disruption> {
        let of_nodes = self.applied.iter().filter_map(|(fault, from, until)| {
            let node = Run::node_of(fault.target()?)?;
            Some(Disruption {
                node: format!("node{}", node + 1),
                from: *from,
                until: *until,
            })
        });
        of_nodes.collect()
    }

    /// The times in which a node reached no server, and no other fault hit it until then and for a while before.
    fn isolations(&self) -> Vec<Isolation> {
        /// A kubelet that was killed, or whose clock was changed, has recovered after this time.
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

    /// Deletes the workloads, and waits until no process and no mount of a pod is left.
    pub(super) fn remove_pods(&mut self) -> Result<(), Violation> {
        let client = &self.clients[0];
        let begin = Instant::now();
        let dir = self.cluster.fleet.dir().display().to_string();
        loop {
            for collection in ["apps/v1 statefulsets", "apps/v1 deployments", "v1 pods"] {
                let (group, plural) = collection.rsplit_once(' ').unwrap_or(("v1", "pods"));
                let root = if group == "v1" { "api" } else { "apis" };
                let path = format!("/{root}/{group}/namespaces/{}/{plural}", pods::NAMESPACE);
                // Repeated until nothing is left, so that an error only costs time.
                let _ = self.runtime.block_on(client.send(Method::DELETE, &path, None));
            }
            let path = format!("/api/v1/namespaces/{}/pods", pods::NAMESPACE);
            let listed = self
                .runtime
                .block_on(client.get(&path))
                .map_err(|e| e.to_string());
            let in_api = listed.map(|l| l["items"].as_array().map_or(0, Vec::len));
            let running = self.sampler.running();
            let left = pod_leftovers(&dir);
            if in_api == Ok(0) && running == 0 && left.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > CONVERGENCE_LIMIT {
                return Err(Violation::new(
                    "leftovers",
                    "pods",
                    format!(
                        "{} s after all pods were deleted the API has {in_api:?} pods, {running} processes are running, and these are left: \
                         {left:?}",
                        CONVERGENCE_LIMIT.as_secs()
                    ),
                ));
            }
            if let Err(e) = self.cluster.supervise() {
                self.log(e.message().unwrap_or_default());
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Mounts and shims of pods below the directory.
fn pod_leftovers(dir: &str) -> Vec<String> {
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
pub(super) fn panics(cluster: &Cluster) -> Vec<Violation> {
    let mut found = Vec::new();
    for host in cluster.fleet.hosts() {
        if let Some(line) = panic_in(&host.log()) {
            found.push(Violation::new("panic", host.name.clone(), line));
        }
    }
    found
}

/// The first panic in a log of a Rust program. etcd, a Go program, panics when its disk is full; its log has another form.
fn panic_in(log: &Path) -> Option<String> {
    let log = std::fs::read_to_string(log).ok()?;
    let mut lines = log.lines();
    let line = lines.find(|line| line.contains("thread '") && line.contains("panicked at"))?;
    Some(format!("{line} {}", lines.next().unwrap_or_default()))
}
