//! The arguments of strategies. They have the names, defaults and rules of the descheduler's plugins, in both forms of
//! policies.

use std::collections::BTreeSet;

use knarr_apimachinery::document::{Fields, Report};

use super::fields::{compare_thresholds, count, label_selector, names, set, small_count, thresholds};
use super::{
    ConditionFilter, FailedPods, HighNodeUtilization, LowNodeUtilization, Names, NodeAffinity, NodeTaints,
    PodLifeTime, Rule, Scope, Strategy, TooManyRestarts, TopologySpread,
};

/// The descheduler's plugins that are read, and the extension point that each belongs to.
pub(super) const PLUGINS: &[(&str, &str)] = &[
    ("HighNodeUtilization", "balance"),
    ("LowNodeUtilization", "balance"),
    ("PodLifeTime", "deschedule"),
    ("RemoveDuplicates", "balance"),
    ("RemoveFailedPods", "deschedule"),
    ("RemovePodsHavingTooManyRestarts", "deschedule"),
    ("RemovePodsViolatingInterPodAntiAffinity", "deschedule"),
    ("RemovePodsViolatingNodeAffinity", "deschedule"),
    ("RemovePodsViolatingNodeTaints", "deschedule"),
    ("RemovePodsViolatingTopologySpreadConstraint", "balance"),
];

/// Reads the arguments of a plugin of [`PLUGINS`]; `None`: of another one.
pub(super) fn read(plugin: &str, mut fields: Fields, report: &mut Report) -> Option<Strategy> {
    // Arguments are an object of a kind of their own.
    fields.take("apiVersion");
    fields.take("kind");
    let mut scope = Scope::default();
    let is_for_nodes = matches!(plugin, "LowNodeUtilization" | "HighNodeUtilization");
    if is_for_nodes {
        scope.namespaces = evictable_namespaces(&mut fields, report);
    } else {
        scope.namespaces = names(&mut fields, "namespaces", report);
        if plugin != "RemoveDuplicates" {
            scope.label_selector = label_selector(&mut fields, "labelSelector", report);
        }
    }
    let rule = match plugin {
        "RemovePodsViolatingTopologySpreadConstraint" => topology_spread(&mut fields, report),
        "RemovePodsViolatingNodeTaints" => node_taints(&mut fields, report),
        "RemovePodsViolatingInterPodAntiAffinity" => Rule::PodAntiAffinity,
        "PodAffinity" => Rule::PodAffinity,
        "RemovePodsViolatingNodeAffinity" => node_affinity(&mut fields, report),
        "RemoveDuplicates" => {
            scope.owner_kinds = excluded_owner_kinds(&mut fields, report);
            Rule::Duplicates
        }
        "LowNodeUtilization" => low_node_utilization(&mut fields, report),
        "HighNodeUtilization" => high_node_utilization(&mut fields, report),
        "PodLifeTime" => {
            scope.owner_kinds = names(&mut fields, "ownerKinds", report);
            pod_life_time(&mut fields, report)
        }
        "RemovePodsHavingTooManyRestarts" => too_many_restarts(&mut fields, report),
        "RemoveFailedPods" => {
            scope.owner_kinds = excluded_owner_kinds(&mut fields, report);
            failed_pods(&mut fields, report)
        }
        _ => return None,
    };
    fields.finish(report);
    Some(Strategy { scope, rule })
}

/// Pods of excluded namespaces count on their nodes and are not moved.
fn evictable_namespaces(fields: &mut Fields, report: &mut Report) -> Names {
    const NAME: &str = "evictableNamespaces";
    let namespaces = names(fields, NAME, report);
    if matches!(namespaces, Names::Only(_)) {
        let at = fields.at(NAME).child("include");
        report
            .errors
            .forbidden(&at, "only exclude may be set, inclusion is not supported");
    }
    namespaces
}

fn excluded_owner_kinds(fields: &mut Fields, report: &mut Report) -> Names {
    let kinds = set(fields, "excludeOwnerKinds", report);
    if kinds.is_empty() {
        Names::All
    } else {
        Names::Except(kinds)
    }
}

fn topology_spread(fields: &mut Fields, report: &mut Report) -> Rule {
    const VALUES: [&str; 2] = ["DoNotSchedule", "ScheduleAnyway"];
    let mut rule = TopologySpread {
        do_not_schedule: false,
        schedule_anyway: false,
    };
    let given = fields.texts("constraints", report);
    for (value, path) in &given {
        match *value {
            "DoNotSchedule" => rule.do_not_schedule = true,
            "ScheduleAnyway" => rule.schedule_anyway = true,
            other => report.errors.not_supported(path, other, &VALUES),
        }
    }
    if given.is_empty() {
        rule.do_not_schedule = true;
    }
    note_simulation(fields, "topologyBalanceNodeFit", report);
    Rule::TopologySpread(rule)
}

