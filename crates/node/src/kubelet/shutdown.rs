//! Graceful node shutdown: after a request the node's pods terminate by priority (SPEC T9). In which order, and with
//! how much time, `knarr_kubelet::shutdown` decides.
//!
//! Only a request starts a shutdown: a kubelet that merely exits leaves its pods running. From the request on the node
//! is not Ready and admits no pods, also after all have terminated, until the kubelet exits or the shutdown is
//! cancelled; pods terminated by then stay terminated.

use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_client::events::EventType;
use knarr_kubelet::pod::Event;
use knarr_kubelet::shutdown::{self, Budget, Shutdown, Step};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::eviction::node_reference;
use super::{Shared, Workers};

/// How long pods that are being killed, and writes of the last statuses, are awaited at the end: the API may be
/// unreachable already.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
const REPORT_POLL: Duration = Duration::from_millis(50);

/// What comes of a request, in order; [`Progress::Done`], [`Progress::Rejected`] or [`Progress::Cancelled`] is the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Progress {
    /// The longest duration.
    Begun {
        longest_seconds: i64,
    },
    /// Pods from this priority on are being evicted.
    Group {
        priority: i32,
        seconds: i64,
        pods: usize,
    },
    /// The shutdown is over; so many pods have not terminated.
    Done {
        left: usize,
    },
    #[serde(rename = "refused")]
    Rejected {
        why: String,
    },
    Cancelled,
}

impl Progress {
    pub fn is_last(&self) -> bool {
        !matches!(self, Progress::Begun { .. } | Progress::Group { .. })
    }
}

/// A request to a running kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    Shutdown,
    /// The shutdown is cancelled.
    Cancel,
}

type Listener = mpsc::UnboundedSender<Progress>;
pub(super) type ShutdownRequest = (Request, Listener);

/// Sends shutdown requests to a kubelet.
#[derive(Clone, Debug)]
pub struct Requests(pub(super) mpsc::UnboundedSender<ShutdownRequest>);

impl Requests {
    /// Its progress. A kubelet that has exited reports none.
    pub fn ask(&self, request: Request) -> mpsc::UnboundedReceiver<Progress> {
        let (listener, progress) = mpsc::unbounded_channel();
        // The receiver then closes without a message.
        let _ = self.0.send((request, listener));
        progress
    }
}

/// One that is under way, or over.
struct InProgress {
    plan: Shutdown,
    /// Time passes by the monotonic clock, whatever the wall clock does.
    began: (Timestamp, Instant),
    /// The next step, unless a pod terminates before.
    next: Instant,
    /// Uids of evicted pods.
    notified: Vec<String>,
    /// All grace periods are over; until then terminations in progress are awaited.
    reporting: Option<Instant>,
    listeners: Vec<Listener>,
    /// All progress so far, for listeners that join later.
    reported: Vec<Progress>,
    over: bool,
}

/// The kubelet's side.
#[derive(Default)]
pub(super) struct Runner(Option<InProgress>);

impl Runner {
    pub fn request(&mut self, shared: &Shared, workers: &Workers, (request, listener): ShutdownRequest) {
        match request {
            Request::Shutdown => self.begin(shared, workers, listener),
            Request::Cancel => self.cancel(shared, &listener),
        }
    }

    fn begin(&mut self, shared: &Shared, workers: &Workers, listener: Listener) {
        if let Some(there) = &mut self.0 {
            for reported in &there.reported {
                // The requester need not listen.
                let _ = listener.send(reported.clone());
            }
            there.listeners.push(listener);
            return;
        }
        let budgets = shutdown::budgets(&shared.config.configuration.shutdown);
        if budgets.is_empty() {
            let why = "the KubeletConfiguration gives pods no time to end: set its shutdownGracePeriod \
                       or shutdownGracePeriodByPodPriority";
            let _ = listener.send(Progress::Rejected { why: why.into() });
            return;
        }
        let pods = workers.active_pods();
        info!(pods = pods.len(), "node shutdown started");
        record_event(shared, shutdown::DETECTED);
        shared.set_shutting_down(true);
        let plan = Shutdown::new(&budgets, &pods.iter().collect::<Vec<&core::Pod>>());
        let longest_seconds = plan.longest_seconds();
        let mut new = InProgress {
            plan,
            began: (shared.clock.now(), Instant::now()),
            next: Instant::now(),
            notified: Vec::new(),
            reporting: None,
            listeners: vec![listener],
            reported: Vec::new(),
            over: false,
        };
        new.report(Progress::Begun { longest_seconds });
        new.advance(workers);
        self.0 = Some(new);
    }

