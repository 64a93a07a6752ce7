//! Job: pods that run to their end, until enough of them succeeded or too many failed.
//!
//! No end is counted twice or lost: a pod keeps a finalizer until its uid stands in `status.uncountedTerminatedPods` (or its
//! index in `completedIndexes`); only when the finalizer is off does the uid become a number. One look does one of these steps; the
//! next follows from the change it made. How a Job ends is written down first (`SuccessCriteriaMet`, `FailureTarget`)
//! and comes true (`Complete`, `Failed`) once every pod has ended and is counted.

mod conditions;
mod indexes;
mod leftovers;
mod pods;
mod policy;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey, Shared};

pub use self::conditions::finished;
use self::conditions::{condition, find, set_condition};
use self::indexes::Indexes;
use self::policy::Verdict;
use crate::action::{Action, Create, Delete, Report, reference};
use crate::controller::{Changed, Context, Controller, View};
use crate::owner::{claim, owners_of, selecting};
use crate::pod;
use crate::replicaset::{count, deletion_order};

/// Pods created or deleted for one Job at one time.
const MAX_PODS: usize = 500;
/// Uids that may wait in the status at one time, so that it stays under 20 KB.
const MAX_UNCOUNTED: usize = 500;
const MANAGED_BY: &str = "kubernetes.io/job-controller";

/// See the module.
pub struct Jobs;

impl Controller for Jobs {
    fn name(&self) -> &'static str {
        "job-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::JOB, &registry::POD]
    }

    fn keys(&self, view: &dyn View, changed: Changed<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::JOB) {
            return vec![key];
        }
        let mut keys = owners_of::<Job>(view, changed, |job| {
            job.spec.as_ref().and_then(|s| s.selector.as_ref())
        });
        keys.extend(leftovers::key(changed));
        keys
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let key = context.key;
        let Some(job) = context.view.get_as::<Job>(&key.namespace, &key.name) else {
            return leftovers::of_no_job(context);
        };
        let mut actions = leftovers::of_predecessors(context, &job);
        if !actions.is_empty() {
            // Its own pods have their turn at once, after this.
            actions.push(Action::RequeueAfter(Duration::ZERO));
            return actions;
        }
        let Some(spec) = &job.spec else { return Vec::new() };
        if spec.managed_by.as_deref().is_some_and(|by| by != MANAGED_BY) {
            return Vec::new();
        }
        if finished(&job).is_some() {
            return leftovers::of_finished(context, &job);
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
        let Some(selector) = spec.selector.as_ref().and_then(selecting) else {
            return Vec::new();
        };
        let mut known: Vec<Shared<Pod>> = context.view.controlled_by_as(owner.uid());
        known.extend(context.view.orphans_as(owner.namespace()));
        let claimed = claim(owner, &selector, known);
        let mut status = job.status.clone().unwrap_or_default();
        status.uncounted_terminated_pods.get_or_insert_default();
        let mut look = Look {
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
            wait: None,
        };
        if context.failure.is_some() {
            // What was planned did not happen; the next look plans it again.
            return Vec::new();
        }
        look.actions = adopted(claimed.actions);
        look.run();
        look.actions.extend(look.wait.map(Action::RequeueAfter));
        look.actions
    }
}

/// Pods that are taken up are tracked from then on.
fn adopted(actions: Vec<Action>) -> Vec<Action> {
    let track = |action| match action {
        Action::Update {
            kind,
            mut object,
            subresource,
        } => {
            let meta = object.metadata_mut();
            let owned = crate::owner::controller_of(meta).is_some();
            let finalizers = meta.finalizers.get_or_insert_default();
            if owned && !finalizers.iter().any(|f| f == pods::FINALIZER) {
                finalizers.push(pods::FINALIZER.into());
            }
            Action::Update {
                kind,
                object,
                subresource,
            }
        }
        other => other,
    };
    actions.into_iter().map(track).collect()
}

