//! Runs the rebalancing controller: takes the steps that [`knarr_rebalance::controller`] decides (SPEC B3).
//!
//! While there is no policy it watches policies only, and does nothing else. With one it reads the caches that scheduler and
//! controllers share: when a policy's spec changes, and periodically, not for every change of a pod. Plans are made on a
//! thread for blocking work, because one may take long, unless the runtime has one thread only.
//!
//! A wave's moves are written to the policy's status before the first eviction, with the resourceVersion that the step was
//! decided on; if that fails, for example because this process no longer leads, no pod is evicted.

mod metrics;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use knarr_api::kinds::pod::surge_first::SURGE_FIRST;
use knarr_api::{Kind, Object, registry};
use knarr_client::{Api, Clock, Component, Error, EventRecorder, EventType, ObjectKey};
use knarr_controllers::View;
use knarr_rebalance::controller::kinds::{RebalancePolicy, definitions, kinds};
use knarr_rebalance::controller::{
    Event, EvictionRequest, EvictionResult, Input, Outcome, Policies, Step, Wave, record_results, step,
};
use knarr_rebalance::snapshot::Usage;
use knarr_scheduler::Profile;
use serde_json::json;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{debug, warn};

pub use self::metrics::Metrics;
use crate::definitions::establish;
use crate::executor::Written;
use crate::runner::{Base, contain_writes};
use crate::scheduler::{DEVICE_KINDS, STORAGE_KINDS};
use crate::view::CacheView;

/// The service account it acts as.
pub const ACCOUNT: &str = "knarr-rebalancing-controller";
const NAME: &str = "rebalancing-controller";
/// Changes within this time are handled by one step.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The time between two attempts to create the CustomResourceDefinitions, and after a step that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// What a plan is made from in addition to storage and devices.
const KINDS: [&Kind; 9] = [
    &registry::POD,
    &registry::NODE,
    &registry::NAMESPACE,
    &registry::SERVICE,
    &registry::REPLICA_SET,
    &registry::STATEFUL_SET,
    &registry::REPLICATION_CONTROLLER,
    &registry::PRIORITY_CLASS,
    &registry::POD_DISRUPTION_BUDGET,
];

struct Rebalancing {
    api: Arc<dyn Api>,
    events: EventRecorder,
    clock: Arc<dyn Clock>,
    view: CacheView,
    profiles: Arc<[Profile]>,
    metrics: Metrics,
}

/// The kinds that plans are made from.
fn planned_kinds() -> impl Iterator<Item = &'static Kind> {
    KINDS.into_iter().chain(STORAGE_KINDS).chain(DEVICE_KINDS)
}

/// Runs until dropped. `profiles` are the scheduler's.
pub async fn run(base: Base, profiles: Vec<Profile>, metrics: Metrics) {
    let (api, events) = base.acting_as(&Component::Controller(ACCOUNT), NAME);
    while let Err(error) = establish(&*api, definitions()).await {
        debug!(%error, "the CustomResourceDefinitions of rebalancing are not established yet");
        sleep(RETRY_INTERVAL).await;
    }
    let wake = Arc::new(Notify::new());
    for kind in kinds() {
        let store = base.caches.store(kind);
        let changed = wake.clone();
        store.add_event_handler(move |change| {
            let generation = |object: Option<&Arc<Object>>| object.map(|o| o.metadata().generation);
            // A change of the status alone is this controller's.
            if generation(change.before()) != generation(change.after()) {
                changed.notify_one();
            }
        });
        store.synced().await;
    }
    let rebalancing = Rebalancing {
        api,
        events,
        clock: base.clock,
        view: CacheView(base.caches),
        profiles: profiles.into(),
        metrics,
    };
    let mut turn = 0_usize;
    loop {
        let policies = rebalancing.policies();
        if policies.is_empty() {
            rebalancing.metrics.planned(0);
            wake.notified().await;
            sleep(DEBOUNCE).await;
            continue;
        }
        // Requested before the first is awaited, so that they fill concurrently.
        let stores: Vec<_> = planned_kinds()
            .map(|kind| rebalancing.view.0.store(kind))
            .collect();
        for store in stores {
            store.synced().await;
        }
        let next = rebalancing.step(policies, turn).await;
        turn = turn.wrapping_add(1);
        tokio::select! {
            () = async { wake.notified().await; sleep(DEBOUNCE).await } => {}
            () = sleep(next) => {}
        }
    }
}

impl Rebalancing {
    fn policies(&self) -> Vec<RebalancePolicy> {
        let objects = kinds().into_iter().flat_map(|kind| self.view.list(kind, ""));
        let parsed = objects.filter_map(|object| {
            let policy = RebalancePolicy::of(&object);
            if policy.is_none() {
                warn!(policy = ?object, "a rebalance policy does not parse");
            }
            policy
        });
        parsed.collect()
    }

