//! The metrics of single controllers that Kubernetes has declared stable: of Jobs, CronJobs,
//! StatefulSets and evictions by the node controller. They
//! follow from the changes that the controllers' caches show, but for the syncs of Jobs, which the runner counts.

use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use knarr_api::well_known::NOT_READY;
use knarr_api::{k8s_openapi, registry};
use knarr_client::metrics::{Registry, doubling};
use knarr_controllers::action::Action;
use knarr_controllers::cronjob::SCHEDULED_AT;
use knarr_controllers::job::{finished, is_managed};
use knarr_controllers::node::zones::zone_of;
use knarr_controllers::node::{NO_EXECUTE, UNREACHABLE};
use knarr_controllers::{ObjectChange, View};
use prometheus::{Histogram, HistogramVec, IntCounterVec, IntGaugeVec};

/// What a sync of a Job did, as Kubernetes' label `action`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncAction {
    /// Pods were not managed, as the Job is deleted or has its end.
    Reconciling,
    /// There are as many pods as there should be.
    Tracking,
    PodsCreated,
    PodsDeleted,
}

impl SyncAction {
    /// The sync of this Job that returned these actions.
    pub fn of(job: &Job, actions: &[Action]) -> Self {
        let creates = |a: &Action| matches!(a, Action::Create(_) | Action::CreateMany(_));
        let deletes = |a: &Action| matches!(a, Action::Delete(_) | Action::DeleteMany(_));
        // Its completions end a Job only after its pods were managed.
        let ends = |a: &Action| match a {
            Action::Update { object, .. } => object
                .as_any()
                .downcast_ref::<Job>()
                .is_some_and(|new| has_end(new, |reason| reason != "CompletionsReached")),
            _ => false,
        };
        let is_deleted = job.metadata.deletion_timestamp.is_some();
        // As kube-controller-manager, also if a suspended Job has no pods to delete.
        let suspended = job.spec.as_ref().is_some_and(|s| s.suspend == Some(true));
        if actions.iter().any(creates) {
            SyncAction::PodsCreated
        } else if is_deleted || has_end(job, |_| true) || actions.iter().any(ends) {
            SyncAction::Reconciling
        } else if suspended || actions.iter().any(deletes) {
            SyncAction::PodsDeleted
        } else {
            SyncAction::Tracking
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            SyncAction::Reconciling => "reconciling",
            SyncAction::Tracking => "tracking",
            SyncAction::PodsCreated => "pods_created",
            SyncAction::PodsDeleted => "pods_deleted",
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct WorkloadMetrics {
    job_syncs: IntCounterVec,
    job_sync_seconds: HistogramVec,
    jobs_finished: IntCounterVec,
    job_pods_finished: IntCounterVec,
    cronjob_skew_seconds: Histogram,
    evictions: IntCounterVec,
    max_unavailable: IntGaugeVec,
    unavailable_replicas: IntGaugeVec,
}

impl WorkloadMetrics {
    pub fn new(registry: &Registry) -> Self {
        let of_sync = &["completion_mode", "result", "action"];
        let of_statefulset = &[
            "statefulset_namespace",
            "statefulset_name",
            "pod_management_policy",
        ];
        WorkloadMetrics {
            job_syncs: registry.counters(
                "job_controller_job_syncs_total",
                "The number of job syncs",
                of_sync,
            ),
            job_sync_seconds: registry.histograms(
                "job_controller_job_sync_duration_seconds",
                "The time it took to sync a job",
                of_sync,
                &doubling(0.004, 15),
            ),
            jobs_finished: registry.counters(
                "job_controller_jobs_finished_total",
                "The number of finished jobs",
                &["completion_mode", "result", "reason"],
            ),
            job_pods_finished: registry.counters(
                "job_controller_job_pods_finished_total",
                "The number of finished Pods that are fully tracked",
                &["completion_mode", "result"],
            ),
            cronjob_skew_seconds: registry.histogram(
                "cronjob_controller_job_creation_skew_duration_seconds",
                "Time between when a cronjob is scheduled to be run, and when the corresponding job is created",
                &doubling(1.0, 10),
            ),
            evictions: registry.counters(
                "node_collector_evictions_total",
                "Number of Node evictions that happened since current instance of NodeController started.",
                &["zone"],
            ),
            max_unavailable: registry.gauges(
                "statefulset_controller_statefulset_max_unavailable",
                "Maximum number of unavailable pods allowed during StatefulSet rolling updates",
                of_statefulset,
            ),
            unavailable_replicas: registry.gauges(
                "statefulset_controller_statefulset_unavailable_replicas",
                "Current number of unavailable pods in StatefulSet",
                of_statefulset,
            ),
        }
    }

    /// Counts what a change shows that this controller, which runs since `started`, has done.
    pub fn observe(&self, controller: &str, change: &ObjectChange<'_>, started: Timestamp) {
        match controller {
            "job-controller" if *change.kind == registry::JOB => self.observe_job(change),
            "cronjob-controller" if *change.kind == registry::JOB => self.observe_new_job(change, started),
            "statefulset-controller" if *change.kind == registry::STATEFUL_SET => {
                self.observe_statefulset(change)
            }
            "node-controller" if *change.kind == registry::NODE => self.observe_node(change),
            _ => {}
        }
    }

    /// A Job was synced.
    pub fn synced(&self, job: &Job, action: SyncAction, failed: bool, took: Duration) {
        let result = if failed { "error" } else { "success" };
        let labels = [completion_mode(job), result, action.as_str()];
        self.job_syncs.with_label_values(&labels).inc();
        let seconds = self.job_sync_seconds.with_label_values(&labels);
        seconds.observe(took.as_secs_f64());
    }

    fn observe_job(&self, change: &ObjectChange<'_>) {
        let (Some(old), Some(new)) = (
            change.old.and_then(|o| o.get::<Job>()),
            change.new.and_then(|o| o.get::<Job>()),
        ) else {
            return;
        };
        let mode = completion_mode(new);
        if let (None, Some(condition)) = (finished(old), finished(new)) {
            let result = if condition.type_ == "Complete" {
                "succeeded"
            } else {
                "failed"
            };
            let reason = condition.reason.as_deref().unwrap_or_default();
            self.jobs_finished
                .with_label_values(&[mode, result, reason])
                .inc();
        }
        type Count = fn(&Job) -> Option<i32>;
        let counts: [(&str, Count); 2] = [
            ("succeeded", |job| job.status.as_ref()?.succeeded),
            ("failed", |job| job.status.as_ref()?.failed),
        ];
        for (result, count) in counts {
            let more = count(new).unwrap_or(0).saturating_sub(count(old).unwrap_or(0));
            if let Ok(more @ 1..) = u64::try_from(more) {
                self.job_pods_finished
                    .with_label_values(&[mode, result])
                    .inc_by(more);
            }
        }
    }

    fn observe_new_job(&self, change: &ObjectChange<'_>, started: Timestamp) {
        let (None, Some(job)) = (change.old, change.new) else {
            return;
        };
        let metadata = job.metadata();
        let scheduled = metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(SCHEDULED_AT));
        let scheduled = scheduled.and_then(|text| text.parse::<Timestamp>().ok());
        let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
        if let (Some(scheduled), Some(created)) = (scheduled, created)
            && created >= started
        {
            let skew = created.duration_since(scheduled).as_secs_f64();
            self.cronjob_skew_seconds.observe(skew.max(0.0));
        }
    }

    fn observe_statefulset(&self, change: &ObjectChange<'_>) {
        let Some(set) = change.object().and_then(|o| o.get::<StatefulSet>()) else {
            return;
        };
        let Some(spec) = &set.spec else { return };
        let labels = [
            set.metadata.namespace.as_deref(),
            set.metadata.name.as_deref(),
            spec.pod_management_policy.as_deref(),
        ]
        .map(Option::unwrap_or_default);
        if change.new.is_none() {
            // An error means that there was no such series.
            let _ = self.max_unavailable.remove_label_values(&labels);
            let _ = self.unavailable_replicas.remove_label_values(&labels);
            return;
        }
        let replicas = spec.replicas.unwrap_or(1);
        let available = set
            .status
            .as_ref()
            .and_then(|s| s.available_replicas)
            .unwrap_or(0);
        let unavailable = self.unavailable_replicas.with_label_values(&labels);
        unavailable.set(replicas.saturating_sub(available).max(0).into());
        let rolling_update = spec
            .update_strategy
            .as_ref()
            .and_then(|s| s.rolling_update.as_ref());
        let max = match rolling_update.and_then(|r| r.max_unavailable.as_ref()) {
            None => 1,
            Some(IntOrString::Int(pods)) => *pods,
            Some(IntOrString::String(percent)) => {
                let percent = percent.trim_end_matches('%').parse().unwrap_or(0);
                replicas.saturating_mul(percent) / 100
            }
        };
        self.max_unavailable
            .with_label_values(&labels)
            .set(max.max(1).into());
    }

    fn observe_node(&self, change: &ObjectChange<'_>) {
        let (Some(old), Some(new)) = (
            change.old.and_then(|o| o.get::<Node>()),
            change.new.and_then(|o| o.get::<Node>()),
        ) else {
            return;
        };
        if !evicts(old) && evicts(new) {
            self.evictions.with_label_values(&[zone_of(new)]).inc();
        }
    }
}

fn completion_mode(job: &Job) -> &str {
    let spec = job.spec.as_ref();
    spec.and_then(|s| s.completion_mode.as_deref())
        .unwrap_or("NonIndexed")
}

/// Whether it is recorded how a Job will be finished, for such a reason.
fn has_end(job: &Job, counts: impl Fn(&str) -> bool) -> bool {
    let mut conditions = job.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.any(|c| {
        let is_end = matches!(c.type_.as_str(), "SuccessCriteriaMet" | "FailureTarget");
        is_end && c.status == "True" && counts(c.reason.as_deref().unwrap_or_default())
    })
}

/// Whether a node has the taint by which the node controller evicts its pods.
fn evicts(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    taints
        .into_iter()
        .any(|t| t.effect == NO_EXECUTE && (t.key == NOT_READY || t.key == UNREACHABLE))
}

/// The Job of a key, if this controller syncs it: others manage some Jobs, and nothing is done for a finished one.
pub(crate) fn job_of(
    controller: &str,
    view: &dyn View,
    namespace: &str,
    name: &str,
) -> Option<knarr_client::Shared<Job>> {
    if controller != "job-controller" {
        return None;
    }
    let job = view.get_as::<Job>(namespace, name)?;
    (is_managed(&job) && finished(&job).is_none()).then_some(job)
}

#[cfg(test)]
mod tests {
    use knarr_client::{Kind, Object};
    use serde_json::{Value, json};

    use super::*;

    fn object(kind: &Kind, document: &Value) -> Object {
        let decoded = kind.ops.decode(document.to_string().as_bytes()).unwrap();
        Object::from_typed(kind, decoded.object)
    }

    fn observed(controller: &str, kind: &Kind, old: Option<&Value>, new: &Value) -> String {
        let registry = Registry::default();
        let metrics = WorkloadMetrics::new(&registry);
        let (old, new) = (old.map(|old| object(kind, old)), object(kind, new));
        let change = ObjectChange {
            kind,
            old: old.as_ref(),
            new: Some(&new),
        };
        let started = "2026-01-01T00:00:00Z".parse().unwrap();
        metrics.observe(controller, &change, started);
        registry.text()
    }

    #[test]
    fn a_job_that_finishes_is_counted_with_its_pods() {
        let job = |status: Value| json!({"spec": {"completionMode": "Indexed", "template": {"spec": {"containers": []}}}, "status": status});
        let (running, finished) = (
            job(json!({"succeeded": 1})),
            job(
                json!({"succeeded": 3, "failed": 1, "conditions": [{"type": "Complete", "status": "True", "reason": "CompletionsReached"}]}),
            ),
        );
        let text = observed("job-controller", &registry::JOB, Some(&running), &finished);
        for line in [
            "# HELP job_controller_jobs_finished_total [STABLE] The number of finished jobs",
            r#"job_controller_jobs_finished_total{completion_mode="Indexed",reason="CompletionsReached",result="succeeded"} 1"#,
            r#"job_controller_job_pods_finished_total{completion_mode="Indexed",result="succeeded"} 2"#,
            r#"job_controller_job_pods_finished_total{completion_mode="Indexed",result="failed"} 1"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        let again = observed("job-controller", &registry::JOB, Some(&finished), &finished);
        assert!(!again.contains("finished_total{"), "{again}");
    }

    #[test]
    fn a_sync_is_tracking_unless_pods_are_created_or_deleted_or_are_not_managed() {
        let job = |with: Value| {
            let mut document = json!({"metadata": {"namespace": "ns", "name": "j"},
                "spec": {"template": {"spec": {"containers": []}}}});
            for (field, value) in with.as_object().unwrap() {
                for (key, value) in value.as_object().unwrap() {
                    document[field][key] = value.clone();
                }
            }
            serde_json::from_value::<Job>(document).unwrap()
        };
        let ending = |type_: &str, reason: &str| {
            job(json!({"status": {"conditions": [{"type": type_, "status": "True", "reason": reason}]}}))
        };
        let counted = job(json!({"status": {"succeeded": 1}}));
        let failed = || ending("FailureTarget", "BackoffLimitExceeded");
        let complete = || ending("SuccessCriteriaMet", "CompletionsReached");
        let create = || Action::CreateMany(Vec::new());
        let delete = || Action::DeleteMany(Vec::new());
        // (Job, actions, label)
        let table = [
            (job(json!({})), vec![], "tracking"),
            (job(json!({})), vec![Action::update_status(counted)], "tracking"),
            (job(json!({})), vec![create()], "pods_created"),
            (job(json!({})), vec![delete()], "pods_deleted"),
            (job(json!({"spec": {"suspend": true}})), vec![], "pods_deleted"),
            (
                job(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
                vec![],
                "reconciling",
            ),
            (
                job(json!({})),
                vec![delete(), Action::update_status(failed())],
                "reconciling",
            ),
            (failed(), vec![delete()], "reconciling"),
            (
                job(json!({})),
                vec![Action::update_status(complete())],
                "tracking",
            ),
            (complete(), vec![], "reconciling"),
        ];
        for (job, actions, label) in table {
            let action = SyncAction::of(&job, &actions);
            assert_eq!(action.as_str(), label, "{actions:?} of {job:?}");
        }
    }

    #[test]
    fn a_job_of_a_cronjob_shows_how_late_it_was_created() {
        let job = |created: &str| {
            json!({"metadata": {"creationTimestamp": created,
                "annotations": {"batch.kubernetes.io/cronjob-scheduled-timestamp": "2026-01-01T00:00:00Z"}}})
        };
        const SUM: &str = "cronjob_controller_job_creation_skew_duration_seconds_sum";
        let text = observed(
            "cronjob-controller",
            &registry::JOB,
            None,
            &job("2026-01-01T00:00:03Z"),
        );
        assert!(text.contains(&format!("{SUM} 3\n")), "{text}");
        // It was there before this controller.
        let text = observed(
            "cronjob-controller",
            &registry::JOB,
            None,
            &job("2025-01-01T00:00:03Z"),
        );
        assert!(text.contains(&format!("{SUM} 0\n")), "{text}");
    }

    #[test]
    fn a_statefulset_shows_how_many_replicas_are_and_may_be_unavailable() {
        let set = json!({"metadata": {"namespace": "ns", "name": "db"}, "status": {"replicas": 10, "availableReplicas": 7}, "spec": {
            "replicas": 10, "podManagementPolicy": "Parallel", "selector": {}, "template": {"spec": {"containers": []}},
            "updateStrategy": {"rollingUpdate": {"maxUnavailable": "25%"}}}});
        let text = observed("statefulset-controller", &registry::STATEFUL_SET, None, &set);
        let labels = r#"{pod_management_policy="Parallel",statefulset_name="db",statefulset_namespace="ns"}"#;
        for (name, n) in [("unavailable_replicas", 3), ("max_unavailable", 2)] {
            let line = format!("statefulset_controller_statefulset_{name}{labels} {n}");
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn a_node_whose_pods_are_evicted_is_counted_once() {
        let healthy = json!({"metadata": {"name": "n"}});
        let tainted = json!({"metadata": {"name": "n"}, "spec": {"taints": [
            {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}});
        let text = observed("node-controller", &registry::NODE, Some(&healthy), &tainted);
        assert!(
            text.contains("node_collector_evictions_total{zone=\"\"} 1\n"),
            "{text}"
        );
        let again = observed("node-controller", &registry::NODE, Some(&tainted), &tainted);
        assert!(!again.contains("node_collector_evictions_total{"), "{again}");
    }
}
