//! Job: pods that run to completion. Its selector is generated from its UID unless `manualSelector` is set.
//!
//! The UID must be set before [`Strategy::prepare_for_create`].

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use knarr_api::well_known::JOB_NAME;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::labels::Selector;
use knarr_apimachinery::names;

use super::checks::{Json, json, json_selector, label_selector, text, update_generation};
use super::pod::pod_template_warnings;
use super::template;
use super::warnings::name_warning;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

pub(super) mod spec;
mod status;
mod update;

const UID_LABEL: &str = "batch.kubernetes.io/controller-uid";
const OLD_UID_LABEL: &str = "controller-uid";
const OLD_NAME_LABEL: &str = "job-name";

impl Strategy for Job {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        set_spec_defaults(spec);
        let labels = spec.template.metadata.as_ref().and_then(|m| m.labels.clone());
        if self.metadata.labels.as_ref().is_none_or(BTreeMap::is_empty) {
            self.metadata.labels = labels;
        }
        self.status.get_or_insert_default();
    }

    fn prepare_for_create(&mut self) {
        make_selector(self);
        self.status = Some(JobStatus::default());
        self.metadata.generation = Some(1);
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        let mut changed = false;
        if part == Part::Status {
            self.spec = old.spec.clone();
        } else {
            self.status = old.status.clone();
            changed = self.spec != old.spec;
        }
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        validate(self, true)
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        if part == Part::Status {
            return status::validate_update(self, old);
        }
        let mut errors = validate(self, has_new_labels(old));
        update::validate(self, old, &mut errors);
        errors
    }

    fn warnings(&self) -> Vec<String> {
        let name = name_warning(text(&self.metadata.name)).into_iter();
        let spec = self
            .spec
            .iter()
            .flat_map(|spec| spec_warnings(spec, &Path::new("spec")));
        name.chain(spec).collect()
    }

    /// The template is only checked for warnings if the generation changed: an update of the metadata alone does not repeat them.
    fn warnings_on_update(&self, old: &Self) -> Vec<String> {
        let changed = self
            .spec
            .iter()
            .filter(|_| self.metadata.generation != old.metadata.generation);
        changed
            .flat_map(|spec| spec_warnings(spec, &Path::new("spec")))
            .collect()
    }

    const ORPHANS_BY_DEFAULT: bool = true;

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Status"),
            Column::string("Completions"),
            Column::string("Duration"),
            table::AGE,
            table::CONTAINERS,
            table::IMAGES,
            table::SELECTOR,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let spec = self.spec.clone().unwrap_or_default();
        let status = self.status.clone().unwrap_or_default();
        let [containers, images] = template::cells(Some(&spec.template));
        let succeeded = status.succeeded.unwrap_or(0);
        let completions = match (spec.completions, spec.parallelism) {
            (Some(completions), _) => format!("{succeeded}/{completions}"),
            (None, Some(parallelism)) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
            _ => format!("{succeeded}/1"),
        };
        let duration = status.start_time.as_ref().map(|start| {
            let end = status.completion_time.as_ref().map_or(now, |t| t.0);
            table::age(Some(start), end)
        });
        vec![
            table::name(&self.metadata),
            shown_status(self).into(),
            completions.into(),
            duration.unwrap_or_default().into(),
            table::created(&self.metadata, now),
            containers,
            images,
            table::label_selector(spec.selector.as_ref()).into(),
        ]
    }

    fn metadata_checks(part: Part) -> MetadataChecks {
        match part {
            Part::Status => MetadataChecks::UPDATE,
            Part::Main | Part::Other(_) => MetadataChecks::BOTH,
        }
    }
}

/// Defaults of the pod template, which also apply to the template of a CronJob; the other defaults apply to Jobs only.
pub(super) fn set_template_defaults(spec: &mut JobSpec) {
    let policy = spec.pod_failure_policy.iter_mut();
    let rules = policy.flat_map(|p| p.rules.iter_mut());
    for condition in rules.flat_map(|r| r.on_pod_conditions.iter_mut().flatten()) {
        if text(&condition.status).is_empty() {
            condition.status = Some("True".into());
        }
    }
    template::set_defaults(&mut spec.template);
}

fn set_spec_defaults(spec: &mut JobSpec) {
    if spec.completions.is_none() && spec.parallelism.is_none() {
        spec.completions = Some(1);
    }
    spec.parallelism.get_or_insert(1);
    let backoff = match spec.backoff_limit_per_index {
        Some(_) => i32::MAX,
        None => 6,
    };
    spec.backoff_limit.get_or_insert(backoff);
    spec.completion_mode.get_or_insert_with(|| "NonIndexed".into());
    spec.suspend.get_or_insert(false);
    spec.manual_selector.get_or_insert(false);
    let replacement = match spec.pod_failure_policy {
        Some(_) => "Failed",
        None => "TerminatingOrFailed",
    };
    spec.pod_replacement_policy
        .get_or_insert_with(|| replacement.into());
    set_template_defaults(spec);
}

/// Generates the selector from the Job's UID, so that no two Jobs select the same pods.
fn make_selector(job: &mut Job) {
    let generated = is_name_generated(&job.metadata);
    let uid = text(&job.metadata.uid).to_string();
    let name = text(&job.metadata.name).to_string();
    let spec = job.spec.get_or_insert_default();
    if spec.manual_selector == Some(true) {
        return;
    }
    let shared = spec.template.metadata.get_or_insert_default();
    // The Job's labels were defaulted from the template's: in v1.36 both are then the same Go map, unless the object was
    // copied to retry a generated name.
    let same = job.metadata.labels == shared.labels && !generated;
    let labels = shared.labels.get_or_insert_default();
    for (label, value) in [
        (OLD_NAME_LABEL, &name),
        (JOB_NAME, &name),
        (OLD_UID_LABEL, &uid),
        (UID_LABEL, &uid),
    ] {
        labels.entry(label.into()).or_insert_with(|| value.clone());
    }
    // A Job without labels gets those of its template by defaulting when it is read from the store.
    if same || job.metadata.labels.is_none() {
        job.metadata.labels = Some(labels.clone());
    }
    let selector = spec.selector.get_or_insert_default();
    let selected = selector.match_labels.get_or_insert_default();
    selected.entry(UID_LABEL.into()).or_insert(uid);
}

