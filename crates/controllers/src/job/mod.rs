//! Job: pods that run to completion, until enough of them have succeeded or too many have failed.
//!
//! No finished pod is counted twice or lost (KEP-2307): a pod keeps a finalizer until its uid is in `status.uncountedTerminatedPods` (or
//! its index in `completedIndexes`); only when the finalizer is removed the uid is counted. One sync does one of these steps; the next
//! follows from the change it made. How a Job finishes is recorded first (`SuccessCriteriaMet`, `FailureTarget`), and it is finished
//! (`Complete`, `Failed`) once every pod has terminated and is counted (KEP-3329, KEP-3998).

mod conditions;
mod finish;
mod indexes;
mod manage;
mod orphan_pods;
mod pods;
mod policy;
mod tracking;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey, Shared};
use knarr_apimachinery::finalizer;
use knarr_apimachinery::time::seconds;

pub use self::conditions::finished;
use self::conditions::{condition, set_condition};
use self::indexes::Indexes;
use self::policy::FailureAction;
use crate::action::{Action, Report, reference};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::owner::{claim, controller_of, non_empty_selector, owners_of};
use crate::pod;
use crate::replicaset::count;

/// Pods created or deleted in one sync of a Job (upstream: MaxPodCreateDeletePerSync).
const MAX_PODS: usize = 500;
/// Uids in the status at one time, so that it stays under 20 KB (upstream: MaxUncountedPods).
const MAX_UNCOUNTED: usize = 500;
const MANAGED_BY: &str = "kubernetes.io/job-controller";

/// See the module.
pub struct Jobs;

/// Whether this controller syncs the Job: its `managedBy` names it, or is absent.
pub fn is_managed(job: &Job) -> bool {
    let manager = job.spec.as_ref().and_then(|s| s.managed_by.as_deref());
    manager.is_none_or(|by| by == MANAGED_BY)
}

impl Controller for Jobs {
    fn name(&self) -> &'static str {
        "job-controller"
    }

    fn account(&self) -> &'static str {
        "job-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::JOB, &registry::POD]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::JOB) {
            return vec![key];
        }
        let mut keys = owners_of::<Job>(view, changed, |job| {
            job.spec.as_ref().and_then(|s| s.selector.as_ref())
        });
        keys.extend(orphan_pods::key(changed));
        keys
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let key = context.key;
        let Some(job) = context.view.get_as::<Job>(&key.namespace, &key.name) else {
            return orphan_pods::of_no_job(context);
        };
        let mut actions = orphan_pods::of_predecessors(context, &job);
        if !actions.is_empty() {
            // The Job's own pods are synced after this.
            actions.push(Action::RequeueAfter(Duration::ZERO));
            return actions;
        }
        let Some(spec) = &job.spec else { return Vec::new() };
        if !is_managed(&job) {
            return Vec::new();
        }
        if finished(&job).is_some() {
            return orphan_pods::of_finished(context, &job);
        }
        let mode = spec.completion_mode.as_deref().unwrap_or("NonIndexed");
        let owner = job.object();
        if !matches!(mode, "NonIndexed" | "Indexed") {
            let message = "Skipped Job sync because completion mode is unknown";
            return vec![Action::warning(
                &reference(owner),
                "UnknownCompletionMode",
                message,
            )];
        }
        let Some(selector) = spec.selector.as_ref().and_then(non_empty_selector) else {
            return Vec::new();
        };
        let mut known: Vec<Shared<Pod>> = context.view.controlled_by_as(owner.uid());
        known.extend(context.view.orphans_as(owner.namespace()));
        let claimed = claim(owner, &selector, known);
        let mut status = job.status.clone().unwrap_or_default();
        status.uncounted_terminated_pods.get_or_insert_default();
        let mut sync = SyncJob {
            now: context.now,
            job: &job,
            spec,
            status,
            pods: &claimed.objects,
            is_indexed: mode == "Indexed",
            succeeded: Indexes::default(),
            failed: None,
            kept: BTreeMap::new(),
            actions: Vec::new(),
            claims: 0,
            wait: None,
        };
        if context.failure.is_some() {
            // The actions were not carried out; the next sync decides again.
            return Vec::new();
        }
        sync.actions = tracked(claimed.actions);
        sync.claims = sync.actions.len();
        sync.run();
        sync.actions.extend(sync.wait.map(Action::RequeueAfter));
        sync.actions
    }
}

/// Adopted pods get the tracking finalizer, released pods lose it.
fn tracked(claims: Vec<Action>) -> Vec<Action> {
    let track = |action| match action {
        Action::Update {
            kind,
            mut object,
            subresource,
        } => {
            let meta = object.metadata_mut();
            if controller_of(meta).is_some() {
                finalizer::add(meta, pods::FINALIZER);
            } else {
                finalizer::remove(meta, pods::FINALIZER);
            }
            Action::Update {
                kind,
                object,
                subresource,
            }
        }
        other => other,
    };
    claims.into_iter().map(track).collect()
}

/// One sync of one Job.
struct SyncJob<'a> {
    now: Timestamp,
    job: &'a Shared<Job>,
    spec: &'a JobSpec,
    /// The desired status.
    status: JobStatus,
    pods: &'a [Shared<Pod>],
    is_indexed: bool,
    /// With the indexes that have succeeded since the status was written.
    succeeded: Indexes,
    failed: Option<Indexes>,
    /// By index: the failed pod that is kept until its successor has its number of failures (upstream: podsWithDelayedDeletionPerIndex).
    kept: BTreeMap<i32, &'a Shared<Pod>>,
    actions: Vec<Action>,
    /// How many of the actions adopt or release pods: they are the first.
    claims: usize,
    wait: Option<Duration>,
}

