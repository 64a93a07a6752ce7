//! CronJob: creates a Job at each scheduled time, named for that minute, so that none is created twice.
//!
//! Of several missed times only the last one gets a Job, if it is within `startingDeadlineSeconds`.

pub mod schedule;

use std::time::Duration;

use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey, Shared};
use knarr_apimachinery::time::seconds;

use self::schedule::Schedule;
use crate::action::{Action, Create, Delete, Dependents, Report, reference};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::job::finished;
use crate::owner::{controller_of, controller_reference};

/// Added to the wait for the scheduled time, for clock skew (kube-controller-manager's nextScheduleDelta).
const NEXT_SCHEDULE_DELTA: Duration = Duration::from_millis(100);
/// More missed times than this are reported in an event: a clock may be wrong.
const TOO_MANY_MISSED: i64 = 100;
pub const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// See the module.
pub struct CronJobs {
    /// Finds a time zone by its IANA name; the driver has the database.
    pub time_zone: fn(&str) -> Option<TimeZone>,
}

impl Controller for CronJobs {
    fn name(&self) -> &'static str {
        "cronjob-controller"
    }

    fn account(&self) -> &'static str {
        "cronjob-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::CRON_JOB, &registry::JOB]
    }

    fn keys(&self, _: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::CRON_JOB) {
            return vec![key];
        }
        let owners = changed.states().filter_map(|job| {
            let owner = controller_of(job.metadata()).filter(|o| o.kind == "CronJob")?;
            Some(ObjectKey::new(job.namespace(), &owner.name))
        });
        let mut keys: Vec<ObjectKey> = owners.collect();
        keys.dedup();
        keys
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let key = context.key;
        let Some(cron) = context.view.get_as::<CronJob>(&key.namespace, &key.name) else {
            return Vec::new();
        };
        if context.failure.is_some() {
            return Vec::new();
        }
        let mut jobs: Vec<Shared<Job>> = context.view.controlled_by_as(cron.object().uid());
        jobs.sort_by_key(|j| {
            let started = j.status.as_ref().and_then(|s| s.start_time.clone());
            (started.is_none(), started, j.metadata.name.clone())
        });
        let mut sync = SyncCronJob {
            now: context.now,
            cron: &cron,
            status: cron.status.clone().unwrap_or_default(),
            about: reference(cron.object()),
            actions: Vec::new(),
        };
        sync.sync_active(&jobs);
        let next = if cron.metadata.deletion_timestamp.is_none() {
            sync.clean_up(&jobs);
            sync.create_due_job(&cron.spec, &jobs, self.time_zone)
        } else {
            None
        };
        if cron.status.clone().unwrap_or_default() != sync.status {
            let mut changed = (*cron).clone();
            changed.status = Some(sync.status);
            sync.actions.push(Action::update_status(changed));
        }
        sync.actions.extend(next.map(Action::RequeueAfter));
        sync.actions
    }
}

struct SyncCronJob<'a> {
    now: Timestamp,
    cron: &'a Shared<CronJob>,
    status: CronJobStatus,
    about: ObjectReference,
    actions: Vec<Action>,
}

/// The times of a schedule relative to now.
struct ScheduleTimes {
    /// The last scheduled time that has not had its Job, if any.
    at: Option<Timestamp>,
    missed: i64,
    since: Timestamp,
}