fn is_name_generated(meta: &ObjectMeta) -> bool {
    let prefix = text(&meta.generate_name);
    !prefix.is_empty() && text(&meta.name).starts_with(prefix)
}

fn labels(job: &Job) -> BTreeMap<String, String> {
    let template = job.spec.as_ref().and_then(|s| s.template.metadata.as_ref());
    template.and_then(|m| m.labels.clone()).unwrap_or_default()
}

fn has_new_labels(job: &Job) -> bool {
    let labels = labels(job);
    labels.contains_key(UID_LABEL) && labels.contains_key(JOB_NAME)
}

fn validate(job: &Job, new_labels: bool) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = job.spec.clone().unwrap_or_default();
    let path = Path::new("spec");
    let labels = labels(job);
    selector_is_generated(job, &spec, &labels, new_labels, &mut errors);
    validate_spec(job, &path, &mut errors);
    if text(&spec.completion_mode) == "Indexed"
        && let Some(completions) = spec.completions.filter(|c| *c > 0)
    {
        let name = text(&job.metadata.name);
        let hostname = format!("{name}-{}", completions - 1);
        if !names::dns1123_label(&hostname).is_empty() {
            errors.invalid(
                &Path::new("metadata").child("name"),
                name,
                format!("will not able to create pod with invalid DNS label: {hostname}"),
            );
        }
    }
    errors
}

/// Validates the spec with its selector. An update validates it twice.
fn validate_spec(job: &Job, path: &Path, errors: &mut ErrorList) {
    let spec = job.spec.clone().unwrap_or_default();
    let labels = labels(job);
    spec::validate(&spec, path, errors);
    match &spec.selector {
        None => errors.required(&path.child("selector"), ""),
        Some(selector) => label_selector(errors, &path.child("selector"), selector),
    }
    // An invalid selector is reported above and not compared with the labels.
    let is_selector = |s: &&LabelSelector| Selector::from_label_selector(s).is_ok();
    let matches = |s: &LabelSelector| !is_selector(&s) || template::matches(s, &labels);
    if !spec.selector.as_ref().is_some_and(matches) {
        template::does_not_match(&spec.template, &path.child("template"), errors);
    }
}

fn selector_is_generated(
    job: &Job,
    spec: &JobSpec,
    labels: &BTreeMap<String, String>,
    new_labels: bool,
    errors: &mut ErrorList,
) {
    let Some(selector) = spec
        .selector
        .as_ref()
        .filter(|_| spec.manual_selector != Some(true))
    else {
        return;
    };
    let (uid, name) = (text(&job.metadata.uid), text(&job.metadata.name));
    if uid.is_empty() {
        errors.required(&Path::new("metadata").child("uid"), "");
    }
    let mut expected = vec![(OLD_UID_LABEL, uid), (OLD_NAME_LABEL, name)];
    if new_labels {
        expected.extend([(UID_LABEL, uid), (JOB_NAME, name)]);
    }
    let path = Path::new("spec")
        .child("template")
        .child("metadata")
        .child("labels");
    for (label, value) in &expected {
        match labels.get(*label) {
            None => errors.required(&path.key(label), format!("must be '{value}'")),
            Some(found) if found != value => {
                errors.invalid(&path.key(label), json(labels), format!("must be '{value}'"));
            }
            Some(_) => {}
        }
    }
    let expected: BTreeMap<String, String> = expected
        .into_iter()
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect();
    if Selector::from_label_selector(selector).is_ok() && !template::matches(selector, &expected) {
        errors.invalid(
            &Path::new("spec").child("selector"),
            Json(json_selector(selector)),
            "`selector` not auto-generated",
        );
    }
}

/// Whether a condition is present with the status True.
fn is_condition_true(job: &Job, condition: &str) -> bool {
    let mut conditions = job.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions
        .find(|c| c.type_ == condition)
        .is_some_and(|c| c.status == "True")
}

fn shown_status(job: &Job) -> &'static str {
    let first = |conditions: &[&'static str]| conditions.iter().copied().find(|c| is_condition_true(job, c));
    if let Some(finished) = first(&["Complete", "Failed"]) {
        finished
    } else if job.metadata.deletion_timestamp.is_some() {
        "Terminating"
    } else {
        first(&["Suspended", "FailureTarget", "SuccessCriteriaMet"]).unwrap_or("Running")
    }
}

/// Warnings about the spec of a Job, or of a CronJob's job template, at `path`.
pub(super) fn spec_warnings(spec: &JobSpec, path: &Path) -> Vec<String> {
    // `status.completedIndexes` is a text whose size must stay bounded.
    let too_many = text(&spec.completion_mode) == "Indexed"
        && spec.completions.unwrap_or(0) > spec::MANY_COMPLETIONS
        && spec.parallelism.unwrap_or(0) > spec::MAX_PARALLELISM_OF_MANY;
    let mut warnings = Vec::new();
    if too_many {
        warnings.push(format!(
            "{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, \
             Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
        ));
    }
    warnings.extend(pod_template_warnings(&spec.template, &path.child("template")));
    warnings
}
