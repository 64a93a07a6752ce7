//! Graceful node shutdown: after a request the node's pods terminate by priority (SPEC T9). In which order, and with
//! how much time, `knarr_kubelet::shutdown` decides.
//!
//! Only a request starts a shutdown: a kubelet that merely exits leaves its pods running. From the request on the node
//! is not Ready and admits no pods, also after all have terminated, until the kubelet exits or the shutdown is
//! cancelled; pods terminated by then stay terminated.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::PodUid;
use knarr_client::Clock;
use knarr_client::events::EventType;
use knarr_kubelet::pod::Event;
use knarr_kubelet::shutdown::{self, Budget, Shutdown, ShutdownAction};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::conditions::NodeConditions;
use super::config::Config;
use super::events::Events;
use super::workers::Workers;

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
        #[serde(rename = "longest_seconds")]
        max_seconds: i64,
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
    notified: Vec<PodUid>,
    /// All grace periods are over; until then terminations in progress are awaited.
    reporting: Option<Instant>,
    listeners: Vec<Listener>,
    /// All progress so far, for listeners that join later.
    reported: Vec<Progress>,
    over: bool,
}

/// The kubelet's side.
pub(super) struct Runner {
    config: Arc<Config>,
    events: Events,
    conditions: Arc<NodeConditions>,
    clock: Arc<dyn Clock>,
    /// Notified when a pod has terminated.
    pod_terminated: Arc<Notify>,
    in_progress: Option<InProgress>,
}

impl Runner {
    pub fn new(
        config: Arc<Config>,
        events: Events,
        conditions: Arc<NodeConditions>,
        clock: Arc<dyn Clock>,
        pod_terminated: Arc<Notify>,
    ) -> Self {
        Runner {
            config,
            events,
            conditions,
            clock,
            pod_terminated,
            in_progress: None,
        }
    }

    pub fn request(&mut self, workers: &Workers, (request, listener): ShutdownRequest) {
        match request {
            Request::Shutdown => self.begin(workers, listener),
            Request::Cancel => self.cancel(&listener),
        }
    }

    fn begin(&mut self, workers: &Workers, listener: Listener) {
        if let Some(there) = &mut self.in_progress {
            for reported in &there.reported {
                // The requester need not listen.
                let _ = listener.send(reported.clone());
            }
            there.listeners.push(listener);
            return;
        }
        let budgets = shutdown::budgets(&self.config.configuration.shutdown);
        if budgets.is_empty() {
            let why = "the KubeletConfiguration gives pods no time to end: set its shutdownGracePeriod \
                       or shutdownGracePeriodByPodPriority";
            let _ = listener.send(Progress::Rejected { why: why.into() });
            return;
        }
        let pods = workers.active_pods();
        info!(pods = pods.len(), "node shutdown started");
        self.record_event(shutdown::DETECTED);
        self.conditions.set_shutting_down(true);
        let plan = Shutdown::new(
            &budgets,
            &pods.iter().map(|pod| &**pod).collect::<Vec<&core::Pod>>(),
        );
        let max_seconds = plan.max_seconds();
        let mut new = InProgress {
            plan,
            began: (self.clock.now(), Instant::now()),
            next: Instant::now(),
            notified: Vec::new(),
            reporting: None,
            listeners: vec![listener],
            reported: Vec::new(),
            over: false,
        };
        new.report(Progress::Begun { max_seconds });
        new.advance(workers);
        self.in_progress = Some(new);
    }

    fn cancel(&mut self, listener: &Listener) {
        let Some(mut there) = self.in_progress.take() else {
            let why = "no shutdown is under way".into();
            let _ = listener.send(Progress::Rejected { why });
            return;
        };
        info!("node shutdown cancelled");
        there.report(Progress::Cancelled);
        let _ = listener.send(Progress::Cancelled);
        self.record_event(shutdown::CANCELLED);
        self.conditions.set_shutting_down(false);
    }

    /// Resolves at the next step; never, where no shutdown is in progress.
    pub async fn due(&self) {
        match &self.in_progress {
            Some(there) if !there.over => tokio::select! {
                biased;
                () = sleep_until(there.next) => {}
                () = self.pod_terminated.notified() => {}
            },
            _ => std::future::pending().await,
        }
    }

    pub fn advance(&mut self, workers: &Workers) {
        if let Some(there) = &mut self.in_progress {
            there.advance(workers);
        }
    }

    fn record_event(&self, message: &str) {
        self.events.of_node(EventType::Normal, shutdown::EVENT, message);
    }
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
            let left = self
                .notified
                .iter()
                .filter(|uid| !workers.has_terminated(uid))
                .count();
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
            match self.plan.step(|uid| workers.has_terminated(uid), now) {
                ShutdownAction::Terminate { budget, pods } => {
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
                ShutdownAction::WaitUntil(at) => {
                    let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
                    self.next = Instant::now() + left;
                    return;
                }
                ShutdownAction::Done => {
                    info!("the pods' grace periods are over");
                    self.reporting = Some(Instant::now() + REPORT_TIMEOUT);
                    return self.advance(workers);
                }
            }
        }
    }
}

/// Kept for the kubelet's handle.
pub(super) fn channel() -> (Requests, mpsc::UnboundedReceiver<ShutdownRequest>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Requests(sender), receiver)
}
