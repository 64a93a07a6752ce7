//! HorizontalPodAutoscaler (autoscaling/v2): how many replicas its target should have.
//!
//! One reconciliation is a [`Reconciliation`]: the driver reads the target's scale, [`Reconciliation::start`] returns whether
//! metrics are needed, the driver reads them, [`Reconciliation::decide`] returns whether to write the scale, and
//! [`Reconciliation::finish`] takes the result of that write and returns the status and the events. Reasons, messages and
//! arithmetic are those of Kubernetes v1.36. What has to be remembered between two reconciliations (recommendations and
//! scale events) is a [`History`]; it is lost when the leader changes, as in Kubernetes.

mod behavior;
mod metrics;
mod reconciliation;
mod replicas;
mod samples;
mod selector;
mod status;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use behavior::History;
pub use metrics::Reading;
pub use reconciliation::{Computation, Decision, Event, Needs, Reconciliation, Report};
pub use replicas::Tolerances;
pub use samples::PodMetric;
pub use selector::{Key, controlling};

/// kube-controller-manager's `--horizontal-pod-autoscaler-…` flags and the gates of this controller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub sync_period: Duration,
    /// How far the ratio of usage to target may be from 1 without scaling.
    pub tolerance: f64,
    /// For autoscalers whose behavior does not set a window for scaling down.
    pub downscale_stabilization: Duration,
    /// How long after its start a pod's CPU samples may be skipped.
    pub cpu_initialization_period: Duration,
    /// How long after its start a pod's changes of readiness count as its first ones.
    pub initial_readiness_delay: Duration,
    /// Feature gate HPAScaleToZero (alpha in v1.36).
    pub scale_to_zero: bool,
    /// Feature gate HPAConfigurableTolerance (beta in v1.36).
    pub configurable_tolerance: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            sync_period: Duration::from_secs(15),
            tolerance: 0.1,
            downscale_stabilization: Duration::from_secs(300),
            cpu_initialization_period: Duration::from_secs(300),
            initial_readiness_delay: Duration::from_secs(30),
            scale_to_zero: false,
            configurable_tolerance: true,
        }
    }
}
