//! Validation of an update of a Job's status: terminal conditions are final, and most rules apply only to what changed
//! (`JobStatusValidationOptions`).

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_apimachinery::field::{Cause, ErrorList, FieldError, Path};

use super::is_condition_true;
use super::spec::{count_indexes, intervals};
use crate::facts;
use crate::kinds::checks::{json, text};

struct StatusValidator<'a> {
    job: &'a Job,
    status: JobStatus,
    old: &'a Job,
    before: JobStatus,
    errors: ErrorList,
}

pub(super) fn validate_update(job: &Job, old: &Job) -> ErrorList {
    let mut validator = StatusValidator {
        job,
        status: job.status.clone().unwrap_or_default(),
        old,
        before: old.status.clone().unwrap_or_default(),
        errors: ErrorList::new(),
    };
    validator.counts();
    validator.finished_conditions();
    validator.times();
    validator.indexes();
    validator.no_reverts();
    validator.errors
}

/// Whether two times differ in whole seconds: a controller may have set nanoseconds, which are not serialized.
fn differ(a: Option<&Time>, b: Option<&Time>) -> bool {
    a.map(|t| t.0.as_second()) != b.map(|t| t.0.as_second())
}

fn path(field: &str) -> Path {
    Path::new("status").child(field)
}

fn is_finished(job: &Job) -> bool {
    is_condition_true(job, "Complete") || is_condition_true(job, "Failed")
}