/// One look at one Job.
struct Look<'a> {
    now: Timestamp,
    job: &'a Shared<Job>,
    spec: &'a JobSpec,
    /// As it is to be.
    status: JobStatus,
    pods: &'a [Shared<Pod>],
    is_indexed: bool,
    /// With those that succeeded since the status was written.
    succeeded: Indexes,
    failed: Option<Indexes>,
    /// By index: the failed pod that is kept until its successor has taken over its number of failures.
    kept: BTreeMap<i32, &'a Shared<Pod>>,
    actions: Vec<Action>,
    wait: Option<Duration>,
}

/// Numbers of pods as this look leaves them.
struct Numbers {
    active: usize,
    ready: usize,
    terminating: usize,
}

impl<'a> Look<'a> {
    fn run(&mut self) {
        let suspended = self.spec.suspend == Some(true);
        if self.status.start_time.is_none() && !suspended {
            self.status.start_time = Some(Time(self.now));
        }
        self.settle_uncounted();
        let active: Vec<&'a Shared<Pod>> = self.pods.iter().filter(|p| pod::is_active(p)).collect();
        let mut numbers = Numbers {
            active: active.len(),
            ready: active.iter().filter(|p| pod::is_ready(p)).count(),
            terminating: self.pods.iter().filter(|p| pod::is_terminating(p)).count(),
        };
        let (mut succeeded, failed) = self.ends();
        let completions = self.spec.completions.unwrap_or(0);

        let mut end = self.known_end().or_else(|| self.failure(failed));
        if self.is_indexed {
            self.count_indexes(completions);
            succeeded = self.succeeded.total();
            if end.is_none() {
                end = self.index_failure(completions);
            }
            self.kept = self.kept_for_successors(&active);
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
            // Their finalizers stay until they are counted.
            self.delete(&active, false);
        } else {
            let managed = self.job.metadata.deletion_timestamp.is_none();
            if managed {
                self.manage(&active, succeeded, &mut numbers);
            }
            let enough = match self.spec.completions {
                None => succeeded > 0,
                Some(wanted) => succeeded >= wanted,
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
                self.tell_suspended(suspended);
            }
        }
        self.status.active = (numbers.active > 0).then(|| count(numbers.active));
        self.status.ready = Some(count(numbers.ready));
        self.status.terminating = Some(count(numbers.terminating));
        self.track(end, numbers.terminating);
    }

    fn uncounted(&mut self) -> &mut k8s_openapi::api::batch::v1::UncountedTerminatedPods {
        self.status.uncounted_terminated_pods.get_or_insert_default()
    }

    /// Uids whose pods no longer have the finalizer become numbers.
    fn settle_uncounted(&mut self) {
        let tracked: BTreeSet<&str> = self
            .pods
            .iter()
            .filter(|p| pods::is_tracked(p))
            .map(|p| p.object().uid())
            .collect();
        let settle = |uids: &mut Option<Vec<String>>| {
            let before = uids.take().unwrap_or_default();
            let (left, done): (Vec<String>, Vec<String>) =
                before.into_iter().partition(|uid| tracked.contains(uid.as_str()));
            *uids = (!left.is_empty()).then_some(left);
            count(done.len())
        };
        let uncounted = self.status.uncounted_terminated_pods.get_or_insert_default();
        let succeeded = settle(&mut uncounted.succeeded);
        let failed = settle(&mut uncounted.failed);
        let add = |to: &mut Option<i32>, n: i32| {
            if n > 0 {
                *to = Some(to.unwrap_or(0).saturating_add(n));
            }
        };
        add(&mut self.status.succeeded, succeeded);
        add(&mut self.status.failed, failed);
    }

    fn is_valid(&self, pod: &Pod) -> bool {
        let completions = self.spec.completions.unwrap_or(0);
        !self.is_indexed || pods::index(pod).is_some_and(|i| i < completions)
    }

