//! Settings of the HorizontalPodAutoscaler controller.

use std::time::Duration;

use clap::Args;
use knarr_api::feature_gates::FeatureGates;
use knarr_control::pod_autoscaling::Settings;

use super::heading;
use super::reader::Reader;
use super::value::ValueError;

/// kube-controller-manager's flags.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = heading::CONTROLLERS)]
pub struct AutoscalingFlags {
    /// Period in which each HorizontalPodAutoscaler is synced [default: 15s].
    #[arg(
        long,
        env = "KNARR_HORIZONTAL_POD_AUTOSCALER_SYNC_PERIOD",
        value_name = "DURATION",
        global = true
    )]
    pub horizontal_pod_autoscaler_sync_period: Option<String>,
    /// How far the ratio of current to target metrics may differ from 1 before a HorizontalPodAutoscaler scales
    /// [default: 0.1].
    #[arg(
        long,
        env = "KNARR_HORIZONTAL_POD_AUTOSCALER_TOLERANCE",
        value_name = "RATIO",
        global = true
    )]
    pub horizontal_pod_autoscaler_tolerance: Option<String>,
    /// Window whose highest recommendation is used when a HorizontalPodAutoscaler scales down [default: 5m].
    #[arg(
        long,
        env = "KNARR_HORIZONTAL_POD_AUTOSCALER_DOWNSCALE_STABILIZATION",
        value_name = "DURATION",
        global = true
    )]
    pub horizontal_pod_autoscaler_downscale_stabilization: Option<String>,
    /// Time after a pod's start in which its CPU samples may be skipped [default: 5m].
    #[arg(
        long,
        env = "KNARR_HORIZONTAL_POD_AUTOSCALER_CPU_INITIALIZATION_PERIOD",
        value_name = "DURATION",
        global = true
    )]
    pub horizontal_pod_autoscaler_cpu_initialization_period: Option<String>,
    /// Time after a pod's start in which readiness changes are treated as initial readiness [default: 30s].
    #[arg(
        long,
        env = "KNARR_HORIZONTAL_POD_AUTOSCALER_INITIAL_READINESS_DELAY",
        value_name = "DURATION",
        global = true
    )]
    pub horizontal_pod_autoscaler_initial_readiness_delay: Option<String>,
}

fn duration(text: &str) -> Result<Duration, ValueError> {
    let parsed = knarr_apimachinery::duration::parse(text).and_then(|d| Duration::try_from(d).ok());
    parsed.ok_or_else(|| ValueError::expected("a duration, such as 15s or 5m"))
}

fn period(text: &str) -> Result<Duration, ValueError> {
    let period = duration(text)?;
    match period < Duration::from_secs(1) {
        true => Err(ValueError::expected("a duration of one second or more")),
        false => Ok(period),
    }
}

pub(super) fn read(reader: &mut Reader, flags: &AutoscalingFlags, gates: FeatureGates) -> Settings {
    Settings {
        sync_period: reader.get(
            "horizontalPodAutoscalerSyncPeriod",
            "--horizontal-pod-autoscaler-sync-period",
            &flags.horizontal_pod_autoscaler_sync_period,
            "15s",
            period,
        ),
        tolerance: reader.get(
            "horizontalPodAutoscalerTolerance",
            "--horizontal-pod-autoscaler-tolerance",
            &flags.horizontal_pod_autoscaler_tolerance,
            "0.1",
            |text| {
                let tolerance = text.parse().ok().filter(|t: &f64| t.is_finite() && *t >= 0.0);
                tolerance.ok_or_else(|| ValueError::expected("a ratio of 0 or more, such as 0.1"))
            },
        ),
        downscale_stabilization: reader.get(
            "horizontalPodAutoscalerDownscaleStabilization",
            "--horizontal-pod-autoscaler-downscale-stabilization",
            &flags.horizontal_pod_autoscaler_downscale_stabilization,
            "5m",
            duration,
        ),
        cpu_initialization_period: reader.get(
            "horizontalPodAutoscalerCpuInitializationPeriod",
            "--horizontal-pod-autoscaler-cpu-initialization-period",
            &flags.horizontal_pod_autoscaler_cpu_initialization_period,
            "5m",
            duration,
        ),
        initial_readiness_delay: reader.get(
            "horizontalPodAutoscalerInitialReadinessDelay",
            "--horizontal-pod-autoscaler-initial-readiness-delay",
            &flags.horizontal_pod_autoscaler_initial_readiness_delay,
            "30s",
            duration,
        ),
        scale_to_zero: gates.hpa_scale_to_zero,
        ..Settings::default()
    }
}