    fn cancel(&mut self, shared: &Shared, listener: &Listener) {
        let Some(mut there) = self.0.take() else {
            let why = "no shutdown is under way".into();
            let _ = listener.send(Progress::Rejected { why });
            return;
        };
        info!("node shutdown cancelled");
        there.report(Progress::Cancelled);
        let _ = listener.send(Progress::Cancelled);
        record_event(shared, shutdown::CANCELLED);
        shared.set_shutting_down(false);
    }

    /// Resolves at the next step; never, where no shutdown is in progress.
    pub async fn due(&self, shared: &Shared) {
        match &self.0 {
            Some(there) if !there.over => tokio::select! {
                biased;
                () = sleep_until(there.next) => {}
                () = shared.pod_ended.notified() => {}
            },
            _ => std::future::pending().await,
        }
    }

    pub fn advance(&mut self, workers: &Workers) {
        if let Some(there) = &mut self.0 {
            there.advance(workers);
        }
    }
}

fn record_event(shared: &Shared, message: &str) {
    let about = node_reference(&shared.config.node_name);
    let recorder = &shared.recorder;
    recorder.event(&about, EventType::Normal, shutdown::EVENT, message.to_string());
}

impl InProgress {
    fn report(&mut self, progress: Progress) {
        // The requester need not listen to the end.
        self.listeners
            .retain(|listener| listener.send(progress.clone()).is_ok());
        self.reported.push(progress);
    }

    fn now(&self) -> Timestamp {
        let (at, since) = self.began;
        let elapsed = SignedDuration::try_from(since.elapsed()).unwrap_or(SignedDuration::MAX);
        at.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }

    fn advance(&mut self, workers: &Workers) {
        if let Some(until) = self.reporting {
            let left = self.notified.iter().filter(|uid| !workers.has_ended(uid)).count();
            let pending = left > 0 || self.notified.iter().any(|uid| workers.is_unreported(uid));
            if pending && Instant::now() < until {
                self.next = Instant::now() + REPORT_POLL;
                return;
            }
            if pending {
                warn!(left, "some pods' terminations were not reported in time");
            }
            self.over = true;
            self.report(Progress::Done { left });
            return;
        }
        loop {
            let now = self.now();
            match self.plan.step(|uid| workers.has_ended(uid), now) {
                Step::End { budget, pods } => {
                    let Budget { priority, seconds } = budget;
                    info!(
                        priority,
                        seconds,
                        pods = pods.len(),
                        "terminating a priority group of pods"
                    );
                    self.report(Progress::Group {
                        priority,
                        seconds,
                        pods: pods.len(),
                    });
                    for (uid, eviction) in pods {
                        workers.send(&uid, Event::Evict(eviction));
                        self.notified.push(uid);
                    }
                }
                Step::WaitUntil(at) => {
                    let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
                    self.next = Instant::now() + left;
                    return;
                }
                Step::Done => {
                    info!("the pods' grace periods are over");
                    self.reporting = Some(Instant::now() + REPORT_TIMEOUT);
                    return self.advance(workers);
                }
            }
        }
    }
}

/// Whether a pod's status is terminal.
pub(super) fn is_terminated(pod: &core::Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

impl Shared {
    fn set_shutting_down(&self, yes: bool) {
        self.shutting_down.store(yes, Ordering::Relaxed);
        self.conditions_changed.notify_one();
    }

    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Relaxed)
    }
}

/// Kept for the kubelet's handle.
pub(super) fn channel() -> (Requests, mpsc::UnboundedReceiver<ShutdownRequest>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Requests(sender), receiver)
}
