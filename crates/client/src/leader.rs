//! Leader election on a coordination.k8s.io Lease: of several servers that share a store, one runs the controllers.
//!
//! The leader renews the lease; a candidate that has observed it unchanged for its whole duration, by its own clock, may acquire it
//! (client-go's leaderelection). A leader that cannot renew stops before another may start ([`LeaderElectionConfig::renew_deadline`] is
//! shorter than [`LeaderElectionConfig::lease_duration`]). Every write has the resourceVersion that it was decided on as precondition,
//! so that of two concurrent writes one fails. A lease cannot stop requests of a leader that arrive late (a paused node, a slow
//! network): these carry the leader's [`Term`] and are rejected after its end.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::Shared;
use knarr_api::k8s_openapi;
use knarr_apimachinery::Result;
use knarr_apimachinery::time::microseconds;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use crate::api::{Api, TypedApi};
use crate::clock::Clock;
use crate::metrics::leader_election::LeaderElectionMetrics;
use crate::term::Term;

/// The durations of leader election. The defaults are kube-controller-manager's, but that a leader renews every 5 s and not every
/// 2 s: each renewal is a write to disk, and in an idle cluster nearly all writes are renewals. After a failure both retry every 2 s.
#[derive(Clone, Copy, Debug)]
pub struct LeaderElectionConfig {
    /// Candidates do not acquire a lease that has changed within this time.
    pub lease_duration: Duration,
    /// A leader that could not renew for this long stops leading.
    pub renew_deadline: Duration,
    /// The time between two renewals.
    pub renew_period: Duration,
    /// The time between two attempts to acquire the lease, or to renew it after a failure.
    pub retry_period: Duration,
}

