//! Validation of fields of a KubeletConfiguration that depend on each other.

use std::collections::BTreeMap;

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_apimachinery::document::{Fields, Report};
use knarr_apimachinery::quantity::Quantity;

use super::{ImageGc, Shutdown};
use crate::backoff::{go_millis, go_seconds};

/// As Go prints a duration, also a negative one.
pub(super) fn go(duration: SignedDuration) -> String {
    if duration.is_negative() {
        return format!("-{}", go(duration.abs()));
    }
    match duration.subsec_nanos() {
        0 => go_seconds(duration),
        _ => go_millis(duration),
    }
}

pub(super) fn image_gc(gc: &ImageGc, fields: &Fields, report: &mut Report) {
    if gc.low_percent >= gc.high_percent {
        let message = format!(
            "must be less than imageGCHighThresholdPercent {}",
            gc.high_percent
        );
        report.errors.invalid(
            &fields.at("imageGCLowThresholdPercent"),
            i64::from(gc.low_percent),
            message,
        );
    }
    for (name, age) in [
        ("imageMinimumGCAge", gc.min_age),
        ("imageMaximumGCAge", gc.max_age),
    ] {
        if age.is_negative() {
            let shown = go(age);
            report
                .errors
                .invalid(&fields.at(name), shown.as_str(), "must not be negative");
        }
    }
    if gc.max_age > SignedDuration::ZERO && gc.max_age <= gc.min_age {
        let message = format!("must be greater than imageMinimumGCAge {}", go(gc.min_age));
        let shown = go(gc.max_age);
        report
            .errors
            .invalid(&fields.at("imageMaximumGCAge"), shown.as_str(), message);
    }
}

pub(super) fn shutdown(shutdown: &Shutdown, fields: &Fields, report: &mut Report) {
    let (whole, critical) = (shutdown.grace, shutdown.critical);
    let name = "shutdownGracePeriodCriticalPods";
    if critical > whole {
        let message = format!("must be <= shutdownGracePeriod {}", go(whole));
        let shown = go(critical);
        report.errors.invalid(&fields.at(name), shown.as_str(), message);
    }
    for (name, value) in [("shutdownGracePeriod", whole), (name, critical)] {
        if !value.is_zero() && value < SignedDuration::from_secs(1) {
            let shown = go(value);
            let message = "must be either zero or otherwise >= 1 sec";
            report.errors.invalid(&fields.at(name), shown.as_str(), message);
        }
    }
    let budgeted = !whole.is_zero() || !critical.is_zero();
    if budgeted && !shutdown.by_priority.is_empty() {
        report.errors.forbidden(
            &fields.at("shutdownGracePeriodByPodPriority"),
            "cannot be specified together with shutdownGracePeriod",
        );
    }
}

/// Reads a reservation (`systemReserved`, `kubeReserved`).
pub(super) fn reserved(
    fields: &mut Fields,
    name: &'static str,
    report: &mut Report,
) -> BTreeMap<String, Quantity> {
    const RESOURCES: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];
    let mut found = BTreeMap::new();
    for (resource, text) in fields.text_map(name, report).unwrap_or_default() {
        let at = fields.at(name).key(&resource);
        if !RESOURCES.contains(&resource.as_str()) {
            report
                .errors
                .not_supported_in_order(&at, resource.as_str(), &RESOURCES);
            continue;
        }
        match Quantity::parse(&text) {
            Ok(quantity) if quantity.is_negative() => {
                report.errors.invalid(&at, text.as_str(), "must not be negative");
            }
            Ok(quantity) => drop(found.insert(resource, quantity)),
            Err(why) => report.errors.invalid(&at, text.as_str(), why),
        }
    }
    found
}

/// Reads `podLogsDir`: an absolute, normalized path.
pub(super) fn logs_dir(fields: &mut Fields, report: &mut Report) -> Option<String> {
    const NAME: &str = "podLogsDir";
    let value = fields.text(NAME, report).filter(|t| !t.is_empty())?.to_string();
    let at = fields.at(NAME);
    let parts = || value.split('/').skip(1);
    let message = if !value.is_ascii() {
        "must only contain ASCII characters"
    } else if !value.starts_with('/') {
        "must be an absolute path"
    } else if parts().any(|part| matches!(part, "" | "." | "..")) {
        "must be normalized, and not the root"
    } else {
        return Some(value);
    };
    report.errors.invalid(&at, value.as_str(), message);
    None
}

/// Whether reservations are enforced on pods, which is the only enforcement that is implemented.
pub(super) fn enforces_pods(fields: &mut Fields, report: &mut Report) -> bool {
    const NAME: &str = "enforceNodeAllocatable";
    const KNOWN: [&str; 6] = [
        "pods",
        "system-reserved",
        "system-reserved-compressible",
        "kube-reserved",
        "kube-reserved-compressible",
        "none",
    ];
    let value = fields.texts(NAME, report);
    let mut seen = Vec::new();
    for (name, path) in &value {
        if seen.contains(name) {
            report.errors.duplicate(path, *name);
            continue;
        }
        seen.push(*name);
        match *name {
            "pods" => {}
            "none" if value.len() > 1 => {
                let message = "may not contain additional enforcements when none is specified";
                report.errors.invalid(path, *name, message);
            }
            "none" => {}
            known if KNOWN.contains(&known) => {
                let message = "only pods is supported: reservations are enforced on pods' cgroups";
                report.errors.invalid(path, known, message);
            }
            other => report.errors.not_supported_in_order(path, other, &KNOWN),
        }
    }
    value.is_empty() || seen.contains(&"pods")
}

/// Patterns of sysctls: a name, or a prefix and `*`.
pub(super) fn unsafe_sysctls(fields: &mut Fields, report: &mut Report) -> Vec<String> {
    let value = fields.texts("allowedUnsafeSysctls", report);
    let mut patterns = Vec::new();
    for (pattern, path) in value {
        let name = pattern.strip_suffix('*').unwrap_or(pattern);
        let named = name.trim_end_matches(['.', '/']);
        let good = !named.is_empty()
            && named.bytes().all(|b| {
                b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'/' | b'-' | b'_')
            });
        let own = crate::sysctl::namespace(&crate::sysctl::normalized(pattern)).is_some();
        if good && !own {
            let message = "is not a namespaced sysctl";
            report.errors.invalid(&path, pattern, message);
        } else if good {
            patterns.push(pattern.to_string());
        } else {
            let message = "must be the name of a sysctl, or a prefix of one followed by *";
            report.errors.invalid(&path, pattern, message);
        }
    }
    patterns
}
