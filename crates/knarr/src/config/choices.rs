//! The texts of single settings: those with a few choices, and those with a form of their own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use knarr_api::k8s_openapi::jiff::SignedDuration;
use knarr_node::containerd::OciRuntimeChoice;
use knarr_node::kubelet::{SelfFencing, TerminationResume};

use super::reader::socket;
use super::value::ValueError;
use super::{LogFormat, ShimChoice, StoreEngine};

/// The longest that SIGTERM may be delayed; a longer delay would use up the pod's grace period.
const BARRIER_MAX_MILLIS: u64 = 5000;

pub(super) fn store(text: &str) -> Result<StoreEngine, ValueError> {
    match text {
        "embedded" => Ok(StoreEngine::Embedded),
        "memory" => Ok(StoreEngine::Memory),
        "etcd" => Ok(StoreEngine::Etcd),
        _ => Err(ValueError::expected("embedded, memory or etcd")),
    }
}

pub(super) fn shim(text: &str) -> Result<ShimChoice, ValueError> {
    match text {
        "auto" => Ok(ShimChoice::Auto),
        "runc-v2" => Ok(ShimChoice::RuncV2),
        "rust" => Ok(ShimChoice::Rust),
        _ => Err(ValueError::expected("auto, rust or runc-v2")),
    }
}

pub(super) fn oci_runtime(text: &str) -> Result<OciRuntimeChoice, ValueError> {
    match text {
        "auto" => Ok(OciRuntimeChoice::Auto),
        "runc" | "crun" => Ok(OciRuntimeChoice::Program(text.to_string())),
        path if path.starts_with('/') => Ok(OciRuntimeChoice::Program(path.to_string())),
        _ => Err(ValueError::expected("auto, runc, crun or an absolute path")),
    }
}

pub(super) fn termination_resume(text: &str) -> Result<TerminationResume, ValueError> {
    match text {
        "Full" => Ok(TerminationResume::Full),
        "Deadline" => Ok(TerminationResume::Deadline),
        _ => Err(ValueError::expected("Full or Deadline")),
    }
}

pub(super) fn self_fencing(text: &str) -> Result<SelfFencing, ValueError> {
    match text {
        "Annotated" => Ok(SelfFencing::Annotated),
        "AtMostOne" => Ok(SelfFencing::AtMostOne),
        _ => Err(ValueError::expected("Annotated or AtMostOne")),
    }
}

pub(super) fn log_format(text: &str) -> Result<LogFormat, ValueError> {
    match text {
        "human" => Ok(LogFormat::Human),
        "json" => Ok(LogFormat::Json),
        _ => Err(ValueError::expected("human or json")),
    }
}

/// A filter of `tracing_subscriber`, as text.
pub(super) fn log_filter(text: &str) -> Result<String, ValueError> {
    tracing_subscriber::EnvFilter::try_new(text)
        .map(|_| text.to_string())
        .map_err(ValueError::from)
}

pub(super) fn node_name(text: &str) -> Result<String, ValueError> {
    match knarr_apimachinery::names::dns1123_subdomain(text).first() {
        None => Ok(text.to_string()),
        Some(error) => Err(ValueError::Name(error.clone())),
    }
}

/// `None` if it is empty.
pub(super) fn kubelet_listen(text: &str) -> Result<Option<SocketAddr>, ValueError> {
    match text {
        "" => Ok(None),
        _ => socket(text).map(Some),
    }
}

/// `None` if it is empty.
pub(super) fn watchdog_device(text: &str) -> Result<Option<PathBuf>, ValueError> {
    match text.is_empty() || text.starts_with('/') {
        true => Ok((!text.is_empty()).then(|| PathBuf::from(text))),
        false => Err(ValueError::expected(
            "the path of a device, such as /dev/watchdog0",
        )),
    }
}

pub(super) fn signing_duration(text: &str) -> Result<SignedDuration, ValueError> {
    let duration = knarr_apimachinery::duration::parse(text).filter(|d| d.is_positive());
    duration.ok_or_else(|| ValueError::expected("a positive duration, such as 8760h"))
}

/// From milliseconds.
pub(super) fn barrier(text: &str) -> Result<Duration, ValueError> {
    let millis = text.parse().ok().filter(|n| *n <= BARRIER_MAX_MILLIS);
    let millis =
        millis.ok_or_else(|| ValueError::expected(format!("milliseconds from 0 to {BARRIER_MAX_MILLIS}")))?;
    Ok(Duration::from_millis(millis))
}
