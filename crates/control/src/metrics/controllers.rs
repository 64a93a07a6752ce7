//! The metrics of the controllers, with controller-runtime's and client-go's names: their queues and their reconciliations.

use std::time::Duration;

use knarr_client::metrics::Registry;
use knarr_client::metrics::workqueue::WorkqueueMetrics;
use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec};

use super::workloads::WorkloadMetrics;

/// controller-runtime's upper bounds of the durations of reconciliations, in seconds.
const RECONCILE_SECONDS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];
/// The manager that runs the controllers, as in Kubernetes' metrics and leader election.
const MANAGER: &str = "kube-controller-manager";

/// How a reconciliation ended, as controller-runtime's label `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reconciled {
    Success,
    RequeueAfter,
    Error,
}

/// The metrics of all controllers: their queues, and their reconciliations.
#[derive(Clone, Debug)]
pub struct ControllerMetrics {
    pub(crate) queues: WorkqueueMetrics,
    pub(crate) workloads: WorkloadMetrics,
    running: IntGaugeVec,
    reconciles: IntCounterVec,
    errors: IntCounterVec,
    seconds: HistogramVec,
    max_concurrent: IntGaugeVec,
    active: IntGaugeVec,
}

/// Of a component that is run alone, in tests.
impl Default for ControllerMetrics {
    fn default() -> Self {
        Self::new(&Registry::default())
    }
}

impl ControllerMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let controller = &["controller"];
        ControllerMetrics {
            queues: WorkqueueMetrics::new(registry),
            workloads: WorkloadMetrics::new(registry),
            running: registry.gauges(
                "running_managed_controllers",
                "Indicates where instances of a controller are currently running",
                &["name", "manager"],
            ),
            reconciles: registry.counters(
                "controller_runtime_reconcile_total",
                "Total number of reconciliations per controller",
                &["controller", "result"],
            ),
            errors: registry.counters(
                "controller_runtime_reconcile_errors_total",
                "Total number of reconciliation errors per controller",
                controller,
            ),
            seconds: registry.histograms(
                "controller_runtime_reconcile_time_seconds",
                "Length of time per reconciliation per controller",
                controller,
                &RECONCILE_SECONDS,
            ),
            max_concurrent: registry.gauges(
                "controller_runtime_max_concurrent_reconciles",
                "Maximum number of concurrent reconciles per controller",
                controller,
            ),
            active: registry.gauges(
                "controller_runtime_active_workers",
                "Number of currently used workers per controller",
                controller,
            ),
        }
    }

    /// A controller runs until the result is dropped.
    pub(crate) fn running(&self, controller: &str, workers: usize) -> Running {
        let workers = knarr_client::metrics::count(workers);
        self.max_concurrent.with_label_values(&[controller]).set(workers);
        let gauge = self.running.with_label_values(&[controller, MANAGER]);
        gauge.set(1);
        Running(gauge)
    }

    /// A worker is busy until the result is dropped.
    pub(crate) fn busy(&self, controller: &str) -> Running {
        let gauge = self.active.with_label_values(&[controller]);
        gauge.inc();
        Running(gauge)
    }

    pub(crate) fn reconciled(&self, controller: &str, result: Reconciled, took: Duration) {
        let label = match result {
            Reconciled::Success => "success",
            Reconciled::RequeueAfter => "requeue_after",
            Reconciled::Error => "error",
        };
        self.reconciles.with_label_values(&[controller, label]).inc();
        if result == Reconciled::Error {
            self.errors.with_label_values(&[controller]).inc();
        }
        self.seconds
            .with_label_values(&[controller])
            .observe(took.as_secs_f64());
    }
}

/// Decrements its gauge when it is dropped.
pub(crate) struct Running(prometheus::IntGauge);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The name in metrics of what a controller calls its queue: kube-controller-manager's, where it has this queue. No two queues have
/// the same, for each has series of its own.
pub(crate) fn queue_name(queue: &'static str) -> &'static str {
    match queue {
        "bootstrap-signer-controller" => "bootstrap_signer_queue",
        // There the approver has the same name.
        "certificatesigningrequest-signing-controller" => "certificate",
        "cidrAllocator" => "cidrallocator_node",
        "clusterrole-aggregation-controller" => "ClusterRoleAggregator",
        "controllermanager" => "disruption",
        "cronjob-controller" => "cronjob",
        "daemonset-controller" => "daemonset",
        "deployment-controller" => "deployment",
        "device-taint-eviction" => "device-taint-eviction-controller",
        "endpoint-controller" => "endpoint",
        "endpoint-slice-controller" => "endpoint_slice",
        "endpoint-slice-mirroring-controller" => "endpoint_slice_mirroring",
        "ipallocator-repair-controller" => "services",
        "job-controller" => "job",
        "namespace-controller" => "namespace",
        "node-controller" => "node_lifecycle_controller",
        "persistentvolume-protection-controller" => "pvprotection",
        "persistentvolumeclaim-protection-controller" => "pvcprotection",
        "replicaset-controller" => "replicaset",
        "replication-controller" => "replicationmanager",
        "resourcequota-controller" => "resourcequota_primary",
        "root-ca-certificate-publisher-controller" => "root_ca_cert_publisher",
        "service-cidr-controller" => "ipaddresses",
        "serviceaccount-controller" => "serviceaccount",
        "serviceaccount-token-controller" => "serviceaccount_tokens_service",
        "statefulset-controller" => "statefulset",
        "taint-eviction-controller" => "noexec_taint_node",
        "token-cleaner-controller" => "token_cleaner",
        "ttl-after-finished-controller" => "ttl_jobs_to_delete",
        "volumeattributesclass-protection-controller" => "vacprotection",
        own => own,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_queue_has_a_name_of_its_own_and_kube_controller_managers_where_it_has_this_queue() {
        let mut names = BTreeSet::from(["garbage_collector_attempt_to_delete", "horizontalpodautoscaler"]);
        for controller in knarr_controllers::all(&knarr_controllers::fake::config()) {
            let name = queue_name(controller.queue());
            assert!(names.insert(name), "two queues are called {name}");
        }
        for name in [
            "certificate",
            "cidrallocator_node",
            "claims",
            "device-taint-eviction-controller",
            "endpoint",
            "ipaddresses",
            "noexec_taint_node",
            "resource_claim",
            "services",
            "volumes",
        ] {
            assert!(names.contains(name), "{name} is not in {names:?}");
        }
    }
}
