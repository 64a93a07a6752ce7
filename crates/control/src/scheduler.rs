//! Runs the scheduler: feeds it changes of pods and nodes, and writes bindings and statuses.
//!
//! Deciding is done by one task, one pod after the other, each seeing the reservations of those before; requests are
//! sent concurrently, so that a slow API does not hold back decisions.

mod claims;
mod evictions;
mod metrics;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;
use knarr_api::kinds::pod::{self, DISRUPTION_TARGET};
use knarr_api::registry::{self, Registered};
use knarr_api::{Object, k8s_openapi};
use knarr_apimachinery::ids::NodeName;
use knarr_apimachinery::time::seconds;
use knarr_client::events::reference;
use knarr_client::{
    Api, Caches, Clock, Component, DeleteOptions, EventRecorder, EventType, Patch, Preconditions, Shared,
    TypedApi,
};
use knarr_scheduler::plugins::default_preemption::REASON;
use knarr_scheduler::plugins::dynamic_resources;
use knarr_scheduler::profile::DEFAULT_SCHEDULER_NAME;
use knarr_scheduler::{Action, Cluster, Nomination, Scheduler};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use crate::runner::Base;
use crate::topology_domains;
use evictions::Evictions;
use metrics::Attempt;

pub(crate) use self::claims::KINDS as DEVICE_KINDS;
pub(crate) use self::volumes::KINDS as STORAGE_KINDS;
pub use metrics::Metrics;

/// The scheduler's name in events.
const COMPONENT: &str = "default-scheduler";
/// In-flight requests at one time; further decisions wait for them.
const IN_FLIGHT: usize = 256;
/// Decisions in a row before the task yields to others.
const DECISIONS_PER_TURN: usize = 32;
/// How often unschedulable pods that no event moved are retried (they wait for minutes).
const FLUSH_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct Driver {
    api: Arc<dyn Api>,
    clock: Arc<dyn Clock>,
    events: EventRecorder,
    scheduler: Arc<Mutex<Scheduler>>,
    metrics: Metrics,
    evictions: Evictions,
    wake: Arc<Notify>,
    /// Notified when an object of storage or dynamic resource allocation has changed, or a pod was deleted.
    storage_changed: Arc<Notify>,
}

/// Runs until dropped.
pub async fn run(base: Base, scheduler: Scheduler, metrics: Metrics) {
    run_with(base, scheduler, metrics, Features::default()).await;
}

/// What the scheduler reads in addition to the kinds of Kubernetes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// TopologyDomains (SPEC B3).
    pub topology_domains: bool,
}

