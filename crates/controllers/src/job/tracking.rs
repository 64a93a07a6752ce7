//! Tracking of finished pods (KEP-2307): none is counted twice or lost, as first their uids are recorded, then the finalizers are removed,
//! then the uids are counted.
//!
//! The caches of Jobs and of pods differ in age, most of all in a new leader. Where that of pods is older, it may have a pod with the
//! finalizer that was counted already, and may not have a pod yet whose uid is in the status. Either would be counted twice: a pod is
//! recorded only after a live read has found the finalizer, and the uid of a pod that is not in the cache is counted only after a live
//! read has found no pod of the Job and that uid with it. A pod that the Job does not control any more is none of these: it may keep the
//! finalizer for as long as the Job exists.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::JobCondition;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::{Shared, k8s_openapi};
use knarr_apimachinery::time::seconds;

use super::conditions::{condition, set_condition};
use super::indexes::Indexes;
use super::policy::FailureAction;
use super::{MAX_UNCOUNTED, SyncJob, conditions, pods, policy};
use crate::action::{Action, LiveCheck, reference};
use crate::pod;
use crate::replicaset::count;

impl<'a> SyncJob<'a> {
    fn uncounted(&mut self) -> &mut k8s_openapi::api::batch::v1::UncountedTerminatedPods {
        self.status.uncounted_terminated_pods.get_or_insert_default()
    }

    /// Counts the uids whose pods no longer have the finalizer.
    pub(super) fn clean_uncounted(&mut self) {
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

    /// Records finished pods in the status, and then removes their finalizers; finishes the Job when all are counted.
    pub(super) fn track_status_and_remove_finalizers(
        &mut self,
        end: Option<JobCondition>,
        terminating: usize,
    ) {
        let is_success = end.as_ref().is_some_and(|e| e.type_ == "SuccessCriteriaMet");
        let completions = self.spec.completions.unwrap_or(0);
        let before = Indexes::parse(
            self.status.completed_indexes.as_deref().unwrap_or(""),
            completions,
        );
        let mut new_indexes = BTreeSet::new();
        let mut release: Vec<&'a Shared<Pod>> = Vec::new();
        let mut recorded: Vec<&'a Shared<Pod>> = Vec::new();
        let mut all_done = true;
        let pods: &'a [Shared<Pod>] = self.pods;
        let mut ordered: Vec<&'a Shared<Pod>> = pods.iter().filter(|p| pods::is_tracked(p)).collect();
        ordered.sort_by_key(|p| pods::index(p));
        for pod in ordered {
            let is_failed = pods::is_failed(self.spec, pod);
            if !self.may_remove_finalizer(pod, is_failed, end.is_some()) {
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
                        recorded.push(pod);
                    }
                }
            } else if (is_failed || (end.is_some() && !is_success))
                && valid
                && !as_failed.contains(&uid)
                && policy::match_failure_policy(self.spec, pod) != FailureAction::Ignore
            {
                as_failed.push(uid);
                recorded.push(pod);
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
            // Pods are deleted, too, by the numbers of finished ones that the caches have: the live reads come before that. A pod that is
            // released loses its finalizer first.
            let decided = self.actions.split_off(self.claims);
            self.actions.extend(require_tracked(&recorded));
            self.actions.extend(self.require_absent_untracked());
            self.actions.extend(decided);
            self.actions.push(Action::update_status(changed));
        }
        self.actions.extend(events);
        let updates = release
            .into_iter()
            .map(|p| Action::update(pods::without_finalizer(p)));
        self.actions.extend(updates);
    }

    /// The check of the uids in the Job's status whose pods are not in the cache, if there are any.
    fn require_absent_untracked(&self) -> Option<Action> {
        let known: BTreeSet<&str> = self.pods.iter().map(|p| p.object().uid()).collect();
        let status = self.job.status.as_ref();
        let uncounted = status.and_then(|s| s.uncounted_terminated_pods.as_ref())?;
        let uids = uncounted.succeeded.iter().chain(&uncounted.failed).flatten();
        let uids: BTreeSet<String> = uids
            .filter(|uid| !known.contains(uid.as_str()))
            .cloned()
            .collect();
        (!uids.is_empty()).then(|| {
            Action::Require(LiveCheck::NoneHeld {
                namespace: self.job.object().namespace().into(),
                owner: self.job.object().uid().into(),
                uids,
                finalizer: pods::FINALIZER,
            })
        })
    }

    fn may_remove_finalizer(&self, pod: &Shared<Pod>, is_failed: bool, has_end: bool) -> bool {
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
        // If the clock was set back since, validation would reject the time.
        let end = seconds(self.now);
        self.status.completion_time = self.status.start_time.clone().max(Some(end));
        let mut events = Vec::new();
        if self
            .spec
            .completions
            .is_some_and(|completions| self.status.succeeded.unwrap_or(0) > completions)
        {
            let message = "Too many succeeded pods running after completion count reached";
            events.push(Action::warning(&about, "TooManySucceededPods", message));
        }
        events.push(Action::event(&about, "Completed", "Job completed"));
        events
    }
}

/// The check of the pods that are about to be recorded in the status, if there are any.
fn require_tracked(recorded: &[&Shared<Pod>]) -> Option<Action> {
    let first = recorded.first()?.object();
    let of = |pod: &&Shared<Pod>| (pod.object().name().to_string(), pod.object().uid().to_string());
    Some(Action::Require(LiveCheck::Held {
        namespace: first.namespace().into(),
        pods: recorded.iter().map(of).collect(),
        finalizer: pods::FINALIZER,
    }))
}