/// A switch for the descheduler's own check of nodes.
pub(super) fn note_simulation(fields: &mut Fields, name: &'static str, report: &mut Report) {
    if fields.boolean(name, report) == Some(false) {
        let detail = "has no effect: a pod is moved only where the scheduler would place it";
        report.note(&fields.at(name), detail);
    }
}

fn node_taints(fields: &mut Fields, report: &mut Report) -> Rule {
    let included = set(fields, "includedTaints", report);
    let rule = NodeTaints {
        include_prefer_no_schedule: fields.boolean("includePreferNoSchedule", report) == Some(true),
        included: Some(included).filter(|taints| !taints.is_empty()),
        excluded: set(fields, "excludedTaints", report),
    };
    if rule.included.is_some() && !rule.excluded.is_empty() {
        let detail = "either includedTaints or excludedTaints may be set, not both";
        report.errors.forbidden(&fields.at("excludedTaints"), detail);
    }
    Rule::NodeTaints(rule)
}

fn node_affinity(fields: &mut Fields, report: &mut Report) -> Rule {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let mut rule = NodeAffinity {
        required: false,
        preferred: false,
    };
    let given = fields.texts("nodeAffinityType", report);
    for (value, path) in &given {
        match *value {
            REQUIRED => rule.required = true,
            PREFERRED => rule.preferred = true,
            other => report.errors.not_supported(path, other, &[REQUIRED, PREFERRED]),
        }
    }
    if given.is_empty() {
        let detail = "nodeAffinityType must be set";
        report.errors.required(&fields.at("nodeAffinityType"), detail);
    }
    Rule::NodeAffinity(rule)
}

fn number_of_nodes(fields: &mut Fields, report: &mut Report) -> usize {
    let number = small_count(fields, "numberOfNodes", report);
    number.and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
}

fn low_node_utilization(fields: &mut Fields, report: &mut Report) -> Rule {
    let rule = LowNodeUtilization {
        thresholds: thresholds(fields, "thresholds", report),
        target_thresholds: thresholds(fields, "targetThresholds", report),
        deviation: fields.boolean("useDeviationThresholds", report) == Some(true),
        number_of_nodes: number_of_nodes(fields, report),
        measured: metrics_utilization(fields, report),
    };
    let at = fields.at("targetThresholds");
    compare_thresholds(
        &rule.thresholds,
        &rule.target_thresholds,
        rule.deviation,
        &at,
        report,
    );
    if let Some(mut limits) = fields.object("evictionLimits", report) {
        if limits.take("node").is_some() {
            let detail = "has no effect: the budget per node counts for all strategies together";
            report.note(&limits.at("node"), detail);
        }
        limits.finish(report);
    }
    Rule::LowNodeUtilization(rule)
}

/// Whether measured usage counts.
fn metrics_utilization(fields: &mut Fields, report: &mut Report) -> bool {
    const SOURCES: [&str; 1] = ["KubernetesMetrics"];
    let Some(mut of) = fields.object("metricsUtilization", report) else {
        return false;
    };
    let server = of.boolean("metricsServer", report) == Some(true);
    let source = of.text("source", report).filter(|source| !source.is_empty());
    if of.take("prometheus").is_some() || source == Some("Prometheus") {
        let detail = "is not supported: usage is read from the metrics API (source KubernetesMetrics)";
        report.errors.forbidden(&of.at("prometheus"), detail);
    } else if let Some(other) = source.filter(|s| !SOURCES.contains(s)) {
        report.errors.not_supported(&of.at("source"), other, &SOURCES);
    }
    if server && source.is_some() {
        let detail = "source and metricsServer must not both be set";
        report.errors.forbidden(&of.at("metricsServer"), detail);
    }
    of.finish(report);
    server || source.is_some()
}

fn high_node_utilization(fields: &mut Fields, report: &mut Report) -> Rule {
    const MODES: [&str; 1] = ["OnlyThresholdingResources"];
    let modes = fields.texts("evictionModes", report);
    for (mode, path) in modes.iter().filter(|(mode, _)| !MODES.contains(mode)) {
        report.errors.not_supported(path, *mode, &MODES);
    }
    Rule::HighNodeUtilization(HighNodeUtilization {
        thresholds: thresholds(fields, "thresholds", report),
        number_of_nodes: number_of_nodes(fields, report),
        only_thresholding_resources: !modes.is_empty(),
    })
}

