//! Runs the scheduler: changes of pods and nodes go in, bindings and reports go out.
//!
//! Deciding is done by one task, one pod after the other, each seeing the reservations of those before; requests are
//! made beside it, so that a slow API does not hold back decisions.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_client::events::reference;
use knarr_client::{Api, Clock, EventRecorder, EventType, Patch, Shared, TypedApi};
use knarr_scheduler::{Scheduler, Step};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::runner::Base;

/// The scheduler's name in events.
const COMPONENT: &str = "default-scheduler";
/// Requests under way at one time; more decisions wait for them.
const IN_FLIGHT: usize = 256;
/// Decisions in a row before other tasks get their turn.
const TURN: usize = 32;
/// How often pods that nothing helped are looked at (they wait for minutes).
const LOOK_FOR_FORGOTTEN: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct Driver {
    api: Arc<dyn Api>,
    clock: Arc<dyn Clock>,
    events: EventRecorder,
    scheduler: Arc<Mutex<Scheduler>>,
    wake: Arc<Notify>,
}

/// Runs until dropped.
pub async fn run(base: Base, scheduler: Scheduler) {
    let driver = Driver {
        api: base.api,
        clock: base.clock,
        events: base.events.with_component(COMPONENT),
        scheduler: Arc::new(Mutex::new(scheduler)),
        wake: Arc::new(Notify::new()),
    };
    let nodes = base.caches.store(&registry::NODE);
    let pods = base.caches.store(&registry::POD);
    let d = driver.clone();
    nodes.subscribe(move |change| {
        let node = change.after().and_then(|n| Shared::<Node>::new(n.clone()).ok());
        let now = d.clock.now();
        d.scheduler.lock().node_changed(change.object().name(), node, now);
        d.wake.notify_one();
    });
    // Before pods are placed all nodes and all that stands on them must be known.
    nodes.synced().await;
    let d = driver.clone();
    pods.subscribe(move |change| {
        let typed = |pod: Option<&Arc<_>>| pod.and_then(|p| Shared::<Pod>::new(Arc::clone(p)).ok());
        let (old, new) = (typed(change.before()), typed(change.after()));
        let now = d.clock.now();
        d.scheduler.lock().pod_changed(old.as_ref(), new.as_ref(), now);
        d.wake.notify_one();
    });
    pods.synced().await;
    debug!("scheduler started");

    let mut requests = JoinSet::new();
    loop {
        let mut decided = 0;
        while requests.len() < IN_FLIGHT && decided < TURN {
            let step = driver.scheduler.lock().step(driver.clock.now());
            let Some(step) = step else { break };
            decided += 1;
            requests.spawn(driver.clone().carry_out(step));
        }
        if decided == TURN {
            tokio::task::yield_now().await;
            while requests.try_join_next().is_some() {}
            continue;
        }
        let wait = driver.time_to_next();
        tokio::select! {
            biased;
            ended = requests.join_next(), if !requests.is_empty() => {
                if let Some(Err(error)) = ended {
                    warn!(%error, "a scheduling request died");
                }
            }
            _ = timeout(wait, driver.wake.notified()) => {}
        }
    }
}

impl Driver {
    fn time_to_next(&self) -> Duration {
        let Some(due) = self.scheduler.lock().next_due() else {
            return LOOK_FOR_FORGOTTEN;
        };
        let rest = due.duration_since(self.clock.now());
        Duration::try_from(rest)
            .unwrap_or_default()
            .min(LOOK_FOR_FORGOTTEN)
    }

    async fn carry_out(self, step: Step) {
        match step {
            Step::Bind { pod, node } => self.bind(pod, node).await,
            Step::Report { pod, message } => self.report(&pod, "Unschedulable", message).await,
        }
    }

    async fn bind(&self, pod: Shared<Pod>, node: String) {
        match self.api.bind(&pod, &node).await {
            Ok(()) => {
                self.scheduler.lock().bound(&pod);
                let message = format!(
                    "Successfully assigned {}/{} to {node}",
                    pod.object().namespace(),
                    pod.object().name()
                );
                self.event(&pod, EventType::Normal, "Scheduled", message);
            }
            Err(error) => {
                debug!(pod = ?pod.object(), node, %error, "not bound");
                self.scheduler.lock().not_bound(&pod, self.clock.now());
                self.wake.notify_one();
                // It has gone, or somebody else has bound it: nothing to report on it.
                if !error.is_not_found() && !error.is_conflict() {
                    self.report(&pod, "SchedulerError", format!("binding rejected: {error}"))
                        .await;
                }
            }
        }
    }

    fn event(&self, pod: &Shared<Pod>, type_: EventType, reason: &str, message: String) {
        self.events
            .event(&reference(pod.object()), type_, reason, message);
    }

    async fn report(&self, pod: &Shared<Pod>, reason: &str, message: String) {
        self.event(pod, EventType::Warning, "FailedScheduling", message.clone());
        let mut old = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
        let old = old.find(|c| c.type_ == "PodScheduled");
        let condition = not_scheduled(pod, old, reason, message, self.clock.now());
        let Some(condition) = condition else { return };
        let patch = json!({
            "metadata": {"uid": pod.object().uid()},
            "status": {"conditions": [condition]},
        });
        let (namespace, name) = (pod.object().namespace(), pod.object().name());
        let patched = self
            .api
            .patch(&registry::POD, namespace, name, "status", Patch::Strategic(patch))
            .await;
        if let Err(error) = patched
            && !error.is_not_found()
            && !error.is_conflict()
        {
            warn!(pod = ?pod.object(), %error, "cannot say in its status that the pod is not scheduled");
        }
    }
}

/// The condition, unless the pod has it already.
fn not_scheduled(
    pod: &Pod,
    old: Option<&PodCondition>,
    reason: &str,
    message: String,
    now: Timestamp,
) -> Option<PodCondition> {
    let flipped = old.is_none_or(|c| c.status != "False");
    if let Some(old) = old
        && !flipped
        && old.reason.as_deref() == Some(reason)
        && old.message.as_deref() == Some(&message)
    {
        return None;
    }
    let since = if flipped {
        Some(Time(now))
    } else {
        old.and_then(|c| c.last_transition_time.clone())
    };
    Some(PodCondition {
        type_: "PodScheduled".into(),
        status: "False".into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_transition_time: since,
        observed_generation: pod.metadata.generation,
        last_probe_time: None,
    })
}
