//! How a Job finishes: by the conditions in its status, the deadlines and limits that it has reached, and failed indexes.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::batch::v1::JobCondition;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::Shared;
use knarr_api::k8s_openapi;

use super::conditions::{condition, find};
use super::indexes::Indexes;
use super::policy::FailureAction;
use super::{SyncJob, pods, policy};
use crate::pod;

impl<'a> SyncJob<'a> {
    /// The finish condition that an earlier sync has decided on.
    pub(super) fn recorded_end(&self) -> Option<JobCondition> {
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
            .find_map(|p| match policy::match_failure_policy(self.spec, p) {
                FailureAction::FailJob(message) => Some(message),
                _ => None,
            })?;
        Some(condition("FailureTarget", "PodFailurePolicy", &message, self.now))
    }

    pub(super) fn failure(&mut self, failed: i32) -> Option<JobCondition> {
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
                self.requeue_after(left);
                None
            }
            _ => {
                let message = "Job was active longer than specified deadline";
                Some(condition("FailureTarget", "DeadlineExceeded", message, self.now))
            }
        }
    }

    /// With restartPolicy OnFailure, container restarts count as failures.
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

    pub(super) fn count_indexes(&mut self, completions: i32) {
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

    pub(super) fn index_failure(&self, completions: i32) -> Option<JobCondition> {
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

    pub(super) fn pods_with_delayed_deletion(
        &self,
        active: &[&'a Shared<Pod>],
    ) -> BTreeMap<i32, &'a Shared<Pod>> {
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
}
