//! The machine goes down: whoever knows of it says so, and the node's pods end by priority (SPEC T9). In which order,
//! and with how much time, `knarr_kubelet::shutdown` decides.
//!
//! Nothing but a request begins a shutdown: a kubelet that merely ends leaves its pods running. From the request on
//! the node is not Ready and takes no pods, also after all have ended, until the kubelet ends or the shutdown is
//! called off; what has ended by then stays ended.

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

/// How long is waited in the end for pods that are just being killed, and for the last statuses to be written: the API
/// may be gone already.
const TELL_LIMIT: Duration = Duration::from_secs(5);
const TELL_LOOK: Duration = Duration::from_millis(50);

/// What comes of a request, in order; [`Progress::Done`], [`Progress::Refused`] or [`Progress::Cancelled`] is the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Progress {
    /// It takes no longer than that.
    Begun {
        longest_seconds: i64,
    },
    /// Pods from this priority on are told to end.
    Group {
        priority: i32,
        seconds: i64,
        pods: usize,
    },
    /// Nobody is waited for any more; so many pods have not ended.
    Done {
        left: usize,
    },
    Refused {
        why: String,
    },
    Cancelled,
}

impl Progress {
    pub fn is_last(&self) -> bool {
        !matches!(self, Progress::Begun { .. } | Progress::Group { .. })
    }
}

/// What may be asked of a running kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    Shutdown,
    /// The machine stays up after all.
    Cancel,
}

type Listener = mpsc::UnboundedSender<Progress>;
pub(super) type Asked = (Request, Listener);

/// A way to tell a kubelet that its machine goes down.
#[derive(Clone, Debug)]
pub struct Requests(pub(super) mpsc::UnboundedSender<Asked>);

impl Requests {
    /// What comes of it. A kubelet that has ended says nothing.
    pub fn ask(&self, request: Request) -> mpsc::UnboundedReceiver<Progress> {
        let (listener, progress) = mpsc::unbounded_channel();
        // The receiver then ends without a word.
        let _ = self.0.send((request, listener));
        progress
    }
}

/// One that is under way, or over.
struct UnderWay {
    plan: Shutdown,
    /// The time goes on by the machine's monotonic clock, whatever the other one does.
    began: (Timestamp, Instant),
    /// The next look, unless a pod ends before.
    next: Instant,
    /// Uids of those that were told to end.
    told: Vec<String>,
    /// All have had their time; until then ends are waited for that are under way.
    telling: Option<Instant>,
    listeners: Vec<Listener>,
    /// All that was said so far, for those who come later.
    said: Vec<Progress>,
    over: bool,
}

/// The kubelet's side.
#[derive(Default)]
pub(super) struct Runner(Option<UnderWay>);

impl Runner {
    pub fn asked(&mut self, shared: &Shared, workers: &Workers, (request, listener): Asked) {
        match request {
            Request::Shutdown => self.begin(shared, workers, listener),
            Request::Cancel => self.cancel(shared, &listener),
        }
    }

    fn begin(&mut self, shared: &Shared, workers: &Workers, listener: Listener) {
        if let Some(there) = &mut self.0 {
            for said in &there.said {
                // Whoever asked need not listen.
                let _ = listener.send(said.clone());
            }
            there.listeners.push(listener);
            return;
        }
        let budgets = shutdown::budgets(&shared.config.configuration.shutdown);
        if budgets.is_empty() {
            let why = "the KubeletConfiguration gives pods no time to end: set its shutdownGracePeriod \
                       or shutdownGracePeriodByPodPriority";
            let _ = listener.send(Progress::Refused { why: why.into() });
            return;
        }
        let pods = workers.active_pods();
        info!(pods = pods.len(), "the machine goes down");
        tell_node(shared, shutdown::DETECTED);
        shared.set_shutting_down(true);
        let plan = Shutdown::new(&budgets, &pods.iter().collect::<Vec<&core::Pod>>());
        let longest_seconds = plan.longest_seconds();
        let mut new = UnderWay {
            plan,
            began: (shared.clock.now(), Instant::now()),
            next: Instant::now(),
            told: Vec::new(),
            telling: None,
            listeners: vec![listener],
            said: Vec::new(),
            over: false,
        };
        new.say(Progress::Begun { longest_seconds });
        new.advance(workers);
        self.0 = Some(new);
    }

    fn cancel(&mut self, shared: &Shared, listener: &Listener) {
        let Some(mut there) = self.0.take() else {
            let why = "no shutdown is under way".into();
            let _ = listener.send(Progress::Refused { why });
            return;
        };
        info!("the machine stays up after all");
        there.say(Progress::Cancelled);
        let _ = listener.send(Progress::Cancelled);
        tell_node(shared, shutdown::CANCELLED);
        shared.set_shutting_down(false);
    }

    /// When it is time to look again; never, where there is nothing to look for.
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

fn tell_node(shared: &Shared, message: &str) {
    let about = node_reference(&shared.config.node_name);
    let recorder = &shared.recorder;
    recorder.event(&about, EventType::Normal, shutdown::EVENT, message.to_string());
}

impl UnderWay {
    fn say(&mut self, progress: Progress) {
        // Whoever asked need not listen to the end.
        self.listeners
            .retain(|listener| listener.send(progress.clone()).is_ok());
        self.said.push(progress);
    }

    fn now(&self) -> Timestamp {
        let (at, since) = self.began;
        let elapsed = SignedDuration::try_from(since.elapsed()).unwrap_or(SignedDuration::MAX);
        at.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }

    fn advance(&mut self, workers: &Workers) {
        if let Some(until) = self.telling {
            let left = self.told.iter().filter(|uid| !workers.has_ended(uid)).count();
            let pending = left > 0 || self.told.iter().any(|uid| workers.is_untold(uid));
            if pending && Instant::now() < until {
                self.next = Instant::now() + TELL_LOOK;
                return;
            }
            if pending {
                warn!(left, "not every pod's end could be waited for and written down");
            }
            self.over = true;
            self.say(Progress::Done { left });
            return;
        }
        loop {
            let now = self.now();
            match self.plan.step(|uid| workers.has_ended(uid), now) {
                Step::End { budget, pods } => {
                    let Budget { priority, seconds } = budget;
                    info!(priority, seconds, pods = pods.len(), "a group of pods ends");
                    self.say(Progress::Group {
                        priority,
                        seconds,
                        pods: pods.len(),
                    });
                    for (uid, eviction) in pods {
                        workers.tell(&uid, Event::Evict(eviction));
                        self.told.push(uid);
                    }
                }
                Step::WaitUntil(at) => {
                    let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
                    self.next = Instant::now() + left;
                    return;
                }
                Step::Done => {
                    info!("the pods have had their time");
                    self.telling = Some(Instant::now() + TELL_LIMIT);
                    return self.advance(workers);
                }
            }
        }
    }
}

/// Whether a pod's end stands in its status.
pub(super) fn is_told(pod: &core::Pod) -> bool {
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
pub(super) fn channel() -> (Requests, mpsc::UnboundedReceiver<Asked>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Requests(sender), receiver)
}
