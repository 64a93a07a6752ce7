//! The descheduler's policy file, DeschedulerPolicy `descheduler/v1alpha2`, read into a [`Policy`].
//!
//! What is not supported is in the result with its path in the file ([`Read::ignored`]): strategies that have no meaning
//! here, sort plugins, and permissions that no policy of ours has (to move pods of DaemonSets and pods without a
//! controller). Impossible values are errors, all of them at once.
//!
//! Different from the descheduler: a pod is moved only where the scheduler would place it (`nodeFit` is always on); the
//! limits count per hour and not per cycle.

use std::collections::BTreeMap;

use knarr_apimachinery::document::{Fields, Report};
use knarr_apimachinery::field::{ErrorList, Path};
use serde_json::Value;

use super::fields::{count, label_selector, min_pod_age, priority_threshold, selector_text, small_count};
use super::{Budgets, Policy, Profile, ProtectedClaims, Protections, Read, Strategy, strategy_args};

pub const API_VERSION: &str = "descheduler/v1alpha2";
pub const KIND: &str = "DeschedulerPolicy";
const DEFAULT_EVICTOR: &str = "DefaultEvictor";

/// Reads a file (YAML or JSON).
///
/// # Examples
///
/// ```
/// use knarr_rebalance::policy::descheduler::parse;
///
/// let file = r#"
/// apiVersion: "descheduler/v1alpha2"
/// kind: "DeschedulerPolicy"
/// profiles:
/// - name: default
///   plugins:
///     balance: {enabled: [RemovePodsViolatingTopologySpreadConstraint, SortByWhim]}
/// "#;
/// let read = parse(file).expect("a valid file");
/// assert_eq!(read.policy.profiles[0].strategies.len(), 1);
/// assert_eq!(
///     read.ignored,
///     ["profiles[0].plugins.balance.enabled[1]: SortByWhim has no meaning here"]
/// );
/// ```
pub fn parse(text: &str) -> Result<Read, ErrorList> {
    match serde_saphyr::from_str::<Value>(text) {
        Ok(document) => read(&document),
        Err(error) => {
            let mut errors = ErrorList::new();
            let detail = format!("invalid YAML: {error}");
            errors.type_invalid(&Path::default(), "", detail);
            Err(errors)
        }
    }
}

/// Reads one document of a file.
pub fn read(document: &Value) -> Result<Read, ErrorList> {
    let mut report = Report::default();
    let policy = read_policy(document, &mut report);
    if !report.errors.is_empty() {
        return Err(report.errors);
    }
    Ok(Read {
        policy,
        ignored: report.notes,
    })
}

fn read_policy(document: &Value, report: &mut Report) -> Policy {
    let mut fields = Fields::new(document, Path::default(), report);
    for (name, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        match fields.text(name, report) {
            Some(given) if given == expected => {}
            Some(other) => report.errors.not_supported(&fields.at(name), other, &[expected]),
            None => report.errors.required(&fields.at(name), expected),
        }
    }
    let budgets = Budgets {
        per_hour: limit(&mut fields, "maxNoOfPodsToEvictTotal", report),
        per_node: limit(&mut fields, "maxNoOfPodsToEvictPerNode", report),
        per_namespace: limit(&mut fields, "maxNoOfPodsToEvictPerNamespace", report),
        ..Budgets::UNLIMITED
    };
    for name in ["evictionFailureEventNotification"] {
        if fields.boolean(name, report).is_some() {
            report.note(
                &fields.at(name),
                "has no effect: every failed eviction has an event",
            );
        }
    }
    read_metrics(&mut fields, report);
    let policy = Policy {
        name: KIND.to_string(),
        dry_run: true,
        node_selector: selector_text(&mut fields, "nodeSelector", report),
        budgets,
        grace_period_seconds: count(&mut fields, "gracePeriodSeconds", report),
        profiles: read_profiles(&mut fields, report),
    };
    fields.finish(report);
    policy
}

fn limit(fields: &mut Fields, name: &'static str, report: &mut Report) -> Option<u32> {
    let limit = small_count(fields, name, report)?;
    report.note(&fields.at(name), "counts per hour, not per cycle");
    Some(limit)
}

/// Measured usage comes from the metrics API; nothing is configured for it.
fn read_metrics(fields: &mut Fields, report: &mut Report) {
    const UNUSED: &str = "has no effect: usage is read from the metrics API";
    if fields.take("metricsCollector").is_some() {
        report.note(&fields.at("metricsCollector"), UNUSED);
    }
    for (item, path) in fields.list("metricsProviders", report).unwrap_or_default() {
        let mut of = Fields::new(item, path, report);
        of.take("prometheus");
        match of.text("source", report) {
            Some("Prometheus") => report.note(&of.at("source"), "Prometheus is not supported"),
            Some("KubernetesMetrics") => report.note(&of.at("source"), UNUSED),
            Some(other) => {
                let supported = ["KubernetesMetrics", "Prometheus"];
                report.errors.not_supported(&of.at("source"), other, &supported);
            }
            None => {}
        }
        of.finish(report);
    }
}