/// As [`run`], with these features.
pub async fn run_with(base: Base, scheduler: Scheduler, metrics: Metrics, features: Features) {
    let (api, events) = base.acting_as(&Component::Scheduler, COMPONENT);
    let driver = Driver {
        api,
        clock: base.clock,
        events,
        scheduler: Arc::new(Mutex::new(scheduler)),
        metrics,
        evictions: Evictions::default(),
        wake: Arc::new(Notify::new()),
        storage_changed: Arc::new(Notify::new()),
    };
    driver.metrics.of(&driver.scheduler);
    // Before pods are scheduled all nodes, their pods and everything else that plugins read must be known.
    driver.follow_surroundings(&base.caches).await;
    driver.follow_storage(&base.caches).await;
    driver.follow_devices(&base.caches).await;
    if features.topology_domains {
        let d = driver.clone();
        let set = move |name: &str, object: Option<&Object>| {
            let now = d.clock.now();
            d.scheduler.lock().topology_domains_changed(name, object, now);
            d.wake.notify_one();
        };
        topology_domains::follow(&base.caches, set).await;
    }
    let nodes = base.caches.store(&registry::NODE);
    let pods = base.caches.store(&registry::POD);
    let d = driver.clone();
    nodes.add_event_handler(move |change| {
        let node = change.after().and_then(|n| Shared::<Node>::new(n.clone()).ok());
        let now = d.clock.now();
        d.scheduler.lock().node_changed(change.object().name(), node, now);
        d.wake.notify_one();
    });
    nodes.synced().await;
    let d = driver.clone();
    pods.add_event_handler(move |change| {
        let typed = |pod: Option<&Arc<_>>| pod.and_then(|p| Shared::<Pod>::new(Arc::clone(p)).ok());
        let (old, new) = (typed(change.before()), typed(change.after()));
        let now = d.clock.now();
        d.scheduler.lock().pod_changed(old.as_ref(), new.as_ref(), now);
        d.evictions.seen(change.object().revision());
        if new.is_none() {
            d.storage_changed.notify_waiters();
        }
        d.wake.notify_one();
    });
    pods.synced().await;
    debug!("scheduler started");

    let mut requests = JoinSet::new();
    // These wait for others, perhaps for minutes, and block nothing.
    let mut volumes = JoinSet::new();
    loop {
        for pod in driver.evictions.take_seen(pods.last_sync_revision()) {
            driver.scheduler.lock().preempted(&pod, false, driver.clock.now());
        }
        let mut decided = 0;
        while requests.len() < IN_FLIGHT && decided < DECISIONS_PER_TURN {
            let begun = Instant::now();
            let action = driver.scheduler.lock().schedule_one(driver.clock.now());
            let Some(action) = action else { break };
            driver.metrics.decided(begun.elapsed().as_secs_f64());
            decided += 1;
            let waits = matches!(action, Action::Bind { volumes: Some(_), .. })
                || matches!(action, Action::Bind { claims: Some(_), .. });
            let of = if waits { &mut volumes } else { &mut requests };
            of.spawn(driver.clone().carry_out(action, begun));
        }
        if decided == DECISIONS_PER_TURN {
            tokio::task::yield_now().await;
            while requests.try_join_next().is_some() {}
            continue;
        }
        let wait = driver.time_to_next();
        tokio::select! {
            biased;
            result = requests.join_next(), if !requests.is_empty() => {
                if let Some(Err(error)) = result {
                    warn!(%error, "the task of a scheduling request panicked");
                }
            }
            result = volumes.join_next(), if !volumes.is_empty() => {
                if let Some(Err(error)) = result {
                    warn!(%error, "the task that binds the volumes of a pod panicked");
                }
            }
            _ = timeout(wait, driver.wake.notified()) => {}
        }
    }
}

impl Driver {
    fn time_to_next(&self) -> Duration {
        let Some(due) = self.scheduler.lock().next_due() else {
            return FLUSH_INTERVAL;
        };
        let rest = due.duration_since(self.clock.now());
        Duration::try_from(rest).unwrap_or_default().min(FLUSH_INTERVAL)
    }

