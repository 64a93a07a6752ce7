//! RebalancePolicy: knarr's own form of a policy. One in a namespace is for the pods of that namespace, one without for
//! all. Its strategies have the arguments of the descheduler's plugins.
//!
//! ```yaml
//! spec:
//!   dryRun: true                                  # the default: the plan is only shown
//!   namespaces: {exclude: [kube-system]}          # or include; for policies without a namespace
//!   nodeSelector: {matchLabels: {pool: general}}  # pods are moved away from these nodes only
//!   gracePeriodSeconds: 60
//!   budgets: {perHour: 60, perNode: 10, perNamespace: 20, perWorkload: 10, atOncePerWorkload: 1}
//!   strategies:
//!     topologySpread: {constraints: [DoNotSchedule, ScheduleAnyway]}
//!     podAntiAffinity: {}
//!   protections: {minReplicas: 2, minPodAge: 5m, priorityThreshold: {value: 10000}}
//! ```

use std::collections::BTreeSet;

use knarr_apimachinery::document::{Fields, Report};
use knarr_apimachinery::field::{ErrorList, Path};
use serde_json::Value;

use super::fields::{count, label_selector, min_pod_age, names, priority_threshold, set, small_count};
use super::{Budgets, Names, Policy, Profile, ProtectedClaims, Protections, Read, Strategy, strategy_args};

/// The strategies by the name of their field.
const STRATEGIES: [(&str, &str); 11] = [
    ("topologySpread", "RemovePodsViolatingTopologySpreadConstraint"),
    ("nodeTaints", "RemovePodsViolatingNodeTaints"),
    ("podAntiAffinity", "RemovePodsViolatingInterPodAntiAffinity"),
    ("podAffinity", "PodAffinity"),
    ("nodeAffinity", "RemovePodsViolatingNodeAffinity"),
    ("duplicates", "RemoveDuplicates"),
    ("lowNodeUtilization", "LowNodeUtilization"),
    ("highNodeUtilization", "HighNodeUtilization"),
    ("podLifeTime", "PodLifeTime"),
    ("tooManyRestarts", "RemovePodsHavingTooManyRestarts"),
    ("failedPods", "RemoveFailedPods"),
];

/// The budgets of a policy that has none: a cluster of some hundred nodes is balanced within a working day, and an
/// error in a policy harms few pods before a user notices.
pub const DEFAULT_BUDGETS: Budgets = Budgets {
    per_hour: Some(60),
    per_node: Some(10),
    per_namespace: None,
    per_workload: Some(10),
    at_once_per_workload: 1,
};

/// Reads the spec of the policy with this name; `namespace` is empty for one without.
///
/// # Examples
///
/// ```
/// use knarr_rebalance::policy::rebalance_policy;
/// use serde_json::json;
///
/// let spec = json!({"strategies": {"topologySpread": {}}, "budgets": {"perHour": 5}});
/// let policy = rebalance_policy::read("spread", "", &spec).expect("possible values");
/// assert!(policy.dry_run && policy.budgets.per_hour == Some(5));
///
/// let spec = json!({"strategies": {"lowNodeUtilization": {"thresholds": {"cpu": 120}}}, "budgets": {"perHour": -1}});
/// let errors = rebalance_policy::read("low", "", &spec).expect_err("impossible values").to_string();
/// assert!(errors.contains("spec.strategies.lowNodeUtilization.thresholds[cpu]"), "{errors}");
/// assert!(errors.contains("spec.budgets.perHour"), "{errors}");
/// ```
pub fn read(name: &str, namespace: &str, spec: &Value) -> Result<Policy, ErrorList> {
    read_with_notes(name, namespace, spec).map(|read| read.policy)
}

