//! The number of pods of a Job: which are created, when, and which are deleted (upstream: manageJob).

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use knarr_api::Shared;
use knarr_api::k8s_openapi;
use knarr_api::scale_down::deletion_order;

use super::{MAX_PODS, PodCounts, SyncJob, pods, policy};
use crate::action::{Action, Create, Delete};
use crate::owner::require_generation;
use crate::pod;
use crate::replicaset::count;

impl<'a> SyncJob<'a> {
    /// Deletes pods; from those that are not to be counted the finalizer is removed first.
    pub(super) fn delete(&mut self, which: &[&Shared<Pod>], untracked: bool) {
        if which.is_empty() {
            return;
        }
        self.actions.push(require_generation(self.job.object()));
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

    /// Brings the active pods to the desired number: one sync either deletes or creates pods.
    pub(super) fn manage(&mut self, active: &[&'a Shared<Pod>], succeeded: i32, numbers: &mut PodCounts) {
        let suspended = self.spec.suspend == Some(true);
        let running = count(active.len());
        let parallelism = self.spec.parallelism.unwrap_or(1);
        let desired = match self.spec.completions {
            _ if suspended => 0,
            // One success is enough; running pods may complete.
            None if succeeded > 0 => running,
            None => parallelism,
            Some(completions) => (completions - succeeded).min(parallelism).max(0),
        };
        let mut surplus = self.surplus(active, usize::try_from(running - desired).unwrap_or(0));
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
        let missing = usize::try_from(desired - ending - running)
            .unwrap_or(0)
            .min(MAX_PODS);
        if missing == 0 {
            return;
        }
        if self.spec.backoff_limit_per_index.is_none() {
            let wait = self.backoff();
            if !wait.is_zero() {
                self.requeue_after(wait);
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

    /// Surplus pods: all but one of an index, all without a valid index, then those whose deletion costs least.
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

    /// The lowest indexes that are not finished and have no pod.
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

    /// The indexes whose back-off is over.
    fn due(&mut self, indexes: Vec<i32>) -> Vec<i32> {
        if self.spec.backoff_limit_per_index.is_none() {
            return indexes;
        }
        let mut soonest: Option<Duration> = None;
        let mut due = Vec::new();
        for index in indexes {
            let wait = self.kept.get(&index).map_or(Duration::ZERO, |pod| {
                let failures = usize::try_from(pods::all_failures(pod)).unwrap_or(0) + 1;
                policy::remaining_backoff(failures, policy::finished_at(pod), self.now)
            });
            if wait.is_zero() {
                due.push(index);
            } else {
                soonest = Some(soonest.map_or(wait, |s| s.min(wait)));
            }
        }
        if let Some(wait) = soonest {
            self.requeue_after(wait);
        }
        due
    }

    /// The back-off after the failures since the last success. It is computed from the existing pods, so it survives a restart.
    fn backoff(&self) -> Duration {
        let mut ends: Vec<(Option<Timestamp>, bool)> = self
            .pods
            .iter()
            .filter_map(|p| match pod::phase(p) {
                "Succeeded" => Some((policy::finished_at(p), false)),
                "Failed" => Some((policy::finished_at(p), true)),
                // A pod that terminates without the finalizer was deleted by the Job itself.
                _ if pods::is_failed(self.spec, p) && pods::is_tracked(p) => {
                    Some((policy::finished_at(p), true))
                }
                _ => None,
            })
            .collect();
        ends.sort();
        let failures = ends.iter().rev().take_while(|(_, failed)| *failed).count();
        policy::remaining_backoff(failures, ends.last().and_then(|(at, _)| *at), self.now)
    }
}