    async fn carry_out(self, action: Action, begun: Instant) {
        let attempted = |what, pod: &Shared<Pod>| {
            let seconds = begun.elapsed().as_secs_f64();
            self.metrics.attempted(what, profile_name(pod), seconds);
        };
        match action {
            Action::Bind {
                pod,
                node,
                volumes,
                claims,
                queueing,
            } => {
                let profile = profile_name(&pod);
                let extension_point = |name, succeeded, begun: Instant| {
                    let seconds = begun.elapsed().as_secs_f64();
                    self.metrics.extension_point(name, succeeded, profile, seconds);
                };
                let pre_bind = Instant::now();
                if let Some(volumes) = volumes
                    && let Err(why) = self.bind_volumes(&pod, &node, &volumes).await
                {
                    extension_point("PreBind", false, pre_bind);
                    attempted(Attempt::Error, &pod);
                    return self.binding_failed(&pod, why.to_string()).await;
                }
                if let Some(claims) = &claims
                    && let Err(why) = self.bind_claims(&pod, &node, claims).await
                {
                    extension_point("PreBind", false, pre_bind);
                    attempted(Attempt::Error, &pod);
                    self.unreserve_claims(&pod, claims).await;
                    let plugin = dynamic_resources::NAME;
                    let message = format!("running PreBind plugin {plugin:?}: {why}");
                    return self.binding_failed(&pod, message).await;
                }
                extension_point("PreBind", true, pre_bind);
                let bind = Instant::now();
                let bound = self.bind(&pod, node).await;
                extension_point("Bind", bound, bind);
                if !bound {
                    if let Some(claims) = &claims {
                        self.unreserve_claims(&pod, claims).await;
                    }
                    return attempted(Attempt::Error, &pod);
                }
                attempted(Attempt::Scheduled, &pod);
                let took = self.clock.now().duration_since(queueing.since);
                self.metrics.placed(queueing.attempts, took.as_secs_f64());
            }
            Action::Report {
                pod,
                message,
                nomination,
                is_error,
                deallocate,
            } => {
                let (reason, result) = if is_error {
                    ("SchedulerError", Attempt::Error)
                } else {
                    ("Unschedulable", Attempt::Unschedulable)
                };
                attempted(result, &pod);
                if let Some(claim) = deallocate {
                    self.deallocate(&pod, &claim).await;
                }
                self.report(&pod, reason, message, nomination).await;
            }
            Action::Preempt {
                pod,
                message,
                node,
                victims,
                cleared,
                is_cross_node,
            } => {
                attempted(Attempt::Unschedulable, &pod);
                self.metrics.preempted(victims.len());
                let nomination = Nomination::Set(node.clone());
                let report = self.report(&pod, "Unschedulable", message, nomination);
                let make_room = self.preempt(&pod, &node, &victims, &cleared);
                let evicted = if is_cross_node {
                    self.metrics.preempted_across_nodes();
                    // After a crash the nomination says which preemption is to be finished.
                    match report.await {
                        true => make_room.await,
                        false => None,
                    }
                } else {
                    // None of these waits for another: the pod is not scheduled again before all are done.
                    futures::join!(report, make_room).1
                };
                match evicted {
                    Some(revision) => self.evictions.add(pod.clone(), revision),
                    None => self.scheduler.lock().preempted(&pod, true, self.clock.now()),
                }
                self.wake.notify_one();
            }
        }
    }

    async fn bind(&self, pod: &Shared<Pod>, node: NodeName) -> bool {
        match self.api.bind_read(pod, &node).await {
            Ok(()) => {
                self.scheduler.lock().bound(pod);
                let message = format!(
                    "Successfully assigned {}/{} to {node}",
                    pod.object().namespace(),
                    pod.object().name()
                );
                self.event(pod, EventType::Normal, "Scheduled", message);
                true
            }
            Err(error) => {
                debug!(pod = ?pod.object(), node = node.as_str(), %error, "not bound");
                // It was deleted, or another scheduler has bound it: there is nothing to report.
                if error.is_not_found() || error.is_conflict() {
                    self.unreserve(pod);
                } else {
                    self.binding_failed(pod, format!("binding rejected: {error}"))
                        .await;
                }
                false
            }
        }
    }

    /// The node's resources are unreserved, and the pod is scheduled again later.
    fn unreserve(&self, pod: &Shared<Pod>) {
        self.scheduler.lock().binding_failed(pod, self.clock.now());
        self.wake.notify_one();
    }

    async fn binding_failed(&self, pod: &Shared<Pod>, why: String) {
        self.unreserve(pod);
        self.report(pod, "SchedulerError", why, Nomination::Keep).await;
    }

    fn event(&self, pod: &Shared<Pod>, type_: EventType, reason: &str, message: String) {
        self.events
            .event(&reference(pod.object()), type_, reason, message);
    }