fn read_profiles(fields: &mut Fields, report: &mut Report) -> Vec<Profile> {
    let mut profiles: Vec<Profile> = Vec::new();
    let mut strategies = 0;
    for (item, path) in fields.list("profiles", report).unwrap_or_default() {
        let profile = read_profile(Fields::new(item, path.clone(), report), report);
        if profiles.iter().any(|p| p.name == profile.name) {
            report
                .errors
                .duplicate(&path.child("name"), profile.name.as_str());
        }
        strategies += profile.strategies.len();
        if strategies > super::STRATEGIES_MAX {
            report
                .errors
                .too_many(&path.child("plugins"), strategies, super::STRATEGIES_MAX);
        }
        profiles.push(profile);
    }
    profiles
}

fn read_profile(mut fields: Fields, report: &mut Report) -> Profile {
    let name = fields.text("name", report).unwrap_or_default().to_string();
    let mut args: BTreeMap<&str, (&Value, Path)> = BTreeMap::new();
    for (item, path) in fields.list("pluginConfig", report).unwrap_or_default() {
        let mut of = Fields::new(item, path.clone(), report);
        let plugin = of.text("name", report).unwrap_or_default();
        let value = of.take("args").unwrap_or(&Value::Null);
        of.finish(report);
        if plugin.is_empty() {
            report.errors.required(&path.child("name"), "");
        } else if args.insert(plugin, (value, path.child("args"))).is_some() {
            report.errors.duplicate(&path.child("name"), plugin);
        }
    }
    let protections = match args.remove(DEFAULT_EVICTOR) {
        Some((value, path)) => read_evictor(Fields::new(value, path, report), report),
        None => Protections::usual(),
    };
    let mut strategies: Vec<Strategy> = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    if let Some(mut points) = fields.object("plugins", report) {
        for point in ["deschedule", "balance"] {
            for (plugin, path) in enabled(&mut points, point, report) {
                if seen.contains(&plugin) {
                    report.errors.duplicate(&path, plugin);
                    continue;
                }
                seen.push(plugin);
                let known = strategy_args::PLUGINS.iter().find(|(name, _)| *name == plugin);
                let Some((_, own)) = known else {
                    report.note(&path, &format!("{plugin} has no meaning here"));
                    continue;
                };
                if *own != point {
                    let detail = format!("{plugin} belongs to {own}");
                    report.errors.invalid(&path, plugin, detail);
                    continue;
                }
                // Without a configuration its arguments are the defaults.
                let absent = || (&Value::Null, fields.at("pluginConfig").key(plugin).child("args"));
                let (value, at) = args.remove(plugin).unwrap_or_else(absent);
                strategies.extend(strategy_args::read(
                    plugin,
                    Fields::new(value, at, report),
                    report,
                ));
            }
        }
        for point in ["presort", "sort"] {
            for (plugin, path) in enabled(&mut points, point, report) {
                let detail = format!("{plugin} has no effect: the order of moves is fixed");
                report.note(&path, &detail);
            }
        }
        for point in ["filter", "preevictionfilter", "preEvictionFilter"] {
            for (plugin, path) in enabled(&mut points, point, report) {
                if plugin != DEFAULT_EVICTOR {
                    report.note(&path, &format!("{plugin} has no meaning here"));
                }
            }
        }
        points.finish(report);
    }
    fields.finish(report);
    for (plugin, (_, path)) in args {
        let detail = format!("has no effect: {plugin} is not enabled or has no meaning here");
        report.note(&path, &detail);
    }
    Profile {
        name,
        protections,
        strategies,
    }
}

/// The enabled plugins of an extension point. `disabled` takes names out of the descheduler's own defaults, of which
/// only DefaultEvictor would matter; it cannot be disabled here.
fn enabled<'a>(points: &mut Fields<'a>, point: &'static str, report: &mut Report) -> Vec<(&'a str, Path)> {
    let Some(mut set) = points.object(point, report) else {
        return Vec::new();
    };
    let enabled = set.texts("enabled", report);
    for (plugin, path) in set.texts("disabled", report) {
        if plugin == DEFAULT_EVICTOR || plugin == "*" {
            report.note(&path, "has no effect: the protections of pods cannot be disabled");
        }
    }
    set.finish(report);
    enabled
}