/// The states of PodLifeTime.
pub(crate) const LIFE_TIME_STATES: [&str; 24] = [
    "CrashLoopBackOff",
    "Completed",
    "ContainerCannotRun",
    "ContainerCreating",
    "CreateContainerConfigError",
    "CreateContainerError",
    "DeadlineExceeded",
    "ErrImagePull",
    "Error",
    "Evicted",
    "Failed",
    "ImagePullBackOff",
    "InvalidImageName",
    "NodeAffinity",
    "NodeLost",
    "OOMKilled",
    "Pending",
    "PodInitializing",
    "Running",
    "Shutdown",
    "StartError",
    "Succeeded",
    "UnexpectedAdmissionError",
    "Unknown",
];

fn states(fields: &mut Fields, allowed: &[&str], report: &mut Report) -> BTreeSet<String> {
    let given = fields.texts("states", report);
    for (state, path) in given.iter().filter(|(state, _)| !allowed.contains(state)) {
        report.errors.not_supported(path, *state, allowed);
    }
    given.into_iter().map(|(state, _)| state.to_string()).collect()
}

fn exit_codes(fields: &mut Fields, report: &mut Report) -> BTreeSet<i32> {
    let mut codes = BTreeSet::new();
    for (item, path) in fields.list("exitCodes", report).unwrap_or_default() {
        match item.as_i64().and_then(|code| i32::try_from(code).ok()) {
            Some(code) => drop(codes.insert(code)),
            None => report
                .errors
                .type_invalid(&path, item, "must be a 32-bit integer"),
        }
    }
    codes
}

fn pod_life_time(fields: &mut Fields, report: &mut Report) -> Rule {
    let given_states: Vec<&str> = match fields.take("states").and_then(serde_json::Value::as_array) {
        Some(states) => states
            .iter()
            .map(|state| state.as_str().unwrap_or_default())
            .collect(),
        None => Vec::new(),
    };
    let mut rule = PodLifeTime {
        max_seconds: count(fields, "maxPodLifeTimeSeconds", report),
        states: states(fields, &LIFE_TIME_STATES, report),
        conditions: Vec::new(),
        exit_codes: exit_codes(fields, report),
        init_containers: fields.boolean("includingInitContainers", report) == Some(true),
        ephemeral_containers: fields.boolean("includingEphemeralContainers", report) == Some(true),
    };
    let empty = ConditionFilter::default();
    for (item, path) in fields.list("conditions", report).unwrap_or_default() {
        let mut of = Fields::new(item, path.clone(), report);
        let text = |text: Option<&str>| text.unwrap_or_default().to_string();
        let filter = ConditionFilter {
            condition_type: text(of.text("type", report)),
            status: text(of.text("status", report)),
            reason: text(of.text("reason", report)),
            min_seconds_since_transition: count(&mut of, "minTimeSinceLastTransitionSeconds", report),
        };
        of.finish(report);
        if filter == empty {
            let detail =
                "at least one of type, status, reason and minTimeSinceLastTransitionSeconds must be set";
            report.errors.required(&path, detail);
        }
        rule.conditions.push(filter);
    }
    // A pod that was just created may be in one of these states: its replacement would be replaced at once, too.
    let has_age = rule.max_seconds.is_some() || !rule.conditions.is_empty() || !rule.exit_codes.is_empty();
    for (n, state) in given_states.iter().enumerate() {
        if !has_age
            && matches!(
                *state,
                "Running" | "Pending" | "PodInitializing" | "ContainerCreating"
            )
        {
            let at = fields.at("states").index(n);
            let detail = "needs maxPodLifeTimeSeconds, or new pods are replaced again and again";
            report.errors.invalid(&at, *state, detail);
        }
    }
    let has_criterion = rule.max_seconds.is_some()
        || !rule.states.is_empty()
        || !rule.conditions.is_empty()
        || !rule.exit_codes.is_empty();
    if !has_criterion {
        let detail = "at least one of maxPodLifeTimeSeconds, states, conditions and exitCodes must be set";
        report.errors.required(&fields.path, detail);
    }
    Rule::PodLifeTime(rule)
}

fn too_many_restarts(fields: &mut Fields, report: &mut Report) -> Rule {
    let threshold = fields.integer("podRestartThreshold", report);
    if threshold.unwrap_or(0) < 1 {
        let at = fields.at("podRestartThreshold");
        let detail = "must be greater than 0";
        report.errors.invalid(&at, threshold.unwrap_or(0), detail);
    }
    Rule::TooManyRestarts(TooManyRestarts {
        threshold: threshold.unwrap_or(1).into(),
        init_containers: fields.boolean("includingInitContainers", report) == Some(true),
        states: states(fields, &["CrashLoopBackOff", "Running"], report),
    })
}

fn failed_pods(fields: &mut Fields, report: &mut Report) -> Rule {
    Rule::FailedPods(FailedPods {
        min_seconds: count(fields, "minPodLifetimeSeconds", report),
        reasons: set(fields, "reasons", report),
        exit_codes: exit_codes(fields, report),
        init_containers: fields.boolean("includingInitContainers", report) == Some(true),
    })
}