    /// Whether the status was written, if it had to be.
    async fn report(&self, pod: &Shared<Pod>, reason: &str, message: String, nomination: Nomination) -> bool {
        let shown = shortened(&message);
        self.event(pod, EventType::Warning, "FailedScheduling", shown);
        let old = pod::condition(pod, "PodScheduled");
        let condition = not_scheduled(pod, old, reason, message, self.clock.now());
        let had = pod.status.as_ref().and_then(|s| s.nominated_node_name.as_deref());
        let nominated = match nomination {
            Nomination::Set(node) if had != Some(node.as_str()) => Some(Some(node.into())),
            Nomination::Clear if had.is_some() => Some(None),
            _ => None,
        };
        if condition.is_none() && nominated.is_none() {
            return true;
        }
        if self
            .update_status(pod, condition.as_ref(), nominated.as_ref())
            .await
        {
            return true;
        }
        let mut status = serde_json::Map::new();
        if let Some(condition) = condition {
            status.insert("conditions".into(), json!([condition]));
        }
        if let Some(node) = nominated {
            status.insert("nominatedNodeName".into(), json!(node));
        }
        let otherwise = "cannot report in its status that the pod is unschedulable";
        self.patch_status(pod, status.into(), otherwise).await
    }

    /// Updates the status of a pod if it has not changed since the decision, which costs less than a patch; whether it was
    /// updated.
    async fn update_status(
        &self,
        pod: &Shared<Pod>,
        condition: Option<&PodCondition>,
        nominated: Option<&Option<String>>,
    ) -> bool {
        let mut new: Pod = (**pod).clone();
        // Without its resourceVersion it would overwrite what others have written meanwhile.
        if new.metadata.resource_version.is_none() {
            return false;
        }
        let status = new.status.get_or_insert_default();
        if let Some(condition) = condition {
            let conditions = status.conditions.get_or_insert_default();
            match conditions.iter_mut().find(|c| c.type_ == condition.type_) {
                Some(old) => old.clone_from(condition),
                None => conditions.push(condition.clone()),
            }
        }
        if let Some(nominated) = nominated {
            status.nominated_node_name.clone_from(nominated);
        }
        self.api
            .update_status(pod.object(), new.into_object())
            .await
            .is_ok()
    }

    /// Whether it was written. It is not an error that the pod was deleted.
    async fn patch_status(&self, pod: &Shared<Pod>, status: serde_json::Value, otherwise: &str) -> bool {
        let patch = json!({"metadata": {"uid": pod.object().uid()}, "status": status});
        let (namespace, name) = (pod.object().namespace(), pod.object().name());
        let patched = self
            .api
            .patch(&registry::POD, namespace, name, "status", Patch::Strategic(patch))
            .await;
        match patched {
            Err(error) if !error.is_not_found() && !error.is_conflict() => {
                warn!(pod = ?pod.object(), %error, "{otherwise}");
                false
            }
            patched => patched.is_ok(),
        }
    }

    /// Deletes the victims, gracefully. The revision of the last eviction; `None` if one of them failed.
    async fn preempt(
        &self,
        pod: &Shared<Pod>,
        node: &NodeName,
        victims: &[Shared<Pod>],
        cleared: &[Shared<Pod>],
    ) -> Option<u64> {
        let clear = cleared.iter().map(|lower| {
            let status = json!({"nominatedNodeName": null});
            self.patch_status(lower, status, "cannot take back a nomination")
        });
        let ending = |victim: &&Shared<Pod>| victim.metadata.deletion_timestamp.is_some();
        let evict = victims.iter().filter(|v| !ending(v));
        let evict = evict.map(|victim| self.evict(pod, node, victim));
        let (_, evicted) = futures::join!(join_all(clear), join_all(evict));
        evicted
            .into_iter()
            .try_fold(0, |last, revision| Some(revision?.max(last)))
    }

