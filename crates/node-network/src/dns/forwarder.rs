//! Forwards questions to upstream servers, once for all clients with the same question at the same time, and caches the
//! answers.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use knarr_network::dns::cached::{Question, Reply};
use knarr_network::dns::name::Name;
use knarr_network::dns::{record_type, response_code};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};
use tracing::{debug, error};

use super::cache::Cache;
use super::exchange::{ATTEMPT, exchange};
use super::knowledge::Routes;
use super::metrics::Metrics;

/// What the answers of other servers may take.
const CACHE_BYTES: usize = 4 << 20;
/// Questions that wait for other servers at the same time; each takes some kilobytes and a socket. CoreDNS' page recommends
/// 1000 in Kubernetes' Corefile (`max_concurrent`).
const WAITING_MAX: usize = 1000;
/// As CoreDNS gives a question in all.
const DEADLINE: Duration = Duration::from_secs(5);
/// Attempts for one question, over all servers.
const ATTEMPTS_MAX: usize = 3;

/// A lookup's result; `None` when no server has answered.
type Outcome = Option<Arc<Reply>>;
type InFlight = watch::Receiver<Option<Outcome>>;

/// See the module.
pub struct Forwarder {
    cache: Mutex<Cache>,
    flights: Mutex<HashMap<Question, InFlight>>,
    waiting: Arc<Semaphore>,
    metrics: Arc<Metrics>,
    loops: Mutex<Loops>,
}

/// Servers that led a question of ours back to us.
#[derive(Default)]
struct Loops {
    probes: HashMap<Name, SocketAddr>,
    found: BTreeSet<SocketAddr>,
}

impl Forwarder {
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Forwarder {
            cache: Mutex::new(Cache::new(CACHE_BYTES)),
            flights: Mutex::default(),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            metrics,
            loops: Mutex::default(),
        })
    }

    /// The right to wait for other servers; `None` when too many do.
    pub fn permit(&self) -> Option<OwnedSemaphorePermit> {
        let permit = self.waiting.clone().try_acquire_owned().ok();
        if permit.is_none() {
            self.metrics.rejected.inc();
        }
        permit
    }

    /// The answer and its age in seconds, if it is there.
    pub fn cached(&self, question: &Question) -> Option<(Arc<Reply>, u32)> {
        let found = self.cache.lock().get(question, Instant::now());
        self.metrics
            .count_cache_result(found.as_ref().map(|(reply, _)| &**reply));
        found
    }

    /// Queries the servers for this name; returns the answer and its age in seconds. Clients with the same question
    /// meanwhile wait for the same answer.
    pub async fn query_upstream(
        self: &Arc<Self>,
        question: Question,
        routes: &Routes,
    ) -> Option<(Arc<Reply>, u32)> {
        let servers: Vec<SocketAddr> = {
            let loops = self.loops.lock();
            let servers = routes.forwarding.servers(&question.name, &routes.of_node).iter();
            servers.filter(|s| !loops.found.contains(s)).copied().collect()
        };
        let mut flight = {
            let mut flights = self.flights.lock();
            match flights.get(&question) {
                Some(flight) => flight.clone(),
                None => {
                    // It may have come since the caller checked; an in-flight lookup ends after its entry is in the
                    // cache.
                    if let Some(known) = self.cache.lock().get(&question, Instant::now()) {
                        return Some(known);
                    }
                    let (sender, flight) = watch::channel(None);
                    flights.insert(question.clone(), flight.clone());
                    let this = self.clone();
                    tokio::spawn(async move {
                        let outcome = timeout(DEADLINE, this.ask(&question, &servers)).await;
                        let outcome = outcome.ok().flatten().map(Arc::new);
                        if let Some(reply) = &outcome {
                            let mut cache = this.cache.lock();
                            cache.insert(question.clone(), reply.clone(), Instant::now());
                        }
                        this.flights.lock().remove(&question);
                        sender.send_replace(Some(outcome));
                    });
                    flight
                }
            }
        };
        match flight.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().flatten().map(|reply| (reply, 0)),
            Err(_) => None,
        }
    }

    /// The first usable answer; a server's failure only where no other one does better.
    async fn ask(&self, question: &Question, servers: &[SocketAddr]) -> Option<Reply> {
        let mut failure = None;
        let attempts = ATTEMPTS_MAX.max(servers.len());
        for server in servers.iter().cycle().take(attempts) {
            let begun = Instant::now();
            let result = exchange(*server, question).await;
            let code = result.as_ref().ok().map(Reply::code);
            self.metrics.forwarded(*server, code, begun.elapsed());
            match result {
                Ok(reply) => match reply.code() {
                    response_code::NO_ERROR | response_code::NAME_ERROR => return Some(reply),
                    _ if servers.len() == 1 => return Some(reply),
                    _ => failure = Some(reply),
                },
                Err(error) => debug!(%server, name = %question.name, %error, "name server failed"),
            }
        }
        failure
    }

    pub fn clear(&self) {
        self.cache.lock().clear();
    }

    pub fn cache_counts(&self) -> (usize, usize) {
        self.cache.lock().counts()
    }

    /// Whether this question is one of our own loop probes that was forwarded back: its server is not used.
    pub fn is_own_probe(&self, name: &Name, query_type: u16) -> bool {
        if query_type != record_type::HINFO {
            return false;
        }
        let mut loops = self.loops.lock();
        let Some(server) = loops.probes.get(name).copied() else {
            return false;
        };
        if loops.found.insert(server) {
            error!(%server, "name server forwards to this one and is not queried any more");
        }
        true
    }

    /// Sends each server a question for a random name, as CoreDNS' loop plugin does, and leaves out those that lead it back
    /// to us. Done once for each set of servers.
    pub async fn probe_for_loops(&self, routes: &Routes) {
        let stubs = routes.forwarding.stub_domains.iter();
        let stubs = stubs.flat_map(|(domain, servers)| servers.iter().map(move |s| (*s, domain.clone())));
        let upstreams = routes.forwarding.servers(&Name::root(), &routes.of_node).iter();
        let all: Vec<(SocketAddr, Name)> = upstreams.map(|s| (*s, Name::root())).chain(stubs).collect();
        *self.loops.lock() = Loops::default();
        for (server, domain) in all {
            let labels = [
                rand::random::<u64>().to_string(),
                rand::random::<u64>().to_string(),
            ];
            let labels = labels.iter().map(|label| label.as_bytes());
            let Some(name) = Name::of_labels(labels, &domain) else {
                continue;
            };
            self.loops.lock().probes.insert(name.clone(), server);
            let question = Question {
                name: name.clone(),
                record_type: record_type::HINFO,
                dnssec_ok: false,
                checking_disabled: false,
            };
            let count_answer = timeout(ATTEMPT, exchange(server, &question)).await;
            debug!(%server, count_answer = matches!(count_answer, Ok(Ok(_))), "probed for a loop");
            self.loops.lock().probes.remove(&name);
        }
    }
}