/// The numbers of pods after this sync.
struct PodCounts {
    active: usize,
    ready: usize,
    terminating: usize,
}

impl<'a> SyncJob<'a> {
    fn run(&mut self) {
        let suspended = self.spec.suspend == Some(true);
        if self.status.start_time.is_none() && !suspended {
            self.status.start_time = Some(seconds(self.now));
        }
        self.clean_uncounted();
        let active: Vec<&'a Shared<Pod>> = self.pods.iter().filter(|p| pod::is_active(p)).collect();
        let mut numbers = PodCounts {
            active: active.len(),
            ready: active.iter().filter(|p| pod::is_ready(p)).count(),
            terminating: self.pods.iter().filter(|p| pod::is_terminating(p)).count(),
        };
        let (mut succeeded, failed) = self.finished_pods();
        let completions = self.spec.completions.unwrap_or(0);

        let mut end = self.recorded_end().or_else(|| self.failure(failed));
        if self.is_indexed {
            self.count_indexes(completions);
            succeeded = self.succeeded.total();
            if end.is_none() {
                end = self.index_failure(completions);
            }
            self.kept = self.pods_with_delayed_deletion(&active);
            if end.is_none()
                && let Some(policy) = &self.spec.success_policy
            {
                let met = policy::success(policy, completions, &self.succeeded);
                end = met.map(|message| condition("SuccessCriteriaMet", "SuccessPolicy", &message, self.now));
            }
        }

        if end.is_some() {
            numbers.ready -= active.iter().filter(|p| pod::is_ready(p)).count();
            numbers.terminating += active.len();
            numbers.active = 0;
            // Their finalizers are kept until they are counted.
            self.delete(&active, false);
        } else {
            let managed = self.job.metadata.deletion_timestamp.is_none();
            if managed {
                self.manage(&active, succeeded, &mut numbers);
            }
            let enough = match self.spec.completions {
                None => succeeded > 0,
                Some(desired) => succeeded >= desired,
            };
            if enough && numbers.active == 0 {
                let message = "Reached expected number of succeeded pods";
                end = Some(condition(
                    "SuccessCriteriaMet",
                    "CompletionsReached",
                    message,
                    self.now,
                ));
            } else if managed {
                self.report_suspended(suspended);
            }
        }
        self.status.active = (numbers.active > 0).then(|| count(numbers.active));
        self.status.ready = Some(count(numbers.ready));
        self.status.terminating = Some(count(numbers.terminating));
        self.track_status_and_remove_finalizers(end, numbers.terminating);
    }

    fn is_valid(&self, pod: &Pod) -> bool {
        let completions = self.spec.completions.unwrap_or(0);
        !self.is_indexed || pods::index(pod).is_some_and(|i| i < completions)
    }

    /// How many pods have succeeded and failed, by the status or since.
    fn finished_pods(&self) -> (i32, i32) {
        let uncounted = self.status.uncounted_terminated_pods.clone().unwrap_or_default();
        let (succeeded, failed) = (
            uncounted.succeeded.unwrap_or_default(),
            uncounted.failed.unwrap_or_default(),
        );
        let new = |known: &[String], has: &dyn Fn(&Pod) -> bool| {
            let pods = self.pods.iter().filter(|p| {
                pods::is_tracked(p)
                    && self.is_valid(p)
                    && !known.iter().any(|uid| uid == p.object().uid())
                    && has(p)
            });
            count(pods.count())
        };
        let new_succeeded = new(&succeeded, &|p| pod::phase(p) == "Succeeded");
        let new_failed = new(&failed, &|p| {
            pods::is_failed(self.spec, p)
                && policy::match_failure_policy(self.spec, p) != FailureAction::Ignore
        });
        (
            self.status.succeeded.unwrap_or(0) + new_succeeded + count(succeeded.len()),
            self.status.failed.unwrap_or(0) + new_failed + count(failed.len()),
        )
    }

    fn requeue_after(&mut self, wait: Duration) {
        self.wait = Some(self.wait.map_or(wait, |w| w.min(wait)));
    }

    fn report(&self, done: (&'static str, &str), failed: (&'static str, &str)) -> Report {
        Report {
            about: reference(self.job.object()),
            done: Some((done.0, done.1.into())),
            failed: (failed.0, failed.1.into()),
        }
    }

    fn report_suspended(&mut self, suspended: bool) {
        let (status, reason, message, event) = if suspended {
            ("True", "JobSuspended", "Job suspended", "Suspended")
        } else {
            ("False", "JobResumed", "Job resumed", "Resumed")
        };
        let new = JobCondition {
            status: status.into(),
            ..condition("Suspended", reason, message, self.now)
        };
        if set_condition(&mut self.status, new) {
            self.actions
                .push(Action::event(&reference(self.job.object()), event, message));
            if !suspended {
                // activeDeadlineSeconds counts while the Job is not suspended.
                self.status.start_time = Some(seconds(self.now));
            }
        }
    }
}

#[cfg(test)]
mod tests;