impl Default for LeaderElectionConfig {
    fn default() -> Self {
        LeaderElectionConfig {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            renew_period: Duration::from_secs(5),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// A candidate for a lease (client-go's LeaderElector).
pub struct LeaderElector {
    api: Arc<dyn Api>,
    clock: Arc<dyn Clock>,
    namespace: String,
    name: String,
    /// Unique for each process, a restarted one included.
    identity: String,
    config: LeaderElectionConfig,
    observed: Mutex<Option<ObservedRecord>>,
    metrics: Option<LeaderElectionMetrics>,
}

/// The last change of the lease that was observed, and when that was by this node's clock.
struct ObservedRecord {
    resource_version: String,
    at: Instant,
}

impl LeaderElector {
    pub fn new(
        api: Arc<dyn Api>,
        clock: Arc<dyn Clock>,
        (namespace, name): (&str, &str),
        identity: &str,
        config: LeaderElectionConfig,
    ) -> Self {
        LeaderElector {
            api,
            clock,
            namespace: namespace.to_string(),
            name: name.to_string(),
            identity: identity.to_string(),
            config,
            observed: Mutex::new(None),
            metrics: None,
        }
    }

    #[must_use]
    pub fn with_metrics(self, metrics: LeaderElectionMetrics) -> Self {
        metrics.set_leading(&self.name, false);
        LeaderElector {
            metrics: Some(metrics),
            ..self
        }
    }

    fn set_leading(&self, is_leading: bool) {
        if let Some(metrics) = &self.metrics {
            metrics.set_leading(&self.name, is_leading);
        }
    }

    /// Runs `work` while this candidate leads, with the term, and again for each later term. Returns when `work` returns.
    pub async fn run<F, W>(&self, work: F)
    where
        F: Fn(Term) -> W,
        W: Future<Output = ()>,
    {
        loop {
            let lease = self.acquire_lease().await;
            let term = Term::of(&lease);
            info!(lease = self.name, identity = self.identity, "became leader");
            self.set_leading(true);
            tokio::select! {
                biased;
                () = work(term.clone()) => return,
                () = self.renew_until_lost(&term, lease) => warn!(lease = self.name, identity = self.identity, "lost the lease"),
            }
            self.set_leading(false);
        }
    }

    /// Waits until this candidate has acquired the lease.
    pub async fn acquire(&self) -> Term {
        let lease = self.acquire_lease().await;
        Term::of(&lease)
    }

    async fn acquire_lease(&self) -> Shared<Lease> {
        loop {
            match self.try_acquire_or_renew().await {
                Ok(Some(lease)) => return lease,
                Ok(None) => {}
                Err(error) => debug!(lease = self.name, %error, "lease not acquired"),
            }
            sleep(self.config.retry_period).await;
        }
    }

    /// Renews the lease, last `written` by this candidate; returns when the term is over.
    async fn renew_until_lost(&self, term: &Term, written: Shared<Lease>) {
        let mut renewed = Instant::now();
        let mut written = Some(written);
        let mut pause = self.config.renew_period;
        loop {
            let rest = || self.config.renew_deadline.saturating_sub(renewed.elapsed());
            sleep(pause.min(rest())).await;
            let rest = rest();
            let began = Instant::now();
            // An attempt that hangs counts as failed.
            match timeout(rest, self.renew(&mut written)).await {
                Ok(Ok(Some(now))) if now == *term => {
                    renewed = began;
                    pause = self.config.renew_period;
                }
                // Another candidate holds it, or held it in between.
                Ok(Ok(_)) => return,
                Ok(Err(error)) => {
                    debug!(lease = self.name, %error, "lease not renewed");
                    pause = self.config.retry_period;
                }
                Err(_) => return,
            }
            if renewed.elapsed() >= self.config.renew_deadline {
                return;
            }
        }
    }

    /// Releases the lease, so that the next leader need not wait. Call it when the work has stopped.
    pub async fn release(&self) -> Result<()> {
        let lease: Shared<Lease> = self.api.get_as(&self.namespace, &self.name).await?;
        self.set_leading(false);
        if holder(&lease) != self.identity {
            return Ok(());
        }
        let mut free = (*lease).clone();
        let spec = free.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        self.api.update_as(free).await.map(drop)
    }

    /// Renews the lease as it was last `written`, in one request: no other client should have changed it. If that fails, the
    /// lease is read first.
    async fn renew(&self, written: &mut Option<Shared<Lease>>) -> Result<Option<Term>> {
        let last = written.take();
        if let Some(last) = last {
            match self.write(&last).await {
                Ok(lease) => {
                    let term = Term::of(&lease);
                    *written = Some(lease);
                    return Ok(Some(term));
                }
                Err(error) => debug!(lease = self.name, %error, "the lease has changed since it was written"),
            }
            if let Some(metrics) = &self.metrics {
                metrics.slowpath(&self.name);
            }
        }
        *written = self.try_acquire_or_renew().await?;
        Ok(written.as_deref().map(Term::of))
    }

    /// Acquires or renews the lease; returns it if this candidate holds it.
    async fn try_acquire_or_renew(&self) -> Result<Option<Shared<Lease>>> {
        let lease: Shared<Lease> = match self.api.get_as(&self.namespace, &self.name).await {
            Ok(lease) => lease,
            Err(error) if error.is_not_found() => {
                let lease = Lease {
                    metadata: ObjectMeta {
                        namespace: Some(self.namespace.clone()),
                        name: Some(self.name.clone()),
                        ..ObjectMeta::default()
                    },
                    spec: Some(self.lease_spec(None)),
                };
                return self.api.create_as(lease).await.map(Some);
            }
            Err(error) => return Err(error),
        };
        let expired = self.observe_expired(&lease);
        let mine = holder(&lease) == self.identity;
        if !mine && !holder(&lease).is_empty() && !expired {
            return Ok(None);
        }
        self.write(&lease).await.map(Some)
    }

    /// Writes the lease with this candidate as holder, if it has not changed since it was `read`.
    async fn write(&self, read: &Lease) -> Result<Shared<Lease>> {
        let mut next = read.clone();
        next.spec = Some(self.lease_spec(read.spec.as_ref()));
        self.api.update_as(next).await
    }

    /// Observes the lease; whether it has not changed for its whole duration.
    fn observe_expired(&self, lease: &Lease) -> bool {
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let mut observed = self.observed.lock();
        match &*observed {
            Some(last) if last.resource_version == version => {
                let duration = lease.spec.as_ref().and_then(|s| s.lease_duration_seconds);
                let duration = duration
                    .and_then(|s| u64::try_from(s).ok())
                    .map(Duration::from_secs);
                last.at.elapsed() >= duration.unwrap_or(self.config.lease_duration)
            }
            _ => {
                *observed = Some(ObservedRecord {
                    resource_version: version,
                    at: Instant::now(),
                });
                false
            }
        }
    }

    fn lease_spec(&self, old: Option<&LeaseSpec>) -> LeaseSpec {
        let now = microseconds(self.clock.now());
        let mine = old.is_some_and(|old| old.holder_identity.as_deref() == Some(&self.identity));
        let old = old.cloned().unwrap_or_default();
        let seconds = i32::try_from(self.config.lease_duration.as_secs()).unwrap_or(i32::MAX);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(seconds),
            renew_time: Some(now.clone()),
            acquire_time: if mine { old.acquire_time } else { Some(now) },
            lease_transitions: Some(
                old.lease_transitions.unwrap_or(0) + i32::from(!mine && old.renew_time.is_some()),
            ),
            ..old
        }
    }
}

fn holder(lease: &Lease) -> &str {
    let spec = lease.spec.as_ref();
    spec.and_then(|s| s.holder_identity.as_deref()).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use k8s_openapi::jiff::Timestamp;
    use knarr_apimachinery::Error;

    use super::*;
    use crate::clock::TokioClock;
    use crate::fake::FakeApi;

    struct Candidates {
        api: Arc<FakeApi>,
        clock: Arc<TokioClock>,
        leading: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    }

    impl Candidates {
        fn new() -> Self {
            let clock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
            Candidates {
                api: Arc::new(FakeApi::new(clock.clone())),
                clock,
                leading: Arc::default(),
                most: Arc::default(),
            }
        }

        fn election(&self, identity: &str) -> LeaderElector {
            let lease = ("kube-system", "controllers");
            LeaderElector::new(
                self.api.clone(),
                self.clock.clone(),
                lease,
                identity,
                LeaderElectionConfig::default(),
            )
        }

        /// Counts the candidates that lead at one time.
        fn spawn(&self, identity: &str) -> tokio::task::JoinHandle<()> {
            struct Leading(Arc<AtomicUsize>);
            impl Drop for Leading {
                fn drop(&mut self) {
                    self.0.fetch_sub(1, Ordering::SeqCst);
                }
            }
            let election = self.election(identity);
            let (leading, most) = (self.leading.clone(), self.most.clone());
            tokio::spawn(async move {
                let work = |_| {
                    let (leading, most) = (leading.clone(), most.clone());
                    async move {
                        let now = leading.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        let _leading = Leading(leading);
                        std::future::pending::<()>().await;
                    }
                };
                election.run(work).await;
            })
        }

        async fn holder(&self) -> (String, i32) {
            let lease = self
                .api
                .get_as::<Lease>("kube-system", "controllers")
                .await
                .unwrap();
            let transitions = lease.spec.as_ref().unwrap().lease_transitions.unwrap_or(0);
            (holder(&lease).to_string(), transitions)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_candidate_leads_and_another_only_after_the_lease_has_expired() {
        let candidates = Candidates::new();
        let a = candidates.spawn("a");
        sleep(Duration::from_secs(1)).await;
        let _b = candidates.spawn("b");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(candidates.holder().await, ("a".into(), 0));
        a.abort();
        sleep(Duration::from_secs(12)).await;
        assert_eq!(candidates.holder().await.0, "a");
        sleep(Duration::from_secs(8)).await;
        assert_eq!(candidates.holder().await, ("b".into(), 1));
        assert_eq!(candidates.most.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_cannot_renew_stops_before_another_begins() {
        let candidates = Candidates::new();
        let cut = Arc::new(AtomicBool::new(false));
        let is_cut = cut.clone();
        candidates.api.intercept(move |request| {
            let cut = is_cut.load(Ordering::SeqCst) && request.verb != "watch";
            cut.then(|| Error::unavailable("cut off"))
        });
        let _a = candidates.spawn("a");
        sleep(Duration::from_secs(5)).await;
        assert_eq!(candidates.leading.load(Ordering::SeqCst), 1);
        cut.store(true, Ordering::SeqCst);
        sleep(Duration::from_secs(13)).await;
        assert_eq!(candidates.leading.load(Ordering::SeqCst), 0);
        cut.store(false, Ordering::SeqCst);
        let _b = candidates.spawn("b");
        sleep(Duration::from_secs(30)).await;
        assert_eq!(candidates.leading.load(Ordering::SeqCst), 1);
        assert_eq!(candidates.most.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_is_one_request_and_reads_the_lease_first_only_after_a_failure() {
        let candidates = Candidates::new();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let reject = Arc::new(AtomicBool::new(false));
        let (log, rejected) = (requests.clone(), reject.clone());
        candidates.api.intercept(move |request| {
            log.lock().push(request.verb);
            let lost = request.verb == "update" && rejected.swap(false, Ordering::SeqCst);
            lost.then(|| Error::timeout("no answer"))
        });
        let _a = candidates.spawn("a");
        sleep(Duration::from_secs(1)).await;
        requests.lock().clear();
        sleep(Duration::from_secs(15)).await;
        assert_eq!(*requests.lock(), ["update"; 3]);
        requests.lock().clear();
        reject.store(true, Ordering::SeqCst);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(*requests.lock(), ["update", "get", "update", "update"]);
        // Another client changes its metadata: that is noticed, and the term continues.
        requests.lock().clear();
        let touched = candidates
            .api
            .edit::<Lease>("kube-system", "controllers", "", |lease| {
                lease.metadata.labels = Some([("seen".to_string(), "true".to_string())].into());
            });
        touched.await.unwrap();
        requests.lock().clear();
        sleep(Duration::from_secs(5)).await;
        assert_eq!(*requests.lock(), ["update", "get", "update"]);
        assert_eq!(candidates.holder().await, ("a".into(), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_metrics_show_whether_a_candidate_leads() {
        let registry = crate::metrics::Registry::default();
        let metrics = LeaderElectionMetrics::new(&registry);
        let election = Candidates::new().election("a").with_metrics(metrics);
        let shows = |status: u8| {
            let line = format!("leader_election_master_status{{name=\"controllers\"}} {status}\n");
            registry.text().contains(&line)
        };
        assert!(shows(0));
        let leads = election.run(|_| std::future::pending::<()>());
        assert!(timeout(Duration::from_secs(1), leads).await.is_err());
        assert!(shows(1));
        election.release().await.unwrap();
        assert!(shows(0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_released_lease_is_acquired_at_once() {
        let candidates = Candidates::new();
        let a = candidates.election("a");
        a.acquire().await;
        a.release().await.unwrap();
        let _b = candidates.spawn("b");
        sleep(Duration::from_millis(1)).await;
        assert_eq!(candidates.holder().await.0, "b");
    }
}