/// As [`read`], with what of the spec has no effect.
pub fn read_with_notes(name: &str, namespace: &str, spec: &Value) -> Result<Read, ErrorList> {
    let mut report = Report::default();
    let report = &mut report;
    let mut fields = Fields::new(spec, Path::new("spec"), report);
    let dry_run = fields.boolean("dryRun", report).unwrap_or(true);
    let namespaces = names(&mut fields, "namespaces", report);
    let namespaces = match namespace {
        "" => namespaces,
        own => {
            if namespaces != Names::All {
                let detail = "the policy has a namespace, and is for its pods";
                report.errors.forbidden(&fields.at("namespaces"), detail);
            }
            Names::Only(BTreeSet::from([own.to_string()]))
        }
    };
    let node_selector = label_selector(&mut fields, "nodeSelector", report);
    let grace_period_seconds = count(&mut fields, "gracePeriodSeconds", report);
    let budgets = match fields.object("budgets", report) {
        Some(of) => read_budgets(of, report),
        None => DEFAULT_BUDGETS,
    };
    let protections = match fields.object("protections", report) {
        Some(of) => read_protections(of, report),
        None => Protections::usual(),
    };
    let strategies = read_strategies(&mut fields, &namespaces, report);
    fields.finish(report);
    if !report.errors.is_empty() {
        return Err(std::mem::take(&mut report.errors));
    }
    let policy = Policy {
        name: name.to_string(),
        dry_run,
        profiles: vec![Profile {
            name: name.to_string(),
            protections,
            strategies,
        }],
        node_selector,
        budgets,
        grace_period_seconds,
    };
    Ok(Read {
        policy,
        ignored: std::mem::take(&mut report.notes),
    })
}

fn read_strategies(fields: &mut Fields, namespaces: &Names, report: &mut Report) -> Vec<Strategy> {
    let mut strategies = Vec::new();
    let at = fields.at("strategies");
    if let Some(mut of) = fields.object("strategies", report) {
        for (field, plugin) in STRATEGIES {
            let Some(args) = of.object(field, report) else {
                continue;
            };
            if let Some(mut strategy) = strategy_args::read(plugin, args, report) {
                if strategy.scope.namespaces == Names::All {
                    strategy.scope.namespaces = namespaces.clone();
                } else if *namespaces != Names::All {
                    let name = match field {
                        "lowNodeUtilization" | "highNodeUtilization" => "evictableNamespaces",
                        _ => "namespaces",
                    };
                    let detail = "the policy has namespaces already";
                    report.errors.forbidden(&of.at(field).child(name), detail);
                }
                strategies.push(strategy);
            }
        }
        of.finish(report);
    }
    if strategies.is_empty() && report.errors.is_empty() {
        let known: Vec<&str> = STRATEGIES.iter().map(|(field, _)| *field).collect();
        report
            .errors
            .required(&at, format!("at least one of {}", known.join(", ")));
    }
    strategies
}

fn read_budgets(mut fields: Fields, report: &mut Report) -> Budgets {
    let mut budgets = Budgets {
        per_hour: small_count(&mut fields, "perHour", report).or(DEFAULT_BUDGETS.per_hour),
        per_node: small_count(&mut fields, "perNode", report).or(DEFAULT_BUDGETS.per_node),
        per_namespace: small_count(&mut fields, "perNamespace", report),
        per_workload: small_count(&mut fields, "perWorkload", report).or(DEFAULT_BUDGETS.per_workload),
        at_once_per_workload: DEFAULT_BUDGETS.at_once_per_workload,
    };
    if let Some(at_once) = small_count(&mut fields, "atOncePerWorkload", report) {
        if at_once == 0 {
            let at = fields.at("atOncePerWorkload");
            report.errors.invalid(&at, at_once, "must be greater than 0");
        }
        budgets.at_once_per_workload = at_once.max(1);
    }
    fields.finish(report);
    budgets
}

fn read_protections(mut fields: Fields, report: &mut Report) -> Protections {
    let mut protections = Protections::usual();
    let of = &mut fields;
    protections.label_selector = label_selector(of, "labelSelector", report);
    protections.namespace_selector = label_selector(of, "namespaceSelector", report);
    protections.node_selector = label_selector(of, "destinationSelector", report);
    protections.priority_threshold = priority_threshold(of, report);
    let replicas = small_count(of, "minReplicas", report);
    protections.min_replicas = replicas.and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    protections.min_pod_age = min_pod_age(of, report);
    protections.preference_is_mandatory = of.boolean("preferNoEvictionIsMandatory", report) == Some(true);
    if let Some(protect) = of.boolean("localStorage", report) {
        protections.local_storage = protect;
    }
    if let Some(protect) = of.boolean("systemCritical", report) {
        protections.system_critical = protect;
    }
    if of.boolean("persistentVolumeClaims", report) == Some(true) {
        protections.persistent_volume_claims = Some(ProtectedClaims::All);
    }
    let classes = set(of, "storageClasses", report);
    if !classes.is_empty() {
        protections.persistent_volume_claims = Some(ProtectedClaims::StorageClasses(classes));
    }
    protections.without_disruption_budget = of.boolean("withoutDisruptionBudget", report) == Some(true);
    fields.finish(report);
    protections
}