impl SyncCronJob<'_> {
    fn name_at(&self, at: Timestamp) -> String {
        format!("{}-{}", self.cron.object().name(), at.as_second().div_euclid(60))
    }

    /// Whether the name is one that this controller generates.
    fn is_ours(&self, name: &str) -> bool {
        let minute = name
            .strip_prefix(self.cron.object().name())
            .and_then(|n| n.strip_prefix('-'));
        minute.is_some_and(|m| !m.is_empty() && m.bytes().all(|b| b.is_ascii_digit()))
    }

    /// Updates `active` and the last times in the status from the Jobs.
    fn sync_active(&mut self, jobs: &[Shared<Job>]) {
        let mut active = self.status.active.take().unwrap_or_default();
        for job in jobs {
            let uid = job.object().uid();
            let is_active = active.iter().any(|a| a.uid.as_deref() == Some(uid));
            let name = job.object().name();
            let Some(end) = finished(job) else {
                if !is_active && self.is_ours(name) {
                    active.push(reference(job.object()));
                } else if !is_active {
                    let message = format!("Saw a job that the controller did not create or forgot: {name}");
                    self.actions
                        .push(Action::warning(&self.about, "UnexpectedJob", message));
                }
                continue;
            };
            if is_active {
                active.retain(|a| a.uid.as_deref() != Some(uid));
                let message = format!("Saw completed job: {name}, condition: {}", end.type_);
                self.actions
                    .push(Action::event(&self.about, "SawCompletedJob", message));
            }
            let completed = job.status.as_ref().and_then(|s| s.completion_time.clone());
            if end.type_ == "Complete" && completed > self.status.last_successful_time {
                self.status.last_successful_time = completed;
            }
        }
        active.retain(|a| {
            let is_there = jobs.iter().any(|j| a.uid.as_deref() == Some(j.object().uid()));
            if !is_there {
                let message = format!("Active job went missing: {}", a.name.as_deref().unwrap_or(""));
                self.actions
                    .push(Action::event(&self.about, "MissingJob", message));
            }
            is_there
        });
        self.status.active = (!active.is_empty()).then_some(active);
    }

    /// Deletes the oldest finished Jobs beyond the history limits.
    fn clean_up(&mut self, jobs: &[Shared<Job>]) {
        let spec = &self.cron.spec;
        for (type_, limit) in [
            ("Complete", spec.successful_jobs_history_limit),
            ("Failed", spec.failed_jobs_history_limit),
        ] {
            let Some(limit) = limit.and_then(|l| usize::try_from(l).ok()) else {
                continue;
            };
            let finished_jobs: Vec<&Shared<Job>> = jobs
                .iter()
                .filter(|j| finished(j).is_some_and(|c| c.type_ == type_))
                .collect();
            let surplus = finished_jobs.len().saturating_sub(limit);
            for job in finished_jobs.into_iter().take(surplus) {
                self.delete(job);
            }
        }
    }

    fn delete(&mut self, job: &Shared<Job>) {
        if job.metadata.deletion_timestamp.is_some() {
            return;
        }
        self.actions.push(Action::Delete(Delete {
            dependents: Dependents::Background,
            report: Some(Report {
                about: self.about.clone(),
                done: Some(("SuccessfulDelete", "Deleted job ".into())),
                failed: ("FailedDelete", "Deleted job: ".into()),
            }),
            ..Delete::of(job.object())
        }));
    }

    /// Creates the Job that is due; returns when to requeue.
    fn create_due_job(
        &mut self,
        spec: &CronJobSpec,
        jobs: &[Shared<Job>],
        time_zone: fn(&str) -> Option<TimeZone>,
    ) -> Option<Duration> {
        // A former way to set the time zone, which the API still accepts: in front of the schedule.
        let old_form = spec
            .schedule
            .strip_prefix("CRON_TZ=")
            .or(spec.schedule.strip_prefix("TZ="));
        let in_schedule = old_form.and_then(|s| s.split_once(' '));
        let (zone_name, text) = match in_schedule {
            Some((zone, text)) => (Some(zone.to_string()), text),
            None => (spec.time_zone.clone(), spec.schedule.as_str()),
        };
        let zone = match &zone_name {
            None => TimeZone::UTC,
            Some(name) => match time_zone(name) {
                Some(zone) => zone,
                None => {
                    let message = format!("invalid timeZone: {name:?}: unknown time zone {name}");
                    self.actions
                        .push(Action::warning(&self.about, "UnknownTimeZone", message));
                    return None;
                }
            },
        };
        if spec.suspend == Some(true) {
            return None;
        }
        if in_schedule.is_some() {
            let message = format!(
                "CRON_TZ or TZ used in schedule {:?} is not officially supported, see \
                 https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
                spec.schedule
            );
            self.actions
                .push(Action::warning(&self.about, "UnsupportedSchedule", message));
        }
        let schedule = match Schedule::parse(text, zone.clone()) {
            Ok(schedule) => schedule,
            Err(why) => {
                let message = format!("unparseable schedule: {:?} : {why}", spec.schedule);
                self.actions
                    .push(Action::warning(&self.about, "UnparseableSchedule", message));
                return None;
            }
        };
        let deadline = spec.starting_deadline_seconds.map(SignedDuration::from_secs);
        let due = self.schedule_times(&schedule, deadline);
        let from = due
            .at
            .unwrap_or(if due.missed == 0 { due.since } else { self.now });
        let wait = schedule
            .next(from)
            .and_then(|at| Duration::try_from(at.duration_since(self.now)).ok());
        // For a time that has already passed the key is requeued soon.
        let next = Some(wait.unwrap_or_default() + NEXT_SCHEDULE_DELTA)
            .filter(|_| schedule.next(self.now).is_some());
        let Some(at) = due.at else { return next };
        if due.missed > TOO_MANY_MISSED {
            let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            self.actions
                .push(Action::warning(&self.about, "TooManyMissedTimes", message));
        }
        if deadline.is_some_and(|d| self.now.duration_since(at) > d) {
            let when = at
                .to_zoned(TimeZone::UTC)
                .strftime("%a, %d %b %Y %H:%M:%S +0000")
                .to_string();
            let message = format!("Missed scheduled time to start a job: {when}");
            self.actions
                .push(Action::warning(&self.about, "MissSchedule", message));
            return next;
        }
        let name = self.name_at(at);
        let is_known = jobs.iter().any(|j| j.object().name() == name)
            || self.status.last_schedule_time.as_ref().is_some_and(|t| t.0 == at);
        if is_known {
            if self.status.last_schedule_time.as_ref().is_none_or(|t| t.0 < at) {
                self.status.last_schedule_time = Some(seconds(at));
            }
            return next;
        }
        let running: Vec<&Shared<Job>> = jobs.iter().filter(|j| finished(j).is_none()).collect();
        match spec.concurrency_policy.as_deref() {
            Some("Forbid") if !running.is_empty() => {
                let message =
                    "Not starting job because prior execution is running and concurrency policy is Forbid";
                self.actions
                    .push(Action::event(&self.about, "JobAlreadyActive", message));
                return next;
            }
            Some("Replace") => {
                for job in running {
                    self.delete(job);
                    let active = self.status.active.get_or_insert_default();
                    active.retain(|a| a.uid.as_deref() != Some(job.object().uid()));
                }
                self.status.active = self.status.active.take().filter(|a| !a.is_empty());
            }
            _ => {}
        }
        self.actions.push(self.create(spec, name, at, &zone));
        self.status.last_schedule_time = Some(seconds(at));
        next
    }

    fn create(&self, spec: &CronJobSpec, name: String, at: Timestamp, zone: &TimeZone) -> Action {
        let meta = spec.job_template.metadata.clone().unwrap_or_default();
        let local = at.to_zoned(zone.clone());
        let offset = local.strftime("%:z").to_string();
        let offset = if offset == "+00:00" { "Z" } else { &offset };
        let mut annotations = meta.annotations.unwrap_or_default();
        annotations.insert(
            SCHEDULED_AT.into(),
            format!("{}{offset}", local.strftime("%Y-%m-%dT%H:%M:%S")),
        );
        let job = Job {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(self.cron.object().namespace().to_string()),
                labels: meta.labels,
                annotations: Some(annotations),
                owner_references: Some(vec![controller_reference(self.cron.object())]),
                ..ObjectMeta::default()
            },
            spec: spec.job_template.spec.clone(),
            status: None,
        };
        Action::Create(Create {
            ignore_already_exists: true,
            report: Some(Report {
                about: self.about.clone(),
                done: Some(("SuccessfulCreate", "Created job ".into())),
                failed: ("FailedCreate", "Error creating job: ".into()),
            }),
            ..Create::new(job)
        })
    }

    /// The last scheduled time since the last one that had its Job (or since the CronJob's creation, or the deadline).
    fn schedule_times(&self, schedule: &Schedule, deadline: Option<SignedDuration>) -> ScheduleTimes {
        let created = self.cron.metadata.creation_timestamp.as_ref();
        let mut since = self
            .status
            .last_schedule_time
            .as_ref()
            .or(created)
            .map_or(self.now, |t| t.0);
        if let Some(earliest) = deadline.and_then(|d| self.now.checked_sub(d).ok()) {
            since = since.max(earliest);
        }
        let none = ScheduleTimes {
            at: None,
            missed: 0,
            since,
        };
        let Some(first) = schedule.next(since).filter(|t| *t <= self.now) else {
            return none;
        };
        let Some(second) = schedule.next(first).filter(|t| *t <= self.now) else {
            return ScheduleTimes {
                at: Some(first),
                ..none
            };
        };
        // Years of missed times are not iterated: their number follows from the distance of the first two.
        let between = second.duration_since(first).as_secs().max(1);
        let missed = self.now.duration_since(first).as_secs() / between + 1;
        let near = first
            .checked_add(SignedDuration::from_secs((missed - 2) * between))
            .unwrap_or(first);
        let mut last = None;
        let mut at = schedule.next(near);
        while let Some(time) = at.filter(|t| *t <= self.now) {
            last = Some(time);
            at = schedule.next(time);
        }
        ScheduleTimes {
            at: last,
            missed,
            since,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::world::{World, lines};

    const KEY: (&str, &str) = ("a", "c");
    const ZONES: CronJobs = CronJobs {
        time_zone: |name| (name == "Etc/Plus2").then(|| TimeZone::posix("XXX-2").unwrap_or(TimeZone::UTC)),
    };

    fn minute(n: i64) -> Timestamp {
        "2026-01-01T10:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(n)
    }

    fn world(spec: Value) -> World {
        let mut value = json!({
            "metadata": {"namespace": "a", "name": "c", "creationTimestamp": "2026-01-01T10:00:00Z"},
            "spec": {"schedule": "*/10 * * * *", "jobTemplate": {"metadata": {"labels": {"l": "v"}}, "spec": {"template": {}}}},
        });
        for (key, of) in spec.as_object().unwrap() {
            value["spec"][key] = of.clone();
        }
        let mut world = World::default();
        world.put::<CronJob>(serde_json::from_value(value).unwrap());
        world
    }

    /// Syncs twice, as the writes of the first sync enqueue the key again.
    fn sync(world: &mut World, n: i64) -> Vec<String> {
        let mut done = Vec::new();
        for _ in 0..2 {
            let actions = world.run(&ZONES, KEY, minute(n));
            world.take(&actions);
            done.extend(lines(&actions));
        }
        done.retain(|l| !l.starts_with("update") && !l.starts_with("requeue"));
        done
    }

    fn end(world: &mut World, name: &str, type_: &str, n: i64) {
        let view: &dyn View = world;
        let mut job = (*view.get_as::<Job>("a", name).unwrap()).clone();
        job.status = serde_json::from_value(json!({
            "conditions": [{"type": type_, "status": "True"}], "completionTime": minute(n).to_string(),
            "startTime": minute(n - 1).to_string(),
        }))
        .unwrap();
        world.put(job);
    }

    fn name(n: i64) -> String {
        format!("c-{}", minute(n).as_second() / 60)
    }

    fn status(world: &World) -> CronJobStatus {
        let view: &dyn View = world;
        view.get_as::<CronJob>("a", "c")
            .unwrap()
            .status
            .clone()
            .unwrap_or_default()
    }

    #[test]
    fn a_job_is_created_at_its_time_and_only_once() {
        let mut world = world(json!({}));
        let early = world.run(&ZONES, KEY, minute(4));
        assert_eq!(lines(&early), ["requeue after 360.1s"]);
        assert_eq!(sync(&mut world, 10), [format!("create jobs a/{}", name(10))]);
        assert_eq!(sync(&mut world, 11), [""; 0]);
        let is = status(&world);
        assert_eq!(is.last_schedule_time, Some(seconds(minute(10))));
        assert_eq!(is.active.unwrap()[0].name, Some(name(10)));
        let view: &dyn View = &world;
        let job = view.get_as::<Job>("a", &name(10)).unwrap();
        assert_eq!(
            job.metadata.annotations.as_ref().unwrap()[SCHEDULED_AT],
            "2026-01-01T10:10:00Z"
        );
        end(&mut world, &name(10), "Complete", 12);
        let done = sync(&mut world, 12);
        assert_eq!(
            done,
            [format!(
                "event SawCompletedJob: Saw completed job: {}, condition: Complete",
                name(10)
            )]
        );
        assert_eq!(
            (status(&world).active, status(&world).last_successful_time),
            (None, Some(seconds(minute(12))))
        );
    }

    #[test]
    fn the_concurrency_policy_decides_about_a_job_that_still_runs() {
        let create = format!("create jobs a/{}", name(20));
        let forbid = "event JobAlreadyActive: Not starting job because prior execution is running and concurrency policy is Forbid";
        for (policy, expected) in [
            ("Allow", vec![create.clone()]),
            ("Forbid", vec![forbid.to_string(), forbid.to_string()]),
            (
                "Replace",
                vec![format!("delete jobs a/{}", name(10)), create.clone()],
            ),
        ] {
            let mut world = world(json!({"concurrencyPolicy": policy}));
            sync(&mut world, 10);
            assert_eq!(sync(&mut world, 20), expected, "{policy}");
        }
    }

    #[test]
    fn the_last_missed_time_gets_its_job_within_the_deadline() {
        let mut late = world(json!({}));
        assert_eq!(sync(&mut late, 47), [format!("create jobs a/{}", name(40))]);
        let mut in_time = world(json!({"startingDeadlineSeconds": 480}));
        assert_eq!(sync(&mut in_time, 47), [format!("create jobs a/{}", name(40))]);
        let mut too_late = world(json!({"startingDeadlineSeconds": 300}));
        assert_eq!(sync(&mut too_late, 47), [""; 0]);
        let mut years = world(json!({}));
        let done = sync(&mut years, 10_007);
        assert!(done[0].starts_with("event TooManyMissedTimes: "), "{done:?}");
        assert_eq!(done[1], format!("create jobs a/{}", name(10_000)));
    }

    #[test]
    fn time_zones_suspension_and_invalid_schedules() {
        let mut plus_two = world(json!({"schedule": "30 12 * * *", "timeZone": "Etc/Plus2"}));
        assert_eq!(sync(&mut plus_two, 29), [""; 0]);
        assert_eq!(sync(&mut plus_two, 30), [format!("create jobs a/{}", name(30))]);
        let view: &dyn View = &plus_two;
        let job = view.get_as::<Job>("a", &name(30)).unwrap();
        assert_eq!(
            job.metadata.annotations.as_ref().unwrap()[SCHEDULED_AT],
            "2026-01-01T12:30:00+02:00"
        );
        let unknown = sync(&mut world(json!({"timeZone": "Nowhere"})), 10);
        assert!(
            unknown[0].starts_with("event UnknownTimeZone: invalid timeZone: \"Nowhere\""),
            "{unknown:?}"
        );
        assert_eq!(sync(&mut world(json!({"suspend": true})), 10), [""; 0]);
        let wrong = sync(&mut world(json!({"schedule": "x"})), 10);
        assert!(
            wrong[0].starts_with("event UnparseableSchedule: unparseable schedule: \"x\" : "),
            "{wrong:?}"
        );
    }

    #[test]
    fn history_limits_delete_the_oldest() {
        let mut world = world(json!({"successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 0}));
        for n in [10, 20, 30] {
            sync(&mut world, n);
            end(
                &mut world,
                &name(n),
                if n == 30 { "Failed" } else { "Complete" },
                n + 1,
            );
        }
        let done = sync(&mut world, 32);
        let deleted: Vec<&String> = done.iter().filter(|l| l.starts_with("delete")).collect();
        // The first successful Job was deleted when the second one had finished.
        assert_eq!(deleted, [&format!("delete jobs a/{}", name(30))]);
        let view: &dyn View = &world;
        let left: Vec<String> = view
            .list_as::<Job>("a")
            .iter()
            .map(|j| j.object().name().to_string())
            .collect();
        assert_eq!(left, [name(20)]);
    }
}
