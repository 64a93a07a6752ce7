//! The stability levels of metrics (KEP-1209), which Kubernetes' component-base writes before their help texts.

use prometheus::proto::MetricFamily;

/// The metrics that are stable in Kubernetes v1.36.2 (`stable-metrics-list.yaml`).
const STABLE: &[&str] = &[
    "apiserver_admission_controller_admission_duration_seconds",
    "apiserver_admission_step_admission_duration_seconds",
    "apiserver_admission_webhook_admission_duration_seconds",
    "apiserver_current_inflight_requests",
    "apiserver_longrunning_requests",
    "apiserver_request_duration_seconds",
    "apiserver_request_total",
    "apiserver_requested_deprecated_apis",
    "apiserver_response_sizes",
    "apiserver_storage_objects",
    "apiserver_storage_size_bytes",
    "container_cpu_usage_seconds_total",
    "container_memory_working_set_bytes",
    "container_start_time_seconds",
    "cronjob_controller_job_creation_skew_duration_seconds",
    "job_controller_job_pods_finished_total",
    "job_controller_job_sync_duration_seconds",
    "job_controller_job_syncs_total",
    "job_controller_jobs_finished_total",
    "kube_pod_resource_limit",
    "kube_pod_resource_request",
    "kubernetes_healthcheck",
    "kubernetes_healthchecks_total",
    "node_collector_evictions_total",
    "node_cpu_usage_seconds_total",
    "node_memory_working_set_bytes",
    "pod_cpu_usage_seconds_total",
    "pod_memory_working_set_bytes",
    "resource_scrape_error",
    "scheduler_framework_extension_point_duration_seconds",
    "scheduler_pending_pods",
    "scheduler_pod_scheduling_attempts",
    "scheduler_preemption_attempts_total",
    "scheduler_preemption_victims",
    "scheduler_queue_incoming_pods_total",
    "scheduler_schedule_attempts_total",
    "scheduler_scheduling_attempt_duration_seconds",
];
/// The metrics that are beta.
const BETA: &[&str] = &[
    "apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds",
    "apiserver_authentication_config_controller_automatic_reloads_total",
    "apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds",
    "apiserver_authorization_config_controller_automatic_reloads_total",
    "apiserver_cel_compilation_duration_seconds",
    "apiserver_cel_evaluation_duration_seconds",
    "apiserver_flowcontrol_current_executing_requests",
    "apiserver_flowcontrol_current_executing_seats",
    "apiserver_flowcontrol_current_inqueue_requests",
    "apiserver_flowcontrol_dispatched_requests_total",
    "apiserver_flowcontrol_nominal_limit_seats",
    "apiserver_flowcontrol_rejected_requests_total",
    "apiserver_flowcontrol_request_wait_duration_seconds",
    "apiserver_storage_events_received_total",
    "apiserver_validating_admission_policy_check_duration_seconds",
    "apiserver_validating_admission_policy_check_total",
    "apiserver_validation_declarative_validation_mismatch_total",
    "apiserver_validation_declarative_validation_panic_total",
    "apiserver_watch_list_duration_seconds",
    "disabled_metrics_total",
    "endpoint_slice_controller_desired_endpoint_slices",
    "endpoint_slice_controller_endpoints_added_per_sync",
    "endpoint_slice_controller_endpoints_desired",
    "endpoint_slice_controller_endpoints_removed_per_sync",
    "endpoint_slice_controller_num_endpoint_slices",
    "endpoint_slice_controller_services_count_by_traffic_distribution",
    "hidden_metrics_total",
    "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds",
    "horizontal_pod_autoscaler_controller_metric_computation_total",
    "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds",
    "horizontal_pod_autoscaler_controller_reconciliations_total",
    "job_controller_pod_failures_handled_by_failure_policy_total",
    "job_controller_terminated_pods_tracking_finalizer_total",
    "kubelet_image_volume_mounted_errors_total",
    "kubelet_image_volume_mounted_succeed_total",
    "kubelet_image_volume_requested_total",
    "kubernetes_build_info",
    "kubernetes_feature_enabled",
    "prober_probe_total",
    "registered_metrics_total",
    "running_managed_controllers",
    "scheduler_goroutines",
    "scheduler_permit_wait_duration_seconds",
    "scheduler_plugin_evaluation_total",
    "scheduler_pod_scheduling_sli_duration_seconds",
    "scheduler_unschedulable_pods",
    "workqueue_adds_total",
    "workqueue_depth",
    "workqueue_longest_running_processor_seconds",
    "workqueue_queue_duration_seconds",
    "workqueue_retries_total",
    "workqueue_unfinished_work_seconds",
    "workqueue_work_duration_seconds",
];
/// How names begin that component-base does not register: they have no level. Every other one has at least component-base's default.
const WITHOUT: [&str; 5] = [
    "controller_runtime_",
    "coredns_",
    "knarr_",
    "process_",
    "reflector_",
];

/// The level of a metric.
fn level_of(name: &str) -> Option<&'static str> {
    if STABLE.contains(&name) {
        Some("STABLE")
    } else if BETA.contains(&name) {
        Some("BETA")
    } else if WITHOUT.iter().any(|of| name.starts_with(of)) {
        None
    } else {
        Some("ALPHA")
    }
}

/// Writes the levels before the help texts.
pub(super) fn annotate(families: &mut [MetricFamily]) {
    for family in families {
        if let Some(level) = level_of(family.name()) {
            let help = format!("[{level}] {}", family.help());
            family.set_help(help);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_kubernetes_levels_and_those_of_others_none() {
        for (name, level) in [
            ("job_controller_job_syncs_total", Some("STABLE")),
            ("workqueue_depth", Some("BETA")),
            ("rest_client_requests_total", Some("ALPHA")),
            (
                "statefulset_controller_statefulset_max_unavailable",
                Some("ALPHA"),
            ),
            ("controller_runtime_reconcile_total", None),
            ("knarr_cache_revision", None),
        ] {
            assert_eq!(level_of(name), level, "{name}");
        }
    }
}