    /// Decides and carries out one step, before which so many were taken. Returns when the next is due.
    async fn step(&self, policies: Vec<RebalancePolicy>, turn: usize) -> Duration {
        let moves: usize = policies.iter().map(|p| p.status.moves).sum();
        let policies = Policies::read(policies);
        let usage = if policies.needs_usage() {
            usage::read(&*self.api).await
        } else {
            Usage::default()
        };
        let objects: Vec<Arc<Object>> = planned_kinds()
            .flat_map(|kind| self.view.list(kind, ""))
            .collect();
        let (profiles, now) = (self.profiles.clone(), self.clock.now());
        let decide = move || {
            step(Input {
                policies,
                profiles: &profiles,
                objects: &objects,
                usage: &usage,
                now,
                turn,
            })
        };
        // Where everything runs on one thread, as in the simulation, the order of events must not depend on a second one.
        let decided = match Handle::current().runtime_flavor() {
            RuntimeFlavor::CurrentThread => Ok(decide()),
            _ => tokio::task::spawn_blocking(decide).await,
        };
        let decided = match decided {
            Ok(decided) => decided,
            Err(error) => {
                // A panic is a bug; the next step starts from the same state.
                warn!(%error, "the plan of a rebalance policy panicked");
                return knarr_rebalance::controller::PERIOD
                    .try_into()
                    .unwrap_or(RETRY_INTERVAL);
            }
        };
        let next = Duration::try_from(decided.next).unwrap_or(RETRY_INTERVAL);
        self.metrics.planned(moves);
        self.carry_out(decided).await;
        next
    }

    async fn carry_out(&self, step: Step) {
        let mut written = Vec::new();
        for event in &step.events {
            self.record(event);
        }
        for policy in &step.updates {
            written.extend(self.update_status(policy).await.map(|(_, written)| written));
        }
        if let Some(wave) = step.wave {
            self.evict_wave(wave, &mut written).await;
        }
        let [cluster, namespaced] = kinds();
        // The next step decides on the state of that time.
        if !contain_writes(&self.view, &[cluster, namespaced, &registry::POD], &written).await {
            warn!("the caches do not show what rebalancing wrote");
        }
    }

    fn record(&self, event: &Event) {
        let type_ = if event.is_warning {
            EventType::Warning
        } else {
            EventType::Normal
        };
        self.events
            .event(&event.about, type_, event.reason, event.message.clone());
    }

    /// `None`: it was not written; the next step decides again.
    async fn update_status(&self, policy: &RebalancePolicy) -> Option<(RebalancePolicy, Written)> {
        let kind = policy.kind();
        let object = match policy.to_object() {
            Ok(object) => object,
            Err(error) => {
                warn!(policy = policy.name(), %error, "the status of a rebalance policy cannot be encoded");
                return None;
            }
        };
        match self.api.update(kind, object, "status").await {
            Ok(updated) => {
                let written = Written::Revision(kind.clone(), updated.revision());
                Some((RebalancePolicy::of(&updated)?, written))
            }
            Err(error) if error.is_conflict() || error.is_not_found() => {
                debug!(policy = policy.name(), %error, "again");
                None
            }
            Err(error) => {
                warn!(policy = policy.name(), %error, "the status of a rebalance policy was not written");
                None
            }
        }
    }

    async fn evict_wave(&self, wave: Wave, written: &mut Vec<Written>) {
        let Some((policy, update)) = self.update_status(&wave.policy).await else {
            return;
        };
        written.push(update);
        let mut results = Vec::new();
        for request in &wave.evictions {
            let outcome = self.evict(request).await;
            self.metrics.evicted(request.rule, &outcome);
            if outcome == Outcome::Evicted {
                self.record(&request.event);
                written.push(Written::Deleted {
                    kind: registry::POD.clone(),
                    key: ObjectKey::new(request.pod.namespace.clone(), request.pod.name.clone()),
                    uid: request.pod.uid.to_string(),
                });
            } else {
                debug!(pod = %request.pod, ?outcome, "not evicted");
            }
            results.push(EvictionResult {
                pod: request.pod.clone(),
                outcome,
            });
        }
        if let Some(policy) = record_results(&policy, &results, self.clock.now()) {
            written.extend(self.update_status(&policy).await.map(|(_, written)| written));
        }
    }

    async fn evict(&self, request: &EvictionRequest) -> Outcome {
        let pod = &request.pod;
        let mut eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"namespace": pod.namespace, "name": pod.name},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        });
        if let Some(seconds) = request.grace_period_seconds {
            eviction["deleteOptions"]["gracePeriodSeconds"] = seconds.into();
        }
        let kind = &registry::POD;
        let evicted = self
            .api
            .create_subresource(kind, &pod.namespace, &pod.name, "eviction", eviction)
            .await;
        match evicted {
            Ok(_) => Outcome::Evicted,
            Err(error) => outcome(&error),
        }
    }
}

fn outcome(error: &Error) -> Outcome {
    let is_surge = error.has_cause(SURGE_FIRST);
    let causes = error.causes().iter().filter_map(|c| c.message.as_deref());
    // The cause names the PodDisruptionBudget.
    let mut message = error.message().to_string();
    for cause in causes.filter(|cause| !error.message().contains(cause)) {
        message = format!("{message} {cause}");
    }
    match error.code() {
        404 | 409 => Outcome::Gone,
        429 if is_surge => Outcome::SurgeFirst { message },
        429 => Outcome::DisruptionBudget { message },
        500.. => Outcome::Unknown { message },
        _ => Outcome::Rejected { message },
    }
}

#[cfg(test)]
mod tests {
    use knarr_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause;

    use super::*;

    #[test]
    fn b3_b6_the_cause_says_whether_a_budget_or_surge_first_eviction_rejects() {
        for (reason, expected) in [
            ("DisruptionBudget", "disruption_budget"),
            (SURGE_FIRST, "surge_first"),
        ] {
            let mut error = Error::too_many_requests("Cannot evict pod", 5);
            error.status_mut().details.get_or_insert_default().causes = Some(vec![StatusCause {
                reason: Some(reason.into()),
                message: Some("why".into()),
                ..StatusCause::default()
            }]);
            assert_eq!(outcome(&error).name(), expected);
        }
        let plain = outcome(&Error::too_many_requests("Too many requests", 1));
        assert_eq!(plain.name(), "disruption_budget");
    }
}