    /// How many pods succeeded and failed, in the status or since.
    fn ends(&self) -> (i32, i32) {
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
            pods::is_failed(self.spec, p) && policy::verdict(self.spec, p) != Verdict::Ignore
        });
        (
            self.status.succeeded.unwrap_or(0) + new_succeeded + count(succeeded.len()),
            self.status.failed.unwrap_or(0) + new_failed + count(failed.len()),
        )
    }

    /// An end that was decided in an earlier look.
    fn known_end(&self) -> Option<JobCondition> {
        let conditions = self.status.conditions.as_deref().unwrap_or_default();
        if let Some(met) = find(conditions, "SuccessCriteriaMet") {
            return Some(met.clone());
        }
        if let Some(target) = find(conditions, "FailureTarget") {
            return Some(target.clone());
        }
        let failed = self.pods.iter().filter(|p| pods::is_failed(self.spec, p));
        let message = failed
            .into_iter()
            .find_map(|p| match policy::verdict(self.spec, p) {
                Verdict::FailJob(message) => Some(message),
                _ => None,
            })?;
        Some(condition("FailureTarget", "PodFailurePolicy", &message, self.now))
    }

    fn failure(&mut self, failed: i32) -> Option<JobCondition> {
        let limit = self.spec.backoff_limit.unwrap_or(6);
        if failed > limit || self.restarted_too_often(limit) {
            let message = "Job has reached the specified backoff limit";
            return Some(condition(
                "FailureTarget",
                "BackoffLimitExceeded",
                message,
                self.now,
            ));
        }
        let deadline = self
            .spec
            .active_deadline_seconds
            .filter(|_| self.spec.suspend != Some(true))?;
        let started = self.status.start_time.as_ref()?.0;
        let left = SignedDuration::from_secs(deadline) - self.now.duration_since(started);
        match Duration::try_from(left) {
            Ok(left) if !left.is_zero() => {
                self.look_again(left);
                None
            }
            _ => {
                let message = "Job was active longer than specified deadline";
                Some(condition("FailureTarget", "DeadlineExceeded", message, self.now))
            }
        }
    }

    /// Where the kubelet restarts containers, their restarts count as failures.
    fn restarted_too_often(&self, limit: i32) -> bool {
        let policy = self
            .spec
            .template
            .spec
            .as_ref()
            .and_then(|s| s.restart_policy.as_deref());
        if policy != Some("OnFailure") {
            return false;
        }
        let alive = self
            .pods
            .iter()
            .filter(|p| matches!(pod::phase(p), "Running" | "Pending"));
        let statuses = alive.filter_map(|p| p.status.as_ref()).flat_map(|s| {
            s.init_container_statuses
                .iter()
                .flatten()
                .chain(s.container_statuses.iter().flatten())
        });
        let restarts: i32 = statuses.map(|c| c.restart_count).fold(0, i32::saturating_add);
        if limit == 0 {
            restarts > 0
        } else {
            restarts >= limit
        }
    }

    fn count_indexes(&mut self, completions: i32) {
        let tracked = || {
            self.pods
                .iter()
                .filter(|p| pods::is_tracked(p) && self.is_valid(p))
        };
        let mut succeeded = Indexes::parse(
            self.status.completed_indexes.as_deref().unwrap_or(""),
            completions,
        );
        succeeded.add_all(&pods::indexes(tracked().filter(|p| pod::phase(p) == "Succeeded")));
        if let Some(limit) = self.spec.backoff_limit_per_index {
            let mut failed = Indexes::parse(self.status.failed_indexes.as_deref().unwrap_or(""), completions);
            failed.add_all(&pods::indexes(
                tracked().filter(|p| pods::fails_index(self.spec, limit, p)),
            ));
            self.failed = Some(failed);
        }
        self.succeeded = succeeded;
    }

    fn index_failure(&self, completions: i32) -> Option<JobCondition> {
        let failed = self.failed.as_ref()?.total();
        if self.spec.max_failed_indexes.is_some_and(|max| failed > max) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Some(condition(
                "FailureTarget",
                "MaxFailedIndexesExceeded",
                message,
                self.now,
            ));
        }
        (failed > 0 && failed + self.succeeded.total() >= completions).then(|| {
            condition(
                "FailureTarget",
                "FailedIndexes",
                "Job has failed indexes",
                self.now,
            )
        })
    }

    fn kept_for_successors(&self, active: &[&'a Shared<Pod>]) -> BTreeMap<i32, &'a Shared<Pod>> {
        let mut kept: BTreeMap<i32, &'a Shared<Pod>> = BTreeMap::new();
        let Some(failed_indexes) = &self.failed else {
            return kept;
        };
        let taken = pods::indexes(active.iter().copied());
        for pod in self
            .pods
            .iter()
            .filter(|p| pods::is_tracked(p) && self.is_valid(p))
        {
            let Some(index) = pods::index(pod) else { continue };
            if !pods::is_failed(self.spec, pod)
                || self.succeeded.has(index)
                || failed_indexes.has(index)
                || taken.contains(&index)
            {
                continue;
            }
            let age = |p: &Pod| (pods::all_failures(p), policy::finished_at(p));
            if kept.get(&index).is_none_or(|known| age(known) <= age(pod)) {
                kept.insert(index, pod);
            }
        }
        kept
    }

    fn look_again(&mut self, wait: Duration) {
        self.wait = Some(self.wait.map_or(wait, |w| w.min(wait)));
    }

    fn report(&self, done: (&'static str, &str), failed: (&'static str, &str)) -> Report {
        Report {
            about: reference(self.job.object()),
            done: Some((done.0, done.1.into())),
            failed: (failed.0, failed.1.into()),
        }
    }

    /// Asks pods to end; those that are not to be counted lose their finalizer first.
    fn delete(&mut self, which: &[&Shared<Pod>], untracked: bool) {
        if which.is_empty() {
            return;
        }
        if untracked {
            let tracked = which.iter().filter(|p| pods::is_tracked(p));
            let updates = tracked.map(|p| Action::update(pods::without_finalizer(p)));
            self.actions.extend(updates);
        }
        let report = self.report(
            ("SuccessfulDelete", "Deleted pod: "),
            ("FailedDelete", "Error deleting: "),
        );
        let deletes = which.iter().map(|p| Delete {
            report: Some(report.clone()),
            ..Delete::of(p.object())
        });
        self.actions.push(Action::DeleteMany(deletes.collect()));
    }

    /// As many active pods as are wanted: either some are deleted in one look, or some are made.
    fn manage(&mut self, active: &[&'a Shared<Pod>], succeeded: i32, numbers: &mut Numbers) {
        let suspended = self.spec.suspend == Some(true);
        let running = count(active.len());
        let parallelism = self.spec.parallelism.unwrap_or(1);
        let wanted = match self.spec.completions {
            _ if suspended => 0,
            // One success is enough; what runs may end.
            None if succeeded > 0 => running,
            None => parallelism,
            Some(completions) => (completions - succeeded).min(parallelism).max(0),
        };
        let mut surplus = self.surplus(active, usize::try_from(running - wanted).unwrap_or(0));
        if !suspended {
            surplus.truncate(MAX_PODS);
        }
        if !surplus.is_empty() {
            numbers.active -= surplus.len();
            numbers.terminating += surplus.len();
            numbers.ready -= surplus.iter().filter(|p| pod::is_ready(p)).count();
            self.delete(&surplus, true);
            return;
        }
        let ending = if pods::replaces_only_failed(self.spec) {
            count(numbers.terminating)
        } else {
            0
        };
        let missing = usize::try_from(wanted - ending - running)
            .unwrap_or(0)
            .min(MAX_PODS);
        if missing == 0 {
            return;
        }
        if self.spec.backoff_limit_per_index.is_none() {
            let wait = self.backoff();
            if !wait.is_zero() {
                self.look_again(wait);
                return;
            }
        }
        let report = self.report(
            ("SuccessfulCreate", "Created pod: "),
            ("FailedCreate", "Error creating: "),
        );
        let made: Vec<Pod> = if self.is_indexed {
            let indexes = self.due(self.pending(active, missing));
            let of = |index: i32| {
                let replaced = self.kept.get(&index).map(|p| &***p);
                pods::new_pod(self.job, self.spec, Some((index, replaced)))
            };
            indexes.into_iter().map(of).collect()
        } else {
            (0..missing)
                .map(|_| pods::new_pod(self.job, self.spec, None))
                .collect()
        };
        if made.is_empty() {
            return;
        }
        numbers.active += made.len();
        let creates = made.into_iter().map(|pod| Create {
            report: Some(report.clone()),
            ..Create::new(pod)
        });
        self.actions.push(Action::CreateMany(creates.collect()));
    }

    /// Pods that are too many: of an index all but one, of no valid index all, then those whose loss costs least.
    fn surplus(&self, active: &[&'a Shared<Pod>], at_least: usize) -> Vec<&'a Shared<Pod>> {
        let mut ranked: Vec<&'a Shared<Pod>> = active.to_vec();
        deletion_order::sort(&mut ranked, &BTreeMap::new(), self.now);
        if !self.is_indexed {
            ranked.truncate(at_least);
            return ranked;
        }
        let mut last: BTreeMap<i32, &str> = BTreeMap::new();
        for pod in &ranked {
            if let Some(index) = pods::index(pod).filter(|_| self.is_valid(pod)) {
                last.insert(index, pod.object().uid());
            }
        }
        let keeps = |p: &&Shared<Pod>| pods::index(p).and_then(|i| last.get(&i)) == Some(&p.object().uid());
        let (left, mut surplus): (Vec<_>, Vec<_>) = ranked.into_iter().partition(keeps);
        let more = at_least.saturating_sub(surplus.len());
        surplus.extend(left.into_iter().take(more));
        surplus
    }

    /// The lowest indexes that have neither ended nor a pod.
    fn pending(&self, active: &[&'a Shared<Pod>], missing: usize) -> Vec<i32> {
        let mut taken = self.succeeded.clone();
        taken.add_all(&pods::indexes(active.iter().copied()));
        if pods::replaces_only_failed(self.spec) {
            taken.add_all(&pods::indexes(
                self.pods.iter().filter(|p| pod::is_terminating(p)),
            ));
        }
        if let Some(failed) = &self.failed {
            taken.union(failed);
        }
        taken.missing(missing, self.spec.completions.unwrap_or(0))
    }

    /// Those whose back-off is over.
    fn due(&mut self, indexes: Vec<i32>) -> Vec<i32> {
        if self.spec.backoff_limit_per_index.is_none() {
            return indexes;
        }
        let mut soonest: Option<Duration> = None;
        let mut due = Vec::new();
        for index in indexes {
            let wait = self.kept.get(&index).map_or(Duration::ZERO, |pod| {
                let failures = usize::try_from(pods::all_failures(pod)).unwrap_or(0) + 1;
                policy::time_left(failures, policy::finished_at(pod), self.now)
            });
            if wait.is_zero() {
                due.push(index);
            } else {
                soonest = Some(soonest.map_or(wait, |s| s.min(wait)));
            }
        }
        if let Some(wait) = soonest {
            self.look_again(wait);
        }
        due
    }

    /// The wait after the failures since the last success. It goes by the pods that are there, so it outlives a restart.
    fn backoff(&self) -> Duration {
        let mut ends: Vec<(Option<Timestamp>, bool)> = self
            .pods
            .iter()
            .filter_map(|p| match pod::phase(p) {
                "Succeeded" => Some((policy::finished_at(p), false)),
                "Failed" => Some((policy::finished_at(p), true)),
                // One that ends without the finalizer was taken away by the Job itself.
                _ if pods::is_failed(self.spec, p) && pods::is_tracked(p) => {
                    Some((policy::finished_at(p), true))
                }
                _ => None,
            })
            .collect();
        ends.sort();
        let failures = ends.iter().rev().take_while(|(_, failed)| *failed).count();
        policy::time_left(failures, ends.last().and_then(|(at, _)| *at), self.now)
    }

    fn tell_suspended(&mut self, suspended: bool) {
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
                // The deadline counts while it is active.
                self.status.start_time = Some(Time(self.now));
            }
        }
    }

    /// Writes down which pods have ended, and then lets go of them; finishes the Job when all is counted.
    fn track(&mut self, end: Option<JobCondition>, terminating: usize) {
        let is_success = end.as_ref().is_some_and(|e| e.type_ == "SuccessCriteriaMet");
        let completions = self.spec.completions.unwrap_or(0);
        let before = Indexes::parse(
            self.status.completed_indexes.as_deref().unwrap_or(""),
            completions,
        );
        let mut new_indexes = BTreeSet::new();
        let mut release: Vec<&'a Shared<Pod>> = Vec::new();
        let mut all_done = true;
        let pods: &'a [Shared<Pod>] = self.pods;
        let mut ordered: Vec<&'a Shared<Pod>> = pods.iter().filter(|p| pods::is_tracked(p)).collect();
        ordered.sort_by_key(|p| pods::index(p));
        for pod in ordered {
            let is_failed = pods::is_failed(self.spec, pod);
            if !self.may_release(pod, is_failed, end.is_some()) {
                continue;
            }
            let uid = pod.object().uid().to_string();
            let valid = self.is_valid(pod);
            release.push(pod);
            let uncounted = self.status.uncounted_terminated_pods.get_or_insert_default();
            let as_failed = uncounted.failed.get_or_insert_default();
            if pod::phase(pod) == "Succeeded" && !as_failed.contains(&uid) {
                if self.is_indexed {
                    new_indexes.extend(pods::index(pod).filter(|i| valid && !before.has(*i)));
                } else {
                    let as_succeeded = uncounted.succeeded.get_or_insert_default();
                    if !as_succeeded.contains(&uid) {
                        as_succeeded.push(uid);
                    }
                }
            } else if (is_failed || (end.is_some() && !is_success))
                && valid
                && !as_failed.contains(&uid)
                && policy::verdict(self.spec, pod) != Verdict::Ignore
            {
                as_failed.push(uid);
            }
            let waiting = uncounted.failed.as_ref().map_or(0, Vec::len)
                + uncounted.succeeded.as_ref().map_or(0, Vec::len)
                + new_indexes.len();
            if waiting >= MAX_UNCOUNTED {
                all_done = false;
                break;
            }
        }
        let uncounted = self.uncounted();
        uncounted.failed = uncounted.failed.take().filter(|u| !u.is_empty());
        uncounted.succeeded = uncounted.succeeded.take().filter(|u| !u.is_empty());
        let nothing_waits = uncounted.failed.is_none() && uncounted.succeeded.is_none();
        if self.is_indexed {
            let mut counted = before;
            counted.add_all(&new_indexes);
            self.status.succeeded = Some(counted.total()).filter(|n| *n > 0);
            self.status.completed_indexes = Some(counted.to_string()).filter(|t| !t.is_empty());
            self.status.failed_indexes = self.failed.as_ref().map(Indexes::to_string);
        }
        let mut events = Vec::new();
        if let Some(end) = end {
            set_condition(&mut self.status, end.clone());
            if nothing_waits && all_done && release.is_empty() && terminating == 0 {
                events = self.finish(&end, is_success);
            }
        }
        if self.job.status.as_ref() != Some(&self.status) {
            let mut changed = (**self.job).clone();
            changed.status = Some(self.status.clone());
            self.actions.push(Action::update_status(changed));
        }
        self.actions.extend(events);
        let updates = release
            .into_iter()
            .map(|p| Action::update(pods::without_finalizer(p)));
        self.actions.extend(updates);
    }

    fn may_release(&self, pod: &Shared<Pod>, is_failed: bool, has_end: bool) -> bool {
        if self.job.metadata.deletion_timestamp.is_some() || has_end || pod::phase(pod) == "Succeeded" {
            return true;
        }
        let is_kept = || {
            let kept = pods::index(pod).and_then(|index| self.kept.get(&index));
            kept.is_some_and(|kept| kept.object().uid() == pod.object().uid())
        };
        is_failed && !is_kept()
    }

    fn finish(&mut self, end: &JobCondition, is_success: bool) -> Vec<Action> {
        let type_ = if is_success { "Complete" } else { "Failed" };
        let reason = end.reason.clone().unwrap_or_default();
        let message = end.message.clone().unwrap_or_default();
        set_condition(&mut self.status, condition(type_, &reason, &message, self.now));
        let about = reference(self.job.object());
        if !is_success {
            return vec![Action::warning(&about, conditions::reason(&reason), message)];
        }
        self.status.completion_time = Some(Time(self.now));
        let mut events = Vec::new();
        if self
            .spec
            .completions
            .is_some_and(|wanted| self.status.succeeded.unwrap_or(0) > wanted)
        {
            let message = "Too many succeeded pods running after completion count reached";
            events.push(Action::warning(&about, "TooManySucceededPods", message));
        }
        events.push(Action::event(&about, "Completed", "Job completed"));
        events
    }
}

#[cfg(test)]
mod tests;