impl StatusValidator<'_> {
    fn conditions(&mut self, detail: &str) {
        self.errors.push(FieldError {
            cause: Cause::Invalid,
            field: path("conditions").to_string(),
            value: None,
            detail: detail.into(),
        });
    }

    /// Whether a condition became true or false with this update.
    fn condition_changed(&self, condition: &str) -> bool {
        is_condition_true(self.job, condition) != is_condition_true(self.old, condition)
    }

    fn finished_changed(&self) -> bool {
        is_finished(self.job) != is_finished(self.old)
    }

    fn counts(&mut self) {
        let s = &self.status;
        const FACTS: &[&str] = &["active", "succeeded", "failed", "ready", "terminating"];
        facts::check(&mut self.errors, &Path::new("status"), s, FACTS);
        let mut seen = BTreeSet::new();
        let pods = s.uncounted_terminated_pods.iter();
        let at = path("uncountedTerminatedPods");
        for (field, uids) in pods.flat_map(|p| [("succeeded", &p.succeeded), ("failed", &p.failed)]) {
            for (i, uid) in uids.iter().flatten().enumerate() {
                let at = at.child(field).index(i);
                if uid.is_empty() {
                    self.errors.invalid(&at, uid, "must not be empty");
                } else if !seen.insert(uid) {
                    self.errors.duplicate(&at, uid);
                }
            }
        }
        let (active, ready) = (s.active.unwrap_or(0), s.ready.unwrap_or(0));
        let changed = s.ready != self.before.ready || active != self.before.active.unwrap_or(0);
        // Only checked if one of the two changed; a negative count is reported above.
        if changed && s.ready.is_some() && ready > active {
            self.errors
                .invalid(&path("ready"), ready, "cannot set more ready pods than active");
        }
    }

    fn finished_conditions(&mut self) {
        let (complete, failed) = (
            is_condition_true(self.job, "Complete"),
            is_condition_true(self.job, "Failed"),
        );
        let target = is_condition_true(self.job, "FailureTarget");
        let success = is_condition_true(self.job, "SuccessCriteriaMet");
        let failed_indexes_changed = self.status.failed_indexes != self.before.failed_indexes;
        if (self.condition_changed("Complete") || self.condition_changed("Failed")) && complete && failed {
            self.conditions("cannot set Complete=True and Failed=true conditions");
        }
        if (self.condition_changed("Complete") || self.condition_changed("FailureTarget"))
            && complete
            && target
        {
            self.conditions("cannot set Complete=True and FailureTarget=true conditions");
        }
        if (self.condition_changed("Failed") || failed_indexes_changed) && failed && !target {
            self.conditions("cannot set Failed=True condition without the FailureTarget=true condition");
        }
        if (self.condition_changed("Complete") || self.condition_changed("SuccessCriteriaMet"))
            && complete
            && !success
        {
            self.conditions(
                "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
            );
        }
        if success && failed {
            self.conditions("cannot set SuccessCriteriaMet=True and Failed=true conditions");
        }
        if success && target {
            self.conditions("cannot set SuccessCriteriaMet=True and FailureTarget=true conditions");
        }
        let has_policy = self.job.spec.as_ref().is_some_and(|s| s.success_policy.is_some());
        if has_policy && !success && complete {
            self.conditions(
                "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
            );
        }
        if !is_finished(self.job) {
            return;
        }
        let active = self.status.active.unwrap_or(0);
        if active > 0 && (self.finished_changed() || active != self.before.active.unwrap_or(0)) {
            self.errors
                .invalid(&path("active"), active, "active>0 is invalid for finished job");
        }
        let terminating = self.status.terminating.unwrap_or(0);
        if terminating > 0 && (self.finished_changed() || self.status.terminating != self.before.terminating)
        {
            self.errors.invalid(
                &path("terminating"),
                terminating,
                "terminating>0 is invalid for finished job",
            );
        }
        if let Some(pods) = &self.status.uncounted_terminated_pods
            && (self.finished_changed()
                || self.status.uncounted_terminated_pods != self.before.uncounted_terminated_pods)
            && pods.failed.iter().chain(&pods.succeeded).flatten().count() > 0
        {
            self.errors.invalid(
                &path("uncountedTerminatedPods"),
                json(pods),
                "must be empty for finished job",
            );
        }
    }

    fn times(&mut self) {
        let (start, end) = (
            self.status.start_time.clone(),
            self.status.completion_time.clone(),
        );
        let start_changed = differ(start.as_ref(), self.before.start_time.as_ref());
        let end_changed = differ(end.as_ref(), self.before.completion_time.as_ref());
        let complete = is_condition_true(self.job, "Complete");
        if self.condition_changed("Complete") || end_changed {
            match &end {
                Some(end) if !complete => self.errors.invalid(
                    &path("completionTime"),
                    json(end),
                    "cannot set completionTime when there is no Complete=True condition",
                ),
                None if complete => self.errors.required(
                    &path("completionTime"),
                    "completionTime is required for Complete jobs",
                ),
                _ => {}
            }
        }
        if let (Some(start), Some(end)) = (&start, &end)
            && (start_changed || end_changed)
            && end.0 < start.0
        {
            self.errors.invalid(
                &path("completionTime"),
                json(end),
                "must be equal to or after `startTime`",
            );
        }
        let spec = self.job.spec.clone().unwrap_or_default();
        let suspended = spec.suspend == Some(true);
        let has_no_completions = suspended && spec.completions == Some(0);
        if start.is_none()
            && is_finished(self.job)
            && (self.finished_changed() || start_changed)
            && !has_no_completions
        {
            self.errors
                .required(&path("startTime"), "startTime is required for finished job");
        }
        if end.is_some() && self.before.completion_time.is_some() && end_changed {
            self.errors
                .invalid(&path("completionTime"), json(&end), "field is immutable");
        }
        let resuming = is_condition_true(self.old, "Suspended") && !is_condition_true(self.job, "Suspended");
        if self.before.start_time.is_some() && start_changed && !resuming && !suspended {
            self.errors.invalid(
                &path("startTime"),
                json(&start),
                "field is immutable for unsuspended job once set",
            );
        }
    }

    fn indexes(&mut self) {
        let spec = self.job.spec.clone().unwrap_or_default();
        let completions = spec.completions;
        let completed = text(&self.status.completed_indexes).to_string();
        let completed_changed = completed != text(&self.before.completed_indexes);
        let failed = self.status.failed_indexes.clone();
        let failed_changed = failed != self.before.failed_indexes;
        if completed_changed {
            if let Some(Err(error)) = completions.map(|c| count_indexes(&completed, c)) {
                let detail = format!("error parsing completedIndexes: {error}");
                self.errors.invalid(&path("completedIndexes"), &completed, detail);
            }
            if !completed.is_empty() && text(&spec.completion_mode) != "Indexed" {
                self.errors.invalid(
                    &path("completedIndexes"),
                    &completed,
                    "cannot set non-empty completedIndexes when non-indexed completion mode",
                );
            }
        }
        let Some(failed) = failed else { return };
        if failed_changed && spec.backoff_limit_per_index.is_none() {
            self.errors.invalid(
                &path("failedIndexes"),
                &failed,
                "cannot set non-null failedIndexes when backoffLimitPerIndex is null",
            );
        }
        let Some(completions) = completions else { return };
        if failed_changed
            && spec.backoff_limit_per_index.is_some()
            && let Err(error) = count_indexes(&failed, completions)
        {
            let detail = format!("error parsing failedIndexes: {error}");
            self.errors.invalid(&path("failedIndexes"), &failed, detail);
        }
        if !failed_changed && !completed_changed {
            return;
        }
        if let (Ok(completed), Ok(failed_intervals)) = (
            intervals(&completed, completions),
            intervals(&failed, completions),
        ) {
            let overlap = completed.iter().find_map(|(a, b)| {
                let other = failed_intervals.iter().find(|(c, d)| a <= d && c <= b)?;
                Some(*a.max(&other.0))
            });
            if let Some(index) = overlap {
                self.errors.invalid(
                    &path("failedIndexes"),
                    &failed,
                    format!("failedIndexes and completedIndexes overlap at index: {index}"),
                );
            }
        }
    }

    fn no_reverts(&mut self) {
        for condition in ["Failed", "Complete", "FailureTarget"] {
            if is_condition_true(self.old, condition) && !is_condition_true(self.job, condition) {
                self.conditions(&format!("cannot disable the terminal {condition}=True condition"));
            }
        }
        let failed = self.status.failed.unwrap_or(0);
        if failed < self.before.failed.unwrap_or(0) {
            self.errors
                .invalid(&path("failed"), failed, "cannot decrease the failed counter");
        }
        let spec = self.job.spec.clone().unwrap_or_default();
        // An elastic Indexed Job (completions equal to parallelism) can be scaled down.
        let elastic = text(&spec.completion_mode) == "Indexed" && spec.completions == spec.parallelism;
        let succeeded = self.status.succeeded.unwrap_or(0);
        if !elastic && succeeded < self.before.succeeded.unwrap_or(0) {
            self.errors.invalid(
                &path("succeeded"),
                succeeded,
                "cannot decrease the succeeded counter",
            );
        }
        let success = is_condition_true(self.job, "SuccessCriteriaMet");
        let had_success = is_condition_true(self.old, "SuccessCriteriaMet");
        if had_success && !success {
            self.conditions("cannot disable the SuccessCriteriaMet=True condition");
        }
        if is_condition_true(self.old, "Complete") && !had_success && success {
            self.conditions(
                "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions",
            );
        }
    }
}