/// DefaultEvictorArgs.
fn read_evictor(mut fields: Fields, report: &mut Report) -> Protections {
    let of = &mut fields;
    of.take("apiVersion");
    of.take("kind");
    let mut protections = Protections::usual();
    protections.node_selector = selector_text(of, "nodeSelector", report);
    protections.label_selector = label_selector(of, "labelSelector", report);
    protections.namespace_selector = label_selector(of, "namespaceLabelSelector", report);
    protections.priority_threshold = priority_threshold(of, report);
    strategy_args::note_simulation(of, "nodeFit", report);
    let replicas = small_count(of, "minReplicas", report);
    protections.min_replicas = replicas.and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    protections.min_pod_age = min_pod_age(of, report);
    match of.text("noEvictionPolicy", report) {
        None | Some("" | "Preferred") => {}
        Some("Mandatory") => protections.preference_is_mandatory = true,
        Some(other) => {
            let supported = ["Preferred", "Mandatory"];
            report
                .errors
                .not_supported(&of.at("noEvictionPolicy"), other, &supported);
        }
    }
    let deprecated = read_deprecated(of, &mut protections, report);
    read_pod_protections(of, &mut protections, deprecated, report);
    fields.finish(report);
    protections
}

const DAEMON_SETS: &str = "has no effect: pods of DaemonSets are never moved";
const BARE_PODS: &str = "has no effect: pods without a controller are never moved";

/// The switches that podProtections has replaced; whether one of them is set.
fn read_deprecated(fields: &mut Fields, protections: &mut Protections, report: &mut Report) -> bool {
    let mut any = false;
    for name in [
        "evictLocalStoragePods",
        "evictDaemonSetPods",
        "evictSystemCriticalPods",
        "evictFailedBarePods",
        "ignorePvcPods",
        "ignorePodsWithoutPDB",
    ] {
        if fields.boolean(name, report) != Some(true) {
            continue;
        }
        any = true;
        match name {
            "evictLocalStoragePods" => protections.local_storage = false,
            "evictSystemCriticalPods" => protections.system_critical = false,
            "ignorePvcPods" => protections.persistent_volume_claims = Some(ProtectedClaims::All),
            "ignorePodsWithoutPDB" => protections.without_disruption_budget = true,
            "evictDaemonSetPods" => report.note(&fields.at(name), DAEMON_SETS),
            _ => report.note(&fields.at(name), BARE_PODS),
        }
    }
    any
}

fn read_pod_protections(
    fields: &mut Fields,
    protections: &mut Protections,
    deprecated: bool,
    report: &mut Report,
) {
    const DEFAULTS: [&str; 4] = [
        "PodsWithLocalStorage",
        "DaemonSetPods",
        "SystemCriticalPods",
        "FailedBarePods",
    ];
    const EXTRAS: [&str; 3] = ["PodsWithPVC", "PodsWithoutPDB", "PodsWithResourceClaims"];
    let Some(mut of) = fields.object("podProtections", report) else {
        return;
    };
    let disabled = of.texts("defaultDisabled", report);
    let extra = of.texts("extraEnabled", report);
    if deprecated && !(disabled.is_empty() && extra.is_empty()) {
        let detail = "must not be used together with the deprecated fields";
        report.errors.forbidden(&of.path, detail);
    }
    for list in [&disabled, &extra] {
        for (i, (name, path)) in list.iter().enumerate() {
            if list[..i].iter().any(|(earlier, _)| earlier == name) {
                report.errors.duplicate(path, *name);
            }
        }
    }
    for (name, path) in disabled {
        match name {
            "PodsWithLocalStorage" => protections.local_storage = false,
            "SystemCriticalPods" => protections.system_critical = false,
            "DaemonSetPods" => report.note(&path, DAEMON_SETS),
            "FailedBarePods" => report.note(&path, BARE_PODS),
            other => report.errors.not_supported(&path, other, &DEFAULTS),
        }
    }
    for (name, path) in extra {
        match name {
            "PodsWithPVC" => protections.persistent_volume_claims = Some(ProtectedClaims::All),
            "PodsWithoutPDB" => protections.without_disruption_budget = true,
            "PodsWithResourceClaims" => {
                report.note(&path, "pods with resource claims are never moved");
            }
            other => report.errors.not_supported(&path, other, &EXTRAS),
        }
    }
    if let Some(mut config) = of.object("config", report) {
        if let Some(mut claims) = config.object("PodsWithPVC", report) {
            let mut classes = Vec::new();
            for (item, path) in claims.list("protectedStorageClasses", report).unwrap_or_default() {
                let mut class = Fields::new(item, path.clone(), report);
                match class.text("name", report).filter(|name| !name.is_empty()) {
                    Some(name) => classes.push(name.to_string()),
                    None => report.errors.required(&path.child("name"), ""),
                }
                class.finish(report);
            }
            if !classes.is_empty() && protections.persistent_volume_claims.is_some() {
                let classes = ProtectedClaims::StorageClasses(classes.into_iter().collect());
                protections.persistent_volume_claims = Some(classes);
            }
            claims.finish(report);
        }
        config.finish(report);
    }
    of.finish(report);
}