    /// The revision of the eviction; 0 if the victim was deleted before, `None` if it is not evicted.
    async fn evict(&self, pod: &Shared<Pod>, node: &NodeName, victim: &Shared<Pod>) -> Option<u64> {
        let condition = PodCondition {
            type_: DISRUPTION_TARGET.into(),
            status: "True".into(),
            reason: Some(REASON.into()),
            message: Some(format!(
                "{}: preempting to accommodate a higher priority pod",
                profile_name(pod)
            )),
            last_transition_time: Some(seconds(self.clock.now())),
            observed_generation: victim.metadata.generation,
            last_probe_time: None,
        };
        let options = DeleteOptions {
            preconditions: Preconditions {
                uid: Some(victim.object().uid().to_string()),
                resource_version: None,
            },
            ..DeleteOptions::default()
        };
        match self.api.disrupt(victim, condition, options).await {
            Ok(evicted) => {
                let by = pod.object().uid();
                let there = victim.spec.as_ref().and_then(|s| s.node_name.as_deref());
                let message = match there.filter(|there| node != there) {
                    // A victim of a cross-node preemption.
                    Some(_) => format!("Preempted by pod {by}, which is nominated to node {node}"),
                    None => format!("Preempted by pod {by} on node {node}"),
                };
                self.event(victim, EventType::Normal, "Preempted", message);
                Some(evicted.revision())
            }
            // It is deleted already.
            Err(error) if error.is_not_found() || error.is_conflict() => Some(0),
            Err(error) => {
                warn!(victim = ?victim.object(), %error, "a victim of preemption cannot be deleted");
                None
            }
        }
    }

    /// Watches the other kinds that plugins read.
    async fn follow_surroundings(&self, caches: &Arc<Caches>) {
        self.follow(caches, |cluster, _, name, new| {
            cluster.set_namespace(name, new.as_deref());
        })
        .await;
        self.follow(caches, |cluster, namespace, name, new| {
            cluster.set_service(namespace, name, new.as_deref());
        })
        .await;
        self.follow(caches, |cluster, namespace, name, new| {
            cluster.set_replica_set(namespace, name, new.as_deref());
        })
        .await;
        self.follow(caches, |cluster, namespace, name, new| {
            cluster.set_stateful_set(namespace, name, new.as_deref());
        })
        .await;
        self.follow(caches, |cluster, namespace, name, new| {
            cluster.set_replication_controller(namespace, name, new.as_deref());
        })
        .await;
        let d = self.clone();
        let budgets = caches.store(PodDisruptionBudget::kind_of());
        budgets.add_event_handler(move |change| {
            let object = change.object();
            let new = change
                .after()
                .and_then(|o| Shared::<PodDisruptionBudget>::new(o.clone()).ok());
            let (namespace, name) = (object.namespace(), object.name());
            let now = d.clock.now();
            let requeued = d
                .scheduler
                .lock()
                .budget_changed(namespace, name, new.as_deref(), now);
            if requeued {
                d.wake.notify_one();
            }
        });
        budgets.synced().await;
    }

    async fn follow<T: Registered>(
        &self,
        caches: &Arc<Caches>,
        set: impl Fn(&mut Cluster, &str, &str, Option<Shared<T>>) + Send + Sync + 'static,
    ) {
        let store = caches.store(T::kind_of());
        let scheduler = self.scheduler.clone();
        store.add_event_handler(move |change| {
            let object = change.object();
            let new = change.after().and_then(|o| Shared::<T>::new(o.clone()).ok());
            set(
                scheduler.lock().cluster_mut(),
                object.namespace(),
                object.name(),
                new,
            );
        });
        store.synced().await;
    }
}

/// The scheduler that a pod names.
fn profile_name(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    spec.and_then(|s| s.scheduler_name.as_deref())
        .filter(|name| !name.is_empty())
        .unwrap_or(DEFAULT_SCHEDULER_NAME)
}

/// The longest message of an event.
const EVENT_MESSAGE_BYTES: usize = 1024;

/// The message, truncated for an event.
fn shortened(message: &str) -> String {
    const MORE: &str = " ...";
    if message.len() <= EVENT_MESSAGE_BYTES {
        return message.to_string();
    }
    let mut end = EVENT_MESSAGE_BYTES - MORE.len();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MORE}", &message[..end])
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
        Some(seconds(now))
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
