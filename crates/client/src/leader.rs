//! Leader election on a coordination.k8s.io Lease: of several servers that share a store, one runs the controllers.
//!
//! Whoever holds the lease renews it; whoever has seen it unchanged for its whole duration, by its own clock, may take
//! it. A holder that cannot renew stops its work before anybody else may begin ([`Terms::renew_deadline`] is shorter
//! than [`Terms::lease_duration`]). Every write carries the resourceVersion it was decided on, so that of two
//! that try at once one fails. What a leader has sent and what comes late (a paused machine, a slow link) is not the
//! lease's to stop: it carries its [`Term`] and is refused after that.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use knarr_api::k8s_openapi;
use knarr_api::{Result, Shared};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use crate::api::{Api, TypedApi};
use crate::clock::Clock;
use crate::term::Term;

/// How long things take in an election. By default kube-controller-manager's numbers, but that a holder to whom all goes well
/// renews every 5 s, where that does so every 2 s: each renewal is a write to a disk, of a cluster where nothing happens nearly
/// all there are. After a failure both try every 2 s.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Nobody takes a lease that has changed within this time.
    pub lease_duration: Duration,
    /// A holder that has not renewed for this long gives up.
    pub renew_deadline: Duration,
    /// Between two renewals.
    pub renew_period: Duration,
    /// Between two attempts to take it, or to renew it where that has failed.
    pub retry_period: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Terms {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            renew_period: Duration::from_secs(5),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// One candidate for one lease.
pub struct Election {
    api: Arc<dyn Api>,
    clock: Arc<dyn Clock>,
    namespace: String,
    name: String,
    /// Another for each process, after a restart too.
    identity: String,
    terms: Terms,
    seen: Mutex<Option<Seen>>,
}

/// The lease as it was last seen to change, and when that was by this machine's clock.
struct Seen {
    resource_version: String,
    at: Instant,
}

impl Election {
    pub fn new(
        api: Arc<dyn Api>,
        clock: Arc<dyn Clock>,
        (namespace, name): (&str, &str),
        identity: &str,
        terms: Terms,
    ) -> Self {
        Election {
            api,
            clock,
            namespace: namespace.to_string(),
            name: name.to_string(),
            identity: identity.to_string(),
            terms,
            seen: Mutex::new(None),
        }
    }

    /// Runs `work` whenever, and only while, this candidate leads; it is told in which term. Ends when `work` ends by
    /// itself.
    pub async fn run_while_leading<F, W>(&self, work: F)
    where
        F: Fn(Term) -> W,
        W: Future<Output = ()>,
    {
        loop {
            let lease = self.take().await;
            let term = Term::of(&lease);
            info!(lease = self.name, identity = self.identity, "became leader");
            tokio::select! {
                biased;
                () = work(term.clone()) => return,
                () = self.keep(&term, lease) => warn!(lease = self.name, identity = self.identity, "lost the lease"),
            }
        }
    }

    /// Waits until this candidate holds the lease.
    pub async fn acquire(&self) -> Term {
        let lease = self.take().await;
        Term::of(&lease)
    }

    async fn take(&self) -> Shared<Lease> {
        loop {
            match self.attempt().await {
                Ok(Some(lease)) => return lease,
                Ok(None) => {}
                Err(error) => debug!(lease = self.name, %error, "lease not taken"),
            }
            sleep(self.terms.retry_period).await;
        }
    }

    /// Renews the lease, which was written so; returns when the term is over.
    async fn keep(&self, term: &Term, written: Shared<Lease>) {
        let mut renewed = Instant::now();
        let mut written = Some(written);
        let mut pause = self.terms.renew_period;
        loop {
            let rest = || self.terms.renew_deadline.saturating_sub(renewed.elapsed());
            sleep(pause.min(rest())).await;
            let rest = rest();
            let began = Instant::now();
            // An attempt that hangs is as good as one that fails.
            match timeout(rest, self.renew(&mut written)).await {
                Ok(Ok(Some(now))) if now == *term => {
                    renewed = began;
                    pause = self.terms.renew_period;
                }
                // It was somebody else's in between, or is.
                Ok(Ok(_)) => return,
                Ok(Err(error)) => {
                    debug!(lease = self.name, %error, "lease not renewed");
                    pause = self.terms.retry_period;
                }
                Err(_) => return,
            }
            if renewed.elapsed() >= self.terms.renew_deadline {
                return;
            }
        }
    }

    /// Gives the lease back, so that the next leader need not wait. Call it when the work has ended.
    pub async fn release(&self) -> Result<()> {
        let lease: Shared<Lease> = self.api.get_as(&self.namespace, &self.name).await?;
        if holder(&lease) != self.identity {
            return Ok(());
        }
        let mut free = (*lease).clone();
        let spec = free.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        self.api.update_as(free).await.map(drop)
    }

    /// Renews the lease as it was last `written`, in one request: nobody else should have touched it. Where that does not
    /// go through, it is looked at first.
    async fn renew(&self, written: &mut Option<Shared<Lease>>) -> Result<Option<Term>> {
        let last = written.take();
        if let Some(last) = last {
            match self.write(&last).await {
                Ok(lease) => {
                    let term = Term::of(&lease);
                    *written = Some(lease);
                    return Ok(Some(term));
                }
                Err(error) => debug!(lease = self.name, %error, "the lease is not as it was written"),
            }
        }
        *written = self.attempt().await?;
        Ok(written.as_deref().map(Term::of))
    }

    /// Takes or renews the lease: as it is then, if it is this candidate's.
    async fn attempt(&self) -> Result<Option<Shared<Lease>>> {
        let lease: Shared<Lease> = match self.api.get_as(&self.namespace, &self.name).await {
            Ok(lease) => lease,
            Err(error) if error.is_not_found() => {
                let lease = Lease {
                    metadata: ObjectMeta {
                        namespace: Some(self.namespace.clone()),
                        name: Some(self.name.clone()),
                        ..ObjectMeta::default()
                    },
                    spec: Some(self.spec(None)),
                };
                return self.api.create_as(lease).await.map(Some);
            }
            Err(error) => return Err(error),
        };
        let expired = self.watch_for_expiry(&lease);
        let mine = holder(&lease) == self.identity;
        if !mine && !holder(&lease).is_empty() && !expired {
            return Ok(None);
        }
        self.write(&lease).await.map(Some)
    }

    /// Writes it as this candidate's, if nobody has written it since it was `seen`.
    async fn write(&self, seen: &Lease) -> Result<Shared<Lease>> {
        let mut next = seen.clone();
        next.spec = Some(self.spec(seen.spec.as_ref()));
        self.api.update_as(next).await
    }

    /// Whether the lease has not changed for its whole duration.
    fn watch_for_expiry(&self, lease: &Lease) -> bool {
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let mut seen = self.seen.lock();
        match &*seen {
            Some(seen) if seen.resource_version == version => {
                let duration = lease.spec.as_ref().and_then(|s| s.lease_duration_seconds);
                let duration = duration
                    .and_then(|s| u64::try_from(s).ok())
                    .map(Duration::from_secs);
                seen.at.elapsed() >= duration.unwrap_or(self.terms.lease_duration)
            }
            _ => {
                *seen = Some(Seen {
                    resource_version: version,
                    at: Instant::now(),
                });
                false
            }
        }
    }

    fn spec(&self, old: Option<&LeaseSpec>) -> LeaseSpec {
        let now = self.clock.now();
        let mine = old.is_some_and(|old| old.holder_identity.as_deref() == Some(&self.identity));
        let old = old.cloned().unwrap_or_default();
        let seconds = i32::try_from(self.terms.lease_duration.as_secs()).unwrap_or(i32::MAX);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(seconds),
            renew_time: Some(MicroTime(now)),
            acquire_time: if mine {
                old.acquire_time
            } else {
                Some(MicroTime(now))
            },
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
    use knarr_api::Error;

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

        fn election(&self, identity: &str) -> Election {
            let lease = ("kube-system", "controllers");
            Election::new(
                self.api.clone(),
                self.clock.clone(),
                lease,
                identity,
                Terms::default(),
            )
        }

        /// Counts those that work at one time.
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
                election.run_while_leading(work).await;
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
    async fn one_leads_and_another_follows_only_when_its_lease_has_run_out() {
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
    async fn a_renewal_is_one_request_and_looks_first_only_where_that_did_not_go_through() {
        let candidates = Candidates::new();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let refuse = Arc::new(AtomicBool::new(false));
        let (heard, refused) = (asked.clone(), refuse.clone());
        candidates.api.intercept(move |request| {
            heard.lock().push(request.verb);
            let lost = request.verb == "update" && refused.swap(false, Ordering::SeqCst);
            lost.then(|| Error::timeout("no answer"))
        });
        let _a = candidates.spawn("a");
        sleep(Duration::from_secs(1)).await;
        asked.lock().clear();
        sleep(Duration::from_secs(15)).await;
        assert_eq!(*asked.lock(), ["update"; 3]);
        asked.lock().clear();
        refuse.store(true, Ordering::SeqCst);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(*asked.lock(), ["update", "get", "update", "update"]);
        // Somebody touches it: found out, and the term goes on.
        asked.lock().clear();
        let touched = candidates
            .api
            .edit::<Lease>("kube-system", "controllers", "", |lease| {
                lease.metadata.labels = Some([("seen".to_string(), "true".to_string())].into());
            });
        touched.await.unwrap();
        asked.lock().clear();
        sleep(Duration::from_secs(5)).await;
        assert_eq!(*asked.lock(), ["update", "get", "update"]);
        assert_eq!(candidates.holder().await, ("a".into(), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_released_lease_is_taken_at_once() {
        let candidates = Candidates::new();
        let a = candidates.election("a");
        a.acquire().await;
        a.release().await.unwrap();
        let _b = candidates.spawn("b");
        sleep(Duration::from_millis(1)).await;
        assert_eq!(candidates.holder().await.0, "b");
    }
}
